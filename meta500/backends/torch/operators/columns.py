"""Putting windows back into images: Col2Im and MaxUnpool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.numpy.operators.columns import check_columns, unpooled_shapes
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.gathering import looked_at
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.backends.windows import Windows, buffer_shape, sliding
from meta500.errors import UserError

Ints = tuple[int, ...]


def _folded(columns: Tensor, windows: Windows, image: Sequence[int]) -> Tensor:
    """torch's kernel: two axes, floats, the same padding on both sides."""
    return F.fold(columns, tuple(image), windows.kernel, windows.dilations, windows.begins, windows.strides)


def _added(columns: Tensor, windows: Windows, image: Sequence[int]) -> Tensor:
    """One strided addition for each position in the kernel."""
    channels = columns.shape[1] // math.prod(windows.kernel)
    blocks = columns.reshape(len(columns), channels, *windows.kernel, *windows.outputs)
    buffer = columns.new_zeros((len(columns), channels, *buffer_shape(windows, image)))
    for index, places in windows.offsets():
        target = (slice(None), slice(None), *places)
        buffer[target] = buffer[target] + blocks[(slice(None), slice(None), *index)]
    inner = (slice(b, b + n) for b, n in zip(windows.begins, image, strict=True))
    return buffer[(slice(None), slice(None), *inner)].contiguous()


@rules.rule("Col2Im", since=18, host=("image_shape", "block_shape"))
def col2im(
    columns: Tensor,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX Col2Im: columns (N, C * prod(block_shape), L) to images (N, C, *image_shape).

    Elements that meet in one place are added (booleans: or).

    Raises:
        UserError: shapes and attributes do not fit.
    """
    if len(image_shape) != len(block_shape):
        raise UserError(
            f"Col2Im: image_shape {tuple(image_shape)} and block_shape {tuple(block_shape)} need one entry "
            "per axis"
        )
    windows = sliding("Col2Im", image_shape, block_shape, strides, pads, dilations, "NOTSET")
    check_columns(tuple(columns.shape), windows.kernel, windows.outputs)
    dtype = columns.dtype
    if dtype is torch.bool:
        return _added(columns.to(torch.int32), windows, image_shape) > 0
    if not dtype.is_floating_point:
        return as_type(_added(as_signed(columns), windows, image_shape), dtype)
    wide = columns if dtype in (torch.float32, torch.float64) else columns.to(torch.float32)
    fits = len(image_shape) == 2 and windows.begins == windows.ends and columns.numel() > 0
    return (_folded if fits else _added)(wide, windows, image_shape).to(dtype)


@rules.rule("MaxUnpool", since=9, host=("output_shape",))
def max_unpool(
    x: Tensor,
    indices: Tensor,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX MaxUnpool: x (N, C, *spatial) at the flat places ``indices`` of an array of zeros.

    Of several elements with one index the last stays.

    Raises:
        UserError: shapes that do not fit, or an index outside of the result (on the CPU, not compiled).
    """
    if indices.shape != x.shape:
        raise UserError(
            f"MaxUnpool: X has shape {tuple(x.shape)} and the indices {tuple(indices.shape)}; they must agree"
        )
    counted, shape = unpooled_shapes(tuple(x.shape), kernel_shape, strides, pads, output_shape)
    places, size = indices.reshape(-1), math.prod(counted)
    if looked_at(places) and places.numel() and not 0 <= int(places.min()) <= int(places.max()) < size:
        raise UserError(
            f"MaxUnpool: indices from {int(places.min())} to {int(places.max())} do not lie in an output of "
            f"shape {counted}"
        )
    # The number of the last element at every place; the others are left out.
    numbers = torch.arange(places.numel(), device=x.device)
    last = torch.full((size,), -1, device=x.device).scatter_reduce(0, places, numbers, "amax")
    found = x.reshape(-1).index_select(0, last.clamp(min=0)) if x.numel() else x.new_zeros(size)
    y = torch.where(last >= 0, found, torch.zeros((), dtype=x.dtype, device=x.device)).reshape(counted)
    grown = [p for n, m in zip(reversed(shape), reversed(counted), strict=True) for p in (0, n - m)]
    return F.pad(y, grown) if any(grown) else y
