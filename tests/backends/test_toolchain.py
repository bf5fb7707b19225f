"""Libraries compiled and found again, with real compilations of tiny files."""

import ctypes
import json
import os
import platform
import shutil
import subprocess

import pytest

from meta500.backends import compiler, targets, toolchain
from meta500.backends.library_cache import RECORD
from meta500.backends.targets import target
from meta500.backends.toolchain import GENERATED_FLAGS, compile_library, compile_text, load_library
from meta500.errors import UserError

CODE = 'extern "C" int answer() { return VALUE; }\n'
TEXTS = {
    "one.cpp": '#include "shared.h"\nint one() { return ONE; }\n',
    "two.cpp": '#include "shared.h"\nextern "C" int answer() { return one() + 1; }\n',
    "shared.h": "#define ONE 1\nint one();\n",
}
CROSS = "aarch64-linux-gnu-g++"


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.cpp"
    path.write_text(CODE.replace("VALUE", "42"))
    return path


@pytest.fixture
def compiled(monkeypatch):
    """Names of the sources that are compiled, and of the libraries that are linked, as they are."""
    names = []
    run_all = compiler.run_all

    def watch(commands, folder):
        for command in commands:
            names.append(
                os.path.basename(command[command.index("-c") + 1] if "-c" in command else command[-1])
            )
        return run_all(commands, folder)

    monkeypatch.setattr(toolchain, "run_all", watch)
    return names


def answer(path):
    return ctypes.CDLL(os.fspath(path)).answer()


def fake_compiler(tmp_path, name, version, body='exec g++ "$@"'):
    path = tmp_path / name
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n{body}\n')
    path.chmod(0o755)
    return path


def test_builds_once(source, compiled):
    first = compile_library([source])
    assert answer(first) == 42
    assert compiled == ["answer.cpp", "library.so"]
    assert compile_library([source]) == first
    assert len(compiled) == 2


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


@pytest.mark.parametrize(
    "code",
    [
        '#include "value.h"\n',
        "#include <value.h>\n",
        '# if __has_include("value.h")\n# include <value.h>\n# endif\n',
    ],
    ids=["quotes", "brackets", "conditional"],
)
def test_forms_of_include(source, tmp_path, code):
    folder = tmp_path / "include"
    folder.mkdir()
    source.write_text(code + CODE)
    for value in (5, 6):
        (folder / "value.h").write_text(f"#define VALUE {value}\n")
        assert answer(compile_library([source], [f"-I{folder}"])) == value
        (folder / "value.h").write_text(f"#define VALUE {value + 10}\n")
        assert answer(compile_library([source], ["-isystem", str(folder)])) == value + 10


def test_header_that_is_only_asked_for(source, tmp_path):
    source.write_text(
        '#if __has_include("extra.h")\n#define VALUE 1\n#else\n#define VALUE 0\n#endif\n' + CODE
    )
    assert answer(compile_library([source])) == 0
    (tmp_path / "extra.h").touch()
    assert answer(compile_library([source])) == 1


def test_files_in_the_flags_decide(source, tmp_path):
    source.write_text(CODE)
    header = tmp_path / "forced.h"
    for value in (7, 8):
        header.write_text(f"#define VALUE {value}\n")
        assert answer(compile_library([source], ["-include", str(header)])) == value


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


def test_without_openmp_its_pragmas_are_ignored(source):
    source.write_text(
        'extern "C" int answer() {\n    int n = 0;\n'
        "#ifdef _OPENMP\n    n = 100;\n#endif\n"
        "#pragma omp parallel for reduction(+ : n)\n    for (int i = 0; i < 5; ++i) n += 1;\n    return n;\n}\n"
    )
    assert answer(compile_library([source])) == 105
    assert answer(compile_library([source], openmp=False)) == 5


