"""Pooling: maximum, average and Lp norm over windows or over all positions.

Windows are walked position by position of the kernel, each step on whole strided slices of the input; nothing
of the size of all windows is ever built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.rules import Call
from meta500.backends.windows import (
    Windows,
    buffer_shape,
    padded,
    sliding,
    unpadded,
)
from meta500.errors import UserError

ALL = (slice(None), slice(None))


def _windows(
    operator: str,
    x: np.ndarray,
    kernel_shape: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    auto_pad: str,
    ceil_mode: int,
    include_pad: bool = False,
) -> Windows:
    """Windows of a pooling over x (N, C, *spatial).

    Raises:
        UserError: attributes do not fit, or a window has no element of x.
    """
    if x.ndim < 3 or not kernel_shape:
        raise UserError(
            f"{operator}: input of shape {x.shape} with kernel_shape {kernel_shape}; expected "
            f"(N, C, D1, ...) and one kernel size per spatial axis"
        )
    windows = sliding(operator, x.shape[2:], kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    for axis, counts in enumerate(windows.counts(x.shape[2:], include_pad=include_pad)):
        if not np.all(counts):
            raise UserError(
                f"{operator}: window {int(np.argmin(counts))} along spatial axis {axis} lies in the padding "
                f"only and has no value (input {x.shape}, kernel {windows.kernel}, pads "
                f"{windows.begins + windows.ends})"
            )
    return windows


def _lowest(dtype: np.dtype) -> float | int:
    return -math.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _scattered(parts: Any, x: np.ndarray, windows: Windows, dtype: np.dtype) -> np.ndarray:
    """Sum of ``parts`` (one array of window values per kernel position) at their places in x."""
    buffer = np.zeros((*x.shape[:2], *buffer_shape(windows, x.shape[2:])), dtype)
    for (_, places), part in zip(windows.offsets(), parts, strict=True):
        buffer[ALL + places] += part
    return unpadded(buffer, windows, x.shape[2:])


def _maxima(
    xp: np.ndarray, y: np.ndarray, windows: Windows, spatial: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """For every position in the kernel, the windows whose maximum lies there; each window has one.

    It is the first one in the order of the kernel, of several NaN the last (as in PyTorch), never padding.
    """
    free = np.ones(y.shape, bool)
    if np.all(y > _lowest(y.dtype)):
        for _, places in windows.offsets():
            hit = free & (xp[ALL + places] == y)
            yield hit
            np.logical_and(free, ~hit, out=free)
        return
    # Padding equals the lowest value, NaN nothing: find the position of each maximum beforehand.
    inside = padded(np.ones((1, 1, *spatial), bool), windows, False)
    nan = np.isnan(y)
    chosen = np.full(y.shape, -1)
    for number, (_, places) in enumerate(windows.offsets()):
        part, real = xp[ALL + places], inside[ALL + places]
        chosen = np.where(real & (((chosen < 0) & (part == y)) | (nan & np.isnan(part))), number, chosen)
    for number in range(math.prod(windows.kernel)):
        yield chosen == number


def _indices(
    xp: np.ndarray, y: np.ndarray, windows: Windows, x: np.ndarray, storage_order: int
) -> np.ndarray:
    """Flat index in x of every maximum: the first one in the order of the kernel, the last NaN."""
    spatial = x.shape[2:]
    steps = [1] * len(spatial)
    order = range(1, len(spatial)) if storage_order else reversed(range(len(spatial) - 1))
    for axis in order:
        other = axis - 1 if storage_order else axis + 1
        steps[axis] = steps[other] * spatial[other]
    result = np.zeros(y.shape, np.int64)
    for (index, _), hit in zip(windows.offsets(), _maxima(xp, y, windows, spatial), strict=True):
        here = np.zeros(windows.outputs, np.int64)
        for axis, k in enumerate(index):
            line = np.arange(windows.outputs[axis]) * windows.strides[axis]
            line = line + (k * windows.dilations[axis] - windows.begins[axis])
            here = here + (line * steps[axis]).reshape(-1, *(1,) * (len(spatial) - 1 - axis))
        result = np.where(hit, here, result)
    planes = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(spatial))
    return result + planes * math.prod(spatial)


@rules.rule("MaxPool")
@numeric
def max_pool(
    x: np.ndarray,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
    n_outputs: int = 1,
    saved: dict[str, Any],
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """ONNX MaxPool: x (N, C, *spatial); padding never wins.

    With two outputs also the flat indices (int64) of the maxima in x, in row-major order or, with
    ``storage_order`` 1, with the spatial axes in column-major order.

    Raises:
        UserError: attributes do not fit, or a window lies in the padding only.
    """
    windows = _windows("MaxPool", x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    saved["windows"] = windows
    xp = padded(x, windows, _lowest(x.dtype))
    y: np.ndarray | None = None
    for _, places in windows.offsets():
        part = xp[ALL + places]
        y = part.copy() if y is None else np.maximum(y, part, out=y)
    assert y is not None
    return y if n_outputs < 2 else (y, _indices(xp, y, windows, x, storage_order))


@max_pool.vjp
@numeric_vjp
def max_pool_vjp(
    call: Call, d: np.ndarray | None, d_indices: np.ndarray | None = None
) -> tuple[np.ndarray | None, ...]:
    """The cotangent goes to the first maximum of its window, in the order of the kernel, or the last NaN."""
    x, y, windows = call.inputs[0], call.outputs[0], call.saved["windows"]
    if d is None:
        return (None,)
    cotangent = d
    xp = padded(x, windows, _lowest(x.dtype))

    def parts() -> Any:
        for hit in _maxima(xp, y, windows, x.shape[2:]):
            yield np.where(hit, cotangent, 0)

    return (_scattered(parts(), x, windows, d.dtype),)


def _averaged(x: np.ndarray, windows: Windows, include_pad: int, saved: dict[str, Any]) -> np.ndarray:
    counts = windows.counts(x.shape[2:], bool(include_pad))
    sizes = np.ones((), np.int64)
    for axis, count in enumerate(counts):
        sizes = sizes * count.reshape(-1, *(1,) * (len(counts) - 1 - axis))
    weights = (1 / sizes).astype(x.dtype)
    saved.update(windows=windows, weights=weights)
    xp = padded(x, windows, 0)
    total = np.zeros((*x.shape[:2], *windows.outputs), x.dtype)
    for _, places in windows.offsets():
        total += xp[ALL + places]
    # Division of the sum rounds once; the reciprocals serve the backward.
    return total / sizes.astype(x.dtype)


@rules.rule("AveragePool")
@numeric
def average_pool(
    x: np.ndarray,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX AveragePool: x (N, C, *spatial).

    Divides by the elements of x in the window or, with ``count_include_pad``, also those of the padding; what
    a last window of ``ceil_mode`` covers beyond the padding never counts.

    Raises:
        UserError: attributes do not fit, or a window lies in the padding only.
    """
    windows = _windows(
        "AveragePool", x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, bool(count_include_pad)
    )
    return _averaged(x, windows, count_include_pad, saved)


