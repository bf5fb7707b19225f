"""Dropout (Srivastava et al. 2014): in training, what is kept is scaled by 1 / (1 - ratio)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating
from meta500.backends.numpy.operators.seeding import seeded_legacy
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


def _drop(
    x: np.ndarray, ratio: float, rng: np.random.Generator, seed: int | None, saved: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    if not 0 <= ratio < 1:
        raise UserError(f"Dropout: ratio {ratio} is outside [0, 1)")
    if not is_floating(x.dtype):
        raise UserError(f"Dropout: data has type {x.dtype}, expected a float type")
    if seed is None:
        mask = rng.random(x.shape) >= ratio
    else:
        mask = np.asarray(seeded_legacy(rng, seed).uniform(0.0, 1.0, x.shape) >= ratio)
    scale = 1 / (1 - ratio)
    saved.update(mask=mask, scale=scale)
    return np.where(mask, x * x.dtype.type(scale), x.dtype.type(0)), mask


@rules.rule("Dropout", 12, host=("ratio", "training_mode"))
def dropout(
    x: np.ndarray,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    rng: np.random.Generator,
    saved: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """ONNX Dropout: output and mask (bool); identity unless ``training_mode``.

    With ``seed`` the masks are those of ONNX's own cases: uniform numbers of ``np.random.RandomState(seed)``,
    a stream that goes on from run to run and that nodes with the same seed share. The torch backend draws
    the same.

    Raises:
        UserError: the ratio is outside [0, 1).
    """
    if not training_mode:
        return x, np.ones(x.shape, bool)
    return _drop(x, 0.5 if ratio is None else ratio, rng, seed, saved)


@rules.rule("Dropout", 10)
def dropout_inference(x: np.ndarray, *, ratio: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Version 10 knows inference only: the input, and a mask that drops nothing."""
    return x, np.ones(x.shape, bool)


@rules.rule("Dropout", 7)
def dropout_inference_typed(x: np.ndarray, *, ratio: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """As version 10, with the mask in the type of x."""
    return x, np.ones_like(x)


@rules.rule("Dropout", 1)
def dropout_is_test(
    x: np.ndarray,
    *,
    consumed_inputs: tuple[int, ...] | None = None,
    is_test: int = 0,
    ratio: float = 0.5,
    rng: np.random.Generator,
    saved: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """Versions 1 and 6: training unless ``is_test``; the mask has the type of x."""
    if is_test:
        return x, np.ones_like(x)
    y, mask = _drop(x, ratio, rng, None, saved)
    return y, mask.astype(x.dtype)


@dropout.vjp
@dropout_inference.vjp
@dropout_inference_typed.vjp
@dropout_is_test.vjp
def dropout_vjp(call: Call, d: np.ndarray | None, d_mask: np.ndarray | None = None) -> Gradients:
    """The cotangent through the same mask; the mask itself has no gradient."""
    x, rest = call.inputs[0], (None,) * (len(call.inputs) - 1)
    if d is None:
        return (np.zeros_like(x), *rest)
    if "mask" not in call.saved:
        return (d, *rest)
    scale = x.dtype.type(call.saved["scale"])
    return (np.where(call.saved["mask"], d * scale, x.dtype.type(0)), *rest)
