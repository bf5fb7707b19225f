"""Roofline plots: achieved operations per second over operations per byte, under the measured limits.

S. Williams, A. Waterman and D. Patterson, Roofline (Communications of the ACM 52, 2009). Limits and points
come from the rows of a Level 0 run: "peak" and "bandwidth" of phase "roofline", and "flop_rate" and
"byte_rate" of every operator that was timed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.style import (
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    is_positive,
    legend_below,
    new_figure,
    number,
    plain_log_ticks,
    save,
)
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT = 3.9
GIGA = 1e9
PHASE, PEAK, BANDWIDTH, CACHE = "roofline", "peak", "bandwidth", "last_level_cache"


@dataclass(frozen=True)
class Point:
    """One timed call.

    ``intensity`` in FLOP/B, ``rate`` with its interval in FLOP/s; ``series`` is who ran it; ``cached`` says
    that its data fit the last-level cache.
    """

    operator: str
    series: str
    intensity: float
    rate: float
    low: float | None = None
    high: float | None = None
    cached: bool = False


@dataclass(frozen=True)
class Limits:
    """Best measured rates in FLOP/s and B/s, and the medians of the same measurements."""

    peak: float
    bandwidth: float
    median_peak: float
    median_bandwidth: float


def limits_from_rows(rows: Iterable[Row], dtype: str) -> Limits | None:
    """The limits of one element type; None where one of them was not measured."""
    found = [r for r in rows if r.phase == PHASE and is_positive(r.value)]
    peaks = [r for r in found if r.quantity == PEAK and r.dtype == dtype]
    bandwidths = [r for r in found if r.quantity == BANDWIDTH]
    if not peaks or not bandwidths:
        return None
    peak, bandwidth = (max(group, key=lambda r: r.value or 0.0) for group in (peaks, bandwidths))
    return Limits(
        *(float(r.value or 0.0) for r in (peak, bandwidth)),
        *(_median(r) for r in (peak, bandwidth)),
    )


def _median(row: Row) -> float:
    """Of the samples where it can be drawn, else the value."""
    middle = float(np.median(row.samples)) if row.samples else None
    return float(middle if middle is not None and is_positive(middle) else row.value or 0.0)


def points_from_rows(rows: Iterable[Row], phase: str, dtype: str) -> list[Point]:
    """The points of one phase and element type; movements of data, without operations, have none.

    Rates that are not finite have none either, and intervals without a place on the axis are left out.
    """
    cache = 0.0
    rates: dict[tuple[str, ...], dict[str, Row]] = {}
    sizes: dict[tuple[str, ...], float] = {}
    for row in rows:
        if row.phase == PHASE and row.quantity == CACHE:
            cache = row.value or 0.0
        if (row.phase, row.dtype, row.level) != (phase, dtype, 0):
            continue
        what = (row.model, row.node, row.dataset)
        if row.quantity == "bytes":
            sizes[what] = row.value or math.inf
        elif row.quantity in ("flop_rate", "byte_rate"):
            rates.setdefault((*what, row.backend, row.mode), {})[row.quantity] = row
    points = []
    for key, pair in rates.items():
        flops, nbytes = pair.get("flop_rate"), pair.get("byte_rate")
        if flops is None or nbytes is None or flops.verdict == "wrong":
            continue
        if flops.value is None or nbytes.value is None:
            continue
        if not (is_positive(flops.value) and is_positive(nbytes.value)):
            continue
        series = " ".join(filter(None, (flops.backend, flops.mode)))
        cached = sizes.get(key[:3], math.inf) <= cache
        ends = (flops.low, flops.high)
        if not all(map(is_positive, ends)):
            ends = (None, None)
        numbers = (flops.value / nbytes.value, flops.value, *ends)
        points.append(Point(flops.operator or flops.model, series, *numbers, cached))
    return points


def draw_roofline(points: Sequence[Point], limits: Limits, *, title: str = "") -> Figure:
    """Points with intervals under min(peak, intensity * bandwidth), both axes logarithmic.

    Colours tell who ran it, markers the operator (where there are not more operators than markers), hollow
    markers that the data fit the last-level cache, so that the memory's limit does not hold for them.

    Raises:
        UserError: no points, or a point without positive rate and intensity.
    """
    if not points:
        raise UserError("roofline plot: there are no points")
    for point in points:
        if not (point.intensity > 0 and point.rate > 0):
            raise UserError(
                f"roofline plot: {point.operator} by {point.series} has {point.rate:g} FLOP/s at "
                f"{point.intensity:g} FLOP/B; both must be positive"
            )
    with drawing():
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.set_yscale("log")
        _set_range(axes, points, limits)
        handles = _draw_limits(axes, limits)
        handles += _draw_points(axes, points)
        axes.set_xlabel("operations per byte of compulsory traffic (FLOP/B)")
        axes.set_ylabel("GFLOP/s")
        for axis in ("x", "y"):
            plain_log_ticks(axes, axis)
        if title:
            axes.set_title(title, loc="left")
        legend_below(figure, [h for h, _ in handles], [text for _, text in handles])
    return figure


def roofline_plots(rows: Sequence[Row], folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write "roofline-PHASE-DTYPE" for each phase and element type with limits and points."""
    written: list[Path] = []
    for page in roofline_pages(rows):
        figure = draw_roofline(page.points, page.limits, title=page.title)
        written += save(figure, [folder / f"{page.name}.{kind}" for kind in formats])
    return written


