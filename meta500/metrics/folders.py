"""Where results lie: run folders and tables found by paths and patterns, and their short names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from meta500.errors import UserError

# So many levels below a folder runs are searched: runs/, runs/STUDY/, runs/STUDY/PART/ and one more.
DEPTH = 4


def find_run_folders(folders: str | Path | Sequence[str | Path]) -> list[Path]:
    """Run folders among and below the folders given, each once, in the order given and then by name.

    A folder with run.json or rows.csv is a run folder, and what lies in it is not searched. Other folders
    are searched 4 levels deep, without those whose name begins with a dot. A text that is no path and has
    ``*``, ``?`` or ``[`` in it is a pattern, where ``**`` stands for any folders.

    Raises:
        UserError: a path that does not exist or is a file, a pattern that nothing matches, or no run folder
            in one of them.
    """
    return find_results(folders, suffixes=None)


def find_results(given: str | Path | Sequence[str | Path], suffixes: Sequence[str] | None = ()) -> list[Path]:
    """As `find_run_folders`, and files too, unless ``suffixes`` is None.

    Args:
        given: run folders, folders that hold them, files, or patterns.
        suffixes: of the files that a pattern may mean, such as ".csv"; a file that is named itself may have
            any. Files in folders are not searched.

    Raises:
        UserError: see `find_run_folders`.
    """
    entries = [given] if isinstance(given, str | Path) else list(given)
    if not entries:
        raise UserError("no folder was given; name run folders, or folders that hold them")
    found: dict[Path, Path] = {}
    for entry in entries:
        below = list(_below(entry, suffixes))
        if not below:
            raise UserError(f"{entry}: there is no run folder in it, searched {DEPTH} levels deep")
        for path in below:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as tell all apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _below(entry: str | Path, suffixes: Sequence[str] | None) -> Iterator[Path]:
    path = Path(entry).expanduser()
    if path.is_dir():
        yield from _search(path, DEPTH)
        return
    if path.exists():
        if suffixes is None:
            raise UserError(f"{path}: is a file; name a run folder, or a folder that holds run folders")
        yield path
        return
    if not glob.has_magic(str(path)):
        what = "folder" if suffixes is None else "file or folder"
        raise UserError(f"{path}: there is no such {what}; name a run folder, or one that holds them")
    matches = sorted(map(Path, glob.glob(str(path), recursive=True)), key=_natural)
    if not matches:
        raise UserError(f"{path}: nothing matches this pattern")
    for match in matches:
        # "runs/**" matches what lies in a run folder too.
        if any(_is_run(above) for above in match.parents):
            continue
        if match.is_dir():
            yield from _search(match, DEPTH)
        elif match.name.lower().endswith(tuple(suffixes or ())):
            yield match


def _is_run(folder: Path) -> bool:
    return (folder / "run.json").exists() or (folder / "rows.csv").exists()


def _search(folder: Path, depth: int) -> Iterator[Path]:
    if _is_run(folder):
        yield folder
        return
    if depth == 0:
        return
    try:
        below = [folder / entry.name for entry in os.scandir(folder) if entry.is_dir()]
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None
    for path in sorted(below, key=_natural):
        if not path.name.startswith("."):
            yield from _search(path, depth - 1)


def _natural(path: Path) -> list[tuple[bool, int, str]]:
    """Sorting key that puts run-2 before run-10."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
