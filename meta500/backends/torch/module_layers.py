"""The standard PyTorch layer of each ONNX operation, where there is one that means the same."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from meta500.backends.torch.module import BACKEND, Draft, refusal
from meta500.backends.torch.operators.windows import explicit_pads, per_axis
from meta500.graph import Operation, Visitor, ops
from meta500.graph.passes import FOLLOW, MODE_KEY

Ints = tuple[int, ...]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
_AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_GLOBAL_AVERAGES = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_GLOBAL_MAXIMA = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)


class LayerVisitor(Visitor):
    """Adds the layer or function of each operation to a :class:`Draft`; refuses what has none."""

    backend = BACKEND

    def visit_conv(self, op: ops.Conv, network: Draft) -> None:
        weight = _weight(op, network, "W")
        rank = _spatial(op, weight.ndim - 2)
        layer = _CONVOLUTIONS[rank - 1](
            weight.shape[1] * op.group,
            weight.shape[0],
            tuple(weight.shape[2:]),
            per_axis(op.label, "strides", op.strides, rank),
            _symmetric(op, rank),
            per_axis(op.label, "dilations", op.dilations, rank),
            op.group,
            bias=bool(op.B),
        )
        _fill(op, network, layer, weight="W", bias="B")
        network.layer(op, layer)

    def visit_convtranspose(self, op: ops.ConvTranspose, network: Draft) -> None:
        weight = _weight(op, network, "W")
        rank = _spatial(op, weight.ndim - 2)
        if op.output_shape is not None:
            raise refusal(op, "output_shape has no standard layer; write pads and output_padding")
        layer = _TRANSPOSED[rank - 1](
            weight.shape[0],
            weight.shape[1] * op.group,
            tuple(weight.shape[2:]),
            per_axis(op.label, "strides", op.strides, rank),
            _symmetric(op, rank),
            per_axis(op.label, "output_padding", op.output_padding, rank, default=0),
            op.group,
            bias=bool(op.B),
            dilation=per_axis(op.label, "dilations", op.dilations, rank),
        )
        _fill(op, network, layer, weight="W", bias="B")
        network.layer(op, layer)

    def visit_batchnormalization(self, op: Any, network: Draft) -> None:
        if op.metadata.get(MODE_KEY) != FOLLOW:
            raise refusal(
                op,
                "it has the same statistics in training as in inference, unlike nn.BatchNorm; mark the node "
                f"with the metadata {MODE_KEY}={FOLLOW} if it is meant to follow the mode",
            )
        # Rank 2 and 3 are BatchNorm1d's.
        rank = network.rank(op, op.X)
        if not 2 <= rank <= 5:
            raise refusal(op, f"its input has {rank} axes; nn.BatchNorm takes 2 to 5")
        channels = _weight(op, network, "scale").shape[0]
        layer = _NORMALIZATIONS[rank - 2](channels, eps=op.epsilon, momentum=1 - op.momentum)
        _fill(op, network, layer, weight="scale", bias="B")
        for buffer, field in (("running_mean", "input_mean"), ("running_var", "input_var")):
            value = network.constant(op, field)
            setattr(layer, buffer, torch.from_numpy(np.array(value)))
        network.layer(op, layer)

    def visit_gemm(self, op: ops.Gemm, network: Draft) -> None:
        if op.alpha != 1 or op.beta != 1 or op.transA:
            raise refusal(
                op, f"alpha {op.alpha:g}, beta {op.beta:g}, transA {op.transA}; nn.Linear has 1, 1 and 0"
            )
        weight = _weight(op, network, "B")
        inputs, outputs = weight.shape[::-1] if op.transB else weight.shape
        layer = nn.Linear(inputs, outputs, bias=bool(op.C))
        layer.weight = network.parameter(op.B, turned=not op.transB)
        if op.C:
            if _weight(op, network, "C").shape != (outputs,):
                raise refusal(op, f"C has the shape {network.initializers[op.C].shape}, a bias {(outputs,)}")
            layer.bias = network.parameter(op.C)
        network.layer(op, layer)

    def visit_matmul(self, op: ops.MatMul, network: Draft) -> None:
        matrix = network.initializers.get(op.B)
        if matrix is None or matrix.ndim != 2 or op.B not in network.model.parameters:
            network.call(op, torch.matmul, network.value(op.A), network.value(op.B))
            return
        layer = nn.Linear(*matrix.shape, bias=False)
        layer.weight = network.parameter(op.B, turned=True)
        network.layer(op, layer, op.A)

    def visit_maxpool(self, op: Any, network: Draft) -> None:
        if len(op.results) > 1:
            raise refusal(op, "its second output, Indices, counts over the whole tensor; nn.MaxPool's do not")
        rank = _spatial(op, len(op.kernel_shape))
        layer = _MAX_POOLS[rank - 1](
            op.kernel_shape,
            per_axis(op.label, "strides", op.strides, rank),
            _window_padding(op, rank),
            per_axis(op.label, "dilations", op.dilations, rank),
            ceil_mode=bool(op.ceil_mode),
        )
        network.layer(op, layer)

    def visit_averagepool(self, op: Any, network: Draft) -> None:
        rank = _spatial(op, len(op.kernel_shape))
        if max(per_axis(op.label, "dilations", op.dilations, rank)) > 1:
            raise refusal(op, f"dilations {op.dilations}; nn.AvgPool has none")
        layer = _AVERAGE_POOLS[rank - 1](
            op.kernel_shape,
            per_axis(op.label, "strides", op.strides, rank),
            _window_padding(op, rank),
            ceil_mode=bool(op.ceil_mode),
            count_include_pad=bool(op.count_include_pad),
        )
        network.layer(op, layer)

    def visit_globalaveragepool(self, op: ops.GlobalAveragePool, network: Draft) -> None:
        network.layer(op, _GLOBAL_AVERAGES[_spatial(op, network.rank(op, op.X) - 2) - 1](1))

    def visit_globalmaxpool(self, op: ops.GlobalMaxPool, network: Draft) -> None:
        network.layer(op, _GLOBAL_MAXIMA[_spatial(op, network.rank(op, op.X) - 2) - 1](1))

    def visit_dropout(self, op: ops.Dropout, network: Draft) -> None:
        if len(op.results) > 1:
            raise refusal(op, "its second output, the mask, is none of nn.Dropout's")
        ratio = network.constant(op, "ratio")
        always = network.constant(op, "training_mode")
        if always is not None and bool(always):
            raise refusal(op, "it drops in inference too; nn.Dropout does not")
        share = 0.5 if ratio is None else float(ratio)
        follows = op.metadata.get(MODE_KEY) == FOLLOW
        network.layer(op, nn.Dropout(share) if follows else nn.Identity())

    def visit_lrn(self, op: Any, network: Draft) -> None:
        if op.size % 2 == 0:
            raise refusal(
                op, f"size {op.size}: nn.LocalResponseNorm looks further the other way; take an odd size"
            )
        network.layer(op, nn.LocalResponseNorm(op.size, op.alpha, op.beta, op.bias))

    def visit_relu(self, op: ops.Relu, network: Draft) -> None:
        network.layer(op, nn.ReLU())

    def visit_clip(self, op: ops.Clip, network: Draft) -> None:
        low, high = network.constant(op, "min"), network.constant(op, "max")
        # Before version 11 absent limits are the largest float32 numbers.
        if low is None and high is None:
            network.layer(op, nn.Identity(), op.operands[0])
            return
        if low is None or high is None or max(-float(low), float(high)) > 1e38:
            if low is not None and float(low) == 0:
                network.layer(op, nn.ReLU())
                return
            limits = [None if limit is None else float(limit) for limit in (low, high)]
            network.call(op, torch.clamp, network.value(op.operands[0]), *limits)
            return
        bounds = float(low), float(high)
        network.layer(op, nn.ReLU6() if bounds == (0.0, 6.0) else nn.Hardtanh(*bounds), op.operands[0])

    def visit_leakyrelu(self, op: ops.LeakyRelu, network: Draft) -> None:
        network.layer(op, nn.LeakyReLU(op.alpha))

    def visit_elu(self, op: ops.Elu, network: Draft) -> None:
        network.layer(op, nn.ELU(op.alpha))

    def visit_sigmoid(self, op: ops.Sigmoid, network: Draft) -> None:
        network.layer(op, nn.Sigmoid())

    def visit_tanh(self, op: ops.Tanh, network: Draft) -> None:
        network.layer(op, nn.Tanh())

    def visit_hardswish(self, op: ops.HardSwish, network: Draft) -> None:
        network.layer(op, nn.Hardswish())

    def visit_gelu(self, op: ops.Gelu, network: Draft) -> None:
        network.layer(op, nn.GELU(approximate=op.approximate))

    def visit_softmax(self, op: ops.Softmax, network: Draft) -> None:
        network.layer(op, nn.Softmax(_softmax_axis(op, network)))

    def visit_logsoftmax(self, op: ops.LogSoftmax, network: Draft) -> None:
        network.layer(op, nn.LogSoftmax(_softmax_axis(op, network)))

    def visit_identity(self, op: ops.Identity, network: Draft) -> None:
        network.layer(op, nn.Identity())

    def visit_constant(self, op: ops.Constant, network: Draft) -> None:
        value = op.attributes.get("value")
        if not isinstance(value, np.ndarray):
            raise refusal(op, "only a constant with a tensor ('value') becomes a buffer; use that form")
        network.initializers[op.results[0]] = value

    def visit_add(self, op: ops.Add, network: Draft) -> None:
        _elementwise(op, network, operator.add)

    def visit_sub(self, op: ops.Sub, network: Draft) -> None:
        _elementwise(op, network, operator.sub)

    def visit_mul(self, op: ops.Mul, network: Draft) -> None:
        _elementwise(op, network, operator.mul)

    def visit_div(self, op: ops.Div, network: Draft) -> None:
        _elementwise(op, network, _quotient)

    def visit_concat(self, op: ops.Concat, network: Draft) -> None:
        network.call(op, torch.cat, tuple(network.value(name) for name in op.operands), op.axis)

    def visit_flatten(self, op: Any, network: Draft) -> None:
        x = network.value(op.operands[0])
        axis = op.axis if op.axis >= 0 else op.axis + network.rank(op, op.operands[0])
        if axis == 1:
            network.call(op, torch.flatten, x, 1)
        elif axis == 0:
            network.call(op, torch.reshape, x, (1, -1))
        else:
            network.call(op, torch.flatten, network.graph.call_function(torch.flatten, (x, 0, axis - 1)), 1)

    def visit_reshape(self, op: ops.Reshape, network: Draft) -> None:
        shape = network.constant(op, "shape")
        assert shape is not None
        x = network.value(op.operands[0])
        copies = not getattr(op, "allowzero", None)
        sizes = [
            network.graph.call_method("size", (x, axis)) if copies and not size else int(size)
            for axis, size in enumerate(shape.tolist())
        ]
        network.call(op, torch.reshape, x, tuple(sizes))

    def visit_transpose(self, op: ops.Transpose, network: Draft) -> None:
        order = op.perm or tuple(reversed(range(network.rank(op, op.operands[0]))))
        network.call(op, torch.permute, network.value(op.operands[0]), tuple(order))

    def visit_slice(self, op: ops.Slice, network: Draft) -> None:
        starts, ends = network.constant(op, "starts"), network.constant(op, "ends")
        axes, steps = network.constant(op, "axes"), network.constant(op, "steps")
        assert starts is not None and ends is not None
        rank = network.rank(op, op.operands[0])
        where = range(len(starts)) if axes is None else axes.tolist()
        parts = [slice(None)] * rank
        for place, axis in enumerate(where):
            step = 1 if steps is None else int(steps[place])
            if step < 1:
                raise refusal(op, f"step {step} along axis {axis}; slices of tensors go forwards only")
            parts[axis] = slice(int(starts[place]), int(ends[place]), step)
        network.call(op, operator.getitem, network.value(op.operands[0]), tuple(parts))


def _elementwise(op: Operation, network: Draft, function: Any) -> None:
    if op.since_version < 7:
        raise refusal(op, "before version 7 it broadcasts by attributes; convert the model to a newer opset")
    network.call(op, function, *(network.value(name) for name in op.operands))


def _quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a / b; of integers the whole part, as ONNX has it."""
    whole = not (a.is_floating_point() or b.is_floating_point())
    return torch.div(a, b, rounding_mode="trunc" if whole else None)


