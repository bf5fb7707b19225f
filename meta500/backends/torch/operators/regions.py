"""Pooling over regions of interest: RoiAlign and MaxRoiPool, one region after the other.

How many elements a region reads depends on its numbers, which therefore come to the host. What the operators
mean is told by the numpy rules of the same names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from meta500.backends.numpy.operators.regions import COORDINATES, MODES, check_finite, check_regions
from meta500.backends.torch.compilation import outside_of_graphs
from meta500.backends.torch.operators import rules
from meta500.errors import UserError, choose


@dataclass(frozen=True)
class Points:
    """Neighbours of a region's sampling points along one axis: ``index`` (bins, 2 * count) and weights."""

    index: Tensor
    weight: Tensor
    count: int


def _points(start: Tensor, end: Tensor, bins: int, size: int, ratio: int, half_pixel: bool) -> Points:
    """Sampling points of a region from ``start`` to ``end`` (scaled, shifted) along an axis of ``size``."""
    length = end - start
    if not half_pixel:
        length = torch.where(length < 1, 1.0, length)
    part = length / bins
    count = ratio if ratio > 0 else max(math.ceil(part.item()), 0)
    k = torch.arange(bins, dtype=torch.float64, device=start.device)[:, None]
    j = torch.arange(count, dtype=torch.float64, device=start.device) + 0.5
    place = (start + k * part + j * part / max(count, 1)).to(start.dtype)
    outside = (place < -1) | (place > size)
    inner = (place > 0) & (place < size - 1)
    held = torch.where(inner, place, place.detach().clamp(0, size - 1))
    low = torch.floor(held.detach()).to(torch.int64)
    t = held - low
    index = torch.stack([low, (low + 1).clamp(max=size - 1)], dim=-1)
    weight = torch.where(outside[..., None], 0.0, torch.stack([1 - t, t], dim=-1))
    return Points(index.reshape(bins, -1), weight.reshape(bins, -1), count)


def _check_images(operator: str, images: list[int], count: int) -> None:
    if any(not 0 <= image < count for image in images):
        raise UserError(f"{operator}: batch_indices name images beyond the {count} of X")


@outside_of_graphs
def _aligned(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    mode: str,
    bins: tuple[int, int],
    ratio: int,
    scale: float,
    coordinates: str,
) -> Tensor:
    name = "RoiAlign"
    choose(f"mode of {name}", mode, MODES)
    choose(f"coordinate_transformation_mode of {name}", coordinates, COORDINATES)
    check_regions(name, tuple(x.shape), tuple(rois.shape), 4)
    if batch_indices.shape != (len(rois),):
        raise UserError(
            f"{name}: batch_indices has shape {tuple(batch_indices.shape)}, expected ({len(rois)},)"
        )
    images = batch_indices.tolist()
    _check_images(name, images, len(x))
    check_finite(name, bool(torch.isfinite(rois).all()))
    dtype, half = x.dtype, coordinates == "half_pixel"
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    x, ends = x.to(wide), rois.to(wide) * scale - (0.5 if half else 0.0)
    # Scaled in the type of the numbers, as the shift is.
    results = []
    for image, (x1, y1, x2, y2) in zip(images, ends, strict=True):
        rows = _points(y1, y2, bins[0], x.shape[2], ratio, half)
        columns = _points(x1, x2, bins[1], x.shape[3], ratio, half)
        if not rows.count or not columns.count:
            results.append(x.new_zeros((x.shape[1], *bins)))
            continue
        found = x[image][:, rows.index.reshape(-1)][:, :, columns.index.reshape(-1)]
        found = found.reshape(x.shape[1], *rows.index.shape, *columns.index.shape)
        weighted = found * rows.weight[:, :, None, None] * columns.weight
        values = weighted.transpose(2, 3).flatten(3)
        if mode == "max":
            results.append(values.max(dim=-1).values)
        else:
            results.append(values.sum(dim=-1) / (rows.count * columns.count))
    return (torch.stack(results) if results else x.new_zeros((0, x.shape[1], *bins))).to(dtype)


