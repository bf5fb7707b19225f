"""The library that counts allocations, against programs whose allocations are known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meta500.benchmarks.studies.abstraction.allocations import Counts, counting_environment, counts
from meta500.errors import UserError

_PROGRAM = """
import ctypes, json, os
from meta500.benchmarks.studies.abstraction.allocations import counts

c = ctypes.CDLL(None)
word, size = ctypes.c_void_p, ctypes.c_size_t
for name, arguments in {
    "malloc": [size], "calloc": [size, size], "realloc": [word, size], "aligned_alloc": [size, size],
    "memalign": [size, size], "posix_memalign": [word, size, size], "free": [word],
    "mmap": [word, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long], "munmap": [word, size],
}.items():
    getattr(c, name).argtypes = arguments
    getattr(c, name).restype = ctypes.c_int if name in ("posix_memalign", "munmap") else word
place = ctypes.c_void_p()

def several(times):
    before = counts(os.getpid())
    for _ in range(times):
        for found in (c.malloc(1000), c.calloc(10, 20), c.aligned_alloc(64, 640), c.memalign(64, 64)):
            assert found
            c.free(found)
        assert c.posix_memalign(ctypes.byref(place), 64, 3000) == 0 and place.value % 64 == 0
        c.free(c.realloc(place.value, 5000))
        region = c.mmap(None, 8192, 3, 0x22, -1, 0)
        assert c.munmap(region, 8192) == 0
    assert c.posix_memalign(ctypes.byref(place), 63, 1) != 0
    after = counts(os.getpid())
    return [after.calls - before.calls, after.bytes - before.bytes, after.maps - before.maps,
            after.mapped_bytes - before.mapped_bytes]

several(3)
print(json.dumps([several(100), several(300)]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {**os.environ, **counting_environment(tmp_path_factory.mktemp("counters"))}


def test_calls_and_bytes_of_a_known_program_are_counted_exactly(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    few, many = json.loads(done.stdout)
    # What the loop's own Python allocates is the same both times.
    difference = [b - a for a, b in zip(few, many, strict=True)]
    each = 1000 + 200 + 640 + 64 + 3000 + 5000
    assert difference == [200 * 6, 200 * each, 200, 200 * 8192]


def test_programs_that_a_process_starts_have_counters_of_their_own(environment: dict[str, str]) -> None:
    code = "import subprocess; print(subprocess.run(['true']).returncode)"
    before = set(os.listdir(environment["META500_ALLOCATIONS"]))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert len(set(os.listdir(environment["META500_ALLOCATIONS"])) - before) >= 2


def test_differences_are_taken_column_by_column() -> None:
    difference = Counts(10, 200, 3, 4096) - Counts(4, 50, 1, 0)
    assert difference == Counts(6, 150, 2, 4096)


def test_a_process_that_is_not_counted_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("META500_ALLOCATIONS", raising=False)
    with pytest.raises(UserError, match="META500_ALLOCATIONS is not set"):
        counts(os.getpid())
    monkeypatch.setenv("META500_ALLOCATIONS", str(tmp_path))
    with pytest.raises(UserError, match="process 12345"):
        counts(12345)
    Path(tmp_path, "12345").write_bytes(b"short")
    with pytest.raises(UserError, match="5 bytes"):
        counts(12345)
