"""What a sampler or loader gives: how long every batch takes, and which labels are drawn how often.

`measure` walks over the batches as fast as they come, without a network, and counts labels only afterwards,
so that workers get no time that is not counted. So the latency of a batch is how long a consumer that does
nothing else waits for it, and the throughput is the most that a training could use.
In a training that computes meanwhile, workers have more time; its "data_time" rows say how long it waited.

Quantities of the rows (level 2, phase "sampling"):

- "latency": seconds per batch, median with interval; the samples are all batches in order but the first of
  each epoch. With workers, batches come in bursts: most of them wait ready, and few are waited for.
- "mean_latency": seconds per batch, the mean of the same samples, which bursts do not change.
- "first_call": seconds until the first batch of an epoch, in which workers start and fill their queues.
- "throughput": samples per second over everything.
- "label_count" and "label_expected": one row per class (its name in ``node``): how often it was drawn, and
  how often it would be with its share in the dataset.
- "label_ignored": drawn labels that the set ignores; they are in no other row.
- "total_variation": half the sum of the differences between the drawn and the dataset's shares, 0 to 1:
  the fraction of draws that would have to be another class.
- "chi_square" and "p_value": Pearson's test that the labels were drawn independently with the dataset's
  shares; only for one label per sample, since the pixels of a picture are not independent. Samplers that give
  every sample once draw more evenly than chance, and have a p value near 1.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.datasets import Sampler, augmentations
from meta500.datasets.loader import Loader
from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

PHASE = "sampling"
# Samples that are read at once where the dataset's own share has to be counted from its masks.
_PORTION = 32


@dataclass(frozen=True)
class Labels:
    """Drawn labels: ``counts`` (C,) int64 by class, ``expected`` (C,) float64 with the same sum, ``names`` of
    the classes, the ``ignored`` ones, and whether there is one label per sample (``single``)."""

    names: tuple[str, ...]
    counts: np.ndarray
    expected: np.ndarray
    ignored: int
    single: bool

    @property
    def total_variation(self) -> float:
        """Half the sum of the differences of shares, 0 to 1."""
        return total_variation(self.counts, self.expected)

    @property
    def chi_square(self) -> tuple[float, float] | None:
        """Pearson's statistic and its p value; None for masks and where only one class is expected."""
        if not self.single or np.count_nonzero(self.expected) < 2:
            return None
        return chi_square(self.counts, self.expected)


@dataclass(frozen=True)
class Sampling:
    """One walk over the batches of some epochs.

    Attributes:
        first: seconds until the first batch of each epoch.
        latencies: seconds until each further batch, all epochs one after the other.
        seconds: everything.
        samples, batches: how many were given.
        labels: what was drawn; None where the label is no class number.
    """

    first: tuple[float, ...]
    latencies: tuple[float, ...]
    seconds: float
    samples: int
    batches: int
    labels: Labels | None

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def mean_latency(self) -> float:
        """Seconds per batch, those that come first in an epoch left out; NaN where there are no others."""
        return sum(self.latencies) / len(self.latencies) if self.latencies else math.nan

    def rows(self, **what: Any) -> list[Row]:
        """The rows that the module describes; ``what`` are further fields of them."""
        common = {"level": 2, "phase": PHASE, **what}
        found = []
        for quantity, times in (("latency", self.latencies), ("first_call", self.first)):
            if times:
                middle = median_interval(times)
                interval = {"low": middle.low, "high": middle.high, "confidence": middle.confidence}
                measured = {"samples": times, "repeats": len(times), "value": middle.value, **interval}
                found.append(Row(**{**common, "quantity": quantity, "unit": "s", **measured}))
        if self.latencies:
            mean = {"quantity": "mean_latency", "unit": "s", "value": self.mean_latency}
            found.append(Row(**{**common, **mean}))
        found.append(
            Row(**{**common, "quantity": "throughput", "unit": "samples/s", "value": self.throughput})
        )
        return found + ([] if self.labels is None else _label_rows(self.labels, common))


def measure(source: Any, epochs: int = 1, *, first_epoch: int = 0) -> Sampling:
    """Walk over ``epochs`` epochs of a Sampler, a Loader, or anything with ``epoch(k)`` and ``dataset``.

    Labels are counted after the timed walk: those of a set that knows its class labels by the numbers of the
    samples, others (masks) in a second walk over the same epochs. The set's own are counted too; for masks
    this reads the whole set once more.

    Raises:
        UserError: not such a source, no epoch, no batch, or a sample that cannot be read.
    """
    if not callable(getattr(source, "epoch", None)) or not hasattr(source, "dataset"):
        raise UserError(
            f"sampling is measured of a sampler or loader with .epoch(k) and .dataset, not "
            f"{type(source).__name__}"
        )
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise UserError(f"epochs must be an integer of at least 1, not {epochs!r}")
    data = source.dataset
    counted = data.label is not None and np.dtype(data.dtypes[data.label]).kind in "iu"
    first: list[float] = []
    latencies: list[float] = []
    samples = 0
    for epoch in range(first_epoch, first_epoch + epochs):
        batches = iter(source.epoch(epoch))
        times = first
        while True:
            begin = time.perf_counter_ns()
            batch = next(batches, None)
            seconds = (time.perf_counter_ns() - begin) * 1e-9
            if batch is None:
                break
            times.append(seconds)
            times = latencies
            samples += len(next(iter(batch.values())))
    if not samples:
        raise UserError(f"dataset '{data.name}': the sampler gave no sample in {epochs} epochs")
    known = data.class_labels() if counted else None
    drawn = _drawn(source, range(first_epoch, first_epoch + epochs), known) if counted else _Counts(None)
    labels = _labels(data, drawn, known) if drawn.total else None
    return Sampling(
        first=tuple(first),
        latencies=tuple(latencies),
        seconds=sum(first) + sum(latencies),
        samples=samples,
        batches=len(first) + len(latencies),
        labels=labels,
    )


