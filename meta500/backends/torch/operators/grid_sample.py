"""GridSample and AffineGrid: sampling at given places, and the places of an affine map.

torch has kernels for images and volumes; other ranks and cubic volumes are sums over neighbours (taps) along
every axis. What the operators mean is told by the numpy rules of the same names.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.numpy.operators.grid_sample import MODES, MODES_16, PADDING_MODES, check_grid
from meta500.backends.torch.operators import rules
from meta500.errors import UserError, choose

# ONNX's names (linear for any rank) and those of torch's kernel.
_KERNEL_MODES = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
# Keys' parameter of the cubic convolution kernel (1981).
_A = -0.75


class Taps(NamedTuple):
    """Neighbours of points along one axis, each (N, P, T): valid places, whether they lie inside, weights."""

    index: Tensor
    inside: Tensor
    weight: Tensor


def taps(places: Tensor, size: int, weight: Tensor) -> Taps:
    """Taps at whole ``places`` (floats), which read 0 outside of 0..size-1."""
    inside = (places >= 0) & (places <= size - 1)
    return Taps(torch.where(inside, places, 0).to(torch.int64), inside, weight)


def linear_taps(x: Tensor, size: int) -> Taps:
    """The two neighbours of each coordinate (N, P)."""
    below = torch.floor(x).detach()
    t = x - below
    return taps(torch.stack([below, below + 1], dim=-1), size, torch.stack([1 - t, t], dim=-1))


def _cubic_taps(x: Tensor, size: int, padding: str, align_corners: bool) -> Taps:
    """The four neighbours of each coordinate, which padding moves one by one."""
    below = torch.floor(x).detach()
    shift = torch.arange(-1, 3, dtype=x.dtype, device=x.device)
    u = ((x - below)[..., None] - shift).abs()
    near = ((_A + 2) * u - (_A + 3)) * u * u + 1
    far = ((_A * u - 5 * _A) * u + 8 * _A) * u - 4 * _A
    middle = torch.tensor([False, True, True, False], device=x.device)
    places = _padded(below[..., None] + shift, size, padding, align_corners)
    return taps(places, size, torch.where(middle, near, far))


def _padded(x: Tensor, size: int, padding: str, align_corners: bool) -> Tensor:
    """Coordinates after padding; NaN becomes the first element where padding clamps."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(x)
        distance = (x - low).abs()
        turns = torch.floor(distance / span).detach()
        rest = distance - turns * span
        x = torch.where(turns % 2 == 0, rest + low, span - rest + low)
    # The gradient is zero at the ends too, as in torch's kernel.
    held = torch.where((x > 0) & (x < size - 1), x, x.detach().clamp(0, size - 1))
    return torch.where(torch.isnan(held), 0.0, held)


def gathered(x: Tensor, points: Sequence[Taps]) -> Tensor:
    """Values (N, C, P) of ``x`` (N, C, *spatial) at points given by taps along every spatial axis."""
    rows = x.reshape(*x.shape[:2], -1)
    count = points[0].index.shape[1]
    total = x.new_zeros((*x.shape[:2], count))
    steps = [math.prod(x.shape[axis + 1 :]) for axis in range(2, x.ndim)]
    for choice in itertools.product(*(range(t.index.shape[-1]) for t in points)):
        chosen = list(zip(points, choice, strict=True))
        moves = [t.index[..., k] * step for (t, k), step in zip(chosen, steps, strict=True)]
        flat = functools.reduce(torch.add, moves)
        inside = functools.reduce(torch.logical_and, [t.inside[..., k] for t, k in chosen])
        weight = functools.reduce(torch.mul, [t.weight[..., k] for t, k in chosen])
        found = torch.gather(rows, 2, flat[:, None, :].expand(*x.shape[:2], count))
        total = total + torch.where(inside[:, None, :], found, 0) * weight[:, None, :]
    return total


