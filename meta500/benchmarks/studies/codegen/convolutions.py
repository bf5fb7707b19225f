"""Single convolutions of a U-Net under the roofline (section 6.3.7): predicted, measured, and counted.

Every layer is a network of its own, forward only, with its bias and without the ReLU that follows, as in the
thesis. Operations are those of the direct form, two per multiply-add of the 3x3 taps, the bias not counted;
bytes are the image read once and the result written once, without what is read because it will be
overwritten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from meta500.backends.network import network
from meta500.benchmarks.main_job import compiler_problem
from meta500.benchmarks.operators.roofline import (
    Roofline,
    last_level_cache,
    measure_roofline,
    torch_threads,
)
from meta500.benchmarks.protocol import SETTLE_SECONDS, Emit, Protocol, ratio_row, shape_text
from meta500.benchmarks.studies.codegen.counters import READ, WRITTEN, Traffic, measured_traffic
from meta500.benchmarks.studies.codegen.epochs import EPOCH_RATE, EPOCHS_PER_SECOND
from meta500.benchmarks.studies.codegen.memory import available_memory
from meta500.benchmarks.studies.codegen.settings import EPOCH_IMAGES, SINGLE, Point
from meta500.benchmarks.variants import GENERATED, VARIANTS, Variant
from meta500.errors import UserError
from meta500.graph import Builder, Model, ops
from meta500.metrics.clocks import Timing, interleave
from meta500.metrics.machine import environment
from meta500.metrics.norms import compare, tolerance
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

# Convolutions 0 and 1 of the thesis, and the deepest one.
NODES = ("encoder1.conv1", "encoder1.conv2", "bottom.conv1")
FORWARD = "forward"
LIGHT_SPEED, LIGHT_SHARE = "light_speed", "light_share"
_TAPS = 9
_COUNTED_RUNS = 11


@dataclass(frozen=True)
class Convolution:
    """A padded 3x3 convolution of stride 1.

    Attributes:
        node: its name in the network.
        channels_in, channels_out: of it.
        size: pixels in height and width.
        batch: images of one call.
    """

    node: str
    channels_in: int
    channels_out: int
    size: int
    batch: int

    @property
    def flops(self) -> int:
        """Operations of one call."""
        return 2 * _TAPS * self.channels_in * self.channels_out * self.batch * self.size**2

    @property
    def bytes_read(self) -> int:
        """Bytes of the image in single precision."""
        return 4 * self.batch * self.channels_in * self.size**2

    @property
    def bytes_written(self) -> int:
        """Bytes of the result in single precision."""
        return 4 * self.batch * self.channels_out * self.size**2

    @property
    def bytes(self) -> int:
        """Least traffic of one call."""
        return self.bytes_read + self.bytes_written

    @property
    def calls_per_epoch(self) -> float:
        """Calls that 128 images take."""
        return EPOCH_IMAGES / self.batch

    def epochs_per_second(self, seconds: float) -> float:
        """The rate of this layer alone, by the seconds of a call."""
        return 1 / (seconds * self.calls_per_epoch)


def chosen_convolutions(point: Point) -> list[Convolution]:
    """The chosen layers of a point's network, by the channels and sizes of its graph."""
    c = 2**point.n
    # Channels and halvings of figure 15; the tests compare them with the graph.
    shapes = {NODES[0]: (3, c, 0), NODES[1]: (c, c, 0), NODES[2]: (8 * c, 16 * c, 4)}
    return [
        Convolution(node, channels_in, channels_out, point.size // 2**halved, point.batch)
        for node, (channels_in, channels_out, halved) in shapes.items()
    ]


def measure_convolutions(
    point: Point, protocol: Protocol, quick: bool, emit: Emit, fallback: Sequence[int] = (), seed: int = 0
) -> None:
    """Limits of the machine, then every layer on the generated backend and in PyTorch.

    Args:
        point: the network, its batch and the number of threads.
        protocol: how long each layer is measured.
        quick: few samples of the limits.
        emit: receives the rows.
        fallback: smaller batches, for layers that do not fit memory with the point's.
        seed: of images and weights.
    """
    how: dict[str, Any] = {"cache": last_level_cache(environment())}
    how |= {"product_size": 1024, "min_repeats": 3, "min_seconds": 0.1} if quick else {"min_seconds": 1.0}
    roofline = measure_roofline(point.threads, (SINGLE,), **how)
    for row in roofline.rows():
        emit(row)
    problem = compiler_problem(point.threads)
    for convolution in chosen_convolutions(point):
        fitting = _fitting(convolution, fallback)
        if fitting is None:
            need = _need(convolution) / 2**30
            what = columns_of(convolution, point, VARIANTS[GENERATED])
            note = f"{need:.2f} GiB are needed, {available_memory() / 2**30:.2f} GiB are available"
            emit(Row(**what, quantity="time", unit="s", value=None, verdict="unsupported", note=note))
            continue
        _measure(fitting, point, protocol, roofline, emit, seed, problem)


def _need(convolution: Convolution) -> float:
    """Bytes of image and results of three implementations, and of a copy of each."""
    return 4.0 * convolution.bytes


def _fitting(convolution: Convolution, fallback: Sequence[int]) -> Convolution | None:
    for batch in (convolution.batch, *sorted(fallback, reverse=True)):
        candidate = replace(convolution, batch=min(batch, convolution.batch))
        if _need(candidate) <= available_memory():
            return candidate
    return None


def columns_of(convolution: Convolution, point: Point, variant: Variant) -> dict[str, Any]:
    """The columns of a row about a layer by one implementation."""
    c = convolution
    shapes = [
        (c.batch, c.channels_in, c.size, c.size),
        (c.channels_out, c.channels_in, 3, 3),
        (c.channels_out,),
    ]
    what = {"level": 1, "model": f"unet-{point.n}", "operator": "Conv", "node": c.node, "phase": FORWARD}
    what |= {"shape": shape_text(shapes), "dtype": SINGLE, "batch": c.batch}
    return {**what, **variant.columns(point.threads)}


def convolution_model(convolution: Convolution, seed: int = 0) -> tuple[Model, np.ndarray]:
    """A network of the one layer, and its image, both single precision."""
    c, rng = convolution, np.random.default_rng(seed)
    fan = np.float32(1 / math.sqrt(_TAPS * c.channels_in))
    image = rng.standard_normal((c.batch, c.channels_in, c.size, c.size), dtype=np.float32)
    weight = rng.standard_normal((c.channels_out, c.channels_in, 3, 3), dtype=np.float32) * fan
    bias = rng.standard_normal(c.channels_out, dtype=np.float32) * fan
    b = Builder("convolution")
    x = b.input("image", image.dtype, image.shape)
    y = b.add(ops.Conv, x, b.parameter("weight", weight), b.parameter("bias", bias), pads=(1, 1, 1, 1))
    b.output(str(y), "result")
    return b.build(), image


def _measure(
    convolution: Convolution,
    point: Point,
    protocol: Protocol,
    roofline: Roofline,
    emit: Emit,
    seed: int,
    problem: str,
) -> None:
    model, image = convolution_model(convolution, seed)
    ours = columns_of(convolution, point, VARIANTS[GENERATED])
    for quantity, unit, value in (
        ("flops", "FLOP", convolution.flops),
        ("bytes_read", "B", convolution.bytes_read),
        ("bytes_written", "B", convolution.bytes_written),
    ):
        emit(Row(**ours, quantity=quantity, unit=unit, value=float(value), protocol="predicted"))
    if problem:
        emit(Row(**ours, quantity="time", unit="s", value=None, verdict="unsupported", note=problem))
    weight, bias = (model.graph.initializers[name] for name in ("weight", "bias"))
    with torch_threads(point.threads), ExitStack() as stack:
        makers: dict[str, Callable[[], Callable[[], object]]] = {
            "eager": lambda: _torch_action(image, weight, bias, channels_last=False),
            "channels-last": lambda: _torch_action(image, weight, bias, channels_last=True),
        }
        if not problem:
            generated = partial(_generated_action, stack, model, image, point.threads)
            makers = {GENERATED: generated, **makers}
        reference = _reference(image, weight, bias)
        actions: dict[str, Callable[[], object]] = {}
        judged: dict[str, dict[str, Any]] = {}
        for name, make in makers.items():
            try:
                action = make()
                result = np.asarray(action())[:1]
            except Exception as failure:  # one implementation must not cost the others
                what = columns_of(convolution, point, VARIANTS[name])
                why = (
                    str(failure) if isinstance(failure, UserError) else f"{type(failure).__name__}: {failure}"
                )
                emit(Row(**what, quantity="time", unit="s", value=None, verdict="failed", note=why[:2000]))
                continue
            actions[name] = action
            judged[name] = _judged(result, reference, _TAPS * convolution.channels_in)
        if not actions:
            return
        timings = interleave(actions, settle=SETTLE_SECONDS, **protocol.limits())
        for name, timing in timings.items():
            what = {**columns_of(convolution, point, VARIANTS[name]), "protocol": "interleaved"}
            what |= judged[name]
            # The first calls were those that were compared with the reference.
            for row in replace(timing, first_call=None).rows(**what):
                emit(row)
            if timing.failure is not None:
                continue
            for row in rate_rows(timing, convolution, roofline, what):
                emit(row)
            if name != GENERATED and GENERATED in timings:
                ratio = ratio_row(timing, timings[GENERATED], GENERATED, **what)
                if ratio is not None:
                    emit(ratio)
        if GENERATED in actions:
            for row in traffic_rows(_traffic(actions[GENERATED]), ours):
                emit(row)


def _generated_action(
    stack: ExitStack, model: Model, image: np.ndarray, threads: int
) -> Callable[[], object]:
    net = stack.enter_context(network(model, backend=GENERATED, threads=threads))
    return lambda: net.inference({"image": image})["result"]


def _torch_action(
    image: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, channels_last: bool
) -> Callable[[], object]:
    import torch
    from torch.nn import functional

    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, w = (torch.from_numpy(a.copy()).contiguous(memory_format=layout) for a in (image, weight))
    b = torch.from_numpy(bias.copy())

    def run() -> object:
        with torch.inference_mode():
            return functional.conv2d(x, w, b, padding=1)

    return run


def _reference(image: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The first image's result in double precision, by nine shifted products."""
    size = image.shape[-1]
    padded = np.pad(image[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    found = np.zeros((weight.shape[0], size, size)) + bias.astype(np.float64)[:, None, None]
    for row in range(3):
        for column in range(3):
            window = padded[:, row : row + size, column : column + size].reshape(image.shape[1], -1)
            found += (weight[:, :, row, column].astype(np.float64) @ window).reshape(found.shape)
    return found[None]


def _judged(result: np.ndarray, reference: np.ndarray, terms: int) -> dict[str, Any]:
    norms, limit = compare(result, reference), tolerance(np.float32, terms)
    error = {"error": norms.max_relative, "error_norm": "max_relative", "tolerance": limit}
    return {**error, "verdict": norms.verdict(limit)}


def rate_rows(
    timing: Timing, convolution: Convolution, roofline: Roofline, what: dict[str, Any]
) -> list[Row]:
    """Epochs per second of the layer, what the roofline allows, and the share of it."""
    interval = timing.interval()
    rate = convolution.epochs_per_second
    common = {**what, "confidence": interval.confidence, "repeats": len(timing.samples)}
    rows = [
        Row(
            **{**common, "note": f"this layer alone; an epoch is {EPOCH_IMAGES} images"},
            quantity=EPOCH_RATE,
            unit=EPOCHS_PER_SECOND,
            value=rate(interval.value),
            low=rate(interval.high),
            high=rate(interval.low),
            samples=tuple(map(rate, timing.samples)),
        )
    ]
    peak, bandwidth = roofline.peak(SINGLE), roofline.bandwidth
    if peak is None or bandwidth is None:
        return rows
    least = max(convolution.flops / peak, convolution.bytes / bandwidth)
    bound = roofline.bound(SINGLE, convolution.flops, convolution.bytes)
    words = f"bound by {'arithmetic' if bound == 'peak' else 'memory'}"
    if roofline.fits_cache(convolution.bytes):
        words += "; its data fit the last-level cache"
    rows.append(Row(**what, quantity=LIGHT_SPEED, unit=EPOCHS_PER_SECOND, value=rate(least), note=words))
    ends = {"value": interval.value, "low": interval.high, "high": interval.low}
    shares: dict[str, Any] = {name: least / seconds for name, seconds in ends.items()}
    samples = tuple(least / s for s in timing.samples)
    rows.append(Row(**{**common, "note": words}, quantity=LIGHT_SHARE, unit="1", samples=samples, **shares))
    return rows


def _traffic(run: Callable[[], object]) -> Traffic | str:
    try:
        return measured_traffic(run, _COUNTED_RUNS)
    except UserError as reason:
        return str(reason)


def traffic_rows(traffic: Traffic | str, what: dict[str, Any]) -> list[Row]:
    """Rows of what was counted; with verdict "unsupported" what cannot be counted, or the reason."""
    rows = []
    for direction in (READ, WRITTEN):
        named = {**what, "quantity": f"traffic_{direction}", "unit": "B", "protocol": "counters"}
        amount = None if isinstance(traffic, str) else traffic.bytes.get(direction)
        if amount is None:
            note = traffic if isinstance(traffic, str) else f"{traffic.source}: not counted"
            rows.append(Row(**named, value=None, verdict="unsupported", note=note))
        elif not isinstance(traffic, str):
            numbers = asdict(median_interval(amount))
            rows.append(Row(**named, **numbers, samples=amount, repeats=len(amount), note=traffic.source))
    return rows
