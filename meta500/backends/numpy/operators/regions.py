"""Pooling over regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Gradients = tuple[np.ndarray | None, ...]

MODES = ("avg", "max")
COORDINATES = ("half_pixel", "output_half_pixel")


@dataclass(frozen=True)
class Points:
    """Sampling points of one region along one axis; ``bins`` times ``count`` of them.

    ``index`` (bins * count, 2) are the neighbours, ``weight`` theirs, ``slope`` the weight's derivative in
    the point; ``by_start`` and ``by_end`` (bins * count,) the point's derivative in the region's ends. Points
    outside of the image have weights of zero.
    """

    index: np.ndarray
    weight: np.ndarray
    slope: np.ndarray
    by_start: np.ndarray
    by_end: np.ndarray
    bins: int
    count: int

    def matrix(self, size: int, values: np.ndarray) -> np.ndarray:
        """(bins, size): how much each bin's mean takes of each element, with ``values`` as weights."""
        dense = np.zeros((self.bins, size), values.dtype)
        rows = np.repeat(np.arange(self.bins), self.count)[:, None]
        np.add.at(dense, (rows, self.index), values)
        return dense / max(self.count, 1)


def _points(start: Any, end: Any, bins: int, size: int, ratio: int, half_pixel: bool) -> Points:
    """Sampling points of a region from ``start`` to ``end`` (scaled, shifted) along an axis of ``size``."""
    length, grows = end - start, 1.0
    if not half_pixel and length < 1:
        length, grows = np.ones_like(length), 0.0
    count = ratio if ratio > 0 else max(int(np.ceil(length / bins)), 0)
    part = length / bins
    k = np.arange(bins)[:, None]
    j = np.arange(count)[None, :] + 0.5
    place = (start + k * part + j * part / max(count, 1)).reshape(-1).astype(np.asarray(start).dtype)
    fraction = ((k + j / max(count, 1)) / bins).reshape(-1)
    outside = (place < -1) | (place > size)
    inner = (place > 0) & (place < size - 1)
    held = np.clip(place, 0, size - 1)
    # NaN has no neighbours: any valid ones will do, their weights are NaN.
    low = np.minimum(np.floor(np.nan_to_num(held)).astype(np.int64), size - 1)
    t = np.where(outside, 0, held - low)
    one = np.where(outside, 0, np.ones_like(t))
    moving = np.where(inner & ~outside, np.ones_like(t), 0)
    return Points(
        np.stack([low, np.minimum(low + 1, size - 1)], axis=-1),
        np.stack([one - t, t], axis=-1),
        np.stack([-moving, moving], axis=-1),
        1 - fraction * grows,
        fraction * grows,
        bins,
        count,
    )


def _region(
    roi: np.ndarray, sizes: tuple[int, int], bins: tuple[int, int], scale: float, ratio: int, half: bool
) -> tuple[Points, Points]:
    """Sampling points along height and width of one region (x1, y1, x2, y2)."""
    x1, y1, x2, y2 = roi * roi.dtype.type(scale) - roi.dtype.type(0.5 if half else 0)
    return (
        _points(y1, y2, bins[0], sizes[0], ratio, half),
        _points(x1, x2, bins[1], sizes[1], ratio, half),
    )


def check_regions(operator: str, x: tuple[int, ...], rois: tuple[int, ...], columns: int) -> None:
    """Whether the shapes of image and regions fit the operator.

    Raises:
        UserError: they do not.
    """
    if len(x) != 4 or len(rois) != 2 or rois[1] != columns:
        raise UserError(
            f"{operator}: X has shape {x} and rois {rois}; expected (N, C, H, W) and (regions, {columns})"
        )
    if min(x[2:]) < 1:
        raise UserError(f"{operator}: images of shape {x} have no elements to sample")


def check_finite(operator: str, finite: bool) -> None:
    """Raises UserError where a region has no place or size."""
    if not finite:
        raise UserError(f"{operator}: rois hold NaN or infinities, which are no places in an image")


def _check_images(operator: str, images: np.ndarray, count: int, regions: int) -> None:
    if images.shape != (regions,):
        raise UserError(f"{operator}: batch_indices has shape {images.shape}, expected ({regions},)")
    if images.size and (images.min() < 0 or images.max() >= count):
        raise UserError(f"{operator}: batch_indices name images beyond the {count} of X")


def _corners(image: np.ndarray, rows: Points, columns: Points) -> np.ndarray:
    """Neighbours (C, bins_h, count_h * 2, bins_w, count_w * 2) of all sampling points."""
    found = image[:, rows.index.reshape(-1)][:, :, columns.index.reshape(-1)]
    return found.reshape(len(image), rows.bins, rows.count * 2, columns.bins, columns.count * 2)


def _as_bins(points: Points, values: np.ndarray) -> np.ndarray:
    return values.reshape(points.bins, points.count * 2)


