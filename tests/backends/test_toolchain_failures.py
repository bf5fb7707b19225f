"""Compilers that are missing, broken or killed, and caches that are damaged, full or not writable."""

import ctypes
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from meta500.backends import compiler, library_cache, toolchain
from meta500.backends.compiler import has_openmp
from meta500.backends.library_cache import LIBRARY, RECORD
from meta500.backends.toolchain import compile_library, compile_text
from meta500.errors import UserError

CODE = 'extern "C" int answer() { return 42; }\n'
TEXTS = {
    "a.cpp": "int a() { return 41; }\n",
    "b.cpp": 'int a();\nextern "C" int answer() { return a() + 1; }\n',
}


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.cpp"
    path.write_text(CODE)
    return path


@pytest.fixture
def unprivileged(monkeypatch):
    """A folder for the cache, in a process that may not write everywhere."""
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="meta500-cache-"))
    monkeypatch.setenv("META500_CACHE", str(folder / "cache"))
    if root:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o700)
    if root:
        os.seteuid(0)
    shutil.rmtree(folder)


def answer(path):
    """What the library answers in a process of its own: one that was replaced may still be loaded in this one."""
    program = f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


# The compiler.


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


def test_broken_source_shows_the_compilers_words(source, cache):
    source.write_text('extern "C" int answer() {\n    return nonsense;\n}\n')
    with pytest.raises(UserError, match=r"answer\.cpp:2:\d+: error: .*nonsense(.|\n)*command: g\+\+ "):
        compile_library([source])
    assert list(cache.iterdir()) == []


def test_undefined_functions_are_refused(source):
    source.write_text('int elsewhere();\nextern "C" int answer() { return elsewhere(); }\n')
    with pytest.raises(UserError, match="does not link:(.|\n)*undefined reference to `elsewhere"):
        compile_library([source])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "exit 0",
            "does not compile; the compiler ends well but writes nothing:\n  the compiler says nothing",
        ),
        ("exit 1", "does not compile:\n  the compiler says nothing"),
        ('for last; do :; done; : > "$last"; exit 0', "the compiler ends well but writes nothing"),
        ("kill -SEGV $$", r"does not compile \(the compiler was ended by signal SIGSEGV\):"),
        ("kill -KILL $$", r"ended by signal SIGKILL\) \(is there enough memory\?\):"),
        ("sh -c 'kill -ABRT $$'; exit $?", "ended by signal SIGABRT"),
        (
            'case "$*" in *-shared*) exit 3;; *) exec g++ "$@";; esac',
            "does not link:\n  the compiler says nothing",
        ),
        ('case "$*" in *-shared*) kill -SEGV $$;; *) exec g++ "$@";; esac', r"does not link \(.*SIGSEGV"),
        (
            'case "$*" in *-shared*) exit 0;; *) exec g++ "$@";; esac',
            "does not link; the compiler ends well but",
        ),
        (
            'for last; do :; done; case "$*" in *-shared*) exec g++ "$@";; *) echo junk > "$last";; esac',
            "does not link",
        ),
    ],
)
def test_broken_compilers(source, fake, cache, body, message):
    fake(body)
    with pytest.raises(UserError, match=message):
        compile_library([source])
    assert list(cache.iterdir()) == []


def test_compilers_that_do_not_tell_their_version(source, fake, tmp_path, monkeypatch):
    fake('exec g++ "$@"').write_text("#!/bin/sh\necho 'no licence'; exit 1\n")
    with pytest.raises(UserError, match=r"fake' does not run:\n  no licence"):
        compile_library([source])
    text = tmp_path / "text"
    text.write_text("no program\n")
    text.chmod(0o755)
    monkeypatch.setenv("CXX", str(text))
    with pytest.raises(UserError, match=r"text' does not run: Exec format error"):
        compile_library([source])


def test_the_first_failure_ends_the_others(fake, tmp_path, monkeypatch):
    fake(
        f'case "$*" in *a.cpp*) while [ ! -s {tmp_path}/pid ]; do sleep 0.01; done; '
        f'echo "error: no"; exit 1;; *) echo $$ > {tmp_path}/pid; sleep 60;; esac'
    )
    monkeypatch.setattr(compiler, "_processors", lambda: 2)
    start = time.monotonic()
    with pytest.raises(UserError, match=r"a\.cpp: does not compile:\n  error: no"):
        compile_text(TEXTS, openmp=False)
    assert time.monotonic() - start < 30
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize("shown", ["No space left on device", "Disk quota exceeded"])
def test_full_disk_under_the_compiler(source, fake, shown):
    fake(f"echo '/tmp/ccX.s: error writing: {shown}' >&2; exit 1")
    with pytest.raises(
        UserError, match=rf"disk of the cache folder .*cache is full \(.*{shown}\).*META500_CACHE"
    ):
        compile_library([source])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("name", ["write_record", "store_object"])
