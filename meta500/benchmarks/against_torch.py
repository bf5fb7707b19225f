"""The generated backend against plain PyTorch: times, peak memory and start, each variant in its own process.

Every variant runs in a process of its own that lives through all rounds of one network and phase, since the
allocator is set by the environment of a process. A round asks each, in an order shuffled anew, for one turn
of some steps; meanwhile the others wait at a pipe. What a turn took is measured by the process itself,
around the steps alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from meta500.benchmarks.networks import columns_of, emit_times
from meta500.benchmarks.protocol import SETTLE_SECONDS, Emit, label, ratio_row
from meta500.benchmarks.step_worker import INFERENCE, TRAINING
from meta500.benchmarks.subjects import Subject, prepared
from meta500.benchmarks.variants import GENERATED, Variant
from meta500.benchmarks.workers import Worker, WorkerFailed
from meta500.errors import UserError, choose
from meta500.metrics.clocks import LEAD_IN_SECONDS, Timing
from meta500.metrics.rows import Row

MEMORY, COLD = "memory", "cold"
PHASES = (TRAINING, INFERENCE, MEMORY, COLD)
INTERLEAVED, OWN_PROCESS = "interleaved, processes", "process of its own"
COLD_START, WARM_START = "alone, cold start", "alone, warm start"

_MODULE = "meta500.benchmarks.step_worker"
_TURN_SECONDS = 0.05
_MOST_STEPS = 1000
# Waking threads up costs nothing beside a step that takes longer than this.
_LONG_STEP_SECONDS = 0.5
_MEMORY_STEPS = 3
# Enough for the intervals of six networks that are judged together.
FEWEST_ROUNDS = 7
# Largest relative difference of the loss, or of the root mean square of the logits, among the variants.
_AGREEMENT = 1e-3


@dataclass(frozen=True)
class Net:
    """A network to measure, with the options with which its error against float64 is measured.

    ``gradients`` says whether gradients are compared: in a deep network with normalisation some Relu's input
    always lies within rounding of 0, and the gradient jumps there.
    """

    title: str
    model: str
    options: dict[str, Any]
    small: dict[str, Any]
    gradients: bool = True


def unet(n: int, size: int, batch: int = 8, dtype: str = "float32") -> Net:
    """U-Net(n) on ``batch`` images of ``size`` x ``size`` pixels, in "float32" or "float64"."""
    small: dict[str, Any] = {"n": n, "size": min(size, 64 if n < 4 else 32), "batch": min(batch, 2)}
    if dtype != "float32":
        small["dtype"] = dtype
    return Net(f"unet-{n}", "unet", {**small, "batch": batch, "size": size}, small)


def _resnet(title: str, small_images: bool) -> Net:
    options = {"batch": 64, "size": 32, "classes": 10, "small_images": small_images}
    return Net(title, "resnet18", options, {**options, "batch": 4}, gradients=False)


_SIZES = {0: 512, 1: 512, 2: 512, 3: 512, 4: 256, 5: 128, 6: 64}
NETS = {
    net.title: net
    for net in (
        *(unet(n, size) for n, size in _SIZES.items()),
        Net("digits_cnn", "digits_cnn", {"batch": 64}, {"batch": 64}),
        _resnet("resnet18-small", True),
        _resnet("resnet18", False),
    )
}
QUICK_NETS = {
    net.title: net for net in (unet(0, 32, 2), Net("digits_cnn", "digits_cnn", {"batch": 64}, {"batch": 64}))
}


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        nets: names of :data:`NETS`, or of :data:`QUICK_NETS` where ``quick`` is set; none: all.
        phases: of :data:`PHASES`.
        variants: who is compared, the generated backend among them.
        rounds: that are sampled; warmup: rounds before.
        threads: of each process.
        limit: seconds for one order to a process, its compilation included.
        settle: seconds of rest before each turn.
        quick: small networks.
        environment: variables of all processes, beside those of the variants.
        error: measure the error of the generated backend against float64.
        max_seconds: of warming up and sampling; when they are over no further round is begun, but
            :data:`FEWEST_ROUNDS` are sampled whatever they take, or ``rounds`` if these are fewer.
    """

    nets: tuple[str, ...]
    phases: tuple[str, ...]
    variants: tuple[Variant, ...]
    rounds: int
    threads: int
    warmup: int = 2
    limit: float = 600.0
    settle: float = SETTLE_SECONDS
    quick: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    error: bool = True
    max_seconds: float = math.inf

    def check(self) -> None:
        """Refuse what can't be measured.

        Raises:
            UserError: an unknown network or phase, or a number out of range.
        """
        for name in self.nets:
            choose("network", name, self.known)
        for phase in self.phases:
            choose("phase", phase, PHASES)
        if self.rounds < 1 or self.threads < 1 or self.limit <= 0:
            raise UserError(
                f"rounds {self.rounds} and threads {self.threads} must be at least 1, "
                f"limit {self.limit:g} must be positive"
            )

    @property
    def known(self) -> dict[str, Net]:
        """The networks that can be chosen."""
        return QUICK_NETS if self.quick else NETS

    @property
    def chosen(self) -> list[Net]:
        """The networks in the order of the tables."""
        return [net for title, net in self.known.items() if not self.nets or title in self.nets]


