"""Normalisations, Lp norms, gates and dropout seeds on both backends, against torch.nn and plain formulas."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.errors import UserError

BACKENDS = ("numpy", "torch")


def gradients_of(function, cotangent, *arrays):
    """Value and gradients of a torch function."""
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = function(*leaves)
    found = torch.autograd.grad((y * torch.tensor(cotangent)).sum(), leaves)
    return y.detach().numpy(), [g.numpy() for g in found]


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (1, 6, 3, 2)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization(agree, shape, groups) -> None:
    rng = np.random.default_rng(0)
    x, scale, bias = rng.normal(size=shape), rng.normal(size=6), rng.normal(size=6)
    d = rng.normal(size=shape)
    values, gradients = agree(
        "GroupNormalization", 21, [x, scale, bias], num_groups=groups, epsilon=1e-3, stash_type=11,
        cotangents={0: d}, rtol=1e-9,
    )  # fmt: skip
    y, expected = gradients_of(lambda x, s, b: F.group_norm(x, groups, s, b, 1e-3), d, x, scale, bias)
    np.testing.assert_allclose(values[0], y, rtol=1e-6, atol=1e-8)
    for i in range(3):
        np.testing.assert_allclose(gradients[f"x{i}"], expected[i], rtol=1e-5, atol=1e-7)


def test_group_normalization_18_has_one_scale_per_group(agree) -> None:
    rng = np.random.default_rng(1)
    x, scale, bias = rng.normal(size=(2, 6, 4)), rng.normal(size=3), rng.normal(size=3)
    d = rng.normal(size=x.shape)
    values, gradients = agree(
        "GroupNormalization", 18, [x, scale, bias], num_groups=3, cotangents={0: d}, rtol=1e-9
    )
    y, expected = gradients_of(
        lambda x, s, b: F.group_norm(x, 3, s.repeat_interleave(2), b.repeat_interleave(2), 1e-5),
        d, x, scale, bias,
    )  # fmt: skip
    np.testing.assert_allclose(values[0], y, rtol=1e-6, atol=1e-8)
    for i in range(3):
        np.testing.assert_allclose(gradients[f"x{i}"], expected[i], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((2, 6, 3), (6,), (6,)), {"num_groups": 4}, "4"),
        (((2, 6, 3), (3,), (3,)), {"num_groups": 3}, r"\(6,\)"),
        (((2, 6, 3), (6,), (6,)), {"num_groups": 3, "stash_type": 7}, "stash_type"),
    ],
)
def test_group_normalization_refuses_what_does_not_fit(node, backend, shapes, options, message) -> None:
    with pytest.raises(UserError, match=message):
        node(backend, "GroupNormalization", 21, [np.ones(s) for s in shapes], **options)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_rms_normalization(agree, axis) -> None:
    rng = np.random.default_rng(2)
    x, scale = rng.normal(size=(3, 4, 5)), rng.normal(size=(4, 5))
    d = rng.normal(size=x.shape)
    over = tuple(range(axis % 3, 3))

    def formula(x, s):
        return x / torch.sqrt((x * x).mean(over, keepdim=True) + 1e-2) * s

    values, gradients = agree(
        "RMSNormalization", 23, [x, scale], axis=axis, epsilon=1e-2, stash_type=11, cotangents={0: d}
    )
    y, expected = gradients_of(formula, d, x, scale)
    np.testing.assert_allclose(values[0], y, rtol=1e-8)
    for i in range(2):
        np.testing.assert_allclose(gradients[f"x{i}"], expected[i], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rms_normalization_refuses_what_does_not_fit(node, backend) -> None:
    with pytest.raises(UserError, match="axis 3"):
        node(backend, "RMSNormalization", 23, [np.ones((2, 3)), np.ones(3)], axis=3)
    with pytest.raises(UserError, match="does not broadcast"):
        node(backend, "RMSNormalization", 23, [np.ones((2, 3)), np.ones(2)])


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (-1, 0)])
def test_mean_variance_normalization(agree, axes) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 3, 4, 2))
    values, _ = agree(
        "MeanVarianceNormalization", 13, [x], axes=axes, cotangents={0: rng.normal(size=x.shape)}
    )
    expected = (x - x.mean(axes, keepdims=True)) / (x.std(axes, keepdims=True) + 1e-9)
    np.testing.assert_allclose(values[0], expected, rtol=1e-8)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(agree, p, axis) -> None:
    rng = np.random.default_rng(4)
    x, d = rng.normal(size=(3, 4, 2)), rng.normal(size=(3, 4, 2))
    values, gradients = agree("LpNormalization", 22, [x], axis=axis, p=p, cotangents={0: d})
    y, expected = gradients_of(lambda x: F.normalize(x, p=p, dim=axis), d, x)
    np.testing.assert_allclose(values[0], y, rtol=1e-12)
    np.testing.assert_allclose(gradients["x0"], expected[0], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lp_normalization_of_zeros_is_zero(node, backend) -> None:
    values, gradients = node(
        backend, "LpNormalization", 22, [np.zeros((2, 3))], cotangents={0: np.ones((2, 3))}
    )
    assert (values[0] == 0).all() and np.isfinite(gradients["x0"]).all()
    with pytest.raises(UserError, match="p is 3"):
        node(backend, "LpNormalization", 22, [np.ones((2, 3))], p=3)


@settings(max_examples=25)
@given(
    rank=st.integers(1, 2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    pad=st.integers(0, 1),
    p=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 99),
)
def test_lp_pool(agree, rank, kernel, stride, pad, p, seed) -> None:
    rng = np.random.default_rng(seed)
    pad = min(pad, kernel - 1)
    x = rng.normal(size=(2, 3, *(5,) * rank))
    padded = np.pad(np.abs(x) ** p, [(0, 0)] * 2 + [(pad, pad)] * rank)
    axes = tuple(range(2, 2 + rank))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel,) * rank, axes)
    expected = windows.sum(axis=tuple(range(2 + rank, 2 + 2 * rank))) ** (1 / p)
    expected = expected[(slice(None),) * 2 + (slice(None, None, stride),) * rank]
    values, _ = agree(
        "LpPool", 18, [x], kernel_shape=[kernel] * rank, strides=[stride] * rank, pads=[pad] * 2 * rank, p=p,
        cotangents={0: rng.normal(size=expected.shape)},
    )  # fmt: skip
    np.testing.assert_allclose(values[0], expected, rtol=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_lp_pool(agree, p) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(2, 3, 4, 2))
    values, _ = agree("GlobalLpPool", 22, [x], p=p, cotangents={0: rng.normal(size=(2, 3, 1, 1))})
    np.testing.assert_allclose(values[0][..., 0, 0], (np.abs(x) ** p).sum((2, 3)) ** (1 / p), rtol=1e-12)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hardmax(agree, opset, axis) -> None:
    x = np.random.default_rng(6).integers(0, 3, (3, 4, 2)).astype(np.float64)
    values, gradients = agree("Hardmax", opset, [x], axis=axis, cotangents={0: np.ones(x.shape)})
    rows = np.moveaxis(x, axis, -1) if opset == 13 else x.reshape(*x.shape[: axis % 3], -1)
    hot = np.zeros_like(rows)
    for index in np.ndindex(rows.shape[:-1]):
        hot[(*index, int(np.argmax(rows[index])))] = 1
    expected = np.moveaxis(hot, -1, axis) if opset == 13 else hot.reshape(x.shape)
    np.testing.assert_array_equal(values[0], expected)
    assert (gradients["x0"] == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_softmax_of_16_bit_floats_rounds_at_every_step(node, dtype) -> None:
    """As in the function body that defines it: exponential, sum and quotient are 16-bit numbers."""
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.random.default_rng(7).normal(size=(20, 7)).astype(kind)

    def r(a):
        return a.astype(kind).astype(np.float32)

    wide = x.astype(np.float32)
    exponent = r(np.exp(r(wide - wide.max(-1, keepdims=True))))
    expected = (exponent / r(exponent.sum(-1, keepdims=True))).astype(kind)
    for backend in BACKENDS:
        (y,), _ = node(backend, "Softmax", 13, [x])
        assert y.dtype == kind
        np.testing.assert_array_equal(y, expected)


def test_swiglu(agree) -> None:
    rng = np.random.default_rng(8)
    a, b, d = rng.normal(size=(3, 4)), rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    values, gradients = agree("SwiGLU", 28, [a, b], alpha=1.5, cotangents={0: d})
    y, expected = gradients_of(lambda a, b: a * torch.sigmoid(1.5 * a) * b, d, a, b)
    np.testing.assert_allclose(values[0], y, rtol=1e-7)
    for i in range(2):
        np.testing.assert_allclose(gradients[f"x{i}"], expected[i], rtol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float64", "int32", "int8", "uint8", "uint64"])
@pytest.mark.parametrize(("bias", "lambd"), [(0.0, 0.5), (1.5, 1.5), (1.0, 1.5), (1.0, -1.5), (-2.0, -1.0)])
def test_shrink(node, backend, dtype, bias, lambd) -> None:
    x = np.arange(0 if dtype.startswith("u") else -4, 5).astype(dtype)
    if dtype != "float64" and (bias % 1 or (lambd < 0 and lambd % 1)):
        # The text, the function body and the reference give different numbers.
        with pytest.raises(UserError, match="not defined"):
            node(backend, "Shrink", 9, [x], bias=bias, lambd=lambd)
        return
    (y,), _ = node(backend, "Shrink", 9, [x], bias=bias, lambd=lambd)
    if dtype == "float64":
        low, high, step = -lambd, lambd, bias
    else:
        low, high, step = -lambd, lambd, int(bias)
    expected = [v + step if v < low else v - step if v > high else 0 for v in x.tolist()]
    np.testing.assert_array_equal(y, np.array(expected).astype(dtype))


@pytest.mark.parametrize(
    ("backend", "mode"),
    [("numpy", None), ("torch", "eager"), pytest.param("torch", "compile", marks=pytest.mark.slow)],
)
def test_dropout_with_a_seed_draws_the_numbers_of_onnx(node, backend, mode) -> None:
    x, d = np.random.default_rng(9).normal(size=(2, 5, 7, 3))
    values, gradients = node(
        backend, "Dropout", 13, [x, np.array(0.25), np.array(True)], 2, seed=3, cotangents={0: d}, wrt=["x0"],
        execution=mode,
    )  # fmt: skip
    kept = np.random.RandomState(3).uniform(size=x.shape) >= 0.25
    np.testing.assert_array_equal(values[1], kept)
    np.testing.assert_allclose(values[0], x * kept / 0.75, rtol=1e-15)
    np.testing.assert_allclose(gradients["x0"], d * kept / 0.75, rtol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dropout_refuses_a_ratio_of_one(node, backend) -> None:
    for seed in ({}, {"seed": 1}):
        with pytest.raises(UserError, match="ratio"):
            node(backend, "Dropout", 13, [np.ones(4), np.array(1.0), np.array(True)], **seed)


@pytest.mark.parametrize("operator", ["Add", "Mul", "Sub", "Div"])
@pytest.mark.parametrize(
    ("a", "b", "axis"),
    [((2, 3), (2, 1), 0), ((2, 3), (1, 3), 0), ((2, 3, 4), (1, 3), 0), ((2, 3, 4), (3, 1), 1), ((2, 3), (), None)],
)  # fmt: skip
def test_broadcasting_before_version_7_takes_sizes_of_one(node, operator, a, b, axis) -> None:
    rng = np.random.default_rng(10)
    x, w = rng.normal(size=a), rng.normal(size=b) + 3
    options = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    shape = (*b, *(1,) * (len(a) - len(b) - (axis or 0)))
    function = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract, "Div": np.divide}[operator]
    for backend in BACKENDS:
        (y,), _ = node(backend, operator, 6, [x, w], **options)
        np.testing.assert_allclose(y, function(x, w.reshape(shape)), rtol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("b", "axis"), [((2,), 1), ((3, 2), 0), ((2, 3, 1), 0), ((1, 1, 1), 0)])
def test_broadcasting_before_version_7_refuses_other_shapes(node, backend, b, axis) -> None:
    with pytest.raises(UserError, match="Add"):
        node(backend, "Add", 6, [np.ones((2, 3)), np.ones(b) * 2], broadcast=1, axis=axis)
