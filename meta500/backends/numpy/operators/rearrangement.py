"""Operators that mask, reverse, crop or regroup elements by their position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import as_list, normal_axes
from meta500.backends.numpy.operators.generation import host_integer
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Gradients = tuple[np.ndarray | None, ...]


def _zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """What padding is filled with: zero, false, or the empty string."""
    return np.full(tuple(shape), "", object) if dtype.kind == "O" else np.zeros(tuple(shape), dtype)


@rules.rule("Trilu", 14, host=("k",))
def trilu(x: np.ndarray, k: Any = None, *, upper: int = 1, saved: dict[str, Any]) -> np.ndarray:
    """Matrices with the part below (``upper``) or above diagonal ``k`` (0 without) set to zero.

    Raises:
        UserError: x has fewer than two axes.
    """
    if x.ndim < 2:
        raise UserError(f"Trilu: the input has shape {x.shape}, it should be a matrix or a batch of them")
    offset = 0 if k is None else host_integer(k, "Trilu", "k")
    diagonal = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    saved["kept"] = diagonal >= offset if upper else diagonal <= offset
    return np.where(saved["kept"], x, _zeros((), x.dtype)).astype(x.dtype, copy=False)


@trilu.vjp
def trilu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The same part of the cotangent."""
    d_x = np.where(call.saved["kept"], d, np.zeros((), d.dtype))
    return (d_x, *(None,) * (len(call.inputs) - 1))


def _reversed(x: np.ndarray, lengths: np.ndarray, batch_axis: int, time_axis: int) -> np.ndarray:
    steps = np.arange(x.shape[time_axis])
    index = np.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    moved = np.moveaxis(x, (batch_axis, time_axis), (0, 1))
    picked = moved[np.arange(len(lengths))[:, None], index]
    return np.ascontiguousarray(np.moveaxis(picked, (0, 1), (batch_axis, time_axis)))


@rules.rule("ReverseSequence", 10)
def reverse_sequence(
    x: np.ndarray, lengths: np.ndarray, *, batch_axis: int = 1, time_axis: int = 0
) -> np.ndarray:
    """The first ``lengths[i]`` elements along the time axis of batch entry i in reverse order.

    Raises:
        UserError: axes other than 0 and 1, or lengths that do not fit x.
    """
    if x.ndim < 2 or {batch_axis, time_axis} != {0, 1}:
        raise UserError(
            f"ReverseSequence: batch_axis {batch_axis}, time_axis {time_axis}: one should be 0, the other 1, "
            f"for an input of shape {x.shape}"
        )
    size = x.shape[time_axis]
    if lengths.shape != (x.shape[batch_axis],) or np.any((lengths < 0) | (lengths > size)):
        raise UserError(
            f"ReverseSequence: lengths {lengths.tolist()} should be {x.shape[batch_axis]} numbers "
            f"from 0 to {size}"
        )
    return _reversed(x, lengths, batch_axis, time_axis)


@reverse_sequence.vjp
def reverse_sequence_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Reversing twice changes nothing."""
    given = call.attributes
    return _reversed(d, call.inputs[1], given.get("batch_axis", 1), given.get("time_axis", 0)), None


@rules.rule("CenterCropPad", 18, host=("shape",))
def center_crop_pad(
    x: np.ndarray, shape: Any, *, axes: tuple[int, ...] | None = None, saved: dict[str, Any]
) -> np.ndarray:
    """The middle of x, or x in the middle of zeros, so that the ``axes`` (all without) get the given sizes.

    An odd difference takes one more element away, or puts one more zero, at the end.

    Raises:
        UserError: another number of sizes than axes, or a negative size.
    """
    sizes = [int(n) for n in as_list(shape)]
    places = normal_axes(list(range(x.ndim)) if axes is None else list(axes), x.ndim, "CenterCropPad")
    if len(sizes) != len(places) or min(sizes, default=0) < 0:
        raise UserError(f"CenterCropPad: sizes {sizes} for axes {list(places)} of {x.shape}")
    wanted = list(x.shape)
    source, target = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    for axis, size in zip(places, sizes, strict=True):
        wanted[axis], old = size, x.shape[axis]
        common = min(size, old)
        crop, pad = (old - common) // 2, (size - common) // 2
        source[axis], target[axis] = slice(crop, crop + common), slice(pad, pad + common)
    saved.update(source=tuple(source), target=tuple(target))
    result = _zeros(wanted, x.dtype)
    result[tuple(target)] = x[tuple(source)]
    return result


@center_crop_pad.vjp
def center_crop_pad_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent of what was kept, zeros elsewhere."""
    d_x = np.zeros(call.inputs[0].shape, d.dtype)
    d_x[call.saved["source"]] = d[call.saved["target"]]
    return d_x, None


