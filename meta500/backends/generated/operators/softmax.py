"""Softmax and LogSoftmax."""

from __future__ import annotations

from typing import Any

from meta500.backends.generated.affine import Affine, affine
from meta500.backends.generated.expressions import Expr, call, div, sub
from meta500.backends.generated.ir import MAX, SUM
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError


@lowers("Softmax", "LogSoftmax")
def softmax(to: Lowering, op: Any) -> None:
    """Softmax: y = exp(x - m) / s, LogSoftmax: y = x - m - log(s); m = max(x), s = sum(exp(x - m)).

    Both are over one axis; before version 13 over all axes from ``axis`` on.
    """
    to.real(op)
    source = op.operands[0]
    x = to.shape(source)
    limit = len(x) - (1 if op.since_version >= 13 else 0)
    if not -len(x) <= op.axis <= limit:
        raise UserError(f"{op.label}: axis {op.axis} is outside of shape {list(x)}")
    first = op.axis + len(x) if op.axis < 0 else op.axis
    over = {first} if op.since_version >= 13 else set(range(first, len(x)))
    axes = to.axes(x)
    names = list(axes)
    rest: list[Affine] = [affine(0 if i in over else name) for i, name in enumerate(names)]
    kept = tuple(1 if i in over else size for i, size in enumerate(x))
    y = to.result(op, shape=x)

    largest = to.new(f"{y}.max", kept)
    to.emit(largest, rest, axes, to.load(source, names), MAX)
    shifted = sub(to.load(source, names), to.load(largest, rest, held=True))
    total = to.new(f"{y}.sum", kept)
    if op.op_type == "LogSoftmax":
        to.emit(total, rest, axes, call("exp_nonpositive", shifted), SUM)
        value: Expr = sub(shifted, call("log", to.load(total, rest)))
    else:
        exponentials = to.new(f"{y}.exp", x)
        to.emit(exponentials, names, axes, call("exp_nonpositive", shifted))
        to.emit(total, rest, axes, to.load(exponentials, names), SUM)
        value = div(to.load(exponentials, names), to.load(total, rest))
    to.emit(y, names, axes, value)
