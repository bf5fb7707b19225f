"""Downloading published datasets: resumable, one process per file, with checksums, and only when asked.

`get` brings a dataset of the catalog to its folder; nothing else in this package opens a connection. pooch
(https://www.fatiando.org/pooch) decides what has to be fetched and checks it; its own downloader begins anew
after each interruption, so `ResumingDownloader` takes its place. A download that is under way lies in
``NAME.part`` beside the file, and the next call goes on with it (RFC 9110, section 14: range requests). It
stays there until its checksum has been found right, so that an interruption of that check loses nothing.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from meta500.datasets import archives, catalog
from meta500.datasets.catalog import RemoteFile
from meta500.datasets.checksums import CHECKSUMS, write_checksums
from meta500.datasets.places import data_root, given_path
from meta500.errors import UserError

if TYPE_CHECKING:
    import requests
    from rich.console import Console

PART, LOCK = ".part", ".lock"
# Seconds to wait for a connection, and for the next bytes.
TIMEOUT = (15.0, 60.0)
# Times that one address is asked without getting anywhere, and the seconds to wait in between.
ATTEMPTS = 4
PAUSE = 1.0
# What is read at once; of a chunk that breaks off nothing is kept.
_CHUNK = 1 << 16
# A broken connection that brought this much was no failure: the next one goes on.
_PROGRESS = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What a server answers when trying again may help (RFC 9110, RFC 6585).
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes\s+(?:(\d+)-\d+|\*)/(\d+|\*)\s*$")

# Called with what is done ("downloading cifar-10-binary.tar.gz"), how many bytes of it, and of how many.
Report = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Got:
    """What `get` did.

    Attributes:
        name: of the dataset.
        folder: where its files are.
        downloaded: names of the files that were fetched; empty where everything was there.
        bytes: size of these.
        files: number of files that came out of archives.
    """

    name: str
    folder: Path
    downloaded: tuple[str, ...]
    bytes: int
    files: int


class _Failed(Exception):
    """An address did not give the file: why."""


class _Again(_Failed):
    """It may give the file when it is asked again."""


def get(
    name: str,
    folder: str | Path | None = None,
    *,
    keep_archives: bool = False,
    report: Report | None = None,
) -> Got:
    """Download the dataset ``name`` and unpack it; what is there already is not fetched again.

    Beside what came out of ``ARCHIVE`` the MD5 of every file is kept in ``ARCHIVE.md5``, for `verify`.

    Args:
        folder: where to; made if it is missing. None: the dataset's own folder, see `places`.
        keep_archives: do not remove archives that have been unpacked.
        report: is told how far each download and each unpacking is.

    Raises:
        UserError: no published dataset of this name, or one that cannot be downloaded; no connection, a wrong
            checksum, a damaged archive, no space, or another process that is getting it.
    """
    found = catalog.entry(name)
    if not found.files:
        raise UserError(f"dataset '{name}' cannot be downloaded by a program: {found.how}")
    place = data_root() / name if folder is None else given_path(f"dataset '{name}': folder", folder)
    _make(place)
    downloaded: list[RemoteFile] = []
    count = 0
    with _locked(place / f".get{LOCK}", f"dataset '{name}' in {place}"):
        absent = set(catalog.missing(name, place))
        reserved = {file.name + ending for file in found.files for ending in ("", CHECKSUMS, PART)}
        for file in found.files:
            path = place / file.name
            # What came out of archives is checked by the loader; a file that is used as it came, here.
            if not absent.intersection(file.gives) and (file.unpack or not path.exists()):
                continue
            if _fetch(file, place, report):
                downloaded.append(file)
            if file.unpack:
                count += len(_unpack(path, place, report, reserved))
                if not keep_archives:
                    path.unlink()
            lost = [gift for gift in file.gives if not (place / gift).exists()]
            if lost:
                raise UserError(f"{path}: does not hold {lost[0]}, which the dataset '{name}' needs")
    return Got(name, place, tuple(f.name for f in downloaded), sum(f.bytes or 0 for f in downloaded), count)


def download(file: RemoteFile, folder: str | Path, *, report: Report | None = None) -> Path:
    """Fetch one file to ``folder``, unless it is there with the right checksum.

    The address and then its mirrors are asked in order. An interrupted download is kept as ``NAME.part``, and
    the next call goes on with it; one whose checksum is wrong is removed.

    Returns:
        Path of the file.

    Raises:
        UserError: no address gave the file, with what was wrong with each; an address that is not http(s); no
            space left; or another process that fetches the same file.
    """
    place = given_path("folder", folder)
    _make(place)
    _fetch(file, place, report)
    return place / file.name


def _fetch(file: RemoteFile, place: Path, report: Report | None) -> bool:
    """`download`; whether anything had to be fetched."""
    import pooch

    path, part = place / file.name, place / f"{file.name}{PART}"
    addresses = (file.url, *file.mirrors)
    for url in addresses:
        if not url.startswith(("http://", "https://")):
            raise UserError(f"{url}: only http and https addresses are downloaded")
    failures = []
    with _locked(place / f".{file.name}{LOCK}", str(path)), _quiet(pooch.get_logger()):
        try:
            _remove_links(part)
        except OSError as error:
            raise _disk(place, error, part) from None
        for url in addresses:
            resumed = True
            # What an earlier download left may be damaged: after a wrong checksum this begins anew, once.
            while resumed:
                resumed = _size(part) > 0
                downloader = ResumingDownloader(part, file.bytes, report, file.md5)
                try:
                    pooch.retrieve(url, f"md5:{file.md5}", file.name, place, downloader=downloader)
                    part.unlink(missing_ok=True)
                    return downloader.called
                except _Failed as failed:
                    failures.append(f"{url}: {failed}")
                    break
                except ValueError as error:
                    # pooch has removed its name of what was downloaded; this is the other one.
                    part.unlink(missing_ok=True)
                    match = re.search(r"but got (\w+)", str(error))
                    was = match.group(1) if match else "another"
                    failures.append(
                        f"{url}: the MD5 of what came is {was}, wanted {file.md5}; it was removed"
                    )
                except OSError as error:
                    raise _disk(place, error, part) from None
    kept = f"; {part} is kept, and the same command goes on with it" if _size(part) else ""
    raise UserError(f"{path}: could not be downloaded from {'; nor from '.join(failures)}{kept}")


@dataclass
class ResumingDownloader:
    """A downloader for ``pooch.retrieve`` that goes on where an earlier one stopped.

    Args:
        part: where the bytes are collected. When it is whole, the file that pooch names becomes a hard link
            to it: pooch checks and moves that one, and whoever called pooch then removes ``part``. On a disk
            without hard links ``part`` itself is moved there.
        size: bytes of the whole file; None where they are not known.
        report: see `get`.
        md5: of the whole file; tells whether ``part`` is whole where ``size`` does not.

    Attributes:
        called: whether pooch has asked for the file, that is, had no good one.
    """

    part: Path
    size: int | None = None
    report: Report | None = None
    md5: str | None = None
    called: bool = False

    def __call__(self, url: str, output_file: str, pooch: Any = None, check_only: bool = False) -> None:
        """Fetch ``url``; see pooch's documentation of custom downloaders.

        Raises:
            Exception: the address does not give the file; `download` says so in its `UserError`.
        """
        import requests

        self.called = True
        # pooch has made it, empty; a process that is killed during the download would leave it.
        Path(output_file).unlink(missing_ok=True)
        failures = 0
        with requests.Session() as session:
            while True:
                before = _size(self.part)
                try:
                    self._attempt(session, url)
                    break
                except _Again as failed:
                    failures = 0 if _size(self.part) - before >= _PROGRESS else failures + 1
                    if failures >= ATTEMPTS:
                        raise _Failed(f"{failed}, {ATTEMPTS} times") from None
                    time.sleep(PAUSE * 2 ** max(failures - 1, 0))
        try:
            os.link(self.part, output_file)
        except OSError:  # a disk without hard links
            os.replace(self.part, output_file)

    def _attempt(self, session: requests.Session, url: str) -> None:
        """Bring ``part`` to its full size, from where it is."""
        there = _size(self.part)
        if self.size is not None and there > self.size:
            self.part.unlink()
            there = 0
        if there == self.size or (self.size is None and there and self._matches()):
            return
        if self.size is not None and (free := shutil.disk_usage(self.part.parent).free) < self.size - there:
            raise OSError(errno.ENOSPC, f"{self.size - there} bytes are to come and {free} are free")
        # Compressed on the way, an archive would come with another checksum, and ranges of it mean nothing.
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={there}-"} if there else {})}
        with _asking(), session.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
            self._receive(answer, there)

    def _matches(self) -> bool:
        import pooch

        return self.md5 is not None and pooch.file_hash(str(self.part), alg="md5") == self.md5

    def _receive(self, answer: requests.Response, there: int) -> None:
        length = answer.headers.get("Content-Length", "")
        coming = int(length) if length.isdecimal() else None
        if answer.status_code == 416 and there:
            # Nothing comes after what is here: it is the whole file, or none of it.
            if _range(answer)[1] == there:
                if self.size is not None:
                    raise _Failed(f"has {there} bytes, wanted {self.size}")
                return
            self.part.unlink()
            raise _Again("it has no such range of bytes, so this begins anew")
        if answer.status_code == 206:
            first, total = _range(answer)
            if first != there or (self.size or total) != total:
                self.part.unlink(missing_ok=True)
                asked = f"bytes {there}- of {self.size or 'all'}"
                given = answer.headers.get("Content-Range", "no range")
                raise _Again(f"asked for {asked}, it gave {given}, so this begins anew")
            whole = self.size or total
        elif answer.status_code == 200:
            there = 0  # the server does not go on in the middle
            whole = coming
            if self.size is not None and coming not in (None, self.size):
                raise _Failed(f"has {coming} bytes, wanted {self.size}")
        else:
            kind = _Again if answer.status_code in _TRY_AGAIN else _Failed
            raise kind(f"HTTP {answer.status_code} {answer.reason}".rstrip())
        with open(self.part, "r+b" if there else "wb") as file:
            file.seek(there)
            self._collect(answer, file, there, whole or self.size)
        whole = whole or self.size
        if whole is not None and _size(self.part) < whole:
            raise _Again(f"the connection ended after {_size(self.part)} of {whole} bytes")

    def _collect(self, answer: requests.Response, file: IO[bytes], there: int, whole: int | None) -> None:
        if self.report is not None:
            self.report(self._what(), there, whole)
        # Not iter_content: it would unpack what a server calls Content-Encoding, the .gz itself too.
        for chunk in answer.raw.stream(_CHUNK, decode_content=False):
            there += len(chunk)
            if self.size is not None and there > self.size:
                self.part.unlink()
                raise _Failed(f"gave more than the {self.size} bytes of the file")
            file.write(chunk)
            if self.report is not None:
                self.report(self._what(), there, whole)

    def _what(self) -> str:
        return f"downloading {self.part.name.removesuffix(PART)}"


@contextmanager
def bars(console: Console | None = None) -> Iterator[Report | None]:
    """Progress bars of downloads and unpackings on a terminal; gives what `get` takes as its ``report``.

    Args:
        console: None: standard error. Where it is no terminal nothing is drawn, and None is given.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    shown = console or Console(stderr=True)
    if not shown.is_terminal:
        yield None
        return
    columns = (
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=shown) as progress:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, whole: int | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=whole)
            progress.update(tasks[what], completed=done, total=whole)

        yield report


