"""Numbers that follow from rows: ratios over many things, between modes, and calls until compiling pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import numpy as np

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler.settings import DEFAULT, EAGER, MODES
from meta500.benchmarks.studies.select import one, select, unique
from meta500.metrics.report.findings import (
    AGREES,
    CONTRADICTS,
    NOT_MEASURED,
    UNDECIDED,
    Finding,
    confident_interval,
    decisive,
    row_interval,
)
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, ratio_interval


def pooled(rows: Iterable[Row], cases: int = 1) -> Interval | None:
    """Geometric mean of the ratios of several things, taken round by round, with its interval.

    The k-th samples of all rows give the k-th sample of the mean, up to the number of the row with the
    fewest.

    Args:
        rows: with quantity "ratio" and samples; those without are left out.
        cases: how many such means are judged together.

    Returns:
        None where there is no such row.
    """
    samples = [row.samples for row in rows if row.value is not None and row.samples]
    if not samples:
        return None
    count = min(len(taken) for taken in samples)
    logarithms = np.log([taken[:count] for taken in samples])
    return confident_interval([float(mean) for mean in np.exp(logarithms.mean(axis=0))], cases)


def between(row: Row, base: Row) -> Row | None:
    """The ratio of two "time" rows from the same interleaved run; None where they have no samples."""
    count = min(len(row.samples), len(base.samples))
    if not count or row.value is None or base.value is None:
        return None
    pairs = row.samples[:count], base.samples[:count]
    return Row(
        level=row.level,
        quantity="ratio",
        unit="1",
        samples=tuple(a / b for a, b in zip(*pairs, strict=True)),
        **asdict(ratio_interval(*pairs)),
    )


def inverse(row: Row, cases: int = 1) -> Interval:
    """The speedup, interpreted / compiled, of a row "ratio", compiled / interpreted, as one of several."""
    assert row.value is not None
    found = row_interval(row, cases) or Interval(row.value, row.value, row.value, 0.0)
    return Interval(1 / found.value, 1 / found.high, 1 / found.low, found.confidence)


def break_even(first: Row, plain_first: Row, time: Row, plain: Row, cases: int = 1) -> Interval:
    """Number of calls from which compiling pays: all calls together, the first one with compile time
    included, take no longer than as many interpreted ones.

    The first n calls take f + (n - 1) t compiled and g + (n - 1) s interpreted, so compiling pays from
    n = 1 + (f - g) / (s - t) on, rounded up; "never" (infinity) where t is not below s. The interval is that
    of s - t, taken within each round; first calls count with their medians.

    Args:
        first, plain_first: rows "first_call" of the compiled and of the interpreted function.
        time, plain: their rows "time" from one interleaved run.
        cases: how many such numbers are judged together.
    """
    count = min(len(time.samples), len(plain.samples))
    pairs = zip(plain.samples[:count], time.samples[:count], strict=True)
    saved = confident_interval([interpreted - compiled for interpreted, compiled in pairs], cases)
    extra = (first.value or 0.0) - (plain_first.value or 0.0)
    return Interval(
        calls_to_pay(extra, saved.value),
        calls_to_pay(extra, saved.high),
        calls_to_pay(extra, saved.low),
        saved.confidence,
    )


def calls_to_pay(extra: float, saved: float) -> float:
    """Calls until what each further call saves makes up for what the first one took longer.

    Args:
        extra: seconds that the first call takes longer than an interpreted one.
        saved: seconds that each further call takes less.

    Returns:
        1 where the first call takes no longer; infinity where nothing is saved.
    """
    if extra <= 0:
        return 1.0
    return 1.0 + math.ceil(extra / saved) if saved > 0 else math.inf


def within(found: Interval, low: float, high: float, cases: int = 1) -> str:
    """Verdict on the claim that a number lies in a band.

    Args:
        found: the number.
        low, high: ends of the band.
        cases: how many such numbers are judged together.

    Returns:
        "agrees" where the whole interval lies in the band, "contradicts" where all of it lies on one side
        outside, "undecided" else and where it comes from too few samples.
    """
    if not decisive(found, cases):
        return UNDECIDED
    if found.high < low or found.low > high:
        return CONTRADICTS
    return AGREES if low <= found.low and found.high <= high else UNDECIDED


def words(found: Interval | None) -> str:
    """A ratio with its interval: "1.03 [1.01, 1.05]"."""
    if found is None:
        return "-"
    return tables.interval(Row(level=0, quantity="ratio", unit="1", **asdict(found)))


def calls(found: Interval | None) -> str:
    """A number of calls with its interval; infinity is "never"."""
    if found is None:
        return "-"

    def one(number: float) -> str:
        return "never" if math.isinf(number) else f"{number:.0f}"

    if found.low == found.high:
        return one(found.value)
    return f"{one(found.value)} [{one(found.low)}, {one(found.high)}]"


def tally(rows: Sequence[Row]) -> str:
    """How many ratios exclude 1 on which side: "slower in 3, faster in 1, no difference shown in 2 of 6"."""
    ends = [_ends(row) for row in rows if row.value is not None]
    above = sum(low > 1 for low, _ in ends)
    below = sum(high < 1 for _, high in ends)
    rest = len(ends) - above - below
    return f"slower in {above}, faster in {below}, no difference shown in {rest} of {len(ends)}"


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """The rows by a text of theirs, in the order in which the texts first appear."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def missing(claim: str, where: str, what: str) -> Finding:
    """The finding where there are no rows."""
    return Finding(f"Not measured: {what}.", claim, where, NOT_MEASURED)


