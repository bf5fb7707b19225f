"""Peak memory: measured in processes of their own, planned by the generated code, and foreseen.

A step that might not fit memory is not tried before it is foreseen from two smaller ones. What a process
needs is taken to be a constant (libraries, weights, the optimizer's moments) and a part in proportion to the
pixels of a batch (activations); two measurements tell the one from the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any

from meta500.benchmarks.against_torch import MEMORY, Plan, measure_net, unet
from meta500.benchmarks.operators.sweep_runner import free_memory
from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.studies.codegen import generation
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.benchmarks.variants import GENERATED, PLAIN_TORCH, Variant
from meta500.benchmarks.workers import WorkerFailed
from meta500.graph import TensorType
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

# Steps that are foreseen from: these parts of the batch where it has as many images.
_REFERENCE_SHARES = (8, 4)
_SIDES = 16
# Part of the available memory that may be filled.
_FILLED = 0.9
GIB = float(2**30)
# PyTorch's variants within this factor of the most frugal one are measured as often as it is.
_NEARLY_LEAST = 1.1


@dataclass(frozen=True)
class Foreseen:
    """Memory that a process will need.

    Attributes:
        first, second: two smaller steps, the smaller one first.
        peaks: bytes of the two.
        point: the step that is meant.
    """

    first: Point
    second: Point
    peaks: tuple[float, float]
    point: Point

    @property
    def bytes(self) -> float:
        """Peak of the step that is meant, on the straight line through the two, which does not fall."""
        growth = (self.peaks[1] - self.peaks[0]) / (_work(self.second) - _work(self.first))
        return self.peaks[1] + max(growth, 0.0) * (_work(self.point) - _work(self.second))

    @property
    def source(self) -> str:
        """What it is foreseen from, in words."""
        steps = zip((self.first, self.second), self.peaks, strict=True)
        return " and ".join(f"{peak / GIB:.2f} GiB at {_images(step)}" for step, peak in steps)

    def refusal(self, available: float, others: float = 0.0) -> str:
        """Why it is not run; ``others``: bytes of processes that would run beside it."""
        beside = f", {others / GIB:.2f} GiB of them for the generated code beside it" if others else ""
        return (
            f"{_images(self.point)} would need {self.bytes / GIB:.2f} GiB ({self.source}); "
            f"{available / GIB:.2f} GiB are available{beside}"
        )


def _work(point: Point) -> float:
    """Pixels of a batch."""
    return float(point.batch * point.size**2)


def _images(point: Point) -> str:
    return f"batch {point.batch} of {point.size} pixels"


def references(point: Point) -> tuple[Point, Point] | None:
    """Two steps that do less work than a point's, the smaller one first; None where there are none.

    An eighth and a quarter of the batch; of less than eight images a single one, and of few images or one
    images of half and a quarter of the size in both directions.
    """
    half, quarter = (max(_SIDES, point.size // k // _SIDES * _SIDES) for k in (2, 4))
    if point.batch >= _REFERENCE_SHARES[0]:
        first, second = (replace(point, batch=point.batch // share) for share in _REFERENCE_SHARES)
    elif point.batch > 1:
        first, second = replace(point, batch=1, size=half), replace(point, batch=1)
    else:
        first, second = replace(point, size=quarter), replace(point, size=half)
    return (first, second) if _work(first) < _work(second) < _work(point) else None


def available_memory() -> float:
    """Bytes that processes of ours may fill, within the limit of a container."""
    return _FILLED * free_memory()


def may_not_fit(point: Point, processes: int, available: float) -> bool:
    """Whether a step could come near the memory that there is, so that it must be foreseen.

    Counts every value of the network three times (itself, its gradient, and a copy), and one more GiB per
    process for libraries.
    """
    model = unet_model(point)
    numbers = 0
    for value in model.graph.types().values():
        if isinstance(value, TensorType) and value.static and value.shape is not None:
            size = 1
            for side in value.shape:
                size *= int(side) if isinstance(side, int) else 1
            numbers += size
    itemsize = 8 if point.dtype == "float64" else 4
    return processes * (3.0 * numbers * itemsize + GIB) > available


def unet_model(point: Point) -> Any:
    """The network of a point."""
    from meta500.models import create

    net = unet(point.n, point.size, point.batch, point.dtype)
    return create(net.model, **net.options)


def foresee(
    point: Point, variants: Sequence[Variant], environment: dict[str, str], seed: int = 0
) -> dict[str, Foreseen | str]:
    """What every variant will need at a point, from two smaller steps.

    Returns:
        By name of the variant; a text says why it is not known.
    """
    smaller = references(point)
    if smaller is None:
        reason = f"{_images(point)} might not fit memory, and no smaller step tells: give larger images"
        return {variant.name: reason for variant in variants}
    found: dict[str, Foreseen | str] = {}
    peaks: dict[str, list[float]] = {variant.name: [] for variant in variants}
    for step in smaller:
        rows: list[Row] = []
        # What fails at the smaller step is not tried at the larger one.
        left = [variant for variant in variants if variant.name not in found]
        _peaks(step, left, environment, rows.append, seed)
        for variant in left:
            mine = [r for r in rows if (r.backend, r.mode) == (variant.backend, variant.mode)]
            peak = next((r.value for r in mine if r.quantity == "peak_memory" and r.value is not None), None)
            if peak is None:
                reason = next((r.note for r in mine if r.note), "its memory could not be measured")
                found[variant.name] = f"at {_images(step)}: {reason}"
            else:
                peaks[variant.name].append(peak)
    for name, pair in peaks.items():
        if name not in found:
            found[name] = Foreseen(*smaller, (pair[0], pair[1]), point)
    return found


def needed(foreseen: Mapping[str, Foreseen | str], variant: Variant) -> float:
    """Bytes that a variant will need; infinite where that is not known."""
    found = foreseen.get(variant.name)
    return found.bytes if isinstance(found, Foreseen) else math.inf


def groups_that_fit(
    variants: Sequence[Variant], foreseen: dict[str, Foreseen | str], available: float
) -> tuple[list[list[Variant]], list[Variant]]:
    """Variants that fit memory together, the generated code in each group, and those that do not fit at all.

    Processes wait for their turns with their memory, so a group needs the sum of all.
    """

    def need(variant: Variant) -> float:
        return needed(foreseen, variant)

    ours = [v for v in variants if v.backend == GENERATED]
    base = sum(need(v) for v in ours)
    if base > available:
        others = [v for v in variants if v not in ours]
        return [[v] for v in others if need(v) <= available], [
            *ours,
            *(v for v in others if need(v) > available),
        ]
    groups: list[list[Variant]] = []
    left_out: list[Variant] = []
    filled = available
    for variant in (v for v in variants if v not in ours):
        if base + need(variant) > available:
            left_out.append(variant)
            continue
        if not groups or filled + need(variant) > available:
            groups.append(list(ours))
            filled = base
        groups[-1].append(variant)
        filled += need(variant)
    return groups or [list(ours)], left_out


def foreseen_rows(
    point: Point, foreseen: dict[str, Foreseen | str], variants: Sequence[Variant]
) -> Iterator[Row]:
    """Rows "predicted_peak" of what was foreseen."""
    for variant in variants:
        found = foreseen[variant.name]
        if isinstance(found, Foreseen):
            what = {**generation.columns_of(point), **variant.columns(point.threads)}
            note = f"from {found.source}"
            yield Row(**what, quantity="predicted_peak", unit="B", value=found.bytes, note=note)


def refused_row(point: Point, variant: Variant, quantity: str, unit: str, reason: str) -> Row:
    """The row of a measurement that was not tried."""
    what = {**generation.columns_of(point), **variant.columns(point.threads)}
    return Row(**what, quantity=quantity, unit=unit, value=None, verdict="unsupported", note=reason)


def reason_of(foreseen: Foreseen | str, available: float, others: float = 0.0) -> str:
    """Why a variant is not run; ``others``: bytes of processes that would run beside it."""
    return foreseen if isinstance(foreseen, str) else foreseen.refusal(available, others)


def measure_memory(
    point: Point,
    variants: Sequence[Variant],
    repeats: int,
    environment: dict[str, str],
    emit: Emit,
    seed: int = 0,
    max_seconds: float = math.inf,
) -> None:
    """Peak memory of training processes, and what the generated code's plan of memory needs.

    Args:
        point: the network.
        variants: who is measured.
        repeats: processes of the generated code and of PyTorch's most frugal variants, which are compared;
            of each other variant one.
        environment: of all processes.
        emit: receives the rows.
        seed: of weights and images.
        max_seconds: when they are over nothing is repeated any more.
    """
    end = time.monotonic() + max_seconds
    if any(variant.backend == GENERATED for variant in variants):
        _emit_plan(point, emit, seed)
    chosen = list(variants)
    available = available_memory()
    if may_not_fit(point, 1, available):
        foreseen = foresee(point, variants, environment, seed)
        for row in foreseen_rows(point, foreseen, variants):
            emit(row)
        for variant in variants:
            found = foreseen[variant.name]
            if isinstance(found, str) or found.bytes > available:
                reason = reason_of(found, available)
                emit(refused_row(point, variant, "peak_memory", "B", reason))
                chosen.remove(variant)
    rows: list[Row] = []
    if chosen:
        _peaks(point, chosen, environment, rows.append, seed)
    compared = _compared(chosen, rows)
    for _ in range(repeats - 1 if compared else 0):
        if time.monotonic() >= end:
            break
        _peaks(point, compared, environment, rows.append, seed)
    for row in _joined(rows):
        emit(row)


def _compared(variants: Sequence[Variant], rows: Sequence[Row]) -> list[Variant]:
    """The generated code, and the variants of PyTorch that may be its most frugal one."""
    peaks = {(r.backend, r.mode): r.value for r in rows if r.quantity == "peak_memory" and r.value}
    least = min((peak for (backend, _), peak in peaks.items() if backend == PLAIN_TORCH), default=0.0)
    return [
        variant
        for variant in variants
        if (peak := peaks.get((variant.backend, variant.mode))) is not None
        and (variant.backend == GENERATED or peak <= _NEARLY_LEAST * least)
    ]


def _emit_plan(point: Point, emit: Emit, seed: int) -> None:
    what = generation.columns_of(point, quantity="planned_memory", unit="B")
    try:
        with ExitStack() as stack:
            worker, _ = generation.made_worker(stack, point, seed)
            found = worker.ask("planned_memory", generation.LIMIT)
    except WorkerFailed as failure:
        emit(Row(**what, value=None, verdict="failed", note=str(failure)))
        return
    note = f"{found['arenas']} B of the step's own and {found['handed']} B of arrays that it is given"
    emit(Row(**what, value=float(found["arenas"] + found["handed"]), note=note))


def _peaks(
    point: Point, variants: Sequence[Variant], environment: dict[str, str], emit: Emit, seed: int
) -> None:
    plan = Plan((), (MEMORY,), tuple(variants), rounds=1, threads=point.threads, limit=generation.LIMIT)
    net = unet(point.n, point.size, point.batch, point.dtype)
    measure_net(replace(plan, environment=environment), net, emit, seed=seed)


def _joined(rows: Sequence[Row]) -> Iterator[Row]:
    """One row for the processes of each variant and quantity; failures as they are."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row.value is None:
            yield row
        else:
            groups.setdefault((row.backend, row.mode, row.quantity), []).append(row)
    for group in groups.values():
        samples = tuple(float(row.value or 0.0) for row in group)
        summary = asdict(median_interval(samples))
        yield replace(group[0], samples=samples, repeats=len(samples), **summary)
