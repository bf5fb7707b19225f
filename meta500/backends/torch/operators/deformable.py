"""DeformConv: convolution whose kernel positions are moved by offsets and weighted by a mask."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meta500.backends.numpy.operators.deformable import check_deformable, places_along
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.grid_sample import gathered, linear_taps
from meta500.backends.windows import sliding
from meta500.errors import UserError

Ints = tuple[int, ...]


def _shape(x: Tensor | None) -> Ints | None:
    return None if x is None else tuple(x.shape)


@rules.rule("DeformConv", since=19)
def deform_conv(
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX DeformConv in any number of dimensions r; the numpy rule of the same name tells what it means.

    x (N, C, *spatial), w (M, C/group, *kernel), offset (N, offset_group * K * r, *outputs), b (M), mask
    (N, offset_group * K, *outputs), K the number of kernel positions, to (N, M, *outputs). 16-bit floats are
    computed in float32.

    Raises:
        UserError: shapes and attributes do not fit.
    """
    sizes, filters = tuple(x.shape), tuple(w.shape)
    if x.ndim < 3 or w.ndim != x.ndim:
        raise UserError(
            f"DeformConv: X has shape {sizes} and W {filters}; both need batch or filters, channels and "
            "the same number of spatial axes"
        )
    windows = sliding("DeformConv", sizes[2:], filters[2:], strides, pads, dilations, "NOTSET")
    check_deformable(
        sizes,
        filters,
        tuple(offset.shape),
        _shape(b),
        _shape(mask),
        windows.outputs,
        group,
        offset_group,
        kernel_shape,
    )
    dtype = x.dtype
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    x, w, offset = x.to(wide), w.to(wide), offset.to(wide)
    rank, positions, points = len(windows.kernel), math.prod(windows.kernel), math.prod(windows.outputs)
    batch, channels = sizes[:2]
    moved = offset.reshape(batch * offset_group, positions, rank, points)
    taps = []
    for axis, size in enumerate(sizes[2:]):
        start = torch.tensor(places_along(windows, axis).tolist(), dtype=wide, device=x.device)
        taps.append(linear_taps((start.reshape(positions, points) + moved[:, :, axis]).flatten(1), size))
    images = x.reshape(batch * offset_group, channels // offset_group, *sizes[2:])
    columns = gathered(images, taps).reshape(*images.shape[:2], positions, points)
    if mask is not None:
        columns = columns * mask.to(wide).reshape(len(images), 1, positions, points)
    grouped = columns.reshape(batch, group, channels // group * positions, points)
    y = torch.matmul(w.reshape(group, filters[0] // group, -1), grouped)
    y = y.reshape(batch, filters[0], *windows.outputs)
    return (y if b is None else y + b.to(wide).reshape(-1, *(1,) * rank)).to(dtype)
