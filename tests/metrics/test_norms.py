"""Error norms against hand-made numbers, independent formulas and the neighbours of floats."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from meta500.errors import UserError
from meta500.metrics.norms import ErrorNorms, compare, tolerance

ml_dtypes = pytest.importorskip("ml_dtypes")
ZERO = ErrorNorms(0.0, 0.0, 0.0, 0.0, 0.0, 0, None)
INFINITE = (math.inf,) * 5


def distances(norms):
    return (norms.max_absolute, norms.max_relative, norms.l1, norms.l2_relative, norms.ulp)


def test_hand_made_numbers():
    norms = compare(np.array([1.0, 2.5, -8.0]), np.array([1.0, 2.0, -7.0]))
    rms = math.sqrt((1 + 4 + 49) / 3)
    assert norms.max_absolute == 1.0
    # 2 is below the root mean square 4.24, -7 is above it.
    assert norms.max_relative == pytest.approx(max(0.5 / rms, 1 / 7))
    assert norms.l1 == 1.5
    assert norms.l2_relative == pytest.approx(math.sqrt(1.25 / 54))
    assert norms.worst == (2,)
    assert norms.mismatched == 0


@given(
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=4), elements=st.floats(-1e3, 1e3)),
    st.floats(-2, 2),
    st.sampled_from([1.0, 1e-250, 1e250]),
)
def test_norms_equal_plain_formulas_at_any_scale(x, shift, scale):
    r = x + shift
    norms = compare(r * scale, x * scale)
    difference = np.abs(r * scale - x * scale) / scale
    rms = math.sqrt(np.mean(x**2))
    assume(rms > 1e-3)
    assert norms.max_absolute / scale == pytest.approx(difference.max())
    assert norms.l1 / scale == pytest.approx(difference.sum())
    assert norms.l2_relative == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(x))
    expected = difference / np.maximum(np.abs(x), rms)
    assert norms.max_relative == pytest.approx(expected.max())
    if expected.max() > 0:
        assert expected[norms.worst] == pytest.approx(expected.max())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("start", [1.0, -1.0, 0.0, 65000.0, 6e-5])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_ulp_counts_the_neighbours(dtype, start, steps):
    start = np.array([start]).astype(dtype)
    moved = start
    for _ in range(steps):
        moved = np.nextafter(moved, np.array([-np.inf]).astype(dtype)).astype(dtype)
    assert compare(moved, start.astype(np.float64)).ulp == steps
    assert compare(start, moved.astype(np.float64)).ulp == steps


def test_ulp_across_zero_and_of_everything():
    tiny = np.float64(5e-324)
    assert compare([tiny], [-tiny]).ulp == 2
    assert compare([0.0], [-0.0]) == ZERO
    assert compare(np.float32([3e38]), np.float64([-3e38])).ulp == pytest.approx(2 * 0x7F61B1E6, rel=0.01)
    assert compare([1.7e308], [-1.7e308]).ulp > 1.8e19


@given(hnp.arrays(np.float64, 5, elements=st.floats(allow_nan=False, width=32)))
def test_a_rounded_reference_is_half_a_step_away(x):
    x = x * (1 + 1e-9)
    norms = compare(x.astype(np.float32), x)
    assert norms.ulp == 0
    assert norms.mismatched == 0
    assert norms.max_relative <= np.finfo(np.float32).eps


def test_equal_not_a_numbers_and_infinities_are_no_error():
    x = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert compare(x, x) == ZERO
    assert compare(x.astype(np.float32), x) == ZERO


@pytest.mark.parametrize(
    ("r", "x"),
    [
        (np.nan, 1.0),
        (1.0, np.nan),
        (np.inf, 1.0),
        (1.0, np.inf),
        (np.inf, -np.inf),
        (np.nan, np.inf),
        (np.inf, np.nan),
    ],
)
def test_different_not_a_numbers_and_infinities_are_infinite_errors(r, x):
    norms = compare([0.5, r, 2.0], [0.5, x, 2.0])
    assert distances(norms) == INFINITE
    assert norms.mismatched == 1
    assert norms.worst == (1,)
    assert norms.verdict(1e30) == "wrong"


def test_overflow_to_the_infinity_of_the_type_is_right():
    assert compare(np.float32([np.inf, 1]), np.float64([1e39, 1])).max_relative == 0
    assert compare(np.float32([np.inf, 1]), np.float64([-1e39, 1])).mismatched == 1
    assert compare(np.float16([np.inf]), np.float64([1000])).mismatched == 1


def test_zero_reference():
    norms = compare([0.0, 1e-30], [0.0, 0.0])
    assert norms.max_absolute == 1e-30
    assert norms.max_relative == math.inf
    assert norms.l2_relative == math.inf
    assert norms.worst == (1,)
    assert compare(np.zeros((2, 3)), np.zeros((2, 3))) == ZERO


def test_small_reference_and_large_result_do_not_overflow():
    norms = compare([1e200, 0.0], [1e-90, 1e-90])
    assert norms.l2_relative == pytest.approx(1e290 / math.sqrt(2))
    assert norms.max_relative == pytest.approx(1e290)
    assert compare([1e250], [0.0]).l2_relative == math.inf


def test_the_largest_numbers_do_not_overflow():
    norms = compare([1e308, 1e-320], [-1e308, 1e-320])
    assert norms.max_absolute == math.inf
    assert norms.mismatched == 0
    assert compare([1.0e308], [0.5e308]).l2_relative == pytest.approx(1.0)
    assert compare([3e-320], [2e-320]).l2_relative == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, ml_dtypes.bfloat16])
def test_empty_and_scalar_arrays(dtype):
    assert compare(np.zeros((0, 3), dtype), np.zeros((0, 3), dtype)).max_relative == 0
    norms = compare(np.array(3, dtype), np.array(2, dtype))
    assert norms.max_absolute == 1
    assert norms.worst == ()


@given(
    hnp.arrays(np.int64, 4, elements=st.integers(-(2**63), 2**63 - 1)),
    hnp.arrays(np.int64, 4, elements=st.integers(-(2**63), 2**63 - 1)),
)
def test_integers_are_exact(r, x):
    difference = [abs(int(a) - int(b)) for a, b in zip(r, x, strict=True)]
    norms = compare(r, x)
    assert norms.max_absolute == float(max(difference))
    assert norms.ulp is None


def test_mixed_integers_and_booleans():
    assert compare(np.uint64([2**64 - 1]), np.int64([-1])).max_absolute == 2.0**64
    assert compare(np.uint8([0]), np.uint8([255])).max_absolute == 255
    assert compare([True, False], [True, True]).max_absolute == 1
    int4 = np.array([-8, 7]).astype(ml_dtypes.int4)
    assert compare(int4, np.int8([-8, 5])).max_absolute == 2


def test_complex_numbers():
    norms = compare(np.complex64([3 + 4j, 1]), np.complex128([0, 1]))
    assert norms.max_absolute == 5
    assert norms.ulp is None
    assert compare([complex(np.nan, 0)], [complex(1, 0)]).mismatched == 1


def test_text():
    assert compare(["a", "b"], ["a", "b"]).max_relative == 0
    norms = compare(np.array([["a", "x"]], object), np.array([["a", "b"]], object))
    assert norms.max_relative == math.inf
    assert (norms.mismatched, norms.worst) == (1, (0, 1))


@pytest.mark.parametrize(
    ("r", "x", "words"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), r"shape \(2, 3\) but reference has shape \(3, 2\)"),
        (np.zeros(1, np.int32), np.zeros(1), r"integer \(int32\) but reference is floating"),
        (np.zeros(1, complex), np.zeros(1), "complex"),
        (np.array(["a"]), np.zeros(1), "text"),
        (np.zeros(1, "M8[s]"), np.zeros(1, "M8[s]"), "cannot be compared"),
    ],
)
def test_incomparable_arrays_are_refused(r, x, words):
    with pytest.raises(UserError, match=words):
        compare(r, x)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("k", [1, 9, 576, 4608])
@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_tolerance_admits_rounding_and_no_lost_term(dtype, k, shift):
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal((64, k)) + shift).astype(dtype), rng.random((k, 48)).astype(dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    total = np.zeros((64, 48), dtype)
    for i in range(k):
        total = (total + a[:, i : i + 1] * b[i]).astype(dtype)
    limit = tolerance(dtype, k)
    assert compare(total, exact).verdict(limit) == "ok"
    if dtype == np.float32 or k == 1:
        lost = (a[:, 1:].astype(np.float64) @ b[1:].astype(np.float64)).astype(dtype)
        assert compare(lost, exact).verdict(limit) == "wrong"


def test_tolerance_of_types():
    assert tolerance(np.float32) == 16 * 2**-23
    assert tolerance("float64", 4) == 32 * 2**-52
    assert tolerance(ml_dtypes.bfloat16) == 16 * 2**-7
    assert tolerance(np.complex64) == tolerance(np.float32)
    assert tolerance(np.int64) == tolerance(bool) == tolerance("U3") == 0
    assert tolerance(ml_dtypes.int4) == 0
    with pytest.raises(UserError, match="reduction_length 0"):
        tolerance(np.float32, 0)
    with pytest.raises(UserError, match="cannot be compared"):
        tolerance("M8[s]")
