"""Scaling: step time and efficiency against ranks, measured and predicted; messages; errors of predictions.

Everything comes from the rows of a run of ``meta500 scale``. Points with intervals are measured; rings, which
thin lines join, are the model of the machine that was measured, calibrated without the rank count where they
stand; thick lines are the model, calibrated with all measurements, of the machine that is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.metrics.plots.style import (
    LINES,
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    is_positive,
    legend_below,
    literal,
    new_figure,
    plain_log_ticks,
    save,
    time_unit,
    titled,
)
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCALINGS = ("weak", "strong")
HEIGHT = 2.9
GREY = "#555555"


@dataclass(frozen=True)
class Measured:
    """A step on some ranks: median and interval in seconds, and the prediction without this rank count."""

    ranks: int
    seconds: float
    low: float
    high: float
    checked: float | None = None


@dataclass
class Series:
    """One scheme with one scaling.

    Attributes:
        measured: by rising rank count.
        predicted: (ranks, seconds) by rising rank count; empty without a prediction.
        inefficient: rank count from which on the efficiency is below the threshold; None if it never is.
    """

    scheme: str
    scaling: str
    measured: list[Measured] = field(default_factory=list)
    predicted: list[tuple[int, float]] = field(default_factory=list)
    inefficient: int | None = None

    @property
    def single(self) -> float | None:
        """Seconds on one rank: measured, else predicted."""
        known = [m.seconds for m in self.measured if m.ranks == 1]
        return next(iter(known + [t for p, t in self.predicted if p == 1]), None)


@dataclass(frozen=True)
class Study:
    """All series of one network on one backend.

    Attributes:
        title: what was trained with what.
        series: scheme by scheme.
        threshold: efficiency below which a scheme does not pay; None without a prediction.
        network: the machine of the prediction in words.
        fit: most ranks that have cores of their own where it was measured; None if that is not known.
    """

    title: str
    series: list[Series]
    threshold: float | None
    network: str
    fit: int | None = None


def studies_from_rows(rows: Iterable[Row]) -> list[Study]:
    """The scaling studies in the rows, each of one model, dataset, optimizer and backend.

    Numbers that are not positive and finite are left out (`is_drawn`), and so are intervals with such ends.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.level == 3 and row.phase in ("training_step", "limit", "model") and is_drawn(row):
            key = (row.model, row.dataset, row.optimizer, row.backend, row.mode, row.threads)
            groups.setdefault(key, []).append(row)
    studies = []
    for (model, _, _, backend, mode, threads), group in groups.items():
        series = _series(group)
        if not series:
            continue
        threshold = next((r.value for r in group if r.quantity == "efficiency_threshold"), None)
        network = next((r.note for r in group if r.quantity == "predicted_step_time"), "")
        who = " ".join(filter(None, (backend, mode)))
        per_rank = f"{threads} thread{'s' if threads != 1 else ''} per rank"
        cores = next((r.value for r in group if (r.phase, r.quantity) == ("model", "cores")), None)
        fit = None if cores is None else max(1, int(cores) // (threads or 1))
        studies.append(Study(f"{model}, {who}, {per_rank}", series, threshold, network, fit))
    return studies


def is_drawn(row: Row) -> bool:
    """Whether the row's number has a place in the figures: times, rank counts and shares are positive."""
    return is_positive(row.value)


def _series(rows: Sequence[Row]) -> list[Series]:
    found: dict[tuple[str, str], Series] = {}
    checked = {
        (r.operator, r.protocol.partition(",")[0], r.ranks): r.value
        for r in rows
        if r.quantity == "checked_step_time"
    }
    for row in rows:
        scaling = row.protocol.partition(",")[0]
        if row.quantity not in ("step_time", "predicted_step_time", "ranks_inefficient") or row.value is None:
            continue
        key = (row.operator, scaling)
        series = found.setdefault(key, Series(*key))
        if row.quantity == "ranks_inefficient":
            series.inefficient = int(row.value)
        elif row.quantity == "predicted_step_time":
            series.predicted.append((row.ranks or 1, row.value))
        else:
            known = is_positive(row.low) and is_positive(row.high)
            low, high = (float(v or 0.0) for v in ((row.low, row.high) if known else (row.value,) * 2))
            ranks = row.ranks or 1
            series.measured.append(Measured(ranks, row.value, low, high, checked.get((*key, row.ranks))))
    for series in found.values():
        series.measured.sort(key=lambda m: m.ranks)
        series.predicted.sort()
    return list(found.values())


@dataclass(frozen=True)
class Page:
    """One figure: the name of its file without suffix, what it shows, and what draws it.

    ``study`` is None for the figure of messages, and ``scaling`` is "" for the two others that are not about
    weak or strong scaling.
    """

    name: str
    study: Study | None
    scaling: str
    draw: Callable[[], Figure]


def scaling_plots(
    rows: Iterable[Row], folder: str | Path, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write "scaling-weak", "scaling-strong", "scaling-errors" and "scaling-network"; returns the paths."""
    written: list[Path] = []
    for page in scaling_pages(list(rows)):
        written += save(page.draw(), [Path(folder) / f"{page.name}.{kind}" for kind in formats])
    return written


def scaling_pages(rows: Sequence[Row]) -> Iterator[Page]:
    """The figures of scaling studies that there are rows for."""
    from meta500.metrics.plots.scaling_model import draw_errors, draw_network

    for number, study in enumerate(studies_from_rows(rows)):
        suffix = f"-{number + 1}" if number else ""
        for scaling in SCALINGS:
            if any(s.scaling == scaling and len(s.measured) + len(s.predicted) > 1 for s in study.series):
                draw = partial(draw_scaling, study, scaling)
                yield Page(f"scaling-{scaling}{suffix}", study, scaling, draw)
        if any(m.checked is not None and m.ranks > 1 for s in study.series for m in s.measured):
            yield Page(f"scaling-errors{suffix}", study, "", partial(draw_errors, study))
    messages = [r for r in rows if r.phase in ("message", "collective") and r.value is not None]
    if messages:
        yield Page("scaling-network", None, "", partial(draw_network, messages))


def draw_scaling(study: Study, scaling: str) -> Figure:
    """Step time (left) and efficiency (right) against ranks, for all schemes with this scaling."""
    chosen = [s for s in study.series if s.scaling == scaling]
    with drawing():
        figure = new_figure(WIDTH * 1.15, HEIGHT)
        left, right = figure.subplots(1, 2)
        longest = max(
            [m.high for s in chosen for m in s.measured] + [t for s in chosen for _, t in s.predicted]
        )
        factor, unit = time_unit(longest)
        for index, series in enumerate(chosen):
            _draw_times(left, series, index, len(chosen), factor)
            _draw_efficiency(right, series, index, len(chosen))
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            _rank_ticks(axes, chosen)
            axes.set_xlabel("ranks")
        left.set_yscale("log")
        plain_log_ticks(left, "y")
        left.set_ylabel(f"time of a step ({unit})")
        right.set_ylabel("parallel efficiency (%)")
        right.set_ylim(0, max(105.0, right.get_ylim()[1]))
        if study.threshold is not None:
            right.axhline(100 * study.threshold, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        crowded = crowded_ranks(study, chosen)
        if crowded:
            for axes in (left, right):
                axes.axvspan(*crowded, color="#EEEEEE", linewidth=0, zorder=0)
        _ideal(left, chosen, scaling, factor)
        figure.suptitle(titled(f"{scaling} scaling of {study.title}"), fontsize=9)
        entries = [(_handle(index), literal(s.scheme)) for index, s in enumerate(chosen)]
        entries.append((_legend_line("--", GREY, 0.8), "ideal"))
        if any(m.checked is not None and m.ranks > 1 for s in chosen for m in s.measured):
            entries.append((_ring(), "model of this machine without this rank count"))
        if any(s.inefficient for s in chosen):
            entries.append((_cross(), f"from here on below {100 * (study.threshold or 0):.0f} %"))
        if crowded:
            entries.append((_patch(), "ranks share cores"))
        legend_below(figure, [h for h, _ in entries], [n for _, n in entries])
    return figure


def _draw_times(axes: Axes, series: Series, index: int, count: int, factor: float) -> None:
    color, _, line = look(index)
    if series.predicted:
        ranks, seconds = zip(*series.predicted, strict=True)
        axes.plot(ranks, np.array(seconds) * factor, color=color, linestyle=line, linewidth=1.2)
    _points(axes, series, index, count, {m.ranks: factor * m.seconds for m in series.measured}, factor)


def _draw_efficiency(axes: Axes, series: Series, index: int, count: int) -> None:
    color, _, line = look(index)
    weak = series.scaling == "weak"

    def share(ranks: int, seconds: float, single: float) -> float:
        return 100 * single / seconds / (1 if weak else ranks)

    if series.predicted:
        single = series.predicted[0][1]
        ranks = [p for p, _ in series.predicted]
        shares = [share(p, t, single) for p, t in series.predicted]
        axes.plot(ranks, shares, color=color, linestyle=line, linewidth=1.2)
        if series.inefficient in ranks:
            place = ranks.index(series.inefficient)
            axes.plot(ranks[place], shares[place], **_CROSS, color=color, zorder=4)
    single_measured = series.single
    if single_measured is None:
        return
    points = {m.ranks: share(m.ranks, m.seconds, single_measured) for m in series.measured}
    _points(axes, series, index, count, points, None, single_measured)


def _points(
    axes: Axes,
    series: Series,
    index: int,
    count: int,
    values: Mapping[int, float],
    factor: float | None,
    single: float | None = None,
) -> None:
    """Measured values with intervals, and the rings of predictions without that rank count.

    ``factor`` scales seconds; without it values are efficiencies relative to ``single`` seconds.
    """
    color, marker, line = look(index)

    def scaled(seconds: float, ranks: int) -> float:
        if factor is not None:
            return seconds * factor
        divisor = 1 if series.scaling == "weak" else ranks
        return 100 * (single or 0.0) / seconds / divisor

    known = [(m.ranks, m.checked) for m in series.measured if m.checked is not None]
    path = [(_beside(p, index, count), scaled(t, p)) for p, t in known]
    if len(path) > 1:
        axes.plot(*zip(*path, strict=True), color=color, linestyle=line, linewidth=0.6, zorder=2)
    for m in series.measured:
        x = _beside(m.ranks, index, count)
        axes.vlines(x, scaled(m.low, m.ranks), scaled(m.high, m.ranks), color=color, linewidth=0.8)
        axes.plot(x, values[m.ranks], marker=marker, color=color, markersize=4, linestyle="", zorder=3)
        if m.checked is not None and m.ranks > 1:
            axes.plot(x, scaled(m.checked, m.ranks), **_RING, markeredgecolor=color, zorder=2.5)


_RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 8,
    "markerfacecolor": "none",
    "markeredgewidth": 0.9,
    "linestyle": "none",
}
_CROSS: dict[str, Any] = {"marker": "X", "markersize": 7, "markeredgecolor": "white", "linestyle": "none"}


def look(index: int) -> tuple[str, str, str]:
    """Colour, marker and line of the series with this index."""
    return (
        PALETTE[index % len(PALETTE)],
        MARKERS[index % len(MARKERS)],
        LINES[(index // len(PALETTE) + index) % len(LINES)],
    )


def _beside(ranks: int, index: int, count: int) -> float:
    """The rank count, a little to the left or right, so that points of several schemes stand side by side."""
    return float(ranks * 2 ** (0.07 * (index - (count - 1) / 2)))


def _rank_ticks(axes: Axes, series: Sequence[Series]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    ranks = sorted(
        {m.ranks for s in series for m in s.measured} | {p for s in series for p, _ in s.predicted}
    )
    largest = ranks[-1]
    powers = [p for p in ranks if p & (p - 1) == 0]
    every = max(1, -(-len(powers) // 7))
    shown = ranks if len(ranks) <= 5 else powers[::every]
    axes.set_xlim(min(ranks) / 1.35, largest * 1.35)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(FixedLocator([]))


def ideal_single(series: Sequence[Series]) -> float | None:
    """Seconds on one rank, the median of the schemes, where ideal scaling begins; None if none is known."""
    singles = [s.single for s in series if s.single is not None]
    return float(np.median(singles)) if singles else None


def _ideal(axes: Axes, series: Sequence[Series], scaling: str, factor: float) -> None:
    """The time of one rank (weak), or its P-th part (strong)."""
    single = ideal_single(series)
    if single is None:
        return
    low, high = axes.get_xlim()
    x = np.array([max(1.0, low), high])
    axes.plot(
        x,
        single * factor / (np.ones_like(x) if scaling == "weak" else x),
        color=GREY,
        linestyle="--",
        linewidth=0.8,
        zorder=1,
    )
    axes.set_xlim(low, high)


def crowded_ranks(study: Study, series: Sequence[Series]) -> tuple[float, float] | None:
    """The range of measured rank counts at which ranks shared cores, on the axis; None if there were none."""
    most = max((m.ranks for s in series for m in s.measured), default=0)
    if study.fit is None or most <= study.fit:
        return None
    return study.fit * 2**0.25, most * 2**0.25


def _handle(index: int) -> Any:
    color, marker, line = look(index)
    return _legend_line(line, color, 1.2, marker)


def _patch() -> Any:
    from matplotlib.patches import Patch

    return Patch(color="#E4E4E4", linewidth=0)


def _legend_line(line: str, color: str, width: float, marker: str = "") -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, linestyle=line, linewidth=width, marker=marker, markersize=4)


def _ring() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **_RING, markeredgecolor=GREY)


def _cross() -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **_CROSS, color=GREY)
