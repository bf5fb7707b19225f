"""Runs a program stage by stage in numpy: slow, and the meaning of the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import Access, Apply, Constant, Expr, Index, Load, Result
from meta500.backends.generated.ir import MAX, RANDOM, REAL, SUM, Program, Stage
from meta500.errors import UserError

Array = Any


def run(
    program: Program, given: Mapping[str, np.ndarray], real: np.dtype | type = np.float64
) -> dict[str, np.ndarray]:
    """All tensors of the program after its last stage.

    Args:
        program: whose stages are run in order.
        given: arrays of inputs and parameters by tensor name.
        real: the type of tensors that are "real".

    Raises:
        KeyError: an input or parameter is missing.
    """
    values: dict[str, np.ndarray] = {}
    for name, tensor in program.tensors.items():
        dtype = np.dtype(real) if tensor.dtype == REAL else np.dtype(tensor.dtype)
        if name in program.constants:
            values[name] = program.constants[name].astype(dtype).reshape(tensor.shape)
        elif name == RANDOM:
            values[name] = np.array(given.get(name, (0, 0)), dtype)
        elif tensor.role in ("input", "parameter"):
            values[name] = np.array(given[name], dtype).reshape(tensor.shape)
        else:
            # What nobody writes must not look like a result.
            values[name] = np.full(tensor.shape, np.nan if tensor.dtype == REAL else 0, dtype)
    with np.errstate(all="ignore"):
        for stage in program.stages:
            run_stage(stage, values)
    return values


def run_stage(stage: Stage, values: dict[str, np.ndarray]) -> None:
    """One stage, in place.

    Raises:
        UserError: it exchanges messages with other processes.
    """
    if stage.message is not None:
        raise UserError(f"stage {stage.name} exchanges messages, which the interpreter of stages does not do")
    sizes = [axis.size for axis in stage.axes]
    grid = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), int)
    points = {axis.name: grid[i] for i, axis in enumerate(stage.axes)}
    count = grid.shape[1]
    for guard in stage.guards:
        index = _index(guard.index, points, count)
        keep = (index >= guard.low) & (index < guard.high)
        points = {name: column[keep] for name, column in points.items()}
        count = int(keep.sum())
    shape = values[stage.write.tensor].shape
    target = values[stage.write.tensor].reshape(-1)
    if stage.combine not in (SUM, MAX):
        target[_place(stage.write, shape, points, count)] = _evaluate(stage.value, points, count, values)
        return
    kept = [axis.size for axis in stage.kept]
    kept_grid = np.indices(kept).reshape(len(kept), -1) if kept else np.zeros((0, 1), int)
    kept_points = {axis.name: kept_grid[i] for i, axis in enumerate(stage.kept)}
    # What is added onto may be written from outside of the tensor, where guards forbid it.
    elements = None if stage.onto else _place(stage.write, shape, kept_points, kept_grid.shape[1])
    if stage.initial is not None:
        target[elements] = _evaluate(stage.initial, kept_points, kept_grid.shape[1], values)
    elif not stage.onto:
        target[elements] = 0.0 if stage.combine == SUM else -np.inf
    terms = np.broadcast_to(np.asarray(_evaluate(stage.value, points, count, values), target.dtype), (count,))
    place = _place(stage.write, shape, points, count)
    if stage.combine == SUM:
        np.add.at(target, place, terms)
    else:
        _maximum(stage, target, place, terms, points, count, values)
    if stage.finish is not None:
        elements = _place(stage.write, shape, kept_points, kept_grid.shape[1])
        finished = _evaluate(stage.finish, kept_points, kept_grid.shape[1], values, target[elements])
        target[elements] = finished


def _maximum(
    stage: Stage, target: Array, place: Array, terms: Array, points: Any, count: int, values: Any
) -> None:
    np.maximum.at(target, place, terms)
    if stage.winner is None:
        return
    access, number = stage.winner
    numbers = np.broadcast_to(_index(number, points, count), (count,))
    winners = values[access.tensor].reshape(-1)
    spots = _place(access, values[access.tensor].shape, points, count)
    winners[spots] = np.iinfo(winners.dtype).max
    first, nan = terms == target[place], np.isnan(terms)
    np.minimum.at(winners, spots[first], numbers[first].astype(winners.dtype))
    winners[spots[nan]] = -1
    np.maximum.at(winners, spots[nan], numbers[nan].astype(winners.dtype))


def _index(index: Affine, points: Mapping[str, Array], count: int) -> Array:
    total = np.full(count, index.constant)
    for name, coefficient in index.terms:
        total = total + coefficient * points[name]
    return total


def _place(access: Access, shape: tuple[int, ...], points: Mapping[str, Array], count: int) -> Array:
    """Row-major positions of the accessed elements.

    Raises:
        IndexError: one of them is outside of the tensor.
    """
    place = np.zeros(count, np.int64)
    for size, index in zip(shape, access.indices, strict=True):
        column = _index(index, points, count)
        if count and (column.min() < 0 or column.max() >= size):
            raise IndexError(f"{access}: index {index} leaves 0..{size - 1}")
        place = place * size + column
    return place


_UFUNCS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "exp": np.exp,
    "exp_nonpositive": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "less": np.less,
    "greater": np.greater,
    "less_equal": np.less_equal,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "select": np.where,
    "relu": lambda x: np.where(np.asarray(x) < 0, 0, x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "uniform": lambda number, *state: _uniform(np.asarray(number)),
}


def _uniform(number: Array) -> Array:
    """A number in [0, 1) for each number: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        z = (number.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _evaluate(
    expr: Expr, points: Mapping[str, Array], count: int, values: Mapping[str, Array], result: Array = None
) -> Array:
    if isinstance(expr, Constant):
        return expr.value
    if isinstance(expr, Load):
        array = values[expr.access.tensor]
        return array.reshape(-1)[_place(expr.access, array.shape, points, count)]
    if isinstance(expr, Index):
        return _index(expr.index, points, count)
    if isinstance(expr, Result):
        return result
    assert isinstance(expr, Apply)
    arguments = [_evaluate(a, points, count, values, result) for a in expr.arguments]
    if expr.function == "erf":
        from scipy.special import erf

        return erf(*arguments)
    return _UFUNCS[expr.function](*arguments)
