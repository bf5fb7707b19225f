"""How the loops of a single stage are nested: which axis is vectorised, what is unrolled, what is split.

The forms:

- "map": one expression per element; small sums are written out in it.
- "row": a row of accumulators along the vectorised axis; the summed axes run outside of it, so that every
  inner loop goes along contiguous memory and conditions become bounds.
- "dot": the vectorised axis is summed over.
- "add": every iteration adds one term to an element, as in an adjoint that scatters, without a sum before.

Rows that are longer than the stack should hold, and additions along such rows, go in strips.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import Expr, Load, add, substitute
from meta500.backends.generated.ir import ATOMICS, REDUCTION, SET, SUM, Axis, Stage
from meta500.backends.generated.layout import EXTERNAL, Place

MAP, ROW, DOT, ADD = "map", "row", "dot", "add"
# A sum of at most so many terms is written out.
UNROLLED_TERMS = 16
_SMALL_AXIS = 4
# Fewer elements do not fill vectors.
_SHORT_AXIS = 8
# Longest row of accumulators, in elements: they live on the stack.
LONGEST_ROW = 4096
# Elements of a strip: one of a few tensors stays in the first-level cache.
STRIP = 1024
# A map over a single axis of so many elements is worth sharing among threads.
_WORTH_SHARING = 4096


@dataclass(frozen=True)
class Nest:
    """The loops of one stage.

    Attributes:
        stage: without the axis of the images where a region runs them one by one.
        form: map, row, dot or add.
        outer: loops outside, in order.
        vector: the vectorised axis; None for a scalar.
        unrolled: axes inside of the vectorised loop, written out.
        inner: for rows and dots, summed axes between outer and vector.
        split: the axis whose range the caller chooses (bands, threads); None if there is none.
        private: whether several threads add to the same elements, each into its own copy.
        atomic: whether several threads add to the same elements, one at a time.
        strip: the vectorised axis goes in strips of so many elements, outside of all other loops; 0 for none.
    """

    stage: Stage
    form: str
    outer: tuple[Axis, ...]
    vector: Axis | None
    unrolled: tuple[Axis, ...] = ()
    inner: tuple[Axis, ...] = ()
    split: Axis | None = None
    private: bool = False
    atomic: bool = False
    strip: int = 0

    def __str__(self) -> str:
        def names(axes: tuple[Axis, ...]) -> str:
            return ", ".join(f"{a.name}<{a.size}" for a in axes) or "-"

        vector = f"{self.vector.name}<{self.vector.size}" if self.vector else "-"
        split = self.split.name if self.split else "-"
        parts = [f"{self.form}: loops {names(self.outer)}"]
        if self.inner:
            parts.append(f"sum over {names(self.inner)}")
        parts.append(f"vectorised {vector}" + (f" in strips of {self.strip}" if self.strip else ""))
        if self.unrolled:
            parts.append(f"unrolled {names(self.unrolled)}")
        parts.append(
            f"split {split}"
            + (" into private copies" if self.private else " with atomic additions" if self.atomic else "")
        )
        return "; ".join(parts)


def plan(
    stage: Stage,
    places: Mapping[str, Place],
    private: bool,
    rows_axis: str | None,
    scatters: bool = False,
    write_out: bool = True,
) -> Nest:
    """The nest of one stage.

    Args:
        stage: to be nested.
        places: strides of all its tensors.
        private: it adds into copies per thread, whatever axis is split.
        rows_axis: the axis to split by, if it is known.
        scatters: several iterations write the same element. Private copies then allow to split any axis.
        write_out: short sums become one expression.
    """
    if write_out and stage.combine != SET and not private and _short_sum(stage):
        stage = _written_out(stage)
    if stage.combine == SET:
        vector, unrolled = _kept_vector(stage, places)
        rest = [a for a in stage.axes if a != vector and a not in unrolled]
        outer = _in_memory_order(rest, stage, places) or _ordered(rest, stage, places)
        split = _split(outer, rows_axis)
        if split is None and vector is not None and not unrolled and vector.size >= _WORTH_SHARING:
            split = vector
        return Nest(stage, MAP, outer, vector, unrolled, (), split, False)
    if stage.combine == SUM and not stage.reduced and _only_adds(stage, private):
        return _addition(stage, places, private, rows_axis)
    kept, reduced = stage.kept, stage.reduced
    candidate = _row_vector(stage, places)
    inner_candidate = _dot_vector(stage, places)
    if candidate is not None and (
        inner_candidate is None
        or _fills_vectors(candidate, inner_candidate, stage, places)
        or _score(candidate, stage, places) >= _score(inner_candidate, stage, places)
    ):
        outer = _ordered([a for a in kept if a != candidate], stage, places)
        strip = STRIP if candidate.size > LONGEST_ROW else 0
        split = _split(outer, rows_axis)
        if strip and (split is None or split.name != rows_axis):
            split = candidate
        if private and not scatters:
            # Threads share the reduced axis; the copies are whole.
            split = next((a for a in reduced if a.name == rows_axis), reduced[0] if reduced else None)
        return Nest(stage, ROW, outer, candidate, (), reduced, split, private, strip=strip)
    outer = _ordered(list(kept), stage, places)
    inner = tuple(a for a in _ordered(list(reduced), stage, places) if a != inner_candidate)
    if private and not (scatters and outer):
        split = next((a for a in inner if a.name == rows_axis), inner[0] if inner else inner_candidate)
        return Nest(stage, DOT, outer, inner_candidate, (), inner, split, True)
    return Nest(stage, DOT, outer, inner_candidate, (), inner, _split(outer, rows_axis), private)


def _only_adds(stage: Stage, private: bool) -> bool:
    """Whether nothing but an addition happens to the written elements."""
    return stage.initial is None and stage.finish is None and (stage.onto or private)


def _addition(stage: Stage, places: Mapping[str, Place], private: bool, rows_axis: str | None) -> Nest:
    """The nest of a stage each of whose iterations adds a term of its own."""
    vector, _ = _kept_vector(stage, places)
    outer = _ordered([a for a in stage.axes if a != vector], stage, places)
    strip = STRIP if vector is not None and vector.size > LONGEST_ROW else 0
    split = _split(outer, rows_axis)
    if strip and (split is None or split.name != rows_axis):
        split = vector
    return Nest(stage, ADD, outer, vector, (), (), split, private, strip=strip)


def _short_sum(stage: Stage) -> bool:
    terms = math.prod(a.size for a in stage.reduced)
    return (
        stage.combine == SUM
        and terms <= UNROLLED_TERMS
        and not stage.guards
        and stage.finish is None
        and not stage.onto
        and max((a.size for a in stage.kept), default=1) > terms
        and stage.method not in (REDUCTION, ATOMICS)
    )


def _written_out(stage: Stage) -> Stage:
    """A short sum as one expression."""
    total: Expr | None = stage.initial
    points: list[dict[str, Affine]] = [{}]
    for axis in stage.reduced:
        points = [{**p, axis.name: Affine((), v)} for p in points for v in range(axis.size)]
    for point in points:
        term = substitute(stage.value, point)
        total = term if total is None else add(total, term)
    assert total is not None
    return replace(stage, axes=stage.kept, value=total, combine=SET, initial=None)


def _coefficient(axis: Axis, access: object, places: Mapping[str, Place]) -> int:
    place = places[access.tensor]  # type: ignore[attr-defined]
    return abs(place.address(access).coefficient(axis.name))  # type: ignore[arg-type]


def _kept_vector(stage: Stage, places: Mapping[str, Place]) -> tuple[Axis | None, tuple[Axis, ...]]:
    """The vectorised axis of a map, and small axes that interleave with it."""
    kept = sorted(stage.axes, key=lambda a: (_coefficient(a, stage.write, places), -a.size))
    kept = [a for a in kept if _coefficient(a, stage.write, places)]
    if not kept:
        return None, ()
    unrolled: list[Axis] = []
    for axis in kept:
        small = axis.size <= _SMALL_AXIS
        if small and any(a.size > _SMALL_AXIS for a in kept) and axis is not kept[-1]:
            unrolled.append(axis)
            continue
        inside = [
            a
            for a in unrolled
            if _coefficient(a, stage.write, places) < _coefficient(axis, stage.write, places)
        ]
        step = _coefficient(axis, stage.write, places)
        if step == math.prod(a.size for a in inside) or not inside:
            # Only axes that fill the gaps of the vectorised one stay inside of it.
            return axis, tuple(inside) if step > 1 else ()
        return axis, ()
    return kept[-1], ()


def _row_vector(stage: Stage, places: Mapping[str, Place]) -> Axis | None:
    found = [a for a in stage.kept if _coefficient(a, stage.write, places) and a.size > _SMALL_AXIS]
    return max(found, key=lambda a: (_score(a, stage, places), a.size), default=None)


def _dot_vector(stage: Stage, places: Mapping[str, Place]) -> Axis | None:
    return max(stage.reduced, key=lambda a: (_score(a, stage, places), a.size), default=None)


def _fills_vectors(row: Axis, dot: Axis, stage: Stage, places: Mapping[str, Place]) -> bool:
    """Whether a row without jumps stands against a sum that is too short for vectors.

    A score counts what many loads gain along the sum, as in a stencil with several coefficients per tap.
    """
    accesses = [stage.write, *(load.access for load in stage.loads())]
    steps = {_coefficient(row, access, places) for access in accesses}
    return dot.size < _SHORT_AXIS <= row.size and steps <= {0, 1}


def _score(axis: Axis, stage: Stage, places: Mapping[str, Place]) -> float:
    """How well memory is used along an axis: contiguous accesses count most, jumps count against it."""
    score = 0.0
    accesses = [load.access for load in stage.loads()]
    if axis in stage.kept:
        accesses.append(stage.write)
    for access in accesses:
        step = _coefficient(axis, access, places)
        score += 1.0 if step == 1 else 0.5 if step == 2 else 0.0 if step == 0 else -1.0
    if axis.size < _SHORT_AXIS:
        score -= 1.0
    # A constant that is summed up reads nothing.
    return score / max(len(accesses), 1)


def _ordered(axes: list[Axis], stage: Stage, places: Mapping[str, Place]) -> tuple[Axis, ...]:
    """Large strides outside."""

    def weight(axis: Axis) -> tuple[int, int]:
        steps = [_coefficient(axis, load.access, places) for load in stage.loads()]
        return _coefficient(axis, stage.write, places), max(steps, default=0)

    return tuple(sorted(axes, key=weight, reverse=True))


def _in_memory_order(axes: list[Axis], stage: Stage, places: Mapping[str, Place]) -> tuple[Axis, ...] | None:
    """The order in which an array of the caller is read without jumps; None if no such array is copied."""
    value = stage.value
    if not isinstance(value, Load) or places[value.access.tensor].kind != EXTERNAL:
        return None
    return tuple(sorted(axes, key=lambda a: _coefficient(a, value.access, places), reverse=True))


def _split(outer: tuple[Axis, ...], rows_axis: str | None) -> Axis | None:
    named = [a for a in outer if a.name == rows_axis]
    if named:
        return named[0]
    return max(outer, key=lambda a: a.size, default=None)
