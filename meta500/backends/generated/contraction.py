"""Register blocking of sums of products: which axes are kept in registers, unrolled, looped.

Two forms cover convolutions in all directions, since both follow from the indices alone:

- "stencil": one factor runs along the vectorised axis together with the result (an image), the other does not
  (weights). Accumulators are a block of results: block axes x rows x vectors. Every image vector is loaded
  once and multiplied with all weights that meet it.
- "dual": both factors run along the vectorised axis, which is summed over (the gradient of weights).
  Accumulators are a block of results, each a vector that is added up at the end; one factor is held in
  registers for some rows, the other one moves past it with all its taps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import Access, Apply, Expr, Index, Load, loads, walk
from meta500.backends.generated.ir import SUM, Axis, Stage
from meta500.backends.generated.layout import Place

if TYPE_CHECKING:
    from meta500.backends.generated.companions import Companion

STENCIL, DUAL = "stencil", "dual"
# A summed axis of at most so many iterations is unrolled if it moves the window (a tap).
_LONGEST_TAP = 7
_MOST_TAPS = 49


@dataclass(frozen=True)
class Blocked:
    """A register-blocked sum of products.

    Attributes:
        stage: without guards, and without the axis of the images where a region runs them one by one.
        form: stencil or dual.
        first: the image of a stencil; the held factor of a dual.
        second: the weights of a stencil; the moving factor of a dual.
        lanes: numbers in a vector.
        vector: the vectorised axis, and how many vectors are in a block.
        rows: the axis of image rows, and how many rows are in a block.
        outer: loops outside of everything.
        blocks: axes of the result with the size of their block.
        taps: unrolled axes; summed over in a stencil, written in a dual.
        inner: summed axes with a loop.
        interleaved: written axes (of a stencil) whose elements lie between those of the vectorised one.
        masked: whether the last vector of a row is partly beyond its end.
        private: whether threads add into copies of their own.
        companion: of a dual, a sum over one of the factors that is computed on the way.
        shared: the axis of the result whose range the caller chooses; None for the rows.
    """

    stage: Stage
    form: str
    first: Load
    second: Load
    lanes: int
    vector: tuple[Axis, int]
    rows: tuple[Axis, int]
    outer: tuple[Axis, ...]
    blocks: tuple[tuple[Axis, int], ...]
    taps: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    interleaved: tuple[Axis, ...] = ()
    masked: bool = False
    private: bool = False
    companion: Companion | None = None
    shared: Axis | None = None

    @property
    def split(self) -> Axis:
        """The axis whose range the caller chooses."""
        return self.shared or self.rows[0]

    @property
    def granule(self) -> int:
        """Ranges begin and end at multiples of this."""
        return dict((self.rows, *self.blocks)).get(self.split, 1)

    @property
    def sums_over_parts(self) -> bool:
        """Whether several threads add to the same elements: the axis that they share is summed over."""
        return self.form == DUAL and self.shared is None

    @property
    def scratch(self) -> int:
        """Numbers of memory of its own that it needs while it runs."""
        return 0

    def welcomes(self, companion: Companion) -> bool:
        """Whether it can compute such a sum on the way."""
        return self.form == DUAL

    def __str__(self) -> str:
        def block(pair: tuple[Axis, int]) -> str:
            return f"{pair[0].name}<{pair[0].size} by {pair[1]}"

        parts = [f"{self.form} on {self.lanes} lanes: rows {block(self.rows)}"]
        parts.append("blocks " + (", ".join(map(block, self.blocks)) or "-"))
        parts.append(f"vectors {block(self.vector)}")
        if self.shared:
            parts.append(f"split {self.shared.name}")
        if self.outer:
            parts.append("outside " + ", ".join(f"{a.name}<{a.size}" for a in self.outer))
        if self.inner:
            parts.append("summed " + ", ".join(f"{a.name}<{a.size}" for a in self.inner))
        if self.taps:
            parts.append("unrolled " + ", ".join(f"{a.name}<{a.size}" for a in self.taps))
        if self.interleaved:
            parts.append("interleaved " + ", ".join(a.name for a in self.interleaved))
        if self.masked:
            parts.append("last vector masked")
        if self.private:
            parts.append("into private copies")
        if self.companion:
            parts.append(f"with {self.companion.stage.write}, {self.companion}")
        return "; ".join(parts)


def blocked(
    stage: Stage,
    places: Mapping[str, Place],
    rows_axis: str | None,
    lanes: int,
    least: int,
    registers: int,
    private: bool,
) -> Blocked | None:
    """The blocking of a stage, None where it is no such sum of products."""
    sizes = {a.name: a for a in stage.axes}
    if rows_axis is None or rows_axis not in sizes:
        return None
    for first, second in _factors(stage, places):
        found = _stencil(stage, first, second, places, sizes[rows_axis], lanes, least, registers, private)
        found = found or _dual(
            stage, first, second, places, sizes[rows_axis], lanes, least, registers, private
        )
        if found is not None:
            return found
    return None


# Stands for image rows or columns where pictures have a single one.
_SINGLE = Axis("single", 1)


def batch_last(
    stage: Stage, places: Mapping[str, Place], lanes: int, least: int, registers: int
) -> Blocked | None:
    """The blocking of a stage on pictures whose images lie side by side, None where it is no sum of products.

    The vectorised axis is that of the images. Blocks are 4 results x 4 pixels of a row x 1 vector, or as many
    vectors as there are pixels missing; gradients of weights as in rows. Threads share the
    results, or the pixels of a row where there is a single result.
    """
    for first, second in _factors(stage, places):
        for form in (_stencil, _dual):
            walk = _walk(stage, stage.write if form is _stencil else first.access)
            if walk is None:
                continue
            vector, rows, moved = walk
            found = form(
                stage, first, second, places, rows, lanes, least, registers, False, vector, moved, True
            )
            if found is not None:
                return found
    return None


def matrix(
    stage: Stage, places: Mapping[str, Place], lanes: int, least: int, registers: int
) -> Blocked | None:
    """The blocking of a product of matrices, None where it is none.

    Vectors go along what the result and one factor have contiguous, or along the sum where both factors have.
    Threads share the other axis of the result, or the first one of many products.
    """
    if not stage.reduced:
        return None
    for form in (_stencil, _dual):
        for first, second in _factors(stage, places):
            # Without pictures nothing shifts a window, whatever shares an index in packed parameters.
            found = form(
                stage,
                first,
                second,
                places,
                _SINGLE,
                lanes,
                least,
                registers,
                False,
                by_results=True,
                flat=True,
            )
            if found is not None and found.shared is not None:
                return found
    return None


def _walk(stage: Stage, picture: Access) -> tuple[Axis, Axis, frozenset[str]] | None:
    """The axes of the images and of the columns (or rows) of a picture, and of all that moves over it."""
    if len(picture.indices) != 4 or not picture.indices[0].is_axis:
        return None
    axes = {a.name: a for a in stage.axes}
    moved = {name for d in (0, 2, 3) for name in picture.indices[d].axes}
    inside = [axes[name] for d in (3, 2) for name in picture.indices[d].axes]
    return axes[picture.indices[0].axes[0]], next(iter(inside), _SINGLE), frozenset(moved)


def _factors(stage: Stage, places: Mapping[str, Place]) -> list[tuple[Load, Load]]:
    """The factors of an unguarded sum of products of real numbers, in both orders; none of other stages.

    What the sum becomes may be a flag, as in Conv, then Less: that is no real number either.
    """
    value = stage.value
    if stage.combine != SUM or not isinstance(value, Apply) or value.function != "mul":
        return []
    if stage.guards or stage.winner is not None:
        return []
    touched = [stage.write, *(x.access for x in stage.loads())]
    if any(places[access.tensor].c_type != "real" for access in touched):
        return []
    first, second = value.arguments
    if isinstance(first, Load) and isinstance(second, Load) and first != second:
        return [(first, second), (second, first)]
    return []


def steps(access: Access, places: Mapping[str, Place]) -> dict[str, int]:
    """Elements that every axis moves an access."""
    return dict(places[access.tensor].address(access).terms)


# No vector is narrower than this, in bytes.
NARROWEST = 16


def _width(axis: Axis, lanes: int, least: int) -> tuple[int, bool] | None:
    """Lanes that suit the length of a row, and whether its last vector is masked."""
    for width in (lanes, lanes // 2, lanes // 4):
        if width >= least and axis.size % width == 0:
            return width, False
    return (lanes, True) if axis.size > lanes else None


def _stencil(
    stage: Stage,
    image: Load,
    weight: Load,
    places: Mapping[str, Place],
    rows: Axis,
    lanes: int,
    least: int,
    registers: int,
    private: bool,
    vector: Axis | None = None,
    moved: frozenset[str] = frozenset(),
    by_results: bool = False,
    flat: bool = False,
) -> Blocked | None:
    if private:
        return None
    write, a, b = (steps(x, places) for x in (stage.write, image.access, weight.access))
    found = _image_vector(stage, write, a, b)
    if found is None or rows == found or vector not in (None, found):
        return None
    if rows is not _SINGLE and (rows.name not in write or rows.name in b or rows.name not in a):
        return None
    vector = found
    width = _width(vector, lanes, least)
    if width is None:
        return None
    lanes, masked = width
    interleaved = tuple(x for x in stage.kept if x != vector and 0 < abs(write[x.name]) < write[vector.name])
    if math.prod(x.size for x in interleaved) != write[vector.name] or write[vector.name] > 2:
        return None
    if any(x.name in a or x.name not in b for x in interleaved):
        return None
    if masked and not _room_beyond(stage, places, vector, interleaved):
        return None
    if not _vectorisable_ends(stage, places, vector, interleaved):
        return None
    taps: tuple[Axis, ...] | None = ()
    inner = stage.reduced
    if not flat:
        taps, inner = _taps(stage.reduced, image, {rows.name, vector.name} | moved)
    if taps is None or any(x.name not in a for x in (*taps, *inner)):
        return None
    free = [x for x in stage.kept if x not in (vector, rows, *interleaved)]
    columns = [x for x in free if x.name in b and x.name not in a]
    outer = tuple(x for x in free if x not in columns)
    vectors = -(-vector.size // lanes)
    doubled = math.prod(x.size for x in interleaved)
    budget = registers // 2 if registers >= 32 else registers - 4
    block = _pixel_block if by_results else _stencil_block
    blocks, vector_block, row_block = block(columns, doubled, vectors, rows, budget)
    shared = _longest([*columns, *outer]) if by_results else None
    return Blocked(
        stage, STENCIL, image, weight, lanes, (vector, vector_block), (rows, row_block), outer,
        (*blocks, *((x, x.size) for x in interleaved)), taps, inner, interleaved, masked, shared=shared,
    )  # fmt: skip


def _image_vector(
    stage: Stage, write: Mapping[str, int], a: Mapping[str, int], b: Mapping[str, int]
) -> Axis | None:
    """The written axis along which the image is contiguous (or strided by 2) and weights are fixed."""
    found = [
        x
        for x in stage.kept
        if write.get(x.name, 0) in (1, 2) and a.get(x.name, 0) in (1, 2) and x.name not in b and x.size >= 4
    ]
    return max(found, key=lambda x: x.size, default=None)


def _room_beyond(
    stage: Stage, places: Mapping[str, Place], vector: Axis, interleaved: Sequence[Axis]
) -> bool:
    """Whether whole vectors may be read and written at the end of a row of every tensor."""
    if interleaved:
        return False
    accesses = [stage.write, *(x.access for x in stage.loads())]
    moving = [x for x in accesses if vector.name in steps(x, places)]
    return all(_along_rows(x, vector, places) for x in moving)


def _along_rows(access: Access, vector: Axis, places: Mapping[str, Place]) -> bool:
    """Whether a vector that begins inside of a row ends in the room behind it."""
    return places[access.tensor].padded and vector.name in access.indices[-1].axes


def _vectorisable_ends(
    stage: Stage, places: Mapping[str, Place], vector: Axis, interleaved: Sequence[Axis]
) -> bool:
    """Whether what the sum begins and ends with moves along the vectors as the result does, or not at all."""
    names = {vector.name, *(x.name for x in interleaved)}
    write = {n: s for n, s in steps(stage.write, places).items() if n in names}
    for load in loads(stage.initial) + loads(stage.finish):
        moved = {n: s for n, s in steps(load.access, places).items() if n in names}
        if moved and moved != write:
            return False
    return not any(expr is not None and _has_index(expr) for expr in (stage.initial, stage.finish))


def _has_index(expr: Expr) -> bool:
    return any(isinstance(e, Index) for e in walk(expr))


def _taps(
    reduced: Sequence[Axis], image: Load, moved: set[str]
) -> tuple[tuple[Axis, ...] | None, tuple[Axis, ...]]:
    """Summed axes that shift the window, and the others."""
    shifting = set()
    for index in image.access.indices:
        if moved & set(index.axes):
            shifting |= set(index.axes) - moved
    taps = tuple(x for x in reduced if x.name in shifting)
    inner = tuple(x for x in reduced if x.name not in shifting)
    if any(t.size > _LONGEST_TAP for t in taps) or math.prod(t.size for t in taps) > _MOST_TAPS:
        return None, inner
    return taps, inner


def _divisors(size: int, most: int) -> list[int]:
    return [d for d in range(1, min(size, most) + 1) if size % d == 0]


def _stencil_block(
    columns: Sequence[Axis], doubled: int, vectors: int, rows: Axis, budget: int
) -> tuple[tuple[tuple[Axis, int], ...], int, int]:
    """Block sizes: long vectors first, then outputs, then rows.

    Measured on AVX-512 (16 accumulators): 4 x 4 x 1 (outputs x vectors x rows) for many channels and long
    rows, 8 x 2 x 1 and 16 x 1 x 1 for short ones, 2 x 4 x 2 and 1 x 4 x 4 for two channels and one.
    """
    last = max(columns, key=lambda x: x.size, default=None)
    best = (0, 0, 0, 0)
    for v in _divisors(vectors, 4 if budget >= 16 else 2):
        for k in _divisors(last.size, budget) if last is not None else [1]:
            for r in _divisors(rows.size, 4):
                accumulators = k * doubled * v * r
                if accumulators <= budget:
                    best = max(best, (accumulators, v, k, r))
    _, v, k, r = best if best[0] else (1, 1, 1, 1)
    blocks = tuple((x, k if x == last else 1) for x in columns)
    return blocks, v, r


def _pixel_block(
    columns: Sequence[Axis], doubled: int, vectors: int, pixels: Axis, budget: int
) -> tuple[tuple[tuple[Axis, int], ...], int, int]:
    """Block sizes of pictures whose images lie side by side: 4 results, pixels, then vectors."""
    last = max(columns, key=lambda x: x.size, default=None)
    best = (0, 0, 0, 0)
    for k in _divisors(last.size, 4) if last is not None else [1]:
        for r in _divisors(pixels.size, 4):
            for v in _divisors(vectors, 4):
                if k * r * v <= budget:
                    best = max(best, (k * r * v, r, k, v))
    _, r, k, v = best
    return tuple((x, k if x == last else 1) for x in columns), v, r


def _dual(
    stage: Stage,
    held: Load,
    moving: Load,
    places: Mapping[str, Place],
    rows: Axis,
    lanes: int,
    least: int,
    registers: int,
    private: bool,
    vector: Axis | None = None,
    moved: frozenset[str] = frozenset(),
    by_results: bool = False,
    flat: bool = False,
) -> Blocked | None:
    a, b = (steps(x, places) for x in (held.access, moving.access))
    if not by_results and (stage.initial is not None or stage.finish is not None or stage.onto):
        return None
    found = [x for x in stage.reduced if a.get(x.name) == 1 and b.get(x.name, 0) in (1, 2) and x.size >= 4]
    longest = max(found, key=lambda x: x.size, default=None)
    if longest is None or rows == longest or vector not in (None, longest):
        return None
    if rows is not _SINGLE and (rows not in stage.reduced or rows.name not in a or rows.name not in b):
        return None
    vector = longest
    moved = moved | {rows.name, vector.name}
    width = _width(vector, lanes, least)
    if width is None:
        return None
    lanes, masked = width
    accesses = [held.access, moving.access]
    if masked and not all(_along_rows(x, vector, places) for x in accesses):
        return None
    shifting: set[str] = set()
    for index in () if flat else moving.access.indices:
        if moved & set(index.axes):
            shifting |= set(index.axes) - moved
    budget = registers - 12 if registers >= 32 else registers - 6
    taps = tuple(x for x in stage.kept if x.name in shifting)
    if any(x.name in a for x in taps):
        return None
    # Of large windows one row of taps at a time: their accumulators must stay in registers.
    while math.prod(t.size for t in taps) > budget and taps:
        taps = taps[1:]
    held_shift = {
        n for index in held.access.indices if moved & set(index.axes) for n in index.axes if n not in moved
    }
    if held_shift:
        return None
    free = [x for x in stage.kept if x not in taps]
    left = [x for x in free if x.name in a and x.name not in b]
    right = [x for x in free if x.name in b and x.name not in a]
    outer = tuple(x for x in free if x not in left and x not in right)
    inner = tuple(x for x in stage.reduced if x not in (vector, rows))
    if any(x.name not in a or x.name not in b for x in inner):
        return None
    count = math.prod(t.size for t in taps)
    k, c, r = _dual_block(left, right, count, rows, budget, vector.size)
    shared = _longest([*left, *right, *outer]) if by_results else None
    if k * c * count > 2 * budget:
        return None
    blocks = tuple((x, k if x == _longest(left) else 1) for x in left)
    blocks += tuple((x, c if x == _longest(right) else 1) for x in right)
    return Blocked(
        stage,
        DUAL,
        held,
        moving,
        lanes,
        (vector, 1),
        (rows, r),
        outer,
        blocks,
        taps,
        inner,
        (),
        masked,
        private,
        shared=shared,
    )


def _longest(axes: Sequence[Axis]) -> Axis | None:
    return max(axes, key=lambda x: x.size, default=None)


def _dual_block(
    left: Sequence[Axis], right: Sequence[Axis], taps: int, rows: Axis, budget: int, width: int
) -> tuple[int, int, int]:
    """Block sizes (held results, moving results, rows).

    Measured on AVX-512 for 9 taps: 2 x 1 x 4 (rows 2 in short rows), 1 x 1 x 4 for an odd number of filters.
    """
    first, second = _longest(left), _longest(right)
    best: tuple[float, tuple[int, int, int]] = (math.inf, (1, 1, 1))
    for k in _divisors(first.size, 8) if first else [1]:
        for c in _divisors(second.size, 8) if second else [1]:
            for r in _divisors(rows.size, 4):
                accumulators = k * c * taps
                if accumulators > budget and (k, c) != (1, 1):
                    continue
                if k * r > 8 or (width <= 64 and r > 2 and taps > 1):
                    continue
                cost = (k * r + c * (r + 2) * math.sqrt(taps)) / (accumulators * r)
                cost += 2.0 / accumulators if accumulators < 12 else 0.0
                best = min(best, (cost, (k, c, r)))
    return best[1]


def points(axes: Sequence[Axis]) -> Iterator[dict[str, int]]:
    """All values of some axes."""
    found: list[dict[str, int]] = [{}]
    for axis in axes:
        found = [{**p, axis.name: v} for p in found for v in range(axis.size)]
    yield from found


def shifted(address: Affine, point: Mapping[str, int]) -> Affine:
    """An address with some axes replaced by numbers."""
    return address.substitute({name: Affine((), value) for name, value in point.items()})
