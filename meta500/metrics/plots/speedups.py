"""Ratios of several series side by side: one line per thing, one marker per series, a line at 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.bars import Ratio
from meta500.metrics.plots.style import (
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    new_figure,
    plain_log_ticks,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE_INCHES = 0.2
# Between the first and the last series of a thing, in lines.
SPREAD = 0.5


def draw_speedups(
    points: Sequence[Ratio], *, quantity: str, below: str = "", above: str = "", title: str = ""
) -> Figure:
    """Ratios with intervals, a line for each label and a colour and marker for each group.

    Filled markers have intervals that exclude 1, hollow ones do not.

    Args:
        points: labels and groups keep the order in which they first appear.
        quantity: for the axis.
        below, above: what it means to be left and right of 1.
        title: above all.

    Raises:
        UserError: no point, two for one label and group, or one that is not positive and finite or outside of
            its interval.
    """
    if not points:
        raise UserError(f"plot of {quantity}: there is no ratio")
    if len({(point.label, point.group) for point in points}) < len(points):
        raise UserError(f"plot of {quantity}: two ratios for one label and group")
    for point in points:
        if not (0 < point.low <= point.value <= point.high < math.inf):
            raise UserError(
                f"plot of {quantity}: '{point.label}' is {point.value} in [{point.low}, {point.high}]; "
                "positive numbers in order are needed"
            )
    labels = list(dict.fromkeys(point.label for point in points))
    groups = list(dict.fromkeys(point.group for point in points))
    offsets = np.linspace(-SPREAD / 2, SPREAD / 2, len(groups)) if len(groups) > 1 else np.zeros(1)
    handles: dict[str, Any] = {}
    with drawing():
        figure = new_figure(WIDTH, LINE_INCHES * len(labels) + 0.75 + (0.2 if title else 0.0))
        axes = figure.subplots()
        axes.axvline(1.0, color="black", linewidth=0.9)
        axes.set_xscale("log")
        for point in points:
            index = groups.index(point.group)
            y = labels.index(point.label) + float(offsets[index])
            color = PALETTE[index % len(PALETTE)]
            clear = point.high < 1 or point.low > 1
            axes.hlines(y, point.low, point.high, color=color, linewidth=1.0)
            axes.plot(
                point.value,
                y,
                MARKERS[index % len(MARKERS)],
                color=color,
                markerfacecolor=color if clear else "white",
                markersize=4.5,
            )
        from matplotlib.lines import Line2D

        for index, group in enumerate(groups):
            handles[group] = Line2D(
                [],
                [],
                color=PALETTE[index % len(PALETTE)],
                marker=MARKERS[index % len(MARKERS)],
                linewidth=1.0,
            )
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(axis="y", length=0, labelsize=7)
        low, high = min(0.9, *(p.low for p in points)), max(1.1, *(p.high for p in points))
        room = (high / low) ** 0.05
        axes.set_xlim(low / room, high * room)
        plain_log_ticks(axes, "x")
        axes.set_xlabel(quantity)
        for text, points_away in ((f"← {below}", -6), (f"{above} →", 6)):
            if text.strip("← →"):
                axes.annotate(
                    text,
                    (1, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(points_away, 3),
                    textcoords="offset points",
                    ha="left" if points_away > 0 else "right",
                    fontsize=8,
                )
        if title:
            axes.set_title(title, loc="left", pad=18 if below or above else 6)
        legend_below(figure, [handles[group] for group in groups], groups)
    return figure
