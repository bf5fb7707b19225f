"""Unpacking of .tar, .tar.gz, .zip and .gz from strangers: nothing leaves the folder, nothing stays half.

An archive is read from front to back into a new folder inside the target, and its files are moved to their
places when the whole archive, with the checksums that it has, has been read. What is refused:

- names that are absolute, have a ``..``, a backslash or a control character (line breaks, terminal
  sequences), or that the caller keeps for files of its own; paths through a link in the target;
- links, devices, pipes and encrypted members: data sets have none;
- more members or more bytes than `Limits` says. Bytes are counted as they come out of the decompressor, so
  a header that lies about a size is of no use; the headers of a tar count too.

The formats: POSIX.1-2017 pax (tar), RFC 1952 (gzip), PKWARE APPNOTE (zip).
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import shutil
import stat
import struct
import tarfile
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from meta500.errors import UserError

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip", ".gz")
UNPACKING = ".unpacking-"
_CHUNK = 1 << 20
# No header of a tar needs more than this; Python reads each whole into memory.
_LARGEST_HEADER = 16 << 20
_END_MARK = bytes(tarfile.BLOCKSIZE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Unicode's control characters, and its separators of lines and paragraphs.
_CONTROL = ("Cc", "Zl", "Zp")
_BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, struct.error),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError),
)

# Called with the bytes of the archive that have been read since the last call.
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Limits:
    """What an archive may hold.

    Attributes:
        members: files and folders.
        size: bytes when unpacked.
        ratio: bytes unpacked per byte of the archive; pictures and labels stay far below.
        ratio_from: bytes unpacked below which the ratio is not looked at.
    """

    members: int = 1_000_000
    size: int = 64 << 30
    ratio: float = 200.0
    ratio_from: int = 16 << 20


LIMITS = Limits()


def is_archive(name: str) -> bool:
    """Whether the file name is that of an archive that `extract` unpacks."""
    return name.lower().endswith(SUFFIXES)


def extract(
    archive: str | Path,
    target: str | Path,
    *,
    limits: Limits = LIMITS,
    advance: Advance | None = None,
    reserved: Collection[str] = (),
) -> dict[str, str]:
    """Unpack ``archive`` into the folder ``target``; a .gz gives one file, its name without the suffix.

    Folders that are there already stay, files of the same names are replaced, each at once; of a tar's
    members of the same name the last one stays. Owners, permissions and times are not taken over. Only one
    process may unpack into a target at a time: left-overs of one that was killed are removed.

    Args:
        advance: is told how many bytes of the archive have been read.
        reserved: names in ``target`` that no member may have; that of the archive never may.

    Returns:
        MD5 of every file that came out, by its path relative to ``target`` (with "/"), sorted.

    Raises:
        UserError: an unknown or damaged archive, a member that is refused, a limit that is passed, or a
            target that can't be written. Nothing has been put into ``target`` then, unless it is the moving
            that failed.
    """
    source, folder = Path(archive), Path(target)
    if not is_archive(source.name):
        raise UserError(f"{source}: is no archive that can be unpacked: {', '.join(SUFFIXES)}")
    if not source.is_file():
        raise UserError(f"{source}: there is no such archive")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(UNPACKING + "*"):
            shutil.rmtree(left, ignore_errors=True)
        place = Path(tempfile.mkdtemp(prefix=UNPACKING, dir=folder))
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        unpacking = _Unpacking(source, place, limits, advance, {*reserved, source.name})
        name = source.name.lower()
        if name.endswith(".zip"):
            _zip(unpacking)
        elif name.endswith((".tar", ".tar.gz", ".tgz")):
            _tar(unpacking, compressed=not name.endswith(".tar"))
        else:
            _gz(unpacking)
        _move(place, folder)
        return dict(sorted(unpacking.md5.items()))
    finally:
        shutil.rmtree(place, ignore_errors=True)


class _Refused(Exception):
    """What is wrong with the member that is being read."""


class _Unpacking:
    """One archive on its way into ``place``: what has been read and written, and the limits."""

    def __init__(
        self, source: Path, place: Path, limits: Limits, advance: Advance | None, reserved: Collection[str]
    ) -> None:
        self.source, self.place, self.limits, self.reserved = source, place, limits, reserved
        self.md5: dict[str, str] = {}
        self.member: str | None = None
        self.offset: int | None = None
        # What offsets count where it is not the archive's own bytes.
        self.unit = ""
        self._advance, self._seen = advance, 0
        self._packed = max(source.stat().st_size, 1)
        self._members = self._size = 0

    def enter(self, name: str, offset: int | None) -> None:
        """Begin with a member."""
        self.member, self.offset = name, offset
        self._members += 1
        if self._members > self.limits.members:
            raise _Refused(f"it is one of more than {self.limits.members} members, the limit")

    def count(self, size: int) -> None:
        """So many bytes more have come out of the archive."""
        self._size += size
        if self._size > self.limits.size:
            raise _Refused(f"the archive unpacks to more than {self.limits.size} bytes, the limit")
        if self._size > max(self.limits.ratio_from, self.limits.ratio * self._packed):
            raise _Refused(
                f"the archive of {self._packed} bytes unpacks to more than {self.limits.ratio:g} times that"
            )

    def read_to(self, position: int) -> None:
        """The archive has been read up to byte ``position``."""
        if self._advance is not None and position > self._seen:
            self._advance(position - self._seen)
            self._seen = position

    def path(self, name: str) -> Path:
        """Where a member with this name belongs."""
        if name.startswith("/"):
            raise _Refused("its name is an absolute path")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise _Refused("its name leaves the folder with '..'")
        if "\\" in name or any(unicodedata.category(letter) in _CONTROL for letter in name):
            raise _Refused("its name has a backslash or a control character, such as a line break")
        if parts and parts[0] in self.reserved:
            raise _Refused(f"its name, '{parts[0]}', is that of the archive or of a file kept beside it")
        return self.place.joinpath(*parts)

    def write(self, path: Path, stream: IO[bytes] | gzip.GzipFile, *, counted: bool) -> None:
        """Write a member's bytes; ``counted`` where its reader counts them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        md5 = hashlib.md5(usedforsecurity=False)
        with open(path, "wb") as file:
            while chunk := stream.read(_CHUNK):
                if not counted:
                    self.count(len(chunk))
                md5.update(chunk)
                file.write(chunk)
        self.md5[path.relative_to(self.place).as_posix()] = md5.hexdigest()

    def error(self, reason: str) -> UserError:
        """The archive, where in it, and what is wrong."""
        where = [] if self.member is None else [f"member {_shown(self.member)}"]
        if self.offset is not None:
            where.append(f"at byte {self.offset}{self.unit}")
        return UserError(": ".join([str(self.source), *([" ".join(where)] if where else []), reason]))

    def failed(self, error: Exception) -> UserError:
        """What a fault of the archive, or of the disk, is called."""
        if isinstance(error, _Refused):
            return self.error(str(error))
        if isinstance(error, _BROKEN):
            return self.error(f"the archive is damaged or cut short ({_reason(error)}); get it again")
        if isinstance(error, OSError) and error.errno in _FULL:
            return UserError(
                f"{self.source}: no space is left to unpack it on the disk of {self.place.parent}; "
                "make room and try again"
            )
        return self.error(f"cannot be unpacked: {_reason(error)}")


