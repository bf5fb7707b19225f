"""A run folder as a zip, written while it is sent."""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

_CHUNK = 256 * 1024
# A zip holds no time before 1980.
_FIRST = 315619200.0


class _Pipe:
    """What zipfile writes to; it cannot go back, so sizes stand behind the files."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def flush(self) -> None: ...

    def take(self) -> bytes:
        """What has been written since the last call."""
        found, self._parts = b"".join(self._parts), []
        return found


def zipped(folder: Path, name: str) -> Iterator[bytes]:
    """The parts of a zip of the regular files below ``folder``, as ``name/...``; links are left out."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:  # type: ignore[call-overload]
        for path in _regular(folder):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue  # gone meanwhile, as temporary files are
            with os.fdopen(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    continue
                written = datetime.fromtimestamp(max(found.st_mtime, _FIRST), UTC).timetuple()[:6]
                entry = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}", written)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                # A file that grows is sent as long as it was at first.
                left = found.st_size
                with archive.open(entry, "w", force_zip64=left > 2**31) as target:
                    while left > 0 and (part := file.read(min(left, _CHUNK))):
                        left -= len(part)
                        target.write(part)
                        yield pipe.take()
            yield pipe.take()
    yield pipe.take()


def _regular(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(root, name)
            if not path.is_symlink():
                yield path
