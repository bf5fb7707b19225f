"""Reductions over axes. Axes are attributes up to version 13 (ReduceSum: 11), inputs after.

No axes means all of them, or none with ``noop_with_empty_axes``: then the function of each single element
remains (the logarithm in ReduceLogSum, the square in ReduceSumSquare). Results keep the input's dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.integers import (
    UNSIGNED,
    as_signed,
    as_type,
    from_ordered,
    ordered,
)
from meta500.backends.torch.operators.literals import several
from meta500.errors import UserError

Ints = tuple[int, ...]


def _dims(operator: str, x: Tensor, axes: int | Ints | None, noop: int = 0) -> Ints | None:
    """Axes to reduce, none of them negative; None if nothing is reduced."""
    chosen = () if axes is None else several(axes)
    if not chosen:
        return None if noop else tuple(range(x.ndim))
    if any(not -x.ndim <= a < x.ndim for a in chosen):
        raise UserError(f"{operator}: axes {tuple(chosen)} are not all among the {x.ndim} axes of the input")
    normal = {a % x.ndim for a in chosen}
    if len(normal) != len(chosen):
        raise UserError(f"{operator}: axes {tuple(chosen)} name a dimension twice (rank {x.ndim})")
    return tuple(sorted(normal))


def _kept(x: Tensor, dims: Ints, keepdims: int) -> list[int]:
    """Shape of the result."""
    if keepdims:
        return [1 if axis in dims else n for axis, n in enumerate(x.shape)]
    return [n for axis, n in enumerate(x.shape) if axis not in dims]


def _sum(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    if dims is None:
        return x
    if x.dtype in UNSIGNED:
        return as_type(_sum(as_signed(x), dims, keepdims), x.dtype)
    return torch.sum(x, dims, keepdim=bool(keepdims), dtype=x.dtype)


def _mean(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    if dims is None:
        return x
    if x.is_floating_point():
        return torch.mean(x, dims, keepdim=bool(keepdims))
    if x.dtype is torch.uint64:
        raise UserError("ReduceMean: torch cannot average uint64; cast the input to int64 or a float type")
    count = 1
    for axis in dims:
        count *= x.shape[axis]
    if count == 0:
        raise UserError("ReduceMean: the mean of no integers is undefined")
    total = torch.sum(x.to(torch.int64), dims, keepdim=bool(keepdims))
    return torch.div(total, count, rounding_mode="trunc").to(x.dtype)


def _extremum(x: Tensor, dims: Ints | None, keepdims: int, largest: bool) -> Tensor:
    if dims is None:
        return x
    if any(x.shape[axis] == 0 for axis in dims):
        return torch.full(
            _kept(x, dims, keepdims), _bound(x.dtype, not largest), dtype=x.dtype, device=x.device
        )
    function = torch.amax if largest else torch.amin
    return from_ordered(function(ordered(x), dims, keepdim=bool(keepdims)), x.dtype)


def _bound(dtype: torch.dtype, largest: bool) -> float | int | bool:
    """The largest or smallest value of a dtype, infinite for floats."""
    if dtype is torch.bool:
        return largest
    if dtype.is_floating_point:
        return float("inf") if largest else float("-inf")
    return torch.iinfo(dtype).max if largest else torch.iinfo(dtype).min


def _prod(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    if dims is None:
        return x
    y = as_signed(x)
    for axis in reversed(dims):
        y = torch.prod(y, axis, keepdim=bool(keepdims), dtype=y.dtype)
    return as_type(y, x.dtype)


def _l1(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    return _sum(x if x.dtype in UNSIGNED else torch.abs(x), dims, keepdims)


def _l2(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    if dims is None:
        return x if x.dtype in UNSIGNED else torch.abs(x)
    if x.is_floating_point():
        return torch.linalg.vector_norm(x, 2, dims, keepdim=bool(keepdims))
    if x.dtype is torch.uint64:
        raise UserError("ReduceL2: torch cannot take the root of uint64; cast the input to a float type")
    square = _sum(x.to(torch.int64) ** 2, dims, keepdims)
    # The whole part of the root: float64 may round it up by one.
    root = torch.sqrt(square.to(torch.float64)).to(torch.int64)
    return (root - (root * root > square).to(torch.int64)).to(x.dtype)


def _require_floats(operator: str, x: Tensor) -> None:
    if not x.is_floating_point():
        raise UserError(f"{operator}: {x.dtype} has no logarithm; cast the input to a float type first")


def _log_sum(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    _require_floats("ReduceLogSum", x)
    return torch.log(_sum(x, dims, keepdims))


def _log_sum_exp(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    _require_floats("ReduceLogSumExp", x)
    return x if dims is None else torch.logsumexp(x, dims, keepdim=bool(keepdims))


def _sum_square(x: Tensor, dims: Ints | None, keepdims: int) -> Tensor:
    if x.dtype in UNSIGNED:
        return as_type(_sum_square(as_signed(x), dims, keepdims), x.dtype)
    return _sum(x * x, dims, keepdims)


def _of_integers(op: Any, types: Mapping[str, Any]) -> str:
    kind = types.get(op.operands[0])
    whole = kind is not None and kind.dtype is not None and kind.dtype.kind in "iu"
    return "torch has no logarithm of integers" if whole else ""


def _of_uint64(op: Any, types: Mapping[str, Any]) -> str:
    kind = types.get(op.operands[0])
    return "torch hardly computes with uint64" if kind is not None and kind.dtype == np.uint64 else ""


@rules.rule("ReduceMean", since=1)
def reduce_mean_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceMean-1 to -13."""
    return _mean(x, _dims("ReduceMean", x, axes), keepdims)


