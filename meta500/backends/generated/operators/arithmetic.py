"""Elementwise arithmetic with broadcasting."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meta500.backends.generated.affine import affine
from meta500.backends.generated.expressions import (
    ONE,
    Constant,
    Expr,
    add,
    call,
    div,
    mul,
    neg,
    sub,
)
from meta500.backends.generated.ir import MAX
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError

_FUNCTIONS = {"Add": add, "Sub": sub, "Mul": mul, "Div": div}
_EXTREMES = {"Max": "maximum", "Min": "minimum"}
_LARGEST_POWER = 16


@lowers(*_FUNCTIONS, since=7)
def arithmetic(to: Lowering, op: Any) -> None:
    """Add, Sub, Mul and Div with numpy's broadcasting."""
    to.real(op)
    to.elementwise(op, _FUNCTIONS[op.op_type], op.operands)


@lowers(*_FUNCTIONS)
def arithmetic_fitted(to: Lowering, op: Any) -> None:
    """Versions 1 and 6: the second operand is fitted to the shape of the first."""
    to.real(op)
    a, b = op.operands
    axes = to.axes(to.shape(a))
    value = _FUNCTIONS[op.op_type](to.load(a, list(axes)), fitted(to, op, a, b))
    to.emit(to.result(op, shape=to.shape(a)), list(axes), axes, value)


def fitted(to: Lowering, op: Any, a: str, b: str) -> Expr:
    """The element of ``b`` at the element of ``a``, by the rule of versions 1 and 6.

    Without ``broadcast`` the shapes are equal; with it, b is one number, or a part of a's shape (with 1 in
    place of any of its sizes) that begins at ``axis`` or ends at the end.
    """
    full, part = to.shape(a), to.shape(b)
    names = list(to.axes(full))
    if not op.broadcast:
        if full != part:
            raise UserError(
                f"{op.label}: shapes {list(full)} and {list(part)} differ and broadcast is 0 "
                "(versions before 7 broadcast only with broadcast=1)"
            )
        return to.load(b, names)
    if np.prod(part) == 1 and len(part) <= len(full):
        return to.load(b, [0] * len(part))
    start = len(full) - len(part) if op.axis is None else op.axis + (len(full) if op.axis < 0 else 0)
    here = full[max(start, 0) : start + len(part)]
    if len(here) != len(part) or any(m not in (1, n) for m, n in zip(part, here, strict=True)):
        raise UserError(f"{op.label}: shape {list(part)} is no part of {list(full)} that begins at {start}")
    at = [affine(0 if m == 1 else name) for m, name in zip(part, names[start:], strict=False)]
    return to.load(b, at)


@lowers("Sum", "Mean", "Max", "Min")
def variadic(to: Lowering, op: Any) -> None:
    """Sum, mean, maximum or minimum of any number of values, with numpy's broadcasting from version 8 on.

    Equal extreme values share the gradient in equal parts.
    """
    to.real(op)
    shapes = {to.shape(name) for name in op.operands}
    if op.since_version < 8 and len(shapes) > 1:
        raise UserError(f"{op.label}: before version 8 all shapes are equal, got {sorted(shapes)}")
    if op.op_type in _EXTREMES:
        _extreme(to, op)
        return
    share = Constant(1 / len(op.operands)) if op.op_type == "Mean" else ONE
    to.elementwise(op, lambda *terms: mul(functools.reduce(add, terms), share), op.operands)


def _extreme(to: Lowering, op: Any) -> None:
    if len(op.operands) <= 2:
        name = _EXTREMES[op.op_type]
        to.elementwise(op, lambda *xs: functools.reduce(lambda a, b: call(name, a, b), xs), op.operands)
        return
    # More than two that are equal share alike only in one reduction over all of them.
    try:
        shape = np.broadcast_shapes(*(to.shape(name) for name in op.operands))
    except ValueError:
        raise UserError(f"{op.label}: the shapes of its operands do not broadcast") from None
    sign = neg if op.op_type == "Min" else _same
    y = to.result(op, shape=shape)
    axes = to.axes(shape)
    names = list(axes)
    stacked = to.new(f"{y}.operands", (len(op.operands), *shape))
    for position, name in enumerate(op.operands):
        to.emit(stacked, [position, *names], axes, sign(to.broadcast(name, axes)))
    largest = y if op.op_type == "Max" else to.new(f"{y}.largest", shape)
    everything = {**axes, "o": len(op.operands)}
    to.emit(largest, names, everything, to.load(stacked, ["o", *names]), MAX)
    if largest != y:
        to.emit(y, names, axes, neg(to.load(largest, names)))


def _same(x: Expr) -> Expr:
    return x


@lowers("Pow")
def power(to: Lowering, op: Any) -> None:
    """y = x^e for a constant e that is whole, 1/2 or -1/2."""
    to.real(op)
    x, e = op.operands
    exponents = np.unique(to.constant(e, "the exponent"))
    if exponents.size != 1:
        to.refuse("its exponents differ")
    exponent = float(exponents[0])
    if abs(exponent) != 0.5 and (exponent != int(exponent) or abs(exponent) > _LARGEST_POWER):
        to.refuse(f"exponent {exponent:g}; whole ones up to {_LARGEST_POWER}, 0.5 and -0.5 are generated")
    shape = np.broadcast_shapes(to.shape(x), to.shape(e))
    if op.since_version < 7 and shape != to.shape(x):
        raise UserError(f"{op.label}: Y has shape {list(to.shape(e))}, X {list(to.shape(x))}")
    axes = to.axes(shape)
    to.emit(to.result(op, shape=shape), list(axes), axes, raised(to.broadcast(x, axes), exponent))


def raised(x: Expr, exponent: float) -> Expr:
    """x to a whole power, 1/2 or -1/2."""
    if exponent < 0:
        return div(ONE, raised(x, -exponent))
    if exponent == 0:
        return ONE
    if exponent == 0.5:
        return call("sqrt", x)
    half = raised(x, exponent // 2)
    square = mul(half, half)
    return mul(square, x) if exponent % 2 else square
