"""Integer arithmetic, unsigned types included, against numpy, which has them all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

_UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]
_SIGNED = [np.int8, np.int16, np.int32, np.int64]


@st.composite
def _pairs(draw: st.DrawFn, dtypes: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    info = np.iinfo(dtype)
    near = [info.min, info.min + 1, 0, 1, 2, 3, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
    elements = st.one_of(st.sampled_from(near), st.integers(int(info.min), int(info.max)))
    left = draw(hnp.arrays(dtype, (2, 3), elements=elements))
    return left, draw(hnp.arrays(dtype, (3,), elements=elements))


_MODULAR = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}
_ORDER = {
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Equal": np.equal,
    "Max": np.maximum,
    "Min": np.minimum,
}


@settings(max_examples=150)
@given(_pairs(_UNSIGNED + _SIGNED))
def test_arithmetic_and_order(rule: Any, pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    with np.errstate(over="ignore"):
        for op_type, function in {**_MODULAR, **_ORDER}.items():
            (y,) = rule(op_type, 19, (a, b))
            expected = function(a, b)
            assert y.numpy().dtype == expected.dtype, op_type
            np.testing.assert_array_equal(y.numpy(), expected, op_type)


@settings(max_examples=150)
@given(_pairs(_UNSIGNED + _SIGNED))
def test_division_rounds_toward_zero(rule: Any, pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    info = np.iinfo(a.dtype)
    b = np.where((b == 0) | ((b == -1) & (info.min < 0)), 1, b).astype(a.dtype)
    (y,) = rule("Div", 14, (a, b))
    pairs = zip(a.ravel().tolist(), np.broadcast_to(b, a.shape).ravel().tolist(), strict=True)
    expected = [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in pairs]
    assert y.numpy().dtype == a.dtype
    assert y.numpy().ravel().tolist() == expected


def test_division_by_zero_is_an_error(rule: Any) -> None:
    for dtype in (np.int32, np.uint32, np.uint64):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            rule("Div", 14, (np.ones(2, dtype), np.array([1, 0], dtype)))


@settings(max_examples=100)
@given(_pairs(_UNSIGNED + _SIGNED))
def test_reductions(rule: Any, pair: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = pair
    wide = x.astype(object)
    modulus = 2 ** (8 * x.itemsize)

    def wrapped(values: np.ndarray) -> list[int]:
        low = int(np.iinfo(x.dtype).min)
        return [(int(v) - low) % modulus + low for v in values]

    checks = {
        "ReduceSum": wrapped(wide.sum(0)),
        "ReduceProd": wrapped(wide.prod(0)),
        "ReduceSumSquare": wrapped((wide * wide).sum(0)),
        "ReduceMax": x.max(0).tolist(),
        "ReduceMin": x.min(0).tolist(),
        "ArgMax": x.argmax(0).tolist(),
        "ArgMin": x.argmin(0).tolist(),
    }
    for op_type, expected in checks.items():
        inputs = (x,) if op_type.startswith("Arg") else (x, (0,))
        (y,) = rule(op_type, 20, inputs, {"keepdims": 0})
        assert y.numpy().tolist() == expected, op_type
        assert y.dtype is (torch.int64 if op_type.startswith("Arg") else torch.tensor(x).dtype)


def test_integer_means_and_roots(rule: Any) -> None:
    (y,) = rule("ReduceMean", 18, (np.array([[-3, 0], [-4, 5]], np.int32), (1,)), {"keepdims": 0})
    assert y.dtype is torch.int32 and y.tolist() == [-1, 0]
    x = np.array([[3, 4], [2**26, 1], [94906265, 94906266]], np.int64)
    (y,) = rule("ReduceL2", 18, (x, (1,)), {"keepdims": 0})
    exact = [int(np.floor(np.sqrt(float(sum(int(v) ** 2 for v in row))))) for row in x]
    assert y.tolist()[:2] == [5, 2**26] and abs(y.tolist()[2] - exact[2]) <= 1
    assert y[2].item() ** 2 <= sum(int(v) ** 2 for v in x[2]) < (y[2].item() + 1) ** 2


def test_matrix_products(rule: Any) -> None:
    rng = np.random.default_rng(6)
    for dtype in (np.int32, np.int64, np.uint32, np.uint64):
        a, b = rng.integers(0, 2**31 - 1, (2, 3, 4)).astype(dtype), rng.integers(0, 99, (4, 5)).astype(dtype)
        (y,) = rule("MatMul", 13, (a, b))
        np.testing.assert_array_equal(y.numpy(), a @ b)
        (y,) = rule("Gemm", 13, (a[0], b, b[0]), {"beta": 3.0})
        np.testing.assert_array_equal(y.numpy(), a[0] @ b + dtype(3) * b[0])


@pytest.mark.parametrize("left", [(4,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("right", [(4,), (4, 5), (2, 4, 5)])
def test_integer_product_without_a_kernel(
    left: tuple[int, ...], right: tuple[int, ...], monkeypatch: Any
) -> None:
    """The form for devices without integer matrix products, run here on the meta device's shapes and by value."""
    from meta500.backends.torch.operators import linear

    rng = np.random.default_rng(7)
    a, b = torch.tensor(rng.integers(-9, 9, left)), torch.tensor(rng.integers(-9, 9, right))
    assert torch.equal(linear._summed_products(a, b), torch.matmul(a, b))


