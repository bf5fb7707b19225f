"""Normalisation by statistics of groups of channels, of trailing axes (root mean square), of chosen axes."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.errors import UserError

# stash_type, an ONNX element type: the one to compute the statistics in.
STASH = {1: torch.float32, 11: torch.float64}


def stash_dtype(operator: str, number: int, dtype: torch.dtype) -> torch.dtype:
    """The type of the first stage; float64 inputs are never narrowed.

    Raises:
        UserError: a type other than float32 (1) and float64 (11).
    """
    if number not in STASH:
        raise UserError(
            f"{operator}: stash_type {number} is not supported, only 1 (float32) and 11 (float64)"
        )
    return torch.promote_types(dtype, STASH[number])


def _group(
    x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, epsilon: float, stash: int, per_group: bool
) -> Tensor:
    name, shape = "GroupNormalization", tuple(x.shape)
    if x.ndim < 2 or num_groups < 1 or shape[1] % num_groups:
        raise UserError(f"{name}: X {shape} cannot be cut into {num_groups} equal groups of channels")
    count = num_groups if per_group else shape[1]
    if tuple(scale.shape) != (count,) or tuple(bias.shape) != (count,):
        raise UserError(
            f"{name}: scale {tuple(scale.shape)} and bias {tuple(bias.shape)} must have shape ({count},), "
            f"one value per {'group' if per_group else 'channel'} of X {shape}"
        )
    wide = stash_dtype(name, stash, x.dtype)
    size = math.prod(shape[1:]) // num_groups
    if not x.numel():
        normal = x.to(wide)
    elif wide == x.dtype and not per_group and shape[0] * size > 1:
        return F.group_norm(x, num_groups, scale, bias, epsilon)
    else:
        grouped = x.to(wide).reshape(shape[0], num_groups, size)
        centred = grouped - grouped.mean(2, keepdim=True)
        normal = centred * torch.rsqrt(centred.square().mean(2, keepdim=True) + epsilon)
    # The second stage is defined in the type of X.
    rows = normal.to(x.dtype).reshape(shape[0], count, size * num_groups // count if count else 0)
    return (rows * scale.unsqueeze(-1) + bias.unsqueeze(-1)).reshape(shape)


@rules.rule("GroupNormalization", 21)
def group_normalization(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 9.999999747378752e-06, num_groups: int,
    stash_type: int = 1,
) -> Tensor:  # fmt: skip
    """ONNX GroupNormalization (arXiv:1803.08494): x (N, C, ...), scale and bias (C), one value per channel.

    Raises:
        UserError: shapes do not fit, or a ``stash_type`` other than 1 (float32) and 11 (float64).
    """
    return _group(x, scale, bias, num_groups, epsilon, stash_type, per_group=False)


@rules.rule("GroupNormalization", 18)
def group_normalization_per_group(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 9.999999747378752e-06, num_groups: int
) -> Tensor:
    """Version 18: scale and bias (num_groups), one value for all channels of a group.

    Raises:
        UserError: shapes do not fit.
    """
    return _group(x, scale, bias, num_groups, epsilon, 1, per_group=True)


@rules.rule("RMSNormalization", 23)
def rms_normalization(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 9.999999747378752e-06, stash_type: int = 1
) -> Tensor:
    """ONNX RMSNormalization (arXiv:1910.07467): ``x / sqrt(mean(x^2) + epsilon) * scale``.

    The mean is over the axes from ``axis`` on; scale broadcasts to x and gives the result its type.

    Raises:
        UserError: an axis out of range, a scale that does not broadcast, or a ``stash_type`` other than 1
            (float32) and 11 (float64).
    """
    if not -x.ndim <= axis < x.ndim:
        raise UserError(f"RMSNormalization: axis {axis} is outside of the {x.ndim} axes of X")
    tail = tuple(x.shape)[max(x.ndim - scale.ndim, 0) :]
    if scale.ndim > x.ndim or any(s not in (1, n) for s, n in zip(scale.shape, tail, strict=True)):
        raise UserError(
            f"RMSNormalization: scale {tuple(scale.shape)} does not broadcast to X {tuple(x.shape)}"
        )
    wide = stash_dtype("RMSNormalization", stash_type, x.dtype)
    values = x.to(wide)
    over = tuple(range(axis % x.ndim, x.ndim))
    normal = values * torch.rsqrt(values.square().mean(over, keepdim=True) + epsilon)
    return normal.to(x.dtype).to(scale.dtype) * scale


_MVN_EPSILON = 1e-9  # a constant of the function body, added to the deviation


@rules.rule("MeanVarianceNormalization", 9)
def mean_variance_normalization(x: Tensor, *, axes: tuple[int, ...] = (0, 2, 3)) -> Tensor:
    """ONNX MeanVarianceNormalization: ``(x - mean) / (deviation + 1e-9)`` over ``axes``.

    The variance is the mean of the squared differences, which is what the body's E[x^2] - E[x]^2 means.
    Where all elements are equal the deviation has no derivative; it counts as constant there.

    Raises:
        UserError: an axis is out of range or named twice.
    """
    if any(not -x.ndim <= a < x.ndim for a in axes) or len({a % x.ndim for a in axes}) != len(axes):
        raise UserError(f"MeanVarianceNormalization: axes {axes} are no distinct axes of X {tuple(x.shape)}")
    if not x.numel() or not axes:
        return x if not x.numel() else x - x
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(axes, keepdim=True)
    variance = centred.square().mean(axes, keepdim=True)
    flat = variance == 0
    deviation = torch.where(flat, 0, torch.sqrt(torch.where(flat, 1, variance)))
    return (centred / (deviation + _MVN_EPSILON)).to(x.dtype)
