"""BatchNormalization in both modes."""

from __future__ import annotations

import math
from typing import Any

from meta500.backends.generated.expressions import Constant, Expr, Load, add, call, div, mul, sub
from meta500.backends.generated.ir import SUM, Stage
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.convolution import SPATIAL
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError


@lowers("BatchNormalization", since=7)
def batch_normalization(to: Lowering, op: Any) -> None:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + B, per channel.

    With ``training_mode`` mean and variance are those of the batch, and the running ones move towards them
    (the variance of the batch without Bessel's correction, as ONNX has it from version 14 on).
    """
    training = bool(getattr(op, "training_mode", 0))
    if len(op.results) > 1 and not training:
        to.refuse("outputs beside Y are generated for version 14 and later in training mode")
    to.real(op)
    x = to.shape(op.X)
    if not getattr(op, "spatial", 1) and op.since_version < 9:
        to.refuse("statistics per element (spatial 0)")
    if not 2 <= len(x) <= 5:
        to.refuse(f"X has shape {list(x)}")
    for name in op.operands[1:]:
        if to.shape(name) != (x[1],):
            raise UserError(f"{op.label}: '{name}' has shape {list(to.shape(name))}, expected {[x[1]]}")
    y = to.result(op, shape=x)
    space = SPATIAL[: len(x) - 2]
    axes = {"n": x[0], "c": x[1], **dict(zip(space, x[2:], strict=True))}
    at = ["n", "c", *space]
    if training:
        mean, variance = _statistics(to, op, axes, at, x)
    else:
        mean, variance = (to.load(name, ["c"]) for name in op.operands[3:])
    inverse = to.new(f"{y}.inverse", (x[1],))
    to.emit(
        inverse,
        ["c"],
        {"c": x[1]},
        div(Constant(1.0), call("sqrt", add(variance, Constant(op.epsilon)))),
    )
    centred = sub(to.load(op.X, at), mean)
    value = add(mul(mul(centred, to.load(inverse, ["c"])), to.load(op.scale, ["c"])), to.load(op.B, ["c"]))
    to.emit(y, at, axes, value)


def _statistics(
    to: Lowering, op: Any, axes: dict[str, int], at: list[str], x: tuple[int, ...]
) -> tuple[Expr, Expr]:
    """Mean and variance of the batch, and the new running ones."""
    count = x[0] * math.prod(x[2:])
    share = Constant(1 / count)
    mean = to.new(f"{op.results[0]}.mean", (x[1],))
    to.emit(mean, ["c"], axes, mul(to.load(op.X, at), share), SUM)
    variance = to.new(f"{op.results[0]}.variance", (x[1],))
    # The mean is held: the derivative of the variance by it is the sum of x - mean, which is zero.
    centred = sub(to.load(op.X, at), to.load(mean, ["c"], held=True))
    to.emit(variance, ["c"], axes, mul(mul(centred, centred), share), SUM)
    for position, (running, new) in enumerate(((op.input_mean, mean), (op.input_var, variance)), 1):
        if position < len(op.results) and op.results[position]:
            _running(to, op, position, running, new, x[1])
    return to.load(mean, ["c"]), to.load(variance, ["c"])


def _running(to: Lowering, op: Any, position: int, running: str, new: str, channels: int) -> Stage:
    result = to.result(op, position)
    kept, share = Constant(op.momentum), Constant(1 - op.momentum)
    old, batch = to.load(running, ["c"], held=True), to.load(new, ["c"], held=True)
    assert isinstance(batch, Load)
    return to.emit(result, ["c"], {"c": channels}, add(mul(old, kept), mul(batch, share)))
