"""Figures of bars and ratios in pages that fit on paper, and all plots of a run folder from it alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meta500.metrics.plots.bars import BAR_INCHES, GAP_INCHES, LINE_INCHES, Bar, Ratio, bar_plot, ratio_plot
from meta500.metrics.plots.curves import curve_plots, four_panels
from meta500.metrics.plots.from_rows import (
    WHAT,
    aspect_of,
    bars_from_rows,
    curves_from_rows,
    describe,
    has_ratio,
    names_of_ratios,
    ratios_from_rows,
)
from meta500.metrics.plots.heatmap import heatmap_plots
from meta500.metrics.plots.roofline import roofline_plots
from meta500.metrics.plots.sampling import sampling_plots
from meta500.metrics.plots.scaling import scaling_plots
from meta500.metrics.rows import Row

# The largest part of a page that bars or lines take; the rest goes on further pages.
PAGE_INCHES = 8.0


def plots_from_run(folder: Any, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Make all plots of a run again from its folder alone, into its ``plots/``; returns the paths.

    - loss and accuracy of training runs: see `curve_plots`;
    - "time-LEVEL-PHASE" and "throughput-...", "peak_memory-...", "first_call-...": bars with
      intervals, one file per level, phase and protocol, with "-2", "-3" ... for further pages;
    - "ratio-LEVEL-BASELINE": ratios with intervals;
    - "scaling-weak", "scaling-strong", "scaling-errors", "scaling-network": see `scaling_plots`;
    - "sampling-latency" and "sampling-labels": see `sampling_plots`;
    - "roofline-PHASE-DTYPE" and "errors": of operators, see `roofline_plots` and `heatmap_plots`.

    Args:
        folder: a path or a RunFolder.
        formats: of "png", "pdf" and "svg".

    Raises:
        UserError: no run folder, malformed rows, or plots that cannot be written.
    """
    from meta500.metrics.run import RunFolder

    run = folder if isinstance(folder, RunFolder) else RunFolder.open(folder)
    rows = run.rows
    target = run.path / "plots"
    curves = curves_from_rows(rows)
    written = curve_plots(curves, target, formats) if four_panels(curves) else []
    # Fetching, sampling and the call of an empty network need no bars: they have other figures, or none.
    drawn = [r for r in rows if r.phase not in ("fetch", "measuring", "sampling")]
    for quantity in ("time", "throughput", "peak_memory", "first_call"):
        written += _write_bars([r for r in drawn if r.quantity == quantity], target, formats)
    written += _write_ratios([r for r in drawn if r.quantity == "ratio"], target, formats)
    written += scaling_plots(rows, target, formats) + sampling_plots(rows, target, formats)
    return written + roofline_plots(rows, target, formats) + heatmap_plots(rows, target, formats)


@dataclass(frozen=True)
class BarPage:
    """One figure of bars: the name of its file without suffix, what is drawn, and the words of its axis.

    Attributes:
        rows: those that the bars were made of.
        aspect: what the protocol of all of them says beside how it was timed, "" for nothing.
        page: of so many ``pages`` with the same axis, counted from 1.
    """

    name: str
    bars: list[Bar]
    rows: list[Row]
    quantity: str
    unit: str
    interval: str
    aspect: str = ""
    page: int = 1
    pages: int = 1


@dataclass(frozen=True)
class RatioPage:
    """One figure of ratios: the name of its file without suffix, what is drawn, and the words of its axis.

    ``rows`` are those that its ratios were made of.
    """

    name: str
    ratios: list[Ratio]
    rows: list[Row]
    quantity: str
    interval: str
    page: int = 1
    pages: int = 1