def shown_mode(rows: Iterable[Row]) -> str:
    """The mode that findings about compiled against interpreted speak of: "default" where it was measured."""
    modes = [mode for mode in unique(rows, "mode") if mode in MODES]
    return DEFAULT if DEFAULT in modes or not modes else str(modes[0])


def ratios(rows: Iterable[Row], **columns: str) -> list[Row]:
    """The rows "ratio" of compiled to interpreted that have a value."""
    found = select(rows, quantity="ratio", backend="torch", **columns)
    return [row for row in found if row.value is not None]


def named(mode: str) -> str:
    """A mode in legends and tables."""
    return "interpreted" if mode == EAGER else f"compiled, {mode}"


def mode_ratios(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Of every other mode: its times relative to the mode "default", of each thing measured with both."""
    found: dict[str, list[Row]] = {}
    times = [row for row in select(rows, quantity="time", backend="torch") if row.verdict != "wrong"]
    by_thing = grouped(times, lambda row: f"{row.phase} {row.model} {row.node} {row.shape} {row.device}")
    for things in by_thing.values():
        base = one(things, mode=DEFAULT)
        for row in things:
            if base is not None and row.mode in MODES and row.mode != DEFAULT:
                ratio = between(row, base)
                if ratio is not None:
                    found.setdefault(row.mode, []).append(ratio)
    return found


def paid_back(rows: Sequence[Row], mode: str, cases: int = 1, **columns: str) -> Interval | None:
    """Calls from which compiling pays, for one thing of several; None where a row is missing or a result
    wrong."""
    of_thing = select(rows, **columns)
    found = [
        one(of_thing, quantity="first_call", mode=mode),
        one(of_thing, quantity="first_call", mode=EAGER),
        one(of_thing, quantity="time", mode=mode),
        one(of_thing, quantity="time", mode=EAGER),
    ]
    first, plain_first, time, plain = found
    if first is None or plain_first is None or time is None or plain is None:
        return None
    if "wrong" in (time.verdict, plain.verdict) or not time.samples or not plain.samples:
        return None
    return break_even(first, plain_first, time, plain, cases)


def kernel_of(row: Row) -> str:
    """The kernel of a single convolution: "3x3"."""
    return row.node.split(",")[0]


def count_of(row: Row) -> int:
    """How many convolutions a block has."""
    return int(row.node.split()[0])


def block_kernel(row: Row) -> str:
    """The kernel of the convolutions of a block: "3x3"."""
    return row.node.split()[-1]


def _ends(row: Row) -> tuple[float, float]:
    """The interval of a row; the value itself where it has none."""
    assert row.value is not None
    return (
        row.value if row.low is None else row.low,
        row.value if row.high is None else row.high,
    )
