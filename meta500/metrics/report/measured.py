"""Tables of measurements: what was measured by who ran it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meta500.metrics.plots.from_rows import WHAT, WHO, aspect_of, field_word, telling_fields
from meta500.metrics.report.cells import (
    Cell,
    Column,
    DataTable,
    named,
    number_cell,
    slug,
    unit_for,
    without_empty,
    words,
)
from meta500.metrics.rows import NO_VALUE_VERDICTS, Row

LEVELS = ("operators", "networks", "training", "distributed training")
# With more than these, and with more holes than numbers, who ran it stands in lines, not in columns.
MOST_COLUMNS = 6
# Quantities in the order in which a reader wants them; all others come after them.
ORDER = (
    "time", "ratio", "speedup", "throughput", "bandwidth", "first_call", "peak_memory", "planned_memory",
)  # fmt: skip
# Groups of fewer rows, of quantities not named above, are put together in one table.
FEW = 4
REPEATED = "Lines with the same names are further measurements of the same."


@dataclass(frozen=True)
class Shown:
    """A table, and the rows that it shows (or counts, as those of a curve)."""

    table: DataTable
    rows: Sequence[Row]


def measured_tables(rows: Sequence[Row]) -> list[Shown]:
    """A table per quantity, unit, level, phase, aspect of the protocol, and baseline.

    Few numbers of one phase are in a table together.

    Args:
        rows: with the name of their source as ``run_id``.
    """
    groups: dict[tuple[str, int, str, str, str, str], list[Row]] = {}
    for row in rows:
        key = (row.quantity, row.level, row.phase, _aspect(row), row.unit, row.baseline)
        groups.setdefault(key, []).append(row)
    few: dict[tuple[int, str], list[Row]] = {}
    shown = []
    for found, group in sorted(groups.items(), key=lambda entry: _place(*entry[0][:2])):
        quantity, level, phase, *_ = found
        if quantity in ORDER or len(group) >= FEW:
            shown.append(Shown(_table_of(group), group))
        else:
            few.setdefault((level, phase), []).extend(group)
    shown += [Shown(_further(group), group) for group in few.values()]
    return shown


def totals_table(rows: Sequence[Row]) -> DataTable:
    """Quantities of whole training runs: one line per run, one column per quantity."""
    what, who = (telling_fields(rows, fields, ()) for fields in (WHAT, WHO))
    fields = ["run_id", *(name for name in (*what, *who) if name != "run_id")]
    columns = list(dict.fromkeys((row.quantity, row.unit) for row in rows))
    scales = [unit_for(u, (r.value for r in rows if (r.quantity, r.unit) == (q, u))) for q, u in columns]
    lines: dict[tuple[tuple[str, ...], int], dict[tuple[str, str], Row]] = {}
    # How often a cell is filled already: the same measured again stands in another line.
    taken: Counter[tuple[tuple[str, ...], tuple[str, str]]] = Counter()
    for row in rows:
        names = tuple(field_text(row, name) for name in fields)
        column = (row.quantity, row.unit)
        lines.setdefault((names, taken[names, column]), {})[column] = row
        taken[names, column] += 1
    heads = [Column("run"), *(Column(spaced(name)) for name in fields[1:])]
    heads += [
        Column(spaced(quantity), unit, True) for (quantity, _), (_, unit) in zip(columns, scales, strict=True)
    ]
    cells = [
        [
            *words(*names),
            *(_result(line.get(column), factor) for column, (factor, _) in zip(columns, scales, strict=True)),
        ]
        for (names, _), line in lines.items()
    ]
    kept, kept_rows = without_empty(heads, cells)
    return DataTable("training-totals", "Training runs: totals", kept, kept_rows, note_of(rows, fields))


def is_total(row: Row) -> bool:
    """Whether the row is a quantity of a whole training run."""
    return row.level >= 2 and row.phase == "run"


def _aspect(row: Row) -> str:
    """What the protocol of a time, a ratio or the like is about, such as "overhead"."""
    return aspect_of(row) if row.quantity in ORDER else ""


def _place(quantity: str, level: int) -> tuple[int, int]:
    return (ORDER.index(quantity) if quantity in ORDER else len(ORDER), level)


def _table_of(rows: Sequence[Row]) -> DataTable:
    """Lines are what was measured; columns who ran it, where these are few, or one of values."""
    first = rows[0]
    quantity, phase, aspect = spaced(first.quantity), spaced(first.phase), _aspect(first)
    name = quantity + (f" to {first.baseline}" if first.baseline else "")
    title = f"{LEVELS[first.level].capitalize()}: {', '.join(filter(None, (phase, aspect, name)))}"
    key = slug(first.quantity, first.level, first.phase, aspect, first.baseline)
    factor, unit = unit_for(first.unit, (row.value for row in rows))
    what = _columns_of(rows)
    who = telling_fields(rows, WHO, ("backend", "mode"))
    series = who_ran(rows)
    names = list(dict.fromkeys(series))
    lines: dict[tuple[tuple[str, ...], int], dict[str, Row]] = {}
    taken: Counter[tuple[tuple[str, ...], str]] = Counter()
    for row, column in zip(rows, series, strict=True):
        words_of = tuple(field_text(row, name) for name in what)
        lines.setdefault((words_of, taken[words_of, column]), {})[column] = row
        taken[words_of, column] += 1
    note = note_of(rows, (*what, *who))
    if any(number for _, number in lines):
        note = f"{note} {REPEATED}".strip()
    heads = [Column(spaced(name)) for name in what]
    if len(names) <= MOST_COLUMNS and 2 * len(rows) >= len(lines) * len(names):
        # A single number needs no name of who ran it in its heading, but there must be a heading.
        columns = (*heads, *(Column(name or quantity, unit, True) for name in names))
        cells = [
            (*words(*key), *(_result(line.get(name), factor) for name in names))
            for (key, _), line in lines.items()
        ]
        return DataTable(key, title, columns, tuple(cells), note)
    long = [
        (*words(*(field_text(row, name) for name in what), column), _result(row, factor))
        for row, column in zip(rows, series, strict=True)
    ]
    return DataTable(key, title, (*heads, Column("by"), Column(quantity, unit, True)), tuple(long), note)


def _further(rows: Sequence[Row]) -> DataTable:
    """Several quantities of one phase, of few rows each, with the unit in a column of its own."""
    first = rows[0]
    what, who = _differing(rows), telling_fields(rows, WHO, ())
    cells = []
    for row in rows:
        factor, unit = unit_for(row.unit, (row.value,))
        cells.append(
            (
                *words(spaced(row.quantity)),
                *words(*(field_text(row, name) for name in (*what, *who)), row.baseline),
                _result(row, factor),
                Cell(unit),
            )
        )
    heads = (Column("quantity"), *named(*map(spaced, (*what, *who)), "relative to"))
    columns, kept = without_empty((*heads, Column("value", numeric=True), Column("unit")), cells)
    phase = spaced(first.phase)
    title = f"{LEVELS[first.level].capitalize()}: {f'{phase}, ' if phase else ''}further quantities"
    key = slug("further", first.level, first.phase)
    return DataTable(key, title, columns, kept, note_of(rows, (*what, *who)))


def _result(row: Row | None, factor: float) -> Cell:
    """The number of a row, or the word that stands for it; a wrong result's number is not to be used."""
    if row is None:
        return Cell()
    if row.verdict in ("wrong", *NO_VALUE_VERDICTS):
        return Cell(row.verdict)
    return number_cell(row.value, row.low, row.high, factor)


