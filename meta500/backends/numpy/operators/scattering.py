"""ScatterElements, ScatterND and their relatives: a copy of a tensor with updates at given places.

All work on a matrix with one row per place: the data, its rows that are updated, and the updates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import normal_axis, numeric, numeric_vjp
from meta500.backends.numpy.operators.gathering import element_positions, slice_positions
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Gradients = tuple[np.ndarray | None, ...]

_COMBINE: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def check_reduction(operator: str, reduction: str, since_version: int) -> None:
    """Whether the operator has ``reduction`` in this version.

    Raises:
        UserError: it has not.
    """
    known = ("none", "add", "mul", "max", "min") if since_version >= 18 else ("none", "add", "mul")
    choose(f"{operator} reduction (version {since_version})", reduction, known)


def _scatter(data: np.ndarray, rows: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """``data`` (N, S), ``updates`` (M, S) put or combined into ``rows`` (M); of equal rows the last stays."""
    result = data.copy()
    if reduction == "none":
        result[rows] = updates
    elif data.dtype.kind in "OV" or (data.dtype.kind == "c" and reduction in ("max", "min")):
        raise UserError(f"reduction '{reduction}' is not defined for elements of type {data.dtype}")
    else:
        _COMBINE[reduction].at(result, rows, updates)
    return result


def _winners(rows: np.ndarray, count: int) -> np.ndarray:
    """For each of ``count`` rows the index of the update that stays, or -1."""
    last = np.full(count, -1)
    last[rows] = np.arange(rows.size)
    return last


def _scatter_gradients(
    data: np.ndarray,
    rows: np.ndarray,
    updates: np.ndarray,
    result: np.ndarray,
    d: np.ndarray,
    reduction: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of data and updates, all as in ``_scatter``; equal extremes share theirs equally."""
    if reduction == "add":
        return d, d[rows]
    if reduction == "none":
        last = _winners(rows, data.shape[0])
        d_updates = np.zeros_like(updates)
        d_updates[last[last >= 0]] = d[last >= 0]
        return np.where((last >= 0)[:, None], np.zeros((), d.dtype), d), d_updates
    if reduction == "mul":
        zeros = (data == 0).astype(np.int64)
        np.add.at(zeros, rows, updates == 0)
        product = np.where(data == 0, 1, data)
        np.multiply.at(product, rows, np.where(updates == 0, 1, updates))

        def of_others(x: np.ndarray, zeros: np.ndarray, product: np.ndarray) -> np.ndarray:
            """The product of all factors of a place but x: quotients are of no use where x is 0."""
            plain = np.where(zeros == 0, product / np.where(x == 0, 1, x), 0)
            return np.where((x == 0) & (zeros == 1), product, plain)

        return (
            d * of_others(data, zeros, product),
            d[rows] * of_others(updates, zeros[rows], product[rows]),
        )
    kept = data == result
    chosen = updates == result[rows]
    ties = kept.astype(np.int64)
    np.add.at(ties, rows, chosen)
    share = d / np.maximum(ties, 1)
    return np.where(kept, share, 0), np.where(chosen, share[rows], 0)


@numeric
def _scatter_elements(
    data: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    *,
    operator: str,
    axis: int,
    reduction: str,
    saved: dict[str, Any],
) -> np.ndarray:
    if indices.shape != updates.shape:
        raise UserError(
            f"{operator}: indices {indices.shape} and updates {updates.shape} should have one shape"
        )
    rows = element_positions(operator, data.shape, indices, axis)
    saved.update(rows=rows, columns=1)
    return _scatter(data.reshape(-1, 1), rows, updates.reshape(-1, 1), reduction).reshape(data.shape)


@rules.rule("ScatterElements", 11)
def scatter_elements(
    data: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    *,
    axis: int = 0,
    reduction: str = "none",
    since_version: int,
    saved: dict[str, Any],
) -> np.ndarray:
    """A copy of ``data``, each update at its own coordinates but for ``axis``, where the index stands.

    ``reduction`` combines updates with what is there ('add', 'mul', from version 18 'max', 'min'). With
    'none' the last of several updates of one place (row-major order) stays, which ONNX leaves open.

    Raises:
        UserError: shapes that do not fit, an index out of range, or an unknown reduction.
    """
    check_reduction("ScatterElements", reduction, since_version)
    return _scatter_elements(
        data, indices, updates, operator="ScatterElements", axis=axis, reduction=reduction, saved=saved
    )


