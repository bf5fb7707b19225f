"""Constants, and descriptions of tensors as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


@rules.rule("Constant")
def constant(
    *,
    value: np.ndarray | None = None,
    sparse_value: Any = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> np.ndarray:
    """The tensor given by the one attribute that is set; strings as an object array.

    Raises:
        UserError: none or several are set, or a sparse tensor.
    """
    if sparse_value is not None:
        raise UserError("Constant: sparse_value is not supported; give the dense attribute value")
    given = [
        np.asarray(item, dtype)
        for item, dtype in (
            (value, None),
            (value_float, np.float32),
            (value_floats, np.float32),
            (value_int, np.int64),
            (value_ints, np.int64),
            (value_string, object),
            (value_strings, object),
        )
        if item is not None
    ]
    if len(given) != 1:
        raise UserError(f"Constant: {len(given)} of the value attributes are set, expected exactly one")
    return given[0]


@constant.vjp
def constant_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Nothing: a constant has no inputs."""
    return ()


@rules.rule("ConstantOfShape", 9, host=("shape",))
def constant_of_shape(shape: list[int], *, value: np.ndarray | None = None) -> np.ndarray:
    """A tensor of the given shape filled with ``value`` (one element; float32 zero without it).

    Raises:
        UserError: a negative dimension, or a value of another size than 1.
    """
    if min(shape, default=0) < 0 or (value is not None and value.size != 1):
        raise UserError(
            f"ConstantOfShape: shape {shape} must have no negative entry and value exactly one element"
        )
    if value is None:
        return np.zeros(shape, np.float32)
    return np.full(shape, value.reshape(()), value.dtype)


@rules.rule("Shape")
def shape(x: np.ndarray, *, end: int | None = None, start: int = 0) -> np.ndarray:
    """Dimensions ``start`` to ``end`` (exclusive, clamped as Python slices are) as int64."""
    return np.array(x.shape[start:end], np.int64)


@rules.rule("Size")
def size(x: np.ndarray) -> np.ndarray:
    """Number of elements, an int64 scalar."""
    return np.array(x.size, np.int64)
