"""Counter-based random numbers of the generated code's runtime."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import meta500.backends.generated
from meta500.backends import toolchain

GENERATED = Path(meta500.backends.generated.__file__).parent
SOURCE = Path(__file__).with_name("runtime_random.cpp")

# Counter, key and result: the known answers published with the reference implementation of Philox4x32-10.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],  # digits of pi
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
words64 = st.integers(0, 2**64 - 1)


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL(
        str(toolchain.compile_library([SOURCE], toolchain.GENERATED_FLAGS, include=[GENERATED]))
    )


def draw(name: str, dtype: Any, n: int, seed: int, stream: int, first: int) -> np.ndarray:
    """``n`` numbers by "fill" or "uniform"; one more, which must stay as it is."""
    out = np.full(n + 1, -7, dtype)
    function = library()[f"{name}_{'float' if dtype == np.float32 else 'double'}"]
    numbers = (ctypes.c_uint64(value) for value in (seed, stream, first))
    function(ctypes.c_void_p(out.ctypes.data), ctypes.c_int64(n), *numbers)
    assert out[n] == -7
    return out[:n]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 in whole numbers of Python."""
    (a, b, c, d), (low, high) = counter, key
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (q >> 32) ^ b ^ low, q % 2**32, (p >> 32) ^ d ^ high, p % 2**32
        low, high = (low + 0x9E3779B9) % 2**32, (high + 0xBB67AE85) % 2**32
    return [a, b, c, d]


def compiled(counter: list[int], key: list[int]) -> list[int]:
    arrays = [np.array(x, np.uint32) for x in (counter, key, [0] * 4)]
    library().philox(*(ctypes.c_void_p(a.ctypes.data) for a in arrays))
    return arrays[2].tolist()


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: list[int], key: list[int], answer: list[int]) -> None:
    assert compiled(counter, key) == answer
    assert philox(counter, key) == answer


@given(
    counter=st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
    key=st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2),
)
def test_any_block(counter: list[int], key: list[int]) -> None:
    assert compiled(counter, key) == philox(counter, key)


@given(seed=words64, stream=words64, index=st.integers(0, 2**63))
def test_a_number_is_a_word_of_its_block(seed: int, stream: int, index: int) -> None:
    block = index // 64 * 16 + index % 16
    counter = [block % 2**32, block >> 32, stream % 2**32, stream >> 32]
    word = philox(counter, [seed % 2**32, seed >> 32])[index // 16 % 4]
    for dtype in (np.float32, np.float64):
        assert draw("uniform", dtype, 1, seed, stream, index)[0] == (word >> 8) / 2**24


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(n=st.integers(0, 300), seed=words64, stream=words64, first=st.integers(0, 2**40))
def test_filling_equals_one_by_one(dtype: Any, n: int, seed: int, stream: int, first: int) -> None:
    np.testing.assert_array_equal(
        draw("fill", dtype, n, seed, stream, first), draw("uniform", dtype, n, seed, stream, first)
    )


def test_parts_make_the_whole() -> None:
    whole = draw("fill", np.float32, 1000, 3, 4, 0)
    parts = [draw("fill", np.float32, n, 3, 4, first) for first, n in ((0, 17), (17, 500), (517, 483))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_block_numbers_beyond_32_bits() -> None:
    first = 4 * (2**32 - 16)
    crossing = draw("fill", np.float64, 128, 1, 2, first)
    np.testing.assert_array_equal(crossing, draw("uniform", np.float64, 128, 1, 2, first))
    assert not np.array_equal(crossing[64:], draw("fill", np.float64, 64, 1, 2, 0))


def test_distribution() -> None:
    # The seeds are fixed; a right generator fails at this level once in a hundred thousand seeds.
    x = draw("fill", np.float64, 1 << 18, 11, 0, 0)
    assert x.min() >= 0
    assert x.max() < 1
    assert stats.kstest(x, "uniform").pvalue > 1e-5
    others = [
        draw("fill", np.float64, x.size, 11, 1, 0),
        draw("fill", np.float64, x.size, 12, 0, 0),
        draw("fill", np.float64, x.size, 11, 1 << 32, 0),
        np.roll(x, 1),
        np.roll(x, 16),
    ]
    for y in others:
        assert abs(np.corrcoef(x, y)[0, 1]) < 4.5 / np.sqrt(x.size)
