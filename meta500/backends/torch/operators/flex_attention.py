"""Attention whose scores and probabilities pass through subgraphs of the model (ONNX FlexAttention)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.attention import PRECISIONS, check_options, flex_geometry, scales
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.attention import grouped_product, rounded_number, softmax_rows
from meta500.errors import UserError

_HALF = (torch.float16, torch.bfloat16)


def _modified(name: str, body: Any, x: Tensor) -> Tensor:
    """``x`` through a modifier; without one as it is."""
    if body is None:
        return x
    outputs = body(x)
    if len(outputs) != 1 or outputs[0].shape != x.shape or outputs[0].dtype != x.dtype:
        found = ", ".join(f"{str(y.dtype)[6:]}{list(y.shape)}" for y in outputs)
        wanted = f"{str(x.dtype)[6:]}{list(x.shape)}"
        raise UserError(f"FlexAttention: {name} must give one {wanted}, it gives {found}")
    return outputs[0]  # type: ignore[no-any-return]


@rules.rule("FlexAttention", 1, domain="ai.onnx.preview")
def flex_attention(
    q: Tensor, k: Tensor, v: Tensor, *, prob_mod: Any = None, scale: float | None = None,
    score_mod: Any = None, softmax_precision: int | None = None,
) -> Tensor:  # fmt: skip
    """``prob_mod(softmax(score_mod(Q K^T * scale))) V`` per head.

    Q is (B, q_heads, L, size), K (B, kv_heads, S, size), V (B, kv_heads, S, v_size); the result is
    (B, q_heads, L, v_size). The modifiers get and give (B, q_heads, L, S) of type ``softmax_precision``, by
    default float64 for float64 and float32 else. As in ONNX's definition, a query whose scores are all -inf
    gives NaN.

    Raises:
        UserError: shapes or attributes do not fit, or a modifier changes shape or type.
    """
    sizes = flex_geometry(tuple(q.shape), tuple(k.shape), tuple(v.shape))
    check_options(0.0, softmax_precision, 0, -1, -1, "FlexAttention")
    dtype = q.dtype
    plain = score_mod is None and prob_mod is None and softmax_precision is None
    if plain and dtype not in _HALF and sizes.total and sizes.size:
        return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=sizes.group > 1)
    wide = torch.promote_types(torch.float32, dtype)
    kind = wide if softmax_precision is None else getattr(torch, PRECISIONS[softmax_precision])
    work = torch.promote_types(torch.float32, kind)
    q_scale, k_scale = scales(scale, sizes.size)
    if dtype in _HALF:
        q_scale, k_scale = rounded_number(q_scale, dtype), rounded_number(k_scale, dtype)
    scores = grouped_product((q * q_scale).to(wide), (k * k_scale).to(wide).transpose(2, 3)).to(dtype)
    scores = _modified("score_mod", score_mod, scores.to(kind))
    probabilities = _modified("prob_mod", prob_mod, softmax_rows(scores, None))
    return grouped_product(probabilities.to(work), v.to(kind).to(work)).to(kind).to(v.dtype)