def test_libraries_in_the_flags_are_linked_after_the_objects(tmp_path, source):
    helper = tmp_path / "helper.cpp"
    helper.write_text('extern "C" int helper() { return 11; }\n')
    subprocess.run(["g++", "-fPIC", "-c", helper, "-o", tmp_path / "helper.o"], check=True)
    subprocess.run(["ar", "rcs", tmp_path / "libhelper.a", tmp_path / "helper.o"], check=True)
    source.write_text('extern "C" int helper();\nextern "C" int answer() { return helper(); }\n')
    path = compile_library([source], [f"-L{tmp_path}", "-lhelper", "-Wl,--as-needed"])
    assert answer(path) == 11
    record = json.loads((path.parent / RECORD).read_text())
    assert "-lhelper" in record["linked"]
    for flag in ("-L", "-lhelper", "-Wl,"):  # clang++ warns of them where nothing is linked
        assert flag not in record["compiled"][0]
    assert answer(compile_library([source], [str(tmp_path / "libhelper.a"), "-DX"])) == 11


def test_only_the_changed_unit_is_compiled(tmp_path, compiled):
    names = ["a.cpp", "b.cpp", "c.cpp"]
    files = [tmp_path / name for name in names]
    files[0].write_text('int b(); int c();\nextern "C" int answer() { return b() * c(); }\n')
    files[1].write_text("int b() { return 6; }\n")
    files[2].write_text('#include "c.h"\nint c() { return C; }\n')
    (tmp_path / "c.h").write_text("#define C 7\n")
    assert answer(compile_library(files)) == 42
    assert compiled == [*names, "library.so"]
    compiled.clear()
    files[1].write_text("int b() { return 5; }\n")
    assert answer(compile_library(files)) == 35
    assert compiled == ["b.cpp", "library.so"]
    compiled.clear()
    (tmp_path / "c.h").write_text("#define C 8\n")
    assert answer(compile_library(files)) == 40
    assert compiled == ["c.cpp", "library.so"]
    compiled.clear()
    assert answer(compile_library(files[::-1])) == 40
    assert compiled == ["library.so"]


def test_units_with_one_name_in_two_folders(tmp_path):
    for folder, code in {"x": "int b() { return 3; }\n", "y": "int b();\n" + CODE}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "unit.cpp").write_text(code.replace("VALUE", "b()"))
    assert answer(compile_library([tmp_path / "x/unit.cpp", tmp_path / "y/unit.cpp"])) == 3


def test_units_are_compiled_at_the_same_time(tmp_path, monkeypatch):
    # Each of two compilers waits for the other; one after the other they would both give up.
    here, there = tmp_path / "here", tmp_path / "there"
    body = (
        f'case "$*" in *one.cpp*) touch {here}; other={there};; *two.cpp*) touch {there}; other={here};; '
        '*) exec g++ "$@";; esac\n'
        'for i in $(seq 500); do [ -e $other ] && exec g++ "$@"; sleep 0.02; done\n'
        "echo 'error: alone'; exit 1"
    )
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "waiting", "1", body)))
    monkeypatch.setattr(compiler, "_processors", lambda: 2)
    assert answer(compile_text(TEXTS)) == 2
    for path in (here, there):
        path.unlink()
    monkeypatch.setattr(compiler, "_processors", lambda: 1)
    body = body.replace("seq 500", "seq 5")
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "waiting-2", "1", body)))
    with pytest.raises(UserError, match=r"one\.cpp: does not compile:\n  error: alone"):
        compile_text(TEXTS)


