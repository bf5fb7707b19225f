"""Layers: one or two operations with the parameters that belong to them, written into a
:class:`Draft`.

A layer ``name`` owns the parameters ``name.weight`` and ``name.bias`` (PyTorch's names and
layouts), and its node and output are called ``name``. Images are (N, C, H, W).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from meta500.graph import Builder, Model, ops
from meta500.models import arguments
from meta500.models.initialization import BIAS, WEIGHT, initialize

BATCH_NORM_EPSILON = 1e-5
# Share of the old running statistic that a training step keeps: PyTorch's momentum 0.1 is 1 - 0.9.
BATCH_NORM_MOMENTUM = 0.9


@dataclass(frozen=True)
class Draft:
    """A network in the making: its builder, and how its parameters begin."""

    builder: Builder
    initialization: str
    seed: int
    dtype: np.dtype

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """A parameter of ``shape`` with this network's initialisation."""
        return self._parameter(name, shape, shape, WEIGHT)

    def bias(self, name: str, length: int, weight_shape: tuple[int, ...]) -> str:
        """The bias (length,) of the layer whose weight has ``weight_shape``."""
        return self._parameter(name, (length,), weight_shape, BIAS)

    def filled(self, name: str, length: int, value: float) -> str:
        """A parameter (length,) that begins as ``value`` whatever the initialisation."""
        return self.builder.parameter(name, np.full(length, value, self.dtype))

    def statistic(self, name: str, length: int, value: float) -> str:
        """A tensor (length,) that is not trained."""
        return self.builder.constant(np.full(length, value, self.dtype), name)

    def _parameter(self, name: str, shape: tuple[int, ...], weight_shape: tuple[int, ...], role: str) -> str:
        value = initialize(
            self.initialization,
            name,
            shape,
            weight_shape=weight_shape,
            role=role,
            seed=self.seed,
            dtype=self.dtype,
        )
        value.flags.writeable = False
        return self.builder.parameter(name, value)


def draft(name: str, *, initialization: Any, seed: Any, dtype: Any) -> Draft:
    """An empty network ``name``.

    Raises:
        UserError: unknown initialisation or dtype, or a seed that is no integer of at least 0.
    """
    return Draft(
        builder=Builder(name),
        initialization=arguments.initialization_name(initialization),
        seed=arguments.integer("seed", seed, minimum=0),
        dtype=arguments.floating(dtype),
    )


def finish(
    net: Draft,
    logits: str,
    label: tuple[int | str, ...] | None,
    options: Mapping[str, Any],
    *,
    ignore: int | None = None,
    auxiliary: Mapping[str, float] = MappingProxyType({}),
) -> Model:
    """Name the output "logits", append the loss, and build.

    The loss is SoftmaxCrossEntropyLoss with reduction "mean" (over all labels) of the logits (N,
    classes, ...) against an input "label" (N, ...) int64, plus ``weight`` times that of each auxiliary
    head.

    Args:
        net: the network.
        logits: value that becomes the output "logits".
        label: shape of the input "label"; None for a network without a loss.
        options: what the network was made with; stays visible in the model's metadata, as do the
            initialisation and the seed.
        ignore: label value that the loss leaves out (ONNX: ignore_index).
        auxiliary: weight in the loss by value (N, classes) of an auxiliary head; outputs too, under the
            names that they have.
    """
    builder = net.builder
    builder.output(logits, "logits")
    for name in auxiliary:
        builder.output(name)
    if label is not None:
        target = builder.input("label", np.int64, label)
        known: dict[str, Any] = {} if ignore is None else {"ignore_index": ignore}
        if not auxiliary:
            loss = builder.add(ops.SoftmaxCrossEntropyLoss, "logits", target, outputs=["loss"], **known)
        else:
            loss = builder.add(ops.SoftmaxCrossEntropyLoss, "logits", target, name="logits.loss", **known)
            parts = [loss]
            for name, weight in auxiliary.items():
                part = builder.add(ops.SoftmaxCrossEntropyLoss, name, target, name=f"{name}.loss", **known)
                factor = builder.constant(np.asarray(weight, net.dtype), f"{name}.loss.weight")
                parts.append(builder.add(ops.Mul, part, factor, name=f"{name}.share"))
            loss = builder.add(ops.Sum, parts, outputs=["loss"])
        builder.output(loss)
    return builder.build(
        {
            "meta500.model": builder.name,
            "meta500.options": json.dumps(dict(options), sort_keys=True),
            "meta500.initialization": net.initialization,
            "meta500.seed": str(net.seed),
        }
    )


