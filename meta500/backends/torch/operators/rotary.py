"""Rotary position embedding (arXiv:2104.09864): pairs of elements rotated by an angle per position."""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.attention import rotary_sizes
from meta500.backends.torch.operators import rules


@rules.rule("RotaryEmbedding", 23)
def rotary_embedding(
    x: Tensor, cos_cache: Tensor, sin_cache: Tensor, position_ids: Tensor | None = None, *,
    interleaved: int = 0, num_heads: int | None = None, rotary_embedding_dim: int = 0,
) -> Tensor:  # fmt: skip
    """ONNX RotaryEmbedding of x (B, heads, T, size) or (B, T, heads * size); the result has the same shape.

    The pair (a, b) becomes (a cos - b sin, a sin + b cos). Pairs are neighbours (``interleaved``) or the two
    halves of the first ``rotary_embedding_dim`` elements (0: of all); the rest stays. The caches are (B, T,
    dim / 2), or (positions, dim / 2) and indexed by ``position_ids`` (B, T). 16-bit floats are computed in
    float32 and rounded once.

    Raises:
        UserError: shapes do not fit.
        IndexError: a position outside of the caches.
    """
    positions = None if position_ids is None else tuple(position_ids.shape)
    heads, tokens, size, turned = rotary_sizes(
        tuple(x.shape),
        tuple(cos_cache.shape),
        tuple(sin_cache.shape),
        positions,
        num_heads,
        rotary_embedding_dim,
    )
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    wide = torch.promote_types(x.dtype, torch.float32)
    given = x.transpose(1, 2) if x.ndim == 4 else x.reshape(x.shape[0], tokens, heads, size)
    cos, sin = cos_cache.unsqueeze(2).to(wide), sin_cache.unsqueeze(2).to(wide)
    moving = given[..., :turned].to(wide)
    if interleaved:
        first, second = moving[..., 0::2], moving[..., 1::2]
    else:
        first, second = moving.chunk(2, dim=-1)
    parts = (first * cos - second * sin, first * sin + second * cos)
    # Pairs are again neighbours, or halves.
    y = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    y = y.to(x.dtype)
    if turned < size:
        y = torch.cat((y, given[..., turned:]), dim=-1)
    return y.transpose(1, 2) if x.ndim == 4 else y.reshape(x.shape)
