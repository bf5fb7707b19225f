"""The part of their time in which the threads of some calls had a processor, taken while these are timed."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping

# Linux: the clock of one thread, precise up to now. That of the process lags by a tick for threads that run.
_THREAD_CLOCK = 6


class ProcessorTime:
    """Sums what threads use from the end of the set-up of one of several functions to the next set-up.

    The clocks are read outside of the timed calls, which therefore cost what they would without.

    Args:
        watched: the name of the function whose calls count.
    """

    def __init__(self, watched: str) -> None:
        self._watched = watched
        self._since: tuple[float, float] | None = None
        self._used = self._wall = 0.0

    def around(self, setups: Mapping[str, Callable[[], object]]) -> dict[str, Callable[[], object]]:
        """The set-ups, which also begin and end what counts."""

        def with_clocks(name: str, setup: Callable[[], object]) -> Callable[[], object]:
            def run() -> None:
                self.end()
                setup()
                if name == self._watched:
                    self._since = (threads_time(), time.perf_counter())

            return run

        return {name: with_clocks(name, setup) for name, setup in setups.items()}

    def end(self) -> None:
        """The last watched call is over."""
        if self._since is not None:
            now = time.perf_counter()
            self._used += threads_time() - self._since[0]
            self._wall += now - self._since[1]
            self._since = None

    def share(self, threads: int) -> float:
        """The part of its time that each of so many threads had a processor; NaN where it is unknown."""
        return self._used / self._wall / threads if self._wall else math.nan


def threads_time() -> float:
    """Seconds that all threads of this process have used; NaN where the system does not say."""
    try:
        return sum(_seconds(int(thread)) for thread in os.listdir("/proc/self/task"))
    except OSError:
        return math.nan


def _seconds(thread: int) -> float:
    try:
        return time.clock_gettime((~thread << 3) | _THREAD_CLOCK)
    except OSError:
        # It has ended since.
        return 0.0