def convolution(
    net: Draft,
    x: str,
    name: str,
    channels: tuple[int, int],
    kernel: int = 3,
    *,
    stride: int = 1,
    pad: int = 0,
    groups: int = 1,
    bias: bool = True,
) -> str:
    """2-D convolution (N, c_in, H, W) -> (N, c_out, H', W'); ``channels`` is (c_in, c_out).

    H' = (H + 2 pad - kernel) / stride + 1, rounded down. ``name.weight`` is (c_out, c_in / groups, kernel,
    kernel), ``name.bias`` (c_out,). ``groups`` divides both numbers of channels; with c_in groups the
    convolution is depthwise. ONNX: Conv.
    """
    c_in, c_out = channels
    shape = (c_out, c_in // groups, kernel, kernel)
    more: dict[str, Any] = {"group": groups} if groups > 1 else {}
    weight = net.weight(f"{name}.weight", shape)
    return net.builder.add(
        ops.Conv,
        x,
        weight,
        net.bias(f"{name}.bias", c_out, shape) if bias else None,
        name=name,
        kernel_shape=(kernel, kernel),
        strides=(stride, stride),
        pads=(pad,) * 4,
        **more,
    )


def transposed_convolution(
    net: Draft,
    x: str,
    name: str,
    channels: tuple[int, int],
    kernel: int = 2,
    *,
    stride: int = 2,
    pad: int = 0,
    bias: bool = True,
) -> str:
    """2-D transposed convolution (N, c_in, H, W) -> (N, c_out, H', W'); ``channels`` is (c_in,
    c_out).

    H' = (H - 1) stride - 2 pad + kernel. ``name.weight`` is (c_in, c_out, kernel, kernel),
    ``name.bias`` (c_out,). ONNX: ConvTranspose.
    """
    c_in, c_out = channels
    shape = (c_in, c_out, kernel, kernel)
    weight = net.weight(f"{name}.weight", shape)
    return net.builder.add(
        ops.ConvTranspose,
        x,
        weight,
        net.bias(f"{name}.bias", c_out, shape) if bias else None,
        name=name,
        kernel_shape=(kernel, kernel),
        strides=(stride, stride),
        pads=(pad,) * 4,
    )


def linear(net: Draft, x: str, name: str, channels: tuple[int, int], *, bias: bool = True) -> str:
    """x W^T + b: (N, c_in) -> (N, c_out); ``channels`` is (c_in, c_out).

    ``name.weight`` is (c_out, c_in), ``name.bias`` (c_out,). ONNX: Gemm with transB.
    """
    c_in, c_out = channels
    shape = (c_out, c_in)
    weight = net.weight(f"{name}.weight", shape)
    return net.builder.add(
        ops.Gemm,
        x,
        weight,
        net.bias(f"{name}.bias", c_out, shape) if bias else None,
        name=name,
        transB=1,
    )


def batch_norm(
    net: Draft,
    x: str,
    name: str,
    channels: int,
    *,
    gamma: float = 1.0,
    epsilon: float = BATCH_NORM_EPSILON,
) -> str:
    """Batch normalisation over N, H and W that follows the mode: batch statistics in training
    steps.

    ``name.weight`` begins as ``gamma`` and ``name.bias`` as 0, both (channels,), whatever the
    network's initialisation; ``name.running_mean`` (0) and ``name.running_var`` (1) are not
    trained. ``epsilon`` is added to the variance; a training step keeps 0.9 of the running statistics.
    ONNX: BatchNormalization. Source: Ioffe and Szegedy, "Batch Normalization", ICML 2015.
    """
    return net.builder.add(
        ops.BatchNormalization,
        x,
        net.filled(f"{name}.weight", channels, gamma),
        net.filled(f"{name}.bias", channels, 0.0),
        net.statistic(f"{name}.running_mean", channels, 0.0),
        net.statistic(f"{name}.running_var", channels, 1.0),
        name=name,
        epsilon=epsilon,
        momentum=BATCH_NORM_MOMENTUM,
        follow_mode=True,
    )


def relu(net: Draft, x: str, name: str) -> str:
    """max(x, 0), elementwise. ONNX: Relu."""
    return net.builder.add(ops.Relu, x, name=name)


def tanh(net: Draft, x: str, name: str) -> str:
    """tanh(x), elementwise. ONNX: Tanh."""
    return net.builder.add(ops.Tanh, x, name=name)


def relu6(net: Draft, x: str, name: str) -> str:
    """min(max(x, 0), 6), elementwise. ONNX: Clip."""
    low, high = (
        net.builder.constant(np.asarray(value, net.dtype), f"{name}.{side}")
        for side, value in (("low", 0.0), ("high", 6.0))
    )
    return net.builder.add(ops.Clip, x, low, high, name=name)


def dropout(net: Draft, x: str, name: str, ratio: float = 0.5) -> str:
    """Zero each element with probability ``ratio`` in training steps and scale the others by 1 / (1 -
    ratio); the identity in inference. ONNX: Dropout. Source: Srivastava et al., "Dropout", JMLR 2014.
    """
    rate = net.builder.constant(np.asarray(ratio, net.dtype), f"{name}.ratio")
    return net.builder.add(ops.Dropout, x, rate, name=name, follow_mode=True)


def max_pool(
    net: Draft,
    x: str,
    name: str,
    kernel: int = 2,
    *,
    stride: int | None = None,
    pad: int = 0,
    ceil: bool = False,
) -> str:
    """Largest value of each window (padding never wins). ONNX: MaxPool.

    ``stride`` is ``kernel`` by default. With ``ceil`` the number of windows is rounded up, the last one
    reaching over the border.
    """
    more: dict[str, Any] = {"ceil_mode": 1} if ceil else {}
    return net.builder.add(ops.MaxPool, x, name=name, **_window(kernel, stride, pad), **more)


def average_pool(
    net: Draft, x: str, name: str, kernel: int = 2, *, stride: int | None = None, pad: int = 0
) -> str:
    """Mean of each window (padding not counted). ONNX: AveragePool.

    ``stride`` is ``kernel`` by default.
    """
    return net.builder.add(ops.AveragePool, x, name=name, **_window(kernel, stride, pad))


def _window(kernel: int, stride: int | None, pad: int) -> dict[str, Any]:
    step = kernel if stride is None else stride
    return {"kernel_shape": (kernel, kernel), "strides": (step, step), "pads": (pad,) * 4}


def global_average_pool(net: Draft, x: str, name: str) -> str:
    """(N, C, H, W) -> (N, C): mean over H and W. ONNX: GlobalAveragePool and Flatten."""
    pooled = net.builder.add(ops.GlobalAveragePool, x, name=name)
    return flatten(net, pooled, f"{name}.flat")


def flatten(net: Draft, x: str, name: str) -> str:
    """(N, ...) -> (N, everything else). ONNX: Flatten."""
    return net.builder.add(ops.Flatten, x, name=name)


def concatenate(net: Draft, values: tuple[str, ...], name: str) -> str:
    """Join along the channels. ONNX: Concat, axis 1."""
    return net.builder.add(ops.Concat, values, name=name, axis=1)


def add(net: Draft, a: str, b: str, name: str) -> str:
    """a + b, of the same shape. ONNX: Add."""
    return net.builder.add(ops.Add, a, b, name=name)
