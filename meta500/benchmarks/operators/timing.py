"""Times of single operators: interleaved over backends, with rates and shares of the measured roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta500.backends.network import Network, network
from meta500.benchmarks.operators.accuracy import leaves
from meta500.benchmarks.operators.counts import Counts, Extent, count, count_backward, extent
from meta500.benchmarks.operators.roofline import BANDWIDTH, BYTE_RATE, FLOP_RATE, PEAK, Roofline
from meta500.benchmarks.protocol import SETTLE_SECONDS, Emit, Protocol, label, ratio_row, who
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Builder, Model, Operation, ops
from meta500.graph.types import is_floating
from meta500.metrics.clocks import Timing, interleave
from meta500.metrics.rows import Row

FORWARD, BACKWARD, MEASURING = "forward", "forward+backward", "measuring"
EMPTY = "empty network"
# A product or convolution of this many elements, operands and results together, has at most 2**18
# multiply-adds; OpenBLAS does those without further threads, so that none of them is left spinning.
SINGLE_THREADED = 1024
# Backends whose threads the runner limits from outside.
LIMITED = ("numpy", "torch")
IN_CACHE = "working set fits the last-level cache"
# What a share above 1 means where no cache explains it.
ABOVE = {
    PEAK: "above the measured peak: fewer operations than counted, or the machine was slower before",
    BANDWIDTH: "above the measured bandwidth: data that stayed in a cache, or the machine was slower before",
}


@dataclass(frozen=True)
class Work:
    """One call to be timed.

    Attributes:
        what: the columns of its rows that say what it is.
        precision: of the network; None for the model's own types.
        counts, backward: operations and bytes, forward and forward plus backward; None without a formula.
        differentiated: an output's name, shape and element type, for forward plus backward.
        wrt: the inputs to differentiate it by.
        elements: of all inputs, weights and results; None if unknown.
    """

    model: Model
    inputs: Mapping[str, Any]
    what: Mapping[str, Any]
    precision: str | None = None
    counts: Counts | None = None
    backward: Counts | None = None
    differentiated: tuple[str, tuple[int, ...], Any] | None = None
    wrt: tuple[str, ...] = ()
    elements: int | None = None


def work_of(
    model: Model,
    inputs: Mapping[str, Any],
    results: Mapping[str, Any],
    what: Mapping[str, Any],
    precision: str | None,
) -> Work:
    """The work of a call, with counts where there is a formula.

    Differentiated is the first floating-point output, by all floating-point inputs.

    Args:
        model: what to call.
        inputs, results: of a call, by name; the results for their shapes and types only.
        what, precision: see :class:`Work`.
    """
    outputs = [(name, value.shape, value.dtype) for name, value in results.items() if _is_real(value)]
    wrt = tuple(name for name, value in inputs.items() if _is_real(value))
    forward, backward = counted(model, inputs, results)
    differentiated = outputs[0] if outputs and wrt else None
    values = (*inputs.values(), *model.graph.initializers.values(), *results.values())
    elements = sum(np.size(leaf) for value in values for leaf in leaves(value))
    return Work(model, inputs, what, precision, forward, backward, differentiated, wrt, elements)


def counted(
    model: Model, inputs: Mapping[str, Any], results: Mapping[str, Any]
) -> tuple[Counts | None, Counts | None]:
    """Operations and bytes, forward and forward plus backward, of a model with one operation.

    Args:
        model: besides the operation it may hold constants.
        inputs, results: of a call, by name.

    Returns:
        None twice for models with several operations, None where there is no formula.
    """
    found = [op for op in model.graph.operations if op.op_type != "Constant"]
    if len(found) != 1:
        return None, None
    op = found[0]
    constants: dict[str, Any] = {
        c.results[0]: c.attributes.get("value") for c in model.graph.operations if c is not op
    }
    known = {**model.graph.initializers, **constants, **inputs, **results}
    tensors = [_extents(op, names, known) for names in (op.operands, op.results)]
    if tensors[0] is None or tensors[1] is None:
        return None, None
    return count(op, tensors[0], tensors[1]), count_backward(op, tensors[0], tensors[1])


def measure_times(
    work: Work,
    backends: Sequence[Mapping[str, Any]],
    protocol: Protocol,
    threads: int,
    roofline: Roofline | None,
    emit: Emit,
    phase: str = FORWARD,
    judged: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Time one call on several backends, interleaved, each on a network of its own that has not run before.

    Args:
        work: what to call.
        backends: options of :func:`meta500.network`, ``backend`` among them; the first is the baseline of
            the ratios.
        protocol: how long.
        threads: that the libraries have been limited to.
        roofline: of this machine, for the shares.
        emit: receives the rows: time, first call, ratio, rates in FLOP/s and B/s, share of the roofline.
        phase: "forward" (inference) or "forward+backward" (with the gradients of all floating-point inputs).
        judged: columns about correctness, by backend.
    """
    networks: dict[str, Network] = {}
    columns: dict[str, dict[str, Any]] = {}
    actions: dict[str, Callable[[], object]] = {}
    try:
        for options in backends:
            net = network(work.model, **{**options, "precision": work.precision})
            name = label(who(net))
            networks[name] = net
            columns[name] = {
                **{**work.what, "phase": phase},
                **{**who(net), "threads": threads},
                **(judged or {}).get(net.backend, {}),
            }
            actions[name] = _action(work, net, phase)
        waits = {name: net.synchronize for name, net in networks.items()}
        known = all(net.backend in LIMITED for net in networks.values())
        small = known and work.elements is not None and work.elements <= SINGLE_THREADED
        settle = SETTLE_SECONDS if threads > 1 and len(networks) > 1 and not small else 0.0
        timings = interleave(actions, synchronize=waits, settle=settle, **protocol.limits())
    finally:
        for net in networks.values():
            net.close()
    counts = work.backward if phase == BACKWARD else work.counts
    first = next(iter(timings))
    for name, timing in timings.items():
        _emit_timing(timing, columns[name], counts, roofline, emit)
        if name == first:
            continue
        ratio = ratio_row(timing, timings[first], first, protocol="interleaved", **columns[name])
        if ratio is not None:
            emit(ratio)


