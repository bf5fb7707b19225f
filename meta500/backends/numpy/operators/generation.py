"""Tensors made from a few numbers: ranges, identity matrices, one-hot vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import as_list, is_floating, normal_axis
from meta500.backends.rules import Call
from meta500.errors import UserError
from meta500.graph.types import dtype_from_onnx

Gradients = tuple[np.ndarray | None, ...]

_STASH = {1: np.float32, 10: np.float16, 11: np.float64}


def _scalar(value: np.ndarray, name: str) -> np.ndarray:
    if value.size != 1:
        raise UserError(f"Range: {name} has shape {value.shape}, it should be a scalar")
    return value.reshape(())


@rules.rule("Range", 11)
def range_(
    start: np.ndarray, limit: np.ndarray, delta: np.ndarray, *, stash_type: int = 1, saved: dict[str, Any]
) -> np.ndarray:
    """``start + i * delta`` for i from 0 up to ``max(ceil((limit - start) / delta), 0)``, exclusive.

    Integers are exact. float16 and bfloat16 are computed in the float type with number ``stash_type``
    (float32 unless given) and rounded once.

    Raises:
        UserError: delta is 0, an input is no scalar, or the number of elements is not finite.
    """
    dtype = start.dtype
    first, last, step = (_scalar(v, n) for v, n in ((start, "start"), (limit, "limit"), (delta, "delta")))
    if step == 0:
        raise UserError("Range: delta is 0")
    if not is_floating(dtype):
        a, b, c = int(first), int(last), int(step)
        count = max(-((a - b) // c), 0)
        saved["count"] = count
        return np.asarray(a + np.arange(count, dtype=np.int64) * c, dtype)
    if dtype.itemsize == 2:
        if stash_type not in _STASH:
            raise UserError(
                f"Range: stash_type {stash_type} should be 1 (float), 10 (float16) or 11 (double)"
            )
        first, last, step = (v.astype(_STASH[stash_type]) for v in (first, last, step))
    with np.errstate(all="ignore"):
        exact = np.ceil((last - first) / step)
        if not np.isfinite(exact):
            raise UserError(f"Range: from {first} to {last} by {step} has no finite number of elements")
        count = max(int(exact), 0)
        saved["count"] = count
        values = first + np.arange(count, dtype=np.int64).astype(first.dtype) * step
    return np.asarray(values, dtype)


@range_.vjp
def range_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The number of elements, hence ``limit``, has derivative zero."""
    start, limit, delta = call.inputs
    if not is_floating(start.dtype):
        return None, None, None
    wide = d.astype(np.float32) if d.dtype.itemsize == 2 else d
    index = np.arange(call.saved["count"]).astype(wide.dtype)
    return (
        np.asarray(wide.sum(), start.dtype).reshape(start.shape),
        np.zeros(limit.shape, limit.dtype),
        np.asarray((wide * index).sum(), delta.dtype).reshape(delta.shape),
    )


@rules.rule("EyeLike", 9)
def eye_like(x: np.ndarray, *, dtype: int | None = None, k: int = 0) -> np.ndarray:
    """Ones on diagonal ``k`` of a matrix of the shape of x, else zeros; no values of x enter.

    Raises:
        UserError: x is no matrix, or ``dtype`` is no element type of numbers.
    """
    if x.ndim != 2:
        raise UserError(f"EyeLike: the input has shape {x.shape}, it should be a matrix")
    target = x.dtype if dtype is None else dtype_from_onnx(dtype)
    if target is None or target.kind == "O":
        raise UserError(f"EyeLike: element type {dtype} is no type of numbers")
    rows, columns = x.shape
    return (np.arange(columns) - np.arange(rows)[:, None] == k).astype(target)


@eye_like.vjp
def eye_like_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Zero: only the shape of x enters."""
    x = call.inputs[0]
    return (np.zeros(x.shape, x.dtype) if is_floating(x.dtype) else None,)


def host_integer(value: Any, operator: str, name: str) -> int:
    """A host input (number or list of one number), truncated to an integer as a cast to int64 does.

    Raises:
        UserError: not exactly one finite number.
    """
    listed = as_list(value)
    if len(listed) != 1 or isinstance(listed[0], list | tuple) or not math.isfinite(listed[0]):
        raise UserError(f"{operator}: {name} is {value}, it should be a single finite number")
    return int(listed[0])


@rules.rule("OneHot", 9, host=("depth",))
def one_hot(
    indices: np.ndarray, depth: Any, values: np.ndarray, *, axis: int = -1, saved: dict[str, Any]
) -> np.ndarray:
    """``values[1]`` at the indices along a new axis of size ``depth``, ``values[0]`` elsewhere.

    Negative indices count from the end; those outside [-depth, depth - 1] leave only ``values[0]``.
    Indices that are floats are truncated.

    Raises:
        UserError: a depth below 0, or not two values.
    """
    size = host_integer(depth, "OneHot", "depth")
    if size < 0 or values.shape != (2,):
        raise UserError(
            f"OneHot: depth {size} should be at least 0 and the values (shape {values.shape}) two in number"
        )
    place = normal_axis(axis, indices.ndim + 1, "OneHot")
    if indices.dtype.kind == "u":
        inside = indices < size
    else:
        inside = (indices > -size - 1) & (indices < size)
    index = np.where(inside, indices, 0).astype(np.int64)
    index = np.where(inside, np.where(index < 0, index + size, index), size)
    steps = np.arange(size).reshape((-1,) + (1,) * (indices.ndim - place))
    hot = np.expand_dims(index, place) == steps
    saved["hot"] = hot
    return np.where(hot, values[1], values[0]).astype(values.dtype, copy=False)


@one_hot.vjp
def one_hot_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent summed over the two kinds of places."""
    values, hot = call.inputs[2], call.saved["hot"]
    if not is_floating(values.dtype):
        return None, None, None
    wide = d.astype(np.float32) if d.dtype.itemsize == 2 else d
    return None, None, np.array([wide[~hot].sum(), wide[hot].sum()]).astype(values.dtype)
