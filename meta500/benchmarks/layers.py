"""Level 0 of the main job: the operators of the U-Net, forward and backward, on several backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.network import Network, network
from meta500.benchmarks.protocol import (
    SETTLE_SECONDS,
    Emit,
    Protocol,
    label,
    made,
    ratio_row,
    shape_text,
    who,
    who_from,
)
from meta500.graph import Builder, Model, TensorType, ops
from meta500.metrics.clocks import Timing, interleave
from meta500.metrics.norms import ErrorNorms, compare, tolerance
from meta500.metrics.rows import Row

FORWARD, BACKWARD = "forward", "forward+backward"


@dataclass(frozen=True)
class Layer:
    """One operator with inputs of a fixed shape.

    ``reduction`` is the number of terms in the longest sum behind one element of the output or of a
    gradient: it scales the error that rounding explains.
    """

    name: str
    operator: str
    model: Model
    inputs: dict[str, np.ndarray]
    reduction: int

    @property
    def shape(self) -> str:
        """Shapes of inputs and parameters, in words."""
        parameters = [self.model.graph.initializers[n].shape for n in self.model.parameters]
        return shape_text([a.shape for a in self.inputs.values()] + parameters)


def unet_layers(batch: int = 4, size: int = 128, channels: int = 8, seed: int = 0) -> list[Layer]:
    """The operators of the U-Net on ``batch`` images of ``size`` x ``size`` with ``channels`` channels."""
    rng = np.random.default_rng(seed)
    c, pixels = channels, batch * size * size

    def tensor(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    image, half = tensor(batch, c, size, size), tensor(batch, c, size // 2, size // 2)
    scores = tensor(batch, 3, size, size)
    labels = rng.integers(0, 3, (batch, size, size))
    fan = np.float32(1 / np.sqrt(9 * c))

    def weight(*shape: int) -> np.ndarray:
        return tensor(*shape) * fan

    def convolution(name: str, kernel: int, out: int) -> Layer:
        pads = (kernel // 2,) * 4

        def write(b: Builder, x: str) -> str:
            w = b.parameter("weight", weight(out, c, kernel, kernel))
            return str(b.add(ops.Conv, x, w, b.parameter("bias", weight(out)), pads=pads))

        return _layer(name, "Conv", write, {"x": image}, max(c * kernel**2, pixels))

    def up(b: Builder, x: str) -> str:
        w = b.parameter("weight", weight(c, c, 2, 2))
        return str(b.add(ops.ConvTranspose, x, w, b.parameter("bias", weight(c)), strides=(2, 2)))

    def pool(b: Builder, x: str) -> str:
        return str(b.add(ops.AveragePool, x, kernel_shape=(2, 2), strides=(2, 2)))

    def relu(b: Builder, x: str) -> str:
        return str(b.add(ops.Relu, x))

    def join(b: Builder, x: str, y: str) -> str:
        return str(b.add(ops.Concat, [x, y], axis=1))

    def loss(b: Builder, x: str, y: str) -> str:
        return str(b.add(ops.SoftmaxCrossEntropyLoss, x, y))

    return [
        convolution(f"conv 3x3, {c} to {2 * c}", 3, 2 * c),
        convolution(f"conv 1x1, {c} to 3", 1, 3),
        _layer(f"up-convolution 2x2, {c} to {c}", "ConvTranspose", up, {"x": half}, pixels),
        _layer("average pooling 2x2", "AveragePool", pool, {"x": image}, 4),
        _layer("ReLU", "Relu", relu, {"x": image}, 1),
        _layer("concatenation", "Concat", join, {"x": image, "y": image[::-1].copy()}, 1),
        _layer("softmax cross entropy", "SoftmaxCrossEntropyLoss", loss, {"x": scores, "y": labels}, pixels),
    ]


def _layer(
    name: str, operator: str, write: Callable[..., str], inputs: dict[str, np.ndarray], reduction: int
) -> Layer:
    b = Builder(operator.lower())
    values = [b.input(n, a.dtype, a.shape) for n, a in inputs.items()]
    b.output(write(b, *values), "y_out")
    return Layer(name, operator, b.build(), inputs, reduction)


def measure_layers(
    layers: Sequence[Layer],
    backends: Sequence[dict[str, Any]],
    protocol: Protocol,
    emit: Emit,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Measure every layer on every backend, interleaved, and compare the results with float64.

    Args:
        layers: what to run.
        backends: options for :func:`meta500.network`, ``backend`` among them; the first is the baseline of
            the ratios.
        protocol: how long.
        emit: receives the rows: per layer, backend and phase the time, the first call, the error of
            outputs and gradients against the numpy backend in float64, and the ratio to the baseline.
        progress: called with the name of each layer before it is measured.
    """
    for layer in layers:
        progress(layer.name)

        def refused(options: Mapping[str, Any], reason: str, layer: Layer = layer) -> None:
            what = {**_what(layer, FORWARD), **who_from(options)}
            emit(Row(**what, quantity="time", unit="s", value=None, verdict="unsupported", note=reason))

        networks = made(layer.model, backends, refused)
        try:
            reference = _reference(layer)
            for phase in (FORWARD, BACKWARD):
                _measure_phase(layer, phase, networks, reference, protocol, emit)
        finally:
            for net in networks:
                net.close()


