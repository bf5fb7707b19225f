"""All figures of a report: what they show, the rows they are made of, and how both kinds are drawn.

A figure is drawn twice from the same bars, curves or points: by matplotlib for print and files, and as data
for plotly. What there are no rows for is not drawn, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from meta500.metrics.plots.bars import Bar, Ratio, draw_bars, draw_ratios
from meta500.metrics.plots.boxes import WORDS, boxed, draw_boxes
from meta500.metrics.plots.curves import CURVE_NOTE, Curve, Panel, draw_curves, four_panels
from meta500.metrics.plots.from_rows import (
    CURVE,
    CURVE_PHASES,
    curves_from_rows,
    describe,
)
from meta500.metrics.plots.pages import bar_pages, ratio_pages
from meta500.metrics.plots.style import literal
from meta500.metrics.report import interactive
from meta500.metrics.report.figures_by_run import errors, roofline, sampling, scaling
from meta500.metrics.report.names import short_name, shortened, unique_names
from meta500.metrics.report.page_figure import MOST_PAGES, LeftOut, PageFigure, fault, further, numbered
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FILE_CHARACTERS = 80
MOST_FIGURES = 80
LEVELS = ("Layers and operators", "Networks", "Training", "Distributed training")
TRAINING, END_TO_END = "Training", "End to end"
QUANTITIES = ("time", "throughput", "peak_memory", "first_call")
PARTS = ("train_time", "data_time", "test_time", "test_data_time", "ticker_time")
# Phases whose rows have figures of their own, or none.
APART = ("fetch", "measuring", "sampling", "roofline", "conformance")
# What each part of a report is made of, for those that have no rows.
WANTED = {
    "Training curves": "no row has a loss or an accuracy over steps; `meta500 train` writes them",
    "Layers and operators": "there are no times of layers or operators; `meta500 bench layers` writes them",
    "Networks": "there are no times of networks; `meta500 bench networks` writes them",
    "End to end": "no row says how long a whole training took; `meta500 train` writes them",
    "Ratios": "no row has a ratio of two measurements with an interval",
    "Box plots": "no measurement has three samples or more",
    "Roofline": "there are no rates of operations together with the measured peak and bandwidth; "
    "`meta500 bench layers` writes them",
    "Heat map of errors": "there are no errors of operators against the float64 reference; "
    "`meta500 operators` writes them",
    "Scaling": "there are no step times over ranks; `meta500 scale` writes them",
}


def figures_of(rows: Sequence[Row]) -> tuple[list[PageFigure], list[tuple[str, str]]]:
    """The figures that there are rows for, and pairs of what is not drawn and why.

    Args:
        rows: of all sources; where there are several, ``run_id`` names the source for labels.
    """
    found: list[PageFigure] = []
    left_out: LeftOut = []
    for kind in (_training, _end_to_end, _bars, _ratios, roofline, errors, scaling, sampling):
        try:
            found.extend(kind(rows, left_out))
        except Exception as problem:
            # Rows of other tools may hold anything; one kind of figure shall not cost the others.
            left_out.append((f"Figures: {kind.__name__.strip('_').replace('_', ' ')}", fault(problem)))
    kinds = {figure.kind for figure in found}
    reasons = [(kind, reason) for kind, reason in WANTED.items() if kind not in kinds]
    shown: dict[str, PageFigure] = {}
    taken: set[str] = set()
    for figure in found:
        stem = figure.name[:FILE_CHARACTERS]
        name, number = stem, 1
        # Names of files that differ in nothing but upper and lower case are the same on some systems.
        while name.lower() in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        shown[name] = replace(figure, name=name)
    figures = list(shown.values())
    if len(figures) > MOST_FIGURES:
        left_out.append(
            (
                f"{len(figures) - MOST_FIGURES} figures",
                f"there are {len(figures)}, and only the first {MOST_FIGURES} are drawn; choose rows with "
                "--filter to see others",
            )
        )
    return figures[:MOST_FIGURES], reasons + left_out


def _training(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    mine = [r for r in rows if r.phase in CURVE_PHASES and r.step is not None and r.seconds is not None]
    curves = curves_from_rows(mine)
    short = unique_names(c.label for c in curves)
    curves = [replace(c, label=short[c.label]) for c in curves]
    wanted = four_panels(curves)
    for panel in sorted(wanted, key=lambda panel: panel.quantity != "accuracy"):
        over = "samples seen" if panel.x == "samples" else "seconds in training steps"
        what = "Test accuracy" if panel.quantity == "accuracy" else "Training loss"
        here = [r for r in mine if (r.quantity, r.phase) == (panel.quantity, panel.phase)]
        seen = "" if panel.quantity == "accuracy" else f" {CURVE_NOTE}"
        caption = f"{what} over {over}, one line for each training.{seen}"
        yield PageFigure(
            f"{panel.quantity}-{panel.x}",
            "Training curves",
            TRAINING,
            f"{what} over {over}",
            caption,
            here,
            partial(_draw_curves, curves, panel),
            partial(interactive.curves, found=curves, panel=panel),
        )


def _draw_curves(curves: Sequence[Curve], panel: Panel) -> Drawing:
    return draw_curves([replace(c, label=literal(c.label)) for c in curves], [panel])


def _end_to_end(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    mine = [r for r in rows if r.phase == "run" and r.quantity in PARTS and r.value is not None]
    whole = _repeated(mine, describe(mine, CURVE, ("model", "optimizer", "backend", "mode")))
    short = unique_names(whole)
    runs = [short[name] for name in whole]
    words = [r.quantity.removesuffix("_time").replace("_", " ") for r in mine]
    names = {"train": "training steps", "data": "training data", "test": "test set", "ticker": "tickers"}
    parts = {
        (run, word): Bar(run, names.get(word, word), r.value, note=r.verdict if r.verdict == "failed" else "")
        for r, run, word in zip(mine, runs, words, strict=True)
    }
    look: dict[str, Any] = {"quantity": "time of a whole training", "unit": "s", "interval": ""}
    caption = "Where the time of each training went; parts without any time have no bar."
    bars = [bar for bar in parts.values() if bar.known and bar.value]
    if bars:
        yield PageFigure(
            "end-to-end",
            "End to end",
            END_TO_END,
            "Time of a whole training",
            caption,
            mine,
            partial(_draw_bars, bars, **look),
            partial(interactive.bars, found=bars, **look),
        )
    mine = [r for r in rows if r.quantity == "time_to_accuracy" and r.level >= 2]
    for page in bar_pages(mine):
        title = "Time to the accuracy that was asked for"
        yield _bar_figure(replace(page, name=f"end-to-end-{page.name}"), "End to end", END_TO_END, title, "")


def _repeated(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """The names of the rows' runs, numbered where a part comes anew, which is then of another run."""
    numbers: dict[str, int] = {}
    seen: dict[str, set[str]] = {}
    places = []
    for row, name in zip(rows, names, strict=True):
        if row.quantity in seen.setdefault(name, set()):
            numbers[name] = numbers.get(name, 1) + 1
            seen[name] = set()
        seen[name].add(row.quantity)
        places.append(numbers.get(name, 1))
    return [
        f"{name} run {place}".strip() if name in numbers else name
        for name, place in zip(names, places, strict=True)
    ]


