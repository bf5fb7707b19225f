"""Resize and Upsample.

Interpolation is separable. Where torch's own kernel computes with exact coordinates it runs, in one call;
otherwise each axis is resampled on its own with the positions and weights of ``sampling``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.numpy.operators.resize import check_fill
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.backends.torch.operators.sampling import Filter, Step, plan
from meta500.errors import UserError, choose

Ints = tuple[int, ...]
Floats = Sequence[float]

_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")
_COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
)  # fmt: skip

# What Upsample and growing axes of Resize-10 compute; their text leaves it open, every runtime agrees.
_ASYMMETRIC = Filter("nearest", "asymmetric", "floor", -0.75, 0, 0)


def _resampled(x: Tensor, axis: int, step: Step) -> Tensor:
    """``x`` with one axis resized."""
    _, positions, weights, matrix, _ = step
    if matrix is not None:
        if axis == x.ndim - 1:
            return torch.matmul(x, matrix.t())
        if axis == x.ndim - 2:
            return torch.matmul(matrix, x)
        return torch.matmul(x.movedim(axis, -1), matrix.t()).movedim(-1, axis)
    assert positions is not None
    if weights is None:
        return x.index_select(axis, positions)
    tail = (1,) * (x.ndim - 1 - axis)
    total = x.index_select(axis, positions[0]) * weights[0].reshape(-1, *tail)
    for tap in range(1, weights.shape[0]):
        total = total + x.index_select(axis, positions[tap]) * weights[tap].reshape(-1, *tail)
    return total


def _fill(value: float, dtype: torch.dtype) -> float | int:
    """What stands where a region of interest leaves the input; the bits of unsigned types as signed ones.

    Raises:
        UserError: an integer type does not hold the value.
    """
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        return value
    limits = torch.iinfo(dtype)
    check_fill(value, limits.min, limits.max, str(dtype).removeprefix("torch."))
    return as_signed(torch.tensor(int(value), dtype=dtype)).item()


def _resized(
    x: Tensor,
    filter_: Filter,
    *,
    roi: Floats | None = None,
    scales: Floats | None = None,
    sizes: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    policy: str = "stretch",
    extrapolation_value: float = 0.0,
) -> Tensor:
    chosen = tuple(range(x.ndim)) if axes is None else tuple(a % x.ndim for a in axes)
    crop = filter_.coordinate_transformation_mode == "tf_crop_and_resize"
    if crop and not roi:
        raise UserError("Resize: tf_crop_and_resize needs the input roi")
    if filter_.mode != "nearest" and not x.is_floating_point():
        raise UserError(
            f"Resize: mode {filter_.mode} on {x.dtype} is undefined, ONNX does not say how to round; "
            "cast the input to a float type"
        )
    dtype, x = x.dtype, as_signed(x)
    # Half precision is too narrow for weights.
    narrow = x.dtype in (torch.float16, torch.bfloat16) and filter_.mode != "nearest"
    shape, kernel, steps = plan(
        tuple(x.shape),
        tuple(roi or ()),
        tuple(scales or ()),
        tuple(sizes or ()),
        chosen,
        policy,
        tuple(filter_),
        torch.float32 if narrow else x.dtype,
        x.device,
    )
    if kernel is not None:
        corners = None if kernel == "nearest" else False
        return F.interpolate(x, size=shape[2:], mode=kernel, align_corners=corners)
    y = x.to(torch.float32) if narrow else x
    for step in steps:
        y = _resampled(y, step[0], step)
    y = y.to(x.dtype) if narrow else y
    for axis, _, _, _, outside in steps:
        if outside is not None:
            fill = _fill(extrapolation_value, dtype)
            y = y.masked_fill(outside.reshape(-1, *(1,) * (x.ndim - 1 - axis)), fill)
    return as_type(y, dtype)


def _checked(
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    cubic_coeff_a: float,
    exclude_outside: int,
    antialias: int = 0,
    extra: tuple[str, ...] = (),
) -> Filter:
    """The filter attributes as one value, after checking the names."""
    for kind, name, known in (
        ("Resize mode", mode, ("nearest", "linear", "cubic")),
        ("Resize coordinate_transformation_mode", coordinate_transformation_mode, _COORDINATES + extra),
        ("Resize nearest_mode", nearest_mode, _NEAREST),
    ):
        if name not in known:
            choose(kind, name, known)
    if antialias and mode == "nearest":
        raise UserError("Resize: antialias works with the modes linear and cubic only")
    return Filter(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside, antialias
    )


def _asymmetric(operator: str, mode: str, known: tuple[str, ...]) -> Filter:
    if mode not in known:
        choose(f"{operator} mode", mode, known)
    return _ASYMMETRIC._replace(mode="nearest" if mode == "nearest" else "linear")


@rules.rule("Resize", since=10, host=("scales",))
def resize_10(x: Tensor, scales: Floats, *, mode: str = "nearest") -> Tensor:
    """ONNX Resize-10: asymmetric coordinates.

    Its text does not say which neighbour is nearest: growing axes take the lower one, shrinking axes the
    upper one, as the conformance case of that release demands (scale 0.6 of 1 2 3 4 is 1 3).
    """
    filter_ = _asymmetric("Resize", mode, ("nearest", "linear"))
    if mode == "linear" or min(scales, default=1) >= 1:
        return _resized(x, filter_, scales=scales)
    shrunk = _resized(x, filter_._replace(nearest_mode="ceil"), scales=[min(s, 1) for s in scales])
    return _resized(shrunk, filter_, scales=[max(s, 1) for s in scales])


@rules.rule("Resize", since=11, host=("roi", "scales", "sizes"))
def resize_11(
    x: Tensor,
    roi: Floats | None = None,
    scales: Floats | None = None,
    sizes: Ints | None = None,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    since_version: int = 13,
) -> Tensor:
    """ONNX Resize-11 and -13; see ``resize``."""
    filter_ = _checked(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside,
        extra=("tf_half_pixel_for_nn",) if since_version < 13 else (),
    )  # fmt: skip
    return _resized(x, filter_, roi=roi, scales=scales, sizes=sizes, extrapolation_value=extrapolation_value)


@rules.rule("Resize", since=18, host=("roi", "scales", "sizes"))
def resize(
    x: Tensor,
    roi: Floats | None = None,
    scales: Floats | None = None,
    sizes: Ints | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    since_version: int = 19,
) -> Tensor:
    """ONNX Resize: every axis of ``axes`` to ``floor(size * scale)`` or to ``sizes``.

    Elements beyond an end are the end itself, or with ``exclude_outside`` have no weight.

    Raises:
        UserError: contradictory inputs, unknown names, integers in another mode than nearest.
    """
    extra = ("half_pixel_symmetric",) if since_version >= 19 else ()
    filter_ = _checked(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a, exclude_outside, antialias, extra
    )
    if keep_aspect_ratio_policy not in _POLICIES:
        choose("Resize keep_aspect_ratio_policy", keep_aspect_ratio_policy, _POLICIES)
    return _resized(
        x, filter_, roi=roi, scales=scales, sizes=sizes, axes=axes,
        policy=keep_aspect_ratio_policy, extrapolation_value=extrapolation_value,
    )  # fmt: skip


def _upsampled(x: Tensor, scales: Floats, mode: str, known: tuple[str, ...]) -> Tensor:
    if min(scales, default=1) < 1:
        raise UserError(f"Upsample: scales {tuple(scales)} must all be at least 1")
    return _resized(x, _asymmetric("Upsample", mode, known), scales=scales)


@rules.rule("Upsample", since=1)
def upsample_1(x: Tensor, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Tensor:
    """ONNX Upsample-1 of (N, C, H, W)."""
    if x.ndim != 4:
        raise UserError(f"Upsample: version 1 takes (N, C, H, W), not shape {tuple(x.shape)}")
    return _upsampled(x, (1.0, 1.0, height_scale, width_scale), mode, ("nearest", "bilinear"))


@rules.rule("Upsample", since=7)
def upsample_7(x: Tensor, *, scales: tuple[float, ...], mode: str = "nearest") -> Tensor:
    """ONNX Upsample-7, whose scales are an attribute."""
    return _upsampled(x, scales, mode, ("nearest", "linear"))


@rules.rule("Upsample", since=9, until=10, host=("scales",))
def upsample_9(x: Tensor, scales: Floats, *, mode: str = "nearest") -> Tensor:
    """ONNX Upsample-9 (and -10, where Resize replaces it): asymmetric coordinates as in Resize-10."""
    return _upsampled(x, scales, mode, ("nearest", "linear"))
