"""A service at the root that ranks ask whenever they like, the root's own worker included.

A thread of the root waits for requests and answers them one after the other, so that no rank waits for
another one's pass. A request is a few numbers and a set of tensors, an answer too. The service may keep a
rank waiting until others have come (`StaleSynchronous`), or answer at once (`InconsistentParameterServer`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meta500.distributed.buckets import Joined
from meta500.distributed.communication import CommunicationNetwork
from meta500.distributed.mpi import mpi
from meta500.distributed.pending import LONGEST_SLEEP, SHORTEST_SLEEP, PeerTimeout
from meta500.errors import UserError

Array = Any
# (numbers, tensors by name)
Message = tuple[tuple[float, ...], Mapping[str, Array]]

NUMBERS = 4
_REQUEST, _REQUEST_DATA, _REPLY, _REPLY_DATA = 1, 2, 3, 4
_ASK, _LEAVE, _ANSWER, _FAILED = 0.0, 1.0, 2.0, 3.0


class Service(ABC):
    """What the root does with requests. Only one method runs at a time."""

    @abstractmethod
    def handle(self, rank: int, numbers: Sequence[float], tensors: Mapping[str, Array]) -> None:
        """Take in a request of ``rank``. To a service that keeps the arrays, callers give new ones."""

    @abstractmethod
    def answer(self, rank: int) -> Message | None:
        """The answer to the last request of ``rank``, None as long as it has to wait.

        Asked again after every request and every leave.
        """

    def leave(self, rank: int) -> None:  # noqa: B027 - most services have nothing to forget
        """``rank`` asks no more."""


def threaded(communication: CommunicationNetwork) -> CommunicationNetwork:
    """A network of the same ranks whose messages meet no others, counted with the given one (collective).

    Raises:
        UserError: the MPI library was not initialised for calls from several threads.
    """
    MPI = mpi()
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UserError(
            "asynchronous schemes call MPI from two threads, but MPI was initialised without "
            "MPI_THREAD_MULTIPLE; use an MPI library and an initialisation that offer it"
        )
    private = CommunicationNetwork(
        communication.comm,
        root=communication.root,
        timeout=communication.timeout,
        timeline=communication.timeline,
    )
    private.counters = communication.counters
    return private


class Exchange:
    """One rank's way to a service at the root.

    Args:
        network: of `threaded`; nobody else may use it.
        service: at the root; ignored elsewhere.
        like: native arrays of the names, shapes and kinds that all requests and answers have.
    """

    def __init__(
        self, network: CommunicationNetwork, service: Service | None, like: Mapping[str, Array]
    ) -> None:
        self._network, self._like = network, dict(like)
        self._joined = Joined.of(self._like)
        self._data = np.broadcast_to(np.uint8(0), (self._joined.nbytes,))
        self._header = np.zeros(1 + NUMBERS)
        self._thread: threading.Thread | None = None
        if not network.is_root:
            return
        assert service is not None
        self._service = service
        self.changed = threading.Condition()
        self._waiting: list[int] = []
        self._remote = set(range(network.size)) - {network.root}
        self._own_answer: Message | None = None
        self._failure: BaseException | None = None
        if self._remote:
            self._thread = threading.Thread(target=self._serve, name="meta500-server", daemon=True)
            self._thread.start()

    def ask(self, numbers: Sequence[float], tensors: Mapping[str, Array]) -> Message:
        """Send a request and wait for its answer. Called by one thread of each rank.

        Raises:
            UserError: the service failed (at the root: its own error), or no answer in time.
        """
        network = self._network
        if network.is_root:
            return self._ask_here(numbers, tensors)
        network.send_to_root(self._numbers(_ASK, numbers), _REQUEST)
        network.send_to_root(self._joined.pack(tensors), _REQUEST_DATA)
        header = network.wait_for_root(self._header, _REPLY)
        if header[0] == _FAILED:
            raise UserError(
                f"the server on rank {network.root} failed on a request of rank {network.rank}; "
                f"its error is told by rank {network.root}"
            )
        data = network.wait_for_root(self._data, _REPLY_DATA)
        return tuple(header[1:]), self._joined.unpack(data, self._like)

    def leave(self) -> None:
        """Say that this rank asks no more. The root then serves the others until all have left.

        Raises:
            UserError: at the root, what the service raised.
        """
        network = self._network
        if not network.is_root:
            network.send_to_root(self._numbers(_LEAVE, ()), _REQUEST)
            return
        with self.changed:
            self._service.leave(network.root)
            self._release()
        if self._thread is not None:
            self._thread.join()
        self._raise_failure()

    def _ask_here(self, numbers: Sequence[float], tensors: Mapping[str, Array]) -> Message:
        with self.changed:
            self._raise_failure()
            self._service.handle(self._network.root, numbers, tensors)
            self._waiting.append(self._network.root)
            self._release()
            # A service that keeps the root waiting is woken up by the requests of others.
            while self._own_answer is None:
                if not self.changed.wait(self._network.timeout):
                    raise PeerTimeout(
                        f"the root waited {self._network.timeout:g} s for the other ranks; one is lost or "
                        "stuck: look at their messages, or give a larger timeout"
                    )
                self._raise_failure()
            answer, self._own_answer = self._own_answer, None
            return answer

    def _serve(self) -> None:
        try:
            sleep = SHORTEST_SLEEP
            while self._remote:
                if self._network.probe(tag=_REQUEST) is None:
                    time.sleep(sleep)
                    sleep = min(2 * sleep, LONGEST_SLEEP)
                else:
                    sleep = SHORTEST_SLEEP
                    self._serve_one()
        except BaseException as error:
            # Messages fail: only the root can still be told.
            with self.changed:
                self._failure = self._failure or error
                self.changed.notify_all()

    def _serve_one(self) -> None:
        network = self._network
        header, rank, _ = network.wait_for_any_rank(self._header, _REQUEST)
        data = None
        if header[0] == _ASK:
            data = network.wait_for_rank(self._data, rank, _REQUEST_DATA)
        with self.changed:
            try:
                self._take(rank, header, data)
                self._release()
            except BaseException as error:
                # Told by the root's own worker at its next request; until then nobody may hang.
                self._failure = self._failure or error
            self._refuse_after_failure()
            self.changed.notify_all()

    def _take(self, rank: int, header: np.ndarray, data: np.ndarray | None) -> None:
        if data is None:
            self._remote.discard(rank)
            self._service.leave(rank)
            return
        self._waiting.append(rank)
        if self._failure is None:
            self._service.handle(rank, tuple(header[1:]), self._joined.unpack(data, self._like))

    def _release(self) -> None:
        """Answer everyone who need not wait any longer; the lock is held."""
        if self._failure is not None:
            return
        for rank in list(self._waiting):
            answer = self._service.answer(rank)
            if answer is None:
                continue
            self._waiting.remove(rank)
            if rank == self._network.root:
                self._own_answer = answer
            else:
                numbers, tensors = answer
                self._network.send_to_rank(self._numbers(_ANSWER, numbers), rank, _REPLY)
                self._network.send_to_rank(self._joined.pack(tensors), rank, _REPLY_DATA)
        self.changed.notify_all()

    def _refuse_after_failure(self) -> None:
        if self._failure is None:
            return
        for rank in list(self._waiting):
            if rank != self._network.root:
                self._waiting.remove(rank)
                self._network.send_to_rank(self._numbers(_FAILED, ()), rank, _REPLY)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @staticmethod
    def _numbers(kind: float, numbers: Sequence[float]) -> np.ndarray:
        header = np.zeros(1 + NUMBERS)
        header[0] = kind
        header[1 : 1 + len(numbers)] = numbers
        return header
