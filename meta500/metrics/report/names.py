"""Names in figures: on one line and not too long; tables have them whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from meta500.metrics.plots.bars import Bar

# Names of this length or less stand in figures as they are.
NAME_CHARACTERS = 90
COLUMN_CHARACTERS = 20
# Names of runs and of schemes, which stand beside others.
RUN_CHARACTERS = 40


def unique_names(
    names: Iterable[str], most: int = NAME_CHARACTERS, shorten: Callable[..., str] | None = None
) -> dict[str, str]:
    """Short names by the whole ones; names that differ stay different, by a number at the end.

    Args:
        most: characters of a short name, its number included.
        shorten: makes a name short, given ``most`` and the ``ending`` to put at its end; None: `short_name`.
    """
    shorten = shorten or short_name
    short: dict[str, str] = {}
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        number, candidate = 1, shorten(name, most)
        while candidate in taken:
            number += 1
            candidate = shorten(name, most, ending=f" ({number})")
        taken.add(candidate)
        short[name] = candidate
    return short


def shortened(bars: Sequence[Bar]) -> list[Bar]:
    """The bars with short names; names that differ stay different."""
    short = unique_names(name for bar in bars for name in (bar.category, bar.series))
    return [replace(bar, category=short[bar.category], series=short[bar.series]) for bar in bars]


def short_name(name: str, most: int = NAME_CHARACTERS, ending: str = "") -> str:
    """The name on one line with the ending, its middle left out where both are longer than ``most``."""
    name = "".join(c if c.isprintable() else " " for c in name)
    room = most - len(ending)
    if len(name) <= room:
        return name + ending
    half = room // 2
    return f"{name[: half - 1]} … {name[-half + 2 :]}{ending}"


def columned(series: str, most: int = COLUMN_CHARACTERS, ending: str = "") -> str:
    """The name of a column of a heat map, which is narrow, on the same lines; the first has the ending."""
    first, *others = series.split("\n")
    return "\n".join([short_name(first, most, ending), *(short_name(line, most) for line in others)])
