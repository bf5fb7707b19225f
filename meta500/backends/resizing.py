"""Geometry of resizing: coordinates, taps and lengths, as ONNX Resize and Upsample define them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meta500.errors import UserError, choose

MODES = ("nearest", "linear", "cubic")
COORDINATES = {
    11: ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
         "tf_crop_and_resize"),
    13: ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"),
    19: ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
         "tf_crop_and_resize"),
}  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True)
class Method:
    """How to resample: the attributes of Resize under their ONNX names."""

    mode: str = "nearest"
    coordinates: str = "asymmetric"
    nearest: str = "floor"
    antialias: bool = False
    exclude_outside: bool = False
    cubic_coeff_a: float = -0.75


@dataclass(frozen=True)
class Axis:
    """One axis to resample: from ``before`` to ``after`` elements.

    ``width`` is the length before rounding (``before * scale``), ``roi`` the part that is cropped.
    """

    index: int
    before: int
    after: int
    width: float
    roi: tuple[float, float] = (0.0, 1.0)


def _coordinates(axis: Axis, mode: str) -> np.ndarray:
    """Positions (after,) in the original axis, float64, by the equations of ONNX Resize 19."""
    n, width = axis.before, axis.width
    x = np.arange(axis.after, dtype=np.float64)
    if mode == "asymmetric":
        return x * n / width
    if mode == "tf_half_pixel_for_nn":
        return (x + 0.5) * n / width
    if mode == "align_corners":
        return np.zeros_like(x) if width == 1 else x * (n - 1) / (width - 1)
    if mode == "pytorch_half_pixel" and axis.after == 1:
        return np.zeros_like(x)
    if mode == "tf_crop_and_resize":
        start, end = axis.roi
        if axis.after == 1:
            return np.full_like(x, 0.5 * (start + end) * (n - 1))
        return start * (n - 1) + x * (end - start) * (n - 1) / (axis.after - 1)
    half_pixel = (x + 0.5) * n / width - 0.5
    if mode == "half_pixel_symmetric":
        half_pixel += 0.5 * n * (1 - axis.after / width)
    return half_pixel


def _nearest(x: np.ndarray, mode: str) -> np.ndarray:
    """Index of the nearest element.

    Scales are float32, so that for example 1/3 is not exact: positions within that accuracy of a whole or
    half number count as this number.
    """
    halves = np.rint(2 * x)
    x = np.where(np.abs(2 * x - halves) <= 2.0**-21 * np.maximum(np.abs(halves), 1), halves / 2, x)
    if mode == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5)
    return np.floor(x) if mode == "floor" else np.ceil(x)


def _kernel(distance: np.ndarray, mode: str, a: float) -> np.ndarray:
    """Weight at a distance: the triangle, or the cubic of Keys (1981), equation 4."""
    t = np.abs(distance)
    if mode == "linear":
        return np.maximum(1 - t, 0)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def taps(axis: Axis, method: Method) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices and weights (after, taps), and which outputs lie outside the input (tf_crop_and_resize)."""
    x = _coordinates(axis, method.coordinates)
    last = axis.before - 1
    outside = np.zeros(axis.after, bool)
    if method.coordinates == "tf_crop_and_resize":
        outside = (x < 0) | (x > last)
    if method.mode == "nearest":
        rounded = _nearest(x, method.nearest)
        index = np.clip(rounded, 0, last).astype(np.int64)
        if method.exclude_outside and np.any(index != rounded):
            raise UserError(
                f"Resize: with exclude_outside the nearest elements of axis {axis.index} that lie outside of "
                "the input have weight 0, and there is no other to weigh; set exclude_outside=0"
            )
        return index[:, None], np.ones((axis.after, 1)), outside
    shrink = min(axis.width / axis.before, 1.0) if method.antialias else 1.0
    reach = math.ceil((1 if method.mode == "linear" else 2) / shrink)
    index = np.floor(x).astype(np.int64)[:, None] + np.arange(1 - reach, 1 + reach)
    weights = _kernel((index - x[:, None]) * shrink, method.mode, method.cubic_coeff_a)
    if method.exclude_outside:
        weights = np.where((index < 0) | (index > last), 0, weights)
    if method.exclude_outside or method.antialias:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return np.clip(index, 0, last), weights, outside


def check_unscaled(axis: int, size: int, mode: str, nearest: str) -> None:
    """Whether tf_half_pixel_for_nn leaves an axis of scale 1 as it is.

    Raises:
        UserError: by ONNX's text it moves every element by half a place, which runtimes do not do.
    """
    if size > 1 and not (mode == "nearest" and nearest in ("floor", "round_prefer_floor")):
        raise UserError(
            f"Resize: by ONNX's text tf_half_pixel_for_nn moves axis {axis}, whose scale is 1, by half an "
            f"element, runtimes leave it; use mode nearest with nearest_mode floor or round_prefer_floor"
        )


def _scaled_length(length: int, scale: float) -> int:
    """``floor(length * scale)``, in float32 as the scale is (10 * 0.7 is 7, not 6.9999999)."""
    return int(np.floor(np.float32(length) * np.float32(scale)))


def scale_axes(
    operator: str, x: np.ndarray, scales: Sequence[float], places: Sequence[int], roi: Sequence[float]
) -> list[Axis]:
    if len(scales) != len(places) or min(scales, default=1) <= 0:
        raise UserError(
            f"{operator}: scales {list(scales)} need one entry above 0 for each of the axes {list(places)} "
            f"of {x.shape}"
        )
    axes = []
    for i, (place, scale) in enumerate(zip(places, scales, strict=True)):
        n = x.shape[place]
        part = (roi[i], roi[i + len(places)]) if roi else (0.0, 1.0)
        if part[1] - part[0] != 1:
            raise UserError(
                f"{operator}: scales together with a roi of another extent than 1 have a size that ONNX's "
                f"text and reference compute differently; give sizes instead"
            )
        after = _scaled_length(n, scale)
        axes.append(Axis(place, n, after, n * scale, part))
    return axes


def size_axes(
    x: np.ndarray, sizes: Sequence[int], places: Sequence[int], roi: Sequence[float], policy: str
) -> list[Axis]:
    choose("keep_aspect_ratio_policy of Resize", policy, POLICIES)
    if len(sizes) != len(places) or min(sizes, default=1) < 1:
        raise UserError(
            f"Resize: sizes {list(sizes)} need one entry above 0 for each of the axes {list(places)} "
            f"of {x.shape}"
        )
    wanted = [float(size) for size in sizes]
    after = [int(size) for size in sizes]
    if policy != "stretch":
        pick = min if policy == "not_larger" else max
        size, n = pick(
            ((size, x.shape[place]) for size, place in zip(sizes, places, strict=True)),
            key=lambda pair: pair[0] / pair[1],
        )
        wanted = [size * x.shape[place] / n for place in places]
        after = [math.floor(width + 0.5) for width in wanted]
    return [
        Axis(place, x.shape[place], after[i], wanted[i],
             (roi[i], roi[i + len(places)]) if roi else (0.0, 1.0))
        for i, place in enumerate(places)
    ]  # fmt: skip
