"""Resize and Upsample: every axis is resampled on its own by a few weighted taps per output element."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from meta500.backends.resizing import (
    COORDINATES,
    MODES,
    NEAREST,
    Axis,
    Method,
    check_unscaled,
    scale_axes,
    size_axes,
    taps,
)
from meta500.backends.rules import Call
from meta500.errors import UserError, choose


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
