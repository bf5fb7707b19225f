"""Attention, FlexAttention, LinearAttention, RotaryEmbedding and CausalConvWithState on both backends.

Expected values come from torch.nn.functional or from the equations written out with loops, in float64.
"""

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import meta500
from meta500.errors import UserError

BACKENDS = ("numpy", "torch")


def brute(q, k, v, mask=None, past_key=None, past_value=None, nonpad=None, *, is_causal=0, left=-1, right=-1,
          scale=None, softcap=0.0, **_):  # fmt: skip
    """Y and the four kinds of scores, one query at a time; ``mask`` is additive, -inf where forbidden."""
    if past_key is not None:
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    batch, heads, length, size = q.shape
    total, group = k.shape[2], heads // k.shape[1]
    scale = 1 / np.sqrt(size) if scale is None else scale
    y = np.zeros((batch, heads, length, v.shape[3]))
    stages = np.zeros((4, batch, heads, length, total))
    if mask is not None:
        pad = [(0, 0)] * (mask.ndim - 1) + [(0, total - mask.shape[-1])]
        mask = np.broadcast_to(np.pad(mask, pad, constant_values=-np.inf), (batch, heads, length, total))
    for b, h, i in np.ndindex(batch, heads, length):
        offset = 0 if past_key is None else past_key.shape[2]
        if nonpad is not None:
            offset = nonpad[b] - length
        raw = np.array([q[b, h, i] @ k[b, h // group, j] * scale for j in range(total)])
        capped = softcap * np.tanh(raw / softcap) if softcap else raw
        biased = capped.copy()
        for j in range(total):
            ahead = j - (i + offset)
            forbidden = (is_causal and ahead > 0) or (left >= 0 and ahead < -left) or (0 <= right < ahead)
            if forbidden or (nonpad is not None and j >= nonpad[b]):
                biased[j] = -np.inf
            if mask is not None:
                biased[j] += mask[b, h, i, j]
        p = np.zeros(total)
        if (biased > -np.inf).any():
            p = np.exp(biased - biased.max())
            p /= p.sum()
        stages[:, b, h, i] = raw, capped, biased, p
        y[b, h, i] = p @ v[b, h // group]
    return y, stages


def tensors(rng, batch=2, heads=4, kv_heads=2, length=3, keys=5, size=4, v_size=3):
    return [
        rng.normal(size=(batch, heads, length, size)),
        rng.normal(size=(batch, kv_heads, keys, size)),
        rng.normal(size=(batch, kv_heads, keys, v_size)),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_values_and_gradients_are_those_of_torch(node, backend, scale, masked) -> None:
    rng = np.random.default_rng(0)
    inputs = tensors(rng)
    mask = None
    if masked:
        mask = rng.random((2, 1, 3, 5)) < 0.7 if masked == "bool" else rng.normal(size=(3, 5))
        if masked == "bool":
            mask[..., 0] = True
    d = rng.normal(size=(2, 4, 3, 3))
    options = {} if scale is None else {"scale": scale}
    values, gradients = node(backend, "Attention", 23, [*inputs, mask], cotangents={0: d}, **options)
    leaves = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in (*inputs, mask) if a is not None]
    expected = F.scaled_dot_product_attention(
        *leaves[:3], leaves[3] if masked else None, scale=scale, enable_gqa=True
    )
    (expected * torch.tensor(d)).sum().backward()
    np.testing.assert_allclose(values[0], expected.detach().numpy(), rtol=1e-7)
    for name, leaf in zip(("x0", "x1", "x2", "x3"), leaves, strict=False):
        if leaf.requires_grad:
            np.testing.assert_allclose(gradients[name], leaf.grad.numpy(), rtol=1e-6, atol=1e-8)


@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 999))
def test_all_attributes_against_loops(agree, data, seed) -> None:
    rng = np.random.default_rng(seed)
    draw = data.draw
    length, keys = draw(st.integers(0, 4)), draw(st.integers(1, 5))
    kv_heads = draw(st.integers(1, 2))
    heads = kv_heads * draw(st.integers(1, 2))
    q, k, v = tensors(rng, draw(st.integers(1, 2)), heads, kv_heads, length, keys)
    cache = draw(st.sampled_from(["none", "past", "nonpad"]))
    past_key = past_value = nonpad = None
    if cache == "past":
        past = draw(st.integers(0, 3))
        past_key, past_value = (rng.normal(size=(*a.shape[:2], past, a.shape[3])) for a in (k, v))
        keys += past
    elif cache == "nonpad":
        nonpad = rng.integers(0, keys + 1, len(q))
    kind = draw(st.sampled_from(["none", "float", "bool"]))
    mask = additive = None
    if kind != "none":
        shape = draw(st.sampled_from([(keys,), (length, keys), (1, length, keys), (len(q), 1, 1, keys)]))
        width = draw(st.integers(2, keys)) if keys > 2 else keys
        mask = additive = rng.normal(size=(*shape[:-1], width))
        if kind == "bool":
            mask = mask > -0.5
            additive = np.where(mask, 0, -np.inf)
    options = {
        "is_causal": draw(st.integers(0, 1)),
        "left_window_size": draw(st.integers(-1, 2)),
        "right_window_size": draw(st.integers(-1, 2)),
        "softcap": draw(st.sampled_from([0.0, 1.5])),
        "qk_matmul_output_mode": draw(st.integers(0, 3)),
    }
    scale = draw(st.sampled_from([None, 0.5, 1.0]))
    if scale is not None:
        options["scale"] = scale
    cotangents = {0: rng.normal(size=(*q.shape[:3], 3))}
    n_outputs = 4 if cache != "nonpad" else 1
    if n_outputs == 4:
        cotangents |= {
            1: rng.normal(size=(*k.shape[:2], keys, 4)),
            2: rng.normal(size=(*v.shape[:2], keys, 3)),
        }
        if options["qk_matmul_output_mode"] != 2:
            cotangents[3] = rng.normal(size=(*q.shape[:3], keys))
    inputs = [q, k, v, mask, past_key, past_value, nonpad]
    values, _ = agree("Attention", 25, inputs, n_outputs, cotangents=cotangents, **options)
    expected, stages = brute(
        q, k, v, additive, past_key, past_value, nonpad, is_causal=options["is_causal"],
        left=options["left_window_size"], right=options["right_window_size"], scale=scale,
        softcap=options["softcap"],
    )  # fmt: skip
    np.testing.assert_allclose(values[0], expected, rtol=1e-10, atol=1e-12)
    if n_outputs == 4:
        shown = stages[options["qk_matmul_output_mode"]]
        np.testing.assert_allclose(values[3], shown, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("version", [23, 24, 25])
def test_three_axes_are_heads_side_by_side(agree, version) -> None:
    rng = np.random.default_rng(1)
    q, k, v = tensors(rng)
    flat = [a.transpose(0, 2, 1, 3).reshape(2, a.shape[2], -1) for a in (q, k, v)]
    d = rng.normal(size=(2, 4, 3, 3))
    options = {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1}
    packed, packed_gradients = agree(
        "Attention", version, flat, cotangents={0: d.transpose(0, 2, 1, 3).reshape(2, 3, 12)}, **options
    )
    plain, gradients = agree("Attention", version, [q, k, v], cotangents={0: d}, is_causal=1)
    np.testing.assert_allclose(packed[0], plain[0].transpose(0, 2, 1, 3).reshape(2, 3, 12), rtol=1e-13)
    for name, a in (("x0", q), ("x1", k), ("x2", v)):
        back = packed_gradients[name].reshape(2, a.shape[2], a.shape[1], a.shape[3]).transpose(0, 2, 1, 3)
        np.testing.assert_allclose(back, gradients[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_without_keys_gives_zero_and_no_gradient(node, backend) -> None:
    q, k, v = tensors(np.random.default_rng(2))
    mask = np.ones((3, 5), bool)
    mask[1] = False
    values, gradients = node(backend, "Attention", 23, [q, k, v, mask], cotangents={0: np.ones((2, 4, 3, 3))})
    assert (values[0][:, :, 1] == 0).all() and np.abs(values[0][:, :, 0]).min() > 0
    assert (gradients["x0"][:, :, 1] == 0).all() and np.isfinite(gradients["x1"]).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0)])
def test_empty_queries(node, backend, shape) -> None:
    q = np.zeros(shape)
    k, v = np.ones((shape[0], 2, 5, shape[3])), np.ones((shape[0], 2, 5, 6))
    values, _ = node(backend, "Attention", 23, [q, k, v])
    np.testing.assert_array_equal(values[0], np.ones((*shape[:3], 6)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_keys_at_all_give_zero(node, backend) -> None:
    values, _ = node(
        backend, "Attention", 23, [np.ones((1, 2, 3, 4)), np.ones((1, 2, 0, 4)), np.ones((1, 2, 0, 5))]
    )
    np.testing.assert_array_equal(values[0], np.zeros((1, 2, 3, 5)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 3, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {}, "3 query heads are no multiple of 2"),
        (((1, 2, 2, 4), (1, 2, 5, 3), (1, 2, 5, 4)), {}, "do not fit"),
        (((1, 2, 8), (1, 5, 8), (1, 5, 8)), {}, "need q_num_heads"),
        (((1, 2, 8), (1, 5, 8), (1, 5, 8)), {"q_num_heads": 3, "kv_num_heads": 1}, "no multiples of 3"),
        (((1, 2, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {"q_num_heads": 2, "kv_num_heads": 2}, "three axes"),
        (((1, 2, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4), (2, 7)), {}, "does not broadcast"),
        (((1, 2, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {"softcap": -1.0}, "softcap is -1"),
        (((1, 2, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {"softmax_precision": 7}, "softmax_precision 7"),
        (((1, 2, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {"qk_matmul_output_mode": 4}, "mode is 4"),
        (((1, 2, 2, 4), (1, 2, 5, 4), (1, 2, 5, 4)), {"left_window_size": -2}, "left_window_size is -2"),
    ],
)
def test_attention_refuses_what_does_not_fit(node, backend, shapes, options, message) -> None:
    with pytest.raises(UserError, match=message):
        node(backend, "Attention", 25, [np.zeros(s) for s in shapes], **options)


HEADER = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.preview" : 1]>\n'
FLEX = """flex (double[B,4,L,4] q, double[B,2,S,4] k, double[B,2,S,3] v, double[S] w, double[B,4,L,3] c)
    => (double[B,4,L,3] y, double loss) {
    y = ai.onnx.preview.FlexAttention <scale: float = 0.3,
        score_mod = bias (double[B,4,L,S] s) => (double[B,4,L,S] t) { t0 = Add(s, w)  t1 = Tanh(t0)  t = Mul(t1, t0) },
        prob_mod = sharpen (double[B,4,L,S] p) => (double[B,4,L,S] r) { r0 = Mul(p, p)  r = Mul(r0, w) }> (q, k, v)
    d = Mul(y, c)
    loss = ReduceSum <keepdims = 0> (d)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_flex_attention_differentiates_through_its_modifiers(backend) -> None:
    rng = np.random.default_rng(3)
    q, k, v = tensors(rng)
    w, c = rng.normal(size=5), rng.normal(size=(2, 4, 3, 3))
    inputs = {"q": q, "k": k, "v": v, "w": w, "c": c}
    with meta500.network(meta500.load(onnx.parser.parse_model(HEADER + FLEX)), backend=backend) as net:
        out = net.inference_and_backprop(inputs, loss="loss", wrt=["q", "k", "v", "w"], outputs=["y"])
        gradients = net.fetch_tensors(["grad/q", "grad/k", "grad/v", "grad/w"])
    leaves = [torch.tensor(a, requires_grad=True) for a in (q, k, v, w)]
    heads_k, heads_v = (t.repeat_interleave(2, dim=1) for t in leaves[1:3])
    scores = leaves[0] @ heads_k.transpose(2, 3) * 0.3 + leaves[3]
    p = torch.softmax(torch.tanh(scores) * scores, -1)
    y = (p * p * leaves[3]) @ heads_v
    (y * torch.tensor(c)).sum().backward()
    np.testing.assert_allclose(out["y"], y.detach().numpy(), rtol=1e-12)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("body", ["t = ReduceSum (s)", "t = Cast <to = 1> (s)"])
def test_flex_attention_refuses_a_modifier_that_changes_shape_or_type(backend, body) -> None:
    text = f"""flex (double[1,1,2,4] q, double[1,1,3,4] k, double[1,1,3,4] v) => (y) {{
        y = ai.onnx.preview.FlexAttention <score_mod = m (double[A,B,C,D] s) => (t) {{ {body} }}> (q, k, v)
    }}"""
    inputs = {"q": np.ones((1, 1, 2, 4)), "k": np.ones((1, 1, 3, 4)), "v": np.ones((1, 1, 3, 4))}
    with (
        pytest.raises(UserError, match=r"score_mod must give one float64\[1, 1, 2, 3\]"),
        meta500.network(meta500.load(onnx.parser.parse_model(HEADER + text)), backend=backend) as net,
    ):
        net.inference(inputs)


@pytest.mark.parametrize("precision", [None, 1, 10, 11, 16])
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_flex_attention_in_other_precisions(node, dtype, precision) -> None:
    """Within the rounding of the narrower of both types of the exact result, in the type of V."""
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    inputs = [a.astype(dtype) for a in tensors(np.random.default_rng(4))]
    exact = brute(*(a.astype(np.float64) for a in inputs))[0]
    narrow = {None: 0.0, 1: 0.0, 10: 2**-10, 11: 0.0, 16: 2**-7}[precision]
    unit = max(narrow, float(ml_dtypes.finfo(dtype).eps))
    options = {} if precision is None else {"softmax_precision": precision}
    for backend in BACKENDS:
        (y,), _ = node(backend, "FlexAttention", 1, inputs, domain="ai.onnx.preview", **options)
        assert y.dtype == dtype
        np.testing.assert_allclose(y.astype(np.float64), exact, atol=8 * unit, rtol=8 * unit)


@pytest.mark.parametrize("backend", BACKENDS)
def test_flex_attention_refuses_three_axes(node, backend) -> None:
    with pytest.raises(UserError, match="must all be"):
        node(backend, "FlexAttention", 1, [np.zeros((1, 2, 4))] * 3, domain="ai.onnx.preview")


def linear_attention(query, key, value, state, decay, beta, heads, kv_heads, rule, scale):
    """The recurrence of the definition, one head at a time."""
    batch, steps = query.shape[:2]
    q, k, v = (
        x.reshape(batch, steps, n, x.shape[2] // n)
        for x, n in ((query, heads), (key, kv_heads), (value, kv_heads))
    )
    scale = scale or 1 / np.sqrt(q.shape[3])
    y = np.zeros((batch, steps, heads, v.shape[3]))
    last = np.zeros((batch, kv_heads, k.shape[3], v.shape[3]))
    for b, h in np.ndindex(batch, kv_heads):
        s = np.zeros(last.shape[2:]) if state is None else state[b, h].copy()
        for t in range(steps):
            if "gated" in rule:
                g = decay[b, t].reshape(kv_heads, -1)[h]
                s = s * np.exp(g)[:, None]
            write = v[b, t, h]
            if "delta" in rule:
                rate = beta[b, t][h if beta.shape[2] > 1 else 0]
                write = rate * (v[b, t, h] - s.T @ k[b, t, h])
            s = s + np.outer(k[b, t, h], write)
            for query_head in range(h * heads // kv_heads, (h + 1) * heads // kv_heads):
                y[b, t, query_head] = scale * (s.T @ q[b, t, query_head])
        last[b, h] = s
    return y.reshape(batch, steps, heads * v.shape[3]), last


@settings(max_examples=25)
@given(
    rule=st.sampled_from(["linear", "gated", "delta", "gated_delta"]),
    steps=st.integers(0, 3),
    group=st.integers(1, 2),
    with_state=st.booleans(),
    vector_decay=st.booleans(),
    shared_beta=st.booleans(),
    scale=st.sampled_from([0.0, 0.7]),
    seed=st.integers(0, 99),
)
def test_linear_attention(agree, rule, steps, group, with_state, vector_decay, shared_beta, scale, seed):
    rng = np.random.default_rng(seed)
    kv_heads, size, v_size = 2, 3, 2
    heads = kv_heads * group
    query, key = rng.normal(size=(2, steps, heads * size)), rng.normal(size=(2, steps, kv_heads * size))
    value = rng.normal(size=(2, steps, kv_heads * v_size))
    state = rng.normal(size=(2, kv_heads, size, v_size)) if with_state else None
    decay = -rng.random((2, steps, kv_heads * (size if vector_decay else 1))) if "gated" in rule else None
    beta = rng.random((2, steps, 1 if shared_beta else kv_heads)) if "delta" in rule else None
    values, _ = agree(
        "LinearAttention", 27, [query, key, value, state, decay, beta], 2,
        cotangents={0: rng.normal(size=(2, steps, heads * v_size)), 1: rng.normal(size=(2, kv_heads, size, v_size))},
        q_num_heads=heads, kv_num_heads=kv_heads, update_rule=rule, scale=scale,
    )  # fmt: skip
    y, last = linear_attention(query, key, value, state, decay, beta, heads, kv_heads, rule, scale)
    np.testing.assert_allclose(values[0], y, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(values[1], last, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"update_rule": "gated"}, "needs decay"),
        ({"update_rule": "quadratic"}, "quadratic"),
        ({"update_rule": "linear", "q_num_heads": 3}, "multiple"),
        ({"update_rule": "linear", "q_num_heads": 4, "kv_num_heads": 4}, "must be"),
    ],
)
def test_linear_attention_refuses_what_does_not_fit(node, backend, options, message) -> None:
    given_ = {"q_num_heads": 2, "kv_num_heads": 2, **options}
    with pytest.raises(UserError, match=message):
        node(backend, "LinearAttention", 27, [np.zeros((1, 3, 6))] * 3, 2, **given_)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dim", [0, 4])
@pytest.mark.parametrize("flat", [False, True])
def test_rotary_embedding_is_a_product_of_complex_numbers(agree, interleaved, dim, flat) -> None:
    rng = np.random.default_rng(5)
    turned = dim or 6
    x, angles = rng.normal(size=(2, 3, 4, 6)), rng.normal(size=(9, turned // 2))
    positions = rng.integers(0, 9, (2, 4))
    part = x[..., :turned]
    z = part[..., 0::2] + 1j * part[..., 1::2]
    if not interleaved:
        z = part[..., : turned // 2] + 1j * part[..., turned // 2 :]
    z = z * np.exp(1j * angles[positions])[:, None]
    pairs = np.stack((z.real, z.imag), -1).reshape(2, 3, 4, turned)
    rotated = pairs if interleaved else np.concatenate((z.real, z.imag), -1)
    expected = np.concatenate((rotated, x[..., turned:]), -1)
    d = rng.normal(size=x.shape)
    if flat:
        x, expected, d = (a.transpose(0, 2, 1, 3).reshape(2, 4, 18) for a in (x, expected, d))
    options = {"interleaved": interleaved, "rotary_embedding_dim": dim, **({"num_heads": 3} if flat else {})}
    caches = [np.cos(angles), np.sin(angles)]
    values, _ = agree("RotaryEmbedding", 23, [x, *caches, positions], cotangents={0: d}, **options)
    np.testing.assert_allclose(values[0], expected, rtol=1e-12, atol=1e-14)
    direct, _ = agree(
        "RotaryEmbedding", 23, [x, *(c[positions] for c in caches)], cotangents={0: d}, **options
    )
    np.testing.assert_allclose(direct[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 2, 3, 5), (1, 3, 2), (1, 3, 2)), {}, "cannot be rotated in pairs"),
        (((1, 3, 8), (1, 3, 2), (1, 3, 2)), {}, "num_heads"),
        (((1, 2, 3, 4), (1, 3, 3), (1, 3, 3)), {}, "do not fit"),
        (((1, 2, 3, 4), (1, 3, 2), (1, 3, 2)), {"rotary_embedding_dim": 6}, "6 of 4"),
    ],
)
def test_rotary_embedding_refuses_what_does_not_fit(node, backend, shapes, options, message) -> None:
    with pytest.raises(UserError, match=message):
        node(backend, "RotaryEmbedding", 23, [np.zeros(s) for s in shapes], **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rotary_positions_must_be_in_the_caches(node, backend) -> None:
    cache = np.zeros((5, 2))
    with pytest.raises(UserError):
        node(backend, "RotaryEmbedding", 23, [np.zeros((1, 1, 2, 4)), cache, cache, np.array([[0, 5]])])


@settings(max_examples=20)
@given(
    steps=st.integers(0, 5),
    taps=st.integers(1, 4),
    activation=st.sampled_from(["none", "silu", "swish"]),
    with_bias=st.booleans(),
    with_state=st.booleans(),
    seed=st.integers(0, 99),
)
def test_causal_convolution(agree, steps, taps, activation, with_bias, with_state, seed) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(2, 3, steps)), rng.normal(size=(3, 1, taps))
    bias = rng.normal(size=3) if with_bias else None
    state = rng.normal(size=(2, 3, taps - 1)) if with_state else None
    d = {0: rng.normal(size=x.shape), 1: rng.normal(size=(2, 3, taps - 1))}
    values, _ = agree("CausalConvWithState", 27, [x, w, bias, state], 2, cotangents=d, activation=activation)
    s = np.concatenate((np.zeros((2, 3, taps - 1)) if state is None else state, x), 2)
    y = np.zeros(x.shape)
    for t in range(steps):
        y[:, :, t] = (s[:, :, t : t + taps] * w[:, 0]).sum(2) + (0 if bias is None else bias)
    if activation != "none":
        y = y / (1 + np.exp(-y))
    np.testing.assert_allclose(values[0], y, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(values[1], s[:, :, steps:])
