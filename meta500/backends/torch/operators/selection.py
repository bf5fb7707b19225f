"""Operators whose choice of elements depends on values: TopK, Unique, Compress, NonZero."""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.gathering import place_of
from meta500.backends.torch.operators.integers import as_signed, as_type, ordered
from meta500.backends.torch.operators.literals import Scalar, single
from meta500.errors import UserError


def _top_k(x: Tensor, k: int, axis: int, largest: int) -> tuple[Tensor, Tensor]:
    place = place_of("TopK", axis, x.ndim)
    size = x.shape[place]
    if not 0 <= k <= size:
        raise UserError(
            f"TopK: k is {k}, it should be from 0 to {size}, the size of axis {axis} of {tuple(x.shape)}"
        )
    # torch.topk promises no order of equal values.
    index = torch.sort(ordered(x.detach()), dim=place, descending=bool(largest), stable=True).indices
    index = index.narrow(place, 0, k)
    return as_type(as_signed(x).gather(place, index), x.dtype), index


@rules.rule("TopK", since=10, host=("k",))
def top_k(
    x: Tensor, k: Scalar, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    """ONNX TopK: values in order and their indices; of equal ones the lower index first, NaN is largest.

    Raises:
        UserError: k is no single number from 0 to the size of the axis.
    """
    return _top_k(x, int(single("TopK", "k", k)), axis, largest)


@rules.rule("TopK", since=1)
def top_k_1(x: Tensor, *, axis: int = -1, k: int) -> tuple[Tensor, Tensor]:
    """ONNX TopK-1: ``k`` is an attribute; the largest in order."""
    return _top_k(x, k, axis, 1)


def _ranks(values: Tensor) -> Tensor:
    """For each of the values (1-D) its place among the distinct ones in ascending order; NaN equals NaN."""
    if values.is_complex():
        return _ranks(_ranks(values.real) * values.numel() + _ranks(values.imag))
    keys, order = torch.sort(ordered(values), stable=True)
    new = keys[1:] != keys[:-1]
    if values.is_floating_point():
        new = new & ~(keys[1:].isnan() & keys[:-1].isnan())
    steps = torch.cat((torch.zeros_like(order[:1]), new.to(torch.int64))).cumsum(0)
    return torch.zeros_like(order).scatter(0, order, steps)


@rules.rule("Unique", since=11)
def unique(
    x: Tensor, *, axis: int | None = None, sorted: int = 1, n_outputs: int = 1
) -> Tensor | tuple[Tensor, ...]:
    """ONNX Unique: distinct elements or slices, first occurrences, inverse, and counts.

    Ascending (of slices: lexicographic), or with ``sorted`` 0 in the order of first occurrence. NaN equals
    NaN and comes last. The gradient goes to the first occurrences.
    """
    place = 0 if axis is None else place_of("Unique", axis, x.ndim)
    bits = as_signed(x).reshape(-1) if axis is None else as_signed(x)
    source = x.detach().reshape(-1, 1) if axis is None else x.detach().movedim(place, 0)
    count = source.shape[0]
    if source.numel():
        rows = _ranks(source.reshape(-1)).reshape(count, -1)
    else:
        rows = torch.zeros((count, 1), dtype=torch.int64, device=x.device)
    if rows.shape[1] == 1:
        inverse = _ranks(rows[:, 0])
        size = int(inverse.max()) + 1 if count else 0
    else:
        distinct, inverse = torch.unique(rows, dim=0, return_inverse=True)
        size = distinct.shape[0]
    order = torch.arange(count, device=x.device)
    first = torch.full((size,), count, dtype=torch.int64, device=x.device)
    first = first.scatter_reduce(0, inverse, order, "amin")
    counts = torch.zeros_like(first).index_add(0, inverse, torch.ones_like(inverse))
    if not sorted:
        arrival = torch.argsort(first)
        first, counts = first[arrival], counts[arrival]
        inverse = torch.argsort(arrival)[inverse]
    values = as_type(bits.index_select(place, first), x.dtype)
    return values if n_outputs == 1 else (values, first, inverse, counts)


@rules.rule("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    """ONNX Compress: slices along ``axis`` (elements without it) where ``condition``, maybe shorter, holds.

    Raises:
        UserError: the condition is no vector or longer than the axis.
    """
    place = 0 if axis is None else place_of("Compress", axis, x.ndim)
    source = as_signed(x).reshape(-1) if axis is None else as_signed(x)
    if condition.ndim != 1 or condition.numel() > source.shape[place]:
        raise UserError(
            f"Compress: condition of shape {tuple(condition.shape)} should be a vector of at most "
            f"{source.shape[place]} elements"
        )
    return as_type(source.index_select(place, condition.nonzero().reshape(-1)), x.dtype)


@rules.rule("NonZero", since=9)
def non_zero(x: Tensor) -> Tensor:
    """ONNX NonZero: indices of the non-zero elements in row-major order, shape (rank, count)."""
    return as_signed(x.detach()).nonzero().transpose(0, 1).contiguous()
