"""The compound operations of the update rules, with as few passes over memory as arrays offer.

Every function is stated once in plain array arithmetic. Arrays that bring a fused method of their
own for it (torch tensors: ``lerp_``, ``addcmul_``, ``addcdiv``, ``add`` with a factor) use that
instead: the same formula, without temporaries. Functions that end in ``_`` change their first
argument, which must belong to the optimizer; the others return a new array. Scalars are Python
floats, so the dtype and the device stay those of the arrays.
"""

from __future__ import annotations

from typing import Any

Array = Any


def blend_(average: Array, x: Array, decay: float) -> Array:
    """average ← decay · average + (1 − decay) · x."""
    if hasattr(average, "lerp_"):
        return average.lerp_(x, 1.0 - decay)
    average *= decay
    average += (1.0 - decay) * x
    return average


def blend_square_(average: Array, x: Array, decay: float) -> Array:
    """average ← decay · average + (1 − decay) · x²."""
    if hasattr(average, "addcmul_"):
        return average.mul_(decay).addcmul_(x, x, value=1.0 - decay)
    average *= decay
    average += (1.0 - decay) * (x * x)
    return average


def add_square_(total: Array, x: Array) -> Array:
    """total ← total + x²."""
    if hasattr(total, "addcmul_"):
        return total.addcmul_(x, x)
    total += x * x
    return total


def decay_add_(total: Array, x: Array, decay: float, weight: float = 1.0) -> Array:
    """total ← decay · total + weight · x."""
    if hasattr(total, "addcmul_"):
        return total.mul_(decay).add_(x, alpha=weight)
    total *= decay
    total += weight * x
    return total


def subtract_ratio(x: Array, scale: float, numerator: Array, denominator: Array) -> Array:
    """x − scale · numerator / denominator."""
    if hasattr(x, "addcdiv"):
        return x.addcdiv(numerator, denominator, value=-scale)
    return x - scale * (numerator / denominator)


def add_scaled(x: Array, scale: float, y: Array) -> Array:
    """x + scale · y."""
    if hasattr(x, "addcdiv"):
        return x.add(y, alpha=scale)
    return x + scale * y
