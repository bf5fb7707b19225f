"""Cast and CastLike between all ONNX element types: numbers of every width, booleans and strings.

Every conversion to a float rounds once, to the nearest value with ties to even (float8_e8m0: by its rounding
mode). Integers out of range lose their upper bits; what ONNX leaves undefined (floats out of an integer's
range) is whatever numpy does.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
from onnx import TensorProto

from meta500.backends.numpy.operators import rules
from meta500.backends.rules import Call
from meta500.errors import UserError, choose
from meta500.graph.types import dtype_from_onnx, dtype_name

E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
FLOAT8 = tuple(
    np.dtype(t)
    for t in (
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e4m3fnuz,
        ml_dtypes.float8_e5m2,
        ml_dtypes.float8_e5m2fnuz,
    )
)
"""The 8-bit floats that ``saturate`` concerns."""

SMALL_INTEGERS = {
    np.dtype(ml_dtypes.int4): (4, True),
    np.dtype(ml_dtypes.uint4): (4, False),
    np.dtype(ml_dtypes.int2): (2, True),
    np.dtype(ml_dtypes.uint2): (2, False),
}
"""Bits and signedness of the integers narrower than a byte."""

SMALL_FLOATS = tuple(
    np.dtype(getattr(ml_dtypes, name))
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn")
    if hasattr(ml_dtypes, name)
)
"""Floats without infinities and NaN: what is too large becomes the largest value."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_ML_FLOATS = (_BFLOAT16, E8M0, *FLOAT8, *SMALL_FLOATS)
_ROUND_MODES = ("up", "down", "nearest")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf|nan", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d+")


def plain(x: np.ndarray) -> np.ndarray:
    """``x`` in a type that numpy computes with, without rounding: its own, float32, int8 or uint8."""
    if x.dtype in _ML_FLOATS:
        return x.astype(np.float32)
    if x.dtype in SMALL_INTEGERS:
        return x.astype(np.int8 if SMALL_INTEGERS[x.dtype][1] else np.uint8)
    return x


def rounded_to_odd(x: np.ndarray) -> np.ndarray:
    """Numbers as float32 whose last bit marks that something was cut off.

    Rounding this further is exact, where rounding twice to the nearest is not (Boldo and Melquiond 2008).
    """
    if x.dtype == np.float32:
        return x
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8:
        # float64 holds 53 bits: the lowest 11 bits of a large integer only matter as "not zero".
        large = (x > 2**53) | (x < -(2**53)) if x.dtype.kind == "i" else x > 2**53
        marked = ((x >> 11) | (x & 2047 != 0)).astype(np.float64) * 2048
        x = np.where(large, marked, x.astype(np.float64))
    x = x.astype(np.float64, copy=False)
    y = x.astype(np.float32)
    cut = (y != x) & np.isfinite(y)
    y = np.where(cut & (np.abs(y) > np.abs(x)), np.nextafter(y, np.float32(0)), y)
    return (y.view(np.uint32) | cut.astype(np.uint32)).view(np.float32)


def to_float8(x: np.ndarray, dtype: np.dtype, saturate: bool, infinities: bool = True) -> np.ndarray:
    """Numbers as one of FLOAT8.

    ``saturate`` keeps what is too large at the largest value; else it becomes infinite, or NaN in the types
    without infinities. ``infinities``: whether saturation takes in infinities in the FNUZ types too, as from
    Cast-24 on.
    """
    y = rounded_to_odd(x)
    if saturate:
        limit = np.float32(ml_dtypes.finfo(dtype).max)
        if not infinities and dtype.name.endswith("fnuz"):
            y = np.where(np.isinf(y), np.float32(np.nan), y)
        y = np.clip(y, -limit, limit)
    return np.asarray(y).astype(dtype)


