"""The C++ compiler and its content-addressed cache of shared libraries.

A library is found by the hash of everything that decides its machine code: the sources, the headers that they
include (system headers through the compiler's version), the flags, the compiler and the CPU. It is built in a
folder beside its place and renamed there whole, so that processes that build the same library at once do not
disturb each other; a damaged library is noticed by its checksum and built again.

Environment variables: ``CXX`` names the compiler (default ``g++``; arguments are allowed), ``CXXFLAGS`` has
further flags, ``META500_CACHE`` names the cache folder (default ``$XDG_CACHE_HOME/meta500`` or
``~/.cache/meta500``).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from meta500.errors import UserError

FLAGS = ("-O3", "-march=native", "-fopenmp", "-std=c++17", "-shared", "-fPIC")
LIBRARY, RECORD = "library.so", "record.json"

# Environment variables that change what the compiler finds.
_SEARCH = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH")
_INCLUDE = re.compile(r'(?:#\s*include(?:_next)?|\b__has_include\s*\()\s*([<"])([^>"\n]+)[>"]')
_COMPUTED = re.compile(r"^\s*#\s*include\s+[A-Za-z_]", re.MULTILINE)
_FIRST_ERRORS = 5
# Lines of /proc/cpuinfo that tell processors apart; the others (frequency) change from moment to moment.
_CPU = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")


def compile_library(
    sources: Sequence[str | os.PathLike[str]],
    flags: Sequence[str] = (),
    *,
    include: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """The shared library of C++ ``sources``, built now or found in the cache.

    Args:
        sources: paths of C++ files.
        flags: further flags, after :data:`FLAGS` and ``$CXXFLAGS`` (a later ``-O0`` or ``-std=...`` wins).
        include: folders searched for headers.

    Returns:
        The library's path, inside the cache.

    Raises:
        UserError: a source or the compiler is missing, the code does not compile (the message has the file
            and line of the first errors, and the command), or the cache can't be written.
    """
    files = [_source(source) for source in sources]
    if not files:
        raise UserError("a library is compiled from at least one source")
    folders = [Path(folder).resolve() for folder in include]
    command = [*compiler(), *FLAGS, *_words("CXXFLAGS"), *flags]
    if sys.platform.startswith("linux"):
        command.append("-Wl,-z,defs")  # a function that nobody defines is an error now, not at the first call
    for _ in range(3):
        key = library_key(files, command, folders)
        target = cache_folder() / "libraries" / key
        if _intact(target):
            return target / LIBRARY
        with _workplace(target) as folder:
            _build(files, command, folders, folder)
            # A source that was edited while it was compiled must not be stored under its old contents.
            if library_key(files, command, folders) == key:
                _publish(folder, target)
                return target / LIBRARY
    raise UserError(f"{files[0]}: changes while it is compiled")


def compiler() -> list[str]:
    """The command of the C++ compiler: ``$CXX`` or g++.

    Raises:
        UserError: it is not installed.
    """
    words = _words("CXX") or ["g++"]
    if shutil.which(words[0]) is None:
        raise UserError(
            f"the C++ compiler '{words[0]}' is not installed; install g++ or name another one in the "
            "environment variable CXX"
        )
    return words


def _words(variable: str) -> list[str]:
    """An environment variable as words of a command."""
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"the environment variable {variable} is no command line: {text!r} ({error})"
        ) from None


def cache_folder() -> Path:
    """Where built libraries are kept; the folder may not exist yet."""
    given = os.environ.get("META500_CACHE")
    if given:
        return Path(given).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "meta500"


def library_key(files: Sequence[Path], command: Sequence[str], folders: Sequence[Path]) -> str:
    """The hash (hex) of all that decides the machine code of a library.

    Raises:
        UserError: a file can't be read.
    """
    digest = hashlib.sha256()

    def add(*parts: str | bytes) -> None:
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(len(data).to_bytes(8, "little") + data)

    add(*command, *map(str, folders), compiler_version(command[0]), cpu_model())
    add(*(f"{name}={os.environ.get(name, '')}" for name in _SEARCH))
    for path, data in sorted(_with_headers(files, command, folders).items()):
        add(str(path), data)
    return digest.hexdigest()[:40]


def compiler_version(program: str) -> str:
    """What ``program --version`` prints.

    Raises:
        UserError: it does not run.
    """
    found = shutil.which(program) or program
    try:
        stamp = os.stat(found).st_mtime_ns
    except OSError:
        stamp = 0
    return _version(found, stamp)


@functools.cache
def _version(program: str, stamp: int) -> str:
    done = _run([program, "--version"])
    if done.returncode != 0:
        raise UserError(f"the C++ compiler '{program}' does not run: {done.stderr.strip()}")
    return done.stdout


@functools.cache
def cpu_model() -> str:
    """Name and instruction sets of the processor, which decide what ``-march=native`` means."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    first = text.split("\n\n", maxsplit=1)[0]
    lines = [
        (name.strip(), value.strip()) for name, _, value in (x.partition(":") for x in first.splitlines())
    ]
    return platform.machine() + "".join(f"\n{name}:{value}" for name, value in lines if name in _CPU)