def _bars(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    """Bars of times, throughputs and memory, and boxes of those with samples, level by level."""
    for level, section in sorted(enumerate(LEVELS), key=lambda pair: (1, 0, 2, 3).index(pair[0])):
        for quantity in QUANTITIES:
            mine = [r for r in rows if (r.level, r.quantity) == (level, quantity) and r.phase not in APART]
            said: set[str] = set()
            for page in bar_pages(mine):
                if page.page > MOST_PAGES:
                    # Pages without any value are missing, so that the first of them may have any number.
                    group = page.name.removesuffix(f"-{page.page}")
                    if group not in said:
                        left_out.append(further(page.quantity, page.pages))
                    said.add(group)
                    continue
                title = f"{page.quantity[:1].upper()}{page.quantity[1:]}"
                title += f", {page.aspect}" if page.aspect else ""
                title = short_name(title) + numbered(page.page, page.pages)
                page = replace(
                    page,
                    bars=shortened(page.bars),
                    quantity=short_name(page.quantity),
                    unit=short_name(page.unit),
                )
                kind = section if quantity == "time" and level < 2 else "Other bars"
                yield _bar_figure(page, kind, section, title, "")
                if boxed(page.bars):
                    look: dict[str, Any] = {"quantity": page.quantity, "unit": page.unit}
                    yield PageFigure(
                        f"{page.name}-samples",
                        "Box plots",
                        section,
                        f"{title}: samples",
                        f"{WORDS[0].upper()}{WORDS[1:]}.",
                        [r for r in page.rows if r.samples],
                        partial(_draw_boxes, page.bars, **look),
                        partial(interactive.boxes, found=page.bars, **look),
                    )


def _bar_figure(page: Any, kind: str, section: str, title: str, caption: str) -> PageFigure:
    look: dict[str, Any] = {"quantity": page.quantity, "unit": page.unit, "interval": page.interval}
    if not caption:
        coverage = page.interval.partition(", ")[2]
        caption = (
            f"Bars are medians, lines their {coverage}s." if coverage else "Values as they were measured."
        )
    draw, show = partial(_draw_bars, page.bars, **look), partial(interactive.bars, found=page.bars, **look)
    return PageFigure(page.name, kind, section, title, caption, page.rows, draw, show)


def _draw_bars(bars: Sequence[Bar], **look: Any) -> Drawing:
    look |= {name: literal(look[name]) for name in ("quantity", "unit")}
    return draw_bars(_literal(bars), **look)


def _draw_boxes(bars: Sequence[Bar], **look: Any) -> Drawing:
    return draw_boxes(_literal(bars), **{name: literal(value) for name, value in look.items()})


def _literal(bars: Iterable[Bar]) -> list[Bar]:
    return [replace(b, category=literal(b.category), series=literal(b.series)) for b in bars]


def _ratios(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    mine = [r for r in rows if r.quantity == "ratio" and r.phase not in APART]
    # A ratio of zero or without end has no place on the logarithmic axis.
    drawn = [
        r for r in mine if r.low is not None and r.low > 0 and r.high is not None and r.high < float("inf")
    ]
    said: set[str] = set()
    for page in ratio_pages(drawn):
        if page.page > MOST_PAGES:
            if page.quantity not in said:
                left_out.append(further(page.quantity, page.pages))
            said.add(page.quantity)
            continue
        labels, groups = (
            unique_names(r.label for r in page.ratios),
            unique_names(r.group for r in page.ratios),
        )
        ratios = [replace(r, label=labels[r.label], group=groups[r.group]) for r in page.ratios]
        section = LEVELS[page.rows[0].level]
        title = f"{page.quantity[:1].upper()}{page.quantity[1:]}" + numbered(page.page, page.pages)
        look: dict[str, Any] = {"quantity": short_name(page.quantity), "interval": page.interval}
        caption = (
            f"Ratios of medians with their {page.interval}; below 1 is less than the baseline. Filled points "
            "have an interval that excludes 1."
        )
        draw, show = partial(_draw_ratios, ratios, **look), partial(interactive.ratios, found=ratios, **look)
        yield PageFigure(page.name, "Ratios", section, short_name(title), caption, page.rows, draw, show)


def _draw_ratios(ratios: Sequence[Ratio], quantity: str, interval: str) -> Drawing:
    plain = [replace(r, label=literal(r.label), group=literal(r.group)) for r in ratios]
    return draw_ratios(plain, quantity=literal(quantity), interval=interval)
