"""The four ways to time layers, side by side: end to end, timers, subtraction, the PyTorch profiler.

Every run of a group is made once per round, so differences of runs are differences of paired samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import Protocol
from meta500.benchmarks.studies.compiler.cut_network import CutNetwork
from meta500.benchmarks.studies.compiler.instruments import (
    Ranges,
    Stopwatch,
    clocked,
    in_rounds,
    profiled,
)
from meta500.benchmarks.studies.compiler.oracle import COMPILED, INTERPRETED
from meta500.benchmarks.studies.compiler.settings import on_cuda
from meta500.benchmarks.studies.compiler.timing import CLOCK_ALONE, WAITS_ALONE
from meta500.metrics.clocks import Timing, interleave

Array = np.ndarray
# Medians of fewer rounds have no useful intervals, and where segments take microseconds rounds are cheap.
LEAST_ROUNDS = 21
PROFILED_ROUNDS = 11
STATES = (INTERPRETED, COMPILED)


@dataclass(frozen=True)
class TimerRuns:
    """What the runs with timers gave; all arrays begin with the rounds, all in seconds.

    Attributes:
        whole: by state, without any timers: (rounds,). Compiled: all layers as one region.
        separate: every segment compiled on its own, without timers: (rounds,).
        timed_layers: the interpreted run with a timer behind every layer: (rounds,).
        timed_segments: by state, the runs with a timer behind every segment: (rounds,).
        layers: (rounds, layers), interpreted.
        segments: (rounds, segments, 2), by state.
        switching: (rounds, segments - 1, 2, 2): c of the cost model in :mod:`~.oracle`.
        variants: on CUDA, by state and words, runs with only a part of what timers do: (rounds,).
    """

    whole: tuple[Array, Array]
    separate: Array
    timed_layers: Array
    timed_segments: tuple[Array, Array]
    layers: Array
    segments: Array
    switching: Array
    variants: Mapping[tuple[int, str], Array]


def limits(protocol: Protocol) -> dict[str, Any]:
    """The keyword arguments of ``interleave``."""
    return replace(protocol, min_repeats=max(protocol.min_repeats, LEAST_ROUNDS)).limits()


def run_timers(network: CutNetwork, protocol: Protocol) -> TimerRuns:
    """All runs with timers, and those without that they are compared with, in one interleaved run.

    The switching costs come from runs in which every second segment is compiled, beginning with the first or
    with the second one, and from runs in which pairs of segments are compiled as one region, likewise.

    Raises:
        Exception: whatever a run raises.
    """
    n, borders = network.segments, network.borders
    alone = [network.region(i, i + 1) for i in range(n)]
    watches: dict[str, Stopwatch] = {}
    runs: dict[str, Any] = {
        "interpreted": network.module,
        "compiled": network.chosen([COMPILED] * n),
        "separate": network.timed(alone, [], Unmarked),
    }

    def timed(name: str, found: Sequence[Any], marks: Sequence[int]) -> None:
        watches[name] = Stopwatch(network.wait())
        runs[name] = network.timed(found, marks, watches[name])

    timed("layers", [], range(1, borders[-1] + 1))
    timed("segments 0", [], borders[1:])
    timed("segments 1", alone, borders[1:])
    for phase in (0, 1) if n > 1 else ():
        timed(f"alternating {phase}", alone[phase::2], borders[1:])
        spans = _pairs(n, phase)
        pairs = [network.region(a, b) for a, b in spans]
        timed(f"pairs {phase}", pairs, [borders[b] for _, b in spans])
    if on_cuda(network.device):
        for state, found in ((INTERPRETED, []), (COMPILED, alone)):
            marks = range(1, borders[-1] + 1) if state == INTERPRETED else borders[1:]
            runs[f"clock {state}"] = network.timed(found, marks, Stopwatch())
            runs[f"waits {state}"] = network.timed(found, marks, _Waits(network))
    timings = interleave(
        {name: network.action(run) for name, run in runs.items()},
        synchronize=network.wait(),
        **limits(protocol),
    )
    count = _rounds(timings)
    spent = {name: np.array(timing.samples[:count]) for name, timing in timings.items()}
    marked = {name: watch.seconds(count) for name, watch in watches.items()}
    segments = np.stack([marked["segments 0"], marked["segments 1"]], axis=-1)
    return TimerRuns(
        whole=(spent["interpreted"], spent["compiled"]),
        separate=spent["separate"],
        timed_layers=spent["layers"],
        timed_segments=(spent["segments 0"], spent["segments 1"]),
        layers=marked["layers"],
        segments=segments,
        switching=_switching(segments, marked),
        variants={
            (state, words): spent[f"{key} {state}"]
            for state in STATES
            for key, words in (("clock", CLOCK_ALONE), ("waits", WAITS_ALONE))
            if f"{key} {state}" in spent
        },
    )


def run_segments(network: CutNetwork, protocol: Protocol) -> Array:
    """(rounds, segments, 2) seconds of the segments, interpreted and each compiled on its own, by timers.

    Raises:
        Exception: whatever a run raises.
    """
    watches = [Stopwatch(network.wait()) for _ in STATES]
    alone = [network.region(i, i + 1) for i in range(network.segments)]
    runs = {
        str(state): network.action(network.timed(found, network.borders[1:], watches[state]))
        for state, found in enumerate(([], alone))
    }
    timings = interleave(runs, synchronize=network.wait(), **limits(protocol))
    count = _rounds(timings)
    return np.stack([watch.seconds(count) for watch in watches], axis=-1)


def run_prefixes(
    network: CutNetwork, choices: Mapping[str, Sequence[int]], protocol: Protocol
) -> dict[str, Array]:
    """Layer subtraction: the network stopped behind each of its segments.

    Args:
        network: cut.
        choices: states of the segments, by name; a run of compiled segments that is cut is compiled up to
            there as one region.
        protocol: how long.

    Returns:
        By name the (rounds, segments) seconds of the prefixes; times of segments are their differences.

    Raises:
        Exception: whatever a run raises.
    """
    runs = {
        f"{name}/{end}": network.action(network.prefix(states, end))
        for name, states in choices.items()
        for end in range(1, network.segments + 1)
    }
    timings = interleave(runs, synchronize=network.wait(), **limits(protocol))
    count = _rounds(timings)
    return {
        name: np.stack(
            [timings[f"{name}/{end}"].samples[:count] for end in range(1, network.segments + 1)], axis=-1
        )
        for name in choices
    }


def run_profiler(network: CutNetwork) -> dict[str, Any]:
    """The network under the PyTorch profiler and without it, in turns.

    Returns:
        "whole": by state (rounds, 2): seconds without and with the profiler; "self": by state and device
        (rounds,): its sum over all operations; "segments": (rounds, segments, 2) by state.
    """
    n = network.segments
    alone = [network.region(i, i + 1) for i in range(n)]
    whole = {INTERPRETED: network.module, COMPILED: network.chosen([COMPILED] * n)}
    ranges = Ranges(n)
    marked = {
        state: network.timed(found, network.borders[1:], ranges) for state, found in ((0, []), (1, alone))
    }
    wait = network.wait()
    actions: dict[str, Any] = {}
    for state in STATES:
        plain, segmented = network.action(whole[state]), network.action(marked[state])
        actions[f"plain {state}"] = lambda a=plain: clocked(a, wait)
        actions[f"profiled {state}"] = lambda a=plain: profiled(a, wait, 0, network.device)
        actions[f"segments {state}"] = lambda a=segmented: profiled(a, wait, n, network.device)
    found = in_rounds(actions, PROFILED_ROUNDS)
    return {
        "whole": {
            state: np.stack(
                [found[f"plain {state}"], [p["time"] for p in found[f"profiled {state}"]]], axis=-1
            )
            for state in STATES
        },
        "self": {
            (state, device): np.array([p["self"][device] for p in found[f"profiled {state}"]])
            for state in STATES
            for device in found[f"profiled {state}"][0]["self"]
        },
        "segments": np.stack(
            [[p["layers"] for p in found[f"segments {state}"]] for state in STATES], axis=-1
        ),
    }


def _rounds(timings: Mapping[str, Timing]) -> int:
    """How many rounds all runs have.

    Raises:
        Exception: the failure of a run.
    """
    for timing in timings.values():
        if timing.failure is not None:
            raise timing.failure
    return min(len(timing.samples) for timing in timings.values())


def _switching(segments: Array, found: Mapping[str, Array]) -> Array:
    """c of the cost model from the alternating and the paired runs."""
    rounds, n, _ = segments.shape
    switching = np.zeros((rounds, max(n - 1, 0), 2, 2))
    for border in range(n - 1):
        # In "alternating p" segment i is compiled where i and p are both even or both odd.
        into = border + 1
        for state in STATES:
            phase = into % 2 if state == COMPILED else (into + 1) % 2
            spent = found[f"alternating {phase}"][:, into]
            switching[:, border, 1 - state, state] = spent - segments[:, into, state]
        phase = border % 2
        place = _pairs(n, phase).index((border, border + 2))
        joined = found[f"pairs {phase}"][:, place]
        switching[:, border, 1, 1] = joined - segments[:, border : border + 2, COMPILED].sum(axis=1)
    return switching


def _pairs(count: int, phase: int) -> list[tuple[int, int]]:
    """Segments in twos from ``phase`` on, as (first, end); what is left over is alone."""
    spans = [(0, 1)] if phase else []
    spans += [(i, min(i + 2, count)) for i in range(phase, count, 2)]
    return spans


class Unmarked:
    """In place of a stopwatch: nothing is called between the layers."""

    start = mark = None


class _Waits:
    """Waits for the device where a stopwatch would read the clock as well."""

    def __init__(self, network: CutNetwork) -> None:
        wait = network.wait()

        def pause() -> None:
            if wait is not None:
                wait()

        self.start = self.mark = pause
