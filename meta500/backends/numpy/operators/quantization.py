"""Between real numbers and low-precision ones: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear.

Scales and zero points come per tensor (one value), per axis (a vector along ``axis``) or per block (the shape
of the data, shortened ``block_size`` times along ``axis``).
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating, normal_axis, unbroadcast
from meta500.backends.numpy.operators.cast import (
    E8M0,
    FLOAT8,
    SMALL_FLOATS,
    SMALL_INTEGERS,
    cast_array,
    element_type,
    plain,
    rounded_to_odd,
    to_float8,
)
from meta500.backends.rules import Call
from meta500.errors import UserError
from meta500.graph.types import dtype_name

Gradients = tuple[np.ndarray | None, ...]

_WIDTHS = {
    np.dtype(np.uint8): (8, False),
    np.dtype(np.int8): (8, True),
    np.dtype(np.uint16): (16, False),
    np.dtype(np.int16): (16, True),
    **SMALL_INTEGERS,
}
_LIMITS = {
    dtype: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    for dtype, (bits, signed) in _WIDTHS.items()
}
"""Lowest and highest value of every integer type that QuantizeLinear produces."""


def check_granularity(
    operator: str, shape: tuple[int, ...], scale: tuple[int, ...], axis: int, block_size: int
) -> int:
    """The axis (from the front) that a scale of shape ``scale`` belongs to; -1 for one value per tensor.

    Raises:
        UserError: the shape of the scale fits none of the three granularities.
    """
    count = int(np.prod(scale))
    if block_size < 0:
        raise UserError(f"{operator}: block_size {block_size} is negative; 0 means no blocks")
    if len(scale) <= 1 and count == 1 and not block_size:
        return -1
    axis = normal_axis(axis, len(shape), operator)
    if not block_size:
        if scale != (shape[axis],):
            raise UserError(
                f"{operator}: a scale of shape {scale} fits no data of shape {shape} along axis {axis}: "
                f"expected one value, or {shape[axis]} values, or blocks with the attribute block_size"
            )
        return axis
    expected = (*shape[:axis], -(-shape[axis] // block_size), *shape[axis + 1 :])
    if scale != expected:
        raise UserError(
            f"{operator}: a scale of shape {scale} fits no data of shape {shape} in blocks of {block_size} "
            f"along axis {axis}: expected shape {expected}"
        )
    return axis


def spread(parameter: np.ndarray, shape: tuple[int, ...], axis: int, block_size: int) -> np.ndarray:
    """A scale or zero point in a shape that broadcasts against data of ``shape``."""
    if axis < 0:
        return parameter.reshape(())
    if block_size:
        places = np.arange(shape[axis]) // block_size
        return parameter.take(places, axis=axis)
    return parameter.reshape(-1, *(1,) * (len(shape) - axis - 1))


def unspread(d: np.ndarray, parameter: tuple[int, ...], axis: int, block_size: int) -> np.ndarray:
    """Adjoint of :func:`spread`: sums data-shaped values into the shape of the scale."""
    if axis >= 0 and block_size:
        starts = np.arange(0, d.shape[axis], block_size)
        return np.add.reduceat(d, starts, axis=axis) if d.size else np.zeros(parameter, d.dtype)
    fitted = (1,) * d.ndim if axis < 0 else (parameter[0], *(1,) * (d.ndim - axis - 1))
    return unbroadcast(d, fitted if axis >= 0 else ()).reshape(parameter)


def check_zero_point(operator: str, scale: tuple[int, ...], zero_point: tuple[int, ...] | None) -> None:
    """Whether a zero point of shape ``zero_point`` (None: there is none) fits a scale of shape ``scale``.

    Raises:
        UserError: it does not.
    """
    if zero_point is not None and zero_point != scale and max(math.prod(zero_point), math.prod(scale)) > 1:
        raise UserError(
            f"{operator}: the zero point has shape {zero_point} and the scale {scale}; they must be the same"
        )


def saturated(rounded: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Whole numbers (as floats) as an integer type: its limits where they exceed it, its lowest for NaN."""
    low, high = _LIMITS[dtype]
    whole = np.clip(np.where(np.isnan(rounded), low, rounded), low, high)
    return whole.astype(np.int32).astype(dtype)


