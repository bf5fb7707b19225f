"""ScatterElements, ScatterND and their relatives: a copy of a tensor with updates at given places.

All work on a matrix with one row per place: the data, its rows that are updated, and the updates.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.gathering import (
    element_positions,
    looked_at,
    place_of,
    slice_positions,
)
from meta500.backends.torch.operators.integers import as_signed, as_type, from_ordered, ordered
from meta500.errors import UserError, choose

_HALF = (torch.float16, torch.bfloat16)


def _check_reduction(operator: str, reduction: str, since_version: int) -> None:
    known = ("none", "add", "mul", "max", "min") if since_version >= 18 else ("none", "add", "mul")
    choose(f"{operator} reduction (version {since_version})", reduction, known)


def _scatter(data: Tensor, rows: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """``data`` (N, S), ``updates`` (M, S) put or combined into ``rows`` (M); of equal rows the last stays."""
    dtype = data.dtype
    if not rows.numel() or not data.numel():
        return data.clone()
    if reduction == "none":
        return as_type(_put(as_signed(data), rows, as_signed(updates)), dtype)
    if dtype in _HALF:
        return _combine(data.float(), rows, updates.float(), reduction).to(dtype)
    if dtype is torch.bool:
        # Sums and products of truth values are "or" and "and", as numpy has them.
        logical = {"add": "max", "mul": "min"}.get(reduction, reduction)
        combined = _combine(data.to(torch.uint8), rows, updates.to(torch.uint8), logical)
        return combined.to(torch.bool)
    if reduction in ("add", "mul"):
        return as_type(_combine(as_signed(data), rows, as_signed(updates), reduction), dtype)
    if dtype.is_complex:
        raise UserError(f"reduction '{reduction}' is not defined for complex numbers")
    return from_ordered(_combine(ordered(data), rows, ordered(updates), reduction), dtype)


def _put(data: Tensor, rows: Tensor, updates: Tensor) -> Tensor:
    """The last of the updates of each row, whatever order the device works in, and its exact gradient."""
    order = torch.arange(rows.numel(), device=rows.device)
    last = torch.full((data.shape[0],), -1, dtype=torch.int64, device=rows.device)
    last = last.scatter_reduce(0, rows, order, "amax")
    picked = updates.index_select(0, last.clamp(min=0))
    return torch.where((last >= 0)[:, None], picked, data)


def _combine(data: Tensor, rows: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "add":
        return data.index_add(0, rows, updates)
    index = rows[:, None].expand(-1, data.shape[1])
    if reduction == "mul" and data.dtype.is_complex:
        raise UserError("reduction 'mul' of complex numbers is not supported by the torch backend")
    names = {"mul": "prod", "max": "amax", "min": "amin"}
    return data.scatter_reduce(0, index, updates, names[reduction], include_self=True)


def _scatter_elements(
    operator: str, data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str
) -> Tensor:
    if indices.shape != updates.shape:
        raise UserError(
            f"{operator}: indices {tuple(indices.shape)} and updates {tuple(updates.shape)} should have one "
            "shape"
        )
    rows = element_positions(operator, tuple(data.shape), indices, axis)
    return _scatter(data.reshape(-1, 1), rows, updates.reshape(-1, 1), reduction).reshape(data.shape)


@rules.rule("ScatterElements", since=11)
def scatter_elements(
    data: Tensor,
    indices: Tensor,
    updates: Tensor,
    *,
    axis: int = 0,
    reduction: str = "none",
    since_version: int,
) -> Tensor:
    """ONNX ScatterElements; with 'none' the last of several updates of one place (row-major order) stays.

    Raises:
        UserError: shapes that do not fit, an index out of range (asserted by the kernel on a GPU), or an
            unknown reduction.
    """
    _check_reduction("ScatterElements", reduction, since_version)
    return _scatter_elements("ScatterElements", data, indices, updates, axis, reduction)


@rules.rule("Scatter", since=9)
def scatter(data: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    """ONNX Scatter, the older name of ScatterElements without reduction."""
    return _scatter_elements("Scatter", data, indices, updates, axis, "none")


@rules.rule("ScatterND", since=11)
def scatter_nd(
    data: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none", since_version: int
) -> Tensor:
    """ONNX ScatterND: slices at the index tuples in the last axis of ``indices`` updated, as above.

    Raises:
        UserError: shapes that do not fit, an index out of range (asserted by the kernel on a GPU), or an
            unknown reduction.
    """
    _check_reduction("ScatterND", reduction, since_version)
    shape = tuple(data.shape)
    rows, leading = slice_positions("ScatterND", shape, indices)
    wanted = (*indices.shape[:-1], *shape[leading:])
    if tuple(updates.shape) != wanted:
        raise UserError(f"ScatterND: updates have shape {tuple(updates.shape)}, they should have {wanted}")
    columns = math.prod(shape[leading:])
    places = data.reshape(math.prod(shape[:leading]), columns)
    return _scatter(places, rows, updates.reshape(rows.numel(), columns), reduction).reshape(shape)


@rules.rule("TensorScatter", since=24)
def tensor_scatter(
    past: Tensor,
    update: Tensor,
    write_indices: Tensor | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Tensor:
    """ONNX TensorScatter: ``update`` written into a copy of ``past`` along ``axis`` from each write index on.

    Raises:
        UserError: shapes that do not fit, or a write index out of range (on the CPU; asserted on a GPU).
    """
    choose("TensorScatter mode", mode, ("linear", "circular"))
    place = place_of("TensorScatter", axis, past.ndim)
    old, new = tuple(past.shape), tuple(update.shape)
    size, length = old[place], new[place] if len(new) == len(old) else -1
    if place == 0 or new[:place] + new[place + 1 :] != old[:place] + old[place + 1 :] or length > size:
        raise UserError(
            f"TensorScatter: an update of shape {new} does not fit a cache of shape {old} along axis {axis} "
            "(not 0)"
        )
    batch = old[0]
    if write_indices is None:
        starts = torch.zeros(batch, dtype=torch.int64, device=past.device)
    else:
        starts = write_indices
    if tuple(starts.shape) != (batch,):
        raise UserError(f"TensorScatter: write_indices have shape {tuple(starts.shape)}, not {(batch,)}")
    wrong = starts < 0
    if mode == "linear":
        wrong = wrong | (starts + length > size)
    if looked_at(starts) and bool(wrong.any()):
        raise UserError(
            f"TensorScatter: write indices {starts.tolist()} with {length} positions leave [0, {size})"
        )
    if not update.numel():
        return past.clone()
    positions = (starts[:, None] + torch.arange(length, device=past.device)) % size
    positions = torch.where(wrong[:, None], batch * size, positions)
    rows = (torch.arange(batch, device=past.device)[:, None] * size + positions).reshape(-1)
    bits = past.dtype.itemsize == 1 and past.dtype.is_floating_point
    cache, fresh = (t.view(torch.uint8) if bits else t for t in (past, update))
    moved = cache.movedim(place, 1)
    written = _scatter(
        moved.reshape(batch * size, -1), rows, fresh.movedim(place, 1).reshape(batch * length, -1), "none"
    )
    result = written.reshape(moved.shape).movedim(1, place).contiguous()
    return result.view(past.dtype) if bits else result
