"""The compiler and its cache, with real compilations of tiny files."""

import ctypes
import os
import shutil
import subprocess
import sys
import time

import pytest

from meta500.backends import toolchain
from meta500.backends.toolchain import LIBRARY, RECORD, compile_library
from meta500.errors import UserError

CODE = 'extern "C" int answer() { return VALUE; }\n'


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("META500_CACHE", str(tmp_path / "cache"))
    for name in ("CXX", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "libraries"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.cpp"
    path.write_text(CODE.replace("VALUE", "42"))
    return path


def answer(path):
    return ctypes.CDLL(os.fspath(path)).answer()


def fake_compiler(tmp_path, name, version, body='exec g++ "$@"'):
    path = tmp_path / name
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n{body}\n')
    path.chmod(0o755)
    return path


def test_builds_once(source, monkeypatch):
    first = compile_library([source])
    assert answer(first) == 42
    monkeypatch.setattr(toolchain, "_build", lambda *_: pytest.fail("compiled again"))
    assert compile_library([source]) == first


def test_source_flags_and_header_decide(source, tmp_path):
    plain = compile_library([source])
    flagged = compile_library([source], ["-DUNUSED"])
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    source.write_text('#include "value.h"\n' + CODE)
    one = compile_library([source])
    (tmp_path / "value.h").write_text("#define VALUE 2\n")
    two = compile_library([source])
    assert len({plain, flagged, one, two}) == 4
    assert [answer(path) for path in (plain, flagged, one, two)] == [42, 42, 1, 2]


def test_header_of_an_include_folder_and_of_a_macro_decide(source, tmp_path):
    folder = tmp_path / "include"
    folder.mkdir()
    (folder / "value.h").write_text("#define VALUE 3\n")
    source.write_text('#define FILE "value.h"\n#include FILE\n' + CODE)
    three = compile_library([source], include=[folder])
    (folder / "value.h").write_text("#define VALUE 4\n")
    assert answer(three) == 3
    assert answer(compile_library([source], include=[folder])) == 4


def test_compiler_its_version_and_cpu_decide(source, tmp_path, monkeypatch):
    keys = [compile_library([source])]
    wrapper = fake_compiler(tmp_path, "c++-wrapper", "version 1")
    monkeypatch.setenv("CXX", str(wrapper))
    keys.append(compile_library([source]))
    fake_compiler(tmp_path, "c++-wrapper", "version 2")
    os.utime(wrapper, (1, 1))
    keys.append(compile_library([source]))
    monkeypatch.setattr(toolchain, "cpu_model", lambda: "another processor")
    keys.append(compile_library([source]))
    monkeypatch.setenv("CXX", f"{wrapper} -O1")
    keys.append(compile_library([source]))
    assert len(set(keys)) == 5


def test_cxxflags_and_openmp(source, monkeypatch):
    source.write_text('#include <omp.h>\nextern "C" int answer() { return omp_get_max_threads() > 0; }\n')
    assert answer(compile_library([source])) == 1
    source.write_text(CODE)
    monkeypatch.setenv("CXXFLAGS", "-DVALUE=7")
    seven = compile_library([source])
    assert answer(seven) == 7
    monkeypatch.setenv("CXXFLAGS", "-DVALUE=8")
    assert answer(compile_library([source])) == 8
    assert answer(compile_library([source], ["-UVALUE", "-DVALUE=9"])) == 9


def test_broken_source_shows_the_compilers_words(source, cache):
    source.write_text('extern "C" int answer() {\n    return nonsense;\n}\n')
    with pytest.raises(UserError, match=r"answer\.cpp:2:\d+: error: .*nonsense(.|\n)*command: g\+\+ "):
        compile_library([source])
    assert list(cache.iterdir()) == []


def test_undefined_functions_are_refused(source):
    source.write_text('int elsewhere();\nextern "C" int answer() { return elsewhere(); }\n')
    with pytest.raises(UserError, match="undefined reference to `elsewhere"):
        compile_library([source])


def test_missing_compiler_and_source(source, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"'no-such-compiler' is not installed.*CXX"):
        compile_library([source])
    monkeypatch.delenv("CXX")
    with pytest.raises(UserError, match="gone.cpp: there is no such C"):
        compile_library([source.with_name("gone.cpp")])
    with pytest.raises(UserError, match="at least one source"):
        compile_library([])
    monkeypatch.setenv("CXXFLAGS", "-D'open")
    with pytest.raises(UserError, match="CXXFLAGS is no command line"):
        compile_library([source])
    monkeypatch.delenv("CXXFLAGS")
    monkeypatch.setenv("PATH", str(source.parent))
    with pytest.raises(UserError, match=r"'g\+\+' is not installed; install g\+\+"):
        compile_library([source])


def test_compiler_that_crashes(source, tmp_path, monkeypatch, cache):
    for body in ("kill -SEGV $$", "exit 0"):
        monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "crashing", "1", body)))
        with pytest.raises(UserError, match="does not compile"):
            compile_library([source])
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / LIBRARY).write_bytes(b"not a library"),
        lambda folder: (folder / LIBRARY).unlink(),
        lambda folder: (folder / RECORD).write_text("{"),
        lambda folder: (folder / RECORD).write_text("[]"),
        lambda folder: (shutil.rmtree(folder), folder.write_text("a file in its place")),
    ],
    ids=["garbage", "no library", "bad record", "another record", "no folder"],
)
def test_damaged_entries_are_built_again(source, damage):
    folder = compile_library([source]).parent
    damage(folder)
    path = compile_library([source])
    assert path.parent == folder
    done = subprocess.run(
        [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "42"


def test_truncated_library_is_built_again(source):
    path = compile_library([source])
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert compile_library([source]).read_bytes()[:4] == b"\x7fELF"
    assert len(path.read_bytes()) == len(data)


def test_processes_that_build_the_same_at_once(source, cache):
    program = (
        "import ctypes, sys, time\n"
        "from meta500.backends.toolchain import compile_library\n"
        "time.sleep(max(0.0, float(sys.argv[2]) - time.time()))\n"
        "print(ctypes.CDLL(str(compile_library([sys.argv[1]]))).answer())\n"
    )
    start = str(time.time() + 1.0)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(source), start], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert [worker.communicate()[0].strip() for worker in workers] == ["42"] * 4
    assert len(list(cache.iterdir())) == 1


def test_source_that_changes_while_it_compiles(source, monkeypatch):
    build = toolchain._build
    edits = iter(["1", "2", "3"])

    def edit_and_build(*args):
        build(*args)
        value = next(edits, None)
        if value is not None and value <= limit:
            source.write_text(CODE.replace("VALUE", value))

    monkeypatch.setattr(toolchain, "_build", edit_and_build)
    limit = "1"
    assert answer(compile_library([source])) == 1
    source.write_text(CODE.replace("VALUE", "50"))
    edits, limit = iter(["51", "52", "53"]), "99"
    with pytest.raises(UserError, match="changes while it is compiled"):
        compile_library([source])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_cache_that_is_read_only(source, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written.*META500_CACHE"):
        compile_library([source])


def test_cache_that_is_a_file(source, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match="cannot be written.*META500_CACHE"):
        compile_library([source])


def test_new_folders_of_the_cache_belong_to_the_user_alone(source, cache):
    place = compile_library([source]).parent
    for folder in (cache.parent, cache, place):
        assert folder.stat().st_mode & 0o077 == 0, folder


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("META500_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.cache_folder() == tmp_path / "meta500"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(toolchain.cache_folder()) == "/home/somebody/.cache/meta500"
