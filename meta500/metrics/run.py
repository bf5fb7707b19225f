"""Run folders: everything about one run, readable while it is going and after it was killed.

    run.json    what ran, where and how it ended; replaced as a whole, never half-written
    rows.csv    the result rows, each handed to the operating system as soon as it is known
    plots/      made from the two files above, so they can be made again

A run that notes checkpoints can be gone on with after an interruption. The file of the rows is locked while
a run is written, so that two processes cannot write the same one.

Neither pandas nor anything else that is heavy is imported for writing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from meta500.errors import UserError
from meta500.metrics.machine import environment as capture
from meta500.metrics.rows import COLUMNS, Row, csv_line, read_csv, to_csv_line, to_json_line

FORMAT = "meta500 run"
RUN_SCHEMA_VERSION = 1
STATUSES = ("running", "finished", "failed", "interrupted")
REQUIRED = ("id", "status", "environment", "command", "seeds", "started")

# What readers of an environment rely on, where it is there at all.
PARTS = {
    "cpu": dict,
    "cpu.caches_bytes": dict,
    "cpu.vector": list,
    "git": dict,
    "gpus": list,
    "memory": dict,
    "os": dict,
    "python": dict,
    "versions": dict,
}

REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space or choose another folder",
    errno.EDQUOT: "the disk quota is used up: free some space or choose another folder",
    errno.EFBIG: "the file would be larger than the system allows: choose another folder",
    errno.EACCES: "permission denied: choose a folder that you may write to",
    errno.EPERM: "permission denied: choose a folder that you may write to",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.ENOTDIR: "a part of the path is a file: choose another folder",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
}

# Questions about the lock hold it for a moment.
LOCK_TRIES = 10
_APPENDING = os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0)


class RunFolder:
    """One run on disk; made by :meth:`create` or :meth:`resume` (for writing) or :meth:`open` (for reading).

    As a context manager it marks the run: "finished" at the normal end, "interrupted" by Ctrl-C,
    "failed" by any other exception. The rows written until then stay in either case.

    Attributes:
        path: the folder.
        info: contents of run.json: ``format``, ``schema_version``, ``id``, ``status`` (one of
            :data:`STATUSES`), ``message``, ``command`` (list of words), ``seeds``, ``environment``
            (with versions and git state), ``started`` and ``finished`` (UTC, ISO 8601; None while
            running).
        problems: what was wrong but tolerable on reading, in words.
    """

    def __init__(self, path: Path, info: dict[str, Any], *, writable: bool) -> None:
        self.path, self.info = path, info
        self.problems: list[str] = []
        self._rows: list[Row] | None = None
        self._descriptor: int | None = None
        self._written = 0
        self._writable = writable

    @classmethod
    def create(
        cls,
        path: str | Path | None = None,
        *,
        root: str | Path = "runs",
        command: Sequence[str] | None = None,
        seeds: Mapping[str, int] | None = None,
        environment: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Start a run in a new folder.

        Args:
            path: the folder, new or empty; by default a new one in ``root``, named by UTC time and
                a random part.
            root: where a folder without ``path`` is made.
            command: words of the command line; by default that of this process.
            seeds: seeds by purpose, e.g. ``{"weights": 0}``.
            environment: machine and software; by default captured now.

        Raises:
            UserError: ``path`` exists and is not empty, or cannot be written.
        """
        now = datetime.now(UTC)
        identifier = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        folder = Path(root) / identifier if path is None else Path(path)
        try:
            if folder.exists() and not folder.is_dir():
                raise UserError(f"{folder}: is a file; name a new or empty folder for the run")
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise UserError(f"{folder}: is not empty; name a new or empty folder for the run")
        except OSError as error:
            raise explained(folder, error) from error
        info = {
            "format": FORMAT,
            "schema_version": RUN_SCHEMA_VERSION,
            "id": identifier,
            "status": "running",
            "message": "",
            "command": list(sys.argv if command is None else command),
            "seeds": dict(seeds or {}),
            "environment": dict(capture() if environment is None else environment),
            "started": now.isoformat(timespec="seconds"),
            "finished": None,
        }
        run = cls(folder, info, writable=True)
        run._save()
        try:
            run._descriptor = os.open(run.rows_path, _APPENDING | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            raise explained(run.rows_path, error) from error
        _lock(run._descriptor, run.path)
        run._write(csv_line(COLUMNS))
        return run

    @classmethod
    def resume(cls, path: str | Path) -> RunFolder:
        """Go on writing a run that did not finish, from its last checkpoint (see :meth:`checkpoint`).

        Rows after the checkpoint are dropped: they belong to work that was under way and will be done again.
        ``info["continued"]`` lists when a run was gone on with.

        Raises:
            UserError: there is no run, it is finished or has no checkpoint, another process is writing it,
                its rows are shorter than the checkpoint says, or it cannot be written.
        """
        run = cls.open(path)
        try:
            run._descriptor = os.open(run.rows_path, _APPENDING)
        except OSError as error:
            raise explained(run.rows_path, error) from error
        try:
            _lock(run._descriptor, run.path)
            # Whoever held the lock before may have written more.
            run.info = read_info(run.path / "run.json")
            size = _checkpoint_of(run)
            there = os.fstat(run._descriptor).st_size
            if there < size:
                raise UserError(
                    f"{run.rows_path}: has {there} bytes, the checkpoint counted {size}: rows are lost; "
                    "start anew in another folder"
                )
            os.ftruncate(run._descriptor, size)
        except BaseException:
            os.close(run._descriptor)
            raise
        run._rows, run._writable = None, True
        run._written = len(run.rows)
        run.problems.clear()
        continued = [*run.info.get("continued", []), datetime.now(UTC).isoformat(timespec="seconds")]
        run.info |= {"status": "running", "message": "", "finished": None, "continued": continued}
        run._save()
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Read a run; what is wrong but leaves it readable, as an incomplete row, is in ``problems``.

        Raises:
            UserError: there is no such folder, it holds no run, or a file in it is malformed.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such folder; name the folder of a run")
        info = read_info(folder / "run.json")
        run = cls(folder, info, writable=False)
        if info["status"] == "running":
            run.problems.append(f"{folder}: the run is not finished: it is still going or was killed")
        if not run.rows_path.exists():
            raise UserError(f"{run.rows_path}: is missing; the folder holds no complete run")
        run._rows = read_csv(run.rows_path, run.problems)
        return run

    @property
    def id(self) -> str:
        """Identifier of the run, also when its folder is renamed."""
        return str(self.info["id"])

    @property
    def status(self) -> str:
        """One of :data:`STATUSES`."""
        return str(self.info["status"])

    @property
    def environment(self) -> dict[str, Any]:
        """Machine and software, see :func:`meta500.metrics.machine.environment`."""
        return self.info["environment"]  # type: ignore[no-any-return]

    @property
    def rows_path(self) -> Path:
        """The file with the rows."""
        return self.path / "rows.csv"

    @property
    def rows(self) -> list[Row]:
        """All rows so far, in the order in which they were appended; read from the file."""
        return list(read_csv(self.rows_path) if self._rows is None else self._rows)

    def append(self, row: Row) -> None:
        """Write one row; it survives the death of this process. An empty ``run_id`` is filled in.

        Raises:
            UserError: the row belongs to another run, the run is over, or writing failed (the rows so far
                are intact then).
        """
        self.extend((row,))

    def extend(self, rows: Iterable[Row]) -> None:
        """Write several rows, each as :meth:`append` does."""
        for row in rows:
            if row.run_id not in ("", self.id):
                raise UserError(f"the row belongs to run {row.run_id}, not to run {self.id}")
            self._write(to_csv_line(row if row.run_id else replace(row, run_id=self.id)))
            self._written += 1

    def checkpoint(self, **facts: Any) -> None:
        """Note that everything so far is complete, so that :meth:`resume` can go on from here.

        Args:
            facts: what whoever goes on has to know, as JSON can hold it; they replace those of the last one.

        Raises:
            UserError: the run is over or writing failed.
        """
        if self._descriptor is None:
            raise UserError(f"{self.path}: this run is over ({self.status}); it takes no checkpoint")
        try:
            os.fsync(self._descriptor)
            size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise explained(self.rows_path, error) from error
        self.info["checkpoint"] = {"bytes": size, **facts}
        self._save()

    def finish(self, status: str = "finished", message: str = "") -> None:
        """Close the run with a status of :data:`STATUSES` and a reason; the first call counts.

        Raises:
            UserError: the status is unknown, the folder was opened for reading, or writing failed.
        """
        if status not in STATUSES[1:]:
            raise UserError(f"'{status}' is no final status; use one of {', '.join(STATUSES[1:])}")
        if not self._writable:
            raise UserError(f"{self.path}: this run was opened for reading and cannot be changed")
        if self.status != "running":
            return
        descriptor, self._descriptor = self._descriptor, None
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        self.info |= {"status": status, "message": message, "finished": finished}
        try:
            if descriptor is not None:
                os.fsync(descriptor)
        except OSError as error:
            raise explained(self.rows_path, error) from error
        finally:
            if descriptor is not None:
                os.close(descriptor)
            self._save()

    def plot_path(self, name: str) -> Path:
        """Path of a file in ``plots/``, which is made if it is missing.

        Raises:
            UserError: the folder cannot be written.
        """
        path = self.path / "plots" / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explained(path.parent, error) from error
        return path

    def export_jsonl(self, path: str | Path | None = None) -> Path:
        """Write all rows as JSONL (default: ``rows.jsonl`` in the folder) and return the path.

        Raises:
            UserError: the file cannot be written.
        """
        target = self.path / "rows.jsonl" if path is None else Path(path)
        replace_file(target, "".join(map(to_json_line, self.rows)))
        return target

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._writable:
            return
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self.finish()
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        message = "interrupted by the user" if interrupted else f"{type(error).__name__}: {error}"
        # The error in flight is what the user must see; that its end could not be noted comes
        # second.
        try:
            self.finish("interrupted" if interrupted else "failed", message)
        except UserError as second:
            error.add_note(f"The end of the run could not be noted: {second}")

    def _write(self, line: str) -> None:
        """Append a line, whole or not at all."""
        if self._descriptor is None:
            state = "was opened for reading" if not self._writable else f"is over ({self.status})"
            raise UserError(f"{self.path}: this run {state}; rows can only be added to a running one")
        rest = memoryview(line.encode("utf-8", "backslashreplace"))
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BaseException as error:
            # Not only errors: Ctrl-C between two parts must not leave half a row either.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, end)
            if isinstance(error, OSError):
                raise explained(self.rows_path, error, f"{self._written} rows so far are intact") from error
            raise

    def _save(self) -> None:
        replace_file(self.path / "run.json", json.dumps(self.info, indent=2, default=str) + "\n")


def note_end(path: str | Path, status: str, message: str) -> bool:
    """Mark a run from outside of the process that wrote it and is gone; False if it is marked already.

    Raises:
        UserError: there is no run, the status is unknown, or writing failed.
    """
    if status not in STATUSES[1:]:
        raise UserError(f"'{status}' is no final status; use one of {', '.join(STATUSES[1:])}")
    info = read_info(Path(path) / "run.json")
    if info["status"] != "running":
        return False
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    info |= {"status": status, "message": message, "finished": finished}
    replace_file(Path(path) / "run.json", json.dumps(info, indent=2, default=str) + "\n")
    return True


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a crash, sees either the old or the new content.

    Raises:
        UserError: it cannot be written; the old content stays.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise explained(path, error) from error


def _checkpoint_of(run: RunFolder) -> int:
    """Bytes of the rows at the last checkpoint of a run that did not finish."""
    if run.status == "finished":
        raise UserError(f"{run.path}: the run is finished; there is nothing to go on with")
    size = (run.info.get("checkpoint") or {}).get("bytes")
    if not isinstance(size, int):
        raise UserError(f"{run.path}: the run has no checkpoint; it cannot be gone on with")
    return size


def _lock(descriptor: int, path: Path) -> None:
    """Keep other processes from writing the same run, as long as this one lives (POSIX)."""
    try:
        import fcntl
    except ImportError:
        return
    for left in reversed(range(LOCK_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not left:
                raise UserError(f"{path}: another process is writing this run; wait for its end") from None
            # Perhaps somebody only asks, see `being_written`.
            time.sleep(0.01)
        except OSError:
            return  # a file system without locks
        else:
            return


def being_written(path: str | Path) -> bool | None:
    """Whether a process writes the rows of the run in folder ``path`` now; None where that cannot be known.

    A run that is about to be made, or one on a file system without locks, is not known.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        descriptor = os.open(Path(path) / "rows.csv", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def explained(path: Path, error: OSError, state: str = "") -> UserError:
    """What to do about a file that cannot be written; ``state`` says what is not lost."""
    remedy = REMEDIES.get(error.errno or 0, error.strerror or str(error))
    return UserError(f"{path}: cannot be written: {remedy}" + (f" ({state})" if state else ""))


def read_info(path: Path) -> dict[str, Any]:
    """Contents of a run.json.

    Raises:
        UserError: there is none, or it is damaged or of a newer version.
    """
    try:
        info = json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path.parent}: is no run folder: there is no run.json in it") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is damaged: byte {error.start} is no UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {error.lineno}, column {error.colno}: is damaged: {error.msg}"
        ) from None
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise UserError(f'{path}: does not describe a run: "format" is not "{FORMAT}"')
    version = info.get("schema_version")
    if not isinstance(version, int) or version < 1:
        raise UserError(f"{path}: schema_version {version!r} is no version")
    if version > RUN_SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema_version {version} was written by a newer meta500; this one reads up "
            f"to {RUN_SCHEMA_VERSION}: install the newer one"
        )
    for key in REQUIRED:
        if key not in info:
            raise UserError(f"{path}: is damaged: '{key}' is missing")
    if info["status"] not in STATUSES or not isinstance(info["environment"], dict):
        raise UserError(f"{path}: is damaged: 'status' or 'environment' holds {info['status']!r:.40}")
    _check_environment(path, info["environment"])
    return info


def _check_environment(path: Path, environment: Mapping[str, Any]) -> None:
    for name, kind in PARTS.items():
        *above, last = name.split(".")
        found = (environment.get(above[0]) or {} if above else environment).get(last)
        word = "list" if kind is list else "table"
        if found is not None and not isinstance(found, kind):
            raise UserError(f"{path}: is damaged: 'environment.{name}' is no {word}: {found!r:.40}")
    for gpu in environment.get("gpus") or []:
        if not isinstance(gpu, dict):
            raise UserError(f"{path}: is damaged: 'environment.gpus' is no list of tables: {gpu!r:.40}")
