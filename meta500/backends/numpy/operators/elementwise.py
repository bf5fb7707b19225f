"""Elementwise operators: functions of one variable, arithmetic, comparisons, logic, selection.

Operators without attributes are rows of a table: forward function of ``x`` and gradient as a function of
``(cotangent, x, y)``. An operator whose gradient is zero almost everywhere gives zeros, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.activation import erf, sigmoid
from meta500.backends.numpy.operators.arrays import (
    is_floating,
    normal_axis,
    numeric,
    numeric_vjp,
    unbroadcast,
)
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


def _tanh_softplus(x: np.ndarray) -> np.ndarray:
    return np.tanh(np.logaddexp(x, 0))


def _mish_gradient(d: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    t = _tanh_softplus(x)
    return d * (t + x * (1 - t * t) * sigmoid(x))


def _zero(d: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.zeros_like(x)


Forward = Callable[[np.ndarray], np.ndarray]
Gradient = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_UNARY: tuple[tuple[str, int, Forward, Gradient | None], ...] = (
    # operator, first version, y(x), gradient(d, x, y)
    ("Abs", 1, np.abs, lambda d, x, y: d * np.sign(x)),
    ("Acos", 7, np.arccos, lambda d, x, y: -d / np.sqrt(1 - x * x)),
    ("Acosh", 9, np.arccosh, lambda d, x, y: d / np.sqrt((x - 1) * (x + 1) + 0.0)),  # not -0 at -1
    ("Asin", 7, np.arcsin, lambda d, x, y: d / np.sqrt(1 - x * x)),
    ("Asinh", 9, np.arcsinh, lambda d, x, y: d / np.sqrt(x * x + 1)),
    ("Atan", 7, np.arctan, lambda d, x, y: d / (1 + x * x)),
    ("Atanh", 9, np.arctanh, lambda d, x, y: d / (1 - x * x)),
    ("Ceil", 1, np.ceil, _zero),
    ("Cos", 7, np.cos, lambda d, x, y: -d * np.sin(x)),
    ("Cosh", 9, np.cosh, lambda d, x, y: d * np.sinh(x)),
    ("Erf", 9, erf, lambda d, x, y: d * np.exp(-x * x) * (2 / math.sqrt(math.pi))),
    ("Exp", 1, np.exp, lambda d, x, y: d * y),
    ("Floor", 1, np.floor, _zero),
    ("HardSwish", 14, lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
     lambda d, x, y: d * np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5))),
    ("Log", 1, np.log, lambda d, x, y: d / x),
    ("Mish", 18, lambda x: x * _tanh_softplus(x), _mish_gradient),
    ("Neg", 1, np.negative, lambda d, x, y: -d),
    ("Not", 1, np.logical_not, None),
    ("Reciprocal", 1, np.reciprocal, lambda d, x, y: -d * y * y),
    ("Relu", 1, lambda x: np.maximum(x, 0), lambda d, x, y: np.where(x > 0, d, 0)),
    ("Round", 11, np.rint, _zero),
    ("Sigmoid", 1, sigmoid, lambda d, x, y: d * y * (1 - y)),
    ("Sign", 9, np.sign, _zero),
    ("Sin", 7, np.sin, lambda d, x, y: d * np.cos(x)),
    ("Sinh", 9, np.sinh, lambda d, x, y: d * np.cosh(x)),
    ("Softplus", 1, lambda x: np.logaddexp(x, 0), lambda d, x, y: d * sigmoid(x)),
    ("Softsign", 1, lambda x: x / (1 + np.abs(x)), lambda d, x, y: d / (1 + np.abs(x)) ** 2),
    ("Sqrt", 1, np.sqrt, lambda d, x, y: d * 0.5 / y),
    ("Tan", 7, np.tan, lambda d, x, y: d * (1 + y * y)),
    ("Tanh", 1, np.tanh, lambda d, x, y: d * (1 - y * y)),
)  # fmt: skip


def _register_unary(operator: str, since: int, function: Forward, gradient: Gradient | None) -> None:
    def forward(x: np.ndarray, *, consumed_inputs: tuple[int, ...] | None = None) -> np.ndarray:
        return function(x)

    forward.__name__, forward.__doc__ = operator.lower(), f"ONNX {operator} of one array."
    rule = rules.rule(operator, since)(numeric(forward))
    if gradient is None:
        return

    def backward(call: Call, d: np.ndarray) -> Gradients:
        return (gradient(d, call.inputs[0], call.outputs[0]),)

    rule.vjp(numeric_vjp(backward))


for _row in _UNARY:
    _register_unary(*_row)


# Two operands. Version 7 brought numpy broadcasting; before, the second operand was fitted to the first.


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Quotient; of integers rounded toward zero."""
    if is_floating(a.dtype):
        return np.divide(a, b)
    if not np.all(b):
        raise UserError("Div: integer division by zero (the result is not defined)")
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    return quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0)))


