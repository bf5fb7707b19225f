"""Counting allocations: a small library, preloaded into the process of a level, that counts what it asks for.

It stands in front of the C library's malloc, calloc, realloc, memalign, posix_memalign, aligned_alloc and
valloc, and of anonymous mmap; so it sees Python, C++ and any framework alike, and programs that they start.
The counters of a process lie in a file that is named by its process id, which anybody can read at any time.
What the C library's malloc maps for itself is not counted again. Small objects of Python come out of pools
of 1 MiB, of which only the pools are seen.

Counting costs time: counted steps are never the timed ones.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from meta500.backends.toolchain import compile_text
from meta500.errors import UserError

FOLDER_VARIABLE = "META500_ALLOCATIONS"
_PRELOAD = "LD_PRELOAD"
_LAYOUT = struct.Struct("=4Q")

SOURCE = r"""// Counts the allocations of a process; the counters lie in $META500_ALLOCATIONS/PID.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace {

struct Counters {
    std::uint64_t calls, bytes, maps, mapped_bytes;
};

// Until the file is mapped, and where it can't be.
Counters early;
Counters* counters = &early;

void count(std::size_t bytes) {
    __atomic_fetch_add(&counters->calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counters->bytes, bytes, __ATOMIC_RELAXED);
}

void* map(void* where, std::size_t bytes, int protection, int flags, int file, std::int64_t offset) {
    return reinterpret_cast<void*>(syscall(SYS_mmap, where, bytes, protection, flags, file, offset));
}

__attribute__((constructor)) void open_counters() {
    const char* folder = getenv("META500_ALLOCATIONS");
    if (folder == nullptr) return;
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/%ld", folder, static_cast<long>(getpid()));
    if (length < 0 || length >= static_cast<int>(sizeof path)) return;
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (ftruncate(file, sizeof(Counters)) == 0) {
        void* found = map(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (found != MAP_FAILED) {
            counters = static_cast<Counters*>(found);
            *counters = early;
        }
    }
    close(file);
}

}  // namespace

extern "C" {

void* malloc(std::size_t bytes) {
    count(bytes);
    return __libc_malloc(bytes);
}

void* calloc(std::size_t number, std::size_t bytes) {
    count(number * bytes);
    return __libc_calloc(number, bytes);
}

void* realloc(void* old, std::size_t bytes) {
    count(bytes);
    return __libc_realloc(old, bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) {
    count(bytes);
    return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
    count(bytes);
    return __libc_memalign(alignment, bytes);
}

void* valloc(std::size_t bytes) {
    count(bytes);
    return __libc_memalign(static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), bytes);
}

int posix_memalign(void** result, std::size_t alignment, std::size_t bytes) {
    if (alignment % sizeof(void*) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
    count(bytes);
    void* found = __libc_memalign(alignment, bytes);
    if (found == nullptr) return ENOMEM;
    *result = found;
    return 0;
}

void* mmap(void* where, std::size_t bytes, int protection, int flags, int file, off_t offset) {
    if (flags & MAP_ANONYMOUS) {
        __atomic_fetch_add(&counters->maps, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&counters->mapped_bytes, bytes, __ATOMIC_RELAXED);
    }
    return map(where, bytes, protection, flags, file, offset);
}

void* mmap64(void* where, std::size_t bytes, int protection, int flags, int file, off64_t offset) {
    return mmap(where, bytes, protection, flags, file, offset);
}
}
"""


@dataclass(frozen=True)
class Counts:
    """What a process has asked for since it started.

    Attributes:
        calls, bytes: of malloc and its kin; the bytes are those asked for.
        maps, mapped_bytes: of anonymous memory maps.
    """

    calls: int
    bytes: int
    maps: int
    mapped_bytes: int

    def __sub__(self, earlier: Counts) -> Counts:
        return Counts(
            self.calls - earlier.calls,
            self.bytes - earlier.bytes,
            self.maps - earlier.maps,
            self.mapped_bytes - earlier.mapped_bytes,
        )


def counter_library() -> Path:
    """The library that counts, built now or found in the cache.

    Raises:
        UserError: the system has no such C library (it must be glibc on Linux), or there is no C++ compiler.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        raise UserError("allocations can only be counted on Linux with the GNU C library")
    flags = ("-fno-builtin", "-fno-exceptions")
    return compile_text({"allocations.cpp": SOURCE}, flags, base_flags=("-O2", "-std=c++17"), openmp=False)


def counting_environment(folder: Path) -> dict[str, str]:
    """The variables of a process whose allocations are counted in ``folder``.

    Raises:
        UserError: as :func:`counter_library`.
    """
    return {_PRELOAD: str(counter_library()), FOLDER_VARIABLE: str(folder)}


def counts(pid: int) -> Counts:
    """The counters of a process that runs in this process's counting environment.

    Raises:
        UserError: its allocations are not counted.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        raise UserError(f"allocations are not counted: {FOLDER_VARIABLE} is not set")
    try:
        data = Path(folder, str(pid)).read_bytes()
    except OSError as error:
        raise UserError(f"the allocations of process {pid} are not counted: {error.strerror}") from None
    if len(data) != _LAYOUT.size:
        raise UserError(f"the allocations of process {pid} are not counted: its file has {len(data)} bytes")
    return Counts(*_LAYOUT.unpack(data))
