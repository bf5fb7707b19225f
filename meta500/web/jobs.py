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
# What the page and the ranking read of a setup and of results.
_SETUP = {"dataset": str, "backend": str, "optimizer": str, "native": bool}
_NUMBERS = ("accuracy", "best_accuracy", "loss", "seconds")
_WORDS = (None, "NaN", "Infinity", "-Infinity")


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
            json.dumps(content, allow_nan=False)  # what cannot be told must not be listed
            known = {entry.name for entry in fields(cls)}
            job = cls(**{key: value for key, value in content.items() if key in known})
            fits = JOB.fullmatch(job.id) and path.stem == job.id and job.state in STATES
            fits = fits and job.sound()
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}: is no job: {error}") from None
        if not fits:
            raise UserError(f"{path}: is damaged")
        return job

    def sound(self) -> bool:
        """Whether every field is what it says; the file may have been written by anybody."""
        texts = (self.label, self.model, self.created, self.message)
        return (
            all(isinstance(text, str) for text in texts)
            and all(isinstance(text, str | None) for text in (self.started, self.ended))
            and isinstance(self.pid, int | None)
            and (self.pid is None or self.pid > 0)
            and isinstance(self.birth, float | int | None)
            and isinstance(self.stopping, bool)
            and isinstance(self.setup, dict)
            and all(isinstance(self.setup.get(key), kind) for key, kind in _SETUP.items())
            and isinstance(self.setup.get("upload"), str | None)
            and (self.results is None or _are_results(self.results))
        )

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


def _is_number(value: Any) -> bool:
    """Whether it is a number as `plain` gives it, or None."""
    return value in _WORDS if isinstance(value, str | None) else isinstance(value, int | float)


def _are_results(found: Any) -> bool:
    if not isinstance(found, dict) or not isinstance(found.get("epochs"), int):
        return False
    pairs = found.get("improvements")
    return (
        all(key in found and _is_number(found[key]) for key in _NUMBERS)
        and isinstance(found.get("progress", ""), dict | None)
        and isinstance(pairs, list)
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)) for pair in pairs)
        and all(isinstance(accuracy, int | float) for _, accuracy in pairs)
    )
