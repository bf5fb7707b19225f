"""All tables of a report: every row of the sources is in one of them, or counted where it is not."""

from __future__ import annotations

from collections.abc import Sequence

from meta500.metrics.report.cells import Cell, Column, DataTable
from meta500.metrics.report.sources import Source

__all__ = ["Cell", "Column", "DataTable", "tables_of"]


def tables_of(sources: Sequence[Source]) -> list[DataTable]:
    """The tables of the sources."""
    rows = tuple(
        (Cell(source.name), Cell(f"{len(source.rows)}", float(len(source.rows))), Cell(source.command))
        for source in sources
    )
    return [DataTable("runs", "Runs", (Column("run"), Column("rows", numeric=True), Column("command")), rows)]
