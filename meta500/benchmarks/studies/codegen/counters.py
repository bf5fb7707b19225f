"""Traffic between cache and memory, from the processor's counters through Linux' perf_event_open.

Preferred are the counters of the memory controllers (``uncore_imc``: reads and writes of whole lines), which
need the right to watch the whole machine: what others move is in them, so what they count in an idle time as
long as the run is taken off. Else misses of the last-level cache by this process' threads, which count lines
fetched on demand and, where the processor tells, lines fetched to be written; lines that were prefetched miss
in them, so that they are a lower bound. Virtual machines mostly have neither; then there is a reason instead
of a number.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from meta500.errors import UserError

DEVICES = Path("/sys/bus/event_source/devices")
LINE_BYTES = 64
READ, WRITTEN = "read", "written"
MEMORY_CONTROLLERS, CACHE_MISSES = "memory controllers", "last-level cache misses"
_SYSTEM_CALLS = {"x86_64": 298, "aarch64": 241}
_ENABLE, _DISABLE, _RESET = 0x2400, 0x2401, 0x2403
_HARDWARE_CACHE = 3
# Last-level cache, misses of reads and of writes (linux/perf_event.h).
_CACHE_EVENTS = {READ: 2 | 0 << 8 | 1 << 16, WRITTEN: 2 | 1 << 8 | 1 << 16}
_DISABLED, _USER_ONLY = 1 << 0, 1 << 5 | 1 << 6
_TIMES = 1 | 2
_ATTRIBUTE_BYTES = 64
_UNCORE_EVENTS = {READ: "cas_count_read", WRITTEN: "cas_count_write"}


@dataclass(frozen=True)
class Event:
    """One counter: its unit and configuration, bytes per count, and the processor or thread it watches."""

    direction: str
    unit: int
    config: int
    bytes: float
    processor: int = -1
    thread: int = -1


@dataclass
class Traffic:
    """Bytes that were moved in each run, by direction; a direction that cannot be counted is missing.

    ``source`` says which counters they come from; it begins with :data:`MEMORY_CONTROLLERS` or
    :data:`CACHE_MISSES`.
    """

    source: str
    bytes: dict[str, tuple[float, ...]]


def measured_traffic(run: Callable[[], object], times: int) -> Traffic:
    """Traffic of several runs, each counted alone.

    Args:
        run: what is watched; its threads must exist already, so it must have run before.
        times: how often it runs.

    Raises:
        UserError: this machine has no such counters, or does not let this process read them; says why.
    """
    reasons = []
    for source, events in _candidates():
        try:
            with _opened(events) as files:
                counted = [_counted_run(run, files, events) for _ in range(times)]
        except OSError as error:
            reasons.append(f"{source}: {_reason(error)}")
            continue
        if not any(amount > 0 for one in counted for amount in one.values()):
            reasons.append(f"{source}: nothing was counted")
            continue
        return Traffic(source, {d: tuple(one[d] for one in counted) for d in counted[0]})
    raise UserError(f"no counters of memory traffic: {'; '.join(reasons)}")


def _counted_run(
    run: Callable[[], object], files: Sequence[int], events: Sequence[Event]
) -> dict[str, float]:
    """Bytes of one run by direction; of the whole machine's less what it moves in an idle time as long."""
    begin = time.perf_counter()
    found = _counted(run, files, events)
    seconds = time.perf_counter() - begin
    if not any(event.processor >= 0 for event in events):
        return found
    idle = _counted(lambda: time.sleep(seconds), files, events)
    return {direction: max(amount - idle[direction], 0.0) for direction, amount in found.items()}


def _counted(run: Callable[[], object], files: Sequence[int], events: Sequence[Event]) -> dict[str, float]:
    for order in (_RESET, _ENABLE):
        for file in files:
            _control(file, order)
    run()
    for file in files:
        _control(file, _DISABLE)
    found: dict[str, float] = {}
    for event, file in zip(events, files, strict=True):
        found[event.direction] = found.get(event.direction, 0.0) + _count(file) * event.bytes
    return found


