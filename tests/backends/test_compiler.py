"""What is known about a compiler: version, OpenMP, options, complaints; with real and with fake compilers."""

import os
import subprocess
import sys

import pytest

from meta500.backends import compiler
from meta500.backends.compiler import Ended, compiler_version, complaint, has_openmp, understood
from meta500.backends.toolchain import compile_library
from meta500.errors import UserError

CODE = 'extern "C" int answer() { return 42; }\n'


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.cpp"
    path.write_text(CODE)
    return path


def answer(path):
    """What the library answers in a process of its own: one that was replaced may still be loaded in this one."""
    program = f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_complaints_show_the_first_errors():
    output = "a.cpp: In function 'f':\n" + "".join(f"a.cpp:{n}: error: number {n}\n" for n in range(1, 8))
    text = complaint("a.cpp: does not compile", Ended(["g++", "-c", "a b.cpp"], 1, output))
    assert text.splitlines() == [
        "a.cpp: does not compile:",
        *(f"  a.cpp:{n}: error: number {n}" for n in range(1, 6)),
        "  and 2 more errors",
        "command: g++ -c 'a b.cpp'",
    ]
    for line in (
        "ld: a.o: multiple definition of `f'",
        "ld: cannot find -lno",
        "a.o: undefined reference to `g'",
    ):
        output = f"ld: warning: first\n{line}\ncollect2: error: ld returned 1 exit status\n"
        assert complaint("x", Ended(["g++"], 1, output)).splitlines() == ["x:", f"  {line}", "command: g++"]


REJECTS = (
    'case "$*" in *-fopenmp*) echo "error: unsupported option -fopenmp"; exit 1;; *) exec g++ "$@";; esac'
)
LACKS_HEADER = 'case "$*" in *-fopenmp*) exec g++ -nostdinc "$@";; *) exec g++ "$@";; esac'
LACKS_LIBRARY = 'case "$*" in *" -c "*) exec g++ "$@";; *-fopenmp*) echo "ld: cannot find -lgomp"; exit 1;; *) exec g++ "$@";; esac'


def test_compiler_with_openmp_is_asked_once(fake, tmp_path, monkeypatch):
    fake(f'echo x >> {tmp_path}/calls; exec g++ "$@"')
    assert has_openmp()
    asked = (tmp_path / "calls").read_text()
    assert has_openmp()
    monkeypatch.setattr(compiler, "_facts", {})  # as in another process
    assert has_openmp()
    assert (tmp_path / "calls").read_text() == asked


@pytest.mark.parametrize("body", [REJECTS, LACKS_HEADER, LACKS_LIBRARY], ids=["rejects", "header", "library"])
def test_compilers_without_openmp(source, fake, body):
    fake(body)
    assert not has_openmp()
    assert answer(compile_library([source], openmp=False)) == 42
    source.write_text("#include <omp.h>\n" + CODE)
    with pytest.raises(UserError, match=r"fake' does not compile OpenMP .*libomp-dev.*CXX.*threads=1"):
        compile_library([source])
    fake('exec g++ "$@"')  # now it is installed
    assert has_openmp()
    assert answer(compile_library([source])) == 42


def test_openmp_that_comes_and_goes_is_noticed(source, fake, tmp_path, monkeypatch):
    fake(f'[ -e {tmp_path}/installed ] && exec g++ "$@"\n{REJECTS}')
    assert not has_openmp()
    (tmp_path / "installed").touch()
    assert has_openmp(again=True)
    assert has_openmp()
    (tmp_path / "installed").unlink()
    with pytest.raises(UserError, match="does not compile OpenMP"):
        compile_library([source])
    for known in (compiler._facts, {}):
        monkeypatch.setattr(compiler, "_facts", known)
        assert not has_openmp()


def test_a_compiler_that_compiles_nothing_is_not_one_without_openmp(fake):
    fake("exit 1")
    with pytest.raises(UserError, match="does not compile an empty program"):
        has_openmp()
    with pytest.raises(UserError, match="does not compile an empty program"):
        understood(["-Wno-psabi"])


def test_flags_that_are_understood(fake, tmp_path, monkeypatch):
    wanted = ["-Wno-psabi", "-Wno-such-warning", "-fno-math-errno", "-fno-such-option"]
    assert understood(wanted) == ("-Wno-psabi", "-fno-math-errno")
    # clang++ warns of what it does not know, and fails only with -Werror
    clang = 'case "$*" in *-Werror*-Wpsabi*) echo "error: unknown warning option"; exit 1;; *) exec g++ "$@";; esac'
    fake(f"echo x >> {tmp_path}/calls\n{clang}")
    assert understood(wanted) == ("-fno-math-errno",)
    asked = (tmp_path / "calls").read_text()
    monkeypatch.setattr(compiler, "_facts", {})
    assert understood(wanted) == ("-fno-math-errno",)
    assert (tmp_path / "calls").read_text() == asked


def test_version_is_asked_once_per_compiler(fake, tmp_path, monkeypatch):
    path = fake("exit 1")
    calls = tmp_path / "calls"
    path.write_text(f"#!/bin/sh\necho x >> {calls}\necho version 1\n")
    assert compiler_version([str(path)]) == "version 1\n"
    monkeypatch.setattr(compiler, "_facts", {})
    assert compiler_version([str(path)]) == "version 1\n"
    assert calls.read_text() == "x\n"
    os.utime(path, (1, 1))
    compiler_version([str(path)])
    assert calls.read_text() == "x\nx\n"
    path.write_text(f"#!/bin/sh\necho x >> {calls}\necho version 22\n")
    os.utime(path, (1, 1))
    assert compiler_version([str(path)]) == "version 22\n"
    monkeypatch.setattr(compiler, "_facts", {})
    for fact in (tmp_path / "cache" / "compilers").iterdir():
        fact.write_text("damaged")
    assert compiler_version([str(path)]) == "version 22\n"
    monkeypatch.setattr(compiler, "_facts", {})
    for fact in (tmp_path / "cache" / "compilers").iterdir():
        os.utime(fact, (1, 1))  # more than a day ago
    path.write_text(f"#!/bin/sh\necho x >> {calls}\necho version 33\n")
    os.utime(path, (1, 1))
    assert compiler_version([str(path)]) == "version 33\n"
