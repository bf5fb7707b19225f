"""Dropout."""

from __future__ import annotations

import math
from typing import Any

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import ONE, ZERO, Constant, Index, call, mul, select
from meta500.backends.generated.ir import FLAG
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.selection import flag, holds
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError


@lowers("Dropout", since=12)
def dropout(to: Lowering, op: Any) -> None:
    """y = x; in training x / (1 - ratio) where uniform(number of the element) >= ratio, else 0."""
    training = bool(op.training_mode) and bool(to.constant(op.training_mode, "training_mode").reshape(-1)[0])
    if not training:
        _inference(to, op)
        return
    if op.seed is not None:
        to.refuse("a seed of its own draws from a stream of numpy; leave it away and seed the network")
    ratio = to.constant(op.ratio, "ratio").reshape(-1)[0] if op.ratio else 0.5
    _training(to, op, float(ratio))


@lowers("Dropout", since=7)
def dropout_inference(to: Lowering, op: Any) -> None:
    """Versions 7 and 10 know inference only: y = x."""
    _inference(to, op)


@lowers("Dropout")
def dropout_is_test(to: Lowering, op: Any) -> None:
    """Versions 1 and 6: training unless ``is_test``."""
    if op.is_test:
        _inference(to, op)
    else:
        _training(to, op, op.ratio)


def _inference(to: Lowering, op: Any) -> None:
    """The input, and a mask that drops nothing."""
    to.real(op)
    shape = to.shape(op.operands[0])
    axes = to.axes(shape)
    to.emit(to.result(op, shape=shape), list(axes), axes, to.load(op.operands[0], list(axes)))
    if len(op.results) > 1:
        to.emit(to.result(op, 1, shape=shape), list(axes), axes, ONE)


def _training(to: Lowering, op: Any, ratio: float) -> None:
    to.real(op)
    if not 0 <= ratio < 1:
        raise UserError(f"{op.label}: ratio {ratio} is outside [0, 1)")
    shape = to.shape(op.operands[0])
    axes = to.axes(shape)
    names = list(axes)
    number, step = Affine((), to.draw(math.prod(shape))), 1
    for name, size in reversed(axes.items()):
        number, step = number + Affine.axis(name, step), step * size
    wanted = len(op.results) > 1
    mask = to.result(op, 1, shape=shape) if wanted else to.new(f"{op.results[0]}.mask", shape, FLAG)
    kept = call("greater_equal", call("uniform", Index(number), *to.random_state()), Constant(ratio))
    to.emit(mask, names, axes, flag(kept))
    scaled = mul(to.load(op.operands[0], names), Constant(1 / (1 - ratio)))
    value = select(holds(to.load(mask, names, held=True)), scaled, ZERO)
    to.emit(to.result(op, shape=shape), names, axes, value)
