"""Runs against each other: accuracy and loss against training samples and against seconds.

These are the four plots that the thesis behind Deep500 (section 6.1, ``generate_plots``) makes of a
folder of results, chosen by name: how much accuracy or loss comes from so many samples, which is the
matter of the method, and from so many seconds, which is also that of the implementation.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meta500.errors import UserError, choose
from meta500.metrics.plots.curves import (
    BROKEN,
    FEW_POINTS,
    MEAN_SHARE,
    Curve,
    Panel,
    abscissa,
    dress_axes,
    four_panels,
    line_look,
    running_mean,
)
from meta500.metrics.plots.style import (
    FORMATS,
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    literal,
    new_figure,
    save,
    text_width,
)
from meta500.metrics.plots.training_runs import (
    Filter,
    TrainingRun,
    labels_of,
    read_training_runs,
    shared_facts,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Aggregate = Literal["none", "range", "quartiles"]
BANDS = {
    "range": "median of {seeds}, band from the smallest to the largest",
    "quartiles": "median of {seeds}, band from the lower to the upper quartile",
}
# More lines than pairs of colour and marker would look alike.
MOST_LINES = len(PALETTE) * len(MARKERS)
# With more lines than these the single values behind the running means would hide each other.
LINES_WITH_SINGLE_VALUES = 6
# With more lines than these a figure of one panel is as wide as the page, for a legend in columns.
LINES_IN_ONE_COLUMN = 8


@dataclass(frozen=True)
class Line:
    """One line of the plots: a run, or runs that differ only in their seeds."""

    label: str
    runs: tuple[TrainingRun, ...]


@dataclass(frozen=True, eq=False)
class Drawn:
    """A line's points, the middle and the band (n,), and for one run its values before smoothing."""

    middle: Curve
    low: np.ndarray
    high: np.ndarray
    single: np.ndarray | None


@dataclass(frozen=True)
class Versus:
    """What is drawn, and what a reader of it must know: `read_versus` makes it, `draw_versus` draws it.

    Attributes:
        names: of all run folders found, before the filter.
        notes: runs that were left out and why, unfinished and failed runs, shortened lines.
    """

    lines: tuple[Line, ...]
    aggregate: Aggregate
    names: tuple[str, ...]
    notes: tuple[str, ...]


def versus_plots(
    folders: str | Path | Sequence[str | Path],
    *,
    filter: Filter = None,
    title: str | None = None,
    out: str | Path | None = None,
    formats: Sequence[str] = ("png", "pdf"),
    aggregate: Aggregate = "none",
) -> list[Path]:
    """Write "samples-accuracy", "seconds-accuracy", "samples-loss" and "seconds-loss" of training runs, and
    "versus" with the four of them on one page; returns the paths.

    Accuracy is that of the test set after each epoch. Loss is the training loss of each step; of a run with
    more than 40 steps the running mean is drawn, and the legend says so. Seconds are those spent in training
    steps alone. Warnings name each run that is left out or drawn only in part, and a quantity that no run
    has, whose plots are not written.

    Args:
        folders: run folders, folders with run folders at most 4 levels below, or patterns ("runs/*sgd*").
        filter: see `read_training_runs`: a function of the text "NAME: facts", or texts that must all be
            part of it, where "one|other" is either and "-text" excludes. None: all runs.
        title: above each figure; None: what all runs share, such as network and data; "": none.
        out: folder for the files; None: ``versus`` in the current folder.
        formats: of "png", "pdf" and "svg".
        aggregate: "none": a line for each run. "range" and "quartiles": runs that differ in nothing but
            their seeds are one line of medians, with a band from the smallest to the largest or between the
            quartiles (interpolated linearly); see `medians`.

    Raises:
        UserError: see `read_versus`; also an unknown format, or a folder that cannot be written.
    """
    found = read_versus(folders, filter=filter, aggregate=aggregate)
    for note in found.notes:
        warnings.warn(note, UserWarning, stacklevel=2)
    return write_versus(found, "versus" if out is None else out, title=title, formats=formats)


