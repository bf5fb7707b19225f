"""Operators that regroup or mask elements by their position."""

from __future__ import annotations

from typing import Any

from meta500.backends.generated.affine import Affine, affine
from meta500.backends.generated.expressions import ZERO, Constant, Index, call, select
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError, choose


@lowers("DepthToSpace", "SpaceToDepth")
def depth_and_space(to: Lowering, op: Any) -> None:
    """y[n, k, i*b + p, j*b + q] = x[n, (p*b + q)*C + k, i, j], or x[n, (k*b + p)*b + q, i, j] in mode CRD.

    C is the smaller depth; SpaceToDepth is the same with x and y exchanged.
    """
    source = op.operands[0]
    x, b = to.shape(source), op.blocksize
    mode = choose(f"mode of {op.label}", op.mode or "DCR", ("DCR", "CRD"))
    grows = op.op_type == "DepthToSpace"
    rows_by, depth_by = (1, b * b) if grows else (b, 1)
    if len(x) != 4 or b < 1 or x[1] % depth_by or x[2] % rows_by or x[3] % rows_by:
        raise UserError(f"{op.label}: shape {list(x)} has no blocks of blocksize {b}")
    n, depth, rows, columns = x[0], x[1] // depth_by, x[2] // rows_by, x[3] // rows_by
    axes = {"n": n, "k": depth, "i": rows, "j": columns, "p": b, "q": b}
    terms = {"p": b * depth, "q": depth, "k": 1} if mode == "DCR" else {"k": b * b, "p": b, "q": 1}
    deep = [affine("n"), Affine.of(terms), affine("i"), affine("j")]
    wide = [affine("n"), affine("k"), Affine.of({"i": b, "p": 1}), Affine.of({"j": b, "q": 1})]
    if grows:
        y = to.result(op, shape=(n, depth, rows * b, columns * b))
        to.emit(y, wide, axes, to.load(source, deep))
    else:
        y = to.result(op, shape=(n, depth * b * b, rows, columns))
        to.emit(y, deep, axes, to.load(source, wide))


@lowers("Trilu", since=14)
def trilu(to: Lowering, op: Any) -> None:
    """y[.., i, j] = x[.., i, j] where j - i >= k (``upper``) or j - i <= k, else 0."""
    source = op.operands[0]
    x = to.shape(source)
    if len(x) < 2:
        raise UserError(f"{op.label}: the input has shape {list(x)}, expected a matrix or a batch")
    k = int(to.constant(op.k, "k").reshape(-1)[0]) if op.k else 0
    axes = to.axes(x)
    i, j = list(axes)[-2:]
    # An axis of one element is at 0.
    diagonal = Index(Affine.of({a: f for a, f in ((j, 1), (i, -1)) if axes[a] > 1}))
    inside = call("greater_equal" if op.upper else "less_equal", diagonal, Constant(k))
    value = select(inside, to.load(source, list(axes)), ZERO)
    to.emit(to.result(op, shape=x), list(axes), axes, value)
