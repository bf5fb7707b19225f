"""Pooling: one torch kernel where padding is symmetric and small enough for it, else explicit padding."""

from __future__ import annotations

import math

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

_MAX = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVERAGE = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def _fits_torch(begin: Ints, end: Ints, kernel: Ints) -> bool:
    """Whether torch's pooling kernels take this padding: the same at both ends, at most half a kernel."""
    return begin == end and all(0 <= 2 * b <= k for b, k in zip(begin, kernel, strict=True))


def _padded(x: Tensor, begin: Ints, out: Ints, strides: Ints, reach: Ints, value: float) -> Tensor:
    """The input with ``value`` around it, so that exactly ``out`` windows fit on each axis."""
    pairs: list[int] = []
    for axis in reversed(range(len(out))):
        needed = (out[axis] - 1) * strides[axis] + reach[axis]
        pairs += [begin[axis], max(needed - x.shape[2 + axis] - begin[axis], 0)]
    return F.pad(x, pairs, value=value)


def _tap_counts(
    low: Ints, high: Ints, begin: Ints, kernel: Ints, strides: Ints, dilations: Ints, out: Ints
) -> list[Ints]:
    return [
        window_counts(low[a], high[a], begin[a], kernel[a], strides[a], dilations[a], out[a])
        for a in range(len(out))
    ]


def _refuse_empty_windows(operator: str, counts: list[Ints]) -> None:
    for axis, taps in enumerate(counts):
        if min(taps) == 0:
            raise UserError(
                f"{operator}: window {taps.index(0)} along spatial axis {axis} lies wholly in the padding, "
                "where ONNX defines no value; make pads smaller than the window"
            )


@rules.rule("MaxPool", since=1)
def max_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, Tensor]:
    """ONNX MaxPool: (N, C, D1..Dr) -> (N, C, O1..Or)[, int64 Indices of the same shape], r = 1 to 3.

    Indices count over the whole input tensor; with ``storage_order`` 1 the spatial axes inside a plane
    count column by column (the first one fastest), planes as before.

    Raises:
        UserError: attributes that contradict the shape; a window wholly in the padding.
    """
    name = "MaxPool"
    rank = spatial_rank(name, x.shape)
    kernel = per_axis(name, "kernel_shape", kernel_shape, rank)
    strides = per_axis(name, "strides", strides, rank)
    dilations = per_axis(name, "dilations", dilations, rank)
    sizes = tuple(x.shape[2:])
    begin, end = window_pads(name, auto_pad, pads, sizes, kernel, strides, dilations)
    reach = extents(kernel, dilations)
    out = pooled_sizes(name, auto_pad, sizes, begin, end, kernel, strides, dilations, ceil_mode)
    direct = _fits_torch(begin, end, kernel)
    if not direct or (any(begin) and max(dilations) > 1):
        low = (0,) * rank
        _refuse_empty_windows(name, _tap_counts(low, sizes, begin, kernel, strides, dilations, out))

    if not x.is_floating_point() and x.dtype not in (torch.int8, torch.uint8):
        raise UserError(f"{name}: element type {x.dtype}; ONNX allows floats, int8 and uint8")
    # float32 holds every 8-bit integer, and torch pools floats only.
    values = x if x.is_floating_point() else x.to(torch.float32)
    padding: Ints = begin
    if not direct:
        values = _padded(values, begin, out, strides, reach, -math.inf)
        padding = (0,) * rank
    function = _MAX[rank - 1]
    ceil = bool(ceil_mode) and direct
    if n_outputs == 1:
        y = function(values, kernel, strides, padding, dilations, ceil)
        return y if y.dtype == x.dtype else y.to(x.dtype)
    y, places = function(values, kernel, strides, padding, dilations, ceil, return_indices=True)
    lead = (0,) * rank if direct else begin
    indices = _whole_tensor_indices(places, x, tuple(values.shape[2:]), lead, dilations, storage_order)
    return y.to(x.dtype), indices


