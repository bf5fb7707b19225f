"""Loss and accuracy against samples and against seconds, several runs in one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meta500.errors import UserError, choose
from meta500.metrics.plots.style import (
    LINES,
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    new_figure,
    plain_log_ticks,
    save,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Abscissa = Literal["samples", "seconds"]
PHASES = {
    "training_step": "training",
    "training_set": "training",
    "test_set": "test",
}
# Up to this many points each one gets a marker; beyond, a running mean stands before the raw line.
FEW_POINTS = 40
MEAN_SHARE = 20
CURVE_NOTE = (
    f"Of lines with more than {FEW_POINTS} points the running mean over {100 // MEAN_SHARE} % of the points "
    "is drawn, with the single values behind it."
)


@dataclass(frozen=True, eq=False)
class Curve:
    """One quantity of one run: points (n,) against training samples and against training seconds.

    ``phase`` is "training_step" (one point per step), "training_set" or "test_set" (one per epoch).
    Accuracies are fractions. Values that are not finite end the line; a cross marks the last point
    before the first of them.

    Raises:
        UserError: the three arrays are not one-dimensional and of one length, or the phase is
            unknown.
    """

    label: str
    quantity: str
    phase: str
    samples: np.ndarray
    seconds: np.ndarray
    values: np.ndarray

    def __post_init__(self) -> None:
        choose("phase of a curve", self.phase, PHASES)
        shapes = set()
        for name in ("samples", "seconds", "values"):
            array = np.asarray(getattr(self, name), np.float64)
            object.__setattr__(self, name, array)
            shapes.add(array.shape)
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise UserError(f"curve '{self.label}': samples, seconds and values differ: {shapes}")


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the curves of ``quantity`` and ``phase`` against ``x``.

    ``log`` None: a logarithmic y axis for losses that are positive and span more than a factor 10.
    """

    quantity: str
    x: Abscissa
    phase: str
    log: bool | None = None


def four_panels(curves: Sequence[Curve]) -> list[Panel]:
    """Loss and accuracy against samples and seconds, as far as there are curves for them.

    The training loss per step is preferred to the one per epoch.
    """
    known = {(c.quantity, c.phase) for c in curves if len(c.values)}
    step = ("loss", "training_step")
    wanted = [step if step in known else ("loss", "training_set"), ("accuracy", "test_set")]
    xs: tuple[Abscissa, ...] = ("samples", "seconds")
    return [Panel(q, x, phase) for q, phase in wanted if (q, phase) in known for x in xs]