@rules.rule("ReduceMean", since=18, host=("axes",))
def reduce_mean(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceMean; integers are rounded toward zero, the mean of nothing is NaN."""
    return _mean(x, _dims("ReduceMean", x, axes, noop_with_empty_axes), keepdims)


@rules.rule("ReduceSum", since=1)
def reduce_sum_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceSum-1 and -11."""
    return _sum(x, _dims("ReduceSum", x, axes), keepdims)


@rules.rule("ReduceSum", since=13, host=("axes",))
def reduce_sum(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceSum; the sum of nothing is 0."""
    return _sum(x, _dims("ReduceSum", x, axes, noop_with_empty_axes), keepdims)


@rules.rule("ReduceMax", since=1)
def reduce_max_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceMax-1 to -13."""
    return _extremum(x, _dims("ReduceMax", x, axes), keepdims, largest=True)


@rules.rule("ReduceMax", since=18, host=("axes",))
def reduce_max(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceMax; of nothing it is the smallest value of the dtype. Ties share the gradient."""
    return _extremum(x, _dims("ReduceMax", x, axes, noop_with_empty_axes), keepdims, largest=True)


@rules.rule("ReduceMin", since=1)
def reduce_min_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceMin-1 to -13."""
    return _extremum(x, _dims("ReduceMin", x, axes), keepdims, largest=False)


@rules.rule("ReduceMin", since=18, host=("axes",))
def reduce_min(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceMin; of nothing it is the largest value of the dtype. Ties share the gradient."""
    return _extremum(x, _dims("ReduceMin", x, axes, noop_with_empty_axes), keepdims, largest=False)


@rules.rule("ReduceProd", since=1)
def reduce_prod_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceProd-1 to -13."""
    return _prod(x, _dims("ReduceProd", x, axes), keepdims)


@rules.rule("ReduceProd", since=18, host=("axes",))
def reduce_prod(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceProd; the product of nothing is 1."""
    return _prod(x, _dims("ReduceProd", x, axes, noop_with_empty_axes), keepdims)


@rules.rule("ReduceL1", since=1)
def reduce_l1_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceL1-1 to -13."""
    return _l1(x, _dims("ReduceL1", x, axes), keepdims)


@rules.rule("ReduceL1", since=18, host=("axes",))
def reduce_l1(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceL1: the sum of magnitudes."""
    return _l1(x, _dims("ReduceL1", x, axes, noop_with_empty_axes), keepdims)


@rules.rule("ReduceL2", since=1)
def reduce_l2_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceL2-1 to -13."""
    return _l2(x, _dims("ReduceL2", x, axes), keepdims)


@rules.rule("ReduceL2", since=18, host=("axes",))
def reduce_l2(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceL2: the root of the summed squares, with gradient 0 at 0; integers get its whole part."""
    return _l2(x, _dims("ReduceL2", x, axes, noop_with_empty_axes), keepdims)


@rules.rule("ReduceLogSum", since=1)
def reduce_log_sum_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceLogSum-1 to -13."""
    return _log_sum(x, _dims("ReduceLogSum", x, axes), keepdims)


@rules.rule("ReduceLogSum", since=18, host=("axes",))
def reduce_log_sum(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceLogSum: the logarithm of the sum; integers run on the host."""
    return _log_sum(x, _dims("ReduceLogSum", x, axes, noop_with_empty_axes), keepdims)


@rules.rule("ReduceLogSumExp", since=1)
def reduce_log_sum_exp_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceLogSumExp-1 to -13."""
    return _log_sum_exp(x, _dims("ReduceLogSumExp", x, axes), keepdims)


@rules.rule("ReduceLogSumExp", since=18, host=("axes",))
def reduce_log_sum_exp(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceLogSumExp: ``log(sum(exp(x)))`` without overflow; integers run on the host."""
    return _log_sum_exp(x, _dims("ReduceLogSumExp", x, axes, noop_with_empty_axes), keepdims)


@rules.rule("ReduceSumSquare", since=1)
def reduce_sum_square_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
    """ONNX ReduceSumSquare-1 to -13."""
    return _sum_square(x, _dims("ReduceSumSquare", x, axes), keepdims)


@rules.rule("ReduceSumSquare", since=18, host=("axes",))
def reduce_sum_square(
    x: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Tensor:
    """ONNX ReduceSumSquare: the sum of squares."""
    return _sum_square(x, _dims("ReduceSumSquare", x, axes, noop_with_empty_axes), keepdims)


# What torch lacks runs on numpy where the types are known beforehand.
for _rule in (reduce_log_sum_1, reduce_log_sum, reduce_log_sum_exp_1, reduce_log_sum_exp):
    _rule.host_when = _of_integers
for _rule in (reduce_mean_1, reduce_mean, reduce_l2_1, reduce_l2):
    _rule.host_when = _of_uint64


def _position(operator: str, x: Tensor, axis: int, keepdims: int, last: int, largest: bool) -> Tensor:
    """Index of the extremum along an axis; torch reports the first of equal ones."""
    _dims(operator, x, (axis,))
    function = torch.argmax if largest else torch.argmin
    values = ordered(x)
    if not last:
        return function(values, axis, keepdim=bool(keepdims))
    return x.shape[axis] - 1 - function(values.flip(axis), axis, keepdim=bool(keepdims))


@rules.rule("ArgMax", since=1)
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """ONNX ArgMax: int64 index of the first (or last) largest element along ``axis``."""
    return _position("ArgMax", x, axis, keepdims, select_last_index, largest=True)


@rules.rule("ArgMin", since=1)
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    """ONNX ArgMin: int64 index of the first (or last) smallest element along ``axis``."""
    return _position("ArgMin", x, axis, keepdims, select_last_index, largest=False)