def _columns_of(rows: Sequence[Row]) -> list[str]:
    """Fields of what was measured that differ, or one that is known where none does."""
    known = [name for name in WHAT if field_word(rows[0], name)]
    return _differing(rows) or known[:1] or ["model"]


def _differing(rows: Sequence[Row]) -> list[str]:
    """Fields of what was measured in which rows differ, as many as tell them apart."""
    fields = telling_fields(rows, WHAT, ("model", "node", "operator"))
    return [name for name in fields if len({field_word(row, name) for row in rows}) > 1]


def who_ran(rows: Sequence[Row], without: Sequence[str] = ()) -> list[str]:
    """Who ran each row: its backend and mode, and as much else ``without`` these as tells rows apart."""
    fields = [name for name in telling_fields(rows, WHO, ("backend", "mode")) if name not in without]
    return [" ".join(filter(None, (in_words(row, name) for name in fields))) for row in rows]


def note_of(rows: Sequence[Row], shown: Iterable[str], *, median: bool = True) -> str:
    """What all rows share and the table does not show, and what the numbers are."""
    shared = []
    for name in (*WHAT, *WHO):
        alike = len({getattr(row, name) for row in rows}) == 1
        if alike and name not in ("run_id", "version") and name not in shown:
            shared.append(in_words(rows[0], name))
    sentences = [f"in all lines: {', '.join(filter(None, shared))}"] if any(shared) else []
    counts = sorted({len(row.samples) for row in rows if len(row.samples) > 1})
    levels = sorted(
        {
            round(100 * row.confidence)
            for row in rows
            if row.confidence is not None and row.low is not None and row.low != row.high
        }
    )
    if median and counts:
        sentences.append(f"medians of {_range(counts)} samples")
    if median and levels:
        sentences.append(f"in brackets the {_range(levels)} % confidence interval")
    text = "; ".join(sentences)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def field_text(row: Row, name: str) -> str:
    """A field's value as it stands in a column of its own; "" where it says nothing new."""
    value = getattr(row, name)
    return str(value) if value is not None and field_word(row, name) else ""


def in_words(row: Row, name: str) -> str:
    """A field's value among others: numbers with the name of the field, names as they are."""
    value = getattr(row, name)
    return value if isinstance(value, str) else field_word(row, name)


def spaced(name: str) -> str:
    """A field or quantity as people write it."""
    return name.replace("_", " ")
