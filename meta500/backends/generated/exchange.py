"""Reductions over ranks inside a program: which parts of the gradients go together, and when each begins.

All ranks must begin their reductions in the same order, also where their batches differ in size. That order
therefore follows from the graph alone: gradients are complete in the reverse order of the first uses of their
parameters. Parameters are packed in the order of these uses, so that neighbours in time are neighbours in
memory, and small ones join without a copy.

Where a part is complete follows from the schedule. All threads together: after the last kernel that writes
into it. In a region of images: when the last thread has finished that kernel for its last image; it adds up
the private copies of all threads, while these go on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meta500.backends.generated.images import IMAGES
from meta500.backends.generated.ir import INPUT, RANDOM, WEIGHT, Exchange, Program

if TYPE_CHECKING:
    from meta500.backends.generated.layout import Place
    from meta500.backends.generated.packing import Packing
    from meta500.backends.generated.schedule import Kernel, Step
    from meta500.graph import Graph

# Parameters join until their gradients have so many bytes; the latency of a message is then a small part.
BUCKET_BYTES = 256 << 10
# MPI counts elements in an int.
_LARGEST = 1 << 30
END = -1
# Lanes of what is recorded: kernels; reductions of gradients and statistics; the small ones by which ranks
# agree; thread 0 with nothing left to compute; and regions, which contain the others.
COMPUTE, COMMUNICATION, AGREEMENT = "compute", "communication", "agreement"
WAIT, REGIONS = "waiting", "regions"


@dataclass(frozen=True)
class Stop:
    """A moment in a step at which sums become complete.

    Attributes:
        step: number of the region.
        position: of the sweep (images) or kernel (whole) after which it is; :data:`END`: after the region.
        number: of the counter of threads, for stops within a region of images.
        merges: names of sums whose private copies are added up now, by the last thread.
        parts: ranges of the exchange of which something is complete now.
    """

    step: int
    position: int
    number: int
    merges: tuple[str, ...]
    parts: tuple[int, ...]


@dataclass(frozen=True)
class Timed:
    """Something whose times are recorded: a lane, a name, and the bytes that it moves between ranks."""

    lane: str
    name: str
    bytes: int = 0


@dataclass(frozen=True)
class ExchangePlan:
    """An exchange with all decisions taken.

    Attributes:
        exchange: what is reduced.
        needs: of every range, how many stops complete it.
        stops: in order.
        weigh: region and position before which the share of this rank is needed first; None where it is not.
        last: number of the last region before the reductions end; the updates come after it.
        signature: a number below 2**20 that ranks have in common if they reduce the same.
        timed: what is recorded: the reductions (ranges, shares, statistics, faults), regions and kernels.
    """

    exchange: Exchange
    needs: tuple[int, ...]
    stops: tuple[Stop, ...]
    weigh: tuple[int, int] | None
    last: int
    signature: int
    timed: tuple[Timed, ...] = ()

    def stop(self, step: int, position: int) -> Stop | None:
        """The stop after a sweep or kernel."""
        return next((s for s in self.stops if (s.step, s.position) == (step, position)), None)

    def early(self, step: int) -> set[str]:
        """Sums of a region of images whose copies are added up before it ends."""
        found = (s for s in self.stops if s.step == step and s.position != END)
        return {name for stop in found for name in stop.merges}

    @property
    def counters(self) -> int:
        """Number of stops within regions of images."""
        return 1 + max((stop.number for stop in self.stops), default=-1)

    def span(self, name: str) -> int:
        """Where the times of a region, sweep or kernel go."""
        reductions = (COMMUNICATION, AGREEMENT)
        return next(i for i, t in enumerate(self.timed) if t.lane not in reductions and t.name == name)

    def lines(self) -> list[str]:
        """The decisions as text."""
        found = ["reductions over ranks:"]
        for number, name in enumerate(self.exchange.names):
            at = [s for s in self.stops if number in s.parts]
            when = ", ".join(f"region {s.step} " + _where(s) for s in at)
            first, end = self.exchange.ranges[number]
            found.append(f"  {name}: {self.exchange.tensor}[{first}:{end}] begins after {when}")
        found += [f"  {name}: at the end" for name in self.exchange.statistics]
        return found


def _where(stop: Stop) -> str:
    if stop.position == END:
        return "has ended"
    added = f", the last thread adds up {', '.join(stop.merges)}" if stop.merges else ""
    return f"item {stop.position}{added}"


def order_of_use(graph: Graph, parameters: Iterable[str]) -> list[str]:
    """Parameters in the order in which the graph's operations first use them; unused ones at the end."""
    first: dict[str, int] = {}
    for number, operation in enumerate(graph.operations):
        for name in operation.operands:
            first.setdefault(name, number)
    names = list(parameters)
    return sorted(
        names, key=lambda name: (first.get(name, len(first) + len(graph.operations)), names.index(name))
    )


