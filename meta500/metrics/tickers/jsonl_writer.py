"""Training records as a JSONL file."""

from __future__ import annotations

import json
import math

from meta500.metrics.tickers.records import Record, RecordTicker


class JsonlWriter(RecordTicker):
    """Write "training.jsonl": one JSON object per record; see `RecordTicker` for events and fields.

    Fields that do not apply are left out. JSON has no NaN: numbers that are not finite are the
    strings "nan", "inf" and "-inf".
    """

    suffix = ".jsonl"

    def line(self, record: Record) -> str:
        plain = {name: _plain(value) for name, value in record.items() if value is not None}
        return json.dumps(plain, allow_nan=False, ensure_ascii=False) + "\n"


def _plain(value: str | int | float | None) -> str | int | float | None:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
