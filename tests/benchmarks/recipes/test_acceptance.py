"""Verdicts from the seeds' values, against scipy and by hand, on both sides of both bounds."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from meta500.benchmarks.recipes.acceptance import (
    MOST_SEEDS,
    judge,
    mean_interval,
    seeds_needed,
    worst,
)
from meta500.benchmarks.recipes.recipe import Metric

BOTH = Metric("m", "test_accuracy", "final", "run", ("run",), 0.9, 0.95, 0.95, "1")
LEAST = dataclasses.replace(BOTH, high=None)
MOST = dataclasses.replace(BOTH, low=None)
NEITHER = dataclasses.replace(BOTH, low=None, high=None)


def by_seed(*numbers):
    return dict(enumerate(numbers))


def verdict(metric, *numbers, **options):
    return judge(metric, by_seed(*numbers), **options).verdict


def test_interval_by_hand():
    # n = 2: mean ± t(0.975, 1) * sqrt(2) / sqrt(2) with t = tan(0.475 pi) = 12.7062...
    low, high = mean_interval([1.0, 3.0], 0.95)
    assert (low, high) == pytest.approx((2 - math.tan(0.475 * math.pi), 2 + math.tan(0.475 * math.pi)))
    assert mean_interval([5.0, 5.0, 5.0], 0.99) == (5.0, 5.0)


@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=12).filter(lambda v: np.ptp(v) > 1e-3),
    st.floats(0.5, 0.999),
)
def test_interval_is_that_of_scipy(values, confidence):
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    assert mean_interval(values, confidence) == pytest.approx(
        (expected.low, expected.high), rel=1e-6, abs=1e-6
    )


def test_within_outside_and_across_the_bounds():
    assert verdict(BOTH, 0.92, 0.921, 0.919) == "reproduced"
    assert verdict(BOTH, 0.8, 0.801, 0.799) == "not reproduced"
    assert verdict(BOTH, 0.99, 0.991, 0.989) == "not reproduced"  # better is a difference, too
    assert verdict(BOTH, 0.89, 0.91, 0.90) == "undecided"
    assert verdict(BOTH, 0.94, 0.96, 0.95) == "undecided"
    assert verdict(BOTH, 0.5, 0.99, 0.9) == "undecided"  # across both
    assert "below" in judge(BOTH, by_seed(0.8, 0.801)).reason
    assert "above" in judge(BOTH, by_seed(0.99, 0.991)).reason


def test_one_bound_alone():
    assert verdict(LEAST, 0.99, 0.991) == "reproduced" and verdict(MOST, 0.99, 0.991) == "not reproduced"
    assert verdict(LEAST, 0.5, 0.501) == "not reproduced" and verdict(MOST, 0.5, 0.501) == "reproduced"
    assert verdict(NEITHER, 0.5, 0.9) == "reported"


@given(st.lists(st.floats(0.8, 1.0), min_size=2, max_size=8))
def test_mirrored_values_and_bounds_give_the_same_verdict(values):
    mirrored = dataclasses.replace(BOTH, low=-BOTH.high, high=-BOTH.low)
    assert verdict(BOTH, *values) == verdict(mirrored, *(-value for value in values))


@given(st.lists(st.floats(0.85, 1.0), min_size=2, max_size=8))
def test_the_verdict_is_what_the_interval_says(values):
    found = judge(BOTH, by_seed(*values))
    low, high = mean_interval(values, 0.95)
    assert (found.low, found.high) == (low, high)
    inside, outside = low >= 0.9 and high <= 0.95, high < 0.9 or low > 0.95
    assert found.verdict == ("reproduced" if inside else "not reproduced" if outside else "undecided")


def test_equal_values_on_a_bound_are_within():
    assert verdict(BOTH, 0.5, 0.5) == "not reproduced"
    exact = dataclasses.replace(BOTH, low=0.0, high=0.0)
    assert verdict(exact, 0.0, 0.0, 0.0) == "reproduced"


@pytest.mark.parametrize("value", [0.1, 0.7, 0.97, 1 / 3])
@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 10])
def test_the_interval_of_equal_values_is_the_value(value, count):
    values = [value] * count
    assert mean_interval(values, 0.95) == (value, value)
    exact = dataclasses.replace(BOTH, low=value, high=value)
    found = judge(exact, by_seed(*values))
    assert (found.verdict, found.mean) == ("reproduced", value)


def test_a_failed_training_outside_of_all_metrics_is_the_worst():
    good = judge(BOTH, by_seed(0.92, 0.921))
    assert worst([good]) == "reproduced" and worst([good], ["run 'other'"]) == "not reproduced"


def test_one_seed_decides_only_where_the_recipe_says_so():
    alone = judge(BOTH, by_seed(0.92))
    assert (alone.verdict, alone.low, alone.high, alone.mean) == ("undecided", None, None, 0.92)
    assert "at least 2" in alone.reason
    assert verdict(BOTH, 0.92, single_run=True) == "reproduced"
    assert verdict(BOTH, 0.97, single_run=True) == verdict(BOTH, 0.8, single_run=True) == "not reproduced"
    assert verdict(BOTH, 0.89, 0.91, single_run=True) == "undecided"  # two have an interval


def test_failures_numbers_that_are_none_missing_seeds_and_quick_runs():
    failed = judge(BOTH, by_seed(0.92, 0.921), failures={2: "NaN in step 3", 4: "no memory"})
    assert failed.verdict == "not reproduced"
    assert failed.reason == "seed 2 failed (and 1 more): NaN in step 3"
    assert judge(NEITHER, {}, failures={0: "x"}).verdict == "not reproduced"
    nan = judge(BOTH, by_seed(0.92, math.nan))
    assert (nan.verdict, nan.mean, nan.low) == ("not reproduced", None, None) and "seed 1" in nan.reason
    assert judge(BOTH, by_seed(0.92, 0.921), waiting=1).reason == "1 seed has not been run"
    assert judge(BOTH, {}, waiting=2).verdict == "undecided"
    assert verdict(BOTH, 0.1, 0.1001, quick=True) == verdict(BOTH, 0.92, 0.921, quick=True) == "undecided"


def test_the_worst_metric_is_the_verdict_of_the_recipe():
    good, bad = judge(BOTH, by_seed(0.92, 0.921)), judge(BOTH, by_seed(0.1, 0.101))
    open_, seen = judge(BOTH, by_seed(0.92)), judge(NEITHER, by_seed(0.92))
    assert worst([seen, good]) == "reproduced"
    assert worst([good, open_, seen]) == "undecided"
    assert worst([bad, open_, good]) == "not reproduced"


def test_seeds_that_might_decide():
    values = [0.90, 0.91, 0.92]  # mean 0.91, deviation 0.01, so the interval is 0.885 to 0.935
    n = seeds_needed(BOTH, values)

    def half(count):
        return stats.t.ppf(0.975, count - 1) * 0.01 / math.sqrt(count)

    assert half(n) <= 0.01 < half(n - 1)
    assert judge(BOTH, by_seed(*values)).reason.endswith(f"{n - 3} more seeds might decide")
    assert seeds_needed(dataclasses.replace(BOTH, low=0.91), values) is None  # the mean is on the bound
    told = judge(dataclasses.replace(BOTH, low=0.91), by_seed(*values)).reason
    assert f"more than {MOST_SEEDS} seeds" in told
