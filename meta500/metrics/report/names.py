"""Names in figures: on one line and not too long; tables have them whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meta500.metrics.plots.bars import Bar

# Names of this length or less stand in figures as they are.
NAME_CHARACTERS = 90
COLUMN_CHARACTERS = 20


def shortened(bars: Sequence[Bar]) -> list[Bar]:
    """The bars with short names; names that differ stay different."""
    short: dict[str, str] = {}
    for name in dict.fromkeys(name for bar in bars for name in (bar.category, bar.series)):
        number, candidate = 1, short_name(name)
        while candidate in short.values():
            number += 1
            candidate = f"{short_name(name)} ({number})"
        short[name] = candidate
    return [replace(bar, category=short[bar.category], series=short[bar.series]) for bar in bars]


def short_name(name: str, most: int = NAME_CHARACTERS) -> str:
    """The name on one line, with its middle left out where it is long."""
    name = "".join(c if c.isprintable() else " " for c in name)
    if len(name) <= most:
        return name
    half = most // 2
    return f"{name[: half - 1]} … {name[-half + 2 :]}"


def columned(series: str) -> str:
    """The name of a column of a heat map, which is narrow, on the same lines."""
    return "\n".join(short_name(line, COLUMN_CHARACTERS) for line in series.split("\n"))
