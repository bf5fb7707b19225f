"""Numbers that follow from rows: break-even, pooled ratios, bands."""

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.benchmarks.studies.compiler.derived import (
    between,
    break_even,
    calls,
    calls_to_pay,
    inverse,
    pooled,
    tally,
    within,
    words,
)
from meta500.metrics.report.findings import AGREES, CONTRADICTS, UNDECIDED
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, median_interval


def time(samples: list[float], mode: str = "eager", quantity: str = "time") -> Row:
    interval = asdict(median_interval(samples))
    return Row(
        level=0, quantity=quantity, unit="s", backend="torch", mode=mode, samples=tuple(samples), **interval
    )


def ratio(samples: list[float]) -> Row:
    return Row(
        level=0, quantity="ratio", unit="1", samples=tuple(samples), **asdict(median_interval(samples))
    )


def first(seconds: float, mode: str = "eager") -> Row:
    return Row(level=0, quantity="first_call", unit="s", mode=mode, value=seconds)


@given(
    st.integers(0, 200).map(lambda n: n / 8),
    st.integers(1, 16).map(lambda n: n / 8),
    st.integers(1, 16).map(lambda n: n / 8),
)
def test_calls_to_pay_against_counting(extra: float, compiled: float, interpreted: float) -> None:
    """Eighths, so that every sum is exact."""
    first_plain = 1.0
    found = calls_to_pay(extra, interpreted - compiled)
    if extra > 0 and compiled >= interpreted:
        assert found == math.inf
        return
    for n in itertools.count(1):
        total = first_plain + extra + (n - 1) * compiled
        plain = first_plain + (n - 1) * interpreted
        if total <= plain:
            assert found == n
            return


def test_break_even_with_its_interval() -> None:
    plain = time([3.0, 3.1, 2.9, 3.0, 3.2, 3.0, 2.8])
    compiled = time([2.0, 2.1, 2.4, 1.5, 2.2, 2.0, 1.8], "default")
    saved = [a - b for a, b in zip(plain.samples, compiled.samples, strict=True)]
    found = break_even(first(11.0, "default"), first(4.0), compiled, plain)
    assert found.value == 1 + math.ceil(7.0 / float(np.median(saved)))
    assert found.low == 1 + math.ceil(7.0 / max(saved))
    assert found.high == 1 + math.ceil(7.0 / min(saved))
    assert found.confidence == median_interval(saved).confidence
    assert calls(found) == "8 [6, 15]"


def test_break_even_is_never_where_nothing_is_saved() -> None:
    plain, compiled = time([1.0] * 7), time([1.5] * 7, "default")
    found = break_even(first(5.0, "default"), first(1.0), compiled, plain)
    assert found.value == found.low == math.inf
    assert calls(found) == "never"
    mixed = time([1.5, 1.5, 0.5, 0.5, 0.5, 0.5, 0.5], "default")
    assert calls(break_even(first(5.0, "default"), first(1.0), mixed, plain)) == "9 [9, never]"


def test_pooled_is_the_geometric_mean_of_each_round() -> None:
    a, b = [1.0, 2.0, 4.0, 8.0, 1.0, 1.0, 2.0], [4.0, 2.0, 1.0, 2.0, 1.0, 9.0, 2.0, 100.0]
    found = pooled([ratio(a), ratio(b)])
    assert found is not None
    expected = median_interval([math.sqrt(x * y) for x, y in zip(a, b, strict=False)])
    np.testing.assert_allclose(
        [found.value, found.low, found.high], [expected.value, expected.low, expected.high], rtol=1e-12
    )
    assert pooled([]) is None
    assert pooled([Row(level=0, quantity="ratio", unit="1", value=2.0)]) is None


@given(st.lists(st.floats(0.1, 10), min_size=7, max_size=20))
def test_exchanging_the_two_inverts_ratio_and_pool(samples: list[float]) -> None:
    row, turned = ratio(samples), ratio([1 / s for s in samples])
    speedup = inverse(row)
    assert speedup.low <= speedup.value <= speedup.high
    assert speedup.low == 1 / row.high if row.high else False
    one, other = pooled([row]), pooled([turned])
    assert one is not None and other is not None
    np.testing.assert_allclose([one.low, one.high], [1 / other.high, 1 / other.low], rtol=1e-9)


def test_between_pairs_by_round() -> None:
    found = between(time([2.0, 4.0, 9.0], "max-autotune"), time([1.0, 2.0, 3.0], "default"))
    assert found is not None and found.samples == (2.0, 2.0, 3.0) and found.value == 2.0
    assert between(time([1.0]), Row(level=0, quantity="time", unit="s", value=1.0)) is None


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.95, 1.05, AGREES),
        (1.0, 1.0, AGREES),
        (0.949, 1.0, UNDECIDED),
        (1.0, 1.051, UNDECIDED),
        (0.5, 2.0, UNDECIDED),
        (1.051, 1.2, CONTRADICTS),
        (0.5, 0.949, CONTRADICTS),
    ],
)
def test_band(low: float, high: float, verdict: str) -> None:
    assert within(Interval((low + high) / 2, low, high, 0.95), 0.95, 1.05) == verdict


def test_few_samples_decide_nothing() -> None:
    assert within(Interval(1.0, 1.0, 1.0, 0.0), 0.9, 1.1) == UNDECIDED
    assert within(Interval(1.0, 1.0, 1.0, 0.95), 0.9, 1.1, cases=2) == AGREES
    assert within(Interval(1.0, 1.0, 1.0, 0.95), 0.9, 1.1, cases=3) == UNDECIDED


def test_of_several_each_has_a_wider_interval() -> None:
    samples = [1.0 + k / 100 for k in range(21)]
    one, of_nine = inverse(ratio(samples)), inverse(ratio(samples), 9)
    assert of_nine.low < one.low and of_nine.high > one.high
    assert of_nine.confidence >= 1 - 0.05 / 9 > one.confidence
    plain, compiled = time([3.0] * 21), time([2 + k / 100 for k in range(21)], "default")
    alone = break_even(first(11.0, "default"), first(4.0), compiled, plain)
    among = break_even(first(11.0, "default"), first(4.0), compiled, plain, cases=9)
    assert among.high >= alone.high and among.confidence > alone.confidence
    mean, corrected = pooled([ratio(samples)]), pooled([ratio(samples)], 9)
    assert mean is not None and corrected is not None and corrected.low < mean.low


def test_texts() -> None:
    assert tally([ratio([2.0] * 7), ratio([0.5] * 7), ratio([0.5, 1.5, 1.0, 1.1, 0.9, 1.2, 0.8])]) == (
        "slower in 1, faster in 1, no difference shown in 1 of 3"
    )
    assert words(None) == calls(None) == "-"
    assert words(Interval(1.034, 1.01, 1.05, 0.95)) == "1.03 [1.01, 1.05]"
    assert calls(Interval(1.0, 1.0, 1.0, 0.98)) == "1"
