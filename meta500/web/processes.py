"""The processes of runs: started in a group of their own, found again by number and time of birth, ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import psutil

from meta500.errors import UserError
from meta500.metrics.run import explained


def start(arguments: Sequence[str], log: Path, memory: int | None) -> subprocess.Popen[bytes]:
    """Start ``meta500`` with ``arguments`` in a session of its own; what it prints goes to ``log``.

    Args:
        arguments: words; no shell sees them.
        log: a new file.
        memory: bytes of data that it may have; None: no bound.

    Raises:
        UserError: the log cannot be written, or the process cannot be started.
    """
    import resource

    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise explained(log, error) from error
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "meta500", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"the run cannot be started: {error.strerror}") from error
    finally:
        os.close(output)
    if memory is not None:
        with contextlib.suppress(OSError):  # gone already
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (memory, memory))
    return process


def birth(pid: int) -> float | None:
    """When the process was created, in seconds since the epoch; None if there is none."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except psutil.Error:
        return None


def alive(pid: int | None, born: float | None) -> bool:
    """Whether the process that was created then still runs."""
    found = None if pid is None else birth(pid)
    return found is not None and born is not None and abs(found - born) < 1.0


def with_argument(words: Collection[str]) -> dict[str, int]:
    """Those of ``words`` that are arguments of processes of this user, with the number of the process."""
    found: dict[str, int] = {}
    if not words:
        return found
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                found |= {word: process.pid for word in process.cmdline() if word in words}
    return found


def tell(group: int, number: signal.Signals) -> None:
    """Send a signal to all processes of a group; nothing happens where there are none left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class Process:
    """A process that is followed: a child of this one, or one that an earlier server started.

    Attributes:
        code: how a child ended (negative: by this signal); None while it runs, and for others.
    """

    def __init__(self, pid: int, born: float | None, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self.born, self.child = pid, born, child
        self.code: int | None = None

    def ended(self) -> bool:
        """Whether it is over; what it left running in its group is ended then."""
        if self.child is None:
            return not alive(self.pid, self.born)
        # The group is told while the number is still taken by the dead child.
        if self.code is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            tell(self.pid, signal.SIGKILL)
            self.code = self.child.wait()
        return self.code is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its group, unless it is over."""
        if not self.ended():
            tell(self.pid, number)

    def cause(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "its process is gone"
        if self.code < 0:
            name = signal.Signals(-self.code).name
            hint = ": most likely the memory was used up" if name == "SIGKILL" else ""
            return f"its process was ended by {name}{hint}"
        return f"its process ended with code {self.code}"