def curve_plots(
    curves: Sequence[Curve], folder: str | Path, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write the four plots "loss-samples", "loss-seconds", "accuracy-samples", "accuracy-seconds",
    and "training" with all of them in one figure; returns the paths.

    Raises:
        UserError: no curve of loss or accuracy, an unknown format, or an unwritable folder.
    """
    panels = four_panels(curves)
    if not panels:
        raise UserError("there is no loss and no accuracy to plot")
    written: list[Path] = []
    for panel in panels:
        name = f"{panel.quantity}-{panel.x}"
        figure = draw_curves(curves, [panel])
        written += save(figure, [Path(folder) / f"{name}.{kind}" for kind in formats])
    figure = draw_curves(curves, panels)
    return written + save(figure, [Path(folder) / f"training.{kind}" for kind in formats])


def draw_curves(curves: Sequence[Curve], panels: Sequence[Panel] | None = None, title: str = "") -> Figure:
    """A figure with one pair of axes per panel, two in a row, and one legend below them.

    A label has the same colour, marker and line in all panels. Lines with more than 40 points are
    drawn faintly, with a running mean over 5 % of their points in bold before them.

    Args:
        panels: None: `four_panels`.
        title: None or "": the label, if all curves share one.

    Raises:
        UserError: a panel without any curve.
    """
    panels = four_panels(curves) if panels is None else list(panels)
    if not panels:
        raise UserError("there is no loss and no accuracy to plot")
    labels = list(dict.fromkeys(c.label for c in curves))
    with drawing():
        columns = min(len(panels), 2)
        rows = math.ceil(len(panels) / columns)
        single = len(panels) == 1
        figure = new_figure(WIDTH * (0.8 if single else 1.15), 3.0 if single else 2.5 * rows)
        grid = figure.subplots(rows, columns, squeeze=False)
        drawn = _Drawn()
        for index, axes in enumerate(grid.flat):
            if index >= len(panels):
                axes.remove()
                continue
            _draw_panel(axes, panels[index], curves, labels, drawn)
        if title or len(labels) == 1:
            figure.suptitle(title or labels[0], fontsize=9)
        _legend(figure, labels, drawn)
    return figure


@dataclass
class _Drawn:
    """What the legend has to explain."""

    smooth: bool = False
    broken: bool = False


def _draw_panel(
    axes: Axes, panel: Panel, curves: Sequence[Curve], labels: Sequence[str], drawn: _Drawn
) -> None:
    chosen = [c for c in curves if (c.quantity, c.phase) == (panel.quantity, panel.phase)]
    if not chosen:
        raise UserError(f"there is no curve of '{panel.quantity}' in phase '{panel.phase}'")
    percent = panel.quantity == "accuracy"
    scale, x_label = abscissa(chosen, panel.x)
    for curve in chosen:
        x = getattr(curve, panel.x) * scale
        _draw_curve(axes, x, curve.values * (100 if percent else 1), labels.index(curve.label), drawn)
    dress_axes(axes, panel, chosen, x_label)


def dress_axes(axes: Axes, panel: Panel, curves: Sequence[Curve], x_label: str) -> None:
    """Labels with units, scales and ticks of a panel, once all its curves are drawn.

    Raises:
        UserError: the panel asks for a logarithmic axis and a value is not positive.
    """
    percent = panel.quantity == "accuracy"
    axes.set_xlabel(x_label)
    where = PHASES[panel.phase]
    unit = " (%)" if percent else ""
    axes.set_ylabel(f"{where} {panel.quantity.replace('_', ' ')}{unit}")
    _scale_y(axes, panel, curves)
    if percent:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0) if low < 0 else low, min(high, 100 + 0.02 * (100 - low)))
    if panel.x == "samples":
        from matplotlib.ticker import EngFormatter

        axes.xaxis.set_major_formatter(EngFormatter(sep="\N{THIN SPACE}"))
    axes.locator_params(axis="x", nbins=6)
    # Room beside the last points, also where all of them have about the same place.
    last = float(axes.dataLim.x1)
    axes.set_xlim(0, 1.05 * last if math.isfinite(last) and last > 0 else None)


def _draw_curve(axes: Axes, x: np.ndarray, y: np.ndarray, index: int, drawn: _Drawn) -> None:
    look = line_look(index)
    y = np.where(np.isfinite(y), y, np.nan)
    gaps = np.flatnonzero(np.isnan(y))
    if len(y) > FEW_POINTS:
        drawn.smooth = True
        axes.plot(x, y, color=look["color"], linewidth=0.5, alpha=0.3, zorder=1.5)
        every = max(1, len(y) // 8)
        offset = index * every // 7 % every
        mean = running_mean(y, max(1, len(y) // MEAN_SHARE))
        axes.plot(x, mean, markevery=(offset, every), **look)
    else:
        axes.plot(x, y, **look)
    if len(gaps) and gaps[0] > 0:
        drawn.broken = True
        last = gaps[0] - 1
        axes.plot(x[last], y[last], **BROKEN, zorder=4)


# The mark of the last point before a value that is not finite.
BROKEN: dict[str, Any] = {
    "marker": "X",
    "markersize": 9,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
    "linestyle": "none",
}


def line_look(index: int) -> dict[str, Any]:
    """Colour, marker and line of the curve with this index; they differ in grey print too."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[(index // len(PALETTE) + index) % len(LINES)],
    }


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over ``window`` neighbours (fewer at the ends), (n,) like ``values``; NaN stays NaN.

    Values that are NaN do not enter the means of their neighbours.
    """
    before, after = (window - 1) // 2, window // 2
    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    index = np.arange(len(values))
    low, high = np.maximum(index - before, 0), np.minimum(index + after + 1, len(values))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (sums[high] - sums[low]) / (counts[high] - counts[low])
    return np.where(known, means, np.nan)


def abscissa(curves: Sequence[Curve], x: Abscissa) -> tuple[float, str]:
    """Factor from samples or seconds to the unit of the axis, and the label of the axis."""
    if x == "samples":
        return 1.0, "training samples seen"
    longest = max((float(c.seconds.max()) for c in curves if len(c.seconds)), default=1.0)
    factor, unit = time_unit(longest)
    return factor, f"training time ({unit})"


def _scale_y(axes: Axes, panel: Panel, curves: Sequence[Curve]) -> None:
    values = np.concatenate([c.values[np.isfinite(c.values)] for c in curves])
    positive = values.size > 0 and bool((values > 0).all())
    wide = positive and values.max() > 10 * values.min()
    log = wide and panel.quantity.endswith("loss") if panel.log is None else panel.log
    if not log:
        return
    if not positive:
        raise UserError(f"{panel.quantity}: a logarithmic axis needs positive values")
    axes.set_yscale("log")
    plain_log_ticks(axes, "y")


def _legend(figure: Figure, labels: Sequence[str], drawn: _Drawn) -> None:
    from matplotlib.lines import Line2D

    handles: list[Any] = []
    names: list[str] = []
    if len(labels) > 1:
        handles += [Line2D([], [], **line_look(index)) for index in range(len(labels))]
        names += labels
    if drawn.smooth:
        handles += [
            Line2D([], [], color="#555555", linewidth=0.5, alpha=0.5),
            Line2D([], [], color="#555555"),
        ]
        names += ["single values", "running mean over 5 % of the values"]
    if drawn.broken:
        handles.append(Line2D([], [], **BROKEN))
        names.append("NaN or infinite from here on")
    legend_below(figure, handles, names)
