"""Selective compilation: which segments to compile by what was measured, and what that gives for real.

An oracle that takes the smaller of two noisy times per segment is too low, since it chooses by the noise. So
states are chosen by the even rounds and their time is taken from the odd ones; and what the same choice gives
between two runs of the same interpreted network says how much chance alone makes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meta500.benchmarks.studies.compiler import oracle, timing
from meta500.benchmarks.studies.compiler.settings import EAGER
from meta500.metrics.clocks import interleave
from meta500.metrics.rows import Row

Array = np.ndarray


def choose(segments: Array, switching: Array) -> tuple[oracle.States, float]:
    """The states and the time of the dynamic programme on the medians of all rounds.

    Args:
        segments: (rounds, segments, 2) seconds.
        switching: (rounds, segments - 1, 2, 2) seconds.
    """
    return oracle.dynamic_programme(np.median(segments, axis=0), np.median(switching, axis=0))


def bound(interpreted: Array, compiled: Array) -> float:
    """Equation 4.1 as a speedup: the faster of two runs over the sum of the smaller times of each segment.

    Args:
        interpreted, compiled: (rounds, segments) seconds of the two runs.

    Returns:
        At least 1 by construction; NaN where a sum is not positive, as subtraction may give.
    """
    a, b = np.median(interpreted, axis=0), np.median(compiled, axis=0)
    smallest = float(np.minimum(a, b).sum())
    return float(min(a.sum(), b.sum()) / smallest) if smallest > 0 else float("nan")


def held_out(segments: Array) -> tuple[oracle.States, Array]:
    """The best of two runs, chosen by the even rounds, with its speedups in the odd ones.

    Returns:
        The states, and for each odd round the time of the run that was faster in the even rounds over that of
        the states. Not bound to be above 1.
    """
    even, odd = np.median(segments[::2], axis=0), segments[1::2]
    states, _ = oracle.best_of_two(even)
    faster = int(even.sum(axis=0).argmin())
    chosen = odd[:, np.arange(segments.shape[1]), list(states)]
    return states, odd[:, :, faster].sum(axis=1) / chosen.sum(axis=1)


def emit_oracles(writer: Any, by_method: Mapping[str, Array], switching: Array) -> None:
    """Rows of the oracles: best of two runs by each method, and the dynamic programme by timers.

    Args:
        writer: of the rows.
        by_method: (rounds, segments, 2) seconds by method.
        switching: of the timers' rounds.
    """
    for method, times in by_method.items():
        medians = np.median(times, axis=0)
        states, seconds = oracle.best_of_two(medians)
        what = {"phase": timing.ORACLE, "mode": timing.SELECTIVE, "node": oracle.spelled(states)}
        protocol = f"{timing.BEST_OF_TWO}, {method}"
        _value(writer, seconds, "s", quantity="prediction", protocol=protocol, **what)
        half = len(times) // 2
        if half < 1:
            continue
        pair = times[0 : 2 * half : 2], times[1 : 2 * half : 2]
        naive = bound(pair[0][:, :, 0], pair[1][:, :, 1])
        chance = bound(pair[0][:, :, 0], pair[1][:, :, 0])
        speedup = {**what, "quantity": "speedup", "baseline": "the faster run"}
        for value, words in ((naive, ""), (chance, f", {timing.BY_CHANCE}")):
            if np.isfinite(value):
                _value(writer, value, "1", **speedup, protocol=protocol + words)
        elsewhere, samples = held_out(times)
        # Differences of subtraction may be negative, which is no ratio.
        if len(samples) and np.isfinite(samples).all() and samples.min() > 0:
            writer.row(
                samples,
                unit="1",
                **{**speedup, "node": oracle.spelled(elsewhere)},
                protocol=f"{protocol}, {timing.HELD_OUT}",
            )
    times, costs = np.median(by_method[timing.TIMERS], axis=0), np.median(switching, axis=0)
    states, seconds = oracle.dynamic_programme(times, costs)
    what = {"phase": timing.ORACLE, "mode": timing.SELECTIVE, "quantity": "prediction"}
    _value(writer, seconds, "s", **what, protocol=timing.DYNAMIC, node=oracle.spelled(states))
    if len(times) <= timing.MOST_CHOICES:
        best, least = oracle.exhaustive(times, costs)
        _value(writer, least, "s", **what, protocol=timing.ALL_CHOICES, node=oracle.spelled(best))


def measure_configurations(
    writer: Any, by_method: Mapping[str, Array], switching: Array, *, exhaustive: bool
) -> None:
    """Run the choices for real, against the interpreted network and the one that is compiled whole.

    Rows of each: "error" against the interpreted network; if that is right "time", the "ratio" to both, and
    the "prediction" of the cost model, which is a median over rounds.

    Args:
        writer: of the rows.
        by_method: (rounds, segments, 2) seconds by method.
        switching: of the timers' rounds.
        exhaustive: all choices of states, instead of those that an oracle takes.

    Raises:
        Exception: whatever a run raises behind its first call.
    """
    from meta500.benchmarks.studies.compiler.methods import limits

    network, segments = writer.network, by_method[timing.TIMERS]
    n = network.segments
    chosen = [choose(segments, switching)[0]]
    chosen += [oracle.best_of_two(np.median(times, axis=0))[0] for times in by_method.values()]
    ends: list[oracle.States] = [(0,) * n, (1,) * n]
    wanted = list(dict.fromkeys([*ends, *(oracle.choices(n) if exhaustive else chosen)]))
    runs = {}
    for states in wanted:
        run = network.chosen(states)
        what = {"node": oracle.spelled(states), "mode": _mode(writer, states)}
        if writer.right(run, timing.CONFIGURATION, timing.END_TO_END, **what):
            runs[states] = network.action(run)
    timings = interleave(
        {oracle.spelled(states): run for states, run in runs.items()},
        synchronize=network.wait(),
        **limits(writer.settings.protocol),
    )
    baselines = {EAGER: oracle.spelled(ends[0]), timing.WHOLE: oracle.spelled(ends[1])}
    for states in runs:
        name = oracle.spelled(states)
        what = {"phase": timing.CONFIGURATION, "node": name, "mode": _mode(writer, states)}
        found = timings[name]
        if found.failure is not None or not found.samples:
            writer.emit(timing.failed(found.failure or RuntimeError("no samples"), **_columns(writer, what)))
            continue
        writer.row(found.samples, protocol=timing.END_TO_END, **what)
        for baseline, other in baselines.items():
            base = timings.get(other)
            if other != name and base is not None and base.failure is None:
                count = min(len(found.samples), len(base.samples))
                writer.ratio(
                    found.samples[:count],
                    base.samples[:count],
                    baseline=baseline,
                    protocol=timing.END_TO_END,
                    **what,
                )
        writer.row(
            _predictions(segments, switching, states), quantity="prediction", protocol=timing.DYNAMIC, **what
        )


def _predictions(segments: Array, switching: Array, states: Sequence[int]) -> list[float]:
    """The time of the cost model in each round."""
    return [oracle.predicted(t, c, states) for t, c in zip(segments, switching, strict=True)]


def _mode(writer: Any, states: Sequence[int]) -> str:
    if all(states):
        return str(writer.mode)
    return timing.SELECTIVE if any(states) else EAGER


def _columns(writer: Any, what: Mapping[str, Any]) -> dict[str, Any]:
    return {**writer.columns(what["mode"]), **what}


def _value(writer: Any, value: float, unit: str, **what: Any) -> None:
    writer.emit(Row(value=value, unit=unit, **_columns(writer, what)))
