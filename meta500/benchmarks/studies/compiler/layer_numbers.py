"""Numbers that follow from the rows of layers: speedups of segments, choices, predictions, their ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler.timing import (
    BEST_OF_TWO,
    CONFIGURATION,
    DYNAMIC,
    END_TO_END,
    FINE,
    ORACLE,
    SEGMENT,
    TIMERS,
)
from meta500.benchmarks.studies.select import one, select
from meta500.metrics.report.findings import decisive, row_interval
from meta500.metrics.rows import Row


def segment_speedups(rows: Sequence[Row], model: str) -> list[Row]:
    """Speedups of the segments of a network by timers; of many small ones where these were measured."""
    speedups = select(rows, phase=SEGMENT, model=model, quantity="speedup")
    return known(select(speedups, protocol=FINE)) or known(select(speedups, protocol=TIMERS))


def chosen(rows: Sequence[Row], model: str) -> dict[str, str]:
    """States of a network's segments by who chose them."""
    count = 0
    found: dict[str, str] = {}
    for name, protocol in ((BEST_OF_TWO, f"{BEST_OF_TWO}, {TIMERS}"), (DYNAMIC, DYNAMIC)):
        row = one(rows, phase=ORACLE, model=model, protocol=protocol, quantity="prediction")
        if row is not None:
            found[name], count = row.node, len(row.node)
    return {"interpreted": "I" * count, "compiled": "C" * count, **found} if count else {}


def prediction_errors(rows: Sequence[Row], model: str) -> dict[str, float]:
    """By choice, predicted over measured time, less 1."""
    found = {}
    for row in select(rows, phase=CONFIGURATION, model=model, quantity="prediction"):
        measured = end_to_end(rows, model, row.node)
        if row.value is not None and measured is not None and measured.value:
            found[row.node] = row.value / measured.value - 1
    return found


def ranking(rows: Sequence[Row], model: str) -> tuple[float, list[str]] | None:
    """Where all choices of a network were run: Spearman's rank correlation of predicted and measured times,
    and the choices from the fastest on; None elsewhere."""
    measured = {
        row.node: row.value
        for row in select(rows, phase=CONFIGURATION, model=model, quantity="time", protocol=END_TO_END)
        if row.value is not None
    }
    guesses = {
        row.node: row.value
        for row in select(rows, phase=CONFIGURATION, model=model, quantity="prediction")
        if row.value is not None and row.node in measured
    }
    if not guesses or len(guesses) < 2 ** len(next(iter(guesses))) or len(guesses) < 4:
        return None
    from scipy.stats import spearmanr

    names = list(guesses)
    correlation = float(spearmanr([guesses[n] for n in names], [measured[n] for n in names]).statistic)
    return correlation, sorted(names, key=lambda name: measured[name])


def signed(seconds: float) -> str:
    """A difference of times with its sign."""
    return ("-" if seconds < 0 else "+") + tables.duration(abs(seconds))


def end_to_end(rows: Sequence[Row], model: str, node: str) -> Row | None:
    """The measured time of a choice of states."""
    return one(rows, phase=CONFIGURATION, model=model, node=node, quantity="time", protocol=END_TO_END)


def known(rows: Sequence[Row]) -> list[Row]:
    """Those with a value."""
    return [row for row in rows if row.value is not None]


def ends(row: Row, cases: int = 1) -> tuple[float, float]:
    """The interval of a row with a value, as one of several; all numbers where its samples are too few."""
    assert row.value is not None
    found = row_interval(row, cases)
    if found is None:
        return row.value, row.value
    return (found.low, found.high) if decisive(found, cases) else (-math.inf, math.inf)
