"""Checking a dataset's files: checksums, headers, lists, and, of pictures in files, each one."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta500.datasets import catalog, registry
from meta500.datasets.checksums import CHECKSUMS, verify_checksums
from meta500.datasets.picture_arrays import verify_md5
from meta500.datasets.places import folder_of
from meta500.datasets.samples import Samples
from meta500.errors import UserError


@dataclass(frozen=True)
class Verified:
    """A dataset that is as it should be.

    Attributes:
        name: of the dataset.
        folder: where its files are; None for a set without files.
        archives: published files in the folder whose checksums are right, by name.
        compared: number of files from archives that are as they came out of them.
        train, test: what was loaded.
    """

    name: str
    folder: Path | None
    archives: tuple[str, ...]
    compared: int
    train: Samples
    test: Samples


def verify(name: str, folder: str | Path | None = None, options: Mapping[str, Any] | None = None) -> Verified:
    """Compare all checksums that there are of the dataset ``name``, and load it with all checks that it has.

    `meta500.datasets.download.get` keeps the checksums of what it unpacks. Of files that were unpacked by
    hand, those that the publisher gives are compared, by the loader.

    Args:
        folder: where its files are; None: its own folder. Of the set "arrays", its file or folder.
        options: of the dataset.

    Raises:
        UserError: what is missing, damaged, or of another size or checksum than published; an unknown dataset
            or option.
    """
    known = registry.options(name)
    given = dict(options or {})
    if folder is not None:
        places = [key for key in ("folder", "path") if key in known]
        if not places:
            raise UserError(f"dataset '{name}' has no files: leave out the folder")
        if places[0] in given:
            raise UserError(f"the folder is given twice: as {folder} and as {places[0]}={given[places[0]]}")
        given[places[0]] = str(folder)
    if "check" in known:
        given.setdefault("check", True)
    place = given.get("folder", given.get("path"))
    archives: list[str] = []
    compared = 0
    published = catalog.published(name)
    if published is not None:
        place = folder_of(name, place)
        for file in (*published.files, *published.by_hand):
            if (place / file.name).is_file():
                verify_md5(place / file.name, file.md5)
                archives.append(file.name)
            if (place / f"{file.name}{CHECKSUMS}").is_file():
                compared += verify_checksums(place / f"{file.name}{CHECKSUMS}")
    train, test = registry.load(name, **given)
    return Verified(name, None if place is None else Path(place), tuple(archives), compared, train, test)


def needs_files(name: str) -> bool:
    """Whether the dataset ``name`` is read from files, published or own.

    Raises:
        UserError: unknown dataset.
    """
    return bool({"folder", "path"} & set(inspect.signature(registry.loader(name)).parameters))
