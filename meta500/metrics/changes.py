"""Change points: where the level of a series changed, with a controlled rate of false alarms.

A scan for the largest difference of means on both sides of any place, whose significance comes from
permutations of the series (J. Antoch and M. Huskova, Permutation tests in change point analysis, 2001),
repeated on both sides of a change that was found (binary segmentation). If nothing changed, the points
are exchangeable, and then the rate of false alarms is exact whatever their distribution. Logarithms,
since a change of speed is a factor; before the scan, points further than three scaled median absolute
deviations from the median are moved to there, so that single outliers seldom hide a change.

What is not exchangeable is not protected: noise that stays for several runs in a row (a busy neighbour
for an afternoon) is a change of level as well, and a drift is shown as one or more steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from meta500.errors import UserError

# Fewer points than this on a side are no level.
SHORTEST = 3
OUTLIER = 3.0
# A median absolute deviation times this is the standard deviation of a normal distribution.
SCALE = 1.4826
LEAST_PERMUTATIONS = 999
# The p-value of a permutation test has steps; this many of them lie below the rate that is asked for.
STEPS = 20


@dataclass(frozen=True)
class Change:
    """A change of level.

    index: of the first point of the new level.
    ratio: median of the level after the change over that before it, up to the next changes.
    p: of the permutation test.
    """

    index: int
    ratio: float
    p: float


def least_p(points: int) -> float:
    """The smallest p-value that a series of so many points can have, 1.0 where it is too short to be tested.

    Even if all points before a change are below those after it, so they are, or the reverse, in 2 of C(n, k)
    permutations, k points before it.
    """
    return 1.0 if points < 2 * SHORTEST else 2 / math.comb(points, points // 2)


def points_for(rate: float) -> int:
    """How many points a series needs at least for a change at this rate of false alarms."""
    points = 2 * SHORTEST
    while least_p(points) > rate:
        points += 1
    return points


def change_points(
    series: Sequence[float], *, rate: float = 0.05, minimum: float = 0.05, seed: int = 0
) -> list[Change]:
    """Changes of level of a series, in its order.

    Args:
        series: positive numbers, in the order in which they were taken.
        rate: of false alarms: how often a series without change has one or more. A part of the series
            that is searched again after a change has its share of the rate, by its number of points.
        minimum: smallest relative change that is reported (of the medians on both sides, 0.05: factors
            above 1.05 and below 1 / 1.05).
        seed: of the permutations.

    Raises:
        UserError: a number that is not positive and finite, or a rate or minimum that is impossible.
    """
    values = np.asarray(series, dtype=np.float64)
    if values.ndim != 1 or not (np.isfinite(values) & (values > 0)).all():
        raise UserError("change points need a series of positive finite numbers")
    if not 0 < rate < 1:
        raise UserError(f"rate of false alarms {rate} is outside of (0, 1); use for example 0.05")
    if not minimum >= 0:
        raise UserError(f"minimum {minimum} must not be negative; 0.05 means 5 %")
    found: dict[int, float] = {}
    _search(np.log(values), 0, len(values), rate, np.random.default_rng(seed), found)
    return _large(values, found, minimum)


def _search(
    logs: np.ndarray, start: int, stop: int, rate: float, rng: np.random.Generator, found: dict[int, float]
) -> None:
    """Notes the changes between start and stop, from the place of the first point after it to its p."""
    share = rate * (stop - start) / len(logs) if len(logs) else rate
    if least_p(stop - start) > share:
        return
    place, p = _scan(_clipped(logs[start:stop]), share, rng)
    if p > share:
        return
    found[start + place] = p
    _search(logs, start, start + place, rate, rng, found)
    _search(logs, start + place, stop, rate, rng, found)


def _scan(values: np.ndarray, rate: float, rng: np.random.Generator) -> tuple[int, float]:
    """Place of the largest difference of means, and its p-value."""
    n = len(values)
    centred = values - values.mean()
    before = np.arange(SHORTEST, n - SHORTEST + 1)
    weights = np.sqrt(n / (before * (n - before)))

    def statistic(rows: np.ndarray) -> np.ndarray:
        """(..., n) -> (..., places): difference of means in standard errors, up to the common deviation."""
        sums = np.cumsum(rows, axis=-1)[..., SHORTEST - 1 : n - SHORTEST]
        return np.abs(sums) * weights

    own = statistic(centred)
    if not own.max() > 1e-12 * max(1.0, float(np.abs(values).max())):
        return int(before[0]), 1.0  # a constant
    permutations = max(LEAST_PERMUTATIONS, math.ceil(STEPS / rate))
    # Rounding must not tell apart arrangements that are the same.
    limit = own.max() * (1 - 1e-9)
    reached = 0
    portion = max(1, 1_000_000 // n)
    for begin in range(0, permutations, portion):
        rows = np.broadcast_to(centred, (min(portion, permutations - begin), n))
        reached += int((statistic(rng.permuted(rows, axis=1)).max(axis=1) >= limit).sum())
    return int(before[own.argmax()]), (1 + reached) / (1 + permutations)


def _clipped(values: np.ndarray) -> np.ndarray:
    """Outliers moved to the border; all as they are where more than half of the values are equal."""
    middle = np.median(values)
    reach = OUTLIER * SCALE * np.median(np.abs(values - middle))
    return np.clip(values, middle - reach, middle + reach) if reach > 0 else values


def _large(values: np.ndarray, found: dict[int, float], minimum: float) -> list[Change]:
    """The changes beyond the minimum; the least one is dropped first, which joins the levels beside it."""
    places = sorted(found)
    while places:
        borders = [0, *places, len(values)]
        medians = [float(np.median(values[a:b])) for a, b in pairwise(borders)]
        ratios = [after / before for before, after in pairwise(medians)]
        least = min(range(len(ratios)), key=lambda i: abs(math.log(ratios[i])))
        if abs(math.log(ratios[least])) > math.log1p(minimum):
            return [Change(place, ratio, found[place]) for place, ratio in zip(places, ratios, strict=True)]
        del places[least]
    return []
