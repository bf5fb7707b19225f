"""Use of a GPU by a level's steps: utilisation and memory from NVML, copies from PyTorch's profiler."""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.studies.abstraction.crew import Crew
from meta500.benchmarks.studies.abstraction.level import CPU, CUDA, INFERENCE, Job, Session
from meta500.benchmarks.studies.abstraction.subject import Subject
from meta500.benchmarks.workers import WorkerFailed
from meta500.metrics.rows import Row

QUANTITIES = (
    ("gpu_utilisation", "1"),
    ("device_memory", "B"),
    ("copied_to_device", "B"),
    ("copied_from_device", "B"),
)
# NVML looks back over as much as a second.
_SECONDS = 2.0
_PERIOD = 0.1
_STEPS = 3


def measure_accelerator(crew: Crew, subject: Subject, folder: Path, emit: Emit) -> None:
    """Rows of :data:`QUANTITIES`, per step where they are bytes copied; or the reason why there are none."""
    for member in crew.members:
        columns = {**subject.columns(INFERENCE), **member.columns()}
        reason = member.missing or _missing(member.device)
        found: dict[str, Any] = {}
        verdict = "unsupported"
        if not reason:
            own = folder / member.name
            own.mkdir()
            job = Job(subject.model, subject.inputs, INFERENCE, member.threads, member.device, str(own))
            try:
                made = member.ask("make", key="device", job=job.columns())
                reason = made.get("unavailable", "")
                if not reason:
                    member.ask("steps", key="device", count=3, lead_in=0)
                    found = member.ask(
                        "device",
                        key="device",
                        seconds=_SECONDS,
                        path=str(own / "trace.json"),
                        device=member.device,
                    )
                    reason = found.get("note", "not told")
            except WorkerFailed as failure:
                reason, verdict = str(failure), "failed"
            member.end()
        for quantity, unit in QUANTITIES:
            what = {**columns, "quantity": quantity, "unit": unit}
            if quantity in found:
                emit(Row(**what, value=float(found[quantity])))
            else:
                emit(Row(**what, value=None, verdict=verdict, note=reason))


def no_accelerator(columns: Mapping[str, Any], emit: Emit) -> None:
    """Rows that say that nothing was measured, as it was measured on the CPU."""
    for quantity, unit in QUANTITIES:
        what = {**columns, "device": CPU, "quantity": quantity, "unit": unit}
        emit(Row(**what, value=None, verdict="unsupported", note=_missing(CPU)))


def _missing(device: str) -> str:
    if device == CPU:
        return "measured on the CPU: there is no GPU to be used"
    if importlib.util.find_spec("pynvml") is None:
        return "utilisation and memory of a GPU are told by NVML: pip install nvidia-ml-py"
    return ""


def watched(session: Session, seconds: float, trace: Path, device: str = CUDA) -> dict[str, Any]:
    """How a session uses the GPU; called in the process of its level.

    Args:
        session: that has run before.
        seconds: of steps while the GPU's use is asked for.
        trace: file for PyTorch's profiler.
        device: "cuda" or "cuda:N".

    Returns:
        What could be told of :data:`QUANTITIES`, and a "note" why not the rest.
    """
    import pynvml

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2] or 0))
        uses: list[float] = []
        done = threading.Event()

        def ask() -> None:
            while not done.wait(_PERIOD):
                uses.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)

        asking = threading.Thread(target=ask, daemon=True)
        end = time.perf_counter() + seconds
        asking.start()
        while time.perf_counter() < end:
            session.run(1)
        done.set()
        asking.join()
        # NVML's own number is a mean over up to a second: the last ones are of these steps alone.
        found: dict[str, Any] = {"gpu_utilisation": uses[-1]} if uses else {}
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == session.pid and process.usedGpuMemory is not None:
                found["device_memory"] = int(process.usedGpuMemory)
    finally:
        pynvml.nvmlShutdown()
    if session.pid != os.getpid():
        return {**found, "note": "a program of its own, into which PyTorch's profiler does not look"}
    if importlib.util.find_spec("torch") is None:
        return {**found, "note": "copies are seen by PyTorch's profiler: pip install torch"}
    return {**found, **_copies(session, trace), "note": "NVML does not tell it"}


def _copies(session: Session, trace: Path) -> dict[str, float]:
    """Bytes that one step copies to and from the device."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        session.run(_STEPS)
    profile.export_chrome_trace(str(trace))
    return copied(json.loads(trace.read_text()), _STEPS)


def copied(trace: Mapping[str, Any], steps: int) -> dict[str, float]:
    """Bytes copied per step in a trace of PyTorch's profiler, in Chrome's format."""
    sums = {"copied_to_device": 0.0, "copied_from_device": 0.0}
    for event in trace["traceEvents"]:
        if event.get("cat") == "gpu_memcpy":
            name = str(event.get("name", ""))
            way = "copied_to_device" if "HtoD" in name else "copied_from_device" if "DtoH" in name else ""
            if way:
                sums[way] += float(event.get("args", {}).get("bytes", 0)) / steps
    return sums
