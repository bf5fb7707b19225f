"""What every rank did when: a recorder, gathered at the root and written as a Chrome trace.

The file is JSON in the Trace Event Format and opens in chrome://tracing and https://ui.perfetto.dev. Every
rank is a process, every lane a thread of it. `meta500.metrics.plots.timeline` draws it.

Times are those of ``time.perf_counter_ns``, which is CLOCK_MONOTONIC on Linux: the same clock for all
processes of a machine and for C++ (``clock_gettime(CLOCK_MONOTONIC)``). Clocks of other machines are aligned
when the events are gathered.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

# The lanes in the order in which they are shown. "step" marks optimizer steps.
STEP, COMPUTE, COMMUNICATION = "step", "compute", "communication"
LANES = (STEP, COMPUTE, COMMUNICATION)
# Round trips for aligning the clock of another machine; the shortest one counts.
ROUND_TRIPS = 20


class Event(NamedTuple):
    """One span of time: begin and end in nanoseconds, bytes moved in it."""

    rank: int
    lane: str
    name: str
    begin_ns: int
    end_ns: int
    bytes: int = 0


class Timeline:
    """Recorder of one rank; may be used from several threads.

    Args:
        rank: this rank.
        limit: events kept; later ones are counted in ``dropped`` only.
    """

    def __init__(self, rank: int = 0, limit: int = 1_000_000) -> None:
        self.rank, self.limit, self.dropped = rank, limit, 0
        self._events: list[Event] = []
        self._lock = threading.Lock()

    @property
    def events(self) -> list[Event]:
        """What was recorded so far, in the order of recording."""
        with self._lock:
            return list(self._events)

    def record(self, lane: str, name: str, begin_ns: int, end_ns: int, bytes: int = 0) -> None:
        """Record a span of ``time.perf_counter_ns`` times."""
        event = Event(self.rank, lane, name, begin_ns, end_ns, bytes)
        with self._lock:
            if len(self._events) < self.limit:
                self._events.append(event)
            else:
                self.dropped += 1

    @contextmanager
    def span(self, lane: str, name: str, bytes: int = 0) -> Iterator[None]:
        """Record the time of a block, also if it ends with an error."""
        begin = perf_counter_ns()
        try:
            yield
        finally:
            self.record(lane, name, begin, perf_counter_ns(), bytes)

    def extend(self, events: Iterable[Sequence[Any]]) -> None:
        """Add what was recorded elsewhere (in C++): (lane, name, begin_ns, end_ns, bytes) each."""
        for lane, name, begin, end, count in events:
            self.record(str(lane), str(name), int(begin), int(end), int(count))

    def clear(self) -> None:
        """Forget all events."""
        with self._lock:
            self._events.clear()
            self.dropped = 0

    def gather(self, network: CommunicationNetwork) -> list[Event] | None:
        """The events of all ranks at the root, in its clock, by begin; None elsewhere. Collective."""
        offset = clock_offset(network)
        mine = [
            event._replace(rank=network.rank, begin_ns=event.begin_ns + offset, end_ns=event.end_ns + offset)
            for event in self.events
        ]
        parts = network.gather_objects(mine)
        if parts is None:
            return None
        return sorted(
            (event for part in parts for event in part), key=lambda event: (event.begin_ns, event.rank)
        )


def clock_offset(network: CommunicationNetwork) -> int:
    """Nanoseconds to add to this rank's clock to get the root's; collective.

    0 on the root's machine. Elsewhere half of the shortest of 20 round trips is taken for the way back
    (F. Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989).
    """
    comm, root = network._private, network.root
    machine = network._MPI.Get_processor_name()
    machines = comm.allgather(machine)
    offset = 0
    clock = np.zeros(1, np.int64)
    for rank in range(network.size):
        if machines[rank] == machines[root]:
            continue
        if network.is_root:
            for _ in range(ROUND_TRIPS):
                comm.Recv(np.empty(0, np.int64), rank)
                clock[0] = perf_counter_ns()
                comm.Send(clock, rank)
        elif network.rank == rank:
            shortest = None
            for _ in range(ROUND_TRIPS):
                begin = perf_counter_ns()
                comm.Send(np.empty(0, np.int64), root)
                comm.Recv(clock, root)
                end = perf_counter_ns()
                if shortest is None or end - begin < shortest:
                    shortest, offset = end - begin, int(clock[0]) - (begin + end) // 2
    return offset


def chrome_trace(events: Sequence[Event]) -> dict[str, Any]:
    """The events in the Trace Event Format; times in microseconds from the first event on."""
    origin = min((event.begin_ns for event in events), default=0)
    lanes = [*LANES, *sorted({event.lane for event in events} - set(LANES))]
    entries: list[dict[str, Any]] = []
    for rank in sorted({event.rank for event in events}):
        entries.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for lane in lanes:
            if any(event.rank == rank and event.lane == lane for event in events):
                names = {"name": lane}
                entries.append(
                    {"name": "thread_name", "ph": "M", "pid": rank, "tid": lanes.index(lane), "args": names}
                )
    for event in events:
        entry = {
            "name": event.name,
            "cat": event.lane,
            "ph": "X",
            "pid": event.rank,
            "tid": lanes.index(event.lane),
            "ts": (event.begin_ns - origin) / 1000,
            "dur": (event.end_ns - event.begin_ns) / 1000,
            "args": {"bytes": event.bytes},
        }
        entries.append(entry)
    return {"traceEvents": entries, "displayTimeUnit": "ms", "otherData": {"clock": "time.perf_counter_ns"}}


def write_chrome_trace(events: Sequence[Event], path: str | Path) -> Path:
    """Write the events as a JSON file and return its path.

    Raises:
        UserError: the file cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(chrome_trace(events)) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}") from None
    return target
