"""Findings: what the rows say about a claim, computed from them and worded by the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, median_interval

AGREES, CONTRADICTS, UNDECIDED, NOT_MEASURED = "agrees", "contradicts", "undecided", "not measured"
VERDICTS = (AGREES, CONTRADICTS, UNDECIDED, NOT_MEASURED)
# How often an interval may miss; and that of one from too few samples to decide anything.
MISSES, MOST_MISSES = 0.05, 0.1


@dataclass(frozen=True)
class Finding:
    """One sentence or two that the rows support, and how they stand to what a paper claims.

    Attributes:
        text: what was found, with its numbers and intervals.
        claim: what the paper says, in our words; "" where it says nothing about it.
        where: the place in the paper, such as "section 5.4.1".
        verdict: of :data:`VERDICTS`; "" where there is no claim. "undecided" means that the intervals reach
            over the border between the two.

    Raises:
        UserError: a verdict without a claim, a claim without a verdict, or an unknown one.
    """

    text: str
    claim: str = ""
    where: str = ""
    verdict: str = ""

    def __post_init__(self) -> None:
        if bool(self.claim) != bool(self.verdict) or self.verdict not in ("", *VERDICTS):
            raise UserError(
                f"finding '{self.text[:60]}': verdict '{self.verdict}' must be one of {', '.join(VERDICTS)} "
                "where there is a claim, and empty where there is none"
            )


def stands(low: float, high: float, border: float, *, claimed_above: bool) -> str:
    """How an interval stands to the claim that a number lies above (or below) a border.

    Args:
        low, high: ends of the interval.
        border: for example 1 of a ratio.
        claimed_above: whether the claim is "above".

    Returns:
        "agrees" where the whole interval lies on the claimed side, "contradicts" where it lies on the other,
        "undecided" where it reaches over the border.
    """
    if low > border:
        return AGREES if claimed_above else CONTRADICTS
    if high < border:
        return CONTRADICTS if claimed_above else AGREES
    return UNDECIDED


def all_of(verdicts: Sequence[str]) -> str:
    """The verdict of a claim that must hold in several cases.

    One case that contradicts is enough, so the intervals of k cases must be those of
    :func:`confident_interval` with that k. Cases that were not measured have no vote.

    Returns:
        "contradicts" where one case does, "agrees" where all do, "not measured" where there is none.
    """
    for verdict in (CONTRADICTS, UNDECIDED, AGREES):
        if verdict in verdicts:
            return verdict
    return NOT_MEASURED


def confidence_among(cases: int) -> float:
    """The confidence of each of k intervals such that all hold together in at least 95 %: 1 - 0.05 / k.

    C. E. Bonferroni's inequality: nothing is assumed about how the cases depend on each other.
    """
    return 1.0 - MISSES / max(cases, 1)


def confident_interval(samples: Sequence[float], cases: int = 1) -> Interval:
    """The median with an interval for one of several cases that a claim is about.

    Args:
        samples: independent samples.
        cases: how many such intervals are judged together; see :func:`confidence_among`.

    Raises:
        UserError: no samples, or a NaN.
    """
    return median_interval(samples, confidence_among(cases))


def row_interval(row: Row | None, cases: int = 1) -> Interval | None:
    """The interval of a row as one of several cases, from its samples; None without value or interval.

    A row without samples keeps its own interval, whose confidence then may not be enough to decide.
    """
    if row is None or row.value is None:
        return None
    if cases > 1 and row.samples:
        return confident_interval(row.samples, cases)
    if row.low is None or row.high is None:
        return None
    return Interval(row.value, row.low, row.high, row.confidence or 0.0)


def decisive(found: Interval | None, cases: int = 1) -> bool:
    """Whether an interval comes from enough samples to decide: 0.9 for one case, 1 - 0.1 / k for one of k."""
    return found is not None and found.confidence >= 1.0 - MOST_MISSES / max(cases, 1)


def judged(found: Interval | None, border: float, *, claimed_above: bool, cases: int = 1) -> str:
    """:func:`stands` for an interval: "not measured" for None, "undecided" if it is not :func:`decisive`."""
    if found is None:
        return NOT_MEASURED
    if not decisive(found, cases):
        return UNDECIDED
    return stands(found.low, found.high, border, claimed_above=claimed_above)
