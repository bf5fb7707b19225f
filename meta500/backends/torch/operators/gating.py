"""Activations that gate: SwiGLU opens one input by another, Shrink closes a band around zero."""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.numpy.operators.gating import check_shrink
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.attention import rounded_number
from meta500.errors import UserError


@rules.rule("SwiGLU", 28)
def swiglu(a: Tensor, b: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX SwiGLU (arXiv:2002.05202): ``a sigmoid(alpha a) b`` for a and b of one shape.

    Raises:
        UserError: the shapes differ.
    """
    if a.shape != b.shape:
        raise UserError(f"SwiGLU: A {tuple(a.shape)} and B {tuple(b.shape)} must have one shape")
    wide = torch.promote_types(a.dtype, torch.float32)
    gate = a.to(wide)
    return (gate * torch.sigmoid(gate * alpha) * b.to(wide)).to(a.dtype)


@rules.rule("Shrink", 9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    """ONNX Shrink: ``x + bias`` below -lambd, ``x - bias`` above lambd, else 0.

    ``bias`` and ``lambd`` are first cast to the type of x, as in the function body. Integer sums wrap.

    Raises:
        UserError: integers with a fraction, see ``check_shrink``.
    """
    if x.is_floating_point():
        limit, step = rounded_number(lambd, x.dtype), rounded_number(bias, x.dtype)
        return torch.where(x < -limit, x + step, torch.where(x > limit, x - step, 0))
    check_shrink(bias, lambd)
    shift, low, high = int(bias), -int(lambd), int(lambd)
    if x.dtype is torch.uint64:
        # The same bits as int64; what is above the largest int64 is negative there.
        signed = x.view(torch.int64)
        large = signed < 0
        below = ~large & (signed < low)
        above = large | (signed > high)
        return torch.where(below, signed + shift, torch.where(above, signed - shift, 0)).view(torch.uint64)
    wide = x.to(torch.int64)
    return torch.where(wide < low, wide + shift, torch.where(wide > high, wide - shift, 0)).to(x.dtype)
