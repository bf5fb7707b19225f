"""Putting windows back into images: Col2Im and MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.rules import Call
from meta500.backends.windows import (
    buffer_shape,
    explicit_pads,
    padded,
    per_axis,
    sliding,
    unpadded,
)
from meta500.errors import UserError

Ints = tuple[int, ...]
Gradients = tuple[np.ndarray | None, ...]


def check_columns(columns: Sequence[int], kernel: Sequence[int], outputs: Sequence[int]) -> None:
    """Whether columns (N, C * kernel, L) fit a kernel and its number of positions.

    Raises:
        UserError: they do not.
    """
    if len(columns) != 3 or columns[1] % math.prod(kernel) or columns[2] != math.prod(outputs):
        raise UserError(
            f"Col2Im: columns of shape {tuple(columns)} do not fit; block_shape {tuple(kernel)} and the "
            f"image have {math.prod(outputs)} blocks of {math.prod(kernel)} elements per channel"
        )


@rules.rule("Col2Im", 18, host=("image_shape", "block_shape"))
@numeric
def col2im(
    columns: np.ndarray,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX Col2Im: columns (N, C * prod(block_shape), L) to images (N, C, *image_shape).

    Elements that meet in one place are added (booleans: or).

    Raises:
        UserError: shapes and attributes do not fit, or strings, which have no sum.
    """
    if columns.dtype.kind == "O":
        raise UserError("Col2Im: strings have no sum")
    if len(image_shape) != len(block_shape):
        raise UserError(
            f"Col2Im: image_shape {tuple(image_shape)} and block_shape {tuple(block_shape)} need one entry "
            "per axis"
        )
    windows = sliding("Col2Im", image_shape, block_shape, strides, pads, dilations, "NOTSET")
    check_columns(columns.shape, windows.kernel, windows.outputs)
    channels = columns.shape[1] // math.prod(windows.kernel)
    saved.update(windows=windows)
    blocks = columns.reshape(columns.shape[0], channels, *windows.kernel, *windows.outputs)
    buffer = np.zeros((*blocks.shape[:2], *buffer_shape(windows, image_shape)), columns.dtype)
    for index, places in windows.offsets():
        where: tuple[slice, ...] = (slice(None), slice(None), *places)
        which: tuple[Any, ...] = (slice(None), slice(None), *index)
        buffer[where] = np.add(buffer[where], blocks[which])
    return np.ascontiguousarray(unpadded(buffer, windows, image_shape))


@col2im.vjp
@numeric_vjp
def col2im_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Every column element gets the cotangent of the place it was added to."""
    columns, windows = call.inputs[0], call.saved["windows"]
    wide = padded(d, windows, 0)
    blocks = np.empty((*d.shape[:2], *windows.kernel, *windows.outputs), d.dtype)
    for index, places in windows.offsets():
        blocks[(slice(None), slice(None), *index)] = wide[(slice(None), slice(None), *places)]
    return blocks.reshape(columns.shape), None, None


def unpooled_shapes(
    x: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    output_shape: Sequence[int] | None,
) -> tuple[Ints, Ints]:
    """Shape that MaxUnpool's indices count in, and shape of its result.

    Given an ``output_shape``, the pads follow from it: where it is larger than what the windows cover, the
    indices still count in what they cover, and the rest is zeros at the end (node case
    maxunpool_export_with_output_shape).

    Raises:
        UserError: attributes of wrong length, or an ``output_shape`` that does not fit.
    """
    name, rank = "MaxUnpool", len(x) - 2
    if rank < 1 or len(kernel) != rank:
        raise UserError(f"{name}: kernel_shape {tuple(kernel)} does not fit X of shape {tuple(x)}")
    steps = per_axis(name, "strides", strides, rank, 1, 1)
    full = [(n - 1) * s + k for n, s, k in zip(x[2:], steps, kernel, strict=True)]
    if output_shape is not None:
        shape = tuple(int(n) for n in output_shape)
        if len(shape) != len(x) or shape[:2] != tuple(x[:2]):
            raise UserError(f"{name}: output_shape {shape} does not fit X of shape {tuple(x)}")
        return (*shape[:2], *(min(f, n) for f, n in zip(full, shape[2:], strict=True))), shape
    begins, ends = explicit_pads(name, pads, "NOTSET", rank)
    inferred = (*x[:2], *(f - b - e for f, b, e in zip(full, begins, ends, strict=True)))
    if min(inferred[2:]) < 1:
        raise UserError(f"{name}: pads {tuple(pads or ())} leave nothing of an output of shape {tuple(full)}")
    return tuple(inferred), tuple(inferred)


@rules.rule("MaxUnpool", 9, host=("output_shape",))
@numeric
def max_unpool(
    x: np.ndarray,
    indices: np.ndarray,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX MaxUnpool: x (N, C, *spatial) at the flat places ``indices`` of an array of zeros.

    Of several elements with one index the last stays.

    Raises:
        UserError: shapes that do not fit, or an index outside of the result.
    """
    if indices.shape != x.shape:
        raise UserError(f"MaxUnpool: X has shape {x.shape} and the indices {indices.shape}; they must agree")
    counted, shape = unpooled_shapes(x.shape, kernel_shape, strides, pads, output_shape)
    places = indices.reshape(-1)
    if places.size and (places.min() < 0 or places.max() >= math.prod(counted)):
        raise UserError(
            f"MaxUnpool: indices from {places.min()} to {places.max()} do not lie in an output of shape "
            f"{counted}"
        )
    last = np.full(math.prod(counted), -1, np.int64)
    np.maximum.at(last, places, np.arange(places.size))
    kept = last[places] == np.arange(places.size)
    flat = np.zeros(math.prod(counted), x.dtype)
    flat[places[kept]] = x.reshape(-1)[kept]
    saved.update(counted=counted, kept=kept)
    y = np.zeros(shape, x.dtype)
    y[tuple(slice(n) for n in counted)] = flat.reshape(counted)
    return y


@max_unpool.vjp
@numeric_vjp
def max_unpool_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Every element that stayed gets the cotangent of its place."""
    x, indices = call.inputs[:2]
    counted, kept = call.saved["counted"], call.saved["kept"]
    flat = d[tuple(slice(n) for n in counted)].reshape(-1)
    d_x = np.where(kept, flat[indices.reshape(-1)], 0).reshape(x.shape)
    return (d_x, *(None,) * (len(call.inputs) - 1))
