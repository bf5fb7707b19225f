"""Clip, Where, comparisons, logic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meta500.backends.generated.expressions import ONE, ZERO, Constant, Expr, call, select
from meta500.backends.generated.ir import FLAG
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.arithmetic import fitted
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError

_COMPARISONS = {
    "Equal": "equal",
    "Greater": "greater",
    "Less": "less",
    "GreaterOrEqual": "greater_equal",
    "LessOrEqual": "less_equal",
}
# The largest float32: the bounds of Clip before version 11.
_LARGEST = 3.4028234663852886e38


def flag(condition: Expr) -> Expr:
    """A condition as a number."""
    return select(condition, ONE, ZERO)


def holds(number: Expr) -> Expr:
    """An element of a bool tensor as a condition."""
    return call("greater", number, ZERO)


@lowers("Clip", since=11)
def clip(to: Lowering, op: Any) -> None:
    """y = min(max(x, low), high): low where x < low, then high where that is > high.

    At a bound the gradient goes to x, beyond it to the bound.
    """
    to.real(op)
    x, low, high = (*op.operands, "", "")[:3]
    for name in (low, high):
        if name and math.prod(to.shape(name)) != 1:
            raise UserError(f"{op.label}: bound '{name}' has shape {list(to.shape(name))}, expected a scalar")
    bounds = [to.load(name, [0] * len(to.shape(name))) if name else None for name in (low, high)]
    axes = to.axes(to.shape(x))
    value = _clipped(to, to.load(x, list(axes)), *bounds)
    to.emit(to.result(op, shape=to.shape(x)), list(axes), axes, value)


@lowers("Clip")
def clip_attributes(to: Lowering, op: Any) -> None:
    """Versions 1 and 6: the bounds are attributes, by default the finite range of float32."""
    to.real(op)
    low = Constant(-_LARGEST if op.min is None else op.min)
    high = Constant(_LARGEST if op.max is None else op.max)
    to.elementwise(op, lambda x: _clipped(to, x, low, high), op.operands[:1])


def _clipped(to: Lowering, x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    for bound, beyond in ((low, "less"), (high, "greater")):
        if bound is None:
            continue
        if isinstance(bound, Constant):
            if math.isnan(bound.value):
                to.refuse("a bound is NaN")
            x = select(call(beyond, x, bound), bound, x)
        else:
            # NaN bounds give NaN.
            x = select(call(beyond, x, bound), bound, select(call("equal", bound, bound), x, bound))
    return x


@lowers("Where", since=9)
def where(to: Lowering, op: Any) -> None:
    """y = a where the condition holds, else b, with numpy's broadcasting."""
    to.elementwise(op, lambda c, a, b: select(holds(c), a, b), op.operands)


@lowers(*_COMPARISONS)
def comparison(to: Lowering, op: Any) -> None:
    """Whether a == b, a > b, a < b, a >= b, a <= b, as bool."""
    name = _COMPARISONS[op.op_type]
    _logic(to, op, lambda a, b: flag(call(name, a, b)))


@lowers("And", "Or", "Xor")
def connective(to: Lowering, op: Any) -> None:
    """Logic of two bool values."""
    functions: dict[str, Callable[[Expr, Expr], Expr]] = {
        "And": lambda a, b: select(holds(a), flag(holds(b)), ZERO),
        "Or": lambda a, b: select(holds(a), ONE, flag(holds(b))),
        "Xor": lambda a, b: select(call("equal", a, b), ZERO, ONE),
    }
    _logic(to, op, functions[op.op_type])


def _logic(to: Lowering, op: Any, function: Callable[[Expr, Expr], Expr]) -> None:
    if op.since_version >= 7:
        to.elementwise(op, function, op.operands)
        return
    a, b = op.operands
    axes = to.axes(to.shape(a))
    value = function(to.load(a, list(axes)), fitted(to, op, a, b))
    to.emit(to.result(op, shape=to.shape(a)), list(axes), axes, value)


@lowers("Not")
def negation(to: Lowering, op: Any) -> None:
    """Not x."""
    to.elementwise(op, lambda x: select(holds(x), ZERO, ONE), op.operands)


@lowers("IsNaN", since=9)
def is_nan(to: Lowering, op: Any) -> None:
    """Whether x is no number: x != x."""
    if to.dtype(op.results[0]) != FLAG:
        to.refuse("its result is no bool")
    to.elementwise(op, lambda x: select(call("equal", x, x), ZERO, ONE), op.operands)
