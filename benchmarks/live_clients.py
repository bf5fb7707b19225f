"""What it costs a training run that pages watch it, for `live_page.py`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from live_server import Server

from meta500.metrics import RunFolder, ratio_interval

# Seconds until all pages have got what they get at first.
CONNECTING = 3.0
# Seconds at the beginning of a segment that belong to the change.
CHANGING = 0.3
# Seconds between two looks at how far the run is, which says so every half second.
LOOKING = 0.1


def clients(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Step times of one run in alternating segments, with and without pages that watch it.

    All pages are connected throughout. In the segments without them the server is stopped (SIGSTOP), so that
    all that it does counts as the cost of watching. Beside the times of the steps alone: seconds of wall
    time per step, in which the time between the steps counts too, such as that of tickers, of writing files
    and of tests.
    """
    with Server(folder) as live:
        job = live.start(
            batch_size=options.batch, threads=options.threads, model_options={"hidden": [512, 512]}
        )
        live.training(job)
        run = live.runs / job
        segments, places, heard = asyncio.run(_segments(live, run, options))
        time.sleep(2)
        times = step_times(run)
    steps: dict[bool, list[float]] = {True: [], False: []}
    medians: dict[bool, list[float]] = {True: [], False: []}
    wall: dict[bool, list[float]] = {True: [], False: []}
    for watched, begin, end in segments:
        first, last = place(places, begin + CHANGING), place(places, end)
        inside = times[int(np.ceil(first)) : int(last)]
        if len(inside) < 1:
            sys.exit("no step was made in a segment: take longer ones with --seconds")
        steps[watched] += list(inside)
        medians[watched].append(float(np.median(inside)))
        wall[watched].append((end - begin - CHANGING) / (last - first))
    found = {
        "time of a step": ratio_interval(medians[True], medians[False], paired=True),
        "wall time per step": ratio_interval(wall[True], wall[False], paired=True),
    }
    print(f"{options.clients} pages heard {heard} events in {options.segments // 2} segments")
    for watched, name in ((False, "nobody watches"), (True, f"{options.clients} pages watch")):
        print(
            f"{name:20} {1e3 * float(np.median(steps[watched])):8.3f} ms per step (median of "
            f"{len(steps[watched])}), {1e3 * float(np.median(wall[watched])):.3f} ms of wall time"
        )
    for name, one in found.items():
        print(f"{name}: ratio of paired segments {one.value:.4f} [{one.low:.4f}, {one.high:.4f}]")
    return {
        "clients": options.clients,
        "events": heard,
        "segments": options.segments,
        "seconds": options.seconds,
        "segment_medians_alone": medians[False],
        "segment_medians_watched": medians[True],
        "wall_alone": wall[False],
        "wall_watched": wall[True],
        "ratios": {name: [one.value, one.low, one.high] for name, one in found.items()},
        "confidence": found["time of a step"].confidence,
    }


def place(places: Sequence[tuple[float, int]], moment: float) -> float:
    """Steps made at a moment, between what the run said before and after it."""
    moments, steps = zip(*places, strict=True)
    return float(np.interp(moment, moments, steps))


async def _segments(
    live: Server, run: Path, options: argparse.Namespace
) -> tuple[list[tuple[bool, float, float]], list[tuple[float, int]], int]:
    """The segments (watched, begin, end), how far the run was when, and the events that all pages heard."""
    heard = 0
    places: list[tuple[float, int]] = []

    async def listen(client: httpx.AsyncClient) -> None:
        nonlocal heard
        async with client.stream("GET", f"/api/events?ids={run.name}") as stream:
            async for part in stream.aiter_raw():
                heard += part.count(b"event: ")
        raise RuntimeError("a connection ended before its time")

    async def look() -> None:
        while True:
            progress = json.loads((run / "progress.json").read_text())
            if not places or progress["updated"] > places[-1][0]:
                places.append((float(progress["updated"]), int(progress["step"])))
            await asyncio.sleep(LOOKING)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=live.url, timeout=None, limits=limits) as client:
        tasks = [asyncio.create_task(listen(client)) for _ in range(options.clients)]
        tasks.append(asyncio.create_task(look()))
        await asyncio.sleep(CONNECTING)
        heard = 0
        segments = []
        try:
            for index in range(options.segments):
                # Pairs in alternating order, so that a drift counts for neither.
                watched = index % 4 in (1, 2)
                os.kill(live.process.pid, signal.SIGCONT if watched else signal.SIGSTOP)
                begin = time.time()
                await asyncio.sleep(options.seconds)
                segments.append((watched, begin, time.time()))
        finally:
            os.kill(live.process.pid, signal.SIGCONT)
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        for fault in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(fault, asyncio.CancelledError):
                raise RuntimeError("watching failed") from fault
    return segments, places, heard


def steps_so_far(run: Path) -> int:
    """Steps made, as the run says itself, at most half a second ago."""
    return int(json.loads((run / "progress.json").read_text())["step"])


def step_times(run: Path) -> np.ndarray:
    """Seconds of every step."""
    rows = RunFolder.open(run).rows
    ends = [
        t
        for row in rows
        if (row.phase, row.quantity) == ("training_step", "training_time")
        for t in row.samples
    ]
    return np.diff(np.asarray(ends), prepend=0.0)