class _Metered:
    """A stream that counts what is read, and goes forward only: as much of a file as tarfile needs."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, raw: IO[bytes], unpacking: _Unpacking) -> None:
        self._stream, self._raw, self._unpacking = stream, raw, unpacking
        self._position = 0
        self.last = b""

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise _Refused(f"its header says that it has {size} bytes more")
        parts, left = [], size
        while left:
            part = self._stream.read(min(left, _CHUNK))
            if not part:
                break
            parts.append(part)
            left -= len(part)
            self._unpacking.count(len(part))
        self.last = b"".join(parts)
        self._position += len(self.last)
        self._unpacking.read_to(self._raw.tell())
        return self.last

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise tarfile.ReadError("a header leads backwards")
        while self._position < position and self.read(min(position - self._position, _CHUNK)):
            pass


def _tar(unpacking: _Unpacking, *, compressed: bool) -> None:
    unpacking.unit = " of the tar inside" if compressed else ""
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(open(unpacking.source, "rb"))
            stream = stack.enter_context(gzip.GzipFile(fileobj=raw)) if compressed else raw
            metered = _Metered(stream, raw, unpacking)
            tar = stack.enter_context(tarfile.open(fileobj=metered, mode="r:"))  # type: ignore[call-overload]
            while (member := tar.next()) is not None:
                unpacking.enter(member.name, member.offset)
                _tar_member(unpacking, tar, member)
                unpacking.member, unpacking.offset = None, tar.offset
                # A tar keeps a list of all that it has read, which nobody needs here.
                tar.members.clear()
            # tarfile takes a damaged header, and a missing one, for the end.
            if metered.last != _END_MARK:
                raise EOFError("neither a header nor the end mark")
            while metered.read(_CHUNK):
                pass
    except (_Refused, OSError, *_BROKEN) as error:
        raise unpacking.failed(error) from None


def _tar_member(unpacking: _Unpacking, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = unpacking.path(member.name)
    if not (member.isreg() or member.isdir()):
        kind = "a link" if member.issym() or member.islnk() else "a device, a pipe or of an unknown kind"
        raise _Refused(f"it is {kind}, which no dataset needs")
    # Python's own judgement beside ours; it came with 3.11.4.
    if (judge := getattr(tarfile, "data_filter", None)) is not None:
        judge(member, str(unpacking.place))
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    if path == unpacking.place:
        raise _Refused("it is a file with the name of the folder itself")
    # The holes of a sparse file cost nothing to store: what is written counts, not only what is read.
    sparse = member.issparse()
    stream = tar.extractfile(member)
    assert stream is not None
    with stream:
        unpacking.write(path, stream, counted=not sparse)
    if path.stat().st_size != member.size:
        raise EOFError(f"{path.stat().st_size} of {member.size} bytes")


def _zip(unpacking: _Unpacking) -> None:
    try:
        with open(unpacking.source, "rb") as raw, zipfile.ZipFile(raw) as archive:
            for member in archive.infolist():
                unpacking.enter(member.orig_filename, member.header_offset)
                path = unpacking.path(member.orig_filename)
                if member.flag_bits & 0x1:
                    raise _Refused("it is encrypted")
                kind = stat.S_IFMT(member.external_attr >> 16)
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise _Refused("it is a link or a device, which no dataset needs")
                # The other methods unpack without a bound.
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise _Refused(f"it is packed with method {member.compress_type}; 0 and 8 can be read")
                if member.is_dir():
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                if path == unpacking.place:
                    raise _Refused("it is a file with the name of the folder itself")
                with archive.open(member) as stream:
                    unpacking.write(path, stream, counted=False)
                unpacking.read_to(member.header_offset + member.compress_size)
    except (_Refused, OSError, *_BROKEN) as error:
        raise unpacking.failed(error) from None


def _gz(unpacking: _Unpacking) -> None:
    name = unpacking.source.name[: -len(".gz")]
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(open(unpacking.source, "rb"))
            stream = stack.enter_context(gzip.GzipFile(fileobj=raw))
            metered = _Metered(stream, raw, unpacking)
            unpacking.write(unpacking.place / name, metered, counted=True)  # type: ignore[arg-type]
    except (_Refused, OSError, *_BROKEN) as error:
        raise unpacking.failed(error) from None


def _move(source: Path, target: Path) -> None:
    """Move what is in ``source`` into ``target``."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if place.is_symlink():
            raise UserError(f"{place}: is a link, and files would be unpacked through it; remove it")
        try:
            if not entry.is_dir():
                os.replace(entry, place)
            elif place.is_dir():
                _move(entry, place)
            else:
                os.rename(entry, place)
        except OSError as error:
            raise UserError(f"{place}: cannot be put here: {error.strerror}") from None


def _shown(name: str) -> str:
    """A name from an archive, fit for a terminal."""
    text = name if len(name) <= 120 else f"{name[:117]}..."
    return f"'{text}'" if text.isprintable() else ascii(text)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__
