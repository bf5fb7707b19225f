"""Resize and Upsample: every axis is resampled on its own by a few weighted taps per output element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import (
    is_floating,
    normal_axes,
    numeric,
    numeric_vjp,
    scatter_sum,
)
from meta500.backends.rules import Call
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


def check_fill(value: float, lowest: int, highest: int, name: str) -> None:
    """Raises UserError where an integer type from ``lowest`` to ``highest`` does not hold ``value``."""
    if not (math.isfinite(value) and value == int(value) and lowest <= value <= highest):
        raise UserError(f"Resize: extrapolation_value {value} is no {name}")


def _fill(value: float, dtype: np.dtype) -> Any:
    """What stands where a region of interest leaves the input.

    Raises:
        UserError: the type does not hold the value.
    """
    if dtype.kind == "O":
        raise UserError(f"Resize: extrapolation_value {value} is no string")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        check_fill(value, int(limits.min), int(limits.max), str(dtype))
    return dtype.type(value)


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


def _resample(
    x: np.ndarray, axes: Sequence[Axis], method: Method, extrapolation: float, saved: dict[str, Any]
) -> np.ndarray:
    if method.mode != "nearest" and not is_floating(x.dtype):
        raise UserError(
            f"Resize: mode {method.mode} of {x.dtype} has no defined rounding; use nearest or a float type"
        )
    plan, masks = [], []
    for axis in axes:
        if axis.before == 0 or axis.after == 0:
            raise UserError(f"Resize: axis {axis.index} goes from {axis.before} to {axis.after} elements")
        if method.coordinates == "tf_crop_and_resize" and axis.width != axis.after:
            raise UserError(
                f"Resize: tf_crop_and_resize gives axis {axis.index} the fractional size {axis.width}, for "
                f"which ONNX's text and reference differ; give sizes instead"
            )
        if method.coordinates == "tf_half_pixel_for_nn" and axis.width == axis.before:
            check_unscaled(axis.index, axis.before, method.mode, method.nearest)
        index, weights, outside = taps(axis, method)
        if outside.any():
            masks.append((axis.index, outside))
        plain = weights.shape[1] == 1 or np.all(np.isin(weights, (0, 1)))
        picked = index[np.arange(axis.after), weights.argmax(axis=1)]
        if plain and np.array_equal(picked, np.arange(axis.before)):
            continue
        plan.append((axis.index, axis.before, *((picked[:, None], None) if plain else (index, weights))))
    y = x
    for place, _, index, weights in plan:
        if weights is None:
            y = y.take(index[:, 0], axis=place)
            continue
        column = (-1, *(1,) * (x.ndim - 1 - place))
        columns = weights.astype(x.dtype).T
        y = reduce(
            np.add,
            (y.take(index[:, k], axis=place) * w.reshape(column) for k, w in enumerate(columns)),
        )
    for place, outside in masks:
        fill = _fill(extrapolation, x.dtype)
        y = np.where(outside.reshape(-1, *(1,) * (x.ndim - 1 - place)), fill, y)
    saved.update(plan=plan, masks=masks)
    return y


def _resize_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """The taps turned round: every output gives its cotangent, weighted, to the elements it was made of."""
    for place, outside in call.saved["masks"]:
        d = np.where(outside.reshape(-1, *(1,) * (d.ndim - 1 - place)), 0, d)
    for place, before, index, weights in reversed(call.saved["plan"]):
        if weights is None:
            d = scatter_sum(d, index[:, 0], before, place)
            continue
        column = (-1, *(1,) * (d.ndim - 1 - place))
        columns = weights.astype(d.dtype).T
        d = reduce(
            np.add,
            (scatter_sum(d * w.reshape(column), index[:, k], before, place) for k, w in enumerate(columns)),
        )
    return (d, *(None,) * (len(call.inputs) - 1))


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


@rules.rule("Resize", 11, host=("roi", "scales", "sizes"))
@numeric
def resize(
    x: np.ndarray,
    roi: list[float] | None = None,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    since_version: int,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX Resize by ``scales`` or to ``sizes``, over all axes or those given.

    Integers only in mode "nearest". Where scales are given, positions follow the exact product of length and
    scale, not the rounded length, as the conformance cases of ONNX have it.

    Raises:
        UserError: unknown mode, both or neither of scales and sizes, lists of wrong length, antialias with
            "nearest".
    """
    choose("mode of Resize", mode, MODES)
    known = COORDINATES[max(version for version in COORDINATES if version <= since_version)]
    choose("coordinate_transformation_mode of Resize", coordinate_transformation_mode, known)
    choose("nearest_mode of Resize", nearest_mode, NEAREST)
    if antialias and mode == "nearest":
        raise UserError("Resize: antialias works with mode linear and cubic, not nearest")
    if bool(scales) == bool(sizes):
        raise UserError("Resize: exactly one of scales and sizes must be given")
    places = range(x.ndim) if axes is None else normal_axes(axes, x.ndim, "Resize")
    crop: Sequence[float] = ()
    if coordinate_transformation_mode == "tf_crop_and_resize":
        crop = roi or ()
        if len(crop) != 2 * len(places):
            raise UserError(f"Resize: tf_crop_and_resize needs a roi of {2 * len(places)} numbers, got {roi}")
    if scales:
        plan = scale_axes("Resize", x, scales, places, crop)
    else:
        plan = size_axes(x, sizes or (), places, crop, keep_aspect_ratio_policy)
    method = Method(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        bool(antialias),
        bool(exclude_outside),
        cubic_coeff_a,
    )
    return _resample(x, plan, method, extrapolation_value, saved)


