"""GridSample and AffineGrid: sampling at given places, and the places of an affine map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating, numeric, numeric_vjp
from meta500.backends.numpy.operators.interpolation import (
    Taps,
    cubic_places,
    cubic_taps,
    linear_taps,
    nearest_taps,
    sample,
    sample_adjoint,
    sample_one,
)
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

MODES = {"linear": "linear", "nearest": "nearest", "cubic": "cubic"}
MODES_16 = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
PADDING_MODES = ("zeros", "border", "reflection")


def _reflected(x: np.ndarray, size: int, align_corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates mirrored at the border until they lie inside, and the sign of the last direction.

    The border is the outermost elements' centre or, without ``align_corners``, their outer edge.
    """
    low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
    if span == 0:
        return np.zeros_like(x), np.zeros_like(x)
    distance = np.abs(x - low)
    turns = np.floor(distance / span)
    rest = distance - turns * span
    even = turns % 2 == 0
    sign = np.where(even, 1, -1) * np.where(x >= low, 1, -1)
    return np.where(even, rest + low, span - rest + low), sign.astype(x.dtype)


def _padded(x: np.ndarray, size: int, padding: str, align_corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates after padding, and their derivative."""
    slope = np.ones_like(x)
    if padding == "zeros":
        return x, slope
    if padding == "reflection":
        x, slope = _reflected(x, size, align_corners)
    slope = np.where((x > 0) & (x < size - 1), slope, 0)
    # NaN becomes the first element, as in PyTorch.
    return np.fmin(np.fmax(x, 0), size - 1), slope


def _axis_taps(
    x: np.ndarray, size: int, mode: str, padding: str, align_corners: bool
) -> tuple[Taps, np.ndarray]:
    """Taps of coordinates (B, P) along one axis, and the derivative of the coordinate by padding."""
    if mode == "cubic":
        places, weight, slope = cubic_places(x)
        places = _padded(places, size, padding, align_corners)[0]
        return cubic_taps(places, size, weight, slope), np.ones_like(x)
    x, factor = _padded(x, size, padding, align_corners)
    return (nearest_taps if mode == "nearest" else linear_taps)(x, size), factor


def check_grid(x: Sequence[int], grid: Sequence[int]) -> None:
    """Whether the shapes of GridSample's inputs fit each other.

    Raises:
        UserError: they do not.
    """
    rank = len(x) - 2
    if rank < 1 or len(grid) != rank + 2 or grid[0] != x[0] or grid[-1] != rank:
        raise UserError(
            f"GridSample: X has shape {tuple(x)} and grid {tuple(grid)}; X (N, C, D1..Dr) needs a grid "
            "(N, O1..Or, r)"
        )


def _sampled(
    x: np.ndarray, grid: np.ndarray, mode: str, padding: str, align_corners: int, saved: dict[str, Any]
) -> np.ndarray:
    choose("padding_mode of GridSample", padding, PADDING_MODES)
    check_grid(x.shape, grid.shape)
    if x.dtype.kind == "O" and mode != "nearest":
        raise UserError(f"GridSample: strings have no interpolation in mode {mode}, only in mode nearest")
    sizes, points = x.shape[2:], math.prod(grid.shape[1:-1])
    exact = np.float64 if x.dtype in (np.float64, np.complex128) or not is_floating(x.dtype) else np.float32
    working = np.result_type(exact, np.float32 if grid.dtype.itemsize < 4 else grid.dtype)
    flat = grid.reshape(x.shape[0], points, len(sizes)).astype(working)
    taps, factors = [], []
    for axis, size in enumerate(sizes):
        # The grid names the innermost axis first.
        g = flat[..., len(sizes) - 1 - axis]
        place = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
        found, factor = _axis_taps(place, size, mode, padding, bool(align_corners))
        taps.append(found)
        factors.append(factor * ((size - 1) / 2 if align_corners else size / 2))
    saved.update(taps=taps, factors=factors)
    if mode == "nearest":
        y = sample_one(x, taps)
    else:
        y = sample(x.astype(np.float64) if x.dtype.kind in "iub" else x, taps).astype(x.dtype)
    return y.reshape(*x.shape[:2], *grid.shape[1:-1])


@rules.rule("GridSample", 20)
@numeric
def grid_sample(
    x: np.ndarray,
    grid: np.ndarray,
    *,
    mode: str = "linear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX GridSample: x (N, C, D1..Dr) at grid (N, O1..Or, r), whose last axis counts from the innermost
    axis of x, to (N, C, O1..Or).

    Padding applies to the place in modes linear and nearest and to each of the four neighbours in mode cubic,
    as in PyTorch. Integers are interpolated in float64 and cut.

    Raises:
        UserError: shapes that do not fit, unknown modes.
    """
    choose("mode of GridSample", mode, MODES)
    return _sampled(x, grid, MODES[mode], padding_mode, align_corners, saved)


@rules.rule("GridSample", 16)
@numeric
def grid_sample_16(
    x: np.ndarray,
    grid: np.ndarray,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """Version 16: the modes are called bilinear, nearest and bicubic, and x has two spatial axes."""
    choose("mode of GridSample", mode, MODES_16)
    if x.ndim != 4:
        raise UserError(f"GridSample: version 16 takes (N, C, H, W), but X has shape {x.shape}")
    return _sampled(x, grid, MODES_16[mode], padding_mode, align_corners, saved)


@grid_sample.vjp
@grid_sample_16.vjp
@numeric_vjp
def grid_sample_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Gradients of input and grid; that of the grid is zero in mode nearest and where padding clamps."""
    x, grid = call.inputs
    taps, factors = call.saved["taps"], call.saved["factors"]
    rows = d.reshape(*x.shape[:2], math.prod(grid.shape[1:-1]))
    d_x, d_points = sample_adjoint(rows, x, taps, call.needs[0], call.needs[1])
    if d_points is None:
        return d_x, None
    scaled = [p * factor for p, factor in zip(d_points, factors, strict=True)]
    return d_x, np.stack(scaled[::-1], axis=-1).reshape(grid.shape)


def base_places(size: int, align_corners: int, dtype: Any) -> np.ndarray:
    """``size`` places evenly spaced in [-1, 1]: from end to end, or the centres of as many equal parts."""
    if align_corners:
        step = 2 / (size - 1) if size > 1 else 0.0
        # One place alone lies at the start of the range, as in the function body (for depth) and its cases.
        return (-1 + step * np.arange(size)).astype(dtype)
    return ((2 * np.arange(size) + 1) / max(size, 1) - 1).astype(dtype)


@rules.rule("AffineGrid", 20, host=("size",))
@numeric
def affine_grid(
    theta: np.ndarray, size: Sequence[int], *, align_corners: int = 0, saved: dict[str, Any]
) -> np.ndarray:
    """ONNX AffineGrid: theta (N, r, r+1) and size (N, C, D1..Dr) to places (N, D1..Dr, r), r = 2 or 3.

    Raises:
        UserError: shapes that do not fit.
    """
    rank = len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        raise UserError(
            f"AffineGrid: theta has shape {theta.shape} and size is {list(size)}; size (N, C, H, W) needs "
            "theta (N, 2, 3), size (N, C, D, H, W) needs theta (N, 3, 4)"
        )
    axes = [base_places(n, align_corners, theta.dtype) for n in size[2:]]
    places = np.meshgrid(*axes, indexing="ij")[::-1]
    base = np.stack([*places, np.ones(tuple(size[2:]), theta.dtype)], axis=-1).reshape(-1, rank + 1)
    saved["base"] = base
    return (base @ theta.swapaxes(1, 2)).reshape(theta.shape[0], *size[2:], rank)


@affine_grid.vjp
@numeric_vjp
def affine_grid_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Gradient of theta."""
    theta = call.inputs[0]
    rows = d.reshape(theta.shape[0], -1, theta.shape[1])
    return rows.swapaxes(1, 2) @ call.saved["base"], None