def test_full_disk_under_the_cache(source, monkeypatch, cache, code, name):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(toolchain, name, fail)
    expected = "cannot be written" if code == errno.EIO else "is full"
    with pytest.raises(UserError, match=f"{expected}.*META500_CACHE"):
        compile_library([source])
    assert list(cache.iterdir()) == []
    monkeypatch.undo()


# The cache.


def test_cache_that_is_read_only(source, unprivileged):
    source = unprivileged / "answer.cpp"
    source.write_text(CODE)
    (unprivileged / "cache").mkdir(mode=0o500)
    with pytest.raises(UserError, match="cannot be written.*Permission denied.*META500_CACHE"):
        compile_library([source])


def test_library_in_a_cache_that_is_read_only(unprivileged, monkeypatch):
    path = compile_text(TEXTS)
    for folder in [unprivileged / "cache", *(unprivileged / "cache").rglob("*")]:
        if folder.is_dir():
            folder.chmod(0o500)
    for known in (compiler._facts, {}):
        monkeypatch.setattr(compiler, "_facts", known)
        assert compile_text(TEXTS) == path
        assert ctypes.CDLL(str(path)).answer() == 42
    with pytest.raises(UserError, match="cannot be written.*META500_CACHE"):
        compile_text({**TEXTS, "c.cpp": ""})
    assert has_openmp()  # is asked, and not kept
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="cannot be written.*META500_CACHE"):
        compile_text(TEXTS)


def test_cache_that_is_a_file(source, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match="cannot be written.*META500_CACHE"):
        compile_library([source])


def test_new_folders_of_the_cache_belong_to_the_user_alone(source, cache):
    compile_library([source])
    folders = [cache.parent, *(path for path in cache.parent.rglob("*") if path.is_dir())]
    assert len(folders) >= 6
    for folder in folders:
        assert folder.stat().st_mode & 0o077 == 0, folder


DAMAGES = {
    "garbage": lambda folder: (folder / LIBRARY).write_bytes(b"not a library"),
    "truncated": lambda folder: os.truncate(folder / LIBRARY, 1000),
    "empty": lambda folder: os.truncate(folder / LIBRARY, 0),
    "no library": lambda folder: (folder / LIBRARY).unlink(),
    "bad record": lambda folder: (folder / RECORD).write_text("{"),
    "another record": lambda folder: (folder / RECORD).write_text("[]"),
    "record of an older form": lambda folder: (folder / RECORD).write_text('{"sha256": ""}'),
    "record with a list": lambda folder: (folder / RECORD).write_text('{"sha256": "", "texts": []}'),
    "no record": lambda folder: (folder / RECORD).unlink(),
    "no text": lambda folder: (folder / "b.cpp").unlink(),
    "truncated text": lambda folder: os.truncate(folder / "b.cpp", 3),
    "no folder": lambda folder: (shutil.rmtree(folder), folder.write_text("a file in its place")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_entries_are_built_again(cache, damage):
    path = compile_text(TEXTS)
    whole = path.read_bytes()
    damage(path.parent)
    assert compile_text(TEXTS) == path
    assert path.read_bytes() == whole
    assert json.loads((path.parent / RECORD).read_text())["sources"] == ["a.cpp", "b.cpp"]
    assert [(path.parent / name).read_text() for name in TEXTS] == list(TEXTS.values())
    assert [entry.name for entry in cache.iterdir()] == [path.parent.name]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, 500),
        lambda path: os.truncate(path, 0),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
    ],
)
def test_damaged_objects_are_compiled_again(cache, damage):
    path = compile_text(TEXTS)
    whole = path.read_bytes()
    shutil.rmtree(path.parent)
    objects = list((cache.parent / "objects").iterdir())
    assert len(objects) == 2
    good = [item.read_bytes() for item in objects]
    for item in objects:
        damage(item)
    assert compile_text(TEXTS).read_bytes() == whole
    assert [item.read_bytes() for item in objects] == good


