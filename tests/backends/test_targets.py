"""Targets: what is known about this processor and about the fixed ones, against the compiler's own words."""

import platform
import subprocess

import pytest

from meta500.backends import targets
from meta500.backends.compiler import compiler
from meta500.backends.targets import NAMES, can_run, native_target, target
from meta500.errors import UserError

AVX512 = {"avx512f", "avx512vl", "avx512dq", "avx512bw"}
HASWELL = {
    *("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    *("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"),
}
X86 = platform.machine() in ("x86_64", "AMD64")


def processor(monkeypatch, machine, flags):
    monkeypatch.setattr(targets.platform, "machine", lambda: machine)
    monkeypatch.setattr(targets, "cpu_flags", lambda: frozenset(flags))


@pytest.mark.parametrize(
    ("machine", "flags", "vector_bytes", "registers", "fma"),
    [
        ("x86_64", HASWELL | AVX512, 64, 32, True),
        ("AMD64", HASWELL | AVX512, 64, 32, True),
        ("x86_64", HASWELL | AVX512 - {"avx512bw"}, 32, 16, True),
        ("x86_64", HASWELL, 32, 16, True),
        ("x86_64", HASWELL - {"fma"}, 16, 16, False),
        ("x86_64", {"sse2"}, 16, 16, False),
        ("aarch64", {"asimd"}, 16, 32, True),
        ("arm64", {"asimd"}, 16, 32, True),
        ("riscv64", set(), 16, 16, False),
    ],
)
def test_native_target_of_a_processor(monkeypatch, machine, flags, vector_bytes, registers, fma):
    processor(monkeypatch, machine, flags)
    found = native_target()
    assert (found.vector_bytes, found.registers, found.fma) == (vector_bytes, registers, fma)
    assert can_run(found)
    assert target("native") == target() == found


def macros(flags):
    command = [*compiler(), *flags, "-dM", "-E", "-x", "c++", "/dev/null"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.skipif(not X86, reason="the macros are those of x86")
@pytest.mark.parametrize("name", ["native", "avx2", "x86-64"])
def test_the_compiler_agrees(monkeypatch, name):
    monkeypatch.delenv("CXX", raising=False)
    chosen = target(name)
    defined = macros(chosen.flags)
    names = {"avx512": {"__AVX512F__", "__AVX512VL__", "__AVX512DQ__", "__AVX512BW__"}, "avx2": {"__AVX2__"}}
    widest = 64 if names["avx512"] <= defined else 32 if names["avx2"] <= defined else 16
    assert chosen.vector_bytes == widest
    assert chosen.fma == ("__FMA__" in defined)
    assert chosen.registers == (32 if widest == 64 else 16)


@pytest.mark.parametrize(
    ("machine", "flags", "runnable"),
    [
        ("x86_64", HASWELL | AVX512, {"avx2", "x86-64"}),
        ("x86_64", HASWELL, {"avx2", "x86-64"}),
        ("x86_64", HASWELL - {"movbe"}, {"x86-64"}),
        ("x86_64", set(), {"x86-64"}),
        ("aarch64", {"asimd"}, {"aarch64"}),
        ("riscv64", set(), set()),
    ],
)
def test_what_a_processor_can_run(monkeypatch, machine, flags, runnable):
    wide = native = target("native")
    processor(monkeypatch, machine, flags)
    assert {name for name in NAMES if name != "native" and can_run(target(name))} == runnable
    assert can_run(target("native"))
    if native.needs - flags or targets.this_machine() != native.machine:
        assert not can_run(wide)  # native of another machine


def test_unknown_target_lists_the_names():
    with pytest.raises(UserError, match=r"unknown target 'avx3'.*'avx2'.*aarch64, avx2, native, x86-64"):
        target("avx3")


def test_preferred_width(monkeypatch):
    processor(monkeypatch, "x86_64", HASWELL | AVX512)
    assert target("native").flags == ("-march=native",)
    assert target("native", 64).flags == ("-march=native", "-mprefer-vector-width=512")
    assert target("avx2", 32).flags == ("-march=x86-64-v3", "-mprefer-vector-width=256")
    with pytest.raises(UserError, match="'avx2' cannot prefer vectors of 64 bytes: .* of 16, 32 bytes"):
        target("avx2", 64)
    with pytest.raises(UserError, match="'aarch64' cannot prefer .* is no x86"):
        target("aarch64", 16)


def test_cpuinfo_is_read_up_to_the_first_blank_line(monkeypatch, tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel name\t: One\ncpu MHz\t\t: 2000.1\nflags\t\t: fma avx2\n\n"
        "processor\t: 1\nmodel name\t: Two\nflags\t\t: sse2\n"
    )
    monkeypatch.setattr(targets, "_CPUINFO", path)
    assert targets.cpu_flags.__wrapped__() == {"fma", "avx2"}
    text = targets.cpu_model.__wrapped__()
    assert "One" in text
    assert "Two" not in text
    assert "MHz" not in text
    path.unlink()
    assert targets.cpu_model.__wrapped__().startswith(platform.machine())
