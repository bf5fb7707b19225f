"""Step times on any number of ranks, and where a scheme stops paying."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from meta500.distributed.model.computation import Computation
from meta500.distributed.model.machine import Machine
from meta500.distributed.model.schemes import Exchange, Setting, Tensors, asynchronous, exchange
from meta500.errors import UserError, choose

SCALINGS = ("weak", "strong")
# What the scale of a scheme's exchange is held to: measured steps are good to this share, and before any
# measurement the exchange is known to about this factor (both standard deviations of logarithms).
MEASURED, ASSUMED = 0.05, math.log(2)
# By how much another scheme must be faster to count, the model being no better than that.
FASTER = 1.1
SCALES = np.exp(np.linspace(-math.log(8), math.log(8), 401))


@dataclass(frozen=True)
class Subject:
    """What is predicted: a network on a backend with an optimizer, on a machine.

    Attributes:
        machine, computation, tensors: see there.
        batch: samples per rank and step for weak scaling; of all ranks together for strong scaling.
        threads: of every rank.
        options: of the schemes, by scheme.
        singles: factor on the computation by scheme, from `fit_single`: what one rank takes under a scheme
            over what it takes alone; 1 by default.
        scales: factor on the exchange by scheme, from `fit_scale`; 1 by default.
    """

    machine: Machine
    computation: Computation
    tensors: Tensors
    batch: int
    threads: int = 1
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    singles: Mapping[str, float] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """One step on P ranks.

    Attributes:
        seconds: of the step.
        passing: of them, until the slowest rank has its gradients.
        exchanging: the rest: exchange, waiting and update.
        exchange: as the scheme's formula gives it, before its scale.
        batch: samples of the rank with most of them.
        samples: of all ranks together.
    """

    scheme: str
    scaling: str
    ranks: int
    batch: int
    samples: int
    seconds: float
    passing: float
    exchanging: float
    exchange: Exchange

    @property
    def rate(self) -> float:
        """Samples per second of all ranks."""
        return self.samples / self.seconds


def predict(subject: Subject, scheme: str, ranks: int, scaling: str = "weak") -> Prediction:
    """Predict a step.

    Raises:
        UserError: an unknown scheme or scaling, no rank, or strong scaling beyond one sample per rank.
    """
    choose("scaling", scaling, SCALINGS)
    if ranks < 1:
        raise UserError(f"{ranks} ranks cannot be predicted; use at least 1")
    if scaling == "strong" and ranks > subject.batch:
        raise UserError(f"strong scaling: a batch of {subject.batch} cannot be divided among {ranks} ranks")
    batch = subject.batch if scaling == "weak" else math.ceil(subject.batch / ranks)
    samples = subject.batch * (ranks if scaling == "weak" else 1)
    passing, updating = computing(subject, scheme, ranks, batch)
    setting = Setting(
        subject.machine,
        subject.tensors,
        ranks,
        subject.threads,
        passing,
        updating,
        subject.options.get(scheme, {}),
    )
    cost = exchange(scheme, setting)
    beside = max(0.0, cost.seconds - updating) * subject.scales.get(scheme, 1.0) + min(cost.seconds, updating)
    return Prediction(scheme, scaling, ranks, batch, samples, passing + beside, passing, beside, cost)


def computing(subject: Subject, scheme: str, ranks: int, batch: int) -> tuple[float, float]:
    """Seconds of the pass and of the update on ``ranks`` ranks, with what they share."""
    machine, model = subject.machine, subject.computation
    node = machine.on_node(ranks, subject.threads)
    # Ranks that do not wait for each other use their cores evenly, and their mean pace counts.
    own_pace = asynchronous(scheme, subject.options.get(scheme, {}))
    balance = 0.0 if own_pace else machine.balance

    def factor(seconds: float, count: int) -> float:
        return model.contention(seconds, count, subject.threads, machine.cores, balance)

    single = subject.singles.get(scheme, 1.0)
    alone, update = single * model.alone(batch), single * model.update
    together = factor(alone + update, node)
    passing = alone * together * (1.0 if own_pace else model.slowest(ranks))
    # Where the root alone updates, the others' cores are idle.
    only_root = scheme == "consistent-parameter-server" and update > 0
    return passing, update * (factor(update, 1) if only_root else together)


def fit_single(subject: Subject, scheme: str, seconds: Sequence[float]) -> float:
    """The factor on a scheme's computation that explains its measured steps on one rank.

    On one rank nothing is exchanged, but a wrapper of the optimizer is not free. 1 where nothing is measured.
    """
    if not seconds:
        return 1.0
    alone = subject.computation.alone(subject.batch) + subject.computation.update
    return float(np.exp(np.mean(np.log(np.asarray(seconds) / alone))))


def fit_scale(subject: Subject, scheme: str, measured: Sequence[tuple[int, str, float]]) -> float:
    """The factor on a scheme's exchange that explains measured steps best.

    The most likely one for log-normal errors of 5 % in the steps, of a factor that is 1 within a factor of 2
    (one standard deviation) before anything is measured. Where the exchange is a small part of the step, the
    measurements say little about it, and it stays near 1.

    Args:
        measured: (ranks, scaling, seconds) of steps; those on one rank have no exchange and are left out.
    """
    points = [(predict(subject, scheme, p, kind), seconds) for p, kind, seconds in measured if p > 1]
    if not points:
        return 1.0
    misfit = (np.log(SCALES) / ASSUMED) ** 2
    scale = subject.scales.get(scheme, 1.0)
    for prediction, seconds in points:
        _, update = computing(subject, scheme, prediction.ranks, prediction.batch)
        scaled = max(0.0, prediction.exchanging - update)
        steps = prediction.seconds - scaled + SCALES * scaled / scale
        misfit = misfit + (np.log(steps / seconds) / MEASURED) ** 2
    return float(SCALES[int(np.argmin(misfit))])


def efficiency(prediction: Prediction, single: float) -> float:
    """Speed per rank relative to one rank that takes ``single`` seconds for a step of the same scaling.

    Weak: t(1) / t(P), every rank having the same batch. Strong: t(1) / (P t(P)).
    """
    divisor = 1 if prediction.scaling == "weak" else prediction.ranks
    return single / (divisor * prediction.seconds)


@dataclass(frozen=True)
class Limit:
    """Where a scheme stops paying, in ranks; None where it does not up to the largest count asked.

    Attributes:
        inefficient: the first count whose efficiency is below the threshold.
        overtaken: the first count from which on another scheme is faster by more than 10 %, and its name at
            this count in ``by``.
        slower: the first count at which more ranks do not process more samples per second.
    """

    inefficient: int | None
    overtaken: int | None
    by: str
    slower: int | None


def limits(curves: Mapping[str, Sequence[Prediction]], threshold: float) -> dict[str, Limit]:
    """Where each scheme stops paying, for predictions of one scaling by rising rank count, 1 among them.

    Raises:
        UserError: a threshold outside of 0 to 1.
    """
    if not 0 < threshold < 1:
        raise UserError(f"a threshold of the efficiency must be between 0 and 1, got {threshold}")
    found = {}
    for scheme, curve in curves.items():
        single = curve[0].seconds
        low = next((p.ranks for p in curve if p.ranks > 1 and efficiency(p, single) < threshold), None)
        best = [_fastest(curves, place) for place in range(len(curve))]
        overtaken, by = None, ""
        for place in reversed(range(len(curve))):
            if curve[place].ranks == 1 or best[place].seconds * FASTER >= curve[place].seconds:
                break
            overtaken, by = curve[place].ranks, best[place].scheme
        slower = next((b.ranks for a, b in pairwise(curve) if b.rate <= a.rate), None)
        found[scheme] = Limit(low, overtaken, by, slower)
    return found


def _fastest(curves: Mapping[str, Sequence[Prediction]], place: int) -> Prediction:
    return min((curve[place] for curve in curves.values() if place < len(curve)), key=lambda p: p.seconds)
