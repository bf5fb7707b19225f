"""GatherElements and GatherND: elements or slices picked by tensors of indices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.errors import UserError


def place_of(operator: str, axis: int, rank: int) -> int:
    """``axis`` counted from the front.

    Raises:
        UserError: outside [-rank, rank - 1].
    """
    if not -rank <= axis < rank:
        raise UserError(
            f"{operator}: axis {axis} is outside [{-rank}, {rank - 1}] for a tensor of rank {rank}"
        )
    return axis + rank if axis < 0 else axis


def looked_at(tensor: Tensor) -> bool:
    """Whether the values of a tensor may be checked here: on the CPU, outside of a compiler.

    Elsewhere a check would wait for the device; the kernels that use the indices assert their range.
    """
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def from_front(operator: str, indices: Tensor, size: int, axis: int) -> Tensor:
    """int64 indices into ``size`` places counted from the front; negative ones count from the end.

    Indices out of range, where they are not refused here, stay out of range.

    Raises:
        UserError: an index outside [-size, size - 1] (on the CPU, not compiled).
    """
    indices = indices.to(torch.int64)
    if looked_at(indices):
        wrong = (indices < -size) | (indices >= size)
        if bool(wrong.any()):
            raise UserError(
                f"{operator}: index {int(indices[wrong][0])} is outside [{-size}, {size - 1}] "
                f"along axis {axis}"
            )
        return torch.where(indices < 0, indices + size, indices)
    # A position far outside of the flattened tensor, so that no other axis can bring it back in.
    inside = (indices >= -size) & (indices < size)
    return torch.where(inside, torch.where(indices < 0, indices + size, indices), 2**40)


def element_positions(operator: str, shape: tuple[int, ...], indices: Tensor, axis: int) -> Tensor:
    """Flat positions in a tensor of ``shape`` that GatherElements-like ``indices`` mean; 1-D.

    Raises:
        UserError: the ranks differ, ``indices`` are longer than the tensor beside ``axis``, or out of range.
    """
    rank = len(shape)
    place = place_of(operator, axis, rank)
    fits = indices.ndim == rank and all(
        n <= m for i, (n, m) in enumerate(zip(indices.shape, shape, strict=True)) if i != place
    )
    if not fits:
        raise UserError(
            f"{operator}: indices of shape {tuple(indices.shape)} do not fit data of shape {shape} "
            f"along axis {axis}"
        )
    flat = torch.zeros((), dtype=torch.int64, device=indices.device)
    stride = 1
    for i in reversed(range(rank)):
        if i == place:
            flat = flat + from_front(operator, indices, shape[i], axis) * stride
        else:
            steps = torch.arange(indices.shape[i], device=indices.device) * stride
            flat = flat + steps.reshape((-1,) + (1,) * (rank - 1 - i))
        stride *= shape[i]
    return flat.reshape(-1)


def slice_positions(
    operator: str, shape: tuple[int, ...], indices: Tensor, batch_dims: int = 0
) -> tuple[Tensor, int]:
    """Rows that index tuples mean in a tensor of ``shape`` whose leading axes are flattened; 1-D.

    The rows run over the ``batch_dims`` and the indexed axes. Also returns the number of these axes.

    Raises:
        UserError: tuples longer than the shape, batch dimensions that differ, or an index out of range.
    """
    rank, listed = len(shape), tuple(indices.shape)
    if not rank or not listed:
        raise UserError(f"{operator}: data of shape {shape} and indices of shape {listed} need axes")
    depth, b = listed[-1], batch_dims
    if not 0 <= b < min(rank, len(listed)) or shape[:b] != listed[:b]:
        raise UserError(
            f"{operator}: batch_dims {b} should be the number of leading dimensions that data {shape} and "
            f"indices {listed} share"
        )
    if not 0 <= depth <= rank - b:
        raise UserError(f"{operator}: index tuples of length {depth} are too long for data of shape {shape}")
    rows = torch.zeros(listed[:-1], dtype=torch.int64, device=indices.device)
    stride = 1
    for i in reversed(range(b + depth)):
        if i >= b:
            rows = rows + from_front(operator, indices[..., i - b], shape[i], i) * stride
        else:
            steps = torch.arange(shape[i], device=indices.device) * stride
            rows = rows + steps.reshape((-1,) + (1,) * (rows.ndim - 1 - i))
        stride *= shape[i]
    return rows.reshape(-1), b + depth


@rules.rule("GatherElements", since=11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    """ONNX GatherElements: the coordinate along ``axis`` is replaced by the index.

    Raises:
        UserError: shapes that do not fit, or an index out of range (asserted by the kernel on a GPU).
    """
    rows = element_positions("GatherElements", tuple(x.shape), indices, axis)
    picked = as_signed(x).reshape(-1).index_select(0, rows)
    return as_type(picked.reshape(indices.shape), x.dtype)


@rules.rule("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """ONNX GatherND: slices of x at the index tuples in the last axis of ``indices``.

    Raises:
        UserError: shapes that do not fit, or an index out of range (asserted by the kernel on a GPU).
    """
    shape = tuple(x.shape)
    rows, leading = slice_positions("GatherND", shape, indices, batch_dims)
    parts = as_signed(x).reshape(math.prod(shape[:leading]), *shape[leading:])
    return as_type(parts.index_select(0, rows).reshape((*indices.shape[:-1], *shape[leading:])), x.dtype)
