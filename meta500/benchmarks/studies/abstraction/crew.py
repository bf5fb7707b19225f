"""The processes of all levels: one for each, started when it is first asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from meta500.benchmarks.protocol import version
from meta500.benchmarks.studies.abstraction.level import Level, level
from meta500.benchmarks.workers import Worker, WorkerFailed

_MODULE = "meta500.benchmarks.studies.abstraction.worker"


@dataclass
class Member:
    """A level, and its process.

    Attributes:
        level: the level.
        missing: why it can't run here; "" where it can.
        threads, device: on which it computes.
        environment: further variables of its process.
        limit: seconds that an order may take.
        known_as: by what name its process finds the level.
        untrained: why it is not to be trained; "" where only the level itself may not be able to.
    """

    level: Level
    missing: str
    threads: int
    device: str
    environment: Mapping[str, str]
    limit: float
    known_as: str
    untrained: str = ""
    _worker: Worker | None = field(default=None, repr=False)
    _prepared: bool = False
    _stopped: bool = False

    @property
    def name(self) -> str:
        """Of the level."""
        return self.level.name

    @property
    def untrainable(self) -> str:
        """Why it is not trained; "" where it is."""
        return self.level.untrainable or self.untrained

    def ask(self, order: str, **what: Any) -> Any:
        """Give an order to its process, which is started and prepared where there is none.

        Raises:
            WorkerFailed: as :meth:`meta500.benchmarks.workers.Worker.ask`.
        """
        worker = self.start()
        if not self._prepared:
            worker.ask("prepare", self.limit, level=self.known_as)
            self._prepared = True
        return worker.ask(order, self.limit, **what)

    def start(self) -> Worker:
        """Its process, started now where there is none; it ends with the thread that started it.

        Raises:
            WorkerFailed: it was stopped.
        """
        if self._stopped:
            raise WorkerFailed(f"{self.name}: the measurement was stopped")
        if self._worker is None:
            threads = {"OMP_NUM_THREADS": str(self.threads)}
            environment = {**threads, **dict(self.level.environment), **self.environment}
            self._worker = Worker(_MODULE, environment, self.name)
            self._prepared = False
        return self._worker

    def end(self) -> None:
        """End the process; the next order starts a new one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def stop(self) -> None:
        """Kill the process, whatever it is doing, so that who waits for it fails; it takes no more orders.

        May be called from another thread than the one that waits.
        """
        self._stopped = True
        if self._worker is not None:
            with suppress(OSError):
                os.killpg(self._worker.pid, signal.SIGKILL)

    def columns(self) -> dict[str, Any]:
        """The columns of a row that say who ran."""
        return {
            "backend": self.name,
            "version": _version(self.level),
            "threads": self.threads,
            "device": self.device,
            "ranks": 1,
        }


class Crew:
    """The levels of a measurement, and their processes as long as it lasts.

    Args:
        names: of levels, as :func:`~meta500.benchmarks.studies.abstraction.level.level` takes them.
        threads, device: on which they compute.
        limit: seconds that an order may take.
        environment: further variables of all processes.
        left_out: why a level is not to be measured, or ""; untrained: why it is not to be trained.

    Attributes:
        members: from the highest level of abstraction down.
        rate: multiply-adds per second of the first that runs; None while it was not measured.

    Raises:
        UserError: an unknown level.
    """

    def __init__(
        self,
        names: Sequence[str],
        threads: int,
        device: str,
        limit: float,
        environment: Mapping[str, str] | None = None,
        left_out: Callable[[str], str] = lambda name: "",
        untrained: Callable[[str], str] = lambda name: "",
    ) -> None:
        self.rate: float | None = None
        self._reference: Worker | None = None
        found = [(name, level(name)) for name in names]
        self.members = [
            Member(
                each,
                left_out(name) or each.missing(device),
                threads,
                device,
                environment or {},
                limit,
                name,
                untrained(name),
            )
            for name, each in sorted(found, key=lambda pair: pair[1].rank)
        ]

    def prepare(self, at_once: int) -> None:
        """Start the processes of the levels that can run, and let them import, some at once.

        One that fails fails again when it is asked, where the reason is kept.
        """
        for member in self.present:
            member.start()
        inform(lambda member: member.ask("drop", key=""), self.present, at_once)

    def reference(self) -> Worker:
        """The process that computes in float64 what all levels should give."""
        if self._reference is None:
            threads = max((member.threads for member in self.members), default=1)
            self._reference = Worker(_MODULE, {"OMP_NUM_THREADS": str(threads)}, "reference")
        return self._reference

    def end_reference(self) -> None:
        """End that process; the next call of :meth:`reference` starts a new one."""
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    @property
    def present(self) -> list[Member]:
        """The levels that can run here."""
        return [member for member in self.members if not member.missing]

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for member in self.members:
                stack.callback(member.end)
            stack.callback(self.end_reference)


def inform(order: Callable[[Member], Any], members: Sequence[Member], at_once: int) -> list[Any]:
    """What ``order`` gives for each member, or the WorkerFailed that it raised; some members at the same
    time."""

    def ask(member: Member) -> Any:
        try:
            return order(member)
        except WorkerFailed as failure:
            member.end()
            return failure

    with threads(members, at_once) as pool:
        return list(pool.map(ask, members))


@contextmanager
def threads(members: Sequence[Member], at_once: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that ask members; an interruption stops the members, so that no running order is waited for."""
    with ThreadPoolExecutor(max(1, at_once)) as pool, stopping(lambda: members):
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def stopping(members: Callable[[], Sequence[Member]]) -> Iterator[None]:
    """On an interruption (Ctrl-C; not an error) stop members."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        for member in members():
            member.stop()
        raise


def _version(level: Level) -> str:
    if level.version is not None:
        return level.version()
    return version(level.package) if level.package else ""
