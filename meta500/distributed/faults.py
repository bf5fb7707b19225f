"""What happens when a rank dies, raises, or is interrupted: one message, a marked run, an end on all ranks.

Two guards, one outside of the process that computes and one inside:

- `supervise` forks before anything is loaded. The child does the work, the parent waits; if the child is
  killed by a signal, the parent says so and ends all ranks. Nothing inside of a killed process could.
- `guard` is a context manager around the work. An exception is told to the other ranks (`Agreement.failed`),
  which raise it too; if they do not come, this rank ends them through MPI_Abort.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from meta500.distributed.mpi import launched_rank
from meta500.errors import UserError

NOTICE = "fault.txt"
INTERRUPTED = 130
# Seconds that ranks get to close the run after a signal, or after the notice of a killed rank.
GRACE = 5.0
_PR_SET_PDEATHSIG = 1
# Step, length of the path, whether the end of the run is explained.
_HEADER = struct.Struct("<qH?")


class Board:
    """Memory that a supervised process shares with its parent: where it is, and how it ends."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096 + _HEADER.size)

    def write_step(self, step: int) -> None:
        """Note the number of the step that begins."""
        struct.pack_into("<q", self._memory, 0, step)

    def write_folder(self, folder: Path | str) -> None:
        """Note the folder of the run; paths above 4096 bytes are left out."""
        raw = os.fsencode(os.path.abspath(folder))
        if len(raw) <= 4096:
            self._memory[_HEADER.size : _HEADER.size + len(raw)] = raw
            struct.pack_into("<H", self._memory, 8, len(raw))

    def write_explained(self) -> None:
        """Note that the process says itself how it ends."""
        struct.pack_into("<?", self._memory, 10, True)

    def read(self) -> tuple[int, Path | None, bool]:
        """The step (0 before the first), the folder, and whether the end is explained."""
        step, length, explained = _HEADER.unpack_from(self._memory, 0)
        raw = self._memory[_HEADER.size : _HEADER.size + length]
        return step, Path(os.fsdecode(raw)) if length else None, explained


_boards: list[Board] = []


def report_step(step: int) -> None:
    """Tell the supervising parent, if there is one, which step begins."""
    for board in _boards:
        board.write_step(step)


def report_folder(folder: Path | str) -> None:
    """Tell the supervising parent, if there is one, where the run is written."""
    for board in _boards:
        board.write_folder(folder)


def _report_explained() -> None:
    for board in _boards:
        board.write_explained()


def supervise() -> None:
    """Go on in a child process; the parent waits for it and never returns.

    The parent ends with the child's exit code. If the child is killed by a signal, or leaves in mid-run with
    a code other than 0 and without a word, it prints one line with rank, process, host, cause and step, marks
    the run as failed, gives the other ranks some seconds to close it, and ends all ranks. Signals that reach
    the parent (SIGINT, SIGTERM) go to the child; a child that does not end after them is killed. The child
    dies with its parent.

    Has to be called before MPI, threads or other libraries are loaded. Does nothing where no launcher started
    this process, on systems other than Linux, and with the environment variable META500_SUPERVISE=0.
    """
    if launched_rank() is None or sys.platform != "linux" or os.environ.get("META500_SUPERVISE") == "0":
        return
    board = Board()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        # Signals to the whole group of the launcher reach the child through its parent, once.
        os.setpgrp()
        _boards.append(board)
        return
    _watch(child, board)


def _watch(child: int, board: Board) -> None:
    """Wait for the child and end with it."""
    sent: list[int] = []

    def forward(number: int, frame: Any) -> None:
        sent.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
        signal.alarm(round(GRACE) + 5)

    def overdue(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, forward)
    signal.signal(signal.SIGALRM, overdue)
    _, status = os.waitpid(child, 0)
    step, folder, explained = board.read()
    code = 1
    if not os.WIFSIGNALED(status):
        code = os.WEXITSTATUS(status)
        if code == 0 or explained or not step or sent:
            _leave(code)
        # Ended by the abort of another rank, which says why? Then this process ends now, too.
        time.sleep(1.0)
        if folder is not None and (folder / NOTICE).exists():
            # MPI took it along with a killed rank, whose parent has said so and ends all ranks.
            time.sleep(3 * GRACE)
            _leave(1)
        end = f"left with exit code {code}"
    elif sent:
        _leave(INTERRUPTED if sent[0] == signal.SIGINT else 128 + sent[0])
    else:
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else "unknown"
        end = f"was killed by signal {number} ({name})"
    text = _lost_text(launched_rank() or 0, child, end, step)
    kept = "" if folder is None else f"; the rows so far are in {folder}"
    _say(f"meta500: error: {text}{kept}")
    if folder is not None:
        _notify(folder, text)
    _leave(code, at_once=True)


def _lost_text(rank: int, process: int, end: str, step: int) -> str:
    """One clause on a rank that is gone, as printed and written into the run."""
    place = f"in step {step}" if step else "before the first step"
    return f"rank {rank} (process {process} on {socket.gethostname()}) {end} {place}"