def read_versus(
    folders: str | Path | Sequence[str | Path], *, filter: Filter = None, aggregate: Aggregate = "none"
) -> Versus:
    """Read the runs that `versus_plots` draws.

    Raises:
        UserError: a path that does not exist, a malformed run, no run with training curves, none that the
            filter accepts, more lines than can be told apart, or an unknown way to aggregate.
    """
    choose("way to aggregate", aggregate, ("none", *BANDS))
    found = read_training_runs(folders, filter)
    groups, more = _grouped(found.runs) if aggregate != "none" else ([(run,) for run in found.runs], [])
    if len(groups) > MOST_LINES:
        hint = "choose some with a filter" + (
            ", or aggregate runs that differ in their seeds" if aggregate == "none" else ""
        )
        raise UserError(f"{len(groups)} lines cannot be told apart, at most {MOST_LINES} can: {hint}")
    standing = [
        replace(group[0], seed=_seeds([group]), name=_seeds([group])) if len(group) > 1 else group[0]
        for group in groups
    ]
    labels = labels_of(standing)
    if len({len(group) for group in groups}) > 1:
        labels = [
            label if len(group) == 1 else f"{label}, {_seeds([group])}"
            for label, group in zip(labels, groups, strict=True)
        ]
    lines = tuple(map(Line, labels, groups))
    notes = [*found.notes, *more, *_lacking(lines)]
    return Versus(lines, aggregate, tuple(found.names), tuple(notes))


def write_versus(
    found: Versus,
    out: str | Path,
    *,
    title: str | None = None,
    formats: Sequence[str] = ("png", "pdf"),
) -> list[Path]:
    """Write the plots of `versus_plots` into the folder ``out``; returns the paths.

    Raises:
        UserError: an unknown format, none at all, or a folder that cannot be written.
    """
    if not formats:
        raise UserError("no format was given; choose of png, pdf and svg")
    for kind in formats:
        choose("format of plots", kind, FORMATS)
    panels = panels_of(found)
    written: list[Path] = []
    for panel in panels:
        figure = draw_versus(found, [panel], title)
        name = f"{panel.x}-{panel.quantity}"
        written += save(figure, [Path(out) / f"{name}.{kind}" for kind in formats])
    figure = draw_versus(found, panels, title)
    return written + save(figure, [Path(out) / f"versus.{kind}" for kind in formats])


def panels_of(found: Versus) -> list[Panel]:
    """Accuracy against samples and seconds, then loss, as far as there are runs that have them."""
    panels = four_panels([curve for line in found.lines for run in line.runs for curve in run.curves])
    return sorted(panels, key=lambda panel: panel.quantity != "accuracy")


def draw_versus(found: Versus, panels: Sequence[Panel] | None = None, title: str | None = None) -> Figure:
    """A figure with one pair of axes per panel (None: `panels_of`), two in a row, and one legend below."""
    panels = panels_of(found) if panels is None else list(panels)
    runs = [run for line in found.lines for run in line.runs]
    with drawing():
        columns = min(len(panels), 2)
        rows = math.ceil(len(panels) / columns)
        single = len(panels) == 1
        narrow = single and len(found.lines) <= LINES_IN_ONE_COLUMN
        figure = new_figure(WIDTH * (0.8 if narrow else 1.15), 3.0 if single else 2.5 * rows)
        legend = _Legend()
        for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
            _draw_panel(axes, panel, found, legend)
        text = shared_facts(runs) if title is None else title
        if text:
            figure.suptitle(_wrapped(figure, literal(text), 9.0, figure.get_figwidth() - 0.4), fontsize=9)
        _draw_legend(figure, found, legend)
        # Ticks are chosen by the size of the axes, and the layout by the ticks: it settles when drawn anew.
        figure.draw_without_rendering()
    return figure