def bar_pages(rows: Sequence[Row]) -> Iterator[BarPage]:
    """Figures of bars, one or several for each level, phase, unit and protocol; the rows are of one quantity.

    Pages on which no bar has a value are left out.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.level, row.phase, row.unit, aspect_of(row)), []).append(row)
    for (level, phase, unit, aspect), group in groups.items():
        quantity = group[0].quantity
        name = _file_name(quantity, str(level), phase, *([aspect] if aspect else []))
        words = f"{phase.replace('_', ' ')} {quantity.replace('_', ' ')}".strip()
        interval = _interval_words(group)
        categories = describe(group, WHAT, ("model", "node", "operator"))
        pages = list(_pages(bars_from_rows(group)))
        for page, (number, bars) in enumerate(pages, start=1):
            if any(bar.known for bar in bars):
                chosen = {bar.category for bar in bars}
                here = [row for row, what in zip(group, categories, strict=True) if what in chosen]
                yield BarPage(f"{name}{number}", bars, here, words, unit, interval, aspect, page, len(pages))


def ratio_pages(rows: Sequence[Row]) -> Iterator[RatioPage]:
    """Figures of ratios, one or several for each level and baseline; the rows are of quantity "ratio"."""
    by_baseline: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        by_baseline.setdefault((row.level, row.baseline), []).append(row)
    for (level, baseline), group in by_baseline.items():
        phases = {r.phase for r in group}
        phase = phases.pop() if len(phases) == 1 else ""
        # A phase that all share is named once, at the axis.
        group = [row for row in group if has_ratio(row)]
        named = [replace(r, phase="") if phase else r for r in group]
        found = ratios_from_rows(named)
        ratios, who = _on_one_line(found)
        names = {id(ratio): (whole.group, whole.label) for ratio, whole in zip(ratios, found, strict=True)}
        of_rows = names_of_ratios(named)
        name = _file_name("ratio", str(level), baseline)
        time = f"{phase.replace('_', ' ')} time of {who}" if who else f"{phase.replace('_', ' ')} time"
        quantity = f"{time.strip()} relative to {baseline}" if baseline else "ratio of two measurements"
        interval = _interval_words(group, "interval")
        pages = list(_ratio_chunks(ratios))
        for page, (number, chosen) in enumerate(pages, start=1):
            shown = {names[id(ratio)] for ratio in chosen}
            here = [row for row, pair in zip(group, of_rows, strict=True) if pair in shown]
            yield RatioPage(f"{name}{number}", chosen, here, quantity, interval, page, len(pages))


def _write_bars(rows: Sequence[Row], target: Path, formats: Sequence[str]) -> list[Path]:
    written: list[Path] = []
    for page in bar_pages(rows):
        paths = [target / f"{page.name}.{kind}" for kind in formats]
        look = {"quantity": page.quantity, "unit": page.unit, "interval": page.interval}
        written += bar_plot(page.bars, paths, **look)
    return written


def _write_ratios(rows: Sequence[Row], target: Path, formats: Sequence[str]) -> list[Path]:
    written: list[Path] = []
    for page in ratio_pages(rows):
        paths = [target / f"{page.name}.{kind}" for kind in formats]
        written += ratio_plot(page.ratios, paths, quantity=page.quantity, interval=page.interval)
    return written


def _pages(bars: Sequence[Bar]) -> Iterable[tuple[str, list[Bar]]]:
    """Categories in pages of about equal length that fit on paper, each with its number for the file."""
    categories = list(dict.fromkeys(bar.category for bar in bars))
    height = len({bar.series for bar in bars}) * BAR_INCHES + GAP_INCHES
    pages = max(1, math.ceil(len(categories) * height / PAGE_INCHES))
    length = math.ceil(len(categories) / pages)
    for page in range(math.ceil(len(categories) / length)):
        chosen = set(categories[page * length : (page + 1) * length])
        yield f"-{page + 1}" if page else "", [bar for bar in bars if bar.category in chosen]


def _ratio_chunks(ratios: Sequence[Ratio]) -> Iterable[tuple[str, list[Ratio]]]:
    """Whole groups in pages that fit on paper, each with its number for the file."""
    groups: dict[str, list[Ratio]] = {}
    for place, ratio in enumerate(ratios):
        groups.setdefault(ratio.group or f"line {place}", []).append(ratio)
    pages: list[list[Ratio]] = [[]]
    inches = 0.0
    for group in groups.values():
        height = LINE_INCHES * (len(group) + bool(group[0].group))
        if pages[-1] and inches + height > PAGE_INCHES:
            pages.append([])
            inches = 0.0
        pages[-1] += group
        inches += height
    for page, chosen in enumerate(pages):
        if chosen:
            yield f"-{page + 1}" if page else "", chosen


def _on_one_line(ratios: Sequence[Ratio]) -> tuple[list[Ratio], str]:
    """Groups of one ratio each, all by the same: without headings, and the name of who it is."""
    labels, groups = {r.label for r in ratios}, {r.group for r in ratios}
    if len(labels) != 1 or len(groups) < max(len(ratios), 2):
        return list(ratios), ""
    return [replace(r, label=r.group, group="") for r in ratios], labels.pop()


def _interval_words(rows: Sequence[Row], what: str = "median, interval") -> str:
    """What the intervals are; the coverage is named where all rows have about the same one."""
    levels = {round(100 * r.confidence) for r in rows if r.confidence is not None}
    if not levels:
        return "" if what.startswith("median") else what
    low, high = min(levels), max(levels)
    coverage = f"{low} %" if low == high else f"{low} to {high} %"
    return what.replace("interval", f"{coverage} interval")


def _file_name(*parts: str) -> str:
    return "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", part) for part in parts if part)
