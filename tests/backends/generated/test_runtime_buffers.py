"""Buffers of the generated code's runtime."""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

import meta500.backends.generated
from meta500.backends import toolchain

GENERATED = Path(meta500.backends.generated.__file__).parent
SOURCE = Path(__file__).with_name("runtime_random.cpp")
MIB = 1 << 20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="is found out on Linux only")


@functools.cache
def library() -> ctypes.CDLL:
    path = toolchain.compile_library([SOURCE], toolchain.GENERATED_FLAGS, include=[GENERATED])
    loaded = ctypes.CDLL(str(path))
    loaded.allocate.restype = ctypes.c_void_p
    loaded.allocate.argtypes = [ctypes.c_size_t]
    loaded.release.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    loaded.release.restype = None
    loaded.available_memory.restype = ctypes.c_size_t
    loaded.move_buffers.restype = ctypes.c_int64
    loaded.move_buffers.argtypes = [ctypes.c_size_t]
    return loaded


@pytest.mark.parametrize("size", [1, 64, 1000, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 9 * MIB + 17])
def test_zeroed_aligned_and_writable(size: int) -> None:
    addresses = [library().allocate(size) for _ in range(3)]
    views = []
    for address in addresses:
        assert address % (2 * MIB if size >= 2 * MIB and sys.platform.startswith("linux") else 64) == 0
        view = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
        assert not view.any()
        views.append(view)
    for i, view in enumerate(views):
        view[:] = i + 1
    for i, view in enumerate(views):
        assert (view == i + 1).all()  # they do not overlap
    del views, view
    for address in addresses:
        library().release(address, size)


def test_zeroed_again_after_release() -> None:
    for size in (4096, 3 * MIB):
        for _ in range(4):
            address = library().allocate(size)
            view = np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
            assert not view.any()
            view[:] = 255
            library().release(address, size)


def test_no_bytes_and_no_buffer() -> None:
    address = library().allocate(0)
    assert address % 64 == 0
    library().release(address, 0)
    library().release(None, 4 * MIB)


@pytest.mark.parametrize("size", [1 << 50, (1 << 63) - 1, (1 << 63) + 5, (1 << 64) - 1])
def test_too_much_is_null(size: int) -> None:
    assert library().allocate(size) is None


@linux
def test_more_than_the_machine_has_left_is_null() -> None:
    # The system would promise this much; using it would end the process.
    assert library().allocate(library().available_memory() + (1 << 30)) is None


@linux
def test_available_memory() -> None:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    assert 0 < library().available_memory() <= memory.total + swap.total


@linux
def test_released_memory_goes_back() -> None:
    size, process = 64 * MIB, psutil.Process()
    before = process.memory_info().rss
    address = library().allocate(size)
    reserved = process.memory_info().rss
    ctypes.memset(address, 1, size)
    used = process.memory_info().rss
    library().release(address, size)
    after = process.memory_info().rss
    assert reserved - before < size // 4  # nothing is touched before it is used
    assert used - before > size * 3 // 4
    assert after - before < size // 4


@pytest.mark.parametrize("size", [100, 5 * MIB])
def test_buffers_move(size: int) -> None:
    assert library().move_buffers(size) == size
