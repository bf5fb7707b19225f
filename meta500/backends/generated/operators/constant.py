"""Operators whose result is known before the run, or is their input."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.generated.expressions import ONE, ZERO, Expr, call, select
from meta500.backends.generated.ir import FLAG, INDEX, LABEL, REAL
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers


@lowers("Shape")
def shape(to: Lowering, op: Any) -> None:
    """The shape of a value, of which ``start`` and ``end`` may take a part; a constant."""
    found = to.shape(op.operands[0])
    to.fold(op.results[0], np.array(found[slice(op.start, op.end)], np.int64))


@lowers("Size")
def size(to: Lowering, op: Any) -> None:
    """The number of elements of a value; a constant."""
    to.fold(op.results[0], np.array(int(np.prod(to.shape(op.operands[0]), dtype=np.int64))))


@lowers("Identity")
def identity(to: Lowering, op: Any) -> None:
    """y = x."""
    to.elementwise(op, lambda x: x, op.operands)


@lowers("Cast", "CastLike", since=6)
def cast(to: Lowering, op: Any) -> None:
    """y = x in another type.

    All floating-point types are the program's own; whole numbers lose the fraction; bool is x != 0.
    """
    source, target = to.dtype(op.operands[0]), to.dtype(op.results[0])

    def convert(x: Expr) -> Expr:
        if target == FLAG and source != FLAG:
            return select(call("equal", x, ZERO), ZERO, ONE)
        if source == REAL and target in (INDEX, LABEL):
            return select(call("less", x, ZERO), call("ceil", x), call("floor", x))
        return x

    if (source, target) == (LABEL, INDEX):
        to.refuse("int64 to int32 is not generated")
    to.elementwise(op, convert, op.operands[:1])
