"""Scaled dot-product attention with masks, windows, caches and grouped heads (ONNX Attention).

Intermediate results are rounded to the type of Q where the operator's function body rounds them; each step is
computed in float32 (float64 for float64). Key and value heads that several query heads share are broadcast
over an axis of their own, never copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from meta500.backends.attention import PRECISIONS, Geometry, check_mask, check_options, geometry, scales
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import unbroadcast
from meta500.backends.rules import Call
from meta500.errors import UserError

Array = np.ndarray


def wide_type(*dtypes: np.dtype) -> Any:
    """The type to compute in: float64 where an input has it, else float32."""
    return np.float64 if np.dtype(np.float64) in dtypes else np.float32


def rounded(x: Array, dtype: np.dtype) -> Array:
    """``x`` with the precision of ``dtype``, in its own type where that is the wider one."""
    return x if dtype.itemsize >= x.dtype.itemsize else x.astype(dtype).astype(x.dtype)


def precision_type(number: int | None, default: np.dtype) -> np.dtype:
    """The dtype of an ONNX softmax_precision."""
    if number is None:
        return default
    return np.dtype(ml_dtypes.bfloat16 if number == 16 else PRECISIONS[number])


def split_heads(x: Array, heads: int) -> Array:
    """(B, L, heads * size) as (B, heads, L, size); four axes stay as they are."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads if heads else 0).transpose(0, 2, 1, 3)


def join_heads(x: Array, rank: int) -> Array:
    """The inverse of :func:`split_heads` for an array of ``rank`` axes."""
    if rank == 4:
        return x
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def grouped_product(a: Array, b: Array) -> Array:
    """``a @ b`` for a (B, H, L, M) and b (B, K, M, N), where head h of a uses head h // (H / K) of b."""
    batch, heads, rows, inner = a.shape
    shared = b.shape[1]
    product = a.reshape(batch, shared, heads // shared, rows, inner) @ b[:, :, None]
    return product.reshape(batch, heads, rows, b.shape[3])


def grouped_sum(a: Array, b: Array, shared: int) -> Array:
    """``a^T @ b`` per head, added up over the heads that share one of ``shared``: (B, shared, M, N)."""
    batch, heads = a.shape[:2]
    total = (a.swapaxes(2, 3) @ b).reshape(batch, shared, heads // shared, a.shape[3], b.shape[3])
    return total.sum(axis=2)


def softmax_rows(x: Array, masked: Array | bool, kind: np.dtype) -> Array:
    """Softmax over the last axis; zero in the rows that are ``masked``, whatever they hold.

    Difference, exponential, sum and quotient are rounded to ``kind``, as the function body of Softmax says.
    """
    if not x.shape[-1]:
        return x
    x = np.where(masked, 0, x)
    exponent = rounded(np.exp(rounded(x - x.max(axis=-1, keepdims=True), kind)), kind)
    total = rounded(exponent.sum(axis=-1, keepdims=True), kind)
    return np.where(masked, 0, rounded(exponent / total, kind))


def softmax_rows_gradient(d: Array, p: Array) -> Array:
    """Gradient of the argument of a softmax with probabilities ``p``."""
    return p * (d - (d * p).sum(axis=-1, keepdims=True))


def _allowed(sizes: Geometry, offset: Array | int, causal: int, left: int, right: int) -> Array | None:
    """Which keys the causal and the window rule leave to each query: (L, S) or (B, 1, L, S); None: all."""
    if not causal and left < 0 and right < 0:
        return None
    if isinstance(offset, np.ndarray):
        offset = offset.reshape(-1, 1, 1, 1)
    ahead = np.arange(sizes.total) - (np.arange(sizes.q_length)[:, None] + offset)
    allowed = np.ones(ahead.shape, bool)
    if causal:
        allowed &= ahead <= 0
    if left >= 0:
        allowed &= ahead >= -left
    if right >= 0:
        allowed &= ahead <= right
    return allowed


def _bias(
    mask: Array | None, nonpad: Array | None, sizes: Geometry, dtype: np.dtype, wide: Any, causal: int,
    left: int, right: int, since: int,
) -> Array | None:  # fmt: skip
    """What is added to the scores, broadcastable to them: the mask and -inf at every forbidden key."""
    bias = None
    if mask is not None:
        missing = check_mask(mask.shape, sizes, since)
        if mask.dtype == bool:
            bias = np.where(mask, 0, -np.inf).astype(wide)
        else:
            bias = rounded(mask.astype(wide), dtype)
        if missing:
            bias = np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, missing)], constant_values=-np.inf)
    lengths = None if nonpad is None else nonpad.reshape(-1)
    offset: Array | int = sizes.past if lengths is None else lengths - sizes.q_length
    allowed = _allowed(sizes, offset, causal, left, right)
    if lengths is not None:
        inside = (np.arange(sizes.total) < lengths[:, None])[:, None, None]
        allowed = inside if allowed is None else allowed & inside
    if allowed is not None:
        structure = np.where(allowed, 0, -np.inf).astype(wide)
        bias = structure if bias is None else bias + structure
    return bias


