"""The main results of the rows of a report, in a few pairs of name and value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from meta500.metrics.plots.from_rows import CURVE, describe
from meta500.metrics.plots.style import number, time_unit
from meta500.metrics.report.sources import Source
from meta500.metrics.rows import VERDICTS, Row

LEVELS = ("operators", "networks", "training", "distributed training")
WORDS = {"not_compared": "not compared"}
# So many names are listed; of more, the first ones and their number.
MOST_NAMES = 6


def summary_of(sources: Sequence[Source], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What was run, counts of verdicts, and the main results; what there are no rows for is left out.

    Args:
        sources: where the rows are from.
        rows: of all sources; where there are several, ``run_id`` names the source.
    """
    levels = sorted({row.level for row in rows})
    verdicts = Counter(row.verdict for row in rows)
    pairs = [
        ("Runs", f"{len(sources):,}: {_listed(source.name for source in sources)}"),
        ("Rows", f"{len(rows):,}, about {_listed(LEVELS[level] for level in levels)}" if rows else "0"),
        ("Networks", _listed(row.model for row in rows if row.level > 0)),
        ("Backends", _listed(" ".join(filter(None, (row.backend, row.mode))) for row in rows)),
        (
            "Verdicts",
            ", ".join(f"{verdicts[word]:,} {WORDS.get(word, word)}" for word in VERDICTS if verdicts[word]),
        ),
        ("Highest test accuracy", _best(rows)),
        ("Shortest time to accuracy", _fastest(rows)),
        ("Ratios", _ratios(rows)),
    ]
    return [(name, value) for name, value in pairs if value]


def _listed(names: Iterable[str]) -> str:
    found = [name for name in dict.fromkeys(names) if name]
    more = f" and {len(found) - MOST_NAMES:,} more" if len(found) > MOST_NAMES else ""
    return ", ".join(found[:MOST_NAMES]) + more


def _who(rows: Sequence[Row], row: Row) -> str:
    return describe(rows, CURVE, ("model", "optimizer", "backend", "mode"))[
        list(map(id, rows)).index(id(row))
    ]


def _best(rows: Sequence[Row]) -> str:
    found = [
        r
        for r in rows
        if (r.phase, r.quantity) == ("test_set", "accuracy")
        and r.value is not None
        and not math.isnan(r.value)
    ]
    if not found:
        return ""
    best = max(found, key=lambda row: row.value or 0.0)
    epoch = f" after epoch {best.epoch + 1}" if best.epoch is not None else ""
    return f"{number(100 * (best.value or 0.0), 4)} %{epoch}: {_who(found, best)}"


def _fastest(rows: Sequence[Row]) -> str:
    found = [r for r in rows if r.quantity == "time_to_accuracy" and r.value]
    if not found:
        return ""
    best = min(found, key=lambda row: row.value or math.inf)
    factor, unit = time_unit(best.value or 0.0)
    return f"{number((best.value or 0.0) * factor)} {unit}: {_who(found, best)}"


def _ratios(rows: Sequence[Row]) -> str:
    """How many ratios have an interval below 1, above 1, and around 1."""
    found = [
        (r.low, r.high) for r in rows if r.quantity == "ratio" and r.low is not None and r.high is not None
    ]
    if not found:
        return ""
    below, above = sum(high < 1 for _, high in found), sum(low > 1 for low, _ in found)
    undecided = len(found) - below - above
    return (
        f"{len(found):,} with an interval: {below:,} below 1, {above:,} above 1, "
        f"{undecided:,} with 1 in their interval"
    )
