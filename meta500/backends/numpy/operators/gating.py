"""Activations that gate: SwiGLU opens one input by another, Shrink closes a band around zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.activation import sigmoid
from meta500.backends.numpy.operators.arrays import is_floating, numeric, numeric_vjp
from meta500.backends.rules import Call
from meta500.errors import UserError

Array = np.ndarray


@rules.rule("SwiGLU", 28)
@numeric
def swiglu(a: Array, b: Array, *, alpha: float = 1.0, saved: dict[str, Any]) -> Array:
    """ONNX SwiGLU (arXiv:2002.05202): ``a sigmoid(alpha a) b`` for a and b of one shape.

    Raises:
        UserError: the shapes differ.
    """
    if a.shape != b.shape:
        raise UserError(f"SwiGLU: A {a.shape} and B {b.shape} must have one shape")
    saved.update(s=sigmoid(alpha * a), alpha=alpha)
    return a * saved["s"] * b


@swiglu.vjp
@numeric_vjp
def swiglu_vjp(call: Call, d: Array) -> tuple[Array, Array]:
    """Gradients of the gate and of the value."""
    (a, b), s, alpha = call.inputs, call.saved["s"], call.saved["alpha"]
    return d * b * s * (1 + alpha * a * (1 - s)), d * a * s


def check_shrink(bias: float, lambd: float) -> None:
    """Whether Shrink has one meaning for integers.

    Raises:
        UserError: a fraction of which ONNX's text, function body and reference make different results.
    """
    for name, value in (("bias", bias), ("lambd", max(-lambd, 0))):
        if not math.isfinite(value) or value != int(value):
            raise UserError(
                f"Shrink: {name} is {bias if name == 'bias' else lambd}, whose rounding for integers is not "
                "defined; it should be whole, or cast the input to a float type"
            )


@rules.rule("Shrink", 9)
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5, saved: dict[str, Any]) -> Array:
    """ONNX Shrink: ``x + bias`` below -lambd, ``x - bias`` above lambd, else 0.

    ``bias`` and ``lambd`` are first cast to the type of x, as in the function body. Integer sums wrap.

    Raises:
        UserError: see ``check_shrink``.
    """
    if not is_floating(x.dtype):
        check_shrink(bias, lambd)
    low: Any = -int(lambd)
    high: Any = int(lambd)
    step = np.asarray(int(bias)).astype(x.dtype)
    if is_floating(x.dtype):
        high, step = np.asarray(lambd).astype(x.dtype), np.asarray(bias).astype(x.dtype)
        low = -high
    below, above = x < low, x > high
    saved["open"] = below | above
    with np.errstate(all="ignore"):
        return np.asarray(np.where(below, x + step, np.where(above, x - step, np.zeros((), x.dtype))))


@shrink.vjp
def shrink_vjp(call: Call, d: Array) -> tuple[Array]:
    """1 outside of the band, else 0."""
    return (np.where(call.saved["open"], d, np.zeros((), d.dtype)),)