def _whole_tensor_indices(
    places: Tensor, x: Tensor, padded: Ints, begin: Ints, dilations: Ints, storage_order: int
) -> Tensor:
    """ONNX's indices from torch's, which count row by row inside each plane of the padded input."""
    sizes = tuple(x.shape[2:])
    if storage_order or padded != sizes:
        strides = [math.prod(sizes[:a] if storage_order else sizes[a + 1 :]) for a in range(len(sizes))]
        inside = torch.zeros_like(places)
        for axis in reversed(range(len(sizes))):
            coordinate = places % padded[axis] - begin[axis]
            # A window of -inf alone has its first maximum in the padding: its first tap inside stands for it.
            coordinate = torch.where(coordinate < 0, coordinate % dilations[axis], coordinate)
            places = torch.div(places, padded[axis], rounding_mode="floor")
            inside = inside + coordinate * strides[axis]
    else:
        inside = places
    planes = torch.arange(x.shape[0] * x.shape[1], device=x.device) * math.prod(sizes)
    return inside + planes.reshape(x.shape[0], x.shape[1], *(1,) * len(sizes))


@rules.rule("AveragePool", since=1)
def average_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX AveragePool: (N, C, D1..Dr) -> (N, C, O1..Or), r = 1 to 3.

    Each window is divided by its number of taps inside the input, or with ``count_include_pad`` inside the
    padded input; what ceil mode adds beyond that counts neither way.

    Raises:
        UserError: attributes that contradict the shape; a window without any tap to count.
    """
    name = "AveragePool"
    rank = spatial_rank(name, x.shape)
    kernel = per_axis(name, "kernel_shape", kernel_shape, rank)
    strides = per_axis(name, "strides", strides, rank)
    dilations = per_axis(name, "dilations", dilations, rank)
    sizes = tuple(x.shape[2:])
    begin, end = window_pads(name, auto_pad, pads, sizes, kernel, strides, dilations)
    out = pooled_sizes(name, auto_pad, sizes, begin, end, kernel, strides, dilations, ceil_mode)
    # avg_pool3d wants the window to fit without padding, too.
    large = rank < 3 or all(n >= k for n, k in zip(sizes, kernel, strict=True))
    # Nor do its functions take a tensor without channels.
    # On the CPU avg_pool3d has no 16-bit floats.
    known = rank < 3 or x.is_cuda or x.dtype in (torch.float32, torch.float64)
    if max(dilations) == 1 and large and known and x.numel() and _fits_torch(begin, end, kernel):
        return _AVERAGE[rank - 1](x, kernel, strides, begin, bool(ceil_mode), bool(count_include_pad))

    low, high = (0,) * rank, sizes
    if count_include_pad:
        low = tuple(-b for b in begin)
        high = tuple(n + e for n, e in zip(sizes, end, strict=True))
    counts = _tap_counts(low, high, begin, kernel, strides, dilations, out)
    _refuse_empty_windows(name, counts)
    # Half precision is too narrow to add up many elements.
    wide = x if x.dtype is torch.float64 else x.to(torch.float32)
    total = _padded(wide, begin, out, strides, extents(kernel, dilations), 0.0)
    for axis in range(rank):
        total = _window_sums(total, 2 + axis, kernel[axis], strides[axis], dilations[axis], out[axis])
    for axis, taps in enumerate(counts):
        if min(taps) == max(taps):
            total = total / taps[0]
        else:
            divisor = torch.tensor(taps, dtype=total.dtype, device=x.device)
            total = total / divisor.reshape(-1, *(1,) * (rank - 1 - axis))
    return total.to(x.dtype)


def _window_sums(x: Tensor, axis: int, taps: int, stride: int, dilation: int, out: int) -> Tensor:
    """Sums over windows along one axis: one strided view of the input for each tap, added up."""
    lead = (slice(None),) * axis
    total = x[(*lead, slice(0, (out - 1) * stride + 1, stride))]
    for tap in range(1, taps):
        first = tap * dilation
        total = total + x[(*lead, slice(first, first + (out - 1) * stride + 1, stride))]
    return total


@rules.rule("GlobalAveragePool", since=1)
def global_average_pool(x: Tensor) -> Tensor:
    """ONNX GlobalAveragePool: the mean over all spatial axes, which stay with size 1."""
    return x.mean(tuple(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x


@rules.rule("GlobalMaxPool", since=1)
def global_max_pool(x: Tensor) -> Tensor:
    """ONNX GlobalMaxPool: the maximum over all spatial axes, kept with size 1. Ties share the gradient."""
    return x.amax(tuple(range(2, x.ndim)), keepdim=True) if x.ndim > 2 else x
