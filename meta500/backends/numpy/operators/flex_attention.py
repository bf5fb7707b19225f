"""Attention whose scores and probabilities pass through subgraphs of the model (ONNX FlexAttention)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.attention import check_options, flex_geometry, scales
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.attention import (
    Array,
    grouped_product,
    grouped_sum,
    precision_type,
    rounded,
    softmax_rows,
    softmax_rows_gradient,
    wide_type,
)
from meta500.backends.rules import Call
from meta500.errors import UserError


def _modified(name: str, body: Any, x: Array) -> Array:
    """``x`` through a modifier; without one as it is."""
    if body is None:
        return x
    outputs = body(x)
    if len(outputs) != 1 or outputs[0].shape != x.shape or outputs[0].dtype != x.dtype:
        found = ", ".join(f"{y.dtype}{list(y.shape)}" for y in outputs)
        raise UserError(f"FlexAttention: {name} must give one {x.dtype}{list(x.shape)}, it gives {found}")
    return np.asarray(outputs[0])


def _back(body: Any, d: Array, kind: np.dtype) -> Array:
    """The cotangent of a modifier's input."""
    if body is None:
        return d
    (found,) = body.pullback(0, [d.astype(kind)])
    return np.zeros_like(d) if found is None else found.astype(d.dtype)


@rules.rule("FlexAttention", 1, domain="ai.onnx.preview")
def flex_attention(
    q: Array, k: Array, v: Array, *, prob_mod: Any = None, scale: float | None = None, score_mod: Any = None,
    softmax_precision: int | None = None, saved: dict[str, Any],
) -> Array:  # fmt: skip
    """``prob_mod(softmax(score_mod(Q K^T * scale))) V`` per head.

    Q is (B, q_heads, L, size), K (B, kv_heads, S, size), V (B, kv_heads, S, v_size); the result is
    (B, q_heads, L, v_size). The modifiers get and give (B, q_heads, L, S) of type ``softmax_precision``, by
    default float64 for float64 and float32 else. As in ONNX's definition, a query whose scores are all -inf
    gives NaN.

    Raises:
        UserError: shapes or attributes do not fit, or a modifier changes shape or type.
    """
    sizes = flex_geometry(q.shape, k.shape, v.shape)
    check_options(0.0, softmax_precision, 0, -1, -1, "FlexAttention")
    wide = wide_type(q.dtype)
    kind = precision_type(softmax_precision, np.dtype(wide))
    q_scale, k_scale = (float(np.asarray(s, q.dtype)) for s in scales(scale, sizes.size))
    with np.errstate(all="ignore"):
        wide_q = rounded(q.astype(wide) * wide(q_scale), q.dtype)
        wide_k = rounded(k.astype(wide) * wide(k_scale), q.dtype)
        scores = rounded(grouped_product(wide_q, wide_k.swapaxes(2, 3)), q.dtype).astype(kind)
        scores = _modified("score_mod", score_mod, scores)
        work = wide_type(kind)
        softmax = softmax_rows(scores.astype(work), False, kind)
        probabilities = _modified("prob_mod", prob_mod, softmax.astype(kind)).astype(work)
        wide_v = v.astype(kind).astype(work)
        y = grouped_product(probabilities, wide_v).astype(kind).astype(v.dtype)
    saved["kept"] = (sizes, kind, wide_q, wide_k, wide_v, q_scale, k_scale, softmax, probabilities)
    return y


@flex_attention.vjp
def flex_attention_vjp(call: Call, d_y: Array) -> tuple[Array | None, ...]:
    """Gradients of Q, K and V, back through the modifiers; roundings count as the identity."""
    sizes, kind, q, k, v, q_scale, k_scale, softmax, probabilities = call.saved["kept"]
    wide = np.result_type(q.dtype, v.dtype)
    with np.errstate(all="ignore"):
        d = d_y.astype(wide)
        d_p = grouped_product(d, v.swapaxes(2, 3))
        d_v = grouped_sum(probabilities, d, sizes.kv_heads)
        d_p = _back(call.attributes.get("prob_mod"), d_p, kind)
        d_scores = softmax_rows_gradient(d_p, softmax)
        d_scores = _back(call.attributes.get("score_mod"), d_scores, kind)
        d_q = grouped_product(d_scores, k) * wide.type(q_scale)
        d_k = grouped_sum(d_scores, q, sizes.kv_heads) * wide.type(k_scale)
    return tuple(g.astype(x.dtype) for g, x in zip((d_q, d_k, d_v), call.inputs, strict=True))
