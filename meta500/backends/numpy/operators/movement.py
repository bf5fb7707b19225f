"""Operators that move or copy elements without computing with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import (
    as_list,
    normal_axes,
    normal_axis,
    numeric_vjp,
    scatter_sum,
    unbroadcast,
)
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


def _reshaped_back(call: Call, d: np.ndarray) -> Gradients:
    """Adjoint of every pure change of shape."""
    return (d.reshape(call.inputs[0].shape), *(None,) * (len(call.inputs) - 1))


# Shape.


def _reshape(x: np.ndarray, shape: Sequence[int], allowzero: int = 0) -> np.ndarray:
    wanted = [int(n) for n in shape]
    for i, n in enumerate(wanted):
        if n == 0 and not allowzero:
            if i >= x.ndim:
                raise UserError(
                    f"Reshape: 0 at position {i} of {wanted} copies a dimension that {x.shape} lacks"
                )
            wanted[i] = x.shape[i]
    known = math.prod(n for n in wanted if n != -1)
    free = wanted.count(-1)
    fits = x.size == known if free == 0 else known != 0 and x.size % known == 0
    if free > 1 or min(wanted, default=0) < -1 or not fits:
        raise UserError(f"Reshape: {x.shape} ({x.size} elements) cannot become {list(shape)}")
    return x.reshape(wanted)


@rules.rule("Reshape", 5, host=("shape",))
def reshape(x: np.ndarray, shape: list[int], *, allowzero: int = 0) -> np.ndarray:
    """New shape: 0 copies the dimension of x (unless ``allowzero``), one -1 takes what is left.

    Raises:
        UserError: the number of elements does not fit.
    """
    return _reshape(x, shape, allowzero)


@rules.rule("Reshape", 1)
def reshape_attribute(
    x: np.ndarray, *, consumed_inputs: Any = None, shape: tuple[int, ...] | None = None
) -> np.ndarray:
    """Version 1: the shape is an attribute; without it, a scalar."""
    return _reshape(x, shape or ())


@rules.rule("Flatten")
def flatten(x: np.ndarray, *, axis: int = 1) -> np.ndarray:
    """A matrix: dimensions before ``axis`` are its rows, the others its columns."""
    first = normal_axis(axis, x.ndim, "Flatten", limit=x.ndim)
    return x.reshape(math.prod(x.shape[:first]), math.prod(x.shape[first:]))


def _squeeze(x: np.ndarray, axes: Sequence[int] | int | None) -> np.ndarray:
    if axes is None:
        return x.reshape([n for n in x.shape if n != 1])
    normal = normal_axes(axes, x.ndim, "Squeeze")
    if any(x.shape[axis] != 1 for axis in normal):
        raise UserError(f"Squeeze: axes {as_list(axes)} of shape {x.shape} are not all 1")
    return x.reshape([n for i, n in enumerate(x.shape) if i not in normal])


@rules.rule("Squeeze", 13, host=("axes",))
def squeeze(x: np.ndarray, axes: list[int] | None = None) -> np.ndarray:
    """Remove dimensions of size 1: those named, or all.

    Raises:
        UserError: a named dimension is not 1.
    """
    return _squeeze(x, axes)


@rules.rule("Squeeze", 1)
def squeeze_attribute(x: np.ndarray, *, axes: tuple[int, ...] | None = None) -> np.ndarray:
    """Before version 13 the axes are an attribute."""
    return _squeeze(x, axes)


def _unsqueeze(x: np.ndarray, axes: Sequence[int] | int) -> np.ndarray:
    listed = as_list(axes)
    rank = x.ndim + len(listed)
    normal = normal_axes(listed, rank, "Unsqueeze")
    sizes = iter(x.shape)
    return x.reshape([1 if i in normal else next(sizes) for i in range(rank)])


@rules.rule("Unsqueeze", 13, host=("axes",))
def unsqueeze(x: np.ndarray, axes: list[int]) -> np.ndarray:
    """Insert dimensions of size 1 at the given axes of the result."""
    return _unsqueeze(x, axes)


@rules.rule("Unsqueeze", 1)
def unsqueeze_attribute(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
    """Before version 13 the axes are an attribute."""
    return _unsqueeze(x, axes)


@rules.rule("Identity")
def identity(x: Any) -> Any:
    """The input itself, not a copy."""
    return x


@identity.vjp
def identity_vjp(call: Call, d_output: Any) -> tuple[Any, ...]:
    return (d_output,)


for _rule in (
    reshape, reshape_attribute, flatten, squeeze, squeeze_attribute, unsqueeze, unsqueeze_attribute,
):  # fmt: skip
    _rule.vjp(_reshaped_back)


@rules.rule("Transpose")
def transpose(x: np.ndarray, *, perm: tuple[int, ...] | None = None, saved: dict[str, Any]) -> np.ndarray:
    """Permute the dimensions; without ``perm`` reverse them. A view.

    Raises:
        UserError: ``perm`` is no permutation of the axes.
    """
    order = tuple(reversed(range(x.ndim))) if perm is None else tuple(perm)
    if sorted(order) != list(range(x.ndim)):
        raise UserError(f"Transpose: perm {list(order)} is no permutation of the {x.ndim} axes of {x.shape}")
    saved["order"] = order
    return x.transpose(order)


@transpose.vjp
def transpose_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The inverse permutation."""
    return (d.transpose(np.argsort(call.saved["order"])),)