def _candidates(image: np.ndarray, rows: Points, columns: Points) -> np.ndarray:
    """Weighted neighbours (C, bins_h, bins_w, candidates) of which mode max takes the largest."""
    w_h, w_w = _as_bins(rows, rows.weight), _as_bins(columns, columns.weight)
    values = _corners(image, rows, columns) * w_h[:, :, None, None] * w_w[None, None]
    return values.swapaxes(2, 3).reshape(len(image), rows.bins, columns.bins, -1)


def _aligned(
    x: np.ndarray,
    rois: np.ndarray,
    batch_indices: np.ndarray,
    mode: str,
    bins: tuple[int, int],
    ratio: int,
    scale: float,
    coordinates: str,
    saved: dict[str, Any],
) -> np.ndarray:
    choose("mode of RoiAlign", mode, MODES)
    choose("coordinate_transformation_mode of RoiAlign", coordinates, COORDINATES)
    check_regions("RoiAlign", x.shape, rois.shape, 4)
    _check_images("RoiAlign", batch_indices, len(x), len(rois))
    check_finite("RoiAlign", bool(np.isfinite(rois).all()))
    half = coordinates == "half_pixel"
    regions = [_region(roi, x.shape[2:], bins, scale, ratio, half) for roi in rois]  # type: ignore[arg-type]
    saved.update(regions=regions, scale=scale, mode=mode)
    y = np.zeros((len(rois), x.shape[1], *bins), x.dtype)
    for r, (rows, columns) in enumerate(regions):
        image = x[batch_indices[r]]
        if mode == "avg":
            left, right = rows.matrix(x.shape[2], rows.weight), columns.matrix(x.shape[3], columns.weight)
            y[r] = left @ image @ right.T
        elif rows.count and columns.count:
            y[r] = _candidates(image, rows, columns).max(axis=-1)
    return y


