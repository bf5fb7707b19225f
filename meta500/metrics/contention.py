"""Who else works on the processors of a measurement, and how much."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

# Share of the processors from which on the work of others is worth a word.
NOTEWORTHY = 0.05


class Contention:
    """What others do on the cores of this process, from now on.

    What this process and its descendants compute is its own. The interrupts that they cause, cores that the
    host lends to other guests, and processes that outlived the descendant that started them, count as others.
    """

    def __init__(self) -> None:
        self._cores = cores_here()
        self._begin = time.perf_counter()
        self._busy, self._own = busy_seconds(self._cores), _family_seconds()

    def share(self) -> float | None:
        """Share of all these cores' time that others took since the beginning, 0 to 1.

        None where the system does not tell (no ``/proc/stat`` of these cores), and in less than a tenth of a
        second.
        """
        wall = time.perf_counter() - self._begin
        busy, own = busy_seconds(self._cores), _family_seconds()
        # Ticks are hundredths of a second.
        if wall < 0.1 or not self._busy or not busy or own is None or self._own is None:
            return None
        others = (busy - self._busy) - (own - self._own)
        return min(1.0, max(0.0, others / (len(self._cores) * wall)))


def cores_here() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(os.getpid()))
    return list(range(os.cpu_count() or 1))


def busy_seconds(cores: Sequence[int], root: Path = Path("/")) -> float:
    """Seconds that these cores have worked so far, for whomever, or were lent to other guests of the host.

    Zero where the system does not tell (no ``/proc/stat``): then nothing counts as disturbed.
    """
    try:
        lines = (root / "proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in lines:
        name, *numbers = line.split() or [""]
        if name in names and len(numbers) >= 8:
            # user, nice, system, idle, iowait, irq, softirq, steal; guests count as user already.
            user, nice, system, _, _, irq, softirq, steal = map(int, numbers[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _family_seconds() -> float | None:
    """Seconds of processor time of this process and its descendants, those that have ended too; None where
    the system does not tell."""
    import psutil

    try:
        this = psutil.Process()
        family = [this, *this.children(recursive=True)]
    except (psutil.Error, OSError):
        return None
    seconds = 0.0
    for process in family:
        try:
            # Of children that were waited for the parent keeps the times, theirs included.
            seconds += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return seconds
