"""Operators that move elements without computing: joins, cuts, repetitions, permutations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.generated.affine import Affine, affine
from meta500.backends.generated.index_maps import Piece, pieces
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError

# More boxes than this are copied axis by axis.
_MOST_BOXES = 32
_NAMES = ("n", "c", "i", "j", "l")


def normal_axis(op: Any, axis: int, rank: int, what: str = "axis") -> int:
    """``axis`` counted from the front.

    Raises:
        UserError: it is outside of the dimensions.
    """
    if not -rank <= axis < rank:
        raise UserError(f"{op.label}: {what} {axis} is outside of {rank} dimensions")
    return axis % rank


def whole(size: int) -> list[Piece]:
    """The table that changes nothing."""
    return [Piece((size,), 0, (1,), ((0, (1,)),))]


def copy_pieces(to: Lowering, op: Any, source: str, target: str, tables: Sequence[Sequence[Piece]]) -> None:
    """target[i, j] = source[table 0 at i, table 1 at j], a stage per combination of pieces."""
    if math.prod(map(len, tables)) > _MOST_BOXES and sum(len(table) > 1 for table in tables) > 1:
        first = next(i for i, table in enumerate(tables) if len(table) > 1)
        shape = list(to.shape(source))
        shape[first] = to.shape(target)[first]
        middle = to.new(f"{target}.axis{first}", shape, to.dtype(source))
        sizes = to.shape(source)
        one = [tables[i] if i == first else whole(size) for i, size in enumerate(sizes)]
        copy_pieces(to, op, source, middle, one)
        rest = [whole(shape[i]) if i == first else table for i, table in enumerate(tables)]
        copy_pieces(to, op, middle, target, rest)
        return
    names = _NAMES if len(tables) <= len(_NAMES) else [f"d{i}" for i in range(len(tables))]
    for box in itertools.product(*tables):
        named = list(zip(box, names, strict=False))
        axes = {axis: size for piece, name in named for axis, size in piece.axes(name).items()}
        at = [piece.place(name) for piece, name in named]
        to.emit(target, at, axes, to.load(source, [piece.source(name) for piece, name in named]))


@lowers("Concat")
def concat(to: Lowering, op: Any) -> None:
    """Concat: every operand fills its part of the result (version 1: along axis 1 unless given)."""
    shapes = [to.shape(name) for name in op.operands]
    axis, start = normal_axis(op, 1 if op.axis is None else op.axis, len(shapes[0])), 0
    if len({(len(s), s[:axis], s[axis + 1 :]) for s in shapes}) > 1:
        raise UserError(f"{op.label}: shapes {[list(s) for s in shapes]} differ outside of axis {axis}")
    total = sum(s[axis] for s in shapes)
    y = to.result(op, shape=(*shapes[0][:axis], total, *shapes[0][axis + 1 :]))
    for name in op.operands:
        axes = to.axes(to.shape(name))
        at = [affine(a) for a in axes]
        place = [index + start if i == axis else index for i, index in enumerate(at)]
        to.emit(y, place, axes, to.load(name, at))
        start += to.shape(name)[axis]


@lowers("Flatten", "Reshape", "Squeeze", "Unsqueeze")
def reshape(to: Lowering, op: Any) -> None:
    """The same elements, in row-major order, in another shape."""
    if op.op_type == "Reshape" and op.since_version < 5:
        to.refuse("Reshape before version 5")
    y = to.result(op, shape=_new_shape(to, op))
    copy_reshaped(to, op, op.operands[0], y)


def _new_shape(to: Lowering, op: Any) -> list[int]:
    before = to.shape(op.operands[0])
    rank = len(before)
    if op.op_type == "Flatten":
        axis = op.axis if op.axis == rank else normal_axis(op, op.axis, rank or 1)
        return [math.prod(before[:axis]), math.prod(before[axis:])]
    if op.op_type == "Reshape":
        return _reshaped(to, op, before)
    axes = to.integers(op, "axes")
    if op.op_type == "Squeeze":
        if axes is None:
            return [size for size in before if size != 1]
        dropped = {normal_axis(op, axis, rank) for axis in axes}
        if any(before[axis] != 1 for axis in dropped):
            raise UserError(f"{op.label}: axes {axes} of shape {list(before)} are not all 1")
        return [size for i, size in enumerate(before) if i not in dropped]
    added = {normal_axis(op, axis, rank + len(axes or ())) for axis in axes or ()}
    if len(added) != len(axes or ()):
        raise UserError(f"{op.label}: axes {axes} name a dimension twice")
    sizes = iter(before)
    return [1 if i in added else next(sizes) for i in range(rank + len(added))]


def _reshaped(to: Lowering, op: Any, before: tuple[int, ...]) -> list[int]:
    wanted = to.integers(op, "shape") or []
    for i, size in enumerate(wanted):
        if size == 0 and not op.allowzero:
            if i >= len(before):
                raise UserError(f"{op.label}: 0 at position {i} of {wanted} copies what {list(before)} lacks")
            wanted[i] = before[i]
    known = math.prod(size for size in wanted if size != -1)
    free = wanted.count(-1)
    fits = math.prod(before) == known if not free else known and math.prod(before) % known == 0
    if free > 1 or not fits or min(wanted, default=0) < -1:
        raise UserError(f"{op.label}: shape {list(before)} cannot become {wanted}")
    return [math.prod(before) // known if size == -1 else size for size in wanted]


def copy_reshaped(to: Lowering, op: Any, source: str, target: str) -> None:
    """Copy elements between two shapes, over axes that both are made of.

    Where the boundaries of the dimensions interleave, as in [4, 6] to [3, 8], the elements are copied in the
    longest runs that are one in both.

    Raises:
        UnsupportedOperation: those runs are many.
    """
    before, after = to.shape(source), to.shape(target)
    sizes = common_factors(before, after)
    if sizes is None:
        _copy_runs(to, op, source, target)
        return
    axes = {f"d{i}": size for i, size in enumerate(sizes)}
    to.emit(target, _places(axes, after), axes, to.load(source, _places(axes, before)))


def _copy_runs(to: Lowering, op: Any, source: str, target: str) -> None:
    """Split what lies between common boundaries of the dimensions into runs of both innermost ones."""
    before, after = list(to.shape(source)), list(to.shape(target))
    outer: list[int] = []
    while before and after and before[0] == after[0]:
        outer.append(before.pop(0))
        after.pop(0)
    axes = {f"d{i}": size for i, size in enumerate(outer)}
    total = math.prod(before)
    cuts = sorted({*range(0, total, before[-1]), *range(0, total, after[-1]), total})
    if len(cuts) > _MOST_BOXES + 1:
        whole_shapes = f"{list(to.shape(source))} to {list(to.shape(target))}"
        to.refuse(f"a reshape from {whole_shapes}, whose dimensions interleave in {len(cuts) - 1} runs")
    for first, last in itertools.pairwise(cuts):
        places = [[affine(int(n)) for n in np.unravel_index(first, shape)] for shape in (before, after)]
        for place in places:
            place[-1] = place[-1] + affine("r")
        read, written = ([*map(affine, axes), *place] for place in places)
        to.emit(target, written, {**axes, "r": last - first}, to.load(source, read))


def common_factors(before: Sequence[int], after: Sequence[int]) -> list[int] | None:
    """Sizes of axes such that both shapes are made of runs of them; None if there are none."""

    def boundaries(shape: Sequence[int]) -> list[int]:
        found, total = [], 1
        for size in reversed(shape):
            total *= size
            found.append(total)
        return found

    cuts = sorted({*boundaries(before), *boundaries(after)} - {1})
    sizes, last = [], 1
    for cut in cuts:
        if cut % last:
            return None
        sizes.append(cut // last)
        last = cut
    return sizes[::-1]


def _places(axes: dict[str, int], shape: Sequence[int]) -> list[Affine]:
    """The index of every dimension of ``shape`` in terms of the common axes."""
    names = list(axes)[::-1]
    places = []
    for size in reversed(shape):
        index, step = Affine(), 1
        while step < size:
            name = names.pop(0)
            index, step = index + Affine.axis(name, step), step * axes[name]
        places.append(index)
    return places[::-1]


@lowers("Transpose")
def transpose(to: Lowering, op: Any) -> None:
    """y[at[perm]] = x[at]."""
    source = op.operands[0]
    x = to.shape(source)
    perm = list(range(len(x)))[::-1] if op.perm is None else list(op.perm)
    if sorted(perm) != list(range(len(x))):
        raise UserError(f"{op.label}: perm {perm} is no permutation of the axes of {list(x)}")
    y = to.result(op, shape=[x[p] for p in perm])
    axes = to.axes(x)
    names = list(axes)
    to.emit(y, [names[p] for p in perm], axes, to.load(source, names))


@lowers("Expand", since=8)
def expand(to: Lowering, op: Any) -> None:
    """The input repeated along axes of size 1, by numpy's broadcasting with the constant ``shape``."""
    source, wanted = op.operands[0], to.integers(op, "shape") or []
    try:
        shape = np.broadcast_shapes(to.shape(source), tuple(wanted))
    except ValueError:
        raise UserError(f"{op.label}: {list(to.shape(source))} does not broadcast with {wanted}") from None
    axes = to.axes(shape)
    to.emit(to.result(op, shape=shape), list(axes), axes, to.broadcast(source, axes))


