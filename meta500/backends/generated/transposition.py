"""Exclusive writes, and the change of variables that makes a scattering stage gather.

A parallel loop over a stage's iterations is free of races if no two of them write the same element. The
adjoint of a stage writes where the stage read: u[i+r] read by neighbouring iterations is written by
neighbouring iterations. Solving h = i + r for i and looping over h instead turns the scattered additions
into one sum per element. Strides split the elements into phases, h = s*u + phase, each with the taps that
reach it.

Source: J. Hückelheim and P. Hovland, "Automatic Differentiation of Parallelised Convolutional Neural
Networks: Lessons from Adjoint PDE Solvers", 2017 (transposed forward-mode differentiation).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meta500.backends.generated.affine import Affine, Guard, injective
from meta500.backends.generated.ir import Axis, Stage


@dataclass(frozen=True)
class Conflict:
    """Dimensions of a written index whose axes do not determine the iteration."""

    dimensions: tuple[int, ...]
    reason: str


def conflict(stage: Stage, shape: Sequence[int]) -> Conflict | None:
    """Where two iterations that differ in a written axis write the same element of a tensor of this shape, or
    only guards keep an iteration from writing beside it; None if nowhere.

    Every dimension is looked at by itself: its index must be a mixed-radix number of its own axes.
    """
    sizes = stage.sizes
    seen: dict[str, int] = {}
    found: list[int] = []
    outside: list[int] = []
    for dimension, (index, size) in enumerate(zip(stage.write.indices, shape, strict=True)):
        low, high = index.bounds(sizes)
        if low < 0 or high >= size:
            outside.append(dimension)
        if any(name in seen for name in index.axes):
            return Conflict((dimension,), f"{index} shares an axis with another dimension")
        seen.update(dict.fromkeys(index.axes, dimension))
        if not injective(index, sizes):
            found.append(dimension)
    if found:
        overlapping = ", ".join(str(stage.write.indices[d]) for d in found)
        return Conflict(tuple(sorted({*found, *outside})), f"neighbouring iterations meet in {overlapping}")
    if outside:
        beyond = ", ".join(str(stage.write.indices[d]) for d in outside)
        return Conflict(tuple(outside), f"some iterations write nothing, where {beyond} is outside")
    return None


def covers(stages: Sequence[Stage], shape: Sequence[int]) -> bool:
    """Whether the stages together write every element of a tensor, and each by one iteration."""
    written = 0
    for stage in stages:
        sizes = stage.sizes
        if stage.message is not None or conflict(stage, shape) is not None:
            return False
        if stage.combine == "set" and stage.guards:
            return False
        written += math.prod(sizes[name] for name in stage.write.axes)
    if written != math.prod(shape):
        return False
    if len(stages) == 1:
        return True
    boxes = [[_values(index, stage.sizes) for index in stage.write.indices] for stage in stages]
    return all(
        any(mine.isdisjoint(other) for mine, other in zip(a, b, strict=True))
        for a, b in itertools.combinations(boxes, 2)
    )


def _values(index: Affine, sizes: dict[str, int]) -> set[int]:
    """All values of an index."""
    found = {index.constant}
    for name, coefficient in index.terms:
        found = {value + coefficient * step for value in found for step in range(sizes[name])}
    return found


def gathered(stage: Stage, shape: Sequence[int]) -> list[Stage] | None:
    """The stage as pieces that each sum up what belongs to one element of their own.

    Args:
        stage: with combine "sum".
        shape: of the written tensor.

    Returns:
        One stage per combination of phases; None where no axis can be solved for.
    """
    trouble = conflict(stage, shape)
    if trouble is None:
        return [stage]
    pieces = [stage]
    for dimension in trouble.dimensions:
        done: list[Stage] = []
        for piece in pieces:
            solved = _solved(piece, dimension, shape[dimension])
            if solved is None:
                return None
            done += solved
        pieces = done
    if any(conflict(piece, shape) for piece in pieces):
        return None
    return [piece.simplified() for piece in pieces]


def _solved(stage: Stage, dimension: int, size: int) -> list[Stage] | None:
    """``stage`` with the index of one dimension solved for the axis that leaves the fewest iterations."""
    index = stage.write.indices[dimension]
    sizes = stage.sizes
    elsewhere = {a for d, other in enumerate(stage.write.indices) if d != dimension for a in other.axes}
    candidates = [(sizes[a] * abs(c), a) for a, c in index.terms if a not in elsewhere]
    if not candidates:
        return None
    axis = max(candidates)[1]
    step = index.coefficient(axis)
    rest = index - Affine.axis(axis, step)
    taps = [a for a in rest.axes if a not in elsewhere]
    if len(taps) != len(rest.axes):
        return None
    pieces = []
    for phase in range(min(abs(step), size)):
        for chosen in _progressions(rest, taps, sizes, phase, abs(step)):
            pieces.append(_piece(stage, dimension, size, axis, step, rest, phase, chosen))
    return pieces


@dataclass(frozen=True)
class _Taps:
    """Values first + step * t, t < count, of a tap's axis."""

    first: int
    step: int
    count: int


