"""The folder of a report: it replaces files that it wrote itself, and no others.

What it wrote stands in the file "report.json", with a checksum for each file, so that a file that somebody
else wrote or changed is not lost.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from meta500.errors import UserError
from meta500.metrics.run import replace_file

MANIFEST = "report.json"
FORMAT = "meta500 report"


class Output:
    """A folder for the files of a report.

    Raises:
        UserError: the folder cannot be made or read, or holds a file report.json that is not ours.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: list[Path] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder}: this folder cannot be made: {error.strerror or error}") from None
        self._sums = self._read()

    def check(self, names: list[str]) -> None:
        """Refuse to replace what is not ours, before anything is written.

        Raises:
            UserError: names the first file that is there already and was written or changed by others.
        """
        for name in names:
            path = self.folder / name
            if not os.path.lexists(path):
                continue
            if name not in self._sums:
                raise UserError(
                    f"{path}: is there already and was not written by `meta500 report`; choose another "
                    "folder with --out, or move the file away"
                )
            if not path.is_file() or path.is_symlink() or _sum(path) != self._sums[name]:
                raise UserError(
                    f"{path}: was changed after `meta500 report` had written it; choose another folder with "
                    "--out, or move the file away"
                )

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file, whole or not at all.

        Raises:
            UserError: see `check`; also if the file cannot be written.
        """
        self.check([name])
        path = self.folder / name
        data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
        replace_file(path, data)
        self.written.append(path)
        self._sums[name] = hashlib.sha256(data).hexdigest()
        self._list()
        return path

    def remove_others(self, kinds: Sequence[str]) -> list[Path]:
        """Remove what an earlier report wrote and this one did not; files that were changed since stay.

        Args:
            kinds: endings of the names that are meant, such as ".svg".

        Returns:
            what was removed.

        Raises:
            UserError: a file cannot be removed.
        """
        written = {path.name for path in self.written}
        removed = []
        for name in [name for name in self._sums if name not in written and name.endswith(tuple(kinds))]:
            path = self.folder / name
            # A list of files is no reason to touch what lies elsewhere.
            if Path(name).name != name or path.is_symlink() or not path.is_file():
                continue
            if _sum(path) != self._sums[name]:
                continue
            try:
                path.unlink()
            except OSError as error:
                raise UserError(f"{path}: cannot be removed: {error.strerror or error}") from None
            removed.append(path)
            del self._sums[name]
        if removed:
            self._list()
        return removed

    def _list(self) -> None:
        listed = {"format": FORMAT, "files": dict(sorted(self._sums.items()))}
        replace_file(self.folder / MANIFEST, (json.dumps(listed, indent=1) + "\n").encode())

    def _read(self) -> dict[str, str]:
        path = self.folder / MANIFEST
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        except ValueError:
            found = None
        files = found.get("files") if isinstance(found, dict) and found.get("format") == FORMAT else None
        if not isinstance(files, dict):
            raise UserError(
                f"{path}: is not the list of a report's files; choose another folder with --out, or move the "
                "file away"
            )
        return {str(name): str(value) for name, value in files.items()}


def _sum(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