@lowers("Tile", since=6)
def tile(to: Lowering, op: Any) -> None:
    """y[k * n + i] = x[i] for every k below the repeats of the axis."""
    source = op.operands[0]
    x, repeats = to.shape(source), to.integers(op, "repeats") or []
    if len(repeats) != len(x) or min(repeats, default=0) < 0:
        raise UserError(f"{op.label}: repeats {repeats} need one entry of at least 0 per axis of {list(x)}")
    y = to.result(op, shape=[n * k for n, k in zip(x, repeats, strict=True)])
    tables = [[Piece((k, n), 0, (n, 1), ((0, (0, 1)),))] for n, k in zip(x, repeats, strict=True)]
    copy_pieces(to, op, source, y, tables)


@lowers("Split")
def split(to: Lowering, op: Any) -> None:
    """Cut along an axis: by lengths, or into equal parts (of ``num_outputs`` the last may be smaller)."""
    source = op.operands[0]
    x = to.shape(source)
    if op.axis is None:
        raise UserError(f"{op.label}: version 1 defines no default axis; give the attribute axis")
    axis = normal_axis(op, op.axis, len(x))
    lengths = _lengths(to, op, x[axis])
    if min(lengths) < 0 or sum(lengths) != x[axis] or len(lengths) < len(op.results):
        raise UserError(f"{op.label}: lengths {lengths} do not add up to dimension {axis} of {list(x)}")
    start = 0
    for position, length in enumerate(lengths[: len(op.results)]):
        if op.results[position]:
            y = to.result(op, position, shape=(*x[:axis], length, *x[axis + 1 :]))
            axes = to.axes(to.shape(y))
            read = [affine(a) + (start if i == axis else 0) for i, a in enumerate(axes)]
            to.emit(y, list(axes), axes, to.load(source, read))
        start += length


