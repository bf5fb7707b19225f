"""Medians and ratios with intervals that assume nothing about the distribution of the noise.

Timings are skewed, have outliers, and drift with the clock of the machine. So: medians, intervals
from order statistics, whose coverage follows from the binomial distribution alone, and ratios taken
inside each round of an interleaved run, where a drift that both share cancels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meta500.errors import UserError

RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, all in the unit of the samples.

    ``confidence`` is the coverage that the interval really has, which order statistics can only
    reach in steps: usually a little more than was asked for, less if there were too few samples.
    """

    value: float
    low: float
    high: float
    confidence: float

    def contains(self, number: float) -> bool:
        """Whether the number lies in the closed interval."""
        return self.low <= number <= self.high


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """Median of independent samples with the interval between two order statistics.

    The k-th smallest and the k-th largest of n samples enclose the median of any continuous
    distribution with probability 1 - 2 P(B < k), B binomial with n trials of 1/2 (W. J. Conover,
    Practical Nonparametric Statistics, section 3.2); k is the largest with at least ``confidence``.
    With fewer than 6 samples no k reaches 95 %: the ends are then the smallest and the largest
    sample, and the stated confidence is what these reach (n = 5: 0.9375, n = 1: 0).

    Raises:
        UserError: no samples, a NaN, or a confidence outside of (0, 1).
    """
    ordered = np.sort(_checked("samples", samples))
    k, coverage = _rank(len(ordered), _checked_confidence(confidence))
    return Interval(float(np.median(ordered)), float(ordered[k - 1]), float(ordered[-k]), coverage)


def ratio_interval(
    a: Sequence[float],
    b: Sequence[float],
    confidence: float = 0.95,
    *,
    paired: bool | None = None,
    seed: int = 0,
) -> Interval:
    """Interval of the ratio a / b of two sets of positive samples.

    Paired (sample i of both comes from the same interleaved round; the default for equal lengths):
    value and interval are :func:`median_interval` of the ratios of each round. The coverage is
    exact, and what slows a whole round down cancels. The value may differ a little from the ratio
    of the two medians.

    Unpaired (the default for different lengths; pass ``paired=False`` for samples of different
    runs): the value is the ratio of the medians; the interval is the seeded percentile bootstrap of
    it (B. Efron, 1979) with 2,000 resamples, both sets resampled independently. Where the sets are
    too small for the confidence the ends are min(a) / max(b) and max(a) / min(b), and the stated
    confidence is (1 - 2^(1 - len(a))) (1 - 2^(1 - len(b))).

    Raises:
        UserError: no samples, a sample that is not positive and finite, or ``paired`` with
            different lengths.
    """
    first, second = _positive("a", a), _positive("b", b)
    _checked_confidence(confidence)
    if paired is None:
        paired = len(first) == len(second)
    if paired:
        _same_length(first, second)
        return median_interval(first / second, confidence)
    value = float(np.median(first) / np.median(second))
    reachable = (1 - 2.0 ** (1 - len(first))) * (1 - 2.0 ** (1 - len(second)))
    if reachable < confidence:
        low, high = float(first.min() / second.max()), float(first.max() / second.min())
        return Interval(value, low, high, reachable)
    rng = np.random.default_rng(seed)
    ratios = _resampled_medians(first, rng) / _resampled_medians(second, rng)
    tail = (1 - confidence) / 2
    low, high = (float(q) for q in np.quantile(ratios, [tail, 1 - tail]))
    return Interval(value, low, high, confidence)


