"""What each communication operation costs: calls, bytes and seconds of one rank.

Counted is what an operation hands to MPI on this rank and takes from it: the bytes of its buffers, the
algorithmic volume. What the MPI library really sends differs (an allreduce of V bytes moves about
2 V (P - 1) / P per rank in a ring, and through shared memory nothing leaves the machine).

=======================  ==========================  ==================================
operation of V bytes     bytes sent                  bytes received
=======================  ==========================  ==================================
allreduce                V                           V
reduce to root           V                           V at the root, 0 elsewhere
gather at root           V                           sum of all V at the root, 0 elsewhere
broadcast                V at the root, 0 elsewhere  0 at the root, V elsewhere
send, receive            V, 0                        0, V
neighbours, d of them    d V                         d V
compressed allreduce     bytes of indices, values    those of all ranks
window get, put          0, V                        V, 0
=======================  ==========================  ==================================

Elements that are reduced in a wider type (float16 in float32) count with the wider one. Seconds are those
spent inside of calls: of a non-blocking operation its start and its wait, not what lies between.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meta500.metrics.rows import Row


@dataclass(frozen=True)
class Volume:
    """Totals of one operation on one rank; seconds are wall-clock time."""

    calls: int = 0
    sent: int = 0
    received: int = 0
    seconds: float = 0.0

    def __add__(self, other: Volume) -> Volume:
        return Volume(
            self.calls + other.calls,
            self.sent + other.sent,
            self.received + other.received,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: Volume) -> Volume:
        return Volume(
            self.calls - other.calls,
            self.sent - other.sent,
            self.received - other.received,
            self.seconds - other.seconds,
        )


class Counters:
    """Volumes by operation; may be added to from several threads, under ``lock``."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # [calls, bytes sent, bytes received, nanoseconds]
        self.totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def add(self, operation: str, sent: int, received: int, nanoseconds: int, calls: int = 1) -> None:
        """Count ``calls`` calls of an operation with their bytes and nanoseconds."""
        with self.lock:
            totals = self.totals[operation]
            totals[0] += calls
            totals[1] += sent
            totals[2] += received
            totals[3] += nanoseconds

    def __getitem__(self, operation: str) -> Volume:
        """Volume of one operation; zeros if it was never called."""
        with self.lock:
            calls, sent, received, nanoseconds = self.totals.get(operation, (0, 0, 0, 0))
        return Volume(calls, sent, received, nanoseconds * 1e-9)

    def __iter__(self) -> Iterator[str]:
        with self.lock:
            return iter(list(self.totals))

    def __len__(self) -> int:
        return len(self.totals)

    def snapshot(self) -> dict[str, Volume]:
        """All volumes so far; two snapshots subtract to what happened between them."""
        return {operation: self[operation] for operation in self}

    def total(self) -> Volume:
        """Sum over all operations."""
        return sum(self.snapshot().values(), Volume())

    def reset(self) -> None:
        """Forget everything counted so far."""
        with self.lock:
            self.totals.clear()

    def rows(self, rank: int, ranks: int, **what: Any) -> list[Row]:
        """Four rows for each operation: "calls", "bytes_sent", "bytes_received", "time" (seconds).

        Args:
            rank: this rank; the note of every row is "rank R".
            ranks: number of ranks.
            what: further columns, such as ``model`` or ``optimizer``.
        """
        rows = []
        for operation, volume in sorted(self.snapshot().items()):
            quantities = (
                ("calls", "1", float(volume.calls)),
                ("bytes_sent", "B", float(volume.sent)),
                ("bytes_received", "B", float(volume.received)),
                ("time", "s", volume.seconds),
            )
            columns = {"level": 3, "phase": "communication", **what, "ranks": ranks, "note": f"rank {rank}"}
            rows += [
                Row(**{**columns, "operator": operation, "quantity": quantity, "unit": unit, "value": value})
                for quantity, unit, value in quantities
            ]
        return rows