def _sampled_by_taps(x: Tensor, grid: Tensor, mode: str, padding: str, align_corners: bool) -> Tensor:
    sizes = x.shape[2:]
    flat = grid.reshape(len(grid), -1, len(sizes))
    found = []
    for axis, size in enumerate(sizes):
        # The grid names the innermost axis first.
        g = flat[..., len(sizes) - 1 - axis]
        place = (g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2
        if mode == "cubic":
            found.append(_cubic_taps(place, size, padding, align_corners))
            continue
        place = _padded(place, size, padding, align_corners)
        if mode == "linear":
            found.append(linear_taps(place, size))
        else:
            nearest = torch.round(place)[..., None]
            found.append(taps(nearest, size, torch.ones_like(nearest)))
    y = gathered(x, found)
    # A zero gradient for the grid in mode nearest, as torch's kernel has it.
    if mode == "nearest" and grid.requires_grad:
        y = y + flat.nan_to_num(0, 0, 0).sum() * 0
    return y.reshape(*x.shape[:2], *grid.shape[1:-1])


def _sampled(x: Tensor, grid: Tensor, mode: str, padding: str, align_corners: int) -> Tensor:
    choose("padding_mode of GridSample", padding, PADDING_MODES)
    check_grid(tuple(x.shape), tuple(grid.shape))
    dtype, rank = x.dtype, x.ndim - 2
    if dtype.is_complex:
        parts = [_sampled(part, grid, mode, padding, align_corners) for part in (x.real, x.imag)]
        return torch.complex(*parts)
    exact = torch.float64 if dtype is torch.float64 or not dtype.is_floating_point else torch.float32
    working = torch.promote_types(exact, torch.promote_types(torch.float32, grid.dtype))
    values, places = x.to(working), grid.to(working)
    kernel = rank in (2, 3) and not (rank == 3 and mode == "cubic")
    if 0 in x.shape or 0 in grid.shape:
        if 0 in x.shape[2:]:
            # Nothing to read: every place lies outside.
            return torch.zeros((*x.shape[:2], *grid.shape[1:-1]), dtype=dtype, device=x.device)
        kernel = False
    if kernel:
        y = F.grid_sample(values, places, _KERNEL_MODES[mode], padding, bool(align_corners))
    else:
        y = _sampled_by_taps(values, places, mode, padding, bool(align_corners))
    return y.to(dtype)


@rules.rule("GridSample", since=20)
def grid_sample(
    x: Tensor, grid: Tensor, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    """ONNX GridSample: x (N, C, D1..Dr) at grid (N, O1..Or, r), whose last axis counts from the innermost
    axis of x, to (N, C, O1..Or).

    Integers are interpolated in float64 and cut.

    Raises:
        UserError: shapes that do not fit, unknown modes.
    """
    choose("mode of GridSample", mode, MODES)
    return _sampled(x, grid, MODES[mode], padding_mode, align_corners)


@rules.rule("GridSample", since=16)
def grid_sample_16(
    x: Tensor, grid: Tensor, *, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: int = 0
) -> Tensor:
    """ONNX GridSample-16: the modes are called bilinear, nearest and bicubic; x has two spatial axes.

    Raises:
        UserError: see ``grid_sample``.
    """
    choose("mode of GridSample", mode, MODES_16)
    if x.ndim != 4:
        raise UserError(f"GridSample: version 16 takes (N, C, H, W), but X has shape {tuple(x.shape)}")
    return _sampled(x, grid, MODES_16[mode], padding_mode, align_corners)


def _base_places(size: int, align_corners: int, like: Tensor) -> Tensor:
    """``size`` places in [-1, 1]: from end to end, or the centres of as many equal parts."""
    steps = torch.arange(size, dtype=torch.float64, device=like.device)
    if align_corners:
        return (-1 + (2 / (size - 1) if size > 1 else 0.0) * steps).to(like.dtype)
    return ((2 * steps + 1) / max(size, 1) - 1).to(like.dtype)


@rules.rule("AffineGrid", since=20, host=("size",))
def affine_grid(theta: Tensor, size: Sequence[int], *, align_corners: int = 0) -> Tensor:
    """ONNX AffineGrid: theta (N, r, r+1) and size (N, C, D1..Dr) to places (N, D1..Dr, r), r = 2 or 3.

    Raises:
        UserError: shapes that do not fit.
    """
    rank = len(size) - 2
    if rank not in (2, 3) or tuple(theta.shape) != (size[0], rank, rank + 1):
        raise UserError(
            f"AffineGrid: theta has shape {tuple(theta.shape)} and size is {list(size)}; size (N, C, H, W) "
            "needs theta (N, 2, 3), size (N, C, D, H, W) needs theta (N, 3, 4)"
        )
    wide = theta.to(torch.float32) if theta.dtype in (torch.float16, torch.bfloat16) else theta
    axes = [_base_places(n, align_corners, wide) for n in size[2:]]
    places = torch.meshgrid(*axes, indexing="ij")[::-1]
    base = torch.stack([*places, wide.new_ones(tuple(size[2:]))], dim=-1).reshape(-1, rank + 1)
    return (base @ wide.transpose(1, 2)).reshape(len(theta), *size[2:], rank).to(theta.dtype)
