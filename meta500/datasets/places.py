"""Where the files of the named datasets lie."""

from __future__ import annotations

import os
from pathlib import Path

from meta500.errors import UserError

# Environment variable that names the folder of all datasets.
VARIABLE = "META500_DATA"


def data_root() -> Path:
    """The folder under which every named dataset has its own: ``META500_DATA``, else ~/.cache/meta500/data.

    The folder need not exist; getting a dataset makes it.

    Raises:
        UserError: ``META500_DATA`` names something that is no folder, or there is no home folder.
    """
    given = os.environ.get(VARIABLE, "")
    if not given:
        try:
            return Path.home() / ".cache" / "meta500" / "data"
        except RuntimeError:
            raise UserError(
                f"there is no home folder to keep datasets in: set {VARIABLE} to a folder"
            ) from None
    root = given_path(VARIABLE, given)
    if root.exists() and not root.is_dir():
        raise UserError(f"{VARIABLE}={given}: is no folder; set it to the folder of the datasets")
    return root


def folder_of(name: str, folder: str | Path | None = None) -> Path:
    """The folder with the files of the dataset ``name``: ``folder`` where given, else ``data_root() / name``.

    A given folder must exist; the named place need not (its loader says which file is missing).

    Raises:
        UserError: ``folder`` does not exist, is no folder, or is no path.
    """
    if folder is None:
        return data_root() / name
    path = given_path(f"dataset '{name}': folder", folder)
    if not path.exists():
        raise UserError(f"dataset '{name}': folder={folder}: there is no such folder")
    if not path.is_dir():
        raise UserError(f"dataset '{name}': folder={folder}: is a file, no folder")
    return path


def given_path(what: str, path: object) -> Path:
    """``path`` with a leading ~ as the home folder; ``what`` names it in the message.

    Raises:
        UserError: no text and no Path, an empty text (which would mean the current folder), or a ~ without a
            home folder.
    """
    if not isinstance(path, str | Path):
        raise UserError(f"{what} must be a path (a text or a Path), not {path!r}")
    if path == "":
        raise UserError(f"{what} is empty; give the path, or '.' for the current folder")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no home folder for '~'") from None