@rules.rule("RoiAlign", since=16)
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """ONNX RoiAlign: x (N, C, H, W), rois (R, 4) as x1 y1 x2 y2, batch_indices (R,) to (R, C, height, width).

    Mode avg is the mean of the bilinear samples of a bin; mode max, as the operator's cases have it, the
    largest of the samples' four weighted neighbours. Regions without sampling points give 0.

    Raises:
        UserError: shapes that do not fit, unknown modes, indices of images that do not exist, no numbers.
    """
    bins, coordinates = (output_height, output_width), coordinate_transformation_mode
    return _aligned(x, rois, batch_indices, mode, bins, sampling_ratio, spatial_scale, coordinates)


@rules.rule("RoiAlign", since=10)
def roi_align_10(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """ONNX RoiAlign-10: coordinates are not shifted by half a pixel (output_half_pixel)."""
    bins = (output_height, output_width)
    return _aligned(x, rois, batch_indices, mode, bins, sampling_ratio, spatial_scale, "output_half_pixel")


def _edges(start: Tensor, end: Tensor, bins: int, size: int) -> list[tuple[int, int]]:
    """First and one past the last element of every bin of a region, whose ends both belong to it."""
    part = (end - start + 1).clamp(min=1) / bins
    k = torch.arange(bins, dtype=start.dtype)
    first = (torch.floor(k * part) + start).clamp(0, size)
    last = (torch.ceil((k + 1) * part) + start).clamp(0, size)
    return [(int(a), int(b)) for a, b in zip(first.tolist(), last.tolist(), strict=True)]


def _rounded(x: Tensor) -> Tensor:
    """To the nearest whole number, halves away from zero."""
    whole = torch.trunc(x)
    return whole + torch.sign(x) * ((x - whole).abs() >= 0.5)


@rules.rule("MaxRoiPool", since=1)
def max_roi_pool(
    x: Tensor, rois: Tensor, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0
) -> Tensor:
    """ONNX MaxRoiPool: x (N, C, H, W), rois (R, 5) as image x1 y1 x2 y2, to (R, C, *pooled_shape).

    The region's ends are rounded to whole elements (halves away from zero); empty bins give 0. The result is
    piecewise constant in the regions.

    Raises:
        UserError: shapes that do not fit, indices of images that do not exist, no numbers.
    """
    return _pooled(x, rois, pooled_shape, spatial_scale)


@outside_of_graphs
def _pooled(x: Tensor, rois: Tensor, pooled_shape: tuple[int, ...], spatial_scale: float) -> Tensor:
    name = "MaxRoiPool"
    check_regions(name, tuple(x.shape), tuple(rois.shape), 5)
    if len(pooled_shape) != 2 or min(pooled_shape) < 1:
        raise UserError(f"{name}: pooled_shape {tuple(pooled_shape)} must be two positive sizes")
    kept = rois.detach().cpu()
    kept = kept if kept.dtype is torch.float64 else kept.to(torch.float32)
    check_finite(name, bool(torch.isfinite(kept).all()))
    images = [int(image) for image in kept[:, 0].tolist()]
    _check_images(name, images, len(x))
    results = []
    for image, (x1, y1, x2, y2) in zip(images, _rounded(kept[:, 1:] * spatial_scale), strict=True):
        columns = _edges(x1, x2, pooled_shape[1], x.shape[3])
        for top, bottom in _edges(y1, y2, pooled_shape[0], x.shape[2]):
            for left, right in columns:
                if top >= bottom or left >= right:
                    results.append(x.new_zeros(x.shape[1]))
                    continue
                results.append(x[image, :, top:bottom, left:right].flatten(1).max(dim=1).values)
    if not results:
        return x.new_zeros((0, x.shape[1], *pooled_shape))
    return (
        torch.stack(results).reshape(len(images), *pooled_shape, x.shape[1]).permute(0, 3, 1, 2).contiguous()
    )
