"""What is put between the layers of a network to time them: clocks, waits for the device, profiler ranges."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meta500.benchmarks.studies.compiler.settings import on_cuda
from meta500.metrics.clocks import NANOSECONDS
from meta500.metrics.statistics import Interval, median_interval

Action = Callable[[], object]
MARKS = 1000
# Prefix of the names of ranges in the profiler's trace.
RANGE = "meta500 layer "


def clocked(action: Action, wait: Action | None = None) -> float:
    """Seconds of one call; the device is waited for before the clock is read."""
    pause = wait or (lambda: None)
    pause()
    start = time.perf_counter_ns()
    action()
    pause()
    return (time.perf_counter_ns() - start) * NANOSECONDS


class Stopwatch:
    """Timers: ``start`` before the first layer, ``mark`` behind each layer or segment.

    ``start`` and ``mark`` are plain functions, as fx graphs call them. With ``wait`` the device has finished
    all that was asked for before the clock is read.
    """

    def __init__(self, wait: Action | None = None) -> None:
        self.runs: list[list[int]] = []
        runs, clock = self.runs, time.perf_counter_ns

        def start() -> None:
            if wait is not None:
                wait()
            runs.append([clock()])

        def mark() -> None:
            if wait is not None:
                wait()
            runs[-1].append(clock())

        self.start, self.mark = start, mark

    def seconds(self, count: int) -> np.ndarray[Any, Any]:
        """Of the last ``count`` runs: (runs, marks) float64, seconds from one mark to the next."""
        return np.diff(np.array(self.runs[-count:], np.float64), axis=1) * NANOSECONDS


def timer_cost(wait: Action | None = None) -> Interval:
    """Seconds of one mark of a stopwatch with nothing to wait for, from marks that follow each other."""
    watch = Stopwatch(wait)
    watch.start()
    for _ in range(MARKS):
        watch.mark()
    return median_interval(watch.seconds(1)[0].tolist())


class Ranges:
    """Ranges of the PyTorch profiler, like :class:`Stopwatch`: each mark ends one and opens the next."""

    def __init__(self, count: int) -> None:
        import torch

        ranges: list[Any] = []

        def enter(place: int) -> None:
            ranges.append(torch.profiler.record_function(f"{RANGE}{place}"))
            ranges[-1].__enter__()

        def start() -> None:
            ranges.clear()
            enter(0)

        def mark() -> None:
            ranges[-1].__exit__(None, None, None)
            if len(ranges) < count:
                enter(len(ranges))

        self.start, self.mark, self.count = start, mark, count


def profiled(action: Action, wait: Action | None, count: int, device: str) -> dict[str, Any]:
    """One call under the PyTorch profiler.

    Args:
        action: calls a network with :class:`Ranges`, or without (``count`` 0).
        wait: for the device.
        count: of ranges.
        device: "cpu", "cuda" or "cuda:N".

    Returns:
        "time": seconds of the call, by a clock inside of the profiler; "layers": seconds of each range, on
        CUDA those of the kernels that it started; "self": seconds of all operations without those that
        they called, by "cpu" and, on CUDA, "cuda".
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = on_cuda(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    pause = wait or (lambda: None)
    with profile(activities=activities) as trace:
        pause()
        start = time.perf_counter_ns()
        action()
        pause()
        taken = (time.perf_counter_ns() - start) * NANOSECONDS
    layers = np.zeros(count)
    totals = {"cpu": 0.0, **({"cuda": 0.0} if gpu else {})}
    for event in trace.events() or ():
        on_device = event.device_type != torch.autograd.DeviceType.CPU
        totals["cpu"] += 0.0 if on_device else event.self_cpu_time_total * 1e-6
        if gpu:
            totals["cuda"] += 0.0 if on_device else event.self_device_time_total * 1e-6
        if event.name.startswith(RANGE) and not on_device:
            spent = event.device_time_total if gpu else event.cpu_time_total
            layers[int(event.name.removeprefix(RANGE))] += spent * 1e-6
    return {"time": taken, "layers": layers, "self": totals}


def in_rounds(actions: dict[str, Callable[[], Any]], rounds: int, seed: int = 0) -> dict[str, list[Any]]:
    """Results of all actions, in a new order in each of ``rounds`` rounds; one before them is dropped."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Any]] = {name: [] for name in actions}
    names: Sequence[str] = list(actions)
    for index in range(rounds + 1):
        for place in rng.permutation(len(names)):
            result = actions[names[place]]()
            if index:
                found[names[place]].append(result)
    return found
