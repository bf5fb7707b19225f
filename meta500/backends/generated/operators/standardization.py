"""Instance, layer, group and root-mean-square normalisation: statistics of parts of every image."""

from __future__ import annotations

import math
from typing import Any

from meta500.backends.generated.affine import Affine, affine
from meta500.backends.generated.expressions import ONE, Constant, Expr, add, call, div, mul, sub
from meta500.backends.generated.ir import SUM
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.convolution import SPATIAL
from meta500.backends.generated.operators.movement import normal_axis
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError

At = list[Affine]


def _mean(
    to: Lowering, name: str, shape: list[int], part: At, axes: dict[str, int], x: Expr, count: int
) -> Expr:
    mean = to.new(f"{name}.mean", shape)
    to.emit(mean, part, axes, mul(x, Constant(1 / count)), SUM)
    return to.load(mean, part)


def _inverse(
    to: Lowering,
    name: str,
    shape: list[int],
    part: At,
    axes: dict[str, int],
    x: Expr,
    count: int,
    epsilon: float,
) -> Expr:
    """1 / sqrt(mean of x^2 + epsilon)."""
    square = to.new(f"{name}.variance", shape)
    to.emit(square, part, axes, mul(mul(x, x), Constant(1 / count)), SUM)
    inverse = to.new(f"{name}.inverse", shape)
    own = {a: n for a, n in axes.items() if any(a in index.axes for index in part)}
    deviation = call("sqrt", add(to.load(square, part), Constant(epsilon)))
    to.emit(inverse, part, own, div(ONE, deviation))
    return to.load(inverse, part)


def _standardized(
    to: Lowering,
    name: str,
    shape: list[int],
    part: At,
    axes: dict[str, int],
    x: Expr,
    count: int,
    epsilon: float,
) -> tuple[Expr, Expr, Expr]:
    """(x - mean) / sqrt(variance + epsilon) with the statistics of each ``part``; mean; inverse deviation."""
    mean = _mean(to, name, shape, part, axes, x, count)
    # In the variance the mean is held: the derivative by it is the sum of x - mean, which is zero.
    held = to.load(mean.access.tensor, part, held=True)  # type: ignore[attr-defined]
    inverse = _inverse(to, name, shape, part, axes, sub(x, held), count, epsilon)
    return mul(sub(x, mean), inverse), mean, inverse


def _needs(op: Any, to: Lowering, position: int, shape: tuple[int, ...]) -> None:
    name = op.operands[position]
    if to.shape(name) != shape:
        raise UserError(f"{op.label}: '{name}' has shape {list(to.shape(name))}, expected {list(shape)}")


