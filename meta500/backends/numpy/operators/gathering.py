"""GatherElements and GatherND: elements or slices picked by tensors of indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import normal_axis, scatter_sum
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


def from_front(operator: str, indices: np.ndarray, size: int, axis: int) -> np.ndarray:
    """int64 indices into ``size`` places counted from the front; negative ones count from the end.

    Raises:
        UserError: an index outside [-size, size - 1].
    """
    wrong = (indices < -size) | (indices >= size)
    if np.any(wrong):
        raise UserError(
            f"{operator}: index {indices[wrong].flat[0]} is outside [{-size}, {size - 1}] along axis {axis}"
        )
    return np.where(indices < 0, indices + size, indices).astype(np.int64)


def element_positions(operator: str, shape: tuple[int, ...], indices: np.ndarray, axis: int) -> np.ndarray:
    """Flat positions in a tensor of ``shape`` that GatherElements-like ``indices`` mean; 1-D.

    Raises:
        UserError: the ranks differ, ``indices`` are longer than the tensor beside ``axis``, or out of range.
    """
    place = normal_axis(axis, len(shape), operator)
    fits = indices.ndim == len(shape) and all(
        n <= m for i, (n, m) in enumerate(zip(indices.shape, shape, strict=True)) if i != place
    )
    if not fits:
        raise UserError(
            f"{operator}: indices of shape {indices.shape} do not fit data of shape {shape} along axis {axis}"
        )
    flat = np.zeros(indices.shape, np.int64)
    stride = 1
    for i in reversed(range(len(shape))):
        if i == place:
            flat += from_front(operator, indices, shape[i], axis) * stride
        else:
            steps = np.arange(indices.shape[i]) * stride
            flat += steps.reshape((-1,) + (1,) * (len(shape) - 1 - i))
        stride *= shape[i]
    return flat.ravel()


def slice_positions(
    operator: str, shape: tuple[int, ...], indices: np.ndarray, batch_dims: int = 0
) -> tuple[np.ndarray, int]:
    """Rows that index tuples mean in a tensor of ``shape`` whose leading axes are flattened; 1-D.

    The rows run over the ``batch_dims`` and the indexed axes. Also returns the number of these axes.

    Raises:
        UserError: tuples longer than the shape, batch dimensions that differ, or an index out of range.
    """
    rank = len(shape)
    if not rank or not indices.ndim:
        raise UserError(f"{operator}: data of shape {shape} and indices of shape {indices.shape} need axes")
    depth, b = indices.shape[-1], batch_dims
    if not 0 <= b < min(rank, indices.ndim) or shape[:b] != indices.shape[:b]:
        raise UserError(
            f"{operator}: batch_dims {b} should be the number of leading dimensions that data {shape} and "
            f"indices {indices.shape} share"
        )
    if not 0 <= depth <= rank - b:
        raise UserError(f"{operator}: index tuples of length {depth} are too long for data of shape {shape}")
    rows = np.zeros(indices.shape[:-1], np.int64)
    stride = 1
    for i in reversed(range(b + depth)):
        if i >= b:
            rows += from_front(operator, indices[..., i - b], shape[i], i) * stride
        else:
            rows += (np.arange(shape[i]) * stride).reshape((-1,) + (1,) * (rows.ndim - 1 - i))
        stride *= shape[i]
    return rows.ravel(), b + depth


@rules.rule("GatherElements", 11)
def gather_elements(
    x: np.ndarray, indices: np.ndarray, *, axis: int = 0, saved: dict[str, Any]
) -> np.ndarray:
    """The elements of x whose coordinate along ``axis`` is replaced by the index; shape of ``indices``.

    Raises:
        UserError: shapes that do not fit, or an index out of range.
    """
    saved["rows"] = element_positions("GatherElements", x.shape, indices, axis)
    return x.reshape(-1)[saved["rows"]].reshape(indices.shape)


@gather_elements.vjp
def gather_elements_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Cotangents of equal indices add up."""
    x = call.inputs[0]
    return scatter_sum(d.reshape(-1), call.saved["rows"], x.size, 0).reshape(x.shape), None


@rules.rule("GatherND", 11)
def gather_nd(
    x: np.ndarray, indices: np.ndarray, *, batch_dims: int = 0, saved: dict[str, Any]
) -> np.ndarray:
    """Slices of x at the index tuples in the last axis of ``indices``.

    Raises:
        UserError: shapes that do not fit, or an index out of range.
    """
    rows, leading = slice_positions("GatherND", x.shape, indices, batch_dims)
    saved.update(rows=rows, leading=leading)
    parts = x.reshape(math.prod(x.shape[:leading]), *x.shape[leading:])
    return parts[rows].reshape((*indices.shape[:-1], *x.shape[leading:]))


@gather_nd.vjp
def gather_nd_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Cotangents of equal index tuples add up."""
    x, rows, leading = call.inputs[0], call.saved["rows"], call.saved["leading"]
    parts = d.reshape(rows.size, *x.shape[leading:])
    return scatter_sum(parts, rows, math.prod(x.shape[:leading]), 0).reshape(x.shape), None