@dataclass(frozen=True)
class _Kept:
    """Values of a forward pass for its backward."""

    sizes: Geometry
    mode: int
    q: Array
    k: Array
    v: Array
    q_scale: float
    k_scale: float
    tanh: Array | None
    probabilities: Array


@rules.rule("Attention", 23)
def attention(
    q: Array, k: Array, v: Array, attn_mask: Array | None = None, past_key: Array | None = None,
    past_value: Array | None = None, nonpad_kv_seqlen: Array | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, left_window_size: int = -1, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None,
    softcap: float = 0.0, softmax_precision: int | None = None, since_version: int = 25, n_outputs: int = 1,
    saved: dict[str, Any],
) -> tuple[Array, ...]:  # fmt: skip
    """ONNX Attention (arXiv:1706.03762, with grouped heads arXiv:2305.13245).

    Q is (B, q_heads, L, size) or (B, L, q_heads * size), K and V alike with kv_heads and their own length.
    Returns Y in the form of Q, present_key and present_value (B, kv_heads, past + length, size), and the
    scores (B, q_heads, L, S) raw (mode 0), after the soft cap (1), after mask and bias (2) or as
    probabilities (3). A query that may attend no key has zero probabilities and a zero result. Versions 23
    and 24 have no windows, 23 no ``nonpad_kv_seqlen`` and no mask that is shorter than the keys.

    Raises:
        UserError: shapes or attributes do not fit.
    """
    past, values, nonpad = (None if a is None else a.shape for a in (past_key, past_value, nonpad_kv_seqlen))
    sizes = geometry(
        q.shape, k.shape, v.shape, past, values, nonpad, q_num_heads, kv_num_heads, since_version
    )
    check_options(softcap, softmax_precision, qk_matmul_output_mode, left_window_size, right_window_size)
    if nonpad_kv_seqlen is not None and n_outputs in (2, 3):
        raise UserError("Attention: nonpad_kv_seqlen excludes the outputs present_key and present_value")
    dtype, rank = q.dtype, q.ndim
    wide = wide_type(dtype, v.dtype)
    q, k, v = split_heads(q, sizes.q_heads), split_heads(k, sizes.kv_heads), split_heads(v, sizes.kv_heads)
    if past_key is not None and past_value is not None:
        k, v = np.concatenate((past_key, k), axis=2), np.concatenate((past_value, v), axis=2)
    q_scale, k_scale = (float(np.asarray(s, dtype)) for s in scales(scale, sizes.size))
    with np.errstate(all="ignore"):
        bias = _bias(
            attn_mask, nonpad_kv_seqlen, sizes, dtype, wide, is_causal, left_window_size, right_window_size,
            since_version,
        )  # fmt: skip
        wide_q = rounded(q.astype(wide) * wide(q_scale), dtype)
        wide_k = rounded(k.astype(wide) * wide(k_scale), dtype)
        wide_v = v.astype(wide)
        scores = rounded(grouped_product(wide_q, wide_k.swapaxes(2, 3)), dtype)
        stages = [scores]
        tanh = None
        if softcap:
            tanh = rounded(np.tanh(rounded(scores / wide(softcap), dtype)), dtype)
            scores = rounded(tanh * wide(softcap), dtype)
        stages.append(scores)
        masked: Array | bool = False
        if bias is not None:
            scores = rounded(scores + bias, dtype)
            masked = bias.max(axis=-1, keepdims=True, initial=-np.inf) == -np.inf
        stages.append(scores)
        kind = precision_type(softmax_precision, dtype)
        argument = scores.astype(np.float64) if kind == np.float64 else rounded(scores, kind)
        probabilities = rounded(softmax_rows(argument, masked, kind).astype(wide), dtype)
        stages.append(probabilities)
        y = join_heads(grouped_product(probabilities, wide_v), rank)
    saved["kept"] = _Kept(
        sizes, qk_matmul_output_mode, wide_q, wide_k, wide_v, q_scale, k_scale, tanh, probabilities
    )
    shown = stages[qk_matmul_output_mode]
    return y.astype(dtype), k, v, shown.astype(dtype)


