"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meta500.backends.generated.affine import Affine, affine
from meta500.backends.generated.expressions import ZERO, Constant, Expr, call, mul, neg, select, sub
from meta500.backends.generated.ir import MAX, SUM
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.movement import normal_axis
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError

_AXES_AS_INPUT = {"ReduceSum": 13}


class _Reduction:
    """The axes of a reduction, and its result with the reduced axes kept as 1 (which Squeeze drops)."""

    def __init__(self, to: Lowering, op: Any) -> None:
        self.source = op.operands[0]
        x = to.shape(self.source)
        axes = to.integers(op, "axes")
        noop = op.since_version >= _AXES_AS_INPUT.get(op.op_type, 18) and op.noop_with_empty_axes
        if axes:
            over = {normal_axis(op, axis, len(x)) for axis in axes}
            if len(over) != len(axes):
                raise UserError(f"{op.label}: axes {axes} name a dimension twice")
        else:
            over = set() if noop else set(range(len(x)))
        self.axes = to.axes(x)
        self.names = list(self.axes)
        self.count = math.prod(x[i] for i in over)
        kept = [(i, n) for i, n in enumerate(x) if op.keepdims or i not in over]
        self.y = to.result(op, shape=[1 if i in over else n for i, n in kept])
        self.at: list[Affine] = [affine(0 if i in over else self.names[i]) for i, _ in kept]
        self.own = {self.names[i]: n for i, n in enumerate(x) if i not in over}

    def load(self, to: Lowering) -> Expr:
        return to.load(self.source, self.names)

    def of_sum(self, to: Lowering, function: Callable[[Expr], Expr], term: Expr) -> None:
        """y = function(sum of term)."""
        total = to.new(f"{self.y}.sum", to.shape(self.y))
        to.emit(total, self.at, self.axes, term, SUM)
        to.emit(self.y, self.at, self.own, function(to.load(total, self.at)))


_TERMS: dict[str, Callable[[Expr], Expr]] = {
    "ReduceSum": lambda x: x,
    "ReduceL1": lambda x: call("abs", x),
    "ReduceSumSquare": lambda x: mul(x, x),
}


@lowers(*_TERMS)
def reduce_sum(to: Lowering, op: Any) -> None:
    """y = sum of x, of |x| (ReduceL1) or of x^2 (ReduceSumSquare)."""
    to.real(op)
    r = _Reduction(to, op)
    to.emit(r.y, r.at, r.axes, _TERMS[op.op_type](r.load(to)), SUM)


@lowers("ReduceMean")
def reduce_mean(to: Lowering, op: Any) -> None:
    """y = sum of x / number of x."""
    to.real(op)
    r = _Reduction(to, op)
    to.emit(r.y, r.at, r.axes, mul(r.load(to), Constant(1 / r.count)), SUM)


@lowers("ReduceL2")
def reduce_l2(to: Lowering, op: Any) -> None:
    """y = sqrt(sum of x^2); the gradient of 0 is 0."""
    to.real(op)
    r = _Reduction(to, op)
    x = r.load(to)
    r.of_sum(to, lambda s: select(call("equal", s, ZERO), s, call("sqrt", s)), mul(x, x))


@lowers("ReduceLogSum")
def reduce_log_sum(to: Lowering, op: Any) -> None:
    """y = log(sum of x)."""
    to.real(op)
    r = _Reduction(to, op)
    r.of_sum(to, lambda s: call("log", s), r.load(to))


@lowers("ReduceLogSumExp")
def reduce_log_sum_exp(to: Lowering, op: Any) -> None:
    """y = log(sum of exp(x - m)) + m, m the maximum of x (0 where that is infinite)."""
    to.real(op)
    r = _Reduction(to, op)
    largest = to.new(f"{r.y}.max", to.shape(r.y))
    to.emit(largest, r.at, r.axes, r.load(to), MAX)
    m = to.load(largest, r.at, held=True)
    shift = select(call("less", call("abs", m), Constant(math.inf)), m, ZERO)
    r.of_sum(to, lambda s: call("add", call("log", s), shift), call("exp", sub(r.load(to), shift)))


@lowers("ReduceMax", "ReduceMin")
def reduce_extreme(to: Lowering, op: Any) -> None:
    """The largest or smallest element; equal ones share the gradient in equal parts."""
    to.real(op)
    r = _Reduction(to, op)
    if op.op_type == "ReduceMax":
        to.emit(r.y, r.at, r.axes, r.load(to), MAX)
        return
    largest = to.new(f"{r.y}.largest", to.shape(r.y))
    to.emit(largest, r.at, r.axes, neg(r.load(to)), MAX)
    to.emit(r.y, r.at, r.own, neg(to.load(largest, r.at)))
