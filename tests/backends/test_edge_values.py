"""Values and gradients at kinks, ties, borders of types and in old versions, the same on both backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special

from meta500.errors import UserError

pytestmark = pytest.mark.parametrize("backend", ("numpy", "torch"))

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
HALF = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
FLOAT32 = float(np.finfo(np.float32).max)


def gradients(
    node: Any,
    backend: str,
    op_type: str,
    opset: int,
    inputs: Sequence[Any],
    attributes: Mapping[str, Any] | None = None,
) -> list[np.ndarray]:
    """Gradients of the sum of the first output, in float64."""
    (y,), _ = node(backend, op_type, opset, inputs, **(attributes or {}))
    _, found = node(
        backend, op_type, opset, inputs, cotangents={0: np.ones(np.shape(y))}, **(attributes or {})
    )
    return [found[f"x{i}"] for i in range(len(inputs))]


def test_hard_sigmoid_is_flat_at_its_kinks(node: Any, backend: str) -> None:
    x = np.array([-1.0, -0.5, 0.0, 0.5, 1.0, np.nan])
    (d,) = gradients(node, backend, "HardSigmoid", 6, [x], {"alpha": 1.0, "beta": 0.5})
    np.testing.assert_array_equal(d, [0, 0, 1, 0, 0, 0])
    (y,), _ = node(backend, "HardSigmoid", 6, [x], alpha=1.0, beta=0.5)
    np.testing.assert_array_equal(y, [0, 0, 0.5, 1, 1, np.nan])


@pytest.mark.parametrize("op_type", ("Max", "Min"))
def test_ties_of_three_share_the_gradient(node: Any, backend: str, op_type: str) -> None:
    sign = 1.0 if op_type == "Max" else -1.0
    a, b, c = (sign * np.array(v) for v in ([2.0, 5.0, 1.0], [2.0, 5.0, 1.0], [[2.0, 1.0, 1.0], [1, 5, 7]]))
    d_a, d_b, d_c = gradients(node, backend, op_type, 13, [a, b, c])
    np.testing.assert_allclose(d_a, [1 / 3 + 1 / 2, 1 / 2 + 1 / 3, 1 / 3])
    np.testing.assert_array_equal(d_a, d_b)
    np.testing.assert_allclose(d_c, [[1 / 3, 0, 1 / 3], [0, 1 / 3, 1]])


def test_acosh_at_the_border(node: Any, backend: str) -> None:
    (d,) = gradients(node, backend, "Acosh", 22, [np.array([-1.0, 1.0, 2.0])])
    np.testing.assert_allclose(d, [np.inf, np.inf, 3**-0.5])


def test_celu_gradient_in_float64(node: Any, backend: str) -> None:
    x = np.linspace(-4, 1, 11)
    for alpha in (0.7, -0.7):
        (d,) = gradients(node, backend, "Celu", 12, [x], {"alpha": alpha})
        np.testing.assert_allclose(d, np.where(x > 0, 1, np.exp(np.minimum(x, 0) / alpha)), rtol=1e-13)


def test_elu_of_a_recurrent_cell_at_zero(node: Any, backend: str) -> None:
    """The slope at 0 is alpha, as that of the operator Elu."""
    x, w, r = np.zeros((1, 1, 1)), np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    d = gradients(
        node,
        backend,
        "RNN",
        14,
        [x, w, r],
        {"activations": ["Elu"], "activation_alpha": [0.25], "hidden_size": 1},
    )[0]
    assert d.item() == 0.25


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "equation, shapes",
    (
        ("ab,bc->ac", [(2, 3), (3, 4)]),
        ("b,ae->e", [(1,), (3, 2)]),
        ("a->", [(5,)]),
        ("ab,ab,b->b", [(2, 3)] * 2 + [(3,)]),
    ),
)
def test_einsum_of_integers_wraps_around(
    node: Any, backend: str, dtype: str, equation: str, shapes: list[tuple[int, ...]]
) -> None:
    rng, info = np.random.default_rng(3), np.iinfo(dtype)
    operands = [rng.integers(info.min, info.max, s, dtype, endpoint=True) for s in shapes]
    exact = np.einsum(equation, *(x.astype(object) for x in operands))
    lowest, count = int(info.min), int(info.max) - int(info.min) + 1
    expected = np.vectorize(lambda v: (int(v) - lowest) % count + lowest, otypes=[object])(exact)
    (y,), _ = node(backend, "Einsum", 12, operands, equation=equation)
    assert y.dtype == dtype and y.shape == np.shape(exact)
    np.testing.assert_array_equal(y, np.asarray(expected).astype(dtype))


@pytest.mark.parametrize("dtype", ("int8", "int16", "int32", "int64"))
def test_the_lowest_integer_over_minus_one(node: Any, backend: str, dtype: str) -> None:
    """The quotient has no place in the type and wraps around; processors trap it."""
    low = np.iinfo(dtype).min
    a, b = np.array([low, low, 7, -7, -7], dtype), np.array([-1, 2, -2, -2, -1], dtype)
    (y,), _ = node(backend, "Div", 14, [a, b])
    np.testing.assert_array_equal(y, np.array([low, low // 2, -3, 3, 7], dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_erf_of_integers_keeps_their_type(node: Any, backend: str, dtype: str) -> None:
    x = np.array([0, 1, 5, 7], dtype)
    (y,), _ = node(backend, "Erf", 13, [x])
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.trunc(scipy.special.erf(x.astype(float))).astype(dtype))


def test_gemm_does_not_read_c_without_a_factor(node: Any, backend: str) -> None:
    a, b = np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])
    for dtype in (np.float64, np.float32, np.float16):
        inputs = [v.astype(dtype) for v in (a, b, np.array([[np.nan]]))]
        (y,), _ = node(backend, "Gemm", 13, inputs, beta=0.0)
        assert y.item() == 11


@pytest.mark.parametrize("version", (1, 6))
def test_bounds_of_old_clip_are_float32(node: Any, backend: str, version: int) -> None:
    x = np.array([-np.inf, -7.0, 5.0, np.inf])
    (y,), _ = node(backend, "Clip", version, [x.astype(np.float32)])
    np.testing.assert_array_equal(y, np.array([-FLOAT32, -7, 5, FLOAT32], np.float32))
    (y,), _ = node(backend, "Clip", version, [x])
    np.testing.assert_allclose(y, [-FLOAT32, -7, 5, FLOAT32], rtol=1e-7)
    (y,), _ = node(backend, "Clip", version, [x.astype(np.float16)], max=1e5)
    np.testing.assert_array_equal(y, x.astype(np.float16))
    (y,), _ = node(backend, "Clip", version, [x.astype(np.float32)], min=2.0, max=-FLOAT32)
    np.testing.assert_array_equal(y, np.full(4, -FLOAT32, np.float32))


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_statistics_are_float32(node: Any, backend: str, dtype: np.dtype) -> None:
    """The mean of a plane is subtracted unrounded: its error would be as large as the differences here."""
    rng = np.random.default_rng(0)
    x = (50 + rng.uniform(-1, 1, (2, 3, 9))).astype(dtype)
    scale, shift = np.ones(3, dtype), np.zeros(3, dtype)
    wide = x.astype(np.float64)

    def normal(axes: tuple[int, ...]) -> np.ndarray:
        return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)

    (y,), _ = node(backend, "InstanceNormalization", 22, [x, scale, shift])
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(y.astype(np.float64), normal((2,)), rtol=epsilon, atol=1e-3)
    statistics = [scale, shift, shift, scale]
    (y,), _ = node(backend, "BatchNormalization", 15, [x, *statistics], training_mode=1)
    np.testing.assert_allclose(y.astype(np.float64), normal((0, 2)), rtol=epsilon, atol=1e-3)


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_batch_normalization_of_each_element(node: Any, backend: str, dtype: np.dtype) -> None:
    rng = np.random.default_rng(1)
    x = (50 + rng.uniform(-1, 1, (8, 2, 3))).astype(dtype)
    ones = np.ones((2, 3), dtype)
    outputs, _ = node(backend, "BatchNormalization", 7, [x, ones, 0 * ones, ones, ones], 5, spatial=0)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5)
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(outputs[0].astype(np.float64), expected, rtol=epsilon, atol=1e-3)
    np.testing.assert_allclose(outputs[4].astype(np.float64), wide.var(0), rtol=epsilon)


def test_batch_normalization_of_nothing(node: Any, backend: str) -> None:
    ones = np.ones(2, np.float32)
    for shape in ((0, 2, 3), (3, 2, 0)):
        x = np.zeros(shape, np.float32)
        (y,), _ = node(backend, "BatchNormalization", 15, [x, ones, ones, ones, ones])
        assert y.shape == shape
        with pytest.raises(UserError, match="has no mean and variance"):
            node(backend, "BatchNormalization", 15, [x, ones, ones, ones, ones], 3, training_mode=1)


def test_batch_normalization_before_version_7_has_two_modes(node: Any, backend: str) -> None:
    inputs = [np.ones((2, 3), np.float32), *(np.ones(3, np.float32) for _ in range(4))]
    for n_outputs, is_test in ((1, 0), (5, 1)):
        with pytest.raises(UserError, match="undefined before version 7"):
            node(backend, "BatchNormalization", 6, inputs, n_outputs, is_test=is_test)


def test_odd_paddings_of_the_first_conv_transpose(node: Any, backend: str) -> None:
    x, w = np.arange(1.0, 4).reshape(1, 1, 3), np.ones((1, 1, 2))
    for attributes in ({"output_shape": [3]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}):
        with pytest.raises(UserError, match="defined in two ways"):
            node(backend, "ConvTranspose", 1, [x, w], **attributes)
    (y,), _ = node(backend, "ConvTranspose", 11, [x, w], output_shape=[3])
    np.testing.assert_array_equal(y.ravel(), [3, 5, 3])


@pytest.mark.parametrize("op_type", ("AveragePool", "LpPool", "MaxPool"))
@pytest.mark.parametrize("auto_pad", ("SAME_UPPER", "SAME_LOWER"))
def test_negative_paddings_of_pooling(node: Any, backend: str, op_type: str, auto_pad: str) -> None:
    x = np.arange(6.0).reshape(1, 1, 6)
    with pytest.raises(UserError, match="total padding of -2"):
        node(backend, op_type, 22, [x], kernel_shape=[1], strides=[3], auto_pad=auto_pad)
    (y,), _ = node(backend, op_type, 22, [x], kernel_shape=[1], strides=[2], auto_pad=auto_pad)
    np.testing.assert_array_equal(y.ravel(), [0, 2, 4])


def test_average_pool_of_half_precision_volumes(node: Any, backend: str) -> None:
    x = np.arange(24, dtype=np.float16).reshape(1, 1, 2, 3, 4)
    (y,), _ = node(backend, "AveragePool", 22, [x], kernel_shape=[2, 3, 2], strides=[1, 1, 2])
    expected = x.reshape(6, 2, 2).astype(np.float64).mean((0, 2))
    np.testing.assert_array_equal(y.ravel(), expected)


def test_windows_of_integers_reach_their_peak(node: Any, backend: str) -> None:
    """A rounding error below 1 is not cut off to 0."""
    for op_type in ("BlackmanWindow", "HammingWindow", "HannWindow"):
        for size in (2, 4, 6, 10):
            (y,), _ = node(backend, op_type, 17, [np.array(size)], output_datatype=6)
            np.testing.assert_array_equal(y, np.arange(size) == size // 2)