@rules.rule("RoiAlign", 16)
@numeric
def roi_align(
    x: np.ndarray,
    rois: np.ndarray,
    batch_indices: np.ndarray,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX RoiAlign: x (N, C, H, W), rois (R, 4) as x1 y1 x2 y2, batch_indices (R,) to (R, C, height, width).

    Mode avg is the mean of the bilinear samples of a bin; mode max, as the operator's cases have it, the
    largest of the samples' four weighted neighbours. Regions without sampling points give 0.

    Raises:
        UserError: shapes that do not fit, unknown modes, indices of images that do not exist.
    """
    bins = (output_height, output_width)
    coordinates = coordinate_transformation_mode
    return _aligned(x, rois, batch_indices, mode, bins, sampling_ratio, spatial_scale, coordinates, saved)


@rules.rule("RoiAlign", 10)
@numeric
def roi_align_10(
    x: np.ndarray,
    rois: np.ndarray,
    batch_indices: np.ndarray,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    saved: dict[str, Any],
) -> np.ndarray:
    """Version 10: coordinates are not shifted by half a pixel (output_half_pixel)."""
    bins = (output_height, output_width)
    places = "output_half_pixel"
    return _aligned(x, rois, batch_indices, mode, bins, sampling_ratio, spatial_scale, places, saved)


def _average_gradients(
    image: np.ndarray, d: np.ndarray, rows: Points, columns: Points
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of the image (C, H, W) and of the region's x1, y1, x2, y2."""
    height, width = image.shape[1:]
    left, right = rows.matrix(height, rows.weight), columns.matrix(width, columns.weight)
    d_image = left.T @ d @ right
    # The gradient of a bin's weights, one axis at a time.
    along_h = np.einsum("cpq,chq->ph", d, image @ right.T)
    along_w = np.einsum("cpq,cpw->qw", d, left @ image)
    d_h = _point_gradients(rows, along_h)
    d_w = _point_gradients(columns, along_w)
    ends = [d_w @ columns.by_start, d_h @ rows.by_start, d_w @ columns.by_end, d_h @ rows.by_end]
    return d_image, np.array(ends)


def _point_gradients(points: Points, along: np.ndarray) -> np.ndarray:
    """From the gradient (bins, size) of the weights of a bin's mean to that of every sampling point."""
    bin_of = np.repeat(np.arange(points.bins), points.count)[:, None]
    return (along[bin_of, points.index] * points.slope).sum(axis=1) / max(points.count, 1)


def _largest_gradients(
    image: np.ndarray, d: np.ndarray, rows: Points, columns: Points
) -> tuple[np.ndarray, np.ndarray]:
    """The same for mode max: everything goes to the largest weighted neighbour, the first of equal ones."""
    d_image, ends = np.zeros_like(image), np.zeros(4, image.dtype)
    if not rows.count or not columns.count:
        return d_image, ends
    best = _candidates(image, rows, columns).argmax(axis=-1)
    i, j = best // (columns.count * 2), best % (columns.count * 2)
    p, q = np.arange(rows.bins)[None, :, None], np.arange(columns.bins)[None, None, :]
    h, w = _as_bins(rows, rows.index)[p, i], _as_bins(columns, columns.index)[q, j]
    w_h, w_w = _as_bins(rows, rows.weight)[p, i], _as_bins(columns, columns.weight)[q, j]
    channel = np.arange(len(image))[:, None, None]
    np.add.at(d_image, (channel, h, w), d * w_h * w_w)
    value = d * image[channel, h, w]
    d_h = value * w_w * _as_bins(rows, rows.slope)[p, i]
    d_w = value * w_h * _as_bins(columns, columns.slope)[q, j]
    row, column = p * rows.count + i // 2, q * columns.count + j // 2
    ends[:] = [
        (d_w * columns.by_start[column]).sum(),
        (d_h * rows.by_start[row]).sum(),
        (d_w * columns.by_end[column]).sum(),
        (d_h * rows.by_end[row]).sum(),
    ]
    return d_image, ends


@roi_align.vjp
@roi_align_10.vjp
@numeric_vjp
def roi_align_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Gradients of the images and of the regions (their number of sampling points held fixed)."""
    x, rois, images = call.inputs
    d_x, d_rois = np.zeros_like(x), np.zeros_like(rois)
    gradients = _average_gradients if call.saved["mode"] == "avg" else _largest_gradients
    for r, (rows, columns) in enumerate(call.saved["regions"]):
        d_image, ends = gradients(x[images[r]], d[r], rows, columns)
        d_x[images[r]] += d_image
        d_rois[r] = ends * call.saved["scale"]
    return d_x, d_rois, None


def _rounded(x: np.ndarray) -> np.ndarray:
    """To the nearest whole number, halves away from zero."""
    whole = np.trunc(x)
    return whole + np.sign(x) * (np.abs(x - whole) >= 0.5)


def bin_edges(start: Any, end: Any, bins: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """First and one past the last element (bins,) of every bin of a region, whose ends both belong to it."""
    part = np.maximum(end - start + 1, 1) / np.asarray(start).dtype.type(bins)
    k = np.arange(bins, dtype=np.asarray(start).dtype)
    first = np.clip(np.floor(k * part) + start, 0, size).astype(np.int64)
    return first, np.clip(np.ceil((k + 1) * part) + start, 0, size).astype(np.int64)


@rules.rule("MaxRoiPool", 1)
@numeric
def max_roi_pool(
    x: np.ndarray,
    rois: np.ndarray,
    *,
    pooled_shape: tuple[int, ...],
    spatial_scale: float = 1.0,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX MaxRoiPool: x (N, C, H, W), rois (R, 5) as image x1 y1 x2 y2, to (R, C, *pooled_shape).

    Region of interest pooling of Fast R-CNN (Girshick 2015), as Caffe and ONNX Runtime compute it.
    The region's ends are rounded to whole elements (halves away from zero); empty bins give 0.

    Raises:
        UserError: shapes that do not fit, indices of images that do not exist.
    """
    check_regions("MaxRoiPool", x.shape, rois.shape, 5)
    if len(pooled_shape) != 2 or min(pooled_shape) < 1:
        raise UserError(f"MaxRoiPool: pooled_shape {tuple(pooled_shape)} must be two positive sizes")
    check_finite("MaxRoiPool", bool(np.isfinite(rois).all()))
    images = rois[:, 0].astype(np.int64)
    _check_images("MaxRoiPool", images, len(x), len(rois))
    ends = _rounded(rois[:, 1:] * rois.dtype.type(spatial_scale))
    y = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
    source = np.full(y.shape, -1, np.int64)
    width = x.shape[3]
    for r, (x1, y1, x2, y2) in enumerate(ends):
        rows = bin_edges(y1, y2, pooled_shape[0], x.shape[2])
        columns = bin_edges(x1, x2, pooled_shape[1], width)
        for p, (top, bottom) in enumerate(zip(*rows, strict=True)):
            for q, (left, right) in enumerate(zip(*columns, strict=True)):
                if top >= bottom or left >= right:
                    continue
                window = x[images[r], :, top:bottom, left:right].reshape(x.shape[1], -1)
                best = window.argmax(axis=1)
                y[r, :, p, q] = window[np.arange(len(best)), best]
                source[r, :, p, q] = (top + best // (right - left)) * width + left + best % (right - left)
    saved.update(source=source, images=images)
    return y


@max_roi_pool.vjp
@numeric_vjp
def max_roi_pool_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The images' gradient at the largest elements; the result is piecewise constant in the regions."""
    x, rois = call.inputs
    source, images = call.saved["source"], call.saved["images"]
    flat = np.zeros((x.shape[0], x.shape[1], x.shape[2] * x.shape[3]), d.dtype)
    image = np.broadcast_to(images[:, None, None, None], source.shape)
    channel = np.broadcast_to(np.arange(x.shape[1])[None, :, None, None], source.shape)
    found = source >= 0
    np.add.at(flat, (image[found], channel[found], source[found]), d[found])
    return flat.reshape(x.shape), np.zeros_like(rois)
