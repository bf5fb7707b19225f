"""Linear attention (ONNX LinearAttention): a recurrence over tokens on a matrix-valued state."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.attention import check_linear
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.attention import wide_type
from meta500.backends.rules import Call

Array = np.ndarray


def _unpacked(x: Array, heads: int, wide: Any) -> Array:
    """(B, T, heads * size) as (T, B, heads, size) in the type to compute in."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 0, 2, 3).astype(wide)


def _packed(x: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of :func:`_unpacked`, of the given shape."""
    return x.transpose(1, 0, 2, 3).reshape(shape)


@rules.rule("LinearAttention", 27)
def linear_attention(
    query: Array, key: Array, value: Array, past_state: Array | None = None, decay: Array | None = None,
    beta: Array | None = None, *, chunk_size: int = 64, kv_num_heads: int, q_num_heads: int,
    scale: float = 0.0, update_rule: str = "gated_delta", saved: dict[str, Any],
) -> tuple[Array, Array]:  # fmt: skip
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
    past, decays, rates = (None if a is None else a.shape for a in (past_state, decay, beta))
    size = check_linear(
        query.shape, key.shape, value.shape, past, decays, rates, q_num_heads, kv_num_heads, update_rule
    )
    wide = wide_type(query.dtype)
    factor = wide(scale or 1 / np.sqrt(size))
    q = _unpacked(query, q_num_heads, wide)
    k, v = (_unpacked(x, kv_num_heads, wide) for x in (key, value))
    steps, batch = q.shape[:2]
    g = None if decay is None else _unpacked(decay, kv_num_heads, wide)
    b = None if beta is None else _unpacked(beta, beta.shape[2], wide)
    state = np.zeros((batch, kv_num_heads, size, v.shape[3]), wide)
    if past_state is not None:
        state = past_state.astype(wide)
    grouped = q.reshape(steps, batch, kv_num_heads, q_num_heads // kv_num_heads, size)
    outputs = np.empty((*grouped.shape[:4], v.shape[3]), wide)
    states = [state]
    with np.errstate(all="ignore"):
        for t in range(steps):
            if g is not None:
                state = state * np.exp(g[t])[..., None]
            write = v[t]
            if b is not None:
                write = b[t] * (write - (k[t][..., None, :] @ state)[..., 0, :])
            state = state + k[t][..., None] * write[..., None, :]
            outputs[t] = factor * (grouped[t] @ state)
            states.append(state)
    saved.update(q=grouped, k=k, v=v, g=g, b=b, states=states, factor=factor)
    by_head = outputs.reshape(steps, batch, q_num_heads, v.shape[3])
    output = _packed(by_head, (batch, steps, q_num_heads * v.shape[3]))
    return output.astype(query.dtype), state.astype((query if past_state is None else past_state).dtype)


@linear_attention.vjp
def linear_attention_vjp(
    call: Call, d_output: Array | None, d_present: Array | None = None
) -> tuple[Array | None, ...]:
    """Gradients of all inputs: the recurrence walked backwards over the states of the forward."""
    q, k, v, g, b, states, factor = (call.saved[n] for n in ("q", "k", "v", "g", "b", "states", "factor"))
    steps = len(q)
    d_q, d_k, d_v = np.zeros_like(q), np.empty_like(k), np.empty_like(v)
    d_g, d_b = (None if a is None else np.empty_like(a) for a in (g, b))
    d_state = np.zeros_like(states[0]) if d_present is None else d_present.astype(q.dtype)
    d_out = None
    if d_output is not None:
        by_head = _unpacked(d_output, call.attributes["q_num_heads"], q.dtype)
        d_out = by_head.reshape(*q.shape[:4], v.shape[3])
    with np.errstate(all="ignore"):
        for t in reversed(range(steps)):
            if d_out is not None:
                d_q[t] = factor * (d_out[t] @ states[t + 1].swapaxes(2, 3))
                d_state = d_state + factor * (q[t].swapaxes(2, 3) @ d_out[t])
            decayed = states[t] if g is None else states[t] * np.exp(g[t])[..., None]
            d_write = (k[t][..., None, :] @ d_state)[..., 0, :]
            if b is None or d_b is None:
                d_k[t] = (d_state @ v[t][..., None])[..., 0]
                d_v[t] = d_write
                d_decayed = d_state
            else:
                error = v[t] - (k[t][..., None, :] @ decayed)[..., 0, :]
                d_b[t] = (d_write * error).sum(axis=(-2, -1) if b.shape[2] == 1 else -1).reshape(b[t].shape)
                d_v[t] = d_error = d_write * b[t]
                d_k[t] = (d_state @ (b[t] * error)[..., None])[..., 0] - (decayed @ d_error[..., None])[
                    ..., 0
                ]
                d_decayed = d_state - k[t][..., None] * d_error[..., None, :]
            d_state = d_decayed
            if g is not None and d_g is not None:
                slope = (d_decayed * decayed).sum(axis=-1)
                d_g[t] = slope if g.shape[3] == slope.shape[2] else slope.sum(axis=-1, keepdims=True)
                d_state = d_decayed * np.exp(g[t])[..., None]
    heads = (*q.shape[:2], q.shape[2] * q.shape[3], q.shape[4])
    parts = (d_q.reshape(heads), d_k, d_v, d_state, d_g, d_b)
    return tuple(
        None if array is None or d is None
        else (d if i == 3 else _packed(d, array.shape)).astype(array.dtype)
        for i, (d, array) in enumerate(zip(parts, call.inputs, strict=False))
    )  # fmt: skip