# Axes of (batch, depth, height, width) with the block taken apart, in the order of the other operator's.
_TO_SPACE = {"DCR": (0, 3, 4, 1, 5, 2), "CRD": (0, 1, 4, 2, 5, 3)}
_TO_DEPTH = {"DCR": (0, 3, 5, 1, 2, 4), "CRD": (0, 1, 3, 5, 2, 4)}


def _to_space(x: np.ndarray, block: int, mode: str) -> np.ndarray:
    n, c, h, w = x.shape
    depth = c // block**2
    parts = (block, block, depth) if mode == "DCR" else (depth, block, block)
    return x.reshape(n, *parts, h, w).transpose(_TO_SPACE[mode]).reshape(n, depth, h * block, w * block)


def _to_depth(x: np.ndarray, block: int, mode: str) -> np.ndarray:
    n, c, h, w = x.shape
    rows, columns = h // block, w // block
    parts = x.reshape(n, c, rows, block, columns, block).transpose(_TO_DEPTH[mode])
    return parts.reshape(n, c * block**2, rows, columns)


@rules.rule("DepthToSpace", 1)
def depth_to_space(x: np.ndarray, *, blocksize: int, mode: str = "DCR") -> np.ndarray:
    """(N, C b², H, W) to (N, C, H b, W b): blocks from the depth, which is ordered as ``mode`` says.

    Raises:
        UserError: x has not four axes, or a depth that b² does not divide.
    """
    choose("DepthToSpace mode", mode, _TO_SPACE)
    if x.ndim != 4 or blocksize < 1 or x.shape[1] % blocksize**2:
        raise UserError(f"DepthToSpace: shape {x.shape} has no depth of multiples of blocksize {blocksize}²")
    return _to_space(x, blocksize, mode)


@depth_to_space.vjp
def depth_to_space_vjp(call: Call, d: np.ndarray) -> Gradients:
    """SpaceToDepth of the cotangent."""
    return (_to_depth(d, call.attributes["blocksize"], call.attributes.get("mode", "DCR")),)


@rules.rule("SpaceToDepth", 1)
def space_to_depth(x: np.ndarray, *, blocksize: int, mode: str = "DCR") -> np.ndarray:
    """(N, C, H b, W b) to (N, C b², H, W): blocks into the depth, ordered as ``mode`` says.

    Raises:
        UserError: x has not four axes, or a height or width that b does not divide.
    """
    choose("SpaceToDepth mode", mode, _TO_DEPTH)
    if x.ndim != 4 or blocksize < 1 or x.shape[2] % blocksize or x.shape[3] % blocksize:
        raise UserError(f"SpaceToDepth: shape {x.shape} has no blocks of blocksize {blocksize}")
    return _to_depth(x, blocksize, mode)


@space_to_depth.vjp
def space_to_depth_vjp(call: Call, d: np.ndarray) -> Gradients:
    """DepthToSpace of the cotangent."""
    return (_to_space(d, call.attributes["blocksize"], call.attributes.get("mode", "DCR")),)
