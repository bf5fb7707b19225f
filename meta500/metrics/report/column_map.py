"""Maps of columns: which column of another tool's table is which field of a result row, in what unit."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta500.errors import UserError, choose
from meta500.metrics.rows import KINDS, NO_VALUE_VERDICTS

# From a unit to (times, per, unit of result rows): a number in it times the first and divided by the second
# is in the third. Divided, since 9 / 1000 is the number 0.009 and 9 * 0.001 is not. Others are kept.
UNITS: dict[str, tuple[float, float, str]] = {
    "ns": (1, 1e9, "s"), "us": (1, 1e6, "s"), "µs": (1, 1e6, "s"), "ms": (1, 1e3, "s"), "s": (1, 1, "s"),
    "min": (60, 1, "s"), "h": (3600, 1, "s"),
    "B": (1, 1, "B"), "kB": (1e3, 1, "B"), "MB": (1e6, 1, "B"), "GB": (1e9, 1, "B"), "TB": (1e12, 1, "B"),
    "KiB": (2**10, 1, "B"), "MiB": (2**20, 1, "B"), "GiB": (2**30, 1, "B"), "TiB": (2**40, 1, "B"),
    "%": (1, 100, "1"), "1": (1, 1, "1"),
}  # fmt: skip
# Fields whose numbers have the unit of the value.
SCALED = ("value", "samples", "low", "high")
# Fields that a table of another tool cannot say, since they follow from its rows.
DERIVED = ("run_id", "repeats")
FIELDS = tuple(name for name in KINDS if name not in DERIVED)
EMPTY_CELL = ""
OPTIONS = ("delimiter", "decimal", "thousands", "encoding", "skip")
TABLES = ("columns", "constants", "words", "values")


@dataclass(frozen=True)
class ValueColumn:
    """A column of values of a wide table.

    Attributes:
        column: its name in the file.
        constants: what is measured in it, by field, such as {"backend": "torch", "unit": "ms"}.
        factor: what its numbers are multiplied with before they are in ``constants["unit"]``.
    """

    column: str
    constants: Mapping[str, Any] = field(default_factory=dict)
    factor: float = 1.0


@dataclass(frozen=True)
class ColumnMap:
    """What the columns of another tool's table are.

    Attributes:
        columns: from a field of `meta500.metrics.rows.Row` to the column that holds it.
        constants: from a field to the value that it has in all rows.
        values: the columns of values of a wide table, each with constants of its own.
        factor: what values are multiplied with before they are in the unit.
        words: from a text that stands in place of a number to the verdict it means, or to "" where such a
            cell is to be left out; empty cells always are, unless they are given here.
        delimiter: between cells; "" means that of comma, semicolon, tab and bar with which the columns are
            found.
        decimal, thousands: of numbers, such as "," and "."; ``thousands`` "" means there is none.
        encoding: of a file without a byte order mark.
        skip: lines before the header.
        name: where the map is from, for messages.

    Raises:
        UserError: an unknown field or verdict, no values, or no unit, level or quantity for them.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    values: tuple[ValueColumn, ...] = ()
    factor: float = 1.0
    words: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ""
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    skip: int = 0
    name: str = "the map of columns"

    def __post_init__(self) -> None:
        try:
            self._check()
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None

    def _check(self) -> None:
        for name in (*self.columns, *self.constants, *(n for v in self.values for n in v.constants)):
            choose("field of result rows", name, FIELDS)
        for name, value in (*self.constants.items(), *(p for v in self.values for p in v.constants.items())):
            _check_constant(name, value)
        for name in self.columns:
            if name in self.constants:
                raise UserError(f"'{name}' is both the column '{self.columns[name]}' and a constant")
        for factor in (self.factor, *(value.factor for value in self.values)):
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
                raise UserError(f"factor {factor!r}: a positive number is expected, such as 0.001")
        for text, verdict in self.words.items():
            if verdict not in (*NO_VALUE_VERDICTS, ""):
                raise UserError(
                    f"words: '{text}' = {verdict!r}: say {' or '.join(map(repr, NO_VALUE_VERDICTS))}, or '' "
                    "to leave such cells out"
                )
        _check_format(self)
        one = [name for name in ("value", "samples") if name in self.columns]
        if len(one) + bool(self.values) != 1:
            raise UserError(
                "say where the values are: one of value = COLUMN and samples = COLUMN in [columns], or a "
                f"[[values]] for each of several columns; found {', '.join(one) or 'none'}"
                + (" and [[values]]" if one and self.values else "")
            )
        if "samples" in self.columns and self.thousands == " ":
            raise UserError(
                "thousands ' ': blanks stand between the numbers of samples = COLUMN already; give each "
                "sample a line of its own with value = COLUMN, or write the numbers without blanks in them"
            )
        for value in self.values or (ValueColumn(self.columns[one[0]]),):
            known = {*self.columns, *self.constants, *value.constants}
            where = f"values column '{value.column}'"
            if "unit" not in known:
                raise UserError(
                    f"{where} has no unit: say for example unit = 'ms' (known and converted are "
                    f"{', '.join(UNITS)}; others are kept as they are)"
                )
            for name, example in (
                ("level", "1 (0 operators, 1 networks, 2 training)"),
                ("quantity", "'time'"),
            ):
                if name not in known:
                    raise UserError(f"{where} has no {name}: say for example {name} = {example}")

    @property
    def value_columns(self) -> tuple[ValueColumn, ...]:
        """All columns of values, also where there is only one."""
        if self.values:
            return tuple(
                ValueColumn(v.column, {**self.constants, **v.constants}, v.factor * self.factor)
                for v in self.values
            )
        column = self.columns.get("value", self.columns.get("samples", ""))
        return (ValueColumn(column, self.constants, self.factor),)

    @property
    def mapped(self) -> tuple[str, ...]:
        """All columns of the file that the map names, each once."""
        return tuple(dict.fromkeys([*self.columns.values(), *(v.column for v in self.values)]))