def measure(plan: Plan, emit: Emit, progress: Callable[[str], None] = lambda _: None) -> None:
    """Measure a plan.

    Args:
        plan: what to measure.
        emit: receives the rows: time, first call, throughput, and the ratio of each variant's time to the
            generated backend's, paired by round; peak memory of a training process; cold and warm start. A
            variant that fails or takes too long has a row with verdict "failed" and the reason.
        progress: called with a description before each piece of work.

    Raises:
        UserError: the plan is no plan, or a process can't be started.
    """
    plan.check()
    for net in plan.chosen:
        measure_net(plan, net, emit, progress)


def measure_net(
    plan: Plan,
    net: Net,
    emit: Emit,
    progress: Callable[[str], None] = lambda _: None,
    seed: int = 0,
    known: dict[str, float] | None = None,
) -> None:
    """Measure the phases and variants of a plan on one network, which need not be one of its own.

    Args:
        plan, emit, progress: as for :func:`measure`.
        net: the network.
        seed: of weights and inputs.
        known: what the first steps of other variants gave, by their names, where one network and phase are
            measured in several groups; all are judged by their median. Those of this plan are added.
    """
    progress(f"{net.title}: weights")
    subject = replace(prepared(net.model, net.options, seed), name=net.title, options={})
    with TemporaryDirectory(prefix="meta500-") as folder:
        job = _job(net, subject, Path(folder))
        for phase in (p for p in PHASES if p in plan.phases):
            if phase == MEMORY:
                _measure_memory(plan, subject, job, emit, progress)
            elif phase == COLD:
                _measure_start(plan, subject, job, Path(folder), emit, progress)
            else:
                _measure_times(plan, net, subject, job, phase, emit, progress, {} if known is None else known)


def _job(net: Net, subject: Subject, folder: Path) -> dict[str, Any]:
    """What every worker of a network is told; its data and weights lie in files."""
    inputs, weights = folder / "inputs.npz", folder / "weights.npz"
    np.savez(inputs, allow_pickle=False, **subject.inputs)
    np.savez(weights, allow_pickle=False, **subject.model.graph.initializers)
    return {
        "model": net.model,
        "model_options": net.options,
        "inputs": str(inputs),
        "weights": str(weights),
    }


def _worker(plan: Plan, variant: Variant, more: Mapping[str, str] | None = None) -> Worker:
    environment = {"OMP_NUM_THREADS": str(plan.threads), **plan.environment, **variant.environment}
    return Worker(_MODULE, {**environment, **(more or {})}, variant.name)


# -- times --------------------------------------------------------------------------------------------------


@dataclass
class _Runner:
    """A variant whose process runs, and what is known of it."""

    variant: Variant
    worker: Worker
    first: float | None = None
    found: float | None = None
    warm: list[float] | None = None
    samples: list[float] | None = None
    failure: Exception | None = None

    def timing(self, warmup: int, rounds: int) -> Timing:
        warm, samples = tuple(self.warm or ()), tuple(self.samples or ())
        complete = self.failure is None and (len(warm), len(samples)) == (warmup, rounds)
        return Timing(self.first, warm, samples, self.failure, complete)


