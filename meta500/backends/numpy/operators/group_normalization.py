"""Normalisation by statistics of groups of channels, of trailing axes (root mean square), of chosen axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import (
    broadcasts_to,
    normal_axes,
    normal_axis,
    numeric,
    numeric_vjp,
    unbroadcast,
)
from meta500.backends.numpy.operators.attention import rounded, wide_type
from meta500.backends.rules import Call
from meta500.errors import UserError

Array = np.ndarray
Gradients = tuple[Array | None, ...]

# stash_type, an ONNX element type: the one to compute the statistics in.
STASH = {1: np.float32, 11: np.float64}


def stash_dtype(operator: str, number: int, dtype: np.dtype) -> Any:
    """The type of the first stage; float64 inputs are never narrowed.

    Raises:
        UserError: a type other than float32 (1) and float64 (11).
    """
    if number not in STASH:
        raise UserError(
            f"{operator}: stash_type {number} is not supported, only 1 (float32) and 11 (float64)"
        )
    return np.float64 if dtype == np.float64 else STASH[number]


def _standardized(grouped: Array, epsilon: float) -> tuple[Array, Array]:
    """(N, G, M) with mean 0 and variance 1 over the last axis, and the inverse deviation (N, G, 1)."""
    if not grouped.shape[2]:
        return grouped, np.ones((*grouped.shape[:2], 1), grouped.dtype)
    centred = grouped - grouped.mean(axis=2, keepdims=True)
    inverse = 1 / np.sqrt(np.square(centred).mean(axis=2, keepdims=True) + grouped.dtype.type(epsilon))
    return centred * inverse, inverse


def _group(
    x: Array, scale: Array, bias: Array, num_groups: int, epsilon: float, stash: int, per_group: bool,
    saved: dict[str, Any],
) -> Array:  # fmt: skip
    name = "GroupNormalization"
    if x.ndim < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise UserError(f"{name}: X {x.shape} cannot be cut into {num_groups} equal groups of channels")
    count = num_groups if per_group else x.shape[1]
    if scale.shape != (count,) or bias.shape != (count,):
        raise UserError(
            f"{name}: scale {scale.shape} and bias {bias.shape} must have shape ({count},), one value per "
            f"{'group' if per_group else 'channel'} of X {x.shape}"
        )
    wide = stash_dtype(name, stash, x.dtype)
    size = math.prod(x.shape[1:]) // num_groups
    with np.errstate(all="ignore"):
        normal, inverse = _standardized(x.reshape(x.shape[0], num_groups, size).astype(wide), epsilon)
        saved.update(normal=normal, inverse=inverse)
        # The second stage is defined in the type of X.
        rows = rounded(normal, x.dtype).reshape(x.shape[0], count, size * num_groups // count if count else 0)
        work = wide_type(x.dtype)
        product = rounded(rows.astype(work) * scale.astype(work)[:, None], x.dtype)
        return (product + bias.astype(work)[:, None]).astype(x.dtype).reshape(x.shape)


@rules.rule("GroupNormalization", 21)
def group_normalization(
    x: Array, scale: Array, bias: Array, *, epsilon: float = 9.999999747378752e-06, num_groups: int,
    stash_type: int = 1, saved: dict[str, Any],
) -> Array:  # fmt: skip
    """ONNX GroupNormalization (arXiv:1803.08494): x (N, C, ...), scale and bias (C), one value per channel.

    Raises:
        UserError: shapes do not fit, or a ``stash_type`` other than 1 (float32) and 11 (float64).
    """
    return _group(x, scale, bias, num_groups, epsilon, stash_type, False, saved)


@rules.rule("GroupNormalization", 18)
def group_normalization_per_group(
    x: Array, scale: Array, bias: Array, *, epsilon: float = 9.999999747378752e-06, num_groups: int,
    saved: dict[str, Any],
) -> Array:  # fmt: skip
    """Version 18: scale and bias (num_groups), one value for all channels of a group.

    Raises:
        UserError: shapes do not fit.
    """
    return _group(x, scale, bias, num_groups, epsilon, 1, True, saved)


@group_normalization.vjp
@group_normalization_per_group.vjp
def group_normalization_vjp(call: Call, d: Array) -> Gradients:
    """Gradients of x, scale and bias."""
    x, scale, _ = call.inputs
    normal, inverse = call.saved["normal"], call.saved["inverse"]
    wide = normal.dtype
    rows = (x.shape[0], scale.shape[0], normal.shape[1] * normal.shape[2] // max(scale.shape[0], 1))
    d_rows = d.reshape(rows).astype(wide)
    with np.errstate(all="ignore"):
        d_scale = (d_rows * normal.reshape(rows)).sum(axis=(0, 2))
        d_normal = (d_rows * scale.astype(wide)[:, None]).reshape(normal.shape)
        d_x = d_normal
        if normal.shape[2]:
            mean = d_normal.mean(axis=2, keepdims=True)
            d_x = inverse * (d_normal - mean - normal * (d_normal * normal).mean(axis=2, keepdims=True))
    parts = (d_x.reshape(x.shape), d_scale, d_rows.sum(axis=(0, 2)))
    return tuple(part.astype(a.dtype) for part, a in zip(parts, call.inputs, strict=True))


@rules.rule("RMSNormalization", 23)
def rms_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 9.999999747378752e-06, stash_type: int = 1,
    saved: dict[str, Any],
) -> Array:  # fmt: skip
    """ONNX RMSNormalization (arXiv:1910.07467): ``x / sqrt(mean(x^2) + epsilon) * scale``.

    The mean is over the axes from ``axis`` on; scale broadcasts to x and gives the result its type.

    Raises:
        UserError: scale does not broadcast, or a ``stash_type`` other than 1 (float32) and 11 (float64).
    """
    if not broadcasts_to(scale.shape, x.shape):
        raise UserError(f"RMSNormalization: scale {scale.shape} does not broadcast to X {x.shape}")
    first = normal_axis(axis, x.ndim, "RMSNormalization")
    axes = tuple(range(first, x.ndim))
    wide = stash_dtype("RMSNormalization", stash_type, x.dtype)
    with np.errstate(all="ignore"):
        values = x.astype(wide)
        square = np.square(values)
        mean = square.mean(axis=axes, keepdims=True) if x.size else square.sum(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(mean + wide(epsilon))
        normal = values * inverse
        saved.update(normal=normal, inverse=inverse, axes=axes)
        work = wide_type(x.dtype, scale.dtype)
        shown = rounded(rounded(normal, x.dtype), scale.dtype).astype(work)
        return (shown * scale.astype(work)).astype(scale.dtype)


@rms_normalization.vjp
def rms_normalization_vjp(call: Call, d: Array) -> Gradients:
    """Gradients of x and scale."""
    x, scale = call.inputs
    normal, inverse, axes = (call.saved[k] for k in ("normal", "inverse", "axes"))
    wide = normal.dtype
    with np.errstate(all="ignore"):
        d_wide = d.astype(wide)
        d_normal = d_wide * scale.astype(wide)
        d_x = d_normal
        if x.size:
            d_x = inverse * (d_normal - normal * (d_normal * normal).mean(axis=axes, keepdims=True))
        d_scale = unbroadcast(d_wide * normal, scale.shape)
    return d_x.astype(x.dtype), d_scale.astype(scale.dtype)


_MVN_EPSILON = 1e-9  # a constant of the function body, added to the deviation


@rules.rule("MeanVarianceNormalization", 9)
@numeric
def mean_variance_normalization(
    x: Array, *, axes: tuple[int, ...] = (0, 2, 3), saved: dict[str, Any]
) -> Array:
    """ONNX MeanVarianceNormalization: ``(x - mean) / (deviation + 1e-9)`` over ``axes``.

    The variance is the mean of the squared differences, which is what the body's E[x^2] - E[x]^2 means.
    """
    over = normal_axes(axes, x.ndim, "MeanVarianceNormalization")
    if not x.size:
        saved.update(centred=x, deviation=np.ones((1,) * x.ndim, x.dtype), over=over)
        return x
    centred = x - x.mean(axis=over, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=over, keepdims=True))
    saved.update(centred=centred, deviation=deviation, over=over)
    return centred / (deviation + x.dtype.type(_MVN_EPSILON))


@mean_variance_normalization.vjp
@numeric_vjp
def mean_variance_normalization_vjp(call: Call, d: Array) -> Gradients:
    """Where all elements are equal the deviation has no derivative; it counts as constant there."""
    centred, deviation, over = (call.saved[k] for k in ("centred", "deviation", "over"))
    if not centred.size:
        return (d,)
    whole = deviation + deviation.dtype.type(_MVN_EPSILON)
    slope = (d * centred).mean(axis=over, keepdims=True) / (whole * np.where(deviation == 0, 1, deviation))
    d_centred = (d - centred * slope) / whole
    return (d_centred - d_centred.mean(axis=over, keepdims=True),)