# Joining, cutting, repeating.


@rules.rule("Concat", 4)
def concat(*arrays: np.ndarray, axis: int, saved: dict[str, Any]) -> np.ndarray:
    """Join along an existing axis.

    Raises:
        UserError: other dimensions differ.
    """
    place = normal_axis(axis, arrays[0].ndim, "Concat")
    shapes = [array.shape for array in arrays]
    if len({(len(s), s[:place], s[place + 1 :]) for s in shapes}) > 1:
        raise UserError(f"Concat: shapes {shapes} differ outside axis {axis}")
    saved["axis"] = place
    return np.concatenate(arrays, axis=place)


@rules.rule("Concat", 1)
def concat_default_axis(*arrays: np.ndarray, axis: int | None = None, saved: dict[str, Any]) -> np.ndarray:
    """Version 1: the axis is 1 unless given."""
    return concat(*arrays, axis=1 if axis is None else axis, saved=saved)


@concat.vjp
@concat_default_axis.vjp
def concat_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The pieces of the cotangent."""
    axis = call.saved["axis"]
    cuts = np.cumsum([array.shape[axis] for array in call.inputs])[:-1]
    return tuple(np.split(d, cuts, axis=axis))


def _split(x: np.ndarray, lengths: Sequence[int], axis: int, saved: dict[str, Any]) -> tuple[np.ndarray, ...]:
    place = normal_axis(axis, x.ndim, "Split")
    if min(lengths, default=0) < 0 or sum(lengths) != x.shape[place]:
        raise UserError(f"Split: lengths {list(lengths)} do not add up to dimension {axis} of {x.shape}")
    saved.update(axis=place, lengths=tuple(lengths))
    return tuple(np.split(x, np.cumsum(lengths)[:-1], axis=place))


def _equal_parts(x: np.ndarray, count: int, axis: int) -> list[int]:
    size = x.shape[normal_axis(axis, x.ndim, "Split")]
    if count < 1 or size % count:
        raise UserError(f"Split: dimension {axis} of {x.shape} is not divisible into {count} equal parts")
    return [size // count] * count


@rules.rule("Split", 18, host=("split",))
def split_num_outputs(
    x: np.ndarray,
    split: list[int] | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Cut along an axis: by lengths, or into ``num_outputs`` equal parts of which the last may be smaller.

    Raises:
        UserError: both or neither is given, or the lengths do not fit.
    """
    if (split is None) == (num_outputs is None):
        raise UserError("Split: exactly one of the input split and the attribute num_outputs must be given")
    if split is None:
        size = x.shape[normal_axis(axis, x.ndim, "Split")]
        part = -(-size // num_outputs) if num_outputs else 0  # type: ignore[operator]
        split = [part] * (int(num_outputs or 0) - 1)
        split.append(size - sum(split))
    return _split(x, split, axis, saved)


@rules.rule("Split", 13, host=("split",))
def split(
    x: np.ndarray,
    split: list[int] | None = None,
    *,
    axis: int = 0,
    n_outputs: int,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Cut along an axis by lengths, or into as many equal parts as there are outputs."""
    return _split(x, _equal_parts(x, n_outputs, axis) if split is None else split, axis, saved)


@rules.rule("Split", 2)
def split_attribute(
    x: np.ndarray,
    *,
    axis: int = 0,
    split: tuple[int, ...] | None = None,
    n_outputs: int,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Before version 13 the lengths are an attribute."""
    return _split(x, split or _equal_parts(x, n_outputs, axis), axis, saved)


@rules.rule("Split", 1, host=("lengths",))
def split_first(
    x: np.ndarray,
    lengths: list[float] | None = None,
    *,
    axis: int | None = None,
    split: tuple[int, ...] | None = None,
    n_outputs: int,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Version 1: lengths as input (in the type of x) or attribute; the axis has no default.

    Raises:
        UserError: no axis is given.
    """
    if axis is None:
        raise UserError("Split: version 1 defines no default axis; give the attribute axis")
    given = [int(n) for n in lengths] if lengths else split
    return _split(x, given or _equal_parts(x, n_outputs, axis), axis, saved)


@split_num_outputs.vjp
@split.vjp
@split_attribute.vjp
@split_first.vjp
def split_vjp(call: Call, *cotangents: np.ndarray | None) -> Gradients:
    """The cotangents joined again; zeros where an output has none."""
    x, axis, lengths = call.inputs[0], call.saved["axis"], call.saved["lengths"]
    d_x = np.zeros(x.shape, x.dtype)
    start = 0
    for d, length in zip(cotangents, lengths, strict=False):
        if d is not None:
            d_x[(slice(None),) * axis + (slice(start, start + length),)] = d
        start += length
    return (d_x, *(None,) * (len(call.inputs) - 1))


def _slice_of(start: int, end: int, step: int, size: int) -> slice:
    """One axis of Slice as a Python slice, clamped as ONNX says."""
    if step == 0:
        raise UserError("Slice: a step is 0")
    if size == 0:
        return slice(0, 0)
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    stop = min(max(end, -1), size - 1)
    return slice(min(max(start, 0), size - 1), None if stop < 0 else stop, step)


def _slice(
    x: np.ndarray,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
    saved: dict[str, Any],
) -> np.ndarray:
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise UserError(
            f"Slice: {len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps"
        )
    places = [slice(None)] * x.ndim
    normal = normal_axes(list(axes), x.ndim, "Slice")
    for axis, start, end, step in zip(normal, starts, ends, steps, strict=True):
        places[axis] = _slice_of(start, end, step, x.shape[axis])
    saved["places"] = tuple(places)
    return x[tuple(places)]


@rules.rule("Slice", 10, host=("starts", "ends", "axes", "steps"))
def slice_inputs(
    x: np.ndarray,
    starts: list[int],
    ends: list[int],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
    *,
    saved: dict[str, Any],
) -> np.ndarray:
    """A view of x from starts to ends (exclusive) by steps, which may be negative.

    Raises:
        UserError: lists of different lengths, an axis twice, or a step of 0.
    """
    return _slice(x, starts, ends, axes, steps, saved)


@rules.rule("Slice", 1)
def slice_attributes(
    x: np.ndarray,
    *,
    axes: tuple[int, ...] | None = None,
    ends: tuple[int, ...],
    starts: tuple[int, ...],
    saved: dict[str, Any],
) -> np.ndarray:
    """Version 1: bounds are attributes, steps are 1."""
    return _slice(x, starts, ends, axes, None, saved)


@slice_inputs.vjp
@slice_attributes.vjp
def slice_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent in its place among zeros."""
    d_x = np.zeros(call.inputs[0].shape, d.dtype)
    d_x[call.saved["places"]] = d
    return (d_x, *(None,) * (len(call.inputs) - 1))


@rules.rule("Gather")
def gather(x: np.ndarray, indices: np.ndarray, *, axis: int = 0, saved: dict[str, Any]) -> np.ndarray:
    """Slices of x along ``axis`` at integer indices of any shape; negative ones count from the end.

    Raises:
        UserError: an index is out of bounds.
    """
    place = normal_axis(axis, x.ndim, "Gather")
    size = x.shape[place]
    wrong = (indices < -size) | (indices >= size)
    if np.any(wrong):
        raise UserError(
            f"Gather: index {indices[wrong].flat[0]} is outside [{-size}, {size - 1}] "
            f"for axis {axis} of {x.shape}"
        )
    saved.update(axis=place, index=np.where(indices < 0, indices + size, indices))
    return np.take(x, saved["index"], axis=place)


@gather.vjp
def gather_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Cotangents of equal indices add up."""
    x, axis, index = call.inputs[0], call.saved["axis"], call.saved["index"]
    flat = d.reshape(*x.shape[:axis], index.size, *x.shape[axis + 1 :])
    return scatter_sum(flat, index.ravel(), x.shape[axis], axis), None


@rules.rule("Expand", 8, host=("shape",))
def expand(x: np.ndarray, shape: list[int]) -> np.ndarray:
    """Broadcast x and ``shape`` together (a dimension of 1 in either yields the other).

    Raises:
        UserError: they do not broadcast.
    """
    try:
        full = np.broadcast_shapes(x.shape, tuple(shape))
    except ValueError:
        raise UserError(f"Expand: shape {x.shape} does not broadcast with {shape}") from None
    return np.array(np.broadcast_to(x, full))


@expand.vjp
def expand_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Sum over what was repeated."""
    return unbroadcast(d, call.inputs[0].shape), None


def _tile(x: np.ndarray, repeats: Sequence[int], saved: dict[str, Any]) -> np.ndarray:
    if len(repeats) != x.ndim or min(repeats, default=0) < 0:
        raise UserError(f"Tile: repeats {list(repeats)} need one entry of at least 0 per axis of {x.shape}")
    saved["repeats"] = tuple(repeats)
    return np.tile(x, tuple(repeats))


@rules.rule("Tile", 6, host=("repeats",))
def tile(x: np.ndarray, repeats: list[int], *, saved: dict[str, Any]) -> np.ndarray:
    """Repeat x along every axis."""
    return _tile(x, repeats, saved)


@rules.rule("Tile", 1, host=("tiles", "axis"))
def tile_axis(x: np.ndarray, tiles: Any, axis: Any, *, saved: dict[str, Any]) -> np.ndarray:
    """Version 1: repeat along one axis; both numbers are tensors in the type of x."""
    repeats = [1] * x.ndim
    repeats[normal_axis(int(as_list(axis)[0]), x.ndim, "Tile")] = int(as_list(tiles)[0])
    return _tile(x, repeats, saved)


@tile.vjp
@tile_axis.vjp
@numeric_vjp
def tile_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Sum over the copies."""
    x, repeats = call.inputs[0], call.saved["repeats"]
    pairs = [n for pair in zip(repeats, x.shape, strict=True) for n in pair]
    d_x = d.reshape(pairs).sum(axis=tuple(range(0, 2 * x.ndim, 2)))
    return (np.asarray(d_x).reshape(x.shape), *(None,) * (len(call.inputs) - 1))
