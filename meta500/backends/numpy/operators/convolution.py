"""Convolution and transposed convolution through BLAS, in bounded memory.

Everything is built from three products over the same windows: the correlation of ONNX ``Conv``, its adjoint
in the input (which is ``ConvTranspose``) and its adjoint in the weights. Each works block by block on column
matrices: rows (channel, kernel position), columns (image, output position). A block is a range of images or,
where one image is too large, a range of rows of its output.

Products of float32 are added up in float64: BLAS adds in an order that depends on the processor, the threads
and the place in the matrix, so that equal filters would give unequal channels. Deep networks make such
differences visible (ONNX's light SqueezeNet has equal logits of 1.6e10, one unit in the last place is 1024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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
    transposed,
    unpadded,
)
from meta500.errors import UserError

COLUMN_BYTES = 8 << 20
"""Size of a column matrix: large enough for BLAS, small enough to stay near the cache."""


def _blocks(images: int, windows: Windows, channels: int, itemsize: int) -> Iterator[tuple[slice, slice]]:
    """Ranges of images and of rows (of the first spatial output axis) whose columns fit COLUMN_BYTES."""
    rows = windows.outputs[0]
    row_bytes = channels * math.prod(windows.kernel) * math.prod(windows.outputs[1:]) * itemsize
    image_bytes = max(row_bytes * rows, 1)
    if image_bytes <= COLUMN_BYTES:
        step = COLUMN_BYTES // image_bytes
        for first in range(0, images, step):
            yield slice(first, min(first + step, images)), slice(0, rows)
        return
    step = max(COLUMN_BYTES // row_bytes, 1)
    for image in range(images):
        for first in range(0, rows, step):
            yield slice(image, image + 1), slice(first, min(first + step, rows))


def _window_view(x: np.ndarray, windows: Windows, group: int) -> np.ndarray:
    """View (N, group, C/group, *kernel, *outputs) of the windows of the padded ``x``."""
    xp = padded(x, windows, 0)
    images, channels = xp.shape[:2]
    step, spatial = xp.strides[1], xp.strides[2:]
    inner = tuple(s * d for s, d in zip(spatial, windows.dilations, strict=True))
    outer = tuple(s * d for s, d in zip(spatial, windows.strides, strict=True))
    return np.lib.stride_tricks.as_strided(
        xp,
        (images, group, channels // group, *windows.kernel, *windows.outputs),
        (xp.strides[0], step * (channels // group), step, *inner, *outer),
        writeable=False,
    )


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that products of numbers of ``dtype`` are added up in."""
    return np.dtype(np.float64) if dtype == np.float32 else dtype


def _columns(view: np.ndarray, images: slice, rows: slice, rank: int) -> np.ndarray:
    """Columns (group, C/group * kernel, images * positions) of a block, as a contiguous copy, wide."""
    block = view[(images, *(slice(None),) * (rank + 2), rows)]
    block = np.moveaxis(block, 0, rank + 2)
    group, depth = block.shape[0], math.prod(block.shape[1 : rank + 2])
    block = np.ascontiguousarray(block, _wide(block.dtype))
    return block.reshape(group, depth, math.prod(block.shape[rank + 2 :]))