def _unpack(path: Path, place: Path, report: Report | None, reserved: Collection[str]) -> dict[str, str]:
    """Unpack an archive whose checksum is right, and keep the checksums of its files."""
    size, done = path.stat().st_size, 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if report is not None:
            report(f"unpacking {path.name}", done, size)

    found = archives.extract(path, place, advance=advance, reserved=reserved)
    try:
        write_checksums(place / f"{path.name}{CHECKSUMS}", found)
    except OSError as error:
        raise _disk(place, error, path) from None
    return found


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """pooch tells standard error what it does; here ``report`` says it."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _asking() -> Iterator[None]:
    """Turn the many failures of a connection into one."""
    import requests
    import urllib3

    try:
        yield
    except requests.exceptions.SSLError as error:
        raise _Failed(f"the connection is not secure: {_cause(_innermost(error))}") from None
    except (requests.exceptions.InvalidSchema, requests.exceptions.InvalidURL) as error:
        raise _Failed(f"leads to an address that is not http or https: {error}") from None
    except requests.exceptions.TooManyRedirects:
        raise _Failed("leads from one address to the next without end") from None
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        inner = _innermost(error)
        # Nobody is there: a mirror may be, and asking once more would only take time.
        absent = (urllib3.exceptions.NameResolutionError, ConnectionRefusedError)
        nobody = isinstance(inner, absent) or isinstance(inner.__cause__, absent)
        raise (_Failed if nobody else _Again)(_cause(inner)) from None


def _innermost(error: BaseException) -> BaseException:
    """The failure that requests and urllib3 have wrapped into others."""
    while True:
        wrapped = (getattr(error, "reason", None), *error.args)
        inner = next((e for e in wrapped if isinstance(e, BaseException)), None)
        if inner is None:
            return error
        error = inner


def _cause(inner: BaseException) -> str:
    """The reason of a failed connection in a few words."""
    import urllib3

    if isinstance(inner, urllib3.exceptions.NameResolutionError):
        return "the name of the host is not known, or there is no network"
    # The one of a refused connection is a kind of this one.
    if type(inner) is urllib3.exceptions.ConnectTimeoutError:
        return f"no connection within {TIMEOUT[0]:g} s"
    if isinstance(inner, (urllib3.exceptions.ReadTimeoutError, TimeoutError)):
        return f"no bytes for {TIMEOUT[1]:g} s"
    if isinstance(inner, urllib3.exceptions.IncompleteRead):
        return "the connection broke"
    text = str(inner).split("\n")[0]
    # "HTTPConnection(...): Failed to establish a new connection: [Errno 111] Connection refused"
    return re.sub(r"^.*\[Errno \d+\] ", "", text) or type(inner).__name__


def _range(answer: requests.Response) -> tuple[int | None, int | None]:
    """First byte and size of the whole, as the answer's Content-Range says."""
    match = _CONTENT_RANGE.match(answer.headers.get("Content-Range", ""))
    if match is None:
        return None, None
    first, total = (int(text) if text and text != "*" else None for text in match.groups())
    return first, total


