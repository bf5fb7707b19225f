"""Random tensors: RandomNormal, RandomUniform, their Like forms, Multinomial and Bernoulli.

They draw from the network's generator; a node with a ``seed`` attribute draws from one of that seed
(:func:`~meta500.backends.numpy.operators.seeding.seeded`). ONNX leaves the random numbers themselves open, so
no two implementations agree on them.
"""

from __future__ import annotations

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating
from meta500.backends.numpy.operators.seeding import seeded
from meta500.backends.rules import Call
from meta500.errors import UserError
from meta500.graph.types import dtype_from_onnx

Ints = tuple[int, ...]
FLOAT, INT32 = 1, 6


def _float_type(operator: str, number: int) -> np.dtype:
    dtype = dtype_from_onnx(number)
    if dtype is None or not is_floating(dtype):
        raise UserError(f"{operator}: dtype {number} ({dtype}) is no float type")
    return dtype


def _like_type(operator: str, x: np.ndarray, number: int | None) -> np.dtype:
    if number is not None:
        return _float_type(operator, number)
    if not is_floating(x.dtype):
        raise UserError(f"{operator}: the input is {x.dtype}; give dtype, one of the float types")
    return x.dtype


def _normal(rng: np.random.Generator, shape: Ints, dtype: np.dtype, mean: float, scale: float) -> np.ndarray:
    return np.asarray(mean + scale * rng.standard_normal(shape)).astype(dtype)


def _uniform(rng: np.random.Generator, shape: Ints, dtype: np.dtype, low: float, high: float) -> np.ndarray:
    return np.asarray(low + (high - low) * rng.random(shape)).astype(dtype)


@rules.rule("RandomNormal", 1)
def random_normal(
    *,
    shape: Ints,
    dtype: int = FLOAT,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """ONNX RandomNormal: ``shape`` numbers of mean ``mean`` and standard deviation ``scale``.

    Raises:
        UserError: ``dtype`` is no float type.
    """
    return _normal(seeded(rng, seed), shape, _float_type("RandomNormal", dtype), mean, scale)


@rules.rule("RandomUniform", 1)
def random_uniform(
    *,
    shape: Ints,
    dtype: int = FLOAT,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """ONNX RandomUniform: drawn in float64 from [low, high), then rounded to ``dtype``.

    Raises:
        UserError: ``dtype`` is no float type.
    """
    return _uniform(seeded(rng, seed), shape, _float_type("RandomUniform", dtype), low, high)


@rules.rule("RandomNormalLike", 1)
def random_normal_like(
    x: np.ndarray,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """ONNX RandomNormalLike: in the shape, and without ``dtype`` in the type, of ``x``.

    Raises:
        UserError: the type is no float type.
    """
    return _normal(seeded(rng, seed), x.shape, _like_type("RandomNormalLike", x, dtype), mean, scale)


@rules.rule("RandomUniformLike", 1)
def random_uniform_like(
    x: np.ndarray,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """ONNX RandomUniformLike: in the shape, and without ``dtype`` in the type, of ``x``.

    Raises:
        UserError: the type is no float type.
    """
    return _uniform(seeded(rng, seed), x.shape, _like_type("RandomUniformLike", x, dtype), low, high)


@random_normal_like.vjp
@random_uniform_like.vjp
def random_like_vjp(call: Call, d: np.ndarray | None) -> tuple[np.ndarray | None]:
    """Only the shape of the input matters, so its gradient is zero."""
    return (np.zeros_like(call.inputs[0]),)


@rules.rule("Multinomial", 7)
def multinomial(
    x: np.ndarray,
    *,
    dtype: int = INT32,
    sample_size: int = 1,
    seed: float | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """ONNX Multinomial: ``sample_size`` classes per row of unnormalised log-probabilities (N, classes).

    Returns integers (N, sample_size), drawn with replacement.

    Raises:
        UserError: another rank, no class, ``dtype`` neither int32 nor int64, or a row whose probabilities
            are not defined (NaN, +inf, or all -inf).
    """
    target = dtype_from_onnx(dtype)
    if target not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise UserError(f"Multinomial: dtype {dtype} ({target}) is neither int32 nor int64")
    if x.ndim != 2 or x.shape[1] == 0:
        raise UserError(f"Multinomial: the input has shape {list(x.shape)}, expected [batch, classes]")
    logits = x.astype(np.float64)
    highest = logits.max(axis=1, keepdims=True, initial=-np.inf)
    if not np.all(np.isfinite(highest)):
        row = int(np.flatnonzero(~np.isfinite(highest[:, 0]))[0])
        raise UserError(f"Multinomial: the log-probabilities of row {row} have the maximum {highest[row, 0]}")
    cumulative = np.exp(logits - highest).cumsum(axis=1)
    drawn = seeded(rng, seed).random((len(x), sample_size)) * cumulative[:, -1:]
    classes = [np.searchsorted(c, u, side="right") for c, u in zip(cumulative, drawn, strict=True)]
    return np.array(classes, target).reshape(len(x), sample_size)


@rules.rule("Bernoulli", 15)
def bernoulli(
    x: np.ndarray, *, dtype: int | None = None, seed: float | None = None, rng: np.random.Generator
) -> np.ndarray:
    """ONNX Bernoulli: 1 with probability ``x``, else 0, in ``dtype`` (default: the type of ``x``).

    A draw is not a differentiable function of its probability: there is no gradient.

    Raises:
        UserError: a probability outside [0, 1], or NaN.
    """
    target = x.dtype if dtype is None else dtype_from_onnx(dtype)
    p = x.astype(np.float64)
    if not np.all((p >= 0) & (p <= 1)):
        raise UserError("Bernoulli: a probability is outside [0, 1]")
    return np.asarray(seeded(rng, seed).random(x.shape) < p).astype(target)
