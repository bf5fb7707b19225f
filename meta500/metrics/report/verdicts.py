"""Tables of verdicts: errors against the reference, and what has no result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meta500.metrics.matching import fault
from meta500.metrics.plots.from_rows import WHAT, telling_fields
from meta500.metrics.report.cells import (
    Cell,
    Column,
    DataTable,
    named,
    number_cell,
    plain_number,
    slug,
    without_empty,
    words,
)
from meta500.metrics.report.measured import LEVELS, Shown, field_text, note_of, spaced, who_ran
from meta500.metrics.rows import NO_VALUE_VERDICTS, Row

DISTANCES = (
    "error", "gradient_error", "max_absolute", "mean_absolute", "max_relative", "mean_relative", "l1",
    "l2_relative", "ulp", "mismatched",
)  # fmt: skip
# Quantities that have no table of measurements, since the table of errors has all of them. A "verdict" is 1
# or 0, which its word says too.
ERRORS = (*DISTANCES, "verdict")
# Fields of who ran it that every line tells, or that say nothing about an error.
TOLD = ("backend", "mode", "protocol")
# Norms that tolerances are given in.
JUDGED = ("max_relative", "relative", "")


class _Error(NamedTuple):
    """A line of the table of errors; rows that say the same are one."""

    what: tuple[str, ...]
    phase: str
    who: str
    against: str
    norm: str
    unit: str
    error: float | None
    tolerance: float | None
    verdict: str


def errors_tables(rows: Sequence[Row]) -> list[Shown]:
    """Errors against the reference with their tolerances and verdicts, a table per level.

    Args:
        rows: with the name of their source as ``run_id``. Rows of other quantities, such as times, have their
            error here too, in one line where several agree in it.
    """
    return [
        Shown(_errors_table(level, group), [row for row in group if row.quantity in ERRORS])
        for level in range(len(LEVELS))
        if (group := [row for row in rows if row.level == level and _has_error(row)])
    ]


def refused_table(rows: Sequence[Row]) -> Shown | None:
    """What has no result, with the reason."""
    refused = [row for row in rows if row.verdict in NO_VALUE_VERDICTS]
    if not refused:
        return None
    what = telling_fields(refused, WHAT, ("model", "node", "operator"))
    counts: dict[tuple[str, ...], int] = {}
    for row, who in zip(refused, who_ran(refused), strict=True):
        key = (
            LEVELS[row.level],
            *(field_text(row, name) for name in what),
            who,
            row.phase,
            row.verdict,
            row.note or "no reason is given",
        )
        counts[key] = counts.get(key, 0) + 1
    heads = [
        *named("level", *map(spaced, what), "by", "phase", "verdict", "reason"),
        Column("rows", numeric=True),
    ]
    cells = [(*words(*key), number_cell(count)) for key, count in counts.items()]
    columns, kept = without_empty(heads, cells)
    return Shown(DataTable("no-results", "Unsupported and failed", columns, kept), refused)


def _errors_table(level: int, rows: Sequence[Row]) -> DataTable:
    what = telling_fields(rows, WHAT, ("model", "node", "operator"))
    # How it was timed says nothing about an error.
    names = who_ran(rows, without=TOLD[2:])
    lines = dict.fromkeys(_error(row, what, who) for row, who in zip(rows, names, strict=True))
    cells = []
    for line in lines:
        judged = line.error is not None and line.tolerance and line.norm in JUDGED
        share = line.error / line.tolerance if judged else None  # type: ignore[operator]
        cells.append(
            (
                *words(*line.what, line.phase, line.who, line.against, spaced(line.norm), line.unit),
                *(_few_digits(x) for x in (line.error, line.tolerance, share)),
                Cell(line.verdict),
            )
        )
    heads = [
        *named(*map(spaced, what), "phase", "by", "against", "norm", "unit"),
        *(Column(name, numeric=True) for name in ("error", "tolerance", "error / tolerance")),
        Column("verdict"),
    ]
    columns, kept = without_empty(heads, cells)
    title = f"{LEVELS[level].capitalize()}: errors and verdicts"
    return DataTable(slug("errors", level), title, columns, kept, note_of(rows, (*what, *TOLD), median=False))


def _error(row: Row, what: Sequence[str], who: str) -> _Error:
    is_distance = row.quantity in DISTANCES
    named_by_quantity = is_distance and row.quantity not in ("error", "gradient_error")
    return _Error(
        what=tuple(field_text(row, name) for name in what),
        phase=spaced(row.phase),
        who=who,
        against=row.baseline if row.quantity == "error" else "",
        norm=row.quantity if named_by_quantity else row.error_norm,
        unit=row.unit if is_distance and row.unit != "1" else "",
        error=row.value if is_distance else row.error,
        tolerance=row.tolerance,
        verdict=spaced(fault(row) or row.verdict),
    )


def _has_error(row: Row) -> bool:
    judged = row.error is not None or row.verdict in ("ok", "wrong") or row.quantity in ERRORS
    return judged and row.verdict not in NO_VALUE_VERDICTS


def _few_digits(value: float | None) -> Cell:
    return Cell() if value is None else Cell(plain_number(value, 2), value)