@attention.vjp
def attention_vjp(call: Call, *cotangents: Array | None) -> tuple[Array | None, ...]:
    """Gradients of Q, K, V, a float mask and the caches; roundings count as the identity."""
    kept: _Kept = call.saved["kept"]
    sizes, p = kept.sizes, kept.probabilities
    wide = p.dtype
    d_y, d_key, d_value, d_shown = (
        None if d is None else d.astype(wide) for d in (*cotangents, *(None,) * (4 - len(cotangents)))
    )
    with np.errstate(all="ignore"):
        d_p = np.zeros_like(p)
        d_v = np.zeros_like(kept.v)
        if d_y is not None:
            d_heads = split_heads(d_y, sizes.q_heads)
            d_p = grouped_product(d_heads, kept.v.swapaxes(2, 3))
            d_v = grouped_sum(p, d_heads, sizes.kv_heads)
        if d_shown is not None and kept.mode == 3:
            d_p = d_p + d_shown
        d_scores = softmax_rows_gradient(d_p, p)
        if d_shown is not None and kept.mode == 2:
            d_scores = d_scores + d_shown
        d_mask = _mask_gradient(call, d_scores, sizes)
        if d_shown is not None and kept.mode == 1:
            d_scores = d_scores + d_shown
        if kept.tanh is not None:
            d_scores = d_scores * (1 - kept.tanh * kept.tanh)
        if d_shown is not None and kept.mode == 0:
            d_scores = d_scores + d_shown
        d_q = grouped_product(d_scores, kept.k) * wide.type(kept.q_scale)
        d_k = grouped_sum(d_scores, kept.q, sizes.kv_heads) * wide.type(kept.k_scale)
    d_k = d_k if d_key is None else d_k + d_key
    d_v = d_v if d_value is None else d_v + d_value
    rank = call.inputs[0].ndim
    parts = (
        join_heads(d_q, rank), join_heads(d_k[:, :, sizes.past :], rank),
        join_heads(d_v[:, :, sizes.past :], rank), d_mask, d_k[:, :, : sizes.past],
        d_v[:, :, : sizes.past], None,
    )  # fmt: skip
    return tuple(
        None if d is None or array is None or array.dtype.kind in "bi" else d.astype(array.dtype)
        for d, array in zip(parts, call.inputs, strict=False)
    )


def _mask_gradient(call: Call, d_scores: Array, sizes: Geometry) -> Array | None:
    mask = call.inputs[3] if len(call.inputs) > 3 else None
    if mask is None or mask.dtype.kind in "bi" or not call.needs[3]:
        return None
    missing = check_mask(mask.shape, sizes, call.attributes["since_version"])
    padded = (*mask.shape[:-1], mask.shape[-1] + missing) if mask.ndim else ()
    d = unbroadcast(d_scores, padded)
    return d[..., : mask.shape[-1]] if missing else d