def exchanged(
    program: Program, packing: Packing, gradients: str, bucket_bytes: int, real_bytes: int
) -> Program:
    """``program`` with reductions of its packed gradients and of its statistics."""
    wanted = [n for n in packing.offsets if program.gradients.get(n) == gradients] if gradients else []
    ranges, names = _buckets(packing, wanted, max(bucket_bytes // real_bytes, 1))
    inputs = [t for t in program.tensors.values() if t.role == INPUT and t.shape]
    images = next((t.shape[0] for t in inputs if t.name not in (RANDOM, WEIGHT)), 1)
    statistics = tuple(program.updates.values())
    plan = Exchange(gradients, tuple(ranges), tuple(names), statistics, samples=images)
    return replace(program, exchange=plan)


def _buckets(
    packing: Packing, wanted: Sequence[str], elements: int
) -> tuple[list[tuple[int, int]], list[str]]:
    """Ranges of the packed gradients, the last parameters first, and what they hold."""
    ranges: list[tuple[int, int]] = []
    names: list[str] = []
    for name in reversed(wanted):
        first = packing.offsets[name]
        end = first + packing.elements(name)
        joins = ranges and packing.end(name) == ranges[-1][0] and ranges[-1][1] - ranges[-1][0] < elements
        if joins and ranges[-1][1] - first <= _LARGEST:
            ranges[-1] = (first, ranges[-1][1])
            names[-1] = f"{name}, {names[-1]}"
            continue
        pieces = range(first, end, _LARGEST)
        for number, begin in enumerate(reversed(pieces)):
            ranges.append((begin, min(begin + _LARGEST, end)))
            names.append(name if len(pieces) == 1 else f"{name} ({len(pieces) - number})")
    return ranges, names


def planned(
    program: Program, steps: Sequence[Step], places: Mapping[str, Place], real_bytes: int
) -> ExchangePlan | None:
    """When everything is reduced; None for a program without reductions."""
    exchange = program.exchange
    if exchange is None:
        return None
    after = set(exchange.after)
    last = max(n for n, step in enumerate(steps) if not after.issuperset(_stages(step)))
    found = _stops(exchange, steps, places)
    needs = [sum(stop.parts.count(number) for stop in found) for number in range(len(exchange.ranges))]
    assert all(needs), "every part of the gradients is written by some kernel"
    text = repr(
        (
            exchange.ranges,
            exchange.names,
            exchange.statistics,
            exchange.after,
            len(program.faults),
            real_bytes,
        )
    )
    signature = int(hashlib.sha256(text.encode()).hexdigest()[:5], 16)
    timed = _timed(exchange, program, steps, real_bytes)
    weigh = _first_reader(steps)
    return ExchangePlan(exchange, tuple(needs), tuple(found), weigh, last, signature, tuple(timed))


def _stages(step: Step) -> set[str]:
    return {part.stage.name for kernel in step.kernels for part in kernel.parts}


def _stops(exchange: Exchange, steps: Sequence[Step], places: Mapping[str, Place]) -> list[Stop]:
    merges: dict[tuple[int, int], list[str]] = {}
    parts: dict[tuple[int, int], list[int]] = {}
    for number, step in enumerate(steps):
        sums = _gradient_sums(exchange, step, places) if step.kind == IMAGES else []
        early = {kernel.name: position for kernel, position, _ in sums}
        for kernel, position, (low, high) in sums:
            merges.setdefault((number, position), []).append(kernel.name)
            touched = _touched(exchange, low, high)
            parts.setdefault((number, position), []).extend(touched)
        for position, kernel in enumerate(step.kernels):
            for part in kernel.parts:
                stage = part.merge or part.stage
                if (
                    exchange.tensor not in stage.writes()
                    or part.name in early
                    or stage.name in exchange.after
                ):
                    continue
                low, high = places[exchange.tensor].address(stage.write).bounds(stage.sizes)
                at = END if step.kind == IMAGES else position
                parts.setdefault((number, at), []).extend(_touched(exchange, low, high))
    found, counter = [], 0
    for step_number, at in sorted(parts, key=lambda key: (key[0], key[1] == END, key[1])):
        inside = steps[step_number].kind == IMAGES and at != END
        names = tuple(merges.get((step_number, at), ()))
        numbers = tuple(dict.fromkeys(parts[step_number, at]))
        found.append(Stop(step_number, at, counter if inside else -1, names, numbers))
        counter += inside
    return found


def _gradient_sums(
    exchange: Exchange, step: Step, places: Mapping[str, Place]
) -> list[tuple[Kernel, int, tuple[int, int]]]:
    """Sums over images that are gradients, with the sweep after which they are merged and their elements.

    Those that touch the same elements are merged together, in order, after the last of them.
    """
    sweep_of = {p: i for i, s in enumerate(step.sweeps) for p in range(s.first, s.last + 1)}
    found: list[tuple[Kernel, int, tuple[int, int]]] = []
    for position, kernel in enumerate(step.kernels):
        for one in kernel.sums:
            assert one.merge is not None
            if one.merge.write.tensor != exchange.tensor:
                continue
            low, high = places[exchange.tensor].address(one.merge.write).bounds(one.merge.sizes)
            found.append((one, sweep_of[position], (low, high)))
    changed = True
    while changed:
        changed = False
        for i, (kernel, position, (low, high)) in enumerate(found):
            others = [p for _, p, (a, b) in found if a <= high and low <= b]
            if max(others) > position:
                found[i] = (kernel, max(others), (low, high))
                changed = True
    return found


def _touched(exchange: Exchange, low: int, high: int) -> list[int]:
    """Numbers of the ranges with elements from ``low`` to ``high``."""
    return [n for n, (first, end) in enumerate(exchange.ranges) if first <= high and low < end]


def _first_reader(steps: Sequence[Step]) -> tuple[int, int] | None:
    """The first region that reads the rank's share, and the sweep or kernel in it."""
    for number, step in enumerate(steps):
        sweep_of = {p: i for i, s in enumerate(step.sweeps) for p in range(s.first, s.last + 1)}
        for position, kernel in enumerate(step.kernels):
            stages = [s for part in kernel.parts for s in (part.stage, part.merge) if s is not None]
            if any(WEIGHT in stage.reads() for stage in stages):
                return number, sweep_of[position] if step.kind == IMAGES else position
    return None


def _timed(exchange: Exchange, program: Program, steps: Sequence[Step], real_bytes: int) -> list[Timed]:
    found = [
        Timed(COMMUNICATION, name, (end - first) * real_bytes)
        for name, (first, end) in zip(exchange.names, exchange.ranges, strict=True)
    ]
    size = sum(program.tensors[name].size for name in exchange.statistics)
    found.append(Timed(AGREEMENT, "shares of the ranks", 24))
    found.append(Timed(COMMUNICATION, "statistics", size * real_bytes))
    found.append(Timed(AGREEMENT, "faults", 8))
    for number, step in enumerate(steps):
        found.append(Timed(REGIONS, region_name(number)))
        if step.kind == IMAGES:
            found.append(Timed(COMPUTE, earlier_name(number)))
        count = len(step.sweeps) if step.kind == IMAGES else len(step.kernels)
        found += [Timed(COMPUTE, item_name(number, position, step)) for position in range(count)]
    found.append(Timed(WAIT, WAITING))
    return found


WAITING = "waiting for reductions"


def earlier_name(number: int) -> str:
    """The name for a region's images before the last one."""
    return f"{number} images before the last"


def region_name(number: int) -> str:
    """The name under which the times of a region are recorded."""
    return f"region {number}"


def item_name(number: int, position: int, step: Step) -> str:
    """The name under which the times of a sweep (of the last image) or kernel are recorded."""
    if step.kind != IMAGES:
        return f"{number}.{position} {step.kernels[position].name.removeprefix('k_')}"
    sweep = step.sweeps[position]
    first = step.kernels[sweep.first].name.removeprefix("k_")
    last = step.kernels[sweep.last].name.removeprefix("k_")
    return f"{number}.{position} {first}" + (f" to {last}" if sweep.last > sweep.first else "")
