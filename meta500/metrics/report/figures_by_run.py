"""Figures that belong to one run each: rooflines, heat maps of errors, scaling and sampling.

A roofline holds for the machine whose limits were measured with it, an efficiency for the run whose time on
one rank it is relative to. So where there are several runs, each one has its own figures, with its name in
their titles and files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from meta500.metrics.plots.heatmap import NAME_CHARACTERS as ERROR_CHARACTERS
from meta500.metrics.plots.heatmap import Cell, belongs, draw_heatmap, heatmap_pages, rows_of_cells
from meta500.metrics.plots.roofline import CACHE, PHASE, Page, draw_roofline, roofline_pages
from meta500.metrics.plots.sampling import draw_labels, draw_latencies
from meta500.metrics.plots.scaling import Study, draw_scaling, is_drawn, scaling_pages
from meta500.metrics.plots.scaling_model import draw_errors, draw_network
from meta500.metrics.plots.style import is_positive, literal
from meta500.metrics.report import interactive_models
from meta500.metrics.report.interactive import Spec, Store
from meta500.metrics.report.names import RUN_CHARACTERS, columned, short_name, unique_names
from meta500.metrics.report.page_figure import MOST_PAGES, LeftOut, PageFigure, further, numbered
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

ROOFLINE, ERRORS, SCALING = "Roofline", "Errors", "Scaling"
RATES = ("flop_rate", "byte_rate")
# Of names that stand beside others on a line.
CLASS_CHARACTERS = 24
# So many runs have figures of one kind; more would hide the other kinds.
MOST_RUNS = 8


@dataclass(frozen=True)
class _Run:
    """The rows of one run, and what stands behind titles and names of files: "" where there is only one."""

    rows: list[Row]
    title: str = ""
    suffix: str = ""


def _runs(rows: Sequence[Row], what: str, left_out: LeftOut) -> list[_Run]:
    """The rows run by run."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.run_id, []).append(row)
    if len(groups) < 2:
        return [_Run(group) for group in groups.values()]
    if len(groups) > MOST_RUNS:
        reason = f"only the first {MOST_RUNS} of {len(groups)} runs are drawn; choose others with --filter"
        left_out.append((f"{what} of further runs", reason))
    short = unique_names((name or "no run" for name in groups), RUN_CHARACTERS)
    return [
        _Run(group, f", {short[name or 'no run']}", f"-{_slug(short[name or 'no run'])}")
        for name, group in list(groups.items())[:MOST_RUNS]
    ]


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("_.") or "run"