def read_column_map(path: str | Path | None, pairs: Sequence[str] = ()) -> ColumnMap:
    """A map from a TOML file, from ``field=column`` pairs, or from both, where the pairs count more.

    A file has the options of `ColumnMap` and the tables [columns], [constants], [words] and [[values]];
    an entry of [[values]] has ``column``, ``unit``, maybe ``factor``, and any fields. In a pair,
    ``field==value`` is a constant, and ``factor==0.001`` and the like are options.

    Raises:
        UserError: names what is unreadable, unknown or missing in the file or the pair.
    """
    entries = _parsed(Path(path)) if path is not None else {}
    source = str(path) if path is not None else "the map of columns"
    unknown = [key for key in entries if key not in (*OPTIONS, *TABLES, "factor")]
    if unknown:
        raise UserError(
            f"{source}: '{unknown[0]}' is unknown: there are the options {', '.join((*OPTIONS, 'factor'))} "
            f"and the tables {', '.join(TABLES)}"
        )
    for key in TABLES[:3]:
        if not isinstance(entries.get(key, {}), dict):
            raise UserError(f"{source}: '{key}' must be a table, such as [{key}]")
    columns, constants = dict(entries.get("columns", {})), dict(entries.get("constants", {}))
    for name, column in columns.items():
        if not isinstance(column, str):
            raise UserError(f"{source}: columns: {name} = {column!r}: the name of a column is expected")
    options = {key: entries[key] for key in (*OPTIONS, "factor", "words") if key in entries}
    for pair in pairs:
        _add_pair(pair, columns, constants, options)
    values = tuple(_value_column(source, entry) for entry in _entries(source, entries.get("values", [])))
    return ColumnMap(columns=columns, constants=constants, values=values, name=source, **options)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: is no TOML: {error}") from None


def _entries(source: str, values: Any) -> list[dict[str, Any]]:
    if not isinstance(values, list) or not all(isinstance(entry, dict) for entry in values):
        raise UserError(f"{source}: 'values' must be a list of tables, each with the header [[values]]")
    return values


def _value_column(source: str, entry: dict[str, Any]) -> ValueColumn:
    rest = dict(entry)
    column, factor = rest.pop("column", None), rest.pop("factor", 1.0)
    if not isinstance(column, str):
        raise UserError(f"{source}: an entry of [[values]] has no column: say column = 'its name'")
    return ValueColumn(column, rest, factor)


def _add_pair(pair: str, columns: dict[str, str], constants: dict[str, Any], options: dict[str, Any]) -> None:
    name, equals, rest = pair.partition("=")
    name = name.strip()
    if not equals or not name or rest in ("", "="):
        raise UserError(
            f"--column {pair!r}: say field=column, such as value=time_ms, or field==constant, such as "
            "unit==ms"
        )
    constant = rest.startswith("=")
    if name in (*OPTIONS, "factor") and constant:
        options[name] = _number_of(pair, rest[1:], int if name == "skip" else float) if name in (
            "skip", "factor") else rest[1:]  # fmt: skip
        return
    choose("field of result rows", name, FIELDS)
    if not constant:
        constants.pop(name, None)
        columns[name] = rest
        return
    columns.pop(name, None)
    kind = KINDS[name][0]
    constants[name] = rest[1:] if kind == "s" else _number_of(pair, rest[1:], int if kind == "i" else float)


def _number_of(pair: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError:
        word = "whole number" if kind is int else "number"
        raise UserError(f"--column {pair!r}: '{text}' is no {word}") from None


def _check_constant(name: str, value: Any) -> None:
    kind = KINDS[name]
    if name in SCALED:
        raise UserError(f"'{name}' cannot be a constant: name its column")
    fits = {
        "s": isinstance(value, str),
        "i": isinstance(value, int) and not isinstance(value, bool),
        "f": isinstance(value, int | float) and not isinstance(value, bool),
    }
    if not fits[kind[0]]:
        word = {"s": "text in quotes", "i": "whole number", "f": "number"}[kind[0]]
        raise UserError(f"{name} = {value!r}: a {word} is expected")


def _check_format(found: ColumnMap) -> None:
    if found.decimal not in (".", ","):
        raise UserError(f"decimal {found.decimal!r}: say '.' or ','")
    if found.thousands not in ("", ".", ",", " ", "'") or found.thousands == found.decimal:
        raise UserError(
            f"thousands {found.thousands!r}: say one of '.', ',', ' ' and \"'\" that is not the decimal mark"
        )
    if not isinstance(found.delimiter, str) or len(found.delimiter) > 1:
        raise UserError(f"delimiter {found.delimiter!r}: one character is expected, such as ';' or '\\t'")
    if isinstance(found.skip, bool) or not isinstance(found.skip, int) or found.skip < 0:
        raise UserError(f"skip {found.skip!r}: the number of lines before the header is expected")
    try:
        "".encode(found.encoding)
    except (LookupError, TypeError):
        raise UserError(
            f"encoding {found.encoding!r} is unknown: say for example 'utf-8', 'utf-16' or 'cp1252'"
        ) from None
