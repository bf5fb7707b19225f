"""Shapes of attention nodes, checked once for all backends."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meta500.errors import UserError, choose

Shape = tuple[int, ...]

# softmax_precision: the ONNX element types that the schemas allow.
PRECISIONS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


@dataclass(frozen=True)
class Geometry:
    """Sizes of one attention: heads of query and key, query length, past and total key length, head sizes."""

    batch: int
    q_heads: int
    kv_heads: int
    q_length: int
    past: int
    total: int
    size: int
    v_size: int

    @property
    def group(self) -> int:
        """Number of query heads that share a key head."""
        return self.q_heads // self.kv_heads if self.kv_heads else 1


def geometry(
    q: Shape,
    k: Shape,
    v: Shape,
    past_key: Shape | None = None,
    past_value: Shape | None = None,
    nonpad: Shape | None = None,
    q_num_heads: int | None = None,
    kv_num_heads: int | None = None,
    since_version: int = 25,
    operator: str = "Attention",
) -> Geometry:
    """The sizes of an attention with Q, K, V of shapes (B, heads, length, size) or (B, length, hidden).

    Raises:
        UserError: ranks, head counts or sizes do not fit; the message has the shapes.
    """
    shapes = f"Q {q}, K {k}, V {v}"
    if not len(q) == len(k) == len(v) or len(q) not in (3, 4):
        raise UserError(f"{operator}: {shapes} must all have three axes or all four")
    if len(q) == 3:
        if not q_num_heads or not kv_num_heads or q_num_heads < 0 or kv_num_heads < 0:
            raise UserError(f"{operator}: inputs of three axes need q_num_heads and kv_num_heads ({shapes})")
        if q[2] % q_num_heads or k[2] % kv_num_heads or v[2] % kv_num_heads:
            raise UserError(
                f"{operator}: the last axes of {shapes} are no multiples of {q_num_heads} query heads and "
                f"{kv_num_heads} key heads"
            )
        q = (q[0], q_num_heads, q[1], q[2] // q_num_heads)
        k, v = ((s[0], kv_num_heads, s[1], s[2] // kv_num_heads) for s in (k, v))
    elif since_version >= 25 and (q_num_heads is not None or kv_num_heads is not None):
        raise UserError(f"{operator}: q_num_heads and kv_num_heads belong to inputs of three axes ({shapes})")
    if not q[0] == k[0] == v[0] or k[1:3] != v[1:3] or q[3] != k[3]:
        raise UserError(
            f"{operator}: {shapes} do not fit: all need one batch size, K and V the same heads and length, "
            f"Q and K the same head size"
        )
    if k[1] < 1 or q[1] % k[1]:
        raise UserError(f"{operator}: {q[1]} query heads are no multiple of {k[1]} key heads")
    if (past_key is None) != (past_value is None):
        raise UserError(f"{operator}: past_key and past_value must be given together")
    if past_key is not None and nonpad is not None:
        raise UserError(f"{operator}: nonpad_kv_seqlen excludes past_key and past_value")
    if nonpad is not None and nonpad != q[:1]:
        raise UserError(f"{operator}: nonpad_kv_seqlen has shape {nonpad}, expected {q[:1]}")
    past = 0
    if past_key is not None and past_value is not None:
        fits = [len(p) == 4 and p[:2] == s[:2] and p[3] == s[3] for p, s in ((past_key, k), (past_value, v))]
        if not all(fits) or past_key[2] != past_value[2]:
            raise UserError(
                f"{operator}: past_key {past_key} and past_value {past_value} must be (batch, key heads, "
                f"past length, head size) and fit {shapes}"
            )
        past = past_key[2]
    return Geometry(q[0], q[1], k[1], q[2], past, past + k[2], q[3], v[3])


def flex_geometry(q: Shape, k: Shape, v: Shape) -> Geometry:
    """The sizes of a FlexAttention, whose inputs all have four axes.

    Raises:
        UserError: ranks, head counts or sizes do not fit; the message has the shapes.
    """
    if not len(q) == len(k) == len(v) == 4:
        raise UserError(f"FlexAttention: Q {q}, K {k}, V {v} must all be (batch, heads, length, head size)")
    return geometry(q, k, v, operator="FlexAttention")


def check_mask(mask: Shape, sizes: Geometry, since_version: int) -> int:
    """How many masked keys follow the last one that a mask of this shape names.

    Before version 24 a mask must broadcast to (batch, query heads, query length, total length). From then on
    its last axis may be shorter; the missing keys, also those behind a last axis of 1, are masked.

    Raises:
        UserError: the mask does not broadcast.
    """
    target = (sizes.batch, sizes.q_heads, sizes.q_length, sizes.total)
    missing = max(sizes.total - mask[-1], 0) if mask and since_version >= 24 else 0
    padded = (*mask[:-1], mask[-1] + missing) if mask else mask
    pairs = zip(reversed(padded), reversed(target), strict=False)
    if len(mask) > 4 or any(m not in (1, n) for m, n in pairs):
        raise UserError(f"Attention: attn_mask of shape {mask} does not broadcast to {target}")
    return missing


def check_options(
    softcap: float,
    softmax_precision: int | None,
    mode: int,
    left: int,
    right: int,
    operator: str = "Attention",
) -> None:
    """Check attributes that do not depend on shapes.

    Raises:
        UserError: a value outside of what ONNX defines.
    """
    if softcap < 0:
        raise UserError(f"{operator}: softcap is {softcap}, expected 0 (none) or a positive bound")
    if softmax_precision is not None and softmax_precision not in PRECISIONS:
        known = ", ".join(f"{number} ({name})" for number, name in PRECISIONS.items())
        raise UserError(f"{operator}: softmax_precision {softmax_precision} is none of {known}")
    if mode not in (0, 1, 2, 3):
        raise UserError(f"{operator}: qk_matmul_output_mode is {mode}, expected 0, 1, 2 or 3")
    for name, size in (("left_window_size", left), ("right_window_size", right)):
        if size < -1:
            raise UserError(f"{operator}: {name} is {size}, expected -1 (unbounded) or at least 0")


def scales(scale: float | None, size: int) -> tuple[float, float]:
    """Factors of Q and K: the square root of ``scale`` (default ``1 / sqrt(size)``), its sign on Q."""
    value = (1 / math.sqrt(size) if size else 1.0) if scale is None else scale
    root = math.sqrt(abs(value))
    return math.copysign(root, value), root


def check_linear(
    query: Shape,
    key: Shape,
    value: Shape,
    past_state: Shape | None,
    decay: Shape | None,
    beta: Shape | None,
    q_num_heads: int,
    kv_num_heads: int,
    update_rule: str,
) -> int:
    """The key size of a LinearAttention with inputs of these shapes.

    Raises:
        UserError: an unknown rule, inputs that it lacks or does not take, or shapes that do not fit.
    """
    choose("update_rule of LinearAttention", update_rule, ("linear", "gated", "delta", "gated_delta"))
    rules = (("decay", decay, "gated" in update_rule), ("beta", beta, "delta" in update_rule))
    for name, shape, wanted in rules:
        if (shape is not None) != wanted:
            verb = "needs" if wanted else "takes no"
            raise UserError(f"LinearAttention: update_rule '{update_rule}' {verb} {name}")
    shapes = f"query {query}, key {key}, value {value}"
    heads = f"{q_num_heads} query heads and {kv_num_heads} key heads"
    if q_num_heads < 1 or kv_num_heads < 1 or q_num_heads % kv_num_heads:
        raise UserError(f"LinearAttention: {heads}; the former must be a positive multiple of the latter")
    fits = all(len(s) == 3 for s in (query, key, value)) and query[:2] == key[:2] == value[:2]
    if not fits or query[2] % q_num_heads or key[2] % kv_num_heads or value[2] % kv_num_heads:
        raise UserError(f"LinearAttention: {shapes} must be (B, T, heads * size) with {heads}")
    size = query[2] // q_num_heads
    if not size or key[2] // kv_num_heads != size:
        raise UserError(f"LinearAttention: query and key need one head size, at least 1 ({shapes}, {heads})")
    expected = (
        ("past_state", past_state, [(query[0], kv_num_heads, size, value[2] // kv_num_heads)]),
        ("decay", decay, [(*query[:2], kv_num_heads), (*query[:2], kv_num_heads * size)]),
        ("beta", beta, [(*query[:2], kv_num_heads), (*query[:2], 1)]),
    )
    for name, shape, choices in expected:
        if shape is not None and shape not in choices:
            raise UserError(
                f"LinearAttention: {name} has shape {shape}, expected {' or '.join(map(str, choices))}"
            )
    return size


def rotary_sizes(
    x: Shape, cos: Shape, sin: Shape, positions: Shape | None, num_heads: int | None, rotary: int
) -> tuple[int, int, int, int]:
    """(heads, tokens, head size, rotated size) of a RotaryEmbedding with inputs of these shapes.

    Raises:
        UserError: shapes or heads do not fit; the message has the shapes.
    """
    if len(x) == 4:
        heads, tokens, size = x[1], x[2], x[3]
    elif len(x) == 3 and num_heads and num_heads > 0 and x[2] % num_heads == 0:
        heads, tokens, size = num_heads, x[1], x[2] // num_heads
    else:
        raise UserError(
            f"RotaryEmbedding: X {x} must be (B, heads, T, size), or (B, T, heads * size) with num_heads "
            f"(here {num_heads})"
        )
    turned = rotary or size
    if turned % 2 or not 0 <= turned <= size:
        raise UserError(f"RotaryEmbedding: {turned} of {size} elements cannot be rotated in pairs")
    if positions is None:
        expected: tuple[Shape, ...] = ((x[0], tokens, turned // 2),)
        fits = cos == expected[0]
    else:
        expected = ((-1, turned // 2), (x[0], tokens))
        fits = len(cos) == 2 and cos[1] == turned // 2 and positions == (x[0], tokens)
    if not fits or cos != sin:
        raise UserError(
            f"RotaryEmbedding: cos_cache {cos}, sin_cache {sin} and position_ids {positions} do not fit "
            f"X {x}; expected caches {expected[0]}"
            + ("" if positions is None else f" and position_ids {expected[1]}")
        )
    return heads, tokens, size, turned
