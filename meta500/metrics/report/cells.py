"""Tables of measurements: columns with units, and cells with a text to read and the numbers behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meta500.errors import UserError


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: its heading.
        unit: of all its numbers, also of ``Cell.value``; "" for words and pure numbers.
        numeric: whether it holds numbers, which stand right.
    """

    name: str
    unit: str = ""
    numeric: bool = False

    @property
    def heading(self) -> str:
        """Name and unit: "time (ms)"."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Cell:
    """What stands in a cell.

    Attributes:
        text: with as many digits as the interval justifies, such as "1.23 [1.20, 1.31]"; "" where nothing is.
        value: for sorting, in the column's unit; None where there is no number.
        low, high: ends of its interval; None without one.
    """

    text: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class DataTable:
    """A table.

    Attributes:
        key: lower-case words joined by hyphens, unique among the tables made together: for file names, labels
            and anchors.
        title: what it shows.
        columns: their names and units.
        rows: cells, as many as columns.
        note: what all rows share, and how to read the numbers.

    Raises:
        UserError: a row with another number of cells.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise UserError(
                    f"table '{self.title}': a row has {len(row)} cells, there are {len(self.columns)} columns"
                )


def words(*texts: object) -> tuple[Cell, ...]:
    """Cells of words."""
    return tuple(Cell(str(text)) for text in texts)


def named(*names: str) -> Sequence[Column]:
    """Columns of words."""
    return tuple(map(Column, names))
