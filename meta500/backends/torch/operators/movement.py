"""Operators that move, select, join or repeat elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.backends.torch.operators.literals import Scalar, several, single
from meta500.backends.torch.operators.padding import pad
from meta500.errors import UserError, choose

Ints = tuple[int, ...]


def _axis(operator: str, axis: int, rank: int) -> int:
    """The axis counted from the front."""
    if not -rank <= axis < rank:
        raise UserError(f"{operator}: axis {axis} is outside of the {rank} axes of the tensor")
    return axis % rank


def _axes(operator: str, axes: Sequence[int], rank: int) -> list[int]:
    """Different axes counted from the front, in the given order."""
    found = [_axis(operator, axis, rank) for axis in axes]
    if len(set(found)) != len(found):
        raise UserError(f"{operator}: axes {tuple(axes)} name one axis twice")
    return found


def _reshaped(x: Tensor, shape: Sequence[int], keep_zeros: int) -> Tensor:
    wanted = list(shape)
    for axis, size in enumerate(wanted):
        if size == 0 and not keep_zeros:
            if axis >= x.ndim:
                raise UserError(
                    f"Reshape: entry {axis} of shape {tuple(shape)} copies an axis "
                    f"that input {tuple(x.shape)} lacks"
                )
            wanted[axis] = x.shape[axis]
    free = [axis for axis, size in enumerate(wanted) if size == -1]
    known = math.prod([size for size in wanted if size != -1])
    if len(free) > 1 or min(wanted, default=0) < -1 or (free and not known):
        raise UserError(
            f"Reshape: shape {tuple(shape)} does not determine all sizes of input {tuple(x.shape)}"
        )
    if x.numel() % known if free else x.numel() != known:
        raise UserError(
            f"Reshape: the {x.numel()} elements of input {tuple(x.shape)} "
            f"do not fit into shape {tuple(shape)}"
        )
    return x.reshape(wanted)


@rules.rule("Reshape", since=1)
def reshape_1(x: Tensor, *, shape: Ints | None = None) -> Tensor:
    """ONNX Reshape-1, whose shape is an attribute."""
    if shape is None:
        raise UserError("Reshape: version 1 needs the attribute shape")
    return _reshaped(x, shape, 0)


@rules.rule("Reshape", since=5, host=("shape",))
def reshape(x: Tensor, shape: Ints, *, allowzero: int = 0) -> Tensor:
    """ONNX Reshape: -1 is what remains, 0 copies the input's size (or is 0 with ``allowzero``).

    Raises:
        UserError: the elements do not fit, or the shape leaves more than one size open.
    """
    return _reshaped(x, shape, allowzero)


@rules.rule("Flatten", since=1)
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    """ONNX Flatten: a matrix whose rows are the axes before ``axis`` and whose columns are the rest."""
    if not -x.ndim <= axis <= x.ndim:
        raise UserError(f"Flatten: axis {axis} is outside of the {x.ndim} axes of the input")
    split = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:split]), math.prod(x.shape[split:]))


@rules.rule("Transpose", since=1)
def transpose(x: Tensor, *, perm: Ints | None = None) -> Tensor:
    """ONNX Transpose: axis ``i`` of the result is axis ``perm[i]``; reversed without ``perm``."""
    return x.permute(tuple(range(x.ndim - 1, -1, -1)) if perm is None else perm)


def _squeezed(x: Tensor, axes: int | Sequence[int] | None) -> Tensor:
    if axes is None:
        return x.squeeze()
    chosen = _axes("Squeeze", several(axes), x.ndim)
    if any(x.shape[axis] != 1 for axis in chosen):
        raise UserError(f"Squeeze: axes {axes} of shape {tuple(x.shape)} do not all have size 1")
    return x.squeeze(chosen)


@rules.rule("Squeeze", since=1)
def squeeze_1(x: Tensor, *, axes: Ints | None = None) -> Tensor:
    """ONNX Squeeze-1 and -11."""
    return _squeezed(x, axes)


@rules.rule("Squeeze", since=13, host=("axes",))
def squeeze(x: Tensor, axes: Ints | None = None) -> Tensor:
    """ONNX Squeeze: drops the named axes, or all of size 1.

    Raises:
        UserError: a named axis has another size than 1.
    """
    return _squeezed(x, axes)


def _unsqueezed(x: Tensor, axes: int | Sequence[int]) -> Tensor:
    axes = several(axes)
    new = set(_axes("Unsqueeze", axes, x.ndim + len(axes)))
    old = iter(x.shape)
    return x.reshape([1 if axis in new else next(old) for axis in range(x.ndim + len(axes))])


@rules.rule("Unsqueeze", since=1)
def unsqueeze_1(x: Tensor, *, axes: Ints) -> Tensor:
    """ONNX Unsqueeze-1 and -11."""
    return _unsqueezed(x, axes)


@rules.rule("Unsqueeze", since=13, host=("axes",))
def unsqueeze(x: Tensor, axes: Ints) -> Tensor:
    """ONNX Unsqueeze: the result has size 1 along ``axes``."""
    return _unsqueezed(x, axes)


@rules.rule("Identity", since=1)
def identity(x: Tensor) -> Tensor:
    """ONNX Identity: the input itself, not a copy."""
    return x


def _joined(tensors: tuple[Tensor, ...], axis: int) -> Tensor:
    rank = tensors[0].ndim
    # torch.cat would pass over one-dimensional empty tensors of another rank.
    if any(t.ndim != rank for t in tensors):
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise UserError(f"Concat: inputs must have one number of axes, these have shapes {shapes}")
    return torch.cat(tensors, _axis("Concat", axis, rank))


@rules.rule("Concat", since=1)
def concat_1(*tensors: Tensor, axis: int | None = None) -> Tensor:
    """ONNX Concat-1, where ``axis`` defaults to 1."""
    return _joined(tensors, 1 if axis is None else axis)


@rules.rule("Concat", since=4)
def concat(*tensors: Tensor, axis: int) -> Tensor:
    """ONNX Concat: tensors of equal shape except along ``axis``."""
    return _joined(tensors, axis)


def _parts(x: Tensor, axis: int, sizes: Sequence[int], n_outputs: int) -> Tensor | tuple[Tensor, ...]:
    axis = _axis("Split", axis, x.ndim)
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise UserError(
            f"Split: sizes {tuple(sizes)} do not add up to the {x.shape[axis]} elements of axis {axis}"
        )
    parts = torch.split(x, list(sizes), axis)
    return parts[0] if n_outputs == 1 else parts


def _equal_parts(x: Tensor, axis: int, count: int) -> list[int]:
    size = x.shape[_axis("Split", axis, x.ndim)]
    if size % count:
        raise UserError(f"Split: {size} elements of axis {axis} do not split into {count} equal parts")
    return [size // count] * count


@rules.rule("Split", since=1, host=("lengths",))
def split_1(
    x: Tensor,
    lengths: Sequence[float] | None = None,
    *,
    axis: int | None = None,
    split: Ints | None = None,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """ONNX Split-1: lengths from the second input, the attribute ``split``, or equal.

    Raises:
        UserError: no ``axis``, for which version 1 names no default; lengths that do not add up.
    """
    if axis is None:
        raise UserError("Split: version 1 has no default axis; set the attribute axis")
    if split is None:
        split = None if lengths is None else tuple(int(n) for n in lengths)
    return _parts(x, axis, split or _equal_parts(x, axis, n_outputs), n_outputs)


@rules.rule("Split", since=2)
def split_2(
    x: Tensor, *, axis: int = 0, split: Ints | None = None, n_outputs: int = 1
) -> Tensor | tuple[Tensor, ...]:
    """ONNX Split-2 and -11, whose lengths are an attribute."""
    return _parts(x, axis, split or _equal_parts(x, axis, n_outputs), n_outputs)


@rules.rule("Split", since=13, host=("split",))
def split_13(
    x: Tensor,
    split: Ints | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
    n_outputs: int = 1,
    since_version: int = 18,
) -> Tensor | tuple[Tensor, ...]:
    """ONNX Split: lengths, or ``num_outputs`` parts of one size with a smaller last one (equal before 18).

    Raises:
        UserError: lengths that do not add up, or parts that do not come out.
    """
    if split is not None:
        return _parts(x, axis, split, n_outputs)
    count = num_outputs or n_outputs
    size = x.shape[_axis("Split", axis, x.ndim)]
    chunk = -(-size // count)
    if since_version < 18 or size < chunk * (count - 1):
        return _parts(x, axis, _equal_parts(x, axis, count), n_outputs)
    return _parts(x, axis, [chunk] * (count - 1) + [size - chunk * (count - 1)], n_outputs)


@rules.rule("Gather", since=1)
def gather(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """ONNX Gather: ``axis`` is replaced by the axes of ``indices``; negative indices count from the end.

    Raises:
        IndexError: an index out of range (on the CPU).
    """
    lead: tuple[Any, ...] = (slice(None),) * _axis("Gather", axis, x.ndim)
    if indices.ndim == 0:
        # A scalar tensor as index would be read back to the host.
        return x[(*lead, indices.reshape(1))].squeeze(len(lead))
    return x[(*lead, indices)]


def _sliced(
    x: Tensor,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Tensor:
    chosen = _axes("Slice", range(len(starts)) if axes is None else axes, x.ndim)
    strides = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(chosen) == len(strides):
        raise UserError("Slice: starts, ends, axes and steps must have one length")
    if 0 in strides:
        raise UserError(f"Slice: steps {tuple(strides)} must not contain 0")
    window = [slice(None)] * x.ndim
    backward = []
    for axis, start, end, step in zip(chosen, starts, ends, strides, strict=True):
        size = x.shape[axis]
        # ONNX begins a backward slice from before the first element at the first one, Python takes nothing.
        start = max(start, -size) if step < 0 else start
        first, last, _ = slice(start, end, step).indices(size)
        count = len(range(first, last, step))
        if step > 0 or not count:
            window[axis] = slice(first, first + (count - 1) * step + 1, step) if count else slice(0, 0)
        else:
            # torch has no negative steps: the same elements forward, then turned round.
            window[axis] = slice(first + (count - 1) * step, first + 1, -step)
            backward.append(axis)
    y = x[tuple(window)]
    return as_type(as_signed(y).flip(backward), x.dtype) if backward else y


@rules.rule("Slice", since=1)
def slice_1(x: Tensor, *, starts: Ints, ends: Ints, axes: Ints | None = None) -> Tensor:
    """ONNX Slice-1, whose bounds are attributes."""
    return _sliced(x, starts, ends, axes, None)


@rules.rule("Slice", since=10, host=("starts", "ends", "axes", "steps"))
def slice_10(
    x: Tensor, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None
) -> Tensor:
    """ONNX Slice: Python's ``start:end:step`` along each of ``axes``, backward for negative steps."""
    return _sliced(x, starts, ends, axes, steps)


