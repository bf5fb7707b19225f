"""Training records as a CSV file."""

from __future__ import annotations

from meta500.metrics.events import RunState
from meta500.metrics.rows import csv_line
from meta500.metrics.tickers.records import Record, RecordTicker


class CsvWriter(RecordTicker):
    """Write "training.csv": a header, then one line per record; see `RecordTicker` for events and
    fields.

    Floats are written so that reading gives the same number; a field that does not apply is empty.
    """

    suffix = ".csv"

    def before_run(self, state: RunState) -> None:
        super().before_run(state)
        self._write({name: name for name in self._columns})

    def line(self, record: Record) -> str:
        return csv_line("" if value is None else str(value) for value in record.values())
