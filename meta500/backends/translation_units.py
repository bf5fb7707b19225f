"""Translation units: C++ sources in files or given as text, and the hash of all behind their object code."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from meta500.backends.compiler import run
from meta500.errors import UserError

SOURCE_ENDINGS, HEADER_ENDINGS = (".cpp", ".cc", ".cxx"), (".h", ".hpp")

# Environment variables that change what the compiler finds.
_SEARCH = ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH")
_INCLUDE = re.compile(rb'include(?:_next)?[\s(]*([<"])([^>"\n]+)[>"]')  # of __has_include as well
_COMPUTED = re.compile(rb"#[ \t]*include(?:_next)?[ \t]+[A-Za-z_]")
_FOLDER_FLAGS = ("-I", "-iquote", "-isystem", "-idirafter")


class Sources:
    """The sources of one library.

    Args:
        units: what is compiled, in the order of linking: absolute paths, or names of ``texts``.
        texts: contents of sources and headers that are given as text, by file name. Their names stand for
            their paths, so that their object code does not depend on where they are compiled.
        folders: searched for headers.
        compiler: the command of the compiler, without flags.
        flags: all flags; some decide what is found (``-I``, ``-D``).

    Raises:
        UserError: a file can't be read.
    """

    def __init__(
        self,
        units: Sequence[Path],
        texts: Mapping[str, str],
        folders: Sequence[Path],
        compiler: Sequence[str],
        flags: Sequence[str],
    ) -> None:
        self.units, self.folders = tuple(units), tuple(folders)
        self.compiler, self.flags = tuple(compiler), tuple(flags)
        self.texts = {Path(name): text.encode() for name, text in texts.items()}
        self._searched = [*folders, *_include_flags([*compiler, *flags])]
        self._files: dict[Path, tuple[str, list[Path]]] = {}

    def key(self, unit: Path, *parts: str) -> str:
        """Hash of ``parts``, of what the environment says, and of ``unit`` with every header in its reach.

        System headers are left out: the compiler's version stands for them.
        """
        digest = hashlib.sha256()
        add(digest, *parts, *(f"{name}={os.environ.get(name, '')}" for name in _SEARCH))
        for path in sorted(self._reached(unit)):
            add(digest, str(path), self._file(path)[0])
        return digest.hexdigest()[:40]

    def _reached(self, unit: Path) -> set[Path]:
        """``unit`` and its headers.

        Conditions around an ``#include`` are not evaluated, so this may find more than is compiled, not less.
        """
        found: set[Path] = set()
        # A file in the flags is a header after -include, or an archive to be linked.
        waiting = [unit, *(Path(word).resolve() for word in self.flags if _is_file(word))]
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.add(path)
                waiting += self._file(path)[1]
        return found

    def _file(self, path: Path) -> tuple[str, list[Path]]:
        """Hash of a file or text, and the files that it includes itself."""
        if path not in self._files:
            self._files[path] = self._read(path)
        return self._files[path]

    def _read(self, path: Path) -> tuple[str, list[Path]]:
        data = self.texts.get(path)
        if data is None:
            try:
                data = path.read_bytes()
            except OSError as error:
                raise UserError(f"{path}: cannot be read ({error.strerror})") from None
        included: list[Path] = []
        if _COMPUTED.search(data):
            if path in self.texts:
                raise UserError(f"{path}: a text cannot #include a file whose name is in a macro")
            included += self._dependencies(path)
        for bracket, name in set(_INCLUDE.findall(data)):
            header = os.fsdecode(name)
            if bracket == b'"' and path in self.texts and Path(header) in self.texts:
                included.append(Path(header))
                continue
            beside = [path.parent] if bracket == b'"' and path not in self.texts else []
            places = [place / header for place in (*beside, *self._searched)]
            included += [place.resolve() for place in places if place.is_file()]
        return hashlib.sha256(data).hexdigest(), included

    def _dependencies(self, path: Path) -> list[Path]:
        """What the compiler says ``path`` includes: for includes that only macros know."""
        folders = (f"-I{folder}" for folder in self.folders)
        ended = run([*self.compiler, *self.flags, *folders, "-MM", str(path)])
        names = shlex.split(ended.output.replace("\\\n", " ").partition(":")[2]) if ended.status == 0 else []
        return [Path(name).resolve() for name in names]


def files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Absolute paths of C++ files.

    Raises:
        UserError: there are none, or one does not exist.
    """
    found = []
    for source in sources:
        path = Path(source).resolve()
        if not path.is_file():
            raise UserError(f"{os.fspath(source)}: there is no such C++ file")
        found.append(path)
    return _some(found)


def units_of_texts(texts: Mapping[str, str]) -> list[Path]:
    """The names in ``texts`` that are compiled; the others are headers.

    Raises:
        UserError: a name is no plain file name with the ending of a source or header, or none is a source.
    """
    for name in texts:
        if Path(name).name != name or not name.endswith((*SOURCE_ENDINGS, *HEADER_ENDINGS)):
            endings = ", ".join((*SOURCE_ENDINGS, *HEADER_ENDINGS))
            raise UserError(
                f"{name!r}: a source given as text needs a plain file name that ends in {endings}"
            )
    return _some([Path(name) for name in texts if name.endswith(SOURCE_ENDINGS)])


def add(digest: hashlib._Hash, *parts: str | bytes) -> None:
    """Feed ``parts`` to a hash such that what ends where is part of it."""
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)


def _some(found: list[Path]) -> list[Path]:
    if not found:
        raise UserError("a library is compiled from at least one source")
    return found


def _is_file(word: str) -> bool:
    return not word.startswith("-") and os.path.isfile(word)


def _include_flags(flags: Sequence[str]) -> list[Path]:
    joined = [word[2:] for word in flags if word.startswith("-I") and len(word) > 2]
    apart = [b for a, b in itertools.pairwise(flags) if a in _FOLDER_FLAGS]
    return [Path(folder) for folder in joined + apart]