@rules.rule("Scatter", 9)
def scatter(
    data: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    *,
    axis: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """The older name of ScatterElements without reduction."""
    return _scatter_elements(
        data, indices, updates, operator="Scatter", axis=axis, reduction="none", saved=saved
    )


@rules.rule("ScatterND", 11)
@numeric
def scatter_nd(
    data: np.ndarray,
    indices: np.ndarray,
    updates: np.ndarray,
    *,
    reduction: str = "none",
    since_version: int,
    saved: dict[str, Any],
) -> np.ndarray:
    """A copy of ``data`` with slices at the index tuples in the last axis of ``indices`` updated.

    Reductions and repeated places are as in ``scatter_elements``.

    Raises:
        UserError: shapes that do not fit, an index out of range, or an unknown reduction.
    """
    check_reduction("ScatterND", reduction, since_version)
    rows, leading = slice_positions("ScatterND", data.shape, indices)
    wanted = (*indices.shape[:-1], *data.shape[leading:])
    if updates.shape != wanted:
        raise UserError(f"ScatterND: updates have shape {updates.shape}, they should have {wanted}")
    columns = math.prod(data.shape[leading:])
    saved.update(rows=rows, columns=columns)
    places = data.reshape(math.prod(data.shape[:leading]), columns)
    return _scatter(places, rows, updates.reshape(rows.size, columns), reduction).reshape(data.shape)


@scatter_elements.vjp
@scatter.vjp
@scatter_nd.vjp
@numeric_vjp
def scatter_vjp(call: Call, d: np.ndarray) -> Gradients:
    """To data and updates, each where it reached the result."""
    data, _, updates = call.inputs
    rows, columns = call.saved["rows"], call.saved["columns"]
    count = data.size // columns if columns else 0
    if data.size == 0:
        return np.zeros_like(data), None, np.zeros_like(updates)
    d_data, d_updates = _scatter_gradients(
        data.reshape(count, columns),
        rows,
        updates.reshape(rows.size, columns),
        call.outputs[0].reshape(count, columns),
        d.reshape(count, columns),
        call.attributes.get("reduction", "none"),
    )
    return d_data.reshape(data.shape), None, d_updates.reshape(updates.shape)


@rules.rule("TensorScatter", 24)
def tensor_scatter(
    past: np.ndarray,
    update: np.ndarray,
    write_indices: np.ndarray | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
    saved: dict[str, Any],
) -> np.ndarray:
    """A copy of ``past``, ``update`` written along ``axis`` from each sample's write index on (0 without).

    ``mode`` 'circular' wraps positions around; 'linear' needs them to fit.

    Raises:
        UserError: shapes that do not fit, or a write index out of range.
    """
    choose("TensorScatter mode", mode, ("linear", "circular"))
    place = normal_axis(axis, past.ndim, "TensorScatter")
    length, size = update.shape[place] if update.ndim == past.ndim else -1, past.shape[place]
    beside = past.shape[:place] + past.shape[place + 1 :]
    if place == 0 or update.shape[:place] + update.shape[place + 1 :] != beside or length > size:
        raise UserError(
            f"TensorScatter: an update of shape {update.shape} does not fit a cache of shape {past.shape} "
            f"along axis {axis} (not 0)"
        )
    batch = past.shape[0]
    starts = np.zeros(batch, np.int64) if write_indices is None else write_indices
    if starts.shape != (batch,):
        raise UserError(
            f"TensorScatter: write_indices have shape {starts.shape}, they should have {(batch,)}"
        )
    if np.any(starts < 0) or (mode == "linear" and np.any(starts + length > size)):
        raise UserError(
            f"TensorScatter: write indices {starts.tolist()} with {length} positions leave [0, {size})"
        )
    positions = (starts[:, None] + np.arange(length)) % max(size, 1)
    index = (np.arange(batch)[:, None], positions)
    saved.update(axis=place, index=index)
    result = past.copy()
    np.moveaxis(result, place, 1)[index] = np.moveaxis(update, place, 1)
    return result


@tensor_scatter.vjp
def tensor_scatter_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent where each input was used."""
    place, index = call.saved["axis"], call.saved["index"]
    d_past = d.copy()
    moved = np.moveaxis(d_past, place, 1)
    d_update = np.ascontiguousarray(np.moveaxis(moved[index], 1, place))
    moved[index] = 0
    return (d_past, d_update, None)[: len(call.inputs)]
