"""The dynamic programme against a search of all choices, and against the recurrence that the thesis prints."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from meta500.benchmarks.studies.compiler import oracle, selective
from meta500.errors import UserError

# Sixteenths, so that sums are exact; few values, so that equal ones are frequent.
SECONDS = st.integers(0, 48).map(lambda n: n / 16)
COSTS = st.integers(-32, 32).map(lambda n: n / 16)


@st.composite
def problems(draw, most=5):
    n = draw(st.integers(1, most))
    times = draw(arrays.arrays(np.float64, (n, 2), elements=SECONDS, fill=st.nothing()))
    switching = draw(arrays.arrays(np.float64, (n - 1, 2, 2), elements=COSTS, fill=st.nothing()))
    return times, switching


def cost(times, switching, states):
    """T of the cost model, written out."""
    total = 0.0
    for i, state in enumerate(states):
        total += times[i][state]
        if i:
            total += switching[i - 1][states[i - 1]][state]
    return total


def check_optimal(times, switching):
    states, seconds = oracle.dynamic_programme(times, switching)
    least = min(cost(times, switching, s) for s in itertools.product((0, 1), repeat=len(times)))
    assert seconds == pytest.approx(least, abs=1e-9)
    assert cost(times, switching, states) == pytest.approx(least, abs=1e-9)
    assert oracle.exhaustive(times, switching)[1] == pytest.approx(least, abs=1e-9)
    assert oracle.predicted(times, switching, states) == pytest.approx(least, abs=1e-9)


@given(problems())
@settings(max_examples=60, deadline=None)
def test_dynamic_programme_is_optimal(problem):
    check_optimal(*problem)


@pytest.mark.parametrize("seed", range(20))
def test_dynamic_programme_is_optimal_on_longer_chains(seed):
    rng = np.random.default_rng(seed)
    n = 6 + seed % 4
    check_optimal(rng.uniform(0, 10, (n, 2)), rng.uniform(-5, 5, (n - 1, 2, 2)))


def printed_recurrence(times):
    """Figure 4.2 as it stands: min(dp[i-1][0], dp[i-1][1]) + time, without costs of switching."""
    dp = list(times[0])
    for row in times[1:]:
        dp = [min(dp) + row[0], min(dp) + row[1]]
    return min(dp)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_without_costs_it_is_the_best_of_two_runs(problem):
    times, _ = problem
    free = np.zeros((len(times) - 1, 2, 2))
    states, seconds = oracle.best_of_two(times)
    assert seconds == pytest.approx(sum(min(row) for row in times.tolist()))
    assert seconds == pytest.approx(printed_recurrence(times.tolist()))
    assert oracle.dynamic_programme(times, free)[1] == pytest.approx(seconds)
    assert all(times[i, s] == times[i].min() for i, s in enumerate(states))


def test_a_switching_cost_keeps_a_short_segment_in_the_state_of_its_neighbours():
    """As figure 4.3 tells it: the middle segment is faster interpreted, but not by what switching takes."""
    times = np.array([[4.0, 1.0], [1.0, 1.5], [4.0, 1.0]])
    switching = np.zeros((2, 2, 2))
    assert oracle.dynamic_programme(times, switching) == ((1, 0, 1), 3.0)
    switching[:, 0, 1] = switching[:, 1, 0] = 0.3
    assert oracle.dynamic_programme(times, switching) == ((1, 1, 1), 3.5)
    switching[:, 1, 1] = -0.25
    assert oracle.dynamic_programme(times, switching) == ((1, 1, 1), 3.0)


def test_regions_and_words():
    assert oracle.regions((1, 1, 0, 1)) == [(0, 2, 1), (2, 3, 0), (3, 4, 1)]
    assert oracle.regions(()) == []
    assert oracle.spelled((1, 0, 0)) == "CII"
    assert len(list(oracle.choices(5))) == 32


@pytest.mark.parametrize(
    ("times", "switching", "message"),
    [
        (np.zeros((3, 3)), np.zeros((2, 2, 2)), r"\(segments, 2\)"),
        (np.zeros((3, 2)), np.zeros((3, 2, 2)), r"\(2, 2, 2\) is needed"),
        (np.full((2, 2), np.nan), np.zeros((1, 2, 2)), "finite"),
    ],
)
def test_bad_shapes(times, switching, message):
    with pytest.raises(UserError, match=message):
        oracle.dynamic_programme(times, switching)


def test_bad_states():
    with pytest.raises(UserError, match="2 of 0 and 1 are needed"):
        oracle.predicted(np.zeros((2, 2)), np.zeros((1, 2, 2)), (0, 2))


def test_best_of_two_by_the_formula_and_on_other_rounds():
    """Even rounds: the second segment is faster compiled; odd rounds: it is not."""
    even = np.array([[2.0, 3.0], [2.0, 1.0]])
    odd = np.array([[2.0, 3.0], [2.0, 4.0]])
    rounds = np.stack([even, odd] * 5)
    assert selective.bound(rounds[::2, :, 0], rounds[::2, :, 1]) == pytest.approx(4 / 3)
    assert selective.bound(rounds[:, :, 0], rounds[:, :, 0]) == 1.0
    states, speedups = selective.held_out(rounds)
    assert states == (0, 1)
    # The faster run of even rounds is the interpreted one: 4 s; the choice takes 2 + 4 s in odd rounds.
    np.testing.assert_allclose(speedups, [4 / 6] * 5)


def test_chance_alone_gives_a_bound_above_one():
    rng = np.random.default_rng(0)
    one, other = (1 + 0.1 * rng.standard_normal((2, 20, 6)),)[0]
    assert selective.bound(one, other) > 1.0
    assert np.isnan(selective.bound(-one, other))
