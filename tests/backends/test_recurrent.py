"""RNN, GRU and LSTM on both backends against torch.nn's modules, in float64, values and gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.errors import UserError

BACKENDS = ("numpy", "torch")
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
# Rows of torch's gate weights in ONNX's order: GRU r, z, n -> z, r, h; LSTM i, f, g, o -> i, o, f, c.
ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 3, 1, 2]}


def module_and_inputs(kind, rng, steps, batch, size, hidden, bidirectional):
    """A torch module with random weights and the same weights as ONNX wants them."""
    module = getattr(torch.nn, kind)(size, hidden, bidirectional=bidirectional, dtype=torch.float64)
    weights = {"W": [], "R": [], "B": []}
    for suffix in ("", "_reverse")[: 1 + bidirectional]:
        parts = {}
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            parameter = getattr(module, f"{name}_l0{suffix}")
            value = rng.normal(size=tuple(parameter.shape)) * 0.6
            parameter.data = torch.tensor(value)
            blocks = np.split(value, GATES[kind])
            parts[name] = np.concatenate([blocks[i] for i in ORDER[kind]])
        weights["W"].append(parts["weight_ih"])
        weights["R"].append(parts["weight_hh"])
        weights["B"].append(np.concatenate([parts["bias_ih"], parts["bias_hh"]]))
    inputs = {"X": rng.normal(size=(steps, batch, size)), **{k: np.stack(v) for k, v in weights.items()}}
    inputs["sequence_lens"] = None
    for name in ("initial_h", "initial_c")[: 1 + (kind == "LSTM")]:
        inputs[name] = rng.normal(size=(1 + bidirectional, batch, hidden))
    return module, inputs


def gradient_rows(module, name, kind, count):
    """Gradients of torch's weights in ONNX's order, one row per direction."""
    rows = []
    for suffix in ("", "_reverse")[:count]:
        blocks = np.split(getattr(module, f"{name}_l0{suffix}").grad.numpy(), GATES[kind])
        rows.append(np.concatenate([blocks[i] for i in ORDER[kind]]))
    return np.stack(rows)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", GATES)
def test_values_and_gradients_are_those_of_torch_modules(node, backend, kind, bidirectional) -> None:
    rng = np.random.default_rng(0)
    count = 1 + bidirectional
    module, inputs = module_and_inputs(kind, rng, 5, 3, 4, 2, bidirectional)
    states = 2 if kind == "LSTM" else 1
    cotangents = {0: rng.normal(size=(5, count, 3, 2)), 1: rng.normal(size=(count, 3, 2))}
    if states == 2:
        cotangents[2] = rng.normal(size=(count, 3, 2))
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    values, gradients = node(
        backend, kind, 22, inputs, 1 + states, cotangents=cotangents, hidden_size=2,
        direction="bidirectional" if bidirectional else "forward", **extra,
    )  # fmt: skip
    x = torch.tensor(inputs["X"], requires_grad=True)
    starts = [torch.tensor(inputs[n], requires_grad=True) for n in ("initial_h", "initial_c")[:states]]
    y, last = module(x, tuple(starts) if states == 2 else starts[0])
    expected = [y.reshape(5, 3, count, 2).transpose(1, 2), *(last if states == 2 else [last])]
    sum((e * torch.tensor(c)).sum() for e, c in zip(expected, cotangents.values(), strict=True)).backward()
    for value, e in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, e.detach().numpy(), rtol=1e-12, atol=1e-13)
    biases = [gradient_rows(module, n, kind, count) for n in ("bias_ih", "bias_hh")]
    wanted = {
        "X": x.grad.numpy(),
        "W": gradient_rows(module, "weight_ih", kind, count),
        "R": gradient_rows(module, "weight_hh", kind, count),
        "B": np.concatenate(biases, axis=1),
        **{n: s.grad.numpy() for n, s in zip(("initial_h", "initial_c"), starts, strict=False)},
    }
    for name, gradient in wanted.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("opset", [7, 14, 22])
def test_all_versions_compute_the_same(agree, kind, opset) -> None:
    rng = np.random.default_rng(1)
    _, inputs = module_and_inputs(kind, rng, 3, 2, 3, 2, False)
    newest = agree(kind, 22, inputs, hidden_size=2)[0][0]
    np.testing.assert_array_equal(agree(kind, opset, inputs, hidden_size=2)[0][0], newest)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", GATES)
def test_sequence_lengths_are_packed_sequences(node, backend, kind) -> None:
    rng = np.random.default_rng(2)
    lengths = np.array([4, 1, 3], np.int32)
    module, inputs = module_and_inputs(kind, rng, 4, 3, 3, 2, True)
    inputs["sequence_lens"] = lengths
    for entry, length in enumerate(lengths):
        inputs["X"][length:, entry] = np.nan  # must reach nothing
    extra = {"linear_before_reset": 1} if kind == "GRU" else {}
    values, _ = node(
        backend, kind, 14, inputs, 2, hidden_size=2, direction="bidirectional", **extra
    )  # fmt: skip
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(inputs["X"]), torch.tensor(lengths, dtype=torch.int64), enforce_sorted=False
    )
    starts = [torch.tensor(inputs[n]) for n in ("initial_h", "initial_c") if n in inputs]
    y, last = module(packed, tuple(starts) if kind == "LSTM" else starts[0])
    y = torch.nn.utils.rnn.pad_packed_sequence(y)[0].reshape(4, 3, 2, 2).transpose(1, 2)
    np.testing.assert_allclose(values[0], y.detach().numpy(), rtol=1e-12, atol=1e-13)
    last = last[0] if kind == "LSTM" else last
    np.testing.assert_allclose(values[1], last.detach().numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", GATES)
def test_layout_1_swaps_the_batch_to_the_front(agree, kind) -> None:
    rng = np.random.default_rng(3)
    _, inputs = module_and_inputs(kind, rng, 4, 3, 2, 2, True)
    plain = agree(kind, 22, inputs, 2, hidden_size=2, direction="bidirectional")[0]
    for name in ("X", "initial_h", "initial_c"):
        if name in inputs:
            inputs[name] = np.ascontiguousarray(inputs[name].swapaxes(0, 1))
    first = agree(kind, 22, inputs, 2, hidden_size=2, direction="bidirectional", layout=1)[0]
    np.testing.assert_array_equal(first[0], plain[0].transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(first[1], plain[1].swapaxes(0, 1))


def test_reverse_is_forward_on_the_reversed_sequence(agree) -> None:
    rng = np.random.default_rng(4)
    _, inputs = module_and_inputs("GRU", rng, 4, 2, 3, 2, False)
    backward = agree("GRU", 22, inputs, 2, hidden_size=2, direction="reverse")[0]
    forward = agree("GRU", 22, {**inputs, "X": inputs["X"][::-1].copy()}, 2, hidden_size=2)[0]
    np.testing.assert_allclose(backward[0], forward[0][::-1], rtol=1e-14)
    np.testing.assert_allclose(backward[1], forward[1], rtol=1e-14)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_lstm_with_peepholes_coupled_gates_and_clip(agree) -> None:
    """The equations of ONNX LSTM for one direction, written out."""
    rng = np.random.default_rng(5)
    n, clip = 3, 0.7
    x, w, r = rng.normal(size=(4, 2, 2)), rng.normal(size=(1, 4 * n, 2)), rng.normal(size=(1, 4 * n, n))
    b, p = rng.normal(size=(1, 8 * n)), rng.normal(size=(1, 3 * n))
    shapes = {0: (4, 1, 2, n), 1: (1, 2, n), 2: (1, 2, n)}
    inputs = {"X": x, "W": w, "R": r, "B": b, "lens": None, "h": None, "c": None, "P": p}
    for coupled in (0, 1):
        values, _ = agree(
            "LSTM", 22, inputs, 3, hidden_size=n, input_forget=coupled, clip=clip,
            cotangents={k: rng.normal(size=s) for k, s in shapes.items()},
        )  # fmt: skip
        h, c, outputs = np.zeros((2, n)), np.zeros((2, n)), []
        clipped_p = np.split(p[0], 3)
        for step in x:
            raw = step @ w[0].T + h @ r[0].T + b[0, : 4 * n] + b[0, 4 * n :]
            i, o, f, g = np.split(raw, 4, axis=1)
            i = sigmoid(np.clip(i + clipped_p[0] * c, -clip, clip))
            f = 1 - i if coupled else sigmoid(np.clip(f + clipped_p[2] * c, -clip, clip))
            c = f * c + i * np.tanh(np.clip(g, -clip, clip))
            o = sigmoid(np.clip(o + clipped_p[1] * c, -clip, clip))
            h = o * np.tanh(np.clip(c, -clip, clip))
            outputs.append(h)
        np.testing.assert_allclose(values[0][:, 0], outputs, rtol=1e-12)
        np.testing.assert_allclose(values[2][0], c, rtol=1e-12)


FUNCTIONS = {
    "Affine": lambda x, a, b: a * x + b,
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * (np.exp(x) - 1)),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Sigmoid": lambda x, a, b: sigmoid(x),
    "Softplus": lambda x, a, b: np.log1p(np.exp(x)),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Tanh": lambda x, a, b: np.tanh(x),
    "ThresholdedRelu": lambda x, a, b: np.where(x >= a, x, 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activations(agree, name) -> None:
    rng = np.random.default_rng(6)
    x, w, r = rng.normal(size=(2, 3, 2)), rng.normal(size=(1, 4, 2)), rng.normal(size=(1, 4, 4)) * 0.5
    alpha, beta = 0.3, 0.45
    options = {"activations": [name]}
    takes_beta = name in ("Affine", "HardSigmoid", "ScaledTanh")
    if takes_beta or name in ("Elu", "LeakyRelu", "ThresholdedRelu"):
        options["activation_alpha"] = [alpha]
    if takes_beta:
        options["activation_beta"] = [beta]
    values, _ = agree(
        "RNN", 22, [x, w, r], 2, hidden_size=4,
        cotangents={0: rng.normal(size=(2, 1, 3, 4)), 1: rng.normal(size=(1, 3, 4))}, **options,
    )  # fmt: skip
    h = np.zeros((3, 4))
    for t in range(2):
        h = FUNCTIONS[name](x[t] @ w[0].T + h @ r[0].T, alpha, beta)
        np.testing.assert_allclose(values[0][t, 0], h, rtol=1e-6, atol=1e-7 if "alpha" in options else 1e-12)


@settings(max_examples=15)
@given(
    kind=st.sampled_from(sorted(GATES)),
    steps=st.integers(0, 3),
    batch=st.integers(0, 2),
    size=st.integers(1, 3),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    coupled=st.booleans(),
    layout=st.booleans(),
    seed=st.integers(0, 99),
)
def test_backends_agree_on_any_shape(agree, kind, steps, batch, size, direction, coupled, layout, seed):
    rng = np.random.default_rng(seed)
    both = direction == "bidirectional"
    _, inputs = module_and_inputs(kind, rng, steps, batch, size, 2, both)
    inputs["sequence_lens"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    if layout:
        for name in ("X", "initial_h", "initial_c"):
            if name in inputs:
                inputs[name] = np.ascontiguousarray(inputs[name].swapaxes(0, 1))
    extra = {"GRU": {"linear_before_reset": int(coupled)}, "LSTM": {"input_forget": int(coupled)}}
    count = 1 + both
    shape = (batch, steps, count, 2) if layout else (steps, count, batch, 2)
    agree(
        kind, 22, inputs, 2, hidden_size=2, direction=direction, layout=int(layout),
        cotangents={0: rng.normal(size=shape)}, **extra.get(kind, {}),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_types_are_rounded_once(node, dtype) -> None:
    rng = np.random.default_rng(7)
    _, inputs = module_and_inputs("LSTM", rng, 4, 2, 3, 2, False)
    narrow = {k: None if v is None else v.astype(dtype) for k, v in inputs.items()}
    exact, _ = node(
        "numpy", "LSTM", 22, {k: None if v is None else v.astype("float64") for k, v in narrow.items()}
    )
    for backend in BACKENDS:
        values, _ = node(backend, "LSTM", 22, narrow)
        assert values[0].dtype == dtype
        np.testing.assert_allclose(values[0], exact[0], atol=float(np.finfo(dtype).eps))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"hidden_size": 5}, "hidden_size is 5"),
        ({}, {"direction": "sideways"}, "sideways"),
        ({}, {"activations": ["Tanh"]}, "1 activations"),
        ({}, {"activations": ["Sigmoid", "Gelu"]}, "Gelu"),
        ({}, {"activations": ["Sigmoid", "ScaledTanh"]}, "ScaledTanh needs a value"),
        ({}, {"clip": -1.0}, "clip is -1"),
        ({}, {"layout": 2}, "layout is 2"),
        ({"B": np.zeros((1, 5))}, {}, r"B has shape \(1, 5\)"),
        ({"sequence_lens": np.array([4, 9], np.int32)}, {}, "sequence_lens"),
        ({"initial_h": np.zeros((2, 2, 2))}, {}, r"initial_h has shape \(2, 2, 2\)"),
        ({"W": np.zeros((1, 6, 9))}, {}, r"W has shape \(1, 6, 9\)"),
    ],
)
def test_what_does_not_fit_is_refused(node, backend, change, options, message) -> None:
    _, inputs = module_and_inputs("GRU", np.random.default_rng(0), 4, 2, 3, 2, False)
    with pytest.raises(UserError, match=message):
        node(backend, "GRU", 22, {**inputs, **change}, **options)