def _upsample(
    operator: str, x: np.ndarray, scales: Sequence[float], mode: str, saved: dict[str, Any]
) -> np.ndarray:
    """Before Resize 11: asymmetric coordinates.

    The definition does not say which neighbour is nearest. Growing axes take the lower one; shrinking axes
    (Resize 10 only) the upper one, which the conformance case of that release demands (scale 0.6 of 1 2 3 4
    is 1 3) and onnxruntime does.
    """
    choose(f"mode of {operator}", mode, ("nearest", "linear"))
    y = x
    plans, masks = [], []
    for axis in scale_axes(operator, x, scales, range(x.ndim), ()):
        if operator == "Upsample" and axis.width < axis.before:
            raise UserError(f"Upsample: scales {list(scales)} must be at least 1")
        part: dict[str, Any] = {}
        method = Method(mode, nearest="ceil" if axis.width < axis.before else "floor")
        y = _resample(y, [axis], method, 0.0, part)
        plans += part["plan"]
        masks += part["masks"]
    saved.update(plan=plans, masks=masks)
    return y


@rules.rule("Resize", 10, host=("scales",))
@numeric
def resize_by_scales(
    x: np.ndarray, scales: list[float], *, mode: str = "nearest", saved: dict[str, Any]
) -> np.ndarray:
    """Version 10: scales only, asymmetric coordinates."""
    return _upsample("Resize", x, scales, mode, saved)


@rules.rule("Upsample", 9, host=("scales",))
@numeric
def upsample(
    x: np.ndarray, scales: list[float], *, mode: str = "nearest", saved: dict[str, Any]
) -> np.ndarray:
    """Versions 9 and 10: scales of at least 1 as input."""
    return _upsample("Upsample", x, scales, mode, saved)


@rules.rule("Upsample", 7)
@numeric
def upsample_attribute(
    x: np.ndarray, *, mode: str = "nearest", scales: tuple[float, ...], saved: dict[str, Any]
) -> np.ndarray:
    """Version 7: scales as attribute."""
    return _upsample("Upsample", x, scales, mode, saved)


@rules.rule("Upsample", 1)
@numeric
def upsample_images(
    x: np.ndarray,
    *,
    height_scale: float,
    mode: str = "nearest",
    width_scale: float,
    saved: dict[str, Any],
) -> np.ndarray:
    """Version 1: images (N, C, H, W), mode "nearest" or "bilinear".

    Raises:
        UserError: another rank.
    """
    if x.ndim != 4:
        raise UserError(f"Upsample: version 1 takes images (N, C, H, W), got {x.shape}")
    choose("mode of Upsample", mode, ("nearest", "bilinear"))
    kind = "linear" if mode == "bilinear" else mode
    return _upsample("Upsample", x, (1.0, 1.0, height_scale, width_scale), kind, saved)


for _rule in (resize, resize_by_scales, upsample, upsample_attribute, upsample_images):
    _rule.vjp(numeric_vjp(_resize_vjp))