def _measure_times(
    plan: Plan,
    net: Net,
    subject: Subject,
    job: dict[str, Any],
    phase: str,
    emit: Emit,
    progress: Callable[[str], None],
    known: dict[str, float],
) -> None:
    what = f"{net.title}: {phase.replace('_', ' ')}"
    progress(f"{what}, error against float64")
    error = _error(plan, net, phase)
    with ExitStack() as stack:
        runners = []
        for variant in plan.variants:
            progress(f"{what}, first call of {label(variant.columns(plan.threads))}")
            runner = _Runner(variant, stack.enter_context(_worker(plan, variant)))
            runners.append(runner)
            _begin(runner, {**job, **variant.job(plan.threads), "phase": phase}, plan.limit)
        rounds = _run_rounds(plan, runners, lambda text: progress(f"{what}, {text}"))
    timings = {r.variant.name: r.timing(plan.warmup, rounds) for r in runners}
    base = next((t for r, t in zip(runners, timings.values(), strict=True) if _is_ours(r.variant)), None)
    known.update({r.variant.name: r.found for r in runners if r.found is not None})
    agreed = statistics.median(list(known.values()) or [math.nan])
    for runner in runners:
        columns = {**columns_of(subject, phase), **runner.variant.columns(plan.threads)}
        if phase == TRAINING:
            columns["optimizer"] = runner.variant.optimizer
        judged = _judged(runner, agreed, error)
        timing = timings[runner.variant.name]
        emit_times(timing, {**columns, **judged}, subject.batch, emit, INTERLEAVED)
        if base is not None and not _is_ours(runner.variant):
            row = ratio_row(timing, base, GENERATED, protocol=INTERLEAVED, **columns)
            if row is not None:
                emit(row)


def _begin(runner: _Runner, job: dict[str, Any], limit: float) -> None:
    """Make the network and run the first step."""
    try:
        runner.worker.ask("make", limit, **job)
        first = runner.worker.ask("steps", limit, count=1, lead_in=0)
        runner.first, runner.found = first["seconds"], first["found"]
        runner.warm, runner.samples = [], []
    except WorkerFailed as failure:
        _fail(runner, failure)


def _fail(runner: _Runner, failure: Exception) -> None:
    """It takes no further part, and needs no more memory."""
    runner.failure = failure
    runner.worker.close()


def _run_rounds(plan: Plan, runners: Sequence[_Runner], progress: Callable[[str], None]) -> int:
    """Warm up and sample; returns how many rounds were sampled."""
    rng = np.random.default_rng(0)
    end = time.monotonic() + plan.max_seconds
    for number in range(plan.warmup + plan.rounds):
        sampled = number - plan.warmup
        if sampled >= FEWEST_ROUNDS and time.monotonic() >= end:
            return sampled
        alive = [r for r in runners if r.failure is None]
        progress(f"round {number + 1} of {plan.warmup + plan.rounds}")
        for index in rng.permutation(len(alive)):
            runner = alive[index]
            assert runner.warm is not None and runner.samples is not None and runner.first is not None
            warming = number < plan.warmup
            expected = min([runner.first, *runner.warm])
            count = 1 if warming else max(1, min(_MOST_STEPS, math.ceil(_TURN_SECONDS / expected)))
            lead_in = 0.0 if warming or expected > _LONG_STEP_SECONDS else LEAD_IN_SECONDS
            time.sleep(plan.settle)
            try:
                turn = runner.worker.ask("steps", plan.limit, count=count, lead_in=lead_in)
            except WorkerFailed as failure:
                _fail(runner, failure)
                continue
            (runner.warm if warming else runner.samples).append(turn["seconds"] / count)
    return plan.rounds


