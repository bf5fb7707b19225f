"""Exact arithmetic on uint16, uint32 and uint64, which torch stores but hardly computes with.

Sums, differences and products modulo 2**n have the same bits signed and unsigned, so they run on a signed
view. Order and quotients depend on the sign: they run on int64 values in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
"""The types that torch's arithmetic kernels lack."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
_LOWEST = -(2**63)
_HIGHEST = 2**63 - 1


def as_signed(x: Tensor) -> Tensor:
    """The same bits as the signed type of the same width; any other type unchanged."""
    return x.view(_SIGNED[x.dtype]) if x.dtype in UNSIGNED else x


def as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo ``as_signed``: the same bits read as ``dtype``."""
    return x.view(dtype) if dtype in UNSIGNED else x


def ordered(x: Tensor) -> Tensor:
    """int64 values in the same order as an unsigned ``x``; any other type unchanged."""
    if x.dtype is torch.uint64:
        # Flipping the top bit moves 0..2**64-1 onto -2**63..2**63-1.
        return torch.bitwise_xor(x.view(torch.int64), _LOWEST)
    return x.to(torch.int64) if x.dtype in UNSIGNED else x


def from_ordered(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Undo ``ordered``."""
    if dtype is torch.uint64:
        return torch.bitwise_xor(x, _LOWEST).view(dtype)
    return x.to(dtype) if dtype in UNSIGNED else x


def divide(a: Tensor, b: Tensor) -> Tensor:
    """Integer quotient rounded toward zero, as ONNX Div defines it; shapes broadcast.

    Raises:
        RuntimeError: an element of ``b`` is zero (on the CPU).
    """
    if a.dtype is torch.uint64:
        return _divide_uint64(a.view(torch.int64), b.view(torch.int64)).view(a.dtype)
    if a.dtype in UNSIGNED:
        quotient = torch.div(a.to(torch.int64), b.to(torch.int64), rounding_mode="trunc")
        return quotient.to(a.dtype)
    if a.dtype.is_signed:
        # The lowest number over -1 stops the processor; negation wraps around.
        negated = b == -1
        return torch.where(negated, -a, torch.div(a, torch.where(negated, 1, b), rounding_mode="trunc"))
    return torch.div(a, b, rounding_mode="trunc")


def _divide_uint64(a: Tensor, b: Tensor) -> Tensor:
    """Quotient of the unsigned numbers whose bits ``a`` and ``b`` (int64) hold.

    Half of ``a`` fits into int64; twice its quotient is at most one too small (Hacker's Delight, 9-3).
    A divisor with the top bit set goes at most once into ``a``.
    """
    large = b < 0
    half = torch.bitwise_and(torch.bitwise_right_shift(a, 1), _HIGHEST)
    estimate = torch.div(half, torch.where(large, 1, b), rounding_mode="trunc") * 2
    estimate = torch.where(large, 0, estimate)
    remainder = torch.bitwise_xor(a - estimate * b, _LOWEST)
    return estimate + (remainder >= torch.bitwise_xor(b, _LOWEST))
