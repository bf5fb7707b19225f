"""Linear attention: a recurrence over tokens on a matrix-valued state (ONNX LinearAttention)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meta500.backends.attention import check_linear
from meta500.backends.torch.operators import rules


def _unpacked(x: Tensor, heads: int, wide: torch.dtype) -> Tensor:
    """(B, T, heads * size) as (T, B, heads, size) in the type to compute in."""
    return x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(0, 1).to(wide)


@rules.rule("LinearAttention", 27)
def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, past_state: Tensor | None = None, decay: Tensor | None = None,
    beta: Tensor | None = None, *, chunk_size: int = 64, kv_num_heads: int, q_num_heads: int,
    scale: float = 0.0, update_rule: str = "gated_delta", n_outputs: int = 2,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """ONNX LinearAttention (arXiv:2006.16236; gated: 2312.06635; delta: 2406.06484; both: 2412.06464).

    query (B, T, q_heads * d_k), key, value (B, T, kv_heads * d_k or d_v), past_state (B, kv_heads, d_k, d_v),
    decay (B, T, kv_heads or kv_heads * d_k) in log space, beta (B, T, kv_heads or 1). Token by token

        S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  o = scale S^T q

    without the decay or without the correction (``S = S + k v^T``) where ``update_rule`` does not name them.
    Returns the outputs (B, T, q_heads * d_v) and the last state in the type of past_state (of query where it
    is absent). Computed in float32, or float64 where the query is; ``chunk_size`` is a hint without effect.

    Raises:
        UserError: shapes, heads or inputs do not fit the rule.
    """
    past, decays, rates = (None if a is None else tuple(a.shape) for a in (past_state, decay, beta))
    size = check_linear(
        tuple(query.shape), tuple(key.shape), tuple(value.shape), past, decays, rates,
        q_num_heads, kv_num_heads, update_rule,
    )  # fmt: skip
    wide = torch.promote_types(query.dtype, torch.float32)
    factor = scale or 1 / math.sqrt(size)
    q = _unpacked(query, q_num_heads, wide)
    k, v = (_unpacked(x, kv_num_heads, wide) for x in (key, value))
    steps, batch = q.shape[:2]
    growth = None if decay is None else torch.exp(_unpacked(decay, kv_num_heads, wide)).unsqueeze(-1)
    rate = None if beta is None else _unpacked(beta, beta.shape[2], wide)
    grouped = (q * factor).reshape(steps, batch, kv_num_heads, q_num_heads // kv_num_heads, size)
    if past_state is None:
        state = q.new_zeros(batch, kv_num_heads, size, v.shape[3])
    else:
        state = past_state.to(wide)
    outputs = []
    for t in range(steps):
        if growth is not None:
            state = state * growth[t]
        write = v[t]
        if rate is not None:
            write = rate[t] * (write - (k[t].unsqueeze(-2) @ state).squeeze(-2))
        state = state + k[t].unsqueeze(-1) * write.unsqueeze(-2)
        outputs.append((grouped[t] @ state).reshape(batch, q_num_heads * v.shape[3]))
    y = torch.stack(outputs, dim=1) if outputs else q.new_zeros(batch, 0, q_num_heads * v.shape[3])
    y = y.to(query.dtype)
    return y if n_outputs == 1 else (y, state.to((query if past_state is None else past_state).dtype))