def roofline(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    """Rates of operators under the measured limits of their machine."""
    mine = [r for r in rows if r.phase == PHASE or (r.level == 0 and r.quantity in (*RATES, "bytes"))]
    # Movements of data have no operations, and so a rate of zero.
    zero = ("flop_rate", CACHE)
    unusable = [
        r
        for r in mine
        if r.value is not None and not (is_positive(r.value) or (r.value == 0 and r.quantity in zero))
    ]
    _unusable(unusable, ROOFLINE, left_out)
    for run in _runs(mine, "Rooflines", left_out):
        for page in roofline_pages(run.rows):
            here = [
                r
                for r in run.rows
                if r.phase == PHASE
                or ((r.phase, r.dtype) == (page.phase, page.dtype) and r.quantity in RATES)
            ]
            caption = (
                "Operations per second over operations per byte. Lines are the best measured peak and "
                "bandwidth, dotted their medians; hollow points have data that fit the last-level cache, for "
                "which the bandwidth of the memory is no limit."
            )
            operators = unique_names(p.operator for p in page.points)
            series = unique_names(p.series for p in page.points)
            points = [
                replace(p, operator=operators[p.operator], series=series[p.series]) for p in page.points
            ]
            page = replace(page, points=points, title=short_name(page.title) + run.title)
            show = partial(interactive_models.roofline, points=points, limits=page.limits)
            draw, title = partial(_draw_roofline, page), f"Roofline: {page.title}"
            yield PageFigure(page.name + run.suffix, ROOFLINE, ROOFLINE, title, caption, here, draw, show)


def _draw_roofline(page: Page) -> Drawing:
    points = [replace(p, operator=literal(p.operator), series=literal(p.series)) for p in page.points]
    return draw_roofline(points, page.limits, title=literal(page.title))


def errors(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    """Largest errors of operators as tables of coloured cells."""
    for run in _runs([r for r in rows if belongs(r)], "Errors", left_out):
        pages = list(heatmap_pages(run.rows))
        if len(pages) > MOST_PAGES:
            left_out.append(further(f"errors{run.title}", len(pages)))
        for number, (name, cells) in enumerate(pages[:MOST_PAGES], start=1):
            caption = (
                "Largest relative error against the float64 reference in eps of the type; rounding gives a "
                "few. “wrong” marks errors that rounding does not explain."
            )
            here = rows_of_cells(run.rows, cells)
            names = unique_names((c.name for c in cells), ERROR_CHARACTERS)
            series = unique_names((c.series for c in cells), shorten=columned)
            cells = [replace(c, name=names[c.name], series=series[c.series]) for c in cells]
            title = f"Errors against the float64 reference{run.title}" + numbered(number, len(pages))
            name = f"errors{run.suffix}{name.removeprefix('errors')}"
            draw, show = partial(_draw_heatmap, cells), partial(_show_heatmap, cells=cells)
            yield PageFigure(name, "Heat map of errors", ERRORS, title, caption, here, draw, show)


def _draw_heatmap(cells: Sequence[Cell]) -> Drawing:
    return draw_heatmap([replace(c, name=literal(c.name), series=literal(c.series)) for c in cells])


def _show_heatmap(store: Store, cells: Sequence[Cell]) -> Spec:
    return interactive_models.heatmap(cells)


def scaling(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    """Step time and efficiency over ranks, errors of predictions, and times of messages."""
    mine = [r for r in rows if r.level == 3]
    steps = [r for r in mine if r.quantity.endswith("step_time") and r.value is not None]
    _unusable([r for r in steps if not is_drawn(r)], SCALING, left_out)
    for run in _runs(mine, SCALING, left_out):
        for page in scaling_pages(run.rows):
            study = _short_study(page.study, run.title) if page.study else None
            show: Callable[[Store], Spec] | None = None
            draw: Callable[[], Drawing] = page.draw
            if study and page.scaling:
                title = f"{page.scaling.capitalize()} scaling of {study.title}"
                caption = "Points are measured, lines are predicted by the model of the machine."
                phases: tuple[str, ...] = ("training_step", "limit", "model")
                show = partial(interactive_models.scaling, study=study, kind=page.scaling)
                draw = partial(draw_scaling, study, page.scaling)
            elif study:
                title = f"Predictions for {study.title}"
                caption = "Without the rank count that is predicted."
                phases, draw = ("training_step", "model"), partial(draw_errors, study)
            else:
                title = f"Messages{run.title}"
                caption = "Time of messages and collectives over their size."
                phases = ("message", "collective")
            here = [r for r in run.rows if r.phase in phases]
            if not study:
                nodes = unique_names((r.node for r in here), CLASS_CHARACTERS)
                kinds = unique_names((r.operator for r in here), CLASS_CHARACTERS)
                renamed = [
                    replace(r, node=nodes[r.node], operator=kinds[r.operator])
                    for r in here
                    if r.value is not None
                ]
                draw = partial(draw_network, renamed)
            yield PageFigure(page.name + run.suffix, SCALING, SCALING, title, caption, here, draw, show)


def _short_study(study: Study, run: str) -> Study:
    schemes = unique_names((s.scheme for s in study.series), RUN_CHARACTERS)
    series = [replace(s, scheme=schemes[s.scheme]) for s in study.series]
    return replace(study, title=short_name(study.title) + run, series=series)


def sampling(rows: Sequence[Row], left_out: LeftOut) -> Iterator[PageFigure]:
    """Latencies of batches, of all runs in one figure, and for each run the classes that were drawn."""
    mine = [r for r in rows if r.phase == "sampling"]
    latencies = [r for r in mine if r.quantity == "latency" and r.samples]
    runs = _runs(mine, "Sampling", left_out)
    if latencies:
        known = {id(row): run.title.removeprefix(", ") for run in runs for row in run.rows}
        datasets = unique_names((r.dataset for r in latencies), RUN_CHARACTERS)
        modes = unique_names((r.mode for r in latencies), RUN_CHARACTERS)
        named = [
            replace(
                row,
                dataset=datasets[row.dataset],
                mode=", ".join(filter(None, (modes[row.mode], known[id(row)]))),
            )
            for row in latencies
            if id(row) in known
        ]
        title, draw = "Latency of batches", partial(draw_latencies, named)
        yield PageFigure("sampling-latency", "Sampling", "Data", title, f"{title}.", latencies, draw)
    for run in runs:
        counts = [r for r in run.rows if r.quantity == "label_count"]
        if counts:
            nodes = unique_names((r.node for r in run.rows), CLASS_CHARACTERS)
            named = [
                replace(
                    r,
                    node=nodes[r.node],
                    dataset=short_name(r.dataset, RUN_CHARACTERS),
                    note=short_name(r.note.partition(";")[0], RUN_CHARACTERS),
                )
                for r in run.rows
            ]
            title = f"Classes of the samples{run.title}"
            caption = "How often each class was drawn, against its share in the dataset."
            name, draw = f"sampling-labels{run.suffix}", partial(draw_labels, named)
            yield PageFigure(name, "Sampling", "Data", title, caption, counts, draw)


def _unusable(rows: Sequence[Row], what: str, left_out: LeftOut) -> None:
    """Says how many numbers have no place in the figures."""
    if rows:
        names = ", ".join(dict.fromkeys(row.quantity.replace("_", " ") for row in rows))
        number = f"{len(rows)} number{'s' if len(rows) > 1 else ''}"
        reason = f"zero, negative or not finite ({names}), which a logarithmic axis cannot show"
        left_out.append((f"{what}: {number}", reason))
