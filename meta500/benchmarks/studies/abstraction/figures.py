"""The figures of the study: scans, ratios to PyTorch eager, and bars of all levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meta500.benchmarks.studies.abstraction.found import (
    Point,
    at,
    ends,
    names,
    point_of,
    right,
    scans,
    titles,
)
from meta500.benchmarks.studies.abstraction.level import INFERENCE
from meta500.benchmarks.studies.select import select
from meta500.metrics.plots.bars import Bar, Ratio, draw_bars, draw_ratios
from meta500.metrics.plots.lines import Line, LinePanel, draw_lines
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MIB = 2.0**20


def scan_panels(rows: Sequence[Row], quantity: str, phase: str) -> list[LinePanel]:
    """A panel for each scan with at least two points: "time" per image, or "network_memory"."""
    found = [row for row in right(rows, quantity, phase) if row.value is not None and row.value > 0]
    by_batch, by_size = scans(point_of(row) for row in found)
    panels = []
    for points, axis in ((by_batch, "batch"), (by_size, "size")):
        if len(points) < 2:
            continue
        lines = [line for name in names(found) if (line := _line(rows, found, name, points, axis, quantity))]
        fixed = (
            (f"size {points[0].size}" if points[0].size else "")
            if axis == "batch"
            else f"batch {points[0].batch}"
        )
        panels.append(
            LinePanel(
                title=fixed,
                x_label="batch (images)" if axis == "batch" else "height and width (pixels)",
                y_label="time per image ({unit})" if quantity == "time" else "memory (MiB)",
                lines=lines,
                log_x=True,
                log_y=True,
                seconds=quantity == "time",
                x_ticks=[_x(point, axis) for point in points],
            )
        )
    return panels


def _line(
    rows: Sequence[Row], found: Sequence[Row], name: str, points: Sequence[Point], axis: str, quantity: str
) -> Line | None:
    x, y, low, high = [], [], [], []
    for point in points:
        row = at(found, name, point)
        if row is None or row.value is None:
            continue
        scale = 1 / point.batch if quantity == "time" else 1 / _MIB
        x.append(_x(point, axis))
        y.append(row.value * scale)
        low.append(ends(row)[0] * scale)
        high.append(ends(row)[1] * scale)
    return Line(titles(rows)[name], x, y, low, high) if x else None


def _x(point: Point, axis: str) -> float:
    return float(point.batch if axis == "batch" else point.size)


def draw_scans(panels: Sequence[LinePanel]) -> Figure:
    """The panels side by side."""
    return draw_lines(panels)


def ratios_to_baseline(rows: Sequence[Row], phase: str) -> list[Ratio]:
    """The ratios of all levels at the ends of both scans."""
    found = [row for row in right(rows, "ratio", phase) if row.value is not None and ends(row)[0] > 0]
    by_batch, by_size = scans(point_of(row) for row in found)
    shown = dict.fromkeys(p for points in (by_batch, by_size) if points for p in (points[0], points[-1]))
    ratios = []
    for point in shown:
        for name in names(found):
            row = at(found, name, point)
            if row is not None and row.value is not None:
                low, high = ends(row)
                ratios.append(Ratio(titles(rows)[name], row.value, low, high, point.words))
    return ratios


def draw_ratio_plot(ratios: Sequence[Ratio]) -> Figure:
    """The ratios as a forest plot."""
    return draw_ratios(
        ratios, quantity="time relative to PyTorch eager", below="faster than eager", above="slower"
    )


def level_bars(rows: Sequence[Row], quantity: str) -> list[Bar]:
    """A bar for each level at the point with the largest batch at the fixed size, inference."""
    found = right(rows, quantity)
    by_batch, _ = scans(point_of(row) for row in found)
    if not by_batch:
        return []
    point = by_batch[-1]
    bars = []
    for name in names(found):
        row = at(found, name, point)
        if row is not None and row.value is not None:
            low, high = (None, None) if row.low is None else ends(row)
            bars.append(Bar(titles(rows)[name], point.words, row.value, low, high))
    return bars


def draw_level_bars(bars: Sequence[Bar], quantity: str) -> Figure:
    """The bars of one quantity."""
    words, unit = {
        "allocations": ("allocations per step", "1"),
        "network_memory": ("memory that the network adds", "B"),
    }[quantity]
    return draw_bars(bars, quantity=f"{words}, inference, {bars[0].series}", unit=unit)


def dispatch_bars(rows: Sequence[Row]) -> list[Bar]:
    """Seconds per operator of each level, one series per kind of operator."""
    found = [row for row in select(rows, quantity="dispatch", phase=INFERENCE) if row.value is not None]
    bars = []
    for name in names(found):
        for row in (r for r in found if r.backend == name):
            low, high = ends(row)
            bars.append(Bar(titles(rows)[name], row.operator, row.value, low, high))
    return bars


def draw_dispatch(bars: Sequence[Bar]) -> Figure:
    """The bars; on a linear axis where noise reaches below 0."""
    log = all((bar.low if bar.low is not None else bar.value or 0.0) > 0 for bar in bars)
    return draw_bars(
        bars,
        quantity="time per operator",
        unit="s",
        interval="median, 95 % interval",
        log=None if log else False,
    )
