"""Reductions over axes, and the positions of extreme values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import (
    as_list,
    is_floating,
    normal_axes,
    normal_axis,
    numeric,
    numeric_vjp,
)
from meta500.backends.rules import Call
from meta500.errors import UserError

Axes = tuple[int, ...]


def _in_float(function: Callable[[np.ndarray, Axes], np.ndarray]) -> Callable[[np.ndarray, Axes], np.ndarray]:
    """A root or logarithm of integers: computed in float64, cut toward zero."""

    def run(x: np.ndarray, axes: Axes) -> np.ndarray:
        if is_floating(x.dtype):
            return function(x, axes)
        result = function(x.astype(np.float64), axes)
        if not np.all(np.isfinite(result)):
            raise UserError(f"a reduction of {x.dtype} is not finite and has no {x.dtype} result")
        return result.astype(x.dtype)

    return run


def _sum(x: np.ndarray, axes: Axes) -> np.ndarray:
    return x.sum(axis=axes, keepdims=True, dtype=x.dtype)


def _mean(x: np.ndarray, axes: Axes) -> np.ndarray:
    count = math.prod(x.shape[axis] for axis in axes)
    if is_floating(x.dtype):
        return x.mean(axis=axes, keepdims=True) if count else _sum(x, axes) * np.nan
    if count == 0:
        raise UserError(f"ReduceMean: the mean of no {x.dtype} elements (shape {x.shape}) is undefined")
    total = x.sum(axis=axes, keepdims=True)
    return (np.sign(total) * (abs(total) // count)).astype(x.dtype)


def _extremes(dtype: np.dtype) -> tuple[Any, Any]:
    """The lowest and highest value: what the maximum and minimum of nothing are."""
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _max(x: np.ndarray, axes: Axes) -> np.ndarray:
    if x.size == 0:
        return np.max(x, axis=axes, keepdims=True, initial=_extremes(x.dtype)[0])
    return np.max(x, axis=axes, keepdims=True)


def _min(x: np.ndarray, axes: Axes) -> np.ndarray:
    if x.size == 0:
        return np.min(x, axis=axes, keepdims=True, initial=_extremes(x.dtype)[1])
    return np.min(x, axis=axes, keepdims=True)


def _prod(x: np.ndarray, axes: Axes) -> np.ndarray:
    return x.prod(axis=axes, keepdims=True, dtype=x.dtype)


def _log_sum_exp(x: np.ndarray, axes: Axes) -> np.ndarray:
    top = _max(x, axes)
    shift = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(x - shift).sum(axis=axes, keepdims=True)) + shift


def _extreme_gradient(d: np.ndarray, x: np.ndarray, y: np.ndarray, axes: Axes) -> np.ndarray:
    """Elements that tie for the extreme value share its cotangent in equal parts."""
    hits = x == y
    return np.where(hits, d / hits.sum(axis=axes, keepdims=True).astype(d.dtype), 0)


def _prod_gradient(d: np.ndarray, x: np.ndarray, y: np.ndarray, axes: Axes) -> np.ndarray:
    """Product of the other elements, also where one of them is zero."""
    zero = x == 0
    others = np.where(zero, 1, x)
    product = others.prod(axis=axes, keepdims=True)
    zeros = zero.sum(axis=axes, keepdims=True)
    at_zero = np.where(zeros == 1, product, 0)
    return d * np.where(zero, at_zero, np.where(zeros == 0, product / others, 0))


Forward = Callable[[np.ndarray, Axes], np.ndarray]
Gradient = Callable[[np.ndarray, np.ndarray, np.ndarray, Axes], np.ndarray]

_REDUCTIONS: tuple[tuple[str, int, Forward, Gradient], ...] = (
    # operator, first version with axes as input, y(x, axes), gradient(d, x, y, axes); y and d keep the axes
    ("ReduceSum", 13, _sum, lambda d, x, y, axes: np.broadcast_to(d, x.shape)),
    ("ReduceMean", 18, _mean, lambda d, x, y, axes: np.broadcast_to(d * (y.size / max(x.size, 1)), x.shape)),
    ("ReduceMax", 18, _max, _extreme_gradient),
    ("ReduceMin", 18, _min, _extreme_gradient),
    ("ReduceProd", 18, _prod, _prod_gradient),
    ("ReduceL1", 18, lambda x, axes: _sum(np.abs(x), axes), lambda d, x, y, axes: d * np.sign(x)),
    ("ReduceL2", 18, _in_float(lambda x, axes: np.sqrt(_sum(x * x, axes))),
     lambda d, x, y, axes: d * x / np.where(y == 0, 1, y)),
    ("ReduceLogSum", 18, _in_float(lambda x, axes: np.log(_sum(x, axes))),
     lambda d, x, y, axes: np.broadcast_to(d / _sum(x, axes), x.shape)),
    ("ReduceLogSumExp", 18, _in_float(_log_sum_exp),
     lambda d, x, y, axes: d * np.exp(x - np.where(np.isfinite(y), y, 0))),
    ("ReduceSumSquare", 18, lambda x, axes: _sum(x * x, axes), lambda d, x, y, axes: 2 * d * x),
)  # fmt: skip


def _register_reduction(operator: str, since: int, function: Forward, gradient: Gradient) -> None:
    def reduced(
        x: np.ndarray, axes: Sequence[int] | int | None, keep: int, noop: int, saved: dict[str, Any]
    ) -> np.ndarray:
        listed = [] if axes is None else as_list(axes)
        if listed:
            normal = normal_axes(listed, x.ndim, operator)
        else:
            normal = () if noop else tuple(range(x.ndim))
        y = function(x, normal)
        saved.update(axes=normal, kept=y.shape)
        return y if keep else y.squeeze(axis=normal)

    def by_attribute(
        x: np.ndarray,
        *,
        axes: tuple[int, ...] | None = None,
        keepdims: int = 1,
        saved: dict[str, Any],
    ) -> np.ndarray:
        return reduced(x, axes, keepdims, 0, saved)

    def by_input(
        x: np.ndarray,
        axes: list[int] | int | None = None,
        *,
        keepdims: int = 1,
        noop_with_empty_axes: int = 0,
        saved: dict[str, Any],
    ) -> np.ndarray:
        return reduced(x, axes, keepdims, noop_with_empty_axes, saved)

    def backward(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
        x, kept = call.inputs[0], call.saved["kept"]
        d_x = gradient(d.reshape(kept), x, call.outputs[0].reshape(kept), call.saved["axes"])
        # Elementwise where the set of axes is empty; a copy, since broadcast views cannot be written.
        return (np.array(d_x), None)[: len(call.inputs)]

    by_attribute.__name__ = f"{operator.lower()}_by_attribute"
    by_attribute.__doc__ = f"{operator} with the axes as attribute; without axes over all."
    by_input.__name__ = operator.lower()
    by_input.__doc__ = (
        f"{operator} with the axes as input; without axes over all, or over none with "
        f"``noop_with_empty_axes``."
    )
    rules.rule(operator, 1)(numeric(by_attribute)).vjp(numeric_vjp(backward))
    rules.rule(operator, since, host=("axes",))(numeric(by_input)).vjp(numeric_vjp(backward))


for _reduction in _REDUCTIONS:
    _register_reduction(*_reduction)


def _register_position(operator: str, function: Callable[..., np.ndarray]) -> None:
    def position(
        x: np.ndarray, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> np.ndarray:
        place = normal_axis(axis, x.ndim, operator)
        if x.shape[place] == 0:
            raise UserError(f"{operator}: axis {axis} of shape {x.shape} is empty")
        if select_last_index:
            found = x.shape[place] - 1 - function(np.flip(x, place), axis=place, keepdims=True)
        else:
            found = function(x, axis=place, keepdims=True)
        found = np.asarray(found, np.int64)
        return found if keepdims else found.squeeze(axis=place)

    position.__name__ = operator.lower()
    position.__doc__ = f"ONNX {operator}: int64 index along one axis; of equal ones the first, or the last."
    rules.rule(operator)(numeric(position))


_register_position("ArgMax", np.argmax)
_register_position("ArgMin", np.argmin)
