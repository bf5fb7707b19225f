"""Where the server keeps its files, and how they are written.

RUNS/ID/                  the run folder of a job, written by its own process
RUNS/.serve/jobs/ID.json  the job
RUNS/.serve/logs/ID.log   what its process printed
RUNS/.serve/uploads/ID/   an uploaded file as STEM.onnx, and upload.json, what was found in it
RUNS/.serve/lock          held while a server uses the folder
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.run import explained, replace_file
from meta500.web.refusals import Refusal

JOB = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}", re.ASCII)
UPLOAD = re.compile(r"[0-9a-f]{32}", re.ASCII)
STEM = 40
_OTHER = re.compile(r"[^A-Za-z0-9_-]+", re.ASCII)
# Free bytes without which no run is started: its folder, plots and log need some.
FREE = 32 * 2**20


class Storage:
    """The folders below one runs folder; made and locked on creation.

    Raises:
        UserError: the folder cannot be written, or another server uses it.
    """

    def __init__(self, runs: Path) -> None:
        self.runs = runs.absolute()
        own = self.runs / ".serve"
        self.jobs, self.logs, self.uploads = own / "jobs", own / "logs", own / "uploads"
        for folder in (self.runs, own, self.jobs, self.logs, self.uploads):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise explained(folder, error) from error
        own.chmod(0o700)
        self._lock = _locked(own / "lock")
        for path in self.uploads.iterdir():  # what a server left that was killed
            if path.suffix == ".part":
                path.unlink(missing_ok=True)
            elif UPLOAD.fullmatch(path.name) and not any(path.glob("*.onnx")):
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Let another server use the folder."""
        os.close(self._lock)

    def run(self, job: str) -> Path:
        """The run folder of a job."""
        return self.runs / _matched(JOB, job)

    def job(self, job: str) -> Path:
        """The file of a job."""
        return self.jobs / f"{_matched(JOB, job)}.json"

    def log(self, job: str) -> Path:
        """The log of a job."""
        return self.logs / f"{_matched(JOB, job)}.log"

    def upload(self, upload: str) -> Path:
        """The folder of an uploaded file."""
        return self.uploads / _matched(UPLOAD, upload)

    def uploaded(self, upload: str) -> Path:
        """An uploaded file.

        Raises:
            UserError: it is not there any more.
        """
        for path in self.upload(upload).glob("*.onnx"):
            return path
        raise UserError("the uploaded file is gone")

    def check_free(self) -> None:
        """Refuse to begin anything on a disk that is full.

        Raises:
            Refusal: there are fewer than `FREE` bytes.
        """
        found = os.statvfs(self.runs)
        free = found.f_bavail * found.f_frsize
        if free < FREE:
            error = explained(self.runs, OSError(errno.ENOSPC, "full"), f"{free / 2**20:.1f} MiB are free")
            raise Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(error))


def stem(name: str) -> str:
    """The part of a file's name that may be the name of a file here: ASCII letters, digits, "-" and "_"."""
    return _OTHER.sub("-", name.removesuffix(".onnx"))[:STEM].strip("-") or "model"


def new_job() -> str:
    """A new identifier of a job; they sort by time."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def new_upload() -> str:
    """A new identifier of an upload, which nobody can guess."""
    return secrets.token_hex(16)


def now() -> str:
    """The time, UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def write_json(path: Path, content: Any) -> None:
    """Replace a file as a whole.

    Raises:
        UserError: it cannot be written; the old content stays.
    """
    replace_file(path, json.dumps(content, indent=1) + "\n")


def _matched(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise UserError(f"'{text[:80]}' is no identifier")
    return text


def _locked(path: Path) -> int:
    import fcntl

    try:
        # Python's descriptors are not inherited: runs that go on do not keep the lock.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise explained(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"{path.parent.parent}: another server uses this folder; stop it or choose another --runs"
        ) from None
    except OSError:
        pass  # a file system without locks
    return descriptor
