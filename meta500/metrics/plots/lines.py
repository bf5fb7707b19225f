"""Lines with intervals: one quantity against another, such as time against size, batch or threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.curves import line_look
from meta500.metrics.plots.style import WIDTH, drawing, legend_below, new_figure, plain_log_ticks, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Line:
    """Points joined by a line.

    Attributes:
        label: in the legend; lines of the same label in several panels look the same.
        x, y: coordinates, of the same number; a NaN in y leaves a gap.
        low, high: ends of the interval of each y, both or none.

    Raises:
        UserError: differing lengths, or one end of the intervals without the other.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        lengths = {len(values) for values in (self.x, self.y, self.low, self.high) if values is not None}
        if len(lengths) != 1 or (self.low is None) != (self.high is None):
            raise UserError(f"line '{self.label}': x, y, low and high must have the same length")


@dataclass(frozen=True)
class LinePanel:
    """One pair of axes.

    Attributes:
        title: above it.
        x_label, y_label: with units in brackets; of a y in seconds "{unit}" becomes the unit that fits.
        lines: in the order of the legend.
        log_x, log_y: logarithmic axes.
        seconds: whether y is in seconds, so that the axis chooses ns, µs, ms or s.
        x_ticks: where the x axis is marked; None: where matplotlib does.
        marks: horizontal dashed lines: y and words.
    """

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False
    seconds: bool = False
    x_ticks: Sequence[float] | None = None
    marks: Sequence[tuple[float, str]] = ()


def draw_lines(panels: Sequence[LinePanel], *, columns: int = 2, title: str = "") -> Figure:
    """Panels with lines, intervals as bars, and one legend below all of them.

    Args:
        panels: at least one.
        columns: most panels side by side.
        title: above all.

    Raises:
        UserError: no panels.
    """
    if not panels:
        raise UserError("there is nothing to draw: no panels")
    columns = min(columns, len(panels))
    lines = -(-len(panels) // columns)
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    handles: dict[str, Any] = {}
    with drawing():
        width = WIDTH if columns < 3 else 3.1 * columns
        figure = new_figure(width, 2.6 * lines + (0.25 if title else 0))
        if title:
            figure.suptitle(title, fontsize=10)
        grid = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            for line in panel.lines:
                handles.setdefault(line.label, _draw(axes, panel, line, labels.index(line.label)))
            _dress(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        legend_below(figure, [handles[label] for label in labels], labels)
    return figure


def _factor(panel: LinePanel) -> tuple[float, str]:
    if not panel.seconds:
        return 1.0, ""
    values = np.concatenate([np.asarray(line.y, np.float64) for line in panel.lines] or [np.ones(1)])
    values = values[np.isfinite(values) & (values > 0)]
    return time_unit(float(np.median(values))) if len(values) else (1.0, "s")


def _draw(axes: Axes, panel: LinePanel, line: Line, index: int) -> Any:
    factor, _ = _factor(panel)
    x, y = np.asarray(line.x, np.float64), np.asarray(line.y, np.float64) * factor
    look = line_look(index)
    (handle,) = axes.plot(x, y, label=line.label, **look)
    if line.low is not None and line.high is not None:
        low, high = np.asarray(line.low, np.float64) * factor, np.asarray(line.high, np.float64) * factor
        # Medians of few samples may lie on an end; rounding must not make the bar negative.
        ends = np.clip([y - low, high - y], 0, None)
        axes.errorbar(x, y, ends, fmt="none", ecolor=handle.get_color(), elinewidth=0.9, capsize=2)
    return handle


def _dress(axes: Axes, panel: LinePanel) -> None:
    _, unit = _factor(panel)
    if panel.title:
        axes.set_title(panel.title)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
        plain_log_ticks(axes, "y")
    if panel.x_ticks is not None:
        from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

        axes.xaxis.set_major_locator(FixedLocator(list(panel.x_ticks)))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in panel.x_ticks]))
        axes.xaxis.set_minor_locator(NullLocator())
    elif panel.log_x:
        plain_log_ticks(axes, "x")
    if not panel.log_y:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    for height, words in panel.marks:
        axes.axhline(height, color="#555555", linewidth=0.9, linestyle="--")
        axes.annotate(
            words, (1, height), xycoords=("axes fraction", "data"), fontsize=7, ha="right", va="bottom"
        )
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label.replace("{unit}", unit))
