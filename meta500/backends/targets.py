"""The processors that C++ code can be compiled for: their compiler flags and their vector registers.

``native`` is the processor of this machine; ``avx2``, ``x86-64`` and ``aarch64`` are fixed, and give the same
machine code wherever they are compiled. All flags are common to g++ and clang++.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from meta500.errors import UserError, choose

_CPUINFO = Path("/proc/cpuinfo")
# Lines of /proc/cpuinfo that tell processors apart; the others (frequency) change from moment to moment.
_IDENTITY = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU variant", "CPU part", "CPU revision", "Features"),
)
_SAME_MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}  # names of macOS and the BSDs

# Instruction sets as /proc/cpuinfo names them.
_AVX512 = frozenset({"avx512f", "avx512vl", "avx512dq", "avx512bw"})
_AVX2 = frozenset({"avx2", "fma"})
_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"})


@dataclass(frozen=True)
class Target:
    """A kind of processor.

    Attributes:
        name: as in :func:`target`.
        machine: as in ``platform.machine()`` on Linux.
        flags: for the compiler.
        vector_bytes: size of the widest vector register.
        registers: number of vector registers.
        fma: whether it has fused multiply-add.
        description: for people.
        needs: flags of /proc/cpuinfo without which a processor does not run its code.
    """

    name: str
    machine: str
    flags: tuple[str, ...]
    vector_bytes: int
    registers: int
    fma: bool
    description: str
    needs: frozenset[str] = field(default=frozenset(), repr=False)


_FIXED = {
    "avx2": Target(
        "avx2", "x86_64", ("-march=x86-64-v3",), 32, 16, True, "x86-64 with AVX2 and FMA (x86-64-v3)", _V3
    ),
    "x86-64": Target("x86-64", "x86_64", ("-march=x86-64",), 16, 16, False, "any x86-64 (SSE2)"),
    "aarch64": Target(
        "aarch64", "aarch64", ("-march=armv8-a",), 16, 32, True, "64-bit Arm (Neon)", frozenset({"asimd"})
    ),
}
NAMES = ("native", *_FIXED)
# Without a -march flag: processors that nothing is known about here.
_UNKNOWN = Target("native", "", (), 16, 16, False, "the compiler's default")


def target(name: str = "native", prefer_vector_bytes: int | None = None) -> Target:
    """The target called ``name``.

    Args:
        name: one of :data:`NAMES`.
        prefer_vector_bytes: 16, 32 or 64: the width to which x86 compilers vectorise loops
            (``-mprefer-vector-width``; they often take 32 where 64 is there). clang++ also splits wider
            vector types into this width.

    Raises:
        UserError: there is no such target, or it has no such vectors.
    """
    found = native_target() if choose("target", name, NAMES) == "native" else _FIXED[name]
    if prefer_vector_bytes is None:
        return found
    widths = [width for width in (16, 32, 64) if width <= found.vector_bytes]
    if found.machine != "x86_64" or prefer_vector_bytes not in widths:
        known = (
            f"has vectors of {', '.join(map(str, widths))} bytes"
            if found.machine == "x86_64"
            else "is no x86"
        )
        raise UserError(
            f"target '{name}' cannot prefer vectors of {prefer_vector_bytes} bytes: "
            f"{found.description} {known}"
        )
    return replace(found, flags=(*found.flags, f"-mprefer-vector-width={8 * prefer_vector_bytes}"))


def native_target() -> Target:
    """The target of this machine's processor, by its instruction sets in /proc/cpuinfo."""
    return _native(this_machine(), cpu_flags())


def can_run(target: Target) -> bool:
    """Whether this machine's processor runs what is compiled for ``target``.

    Where the instruction sets are unknown (no /proc/cpuinfo) only targets that need none can run.
    """
    return runs(target.machine, target.needs)


def runs(machine: str, needs: Collection[str]) -> bool:
    """Whether this machine is a ``machine`` whose processor has the flags ``needs``."""
    return machine == this_machine() and cpu_flags().issuperset(needs)


def this_machine() -> str:
    """The architecture of this machine under Linux's name: "x86_64", "aarch64", ..."""
    name = platform.machine()
    return _SAME_MACHINE.get(name.lower(), name)


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Names of the instruction sets of this processor in /proc/cpuinfo; empty where there is no such file."""
    processor = dict(_processor())
    flags = frozenset((processor.get("flags") or processor.get("Features") or "").split())
    # Every 64-bit Arm processor of a desktop system has Neon.
    return flags or frozenset({"asimd"} if this_machine() == "aarch64" else ())


@functools.cache
def cpu_model() -> str:
    """Name and instruction sets of the processor, which decide what the flags of ``native`` mean."""
    lines = [(name, value) for name, value in _processor() if name in _IDENTITY]
    if not lines:
        return f"{platform.machine()} {platform.processor()}"
    return platform.machine() + "".join(f"\n{name}:{value}" for name, value in lines)


def _native(machine: str, flags: Collection[str]) -> Target:
    """The native target of a ``machine`` whose processor has ``flags``."""
    if machine == "x86_64":
        if set(flags) >= _AVX512 | _AVX2:
            needs, vector_bytes, registers, text = _AVX512 | _AVX2, 64, 32, "AVX-512"
        elif set(flags) >= _AVX2:
            needs, vector_bytes, registers, text = _AVX2, 32, 16, "AVX2"
        else:
            needs, vector_bytes, registers, text = frozenset(), 16, 16, "SSE2"
        fma = "fma" in needs
        text = f"this x86-64 ({text})"
        return Target("native", machine, ("-march=native",), vector_bytes, registers, fma, text, needs)
    if machine == "aarch64":
        needs = frozenset({"asimd"})
        return Target("native", machine, ("-mcpu=native",), 16, 32, True, "this 64-bit Arm (Neon)", needs)
    return replace(_UNKNOWN, machine=machine)


def _processor() -> list[tuple[str, str]]:
    """Lines of the first processor in /proc/cpuinfo, as pairs of name and value."""
    found: list[tuple[str, str]] = []
    try:
        with _CPUINFO.open() as lines:  # only as far as needed: with many processors the file is slow
            for line in lines:
                name, _, value = line.partition(":")
                if not line.strip() and found:
                    break
                found.append((name.strip(), value.strip()))
    except OSError:
        return []
    return found
