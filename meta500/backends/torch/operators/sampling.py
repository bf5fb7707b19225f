"""Where Resize samples: for every output position along an axis, input positions and weights.

All of it follows from sizes and attributes, is computed in float64, and is kept for the next call. Under
``torch.compile`` it is a constant, so that no graph contains its computation.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meta500.backends.numpy.operators.resize import check_unscaled
from meta500.backends.torch.compilation import constant_in_graphs
from meta500.errors import UserError

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Reals = NDArray[np.float64]


class Axis(NamedTuple):
    """One resized axis: its sizes, the scale as an exact ratio, and the region of interest."""

    axis: int
    size: int
    out: int
    numerator: int
    denominator: int
    start: float
    end: float

    @property
    def scale(self) -> float:
        """The scale, rounded."""
        return self.numerator / self.denominator

    @property
    def length(self) -> float:
        """The target size before it became ``out``."""
        return self.numerator * self.size / self.denominator

    def unscaled(self, positions: Reals) -> Reals:
        """``positions / scale``, rounded once, so that whole quotients come out whole."""
        return positions * self.denominator / self.numerator


class Filter(NamedTuple):
    """Attributes of Resize that choose positions and weights, under their ONNX names."""

    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    cubic_coeff_a: float
    exclude_outside: int
    antialias: int


# Axis number, nearest positions (out) or positions and weights (taps, out), weights as a matrix (out, size),
# and which of the out positions lie outside; None for what a step does not need.
Step = tuple[int, Tensor | None, Tensor | None, Tensor | None, Tensor | None]

# Below this size a matrix product is faster than gathering, and its gradient needs no scattering.
_MATRIX_SIZE = 64


@constant_in_graphs
def plan(
    shape: Ints,
    roi: Floats,
    scales: Floats,
    sizes: Ints,
    axes: Ints,
    policy: str,
    filter_: tuple[Any, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Ints, str | None, tuple[Step, ...]]:
    """Output shape, the mode of ``F.interpolate`` that computes it (or None), and else a step for each axis.

    ``scales`` or ``sizes`` (the other one empty) and ``roi`` (starts, then ends; may be empty) belong to
    ``axes``; ``filter_`` holds the fields of a ``Filter``. Weights have ``dtype``.

    Raises:
        UserError: see ``_resized``; nearest neighbours that ``exclude_outside`` takes away.
    """
    return _plan(shape, roi, scales, sizes, axes, policy, Filter(*filter_), dtype, device)


@lru_cache(maxsize=256)
def _plan(
    shape: Ints,
    roi: Floats,
    scales: Floats,
    sizes: Ints,
    axes: Ints,
    policy: str,
    filter_: Filter,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Ints, str | None, tuple[Step, ...]]:
    crop = filter_.coordinate_transformation_mode == "tf_crop_and_resize"
    resized = _resized(shape, roi if crop else (), scales, sizes, axes, policy)
    result = list(shape)
    for axis in resized:
        result[axis.axis] = axis.out
        if crop and axis.length != axis.out:
            raise UserError(
                f"Resize: tf_crop_and_resize with scale {axis.scale} gives axis {axis.axis} the fractional "
                f"size {axis.length}, for which ONNX's text and reference differ; give sizes instead"
            )
        if filter_.coordinate_transformation_mode == "tf_half_pixel_for_nn" and axis.scale == 1:
            check_unscaled(axis.axis, axis.size, filter_.mode, filter_.nearest_mode)
    changed = tuple(a for a in resized if a.scale != 1 or a.out != a.size or (a.start, a.end) != (0.0, 1.0))
    kernel = _kernel(shape, changed, filter_) if dtype.is_floating_point else None
    # A tensor made in inference mode could not take part in a later gradient.
    with torch.inference_mode(False):
        steps = () if kernel else tuple(_step(axis, filter_, dtype, device) for axis in changed)
    return tuple(result), kernel, steps


def _step(axis: Axis, filter_: Filter, dtype: torch.dtype, device: torch.device) -> Step:
    outside = None
    if filter_.coordinate_transformation_mode == "tf_crop_and_resize":
        x = _sources(axis, filter_.coordinate_transformation_mode)
        beyond = (x < 0) | (x > axis.size - 1)
        outside = torch.tensor(beyond, device=device) if beyond.any() else None
    if filter_.mode == "nearest":
        return axis.axis, torch.tensor(_nearest(axis, filter_), device=device), None, None, outside
    positions, weights = _taps(axis, filter_)
    if axis.size > _MATRIX_SIZE and len(positions) <= 4:
        places = torch.tensor(positions, device=device)
        return axis.axis, places, torch.tensor(weights, dtype=dtype, device=device), None, outside
    matrix = np.zeros((axis.out, axis.size))
    np.add.at(matrix, (np.arange(axis.out)[None, :], positions), weights)
    return axis.axis, None, None, torch.tensor(matrix, dtype=dtype, device=device), outside


def _resized(shape: Ints, roi: Floats, scales: Floats, sizes: Ints, axes: Ints, policy: str) -> list[Axis]:
    """One ``Axis`` for each of ``axes``.

    Raises:
        UserError: not exactly one of scales and sizes, wrong lengths, an empty result, or (for scales beside
            a region of interest) a size that ONNX's text and its reference compute differently.
    """
    if bool(scales) == bool(sizes):
        raise UserError("Resize: give either scales or sizes, not both and not neither")
    given = scales or sizes
    if len(given) != len(axes) or (roi and len(roi) != 2 * len(axes)):
        raise UserError(
            f"Resize: scales, sizes or roi do not have one entry for each of the {len(axes)} axes"
        )
    starts, ends = (roi[: len(axes)], roi[len(axes) :]) if roi else ((0.0,) * len(axes), (1.0,) * len(axes))
    common = None
    if sizes and policy != "stretch":
        ratios = [Fraction(size, shape[axis]) for size, axis in zip(sizes, axes, strict=True)]
        common = min(ratios) if policy == "not_larger" else max(ratios)
    found = []
    for place, axis in enumerate(axes):
        size, start, end = shape[axis], starts[place], ends[place]
        if scales:
            scale = Fraction(scales[place])
            # In float32, as ONNX's shape inference multiplies: 10 * 0.7 is 7, not 6.9999998.
            out = int(np.floor(np.float32(size) * np.float32(scales[place])))
            if end - start != 1:
                raise UserError(
                    "Resize: scales together with a roi of another extent than 1 have a size that ONNX's "
                    "text and reference compute differently; give sizes instead"
                )
        elif common is not None:
            out, scale = math.floor(common * size + Fraction(1, 2)), common
        else:
            out, scale = sizes[place], Fraction(sizes[place], size)
        if out < 1 or size < 1:
            raise UserError(f"Resize: axis {axis} of size {size} would get size {out}")
        found.append(Axis(axis, size, out, scale.numerator, scale.denominator, start, end))
    return found


def _kernel(shape: Ints, axes: tuple[Axis, ...], filter_: Filter) -> str | None:
    """The mode of ``F.interpolate`` with ONNX's result to the last bit of its coordinates, or None.

    torch computes coordinates in the input's precision: they are exact for powers of two only. It knows
    half-pixel coordinates, and repeated elements where nearest neighbours come out as such.
    """
    rank = len(shape) - 2
    if not axes or not 1 <= rank <= 3 or any(a.axis < 2 for a in axes):
        return None
    if any(a.scale != a.out / a.size or not _power_of_two(a.scale) for a in axes):
        return None
    if filter_.mode == "nearest":
        repeats = all(
            a.scale >= 1 and bool(np.all(_nearest(a, filter_) == np.arange(a.out) // (a.out // a.size)))
            for a in axes
        )
        return "nearest" if repeats else None
    half = filter_.coordinate_transformation_mode in ("half_pixel", "half_pixel_symmetric") or (
        filter_.coordinate_transformation_mode == "pytorch_half_pixel" and all(a.out > 1 for a in axes)
    )
    if not half or filter_.antialias:
        return None
    if filter_.mode == "linear":
        return ("linear", "bilinear", "trilinear")[rank - 1]
    if rank == 2 and filter_.cubic_coeff_a == -0.75 and not filter_.exclude_outside:
        return "bicubic"
    return None


def _power_of_two(scale: float) -> bool:
    return math.frexp(scale)[0] == 0.5


def _sources(axis: Axis, mode: str) -> Reals:
    """``x_original`` for every output position (ONNX Resize, coordinate_transformation_mode)."""
    x = np.arange(axis.out, dtype=np.float64)
    last = axis.size - 1
    match mode:
        case "align_corners":
            return x * last / (axis.length - 1) if axis.out > 1 else x
        case "asymmetric":
            return axis.unscaled(x)
        case "tf_half_pixel_for_nn":
            return axis.unscaled(x + 0.5)
        case "tf_crop_and_resize":
            if axis.out == 1:
                return x + 0.5 * (axis.start + axis.end) * last
            return axis.start * last + x * (axis.end - axis.start) * last / (axis.out - 1)
        case "pytorch_half_pixel" if axis.out == 1:
            return x
        case "half_pixel_symmetric":
            # ONNX's offset and the rest over one denominator.
            return axis.size / 2 + axis.unscaled(x + 0.5 - axis.out / 2) - 0.5
        case _:
            return axis.unscaled(x + 0.5) - 0.5


def _nearest(axis: Axis, filter_: Filter) -> NDArray[np.int64]:
    """The nearest input position for every output position, those beyond an end moved onto it.

    Scales are float32, in which 2/3 is not exact: a source within that accuracy of a whole or half number
    counts as this number.
    """
    x = _sources(axis, filter_.coordinate_transformation_mode)
    halves = np.rint(2 * x)
    x = np.where(np.abs(2 * x - halves) <= 2.0**-21 * np.maximum(np.abs(halves), 1), halves / 2, x)
    rounded = {
        "floor": np.floor(x),
        "ceil": np.ceil(x),
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
    }[filter_.nearest_mode]
    positions = np.clip(rounded, 0, axis.size - 1)
    if filter_.exclude_outside and bool(np.any(positions != rounded)):
        raise UserError(
            f"Resize: with exclude_outside the nearest elements of axis {axis.axis} that lie outside of the "
            "input have weight 0, and there is no other to weigh; set exclude_outside=0"
        )
    return positions.astype(np.int64)


def _linear_weight(distance: Reals) -> Reals:
    return np.maximum(1 - distance, 0)


def _cubic_weight(distance: Reals, a: float) -> Reals:
    """Keys' cubic convolution kernel (IEEE Trans. ASSP 29, 1981, equation 4)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _taps(axis: Axis, filter_: Filter) -> tuple[NDArray[np.int64], Reals]:
    """Input positions and weights, both (taps, out): positions beyond an end are moved onto it."""
    x = _sources(axis, filter_.coordinate_transformation_mode)
    radius = 1 if filter_.mode == "linear" else 2
    # Antialiasing stretches the kernel when the axis shrinks.
    squeeze = min(axis.scale, 1.0) if filter_.antialias else 1.0
    first = math.floor(-radius / squeeze) + 1
    positions = np.floor(x)[None, :] + np.arange(first, 2 - first)[:, None]
    distance = np.abs(positions - x[None, :]) * squeeze
    if filter_.mode == "linear":
        weights = _linear_weight(distance)
    else:
        weights = _cubic_weight(distance, filter_.cubic_coeff_a)
    if filter_.exclude_outside:
        weights = np.where((positions < 0) | (positions > axis.size - 1), 0.0, weights)
    if filter_.exclude_outside or filter_.antialias:
        total = weights.sum(0)
        weights = weights / np.where(total == 0, 1.0, total)
    return np.clip(positions, 0, axis.size - 1).astype(np.int64), weights
