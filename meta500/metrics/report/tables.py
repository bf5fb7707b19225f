"""All tables of a report: every row of the sources is in one of them, and the last one counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meta500.metrics.plots.from_rows import is_on_curve
from meta500.metrics.report.cells import (
    Cell,
    Column,
    DataTable,
    named,
    number_cell,
    slug,
    without_empty,
    words,
)
from meta500.metrics.report.measured import LEVELS, Shown, is_total, measured_tables, spaced, totals_table
from meta500.metrics.report.scaling import scaling_table
from meta500.metrics.report.sources import Source, rows_named_after
from meta500.metrics.report.training import curves_table, training_runs, training_table
from meta500.metrics.report.verdicts import ERRORS, errors_tables, refused_table
from meta500.metrics.rows import VERDICTS, Row

__all__ = ["Cell", "Column", "DataTable", "tables_of"]


def tables_of(sources: Sequence[Source]) -> list[DataTable]:
    """The tables of the sources: runs, training, measurements, scaling, errors, refusals, and the contents.

    Every row is in a table: a measurement as a number or a word for it, a point of a training curve by the
    ends of its curve. "contents", the last table, counts the rows of each kind and names the tables that show
    them. Where there are several sources, their names tell measurements apart that are otherwise the same.
    """
    if len(sources) > 1:
        sources = [replace(source, rows=tuple(rows_named_after(source))) for source in sources]
    rows = [row for source in sources for row in source.rows]
    shown = [*_training(sources, rows)]
    scaling = scaling_table(sources)
    in_scaling = {id(row) for row in scaling.rows} if scaling else set()
    rest = [
        row
        for row in rows
        if not (is_on_curve(row) or is_total(row) or row.quantity in ERRORS or id(row) in in_scaling)
    ]
    shown += measured_tables(rest)
    shown += [part for part in (scaling, *errors_tables(rows), refused_table(rows)) if part is not None]
    shown = _distinct(shown)
    contents = [_contents(rows, shown)] if rows else []
    return [_runs_table(sources), *(part.table for part in shown), *contents]


def _training(sources: Sequence[Source], rows: Sequence[Row]) -> list[Shown]:
    shown = []
    if runs := training_runs(sources):
        points = [row for run in runs for row in run.rows]
        shown += [Shown(training_table(runs), points), Shown(curves_table(runs), points)]
    if totals := [row for row in rows if is_total(row)]:
        shown.append(Shown(totals_table(totals), totals))
    return shown


def _runs_table(sources: Sequence[Source]) -> DataTable:
    lines = []
    verdicts_there = [v for v in VERDICTS if any(row.verdict == v for s in sources for row in s.rows)]
    for source in sources:
        info: dict[str, Any] = dict(source.info or {})
        environment = info.get("environment") or {}
        verdicts = Counter(row.verdict for row in source.rows)
        graphics = [str(g.get("name", "")) for g in environment.get("gpus") or [] if isinstance(g, dict)]
        machine = [str((environment.get("cpu") or {}).get("model") or ""), *graphics]
        lines.append(
            (
                *words(source.name, info.get("status", ""), info.get("started") or ""),
                *words(", ".join(filter(None, machine))),
                *words((environment.get("versions") or {}).get("meta500") or ""),
                number_cell(len(source.rows)),
                *(number_cell(verdicts[verdict]) for verdict in verdicts_there),
                *words(source.command),
            )
        )
    counts = ("rows", *map(spaced, verdicts_there))
    heads = (
        *named("run", "status", "started", "machine", "meta500"),
        *(Column(name, numeric=True) for name in counts),
        Column("command"),
    )
    columns, kept = without_empty(heads, lines)
    notes = [problem for source in sources for problem in source.problems]
    return DataTable("runs", "Runs", columns, kept, "; ".join(notes))


def _distinct(shown: Sequence[Shown]) -> list[Shown]:
    """Keys that two tables share are numbered."""
    counts: Counter[str] = Counter()
    result = []
    taken = {part.table.key for part in shown}
    for part in shown:
        key = part.table.key
        counts[key] += 1
        number = counts[key]
        if number > 1:
            while slug(key, number) in taken:
                number += 1
            taken.add(slug(key, number))
            part = replace(part, table=replace(part.table, key=slug(key, number)))
        result.append(part)
    return result


def _contents(rows: Sequence[Row], shown: Sequence[Shown]) -> DataTable:
    """How many rows there are of each kind, and where they are."""
    places: dict[int, list[str]] = {}
    for part in shown:
        for row in part.rows:
            places.setdefault(id(row), []).append(part.table.title)
    groups: dict[tuple[int, str, str, str], int] = {}
    for row in rows:
        where = "; ".join(dict.fromkeys(places.get(id(row), ["not shown"])))
        key = (row.level, row.phase, row.quantity, where)
        groups[key] = groups.get(key, 0) + 1
    lines = tuple(
        (
            *words(LEVELS[level], spaced(phase), spaced(quantity)),
            number_cell(count),
            *words(where),
        )
        for (level, phase, quantity, where), count in groups.items()
    )
    heads = (*named("level", "phase", "quantity"), Column("rows", numeric=True), Column("in the tables"))
    return DataTable("contents", "Where the rows are", heads, lines, f"{len(rows)} rows in all.")