def test_texts_are_kept_beside_the_library(cache, tmp_path, compiled, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(os.listdir(tmp_path))
    path = compile_text(TEXTS)
    assert answer(path) == 2
    assert {name: (path.parent / name).read_text() for name in TEXTS} == TEXTS
    assert sorted(os.listdir(path.parent)) == sorted(["library.so", RECORD, *TEXTS])
    record = json.loads((path.parent / RECORD).read_text())
    assert record["sources"] == ["one.cpp", "two.cpp"]
    assert record["texts"] == {name: len(text) for name, text in TEXTS.items()}
    assert record["target"] == "native"
    assert str(path.parent / "one.cpp") in record["compiled"][0]
    assert set(os.listdir(tmp_path)) - before == {"cache"}
    assert compile_text(dict(TEXTS)) == path
    assert len(compiled) == 3


def test_changes_of_texts(compiled):
    path = compile_text(TEXTS)
    compiled.clear()
    assert answer(compile_text({**TEXTS, "two.cpp": TEXTS["two.cpp"].replace("+ 1", "+ 2")})) == 3
    assert compiled == ["two.cpp", "library.so"]
    compiled.clear()
    assert answer(compile_text({**TEXTS, "shared.h": TEXTS["shared.h"].replace("ONE 1", "ONE 5")})) == 6
    assert compiled == ["one.cpp", "two.cpp", "library.so"]
    compiled.clear()
    assert compile_text({**TEXTS, "notes.h": "// nobody includes this\n"}) != path
    assert compiled == ["library.so"]


def test_texts_include_headers_of_folders(tmp_path):
    texts = {"a.cpp": '#include "value.h"\n' + CODE}
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        assert answer(compile_text(texts, include=[tmp_path])) == value
    texts["value.h"] = "#define VALUE 3\n"
    assert answer(compile_text(texts, include=[tmp_path])) == 3


def test_debug_information_names_the_kept_texts():
    path = compile_text({"a.cpp": CODE.replace("VALUE", "1")}, ["-g"])
    assert os.fsencode(path.parent) in path.read_bytes()
    assert b"/.build-" not in path.read_bytes()


def test_texts_that_are_refused(cache):
    for name in ("../a.cpp", "folder/a.cpp", "a.txt", ""):
        with pytest.raises(UserError, match="needs a plain file name that ends in"):
            compile_text({name: CODE})
    with pytest.raises(UserError, match="at least one source"):
        compile_text({"a.h": ""})
    with pytest.raises(UserError, match=r"a\.cpp: a text cannot #include a file whose name is in a macro"):
        compile_text({"a.cpp": '#define F "b.h"\n#include F\n'})
    assert not cache.exists()


def test_texts_that_do_not_compile_are_kept_for_a_day(cache, tmp_path):
    broken = {"bad.cpp": "int f() {\n    return nonsense;\n}\n", "good.cpp": CODE.replace("VALUE", "1")}
    with pytest.raises(UserError, match=r"bad\.cpp: does not compile:\n") as error:
        compile_text(broken)
    (kept,) = (tmp_path / "cache" / "failed").iterdir()
    assert f"{kept}/bad.cpp:2:12: error: " in str(error.value)
    assert {path.name: path.read_text() for path in kept.iterdir()} == broken
    assert ".build-" not in str(error.value)
    assert list(cache.iterdir()) == []
    os.utime(kept, (1, 1))
    compile_text({"good.cpp": broken["good.cpp"]})
    assert not kept.exists()


def test_flags_of_generated_code_are_other_than_those_of_custom_operators(source):
    text = source.read_text()
    records = [
        json.loads((path.parent / RECORD).read_text())["compiled"][0].split()
        for path in (
            compile_library([source]),
            compile_library([source], base_flags=("-O1",)),
            compile_text({"a.cpp": text}),
            compile_text({"a.cpp": text}, base_flags=("-O1",)),
        )
    ]
    native = list(target().flags)
    assert [words[: words.index("-fopenmp")] for words in records] == [
        ["g++", "-O3", "-std=c++17", *native],
        ["g++", "-O1", *native],
        ["g++", *GENERATED_FLAGS, *native],
        ["g++", "-O1", *native],
    ]
    assert {"-O2", "-fno-math-errno", "-fno-trapping-math"} < set(GENERATED_FLAGS)


VECTOR = (
    "typedef float vector __attribute__((vector_size(64)));\n"
    'extern "C" void multiply_add(vector *a, const vector *b) { *a += *a * *b; }\n'
)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 registers")
def test_targets_decide_the_machine_code():
    found = {}
    for name in ("avx2", "x86-64"):
        path = compile_text({"a.cpp": VECTOR}, target=target(name))
        lines = subprocess.run(
            ["objdump", "-d", "--no-show-raw-insn", path], capture_output=True, text=True, check=True
        ).stdout
        found[name] = {word for word in ("ymm", "zmm", "vfmadd", "mulps") if word in lines}
    assert found == {"avx2": {"ymm", "vfmadd"}, "x86-64": {"mulps"}}


def test_fixed_targets_do_not_depend_on_this_processor(monkeypatch):
    text = {"a.cpp": CODE.replace("VALUE", "1")}
    x86, native = compile_text(text, target=target("x86-64")), compile_text(text)
    monkeypatch.setattr(toolchain, "cpu_model", lambda: "another processor")
    assert compile_text(text, target=target("x86-64")) == x86
    assert compile_text(text) != native
    monkeypatch.setenv("CXXFLAGS", "-mtune=native")
    tuned = compile_text(text, target=target("x86-64"))
    monkeypatch.setattr(toolchain, "cpu_model", lambda: "a third processor")
    assert compile_text(text, target=target("x86-64")) != tuned


def test_code_for_another_processor_is_not_loaded(monkeypatch):
    text = {"a.cpp": CODE.replace("VALUE", "1")}
    path = compile_text(text, target=target("avx2"))
    monkeypatch.setattr(targets, "cpu_flags", lambda: target("avx2").needs)
    assert load_library(path).answer() == 1
    monkeypatch.setattr(targets, "cpu_flags", lambda: target("avx2").needs - {"fma"})
    with pytest.raises(UserError, match=r"target 'avx2' does not run on this machine's processor .*\(SSE2\)"):
        load_library(path)
    (path.parent / RECORD).write_text("{}")
    with pytest.raises(UserError, match="does not run"):
        load_library(path)
    (path.parent / RECORD).unlink()
    with pytest.raises(UserError, match=r"record\.json: is missing or damaged"):
        load_library(path)


def test_what_the_system_does_not_load(source):
    path = compile_library([source])
    path.write_bytes(b"not a library")
    with pytest.raises(UserError, match="cannot be loaded: .*META500_CACHE"):
        load_library(path)


def test_cross_compiler_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    with pytest.raises(
        UserError, match=rf"'{CROSS[:-2]}\+\+' is not installed.*g\+\+-aarch64-linux-gnu.*CXX"
    ):
        compile_text({"a.cpp": CODE}, target=target("aarch64"))
    monkeypatch.setattr(targets.platform, "machine", lambda: "aarch64")
    with pytest.raises(UserError, match=r"'x86_64-linux-gnu-g\+\+' is not installed.*g\+\+-x86-64-linux-gnu"):
        compile_text({"a.cpp": CODE}, target=target("avx2"))
    own = fake_compiler(tmp_path, "aarch64-none-g++-99", "99")
    monkeypatch.setenv("CXX", own.name)
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    assert compiler.compiler(target("aarch64")) == [own.name]


@pytest.mark.skipif(platform.machine() != "x86_64" or shutil.which(CROSS) is None, reason=f"needs {CROSS}")
def test_cross_compilation():
    path = compile_text({"a.cpp": VECTOR}, target=target("aarch64"))
    header = path.read_bytes()[:20]
    assert header[:4] == b"\x7fELF"
    assert int.from_bytes(header[18:20], "little") == 183  # EM_AARCH64
    with pytest.raises(UserError, match="target 'aarch64' does not run on this machine's processor"):
        load_library(path)


def test_source_that_changes_while_it_compiles(source, monkeypatch):
    run_all = compiler.run_all
    edits = iter(["1", "2", "3"])

    def run_and_edit(commands, folder):
        ended = run_all(commands, folder)
        value = next(edits, None) if "-c" in commands[0] else None
        if value is not None and value <= limit:
            source.write_text(CODE.replace("VALUE", value))
        return ended

    monkeypatch.setattr(toolchain, "run_all", run_and_edit)
    limit = "1"
    assert answer(compile_library([source])) == 1
    source.write_text(CODE.replace("VALUE", "50"))
    edits, limit = iter(["51", "52", "53"]), "99"
    with pytest.raises(UserError, match="changes while it is compiled"):
        compile_library([source])
    monkeypatch.undo()
