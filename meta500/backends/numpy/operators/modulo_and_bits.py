"""Remainders, operators on the bits of numbers, and tests for special floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating, numeric, numeric_vjp, unbroadcast
from meta500.backends.rules import Call
from meta500.errors import UserError, choose
from meta500.graph.types import dtype_from_onnx, dtype_name

Gradients = tuple[np.ndarray | None, ...]


@rules.rule("Mod", 10)
@numeric
def mod(a: np.ndarray, b: np.ndarray, *, fmod: int = 0, since_version: int) -> np.ndarray:
    """Remainder of ``a / b``: with the sign of b (``fmod`` 0), or of a (``fmod`` 1). Shapes broadcast.

    Raises:
        UserError: an integer divisor of 0; before version 28, floats without ``fmod``; another ``fmod``.
    """
    if fmod not in (0, 1):
        raise UserError(f"Mod: fmod is {fmod}, it should be 0 or 1")
    if is_floating(a.dtype):
        if not fmod and since_version < 28:
            raise UserError(f"Mod: version {since_version} defines floats with fmod=1 only, fmod is 0")
    elif not np.all(b):
        raise UserError("Mod: an integer divisor is 0")
    return (np.fmod if fmod else np.mod)(a, b)


@mod.vjp
@numeric_vjp
def mod_vjp(call: Call, d: np.ndarray) -> Gradients:
    """``a - q b`` with the rounded quotient q held constant; none for integers."""
    a, b = call.inputs
    if not is_floating(a.dtype):
        return None, None
    if call.attributes.get("fmod", 0):
        quotient = np.rint((a - call.outputs[0]) / b)
    else:
        quotient = np.floor_divide(a, b)
    d_a = unbroadcast(np.asarray(d), a.shape) if call.needs[0] else None
    d_b = unbroadcast(np.asarray(-d * quotient), b.shape) if call.needs[1] else None
    return d_a, d_b


@rules.rule("BitShift", 11)
def bit_shift(x: np.ndarray, y: np.ndarray, *, direction: str) -> np.ndarray:
    """x shifted by y bits; right shifts of signed types keep the sign. Shapes broadcast.

    Amounts that are negative or not below the width shift everything out: 0, or -1 for a negative x to the
    right.

    Raises:
        UserError: a direction other than LEFT and RIGHT.
    """
    choose("BitShift direction", direction, ("LEFT", "RIGHT"))
    x, y = np.broadcast_arrays(x, y)
    width = x.dtype.itemsize * 8
    inside = (y >= 0) & (y < width)
    # numpy leaves shifts by the width or more to the processor.
    amount = np.where(inside, y, 0).astype(x.dtype)
    if direction == "LEFT":
        return np.asarray(np.where(inside, np.left_shift(x, amount), 0), x.dtype)
    emptied = np.where(x < 0, -1, 0) if x.dtype.kind == "i" else 0
    return np.asarray(np.where(inside, np.right_shift(x, amount), emptied), x.dtype)


@rules.rule("BitwiseAnd", 18)
def bitwise_and(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bits that both integers have; shapes broadcast."""
    return np.asarray(np.bitwise_and(a, b))


@rules.rule("BitwiseOr", 18)
def bitwise_or(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bits that either integer has; shapes broadcast."""
    return np.asarray(np.bitwise_or(a, b))


@rules.rule("BitwiseXor", 18)
def bitwise_xor(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Bits in which the integers differ; shapes broadcast."""
    return np.asarray(np.bitwise_xor(a, b))


@rules.rule("BitwiseNot", 18)
def bitwise_not(x: np.ndarray) -> np.ndarray:
    """All bits of the integers turned over."""
    return np.asarray(np.bitwise_not(x))


# ml_dtypes keeps one of these numbers in the low bits of a byte.
_NARROW = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}


def _width(dtype: np.dtype) -> int:
    return _NARROW.get(dtype.name, dtype.itemsize * 8)


@rules.rule("BitCast", 26)
def bit_cast(x: np.ndarray, *, to: int) -> np.ndarray:
    """The bits of x read as the element type with number ``to``, which has the same width. No gradient.

    As a bool, a byte other than 0 counts as true.

    Raises:
        UserError: strings, or a type of another width.
    """
    target = dtype_from_onnx(to)
    if target is None or target.kind == "O" or x.dtype.kind == "O" or _width(target) != _width(x.dtype):
        wanted = "undefined" if target is None else dtype_name(target)
        raise UserError(
            f"BitCast: from {dtype_name(x.dtype)} to {wanted} (element type {to}); both should be numbers "
            "of the same width"
        )
    if target.kind == "b":
        return np.asarray(x.view(np.uint8) != 0)
    return x.copy().view(target)


def _wide(x: np.ndarray) -> np.ndarray:
    """Floats that numpy has no tests for as float32, which holds their values exactly."""
    return x if x.dtype.kind == "f" else x.astype(np.float32)


@rules.rule("IsInf", 10)
def is_inf(x: np.ndarray, *, detect_negative: int = 1, detect_positive: int = 1) -> np.ndarray:
    """Whether elements are infinite, of the signs asked for (bool)."""
    wide = _wide(x)
    found: Any = np.zeros(x.shape, bool)
    if detect_negative:
        found = found | (wide == -np.inf)
    if detect_positive:
        found = found | (wide == np.inf)
    return np.asarray(found)


@rules.rule("IsNaN", 9)
def is_nan(x: np.ndarray) -> np.ndarray:
    """Whether elements are not a number (bool)."""
    return np.asarray(np.isnan(_wide(x)))