@contextmanager
def _locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; the system lets go of it when the process ends, however it does."""
    try:
        file = _lock(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be locked: {error.strerror}") from None
    if file is None:
        holder = path.read_text().strip() if path.exists() else ""
        by = f" (process {holder})" if holder else ""
        raise UserError(f"{what}: another process{by} is getting it; wait until it has ended")
    with file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(path: Path) -> IO[str] | None:
    """The file, locked; None where another process has the lock."""
    while True:
        file = open(path, "a+")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file between our opening and our locking it.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        file.close()


def _remove_links(part: Path) -> None:
    """Remove the temporary names of ``part`` that pooch left when it was killed; its lock must be held."""
    if not _size(part):
        return
    # The names are those of Python's tempfile; only other names of this same file are ours.
    for path in part.parent.glob("tmp" + "[a-z0-9_]" * 8):
        if not path.is_symlink() and path.is_file() and path.samefile(part):
            path.unlink()


def _make(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{place}: this folder cannot be made: {error.strerror}") from None


def _disk(place: Path, error: OSError, part: Path) -> UserError:
    """What is wrong with the disk that is written to."""
    if error.errno in _FULL:
        kept = f"; {part.name} is kept" if _size(part) else ""
        return UserError(
            f"{place}: no space is left on its disk ({error.strerror}){kept}; make room, and the same "
            "command goes on"
        )
    return UserError(f"{error.filename or place}: cannot be written: {error.strerror or error}")


def _size(path: Path) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