@dataclass(frozen=True)
class Page:
    """One figure: the name of its file without suffix, what is drawn, and the title above it."""

    name: str
    phase: str
    dtype: str
    points: list[Point]
    limits: Limits
    title: str


def roofline_pages(rows: Sequence[Row]) -> Iterator[Page]:
    """A figure for each phase and element type with limits and points."""
    groups = dict.fromkeys((r.phase, r.dtype) for r in rows if r.quantity == "flop_rate" and r.level == 0)
    for phase, dtype in groups:
        limits, points = limits_from_rows(rows, dtype), points_from_rows(rows, phase, dtype)
        if limits is None or not points:
            continue
        threads = {r.threads for r in rows if r.phase == PHASE and r.threads}
        with_threads = "".join(f", {n} thread{'s' if n > 1 else ''}" for n in threads if len(threads) == 1)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"roofline-{phase}-{dtype}")
        yield Page(name, phase, dtype, points, limits, f"{phase}, {dtype}{with_threads}")


def _set_range(axes: Axes, points: Sequence[Point], limits: Limits) -> None:
    """From half the smallest to twice the largest, the ridge included."""
    ridge = limits.peak / limits.bandwidth
    across = [p.intensity for p in points]
    # The ridge belongs to the picture.
    axes.set_xlim(min(*across, ridge) / 2, max(*across, ridge) * 4)
    rates = [rate for p in points for rate in (p.rate, p.low, p.high) if rate]
    axes.set_ylim(min(*rates, limits.peak) / 2 / GIGA, max(*rates, limits.peak) * 2 / GIGA)


def _draw_limits(axes: Axes, limits: Limits) -> list[tuple[Any, str]]:
    """The roof of the best samples, and dotted that of the medians."""
    x = np.geomspace(*axes.get_xlim(), 512)
    roofs = ((limits.peak, limits.bandwidth, "-"), (limits.median_peak, limits.median_bandwidth, ":"))
    for peak, bandwidth, dashes in roofs:
        axes.plot(x, np.minimum(peak, x * bandwidth) / GIGA, dashes, color="black", linewidth=1.2)
    from matplotlib.lines import Line2D

    def line(dashes: str) -> Any:
        return Line2D([], [], color="black", linestyle=dashes, linewidth=1.2)

    def words(peak: float, bandwidth: float) -> str:
        return f"{number(peak / GIGA)} GFLOP/s, {number(bandwidth / GIGA)} GB/s"

    return [
        (line("-"), f"best: {words(limits.peak, limits.bandwidth)}"),
        (line(":"), f"median: {words(limits.median_peak, limits.median_bandwidth)}"),
    ]


def _draw_points(axes: Axes, points: Sequence[Point]) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    series = list(dict.fromkeys(p.series for p in points))
    operators = sorted({p.operator for p in points})
    marked = 1 < len(operators) <= len(MARKERS)
    for point in points:
        color = PALETTE[series.index(point.series) % len(PALETTE)]
        marker = (
            MARKERS[operators.index(point.operator)] if marked else MARKERS[series.index(point.series) % 9]
        )
        if point.low is not None and point.high is not None:
            axes.vlines(point.intensity, point.low / GIGA, point.high / GIGA, color=color, linewidth=0.8)
        face = "white" if point.cached else color
        look: dict[str, Any] = {"color": color, "markerfacecolor": face, "markersize": 4.5, "zorder": 3}
        axes.plot(
            *(point.intensity, point.rate / GIGA, marker),
            **look,
        )
    handles: list[tuple[Any, str]] = []

    def handle(text: str, marker: str, color: str, face: str) -> None:
        look: dict[str, Any] = {"color": color, "markerfacecolor": face, "linestyle": "", "marker": marker}
        handles.append((Line2D([], [], **look), text))

    for index, name in enumerate(series):
        color = PALETTE[index % len(PALETTE)]
        handle(name, "s" if marked else MARKERS[index % len(MARKERS)], color, color)
    if marked:
        for index, name in enumerate(operators):
            handle(name, MARKERS[index], "#555555", "#555555")
    if any(p.cached for p in points):
        handle("hollow: data fit the last-level cache", "o", "#555555", "white")
    return handles
