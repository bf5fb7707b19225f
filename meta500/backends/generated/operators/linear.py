"""Gemm and MatMul."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.generated.affine import affine
from meta500.backends.generated.expressions import Constant, Expr, mul
from meta500.backends.generated.ir import SUM
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError


@lowers("Gemm")
def gemm(to: Lowering, op: Any) -> None:
    """Gemm: y[n, k] = beta * C[n, k] + alpha * sum over c of A[n, c] * B[c, k]."""
    to.real(op)
    a, b = to.shape(op.A), to.shape(op.B)
    if len(a) != 2 or len(b) != 2:
        raise UserError(f"{op.label}: A has shape {list(a)} and B {list(b)}; both are matrices")
    rows, depth = (a[1], a[0]) if op.transA else a
    inner, columns = (b[1], b[0]) if op.transB else b
    if inner != depth:
        raise UserError(f"{op.label}: A has {depth} columns, B {inner} rows")
    y = to.result(op, shape=(rows, columns))
    if op.C and op.since_version < 7 and not op.broadcast and to.shape(op.C) != (rows, columns):
        raise UserError(f"{op.label}: C has shape {list(to.shape(op.C))} and broadcast is 0")
    left = to.load(op.A, ["c", "n"] if op.transA else ["n", "c"])
    right = to.load(op.B, ["k", "c"] if op.transB else ["c", "k"])
    value = mul(mul(left, right), Constant(op.alpha))
    initial: Expr | None = None
    # With beta 0 C is not read: NaN in it stays out.
    if op.C and op.beta:
        initial = mul(to.broadcast(op.C, {"n": rows, "k": columns}), Constant(op.beta))
    to.emit(y, ["n", "k"], {"n": rows, "k": columns, "c": depth}, value, SUM, initial=initial)


@lowers("MatMul")
def matmul(to: Lowering, op: Any) -> None:
    """MatMul: y[..., n, k] = sum over c of A[..., n, c] * B[..., c, k], leading axes broadcast.

    A vector on the left is a row, one on the right a column; the result lacks their axis.
    """
    to.real(op)
    a, b = op.operands
    left, right = to.shape(a), to.shape(b)
    if not left or not right or left[-1] != right[-1 if len(right) == 1 else -2]:
        raise UserError(f"{op.label}: shapes {list(left)} and {list(right)} do not fit")
    try:
        batch = np.broadcast_shapes(left[:-2], right[:-2])
    except ValueError:
        raise UserError(f"{op.label}: shapes {list(left)} and {list(right)} do not broadcast") from None
    leading = {f"b{i}": size for i, size in enumerate(batch)}
    row = {"n": left[-2]} if len(left) > 1 else {}
    column = {"k": right[-1]} if len(right) > 1 else {}

    def at(shape: tuple[int, ...], inner: list[str]) -> list[Any]:
        names = list(leading)[len(leading) - max(len(shape) - 2, 0) :]
        return [affine(0 if size == 1 else name) for name, size in zip(names, shape, strict=False)] + inner

    value = mul(
        to.load(a, at(left, [*row, "c"])),
        to.load(b, at(right, ["c", *column])),
    )
    kept = {**leading, **row, **column}
    y = to.result(op, shape=tuple(kept.values()))
    to.emit(y, list(kept), {**kept, "c": left[-1]}, value, SUM)
