"""DeformConv: convolution whose kernel positions are moved by offsets and weighted by a mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.numpy.operators.interpolation import linear_taps, sample, sample_adjoint
from meta500.backends.rules import Call
from meta500.backends.windows import Windows, sliding
from meta500.errors import UserError

Ints = tuple[int, ...]


def check_deformable(
    x: Ints,
    w: Ints,
    offset: Ints,
    b: Ints | None,
    mask: Ints | None,
    outputs: Ints,
    group: int,
    offset_group: int,
    kernel_shape: Ints | None,
) -> None:
    """Whether the shapes of DeformConv's inputs fit each other.

    Raises:
        UserError: they do not.
    """
    name, kernel = "DeformConv", w[2:]
    positions = math.prod(kernel)
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise UserError(f"{name}: kernel_shape {tuple(kernel_shape)} contradicts W of shape {w}")
    if group < 1 or x[1] != w[1] * group or w[0] % group:
        raise UserError(f"{name}: X of shape {x} and W of shape {w} do not fit group {group}")
    if offset_group < 1 or x[1] % offset_group:
        raise UserError(f"{name}: the {x[1]} channels of X do not divide into offset_group {offset_group}")
    expected = (x[0], offset_group * positions * len(kernel), *outputs)
    if offset != expected:
        raise UserError(f"{name}: offset has shape {offset}, expected {expected}")
    if mask is not None and mask != (x[0], offset_group * positions, *outputs):
        raise UserError(
            f"{name}: mask has shape {mask}, expected {(x[0], offset_group * positions, *outputs)}"
        )
    if b is not None and b != (w[0],):
        raise UserError(f"{name}: B has shape {b}, expected ({w[0]},)")


def places_along(windows: Windows, axis: int) -> np.ndarray:
    """Coordinates (kernel positions, outputs) along one axis before they are moved."""
    rank = len(windows.kernel)
    steps = np.arange(windows.kernel[axis]) * windows.dilations[axis]
    starts = np.arange(windows.outputs[axis]) * windows.strides[axis] - windows.begins[axis]
    inner = np.broadcast_to(steps.reshape([-1 if i == axis else 1 for i in range(rank)]), windows.kernel)
    outer = np.broadcast_to(starts.reshape([-1 if i == axis else 1 for i in range(rank)]), windows.outputs)
    return np.asarray(inner.reshape(-1, 1) + outer.reshape(1, -1))


@rules.rule("DeformConv", 19)
@numeric
def deform_conv(
    x: np.ndarray,
    w: np.ndarray,
    offset: np.ndarray,
    b: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX DeformConv (Dai et al. 2017, with the mask of Zhu et al. 2018), in any number of dimensions r.

    x (N, C, *spatial), w (M, C/group, *kernel), offset (N, offset_group * K * r, *outputs), b (M), mask
    (N, offset_group * K, *outputs), K the number of kernel positions, to (N, M, *outputs). Elements are read
    by linear interpolation, zeros outside of x.

    Raises:
        UserError: shapes and attributes do not fit.
    """
    if x.ndim < 3 or w.ndim != x.ndim:
        raise UserError(
            f"DeformConv: X has shape {x.shape} and W {w.shape}; both need batch or filters, channels and "
            "the same number of spatial axes"
        )
    windows = sliding("DeformConv", x.shape[2:], w.shape[2:], strides, pads, dilations, "NOTSET")
    shapes = [None if a is None else a.shape for a in (b, mask)]
    check_deformable(
        x.shape,
        w.shape,
        offset.shape,
        shapes[0],
        shapes[1],
        windows.outputs,
        group,
        offset_group,
        kernel_shape,
    )
    rank, positions, points = len(windows.kernel), math.prod(windows.kernel), math.prod(windows.outputs)
    batch, channels = x.shape[:2]
    moved = offset.reshape(batch * offset_group, positions, rank, points)
    taps = [
        linear_taps(
            (places_along(windows, axis).astype(x.dtype) + moved[:, :, axis]).reshape(len(moved), -1), size
        )
        for axis, size in enumerate(x.shape[2:])
    ]
    images = x.reshape(batch * offset_group, channels // offset_group, *x.shape[2:])
    columns = sample(images, taps).reshape(*images.shape[:2], positions, points)
    weighted = columns if mask is None else columns * mask.reshape(len(images), 1, positions, points)
    saved.update(taps=taps, columns=columns, weighted=weighted, group=group)
    grouped = weighted.reshape(batch, group, channels // group * positions, points)
    matrix = w.reshape(group, w.shape[0] // group, -1)
    y = np.matmul(matrix, grouped).reshape(batch, w.shape[0], *windows.outputs)
    return y if b is None else y + b.reshape(-1, *(1,) * rank)


@deform_conv.vjp
@numeric_vjp
def deform_conv_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Gradients of all inputs."""
    given = (*call.inputs, None, None)[:5]
    needs = (*call.needs, False, False)[:5]
    x, w, offset, b, mask = given
    columns, group = call.saved["columns"], call.saved["group"]
    batch, filters, positions = x.shape[0], w.shape[0], math.prod(w.shape[2:])
    points = columns.shape[-1]
    rows = d.reshape(batch, group, filters // group, points)
    matrix = w.reshape(group, filters // group, -1)
    grouped = call.saved["weighted"].reshape(batch, group, -1, points)
    d_w = np.matmul(rows, grouped.swapaxes(-1, -2)).sum(axis=0).reshape(w.shape) if needs[1] else None
    d_b = d.sum(axis=(0, *range(2, d.ndim))) if b is not None and needs[3] else None
    d_weighted = np.matmul(matrix.swapaxes(-1, -2), rows).reshape(columns.shape)
    d_mask = None
    if mask is not None:
        d_mask = (d_weighted * columns).sum(axis=1).reshape(mask.shape) if needs[4] else None
        d_weighted = d_weighted * mask.reshape(len(columns), 1, positions, points)
    images = x.reshape(len(columns), -1, *x.shape[2:])
    flat = d_weighted.reshape(*images.shape[:2], -1)
    d_x, d_places = sample_adjoint(flat, images, call.saved["taps"], needs[0], needs[2])
    d_offset = None
    if d_places is not None:
        along = [place.reshape(len(columns), positions, points) for place in d_places]
        d_offset = np.stack(along, axis=2).reshape(offset.shape)
    d_x = None if d_x is None else d_x.reshape(x.shape)
    return (d_x, d_w, d_offset, d_b, d_mask)[: len(call.inputs)]
