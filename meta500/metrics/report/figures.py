"""All figures of a report: what they show, the rows they are made of, and how both kinds are drawn.

A figure is drawn twice from the same bars, curves or points: by matplotlib for print and files, and as data
for plotly. What there are no rows for is not drawn, and the reason is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from meta500.metrics.plots.heatmap import Cell, belongs, draw_heatmap, heatmap_pages
from meta500.metrics.plots.pages import bar_pages, ratio_pages
from meta500.metrics.plots.roofline import PHASE, Page, draw_roofline, roofline_pages
from meta500.metrics.plots.sampling import draw_labels, draw_latencies
from meta500.metrics.plots.scaling import scaling_pages
from meta500.metrics.plots.style import literal
from meta500.metrics.report import interactive, interactive_models
from meta500.metrics.report.interactive import Spec, Store
from meta500.metrics.report.names import columned, short_name, shortened
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FILE_CHARACTERS = 80
# Of one kind of figure so many pages are drawn; more would hide the others, and tables have all of them.
MOST_PAGES = 4
MOST_FIGURES = 80
LEVELS = ("Layers and operators", "Networks", "Training", "Distributed training")
TRAINING, END_TO_END, ROOFLINE, ERRORS, SCALING = (
    "Training",
    "End to end",
    "Roofline",
    "Errors",
    "Scaling",
)
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


@dataclass(frozen=True)
class PageFigure:
    """One figure.

    Attributes:
        name: of its files without suffix, unique in a report.
        kind: of `WANTED`, the kind that it is.
        section: heading under which it stands.
        title: above it.
        caption: below it: what is shown and how to read it.
        rows: what it is made of.
        draw: makes the static figure.
        interactive: makes the figure for plotly; None where there is only the static one.
    """

    name: str
    kind: str
    section: str
    title: str
    caption: str
    rows: Sequence[Row]
    draw: Callable[[], Drawing]
    interactive: Callable[[Store], Spec] | None = None


def figures_of(rows: Sequence[Row]) -> tuple[list[PageFigure], list[tuple[str, str]]]:
    """The figures that there are rows for, and pairs of what is not drawn and why.

    Args:
        rows: of all sources; where there are several, ``run_id`` names the source for labels.
    """
    found: list[PageFigure] = []
    left_out: list[tuple[str, str]] = []
    for kind in (_training, _end_to_end, _bars, _ratios, _roofline, _errors, _scaling, _sampling):
        for figure in kind(rows, left_out):
            found.append(figure)
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


LeftOut = list[tuple[str, str]]


def _training(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    mine = [r for r in rows if r.phase in CURVE_PHASES and r.step is not None and r.seconds is not None]
    curves = [replace(c, label=short_name(c.label)) for c in curves_from_rows(mine)]
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
    runs = [short_name(name) for name in describe(mine, CURVE, ("model", "optimizer", "backend", "mode"))]
    words = [r.quantity.removesuffix("_time").replace("_", " ") for r in mine]
    names = {"train": "training steps", "data": "training data", "test": "test set", "ticker": "tickers"}
    parts = {
        (run, word): Bar(run, names.get(word, word), r.value, note=r.verdict if r.verdict == "failed" else "")
        for r, run, word in zip(mine, runs, words, strict=True)
    }
    look: dict[str, Any] = {"quantity": "time of a whole training", "unit": "s", "interval": ""}
    caption = "Where the time of each training went; parts without any time have no bar."
    yield from _paged(
        list(parts.values()),
        "end-to-end",
        "End to end",
        END_TO_END,
        "Time of a whole training",
        caption,
        mine,
        look,
    )
    mine = [r for r in rows if r.quantity == "time_to_accuracy" and r.level >= 2]
    for page in bar_pages(mine):
        title = "Time to the accuracy that was asked for"
        yield _bar_figure(replace(page, name=f"end-to-end-{page.name}"), "End to end", END_TO_END, title, "")


def _paged(
    bars: list[Bar],
    name: str,
    kind: str,
    section: str,
    title: str,
    caption: str,
    rows: Sequence[Row],
    look: dict[str, Any],
) -> Iterator[PageFigure]:
    """One figure of bars, none without a value that can be drawn."""
    bars = [bar for bar in bars if bar.known and bar.value]
    if bars:
        draw, show = partial(_draw_bars, bars, **look), partial(interactive.bars, found=bars, **look)
        yield PageFigure(name, kind, section, title, caption, rows, draw, show)


def _bars(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    """Bars of times, throughputs and memory, and boxes of those with samples, level by level."""
    for level, section in sorted(enumerate(LEVELS), key=lambda pair: (1, 0, 2, 3).index(pair[0])):
        for quantity in QUANTITIES:
            mine = [r for r in rows if (r.level, r.quantity) == (level, quantity) and r.phase not in APART]
            for page in bar_pages(mine):
                if page.page > MOST_PAGES:
                    if page.page == MOST_PAGES + 1:
                        left_out.append(_further(page.quantity, page.pages))
                    continue
                title = f"{page.quantity[:1].upper()}{page.quantity[1:]}"
                title += f", {page.aspect}" if page.aspect else ""
                title = short_name(title) + _numbered(page.page, page.pages)
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
    for page in ratio_pages(drawn):
        if page.page > MOST_PAGES:
            if page.page == MOST_PAGES + 1:
                left_out.append(_further(page.quantity, page.pages))
            continue
        ratios = [replace(r, label=short_name(r.label), group=short_name(r.group)) for r in page.ratios]
        section = LEVELS[page.rows[0].level]
        title = f"{page.quantity[:1].upper()}{page.quantity[1:]}" + _numbered(page.page, page.pages)
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


def _roofline(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    for page in roofline_pages(rows):
        here = [
            r
            for r in rows
            if r.phase == PHASE
            or ((r.phase, r.dtype, r.level) == (page.phase, page.dtype, 0) and r.quantity.endswith("_rate"))
        ]
        caption = (
            "Operations per second over operations per byte. Lines are the best measured peak and bandwidth, "
            "dotted their medians; hollow points have data that fit the last-level cache, for which the "
            "bandwidth of the memory is no limit."
        )
        points = [
            replace(p, operator=short_name(p.operator), series=short_name(p.series)) for p in page.points
        ]
        page = replace(page, points=points)
        show = partial(interactive_models.roofline, points=points, limits=page.limits)
        title = f"Roofline: {page.title}"
        yield PageFigure(
            page.name, ROOFLINE, ROOFLINE, title, caption, here, partial(_draw_roofline, page), show
        )


def _draw_roofline(page: Page) -> Drawing:
    points = [replace(p, operator=literal(p.operator), series=literal(p.series)) for p in page.points]
    return draw_roofline(points, page.limits, title=literal(page.title))


def _errors(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    mine = [r for r in rows if belongs(r)]
    pages = list(heatmap_pages(mine))
    if len(pages) > MOST_PAGES:
        left_out.append(_further("errors", len(pages)))
    for number, (name, cells) in enumerate(pages[:MOST_PAGES], start=1):
        caption = (
            "Largest relative error against the float64 reference in eps of the type; rounding gives a few. "
            "“wrong” marks errors that rounding does not explain."
        )
        cells = [replace(c, name=short_name(c.name), series=columned(c.series)) for c in cells]
        title = "Errors against the float64 reference" + _numbered(number, len(pages))
        draw, show = (
            partial(_draw_heatmap, cells),
            lambda store, cells=cells: interactive_models.heatmap(cells),
        )
        yield PageFigure(name, "Heat map of errors", ERRORS, title, caption, mine, draw, show)


def _draw_heatmap(cells: Sequence[Cell]) -> Drawing:
    return draw_heatmap([replace(c, name=literal(c.name), series=literal(c.series)) for c in cells])


def _scaling(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    mine = [r for r in rows if r.level == 3]
    for page in scaling_pages(mine):
        if page.scaling and page.study:
            title = f"{page.scaling.capitalize()} scaling of {page.study.title}"
            caption = "Points are measured, lines are predicted by the model of the machine."
            phases: tuple[str, ...] = ("training_step", "limit", "model")
            show = partial(interactive_models.scaling, study=page.study, kind=page.scaling)
        elif page.study:
            title, caption = (
                f"Predictions for {page.study.title}",
                "Without the rank count that is predicted.",
            )
            phases, show = ("training_step", "model"), None
        else:
            title, caption = "Messages", "Time of messages and collectives over their size."
            phases, show = ("message", "collective"), None
        here = [r for r in mine if r.phase in phases]
        yield PageFigure(page.name, SCALING, SCALING, short_name(title), caption, here, page.draw, show)


def _sampling(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    mine = [r for r in rows if r.phase == "sampling"]
    for quantity, name, title, draw in (
        ("latency", "sampling-latency", "Latency of batches", draw_latencies),
        ("label_count", "sampling-labels", "Classes of the samples", draw_labels),
    ):
        here = [r for r in mine if r.quantity == quantity]
        if here:
            yield PageFigure(name, "Sampling", "Data", title, f"{title}.", here, partial(draw, mine))


def _further(what: str, pages: int) -> tuple[str, str]:
    reason = f"only the first {MOST_PAGES} of {pages} figures are drawn; choose others with --filter"
    return f"Further figures of {what}", reason


def _numbered(page: int, pages: int) -> str:
    return f" ({page} of {pages})" if pages > 1 else ""
