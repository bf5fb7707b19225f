"""The history of a project's own figures: a JSONL file with one run per line, added to under a lock.

A line holds id, start, git commit, environment and machine of the run, and for every measurement its median
with interval and number of samples. The file is only ever appended to: by one write, synchronised with the
disk, and cut back where it fails. A line that a crash left incomplete, or that was damaged later, is named
and never skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.matching import KEY, by_key, fault
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder, explained
from meta500.metrics.statistics import median_interval

FORMAT = "meta500 history"
SCHEMA_VERSION = 1
REQUIRED = ("run", "started", "commit", "machine", "environment", "measurements")
# Seconds to wait for another process that adds a run.
PATIENCE = 30.0
# What a restart, an update or a scheduler changes on the same machine.
_NOT_HARDWARE = ("affinity", "microcode", "governor")


@dataclass(frozen=True)
class Point:
    """One measurement of one run: its median, the ends of its interval and the number of samples.

    ``value`` is None where the run failed at it; ``fault`` says how ("wrong", "failed", ...), else "".
    """

    value: float | None
    low: float | None
    high: float | None
    confidence: float | None
    samples: int
    unit: str
    fault: str


@dataclass(frozen=True)
class Entry:
    """One run in the history.

    Attributes:
        run: its id.
        started: UTC, ISO 8601.
        commit: of the repository that it ran in, "" outside of one; dirty: whether files differed from it.
        machine: see :func:`machine_of`.
        environment: see :func:`meta500.metrics.machine.environment`.
        points: by the values of :data:`~meta500.metrics.matching.KEY`.
    """

    run: str
    started: str
    commit: str
    dirty: bool
    machine: str
    environment: dict[str, Any]
    points: dict[tuple[Any, ...], Point]


def machine_of(environment: Mapping[str, Any]) -> str:
    """Twelve hexadecimal digits that are the same on machines of the same kind.

    From the processor (model, cores, how many of them may be used, limit of the container, caches, vector
    instructions), the memory in whole GiB, the GPUs and the operating system. Not from software, whose
    updates may be what changes a figure, nor from which cores of several are used.
    """
    cpu = dict(environment.get("cpu") or {})
    hardware = {name: value for name, value in cpu.items() if name not in _NOT_HARDWARE}
    hardware["usable"] = _count(cpu.get("affinity"))
    memory = environment.get("memory") or {}
    sizes = [memory.get("total_bytes"), memory.get("limit_bytes")]
    gpus = [[gpu.get("name"), gpu.get("memory_bytes")] for gpu in environment.get("gpus") or []]
    facts = {
        "cpu": hardware,
        "memory": [round(size / 2**30) if size else None for size in sizes],
        "gpus": gpus,
        "system": (environment.get("os") or {}).get("system"),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _count(ranges: Any) -> int | None:
    """How many numbers a list such as "0-2,5" has."""
    pairs = re.findall(r"(\d+)(?:-(\d+))?", ranges) if isinstance(ranges, str) else []
    return sum(int(end or start) - int(start) + 1 for start, end in pairs) or None


def entry_of(run: RunFolder) -> Entry:
    """The line of a run.

    Raises:
        UserError: the run did not finish, or has no measurement.
    """
    if run.status != "finished":
        raise UserError(
            f"{run.path}: the run is {run.status}; a history takes runs that are finished, whole ones only"
        )
    rows = by_key(run.rows)
    if not rows:
        raise UserError(f"{run.path}: the run has no measurement to keep")
    git = run.environment.get("git") or {}
    return Entry(
        run=run.id,
        started=str(run.info["started"]),
        commit=str(git.get("commit") or ""),
        dirty=bool(git.get("dirty")),
        machine=machine_of(run.environment),
        environment={k: v for k, v in run.environment.items() if k != "git"},
        points={key: _point(row) for key, row in rows.items()},
    )


def _point(row: Row) -> Point:
    value, low, high, confidence = row.value, row.low, row.high, row.confidence
    if len(row.samples) > 1 and not any(map(math.isnan, row.samples)):
        found = median_interval(row.samples)
        value, low, high, confidence = found.value, found.low, found.high, found.confidence
    return Point(value, low, high, confidence, len(row.samples), row.unit, fault(row))


def add(path: str | Path, runs: Sequence[RunFolder]) -> list[str]:
    """Append runs to the file, which is made if there is none; the ids of those that were not yet in it.

    All or none: nothing is written where a run is refused or a line of the file is damaged.

    Raises:
        UserError: see :func:`entry_of`, :func:`read`; another process holds the file for longer than
            :data:`PATIENCE` seconds; or it cannot be written.
    """
    target = Path(path)
    entries = {entry.run: entry for entry in map(entry_of, runs)}
    with _opened(target) as descriptor:
        _lock(descriptor, target)
        known = {entry.run for entry in read(target)}
        new = [entry for run, entry in entries.items() if run not in known]
        if new:
            _append(descriptor, target, "".join(map(_line, new)).encode())
    return [entry.run for entry in new]


def read(path: str | Path) -> list[Entry]:
    """The runs of a history by their start, the first first.

    Raises:
        UserError: the file cannot be read, or names the line that is damaged, incomplete or of a newer
            schema, or that repeats a run.
    """
    target = Path(path)
    try:
        data = target.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{target}: there is no such file; meta500 history add RUN --file {target}") from None
    except OSError as error:
        raise UserError(f"{target}: cannot be read: {error.strerror}") from None
    lines = data.split(b"\n")
    if lines[-1]:
        raise UserError(
            f"{target}, line {len(lines)}: is incomplete: its end was not written. Remove this line and "
            "add its run again; all lines before it are whole"
        )
    found: dict[str, Entry] = {}
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = _parsed(line)
        except (UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{target}, line {number}: is damaged: {reason:.100}. Restore it from a copy, or remove this "
                "line and add its run again"
            ) from None
        if entry.run in found:
            raise UserError(f"{target}, line {number}: run {entry.run} is there twice; remove one line")
        found[entry.run] = entry
    return sorted(found.values(), key=lambda entry: entry.started)


def _line(entry: Entry) -> str:
    """One line of standard JSON; absent key fields are left out, non-finite numbers are strings."""
    measurements = [
        {name: value for name, value in zip(KEY, key, strict=True) if value not in ("", None)}
        | {name: _plain(value) for name, value in vars(point).items() if value not in ("", None)}
        for key, point in entry.points.items()
    ]
    about = {"format": FORMAT, "schema_version": SCHEMA_VERSION}
    about |= {name: getattr(entry, name) for name in Entry.__dataclass_fields__ if name != "points"}
    # What a run folder holds as text may stand for anything.
    return json.dumps(about | {"measurements": measurements}, allow_nan=False, default=str) + "\n"


def _plain(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _parsed(line: bytes) -> Entry:
    entry = json.loads(line.decode())
    if not isinstance(entry, dict) or entry.get("format") != FORMAT:
        raise ValueError(f'no line of a history: "format" is not "{FORMAT}"')
    if entry.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"schema_version {entry.get('schema_version')!r}: this meta500 reads {SCHEMA_VERSION}"
        )
    for name in REQUIRED:
        entry[name]
    texts = ("run", "started", "commit", "machine")
    if not all(isinstance(entry[name], str) for name in texts) or not isinstance(entry["environment"], dict):
        raise ValueError(f"{', '.join(texts)} must be texts, and environment an object")
    absent = dict.fromkeys(KEY, "") | dict.fromkeys(("batch", "threads", "ranks"))
    points = {}
    for each in entry["measurements"]:
        number = {
            name: None if each.get(name) is None else float(each[name])
            for name in ("value", "low", "high", "confidence")
        }
        key = tuple(each.get(name, default) for name, default in absent.items())
        points[key] = Point(
            **number, samples=int(each.get("samples", 0)), unit=str(each["unit"]), fault=each.get("fault", "")
        )
    named = {name: entry[name] for name in (*texts, "environment")}
    return Entry(**named, dirty=bool(entry.get("dirty")), points=points)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        new = not path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        if new:
            # Else a crash could lose the name of the file, and with it what was written.
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
    except OSError as error:
        raise explained(path, error) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Wait until no other process adds to the file (POSIX); the lock ends with the descriptor."""
    import fcntl

    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > end:
                raise UserError(
                    f"{path}: another process has held it for {PATIENCE:.0f} s; wait for its end"
                ) from None
            time.sleep(0.02)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be locked ({error.strerror}); name a file on a file system with locks"
            ) from error


def _append(descriptor: int, path: Path, text: bytes) -> None:
    """Write at the end, whole or not at all, and wait for the disk."""
    end = os.fstat(descriptor).st_size
    rest = memoryview(text)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except BaseException as error:
        # Ctrl-C between two parts must not leave half a line either.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        if isinstance(error, OSError):
            raise explained(path, error, "the runs so far are intact") from error
        raise
