"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear for the types that torch has.

4- and 2-bit types and scales of float8_e8m0 run on the host. What the operators mean is told by the numpy
rules of the same names; shapes are checked there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.numpy.operators.quantization import check_granularity, check_zero_point
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.cast import CAST_TYPE, FLOAT8, cast_tensor, to_float8
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.errors import UserError

INTEGERS = (torch.uint8, torch.int8, torch.uint16, torch.int16)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def spread(parameter: Tensor, shape: torch.Size, axis: int, block_size: int) -> Tensor:
    """A scale or zero point in a shape that broadcasts against data of ``shape``; as numpy's ``spread``."""
    if axis < 0:
        return parameter.reshape(())
    if not block_size:
        return parameter.reshape(-1, *(1,) * (len(shape) - axis - 1))
    places = torch.arange(shape[axis], device=parameter.device) // block_size
    return as_type(as_signed(parameter).index_select(axis, places), parameter.dtype)


def exact(x: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Quantized numbers as floats: 8-bit floats by way of float32, in which torch reads them."""
    return (x.to(torch.float32) if x.dtype in FLOAT8 else x).to(dtype)


def saturated(rounded: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers (float64) as an integer type: its limits where they exceed it, its lowest for NaN."""
    limits = torch.iinfo(dtype)
    return rounded.nan_to_num(limits.min).clamp(limits.min, limits.max).to(torch.int32).to(dtype)


def quantized(quotient: Tensor, zero_point: Tensor | None, dtype: torch.dtype, saturate: int = 1) -> Tensor:
    """``saturate(quotient + zero_point)`` in ``dtype``; for integers the quotient is rounded before the sum.

    Ties go to the even number. No gradient flows through.
    """
    quotient = quotient.detach()
    if dtype in INTEGERS:
        rounded = torch.round(quotient).to(torch.float64)
        return saturated(rounded if zero_point is None else rounded + zero_point.to(torch.float64), dtype)
    total = quotient if zero_point is None else quotient + exact(zero_point, quotient.dtype)
    return to_float8(total, dtype, bool(saturate))


def _name(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


def _target(zero_point: Tensor | None, output_dtype: int) -> torch.dtype:
    given = CAST_TYPE.get(output_dtype) if output_dtype else None
    if output_dtype and given is None:
        raise UserError(f"QuantizeLinear: torch has no element type number {output_dtype} (output_dtype)")
    if zero_point is not None and given not in (None, zero_point.dtype):
        raise UserError(
            f"QuantizeLinear: output_dtype is {_name(given)}, but the zero point is {_name(zero_point.dtype)}"
        )
    dtype = (given or torch.uint8) if zero_point is None else zero_point.dtype
    if dtype not in (*INTEGERS, *FLOAT8):
        names = ", ".join(map(_name, (*INTEGERS, *FLOAT8)))
        raise UserError(f"QuantizeLinear: {_name(dtype)} is no type to quantize to in torch; it has {names}")
    return dtype


def _division_type(scale: torch.dtype, precision: int) -> torch.dtype:
    """The type in which ``x / scale`` is computed: ``precision``, else the scale's; float64 for int32."""
    chosen = CAST_TYPE.get(precision) if precision else scale
    if chosen in (torch.int32, torch.int64):
        return torch.float64
    if chosen not in _FLOATS:
        name = f"number {precision}" if chosen is None else _name(chosen)
        raise UserError(f"QuantizeLinear: precision {name} is no type to divide in")
    return chosen


def _shape(x: Tensor | None) -> tuple[int, ...] | None:
    return None if x is None else tuple(x.shape)


@rules.rule("QuantizeLinear", since=10)
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    """ONNX QuantizeLinear: ``saturate(x / y_scale + y_zero_point)``, rounded to the nearest, ties to even.

    Quotients that are NaN become the lowest integer.

    Raises:
        UserError: shapes or types that do not fit.
    """
    operator = "QuantizeLinear"
    check_zero_point(operator, tuple(y_scale.shape), _shape(y_zero_point))
    dtype = _target(y_zero_point, output_dtype)
    place = check_granularity(operator, tuple(x.shape), tuple(y_scale.shape), axis, block_size)
    working = _division_type(y_scale.dtype, precision)
    scale = spread(cast_tensor(operator, y_scale.detach(), working), x.shape, place, block_size)
    quotient = cast_tensor(operator, x.detach(), working) / scale
    zero = None if y_zero_point is None else spread(y_zero_point, x.shape, place, block_size)
    wide = quotient.to(torch.float32) if working is torch.bfloat16 else quotient
    return quantized(wide, zero, dtype, saturate)


@rules.rule("DequantizeLinear", since=10)
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """ONNX DequantizeLinear: ``(x - x_zero_point) * x_scale``, in the scale's type or ``output_dtype``.

    16-bit results are computed in float32 and rounded once. The scale has a gradient.

    Raises:
        UserError: shapes or types that do not fit.
    """
    operator = "DequantizeLinear"
    check_zero_point(operator, tuple(x_scale.shape), _shape(x_zero_point))
    if x_zero_point is not None and x_zero_point.dtype != x.dtype:
        raise UserError(
            f"{operator}: the data is {_name(x.dtype)} and the zero point {_name(x_zero_point.dtype)}; "
            "they must have one type"
        )
    dtype = CAST_TYPE.get(output_dtype) if output_dtype else x_scale.dtype
    if dtype not in _FLOATS:
        name = f"number {output_dtype}" if dtype is None else _name(dtype)
        raise UserError(
            f"{operator}: {name} is no type of a result; set output_dtype to float32, float16 or bfloat16"
        )
    place = check_granularity(operator, tuple(x.shape), tuple(x_scale.shape), axis, block_size)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    # Differences of 32-bit integers need float64; all others are exact in float32.
    centred = exact(x, torch.float32 if x.dtype.is_floating_point else torch.float64)
    if x_zero_point is not None:
        centred = centred - spread(exact(x_zero_point, centred.dtype), x.shape, place, block_size)
    return (centred.to(wide) * spread(x_scale.to(wide), x.shape, place, block_size)).to(dtype)


@rules.rule("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """ONNX DynamicQuantizeLinear: x (float32) as uint8, with the scale and zero point of its range and zero.

    Data that is zero throughout has scale 0, and then zero point and result 0. The scale's gradient goes to
    the largest and the smallest elements, in equal parts where several are.

    Raises:
        UserError: no data, which has no range.
    """
    if x.numel() == 0:
        raise UserError(f"DynamicQuantizeLinear: data of shape {tuple(x.shape)} has no elements, so no range")
    lowest, highest = x.amin(), x.amax()
    low = torch.where(lowest >= 0, 0.0, lowest)
    high = torch.where(highest <= 0, 0.0, highest)
    scale = (high - low) / 255
    divisor = torch.where(scale == 0, 1.0, scale).detach()
    zero_point = saturated(
        torch.round((-low.detach() / divisor).clamp(0, 255)).to(torch.float64), torch.uint8
    )
    flat = torch.where(scale.detach() == 0, 0.0, x.detach() / divisor)
    return quantized(flat, zero_point, torch.uint8), scale, zero_point
