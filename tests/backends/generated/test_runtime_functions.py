"""Elementary functions of the generated code's runtime against numpy in float64 and mpmath."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

import meta500.backends.generated
from meta500.backends import toolchain
from meta500.errors import UserError

GENERATED = Path(meta500.backends.generated.__file__).parent
SOURCE = Path(__file__).with_name("runtime_functions.cpp")
# The functions keep their precision with and without fused multiply-adds, as loops and as vectors of any width.
VARIANTS = {"16 lanes": ("-DLANES=16",), "4 lanes, no fused": ("-DLANES=4", "-ffp-contract=off")}

PRECISE: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "tanh": np.tanh,
    "sigmoid": scipy.special.expit,
    "softplus": lambda x: np.logaddexp(0, x),
    "erf": scipy.special.erf,
}
MPMATH: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)) if x > -100 else mpmath.exp(x),
    "erf": mpmath.erf,
}
EXACT: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
}
BINARY = {"maximum": np.maximum, "minimum": np.minimum, "fmod": np.fmod}
# Dense sampling: where results are of ordinary size, around changes of the formula, and near 0 and infinity.
RANGES = {
    "exp": ((-1, 1), (-20, 20), (-104, -86), (87, 89)),
    "log": ((0.5, 2), (0, 10), (0.7, 0.72), (1.41, 1.42)),
    "log1p": ((-1, 1), (-0.01, 0.01), (0.4, 0.43), (0, 100)),
    "tanh": ((-1, 1), (0.54, 0.56), (-10, 10)),
    "sigmoid": ((-1.3, 1), (-20, 20), (-104, -86)),
    "softplus": ((-3, 3), (-20, 20), (-0.9, -0.85), (-104, -86)),
    "erf": ((-1, 1), (0.99, 1.3), (-4.1, 4.1)),
}


@functools.cache
def library(variant: str) -> ctypes.CDLL:
    flags = [*toolchain.GENERATED_FLAGS, *VARIANTS[variant]]
    path = toolchain.compile_library([SOURCE], flags, include=[GENERATED])
    return ctypes.CDLL(str(path))


def apply(variant: str, form: str, name: str, *operands: np.ndarray) -> np.ndarray:
    """The function over arrays of one dtype; ``form`` is "" (a loop) or "_vector"."""
    dtype = operands[0].dtype
    out = np.empty_like(operands[0])
    function = library(variant)[f"{name}{form}_{'float' if dtype == np.float32 else 'double'}"]
    arrays = [np.ascontiguousarray(x) for x in operands]
    function(
        *(ctypes.c_void_p(x.ctypes.data) for x in arrays),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_long(out.size),
    )
    return out


def edges(dtype: Any) -> np.ndarray:
    """Special values, borders of the format, and neighbours of where formulas change."""
    info = np.finfo(dtype)
    values = [0, info.smallest_subnormal, info.tiny, info.eps, info.max, np.inf, np.nan, 0.5, 1, 2, 1e-3, 1e3]
    values += [
        0.55,
        1.25,
        4,
        6,
        np.sqrt(0.5),
        np.sqrt(2),
        0.41421356237309503,
        88.7228,
        104,
        709.7827,
        745.14,
    ]
    values += [2.0**info.nmant, 2.0 ** (info.nmant + 1), 2.5, 1.5, 0.49999997]
    near = np.array(values, dtype)
    with np.errstate(over="ignore"):
        near = np.concatenate(
            [near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(0)), 1 + 3 * near]
        )
    return np.concatenate([near, -near])


def samples(name: str, dtype: Any, n: int) -> np.ndarray:
    """Edges, ``n`` random bit patterns and ``n`` numbers of each of the function's ranges."""
    rng = np.random.default_rng(5)
    bits = np.uint32 if dtype == np.float32 else np.uint64
    parts = [edges(dtype), rng.integers(0, np.iinfo(bits).max, n, bits, endpoint=True).view(dtype)]
    ranges = RANGES[name] if dtype == np.float32 else (*RANGES[name], (-746, -700), (700, 711))
    parts += [rng.uniform(low, high, n).astype(dtype) for low, high in ranges]
    return np.concatenate(parts)


