"""Change points: few false alarms where nothing changed, and steps found where they are."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.changes import change_points, least_p, points_for


def noise(seed, n, deviation=0.03):
    return np.exp(deviation * np.random.default_rng(seed).standard_normal(n))


def places(series, **options):
    return [change.index for change in change_points(series, **options)]


# Binomial with 400 draws of the rate: the bounds are exceeded with a probability below 0.001.
@pytest.mark.parametrize(("rate", "most"), [(0.05, 35), (0.01, 12)])
@pytest.mark.parametrize("points", [12, 40])
def test_false_alarms_are_as_rare_as_stated(rate, most, points):
    alarms = sum(bool(places(noise(s, points), rate=rate, minimum=0, seed=s)) for s in range(400))
    assert alarms <= most


def test_false_alarms_with_heavy_tails_and_outliers_are_as_rare():
    rng = np.random.default_rng(7)
    series = np.exp(0.05 * rng.standard_t(1.5, size=(400, 30)))
    assert sum(bool(places(x, minimum=0, seed=s)) for s, x in enumerate(series)) <= 35


def test_the_minimum_makes_false_alarms_rarer_still():
    assert not any(places(noise(s, 40), seed=s) for s in range(100))


@pytest.mark.parametrize("tail", [4, 15, 26])
@pytest.mark.parametrize("factor", [1.25, 0.8])
@pytest.mark.parametrize("rate", [0.05, 0.05 / 60])
def test_a_step_is_found_at_its_place(tail, factor, rate):
    hits = 0
    for seed in range(20):
        series = noise(seed, 30)
        series[-tail:] *= factor
        found = change_points(series, rate=rate, seed=seed)
        near = [c for c in found if abs(c.index - (30 - tail)) <= 1]
        hits += len(near) == 1 and near[0].ratio == pytest.approx(factor, rel=0.06)
    assert hits >= 18


def test_an_exact_step():
    (change,) = change_points([1.0] * 10 + [2.0] * 10)
    assert (change.index, change.ratio) == (10, 2.0)
    assert change.p <= 0.002


def test_a_step_among_outliers_is_found():
    hits = 0
    for seed in range(20):
        series = noise(seed, 40, 0.02)
        series[20:] *= 1.2
        series[[7, 33]] *= [10.0, 4.0]
        hits += any(abs(place - 20) <= 1 for place in places(series, seed=seed))
    assert hits >= 18


@pytest.mark.parametrize("outliers", [[5], [0], [29], [5, 20]])
def test_outliers_alone_are_no_change(outliers):
    for seed in range(20):
        series = noise(seed, 30)
        series[outliers] *= 8.0
        assert places(series, seed=seed) == []


def test_two_steps_are_two_changes():
    series = noise(1, 60, 0.02)
    series[20:] *= 1.3
    series[40:] /= 1.3
    found = change_points(series)
    assert [c.index for c in found] == [20, 40]
    assert found[0].ratio == pytest.approx(1.3, rel=0.03)
    assert found[1].ratio == pytest.approx(1 / 1.3, rel=0.03)


def test_a_drift_is_steps_in_its_direction():
    for seed in range(10):
        found = change_points(noise(seed, 50, 0.02) * np.linspace(1.0, 1.5, 50), seed=seed)
        assert found and all(change.ratio > 1.05 for change in found)
        # The levels together go no further than the drift does.
        assert math.prod(change.ratio for change in found) < 1.55


def test_a_drift_below_the_minimum_is_no_change():
    assert places(noise(0, 50, 0.002) * np.linspace(1.0, 1.03, 50)) == []


def test_changes_below_the_minimum_are_not_reported():
    series = noise(0, 40, 0.001)
    series[20:] *= 1.03
    assert places(series) == []
    assert places(series, minimum=0.02) == [20]


def test_constants_and_short_series_have_no_change():
    assert places([]) == places([1.0]) == places([3.0] * 50) == []
    assert places([1.0] * 3 + [2.0] * 3) == []


@pytest.mark.parametrize("points", [6, 7, 8])
def test_the_smallest_p_value_is_that_of_all_permutations(points):
    """All permutations of a series that rises by one large step in the middle; no two points are equal."""
    from itertools import permutations

    values = np.concatenate([np.arange(points // 2), 1000.0 + np.arange(points - points // 2)])

    def statistic(x):
        k = np.arange(3, points - 2)
        sums = np.cumsum(x - x.mean())[2 : points - 3]
        return (np.abs(sums) * np.sqrt(points / (k * (points - k)))).max()

    limit = statistic(values) * (1 - 1e-9)
    share = np.mean([statistic(np.array(x)) >= limit for x in permutations(values)])
    assert share == pytest.approx(least_p(points))


def test_points_that_a_rate_needs():
    assert points_for(0.05) == 8
    assert least_p(points_for(0.001)) <= 0.001 < least_p(points_for(0.001) - 1)
    assert least_p(5) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), max_size=40), st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter_and_the_same_series_has_the_same_changes(series, factor):
    assert places(series) == places(series)
    # A power of two scales without rounding.
    scaled = [x * 2.0 ** round(math.log2(factor)) for x in series]
    assert len(places(scaled)) == len(places(series))


@pytest.mark.parametrize(
    ("series", "options", "message"),
    [
        ([1.0, 0.0], {}, "positive finite"),
        ([1.0, math.nan], {}, "positive finite"),
        ([1.0], {"rate": 0.0}, "rate of false alarms"),
        ([1.0], {"minimum": -1.0}, "must not be negative"),
        ([1.0], {"minimum": math.nan}, "must not be negative"),
    ],
)
def test_impossible_input(series, options, message):
    with pytest.raises(UserError, match=message):
        change_points(series, **options)