def _progressions(
    rest: Affine, taps: Sequence[str], sizes: dict[str, int], phase: int, stride: int
) -> Iterator[dict[str, _Taps]]:
    """The values of the taps for which phase - rest is a multiple of the stride.

    With one tap that is one arithmetic progression, with more of them one for every choice of the others.
    """
    if stride == 1:
        yield {a: _Taps(0, 1, sizes[a]) for a in taps}
        return
    *outer, last = taps if taps else [None]
    for values in itertools.product(*(range(sizes[a]) for a in outer if a is not None)):
        fixed = dict(zip(outer, values, strict=True))
        remainder = phase - rest.constant - sum(rest.coefficient(a) * v for a, v in fixed.items() if a)
        chosen = {a: _Taps(v, 1, 1) for a, v in fixed.items() if a is not None}
        if last is None:
            if remainder % stride == 0:
                yield chosen
            continue
        hits = [t for t in range(sizes[last]) if (remainder - rest.coefficient(last) * t) % stride == 0]
        if hits:
            step = hits[1] - hits[0] if len(hits) > 1 else 1
            yield {**chosen, last: _Taps(hits[0], step, len(hits))}


def _piece(
    stage: Stage,
    dimension: int,
    size: int,
    axis: str,
    step: int,
    rest: Affine,
    phase: int,
    chosen: dict[str, _Taps],
) -> Stage:
    stride, sign = abs(step), 1 if step > 0 else -1
    sizes = stage.sizes
    name = _fresh("h" if dimension == len(stage.write.indices) - 2 else "w", sizes)
    count = (size - phase + stride - 1) // stride
    target = Affine.axis(name, stride, phase)
    # A tap with a single value needs no loop.
    single = {a: Affine((), t.first) for a, t in chosen.items() if t.count == 1}
    taps = {a: single.get(a, Affine.axis(a, t.step, t.first)) for a, t in chosen.items()}
    solution = ((target - rest.substitute(taps)) * sign).divided(stride)
    values = {axis: solution, **taps}
    axes: list[Axis] = []
    for old in stage.axes:
        if old.name == axis:
            axes.append(Axis(name, count))
        elif old.name in chosen:
            axes.append(Axis(old.name, chosen[old.name].count))
        else:
            axes.append(old)
    moved = stage.substitute(values, tuple(axes))
    moved = replace(moved, axes=tuple(a for a in moved.axes if a.name not in single))
    indices = list(moved.write.indices)
    indices[dimension] = target
    guard = Guard(solution, 0, sizes[axis])
    return replace(
        moved, write=replace(moved.write, indices=tuple(indices)), guards=(*moved.guards, guard)
    ).simplified()


def _fresh(name: str, taken: dict[str, int]) -> str:
    while name in taken:
        name += "_"
    return name
