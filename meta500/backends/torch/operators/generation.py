"""Tensors made from a few numbers: ranges, identity matrices, one-hot vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.creation import TORCH_TYPE
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.backends.torch.operators.literals import Scalar, single
from meta500.backends.torch.tensors import to_host_value
from meta500.errors import UserError

_STASH = {1: torch.float32, 10: torch.float16, 11: torch.float64}


@rules.rule("Range", since=11)
def range_(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    """ONNX Range: ``start + i * delta``, of ``max(ceil((limit - start) / delta), 0)`` elements.

    The number of elements is fetched from the device; it has derivative zero. Integers are exact, 16-bit
    floats are computed in the float type with number ``stash_type`` and rounded once.

    Raises:
        UserError: delta is 0, an input is no scalar, or the number of elements is not finite.
    """
    for name, value in (("start", start), ("limit", limit), ("delta", delta)):
        if value.numel() != 1:
            raise UserError(f"Range: {name} has shape {tuple(value.shape)}, it should be a scalar")
    dtype = start.dtype
    first, last, step = start.reshape(()), limit.reshape(()), delta.reshape(())
    if not dtype.is_floating_point:
        low, high, by = (int(to_host_value(v)) for v in (first, last, step))
        if by == 0:
            raise UserError("Range: delta is 0")
        count = max(-((low - high) // by), 0)
        return (low + torch.arange(count, device=start.device) * by).to(dtype)
    if dtype.itemsize == 2:
        if stash_type not in _STASH:
            raise UserError(
                f"Range: stash_type {stash_type} should be 1 (float), 10 (float16) or 11 (double)"
            )
        first, last, step = (v.to(_STASH[stash_type]) for v in (first, last, step))
    exact = to_host_value(torch.ceil((last.detach() - first.detach()) / step.detach()))
    if not math.isfinite(exact):
        raise UserError("Range: delta is 0, or the number of elements is not finite")
    index = torch.arange(max(int(exact), 0), device=start.device).to(first.dtype)
    return (first + index * step).to(dtype)


@rules.rule("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    """ONNX EyeLike: ones on diagonal ``k`` of a matrix of the shape of x, else zeros.

    Raises:
        UserError: x is no matrix, or torch lacks the element type.
    """
    if x.ndim != 2:
        raise UserError(f"EyeLike: the input has shape {tuple(x.shape)}, it should be a matrix")
    if dtype is not None and dtype not in TORCH_TYPE:
        known = ", ".join(f"{number} ({str(kind)[6:]})" for number, kind in TORCH_TYPE.items())
        raise UserError(f"EyeLike: the torch backend has no element type number {dtype}; it has {known}")
    rows = torch.arange(x.shape[0], device=x.device)[:, None]
    columns = torch.arange(x.shape[1], device=x.device)
    return (columns - rows == k).to(x.dtype if dtype is None else TORCH_TYPE[dtype])


@rules.rule("OneHot", since=9, host=("depth",))
def one_hot(indices: Tensor, depth: Scalar, values: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX OneHot: ``values[1]`` at the indices along a new axis of size ``depth``, else ``values[0]``.

    Negative indices count from the end; those outside [-depth, depth - 1] leave only ``values[0]``.

    Raises:
        UserError: a depth below 0, not two values, or a wrong axis.
    """
    number = single("OneHot", "depth", depth)
    size = int(number) if math.isfinite(number) else -1
    rank = indices.ndim + 1
    if size < 0 or tuple(values.shape) != (2,):
        raise UserError(
            f"OneHot: depth {depth} should be at least 0 and the values (shape {tuple(values.shape)}) two in "
            "number"
        )
    if not -rank <= axis < rank:
        raise UserError(
            f"OneHot: axis {axis} is outside [{-rank}, {rank - 1}] for indices of rank {rank - 1}"
        )
    place = axis + rank if axis < 0 else axis
    if indices.dtype is torch.uint64:
        whole = indices.view(torch.int64)
        inside = (whole >= 0) & (whole < size)
    else:
        whole = indices if indices.dtype.is_floating_point else indices.to(torch.int64)
        inside = (whole > -size - 1) & (whole < size)
    index = torch.where(inside, whole, 0).to(torch.int64)
    index = torch.where(inside, torch.where(index < 0, index + size, index), size)
    steps = torch.arange(size, device=indices.device).reshape((-1,) + (1,) * (rank - 1 - place))
    hot = index.unsqueeze(place) == steps
    signed = as_signed(values)
    return as_type(torch.where(hot, signed[1], signed[0]), values.dtype)
