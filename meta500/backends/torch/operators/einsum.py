"""Einsum and Det: products of tensors along named axes, and determinants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from meta500.backends.numpy.operators.einsum import parse_equation
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.errors import UserError

_HALF = (torch.float16, torch.bfloat16)


@rules.rule("Einsum", since=12)
def einsum(*operands: Tensor, equation: str) -> Tensor:
    """ONNX Einsum: sums of products along named axes; 16-bit floats in float32, integers wrap around.

    Raises:
        UserError: an equation that is malformed or does not fit the operands.
    """
    parsed = parse_equation(equation, [tuple(x.shape) for x in operands])
    dtype = operands[0].dtype
    arguments: list[Tensor | list[int]] = []
    for x, labels in zip(operands, parsed.operands, strict=True):
        arguments += [_wide(x), list(labels)]
    found = torch.einsum(*arguments, list(parsed.result))
    if dtype.is_floating_point:
        return found.to(dtype)
    return as_type(found.to(as_signed(operands[0]).dtype), dtype)


def _wide(x: Tensor) -> Tensor:
    """16-bit floats in float32. Integers in int64: torch.einsum sums narrower ones in int64 halfway through.

    Sums and products modulo 2**n have the same bits in any wider type, signed or not.
    """
    if x.is_floating_point():
        return x.float() if x.dtype in _HALF else x
    return as_signed(x) if x.dtype is torch.uint64 else x.to(torch.int64)


class _Determinant(torch.autograd.Function):
    """The determinant with a gradient that is right for singular matrices too; torch's own is zero there.

    The gradient is the matrix of cofactors. With X = U S Vᵀ these are det(U) det(V) U cof(S) Vᵀ, where cof(S)
    has the products of all other singular values.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.linalg.det(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if x.numel() == 0:
            return torch.zeros_like(x)
        u, s, vt = torch.linalg.svd(x.double())
        ones = torch.ones_like(s[..., :1])
        before = torch.cat((ones, torch.cumprod(s, -1)[..., :-1]), -1)
        after = torch.cat((ones, torch.cumprod(s.flip(-1), -1)[..., :-1]), -1).flip(-1)
        sign = torch.linalg.det(u) * torch.linalg.det(vt)
        cofactors = (u * (before * after * sign[..., None])[..., None, :]) @ vt
        return (cotangents[0][..., None, None] * cofactors).to(x.dtype)


@rules.rule("Det", since=11)
def det(x: Tensor) -> Tensor:
    """ONNX Det: determinants of matrices (..., M, M); 16-bit floats in float32.

    Raises:
        UserError: the last two axes are no square.
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise UserError(f"Det: the input has shape {tuple(x.shape)}, its last two axes should be equal")
    wide = x.float() if x.dtype in _HALF else x
    return _Determinant.apply(wide).to(x.dtype)  # type: ignore[no-any-return, no-untyped-call]
