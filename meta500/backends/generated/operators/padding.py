"""Pad: grow or cut axes, filled with a constant or from the tensor itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.generated.affine import affine
from meta500.backends.generated.expressions import Constant, Expr
from meta500.backends.generated.index_maps import frame, pieces
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.movement import copy_pieces
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError, choose

MODES = ("constant", "reflect", "edge", "wrap")
Widths = list[tuple[int, int]]


@lowers("Pad")
def pad(to: Lowering, op: Any) -> None:
    """y[i] = x[i - begin] inside, elsewhere a constant ("constant") or an element of x: the mirrored one
    ("reflect"), the nearest one ("edge") or the periodic one ("wrap"). Negative pads cut.

    Pads, value and axes are attributes or constant inputs, by version; a constant may be a tensor.
    """
    source = op.operands[0]
    x = to.shape(source)
    widths = _widths(to, op, len(x))
    modes = MODES if op.since_version >= 19 else MODES[:3]
    choose(f"mode of {op.label}", op.mode, modes)
    y = to.result(op, shape=tuple(n + begin + end for n, (begin, end) in zip(x, widths, strict=True)))
    for axis, (begin, end) in enumerate(widths):
        _check(op, x, axis, begin, end)
    if op.mode == "constant":
        _constant(to, op, source, y, widths)
        return
    tables = []
    for n, (begin, end) in zip(x, widths, strict=True):
        kept = np.arange(n)[max(-begin, 0) : n - max(-end, 0)]
        table = np.pad(kept, (max(begin, 0), max(end, 0)), mode=op.mode)
        found = pieces(table)
        if found is None:
            to.refuse(f"pads {[begin, end]} go around {n} elements too many times")
        tables.append(found)
    copy_pieces(to, op, source, y, tables)


def _widths(to: Lowering, op: Any, rank: int) -> Widths:
    """Begin and end of every axis."""
    pads = to.integers(op, "pads" if op.since_version >= 2 else "paddings")
    axes = to.integers(op, "axes") if op.since_version >= 18 else None
    places = list(range(rank)) if axes is None else [a + rank if a < 0 else a for a in axes]
    if pads is None or len(pads) != 2 * len(places):
        raise UserError(f"{op.label}: pads are {pads}; expected two per axis of {len(places)}")
    if len(set(places)) != len(places) or any(not 0 <= a < rank for a in places):
        raise UserError(f"{op.label}: axes {axes} of {rank} dimensions")
    widths = [(0, 0)] * rank
    for i, axis in enumerate(places):
        widths[axis] = (pads[i], pads[i + len(places)])
    return widths


def _check(op: Any, shape: tuple[int, ...], axis: int, begin: int, end: int) -> None:
    """Refuse a side that is cut where the other one is filled with elements that the cut would change.

    Raises:
        UserError: that, or more is cut than there is.
    """
    left = shape[axis] + min(begin, 0) + min(end, 0)
    grown = max(begin, end)
    if left < 0:
        raise UserError(f"{op.label}: pads {begin} and {end} cut more than axis {axis} of {list(shape)} has")
    if op.mode == "constant" or grown <= 0:
        return
    reach = {"edge": 1, "reflect": grown + 1, "wrap": math.inf}[op.mode]
    if left == 0 or (min(begin, end) < 0 and reach > left):
        raise UserError(
            f"{op.label}: pads {begin} and {end} of axis {axis} of {list(shape)} cut elements that mode "
            f"{op.mode} fills with; ONNX does not say which comes first"
        )


def _value(to: Lowering, op: Any) -> Expr:
    """What is filled with."""
    if op.since_version < 11:
        return Constant(op.value)
    name = op.operands[2] if len(op.operands) > 2 else ""
    if not name:
        return Constant(0.0)
    if math.prod(to.shape(name)) != 1:
        raise UserError(f"{op.label}: constant_value has shape {list(to.shape(name))}, expected one value")
    return to.load(name, [0] * len(to.shape(name)))


def _constant(to: Lowering, op: Any, source: str, y: str, widths: Widths) -> None:
    """The inside is copied, what is around it filled."""
    x, full = to.shape(source), to.shape(y)
    value = _value(to, op)
    inner = [(max(begin, 0), size - max(end, 0)) for size, (begin, end) in zip(full, widths, strict=True)]
    if any(low >= high for low, high in inner):
        inner = [(0, 0)] * len(full)
    else:
        sizes = [high - low for low, high in inner]
        axes = to.axes(sizes)
        at = [affine(name) + low for name, (low, _) in zip(axes, inner, strict=True)]
        read = [affine(name) + max(-begin, 0) for name, (begin, _) in zip(axes, widths, strict=True)]
        to.emit(y, at, axes, to.load(source, read))
        assert all(size <= n for size, n in zip(sizes, x, strict=True))
    for box in frame(full, inner):
        axes = to.axes([last - first for first, last in box])
        to.emit(y, [affine(n) + first for n, (first, _) in zip(axes, box, strict=True)], axes, value)