@lowers("InstanceNormalization")
def instance_normalization(to: Lowering, op: Any) -> None:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + B, per image and channel."""
    to.real(op)
    source, scale, bias = op.operands
    x = to.shape(source)
    if not 3 <= len(x) <= 5:
        to.refuse(f"the input has shape {list(x)}; generated code has 1 to 3 spatial dimensions")
    _needs(op, to, 1, x[1:2])
    _needs(op, to, 2, x[1:2])
    axes = {"n": x[0], "c": x[1], **dict(zip(SPATIAL, x[2:], strict=False))}
    value = to.load(source, list(axes))
    part = [affine("n"), affine("c")]
    y = to.result(op, shape=x)
    normal, _, _ = _standardized(to, y, [x[0], x[1]], part, axes, value, math.prod(x[2:]), op.epsilon)
    to.emit(y, list(axes), axes, add(mul(normal, to.load(scale, ["c"])), to.load(bias, ["c"])))


@lowers("GroupNormalization", since=18)
def group_normalization(to: Lowering, op: Any) -> None:
    """As InstanceNormalization, with the statistics of groups of channels, c = g * C + k.

    Scale and bias have one value per channel, in version 18 one per group.
    """
    to.real(op)
    source, scale, bias = op.operands
    x, groups = to.shape(source), op.num_groups
    if not 2 <= len(x) <= 5:
        to.refuse(f"the input has shape {list(x)}; generated code has 0 to 3 spatial dimensions")
    if groups < 1 or x[1] % groups:
        raise UserError(f"{op.label}: X {list(x)} cannot be cut into {groups} equal groups of channels")
    if op.since_version >= 21 and op.stash_type not in (1, 11):
        to.refuse(f"stash_type {op.stash_type}")
    per_channel = op.since_version >= 21
    for position in (1, 2):
        _needs(op, to, position, (x[1] if per_channel else groups,))
    axes = {"n": x[0], "g": groups, "k": x[1] // groups, **dict(zip(SPATIAL, x[2:], strict=False))}
    channel = Affine.of({"g": x[1] // groups, "k": 1})
    at = [affine("n"), channel, *map(affine, SPATIAL[: len(x) - 2])]
    part = [affine("n"), affine("g")]
    count = math.prod(x[1:]) // groups
    y = to.result(op, shape=x)
    value = to.load(source, at)
    normal, _, _ = _standardized(to, y, [x[0], groups], part, axes, value, count, op.epsilon)
    own = [channel if per_channel else affine("g")]
    to.emit(y, at, axes, add(mul(normal, to.load(scale, own)), to.load(bias, own)))


@lowers("LayerNormalization", since=17)
def layer_normalization(to: Lowering, op: Any) -> None:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + B with statistics over the axes from ``axis`` on.

    The outputs Mean and InvStdDev keep those axes as 1.
    """
    to.real(op)
    x = to.shape(op.operands[0])
    if op.stash_type != 1:
        to.refuse(f"stash_type {op.stash_type}")
    axes, part, kept, count = _trailing(to, op, x)
    y = to.result(op, shape=x)
    normal, mean, inverse = _standardized(
        to, y, kept, part, axes, to.load(op.operands[0], list(axes)), count, op.epsilon
    )
    value = mul(normal, to.broadcast(op.operands[1], axes))
    if len(op.operands) > 2:
        value = add(value, to.broadcast(op.operands[2], axes))
    to.emit(y, list(axes), axes, value)
    for position, extra in ((1, mean), (2, inverse)):
        if position < len(op.results) and op.results[position]:
            own = {a: n for a, n in axes.items() if any(a in index.axes for index in part)}
            to.emit(to.result(op, position, shape=kept), part, own, extra)


@lowers("RMSNormalization", since=23)
def rms_normalization(to: Lowering, op: Any) -> None:
    """y = x / sqrt(mean of x^2 + epsilon) * scale with the mean over the axes from ``axis`` on."""
    to.real(op)
    x = to.shape(op.operands[0])
    if op.stash_type not in (1, 11):
        to.refuse(f"stash_type {op.stash_type}")
    axes, part, kept, count = _trailing(to, op, x)
    y = to.result(op, shape=x)
    value = to.load(op.operands[0], list(axes))
    inverse = _inverse(to, y, kept, part, axes, value, count, op.epsilon)
    to.emit(y, list(axes), axes, mul(mul(value, inverse), to.broadcast(op.operands[1], axes)))


def _trailing(to: Lowering, op: Any, x: tuple[int, ...]) -> tuple[dict[str, int], At, list[int], int]:
    """All axes, the index of the statistics, their shape, and how many elements each is of."""
    first = normal_axis(op, op.axis, len(x))
    for name in op.operands[1:]:
        shape = to.shape(name)
        fits = all(m in (1, n) for m, n in zip(shape[::-1], x[::-1], strict=False))
        if len(shape) > len(x) or not fits:
            raise UserError(f"{op.label}: '{name}' of shape {list(shape)} does not broadcast to {list(x)}")
    axes = to.axes(x)
    part = [affine(name if i < first else 0) for i, name in enumerate(axes)]
    kept = [size if i < first else 1 for i, size in enumerate(x)]
    return axes, part, kept, math.prod(x[first:])
