"""Matrix products: Gemm and MatMul."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating, numeric, numeric_vjp, unbroadcast
from meta500.backends.rules import Call
from meta500.errors import UserError


def _scaled(factor: float, value: np.ndarray) -> np.ndarray:
    """``factor * value`` in the dtype of value; integers accept only whole factors.

    Raises:
        UserError: a fractional factor of an integer matrix (its rounding is not defined).
    """
    if factor == 1:
        return value
    if is_floating(value.dtype):
        return factor * value
    if factor != int(factor):
        raise UserError(f"Gemm: factor {factor} of a {value.dtype} matrix has no defined rounding")
    return int(factor) * value


def _gemm(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None,
    alpha: float,
    beta: float,
    trans_a: int,
    trans_b: int,
    saved: dict[str, Any],
) -> np.ndarray:
    saved.update(alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)
    if a.ndim != 2 or b.ndim != 2:
        raise UserError(f"Gemm: A of shape {a.shape} and B of shape {b.shape} must be matrices")
    left, right = (a.T if trans_a else a), (b.T if trans_b else b)
    if left.shape[1] != right.shape[0]:
        raise UserError(
            f"Gemm: inner dimensions of {left.shape} and {right.shape} (after transA={trans_a}, "
            f"transB={trans_b}) differ"
        )
    y = _scaled(alpha, left @ right)
    if c is None:
        return y
    try:
        c = np.broadcast_to(c, y.shape)
    except ValueError:
        raise UserError(f"Gemm: C of shape {c.shape} does not broadcast to {y.shape}") from None
    if beta == 0:  # C is not read, as in BLAS: NaN in it stays out
        return y
    return y + _scaled(beta, c)


@rules.rule("Gemm", 7)
@numeric
def gemm(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """``alpha * A' @ B' + beta * C``: A' (M, K), B' (K, N), C broadcast to (M, N).

    Raises:
        UserError: shapes do not fit.
    """
    return _gemm(a, b, c, alpha, beta, transA, transB, saved)


@rules.rule("Gemm", 1)
@numeric
def gemm_legacy(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    broadcast: int = 0,
    transA: int = 0,
    transB: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """Versions 1 and 6: C is broadcast only with ``broadcast``.

    Raises:
        UserError: shapes do not fit.
    """
    if not broadcast and c.shape != (a.shape[1 if transA else 0], b.shape[0 if transB else 1]):
        raise UserError(f"Gemm: C has shape {c.shape} and broadcast is 0, A {a.shape}, B {b.shape}")
    return _gemm(a, b, c, alpha, beta, transA, transB, saved)


@gemm.vjp
@gemm_legacy.vjp
@numeric_vjp
def gemm_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """``dA' = alpha * d @ B'.T``, ``dB' = alpha * A'.T @ d``, ``dC = beta * d`` summed to C."""
    a, b = call.inputs[:2]
    alpha, trans_a, trans_b = (call.saved[name] for name in ("alpha", "trans_a", "trans_b"))
    d_a = d_b = d_c = None
    scaled = d if alpha == 1 else alpha * d
    if call.needs[0]:
        right = b if trans_b else b.T
        d_a = right.T @ scaled.T if trans_a else scaled @ right
    if call.needs[1]:
        left = a if trans_a else a.T
        d_b = scaled.T @ left.T if trans_b else left @ scaled
    if len(call.inputs) > 2 and call.inputs[2] is not None and call.needs[2]:
        d_c = call.saved["beta"] * unbroadcast(d, call.inputs[2].shape)
    return (d_a, d_b, d_c)[: len(call.inputs)]


@rules.rule("MatMul")
@numeric
def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``numpy.matmul``: matrices in the last two axes, the others broadcast; 1-D operands are vectors.

    Raises:
        UserError: shapes do not fit.
    """
    try:
        return np.matmul(a, b)
    except ValueError:
        raise UserError(f"MatMul: shapes {a.shape} and {b.shape} do not fit") from None


@matmul.vjp
@numeric_vjp
def matmul_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """``d @ B.T`` and ``A.T @ d``, summed over broadcast axes; vectors as one-row or one-column matrices."""
    a, b = call.inputs
    if a.ndim == 1:
        d = np.expand_dims(d, -1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        d = np.expand_dims(d, -1)
    left = a.reshape(1, -1) if a.ndim == 1 else a
    right = b.reshape(-1, 1) if b.ndim == 1 else b
    d_a = d_b = None
    if call.needs[0]:
        d_a = unbroadcast(np.matmul(d, right.swapaxes(-1, -2)), left.shape).reshape(a.shape)
    if call.needs[1]:
        d_b = unbroadcast(np.matmul(left.swapaxes(-1, -2), d), right.shape).reshape(b.shape)
    return d_a, d_b
