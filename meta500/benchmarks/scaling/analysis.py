"""From what was measured to the parameters of the model, predictions and their errors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meta500.benchmarks.scaling.job import Job, Outcome
from meta500.distributed.model.calibration import machine_from
from meta500.distributed.model.computation import Computation, jitter_of
from meta500.distributed.model.links import Link
from meta500.distributed.model.machine import Channel, Machine
from meta500.distributed.model.prediction import (
    Limit,
    Prediction,
    Subject,
    fit_scale,
    fit_single,
    limits,
    predict,
)
from meta500.distributed.model.schemes import Tensors
from meta500.metrics.statistics import median_interval

LARGEST = 4096


@dataclass(frozen=True)
class Network:
    """What the user says about the machine that is predicted; None: as measured here.

    Attributes:
        alpha, beta: seconds per message and per byte between nodes.
        cores: of a node; ranks_per_node: ranks on it.
    """

    alpha: float | None = None
    beta: float | None = None
    cores: int | None = None
    ranks_per_node: int | None = None

    @property
    def given(self) -> bool:
        """Whether anything is not as here."""
        return any(value is not None for value in (self.alpha, self.beta, self.cores, self.ranks_per_node))


@dataclass(frozen=True)
class Check:
    """A measured step against its prediction from the other rank counts alone.

    Attributes:
        seconds: measured median; low, high, confidence: its interval.
        predicted: by a model that has seen no step and no collective on this number of ranks, except that the
            steps of one rank, the messages between two and the contention are known to all.
    """

    scheme: str
    scaling: str
    ranks: int
    seconds: float
    low: float
    high: float
    confidence: float
    predicted: float

    @property
    def error(self) -> float:
        """Predicted over measured, minus 1."""
        return self.predicted / self.seconds - 1


def tensors_of(outcome: Outcome) -> Tensors:
    """The network's tensors."""
    return Tensors(tuple(outcome.parameters), tuple(outcome.statistics))


def computation_of(outcome: Outcome, job: Job) -> Computation:
    """Medians of what single ranks took, and the factors of contention."""

    def middle(samples: Sequence[float]) -> float:
        return float(np.median(samples))

    busy = max(1.0, middle(outcome.busy)) if outcome.busy else 1.0
    spare = outcome.cores - job.threads
    working = (outcome.busy_ranks - 1) * job.threads
    if working > 0 and spare > working:
        # Fewer ranks than the node has cores for were started: the factor rises evenly with them.
        busy = 1 + (busy - 1) * spare / working
    return Computation(
        {batch: middle(samples) for batch, samples in outcome.passes.items()},
        update=middle(outcome.updates) if outcome.updates else 0.0,
        busy=busy,
        slicing=max(1.0, middle(outcome.slicing) / busy) if outcome.slicing else 1.0,
        jitter=jitter_of(outcome.spread),
    )


def machine_of(outcome: Outcome, job: Job, without: Collection[int] = ()) -> Machine:
    """The machine that was measured on; a single rank knows nothing of messages, which then cost nothing."""
    if not outcome.network.messages:
        return Machine(Channel(Link.uniform(0, 0), Link.uniform(0, 0)), gamma=0.0, cores=outcome.cores)
    machine = machine_from(
        outcome.network,
        cores=outcome.cores,
        ranks_per_node=outcome.ranks_per_node,
        threads=job.threads,
        without=without,
    )
    turn = max(0.0, float(np.median(outcome.turns))) if outcome.turns else 0.0
    return replace(machine, turn=turn)


def subject_of(job: Job, outcome: Outcome, without: Collection[int] = ()) -> Subject:
    """The model of what was measured, calibrated without the given rank counts."""
    subject = Subject(
        machine_of(outcome, job, without),
        computation_of(outcome, job),
        tensors_of(outcome),
        job.setup.batch_size,
        job.threads,
        job.options,
    )
    scales, singles = {}, {}
    for scheme in job.schemes:
        alone = [float(np.median(t)) for (s, _, p), t in outcome.steps.items() if (s, p) == (scheme, 1)]
        singles[scheme] = fit_single(subject, scheme, alone)
    subject = replace(subject, singles=singles)
    for scheme in job.schemes:
        known = [
            (ranks, scaling, float(np.median(samples)))
            for (name, scaling, ranks), samples in outcome.steps.items()
            if name == scheme and ranks not in without
        ]
        scales[scheme] = fit_scale(subject, scheme, known)
    return replace(subject, scales=scales)


def checks(job: Job, outcome: Outcome) -> list[Check]:
    """Every measured step on 2 and more ranks against a prediction that was calibrated without them."""
    found = []
    for count in sorted({ranks for _, _, ranks in outcome.steps}):
        subject = subject_of(job, outcome, without=(count,) if count > 1 else ())
        for (scheme, scaling, ranks), samples in outcome.steps.items():
            if ranks != count:
                continue
            interval = median_interval(samples)
            predicted = predict(subject, scheme, ranks, scaling).seconds
            numbers = (interval.value, interval.low, interval.high, interval.confidence)
            found.append(Check(scheme, scaling, ranks, *numbers, predicted))
    order = {scheme: place for place, scheme in enumerate(job.schemes)}
    return sorted(found, key=lambda c: (order[c.scheme], job.scalings.index(c.scaling), c.ranks))


def elsewhere(subject: Subject, network: Network) -> Subject:
    """The subject on the machine that the user describes; without a description, on nodes like this one.

    Ranks get cores of their own there unless the user says how many ranks a node has.
    """
    machine = replace(
        subject.machine.with_network(network.alpha, network.beta),
        cores=network.cores or subject.machine.cores,
        ranks_per_node=network.ranks_per_node,
    )
    return replace(subject, machine=machine)


def rank_counts(largest: int, measured: Sequence[int] = ()) -> list[int]:
    """Powers of two up to ``largest``, with it and the measured counts."""
    powers = [1 << k for k in range(largest.bit_length())]
    return sorted({*(p for p in powers if p <= largest), largest, *(p for p in measured if p <= largest)})


def curves(
    subject: Subject, schemes: Sequence[str], scaling: str, counts: Sequence[int]
) -> dict[str, list[Prediction]]:
    """Predictions by scheme; strong scaling ends where a rank would have no sample."""
    possible = [p for p in counts if scaling == "weak" or p <= subject.batch]
    return {scheme: [predict(subject, scheme, p, scaling) for p in possible] for scheme in schemes}


def stops_paying(predictions: Mapping[str, Sequence[Prediction]], threshold: float) -> dict[str, Limit]:
    """See `meta500.distributed.model.prediction.limits`."""
    return limits(predictions, threshold)


def accuracy(found: Sequence[Check]) -> tuple[float, float]:
    """Median and largest absolute error on 2 and more ranks; NaN where there are none."""
    errors = [abs(check.error) for check in found if check.ranks > 1]
    return (float(np.median(errors)), max(errors)) if errors else (math.nan, math.nan)
