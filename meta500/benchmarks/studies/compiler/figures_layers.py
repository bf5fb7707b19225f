"""Figures of the report on layers, drawn from rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meta500.benchmarks.studies.compiler.layer_numbers import chosen, segment_speedups
from meta500.benchmarks.studies.compiler.settings import EAGER
from meta500.benchmarks.studies.compiler.timing import (
    BEST_OF_TWO,
    CONFIGURATION,
    DYNAMIC,
    END_TO_END,
    FINE,
    LAYER_TIMERS,
    ORACLE,
    PROFILER,
    RUN,
    SEGMENT,
    SELECTIVE,
    SEPARATE,
    SUBTRACTION,
    TIMERS,
    WHOLE,
)
from meta500.benchmarks.studies.select import one, select, unique
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from meta500.metrics.plots.bars import Bar
    from meta500.metrics.plots.lines import LinePanel

INTERPRETED, COMPILED = "interpreted", "compiled"
INTERVAL = "median, 95 % interval"


def method_bars(rows: Sequence[Row], model: str, mode: str) -> list[Bar]:
    """Run times of one network by method, interpreted and compiled; none where there are none."""
    from meta500.metrics.plots.bars import Bar

    series = (
        (END_TO_END, "time", "end to end"),
        (TIMERS, "time", "run with timers behind segments"),
        (TIMERS, "sum", "sum of these timers"),
        (LAYER_TIMERS, "time", "run with timers behind layers"),
        (LAYER_TIMERS, "sum", "sum of those timers"),
        (SEPARATE, "time", "segments compiled alone, no timers"),
        (SUBTRACTION, "sum", "sum of subtracted prefixes"),
        (PROFILER, "time", "run under the profiler"),
        (PROFILER, "sum", "sum of the profiler's ranges"),
    )
    runs = select(rows, phase=RUN, model=model)
    bars = []
    for protocol, quantity, words in series:
        for name, state in ((EAGER, INTERPRETED), (mode, COMPILED)):
            row = one(runs, protocol=protocol, quantity=quantity, mode=name)
            if row is not None:
                bars.append(Bar(words, state, row.value, row.low, row.high))
    return bars


def draw_methods(bars: Sequence[Bar]) -> Drawing:
    """The figure of :func:`method_bars`."""
    from meta500.metrics.plots.bars import draw_bars

    return draw_bars(bars, quantity="time of a run", unit="s", interval=INTERVAL, log=False)


def draw_speedups(rows: Sequence[Row], models: Sequence[str]) -> Drawing:
    """Densities of the speedups of segments."""
    from meta500.metrics.plots.density import Density, draw_densities

    densities = []
    for model in models:
        speedups = segment_speedups(rows, model)
        values = [(row.value or 0.0, row.low, row.high) for row in speedups]
        densities.append(
            Density(
                model,
                [value for value, _, _ in values],
                [value if low is None else low for value, low, _ in values],
                [value if high is None else high for value, _, high in values],
            )
        )
    return draw_densities(densities, quantity="speedup by compilation")


def segment_panels(
    rows: Sequence[Row], models: Sequence[str], mode: str, *, by_subtraction: bool
) -> list[LinePanel]:
    """Times of segments over their index, one panel per network that has any."""
    from meta500.metrics.plots.lines import Line, LinePanel

    panels = []
    for model in models:
        times = select(rows, phase=SEGMENT, model=model, quantity="time")
        if by_subtraction:
            mine = select(times, protocol=SUBTRACTION)
        else:
            mine = select(times, protocol=FINE) or select(times, protocol=TIMERS)
        lines = []
        for name, words in ((EAGER, INTERPRETED), (mode, COMPILED), (SELECTIVE, "selective")):
            of_mode = sorted(
                (row for row in select(mine, mode=name) if row.value is not None),
                key=lambda row: row.step or 0,
            )
            if of_mode:
                lines.append(
                    Line(
                        words,
                        [float(row.step or 0) for row in of_mode],
                        [row.value or 0.0 for row in of_mode],
                        [row.value if row.low is None else row.low for row in of_mode],  # type: ignore[misc]
                        [row.value if row.high is None else row.high for row in of_mode],  # type: ignore[misc]
                    )
                )
        if lines:
            count = max(len(line.x) for line in lines)
            ticks = list(range(count)) if count <= 12 else None
            panels.append(LinePanel(model, "segment", "time ({unit})", lines, seconds=True, x_ticks=ticks))
    return panels


def draw_panels(panels: Sequence[LinePanel]) -> Drawing:
    """The figure of lines that were collected before."""
    from meta500.metrics.plots.lines import draw_lines

    return draw_lines(panels)


def oracle_bars(rows: Sequence[Row]) -> list[Bar]:
    """Measured and predicted times of networks relative to the one that is compiled whole.

    None for networks of which that was not measured.
    """
    from meta500.metrics.plots.bars import Bar

    bars = []
    for model in unique(select(rows, phase=CONFIGURATION), "model"):
        mine = select(rows, phase=CONFIGURATION, model=model)
        choices = chosen(rows, str(model))
        whole = one(mine, quantity="time", node=choices.get("compiled", ""))
        if whole is None or not whole.value:
            continue
        for words, key in (
            ("interpreted, measured", "interpreted"),
            ("compiled whole, measured", "compiled"),
            (f"{BEST_OF_TWO}, predicted", ""),
            (f"{DYNAMIC}, predicted", DYNAMIC),
            (f"{DYNAMIC}, measured", DYNAMIC),
        ):
            node = choices.get(key, "")
            if words.startswith(BEST_OF_TWO):
                bound = one(
                    rows,
                    phase=ORACLE,
                    model=model,
                    protocol=f"{BEST_OF_TWO}, {TIMERS}",
                    quantity="prediction",
                )
                found = _relative(bound, whole.value)
            elif words.endswith("predicted"):
                found = _relative(one(mine, node=node, quantity="prediction"), whole.value)
            elif node == whole.node:
                found = (1.0, None, None)
            else:
                found = _relative(one(mine, node=node, quantity="ratio", baseline=WHOLE), 1.0)
            if found is not None:
                bars.append(Bar(str(model), words, *found))
    return bars


def draw_oracles(bars: Sequence[Bar]) -> Drawing:
    """The figure of :func:`oracle_bars`."""
    from meta500.metrics.plots.bars import draw_bars

    return draw_bars(
        bars, quantity="time relative to the network compiled whole", unit="1", interval=INTERVAL, log=False
    )


def _relative(row: Row | None, to: float) -> tuple[float, float | None, float | None] | None:
    """Value and interval of a row, divided."""
    if row is None or row.value is None:
        return None
    low, high = (None if end is None else end / to for end in (row.low, row.high))
    return row.value / to, low, high


def draw_all_choices(rows: Sequence[Row], model: str) -> Drawing:
    """Predicted and measured times of all choices, in the order of the predicted ones."""
    from meta500.metrics.plots.lines import Line, LinePanel, draw_lines

    mine = select(rows, phase=CONFIGURATION, model=model)
    guesses = [row for row in select(mine, quantity="prediction") if row.value is not None]
    guesses.sort(key=lambda row: row.value or 0.0)
    lines = []
    for words, quantity in (("predicted", "prediction"), ("measured", "time")):
        found = [one(mine, node=guess.node, quantity=quantity) for guess in guesses]
        kept = [(place + 1, row) for place, row in enumerate(found) if row is not None]
        lines.append(
            Line(
                words,
                [float(place) for place, _ in kept],
                [row.value or 0.0 for _, row in kept],
                [row.value if row.low is None else row.low for _, row in kept],  # type: ignore[misc]
                [row.value if row.high is None else row.high for _, row in kept],  # type: ignore[misc]
            )
        )
    panel = LinePanel("", "choice, in the order of the predicted time", "time ({unit})", lines, seconds=True)
    return draw_lines([panel])
