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

    Everything that this process and its descendants compute is its own. The interrupts that they cause, and
    cores that the host lends to other guests, count as others.
    """

    def __init__(self) -> None:
        self._cores = cores_here()
        self._begin = time.perf_counter(), busy_seconds(self._cores), _family_seconds()

    def share(self) -> float:
        """Share of all these cores' time that others took since the beginning, 0 to 1.

        0 where the system does not tell (no ``/proc/stat``), and in less than a tenth of a second.
        """
        begin, busy, own = self._begin
        wall = time.perf_counter() - begin
        if wall < 0.1:  # ticks are hundredths of a second
            return 0.0
        others = (busy_seconds(self._cores) - busy) - (_family_seconds() - own)
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
        name, *numbers = line.split()
        if name in names:
            # user, nice, system, idle, iowait, irq, softirq, steal; guests count as user already.
            user, nice, system, _, _, irq, softirq, steal = map(int, numbers[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _family_seconds() -> float:
    """Seconds of processor time of this process and its descendants, those that have ended too."""
    import psutil

    this = psutil.Process()
    seconds = 0.0
    for process in (this, *this.children(recursive=True)):
        try:
            # Of children that were waited for the parent keeps the times, theirs included.
            seconds += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return seconds
