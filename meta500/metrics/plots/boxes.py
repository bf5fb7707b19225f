"""Box plots with the raw samples as points: how the measurements of a time or a memory size scatter."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.bars import BAR_INCHES, GAP_INCHES, LABEL_CHARACTERS, Bar, display_unit
from meta500.metrics.plots.style import PALETTE, WIDTH, drawing, legend_below, new_figure, plain_log_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Fewer samples have no quartiles worth a box.
FEWEST = 3
WORDS = "box from the lower to the upper quartile, whiskers over all samples, points: samples"


def boxed(bars: Sequence[Bar]) -> list[Bar]:
    """The bars with samples enough for a box, all of them finite."""
    return [b for b in bars if len(b.samples) >= FEWEST and all(map(math.isfinite, b.samples))]


def spread(count: int) -> np.ndarray:
    """Places (count,) from -0.5 to 0.5 for points side by side: a fixed pattern, the same for each figure."""
    return np.arange(count) * 0.618034 % 1 - 0.5


def wide(bars: Sequence[Bar]) -> bool:
    """Whether the samples are positive and span more than a factor 50, so that the axis is logarithmic."""
    smallest, largest = (f(f(b.samples) for b in bars) for f in (min, max))
    return smallest > 0 and largest > 50 * smallest


def draw_boxes(bars: Sequence[Bar], *, quantity: str, unit: str, title: str = "") -> Figure:
    """Horizontal boxes, grouped by category, one colour per series, with all samples as points.

    A box goes from the lower to the upper quartile (interpolated linearly) with the median in it, its
    whiskers from the smallest to the largest sample.

    Args:
        bars: those without samples enough (`boxed`) are left out.
        quantity: what is measured, for the axis.
        unit: of the samples; seconds and bytes are shown in the unit that fits.

    Raises:
        UserError: no bar with at least three finite samples, or two bars for one category and series.
    """
    chosen = boxed(bars)
    if not chosen:
        raise UserError(f"box plot of {quantity}: nothing has {FEWEST} samples or more")
    places = {(bar.category, bar.series): bar for bar in chosen}
    if len(places) < len(chosen):
        raise UserError(f"box plot of {quantity}: two boxes for one category and series")
    log = wide(chosen)
    smallest, largest = (f(f(b.samples) for b in chosen) for f in (min, max))
    middle = math.sqrt(smallest * largest) if log else max(abs(smallest), abs(largest))
    factor, unit = display_unit(middle, unit)
    categories = list(dict.fromkeys(bar.category for bar in chosen))
    series = list(dict.fromkeys(bar.series for bar in chosen))
    names = [textwrap.fill(name, LABEL_CHARACTERS) for name in categories]
    with drawing():
        heights = [max(len(series) * BAR_INCHES, 0.14 * (1 + name.count("\n"))) for name in names]
        figure = new_figure(WIDTH, sum(heights) + GAP_INCHES * len(names) + 0.55 + (0.2 if title else 0.0))
        axes = figure.subplots()
        centres = np.cumsum([h + GAP_INCHES for h in heights]) - np.add(heights, GAP_INCHES) / 2
        for centre, category in zip(centres, categories, strict=True):
            for index, name in enumerate(series):
                bar = places.get((category, name))
                if bar is not None:
                    y = float(centre) + (index - (len(series) - 1) / 2) * BAR_INCHES
                    _draw_box(axes, np.array(bar.samples) * factor, y, PALETTE[index % len(PALETTE)])
        axes.set_ylim(sum(heights) + GAP_INCHES * len(names), 0)
        axes.set_yticks(centres, names)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.set_xlabel(quantity if unit in ("", "1") else f"{quantity} ({unit})")
        if log:
            axes.set_xscale("log")
            plain_log_ticks(axes, "x")
        if title:
            axes.set_title(title, loc="left")
        _legend(figure, series)
    return figure


def _draw_box(axes: Axes, samples: np.ndarray, y: float, color: str) -> None:
    from matplotlib.patches import Rectangle

    low, lower, middle, upper, high = np.quantile(samples, (0.0, 0.25, 0.5, 0.75, 1.0))
    height = 0.7 * BAR_INCHES
    axes.hlines(y, low, high, color=color, linewidth=0.9, zorder=2)
    frame: dict[str, Any] = {"facecolor": "white", "edgecolor": color, "linewidth": 1.0, "zorder": 2.2}
    axes.add_patch(Rectangle((lower, y - height / 2), upper - lower, height, **frame))
    axes.vlines(middle, y - height / 2, y + height / 2, color=color, linewidth=1.8, zorder=2.4)
    axes.plot(
        samples,
        y + spread(len(samples)) * height,
        "o",
        color=color,
        alpha=0.65,
        markersize=2.6,
        markeredgecolor="white",
        markeredgewidth=0.25,
        zorder=3,
    )


def _legend(figure: Figure, series: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    if len(series) > 1:
        handles = [
            Patch(facecolor="white", edgecolor=PALETTE[index % len(PALETTE)]) for index in range(len(series))
        ]
        legend_below(figure, handles, series)