def medians(curves: Sequence[Curve], aggregate: Aggregate, smooth: bool = False) -> Drawn:
    """The pointwise median of curves of one quantity and phase, and the band around it.

    Point k is the median of the k-th points, of seconds as of values, up to the last point that all curves
    have; the samples are those of the curves, which must agree in them. A point that is not finite in one of
    the curves is not finite in the median. With ``smooth``, medians and band are taken of the running means
    over 5 % of each curve's points.

    Raises:
        UserError: the curves differ in their samples.
    """
    count = min(len(curve.values) for curve in curves)
    samples = curves[0].samples[:count]
    for curve in curves[1:]:
        if not np.array_equal(curve.samples[:count], samples):
            raise UserError(f"'{curves[0].label}' and '{curve.label}' differ in the samples of their points")
    values = np.stack([_smooth(c.values)[:count] if smooth else c.values[:count] for c in curves])
    values = np.where(np.isfinite(values), values, np.nan)
    quantiles = (0.25, 0.75) if aggregate == "quartiles" else (0.0, 1.0)
    low, high = np.quantile(values, quantiles, axis=0)
    seconds = np.median([c.seconds[:count] for c in curves], axis=0)
    middle = replace(curves[0], samples=samples, seconds=seconds, values=np.median(values, axis=0))
    return Drawn(middle, low, high, curves[0].values if len(curves) == 1 and smooth else None)