@rules.rule("Expand", since=8, host=("shape",))
def expand(x: Tensor, shape: Ints) -> Tensor:
    """ONNX Expand: numpy's broadcasting of the input and ``shape`` against each other; a view."""
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


@rules.rule("Tile", since=1, host=("tiles", "axis"))
def tile_1(x: Tensor, tiles: float, axis: float) -> Tensor:
    """ONNX Tile-1: ``tiles`` copies along one axis; both inputs are scalars of the input's dtype."""
    repeats = [1] * x.ndim
    place = _axis("Tile", int(single("Tile", "axis", axis)), x.ndim)
    repeats[place] = int(single("Tile", "tiles", tiles))
    return x.repeat(repeats)


@rules.rule("Tile", since=6, host=("repeats",))
def tile(x: Tensor, repeats: Ints) -> Tensor:
    """ONNX Tile: ``repeats[a]`` copies along every axis ``a``."""
    if len(repeats) != x.ndim:
        raise UserError(
            f"Tile: repeats {tuple(repeats)} must have one entry for each axis of {tuple(x.shape)}"
        )
    return x.repeat(tuple(repeats))


_PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _pad_all(
    x: Tensor, pads: Sequence[int], axes: Sequence[int] | None, mode: str, value: Scalar, modes: Sequence[str]
) -> Tensor:
    if mode not in modes:
        choose("Pad mode", mode, modes)
    chosen = range(x.ndim) if axes is None else _axes("Pad", axes, x.ndim)
    if len(pads) != 2 * len(chosen):
        raise UserError(f"Pad: pads {tuple(pads)} need two entries for each of the {len(chosen)} axes")
    begin, end = [0] * x.ndim, [0] * x.ndim
    for place, axis in enumerate(chosen):
        begin[axis], end[axis] = pads[place], pads[place + len(chosen)]
    return pad(x, tuple(begin), tuple(end), mode, value)


