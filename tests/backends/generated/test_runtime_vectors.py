"""Vector types of the generated code's runtime: memory, shuffles and sums, for all widths."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta500.backends.generated
from meta500.backends import toolchain

GENERATED = Path(meta500.backends.generated.__file__).parent
SOURCE = Path(__file__).with_name("runtime_vectors.cpp")
TYPES = [
    (np.float32, 4),
    (np.float32, 8),
    (np.float32, 16),
    (np.float64, 2),
    (np.float64, 4),
    (np.float64, 8),
]
every_type = pytest.mark.parametrize(("dtype", "lanes"), TYPES, ids=lambda p: getattr(p, "__name__", str(p)))


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(
        str(toolchain.compile_library([SOURCE], toolchain.GENERATED_FLAGS, include=[GENERATED]))
    )


def call(name: str, dtype: Any, lanes: int, *arguments: Any) -> None:
    """Call NAME_float16 and the like; arrays are passed as addresses, numbers as C long or ``dtype``."""
    word, number = ("float", ctypes.c_float) if dtype == np.float32 else ("double", ctypes.c_double)
    kinds: dict[type, Any] = {
        np.ndarray: lambda a: ctypes.c_void_p(a.ctypes.data),
        int: ctypes.c_long,
        float: number,
    }
    library()[f"{name}_{word}{lanes}"](*(kinds[type(a)](a) for a in arguments))


def result(name: str, dtype: Any, lanes: int, *arguments: Any) -> np.ndarray:
    out = np.full(lanes, 99, dtype)
    call(name, dtype, lanes, *arguments, out)
    return out


def total(dtype: Any, lanes: int, row: np.ndarray) -> float:
    word, number = ("float", ctypes.c_float) if dtype == np.float32 else ("double", ctypes.c_double)
    function = library()[f"sum_{word}{lanes}"]
    function.restype = number
    return float(function(ctypes.c_void_p(row.ctypes.data)))


def halves(row: np.ndarray) -> np.ndarray:
    """The sum of a row in the order that the runtime promises."""
    while row.size > 1:
        row = row[: row.size // 2] + row[row.size // 2 :]
    return row[0]


@every_type
class TestVectors:
    def test_even_and_odd_elements(self, dtype: Any, lanes: int) -> None:
        row = np.arange(2 * lanes, dtype=dtype)
        a, b = row[:lanes], row[lanes:]
        np.testing.assert_array_equal(result("even", dtype, lanes, a, b), row[::2])
        np.testing.assert_array_equal(result("odd", dtype, lanes, a, b), row[1::2])

    def test_interleaving(self, dtype: Any, lanes: int) -> None:
        a, b = np.arange(lanes, dtype=dtype), -1 - np.arange(lanes, dtype=dtype)
        merged = np.stack([a, b], axis=1).ravel()
        np.testing.assert_array_equal(result("interleave_low", dtype, lanes, a, b), merged[:lanes])
        np.testing.assert_array_equal(result("interleave_high", dtype, lanes, a, b), merged[lanes:])

    def test_shifts_by_one_lane(self, dtype: Any, lanes: int) -> None:
        row = np.arange(lanes + 1, dtype=dtype)
        np.testing.assert_array_equal(result("shifted_up", dtype, lanes, row[1:], 0.0), row[:lanes])
        np.testing.assert_array_equal(
            result("shifted_down", dtype, lanes, row[:lanes], float(lanes)), row[1:]
        )

    def test_unaligned_memory(self, dtype: Any, lanes: int) -> None:
        source = np.arange(3 * lanes, dtype=dtype)
        for start in range(lanes + 1):
            for to in range(lanes + 1):
                out = np.full(3 * lanes, -7, dtype)
                call("copy", dtype, lanes, source[start:], out[to:])
                expected = np.full(3 * lanes, -7, dtype)
                expected[to : to + lanes] = source[start : start + lanes]
                np.testing.assert_array_equal(out, expected)

    def test_first_lanes(self, dtype: Any, lanes: int) -> None:
        source = 1 + np.arange(lanes, dtype=dtype)
        for n in range(lanes + 3):
            beyond = np.where(np.arange(lanes) < n, source, np.nan).astype(dtype)
            expected = np.where(np.arange(lanes) < n, source, 0)
            np.testing.assert_array_equal(result("load_first", dtype, lanes, beyond, n), expected)
            np.testing.assert_array_equal(result("first", dtype, lanes, beyond, n), expected)
            out = np.full(lanes + 3, -7, dtype)
            call("store_first", dtype, lanes, source, n, out)
            np.testing.assert_array_equal(out[:lanes], np.where(np.arange(lanes) < n, source, -7))
            np.testing.assert_array_equal(out[lanes:], -7)

    def test_nothing_beyond_the_first_lanes_is_touched(self, dtype: Any, lanes: int) -> None:
        # The last lanes before a page that may be neither read nor written.
        memory, page = _pages()
        size = np.dtype(dtype).itemsize
        for n in range(lanes):
            edge = np.frombuffer(memory, dtype, count=n, offset=page - n * size)
            edge[:] = np.arange(n)
            expected = np.where(np.arange(lanes) < n, np.arange(lanes), 0)
            np.testing.assert_array_equal(result("load_first", dtype, lanes, edge, n), expected)
            call("store_first", dtype, lanes, np.full(lanes, 5, dtype), n, edge)
            np.testing.assert_array_equal(edge, 5)

    @pytest.mark.parametrize("value", [2.5, -0.0, float("inf"), float("nan")])
    def test_broadcast(self, dtype: Any, lanes: int, value: float) -> None:
        out = result("broadcast", dtype, lanes, value)
        np.testing.assert_array_equal(out, np.full(lanes, value, dtype))
        np.testing.assert_array_equal(np.signbit(out), np.signbit(np.full(lanes, value)))

    def test_select(self, dtype: Any, lanes: int) -> None:
        a, b = np.random.default_rng(1).normal(size=(2, lanes)).astype(dtype)
        np.testing.assert_array_equal(result("greater", dtype, lanes, a, b), np.maximum(a, b))

    def test_sum_has_its_order(self, dtype: Any, lanes: int) -> None:
        rng = np.random.default_rng(2)
        for scale in (0.1, 1.0, 30.0):
            row = np.exp(rng.normal(scale=scale, size=lanes)).astype(dtype)
            assert total(dtype, lanes, row) == halves(row)

    def test_sums_are_the_sums(self, dtype: Any, lanes: int) -> None:
        rng = np.random.default_rng(3)
        rows = (rng.normal(size=(lanes, lanes)) * np.exp(rng.normal(scale=9, size=(lanes, lanes)))).astype(
            dtype
        )
        for count in range(1, lanes + 1):
            out = result("sums", dtype, lanes, rows, count)
            np.testing.assert_array_equal(out[:count], [halves(row) for row in rows[:count]])
            np.testing.assert_array_equal(out[count:], 0)


@functools.cache
def _pages() -> tuple[Any, int]:
    """Writable memory of one page that ends at a page without access, and its size."""
    import mmap

    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    assert protect(address + page, page, 0) == 0
    return memory, page


@pytest.mark.parametrize("lanes", [2, 4])
def test_doubles_to_memory_as_floats(lanes: int) -> None:
    given = np.array([1 / 3, -2e-3, 1 + 2**-30, 5e7])[:lanes]
    out = np.full(lanes + 2, 9, np.float32)
    call("store_narrow", np.float64, lanes, given, out[1:])
    np.testing.assert_array_equal(out, np.float32([9, *given, 9]))
