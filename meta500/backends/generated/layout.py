"""Where tensors live and how their elements are addressed.

A place is a set of strides with zeros around the data, so that a stencil reads past the edge without a
condition. The layout "rows" stores an image as [row][channel][column]: columns are contiguous, the zeros left
of a row are those right of the row before it, and two tensors joined by channels are one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from meta500.backends.generated.affine import Affine, Guard
from meta500.backends.generated.expressions import Access, Apply, Expr, Load
from meta500.backends.generated.ir import (
    GRADIENT,
    REAL,
    SUM,
    VALUE,
    Program,
    Stage,
    Tensor,
)

# Vectors of slack at the end: the last row may be read past its right edge, with steps of two twice as far.
SLACK = 2
EXTERNAL, SHARED, OWN, PARTIAL = "external", "shared", "own", "partial"
C_TYPES = {REAL: "real", "int32": "std::int32_t", "int64": "std::int64_t", "bool": "std::uint8_t"}


@dataclass(frozen=True)
class Halo:
    """Zeros before the first and after the last index, per dimension."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return any(self.before) or any(self.after)


@dataclass(frozen=True)
class Place:
    """The storage of one tensor.

    Attributes:
        tensor: its name.
        kind: "external" (an array of the caller), "shared" (one for all threads), "own" (one per thread,
            for one image at a time) or "partial" (one per thread, sums over images or rows).
        c_type: element type in C++.
        strides: elements between neighbours, per dimension; 0 for the images of an own place.
        origin: elements before the one with index 0.
        size: elements of the whole storage.
        halo: the zeros around it.
        offset: bytes from the beginning of the arena, set by the memory plan.
        padded: rows are followed by room for whole vectors.
        shift: elements at the beginning that are not stored (of private sums, which hold a part of a tensor).
        rolling: so many rows are stored at a time, in a buffer that rolls along with a sweep; 0 for all rows.
    """

    tensor: str
    kind: str
    c_type: str
    strides: tuple[int, ...]
    origin: int = 0
    size: int = 0
    halo: Halo = field(default_factory=lambda: Halo((), ()))
    offset: int = 0
    padded: bool = False
    shift: int = 0
    rolling: int = 0

    def address(self, access: Access) -> Affine:
        """Elements from the one with index 0 to the accessed one."""
        total = Affine((), -self.shift)
        for stride, index in zip(self.strides, access.indices, strict=True):
            total = total + index * stride
        return total

    @property
    def geometry(self) -> tuple[object, ...]:
        """What two places must have in common to take turns in the same memory with their zeros intact."""
        return self.c_type, self.strides, self.origin, self.size, self.halo, self.rolling > 0


def dense(tensor: Tensor, kind: str) -> Place:
    """Row-major storage without zeros around it."""
    strides, step = [], 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= size
    return Place(tensor.name, kind, C_TYPES[tensor.dtype], tuple(strides[::-1]), 0, max(step, 1))


def rows(tensor: Tensor, kind: str, halo: Halo, lanes: int, batched: bool) -> Place:
    """An image (or batch of images) as [image][row][channel][column] with zeros around it.

    Rows are padded on the left to a multiple of ``lanes``; what a stencil reads right of a row is the left
    padding of the next one.
    """
    n, c, h, w = tensor.shape
    before, after = halo.before, halo.after
    left = _rounded(max(before[3], after[3]), lanes if w >= lanes else 1)
    pitch = _rounded(w, lanes) + left if w >= lanes else w + left
    row = c * pitch
    top, bottom = before[2], after[2]
    origin = top * row + left
    size = (top + h + bottom) * row + left + SLACK * lanes
    image = _rounded(size, lanes) if kind == SHARED and batched else 0
    strides = (image, pitch, row, 1)
    total = image * n if image else size
    padded = w >= lanes
    return Place(
        tensor.name, kind, C_TYPES[tensor.dtype], strides, origin, _rounded(total, lanes), halo, 0, padded
    )


def batch_last(tensor: Tensor, halo: Halo) -> Place:
    """A batch of images as [channel][row][column][image] with zeros around every channel.

    As in :func:`rows`, what a stencil reads right of a row is the left padding of the next one.
    """
    n, c, h, w = tensor.shape
    before, after = halo.before, halo.after
    left = max(before[3], after[3])
    row = (w + left) * n
    channel = (before[2] + h + after[2]) * row
    origin = before[2] * row + left * n
    return Place(
        tensor.name, SHARED, C_TYPES[tensor.dtype], (1, channel, row, n), origin, c * channel + left * n, halo
    )


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step


def zero_products(stage: Stage, program: Program) -> list[tuple[Load, int, int, int]]:
    """Guards that zeros around a tensor make unnecessary: (load, dimension, before, after).

    A guard goes if some factor of the product that is summed is read exactly where the guard allows it, from
    a tensor whose halo can be chosen here, and no other tensor is read outside without it.
    """
    if stage.combine != SUM:
        return []
    factors = _factors(stage.value)
    sizes = stage.sizes
    found = []
    for guard in stage.guards:
        for load in factors:
            tensor = program.tensors[load.access.tensor]
            if tensor.role not in (VALUE, GRADIENT) or len(tensor.shape) != 4:
                continue
            hits = [
                d
                for d, index in enumerate(load.access.indices)
                if index == guard.index and (guard.low, guard.high) == (0, tensor.shape[d])
            ]
            if hits and not any(_needs(x, guard, stage, program) for x in stage.loads() if x != load):
                low, high = guard.index.bounds(sizes)
                found.append((load, hits[0], max(-low, 0), max(high - tensor.shape[hits[0]] + 1, 0)))
                break
    return found


def _needs(load: Load, guard: Guard, stage: Stage, program: Program) -> bool:
    """Whether a guard keeps a load inside of its tensor."""
    for index, size in zip(load.access.indices, program.tensors[load.access.tensor].shape, strict=True):
        low, high = index.bounds(stage.sizes)
        if (low < 0 or high >= size) and not (index - guard.index).terms:
            return True
    return False


def _factors(value: Expr) -> list[Load]:
    if isinstance(value, Load):
        return [value]
    if isinstance(value, Apply) and value.function == "mul":
        return [load for argument in value.arguments for load in _factors(argument)]
    return []


# A halo wider than this is not worth its memory; the guards stay.
_WIDEST_HALO = 16


def halos(program: Program) -> dict[str, Halo]:
    """The zeros that every four-dimensional internal tensor needs for its readers to do without guards."""
    wanted: dict[str, list[list[int]]] = {}
    for stage in program.stages:
        for load, dimension, before, after in zero_products(stage, program):
            if dimension < 2 or max(before, after) > _WIDEST_HALO:
                continue
            pair = wanted.setdefault(load.access.tensor, [[0] * 4, [0] * 4])
            pair[0][dimension] = max(pair[0][dimension], before)
            pair[1][dimension] = max(pair[1][dimension], after)
    return {name: Halo(tuple(b), tuple(a)) for name, (b, a) in wanted.items()}


def unguarded(stage: Stage, program: Program, places: Mapping[str, Place]) -> Stage:
    """``stage`` without the guards that the zeros around its tensors make unnecessary."""
    gone = set()
    for load, dimension, before, after in zero_products(stage, program):
        halo = places[load.access.tensor].halo
        if halo.before and halo.before[dimension] >= before and halo.after[dimension] >= after:
            index = load.access.indices[dimension]
            gone |= {guard for guard in stage.guards if guard.index == index}
    return replace(stage, guards=tuple(g for g in stage.guards if g not in gone)) if gone else stage
