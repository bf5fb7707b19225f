"""The cache of compiled code on disk: content-addressed, shared by processes, safe against damage.

Folders of the cache:

- ``libraries/KEY/``: a shared library, its record (``record.json``) and sources that were given as text;
- ``objects/KEY``: an object file behind its checksum;
- ``compilers/KEY``: what is known about a compiler, asked again after a day;
- ``failed/KEY/``: sources given as text that did not compile, kept for a day;
- ``locks/``: empty files; a process that builds holds the lock on one.

Everything is made under a name that begins with ``.build-`` and renamed whole, so that what has its final
name is complete; checksums find what was damaged later. A build that was killed leaves only ``.build-*``,
which a later build removes after a day.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from meta500.errors import UserError

LIBRARY, RECORD = "library.so", "record.json"
STALE_SECONDS = 24 * 3600
_FOLDERS = ("libraries", "objects", "compilers", "failed", "locks")
_BUILD = ".build-"
_LOCK_SECONDS = 120
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_DIGEST_BYTES = 32


def cache_folder() -> Path:
    """Where compiled code is kept; the folder may not exist yet."""
    given = os.environ.get("META500_CACHE")
    if given:
        return Path(given).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "meta500"


def library_entry(key: str) -> Path:
    """The folder of the library with this key; it may not exist."""
    return cache_folder() / "libraries" / key


def intact(entry: Path) -> bool:
    """Whether ``entry`` holds a library that is as it was built, with the texts that its record names."""
    try:
        record = json.loads((entry / RECORD).read_text())
        texts: dict[str, int] = record["texts"]
        return all((entry / name).stat().st_size == size for name, size in texts.items()) and bool(
            record["sha256"] == hashlib.sha256((entry / LIBRARY).read_bytes()).hexdigest()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def read_record(entry: Path) -> dict[str, Any]:
    """The record of a library.

    Raises:
        UserError: it is missing or damaged.
    """
    try:
        record = json.loads((entry / RECORD).read_text())
        if not isinstance(record, dict):
            raise ValueError
    except (OSError, ValueError):
        raise UserError(f"{entry / RECORD}: is missing or damaged; compile the library again") from None
    return record


def write_record(folder: Path, record: dict[str, Any], texts: dict[str, int]) -> None:
    """Complete a new entry in ``folder``.

    Args:
        folder: with the library and its texts.
        record: what the entry is, for people and :func:`read_record`.
        texts: names and sizes in bytes of the texts.
    """
    checksum = hashlib.sha256((folder / LIBRARY).read_bytes()).hexdigest()
    (folder / RECORD).write_text(json.dumps({"sha256": checksum, "texts": texts, **record}, indent=1))


@contextmanager
def workplace(kind: str) -> Iterator[Path]:
    """A new empty folder in the cache's folder ``kind``, removed afterwards if it is still there.

    Raises:
        UserError: the cache can't be written, or the disk is full (also while the folder is in use).
    """
    place = cache_folder() / kind
    with writing(place):
        _make(place)
        _remove_stale(place)
        folder = Path(tempfile.mkdtemp(prefix=_BUILD, dir=place))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def publish(folder: Path, entry: Path) -> None:
    """Move a finished build to its place; an intact one that another process has put there first stays."""
    for _ in range(10):
        try:
            folder.rename(entry)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            if intact(entry):
                return
        damaged = Path(tempfile.mkdtemp(prefix=_BUILD, dir=entry.parent))
        with suppress(OSError):  # another process may have moved it away
            entry.rename(damaged / "entry")
        shutil.rmtree(damaged, ignore_errors=True)
    raise UserError(f"{entry}: cannot be replaced; remove this folder of the cache")


def load_object(key: str) -> bytes | None:
    """The object file with this key; None where there is none, or only a damaged one."""
    try:
        data = (cache_folder() / "objects" / key).read_bytes()
    except OSError:
        return None
    contents = data[_DIGEST_BYTES:]
    return contents if contents and hashlib.sha256(contents).digest() == data[:_DIGEST_BYTES] else None


def store_object(key: str, contents: bytes) -> None:
    """Keep an object file.

    Raises:
        UserError: the cache can't be written.
    """
    place = cache_folder() / "objects"
    with writing(place):
        _store(place / key, hashlib.sha256(contents).digest() + contents)


def load_fact(key: str) -> str | None:
    """What was stored under this key within the last day, else None."""
    path = cache_folder() / "compilers" / key
    try:
        if not 0 <= time.time() - path.stat().st_mtime < STALE_SECONDS:
            return None
        checksum, _, text = path.read_bytes().decode().partition("\n")
    except (OSError, ValueError):
        return None
    return text if checksum == hashlib.sha256(text.encode()).hexdigest() else None


def store_fact(key: str, text: str) -> None:
    """Remember ``text`` for a day; where the cache can't be written it is asked again."""
    checksum = hashlib.sha256(text.encode()).hexdigest()
    with suppress(OSError):
        _store(cache_folder() / "compilers" / key, f"{checksum}\n{text}".encode())


