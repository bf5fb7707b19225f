"""The history of measurements over runs, with their change points."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.style import (
    LINES,
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    new_figure,
    save,
    time_unit,
)
from meta500.metrics.trends import Series, Trends, commit_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = 5
# More commits than these are not all named below the axis.
NAMED = 24
_CHANGES = {"regression": PALETTE[1], "improvement": PALETTE[2], "change": "#555555"}
_ARROWS = {True: "▲", False: "▼"}


def history_plots(found: Trends, folder: str | Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write "history-1", "history-2", ... with up to five measurements each; returns the paths."""
    names = list(dict.fromkeys(series.measurement for series in found.series if series.points))
    written: list[Path] = []
    for page, start in enumerate(range(0, len(names), PANELS), start=1):
        paths = [Path(folder) / f"history-{page}.{kind}" for kind in formats]
        written += save(draw_history(found, names[start : start + PANELS]), paths)
    return written


def draw_history(found: Trends, measurements: Sequence[str]) -> Figure:
    """One panel per measurement: medians with intervals over the runs, in the order of their starts.

    Every machine has a colour and a marker; a thin line joins the points of one machine only, a thick one
    is the median of a level. A dotted vertical line stands where the machine is not that of the run
    before. A change has a vertical line, an arrow and the ratio of the levels.

    Args:
        found: the history.
        measurements: names of those to draw (:attr:`~meta500.metrics.trends.Series.measurement`).

    Raises:
        UserError: a name without any point.
    """
    place = {entry.run: index for index, entry in enumerate(found.entries)}
    with drawing():
        figure = new_figure(WIDTH, 0.6 + 1.55 * len(measurements))
        panels = np.atleast_1d(figure.subplots(len(measurements), 1, sharex=True))
        handles: dict[str, Any] = {}
        for axes, name in zip(panels, measurements, strict=True):
            chosen = [s for s in found.series if s.measurement == name and s.points]
            if not chosen:
                raise UserError(f"the history has no point of '{name}'")
            _panel(axes, chosen, found, place, handles)
            axes.set_title(name, loc="left")
        _runs(panels[-1], found)
        machines = [machine for machine in found.machines if machine in handles]
        if len(machines) > 1:
            names = [f"machine {machine} ({_model(found, machine)})" for machine in machines]
            legend_below(figure, [handles[machine] for machine in machines], names)
    return figure


def _panel(
    axes: Axes, chosen: Sequence[Series], found: Trends, place: dict[str, int], handles: dict[str, Any]
) -> None:
    factor, unit = _unit(chosen)
    for series in chosen:
        index = found.machines.index(series.machine)
        color, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
        line = LINES[index % len(LINES)]
        x = np.array([place[entry.run] for entry in series.entries])
        y = np.array([point.value for point in series.points], np.float64) * factor
        ends = [(p.low, p.high) for p in series.points]
        for at, (low, high) in zip(x, ends, strict=True):
            if low is not None and high is not None and low < high:
                axes.vlines(at, low * factor, high * factor, color=color, linewidth=1.0, alpha=0.6)
        (handles[series.machine],) = axes.plot(
            x, y, color=color, marker=marker, linestyle=line, linewidth=0.5, markersize=3.5
        )
        borders = [0, *(mark.change.index for mark in series.marks), len(x)]
        for start, stop in pairwise(borders):
            axes.hlines(
                np.median(y[start:stop]), x[start], x[stop - 1], color=color, linewidth=2.2, alpha=0.5
            )
        for mark in series.marks:
            at = (x[mark.change.index - 1] + x[mark.change.index]) / 2
            axes.axvline(at, color=_CHANGES[mark.verdict], linewidth=1.4, zorder=1)
            # Beside its own levels, so that the marks of two machines at one place can be told apart.
            start, stop = mark.change.index - 1, mark.change.index
            axes.annotate(
                f"{_ARROWS[mark.change.ratio > 1]} {100 * (mark.change.ratio - 1):+.3g} %",
                (at, max(y[start], y[stop])),
                xytext=(4, 7),
                textcoords="offset points",
                ha="left" if at < 0.8 * len(found.entries) else "right",
                fontsize=7,
                color=_CHANGES[mark.verdict],
                zorder=1.5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
            )
    for at, (before, after) in enumerate(pairwise(found.entries)):
        if before.machine != after.machine:
            axes.axvline(at + 0.5, color="#888888", linestyle=":", linewidth=0.7, zorder=0)
    axes.set_ylabel(unit)
    axes.set_xlim(-0.6, len(found.entries) - 0.4)
    axes.margins(y=0.2)
    axes.grid(False, axis="x")


def _unit(chosen: Sequence[Series]) -> tuple[float, str]:
    """Factor and name of the unit of a panel."""
    if chosen[0].unit != "s":
        return 1.0, "" if chosen[0].unit == "1" else chosen[0].unit
    return time_unit(float(np.median([p.value for s in chosen for p in s.points if p.value is not None])))


def _runs(axes: Axes, found: Trends) -> None:
    count = len(found.entries)
    step = -(-count // NAMED)
    ticks = range(0, count, step)
    axes.set_xticks(list(ticks), [commit_name(found.entries[i]) for i in ticks], rotation=60, ha="right")
    for label in axes.get_xticklabels():
        label.set_rotation_mode("anchor")
    axes.set_xlabel("commit of the run" + (f" (one of {step} is named)" if step > 1 else ""))


def _model(found: Trends, machine: str) -> str:
    entry = next(entry for entry in found.entries if entry.machine == machine)
    cpu = entry.environment.get("cpu") or {}
    return str(cpu.get("model") or "unknown processor")