def total_variation(counts: np.ndarray, expected: np.ndarray) -> float:
    """Half the sum of |p - q| of the shares p and q of ``counts`` and ``expected`` (C,): 0 to 1."""
    p, q = (np.asarray(x, np.float64) / np.sum(x) for x in (counts, expected))
    return float(np.abs(p - q).sum() / 2)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Pearson's chi-square of ``counts`` (C,) against ``expected`` (C,), which have the same sum: statistic
    and p value, with one degree of freedom less than there are classes with an expectation.

    A class that was drawn though it cannot occur gives infinity and 0. The p value is good where at least
    about five are expected of every class (W. G. Cochran, Some Methods for Strengthening the Common
    chi-square Tests, 1954).
    """
    from scipy.stats import chi2

    counts, expected = np.asarray(counts, np.float64), np.asarray(expected, np.float64)
    possible = expected > 0
    if counts[~possible].any():
        return math.inf, 0.0
    statistic = float((np.square(counts - expected)[possible] / expected[possible]).sum())
    return statistic, float(chi2.sf(statistic, np.count_nonzero(possible) - 1))


class _Counts:
    """Labels by class; ``ignore`` is counted apart."""

    def __init__(self, ignore: int | None) -> None:
        self.ignore, self.ignored = ignore, 0
        self.counts = np.zeros(0, np.int64)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def add(self, labels: np.ndarray) -> None:
        labels = np.asarray(labels).ravel()
        if self.ignore is not None:
            kept = labels[labels != self.ignore]
            self.ignored += labels.size - kept.size
            labels = kept
        if labels.size and labels.min() < 0:
            raise UserError(f"a label is {labels.min()}; class numbers start at 0")
        found = np.bincount(labels.astype(np.int64), minlength=len(self.counts))
        found[: len(self.counts)] += self.counts
        self.counts = found


def _drawn(source: Any, epochs: range, known: np.ndarray | None) -> _Counts:
    """The labels that ``source`` draws; by the samples' numbers where they tell the ``known`` labels."""
    data = source.dataset
    drawn = _Counts(data.ignore)
    for epoch in epochs:
        if known is not None and _is_plain(source):
            for indices in source.batches(epoch):
                drawn.add(known[indices])
        else:
            for batch in source.epoch(epoch):
                drawn.add(batch[data.label])
    return drawn


def _is_plain(source: Any) -> bool:
    """Whether batches have the labels of their samples: only the steps of this package change them."""
    if isinstance(source, Loader):
        return all(type(step).__module__ == augmentations.__name__ for step in source.augment)
    return isinstance(source, Sampler) and type(source).epoch is Sampler.epoch


def _labels(data: Any, drawn: _Counts, known: np.ndarray | None) -> Labels:
    own = _Counts(data.ignore)
    if known is not None:
        own.add(known)
    else:
        for begin in range(0, len(data), _PORTION):
            own.add(data.batch(np.arange(begin, min(begin + _PORTION, len(data))))[data.label])
    classes = max(len(own.counts), len(drawn.counts), len(data.classes or ()))
    counts, share = (np.pad(c.counts, (0, classes - len(c.counts))) for c in (drawn, own))
    names = data.classes or ()
    names = tuple(names[k] if k < len(names) else str(k) for k in range(classes))
    expected = share / share.sum() * counts.sum()
    return Labels(names, counts, expected, drawn.ignored, single=known is not None)


def _label_rows(labels: Labels, common: dict[str, Any]) -> list[Row]:
    rows = []
    for quantity, values in (("label_count", labels.counts), ("label_expected", labels.expected)):
        rows += [
            Row(**{**common, "quantity": quantity, "unit": "labels", "node": name, "value": float(value)})
            for name, value in zip(labels.names, values, strict=True)
        ]
    rows.append(Row(**{**common, "quantity": "label_ignored", "unit": "labels", "value": labels.ignored}))
    single = {"total_variation": labels.total_variation}
    if labels.chi_square is not None:
        single |= dict(zip(("chi_square", "p_value"), labels.chi_square, strict=True))
    rows += [Row(**{**common, "quantity": key, "unit": "1", "value": v}) for key, v in single.items()]
    return rows
