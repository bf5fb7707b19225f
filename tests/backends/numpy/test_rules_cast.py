"""Cast against ml_dtypes and numpy over whole types, the rounding of large numbers, text, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from meta500.errors import UserError
from meta500.graph.types import dtype_from_onnx

PATTERNS = np.arange(65536, dtype=np.uint16)
HALVES = {"float16": PATTERNS.view(np.float16), "bfloat16": PATTERNS.view(ml_dtypes.bfloat16)}
FLOAT8 = {
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "FLOAT8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}


def number(name: str) -> int:
    return TensorProto.DataType.Value(name)


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def same(got: np.ndarray, wanted: np.ndarray) -> None:
    """Equal bits, any NaN being equal to any other."""
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    with np.errstate(invalid="ignore"):
        nan = np.isnan(got.astype(np.float64)) & np.isnan(wanted.astype(np.float64))
    np.testing.assert_array_equal(bits(got)[~nan], bits(wanted)[~nan])


@pytest.mark.parametrize("source", HALVES)
@pytest.mark.parametrize("name", FLOAT8)
def test_float8_without_saturation_is_that_of_ml_dtypes(rule, name, source) -> None:
    x = HALVES[source]
    (y,) = rule("Cast", 19, [x], {"to": number(name), "saturate": 0}).outputs
    with np.errstate(all="ignore"):
        same(y, x.astype(np.float32).astype(FLOAT8[name]))


@pytest.mark.parametrize("source", HALVES)
@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("version", [19, 24])
def test_float8_with_saturation(rule, name, source, version) -> None:
    """ONNX's table: NaN stays, what is too large is the largest; infinities in FNUZ types are NaN up to 23."""
    x = HALVES[source].astype(np.float32)
    (y,) = rule("Cast", version, [HALVES[source]], {"to": number(name)}).outputs
    largest = np.float32(ml_dtypes.finfo(FLOAT8[name]).max)
    wanted = np.where(np.abs(x) > largest, np.copysign(largest, x), x)
    if name.endswith("FNUZ") and version < 24:
        wanted = np.where(np.isinf(x), np.float32(np.nan), wanted)
    with np.errstate(all="ignore"):
        same(y, wanted.astype(FLOAT8[name]))


@pytest.mark.parametrize("name", ["FLOAT16", "BFLOAT16", *FLOAT8])
def test_float64_rounds_once(rule, name) -> None:
    """Just beside the midpoint of two neighbours, where float32 in between would fall onto it."""
    dtype = dtype_from_onnx(number(name))
    step = {"FLOAT16": 2.0**-10, "BFLOAT16": 2.0**-7, "FLOAT8E5M2": 0.25, "FLOAT8E5M2FNUZ": 0.25}.get(
        name, 0.125
    )
    middle = 1 + step / 2 + step * np.arange(2)
    x = np.concatenate([middle, middle * (1 + 2.0**-40), middle * (1 - 2.0**-40)])
    (y,) = rule("Cast", 19, [np.concatenate([x, -x])], {"to": number(name)}).outputs
    below = np.array([1, 1 + step])
    wanted = np.concatenate([[1, 1 + 2 * step], below + step, below])
    np.testing.assert_array_equal(y.astype(np.float64), np.concatenate([wanted, -wanted]))
    assert y.dtype == dtype