def _measure_phase(
    layer: Layer,
    phase: str,
    networks: Sequence[Network],
    reference: tuple[np.ndarray, list[np.ndarray]],
    protocol: Protocol,
    emit: Emit,
) -> None:
    run = {label(who(net)): _action(layer, phase, net) for net in networks}
    waits = {label(who(net)): net.synchronize for net in networks}
    timings = interleave(run, synchronize=waits, settle=SETTLE_SECONDS, **protocol.limits())
    limit = tolerance(np.float32, layer.reduction)
    base = label(who(networks[0]))
    for net in networks:
        name = label(who(net))
        what = _what(layer, phase) | who(net)
        judged: dict[str, Any] = {}
        if timings[name].failure is None:
            # After the timing, so that the first call that was timed is the first call.
            norms = _error(layer, phase, net, reference)
            judged = {
                "error": norms.max_relative,
                "error_norm": "max_relative",
                "tolerance": limit,
                "verdict": norms.verdict(limit),
            }
            emit(Row(quantity="error", unit="1", value=norms.max_relative, **what, **judged))
        for row in timings[name].rows(protocol="interleaved", **what, **judged):
            emit(row)
        if name != base:
            _emit_ratio(timings[name], timings[base], base, what, emit)


def _emit_ratio(timing: Timing, base: Timing, name: str, what: dict[str, Any], emit: Emit) -> None:
    row = ratio_row(timing, base, name, protocol="interleaved", **what)
    if row is not None:
        emit(row)


def _what(layer: Layer, phase: str) -> dict[str, Any]:
    return {
        "level": 0,
        "operator": layer.operator,
        "node": layer.name,
        "phase": phase,
        "shape": layer.shape,
        "dtype": "float32",
        "batch": next(iter(layer.inputs.values())).shape[0],
    }


def _targets(layer: Layer) -> list[str]:
    inputs = [name for name, array in layer.inputs.items() if array.dtype.kind == "f"]
    return [*inputs, *layer.model.parameters]


def _cotangent(layer: Layer) -> np.ndarray:
    output = layer.model.outputs["y_out"]
    assert isinstance(output, TensorType) and output.shape is not None
    sizes = [size for size in output.shape if isinstance(size, int)]
    return np.asarray(np.random.default_rng(1).standard_normal(sizes, dtype=np.float32))


def _action(layer: Layer, phase: str, net: Network) -> Callable[[], object]:
    inputs = layer.inputs
    if phase == FORWARD:
        return lambda: net.inference(inputs)
    targets, cotangent = _targets(layer), _cotangent(layer)
    return lambda: net.inference_and_backprop(inputs, "y_out", wrt=targets, cotangent=cotangent)


def _reference(layer: Layer) -> tuple[np.ndarray, list[np.ndarray]]:
    """Output and gradients of the numpy backend in float64."""
    targets, cotangent = _targets(layer), _cotangent(layer)
    with network(layer.model, backend="numpy", precision="float64") as exact:
        found = exact.inference_and_backprop(layer.inputs, "y_out", wrt=targets, cotangent=cotangent)
        return found["y_out"], exact.fetch_tensors([f"grad/{name}" for name in targets])


def _error(
    layer: Layer, phase: str, net: Network, reference: tuple[np.ndarray, list[np.ndarray]]
) -> ErrorNorms:
    """The error of the output, or the worst of output and gradients."""
    expected, gradients = reference
    if phase == FORWARD:
        return compare(net.inference(layer.inputs)["y_out"], expected)
    targets, cotangent = _targets(layer), _cotangent(layer)
    output = net.inference_and_backprop(layer.inputs, "y_out", wrt=targets, cotangent=cotangent)["y_out"]
    computed = net.fetch_tensors([f"grad/{name}" for name in targets])
    norms = [compare(output, expected)]
    norms += [compare(g, e) for g, e in zip(computed, gradients, strict=True)]
    return max(norms, key=lambda n: n.max_relative)
