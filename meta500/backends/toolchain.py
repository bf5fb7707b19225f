"""Shared libraries from C++ sources, built once and found again by content.

A library is found by the hash of everything that decides its machine code: the sources, the headers that they
include (system headers through the compiler's version), the flags, the compiler and, where the flags mean
this machine's processor, the processor. Its translation units are compiled at the same time; the object file
of each is found by its own hash, so that a change of one unit compiles that one and links.

:mod:`~meta500.backends.compiler` tells the environment variables that name the compiler,
:mod:`~meta500.backends.library_cache` where results are kept (``META500_CACHE``; default
``$XDG_CACHE_HOME/meta500`` or ``~/.cache/meta500``).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meta500.backends.compiler import (
    Ended,
    compiler,
    compiler_version,
    complaint,
    has_openmp,
    no_openmp,
    run_all,
    words,
)
from meta500.backends.library_cache import (
    LIBRARY,
    intact,
    keep_failed,
    library_entry,
    load_object,
    lock,
    publish,
    read_record,
    store_object,
    workplace,
    write_record,
)
from meta500.backends.targets import Target, cpu_model, native_target, runs
from meta500.backends.translation_units import Sources, add, files, units_of_texts
from meta500.errors import UserError

FLAGS = ("-O3", "-std=c++17")
# For generated code, whose loops are written as they should run. No flag allows another order of operations;
# fused multiply-add is g++'s default, and asked for on clang++.
GENERATED_FLAGS = ("-O2", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")

# Part of every key: to be changed when the commands that this file makes change.
_FORMAT = "2"
_ONLY_LINKED = ("-l", "-L", "-Wl,", "-shared", "-static", "-rdynamic", "-fuse-ld")


@dataclass(frozen=True)
class _Job:
    """One library to build: its sources, its target and its commands."""

    sources: Sources
    target: Target
    openmp: bool
    version: str
    program: bool = False

    @property
    def label(self) -> str:
        return str(self.sources.units[0])

    def compilation(self, unit: Path, folder: Path, output: Path) -> list[str]:
        """The command that compiles one unit; a unit given as text lies in ``folder``."""
        flags = [flag for flag in self.sources.flags if not flag.startswith(_ONLY_LINKED)]
        places = [f"-I{place}" for place in self.sources.folders]
        return [*self.sources.compiler, *flags, "-fPIC", *places, "-c", str(folder / unit), "-o", str(output)]

    def linking(self, objects: Sequence[Path], library: Path) -> list[str]:
        """The command that links; the flags follow the objects, as libraries have to."""
        if self.program:
            return [*self.sources.compiler, *map(str, objects), *self.sources.flags, "-o", str(library)]
        flags = [*self.sources.flags, "-shared", "-fPIC"]
        if sys.platform.startswith("linux") and not any(f.startswith("-fsanitize") for f in flags):
            # A function that nobody defines is an error now, not at the first call.
            flags.append("-Wl,-z,defs")
        return [*self.sources.compiler, *map(str, objects), *flags, "-o", str(library)]

    def unit_keys(self) -> list[str]:
        """Keys of the object files, in the order of the units."""
        command = [*self.sources.compiler, *self.sources.flags]
        parts = [_FORMAT, *command, *map(str, self.sources.folders), self.version]
        if any("native" in word for word in command):
            parts.append(cpu_model())
        return [self.sources.key(unit, *parts) for unit in self.sources.units]

    def again(self) -> _Job:
        """The same job with the sources and headers as they are on disk now."""
        old = self.sources
        texts = {str(path): data.decode() for path, data in old.texts.items()}
        new = Sources(old.units, texts, old.folders, old.compiler, old.flags)
        return _Job(new, self.target, self.openmp, self.version, self.program)


def compile_library(
    sources: Sequence[str | os.PathLike[str]],
    flags: Sequence[str] = (),
    *,
    include: Sequence[str | os.PathLike[str]] = (),
    base_flags: tuple[str, ...] | None = None,
    target: Target | None = None,
    openmp: bool = True,
) -> Path:
    """The shared library of C++ ``sources``, built now or found in the cache.

    Args:
        sources: paths of C++ files, each a translation unit.
        flags: further flags, after all others and ``$CXXFLAGS`` (a later ``-O0`` or ``-std=...`` wins).
        include: folders searched for headers.
        base_flags: instead of :data:`FLAGS`.
        target: the processor; default: this machine's.
        openmp: compile with OpenMP; without, its pragmas are ignored.

    Returns:
        The library's path, inside the cache.

    Raises:
        UserError: a source or the compiler is missing, the compiler has no OpenMP, the code does not compile
            or link (the message has the file and line of the first errors, and the command), or the cache
            can't be written.
    """
    return _library(files(sources), {}, flags, include, base_flags, target, openmp)


def compile_text(
    texts: Mapping[str, str],
    flags: Sequence[str] = (),
    *,
    include: Sequence[str | os.PathLike[str]] = (),
    base_flags: tuple[str, ...] | None = GENERATED_FLAGS,
    target: Target | None = None,
    openmp: bool = True,
) -> Path:
    """The shared library of C++ sources given as text, built now or found in the cache.

    The texts are kept beside the library, and its record names them.

    Args:
        texts: contents by plain file name. Each ``.cpp`` is a translation unit; ``.h`` and ``.hpp`` are
            headers that the others include in quotes.
        flags, include, base_flags, target, openmp: as in :func:`compile_library`; ``base_flags`` are
            :data:`GENERATED_FLAGS` unless given.

    Returns:
        The library's path, inside the cache.

    Raises:
        UserError: as in :func:`compile_library`; of texts that do not compile the message names the folder in
            which they are kept for a day.
    """
    return _library(units_of_texts(texts), texts, flags, include, base_flags, target, openmp)


def compile_program(
    texts: Mapping[str, str],
    flags: Sequence[str] = (),
    *,
    base_flags: tuple[str, ...] | None = GENERATED_FLAGS,
    openmp: bool = True,
) -> Path:
    """The executable program of C++ sources given as text, for this machine, built now or found in the cache.

    Args:
        texts, flags, base_flags, openmp: as in :func:`compile_text`; one source has a ``main``.

    Returns:
        The program's path, inside the cache (where all that is linked has one file name).

    Raises:
        UserError: as in :func:`compile_text`.
    """
    return _library(units_of_texts(texts), texts, flags, (), base_flags, None, openmp, program=True)


def load_library(library: Path) -> ctypes.CDLL:
    """Load a library of the cache into this process.

    Raises:
        UserError: this machine's processor does not run it, or the system does not load it.
    """
    record = read_record(library.parent)
    if not runs(record.get("machine", ""), record.get("needs", ())):
        raise UserError(
            f"{library}: code for target '{record.get('target')}' does not run on this machine's processor "
            f"({native_target().description}); compile it for 'native'"
        )
    try:
        return ctypes.CDLL(os.fspath(library))
    except OSError as error:
        raise UserError(
            f"a compiled library cannot be loaded: {error}; if programs may not be run from its folder, name "
            "another one in the environment variable META500_CACHE"
        ) from None


def _library(
    units: Sequence[Path],
    texts: Mapping[str, str],
    flags: Sequence[str],
    include: Sequence[str | os.PathLike[str]],
    base_flags: tuple[str, ...] | None,
    target: Target | None,
    openmp: bool,
    program: bool = False,
) -> Path:
    chosen = native_target() if target is None else target
    command = compiler(chosen)
    base = FLAGS if base_flags is None else base_flags
    all_flags = [*base, *chosen.flags, *(["-fopenmp"] if openmp else []), *words("CXXFLAGS"), *flags]
    folders = [Path(folder).resolve() for folder in include]
    sources = Sources(units, texts, folders, command, all_flags)
    job = _Job(sources, chosen, openmp, compiler_version(command), program)
    for _ in range(3):
        keys = job.unit_keys()
        entry = library_entry(_library_key(job, keys))
        if intact(entry):
            return entry / LIBRARY
        with lock(entry.name):
            if intact(entry) or _build(job, keys, entry):
                return entry / LIBRARY
        job = job.again()
    raise UserError(f"{job.label}: changes while it is compiled")


def _library_key(job: _Job, unit_keys: Sequence[str]) -> str:
    """The hash (hex) of all that decides a library.

    The texts are part of it by themselves because they are kept beside it, a header that nobody includes too.
    """
    digest = hashlib.sha256()
    add(digest, *unit_keys, *(["program"] if job.program else []))
    for path, data in job.sources.texts.items():
        add(digest, str(path), data)
    return digest.hexdigest()[:40]


def _build(job: _Job, keys: Sequence[str], entry: Path) -> bool:
    """Compile what is not in the cache, link, and put the library into ``entry``.

    Returns:
        False where a source has changed since its key was made: such a library must not be stored under it.
    """
    sources = job.sources
    with workplace("libraries") as folder:
        work = folder / "work"
        work.mkdir()
        for path, data in sources.texts.items():
            (folder / path).write_bytes(data)
        objects = [work / f"{index}-{unit.stem}.o" for index, unit in enumerate(sources.units)]
        missing = [i for i, key in enumerate(keys) if not _from_cache(key, objects[i])]
        # Debuggers and profilers look for the texts where they will be.
        moved = [f"-fdebug-prefix-map={folder}={entry}"] if sources.texts else []
        commands = [[*job.compilation(sources.units[i], folder, objects[i]), *moved] for i in missing]
        for ended in run_all(commands, work):
            index = missing[commands.index(ended.command)]
            _check(job, f"{sources.units[index]}: does not compile", ended, objects[index], folder, entry)
        if job.again().unit_keys() != keys:
            return False
        for index in missing:
            store_object(keys[index], objects[index].read_bytes())
        link = job.linking(objects, folder / LIBRARY)
        for ended in run_all([link], work):
            _check(job, f"{job.label}: does not link", ended, folder / LIBRARY, folder, entry)
        shutil.rmtree(work)
        record = {
            "target": job.target.name,
            "machine": job.target.machine,
            "needs": sorted(job.target.needs),
            "compiler": job.version.splitlines()[:1],
            "sources": [str(unit) for unit in sources.units],
            "compiled": [shlex.join(command).replace(str(folder), str(entry)) for command in commands],
            "linked": shlex.join(link).replace(str(folder), str(entry)),
        }
        write_record(folder, record, {str(path): len(data) for path, data in sources.texts.items()})
        publish(folder, entry)
        return True


def _from_cache(key: str, path: Path) -> bool:
    """Write the object file of an earlier build to ``path``; whether there is one."""
    contents = load_object(key)
    if contents is not None:
        path.write_bytes(contents)
    return contents is not None


def _check(job: _Job, what: str, ended: Ended, output: Path, folder: Path, entry: Path) -> None:
    """Raise UserError unless the compiler succeeded and wrote ``output``."""
    if ended.status == 0:
        if output.is_file() and output.stat().st_size > 0:
            return
        what += "; the compiler ends well but writes nothing"
    if job.openmp and _lacks_openmp(job.target):
        raise UserError(no_openmp(job.target))
    message = complaint(what, ended)
    texts = {str(path): data.decode() for path, data in job.sources.texts.items()}
    kept = keep_failed(entry.name, texts) if texts else None
    # Paths in the message are of the build's folder, which goes away.
    raise UserError(message if kept is None else message.replace(str(folder), str(kept)))


def _lacks_openmp(target: Target) -> bool:
    try:
        return not has_openmp(target, again=True)
    except UserError:  # it compiles nothing at all: not a matter of OpenMP
        return False