def _source(source: str | os.PathLike[str]) -> Path:
    path = Path(source).resolve()
    if not path.is_file():
        raise UserError(f"{os.fspath(source)}: there is no such C++ file")
    return path


def _with_headers(
    files: Sequence[Path], command: Sequence[str], folders: Sequence[Path]
) -> dict[Path, bytes]:
    """Contents of the sources and of every header that they can reach outside of the system's folders.

    Conditions around an ``#include`` are not evaluated, so this may find more than is compiled, never less.
    """
    found: dict[Path, bytes] = {}
    waiting = list(files)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        found[path] = data
        text = data.decode("utf-8", "replace")
        if _COMPUTED.search(text):
            waiting += _dependencies(path, command, folders)
        for bracket, name in _INCLUDE.findall(text):
            places = ([path.parent] if bracket == '"' else []) + [*folders, *_include_flags(command)]
            waiting += [(place / name).resolve() for place in places if (place / name).is_file()]
    return found


def _include_flags(command: Sequence[str]) -> list[Path]:
    words = list(command)
    joined = [word[2:] for word in words if word.startswith("-I") and len(word) > 2]
    apart = [b for a, b in itertools.pairwise(words) if a in ("-I", "-iquote", "-isystem")]
    return [Path(folder) for folder in joined + apart]


def _dependencies(path: Path, command: Sequence[str], folders: Sequence[Path]) -> list[Path]:
    """What the compiler says ``path`` includes: for includes that only macros know."""
    done = _run([*command, *(f"-I{folder}" for folder in folders), "-MM", str(path)])
    words = shlex.split(done.stdout.replace("\\\n", " ").partition(":")[2])
    return [Path(word).resolve() for word in words]


def _build(files: Sequence[Path], command: Sequence[str], folders: Sequence[Path], folder: Path) -> None:
    library = folder / LIBRARY
    words = [*command, *(f"-I{place}" for place in folders), *map(str, files), "-o", str(library)]
    done = _run(words)
    if done.returncode != 0 or not library.is_file():
        raise UserError(_compile_error(files, words, done.stderr))
    record = {
        "sha256": _checksum(library),
        "command": words,
        "compiler": compiler_version(command[0]).splitlines()[:1],
        "sources": [str(path) for path in files],
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1))


def _compile_error(files: Sequence[Path], words: Sequence[str], output: str) -> str:
    lines = output.strip().splitlines()
    errors = [line for line in lines if "error:" in line or "undefined reference" in line]
    shown = errors[:_FIRST_ERRORS] or lines[-_FIRST_ERRORS:] or ["the compiler says nothing"]
    more = f"\n  and {len(errors) - len(shown)} more errors" if len(errors) > len(shown) else ""
    text = "\n  ".join(shown)
    return f"{files[0]}: does not compile:\n  {text}{more}\ncommand: {shlex.join(words)}"


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            list(words), capture_output=True, text=True, errors="replace", check=False, env=environment
        )
    except OSError as error:
        raise UserError(f"the C++ compiler '{words[0]}' does not run: {error.strerror}") from None


def _intact(folder: Path) -> bool:
    """Whether ``folder`` holds a library that is as it was built."""
    try:
        record = json.loads((folder / RECORD).read_text())
        return bool(record["sha256"] == _checksum(folder / LIBRARY))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def _workplace(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target``, removed afterwards if it still exists."""
    try:
        # What lies here is loaded into this process: nobody else may put anything into a folder made here.
        target.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".build-", dir=target.parent))
    except OSError as error:
        raise UserError(
            f"the cache folder {target.parent} cannot be written ({error.strerror}); "
            "name another one in the environment variable META500_CACHE"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, target: Path) -> None:
    """Move a finished build to its place; one that another process has put there first stays."""
    for _ in range(10):
        try:
            folder.rename(target)
            return
        except OSError:
            if _intact(target):
                return
        damaged = Path(tempfile.mkdtemp(prefix=".build-", dir=target.parent))
        with suppress(OSError):  # another process may have moved it away
            target.rename(damaged / "entry")
        shutil.rmtree(damaged, ignore_errors=True)
    raise UserError(f"{target}: cannot be replaced; remove this folder of the cache")