def _positions(y: np.ndarray, images: slice, rows: slice, group: int) -> np.ndarray:
    """A block of ``y`` (N, M, *outputs) as (group, M/group, images * positions), contiguous and wide."""
    block = y[images, :, rows].swapaxes(0, 1)
    channels = block.shape[0]
    block = np.ascontiguousarray(block, _wide(block.dtype))
    return block.reshape(group, channels // group, math.prod(block.shape[1:]))


def correlate(x: np.ndarray, w: np.ndarray, windows: Windows, group: int) -> np.ndarray:
    """``y[n, m, o] = sum w[m, c, k] x[n, c, o*stride + k*dilation - begin]``.

    Shapes: x (N, C, *spatial), w (M, C/group, *kernel); returns (N, M, *outputs).
    """
    images, filters, rank = x.shape[0], w.shape[0], len(windows.kernel)
    wide = _wide(x.dtype)
    y = np.empty((images, filters, *windows.outputs), x.dtype)
    matrix = w.reshape(group, filters // group, -1).astype(wide, copy=False)
    view = _window_view(x, windows, group)
    for n, rows in _blocks(images, windows, x.shape[1], wide.itemsize):
        part = y[n, :, rows]
        product = np.matmul(matrix, _columns(view, n, rows, rank))
        part[...] = product.reshape(filters, part.shape[0], *part.shape[2:]).swapaxes(0, 1)
    return y


def correlate_adjoint(
    y: np.ndarray, w: np.ndarray, windows: Windows, group: int, spatial: Sequence[int]
) -> np.ndarray:
    """Adjoint of :func:`correlate` in ``x``: y (N, M, *outputs) back to (N, C, *spatial)."""
    images, filters = y.shape[0], w.shape[0]
    channels = w.shape[1] * group
    wide = _wide(y.dtype)
    buffer = np.zeros((images, channels, *buffer_shape(windows, spatial)), wide)
    matrix = w.reshape(group, filters // group, -1).swapaxes(1, 2).astype(wide, copy=False)
    for n, rows in _blocks(images, windows, channels, wide.itemsize):
        columns = np.matmul(matrix, _positions(y, n, rows, group))
        columns = columns.reshape(
            channels, *windows.kernel, n.stop - n.start, rows.stop - rows.start, *windows.outputs[1:]
        )
        shift = rows.start * windows.strides[0]
        reach = (rows.stop - rows.start - 1) * windows.strides[0] + 1
        for index, places in windows.offsets():
            first = places[0].start + shift
            target = buffer[(n, slice(None), slice(first, first + reach, windows.strides[0]), *places[1:])]
            target += columns[(slice(None), *index)].swapaxes(0, 1)
    return unpadded(buffer, windows, spatial).astype(y.dtype, copy=False)


def correlate_weights(x: np.ndarray, y: np.ndarray, windows: Windows, group: int) -> np.ndarray:
    """Adjoint of :func:`correlate` in ``w``: x (N, C, *spatial) and y (N, M, *outputs) to w's shape."""
    filters, channels, rank = y.shape[1], x.shape[1] // group, len(windows.kernel)
    depth = channels * math.prod(windows.kernel)
    wide = _wide(x.dtype)
    total = np.zeros((group, filters // group, depth), wide)
    view = _window_view(x, windows, group)
    for n, rows in _blocks(x.shape[0], windows, x.shape[1], wide.itemsize):
        columns = _columns(view, n, rows, rank)
        total += np.matmul(_positions(y, n, rows, group), columns.swapaxes(1, 2))
    return total.reshape(filters, channels, *windows.kernel).astype(x.dtype, copy=False)


def _check(
    operator: str,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None,
    kernel_shape: Sequence[int] | None,
    group: int,
    transposed: bool,
) -> None:
    if x.ndim < 3 or w.ndim != x.ndim:
        raise UserError(
            f"{operator}: X has shape {x.shape} and W {w.shape}; both need batch or filters, channels and "
            f"the same number of spatial axes (at least one)"
        )
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise UserError(f"{operator}: kernel_shape {tuple(kernel_shape)} contradicts W of shape {w.shape}")
    expected = w.shape[0] if transposed else w.shape[1] * group
    if group < 1 or x.shape[1] != expected or w.shape[0] % group:
        raise UserError(
            f"{operator}: X of shape {x.shape} and W of shape {w.shape} do not fit group={group}: "
            f"W expects {expected} channels and its first dimension must be a multiple of group"
        )
    filters = w.shape[1] * group if transposed else w.shape[0]
    if b is not None and b.shape != (filters,):
        raise UserError(f"{operator}: bias has shape {b.shape}, expected ({filters},)")


def _bias(b: np.ndarray, rank: int) -> np.ndarray:
    return b.reshape(-1, *(1,) * rank)


def _bias_gradient(call: Call, d_y: np.ndarray) -> np.ndarray | None:
    if len(call.inputs) < 3 or call.inputs[2] is None or not call.needs[2]:
        return None
    return d_y.sum(axis=(0, *range(2, d_y.ndim)))


@rules.rule("Conv")
@numeric
def conv(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX Conv: x (N, C, *spatial), w (M, C/group, *kernel), b (M) to (N, M, *outputs).

    Raises:
        UserError: shapes and attributes do not fit, or the kernel is larger than the padded input.
    """
    _check("Conv", x, w, b, kernel_shape, group, transposed=False)
    windows = sliding("Conv", x.shape[2:], w.shape[2:], strides, pads, dilations, auto_pad)
    saved.update(windows=windows, group=group)
    y = correlate(x, w, windows, group)
    if b is not None:
        y += _bias(b, len(windows.kernel))
    return y


@conv.vjp
@numeric_vjp
def conv_vjp(call: Call, d_y: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Gradients of input, weights and bias."""
    x, w = call.inputs[:2]
    windows, group = call.saved["windows"], call.saved["group"]
    d_x = correlate_adjoint(d_y, w, windows, group, x.shape[2:]) if call.needs[0] else None
    d_w = correlate_weights(x, d_y, windows, group) if call.needs[1] else None
    return (d_x, d_w, _bias_gradient(call, d_y))[: len(call.inputs)]


@rules.rule("ConvTranspose")
@numeric
def conv_transpose(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
    since_version: int = 22,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX ConvTranspose: x (N, C, *spatial), w (C, M/group, *kernel), b (M) to (N, M, *outputs).

    It is the adjoint of the convolution with weights w (filters C, channels M).

    Raises:
        UserError: shapes and attributes do not fit; before version 11 an odd total padding.
    """
    _check("ConvTranspose", x, w, b, kernel_shape, group, transposed=True)
    windows, shape = transposed(
        x.shape[2:], w.shape[2:], strides, pads, dilations, output_padding, output_shape, auto_pad,
        since_version,
    )  # fmt: skip
    saved.update(windows=windows, group=group)
    y = correlate_adjoint(x, w, windows, group, shape)
    return y if b is None else y + _bias(b, len(shape))


@conv_transpose.vjp
@numeric_vjp
def conv_transpose_vjp(call: Call, d_y: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Gradients of input, weights and bias: a convolution and its weight adjoint with roles exchanged."""
    x, w = call.inputs[:2]
    windows, group = call.saved["windows"], call.saved["group"]
    d_x = correlate(d_y, w, windows, group) if call.needs[0] else None
    d_w = correlate_weights(d_y, x, windows, group) if call.needs[1] else None
    return (d_x, d_w, _bias_gradient(call, d_y))[: len(call.inputs)]
