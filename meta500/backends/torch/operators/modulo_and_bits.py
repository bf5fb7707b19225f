"""Remainders, operators on the bits of numbers, and tests for special floats."""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.creation import TORCH_TYPE
from meta500.backends.torch.operators.integers import UNSIGNED, as_signed, as_type, divide
from meta500.errors import UserError, choose

_HALF = (torch.float16, torch.bfloat16)


@rules.rule("Mod", since=10)
def mod(a: Tensor, b: Tensor, *, fmod: int = 0, since_version: int) -> Tensor:
    """ONNX Mod: remainder with the sign of b (``fmod`` 0) or of a (``fmod`` 1); 16-bit floats in float32.

    Raises:
        UserError: before version 28, floats without ``fmod``; another ``fmod``.
        RuntimeError: an integer divisor of 0 (on the CPU).
    """
    if fmod not in (0, 1):
        raise UserError(f"Mod: fmod is {fmod}, it should be 0 or 1")
    if a.dtype.is_floating_point:
        if not fmod and since_version < 28:
            raise UserError(f"Mod: version {since_version} defines floats with fmod=1 only, fmod is 0")
        if a.dtype in _HALF:
            return _float_mod(a.float(), b.float(), fmod).to(a.dtype)
        return _float_mod(a, b, fmod)
    if a.dtype is torch.uint64:
        quotient = divide(a, b).view(torch.int64)
        return (a.view(torch.int64) - quotient * b.view(torch.int64)).view(a.dtype)
    if a.dtype in UNSIGNED:
        return torch.remainder(a.to(torch.int64), b.to(torch.int64)).to(a.dtype)
    if a.dtype is not torch.uint8:
        # Processors trap on the lowest integer modulo -1; modulo 1 it is 0 as well.
        b = torch.where(b == -1, 1, b)
    return torch.fmod(a, b) if fmod else torch.remainder(a, b)


def _float_mod(a: Tensor, b: Tensor, fmod: int) -> Tensor:
    if fmod:
        return torch.fmod(a, b)
    result = torch.remainder(a, b)
    # ONNX gives a zero the sign of b, torch that of a. The gradient is the same on either side; the second
    # term is zero and carries it.
    value = result.detach()
    flipped = -value - (value - result)
    return torch.where((value == 0) & (torch.signbit(value) != torch.signbit(b)), flipped, result)


@rules.rule("BitShift", since=11)
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    """ONNX BitShift: arithmetic to the right for signed types; amounts outside the width shift all out.

    Raises:
        UserError: a direction other than LEFT and RIGHT.
    """
    choose("BitShift direction", direction, ("LEFT", "RIGHT"))
    width = x.dtype.itemsize * 8
    bits, amount = as_signed(x), as_signed(y)
    inside = (amount >= 0) & (amount < width)
    if direction == "LEFT":
        shifted = torch.bitwise_left_shift(bits, torch.where(inside, amount, 0))
        return as_type(torch.where(inside, shifted, 0), x.dtype)
    shifted = torch.bitwise_right_shift(bits, torch.where(inside, amount, 0))
    if x.dtype is torch.uint8:
        return torch.where(inside, shifted, 0)
    if x.dtype in UNSIGNED:
        # The signed view filled in copies of the top bit: keep the width - amount bits that came from x.
        one = torch.ones((), dtype=bits.dtype, device=x.device)
        kept = torch.bitwise_left_shift(one, torch.where(inside & (amount > 0), width - amount, 0)) - 1
        cleared = torch.where(amount == 0, shifted, torch.bitwise_and(shifted, kept))
        return torch.where(inside, cleared, 0).view(x.dtype)
    return torch.where(inside, shifted, torch.where(bits < 0, -1, 0).to(x.dtype))


@rules.rule("BitwiseAnd", since=18)
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    """ONNX BitwiseAnd: bits that both integers have."""
    return as_type(torch.bitwise_and(as_signed(a), as_signed(b)), a.dtype)


@rules.rule("BitwiseOr", since=18)
def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    """ONNX BitwiseOr: bits that either integer has."""
    return as_type(torch.bitwise_or(as_signed(a), as_signed(b)), a.dtype)


@rules.rule("BitwiseXor", since=18)
def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    """ONNX BitwiseXor: bits in which the integers differ."""
    return as_type(torch.bitwise_xor(as_signed(a), as_signed(b)), a.dtype)


@rules.rule("BitwiseNot", since=18)
def bitwise_not(x: Tensor) -> Tensor:
    """ONNX BitwiseNot: all bits of the integers turned over."""
    return as_type(torch.bitwise_not(as_signed(x)), x.dtype)


_BIT_TYPE = {
    **TORCH_TYPE,
    17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz,
    19: torch.float8_e5m2,
    20: torch.float8_e5m2fnuz,
}


@rules.rule("BitCast", since=26)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    """ONNX BitCast: the bits of x as the element type with number ``to``; a byte other than 0 is true.

    Raises:
        UserError: a type of another width or one that torch lacks; floats to floats that need a gradient.
    """
    target = _BIT_TYPE.get(to)
    if target is None or target.itemsize != x.dtype.itemsize:
        same = [f"{n} ({str(t)[6:]})" for n, t in _BIT_TYPE.items() if t.itemsize == x.dtype.itemsize]
        raise UserError(f"BitCast: {str(x.dtype)[6:]} can be read as {', '.join(same)}, not as number {to}")
    if x.requires_grad and torch.is_grad_enabled() and (target.is_floating_point or target.is_complex):
        raise UserError("BitCast: bits read as another type have no gradient")
    if target is torch.bool:
        return x.view(torch.uint8) != 0
    return x.view(target).clone()


@rules.rule("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    """ONNX IsInf: whether elements are infinite, of the signs asked for (bool)."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    found = torch.zeros_like(wide, dtype=torch.bool)
    if detect_negative:
        found = found | torch.isneginf(wide)
    if detect_positive:
        found = found | torch.isposinf(wide)
    return found


@rules.rule("IsNaN", since=9)
def is_nan(x: Tensor) -> Tensor:
    """ONNX IsNaN: whether elements are not a number (bool)."""
    return torch.isnan(x if x.dtype in (torch.float32, torch.float64) else x.float())
