"""Which segments of a network to compile: best of two runs, and a dynamic programme with switching costs.

The cost model. A network is a chain of n segments; each is run interpreted (state 0) or compiled (state 1).
The time of a choice of states s is

    T(s) = sum_i t[i, s_i] + sum_i c[i, s_i, s_(i+1)]

- t[i, 0] is the time of segment i where all segments are interpreted.
- t[i, 1] is its time where every segment is compiled on its own, so entering a compiled region (guards, call)
  is part of it.
- c[i] belongs to the border between segments i and i + 1. c[i, 0, 0] = 0. c[i, 0, 1] and c[i, 1, 0] are what
  the segment behind the border takes more than t says when the one before it is in the other state.
  c[i, 1, 1] is what joining the two segments into one compiled region takes more than both compiled on their
  own; it is negative where entering once and fusing across the border pay.

When it is run, consecutive compiled segments are one compiled region. That a region of more than two segments
saves at each of its borders what the two neighbours alone save is the model's assumption (its locality).

The recurrence in figure 4.2 of A. Goldfarb's thesis has no switching costs, although its text gives them as
the reason for it: dp[i][s] = min_s' dp[i-1][s'] + t[i, s]. There the minimum over s' does not depend on s, so
it chooses the faster state of each segment: it is the best of two runs (equation 4.1). Here

    dp[i][s] = t[i, s] + min_s' (dp[i-1][s'] + c[i-1, s', s]).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import numpy as np

from meta500.errors import UserError

INTERPRETED, COMPILED = 0, 1
States = tuple[int, ...]
Times = np.ndarray


def dynamic_programme(times: Times, switching: Times) -> tuple[States, float]:
    """The states with the least time under the cost model, and that time.

    Of equal choices the one that interprets later segments is taken.

    Args:
        times: (n, 2) float64, t.
        switching: (n - 1, 2, 2) float64, c[i, state before the border, state behind it].

    Raises:
        UserError: shapes that do not fit, or a number that is not finite.
    """
    times, switching = _checked(times, switching)
    best = times[0].copy()
    before: list[Times] = []
    for i in range(1, len(times)):
        arriving = best[:, None] + switching[i - 1]
        before.append(arriving.argmin(axis=0))
        best = arriving.min(axis=0) + times[i]
    state = int(best.argmin())
    states = [state]
    for choice in reversed(before):
        state = int(choice[state])
        states.append(state)
    return tuple(reversed(states)), float(best.min())


def best_of_two(times: Times) -> tuple[States, float]:
    """The faster state of each segment and the sum of their times: equation 4.1 of the thesis."""
    times, _ = _checked(times, np.zeros((len(times) - 1, 2, 2)))
    return tuple(int(s) for s in times.argmin(axis=1)), float(times.min(axis=1).sum())


def predicted(times: Times, switching: Times, states: Sequence[int]) -> float:
    """The time of a choice under the cost model."""
    times, switching = _checked(times, switching)
    if len(states) != len(times) or not set(states) <= {INTERPRETED, COMPILED}:
        raise UserError(f"states {tuple(states)}: {len(times)} of 0 and 1 are needed")
    borders = [switching[i, a, b] for i, (a, b) in enumerate(pairwise(states))]
    return float(sum(times[i, s] for i, s in enumerate(states)) + sum(borders))


def choices(count: int) -> Iterator[States]:
    """All 2^count choices of states."""
    return product((INTERPRETED, COMPILED), repeat=count)


def exhaustive(times: Times, switching: Times) -> tuple[States, float]:
    """The best of all 2^n choices, each of them summed up."""
    costs = {states: predicted(times, switching, states) for states in choices(len(times))}
    states = min(costs, key=lambda s: costs[s])
    return states, costs[states]


def regions(states: Sequence[int]) -> list[tuple[int, int, int]]:
    """Runs of equal states as (first segment, end, state)."""
    found: list[tuple[int, int, int]] = []
    for i, state in enumerate(states):
        if found and found[-1][2] == state:
            found[-1] = (found[-1][0], i + 1, state)
        else:
            found.append((i, i + 1, state))
    return found


def spelled(states: Sequence[int]) -> str:
    """States as letters: I interpreted, C compiled."""
    return "".join("C" if state else "I" for state in states)


def _checked(times: Times, switching: Times) -> tuple[Times, Times]:
    times, switching = np.asarray(times, np.float64), np.asarray(switching, np.float64)
    if times.ndim != 2 or times.shape[1] != 2 or not len(times):
        raise UserError(f"times have the shape {times.shape}; (segments, 2) is needed")
    if switching.shape != (len(times) - 1, 2, 2):
        raise UserError(f"switching costs are {switching.shape}; {(len(times) - 1, 2, 2)} is needed")
    if not (np.isfinite(times).all() and np.isfinite(switching).all()):
        raise UserError("times and switching costs must be finite")
    return times, switching
