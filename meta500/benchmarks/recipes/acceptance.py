"""From the seeds' values of a metric to a verdict: a two-sided interval of the mean against two bounds.

The interval is Student's: mean ± t s / √n, s the standard deviation with n - 1, t the quantile of the t
distribution with n - 1 degrees of freedom ("Student", The Probable Error of a Mean, Biometrika 1908). It
supposes that the values of the seeds are independent and about normal. It is two-sided: a result that is
better than the published one is a difference too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meta500.benchmarks.recipes.recipe import Metric

REPRODUCED, UNDECIDED, NOT_REPRODUCED = "reproduced", "undecided", "not reproduced"
REPORTED = "reported"
# From best to worst; metrics without bounds are reported and decide nothing.
ORDER = (REPORTED, REPRODUCED, UNDECIDED, NOT_REPRODUCED)
# More seeds than these are not suggested.
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Verdict:
    """What the seeds say about a metric.

    ``values`` are by seed; ``mean`` is None without any, ``low`` and ``high`` (the ends of the confidence
    interval of the mean) are None for fewer than two. ``verdict`` is one of :data:`ORDER`, ``reason`` says
    why in words.
    """

    metric: Metric
    values: dict[int, float]
    mean: float | None
    low: float | None
    high: float | None
    verdict: str
    reason: str


def mean_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Ends of Student's two-sided confidence interval of the mean of at least two values."""
    from scipy.stats import t

    n, mean = len(values), _mean(values)
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * _deviation(values) / math.sqrt(n)
    return mean - half, mean + half


def judge(
    metric: Metric,
    values: Mapping[int, float],
    *,
    failures: Mapping[int, str] | None = None,
    waiting: int = 0,
    single_run: bool = False,
    quick: bool = False,
) -> Verdict:
    """The verdict on a metric.

    Args:
        metric: with its bounds.
        values: by seed, of the trainings that succeeded.
        failures: by seed, the reasons of those that did not; any makes the metric not reproduced.
        waiting: seeds that have not been run; as long as there are any nothing is decided.
        single_run: whether one value, without an interval, is enough.
        quick: whether the trainings were cut short; then nothing is decided.
    """
    numbers = list(values.values())
    bad = {seed: value for seed, value in values.items() if not math.isfinite(value)}
    mean = _mean(numbers) if numbers and not bad else None
    low, high = (None, None)
    if len(numbers) > 1 and not bad:
        low, high = mean_interval(numbers, metric.confidence)

    def verdict(word: str, reason: str) -> Verdict:
        return Verdict(metric, dict(values), mean, low, high, word, reason)

    if failures:
        seed, reason = next(iter(failures.items()))
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return verdict(NOT_REPRODUCED, f"seed {seed} failed{more}: {reason}")
    if bad:
        seed = next(iter(bad))
        return verdict(NOT_REPRODUCED, f"seed {seed} failed: the value is {bad[seed]}")
    if not metric.bounded:
        return verdict(REPORTED, "there are no bounds")
    if quick:
        return verdict(UNDECIDED, "--quick cuts the trainings short: no test of the recipe")
    if waiting:
        return verdict(UNDECIDED, f"{waiting} seed{'s have' if waiting > 1 else ' has'} not been run")
    assert mean is not None
    if low is None or high is None:
        if not single_run:
            return verdict(UNDECIDED, "one seed gives no interval: at least 2 are needed")
        inside = _lower(metric) <= mean <= _upper(metric)
        return verdict(REPRODUCED if inside else NOT_REPRODUCED, "one run, without an interval")
    if _lower(metric) <= low and high <= _upper(metric):
        return verdict(REPRODUCED, "the interval lies within the bounds")
    if high < _lower(metric):
        return verdict(NOT_REPRODUCED, "the interval lies below the bounds")
    if low > _upper(metric):
        return verdict(NOT_REPRODUCED, "the interval lies above the bounds")
    return verdict(UNDECIDED, _advice(metric, numbers))


def worst(verdicts: Sequence[Verdict], failed: Sequence[object] = ()) -> str:
    """The verdict of a recipe: the worst of its metrics; not reproduced if a training ``failed``, also one
    that no metric uses."""
    return NOT_REPRODUCED if failed else max((v.verdict for v in verdicts), key=ORDER.index)


def seeds_needed(metric: Metric, values: Sequence[float]) -> int | None:
    """The seeds with which the interval would no longer hold a bound, if mean and deviation stayed.

    None if that takes more than :data:`MOST_SEEDS`, as for a mean that lies on a bound.
    """
    from scipy.stats import t

    mean, deviation = _mean(values), _deviation(values)
    room = min(abs(mean - bound) for bound in (metric.low, metric.high) if bound is not None)
    counts = np.arange(len(values), MOST_SEEDS + 1)
    halves = t.ppf((1 + metric.confidence) / 2, counts - 1) * deviation / np.sqrt(counts)
    enough = counts[halves <= room]
    return int(enough[0]) if len(enough) else None


def _advice(metric: Metric, values: Sequence[float]) -> str:
    wanted = seeds_needed(metric, values)
    text = "the interval holds a bound"
    if wanted is None:
        return f"{text}; more than {MOST_SEEDS} seeds might be needed to decide"
    more = max(wanted - len(values), 1)
    return f"{text}; {more} more seed{'s' if more > 1 else ''} might decide"


def _lower(metric: Metric) -> float:
    return -math.inf if metric.low is None else metric.low


def _upper(metric: Metric) -> float:
    return math.inf if metric.high is None else metric.high


def _mean(values: Sequence[float]) -> float:
    # Equal values have exactly that mean; sum and division, each rounded, can miss it, and a bound with it.
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
