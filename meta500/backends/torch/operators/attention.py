"""Scaled dot-product attention with masks, windows, caches and grouped heads (ONNX Attention).

Written out as matrix products and softmax: torch's fused kernel returns NaN where a query may attend no key
and has neither soft cap nor score outputs. It serves the plain case, float32 or float64 without a mask.
Intermediate results are rounded to the type of Q where the operator's function body rounds them; 16-bit
floats are multiplied in float32.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.attention import PRECISIONS, Geometry, check_mask, check_options, geometry, scales
from meta500.backends.torch.compilation import constant_in_graphs
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.activation import stepwise_softmax
from meta500.errors import UserError

_TYPES = {number: getattr(torch, name) for number, name in PRECISIONS.items()}


@constant_in_graphs
def rounded_number(value: float, dtype: torch.dtype) -> float:
    """The number of a torch type that is nearest to ``value``."""
    return float(torch.tensor(value, dtype=torch.float64).to(dtype))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, L, heads * size) as (B, heads, L, size); four axes stay as they are."""
    if x.ndim == 4:
        return x
    return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(1, 2)


def join_heads(x: Tensor, rank: int) -> Tensor:
    """The inverse of :func:`split_heads` for a tensor of ``rank`` axes."""
    if rank == 4:
        return x
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def grouped_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` for a (B, H, L, M) and b (B, K, M, N), where head h of a uses head h // (H / K) of b."""
    batch, heads, rows, inner = a.shape
    shared = b.shape[1]
    if shared == heads:
        return a @ b
    product = a.reshape(batch, shared, heads // shared, rows, inner) @ b.unsqueeze(2)
    return product.reshape(batch, heads, rows, b.shape[3])


def softmax_rows(x: Tensor, masked: Tensor | None) -> Tensor:
    """Softmax over the last axis; zero in the rows that are ``masked``, whatever they hold."""
    if masked is not None:
        # Zeros in place of a row of -inf keep NaN out of the result and out of the gradient.
        x = torch.where(masked, 0, x)
    if x.dtype in (torch.float16, torch.bfloat16) and x.shape[-1]:
        y = stepwise_softmax(x, -1)
    else:
        y = torch.softmax(x, -1)
    return y if masked is None else torch.where(masked, 0, y)


def _allowed(
    sizes: Geometry, offset: Tensor | int, causal: int, left: int, right: int, device: torch.device
) -> Tensor | None:
    """Which keys the causal and the window rule leave to each query: (L, S) or (B, 1, L, S); None: all."""
    if not causal and left < 0 and right < 0:
        return None
    if isinstance(offset, Tensor):
        offset = offset.reshape(-1, 1, 1, 1)
    rows = torch.arange(sizes.q_length, device=device).unsqueeze(1) + offset
    ahead = torch.arange(sizes.total, device=device) - rows
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        allowed = allowed & (ahead <= 0)
    if left >= 0:
        allowed = allowed & (ahead >= -left)
    if right >= 0:
        allowed = allowed & (ahead <= right)
    return allowed


def _bias(
    mask: Tensor | None, nonpad: Tensor | None, sizes: Geometry, like: Tensor, causal: int, left: int,
    right: int, since: int,
) -> Tensor | None:  # fmt: skip
    """What is added to the scores, broadcastable to them: the mask and -inf at every forbidden key."""
    zero, low = like.new_zeros(()), like.new_full((), -math.inf)
    bias = None
    if mask is not None:
        missing = check_mask(tuple(mask.shape), sizes, since)
        bias = torch.where(mask, zero, low) if mask.dtype is torch.bool else mask.to(like.dtype)
        if missing:
            bias = F.pad(bias, (0, missing), value=-math.inf)
    offset: Tensor | int = sizes.past if nonpad is None else nonpad.reshape(-1) - sizes.q_length
    allowed = _allowed(sizes, offset, causal, left, right, like.device)
    if nonpad is not None:
        inside = torch.arange(sizes.total, device=like.device) < nonpad.reshape(-1, 1, 1, 1)
        allowed = inside if allowed is None else allowed & inside
    if allowed is not None:
        structure = torch.where(allowed, zero, low)
        bias = structure if bias is None else bias + structure
    return bias


@rules.rule("Attention", 23)
def attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, past_key: Tensor | None = None,
    past_value: Tensor | None = None, nonpad_kv_seqlen: Tensor | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, left_window_size: int = -1, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None,
    softcap: float = 0.0, softmax_precision: int | None = None, since_version: int = 25, n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    """ONNX Attention (arXiv:1706.03762, with grouped heads arXiv:2305.13245).

    Q is (B, q_heads, L, size) or (B, L, q_heads * size), K and V alike with kv_heads and their own length.
    Returns Y in the form of Q, present_key and present_value (B, kv_heads, past + length, size), and the
    scores (B, q_heads, L, S) raw (mode 0), after the soft cap (1), after mask and bias (2) or as
    probabilities (3). A query that may attend no key has zero probabilities and a zero result. Versions 23
    and 24 have no windows, 23 no ``nonpad_kv_seqlen`` and no mask that is shorter than the keys.

    Raises:
        UserError: shapes or attributes do not fit.
    """
    past, values, nonpad = (
        None if a is None else tuple(a.shape) for a in (past_key, past_value, nonpad_kv_seqlen)
    )
    sizes = geometry(
        tuple(q.shape), tuple(k.shape), tuple(v.shape), past, values, nonpad,
        q_num_heads, kv_num_heads, since_version,
    )  # fmt: skip
    check_options(softcap, softmax_precision, qk_matmul_output_mode, left_window_size, right_window_size)
    if nonpad_kv_seqlen is not None and n_outputs in (2, 3):
        raise UserError("Attention: nonpad_kv_seqlen excludes the outputs present_key and present_value")
    dtype, rank = q.dtype, q.ndim
    q, k, v = split_heads(q, sizes.q_heads), split_heads(k, sizes.kv_heads), split_heads(v, sizes.kv_heads)
    if past_key is not None and past_value is not None:
        k, v = torch.cat((past_key, k), dim=2), torch.cat((past_value, v), dim=2)
    plain = attn_mask is None and nonpad_kv_seqlen is None and left_window_size < 0 and right_window_size < 0
    fused = dtype in (torch.float32, torch.float64) and v.dtype is dtype and not softcap and n_outputs < 4
    if plain and fused and softmax_precision is None and not is_causal and sizes.total and sizes.size:
        y = F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=sizes.group > 1)
        return join_heads(y, rank) if n_outputs == 1 else (join_heads(y, rank), k, v)
    bias = _bias(
        attn_mask, nonpad_kv_seqlen, sizes, q, is_causal, left_window_size, right_window_size, since_version
    )
    q_scale, k_scale = scales(scale, sizes.size)
    if dtype in (torch.float16, torch.bfloat16):
        # The scale is rounded before it multiplies, as the function body does.
        q_scale, k_scale = rounded_number(q_scale, dtype), rounded_number(k_scale, dtype)
    wide = torch.promote_types(torch.float32, torch.promote_types(dtype, v.dtype))
    scores = grouped_product((q * q_scale).to(wide), (k * k_scale).to(wide).transpose(2, 3)).to(dtype)
    stages = [scores]
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    stages.append(scores)
    masked = None
    if bias is not None:
        scores = scores + bias
        if sizes.total:
            masked = (bias == -math.inf).all(-1, keepdim=True)
    stages.append(scores)
    argument = scores if softmax_precision is None else scores.to(_TYPES[softmax_precision])
    probabilities = softmax_rows(argument, masked).to(dtype)
    stages.append(probabilities)
    y = join_heads(grouped_product(probabilities.to(wide), v.to(wide)).to(dtype), rank)
    return y if n_outputs == 1 else (y, k, v, stages[qk_matmul_output_mode])