@pytest.mark.filterwarnings("ignore:overflow|invalid value:RuntimeWarning")
@pytest.mark.parametrize("name", ["FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("source", ["int32", "uint32", "int64", "uint64"])
def test_integers_round_once(rule, name, source) -> None:
    """Against exact fractions: the nearest of all numbers of the type, ties to even."""
    rng = np.random.default_rng(1)
    raw = rng.integers(0, 2**64, 300, dtype=np.uint64) >> rng.integers(0, 64, 300).astype(np.uint64)
    x = np.concatenate([raw, np.array([2**24 + 1, 2**31 + 2**23 + 1], np.uint64)]).astype(source)
    (y,) = rule("Cast", 13, [x], {"to": number(name)}).outputs
    every = HALVES[name.lower()]
    numbers = np.unique(every[np.isfinite(every)].astype(np.float64))
    # What rounds to the number after the largest one is infinite; that number is even.
    beyond = numbers[-1] + (numbers[-1] - numbers[-2])
    numbers = np.concatenate([[-beyond], numbers, [beyond]])
    for value, got in zip(x.tolist(), y.astype(np.float64), strict=True):
        place = int(np.searchsorted(numbers, value))
        place = min(max(place, 1), len(numbers) - 1)
        low, high = numbers[place - 1], numbers[place]
        below, above = value - Fraction(low), Fraction(high) - value
        even = bits(np.array([low]).astype(every.dtype))[0] % 2 == 0
        wanted = low if below < above or (below == above and even) else high
        assert got == (np.copysign(np.inf, wanted) if abs(wanted) == beyond else wanted), value


POWERS = 2.0 ** np.arange(-127, 128)


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_float8_e8m0_rounds_as_its_mode_says(rule, mode) -> None:
    x = np.concatenate([POWERS[1:-1], POWERS[1:-1] * 1.25, POWERS[1:-1] * 1.5, POWERS[1:-1] * 1.75])
    (y,) = rule("Cast", 24, [x], {"to": number("FLOAT8E8M0"), "round_mode": mode}).outputs
    up = {"up": (0, 1, 1, 1), "down": (0, 0, 0, 0), "nearest": (0, 0, 1, 1)}[mode]
    wanted = np.concatenate([POWERS[1:-1] * 2.0**k for k in up])
    np.testing.assert_array_equal(y.astype(np.float64), wanted)


def test_float8_e8m0_limits(rule) -> None:
    x = np.array([0.0, 1e-45, np.inf, np.nan, 3e38, 2.0**127], np.float32)
    (y,) = rule("Cast", 24, [x], {"to": number("FLOAT8E8M0")}).outputs
    np.testing.assert_array_equal(bits(y), [0, 0, 254, 255, 254, 254])
    (y,) = rule("Cast", 24, [x], {"to": number("FLOAT8E8M0"), "saturate": 0}).outputs
    np.testing.assert_array_equal(bits(y), [255, 255, 255, 255, 255, 254])
    with pytest.raises(UserError, match="round_mode"):
        rule("Cast", 24, [x], {"to": number("FLOAT8E8M0"), "round_mode": "odd"})


@pytest.mark.parametrize("name", ["INT4", "UINT4", "INT2", "UINT2"])
def test_small_integers_keep_their_lowest_bits(rule, name) -> None:
    x = np.arange(-40, 40)
    (y,) = rule("Cast", 25, [x], {"to": number(name)}).outputs
    width, signed = int(name[-1]), not name.startswith("U")
    wanted = x % 2**width
    wanted = np.where(signed & (wanted >= 2 ** (width - 1)), wanted - 2**width, wanted)
    np.testing.assert_array_equal(y.astype(np.int8).astype(int) if signed else y.astype(np.uint8), wanted)
    (back,) = rule("Cast", 25, [y], {"to": number("FLOAT")}).outputs
    np.testing.assert_array_equal(back, wanted)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_float4_is_that_of_ml_dtypes(rule) -> None:
    x = np.concatenate([HALVES["float16"].astype(np.float32), [0.25, 0.75, 1.25, 2.5, 5.0, 1e9]])
    x = x[~np.isnan(x)].astype(np.float32)
    (y,) = rule("Cast", 23, [x], {"to": number("FLOAT4E2M1")}).outputs
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(ml_dtypes.float4_e2m1fn).astype(np.float32))


def test_text(rule) -> None:
    x = np.array(["1.5", "-2e3", "INF", "-inf", "nan", " 7 "], object)
    (y,) = rule("Cast", 13, [x], {"to": number("FLOAT")}).outputs
    np.testing.assert_array_equal(y, np.array([1.5, -2000, np.inf, -np.inf, np.nan, 7], np.float32))
    (back,) = rule("Cast", 13, [y], {"to": number("STRING")}).outputs
    assert back.tolist() == ["1.5", "-2000.0", "INF", "-INF", "NaN", "7.0"]
    large = np.array(["9007199254740993"], object)
    (y,) = rule("Cast", 13, [large], {"to": number("INT64")}).outputs
    assert y.tolist() == [9007199254740993]


@pytest.mark.parametrize(
    ("x", "to", "words"),
    [
        (np.array(["one"], object), "FLOAT", "'one' is no number"),
        (np.array(["inf"], object), "INT32", "no value as an integer"),
        (np.ones(2, np.complex64), "FLOAT", "complex64"),
        (np.ones(2, np.float32), "COMPLEX64", "complex64"),
        (np.ones(2, np.float32), "UNDEFINED", "no type to cast to"),
    ],
)
def test_refusals(rule, x, to, words) -> None:
    with pytest.raises(UserError, match=words):
        rule("Cast", 13, [x], {"to": number(to)})
