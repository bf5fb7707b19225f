"""MaxPool, AveragePool and their global forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.generated.affine import Affine, Guard, affine
from meta500.backends.generated.expressions import Access, Constant, Expr, Load, mul
from meta500.backends.generated.ir import INDEX, MAX, SUM
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.convolution import SPATIAL, TAPS
from meta500.backends.generated.rule_table import lowers
from meta500.backends.windows import Windows, sliding
from meta500.errors import UserError


def _windows(to: Lowering, op: Any) -> tuple[Windows, tuple[int, ...]]:
    x = to.shape(op.X)
    if len(x) - 2 not in (1, 2, 3):
        to.refuse(f"X has shape {list(x)}; generated code has 1 to 3 spatial dimensions")
    try:
        windows = sliding(
            op.op_type, x[2:], op.kernel_shape, op.strides, op.pads, op.dilations, op.auto_pad,
            op.ceil_mode or 0,
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"{op.label}: {error}") from None
    include_pad = bool(getattr(op, "count_include_pad", 0))
    for axis, counts in enumerate(windows.counts(x[2:], include_pad)):
        if not counts.all():
            raise UserError(
                f"{op.label}: window {int(np.argmin(counts))} along spatial axis {axis} lies in the padding "
                f"only and has no value (input {list(x)}, kernel {list(windows.kernel)})"
            )
    return windows, x


def _places(windows: Windows) -> tuple[tuple[str, ...], tuple[str, ...], list[Affine]]:
    rank = len(windows.kernel)
    space, taps = SPATIAL[:rank], TAPS[:rank]
    places = [
        Affine.of({i: s, r: d}, -p)
        for i, r, s, d, p in zip(space, taps, windows.strides, windows.dilations, windows.begins, strict=True)
    ]
    return space, taps, places


@lowers("AveragePool")
def average_pool(to: Lowering, op: Any) -> None:
    """AveragePool: y[n, c, i] = sum over r of x[n, c, i*stride + r - pad] / count[i]."""
    to.real(op)
    windows, x = _windows(to, op)
    space, taps, places = _places(windows)
    y = to.result(op, shape=(*x[:2], *windows.outputs))
    axes = {"n": x[0], "c": x[1], **dict(zip(space, windows.outputs, strict=True))}
    axes |= dict(zip(taps, windows.kernel, strict=True))
    guards = [Guard(place, 0, size) for place, size in zip(places, x[2:], strict=True)]
    value = mul(to.load(op.X, ["n", "c", *places]), _share(to, op, windows, x[2:], space))
    to.emit(y, ["n", "c", *space], axes, value, SUM, guards)


def _share(to: Lowering, op: Any, windows: Windows, spatial: tuple[int, ...], space: tuple[str, ...]) -> Expr:
    """1 / number of elements of a window: a number, or per position where windows reach over the edge."""
    counts = windows.counts(spatial, bool(getattr(op, "count_include_pad", 0)))
    whole = math.prod(windows.kernel)
    if all((count == k).all() for count, k in zip(counts, windows.kernel, strict=True)):
        return Constant(1 / whole)
    share: Expr = Constant(1.0)
    for count, axis in zip(counts, space, strict=True):
        name = to.new(f"{op.results[0]}.share_{axis}", count.shape, role="constant")
        to.program.constants[name] = 1 / np.maximum(count, 1)
        share = mul(share, Load(Access(name, (affine(axis),)), held=True))
    return share


@lowers("MaxPool")
def max_pool(to: Lowering, op: Any) -> None:
    """MaxPool: the largest element of every window, which the gradient goes back to (the first of equals)."""
    if len(op.results) > 1:
        to.refuse("its output of indices is not generated")
    to.real(op)
    windows, x = _windows(to, op)
    space, taps, places = _places(windows)
    y = to.result(op, shape=(*x[:2], *windows.outputs))
    axes = {"n": x[0], "c": x[1], **dict(zip(space, windows.outputs, strict=True))}
    axes |= dict(zip(taps, windows.kernel, strict=True))
    guards = [Guard(place, 0, size) for place, size in zip(places, x[2:], strict=True)]
    winner = to.new(f"{y}.winner", to.shape(y), INDEX)
    number, step = Affine(), 1
    for tap, size in zip(reversed(taps), reversed(windows.kernel), strict=True):
        number, step = number + Affine.axis(tap, step), step * size
    at = tuple(map(affine, ("n", "c", *space)))
    to.emit(y, at, axes, to.load(op.X, ["n", "c", *places]), MAX, guards, winner=(Access(winner, at), number))


@lowers("GlobalAveragePool", "GlobalMaxPool")
def global_pool(to: Lowering, op: Any) -> None:
    """The mean or the largest element over all spatial axes; equal ones share the gradient in equal parts."""
    to.real(op)
    x = to.shape(op.X)
    rank = len(x) - 2
    if rank not in (1, 2, 3):
        to.refuse(f"X has shape {list(x)}; generated code has 1 to 3 spatial dimensions")
    y = to.result(op, shape=(*x[:2], *(1,) * rank))
    taps = TAPS[:rank]
    axes = {"n": x[0], "c": x[1], **dict(zip(taps, x[2:], strict=True))}
    at: list[Affine | str | int] = ["n", "c", *(0,) * rank]
    value = to.load(op.X, ["n", "c", *taps])
    if op.op_type == "GlobalMaxPool":
        to.emit(y, at, axes, value, MAX)
    else:
        to.emit(y, at, axes, mul(value, Constant(1 / math.prod(x[2:]))), SUM)
