"""Memory and allocations of a level's step, in processes of their own whose allocations are counted."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.studies.abstraction.allocations import counting_environment
from meta500.benchmarks.studies.abstraction.crew import Crew, Member, inform
from meta500.benchmarks.studies.abstraction.level import INFERENCE, Job
from meta500.benchmarks.studies.abstraction.subject import Subject
from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

OWN_PROCESS, OWN_PROCESSES = "process of its own", "processes of their own"
_KEY = "footprint"
_STEPS = 3
_READINGS = 3
_PEAK = "highest resident memory of a step, the libraries' own included"
_NETWORK = "highest resident memory of a step, less that with the libraries loaded and no network"
_CALLS = "requests to malloc and its kin and anonymous mmap in one step; small Python objects are not seen"


def counted_environment(folder: Path) -> tuple[dict[str, str], str]:
    """Variables of processes whose allocations are counted; or none of them, and why they can't be."""
    counted = folder / "counters"
    counted.mkdir(exist_ok=True)
    try:
        return counting_environment(counted), ""
    except UserError as error:
        return {}, str(error)


def measure_footprint(
    crew: Crew,
    subject: Subject,
    phase: str,
    folder: Path,
    emit: Emit,
    at_once: int = 2,
    uncounted: str = "",
    processes: int = 1,
) -> None:
    """Rows "peak_memory", "network_memory" (B), "allocations" (1) and "allocated_bytes" (B) of one step.

    Levels are measured some at once, since nothing here is timed.

    Args:
        crew: the levels, in the environment of :func:`counted_environment`.
        subject, phase: what is run; folder: for files.
        emit: receives the rows.
        at_once: so many levels.
        uncounted: why allocations are not counted.
        processes: of each level, one after the other, and one before them where there are several; the
            samples are theirs, since what one process needs again and again says little about another one's.
    """
    protocol = OWN_PROCESS if processes == 1 else OWN_PROCESSES
    members = [m for m in crew.present if phase == INFERENCE or not m.untrainable]

    def ask(member: Member) -> dict[str, Any]:
        try:
            return _footprint(member, subject, phase, folder, not uncounted, processes)
        finally:
            member.end()

    for member, found in zip(members, inform(ask, members, at_once), strict=True):
        columns = {**subject.columns(phase), **member.columns(), "protocol": protocol}
        if isinstance(found, Exception):
            found = {"failed": str(found)}
        _emit(columns, found, uncounted, emit)
    for member in (m for m in crew.members if m not in members):
        columns = {**subject.columns(phase), **member.columns(), "protocol": protocol}
        _emit(columns, {"unavailable": member.missing or member.untrainable}, uncounted, emit)


def _footprint(
    member: Member, subject: Subject, phase: str, folder: Path, counted: bool, processes: int
) -> dict[str, Any]:
    own = Path(folder, f"footprint-{member.name}-{phase}")
    own.mkdir(exist_ok=True)
    job = Job(subject.model, subject.inputs, phase, member.threads, member.device, str(own))
    found: dict[str, Any] = {"peak": [], "more": []}
    # Of several the first one compiles, which the others find done: it does not count.
    for number in range(processes + 1 if processes > 1 else 1):
        made = member.ask("make", key=_KEY, job=job.columns())
        if "unavailable" in made:
            return {"unavailable": made["unavailable"]}
        member.ask("results", key=_KEY, count=_STEPS, path=str(own / "results.npy"))
        if processes > 1 and number == 0:
            member.end()
            continue
        marks = [member.ask("memory", key=_KEY, count=1) for _ in range(_READINGS)]
        peak = float(statistics.median(mark["peak"] for mark in marks))
        found["peak"].append(peak)
        found["more"].append(max(peak - marks[0]["before"], 0.0))
        if counted and "counts" not in found:
            found["counts"] = member.ask("allocations", key=_KEY, count=_STEPS)
        member.end()
    return found


def _emit(columns: dict[str, Any], found: dict[str, Any], uncounted: str, emit: Emit) -> None:
    reason = found.get("unavailable") or found.get("failed")
    if reason:
        verdict = "failed" if "failed" in found else "unsupported"
        emit(Row(**columns, quantity="peak_memory", unit="B", value=None, verdict=verdict, note=reason))
        return
    for quantity, samples, note in (
        ("peak_memory", found["peak"], _PEAK),
        ("network_memory", found["more"], _NETWORK),
    ):
        taken: dict[str, Any] = {
            "samples": tuple(samples),
            "repeats": len(samples),
            **asdict(median_interval(samples)),
        }
        emit(Row(**columns, quantity=quantity, unit="B", note=note, **taken))
    if "counts" not in found:
        none: dict[str, Any] = {
            "quantity": "allocations",
            "unit": "1",
            "value": None,
            "verdict": "unsupported",
        }
        emit(Row(**columns, **none, note=uncounted))
        return
    counts = found["counts"]
    calls, size = counts["calls"] + counts["maps"], counts["bytes"] + counts["mapped_bytes"]
    emit(Row(**columns, quantity="allocations", unit="1", value=calls, note=_CALLS))
    emit(Row(**columns, quantity="allocated_bytes", unit="B", value=size, note=_CALLS))
