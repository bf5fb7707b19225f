"""What all numpy rules share about arrays: arithmetic mode, 16-bit floats, broadcasting and axes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from meta500.backends.rules import Call
from meta500.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])

_SIXTEEN_BIT = ("float16", "bfloat16")


def is_floating(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is a float that the rules compute with (bfloat16 has numpy kind 'V')."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _widen(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.name in _SIXTEEN_BIT:
        return value.astype(np.float32)
    return value


def _narrow(value: Any, dtype: np.dtype) -> Any:
    """``value`` as an array (or None), in ``dtype`` where it is a float of another one."""
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(dtype) if array.dtype != dtype and is_floating(array.dtype) else array


def numeric(function: F) -> F:
    """Give a forward function the arithmetic that all rules have.

    IEEE results (infinities, NaN) come without numpy warnings; where the first input is float16 or bfloat16,
    all are computed in float32 and the float results are rounded once at the end; 0-d results are arrays
    instead of numpy scalars. Only for operators whose float results have the type of their first input.
    """

    @functools.wraps(function)
    def run(*arrays: Any, **keywords: Any) -> Any:
        narrow = bool(arrays) and arrays[0].dtype.name in _SIXTEEN_BIT
        with np.errstate(all="ignore"):
            if not narrow:
                result = function(*arrays, **keywords)
                return result if isinstance(result, tuple) else np.asarray(result)
            result = function(*(_widen(array) for array in arrays), **keywords)
            dtype = arrays[0].dtype
            if isinstance(result, tuple):
                return tuple(_narrow(item, dtype) for item in result)
            return _narrow(result, dtype)

    return run  # type: ignore[return-value]


def numeric_vjp(function: F) -> F:
    """The same for a vector-Jacobian product ``function(call, *cotangents)``.

    Every gradient gets exactly the dtype of its input.
    """

    @functools.wraps(function)
    def run(call: Call, *cotangents: Any) -> Any:
        wide = call
        if call.inputs[0].dtype.name in _SIXTEEN_BIT:
            wide = replace(
                call,
                inputs=tuple(_widen(array) for array in call.inputs),
                outputs=tuple(_widen(array) for array in call.outputs),
            )
            cotangents = tuple(_widen(array) for array in cotangents)
        with np.errstate(all="ignore"):
            gradients = function(wide, *cotangents)
            return tuple(
                None if gradient is None else _narrow(gradient, array.dtype)
                for gradient, array in zip(gradients, call.inputs, strict=True)
            )

    return run  # type: ignore[return-value]


def unbroadcast(cotangent: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum a cotangent of the broadcast shape back to ``shape``: the adjoint of numpy broadcasting."""
    extra = cotangent.ndim - len(shape)
    axes = tuple(range(extra)) + tuple(
        extra + i for i, n in enumerate(shape) if n == 1 and cotangent.shape[extra + i] != 1
    )
    if not axes:
        return cotangent.reshape(shape)
    total = cotangent.sum(axis=axes, dtype=_sum_dtype(cotangent.dtype))
    return np.asarray(total, cotangent.dtype).reshape(shape)


def _sum_dtype(dtype: np.dtype) -> Any:
    """float32 for 16-bit floats: sums of many of them need it."""
    return np.float32 if dtype.name in _SIXTEEN_BIT else dtype


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of ``shape`` broadcasts to exactly ``target`` (ONNX: unidirectional)."""
    return len(shape) <= len(target) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(target), strict=False)
    )


def scatter_sum(values: np.ndarray, index: np.ndarray, length: int, axis: int) -> np.ndarray:
    """Add slices of ``values`` along ``axis`` into ``length`` places: the adjoint of ``take``.

    ``index`` is 1-D, non-negative, one entry per slice. Returns an array like ``values`` with ``length``
    slices along ``axis``. Sorting and summing runs is deterministic and faster than ``np.add.at``.
    """
    shape = (*values.shape[:axis], length, *values.shape[axis + 1 :])
    result = np.zeros(shape, values.dtype)
    if index.size == 0:
        return result
    if np.any(index[1:] < index[:-1]):
        order = np.argsort(index, kind="stable")
        values, index = values.take(order, axis=axis), index[order]
    starts = np.flatnonzero(np.concatenate(([True], index[1:] != index[:-1])))
    places = (slice(None),) * axis + (index[starts],)
    if starts.size == index.size:
        result[places] = values
    else:
        result[places] = np.add.reduceat(values, starts, axis=axis, dtype=_sum_dtype(values.dtype))
    return result


def normal_axis(axis: int, rank: int, operator: str, limit: int | None = None) -> int:
    """``axis`` counted from the front.

    Raises:
        UserError: outside [-rank, rank - 1] (or [-rank, limit] where ``limit`` is given).
    """
    last = rank - 1 if limit is None else limit
    if not -rank <= axis <= last:
        raise UserError(f"{operator}: axis {axis} is outside [{-rank}, {last}] for a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def normal_axes(axes: Sequence[int] | int, rank: int, operator: str) -> tuple[int, ...]:
    """Distinct axes counted from the front, in the order given.

    Raises:
        UserError: an axis is out of range or occurs twice.
    """
    listed = [axes] if isinstance(axes, int) else list(axes)
    normal = tuple(normal_axis(int(axis), rank, operator) for axis in listed)
    if len(set(normal)) != len(normal):
        raise UserError(f"{operator}: axes {listed} name a dimension twice (rank {rank})")
    return normal


def as_list(value: Any) -> list[Any]:
    """A host value (scalar or list, as ``tolist`` gives it) as a flat list."""
    return list(value) if isinstance(value, list | tuple) else [value]