def keep_failed(key: str, texts: dict[str, str]) -> Path | None:
    """Write sources that did not compile where a person can read them for a day; None if that fails."""
    folder = cache_folder() / "failed" / key
    try:
        _make(folder.parent)
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
    except OSError:
        return None
    return folder


@contextmanager
def lock(key: str) -> Iterator[None]:
    """Hold the lock on ``key``, so that processes that want the same library don't all compile it.

    It saves work and nothing depends on it: where locks don't work, or the holder takes too long, it goes on
    without.
    """
    try:
        import fcntl

        _make(cache_folder() / "locks")
        file = (cache_folder() / "locks" / key[:2]).open("a")
    except (ImportError, OSError):
        yield
        return
    with file:  # closing it releases the lock, and so does the end of the process
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield


def cache_size() -> int:
    """Bytes of the files in the cache."""
    total = 0
    for kind in _FOLDERS:
        for folder, _, names in os.walk(cache_folder() / kind):
            for name in names:
                with suppress(OSError):  # another process may have moved it
                    total += os.lstat(os.path.join(folder, name)).st_size
    return total


def clear_cache() -> int:
    """Remove all that was compiled, except what is being built now; the bytes that this freed.

    Raises:
        UserError: something can't be removed.
    """
    before = cache_size()
    for kind in _FOLDERS:
        place = cache_folder() / kind
        with writing(place):
            for path in place.iterdir() if place.is_dir() else ():
                if not path.name.startswith(_BUILD):
                    _remove(path)
            if place.is_dir():
                _remove_stale(place)
    return before - cache_size()


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn failures to write ``place`` into one clear error."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise UserError(disk_full(error.strerror or "")) from None
        raise UserError(
            f"the cache folder {place} cannot be written ({error.strerror}); "
            "name another one in the environment variable META500_CACHE"
        ) from None


def disk_full(reason: str) -> str:
    """The message for a full disk; ``reason`` in the words of the system or the compiler."""
    return (
        f"the disk of the cache folder {cache_folder()} is full ({reason}); free some space, or name a "
        "folder on another disk in the environment variable META500_CACHE"
    )


def _make(place: Path) -> None:
    # What lies here is loaded into this process: nobody else may put anything into a folder made here.
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.mkdir(mode=0o700, exist_ok=True)


def _store(path: Path, data: bytes) -> None:
    _make(path.parent)
    handle, name = tempfile.mkstemp(prefix=_BUILD, dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _remove_stale(place: Path) -> None:
    """Remove what builds that were killed left behind, and old sources that did not compile."""
    limit = time.time() - STALE_SECONDS
    kept = place.parent / "failed"
    for path in [*place.glob(_BUILD + "*"), *(kept.iterdir() if kept.is_dir() else ())]:
        with suppress(OSError):
            if path.lstat().st_mtime < limit:
                _remove(path)


def _remove(path: Path) -> None:
    with suppress(FileNotFoundError):  # another process was faster
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
