"""Tables of other tools: result rows from any CSV file, by a map of its columns.

Nothing is guessed: a value has the unit that the map says, and what is no number is an error.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.report.column_map import (
    EMPTY_CELL,
    SCALED,
    UNITS,
    ColumnMap,
    ValueColumn,
    read_column_map,
)
from meta500.metrics.rows import KINDS, Row, read_bytes
from meta500.metrics.statistics import median_interval

__all__ = ["ColumnMap", "ValueColumn", "read_column_map", "read_foreign", "text_of"]

DELIMITERS = (",", ";", "\t", "|")
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Numbers as tools write them; Python's own reading also takes underscores and digits of other scripts.
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
NOT_FINITE = {"nan": float("nan"), "inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf")}
NAMES_SHOWN = 20


@dataclass(frozen=True)
class _Line:
    """A line of the file: its number, and its cells by column."""

    path: Path
    number: int
    cells: dict[str, str]

    def fault(self, column: str, message: str) -> UserError:
        return UserError(f"{self.path}, line {self.number}, column '{column}': {message}")


def read_foreign(path: str | Path, columns: ColumnMap) -> tuple[list[Row], list[str]]:
    """The rows of another tool's table, and notes on what was left out or put together.

    Lines that agree in all fields but the value are one measurement: their values become its samples, with
    median and interval (see `meta500.metrics.statistics.median_interval`).

    Raises:
        UserError: names file, line and column of what does not fit, and says what would be right.
    """
    file = Path(path)
    header, lines = _table(file, columns)
    groups: dict[Row, list[tuple[_Line, str, Row]]] = {}
    empty: dict[str, int] = {}
    for line in lines:
        for value in columns.value_columns:
            row = _row(line, value, columns)
            if row is None:
                empty[value.column] = empty.get(value.column, 0) + 1
                continue
            # All that is not a number of the measurement itself makes it the same one.
            key = replace(row, value=0.0, samples=(), low=None, high=None, repeats=None)
            groups.setdefault(key, []).append((line, value.column, row))
    rows = [_gathered(group) for group in groups.values()]
    notes = [
        f"{file}: {count} cell{'s' if count > 1 else ''} of column '{column}' without a number left out"
        for column, count in empty.items()
    ]
    if not rows:
        raise UserError(f"{file}: there are no measurements in it" + "".join(f"; {note}" for note in notes))
    return rows, notes + _about_gathering(file, header, columns, list(groups.values()))


def text_of(path: Path, encoding: str = "utf-8", *, lenient: bool = False) -> str:
    """The text of a file, packed by gzip or not, by its byte order mark or in the encoding.

    Args:
        lenient: with marks for bytes that are no text in it.

    Raises:
        UserError: it cannot be read, or is not in this encoding.
    """
    data = read_bytes(path)
    encoding = next((name for mark, name in MARKS if data.startswith(mark)), encoding)
    try:
        return data.decode(encoding, "replace" if lenient else "strict")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: byte {error.start} is no text in {encoding}: say the file's encoding in the map of "
            "columns, such as encoding = 'cp1252'"
        ) from None


def _table(path: Path, columns: ColumnMap) -> tuple[list[str], Iterator[_Line]]:
    """The header, and the lines below it."""
    text = text_of(path, columns.encoding)
    # Line ends of all systems; those inside of quotes stay what they are.
    body = io.StringIO(text, newline="").readlines()[columns.skip :]
    if not any(line.strip() for line in body):
        where = f" after the {columns.skip} lines that are skipped" if columns.skip else ""
        raise UserError(f"{path}: is empty{where}; a line with the names of the columns is expected")
    delimiters = (columns.delimiter,) if columns.delimiter else DELIMITERS
    found: list[list[str]] = []
    faults: list[UserError] = []
    for delimiter in delimiters:
        try:
            names = _header(path, body, delimiter, columns.skip)
        except UserError as fault:
            # Cells in quotes are no CSV with any other delimiter than their own.
            faults.append(fault)
            continue
        found.append(names)
        if all(name in names for name in columns.mapped):
            _check_header(path, names, columns)
            records = _records(path, body, delimiter, columns.skip)
            next(records)
            return names, _lines(path, names, records)
    names = max(found, key=len, default=[])
    if faults and len(names) <= 1:
        raise faults[0]
    missing = next(name for name in columns.mapped if name not in names)
    some = ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")
    hint = "" if columns.skip or len(names) > 1 else "; if lines stand before the header, say skip = N"
    raise UserError(
        f"{path}: there is no column '{missing}', which {columns.name} names; there are: {some}{hint}"
    )


def _header(path: Path, body: Sequence[str], delimiter: str, skipped: int) -> list[str]:
    """The first line with anything in it, with this delimiter.

    Raises:
        UserError: it is no CSV with this delimiter, or there are only empty cells.
    """
    with closing(_records(path, body, delimiter, skipped)) as records:
        first = next(records, None)
    if first is None:
        raise UserError(f"{path}: has only empty cells; a line with the names of the columns is expected")
    return [name.strip() for name in first[1]]


def _check_header(path: Path, names: Sequence[str], columns: ColumnMap) -> None:
    for name in columns.mapped:
        if names.count(name) > 1:
            raise UserError(
                f"{path}: column '{name}' is there {names.count(name)} times; give each a name of its own"
            )


def _records(
    path: Path, body: Sequence[str], delimiter: str, skipped: int
) -> Generator[tuple[int, list[str]], None, None]:
    """Numbers and cells of the lines that are not empty."""
    limit = csv.field_size_limit(sys.maxsize)
    try:
        reader = csv.reader(iter(body), delimiter=delimiter, strict=True)
        number = skipped + 1
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    yield number, cells
                number = skipped + reader.line_num + 1
        except csv.Error as error:
            raise UserError(f"{path}, line {number}: no CSV: {error}") from None
    finally:
        csv.field_size_limit(limit)


def _lines(path: Path, names: Sequence[str], records: Iterator[tuple[int, list[str]]]) -> Iterator[_Line]:
    for number, cells in records:
        # Some tools end each line with a delimiter.
        if len(cells) == len(names) + 1 and not cells[-1].strip():
            cells = cells[:-1]
        if len(cells) != len(names):
            raise UserError(f"{path}, line {number}: {len(cells)} cells, the header has {len(names)}")
        yield _Line(path, number, dict(zip(names, map(str.strip, cells), strict=True)))


def _row(line: _Line, value: ValueColumn, columns: ColumnMap) -> Row | None:
    """The measurement in one column of values; None where the cell is to be left out."""
    text = line.cells[value.column]
    entry: dict[str, Any] = {"value": None, **value.constants}
    for name, column in columns.columns.items():
        if name not in SCALED and name not in value.constants:
            entry[name] = _cell(line, name, column, columns)
    unit = entry["unit"]
    if not unit:
        raise line.fault(columns.columns["unit"], "there is no unit; say for example 'ms'")
    times, per, entry["unit"] = UNITS.get(unit, (1, 1, unit))

    def number(column: str, cell: str) -> float:
        return _number(line, column, cell, columns) * value.factor * times / per

    verdict = columns.words.get(text)
    if text in columns.words or text == EMPTY_CELL:
        if not verdict:
            return None
        entry["verdict"] = verdict
        entry["note"] = entry.get("note") or f"the table says '{text}'"
    elif "samples" in columns.columns:
        entry["samples"] = tuple(number(value.column, part) for part in text.split())
    else:
        entry["value"] = number(value.column, text)
        for name in ("low", "high"):
            if name in columns.columns and (cell := line.cells[columns.columns[name]]):
                entry[name] = number(columns.columns[name], cell)
    if entry.get("samples"):
        entry |= _summary(line, value.column, entry["samples"])
    try:
        return Row(**entry)
    except UserError as error:
        raise UserError(f"{line.path}, line {line.number}: {error}") from None


def _cell(line: _Line, name: str, column: str, columns: ColumnMap) -> Any:
    """A cell as a value of the field."""
    text, kind = line.cells[column], KINDS[name]
    if kind == "str":
        # Without a word on it, nothing was compared.
        return text or ("not_compared" if name == "verdict" else "")
    if not text and kind.endswith("| None"):
        return None
    number = _number(line, column, text, columns)
    if kind.startswith("float"):
        return number
    # Tools that keep all numbers as floating-point ones write 8.0 for a batch of 8.
    if not number.is_integer():
        raise line.fault(column, f"'{text[:60]}' is no whole number, which {name} needs")
    return int(number)


def _number(line: _Line, column: str, text: str, columns: ColumnMap) -> float:
    if text.lower() in NOT_FINITE:
        return NOT_FINITE[text.lower()]
    plain = text
    if columns.thousands:
        mark, decimal = re.escape(columns.thousands), re.escape(columns.decimal)
        if re.fullmatch(rf"[+-]?[0-9]{{1,3}}({mark}[0-9]{{3}})+({decimal}[0-9]*)?", plain):
            plain = plain.replace(columns.thousands, "")
    if columns.decimal == ",":
        # A point would be something else here.
        plain = plain.translate({ord(","): ".", ord("."): ","})
    if NUMBER.fullmatch(plain):
        return float(plain)
    raise line.fault(column, f"'{text[:60]}' is no number{_hint(text, columns)}")


def _hint(text: str, columns: ColumnMap) -> str:
    other = "," if columns.decimal == "." else "."
    if other in text and NUMBER.fullmatch(text.replace(other, ".")):
        return f"; if '{other}' is the decimal mark, say decimal = '{other}' in the map of columns"
    with_unit = re.fullmatch(r"([0-9.,]+) *([^0-9.,\s]+)", text)
    if with_unit:
        return f"; say the unit '{with_unit[2]}' in the map of columns, and leave it out of the cells"
    return f"; if such cells have no result, say [words] '{text[:20]}' = 'failed' in the map of columns"


def _summary(line: _Line, column: str, samples: Sequence[float]) -> dict[str, Any]:
    """Fields of a row with these samples."""
    try:
        found = median_interval(samples)
    except UserError as error:
        raise line.fault(
            column, f"{error}; leave such lines out, or give a word for them in [words]"
        ) from None
    ends = {"low": found.low, "high": found.high, "confidence": found.confidence} if len(samples) > 1 else {}
    return {"value": found.value, "repeats": len(samples), **ends}


def _gathered(group: Sequence[tuple[_Line, str, Row]]) -> Row:
    """One row for all lines of the same measurement."""
    line, column, row = group[0]
    if len(group) == 1:
        return row
    for _, _, found in group:
        if _has_interval(found):
            raise group[1][0].fault(
                column,
                f"the same measurement is in line {line.number}, and intervals of several cannot be put "
                "together: say in what the lines differ, such as seed = COLUMN, or leave low and high out",
            )
    samples = tuple(x for _, _, r in group for x in (r.samples or (r.value,)) if x is not None)
    if not samples:
        return row
    return replace(row, samples=samples, **_summary(group[-1][0], column, samples))


def _has_interval(row: Row) -> bool:
    """Whether the table itself gave an interval."""
    return not row.samples and (row.low is not None or row.high is not None)


def _about_gathering(
    path: Path, header: Sequence[str], columns: ColumnMap, groups: Sequence[Sequence[Any]]
) -> list[str]:
    """What a reader must know where several lines are one measurement."""
    several = sum(len(group) > 1 for group in groups)
    unused = [name for name in header if name not in columns.mapped]
    if not several:
        return []
    note = f"{path}: lines that agree in all columns of the map are the samples of one measurement"
    some = ", ".join(unused[:NAMES_SHOWN]) + (" ..." if len(unused) > NAMES_SHOWN else "")
    rest = f"; not used are the columns {some}" if unused else ""
    return [f"{note} ({several} of {len(groups)} have several){rest}"]
