"""Trends: the measurements of a history as series, one per machine, with their change points.

Points of different machines never share a series. As in a comparison of runs the rate of false alarms is
that of all series together: each has its part (Bonferroni), and those with too few points are not tested.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meta500.errors import UserError
from meta500.metrics.changes import Change, change_points, least_p, points_for
from meta500.metrics.comparison import MINIMUM, MINIMUMS
from meta500.metrics.history import Entry, Point
from meta500.metrics.machine import differences
from meta500.metrics.matching import KEY, directions, words
from meta500.metrics.rows import Row
from meta500.metrics.statistics import judged_together

RATE = 0.05


@dataclass(frozen=True)
class Mark:
    """A change of level in a series.

    Attributes:
        change: index in the series, ratio and p-value.
        before, after: the runs between which it happened.
        verdict: "regression", "improvement", or "change" where no direction is known.
        software: (key, before, after) of what else differs between the two runs, besides the commit.
    """

    change: Change
    before: Entry
    after: Entry
    verdict: str
    software: tuple[tuple[str, Any, Any], ...]


@dataclass(frozen=True)
class Series:
    """One measurement on one machine, in the order of the starts of the runs.

    Attributes:
        what, who: in words; quantity, unit: as in the rows.
        machine: see :func:`meta500.metrics.history.machine_of`.
        entries, points: of equal length, without the runs that failed at it.
        faults: (run, what was wrong) of the runs that failed at it.
        tested: whether it is searched for changes; marks: what was found.
    """

    what: str
    who: str
    quantity: str
    unit: str
    machine: str
    entries: tuple[Entry, ...]
    points: tuple[Point, ...]
    faults: tuple[tuple[str, str], ...] = ()
    tested: bool = False
    marks: tuple[Mark, ...] = ()

    @property
    def measurement(self) -> str:
        """What, who and quantity in one text, the same on every machine."""
        return ", ".join(filter(None, (self.what, self.who, self.quantity.replace("_", " "))))


@dataclass(frozen=True)
class Trends:
    """All series of a history.

    Attributes:
        entries: all runs, in the order of their starts.
        machines: in the order in which they first appear.
        series: by measurement, then by machine.
        rate: of false alarms in all tested series together; each: of every one of them.
        needed: points that a series needs at least, if all of them are to be tested.
    """

    entries: tuple[Entry, ...]
    machines: tuple[str, ...]
    series: tuple[Series, ...]
    rate: float
    each: float
    needed: int

    @property
    def tested(self) -> int:
        """Number of series that were searched."""
        return sum(series.tested for series in self.series)


def trends(
    entries: Sequence[Entry],
    *,
    text: str = "",
    minimum: float | None = None,
    rate: float = RATE,
) -> Trends:
    """Series and change points of a history.

    Errors against float64 are left out: they count by their tolerance, not by their trend.

    Args:
        entries: of :func:`meta500.metrics.history.read`.
        text: only measurements with this text in their words.
        minimum: smallest relative change that is marked; 5 % by default, and 2 % for accuracies.
        rate: of false alarms, in all series together.

    Raises:
        UserError: the history has no run, no measurement has the text, or a number is impossible.
    """
    if not entries:
        raise UserError("the history has no run yet")
    if minimum is not None and not minimum >= 0:
        raise UserError(f"minimum {minimum} must not be negative; 0.05 means 5 %")
    if not 0 < rate < 1:
        raise UserError(f"rate of false alarms {rate} is outside of (0, 1); use for example 0.05")
    machines = tuple(dict.fromkeys(entry.machine for entry in entries))
    found = [s for s in _series(entries, machines) if text.lower() in s.measurement.lower()]
    if not found:
        raise UserError(f"no measurement of the history has '{text}' in its name")
    reach = [1 - least_p(len(s.points)) if _positive(s) else 0.0 for s in found]
    tested, confidence = judged_together(reach, 1 - rate)
    each = 1 - confidence
    marked = [
        replace(s, tested=True, marks=_marks(s, each, minimum)) if chosen else s
        for s, chosen in zip(found, tested, strict=True)
    ]
    # One series more, of just enough points, must be searched at this share of the rate.
    needed = points_for(rate / max(1, len(found)))
    return Trends(tuple(entries), machines, tuple(marked), rate, each, needed)


def _series(entries: Sequence[Entry], machines: Sequence[str]) -> list[Series]:
    keys = dict.fromkeys((key, p.unit) for entry in entries for key, p in entry.points.items())
    made = []
    for key, unit in keys:
        what, who, quantity = _described(key, unit)
        if quantity.split(" ")[0] == "error":
            continue
        for machine in machines:
            here = [e for e in entries if e.machine == machine and key in e.points]
            here = [e for e in here if e.points[key].unit == unit]
            bad = tuple((e.run, e.points[key].fault) for e in here if e.points[key].fault)
            good = tuple(e for e in here if e.points[key].value is not None and not e.points[key].fault)
            if here:
                points = tuple(e.points[key] for e in good)
                made.append(Series(what, who, quantity, unit, machine, good, points, bad))
    return made


def _described(key: tuple[Any, ...], unit: str) -> tuple[str, str, str]:
    """What, who and quantity in words."""
    row = Row(**dict(zip(KEY, key, strict=True)), unit=unit, value=0.0)
    quantity = row.quantity + (f" to {row.baseline}" if row.baseline else "")
    return *words(row), quantity


def _positive(series: Series) -> bool:
    return all(p.value is not None and math.isfinite(p.value) and p.value > 0 for p in series.points)


def _marks(series: Series, rate: float, minimum: float | None) -> tuple[Mark, ...]:
    quantity = series.quantity.split(" ")[0]
    limit = MINIMUMS.get(quantity, MINIMUM) if minimum is None else minimum
    values = [p.value for p in series.points if p.value is not None]
    better = directions().get(quantity)
    marks = []
    for change in change_points(values, rate=rate, minimum=limit):
        before, after = series.entries[change.index - 1], series.entries[change.index]
        worse = (change.ratio > 1) == (better == "lower")
        verdict = "change" if better is None else "regression" if worse else "improvement"
        software = tuple(
            entry for entry in differences(before.environment, after.environment) if "load" not in entry[0]
        )
        marks.append(Mark(change, before, after, verdict, software))
    return tuple(marks)


def commit_name(entry: Entry) -> str:
    """The commit's first digits, with a plus where files differed from it; the run's id without one."""
    return entry.commit[:8] + ("+" if entry.dirty else "") if entry.commit else entry.run
