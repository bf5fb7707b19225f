"""What a report consists of: sections with paragraphs, tables, figures and findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meta500.errors import UserError
from meta500.metrics.report.findings import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Paragraph:
    """Plain text."""

    text: str


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        title: above it.
        columns: their names.
        rows: cells, as many as columns.
        left: how many columns, from the first one, hold words; the others hold numbers and stand right.
        note: below it.

    Raises:
        UserError: a row with another number of cells.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    note: str = ""

    def __post_init__(self) -> None:
        check_cells(self.title, self.columns, self.rows)


def check_cells(title: str, columns: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    """Refuse a table with a row that has another number of cells than there are columns.

    Raises:
        UserError: see above.
    """
    for row in rows:
        if len(row) != len(columns):
            raise UserError(f"table '{title}': a row has {len(row)} cells, there are {len(columns)} columns")


@dataclass(frozen=True)
class Figure:
    """A drawing.

    Attributes:
        name: of its files in plots/, without suffix: lower-case words joined by hyphens.
        caption: what it shows, how, and which figure of the paper it corresponds to.
        draw: makes it; called when the report is written.
    """

    name: str
    caption: str
    draw: Callable[[], Drawing]


@dataclass(frozen=True)
class Findings:
    """Findings, in the order in which they matter."""

    findings: Sequence[Finding]


Part = Paragraph | Table | Figure | Findings


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: Sequence[Part] = field(default=())