def _notify(folder: Path, text: str) -> None:
    """Write the notice that waiting ranks look for; mark the run if they do not within some seconds."""
    try:
        (folder / f".{NOTICE}").write_text(text + "\n", encoding="utf-8")
        os.replace(folder / f".{NOTICE}", folder / NOTICE)
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            if json.loads((folder / "run.json").read_text(encoding="utf-8"))["status"] != "running":
                return
            time.sleep(0.02)
        from meta500.metrics.run import note_end

        note_end(folder, "failed", text)
    except (OSError, ValueError, KeyError, UserError):
        # The folder may be on another machine's disk; the message on standard error is out already.
        return


def _leave(code: int, at_once: bool = False) -> None:
    """End this process, and all ranks if ``code`` is not 0; the root, which has the messages, first."""
    if code:
        if launched_rank() and not at_once:
            time.sleep(GRACE)
        _abort_through_launcher(code)
    os._exit(code)


def _abort_through_launcher(code: int) -> None:
    """Ask Hydra, over the connection that this process inherited, to end all ranks with this exit code.

    What MPI_Abort does inside of MPI. Without it Hydra ends them too, but with a banner of its own about
    processes that it killed itself.
    """
    descriptor = os.environ.get("PMI_FD", "")
    if not descriptor.isdecimal():
        return
    with contextlib.suppress(OSError):
        os.write(int(descriptor), f"cmd=abort exitcode={code}\n".encode())
        time.sleep(GRACE)


# -- inside of the process that computes ---------------------------------------------------------------


@contextlib.contextmanager
def guard(
    communication: Any, folder: Callable[[], Path | None] | Path | None = None, patience: float = 10.0
) -> Iterator[None]:
    """Run the block on all ranks; what one of them raises ends all, with one message.

    A `RankFault`, which all ranks raise together, is printed by the root alone. Any other exception is
    offered to the other ranks (they meet it where they agree next, or when they fail themselves); if they do
    not come within ``patience`` seconds, this rank prints it and ends them. A traceback is printed only for
    exceptions that are no UserError, by the rank where they came up. The exit code is 2 for faults, 130 after
    Ctrl-C, and that of a SystemExit.

    Args:
        communication: a CommunicationNetwork.
        folder: of the run, or a function that gives it, for marking the run as failed.
        patience: seconds to wait for the others.
    """
    from meta500.distributed.agreement import Agreement

    if communication is None or communication.size == 1:
        try:
            yield
        finally:
            _report_explained()
        return
    meeting = Agreement.of(communication)
    try:
        yield
        _report_explained()
    except SystemExit as stop:
        _report_explained()
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if code:
            _end_all(communication, code)
        raise
    except BaseException as error:
        _report_explained()
        path = folder() if callable(folder) else folder
        _end_all(communication, _report(communication, meeting, error, path, patience))


def _report(
    communication: Any, meeting: Any, error: BaseException, folder: Path | None, patience: float
) -> int:
    """Print what ended the run, once, and give the exit code."""
    from meta500.distributed.agreement import LostRank, RankFault

    own = None if isinstance(error, RankFault) else error
    fault = error if isinstance(error, RankFault) else None
    if isinstance(error, RankFault):
        own = error.__cause__ if isinstance(error.__cause__, Exception) else None
    elif not (isinstance(error, KeyboardInterrupt) and meeting.all_interrupted):
        fault = meeting.failed(error, patience)
    if own is not None and not isinstance(own, UserError | KeyboardInterrupt):
        sys.__stderr__.write("".join(traceback.format_exception(own)))  # type: ignore[union-attr]
    if isinstance(error, KeyboardInterrupt):
        if communication.is_root:
            _say("meta500: interrupted; the rows so far are in the run folder")
        return INTERRUPTED
    if fault is None:
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        _say(f"meta500: error: rank {communication.rank}: {text}")
        _mark(folder, f"rank {communication.rank}: {text}")
        return 2 if isinstance(error, UserError) else 1
    if isinstance(fault, LostRank) and fault.rank < 0:
        # The parent of the killed rank has said it, and ends all ranks.
        time.sleep(2 * GRACE)
        return 1
    if isinstance(fault, LostRank) and not communication.is_root:
        time.sleep(1.0)  # the root speaks first, if it is not the one that is lost
    if communication.is_root or isinstance(fault, LostRank):
        _say(f"meta500: error: {fault}")
        _mark(folder, str(fault))
    return fault.exit_code


def _say(text: str) -> None:
    # The stream of the process itself: that of ranks other than the root is silent.
    stream = sys.__stderr__
    assert stream is not None
    stream.write(text + "\n")
    stream.flush()


def _mark(folder: Path | None, message: str) -> None:
    from meta500.metrics.run import note_end

    if folder is not None:
        with contextlib.suppress(UserError, OSError):
            note_end(folder, "failed", message)


def _end_all(communication: Any, code: int) -> None:
    """End all ranks with this exit code; never returns."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]
    if not communication.is_root:
        # The root has the message and the rows; the others wait for its end.
        time.sleep(GRACE)
    # MPI_Abort has words of its own to say, after everything has been said.
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    communication.comm.Abort(code)
    os._exit(code)