def _smooth(values: np.ndarray) -> np.ndarray:
    return running_mean(values, max(1, len(values) // MEAN_SHARE))


def _grouped(runs: Sequence[TrainingRun]) -> tuple[list[tuple[TrainingRun, ...]], list[str]]:
    """Runs that differ in nothing but their seeds together, and notes on what is in the way of that."""
    gathered: dict[tuple[tuple[str, str], ...], list[TrainingRun]] = {}
    for run in runs:
        gathered.setdefault(tuple(sorted(run.facts.items())), []).append(run)
    groups: list[tuple[TrainingRun, ...]] = []
    notes: list[str] = []
    for group in gathered.values():
        fault = _not_seeds(group)
        if fault:
            notes.append(f"{fault}; drawn apart: {', '.join(run.name for run in group)}")
            groups += [(run,) for run in group]
            continue
        groups.append(tuple(group))
        ends = {max(curve.samples[-1] for curve in run.curves) for run in group}
        if len(ends) > 1:
            names = ", ".join(run.name for run in group)
            notes.append(f"{names}: their medians end with the shortest run, after {min(ends):g} samples")
    return groups, notes


def _not_seeds(group: Sequence[TrainingRun]) -> str:
    """Why runs with the same facts are not runs that differ in their seeds; "" if they are."""
    seeds = [run.seed for run in group]
    if len(group) > 1 and "" in seeds:
        return "runs of which one has no known seed cannot be aggregated"
    if len(set(seeds)) < len(seeds):
        return f"runs with the same {max(seeds, key=seeds.count)} cannot be aggregated"
    if len({frozenset((c.quantity, c.phase) for c in run.curves) for run in group}) > 1:
        return "runs of which only some have a loss or an accuracy cannot be aggregated"
    for curve in group[0].curves:
        try:
            medians([c for run in group if (c := run.curve(curve.quantity, curve.phase))], "range")
        except UserError:
            return "runs that differ in the samples of their points cannot be aggregated"
    return ""


def _seeds(groups: Iterable[Sequence[TrainingRun]]) -> str:
    counts = {len(group) for group in groups if len(group) > 1}
    return f"{min(counts)} seeds" if len(counts) == 1 else "the seeds"


def _lacking(lines: Sequence[Line]) -> list[str]:
    """Notes on runs that have only some of the quantities, and on quantities that none has."""
    runs = [run for line in lines for run in line.runs]
    phases = {panel.quantity: panel.phase for panel in four_panels([c for run in runs for c in run.curves])}
    notes = []
    for quantity, what in (("accuracy", "test accuracy"), ("loss", "training loss")):
        if quantity not in phases:
            notes.append(f"no run has a {what}: samples-{quantity} and seconds-{quantity} are not written")
            continue
        notes += [
            f"{run.name}: has no {what} and is not in the plots of {quantity}"
            for run in runs
            if run.curve(quantity, phases[quantity]) is None
        ]
    return notes


@dataclass
class _Legend:
    """What the legend has to explain beside the lines."""

    smooth: bool = False
    single: bool = False
    broken: bool = False


def _draw_panel(axes: Axes, panel: Panel, found: Versus, legend: _Legend) -> None:
    drawn: list[tuple[int, Drawn]] = []
    for index, line in enumerate(found.lines):
        curves = [c for run in line.runs if (c := run.curve(panel.quantity, panel.phase)) is not None]
        if curves:
            smooth = panel.phase == "training_step" and len(curves[0].values) > FEW_POINTS
            legend.smooth |= smooth
            drawn.append((index, medians(curves, found.aggregate, smooth)))
    scale, x_label = abscissa([points.middle for _, points in drawn], panel.x)
    percent = 100 if panel.quantity == "accuracy" else 1
    visible = len(found.lines) <= LINES_WITH_SINGLE_VALUES
    for index, points in drawn:
        x = getattr(points.middle, panel.x) * scale
        if points.single is not None and visible:
            legend.single = True
            faint = np.where(np.isfinite(points.single), points.single, np.nan) * percent
            axes.plot(x, faint, color=line_look(index)["color"], linewidth=0.5, alpha=0.3, zorder=1.5)
        _draw_line(axes, x, points, percent, index, legend)
        if len(found.lines[index].runs) > 1:
            color = line_look(index)["color"]
            axes.fill_between(
                x,
                points.low * percent,
                points.high * percent,
                color=color,
                alpha=0.18,
                linewidth=0,
                zorder=1.2,
            )
    dress_axes(axes, panel, [points.middle for _, points in drawn], x_label)


def _draw_line(axes: Axes, x: np.ndarray, points: Drawn, percent: int, index: int, legend: _Legend) -> None:
    y = points.middle.values * percent
    every = max(1, len(y) // 8) if len(y) > FEW_POINTS else 1
    # Lines that lie on each other have their markers at different places.
    axes.plot(x, y, markevery=(index * every // 7 % every, every), **line_look(index))
    gaps = np.flatnonzero(~np.isfinite(y))
    if len(gaps) and gaps[0] > 0:
        legend.broken = True
        axes.plot(x[gaps[0] - 1], y[gaps[0] - 1], **BROKEN, zorder=4)


def _draw_legend(figure: Figure, found: Versus, legend: _Legend) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    names: list[str] = []
    if len(found.lines) > 1:
        handles += [Line2D([], [], **line_look(index)) for index in range(len(found.lines))]
        names += [literal(line.label) for line in found.lines]
    if any(len(line.runs) > 1 for line in found.lines):
        handles.append(Patch(facecolor="#555555", alpha=0.3))
        names.append(BANDS[found.aggregate].format(seeds=_seeds(line.runs for line in found.lines)))
    if legend.single:
        handles.append(Line2D([], [], color="#555555", linewidth=0.5, alpha=0.5))
        names.append("loss of single steps")
    if legend.smooth:
        handles.append(Line2D([], [], color="#555555"))
        names.append("loss: running mean over 5 % of the steps")
    if legend.broken:
        handles.append(Line2D([], [], **BROKEN))
        one = " in one run" if any(len(line.runs) > 1 for line in found.lines) else ""
        names.append(f"NaN or infinite{one} from here on")
    available = figure.get_figwidth() - 0.9
    legend_below(figure, handles, [_wrapped(figure, name, 8.0, available) for name in names])


def _wrapped(figure: Figure, text: str, size: float, width: float) -> str:
    """The text with line breaks, at spaces where it has any, so that lines are at most ``width`` inches."""
    import textwrap

    longest = text_width(figure, text, size)
    if longest <= width:
        return text
    characters = max(8, int(len(text) * width / longest))
    while characters > 8:
        lines = textwrap.wrap(text, characters)
        if max(text_width(figure, line, size) for line in lines) <= width:
            break
        characters -= 1
    return "\n".join(textwrap.wrap(text, characters))