def backend_options(backend: str, threads: int) -> dict[str, Any]:
    """Options of a network that is timed with ``threads``.

    numpy and torch are limited once for the whole run, which costs their calls nothing; others are told.
    """
    return {"backend": backend} if backend in LIMITED else {"backend": backend, "threads": threads}


def measure_empty(
    backends: Sequence[Mapping[str, Any]],
    dtype: str,
    protocol: Protocol,
    threads: int,
    emit: Emit,
) -> None:
    """Time a network that hands one number through: what a call costs before any operator."""
    b = Builder("empty", opset=21)
    b.output(b.add(ops.Identity, b.input("x", dtype, (1,))), "y")
    what = {"level": 0, "operator": "Identity", "node": EMPTY, "shape": "1", "dtype": dtype}
    work = Work(b.build(), {"x": np.ones(1, dtype)}, what, elements=2)
    measure_times(work, backends, protocol, threads, None, emit, phase=MEASURING)


def _action(work: Work, net: Network, phase: str) -> Callable[[], object]:
    inputs = dict(work.inputs)
    if phase != BACKWARD:
        return lambda: net.inference(inputs)
    if work.differentiated is None:
        raise UserError(f"'{work.model.graph.name}' has no floating-point input and output: no backward")
    loss, shape, dtype = work.differentiated
    wrt, cotangent = list(work.wrt), np.random.default_rng(1).standard_normal(shape).astype(dtype)
    return lambda: net.inference_and_backprop(inputs, loss, wrt=wrt, cotangent=cotangent)


def _emit_timing(
    timing: Timing,
    columns: Mapping[str, Any],
    counts: Counts | None,
    roofline: Roofline | None,
    emit: Emit,
) -> None:
    cached = counts is not None and roofline is not None and roofline.fits_cache(counts.bytes)
    note = {"note": IN_CACHE} if cached else {}
    refused = isinstance(timing.failure, UserError) and not isinstance(timing.failure, UnsupportedOperation)
    for row in timing.rows(protocol="interleaved", **{**note, **columns}):
        # A clear refusal, for example of a gradient that does not exist, is no crash.
        emit(replace(row, verdict="unsupported") if refused and row.verdict == "failed" else row)
    if counts is None or timing.failure is not None or not timing.samples:
        return
    for rates in rate_rows(timing, counts, roofline, str(columns.get("dtype", ""))):
        emit(Row(**{**note, **columns, **rates}))


def rate_rows(timing: Timing, counts: Counts, roofline: Roofline | None, dtype: str) -> list[dict[str, Any]]:
    """Columns of the rows "flop_rate", "byte_rate" and "roofline_share" of a timing, with intervals."""
    interval = timing.interval()
    ends = (interval.value, interval.high, interval.low)
    shared: dict[str, Any] = {
        "protocol": "interleaved",
        "warmup": len(timing.warmup),
        "repeats": len(timing.samples),
        "confidence": interval.confidence,
    }
    rows = []
    for quantity, unit, amount in (
        ("flop_rate", FLOP_RATE, counts.flops),
        ("byte_rate", BYTE_RATE, counts.bytes),
    ):
        if amount:
            value, low, high = (amount / seconds for seconds in ends)
            rows.append(
                {"quantity": quantity, "unit": unit, "value": value, "low": low, "high": high, **shared}
            )
    if roofline is not None:
        shares = [roofline.share(dtype, counts.flops, counts.bytes, seconds) for seconds in ends]
        known = [share for share in shares if share is not None]
        if len(known) == len(ends):
            value, low, high = known
            share = {"quantity": "roofline_share", "unit": "1", "value": value, "low": low, "high": high}
            bound = roofline.bound(dtype, counts.flops, counts.bytes)
            # A cache lifts the limit of the memory, not that of arithmetic.
            cached = bound == BANDWIDTH and roofline.fits_cache(counts.bytes)
            note = IN_CACHE if cached else ABOVE[bound] if value > 1 else ""
            rows.append({**share, **shared, "note": note})
    return rows


def count_rows(counts: Counts | None, phase: str, **what: Any) -> list[Row]:
    """The rows "flops" and "bytes" of one call; none without counts."""
    if counts is None:
        return []
    columns = {**what, "phase": phase}
    return [
        Row(quantity="flops", unit="FLOP", value=counts.flops, **columns),
        Row(quantity="bytes", unit="B", value=counts.bytes, **columns),
    ]


def _extents(op: Operation, names: Sequence[str], known: Mapping[str, Any]) -> list[Extent | None] | None:
    """Extents of the named values; None for the whole if one of them is no array."""
    found: list[Extent | None] = []
    for name in names:
        value = known.get(name) if name else None
        if name and not isinstance(value, np.ndarray | np.generic):
            return None
        found.append(extent(value) if name else None)
    return found


def _is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and bool(is_floating(value.dtype)) and value.dtype.kind != "c"
