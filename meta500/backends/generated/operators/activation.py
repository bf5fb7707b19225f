"""Elementwise functions of one value, and PRelu."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meta500.backends.generated.expressions import (
    ONE,
    ZERO,
    Constant,
    Expr,
    add,
    call,
    div,
    mul,
    neg,
    select,
    sub,
)
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError, choose

_FUNCTIONS = {
    "Abs": "abs",
    "Ceil": "ceil",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Softplus": "softplus",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
}


@lowers(*_FUNCTIONS)
def function(to: Lowering, op: Any) -> None:
    """y = f(x) for the functions that the IR has."""
    _unary(to, op, lambda x: call(_FUNCTIONS[op.op_type], x))


@lowers("Neg")
def negative(to: Lowering, op: Any) -> None:
    """y = -x."""
    _unary(to, op, neg)


@lowers("Reciprocal")
def reciprocal(to: Lowering, op: Any) -> None:
    """y = 1 / x."""
    _unary(to, op, lambda x: div(ONE, x))


@lowers("Softsign")
def softsign(to: Lowering, op: Any) -> None:
    """y = x / (1 + |x|)."""
    _unary(to, op, lambda x: div(x, add(ONE, call("abs", x))))


@lowers("LeakyRelu")
def leaky_relu(to: Lowering, op: Any) -> None:
    """y = x, or alpha * x where x <= 0 (the slope at 0 is alpha)."""
    alpha = Constant(op.alpha)
    _unary(to, op, lambda x: select(call("less_equal", x, ZERO), mul(alpha, x), x))


@lowers("PRelu", since=7)
def prelu(to: Lowering, op: Any) -> None:
    """y = x, or slope * x where x < 0; slope broadcasts to the shape of x."""
    to.real(op)
    x, slope = (to.shape(name) for name in op.operands)
    if len(slope) > len(x) or any(s not in (1, n) for s, n in zip(slope[::-1], x[::-1], strict=False)):
        raise UserError(f"{op.label}: slope of shape {list(slope)} does not broadcast to X {list(x)}")
    to.elementwise(op, _sloped, op.operands)


@lowers("PRelu")
def prelu_channels(to: Lowering, op: Any) -> None:
    """Versions 1 and 6: slope is one value, or one per channel (axis 1)."""
    to.real(op)
    (x, slope), shape = (to.shape(name) for name in op.operands), to.shape(op.operands[1])
    if math.prod(slope) != 1 and (len(x) < 2 or slope != (x[1],)):
        raise UserError(
            f"{op.label}: slope of shape {list(slope)} is neither one value nor one per channel of "
            f"X {list(x)}"
        )
    axes = to.axes(x)
    names = list(axes)
    at = [0] * len(shape) if math.prod(shape) == 1 else [names[1]]
    to.emit(
        to.result(op, shape=x),
        names,
        axes,
        _sloped(to.load(op.operands[0], names), to.load(op.operands[1], at)),
    )


def _sloped(x: Expr, slope: Expr) -> Expr:
    return select(call("less", x, ZERO), call("mul", slope, x), x)


def _expm1(x: Expr, scale: Expr = ONE) -> Expr:
    """exp(x / scale) - 1 for x up to 0, and 0 above."""
    return sub(call("exp", div(select(call("greater", x, ZERO), ZERO, x), scale)), ONE)


@lowers("Elu")
def elu(to: Lowering, op: Any) -> None:
    """y = x, or alpha * (exp(x) - 1) where x <= 0."""
    alpha = Constant(op.alpha)
    _unary(to, op, lambda x: select(call("greater", x, ZERO), x, mul(alpha, _expm1(x))))


@lowers("Selu")
def selu(to: Lowering, op: Any) -> None:
    """y = gamma * x, or gamma * alpha * (exp(x) - 1) where x <= 0."""
    gamma, alpha = Constant(op.gamma), Constant(op.alpha)
    _unary(to, op, lambda x: mul(gamma, select(call("greater", x, ZERO), x, mul(alpha, _expm1(x)))))


@lowers("Celu", since=12)
def celu(to: Lowering, op: Any) -> None:
    """y = x, or alpha * (exp(x / alpha) - 1) where x <= 0."""
    alpha = Constant(op.alpha)
    _unary(to, op, lambda x: select(call("greater", x, ZERO), x, mul(alpha, _expm1(x, alpha))))


@lowers("ThresholdedRelu", since=10)
def thresholded_relu(to: Lowering, op: Any) -> None:
    """y = x, or 0 where not x > alpha."""
    _unary(to, op, lambda x: select(call("greater", x, Constant(op.alpha)), x, ZERO))


def _between(x: Expr, low: Expr, high: Expr) -> Expr:
    """x cut off at constants; the slope is 0 at both of them; NaN stays."""
    return select(call("less_equal", x, low), low, select(call("greater_equal", x, high), high, x))


@lowers("HardSigmoid")
def hard_sigmoid(to: Lowering, op: Any) -> None:
    """y = max(0, min(1, alpha * x + beta))."""
    alpha, beta = Constant(op.alpha), Constant(op.beta)
    _unary(to, op, lambda x: _between(add(mul(alpha, x), beta), ZERO, ONE))


@lowers("HardSwish", since=14)
def hard_swish(to: Lowering, op: Any) -> None:
    """y = x * max(0, min(1, x / 6 + 1 / 2))."""
    half = Constant(0.5)
    _unary(to, op, lambda x: call("mul", x, _between(add(div(x, Constant(6.0)), half), ZERO, ONE)))


@lowers("Mish", since=18)
def mish(to: Lowering, op: Any) -> None:
    """y = x * tanh(softplus(x))."""
    _unary(to, op, lambda x: mul(x, call("tanh", call("softplus", x))))


@lowers("Swish", since=24)
def swish(to: Lowering, op: Any) -> None:
    """y = x * sigmoid(alpha * x)."""
    alpha = Constant(op.alpha)
    _unary(to, op, lambda x: mul(x, call("sigmoid", mul(alpha, x))))


@lowers("Gelu", since=20)
def gelu(to: Lowering, op: Any) -> None:
    """y = x / 2 * (1 + erf(x / sqrt(2))); "tanh" has tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)) for erf."""
    kind = choose("approximate of Gelu", op.approximate, ("none", "tanh"))

    def exact(x: Expr) -> Expr:
        return call("erf", mul(x, Constant(math.sqrt(0.5))))

    def tanh(x: Expr) -> Expr:
        cubic = mul(mul(mul(x, x), x), Constant(0.044715))
        return call("tanh", mul(Constant(math.sqrt(2 / math.pi)), add(x, cubic)))

    step = tanh if kind == "tanh" else exact
    _unary(to, op, lambda x: mul(mul(Constant(0.5), x), add(ONE, step(x))))


def _unary(to: Lowering, op: Any, function: Callable[[Expr], Expr]) -> None:
    to.real(op)
    to.elementwise(op, function, op.operands)
