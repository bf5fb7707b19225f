"""Cast and CastLike between torch's element types, every conversion to a float rounded once.

Types that torch lacks (strings, integers and floats below 8 bits, float8_e8m0) are cast on the host.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.creation import TORCH_TYPE
from meta500.errors import UserError, choose

CAST_TYPE = {
    **{number: dtype for number, dtype in TORCH_TYPE.items() if not dtype.is_complex},
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
}
"""torch's dtype for each number of an ONNX element type that the torch backend casts to."""

# Magnitudes from which on numbers round to more than the largest one, and whether the limit itself does:
# halfway to the next number, ties going to the even one.
_OVERFLOW = {
    torch.float8_e4m3fn: (464.0, False),
    torch.float8_e4m3fnuz: (248.0, True),
    torch.float8_e5m2: (61440.0, True),
    torch.float8_e5m2fnuz: (61440.0, True),
}

FLOAT8 = tuple(_OVERFLOW)
"""The 8-bit floats that ``saturate`` concerns."""

_FNUZ = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_NARROW = (torch.float16, torch.bfloat16)
_LONG = (torch.int64, torch.uint64)

# Cast-1 names its target.
_NAMED_TYPE = {
    "FLOAT": 1, "UINT8": 2, "INT8": 3, "UINT16": 4, "INT16": 5, "INT32": 6, "INT64": 7, "BOOL": 9,
    "FLOAT16": 10, "DOUBLE": 11, "UINT32": 12, "UINT64": 13,
}  # fmt: skip


def _marked(x: Tensor) -> Tensor:
    """64-bit integers as float64, large ones with their lowest 11 bits only marked as zero or not."""
    bits = x.view(torch.int64)
    high = torch.bitwise_right_shift(bits, 11)
    large = (bits > 2**53) | (bits < -(2**53))
    if x.dtype is torch.uint64:
        high = torch.bitwise_and(high, 2**53 - 1)
        large = large | (bits < 0)
    sticky = (torch.bitwise_and(bits, 2047) != 0).to(torch.int64)
    return torch.where(large, torch.bitwise_or(high, sticky).to(torch.float64) * 2048, bits.to(torch.float64))


def _odd(x: Tensor) -> Tensor:
    """float64 as float32, the last bit set where something was cut off (Boldo and Melquiond 2008)."""
    y = x.to(torch.float32)
    cut = (y != x) & torch.isfinite(y)
    y = torch.where(cut & (y.abs() > x.abs()), torch.nextafter(y, torch.zeros_like(y)), y)
    return torch.bitwise_or(y.view(torch.int32), cut.to(torch.int32)).view(torch.float32)


def rounded_to_odd(x: Tensor) -> Tensor:
    """Numbers as float32 that round further to 16 or 8 bits as the numbers themselves would.

    The gradient of floats is that of a plain cast.
    """
    if x.dtype in _LONG:
        return _odd(_marked(x.contiguous()))
    if not x.dtype.is_floating_point:
        return _odd(x.to(torch.float64))
    if x.dtype is not torch.float64:
        return x.to(torch.float32)
    kept = x.detach()
    step = _odd(kept).to(torch.float64) - kept
    # Exact, both lying so close together. Infinities come by themselves, and -0 + x is x also for -0.
    return (x + torch.where(torch.isfinite(step) & (step != 0), step, -0.0)).to(torch.float32)


def to_float8(x: Tensor, dtype: torch.dtype, saturate: bool, infinities: bool = True) -> Tensor:
    """Numbers as one of FLOAT8; no gradient flows through.

    ``saturate`` keeps what is too large at the largest value; else it becomes infinite, or NaN in the types
    without infinities. ``infinities``: whether saturation takes in infinities in the FNUZ types too, as from
    Cast-24 on.
    """
    y = rounded_to_odd(x.detach())
    if saturate:
        if dtype in _FNUZ and not infinities:
            y = torch.where(torch.isinf(y), math.nan, y)
        limit = torch.finfo(dtype).max
        return y.clamp(-limit, limit).to(dtype)
    limit, included = _OVERFLOW[dtype]
    large = y.abs() >= limit if included else y.abs() > limit
    beyond = torch.copysign(torch.full_like(y, math.inf if dtype is torch.float8_e5m2 else math.nan), y)
    return torch.where(large, beyond, y).to(dtype)


def cast_tensor(
    operator: str, x: Any, dtype: torch.dtype, saturate: int = 1, infinities: bool = True
) -> Tensor:
    """``x`` with elements of ``dtype`` (one of CAST_TYPE), as ONNX Cast defines it.

    Raises:
        UserError: complex numbers, or an element type that torch lacks.
    """
    if not isinstance(x, Tensor):
        raise UserError(f"{operator}: torch has no tensors of {getattr(x, 'dtype', type(x).__name__)}")
    if x.is_complex():
        raise UserError(
            f"{operator}: no cast from {str(x.dtype)[6:]} to {str(dtype)[6:]}; ONNX casts between real "
            "numbers, booleans and strings"
        )
    if dtype in FLOAT8:
        return to_float8(x, dtype, bool(saturate), infinities)
    if x.dtype in FLOAT8:
        x = x.to(torch.float32)
    if dtype in _NARROW and x.dtype not in (*_NARROW, torch.float32, torch.bool):
        x = rounded_to_odd(x)
    return x.to(dtype)


@rules.rule("Cast", since=1)
def cast_1(x: Tensor, *, to: str) -> Tensor:
    """ONNX Cast-1, whose target type is named.

    Raises:
        UserError: an unknown name, complex numbers.
    """
    if to.upper() not in _NAMED_TYPE:
        choose("Cast type", to, _NAMED_TYPE)
    return cast_tensor("Cast", x, CAST_TYPE[_NAMED_TYPE[to.upper()]])


@rules.rule("Cast", since=6)
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up", since_version: int = 28) -> Tensor:
    """ONNX Cast to the type with number ``to``; integers out of range lose their upper bits.

    ``saturate`` concerns 8-bit floats; ``round_mode`` only float8_e8m0, which torch lacks.

    Raises:
        UserError: complex numbers, strings, float8_e8m0, floats and integers of less than 8 bits.
    """
    if to not in CAST_TYPE:
        known = ", ".join(f"{number} ({str(dtype)[6:]})" for number, dtype in CAST_TYPE.items())
        raise UserError(f"Cast: the torch backend has no element type number {to}; it has {known}")
    return cast_tensor("Cast", x, CAST_TYPE[to], saturate, since_version >= 24)


@rules.rule("CastLike", since=15)
def cast_like(
    x: Tensor, target: Tensor, *, saturate: int = 1, round_mode: str = "up", since_version: int = 25
) -> Tensor:
    """ONNX CastLike: the first input in the dtype of the second; see ``cast``.

    Raises:
        UserError: the second input has a type that ``cast`` refuses.
    """
    if not isinstance(target, Tensor) or target.dtype not in CAST_TYPE.values():
        raise UserError(f"CastLike: the torch backend does not cast to {getattr(target, 'dtype', 'strings')}")
    return cast_tensor("CastLike", x, target.dtype, saturate, since_version >= 24)