def _power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """``x ** y`` in the type of x."""
    if y.size == 1 and x.ndim >= y.ndim and y.reshape(()) == 2:
        return np.square(x)
    if is_floating(x.dtype) or is_floating(y.dtype):
        return np.power(x, y).astype(x.dtype)
    if y.dtype.kind == "i" and np.any(y < 0):
        raise UserError("Pow: an integer to a negative integer power is not an integer")
    return np.power(x.astype(np.int64), y.astype(np.int64)).astype(x.dtype)


def _power_base(d: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    if y.size == 1 and y.reshape(()) == 2:
        return 2 * d * x
    return np.where(y == 0, 0, d * y * np.power(x, y - 1))


def _power_exponent(d: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    # 0 ** y is constant in y > 0, where log(0) would give NaN.
    return np.where((x == 0) & (y >= 0), 0, d * z * np.log(x))


Operate = Callable[[np.ndarray, np.ndarray], np.ndarray]
Partial = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]

_BINARY: tuple[tuple[str, int, Operate, tuple[Partial, Partial] | None], ...] = (
    # operator, first version with numpy broadcasting, c(a, b), gradients of a and b from (d, a, b, c)
    ("Add", 7, np.add, (lambda d, a, b, c: d, lambda d, a, b, c: d)),
    ("Sub", 7, np.subtract, (lambda d, a, b, c: d, lambda d, a, b, c: -d)),
    ("Mul", 7, np.multiply, (lambda d, a, b, c: d * b, lambda d, a, b, c: d * a)),
    ("Div", 7, _divide, (lambda d, a, b, c: d / b, lambda d, a, b, c: -d * c / b)),
    ("Pow", 7, _power, (_power_base, _power_exponent)),
    ("And", 7, np.logical_and, None),
    ("Or", 7, np.logical_or, None),
    ("Xor", 7, np.logical_xor, None),
    ("Equal", 7, np.equal, None),
    ("Greater", 7, np.greater, None),
    ("Less", 7, np.less, None),
    ("GreaterOrEqual", 12, np.greater_equal, None),
    ("LessOrEqual", 12, np.less_equal, None),
)


def _fitted(operator: str, a: np.ndarray, b: np.ndarray, broadcast: int, axis: int | None) -> np.ndarray:
    """``b`` in a shape that broadcasts to ``a`` by the rule of versions 1 and 6.

    Raises:
        UserError: the shapes differ without ``broadcast``, or b is no contiguous part of a's shape (with 1 in
            place of any of its sizes, as ONNX's own cases have it).
    """
    if not broadcast:
        if a.shape != b.shape:
            raise UserError(
                f"{operator}: shapes {a.shape} and {b.shape} differ and broadcast is 0 "
                f"(versions before 7 broadcast only with broadcast=1)"
            )
        return b
    if b.size == 1 and b.ndim <= a.ndim:
        return b.reshape((1,) * a.ndim)
    start = a.ndim - b.ndim if axis is None else normal_axis(axis, a.ndim, operator)
    part = a.shape[start : start + b.ndim] if start >= 0 else ()
    if len(part) != b.ndim or any(m not in (1, n) for m, n in zip(b.shape, part, strict=True)):
        raise UserError(f"{operator}: shape {b.shape} is no part of {a.shape} that begins at axis {start}")
    return b.reshape((1,) * start + b.shape + (1,) * (a.ndim - start - b.ndim))


def _register_binary(
    operator: str, since: int, function: Operate, partials: tuple[Partial, Partial] | None
) -> None:
    def modern(a: np.ndarray, b: np.ndarray, *, saved: dict[str, Any]) -> np.ndarray:
        saved["b"] = b
        return function(a, b)

    def legacy(
        a: np.ndarray,
        b: np.ndarray,
        *,
        axis: int | None = None,
        broadcast: int = 0,
        consumed_inputs: Any = None,
        saved: dict[str, Any],
    ) -> np.ndarray:
        saved["b"] = _fitted(operator, a, b, broadcast, axis)
        return function(a, saved["b"])

    def backward(call: Call, d: np.ndarray) -> Gradients:
        if partials is None:
            raise UserError(f"{operator} is not differentiable")
        (a, b), fitted = call.inputs, call.saved["b"]
        operands = (d, a, fitted, call.outputs[0])
        return (
            unbroadcast(partials[0](*operands), a.shape) if call.needs[0] else None,
            unbroadcast(partials[1](*operands), fitted.shape).reshape(b.shape)
            if call.needs[1] and is_floating(b.dtype)
            else None,
        )

    modern.__name__, modern.__doc__ = operator.lower(), f"ONNX {operator} with numpy broadcasting."
    legacy.__name__, legacy.__doc__ = f"{operator.lower()}_legacy", f"{operator} of versions 1 and 6."
    versions = [rules.rule(operator, since)(numeric(modern))]
    if since == 7:
        versions.append(rules.rule(operator, 1)(numeric(legacy)))
    for rule in versions if partials else ():
        rule.vjp(numeric_vjp(backward))


for _binary in _BINARY:
    _register_binary(*_binary)


# Any number of operands. Version 8 brought numpy broadcasting; before, all had one shape.


def _shared(d: np.ndarray, arrays: tuple[np.ndarray, ...], y: np.ndarray) -> list[np.ndarray]:
    """Cotangents of a maximum or minimum; operands that tie share it in equal parts."""
    hits = [array == y for array in arrays]
    parts = d / sum(hit.astype(d.dtype) for hit in hits)
    return [np.where(hit, parts, 0) for hit in hits]


_VARIADIC: tuple[tuple[str, Callable[..., np.ndarray], Callable[..., list[np.ndarray]]], ...] = (
    ("Sum", lambda *xs: reduce(np.add, xs), lambda d, xs, y: [d] * len(xs)),
    ("Mean", lambda *xs: reduce(np.add, xs) / len(xs), lambda d, xs, y: [d / len(xs)] * len(xs)),
    ("Max", lambda *xs: reduce(np.maximum, xs), _shared),
    ("Min", lambda *xs: reduce(np.minimum, xs), _shared),
)


def _register_variadic(
    operator: str, function: Callable[..., np.ndarray], gradient: Callable[..., list[np.ndarray]]
) -> None:
    def modern(*arrays: np.ndarray) -> np.ndarray:
        return function(*arrays)

    def legacy(*arrays: np.ndarray, consumed_inputs: Any = None) -> np.ndarray:
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise UserError(f"{operator}: before version 8 all shapes must be equal, got {sorted(shapes)}")
        return function(*arrays)

    def backward(call: Call, d: np.ndarray) -> Gradients:
        parts = gradient(d, call.inputs, call.outputs[0])
        return tuple(
            unbroadcast(part, array.shape) if need else None
            for part, array, need in zip(parts, call.inputs, call.needs, strict=True)
        )

    modern.__name__, modern.__doc__ = operator.lower(), f"ONNX {operator} with numpy broadcasting."
    legacy.__name__, legacy.__doc__ = f"{operator.lower()}_legacy", f"{operator} of equal shapes."
    for rule in (rules.rule(operator, 8)(numeric(modern)), rules.rule(operator, 1)(numeric(legacy))):
        rule.vjp(numeric_vjp(backward))


for _variadic in _VARIADIC:
    _register_variadic(*_variadic)


# Selection.


@rules.rule("Where", 9)
def where(condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Elements of x where condition holds, else of y; all broadcast. Any dtype."""
    return np.asarray(np.where(condition, x, y))


@where.vjp
def where_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent, split by the condition."""
    condition, x, y = call.inputs
    zero = d.dtype.type(0)
    return (
        None,
        unbroadcast(np.where(condition, d, zero), x.shape) if call.needs[1] else None,
        unbroadcast(np.where(condition, zero, d), y.shape) if call.needs[2] else None,
    )


def _clip(x: np.ndarray, low: Any, high: Any) -> np.ndarray:
    y = x if low is None else np.maximum(x, low)
    return y if high is None else np.minimum(y, high)


@rules.rule("Clip", 11)
@numeric
def clip(x: np.ndarray, low: np.ndarray | None = None, high: np.ndarray | None = None) -> np.ndarray:
    """``min(max(x, low), high)`` with scalar tensors; a bound that is missing does not bind.

    Raises:
        UserError: a bound is not one value.
    """
    for bound in (low, high):
        if bound is not None and bound.size != 1:
            raise UserError(f"Clip: a bound has shape {bound.shape}, expected a scalar")
    return _clip(x, *(None if bound is None else bound.reshape(()) for bound in (low, high)))


@clip.vjp
@numeric_vjp
def clip_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent goes to x between the bounds (ends included), else to the bound that was taken."""
    x, low, high = (*call.inputs, None, None)[:3]
    below = np.zeros(x.shape, bool) if low is None else x < low
    above = np.zeros(x.shape, bool) if high is None else np.maximum(x, x if low is None else low) > high
    below &= ~above
    parts = (
        np.where(below | above, 0, d),
        None if low is None else np.where(below, d, 0).sum().reshape(low.shape),
        None if high is None else np.where(above, d, 0).sum().reshape(high.shape),
    )
    return parts[: len(call.inputs)]


_LARGEST = 3.4028234663852886e38
"""The largest float32."""


@rules.rule("Clip", 1)
@numeric
def clip_attributes(
    x: np.ndarray,
    *,
    min: float | None = None,
    max: float | None = None,
    consumed_inputs: Any = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """Versions 1 and 6: the bounds are float32 attributes, by default the finite range of float32."""
    low, high = -_LARGEST if min is None else min, _LARGEST if max is None else max
    saved.update(low=low, high=high)
    return _clip(x, low, high)


@clip_attributes.vjp
@numeric_vjp
def clip_attributes_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cotangent between the bounds, ends included."""
    x, low, high = call.inputs[0], call.saved["low"], call.saved["high"]
    return (np.where((x >= low) & (x <= high), d, 0),)
