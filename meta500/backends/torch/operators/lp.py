"""Lp norms: over sliding windows, over all positions of a channel, and as a normaliser along an axis."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.windows import (
    extents,
    per_axis,
    pooled_sizes,
    spatial_rank,
    window_counts,
    window_pads,
)
from meta500.errors import UserError

Ints = tuple[int, ...]


def _powered(operator: str, x: Tensor, p: float) -> Tensor:
    """``abs(x) ** p``, in float32 for 16-bit floats."""
    if p < 1:
        raise UserError(f"{operator}: p is {p}, expected at least 1")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide * wide if p == 2 else wide.abs() ** p if p != 1 else wide.abs()


def _root(total: Tensor, p: float) -> Tensor:
    """``total ** (1 / p)`` with gradient 0 where it is 0."""
    if p == 1:
        return total
    empty = total == 0
    safe = torch.where(empty, 1, total)
    return torch.where(empty, 0, torch.sqrt(safe) if p == 2 else safe ** (1 / p))


def _window_sums(x: Tensor, axis: int, taps: int, stride: int, dilation: int, out: int) -> Tensor:
    """Sums over windows along one axis: one strided view of the input for each tap, added up."""
    lead = (slice(None),) * axis
    views = (
        x[(*lead, slice(tap * dilation, tap * dilation + (out - 1) * stride + 1, stride))]
        for tap in range(taps)
    )
    total = next(views)
    for view in views:
        total = total + view
    return total


@rules.rule("LpPool")
def lp_pool(
    x: Tensor,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    kernel_shape: Ints | None = None,
    p: float = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX LpPool: ``sum(abs(x) ** p) ** (1 / p)`` over windows, (N, C, D1..Dr) -> (N, C, O1..Or), r up to 3.

    Padding counts as zeros. Version 1 allows a fractional ``p``; dilations and ``ceil_mode`` exist from 18
    on, the latter as in MaxPool-22: no window starts in the padding at the end.

    Raises:
        UserError: attributes that contradict the shape, no kernel_shape, p below 1, or a window wholly in the
            padding.
    """
    name = "LpPool"
    rank = spatial_rank(name, x.shape)
    if not kernel_shape:
        raise UserError(f"{name}: kernel_shape is missing; input {tuple(x.shape)} needs {rank} sizes")
    kernel = per_axis(name, "kernel_shape", kernel_shape, rank)
    strides = per_axis(name, "strides", strides, rank)
    dilations = per_axis(name, "dilations", dilations, rank)
    sizes = tuple(x.shape[2:])
    begin, end = window_pads(name, auto_pad, pads, sizes, kernel, strides, dilations)
    out = pooled_sizes(name, auto_pad, sizes, begin, end, kernel, strides, dilations, ceil_mode)
    reach = extents(kernel, dilations)
    pairs: list[int] = []
    for axis in reversed(range(rank)):
        taps = window_counts(
            0, sizes[axis], begin[axis], kernel[axis], strides[axis], dilations[axis], out[axis]
        )
        if min(taps) == 0:
            raise UserError(
                f"{name}: window {taps.index(0)} along spatial axis {axis} lies in the padding only; make "
                f"pads smaller than the window"
            )
        needed = (out[axis] - 1) * strides[axis] + reach[axis]
        pairs += [begin[axis], max(needed - sizes[axis] - begin[axis], 0)]
    total = F.pad(_powered(name, x, p), pairs)
    for axis in range(rank):
        total = _window_sums(total, 2 + axis, kernel[axis], strides[axis], dilations[axis], out[axis])
    return _root(total, p).to(x.dtype)


@rules.rule("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: float = 2) -> Tensor:
    """ONNX GlobalLpPool: ``sum(abs(x) ** p) ** (1 / p)`` over all spatial axes, which stay with size 1.

    Raises:
        UserError: no spatial axes, or p below 1.
    """
    if x.ndim < 3:
        raise UserError(f"GlobalLpPool: input of shape {tuple(x.shape)}; expected (N, C, D1, ...)")
    total = _powered("GlobalLpPool", x, p).sum(tuple(range(2, x.ndim)), keepdim=True)
    return _root(total, p).to(x.dtype)


@rules.rule("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """ONNX LpNormalization: ``x / norm(x)`` along ``axis``, norm of order ``p``; zero where the norm is zero.

    Raises:
        UserError: ``p`` is neither 1 nor 2, or the axis is out of range.
    """
    if p not in (1, 2):
        raise UserError(f"LpNormalization: p is {p}, expected 1 or 2")
    if not -x.ndim <= axis < x.ndim:
        raise UserError(f"LpNormalization: axis {axis} is outside of the {x.ndim} axes of the input")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    norm = _root(_powered("LpNormalization", wide, p).sum(axis, keepdim=True), p)
    empty = norm == 0
    return torch.where(empty, 0, wide / torch.where(empty, 1, norm)).to(x.dtype)
