"""A training run from the request to its end, and the file by which another server finds it again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.web.storage import JOB, write_json

ACTIVE = ("starting", "running")
FINAL = ("finished", "failed", "interrupted", "stopped")
STATES = ("queued", *ACTIVE, *FINAL)


@dataclass
class Job:
    """One run.

    Attributes:
        id: its identifier, also the name of its folder.
        setup: what was asked for, as `setups.checked` gives it.
        label: a name for people.
        created, started, ended: times, UTC, ISO 8601; None where it has not come to that.
        state: one of `STATES`.
        message: why it ended, where there is something to say.
        pid: its process, which leads a process group; None before it is started.
        birth: when that process was created, in seconds since the epoch, since numbers of processes are used
            again.
        stopping: whether somebody asked for its end.
        model: the name of the model, or of the uploaded file.
        results: of a run that is over, see `ranking.results`; None where there are none.
    """

    id: str
    setup: dict[str, Any]
    label: str
    model: str
    created: str
    state: str = "queued"
    message: str = ""
    started: str | None = None
    ended: str | None = None
    pid: int | None = None
    birth: float | None = None
    stopping: bool = False
    results: dict[str, Any] | None = field(default=None)

    def save(self, path: Path) -> None:
        """Write the job's file.

        Raises:
            UserError: it cannot be written.
        """
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Job:
        """The job in a file.

        Raises:
            UserError: it cannot be read, or is damaged.
        """
        try:
            content = json.loads(path.read_bytes())
            known = {entry.name for entry in fields(cls)}
            job = cls(**{key: value for key, value in content.items() if key in known})
            fits = JOB.fullmatch(job.id) and path.stem == job.id and job.state in STATES
            fits = fits and isinstance(job.setup, dict) and isinstance(job.pid, int | None)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: is no job: {error}") from None
        if not fits:
            raise UserError(f"{path}: is damaged")
        return job

    def summary(self, position: int | None, progress: Any) -> dict[str, Any]:
        """What the page shows of it; ``position`` in the queue, ``progress`` of its run."""
        shown = {key: value for key, value in self.setup.items() if key != "label"}
        return {
            "id": self.id,
            "label": self.label,
            "state": self.state,
            "position": position,
            "created": self.created,
            "started": self.started,
            "ended": self.ended,
            "setup": {**shown, "model": self.model},
            "progress": progress,
            "message": self.message,
        }