def _error(plan: Plan, net: Net, phase: str) -> dict[str, Any]:
    """Error columns of the generated backend on a small form of the network."""
    generated = next((v for v in plan.variants if _is_ours(v)), None)
    if generated is None or not plan.error:
        return {}
    order = {"model": net.model, "model_options": net.small, "phase": phase, "threads": plan.threads}
    order["gradients"] = net.gradients
    try:
        with _worker(plan, generated) as worker:
            return dict(worker.ask("judge", plan.limit, **order))
    except WorkerFailed as failure:
        return {"note": f"the error against float64 is not known: {failure}"}


def _judged(runner: _Runner, agreed: float, error: dict[str, Any]) -> dict[str, Any]:
    """Columns about correctness: error against float64, and whether the first step is as the others'."""
    if runner.failure is not None:
        return {}
    columns = dict(error) if _is_ours(runner.variant) else {}
    if runner.found is None or not abs(runner.found / agreed - 1) <= _AGREEMENT:
        columns["verdict"] = "wrong"
        columns["note"] = f"the first step gives {runner.found}, the median of all variants is {agreed}"
    return columns


def _is_ours(variant: Variant) -> bool:
    return variant.backend == GENERATED


# -- memory and start ---------------------------------------------------------------------------------------


def _measure_memory(
    plan: Plan, subject: Subject, job: dict[str, Any], emit: Emit, progress: Callable[[str], None]
) -> None:
    """Peak memory of a process that imports, makes and trains three steps, and does nothing else."""
    for variant in plan.variants:
        columns = {**columns_of(subject, TRAINING), **variant.columns(plan.threads)}
        columns |= {"optimizer": variant.optimizer, "quantity": "peak_memory", "unit": "B"}
        progress(f"{subject.title}: peak memory of {label(columns)}")
        try:
            with _worker(plan, variant) as worker:
                made = worker.ask("make", plan.limit, **job, **variant.job(plan.threads), phase=TRAINING)
                worker.ask("steps", plan.limit, count=_MEMORY_STEPS, lead_in=0)
                peak = worker.ask("peak_memory", plan.limit)
        except WorkerFailed as failure:
            emit(Row(**columns, value=None, verdict="failed", note=str(failure), protocol=OWN_PROCESS))
            continue
        note = "of the whole process, imports included, compilers that it starts not"
        emit(Row(**columns, value=float(peak), protocol=OWN_PROCESS, note=note))
        before = {**columns, "quantity": "memory_before"}
        note = "resident when inputs and libraries were loaded, and the network not yet made"
        emit(Row(**before, value=float(made["resident"]), protocol=OWN_PROCESS, note=note))


def _measure_start(
    plan: Plan,
    subject: Subject,
    job: dict[str, Any],
    folder: Path,
    emit: Emit,
    progress: Callable[[str], None],
) -> None:
    """What comes before the first training step is done, with empty caches and again with full ones.

    The time of a second step is taken off; imports are not in it.
    """
    for variant in (v for v in plan.variants if not v.tuned):
        caches = {
            "META500_CACHE": str(folder / f"cache-{variant.name}"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{variant.name}"),
        }
        for protocol in (COLD_START, WARM_START):
            columns = {**columns_of(subject, TRAINING), **variant.columns(plan.threads)}
            columns |= {"optimizer": variant.optimizer, "quantity": "first_call", "unit": "s"}
            progress(f"{subject.title}: {protocol.partition(', ')[2]} of {label(columns)}")
            try:
                with _worker(plan, variant, caches) as worker:
                    made = worker.ask("make", plan.limit, **job, **variant.job(plan.threads), phase=TRAINING)
                    first, second = (
                        worker.ask("steps", plan.limit, count=1, lead_in=0)["seconds"] for _ in range(2)
                    )
            except WorkerFailed as failure:
                emit(Row(**columns, value=None, verdict="failed", note=str(failure), protocol=protocol))
                break
            seconds = made["seconds"] + first - second
            note = (
                f"making {made['seconds']:.3f} s and first step {first:.3f} s less second {second:.3f} s; "
                f"imports took {made['imports']:.2f} s"
            )
            emit(Row(**columns, value=max(seconds, 0.0), repeats=1, protocol=protocol, note=note))
