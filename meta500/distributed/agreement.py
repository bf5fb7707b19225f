"""What all ranks agree on before they go on: whether anyone has a fault, how many samples, which loss.

Ranks that train together must leave together. At the points where they meet anyway they first exchange a few
doubles: counts of faults, samples, the weighted loss, wishes to stop. If any rank reports a fault, every rank
raises the same `RankFault`, so nobody waits for a rank that has left. The exchange is non-blocking with a
limit in time, so that a rank that disappeared without a word ends the run instead of hanging it.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from meta500.errors import UserError

Result = TypeVar("Result")

_TEXT_BYTES = 1024
_SPIN_SECONDS = 1e-3
_LOOK_SECONDS = 0.2


class Code(IntEnum):
    """What a rank reports; of several faults the highest is told."""

    OK = 0
    INTERRUPTED = 1
    EXHAUSTED = 2
    NOT_FINITE = 3
    RAISED = 4
    CRASHED = 5


# As those of the command line: 1 a failed run, 2 bad input, 130 Ctrl-C.
_EXIT_CODES = {Code.INTERRUPTED: 130, Code.EXHAUSTED: 2, Code.RAISED: 2}


class RankFault(UserError):
    """The fault of one rank, raised on every rank with the same text.

    Attributes:
        rank: the rank that it happened on (the lowest, where several have one).
        code: what kind of fault.
        cause: the text without the rank.
    """

    def __init__(self, rank: int, code: Code, cause: str, *, alike: bool = False) -> None:
        super().__init__(cause if alike else f"rank {rank}: {cause}")
        self.rank, self.code, self.cause = rank, code, cause

    @property
    def exit_code(self) -> int:
        """Exit code of a process that ends by this fault."""
        return _EXIT_CODES.get(self.code, 1)


class LostRank(RankFault):
    """A rank that did not come to an agreement: killed, or stuck elsewhere."""


@dataclass(frozen=True)
class Agreed:
    """What an agreement found: ``samples`` of all ranks, their ``loss``, how many ranks wish to ``stop``."""

    samples: int
    loss: float
    stop: int


class Agreement:
    """The agreements of one group of ranks, over a communicator of their own.

    Every rank takes part in the same sequence of them: a rank that cannot do its part of an agreement any
    more (it raised) joins the next one through `failed`. Hence there is one per CommunicationNetwork: use
    `of`.

    Attributes:
        communication: the CommunicationNetwork; its ``timeout`` (seconds) bounds the waiting.
        notice: a file that `faults.supervise` writes when a rank of this run is killed; None: there is none.
        interrupted: set by a signal handler; reported at the next agreement.
        all_interrupted: whether all ranks have agreed that they were interrupted.
    """

    def __init__(self, communication: Any) -> None:
        self.communication = communication
        self.rank, self.size = communication.rank, communication.size
        self.notice: Path | None = None
        self._comm = communication.comm.Dup() if self.size > 1 else None
        self._outstanding: tuple[Any, np.ndarray, np.ndarray, Code, str] | None = None
        self._lost = False
        self.interrupted = self.all_interrupted = False

    @classmethod
    def of(cls, communication: Any) -> Agreement:
        """The agreement of these ranks, made at the first call, which is collective."""
        found = _agreements.get(communication)
        if found is None:
            found = _agreements[communication] = cls(communication)
        return found

    @classmethod
    def release(cls, communication: Any) -> None:
        """Free the agreement of ranks whose network is closed (collective)."""
        found = _agreements.pop(communication, None)
        if found is not None and found._comm is not None:
            found._comm.Free()

    def step(
        self, loss: float, samples: int, weight: float, *, finite: bool = True, where: str = ""
    ) -> Agreed:
        """One training step: every rank gives the loss and the samples of its part of the batch.

        Args:
            loss: this rank's loss; ignored where ``samples`` is 0.
            samples: samples of this rank's part.
            weight: what the loss counts; the agreed loss is the sum of ``weight * loss``.
            finite: report a loss that is NaN or infinite as a fault.
            where: words for such a report.

        Raises:
            RankFault: on every rank, if any has a fault.
            KeyboardInterrupt: on every rank, if any was interrupted.
        """
        part = weight * loss if samples else 0.0
        if finite and samples and not math.isfinite(loss):
            return self._exchange(Code.NOT_FINITE, samples, part, text=f"the loss is {loss}{where}")
        return self._exchange(Code.OK, samples, part)

    def ended(self, where: str) -> None:
        """This rank's data is exhausted; returns if that of all ranks is.

        Raises:
            RankFault: other ranks have more batches.
        """
        self._exchange(Code.EXHAUSTED, text=where)

    def question(self, answer: str | None) -> str | None:
        """The reason to stop, if any rank has one: that of the lowest rank that says yes; None to go on."""
        return self.answers(answer)[0]

    def answers(self, answer: str | None, failed: bool = False) -> tuple[str | None, bool]:
        """As `question`, and whether it is a failure."""
        found = self._exchange(Code.OK, stop=answer is not None)
        if not found.stop:
            return None, False
        texts = self._texts(Code.OK, ("!" if failed else "?") + answer if answer is not None else "")
        rank = next(r for r, (_, text) in enumerate(texts) if text)
        text = texts[rank][1]
        alike = self.size == 1 or all(other == text for _, other in texts)
        return text[1:] if alike else f"{text[1:]} (rank {rank})", text[0] == "!"

    def failed(self, error: BaseException, patience: float) -> RankFault | None:
        """Tell the others of an exception here, at the agreement that they come to next.

        Args:
            error: what happened; only its text is sent.
            patience: seconds to wait for the others.

        Returns:
            The fault that all ranks raise now, or None if the others did not come.
        """
        text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        code = Code.RAISED if isinstance(error, UserError) else Code.CRASHED
        if isinstance(error, KeyboardInterrupt):
            code, text = Code.INTERRUPTED, "interrupted (Ctrl-C)"
        if self._lost:
            return None
        deadline = time.monotonic() + patience
        try:
            if self._outstanding is not None:
                # The agreement in which the error came up; the others are in it or will come.
                self._finish(deadline)
            self._exchange(code, text=text, deadline=deadline)
        except LostRank:
            self._lost = True
        except RankFault as fault:
            return fault
        except KeyboardInterrupt:
            return RankFault(self.rank, Code.INTERRUPTED, "interrupted (Ctrl-C)", alike=True)
        return None

    # -- the exchange ------------------------------------------------------------------------------

    def _exchange(
        self,
        code: Code,
        samples: int = 0,
        loss: float = 0.0,
        stop: bool = False,
        text: str = "",
        deadline: float | None = None,
    ) -> Agreed:
        if self.interrupted and code < Code.RAISED:
            code, text = Code.INTERRUPTED, "interrupted (Ctrl-C)"
        # One counter per code, then samples, loss, stops: sums suffice, so one reduction does.
        mine = np.zeros(len(Code) + 3)
        mine[code] = 1.0
        mine[len(Code) :] = samples, loss, stop
        request, everyone = None, mine
        if self._comm is not None:
            everyone = np.empty_like(mine)
            request = self._comm.Iallreduce(mine, everyone)
        # Kept until it is complete, whatever comes up while waiting: the others take part in it.
        self._outstanding = request, mine, everyone, code, text
        return self._finish(deadline)

    def _finish(self, deadline: float | None = None) -> Agreed:
        """Wait for the outstanding exchange and say what it found."""
        assert self._outstanding is not None
        request, _, everyone, code, text = self._outstanding
        if request is not None:
            self._wait(request, deadline)
        self._outstanding = None
        counts = everyone[: len(Code)]
        if counts[Code.OK] < self.size and counts[Code.EXHAUSTED] < self.size:
            self._raise(code, text)
        samples, weighted, stops = everyone[len(Code) :]
        return Agreed(int(samples), float(weighted), int(stops))

    def _wait(self, request: Any, deadline: float | None) -> None:
        begin = time.monotonic()
        limit = self.communication.timeout
        look = begin + _LOOK_SECONDS
        while not request.Test():
            now = time.monotonic()
            waited = now - begin
            if waited > _SPIN_SECONDS:
                # What waits for long may wait a little longer, and leaves the processor to others.
                time.sleep(min(2e-3, waited / 50))
            if now > look:
                look = now + _LOOK_SECONDS
                self._look_for_notice()
            if deadline is not None and now > deadline:
                raise LostRank(self.rank, Code.RAISED, "the other ranks did not come to the agreement")
            if limit is not None and waited > limit:
                raise LostRank(
                    self.rank,
                    Code.RAISED,
                    f"waited {waited:.0f} s in vain for the other ranks at the end of a step: one of the "
                    f"{self.size} is lost or stuck (the limit is the communication's timeout)",
                )

    def _look_for_notice(self) -> None:
        if self.notice is None or not self.notice.exists():
            return
        text = self.notice.read_text(encoding="utf-8").strip()
        raise LostRank(-1, Code.RAISED, text, alike=True)

    def _raise(self, code: Code, text: str) -> None:
        found = self._texts(code, text)
        worst = max(code for code, _ in found)
        rank = next(r for r, (c, _) in enumerate(found) if c == worst)
        cause = found[rank][1]
        if worst is Code.INTERRUPTED:
            self.all_interrupted = True
            raise KeyboardInterrupt("interrupted on all ranks")
        if worst is Code.EXHAUSTED:
            more = [str(r) for r, (c, _) in enumerate(found) if c != worst]
            cause += f", but rank{'s' if len(more) > 1 else ''} {', '.join(more[:8])} had more"
        alike = self.size == 1 or all(entry == found[rank] for entry in found)
        raise RankFault(rank, worst, cause, alike=alike)

    def _texts(self, code: Code, text: str) -> list[tuple[Code, str]]:
        """Every rank's code and text (cut to 1 KiB of UTF-8)."""
        raw = text.encode()[: _TEXT_BYTES - 1]
        mine = np.zeros(_TEXT_BYTES, np.uint8)
        mine[0] = code
        mine[1 : 1 + len(raw)] = np.frombuffer(raw, np.uint8)
        everyone = mine[None]
        if self._comm is not None:
            everyone = np.empty((self.size, _TEXT_BYTES), np.uint8)
            self._wait(self._comm.Iallgather(mine, everyone), time.monotonic() + 30)
        return [
            (Code(int(row[0])), row[1:].tobytes().rstrip(b"\0").decode(errors="replace")) for row in everyone
        ]


_agreements: weakref.WeakKeyDictionary[Any, Agreement] = weakref.WeakKeyDictionary()


def at_root(communication: Any, function: Callable[[], Result]) -> Result:
    """Call ``function`` on the root alone and give its result, a small object, to all ranks.

    Raises:
        RankFault: on all ranks, if it raised a UserError on the root. Other exceptions are raised on the root
            as they are, and as a RankFault elsewhere.
    """
    if communication is None or communication.size == 1:
        return function()
    result: Any = None
    error: Exception | None = None
    if communication.is_root:
        try:
            result = function()
        except Exception as raised:
            error = raised
    told = None if error is None else str(error) if isinstance(error, UserError) else repr(error)
    failed, value = communication.broadcast_object((told, result))
    if error is not None and not isinstance(error, UserError):
        raise error
    if failed is not None:
        raise RankFault(communication.root, Code.RAISED, failed, alike=True) from error
    return value  # type: ignore[no-any-return]