def _candidates() -> Iterator[tuple[str, list[Event]]]:
    uncore = uncore_events(DEVICES)
    if uncore:
        yield f"{MEMORY_CONTROLLERS}, whole machine less when idle", uncore
    threads = sorted(int(entry) for entry in os.listdir("/proc/self/task")) if _linux() else []
    for directions in ((READ, WRITTEN), (READ,)):
        events = [
            Event(direction, _HARDWARE_CACHE, _CACHE_EVENTS[direction], LINE_BYTES, thread=thread)
            for direction in directions
            for thread in threads
        ]
        yield f"{CACHE_MISSES} ({' and '.join(directions)}) of this process", events


def uncore_events(devices: Path) -> list[Event]:
    """The events of all memory controllers that the kernel lists; none where there are none.

    Args:
        devices: the folder of the kernel's event sources.
    """
    found = []
    for device in sorted(devices.glob("uncore_imc_*")):
        for direction, name in _UNCORE_EVENTS.items():
            try:
                unit = int((device / "type").read_text())
                terms = (device / "events" / name).read_text().strip()
                scale = float((device / "events" / f"{name}.scale").read_text())
                mebi = (device / "events" / f"{name}.unit").read_text().strip()
                mask = (device / "cpumask").read_text()
            except (OSError, ValueError):
                continue
            if mebi != "MiB":
                continue
            config = _configuration(terms)
            for processor in processors_of(mask):
                found.append(Event(direction, unit, config, scale * 2**20, processor))
    return found


def processors_of(mask: str) -> list[int]:
    """The processors of a list such as "0-2,36"."""
    found: list[int] = []
    for part in filter(None, mask.strip().split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def _reason(error: OSError) -> str:
    """Why a counter cannot be opened, in words; the kernel's own are about files."""
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "this processor, or virtual machine, has no such counter"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "not allowed (sysctl kernel.perf_event_paranoid)"
    return error.strerror or str(error)


def _configuration(terms: str) -> int:
    """The number of "event=0x04,umask=0x03": the event in the lowest byte, the mask in the one above."""
    places = {"event": 0, "umask": 8}
    number = 0
    for term in terms.split(","):
        name, _, value = term.partition("=")
        if name in places:
            number |= int(value, 0) << places[name]
    return number


def _linux() -> bool:
    return platform.system() == "Linux" and platform.machine() in _SYSTEM_CALLS


@contextmanager
def _opened(events: Sequence[Event]) -> Iterator[list[int]]:
    """File descriptors of counters that stand still.

    Raises:
        OSError: one of them cannot be opened.
    """
    if not _linux():
        raise OSError(0, "only Linux on x86-64 and AArch64 is supported")
    library = ctypes.CDLL(None, use_errno=True)
    files: list[int] = []
    try:
        for event in events:
            machine_wide = event.processor >= 0
            flags = _DISABLED if machine_wide else _DISABLED | _USER_ONLY
            attribute = attribute_bytes(event, flags)
            file = library.syscall(
                ctypes.c_long(_SYSTEM_CALLS[platform.machine()]),
                attribute,
                ctypes.c_int(event.thread),
                ctypes.c_int(event.processor),
                ctypes.c_int(-1),
                ctypes.c_ulong(0),
            )
            if file < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            files.append(file)
        yield files
    finally:
        for file in files:
            with suppress(OSError):
                os.close(file)


def attribute_bytes(event: Event, flags: int) -> bytes:
    """The kernel's ``struct perf_event_attr`` in its first version, 64 bytes."""
    return struct.pack(
        "=IIQQQQQIIQ", event.unit, _ATTRIBUTE_BYTES, event.config, 0, 0, _TIMES, flags, 0, 0, 0
    )


def _control(file: int, order: int) -> None:
    import fcntl

    fcntl.ioctl(file, order, 0)


def _count(file: int) -> float:
    """What was counted; scaled up where the counter was lent to others for a part of the time."""
    count, enabled, running = struct.unpack("=QQQ", os.read(file, 24))
    return float(count) * enabled / running if running else 0.0