def quantized(
    quotient: np.ndarray, zero_point: np.ndarray | None, dtype: np.dtype, saturate: int
) -> np.ndarray:
    """``saturate(quotient + zero_point)`` in ``dtype``; for integers the quotient is rounded before the sum.

    ``zero_point`` broadcasts against ``quotient``.
    """
    if dtype in _LIMITS:
        rounded = np.rint(quotient).astype(np.float64)
        return saturated(rounded if zero_point is None else rounded + plain(zero_point), dtype)
    total = quotient if zero_point is None else quotient + plain(zero_point).astype(quotient.dtype)
    return to_float8(total, dtype, bool(saturate)) if dtype in FLOAT8 else rounded_to_odd(total).astype(dtype)


def _target(zero_point: np.ndarray | None, output_dtype: int) -> np.dtype:
    operator = "QuantizeLinear"
    given = element_type(operator, output_dtype) if output_dtype else None
    if zero_point is not None and given is not None and given != zero_point.dtype:
        raise UserError(
            f"{operator}: output_dtype is {dtype_name(given)}, but the zero point is {zero_point.dtype.name}"
        )
    dtype = given if zero_point is None else zero_point.dtype
    dtype = np.dtype(np.uint8) if dtype is None else dtype
    if dtype not in (*_LIMITS, *FLOAT8, *SMALL_FLOATS):
        names = ", ".join(t.name for t in (*_LIMITS, *FLOAT8, *SMALL_FLOATS))
        raise UserError(f"{operator}: {dtype_name(dtype)} is no type to quantize to; possible are {names}")
    return dtype


def division_type(x: np.dtype, scale: np.dtype, precision: int) -> np.dtype:
    """The type in which ``x / scale`` is computed.

    It is ``precision`` if given, else the scale's; float64 where that is int32 (exact then), and the data's
    (at least float32) where it is float8_e8m0, division by a power of two being exact.
    """
    chosen = element_type("QuantizeLinear", precision) if precision else scale
    if chosen == E8M0:
        chosen = x if is_floating(x) else np.dtype(np.float32)
    if chosen.kind in "iu":
        return np.dtype(np.float64)
    if not is_floating(chosen):
        raise UserError(f"QuantizeLinear: precision {dtype_name(chosen)} is no type to divide in")
    return chosen