def _lengths(to: Lowering, op: Any, size: int) -> list[int]:
    if op.since_version == 1 and len(op.operands) > 1:
        to.refuse("lengths as an input of version 1")
    given = to.integers(op, "split")
    if given:
        return given
    parts = len(op.results) if op.num_outputs is None else op.num_outputs
    if op.since_version >= 18:
        part = -(-size // parts)
        return [part] * (parts - 1) + [size - part * (parts - 1)]
    if size % parts:
        raise UserError(f"{op.label}: a dimension of {size} is not divisible into {parts} equal parts")
    return [size // parts] * parts


@lowers("Slice")
def slice_(to: Lowering, op: Any) -> None:
    """y[i] = x[start + i * step], the bounds constants, clamped as ONNX says."""
    source = op.operands[0]
    x = to.shape(source)
    starts, ends = to.integers(op, "starts") or [], to.integers(op, "ends") or []
    axes, steps = to.integers(op, "axes"), to.integers(op, "steps")
    places = list(range(len(starts))) if axes is None else [normal_axis(op, a, len(x)) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(places) == len(steps) or len(set(places)) != len(places):
        raise UserError(f"{op.label}: starts {starts}, ends {ends}, axes {axes} and steps {steps} do not fit")
    if 0 in steps:
        raise UserError(f"{op.label}: a step is 0")
    kept = [range(n) for n in x]
    for axis, start, end, step in zip(places, starts, ends, steps, strict=True):
        kept[axis] = _kept(start, end, step, x[axis])
    y = to.result(op, shape=[len(part) for part in kept])
    names = to.axes(to.shape(y))
    read = [Affine.axis(a, part.step, part.start) for a, part in zip(names, kept, strict=True)]
    to.emit(y, list(names), names, to.load(source, read))


def _kept(start: int, end: int, step: int, size: int) -> range:
    """The positions that Slice keeps of one axis."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


@lowers("Gather")
def gather(to: Lowering, op: Any) -> None:
    """y[.., g, ..] = x[.., indices[g], ..] along one axis, for constant indices that are regular enough."""
    source, indices = op.operands
    x, index = to.shape(source), to.constant(indices, "the indices")
    axis = normal_axis(op, op.axis, len(x))
    size = x[axis]
    if index.size and not (-size <= index.min() and index.max() < size):
        raise UserError(f"{op.label}: an index is outside [{-size}, {size - 1}] of axis {axis} of {list(x)}")
    y = to.result(op, shape=(*x[:axis], *index.shape, *x[axis + 1 :]))
    found = pieces(np.where(index < 0, index + size, index).reshape(-1))
    if found is None:
        to.refuse(f"its {index.size} indices are in no regular order")
    flat = y
    if index.ndim != 1:
        flat = to.new(f"{y}.flat", (*x[:axis], index.size, *x[axis + 1 :]), to.dtype(source))
    copy_pieces(to, op, source, flat, [found if i == axis else whole(n) for i, n in enumerate(x)])
    if flat != y:
        copy_reshaped(to, op, flat, y)
