"""Operators whose choice of elements depends on values: TopK, Unique, Compress, NonZero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import as_list, normal_axis, scatter_sum
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


def _sortable(x: np.ndarray) -> np.ndarray:
    """Values in the same order, of a type that numpy sorts."""
    if x.dtype.kind == "V":
        return x.astype(np.float32)
    return x.astype(str) if x.dtype.kind == "O" else x


def _top_k(
    x: np.ndarray, k: int, axis: int, largest: int, saved: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    place = normal_axis(axis, x.ndim, "TopK")
    size = x.shape[place]
    if not 0 <= k <= size:
        raise UserError(
            f"TopK: k is {k}, it should be from 0 to {size}, the size of axis {axis} of {x.shape}"
        )
    key = _sortable(x)
    if largest:
        # Sorting stably from the back and turning the result around leaves equal values in order.
        order = size - 1 - np.argsort(np.flip(key, place), axis=place, kind="stable")
        order = np.flip(order, place)
    else:
        order = np.argsort(key, axis=place, kind="stable")
    index = np.ascontiguousarray(np.take(order, np.arange(k), axis=place)).astype(np.int64)
    saved.update(axis=place, index=index)
    return np.take_along_axis(x, index, axis=place), index


@rules.rule("TopK", 10, host=("k",))
def top_k(
    x: np.ndarray,
    k: Any,
    *,
    axis: int = -1,
    largest: int = 1,
    sorted: int = 1,
    saved: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """The ``k`` largest (or smallest) values along ``axis`` in order, and their indices (int64).

    Of equal values those of lower index come first, also where ``sorted`` is 0. NaN counts as the largest.

    Raises:
        UserError: k is no single number from 0 to the size of the axis.
    """
    listed = as_list(k)
    if len(listed) != 1:
        raise UserError(f"TopK: k is {k}, it should be a single number")
    return _top_k(x, int(listed[0]), axis, largest, saved)


@rules.rule("TopK", 1)
def top_k_attribute(
    x: np.ndarray, *, axis: int = -1, k: int, saved: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Version 1: ``k`` is an attribute; the largest in order."""
    return _top_k(x, k, axis, 1, saved)


@top_k.vjp
@top_k_attribute.vjp
def top_k_vjp(call: Call, d: np.ndarray | None, d_indices: Any = None) -> Gradients:
    """The cotangents in the places that the values came from."""
    x = call.inputs[0]
    d_x = np.zeros(x.shape, x.dtype)
    if d is not None:
        np.put_along_axis(d_x, call.saved["index"], d, axis=call.saved["axis"])
    return (d_x, *(None,) * (len(call.inputs) - 1))


@rules.rule("Unique", 11)
def unique(
    x: np.ndarray, *, axis: int | None = None, sorted: int = 1, saved: dict[str, Any]
) -> tuple[np.ndarray, ...]:
    """Unique elements (or slices along ``axis``), first occurrences, inverse, and counts (int64).

    In ascending order (of slices: the lexicographic one), or with ``sorted`` 0 in that of first occurrence.
    NaN equals NaN and comes last. Along an axis, the derivative is that of picking the first occurrences.
    """
    place = 0 if axis is None else normal_axis(axis, x.ndim, "Unique")
    slices = x.reshape(-1, 1)
    if axis is not None:
        others = math.prod(x.shape[:place] + x.shape[place + 1 :])
        slices = np.moveaxis(x, place, 0).reshape(x.shape[place], others)
    # Ranks stand for the values: integers of which numpy can compare whole rows.
    ranks = np.unique(_sortable(slices).ravel(), return_inverse=True)[1].reshape(slices.shape)
    if slices.shape[1] == 0:
        ranks = np.zeros((slices.shape[0], 1), np.int64)
    _, first, inverse, counts = np.unique(
        ranks, axis=0, return_index=True, return_inverse=True, return_counts=True
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    saved.update(axis=None if axis is None else place, first=first)
    values = x.reshape(-1)[first] if axis is None else np.take(x, first, axis=place)
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@unique.vjp
def unique_vjp(call: Call, d: np.ndarray | None, *_: Any) -> Gradients:
    """To the first occurrences."""
    x, axis, first = call.inputs[0], call.saved["axis"], call.saved["first"]
    if d is None:
        return (np.zeros(x.shape, x.dtype),)
    if axis is None:
        return (scatter_sum(d, first, x.size, 0).reshape(x.shape),)
    return (scatter_sum(d, first, x.shape[axis], axis),)


@rules.rule("Compress", 9)
def compress(
    x: np.ndarray, condition: np.ndarray, *, axis: int | None = None, saved: dict[str, Any]
) -> np.ndarray:
    """Slices along ``axis`` (elements of the flattened x without it) where the bool ``condition`` holds.

    The condition may be shorter than the axis.

    Raises:
        UserError: the condition is no vector or longer than the axis.
    """
    place = 0 if axis is None else normal_axis(axis, x.ndim, "Compress")
    source = x.reshape(-1) if axis is None else x
    if condition.ndim != 1 or condition.size > source.shape[place]:
        raise UserError(
            f"Compress: condition of shape {condition.shape} should be a vector of at most "
            f"{source.shape[place]} elements"
        )
    saved.update(axis=place, index=np.flatnonzero(condition), flat=source.shape)
    return np.take(source, saved["index"], axis=place)


@compress.vjp
def compress_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent in its places among zeros."""
    d_x = np.zeros(call.saved["flat"], d.dtype)
    d_x[(slice(None),) * call.saved["axis"] + (call.saved["index"],)] = d
    return d_x.reshape(call.inputs[0].shape), None


@rules.rule("NonZero", 9)
def non_zero(x: np.ndarray) -> np.ndarray:
    """Indices of the non-zero elements in row-major order: int64, shape (rank, count)."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), np.int64)
    return np.array(np.nonzero(x), np.int64)