@average_pool.vjp
@numeric_vjp
def average_pool_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray, ...]:
    """The cotangent spread evenly over its window."""
    windows = call.saved["windows"]
    part = d * call.saved["weights"]
    return (_scattered((part for _ in windows.offsets()), call.inputs[0], windows, d.dtype),)


@rules.rule("LpPool", 2)
@numeric
def lp_pool(
    x: np.ndarray,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...] | None = None,
    p: float = 2,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """``sum(abs(x) ** p) ** (1 / p)`` over every window; padding is zero."""
    windows = _windows("LpPool", x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    saved.update(windows=windows, p=float(p))
    xp = padded(_powered(x, p), windows, 0)
    total = np.zeros((*x.shape[:2], *windows.outputs), x.dtype)
    for _, places in windows.offsets():
        total += xp[ALL + places]
    return np.power(total, 1 / p)


@rules.rule("LpPool", 1)
@numeric
def lp_pool_first(
    x: np.ndarray,
    *,
    auto_pad: str = "NOTSET",
    kernel_shape: tuple[int, ...] | None = None,
    p: float = 2.0,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """Version 1: p is a float."""
    return lp_pool(
        x, auto_pad=auto_pad, kernel_shape=kernel_shape, p=p, pads=pads, strides=strides, saved=saved
    )


def _powered(x: np.ndarray, p: float) -> np.ndarray:
    if p < 1:
        raise UserError(f"LpPool: p is {p}, expected at least 1")
    return x * x if p == 2 else np.power(np.abs(x), p)


def _lp_slope(d: np.ndarray, x: np.ndarray, y: np.ndarray, p: float) -> tuple[np.ndarray, np.ndarray]:
    """Gradient ``d * sign(x) * (abs(x) / y) ** (p - 1)`` in its factors per window and per element."""
    safe = np.where(y == 0, 1, y)
    return d / np.power(safe, p - 1), np.sign(x) * np.power(np.abs(x), p - 1)


@lp_pool.vjp
@lp_pool_first.vjp
@numeric_vjp
def lp_pool_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray, ...]:
    """Zero where the norm is zero."""
    x, windows = call.inputs[0], call.saved["windows"]
    part, slope = _lp_slope(d, x, call.outputs[0], call.saved["p"])
    return (slope * _scattered((part for _ in windows.offsets()), x, windows, d.dtype),)


# Over all positions.


def _spatial_axes(operator: str, x: np.ndarray) -> tuple[int, ...]:
    if x.ndim < 3:
        raise UserError(f"{operator}: input of shape {x.shape}; expected (N, C, D1, ...)")
    return tuple(range(2, x.ndim))


@rules.rule("GlobalAveragePool")
@numeric
def global_average_pool(x: np.ndarray) -> np.ndarray:
    """Mean over all spatial axes, which stay as 1."""
    return x.mean(axis=_spatial_axes("GlobalAveragePool", x), keepdims=True)


@global_average_pool.vjp
@numeric_vjp
def global_average_pool_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray, ...]:
    """The cotangent spread evenly."""
    x = call.inputs[0]
    return (np.array(np.broadcast_to(d / math.prod(x.shape[2:]), x.shape)),)