def ulps(got: np.ndarray, high: np.ndarray, low: np.ndarray | float = 0.0) -> np.ndarray:
    """Distances from high + low (float64) in units in the last place of ``got``'s type."""
    info = np.finfo(got.dtype)
    _, exponents = np.frexp(high)
    unit = np.maximum(np.ldexp(1.0, exponents - (info.nmant + 1)), float(info.smallest_subnormal))
    return np.asarray(np.abs((got.astype(np.float64) - high) - low) / unit)


def compare(got: np.ndarray, high: np.ndarray, low: np.ndarray | float, x: np.ndarray, bound: float) -> None:
    """Special results agree; the others are within ``bound`` units in the last place."""
    with np.errstate(over="ignore"):
        rounded = high.astype(got.dtype)
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    np.testing.assert_array_equal(got[special], rounded[special], err_msg=str(x[special]))
    np.testing.assert_array_equal(np.signbit(got)[~special], np.signbit(rounded)[~special])
    low = np.where(special, 0, low)
    error = ulps(np.where(special, 0, got).astype(got.dtype), np.where(special, 0, high), low)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (
        f"{error[worst]:.3f} ulp at {x[worst]!r}: {got[worst]!r}, not {high[worst]!r}"
    )


@functools.cache
def exactly(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples in float64 and the function's values as sums of two float64."""
    x = samples(name, np.float64, 700)
    high, low = np.empty_like(x), np.zeros_like(x)
    with mpmath.workdps(40), np.errstate(all="ignore"):
        special = PRECISE[name](x)
        for i, value in enumerate(x):
            outside = name in ("log", "log1p") and value <= (0 if name == "log" else -1)
            far = not np.isfinite(value) or (abs(value) > 1e4 and not name.startswith("log"))
            if far or outside or value == 0:  # mpmath knows no -0
                high[i] = special[i]
            else:
                exact = MPMATH[name](mpmath.mpf(value))
                high[i] = float(exact)
                low[i] = float(exact - mpmath.mpf(high[i])) if np.isfinite(high[i]) else 0
    return x, high, low


@pytest.mark.parametrize("form", ["", "_vector"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PRECISE)
class TestPrecise:
    def test_float_is_within_two_ulps(self, name: str, variant: str, form: str) -> None:
        x = samples(name, np.float32, 50_000)
        with np.errstate(all="ignore"):
            reference = PRECISE[name](x.astype(np.float64))
        compare(apply(variant, form, name, x), reference, 0.0, x, 2.0)

    def test_double_is_within_two_or_three_ulps(self, name: str, variant: str, form: str) -> None:
        x, high, low = exactly(name)
        compare(apply(variant, form, name, x), high, low, x, 3.0 if name == "erf" else 2.0)


@pytest.mark.parametrize("form", ["", "_vector"])
@pytest.mark.parametrize("variant", VARIANTS)
class TestNonpositive:
    def test_float(self, variant: str, form: str) -> None:
        x = -np.abs(samples("exp", np.float32, 50_000))
        with np.errstate(invalid="ignore"):  # signalling NaN
            exact = np.where(x < -87, 0, np.exp(x.astype(np.float64)))
        compare(apply(variant, form, "exp_nonpositive", x), exact, 0.0, x, 2.0)

    def test_double(self, variant: str, form: str) -> None:
        x, high, low = (values[exactly("exp")[0] <= 0] for values in exactly("exp"))
        flushed = x < -708
        high, low = np.where(flushed, 0, high), np.where(flushed, 0, low)
        compare(apply(variant, form, "exp_nonpositive", x), high, low, x, 2.0)

    def test_nan(self, variant: str, form: str) -> None:
        bits = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFFFFFFFF, 0x7FC000FF], np.uint32)
        assert np.isnan(apply(variant, form, "exp_nonpositive", bits.view(np.float32))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("form", ["", "_vector"])
@pytest.mark.parametrize("variant", VARIANTS)
class TestExact:
    @pytest.mark.parametrize("name", EXACT)
    def test_equals_numpy(self, name: str, variant: str, form: str, dtype: Any) -> None:
        rng = np.random.default_rng(6)
        x = np.concatenate([edges(dtype), rng.normal(scale=3, size=999).astype(dtype)])
        with np.errstate(invalid="ignore"):
            expected = EXACT[name](x)
        np.testing.assert_array_equal(apply(variant, form, name, x), expected)

    @pytest.mark.parametrize("name", BINARY)
    def test_pairs_equal_numpy(self, name: str, variant: str, form: str, dtype: Any) -> None:
        values = np.unique(edges(dtype))[::3]
        values = np.concatenate([values, np.array([np.nan, -0.0, 0.0, 1.0], dtype)])
        a, b = (x.ravel() for x in np.meshgrid(values, values))
        with np.errstate(invalid="ignore"):
            expected = BINARY[name](a, b)
        np.testing.assert_array_equal(apply(variant, form, name, a, b), expected)

    def test_powers(self, variant: str, form: str, dtype: Any) -> None:
        rng = np.random.default_rng(7)
        special = np.array([0, -0.0, 1, -1, 2, -2, 0.5, 3, np.inf, -np.inf, np.nan], dtype)
        a, b = (x.ravel() for x in np.meshgrid(special, special))
        a = np.concatenate([a, rng.uniform(0, 5, 500).astype(dtype)])
        b = np.concatenate([b, rng.uniform(-5, 5, 500).astype(dtype)])
        with np.errstate(all="ignore"):
            expected = np.power(a.astype(np.float64), b.astype(np.float64))
        np.testing.assert_allclose(
            apply(variant, form, "pow", a, b), expected.astype(dtype), rtol=4 * float(np.finfo(dtype).eps)
        )


@pytest.mark.parametrize("name", PRECISE)
@settings(max_examples=60)
@given(values=st.lists(st.floats(width=32), min_size=1, max_size=40))
def test_any_floats_in_any_number(name: str, values: list[float]) -> None:
    x = np.array(values, np.float32)
    with np.errstate(all="ignore"):
        reference = PRECISE[name](x.astype(np.float64))
    for form in ("", "_vector"):
        compare(apply("16 lanes", form, name, x), reference, 0.0, x, 2.0)


def test_simd_loops_are_vectorised(tmp_path: Path) -> None:
    command = toolchain.compiler()
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=60)
    if "clang" in version.stdout:
        pytest.skip("only g++ says which loops it has vectorised")
    report = tmp_path / "report"
    flags = [
        *toolchain.GENERATED_FLAGS,
        "-march=native",
        "-fopenmp",
        f"-fopt-info-vec-optimized={report}",
        "-c",
    ]
    subprocess.run(
        [*command, *flags, f"-I{GENERATED}", str(SOURCE), "-o", str(tmp_path / "o")], check=True, timeout=60
    )
    lines = SOURCE.read_text().splitlines()
    places = {m[1]: i for i, line in enumerate(lines, 1) if (m := re.match(r"(?:UN|BIN)ARY\((\w+)\)", line))}
    done = {
        int(n)
        for n in re.findall(rf"{SOURCE.name}:(\d+):\d+: optimized: loop vectorized", report.read_text())
    }
    expected = {*PRECISE, "exp_nonpositive", "sqrt", "relu", "abs", "sign", "maximum", "minimum"}
    assert expected <= {name for name, line in places.items() if line in done}


UNDEFINED = """
import ctypes, sys
import numpy as np
library = ctypes.CDLL(sys.argv[1])
for dtype, word in ((np.float32, "float"), (np.float64, "double")):
    x = np.fromfile(sys.argv[2]).astype(dtype)
    y = np.empty_like(x)
    for name in sys.argv[3].split(","):
        for form in ("", "_vector"):
            function = library[f"{name}{form}_{word}"]
            arrays = [x, y] if name not in ("maximum", "minimum", "fmod") else [x, x[::-1].copy(), y]
            function(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), ctypes.c_long(x.size))
"""


def test_no_undefined_behaviour(tmp_path: Path) -> None:
    flags = ["-O1", "-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all", "-DLANES=4"]
    try:
        path = toolchain.compile_library([SOURCE], flags, include=[GENERATED])
    except UserError as error:
        if "ubsan" not in str(error):
            raise
        pytest.skip("the compiler has no library for -fsanitize=undefined")
    with np.errstate(over="ignore"):
        edges(np.float64).tofile(tmp_path / "x")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            UNDEFINED,
            str(path),
            str(tmp_path / "x"),
            ",".join([*PRECISE, *EXACT, *BINARY]),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "runtime error" not in done.stderr
