"""Folders of generated files: written completely, written again, never mixed with what others put there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from meta500.errors import UserError

MARK = "meta500.json"


class Folder:
    """A folder that this package writes.

    A list of the files lies beside them: only a folder that has such a list (or is empty) is written to, and
    what an earlier time wrote and this time does not is removed. Other files in it, such as a build folder
    or trained weights, stay.

    Raises:
        UserError: it has files but no such list, or can't be made.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._before: set[str] = set()
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path}: is a file; give the path of a folder")
        if (self.path / MARK).is_file():
            try:
                self._before = {str(name) for name in json.loads((self.path / MARK).read_text())["files"]}
            except (OSError, ValueError, KeyError, TypeError):
                raise UserError(
                    f"{self.path / MARK}: is damaged; remove the folder or give another one"
                ) from None
        elif self.path.is_dir() and any(self.path.iterdir()):
            raise UserError(
                f"--out {self.path}: has files that were not generated; give a new folder, or an empty one"
            )

    def write(self, files: Mapping[str, bytes], keep: tuple[str, ...] = ()) -> None:
        """Write files by their names inside the folder.

        Args:
            files: contents.
            keep: files of an earlier time that stay although they are not among them.

        Raises:
            UserError: the folder can't be written to.
        """
        names = {*files, *keep}
        try:
            for name, contents in files.items():
                replace_file(self.path / name, contents)
            for name in self._before - names:
                (self.path / name).unlink(missing_ok=True)
            mark = json.dumps({"files": sorted(names)}, indent=1) + "\n"
            replace_file(self.path / MARK, mark.encode())
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written to: {error}") from None
        self._before = names


def replace_file(path: Path, contents: bytes) -> None:
    """Write a file beside its place and move it there: it is never half there.

    Raises:
        OSError: it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(contents)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
