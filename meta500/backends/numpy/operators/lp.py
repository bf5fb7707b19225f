"""Normalisation by the L1 or L2 norm along one axis (ONNX LpNormalization)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import normal_axis, numeric, numeric_vjp
from meta500.backends.rules import Call
from meta500.errors import UserError

Array = np.ndarray


@rules.rule("LpNormalization")
@numeric
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2, saved: dict[str, Any]) -> Array:
    """``x / norm(x)`` along ``axis`` with the norm of order ``p``; zero where the norm is zero.

    Raises:
        UserError: ``p`` is neither 1 nor 2.
    """
    if p not in (1, 2):
        raise UserError(f"LpNormalization: p is {p}, expected 1 or 2")
    place = normal_axis(axis, x.ndim, "LpNormalization")
    if p == 1:
        norm = np.abs(x).sum(axis=place, keepdims=True)
    else:
        norm = np.sqrt(np.square(x).sum(axis=place, keepdims=True))
    saved.update(norm=np.where(norm == 0, 1, norm), empty=norm == 0, place=place)
    return np.where(norm == 0, 0, x / saved["norm"])


@lp_normalization.vjp
@numeric_vjp
def lp_normalization_vjp(call: Call, d: Array) -> tuple[Array]:
    """Zero where the norm is zero."""
    y, norm, empty, place = call.outputs[0], *(call.saved[k] for k in ("norm", "empty", "place"))
    direction = np.sign(y) if call.attributes.get("p", 2) == 1 else y
    slope = (d * y).sum(axis=place, keepdims=True)
    return (np.where(empty, 0, (d - direction * slope) / norm),)