@rules.rule("Pad", since=1)
def pad_1(x: Tensor, *, paddings: Ints, mode: str = "constant", value: float = 0.0) -> Tensor:
    """ONNX Pad-1."""
    return _pad_all(x, paddings, None, mode, value, _PAD_MODES[:3])


@rules.rule("Pad", since=2)
def pad_2(x: Tensor, *, pads: Ints, mode: str = "constant", value: float = 0.0) -> Tensor:
    """ONNX Pad-2."""
    return _pad_all(x, pads, None, mode, value, _PAD_MODES[:3])


@rules.rule("Pad", since=11, host=("pads", "constant_value", "axes"))
def pad_11(
    x: Tensor,
    pads: Ints,
    constant_value: Scalar | Tensor | None = None,
    axes: Ints | None = None,
    *,
    mode: str = "constant",
    since_version: int = 25,
) -> Tensor:
    """ONNX Pad: begins of all ``axes``, then their ends; negative ones cut off. Wrap mode since version 19.

    Raises:
        UserError: see ``padding.pad``; an unknown mode.
    """
    modes = _PAD_MODES if since_version >= 19 else _PAD_MODES[:3]
    if not isinstance(constant_value, Tensor):
        value = 0 if constant_value is None else single("Pad", "constant_value", constant_value)
        return _pad_all(x, pads, axes, mode, value, modes)
    if constant_value.numel() != 1:
        shape = list(constant_value.shape)
        raise UserError(f"Pad: constant_value has shape {shape}, it should be a single value")
    padded = _pad_all(x, pads, axes, mode, 0, modes)
    # With a gradient for the value: it times what was padded.
    inside = _pad_all(torch.ones_like(x, requires_grad=False), pads, axes, mode, 0, modes)
    return torch.where(inside == 0, constant_value.reshape(()).to(x.dtype), padded)
