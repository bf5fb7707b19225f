"""Intervals have the coverage that they state, on draws from known distributions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.statistics import (
    Interval,
    effect_word,
    independent_ratio,
    judged_together,
    median_interval,
    paired_test,
    ratio_interval,
    reachable,
    samples_for,
    superiority,
    verdict,
)


def at_least(rate, draws):
    """Lower bound of the observed share, five standard deviations below the stated rate."""
    return rate - 5 * math.sqrt(rate * (1 - rate) / draws)


def at_most(rate, draws):
    return rate + 5 * math.sqrt(rate * (1 - rate) / draws)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 10, 20, 101, 1000, 5001])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_ranks_and_coverage_equal_the_binomial_distribution(n, confidence):
    from scipy.stats import binom

    interval = median_interval(range(1, n + 1), confidence)
    k = int(interval.low)
    assert interval.high == n + 1 - k
    assert interval.confidence == pytest.approx(max(0.0, 1 - 2 * binom.cdf(k - 1, n, 0.5)), abs=1e-9)
    if k > 1:
        assert interval.confidence >= confidence
    if k < n // 2:
        assert 1 - 2 * binom.cdf(k, n, 0.5) < confidence


@pytest.mark.parametrize("n", [5, 6, 10, 31])
def test_coverage_of_the_median_of_skewed_noise(n):
    draws = 3000
    rng = np.random.default_rng(n)
    hits = 0
    for samples in 3.0 * np.exp(0.8 * rng.standard_normal((draws, n))):
        interval = median_interval(samples)
        hits += interval.contains(3.0)
    assert at_least(interval.confidence, draws) <= hits / draws <= at_most(interval.confidence, draws)


def test_too_few_samples_state_what_they_reach():
    assert median_interval([2.0]) == Interval(2.0, 2.0, 2.0, 0.0)
    assert median_interval([3.0, 1.0]) == Interval(2.0, 1.0, 3.0, 0.5)
    assert median_interval([5, 1, 4, 2, 3]) == Interval(3.0, 1.0, 5.0, 0.9375)
    assert median_interval([6, 5, 1, 4, 2, 3]).confidence == 0.96875


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_interval_encloses_the_median_and_ends_at_samples(samples):
    interval = median_interval(samples)
    assert interval.value == np.median(samples)
    assert interval.low <= interval.value <= interval.high
    assert {interval.low, interval.high} <= set(samples)
    assert median_interval(samples[::-1]) == interval


def test_outliers_do_not_move_the_interval():
    samples = [1.0 + i / 100 for i in range(20)]
    spoiled = [*samples[:-1], 1e6]
    assert median_interval(spoiled) == median_interval(samples)


def rounds(rng, n, ratio, noise=0.2, drift=0.0):
    """Times of two functions in n rounds; the drift is shared by both functions of a round."""
    shared = np.exp(drift * np.cumsum(rng.standard_normal(n)))
    a = ratio * shared * np.exp(noise * rng.standard_normal(n))
    return a, shared * np.exp(noise * rng.standard_normal(n))


@pytest.mark.parametrize("drift", [0.0, 0.3])
def test_coverage_of_the_paired_ratio_holds_under_drift(drift):
    draws = 3000
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(draws):
        interval = ratio_interval(*rounds(rng, 12, 1.7, drift=drift))
        hits += interval.contains(1.7)
    assert interval.confidence >= 0.95
    assert at_least(interval.confidence, draws) <= hits / draws <= at_most(interval.confidence, draws)


@pytest.mark.parametrize(("n", "m"), [(8, 8), (15, 25)])
def test_coverage_of_the_unpaired_ratio(n, m):
    draws = 600
    rng = np.random.default_rng(2)
    hits = 0
    for i in range(draws):
        a = 1.7 * np.exp(0.3 * rng.standard_normal(n))
        b = np.exp(0.3 * rng.standard_normal(m))
        hits += ratio_interval(a, b, paired=False, seed=i).contains(1.7)
    # The bootstrap of a median is a little conservative, never the opposite.
    assert at_least(0.95, draws) <= hits / draws < 1


def test_pairs_cancel_a_shared_drift():
    a, b = rounds(np.random.default_rng(3), 40, 1.1, noise=0.01, drift=0.1)
    paired, unpaired = ratio_interval(a, b), ratio_interval(a, b, paired=False)
    assert verdict(paired) == "slower"
    assert paired.high - paired.low < 0.1 * (unpaired.high - unpaired.low)
    assert ratio_interval(a[::-1], b[::-1]) == paired


def test_unpaired_value_is_the_ratio_of_medians_and_seeded():
    a, b = [4.0, 6.0, 5.0, 7.0, 5.5, 5.2, 5.1, 5.3], [2.0, 2.5, 2.4, 2.6, 2.5, 2.55, 2.45, 2.5, 2.5]
    interval = ratio_interval(a, b)
    assert interval.value == np.median(a) / np.median(b)
    assert interval.confidence == 0.95
    assert interval.low <= interval.value <= interval.high
    assert ratio_interval(a, b) == interval
    more = np.random.default_rng(4).random((2, 500)) + 1
    assert ratio_interval(*more, paired=False) != ratio_interval(*more, paired=False, seed=1)


def test_unpaired_with_too_few_samples_is_the_range():
    interval = ratio_interval([4.0, 6.0], [1.0, 2.0, 4.0])
    assert interval == Interval(2.5, 1.0, 6.0, 0.5 * 0.75)
    assert verdict(interval) == "unknown"


def test_large_unpaired_sets_are_resampled_in_portions():
    rng = np.random.default_rng(5)
    a, b = 1 + rng.random(9000), 2 * (1 + rng.random(8000))
    interval = ratio_interval(a, b)
    assert interval.contains(np.median(a) / np.median(b))
    assert interval.high - interval.low < 0.05


def test_wilcoxon_equals_the_enumeration_of_all_signs():
    a = np.array([1.3, 0.9, 1.2, 1.7, 1.05, 1.4])
    ranks = np.argsort(np.argsort(np.abs(np.log(a)))) + 1
    observed = abs(sum(ranks * np.sign(np.log(a))))
    totals = [abs(sum(ranks * s)) for s in itertools.product((-1, 1), repeat=6)]
    exact = np.mean([total >= observed for total in totals])
    assert paired_test(a, np.ones(6)) == pytest.approx(exact)
    assert paired_test(np.ones(6), a) == pytest.approx(exact)


def test_wilcoxon_rejects_equal_functions_as_seldom_as_stated():
    draws = 400
    rng = np.random.default_rng(6)
    rejected = sum(paired_test(*rounds(rng, 15, 1.0, drift=0.3)) < 0.05 for _ in range(draws))
    assert rejected / draws <= at_most(0.05, draws)
    different = sum(paired_test(*rounds(rng, 15, 1.5, drift=0.3)) < 0.05 for _ in range(100))
    assert different == 100


def test_wilcoxon_of_identical_samples():
    assert paired_test([1.0, 2.0], [1.0, 2.0]) == 1.0


def test_verdicts():
    assert verdict(Interval(1.2, 1.1, 1.3, 0.95)) == "slower"
    assert verdict(Interval(0.8, 0.7, 0.9, 0.95)) == "faster"
    assert verdict(Interval(1.0, 0.9, 1.1, 0.95)) == "same"
    assert verdict(Interval(1.0, 1.0, 1.0, 0.95)) == "same"
    assert verdict(Interval(1.2, 1.1, 1.3, 0.95), minimum=0.1) == "same"
    assert verdict(Interval(1.2, 1.1, 1.3, 0.5)) == "unknown"
    assert verdict(Interval(1.2, 1.1, 1.3, 0.5), confidence=0.5) == "slower"


@given(st.floats(0.2, 5), st.floats(1, 2), st.floats(0, 0.5))
def test_exchanging_the_two_exchanges_the_verdict(low, width, minimum):
    forth = Interval(low, low, low * width, 0.95)
    back = Interval(1 / low, 1 / (low * width), 1 / low, 0.95)
    opposite = {"slower": "faster", "faster": "slower", "same": "same"}
    edges = (1 + minimum, 1 / (1 + minimum))
    if all(abs(end / edge - 1) > 1e-9 for end in (low, low * width) for edge in edges):
        assert verdict(back, minimum=minimum) == opposite[verdict(forth, minimum=minimum)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: median_interval([]), "non-empty"),
        (lambda: median_interval([[1.0]]), r"shape \(1, 1\)"),
        (lambda: median_interval(["a"]), "numbers are expected"),
        (lambda: median_interval([1.0, math.nan]), "sample 1 is NaN"),
        (lambda: median_interval([1.0], confidence=95), "confidence 95"),
        (lambda: ratio_interval([], [1.0]), "a: a non-empty"),
        (lambda: ratio_interval([1.0], [0.0]), "b: sample 0 is 0.0"),
        (lambda: ratio_interval([1.0, math.inf], [1.0, 1.0]), "a: sample 1 is inf"),
        (lambda: ratio_interval([1.0], [1.0, 2.0], paired=True), "equal lengths, found 1 and 2"),
        (lambda: ratio_interval([1.0], [1.0], confidence=0), "confidence 0"),
        (lambda: paired_test([1.0], [1.0, 2.0]), "equal lengths"),
        (lambda: paired_test([1.0, -1.0], [1.0, 2.0]), "a: sample 1 is -1.0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(UserError, match=words):
        call()


@pytest.mark.parametrize(
    ("n", "m", "confidence"), [(7, 7, 0.95), (6, 40, 0.95), (20, 12, 0.95), (15, 15, 0.99)]
)
def test_coverage_of_the_ratio_of_independent_medians(n, m, confidence):
    draws = 2000
    rng = np.random.default_rng(n)
    hits = 0
    for _ in range(draws):
        a, b = 3.0 * np.exp(0.5 * rng.standard_normal(n)), np.exp(0.8 * rng.standard_normal(m))
        interval = independent_ratio(a, b, confidence)
        assert interval.confidence >= confidence
        hits += interval.contains(3.0)
    assert hits / draws >= at_least(confidence, draws)


def test_the_ratio_of_too_few_samples_states_what_they_reach():
    assert independent_ratio([2.0], [4.0]) == Interval(0.5, 0.5, 0.5, 0.0)
    few = independent_ratio([2.0, 3.0, 4.0], [1.0, 2.0])
    assert few == Interval(2.0, 1.0, 4.0, 0.75 * 0.5)
    assert few.confidence == reachable(3, 2)


@given(st.integers(1, 30), st.integers(1, 30), st.sampled_from([0.9, 0.95, 0.999]))
def test_the_ratio_of_independent_samples_reaches_what_can_be_reached(n, m, confidence):
    a, b = np.random.default_rng(n).random(n) + 1, np.random.default_rng(m).random(m) + 1
    found, back = independent_ratio(a, b, confidence), independent_ratio(b, a, confidence)
    assert found.low <= found.value <= found.high
    assert (back.low, back.high) == pytest.approx((1 / found.high, 1 / found.low))
    assert (found.confidence >= confidence - 1e-12) == (reachable(n, m) >= confidence)


def test_samples_that_a_confidence_needs():
    assert samples_for(0.95) == 7
    assert reachable(6, 6) < 0.95 <= reachable(7, 7)
    assert samples_for(0.9995) == 13


@pytest.mark.parametrize(
    ("reach", "expected"),
    [
        ([], ([], 1.0)),
        ([0.94], ([False], 1.0)),
        ([0.95], ([True], 0.95)),
        ([0.97] * 2, ([False] * 2, 1.0)),  # two need 0.975 each, and one of two equal ones is no choice
        ([0.98] * 2, ([True] * 2, 0.975)),
        ([0.96, 0.999, 0.5], ([False, True, False], 0.95)),
        ([0.98, 0.999, 0.0], ([True, True, False], 0.975)),
    ],
)
def test_judged_together(reach, expected):
    assert judged_together(reach) == (expected[0], pytest.approx(expected[1]))


@given(st.lists(st.integers(1, 25), min_size=1, max_size=30))
def test_those_judged_together_all_reach_what_they_need(counts):
    reach = [reachable(n, n) for n in counts]
    judged, each = judged_together(reach)
    assert all(r >= each for r, counts_in in zip(reach, judged, strict=True) if counts_in)
    least = min((r for r, counts_in in zip(reach, judged, strict=True) if counts_in), default=1.1)
    assert all((r >= least) == counts_in for r, counts_in in zip(reach, judged, strict=True))
    if any(judged):
        assert each == pytest.approx(1 - 0.05 / sum(judged))


def test_superiority_is_the_statistic_of_mann_and_whitney():
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 9, 23), rng.integers(2, 12, 31)
    assert superiority(a, b) == pytest.approx(mannwhitneyu(a, b).statistic / (23 * 31))
    assert superiority(a, b) + superiority(b, a) == pytest.approx(1.0)
    assert superiority([3, 4], [1, 2]) == 1.0 and superiority([1], [1]) == 0.5


@pytest.mark.parametrize(
    ("size", "word"),
    [(0.5, "negligible"), (0.55, "negligible"), (0.56, "small"), (0.64, "medium"), (0.71, "large"),
     (0.29, "large"), (0.36, "medium"), (0.44, "small"), (0.45, "negligible")],
)  # fmt: skip
def test_words_of_effects(size, word):
    assert effect_word(size) == word
