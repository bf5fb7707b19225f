"""Lists of MD5 checksums of what came out of an archive, as ``md5sum`` writes and checks them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from meta500.datasets.picture_arrays import verify_md5
from meta500.errors import UserError

CHECKSUMS = ".md5"
_LINE = re.compile(r"([0-9a-f]{32}) [ *](.+)")


def write_checksums(path: Path, md5: Mapping[str, str]) -> None:
    """Write ``md5`` (by path relative to the folder of the list) whole or not at all.

    Raises:
        OSError: it cannot be written.
        UserError: one of the files has the name of the list.
    """
    if path.name in md5:
        raise UserError(f"{path}: cannot be the list of checksums: a file that is listed has its name")
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(
            "".join(f"{value}  {name}\n" for name, value in md5.items()), "utf-8", "surrogateescape"
        )
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def verify_checksums(path: Path) -> int:
    """Compare every file of the list ``path`` with its checksum; how many they are.

    Raises:
        UserError: a file is missing or has another checksum, or the list is damaged.
    """
    try:
        # As bytes: reading text would take a carriage return in a name for the end of a line.
        text = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    lines = text.removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise UserError(f"{path}: line {number} is no MD5 and a name; remove this list")
        verify_md5(path.parent / match[2], match[1])
    return len(lines)
