"""Running sums and products along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import normal_axis, numeric, numeric_vjp
from meta500.backends.numpy.operators.generation import host_integer
from meta500.backends.rules import Call

Gradients = tuple[np.ndarray | None, ...]


def _shifted(x: np.ndarray, first: int) -> np.ndarray:
    """``x`` moved back by one along axis 0, with ``first`` in front; the last element falls out."""
    result = np.full_like(x, first)
    result[1:] = x[:-1]
    return result


def _cumulate(function: np.ufunc, x: np.ndarray, axis: int, reverse: int, exclusive: int) -> np.ndarray:
    moved = np.moveaxis(x, axis, 0)
    moved = moved[::-1] if reverse else moved
    if exclusive:
        moved = _shifted(moved, 1 if function is np.multiply else 0)
    result = function.accumulate(moved, axis=0, dtype=x.dtype)
    return np.ascontiguousarray(np.moveaxis(result[::-1] if reverse else result, 0, axis))


@rules.rule("CumSum", 11, host=("axis",))
@numeric
def cum_sum(
    x: np.ndarray, axis: Any, *, exclusive: int = 0, reverse: int = 0, saved: dict[str, Any]
) -> np.ndarray:
    """Sums of the elements up to each one along ``axis``; ``exclusive`` leaves it out, ``reverse`` goes back.

    Integers wrap around.
    """
    saved["axis"] = normal_axis(host_integer(axis, "CumSum", "axis"), x.ndim, "CumSum")
    return _cumulate(np.add, x, saved["axis"], reverse, exclusive)


@cum_sum.vjp
@numeric_vjp
def cum_sum_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The running sum in the other direction."""
    given = call.attributes
    reverse, exclusive = given.get("reverse", 0), given.get("exclusive", 0)
    return _cumulate(np.add, d, call.saved["axis"], not reverse, exclusive), None


@rules.rule("CumProd", 26, host=("axis",))
@numeric
def cum_prod(
    x: np.ndarray, axis: Any, *, exclusive: int = 0, reverse: int = 0, saved: dict[str, Any]
) -> np.ndarray:
    """Products of the elements up to each one along ``axis``; the options are those of CumSum."""
    saved["axis"] = normal_axis(host_integer(axis, "CumProd", "axis"), x.ndim, "CumProd")
    return _cumulate(np.multiply, x, saved["axis"], reverse, exclusive)


@cum_prod.vjp
@numeric_vjp
def cum_prod_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Exact also where elements are zero, since nothing is divided.

    With P_k the product before element k and S_k = d_k + x_(k+1) S_(k+1), the gradient is P_k S_k.
    """
    given, axis = call.attributes, call.saved["axis"]
    x, d = np.moveaxis(call.inputs[0], axis, 0), np.moveaxis(d, axis, 0)
    if given.get("reverse", 0):
        x, d = x[::-1], d[::-1]
    if given.get("exclusive", 0):
        d = _shifted(d[::-1], 0)[::-1]
    suffix = np.array(d)
    for k in reversed(range(x.shape[0] - 1)):
        suffix[k] += x[k + 1] * suffix[k + 1]
    result = np.multiply.accumulate(_shifted(x, 1), axis=0) * suffix
    if given.get("reverse", 0):
        result = result[::-1]
    return np.ascontiguousarray(np.moveaxis(result, 0, axis)), None