def independent_ratio(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Interval:
    """Ratio of the medians of two independent sets of positive samples, with the quotients of their ends.

    The medians' intervals (:func:`median_interval`) hold together with the product of their coverages, and
    where both hold, so does low(a) / high(b) <= ratio <= high(a) / low(b): nothing is assumed, drawn or
    approximated, so the coverage is also right for the high confidences that many comparisons need. It is
    at least what is stated. Where the samples are too few, the ends are min(a) / max(b) and
    max(a) / min(b), and the stated confidence is what these reach (:func:`reachable`).

    Raises:
        UserError: no samples, or a sample that is not positive and finite.
    """
    first, second = _positive("a", a), _positive("b", b)
    each = math.sqrt(_checked_confidence(confidence))
    fewest = min(len(first), len(second))
    # Where the smaller set cannot reach its half, the other one has to make up for it.
    rest = confidence / (1 - 2.0 ** (1 - fewest)) if fewest > 1 else 1.0
    other = rest if each < rest < 1 else each
    one = median_interval(first, each if len(first) == fewest else other)  # type: ignore[arg-type]
    two = median_interval(second, each if len(second) == fewest else other)  # type: ignore[arg-type]
    together = one.confidence * two.confidence
    return Interval(one.value / two.value, one.low / two.high, one.high / two.low, together)


def reachable(n: int, m: int) -> float:
    """The largest confidence that :func:`independent_ratio` reaches with n and m samples."""
    return (1 - 2.0 ** (1 - n)) * (1 - 2.0 ** (1 - m))


def samples_for(confidence: float) -> int:
    """How many samples of each side :func:`independent_ratio` needs for a confidence."""
    n = 1
    while reachable(n, n) < _checked_confidence(confidence):
        n += 1
    return n


def judged_together(reach: Sequence[float], confidence: float = 0.95) -> tuple[list[bool], float]:
    """Which of several intervals can be judged at once, and the confidence that each of them needs.

    k intervals hold together with ``confidence`` if each holds with 1 - (1 - confidence) / k
    (C. E. Bonferroni's inequality, whatever their dependence). ``reach`` says how much each one can reach;
    it depends on the numbers of samples, not on their values, so leaving out those that reach least
    favours no verdict. As many as possible are judged; of equal ones all or none. The needed confidence
    is 1.0 where none is.
    """
    misses = 1 - _checked_confidence(confidence)
    ordered = sorted(reach, reverse=True)
    for k in range(len(ordered), 0, -1):
        least = ordered[k - 1]
        if (k == len(ordered) or ordered[k] < least) and least >= 1 - misses / k:
            return [r >= least for r in reach], 1 - misses / k
    return [False] * len(reach), 1.0


def superiority(a: Sequence[float], b: Sequence[float]) -> float:
    """The effect size A: how often a sample of a is larger than one of b, ties counting half; 0 to 1.

    0.5 means that neither tends to be larger; Cliff's delta is 2 A - 1. It is in the ranks alone, so
    outliers weigh no more than others (A. Vargha and H. D. Delaney, A critique and improvement of the CL
    common language effect size statistics of McGraw and Wong, 2000).

    Raises:
        UserError: no samples, or a NaN.
    """
    first, second = _checked("a", a), np.sort(_checked("b", b))
    below = np.searchsorted(second, first, "left").sum() + np.searchsorted(second, first, "right").sum()
    return float(below) / (2 * len(first) * len(second))


def effect_word(size: float) -> str:
    """ "negligible", "small", "medium" or "large": the borders of Vargha and Delaney, 0.56, 0.64 and 0.71.

    Below 0.5 the same at 1 - size.
    """
    borders = ((0.71, "large"), (0.64, "medium"), (0.56, "small"))
    # 1 - 0.29 is a rounding error away from 0.71.
    further = round(max(size, 1 - size), 12)
    return next((word for border, word in borders if further >= border), "negligible")


def paired_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test on the log-ratios of each round.

    The null hypothesis is that the ratios are symmetric around 1. Logarithms, since timing noise is
    rather a factor than a summand. Rounds with a ratio of exactly 1 are left out; 1.0 if no other
    is left (F. Wilcoxon, Individual Comparisons by Ranking Methods, 1945).

    Raises:
        UserError: no samples, a sample that is not positive and finite, or different lengths.
    """
    first, second = _positive("a", a), _positive("b", b)
    _same_length(first, second)
    logarithms = np.log(first / second)
    logarithms = logarithms[logarithms != 0]
    if not len(logarithms):
        return 1.0
    from scipy.stats import wilcoxon

    return float(wilcoxon(logarithms).pvalue)


def verdict(ratio: Interval, *, minimum: float = 0.0, confidence: float = 0.9) -> str:
    """What the interval of a ratio of times, new / old, says.

    One of "faster", "slower", "same" and "unknown". "slower" needs the whole interval above 1 +
    minimum, "faster" the whole interval below 1 / (1 + minimum), so that exchanging old and new
    exchanges the verdicts; "same" means that no difference is shown. An interval of less than
    ``confidence`` comes from too few samples to say anything: "unknown".
    """
    if ratio.confidence < confidence:
        return "unknown"
    if ratio.low > 1 + minimum:
        return "slower"
    if ratio.high < 1 / (1 + minimum):
        return "faster"
    return "same"


@lru_cache(maxsize=1024)
def _rank(n: int, confidence: float) -> tuple[int, float]:
    """Largest k >= 1 whose order statistics k and n + 1 - k reach the confidence; coverage."""
    logarithm = math.lgamma(n + 1) - n * math.log(2)

    def probability(k: int) -> float:
        return math.exp(logarithm - math.lgamma(k + 1) - math.lgamma(n - k + 1))

    # Everything below lies more than 12 standard deviations from the mean: less than 1e-30 in sum.
    start = max(0, int(n / 2 - 6 * math.sqrt(n)))
    k, coverage, below = 1, 1 - 2.0 ** (1 - n), 0.0
    for candidate in range(start, n // 2):
        below += probability(candidate)
        if 1 - 2 * below < confidence:
            break
        k, coverage = candidate + 1, 1 - 2 * below
    return k, max(coverage, 0.0)


def _resampled_medians(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Medians of RESAMPLES samples with replacement; (n,) float64 -> (RESAMPLES,) float64."""
    # In portions, so that a hundred thousand samples do not need gigabytes.
    portion = max(1, min(RESAMPLES, 4_000_000 // len(samples)))
    medians = []
    for start in range(0, RESAMPLES, portion):
        count = min(portion, RESAMPLES - start)
        medians.append(np.median(rng.choice(samples, (count, len(samples))), axis=1))
    return np.concatenate(medians)


def _checked(name: str, samples: Sequence[float]) -> np.ndarray:
    try:
        array = np.asarray(samples, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{name}: numbers are expected, found {samples!r:.60}") from None
    if array.ndim != 1 or not len(array):
        raise UserError(f"{name}: a non-empty sequence of numbers is expected, found shape {array.shape}")
    if np.isnan(array).any():
        raise UserError(f"{name}: sample {int(np.isnan(array).argmax())} is NaN; a median needs numbers")
    return array


def _positive(name: str, samples: Sequence[float]) -> np.ndarray:
    array = _checked(name, samples)
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        index = int(bad.argmax())
        raise UserError(f"{name}: sample {index} is {array[index]}; a ratio needs positive finite samples")
    return array


def _same_length(a: np.ndarray, b: np.ndarray) -> None:
    if len(a) != len(b):
        raise UserError(f"paired samples need equal lengths, found {len(a)} and {len(b)}")


def _checked_confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise UserError(f"confidence {confidence} is outside of (0, 1); use for example 0.95")
    return float(confidence)
