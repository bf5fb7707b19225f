"""Rotary position embedding (arXiv:2104.09864): pairs of elements rotated by an angle per position."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.attention import rotary_sizes
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp, scatter_sum
from meta500.backends.rules import Call
from meta500.errors import UserError

Array = np.ndarray


def _tokens_first(x: Array, heads: int) -> Array:
    """A view of x as (B, T, heads, size)."""
    if x.ndim == 4:
        return x.transpose(0, 2, 1, 3)
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads)


def _as_given(x: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of :func:`_tokens_first`, of the given shape."""
    return x.transpose(0, 2, 1, 3) if len(shape) == 4 else x.reshape(shape)


def _halves(x: Array, turned: int, interleaved: int) -> tuple[Array, Array]:
    """Views of the first and the second elements of all pairs."""
    if interleaved:
        return x[..., 0:turned:2], x[..., 1:turned:2]
    return x[..., : turned // 2], x[..., turned // 2 : turned]


@rules.rule("RotaryEmbedding", 23)
@numeric
def rotary_embedding(
    x: Array, cos_cache: Array, sin_cache: Array, position_ids: Array | None = None, *, interleaved: int = 0,
    num_heads: int | None = None, rotary_embedding_dim: int = 0, saved: dict[str, Any],
) -> Array:  # fmt: skip
    """ONNX RotaryEmbedding of x (B, heads, T, size) or (B, T, heads * size); the result has the same shape.

    The pair (a, b) becomes (a cos - b sin, a sin + b cos). Pairs are neighbours (``interleaved``) or the two
    halves of the first ``rotary_embedding_dim`` elements (0: of all); the rest stays. The caches are (B, T,
    dim / 2), or (positions, dim / 2) and indexed by ``position_ids`` (B, T).

    Raises:
        UserError: shapes do not fit, or a position lies outside of the caches.
    """
    positions = None if position_ids is None else position_ids.shape
    heads, _, _, turned = rotary_sizes(
        x.shape, cos_cache.shape, sin_cache.shape, positions, num_heads, rotary_embedding_dim
    )
    if position_ids is not None:
        rows = cos_cache.shape[0]
        if position_ids.size and (position_ids.min() < -rows or position_ids.max() >= rows):
            raise UserError(f"RotaryEmbedding: position_ids must lie below {rows}, the rows of the caches")
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    cos, sin = cos_cache[:, :, None], sin_cache[:, :, None]
    given = _tokens_first(x, heads)
    y = np.array(given)
    first, second = _halves(given, turned, interleaved)
    out_first, out_second = _halves(y, turned, interleaved)
    out_first[...] = first * cos - second * sin
    out_second[...] = first * sin + second * cos
    saved.update(heads=heads, turned=turned, cos=cos, sin=sin)
    return _as_given(y, x.shape)


@rotary_embedding.vjp
@numeric_vjp
def rotary_embedding_vjp(call: Call, d: Array) -> tuple[Array | None, ...]:
    """The rotation backwards for x; sums over heads, and over equal positions, for the caches."""
    heads, turned, cos, sin = (call.saved[k] for k in ("heads", "turned", "cos", "sin"))
    interleaved = call.attributes.get("interleaved", 0)
    x = call.inputs[0]
    first, second = _halves(_tokens_first(x, heads), turned, interleaved)
    d_y = _tokens_first(d, heads)
    d_first, d_second = _halves(d_y, turned, interleaved)
    d_x = np.array(d_y)
    to_first, to_second = _halves(d_x, turned, interleaved)
    to_first[...] = d_first * cos + d_second * sin
    to_second[...] = d_second * cos - d_first * sin
    d_cos = (d_first * first + d_second * second).sum(axis=2)
    d_sin = (d_second * first - d_first * second).sum(axis=2)
    if len(call.inputs) > 3 and call.inputs[3] is not None:
        rows = call.inputs[1].shape[0]
        index = call.inputs[3].reshape(-1) % max(rows, 1)
        d_cos, d_sin = (
            scatter_sum(a.reshape(index.size, turned // 2), index, rows, 0) for a in (d_cos, d_sin)
        )
    return (_as_given(d_x, x.shape), d_cos, d_sin, None)[: len(call.inputs)]
