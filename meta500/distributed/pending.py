"""Operations in flight, and waiting for them without holding the processor for ever.

MPI moves data only inside of MPI calls, so a waiting rank asks again and again. It does so at full speed at
first, since most peers are there within milliseconds, and then sleeps between the questions, so that a rank
that waits for a slow or lost one leaves the processor to others. A wait that exceeds the timeout of its
`CommunicationNetwork` ends in an error instead of never.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

Result = TypeVar("Result")

# Seconds of asking at full speed, and seconds more for each byte that may still have to move.
SPIN_SECONDS = 0.5
SPIN_SECONDS_PER_BYTE = 1e-8
QUESTIONS = 200
YIELD_SECONDS = 1e-3
SHORTEST_SLEEP, LONGEST_SLEEP = 20e-6, 1e-3


class PeerTimeout(UserError):
    """A rank waited longer than its timeout for others: one of them is lost, stuck or does something else."""


def poll(
    done: Callable[[], Any],
    *,
    timeout: float | None,
    spin: float,
    what: Callable[[], str],
) -> Any:
    """Ask ``done`` until it returns something true, and return that.

    Args:
        done: a question that lets MPI make progress.
        timeout: seconds until giving up; None for never.
        spin: seconds of asking without a pause; later pauses double from 20 microseconds to 1 ms.
        what: text for the error, e.g. "sync_all on rank 0 of 2".

    Raises:
        PeerTimeout: after ``timeout``.
    """
    found = done()
    if found:
        return found
    begin = time.monotonic()
    sleep = SHORTEST_SLEEP
    while True:
        # Many questions, about 50 microseconds of them, for one look at the clock.
        for _ in range(QUESTIONS):
            found = done()
            if found:
                return found
        waited = time.monotonic() - begin
        if timeout is not None and waited > timeout:
            raise PeerTimeout(
                f"{what()} waited {timeout:g} s in vain: another rank is lost, stuck, or calls something "
                "else; look at the messages of the other ranks, or give a larger timeout"
            )
        if waited > spin:
            while True:
                time.sleep(sleep)
                found = done()
                if found:
                    return found
                sleep = min(2 * sleep, LONGEST_SLEEP)
                if timeout is not None and time.monotonic() - begin > timeout:
                    break
        elif waited > YIELD_SECONDS:
            # Others may have the processor: with more ranks than cores, the one that is waited for.
            time.sleep(0)


class Pending(Generic[Result]):
    """A communication in flight. What was handed over must not change, and results not be read, until
    :meth:`wait` returned or :meth:`test` said True.

    The network keeps what is in flight alive, so a pending operation may be dropped; it has to be completed
    on all ranks all the same.
    """

    def __init__(
        self,
        network: CommunicationNetwork,
        operation: str,
        requests: list[Any],
        finish: Callable[[], Result],
        sent: int,
        received: int,
        begin: int,
        keep: Any = None,
    ) -> None:
        self.operation = operation
        self._network, self._requests, self._finish = network, requests, finish
        self._sent, self._received, self._begin = sent, received, begin
        self._inside = time.perf_counter_ns() - begin
        # Buffers that have to live until the end.
        self._keep = keep
        self._done = False
        self._result: Any = None
        network._in_flight.add(self)

    def test(self) -> bool:
        """Whether it is complete; lets MPI make progress. Never blocks.

        Raises:
            UserError: MPI reports an error.
        """
        if self._done:
            return True
        begin = time.perf_counter_ns()
        try:
            complete = self._ask()
        except self._network._MPI.Exception as error:
            raise self._network._explained(self.operation, error) from error
        self._inside += time.perf_counter_ns() - begin
        if complete:
            self._complete()
        return self._done

    def wait(self) -> Result:
        """The result, once it is there.

        Raises:
            PeerTimeout: it took longer than the network's timeout.
            UserError: MPI reports an error.
        """
        if not self._done:
            begin = time.perf_counter_ns()
            try:
                if not self._ask():
                    self._poll()
            except self._network._MPI.Exception as error:
                raise self._network._explained(self.operation, error) from error
            self._inside += time.perf_counter_ns() - begin
            self._complete()
        return self._result

    def _poll(self) -> None:
        network = self._network
        poll(
            self._ask,
            timeout=network.timeout,
            spin=SPIN_SECONDS + SPIN_SECONDS_PER_BYTE * (self._sent + self._received),
            what=lambda: f"{self.operation} on rank {network.rank} of {network.size}",
        )

    def _ask(self) -> bool:
        # One after the other: testing one lets MPI make progress on all.
        requests = self._requests
        while requests:
            if not requests[-1].Test():
                return False
            requests.pop()
        return True

    def _complete(self) -> None:
        network = self._network
        network._in_flight.discard(self)
        begin = time.perf_counter_ns()
        self._result = self._finish()
        end = time.perf_counter_ns()
        self._done, self._keep = True, None
        network._count(
            self.operation, self._begin, end, self._sent, self._received, self._inside + end - begin
        )


PendingMany = Pending[dict[str, Any]]
