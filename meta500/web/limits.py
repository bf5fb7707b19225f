"""What one server takes on at most."""

from __future__ import annotations

import os
from dataclasses import dataclass

from meta500.errors import UserError

MEBI, GIBI = 2**20, 2**30


@dataclass(frozen=True)
class Limits:
    """Bounds on what comes from outside.

    Attributes:
        upload: bytes of one uploaded file.
        uploads: number of uploaded files that are kept; beyond it the oldest that no run needs goes.
        running: runs at the same time.
        queued: runs that wait.
        memory: bytes of memory of one training process; None: no bound.
        clients: connections that follow events.
        body: bytes of a JSON request.
        grace: seconds between SIGINT and SIGTERM, and half of that between SIGTERM and SIGKILL.
    """

    upload: int = 200 * MEBI
    uploads: int = 50
    running: int = 1
    queued: int = 20
    memory: int | None = None
    clients: int = 200
    body: int = 65536
    grace: float = 10.0

    def __post_init__(self) -> None:
        for name, least in (("upload", 1), ("uploads", 1), ("running", 1), ("queued", 0), ("clients", 1)):
            value = getattr(self, name)
            if value < least:
                raise UserError(f"--max-{name} must be at least {least}, got {value}")
        if self.memory is not None and self.memory < GIBI:
            raise UserError(f"--max-memory must be at least 1 GiB, got {self.memory / GIBI:g}")


def share_of_memory(running: int) -> int:
    """Bytes for each of ``running`` processes: four fifths of the machine's memory, divided."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(GIBI, int(0.8 * total / max(1, running)))