def _to_e8m0(x: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Magnitudes as powers of two from 2**-127 to 2**127 (Cast-24); the sign, undefined there, is dropped."""
    choose("round_mode of Cast", round_mode, _ROUND_MODES)
    magnitude = np.abs(x.astype(np.float64))
    fraction, exponent = np.frexp(magnitude)
    if round_mode == "up":
        exponent = exponent - (fraction <= 0.5)
    elif round_mode == "down":
        exponent = exponent - 1
    else:
        exponent = exponent - (fraction < 0.75)
    # Zero and infinity have no exponent of their own.
    exponent = np.where(magnitude == 0, -127, np.where(np.isinf(magnitude), 127, exponent))
    bits = (np.clip(exponent, -127, 127) + 127).astype(np.uint8)
    lost = np.isnan(magnitude)
    if not saturate:
        lost |= (magnitude > 2.0**127) | (magnitude < 2.0**-127)
    return np.where(lost, np.uint8(255), bits).astype(np.uint8).view(E8M0)


def _text(value: object) -> str:
    if isinstance(value, np.floating):
        if np.isfinite(value):
            return str(np.format_float_positional(value, unique=True, trim="0"))
        return "NaN" if np.isnan(value) else "INF" if value > 0 else "-INF"
    return str(value)


def _to_text(x: np.ndarray) -> np.ndarray:
    """Numbers in plain notation with as many digits as tell them apart; "INF", "-INF", "NaN"; True, False."""
    result = np.empty(x.shape, object)
    result.reshape(-1)[:] = [_text(value) for value in plain(x).reshape(-1)]
    return result


def _parsed(operator: str, text: object, integer: bool) -> float | int:
    word = text.decode() if isinstance(text, bytes) else str(text)
    word = word.strip()
    if integer and _INTEGER.fullmatch(word):
        return int(word)
    if word.lower() in ("true", "false"):
        return int(word.lower() == "true")
    if not _NUMBER.fullmatch(word):
        raise UserError(f"{operator}: the text {word!r} is no number, so its cast is undefined")
    number = float(word)
    if not integer:
        return number
    if not np.isfinite(number):
        raise UserError(f"{operator}: the text {word!r} has no value as an integer")
    return int(number)


def _from_text(operator: str, x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Strings as float64, or as integers of the target's width (out of range: upper bits lost)."""
    integer = dtype.kind in "iu" or dtype in SMALL_INTEGERS
    numbers = [_parsed(operator, text, integer) for text in x.reshape(-1)]
    if not integer:
        return np.array(numbers, np.float64).reshape(x.shape)
    wrapped = np.array([int(number) % 2**64 for number in numbers], np.uint64).reshape(x.shape)
    return wrapped.view(np.int64)


def _to_small_integer(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    bits, signed = SMALL_INTEGERS[dtype]
    low = x.astype(np.int64) & (2**bits - 1)
    if signed:
        low = low - ((low >> (bits - 1)) << bits)
    return low.astype(np.int8 if signed else np.uint8).astype(dtype)


def cast_array(
    operator: str,
    x: np.ndarray,
    dtype: np.dtype,
    saturate: int = 1,
    round_mode: str = "up",
    infinities: bool = True,
) -> np.ndarray:
    """``x`` with elements of ``dtype``, as ONNX Cast defines it; see :func:`to_float8` for ``infinities``.

    Raises:
        UserError: complex numbers, a text that is no number, an unknown round_mode.
    """
    if "c" in (x.dtype.kind, dtype.kind):
        raise UserError(
            f"{operator}: no cast from {dtype_name(x.dtype)} to {dtype_name(dtype)}; "
            "ONNX casts between real numbers, booleans and strings"
        )
    # Out of range is undefined for integers and infinite for floats: no warning either way.
    with np.errstate(all="ignore"):
        if x.dtype.kind in "OUS":
            if dtype.kind == "O":
                return x.astype(object)
            x = _from_text(operator, x, dtype)
        elif dtype.kind == "O":
            return _to_text(x)
        if x.dtype == dtype and dtype not in FLOAT8:
            return x
        x = plain(x)
        if dtype in SMALL_INTEGERS:
            return _to_small_integer(x, dtype)
        if dtype in FLOAT8:
            return to_float8(x, dtype, bool(saturate), infinities)
        if dtype == E8M0:
            return _to_e8m0(x, bool(saturate), round_mode)
        if dtype == _BFLOAT16 or dtype in SMALL_FLOATS:
            return np.asarray(rounded_to_odd(x)).astype(dtype)
        return x.astype(dtype)


def element_type(operator: str, to: int) -> np.dtype:
    """The numpy dtype of the ONNX element type with number ``to``.

    Raises:
        UserError: there is no such type.
    """
    dtype = dtype_from_onnx(to)
    if dtype is None:
        raise UserError(f"{operator}: element type {to} (undefined) is no type to cast to")
    return dtype


@rules.rule("Cast", 6)
def cast(
    x: np.ndarray, *, to: int, saturate: int = 1, round_mode: str = "up", since_version: int = 28
) -> np.ndarray:
    """x in the type ``to`` (number of the ONNX element type), rounded once to the nearest, ties to even.

    ``saturate`` concerns 8-bit floats, ``round_mode`` only float8_e8m0. No gradient flows through values of
    other types than float16, bfloat16, float32 and float64.

    Raises:
        UserError: complex numbers, a text that is no number.
    """
    infinities = since_version >= 24
    return cast_array("Cast", x, element_type("Cast", to), saturate, round_mode, infinities)


@rules.rule("Cast", 1)
def cast_named(x: np.ndarray, *, to: str) -> np.ndarray:
    """Version 1: ``to`` is the name of the ONNX element type, such as "FLOAT"."""
    names = [name for name, number in TensorProto.DataType.items() if number]
    choose("Cast type", to.upper(), names)
    return cast_array("Cast", x, element_type("Cast", TensorProto.DataType.Value(to.upper())))


@rules.rule("CastLike", 15)
def cast_like(
    x: np.ndarray,
    target_type: np.ndarray,
    *,
    saturate: int = 1,
    round_mode: str = "up",
    since_version: int = 25,
) -> np.ndarray:
    """x in the type of the second input; as Cast."""
    dtype = np.dtype(object) if target_type.dtype.kind in "US" else target_type.dtype
    return cast_array("CastLike", x, dtype, saturate, round_mode, since_version >= 24)


_DIFFERENTIABLE = (np.dtype(np.float16), _BFLOAT16, np.dtype(np.float32), np.dtype(np.float64))


@cast.vjp
@cast_named.vjp
@cast_like.vjp
def cast_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """The cotangent in the type of x, between the four larger float types; nothing otherwise.

    Of its second input CastLike takes the type only: zero.
    """
    x, *like = call.inputs
    differentiable = x.dtype in _DIFFERENTIABLE and d.dtype in _DIFFERENTIABLE
    return (d.astype(x.dtype) if differentiable else None, *map(np.zeros_like, like))
