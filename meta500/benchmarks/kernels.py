"""Where the time of a generated network goes: seconds in every kernel, beside the machine's limits.

The network is made with stopwatches around its kernels, and once more without, so that what they cost is
seen; both run in the same rounds. The limits are measured before the rounds and after them: the clock of a
shared machine drifts. The peak is that of one core: where others use the machine too, a product by several
threads, which wait for each other, rarely shows it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meta500.backends.generated.schedule import Schedule
from meta500.benchmarks.against_torch import NETS, QUICK_NETS, Net
from meta500.benchmarks.kernel_counts import KernelWork, kernel_works
from meta500.benchmarks.operators.roofline import (
    BANDWIDTH,
    PEAK,
    Roof,
    last_level_cache,
    measure_roofline,
)
from meta500.benchmarks.protocol import SETTLE_SECONDS
from meta500.benchmarks.step_worker import INFERENCE, TRAINING
from meta500.benchmarks.subjects import Subject, inference_action, prepared, training_action
from meta500.benchmarks.variants import GENERATED
from meta500.errors import UserError, choose
from meta500.metrics.clocks import interleave
from meta500.metrics.machine import environment

PHASES = {"training": TRAINING, "inference": INFERENCE}
WITH_WINOGRAD, DIRECT = "default", "direct"
_PLAIN = "without stopwatches"
_TURN_SECONDS = 0.05
_MOST_STEPS = 1000
_WARMUP = 2
# Copy and sum move three arrays; together they fill less than half of the cache.
_CACHE_PARTS = 8
# A product of this size takes milliseconds, short enough to be undisturbed now and then.
_PRODUCT_SIZE = 512


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        net: a network, or a name of ``against_torch.NETS``, or of ``QUICK_NETS`` where ``quick`` is set.
        phase: "training" (a step with Adam) or "inference".
        threads: of the network and of the limits.
        rounds: that are sampled.
        direct: also without Winograd's forms.
        quick: small networks, and few samples of the limits.
        seed: of weights and inputs.
    """

    net: str | Net
    phase: str
    threads: int
    rounds: int
    direct: bool = False
    quick: bool = False
    seed: int = 0

    def chosen(self) -> Net:
        """The network.

        Raises:
            UserError: an unknown network or phase, or a number out of range.
        """
        nets = QUICK_NETS if self.quick else NETS
        choose("phase", self.phase, PHASES)
        processors = len(os.sched_getaffinity(0))
        if not 1 <= self.threads <= processors:
            raise UserError(
                f"threads {self.threads} must be 1 to {processors}, the processors of this process: "
                "rates per core are wanted"
            )
        if self.rounds < 1:
            raise UserError(f"rounds {self.rounds} must be at least 1")
        return self.net if isinstance(self.net, Net) else nets[choose("network", self.net, nets)]


@dataclass(frozen=True)
class Limits:
    """What this machine reached in this run; best of all samples.

    Attributes:
        peak: of a core, multiplying float32 matrices, FLOP/s: alone, or its part while all threads do.
        memory: of all threads, moving data that no cache holds, B/s.
        cache: of one core, moving data that the last-level cache holds, B/s; None where its size is unknown.
        roofs: everything that was measured.
    """

    peak: float
    memory: float
    cache: float | None
    roofs: tuple[Roof, ...] = ()


@dataclass(frozen=True)
class Profile:
    """One form of the network.

    Attributes:
        name: :data:`WITH_WINOGRAD` or :data:`DIRECT`.
        works: its kernels.
        seconds: in every kernel, a row per round; per step, mean over the threads.
        wall: seconds of a step by round.
        processor: processor time over the time of the step and the number of threads, by round: less than 1
            where threads sleep, or others use their cores.
        schedule: what the kernels were made from.
    """

    name: str
    works: list[KernelWork]
    seconds: np.ndarray
    wall: list[float]
    processor: list[float]
    schedule: Schedule | None = None


@dataclass(frozen=True)
class Found:
    """The result.

    ``plain`` are seconds of a step without stopwatches, by round, of the form that is the default.
    """

    plan: Plan
    title: str
    limits: Limits
    profiles: list[Profile]
    plain: list[float]


