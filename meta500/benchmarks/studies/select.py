"""Finding rows by their columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meta500.metrics.rows import KINDS, Row


def select(rows: Iterable[Row], **columns: Any) -> list[Row]:
    """The rows in which every named column has the given value, or one of the values of a set.

    Raises:
        KeyError: there is no such column.
    """
    for name in columns:
        KINDS[name]
    return [row for row in rows if all(_matches(getattr(row, n), wanted) for n, wanted in columns.items())]


def one(rows: Iterable[Row], **columns: Any) -> Row | None:
    """The last row that `select` finds and that has a value; None if there is none."""
    found = [row for row in select(rows, **columns) if row.value is not None]
    return found[-1] if found else None


def unique(rows: Iterable[Row], column: str) -> list[Any]:
    """The values of a column, each once, in order of appearance; "" and None are left out."""
    found = dict.fromkeys(getattr(row, column) for row in rows)
    return [value for value in found if value not in ("", None)]


def _matches(value: Any, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, set | frozenset) else value == wanted
