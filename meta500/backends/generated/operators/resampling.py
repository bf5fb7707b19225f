"""Resize and Upsample: every axis on its own, as a few weighted elements or a matrix."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.generated.affine import affine
from meta500.backends.generated.expressions import ZERO, Constant, add, call, mul, select
from meta500.backends.generated.index_maps import Piece, pieces
from meta500.backends.generated.ir import CONSTANT, REAL, SUM
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.operators.movement import copy_pieces, whole
from meta500.backends.generated.rule_table import lowers
from meta500.backends.resizing import (
    COORDINATES,
    MODES,
    NEAREST,
    Axis,
    Method,
    check_unscaled,
    scale_axes,
    size_axes,
    taps,
)
from meta500.errors import UserError, choose

# Interpolation along one axis in more pieces than this is written as a matrix.
_MOST_PIECES = 12


@lowers("Resize", since=11)
def resize(to: Lowering, op: Any) -> None:
    """y[o] = sum over k of w[o, k] * x[p[o, k]] along every axis, weights and places those of ONNX Resize.

    Where few maps o -> p are affine with constant weights (whole factors), each is a stage; else the sum goes
    over the whole axis, with a matrix of weights.
    """
    choose(f"mode of {op.label}", op.mode, MODES)
    since = max(version for version in COORDINATES if version <= op.since_version)
    coordinates = op.coordinate_transformation_mode
    choose(f"coordinate_transformation_mode of {op.label}", coordinates, COORDINATES[since])
    choose(f"nearest_mode of {op.label}", op.nearest_mode, NEAREST)
    if op.antialias:
        to.refuse("antialias")
    x = to.shape(op.X)
    places = list(range(len(x))) if not op.axes else [a + len(x) if a < 0 else a for a in op.axes]
    if len(set(places)) != len(places) or any(not 0 <= a < len(x) for a in places):
        raise UserError(f"{op.label}: axes {list(op.axes)} of {len(x)} dimensions")
    crop: list[float] = []
    if coordinates == "tf_crop_and_resize":
        crop = [float(v) for v in to.constant(op.roi, "roi").reshape(-1)] if op.roi else []
        if len(crop) != 2 * len(places):
            raise UserError(f"{op.label}: tf_crop_and_resize needs a roi of {2 * len(places)} numbers")
    scales, sizes = (_list(to, name, what) for name, what in ((op.scales, "scales"), (op.sizes, "sizes")))
    if bool(scales) == bool(sizes):
        raise UserError(f"{op.label}: exactly one of scales and sizes must be given")
    like = np.broadcast_to(np.float32(0), x)
    if scales:
        plan = scale_axes("Resize", like, scales, places, crop)
    else:
        policy = getattr(op, "keep_aspect_ratio_policy", None) or "stretch"
        plan = size_axes(like, [int(n) for n in sizes], places, crop, policy)
    method = Method(op.mode, coordinates, op.nearest_mode, False, bool(op.exclude_outside), op.cubic_coeff_a)
    _resample(to, op, plan, [method] * len(plan))


@lowers("Resize", since=10)
@lowers("Upsample")
def upsample(to: Lowering, op: Any) -> None:
    """Before Resize 11: asymmetric coordinates; growing axes take the lower neighbour, others the upper."""
    x = to.shape(op.operands[0])
    kinds = {"nearest": "nearest", "linear": "linear"}
    if op.since_version == 1:
        kinds = {"nearest": "nearest", "bilinear": "linear"}
        if len(x) != 4:
            raise UserError(f"{op.label}: version 1 takes images (N, C, H, W), got {list(x)}")
        scales: Sequence[float] = (1.0, 1.0, op.height_scale, op.width_scale)
    elif isinstance(op.scales, str):
        scales = _list(to, op.scales, "scales")
    else:
        scales = op.scales
    choose(f"mode of {op.label}", op.mode, kinds)
    plan = scale_axes(op.op_type, np.broadcast_to(np.float32(0), x), scales, range(len(x)), ())
    if op.op_type == "Upsample" and any(axis.width < axis.before for axis in plan):
        raise UserError(f"{op.label}: scales {list(scales)} must be at least 1")
    nearest = ["ceil" if axis.width < axis.before else "floor" for axis in plan]
    _resample(to, op, plan, [Method(kinds[op.mode], nearest=mode) for mode in nearest])


def _list(to: Lowering, name: str, what: str) -> list[float]:
    return [float(v) for v in to.constant(name, what).reshape(-1)] if name else []


def _resample(to: Lowering, op: Any, plan: Sequence[Axis], methods: Sequence[Method]) -> None:
    source = op.operands[0]
    x = to.shape(source)
    if methods and methods[0].mode != "nearest" and to.dtype(source) != REAL:
        to.refuse("only floating-point elements are interpolated")
    shape = list(x)
    steps: list[tuple[int, np.ndarray, np.ndarray]] = []
    for axis, method in zip(plan, methods, strict=True):
        if axis.before == 0 or axis.after == 0:
            raise UserError(f"{op.label}: axis {axis.index} goes from {axis.before} to {axis.after} elements")
        shape[axis.index] = axis.after
        if method.coordinates == "tf_crop_and_resize" and axis.width != axis.after:
            to.refuse(f"tf_crop_and_resize gives axis {axis.index} the fractional size {axis.width}")
        if method.coordinates == "tf_half_pixel_for_nn" and axis.width == axis.before:
            check_unscaled(axis.index, axis.before, method.mode, method.nearest)
        index, weights, outside = taps(axis, method)
        if outside.any():
            to.refuse("a region of interest that leaves the input")
        picked = index[np.arange(axis.after), weights.argmax(axis=1)]
        plain = weights.shape[1] == 1 or bool(np.all(np.isin(weights, (0, 1))))
        if plain and np.array_equal(picked, np.arange(axis.before)):
            continue
        if plain:
            index, weights = picked[:, None], np.ones((axis.after, 1))
        steps.append((axis.index, index, weights))
    y = to.result(op, shape=shape)
    tables = {place: pieces(index[:, 0]) for place, index, weights in steps if weights.shape[1] == 1}
    if len(tables) == len(steps) and all(tables.values()):
        chosen = [tables.get(place) or whole(size) for place, size in enumerate(x)]
        copy_pieces(to, op, source, y, chosen)
        return
    for position, (place, index, weights) in enumerate(steps):
        last = position == len(steps) - 1
        grown = list(to.shape(source))
        grown[place] = shape[place]
        target = y if last else to.new(f"{y}.axis{place}", grown, to.dtype(source))
        _along(to, source, target, place, index, weights)
        source = target


def _along(to: Lowering, source: str, target: str, axis: int, index: np.ndarray, weights: np.ndarray) -> None:
    """One axis resampled: index and weights have shape (after, taps)."""
    axes = to.axes(to.shape(target))
    name = list(axes)[axis]
    _, labels = np.unique(weights.round(12), axis=0, return_inverse=True)
    found = pieces(index, labels.reshape(-1), _MOST_PIECES)
    if found is None:
        _by_matrix(to, source, target, axis, index, weights)
        return
    for piece in found:
        own = {a: n for a, n in axes.items() if a != name} | piece.axes("o")
        at = [piece.place("o") if a == name else affine(a) for a in axes]
        terms = [
            mul(Constant(float(weight)), to.load(source, _moved(axes, name, piece, column)))
            for column, weight in enumerate(weights[piece.start])
            if weight
        ]
        to.emit(target, at, own, functools.reduce(add, terms) if terms else ZERO)


def _moved(axes: dict[str, int], name: str, piece: Piece, column: int) -> list[Any]:
    return [piece.source("o", column) if a == name else affine(a) for a in axes]


def _by_matrix(
    to: Lowering, source: str, target: str, axis: int, index: np.ndarray, weights: np.ndarray
) -> None:
    before = to.shape(source)[axis]
    matrix = np.zeros((len(index), before))
    np.add.at(matrix, (np.arange(len(index))[:, None], index), weights)
    table = to.new(f"{target}.weights", matrix.shape, role=CONSTANT)
    to.program.constants[table] = matrix
    axes = to.axes(to.shape(target))
    name = list(axes)[axis]
    weight = to.load(table, [name, "e"], held=True)
    element = to.load(source, ["e" if a == name else a for a in axes])
    # Not a product: an element of weight 0 may be infinite.
    value = select(call("equal", weight, ZERO), ZERO, mul(weight, element))
    to.emit(target, list(axes), {**axes, "e": before}, value, SUM)