def measure(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> Found:
    """Measure a plan; ``progress`` is called with a description before each piece of work.

    Raises:
        UserError: the plan is no plan, or there is no compiler.
    """
    net = plan.chosen()
    subject = prepared(net.model, net.options, plan.seed)
    forms: dict[str, dict[str, Any]] = {_PLAIN: {}, WITH_WINOGRAD: {"profile": True}}
    if plan.direct:
        forms[DIRECT] = {"profile": True, "winograd": False}
    with ExitStack() as stack:
        subjects: dict[str, _Stepped] = {}
        for name, options in forms.items():
            progress(f"{net.title}: compiling, {name}")
            made, _ = subject.on({"backend": GENERATED, "threads": plan.threads, **options})
            subjects[name] = _Stepped(stack.enter_context(made), subject, plan.phase)
        progress("limits of the machine, before")
        before = _measure_roofs(plan)
        time.sleep(SETTLE_SECONDS)
        timings = interleave(
            {name: one.turn for name, one in subjects.items()},
            warmup=_WARMUP,
            min_repeats=plan.rounds,
            min_seconds=0.0,
            max_seconds=3600.0,
            setup={name: one.look for name, one in subjects.items() if name != _PLAIN},
            progress=lambda round, _: progress(f"round {round} of {plan.rounds}"),
        )
        progress("limits of the machine, after")
        after = _measure_roofs(plan)
        walls = {}
        for name, timing in timings.items():
            if timing.failure is not None:
                raise timing.failure
            walls[name] = [seconds / subjects[name].count for seconds in timing.samples]
        profiles = [
            Profile(
                name,
                one.works(),
                one.seconds(plan.rounds),
                walls[name],
                one.processor_shares(walls[name]),
                one.executable.schedule,
            )
            for name, one in subjects.items()
            if name != _PLAIN
        ]
    return Found(plan, net.title, _limits([before, after]), profiles, walls[_PLAIN])


@dataclass
class _Stepped:
    """A network, and as many of its steps as a sample takes."""

    net: Any
    subject: Subject
    phase: str
    count: int = 1
    looks: list[np.ndarray] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        action = training_action if PHASES[self.phase] == TRAINING else inference_action
        self.step = action(self.net, self.subject.inputs)
        self.step()
        begin = time.perf_counter()
        self.step()
        self.count = max(1, min(_MOST_STEPS, math.ceil(_TURN_SECONDS / (time.perf_counter() - begin))))

    @property
    def executable(self) -> Any:
        """What the steps run: the network was made for them alone."""
        (found,) = self.net._executables.values()
        return found

    def turn(self) -> None:
        begin = time.process_time()
        for _ in range(self.count):
            self.step()
        self.processor.append(time.process_time() - begin)

    def look(self) -> None:
        """Read the stopwatches."""
        self.looks.append(np.array(list(self.executable.seconds().values())))

    def works(self) -> list[KernelWork]:
        return kernel_works(self.executable.schedule)

    def processor_shares(self, wall: list[float]) -> list[float]:
        """Of the last rounds, whose seconds per step are given."""
        taken = self.processor[-len(wall) :]
        return [one / (s * self.count * self.net.threads) for one, s in zip(taken, wall, strict=True)]

    def seconds(self, rounds: int) -> np.ndarray:
        """Of one step in every kernel in the last rounds."""
        self.look()
        return np.diff(self.looks, axis=0)[-rounds:] / self.count


def _measure_roofs(plan: Plan) -> tuple[list[Roof], list[Roof]]:
    """Products by one thread and by all, and moving data in memory; moving data in the last-level cache."""
    cache = last_level_cache(environment())
    how: dict[str, Any] = {"cache": cache, "product_size": _PRODUCT_SIZE, "min_seconds": 0.5}
    if plan.quick:
        how |= {"min_repeats": 3, "min_seconds": 0.01}
    far = list(measure_roofline(plan.threads, **how).roofs)
    time.sleep(SETTLE_SECONDS)
    one = measure_roofline(1, **how, stream_bytes=cache // _CACHE_PARTS if cache else None).roofs
    far += [roof for roof in one if roof.quantity == PEAK]
    return far, [roof for roof in one if roof.quantity == BANDWIDTH and cache]


def _limits(measured: list[tuple[list[Roof], list[Roof]]]) -> Limits:
    """The best of what was measured at different times."""
    far, near = (_joined([roof for both in measured for roof in both[place]]) for place in range(2))
    return Limits(
        peak=max(roof.best / roof.threads for roof in far if roof.quantity == PEAK),
        memory=max(roof.best for roof in far if roof.quantity == BANDWIDTH),
        cache=max((roof.best for roof in near), default=None),
        roofs=(*far, *near),
    )


def _joined(roofs: list[Roof]) -> list[Roof]:
    """Every limit once, with all its samples."""
    samples: dict[Roof, tuple[float, ...]] = {}
    for roof in roofs:
        what = replace(roof, samples=())
        samples[what] = samples.get(what, ()) + roof.samples
    return [replace(what, samples=found) for what, found in samples.items()]