@rules.rule("GlobalMaxPool")
@numeric
def global_max_pool(x: np.ndarray) -> np.ndarray:
    """Maximum over all spatial axes, which stay as 1."""
    return x.max(axis=_spatial_axes("GlobalMaxPool", x), keepdims=True)


@global_max_pool.vjp
@numeric_vjp
def global_max_pool_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray, ...]:
    """The cotangent is shared by equal maxima, as in ReduceMax."""
    x = call.inputs[0]
    maxima = x == call.outputs[0]
    count = maxima.sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    return (np.where(maxima, d / np.maximum(count, 1), 0),)


@rules.rule("GlobalLpPool")
@numeric
def global_lp_pool(x: np.ndarray, *, p: float = 2, saved: dict[str, Any]) -> np.ndarray:
    """``sum(abs(x) ** p) ** (1 / p)`` over all spatial axes, which stay as 1."""
    saved["p"] = float(p)
    total = _powered(x, p).sum(axis=_spatial_axes("GlobalLpPool", x), keepdims=True)
    return np.power(total, 1 / p)


@global_lp_pool.vjp
@numeric_vjp
def global_lp_pool_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray, ...]:
    """Zero where the norm is zero."""
    x = call.inputs[0]
    part, slope = _lp_slope(d, x, call.outputs[0], call.saved["p"])
    return (slope * part,)