@rules.rule("QuantizeLinear", 10)
def quantize_linear(
    x: np.ndarray,
    y_scale: np.ndarray,
    y_zero_point: np.ndarray | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> np.ndarray:
    """``saturate(x / y_scale + y_zero_point)``, the quotient rounded to the nearest, ties to even.

    Quotients that are NaN become the lowest integer. The result is no type that gradients flow through.

    Raises:
        UserError: shapes or types that do not fit.
    """
    operator = "QuantizeLinear"
    check_zero_point(operator, y_scale.shape, None if y_zero_point is None else y_zero_point.shape)
    dtype = _target(y_zero_point, output_dtype)
    place = check_granularity(operator, x.shape, y_scale.shape, axis, block_size)
    working = division_type(x.dtype, y_scale.dtype, precision)
    with np.errstate(all="ignore"):
        scale = spread(cast_array(operator, y_scale, working), x.shape, place, block_size)
        quotient = np.asarray(cast_array(operator, x, working) / scale)
        zero = None if y_zero_point is None else spread(y_zero_point, x.shape, place, block_size)
        wide = plain(quotient) if working == ml_dtypes.bfloat16 else quotient
        return quantized(wide, zero, dtype, saturate)


def _centred(x: np.ndarray, zero_point: np.ndarray | None, place: int, block_size: int) -> np.ndarray:
    """``x - zero_point`` without rounding, as float32 or, for integers that need it, float64."""
    wide = plain(x)
    wide = wide.astype(np.float64 if wide.dtype.kind in "iu" else np.float32)
    if zero_point is None:
        return wide
    return wide - plain(spread(zero_point, x.shape, place, block_size)).astype(wide.dtype)


@rules.rule("DequantizeLinear", 10)
def dequantize_linear(
    x: np.ndarray,
    x_scale: np.ndarray,
    x_zero_point: np.ndarray | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> np.ndarray:
    """``(x - x_zero_point) * x_scale`` in the type of the scale, or in ``output_dtype``.

    16-bit results are computed in float32 and rounded once.

    Raises:
        UserError: shapes or types that do not fit.
    """
    operator = "DequantizeLinear"
    check_zero_point(operator, x_scale.shape, None if x_zero_point is None else x_zero_point.shape)
    if x_zero_point is not None and x_zero_point.dtype != x.dtype:
        raise UserError(
            f"{operator}: the data is {x.dtype.name} and the zero point {x_zero_point.dtype.name}; "
            "they must have one type"
        )
    dtype = element_type(operator, output_dtype) if output_dtype else x_scale.dtype
    if not is_floating(dtype):
        raise UserError(
            f"{operator}: {dtype_name(dtype)} is no type of a result; set output_dtype to float32, float16 "
            "or bfloat16"
        )
    place = check_granularity(operator, x.shape, x_scale.shape, axis, block_size)
    with np.errstate(all="ignore"):
        wide = np.float64 if dtype == np.float64 else np.float32
        factor = spread(x_scale, x.shape, place, block_size).astype(wide)
        product = np.multiply(_centred(x, x_zero_point, place, block_size).astype(wide), factor)
        return np.asarray(product).astype(dtype)


@dequantize_linear.vjp
def dequantize_linear_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The scale's gradient; quantized values have none."""
    x, scale = call.inputs[:2]
    rest = (None,) * (len(call.inputs) - 2)
    if not call.needs[1] or not is_floating(scale.dtype):
        return (None, None, *rest)
    zero_point = call.inputs[2] if rest else None
    axis, block_size = call.attributes.get("axis", 1), call.attributes.get("block_size", 0)
    place = check_granularity("DequantizeLinear", x.shape, scale.shape, axis, block_size)
    with np.errstate(all="ignore"):
        wide = np.float64 if d.dtype == np.float64 else np.float32
        products = d.astype(wide) * _centred(x, zero_point, place, block_size).astype(wide)
        return (None, unspread(products, scale.shape, place, block_size).astype(scale.dtype), *rest)


@rules.rule("DynamicQuantizeLinear", 11)
def dynamic_quantize_linear(x: np.ndarray, *, saved: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """x (float32) as uint8, with the scale and zero point that spread 0..255 over its range and zero.

    As the operator's function body computes it: data that is zero throughout has scale 0, and then zero point
    and result 0 (where the body divides 0 by 0).

    Raises:
        UserError: no data, which has no range.
    """
    if x.size == 0:
        raise UserError(f"DynamicQuantizeLinear: data of shape {x.shape} has no elements, so no range")
    zero = x.dtype.type(0)
    with np.errstate(all="ignore"):
        low, high = np.minimum(x.min(), zero), np.maximum(x.max(), zero)
        scale = np.asarray((high - low) / x.dtype.type(255))
        saved.update(low=low, high=high)
        if scale == 0:
            return np.zeros(x.shape, np.uint8), scale, np.zeros((), np.uint8)
        zero_point = saturated(
            np.rint(np.clip(zero - low / scale, zero, x.dtype.type(255))), np.dtype(np.uint8)
        )
        y = quantized(np.asarray(x / scale), zero_point, np.dtype(np.uint8), 1)
    return y, scale, np.asarray(zero_point)


@dynamic_quantize_linear.vjp
def dynamic_quantize_linear_vjp(
    call: Call, d_y: Any, d_scale: np.ndarray | None, d_zero_point: Any = None
) -> Gradients:
    """Through the scale, to the largest and the smallest elements (in equal parts where several are)."""
    x = call.inputs[0]
    result = np.zeros_like(x)
    if d_scale is None:
        return (result,)
    for extreme, sign in ((call.saved["high"], 1), (call.saved["low"], -1)):
        if extreme != 0:
            places = x == extreme
            result = result + places * (sign * d_scale / 255 / max(int(places.sum()), 1))
    return (result.astype(x.dtype),)