def _softmax_axis(op: Any, network: Draft) -> int:
    """The axis of one; before version 13 it ran over all axes from the given one on."""
    axis: int = op.axis
    if op.since_version < 13 and axis not in (-1, network.rank(op, op.operands[0]) - 1):
        raise refusal(op, f"axis {axis} of version {op.since_version} takes all axes from there on together")
    return axis


def _weight(op: Operation, network: Draft, field: str) -> np.ndarray:
    """The initializer that a layer owns."""
    value = network.initializers.get(getattr(op, field))
    if value is None:
        raise refusal(op, f"'{field}' is no initializer, and a layer owns its weights; make it one")
    return value


def _fill(op: Operation, network: Draft, layer: nn.Module, **fields: str) -> None:
    """Put the node's initializers into the layer's parameters."""
    for parameter, field in fields.items():
        name = getattr(op, field)
        if name:
            _weight(op, network, field)
            setattr(layer, parameter, network.parameter(name))


def _spatial(op: Operation, rank: int) -> int:
    if not 1 <= rank <= 3:
        raise refusal(op, f"it has {rank} spatial axes; PyTorch's layers have 1 to 3")
    return rank


def _symmetric(op: Any, rank: int) -> Ints:
    """The padding of both ends.

    Raises:
        UnsupportedOperation: padding that depends on the size of the input, differs between the ends, or is
            negative.
    """
    if op.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        raise refusal(op, f"auto_pad {op.auto_pad} depends on the size of the input; write the pads out")
    begin, end = explicit_pads(op.label, op.auto_pad, op.pads, rank)
    if begin != end or min(begin) < 0:
        raise refusal(op, f"pads {op.pads}: PyTorch's layers pad both ends alike; put a Pad in front of it")
    return begin


def _window_padding(op: Any, rank: int) -> Ints:
    """The padding of a pooling, which PyTorch wants to be at most half of the window."""
    padding = _symmetric(op, rank)
    if any(2 * p > k for p, k in zip(padding, op.kernel_shape, strict=True)):
        raise refusal(
            op,
            f"pads {op.pads} are more than half of the window {_text(op.kernel_shape)}; pad by less",
        )
    if op.ceil_mode and op.auto_pad == "VALID":
        raise refusal(op, "ceil_mode with auto_pad VALID is ambiguous in ONNX; write auto_pad NOTSET")
    return padding


def _text(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))
