"""Losses. Softmax cross entropy is over axis 1, as separate stages that fusion joins again."""

from __future__ import annotations

import math
from typing import Any

from meta500.backends.generated.affine import affine
from meta500.backends.generated.expressions import (
    ONE,
    ZERO,
    Constant,
    Expr,
    Index,
    call,
    div,
    mul,
    neg,
    select,
    sub,
)
from meta500.backends.generated.ir import MAX, SUM
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.convolution import SPATIAL
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError, choose


@lowers("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(to: Lowering, op: Any) -> None:
    """loss[n, i] = weight[label] * (log(sum over c of exp(x[c] - m)) + m - x[label]), m the maximum over c.

    A label that is no class makes the program's fault counter positive.
    """
    x, pixels, at = _pixels(to, op)
    label = tuple(pixels.values())
    name = op.results[0] or "loss"
    axes, pixel = {**pixels, "c": x[1]}, list(pixels)

    largest = to.new(f"{name}.max", label)
    to.emit(largest, pixel, axes, to.load(op.scores, at), MAX)
    shifted = sub(to.load(op.scores, at), to.load(largest, pixel, held=True))
    exponentials = to.new(f"{name}.exp", x)
    to.emit(exponentials, at, axes, call("exp_nonpositive", shifted))
    total = to.new(f"{name}.sum", label)
    to.emit(total, pixel, axes, to.load(exponentials, at), SUM)
    logarithm = call("log", to.load(total, pixel))

    here = to.load(op.operands[1], pixel)
    _count_faults(to, op, name, here, pixels, x[1])
    chosen = call("equal", here, Index(affine("c")))
    if len(op.results) > 1 and op.results[1]:
        log_prob = to.result(op, 1, shape=x)
        to.emit(log_prob, at, axes, sub(shifted, logarithm))
    picked = to.new(f"{name}.picked", label)
    to.emit(picked, pixel, axes, select(chosen, shifted, ZERO), SUM)
    value = sub(logarithm, to.load(picked, pixel))
    weight = _weight(to, op, name, here, pixels, x[1])
    _reduce(to, op, value, weight, pixels)


@lowers("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(to: Lowering, op: Any) -> None:
    """loss[n, i] = -weight[label] * x[label], x the log-probabilities (N, C, ...)."""
    x, pixels, at = _pixels(to, op)
    name = op.results[0]
    here = to.load(op.operands[1], list(pixels))
    _count_faults(to, op, name, here, pixels, x[1])
    picked = to.new(f"{name}.picked", tuple(pixels.values()))
    chosen = call("equal", here, Index(affine("c")))
    log_prob = to.load(op.operands[0], at)
    to.emit(picked, list(pixels), {**pixels, "c": x[1]}, select(chosen, log_prob, ZERO), SUM)
    weight = _weight(to, op, name, here, pixels, x[1])
    _reduce(to, op, neg(to.load(picked, list(pixels))), weight, pixels)


@lowers("MeanSquaredError", domain="meta500")
def mean_squared_error(to: Lowering, op: Any) -> None:
    """loss = (prediction - target)^2, as it is, summed, or the mean over all elements."""
    to.real(op)
    prediction, target = op.operands
    if to.shape(prediction) != to.shape(target):
        raise UserError(
            f"{op.label}: prediction has shape {list(to.shape(prediction))}, target "
            f"{list(to.shape(target))}; they must be equal"
        )
    axes = to.axes(to.shape(prediction))
    difference = sub(to.load(prediction, list(axes)), to.load(target, list(axes)))
    _reduce(to, op, mul(difference, difference), None, axes)


def _pixels(to: Lowering, op: Any) -> tuple[tuple[int, ...], dict[str, int], list[str]]:
    """Shape of the scores, the axes of the labels, and the index of the scores over them and the class c."""
    to.real(op)
    x, label = to.shape(op.operands[0]), to.shape(op.operands[1])
    if len(x) > 5:
        to.refuse(f"the scores have shape {list(x)}; generated code has up to 3 spatial dimensions")
    if len(x) < 2 or label != (x[0], *x[2:]):
        wanted = [*x[:1], *x[2:]]
        raise UserError(
            f"{op.label}: scores of shape {list(x)} need labels of shape {wanted}, got {list(label)}"
        )
    space = SPATIAL[: len(x) - 2]
    return x, {"n": x[0], **dict(zip(space, x[2:], strict=True))}, ["n", "c", *space]


def _count_faults(to: Lowering, op: Any, name: str, here: Expr, pixels: dict[str, int], classes: int) -> None:
    """Count the labels that are no class (and not ``ignore_index``)."""
    wrong: Expr = select(
        call("less", here, ZERO), ONE, select(call("less", here, Constant(classes)), ZERO, ONE)
    )
    if op.ignore_index is not None:
        wrong = select(call("equal", here, Constant(op.ignore_index)), ZERO, wrong)
    counter = to.new(f"{name}.faults", ())
    to.emit(counter, (), pixels, wrong, SUM)
    ignored = "" if op.ignore_index is None else f" and is not ignore_index ({op.ignore_index})"
    to.program.faults[counter] = (
        f"{op.label}: a label in '{op.operands[1]}' is outside [0, {classes - 1}]{ignored}"
    )


def _weight(
    to: Lowering, op: Any, name: str, here: Expr, pixels: dict[str, int], classes: int
) -> Expr | None:
    """The weight of every label; None if all count 1."""
    ignore = op.ignore_index
    weights = op.operands[2] if len(op.operands) > 2 else ""
    if weights:
        if to.shape(weights) != (classes,):
            raise UserError(f"{op.label}: weights have shape {list(to.shape(weights))}, not [{classes}]")
        weight = to.new(f"{name}.weight", tuple(pixels.values()))
        value = select(
            call("equal", here, Index(affine("c"))), to.load(weights, ["c" if classes > 1 else 0]), ZERO
        )
        if ignore is not None:
            value = select(call("equal", here, Constant(ignore)), ZERO, value)
        to.emit(weight, list(pixels), {**pixels, "c": classes}, value, SUM)
        return to.load(weight, list(pixels))
    if ignore is not None:
        return select(call("equal", here, Constant(ignore)), ZERO, ONE)
    return None


def _reduce(to: Lowering, op: Any, value: Expr, weight: Expr | None, pixels: dict[str, int]) -> None:
    choose(f"reduction of {op.op_type}", op.reduction, ("none", "mean", "sum"))
    loss = to.result(op, shape=tuple(pixels.values()) if op.reduction == "none" else ())
    if weight is not None:
        # Not a product: a sample of weight 0 counts nothing, even where its loss is infinite.
        finite = call("less", call("abs", value), Constant(math.inf))
        product = mul(value, weight)
        value = select(call("equal", weight, ZERO), select(finite, product, ZERO), product)
    if op.reduction == "none":
        to.emit(loss, list(pixels), pixels, value)
    elif op.reduction == "sum":
        to.emit(loss, (), pixels, value, SUM)
    elif weight is None:
        to.emit(loss, (), pixels, mul(value, Constant(1 / math.prod(pixels.values()))), SUM)
    else:
        total = to.new(f"{loss}.weights", ())
        to.emit(total, (), pixels, weight, SUM)
        whole = to.new(f"{loss}.total", ())
        to.emit(whole, (), pixels, value, SUM)
        to.emit(loss, (), {}, div(to.load(whole, ()), to.load(total, ())))