WORKER = """
import ctypes, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started the tests in its background
from meta500.backends.toolchain import compile_library, compile_text
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
if sys.argv[1] == "texts":
    path = compile_text({"a.cpp": "int a() { return 41; }", "b.cpp": 'int a(); extern "C" int answer() { return a() + 1; }'})
else:
    path = compile_library([sys.argv[1]])
print(ctypes.CDLL(str(path)).answer())
"""


def workers(count, what, delay=1.0):
    start = str(time.time() + delay)
    command = [sys.executable, "-c", WORKER, str(what), start]
    return [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_processes_that_build_the_same_at_once(source, cache, fake, tmp_path, count, locks):
    calls = tmp_path / "calls"
    fake(f'echo x >> {calls}; exec g++ "$@"')
    if not locks:  # a file system without them: no lock can be made
        cache.parent.mkdir()
        (cache.parent / "locks").write_text("")
    what = "texts" if locks else source
    running = workers(count, what)
    assert [worker.communicate()[0].strip() for worker in running] == ["42"] * count
    assert len(list(cache.iterdir())) == 1
    if locks:
        assert calls.read_text().split() == ["x"] * 3  # two units and a link, once


def test_damaged_entry_that_processes_repair_at_once(source, cache):
    path = compile_library([source])
    os.truncate(path, 100)
    assert [worker.communicate()[0].strip() for worker in workers(4, source)] == ["42"] * 4
    assert [entry.name for entry in cache.iterdir()] == [path.parent.name]


def wait_for(path, seconds=60):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)


@pytest.mark.parametrize("step", ["-c", "-shared"], ids=["compiling", "linking"])
def test_process_that_is_killed_while_it_builds(source, cache, fake, tmp_path, step):
    reached = tmp_path / "reached"
    # Writes half of its output and hangs, once; its process group is that of the test's worker no more.
    path = fake(
        f'for last; do :; done\ncase "$*" in *" {step} "*) if [ ! -e {reached} ]; then echo half > "$last"; '
        f'echo $$ > {reached}.tmp; mv {reached}.tmp {reached}; exec sleep 60; fi;; esac\nexec g++ "$@"'
    )
    (worker,) = workers(1, source, delay=0)
    wait_for(reached)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.communicate()
    os.kill(int(reached.read_text()), signal.SIGKILL)
    (left,) = cache.iterdir()
    assert left.name.startswith(".build-")
    assert path.exists()
    library = compile_library([source])
    assert answer(library) == 42
    assert left.exists()  # it could still be at work
    os.utime(left, (time.time() - library_cache.STALE_SECONDS - 10,) * 2)
    source.write_text(CODE + "// another\n")
    compile_library([source])
    assert not left.exists()


def test_interrupt_ends_the_compiler(source, fake, tmp_path, cache):
    started = tmp_path / "started"
    fake(f'case "$*" in *" -c "*) echo $$ > {started}.tmp; mv {started}.tmp {started}; sleep 60;; esac')
    (worker,) = workers(1, source, delay=0)
    wait_for(started)
    time.sleep(0.3)  # until the worker, too, is through with starting it
    worker.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in worker.communicate(timeout=30)[1]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
    assert list(cache.iterdir()) == []


def test_lock_is_released_by_a_process_that_is_killed(source, cache, fake, tmp_path):
    reached = tmp_path / "reached"
    fake(
        f'case "$*" in *" -c "*) [ -e {reached} ] || {{ echo $$ > {reached}; exec sleep 60; }};; esac\nexec g++ "$@"'
    )
    (first,) = workers(1, source, delay=0)
    wait_for(reached)
    (second,) = workers(1, source, delay=0)
    time.sleep(0.5)
    assert second.poll() is None  # it waits for the first
    first.kill()
    assert second.communicate(timeout=60)[0].strip() == "42"
    os.kill(int(reached.read_text()), signal.SIGKILL)
    first.communicate()


def test_lock_that_is_held_too_long_is_not_waited_for(source, monkeypatch):
    monkeypatch.setattr(library_cache, "_LOCK_SECONDS", 0.05)
    with library_cache.lock("00"):
        start = time.monotonic()
        with library_cache.lock("00"):
            assert 0.04 < time.monotonic() - start < 10
        monkeypatch.setattr(toolchain, "lock", lambda key: library_cache.lock("00"))
        assert answer(compile_library([source])) == 42
