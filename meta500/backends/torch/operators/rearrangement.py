"""Operators that mask, reverse, crop or regroup elements by their position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.gathering import looked_at, place_of
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.backends.torch.operators.literals import Scalar, several, single
from meta500.errors import UserError, choose


@rules.rule("Trilu", since=14, host=("k",))
def trilu(x: Tensor, k: Scalar | None = None, *, upper: int = 1) -> Tensor:
    """ONNX Trilu: the part below (``upper``) or above diagonal ``k`` (0 without) set to zero.

    Raises:
        UserError: x has fewer than two axes.
    """
    if x.ndim < 2:
        raise UserError(
            f"Trilu: the input has shape {tuple(x.shape)}, it should be a matrix or a batch of them"
        )
    offset = 0 if k is None else int(single("Trilu", "k", k))
    offset = max(-x.shape[-2] - 1, min(offset, x.shape[-1] + 1))
    bits = as_signed(x)
    return as_type(torch.triu(bits, offset) if upper else torch.tril(bits, offset), x.dtype)


@rules.rule("ReverseSequence", since=10)
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """ONNX ReverseSequence: the first ``lengths[i]`` elements of batch entry i in reverse order.

    Raises:
        UserError: axes other than 0 and 1, or lengths that do not fit (on a GPU their range is asserted).
    """
    if x.ndim < 2 or {batch_axis, time_axis} != {0, 1}:
        raise UserError(
            f"ReverseSequence: batch_axis {batch_axis}, time_axis {time_axis}: one should be 0, the other 1, "
            f"for an input of shape {tuple(x.shape)}"
        )
    batch, size = x.shape[batch_axis], x.shape[time_axis]
    wrong = (lengths < 0) | (lengths > size)
    if tuple(lengths.shape) != (batch,) or (looked_at(lengths) and bool(wrong.any())):
        raise UserError(f"ReverseSequence: the lengths should be {batch} numbers from 0 to {size}")
    bits = as_signed(x).movedim((batch_axis, time_axis), (0, 1))
    steps = torch.arange(size, device=x.device)
    ends = lengths[:, None]
    index = torch.where(steps < ends, ends - 1 - steps, steps)
    index = torch.where(wrong[:, None], size, index)  # which the kernel refuses
    picked = bits[torch.arange(batch, device=x.device)[:, None], index]
    return as_type(picked.movedim((0, 1), (batch_axis, time_axis)).contiguous(), x.dtype)


@rules.rule("CenterCropPad", since=18, host=("shape",))
def center_crop_pad(x: Tensor, shape: int | Sequence[int], *, axes: tuple[int, ...] | None = None) -> Tensor:
    """ONNX CenterCropPad: the middle of x, or x in the middle of zeros, along the ``axes`` (all without).

    Raises:
        UserError: another number of sizes than axes, an axis twice, or a negative size.
    """
    sizes = list(several(shape))
    listed = range(x.ndim) if axes is None else axes
    places = [place_of("CenterCropPad", axis, x.ndim) for axis in listed]
    if len(sizes) != len(places) or len(set(places)) != len(places) or min(sizes, default=0) < 0:
        raise UserError(f"CenterCropPad: sizes {sizes} for axes {places} of {tuple(x.shape)}")
    bits = as_signed(x)
    pads = [0] * (2 * x.ndim)
    for axis, size in zip(places, sizes, strict=True):
        old = x.shape[axis]
        common = min(size, old)
        bits = bits.narrow(axis, (old - common) // 2, common)
        before = (size - common) // 2
        end = 2 * (x.ndim - 1 - axis)
        pads[end], pads[end + 1] = before, size - common - before
    if any(pads):
        return as_type(torch.nn.functional.pad(bits, pads), x.dtype)
    return as_type(bits.contiguous(), x.dtype)


@rules.rule("DepthToSpace", since=1)
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """ONNX DepthToSpace: (N, C b², H, W) to (N, C, H b, W b).

    Raises:
        UserError: x has not four axes, or a depth that b² does not divide.
    """
    choose("DepthToSpace mode", mode, ("DCR", "CRD"))
    b = blocksize
    if x.ndim != 4 or b < 1 or x.shape[1] % b**2:
        raise UserError(f"DepthToSpace: shape {tuple(x.shape)} has no depth of multiples of blocksize {b}²")
    n, c, h, w = x.shape
    depth = c // b**2
    if mode == "DCR":
        parts = x.reshape(n, b, b, depth, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, depth, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, depth, h * b, w * b)


@rules.rule("SpaceToDepth", since=1)
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    """ONNX SpaceToDepth: (N, C, H b, W b) to (N, C b², H, W).

    Raises:
        UserError: x has not four axes, or a height or width that b does not divide.
    """
    choose("SpaceToDepth mode", mode, ("DCR", "CRD"))
    b = blocksize
    if x.ndim != 4 or b < 1 or x.shape[2] % b or x.shape[3] % b:
        raise UserError(f"SpaceToDepth: shape {tuple(x.shape)} has no blocks of blocksize {b}")
    n, c, h, w = x.shape
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return parts.permute(order).reshape(n, c * b**2, h // b, w // b)
