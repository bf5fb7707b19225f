"""Gemm and MatMul."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.errors import UserError


def _matmul(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul`` for every ONNX type and device."""
    if a.is_floating_point():
        return torch.matmul(a, b)
    # A product modulo 2**n has the same bits signed and unsigned.
    left, right = as_signed(a), as_signed(b)
    if left.device.type == "cpu":
        return as_type(torch.matmul(left, right), a.dtype)
    return as_type(_summed_products(left, right), a.dtype)


def _summed_products(a: Tensor, b: Tensor) -> Tensor:
    """``torch.matmul`` of integers by multiplying and summing, for devices without a kernel for it (CUDA)."""
    rows = a if a.ndim > 1 else a[None, :]
    columns = b if b.ndim > 1 else b[:, None]
    product = (rows.unsqueeze(-1) * columns.unsqueeze(-3)).sum(-2, dtype=a.dtype)
    if b.ndim == 1:
        product = product.squeeze(-1)
    if a.ndim == 1:
        product = product.squeeze(-1 if b.ndim == 1 else -2)
    return product


@rules.rule("MatMul", since=1)
def matmul(a: Tensor, b: Tensor) -> Tensor:
    """ONNX MatMul, numpy's ``matmul``: 1-D operands are vectors, leading axes broadcast."""
    return _matmul(a, b)


def _gemm(
    a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, trans_a: int, trans_b: int
) -> Tensor:
    if a.ndim != 2 or b.ndim != 2:
        raise UserError(
            f"Gemm: A and B must be matrices, but have shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if (
        alpha == 1
        and beta == 1
        and trans_b
        and not trans_a
        and a.is_floating_point()
        and (c is None or c.ndim == 1)
    ):
        return F.linear(a, b, c)
    left = a.t() if trans_a else a
    right = b.t() if trans_b else b
    if a.is_floating_point():
        if c is None:
            product = torch.matmul(left, right)
            return product if alpha == 1 else product * alpha
        return torch.addmm(c, left, right, beta=beta, alpha=alpha)
    if alpha != int(alpha) or beta != int(beta):
        raise UserError(
            f"Gemm on {a.dtype}: alpha {alpha} and beta {beta} must be whole numbers, "
            "ONNX does not say how to round"
        )
    y = as_signed(_matmul(left, right)) * int(alpha)
    return as_type(y if c is None else y + as_signed(c) * int(beta), a.dtype)


@rules.rule("Gemm", since=1)
def gemm_1(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """ONNX Gemm-1 and -6: C has the shape of the result unless ``broadcast`` is set.

    Raises:
        UserError: C of another shape without ``broadcast``.
    """
    shape = (a.shape[1 if transA else 0], b.shape[0 if transB else 1])
    if not broadcast and tuple(c.shape) != shape:
        raise UserError(
            f"Gemm: C has shape {tuple(c.shape)}, the product {shape}; "
            "before version 7 that needs broadcast=1"
        )
    return _gemm(a, b, c, alpha, beta, transA, transB)


@rules.rule("Gemm", since=7)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """ONNX Gemm: ``alpha A' B' + beta C`` with (M, K), (K, N) and C broadcast to (M, N).

    Raises:
        UserError: A or B is no matrix; alpha or beta is fractional on integers.
    """
    return _gemm(a, b, c, alpha, beta, transA, transB)