def test_power_keeps_the_type_of_the_base(rule: Any) -> None:
    cases = [
        (np.array([2, 3, -2], np.int32), np.array([3.0, 0.5, 2.0]), [8, 1, 4]),
        (np.array([2, 3, 7], np.uint64), np.array([3, 0, 2], np.uint32), [8, 1, 49]),
        (np.array([1.5, 2, 4], np.float32), np.array([2, -1, 3], np.int64), [2.25, 0.5, 64]),
        (np.array([2.0, 3.0], np.float32), np.array([0.5, 2.0]), [np.sqrt(2), 9]),
    ]
    for x, y, expected in cases:
        (z,) = rule("Pow", 15, (x, y))
        np.testing.assert_array_equal(z.numpy(), np.asarray(expected, x.dtype))


def test_casts_drop_upper_bits(rule: Any) -> None:
    x = np.array([200, -1, 70000], np.int64)
    for number, dtype in {2: np.uint8, 3: np.int8, 4: np.uint16, 12: np.uint32, 13: np.uint64}.items():
        np.testing.assert_array_equal(rule("Cast", 13, (x,), {"to": number})[0].numpy(), x.astype(dtype))


@pytest.mark.parametrize("dtype", _UNSIGNED)
def test_movement_of_unsigned_types(rule: Any, dtype: Any) -> None:
    x = np.iinfo(dtype).max - np.arange(11, -1, -1, dtype=dtype).reshape(3, 4)
    (y,) = rule("Slice", 13, (x, (-1, 3), (-5, -9), (0, 1), (-1, -2)))
    np.testing.assert_array_equal(y.numpy(), x[::-1, ::-2])
    for mode in ("reflect", "edge", "wrap"):
        (y,) = rule("Pad", 19, (x, (2, 1, 1, 5)), {"mode": mode})
        np.testing.assert_array_equal(y.numpy(), np.pad(x, ((2, 1), (1, 5)), mode))
    (y,) = rule("Clip", 13, (x, x[0, 2], x[1, 3]))
    np.testing.assert_array_equal(y.numpy(), np.clip(x, x[0, 2], x[1, 3]))
    np.testing.assert_array_equal(rule("Sign", 13, (x - x.min(),))[0].numpy(), np.sign(x - x.min()))
    np.testing.assert_array_equal(rule("Abs", 13, (x,))[0].numpy(), x)


def test_clip_with_crossed_bounds_is_the_upper_one(rule: Any) -> None:
    for dtype in (np.float64, np.int8, np.uint32):
        x = np.array([0, 3, 9], dtype)
        (y,) = rule("Clip", 13, (x, np.array(5, dtype), np.array(2, dtype)))
        np.testing.assert_array_equal(y.numpy(), np.full(3, 2, dtype))
