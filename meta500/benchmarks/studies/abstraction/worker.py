"""The process of a level: it makes sessions, and runs as many of their steps as it is asked to."""

from __future__ import annotations

import ctypes
import gc
import importlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.studies.abstraction.allocations import counts
from meta500.benchmarks.studies.abstraction.level import Job, Level, Session, Unavailable, level
from meta500.benchmarks.workers import serve
from meta500.errors import UnsupportedOperation, UserError

_levels: list[Level] = []
_sessions: dict[str, Session] = {}
_before: dict[str, int] = {}


def prepare(order: Mapping[str, Any]) -> dict[str, float]:
    """Import what the level ("level", its name) needs; returns the "seconds" of it."""
    begin = time.perf_counter()
    _levels.append(level(order["level"]))
    for name in _levels[0].imports:
        importlib.import_module(name)
    # What was imported stays: looking through it for garbage again and again takes tenths of a second.
    gc.collect()
    gc.freeze()
    return {"seconds": time.perf_counter() - begin}


def make(order: Mapping[str, Any]) -> dict[str, Any]:
    """Make the session "key" for a "job"; runs nothing.

    Returns:
        "seconds"; or "unavailable", the reason why the level does not run it.
    """
    gc.collect()
    before = resident()
    begin = time.perf_counter()
    try:
        session = _levels[0].make(Job(**order["job"]))
    except (Unavailable, UnsupportedOperation) as refusal:
        return {"unavailable": str(refusal)}
    seconds = time.perf_counter() - begin
    _sessions[order["key"]] = session
    _before[order["key"]] = before if session.base_memory is None else session.base_memory
    return {"seconds": seconds}


def results(order: Mapping[str, Any]) -> dict[str, float]:
    """The results of "count" steps of session "key", stacked, as "path" (.npy).

    Returns:
        "first": seconds of the first step.
    """
    session = _sessions[order["key"]]
    begin = time.perf_counter()
    found = [np.array(session.step())]
    first = time.perf_counter() - begin
    found += [np.array(session.step()) for _ in range(order["count"] - 1)]
    np.save(order["path"], np.stack(found), allow_pickle=False)
    return {"first": first}


def steps(order: Mapping[str, Any]) -> dict[str, float]:
    """Time "count" steps of session "key", after steps for "lead_in" seconds outside of the clock.

    Returns:
        "seconds" of the timed steps together.
    """
    session = _sessions[order["key"]]
    gc.collect(1)
    gc.disable()
    try:
        if order["lead_in"] > 0:
            awake = time.perf_counter() + order["lead_in"]
            session.run(1)
            while time.perf_counter() < awake:
                session.run(1)
        return {"seconds": session.run(order["count"])}
    finally:
        gc.enable()


def memory(order: Mapping[str, Any]) -> dict[str, int]:
    """Peak memory over "count" steps of session "key", which has run before.

    What compiling needed, and gave back, does not count: the kernel's high-water mark is put back first.

    Returns:
        "peak": highest resident bytes of the process that computes; "before": those before it had the
        network.
    """
    session = _sessions[order["key"]]
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    _reset_peak(session.pid)
    session.run(order["count"])
    return {"peak": _status(session.pid, "VmHWM"), "before": _before[order["key"]]}


def allocations(order: Mapping[str, Any]) -> dict[str, float]:
    """What one step of session "key" allocates: the counters over 2 "count" steps less those over "count".

    What asking itself allocates is the same both times and falls out.
    """
    session, count = _sessions[order["key"]], order["count"]
    session.run(count)
    marks = [counts(session.pid)]
    for times in (count, 2 * count):
        session.run(times)
        marks.append(counts(session.pid))
    more = (marks[2] - marks[1]) - (marks[1] - marks[0])
    return {name: value / count for name, value in asdict(more).items()}


def device(order: Mapping[str, Any]) -> dict[str, Any]:
    """How session "key" uses the GPU; see :func:`.accelerator.watched`."""
    from meta500.benchmarks.studies.abstraction.accelerator import watched

    return watched(_sessions[order["key"]], order["seconds"], Path(order["path"]), order["device"])


def drop(order: Mapping[str, Any]) -> None:
    """End session "key"."""
    _before.pop(order["key"], None)
    session = _sessions.pop(order["key"], None)
    if session is not None:
        session.close()
    del session
    gc.collect()


def reference(order: Mapping[str, Any]) -> dict[str, float]:
    """Results of "count" steps of a "job" in float64, stacked, as "path" (.npy).

    Returns:
        The fields of :class:`.reference.Learning`.
    """
    from meta500.benchmarks.studies.abstraction import reference

    found, learning = reference.reference(Job(**order["job"]), order["count"], order["by"])
    np.save(order["path"], found, allow_pickle=False)
    return asdict(learning)


def resident() -> int:
    """Resident bytes of this process."""
    return _status("self", "VmRSS")


def _status(pid: int | str, field: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise UserError(f"memory can only be read on Linux ({field} in /proc/{pid}/status)")


def _reset_peak(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError as error:
        raise UserError(
            f"the peak of memory cannot be put back: /proc/{pid}/clear_refs: {error.strerror}"
        ) from None


def main() -> None:
    """Serve until the parent is done."""
    serve(
        {
            "prepare": prepare,
            "make": make,
            "results": results,
            "steps": steps,
            "memory": memory,
            "allocations": allocations,
            "device": device,
            "drop": drop,
            "reference": reference,
        }
    )
    for key in list(_sessions):
        drop({"key": key})


if __name__ == "__main__":
    main()
