"""Measuring the levels against each other: correctness first, then times in interleaved turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import Emit, ratio_row
from meta500.benchmarks.studies.abstraction.crew import Crew, Member, stopping, threads
from meta500.benchmarks.studies.abstraction.level import INFERENCE, LEARNING_RATE, Job
from meta500.benchmarks.studies.abstraction.reference import NUMPY, NUMPY_MULTIPLY_ADDS, TORCH, Learning
from meta500.benchmarks.studies.abstraction.settings import Pace
from meta500.benchmarks.studies.abstraction.subject import Subject
from meta500.benchmarks.workers import WorkerFailed
from meta500.metrics.clocks import LEAD_IN_SECONDS, Timing
from meta500.metrics.norms import compare, tolerance
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

BASELINE = "eager"
INTERLEAVED = "interleaved, processes"
PER_OPERATOR = "time_per_operator"
# Of the first loss, and of by how much the first update lowers it: the second says that gradients are right.
LOSS_TOLERANCE = 1e-2
# Or so many times what weights that are wrong by one eps of float32 make of each: rounding happens in every
# layer. Within a tolerance beyond MOST_TOLERANCE nothing is said about gradients.
SENSITIVITIES = 8.0
MOST_TOLERANCE = 0.25
# A float32 loss is rounded: its change is known up to so many eps of the loss itself, no better.
LOSS_ROUNDING = 4 * float(np.finfo(np.float32).eps)
LOSS_NORM, LOGITS_NORM = "loss_and_decrease", "max_relative"

_TRAINING_CHECKS = 2
_MOST_STEPS = 1000
_LONG_STEP_SECONDS = 0.5
_AS_FOUND = "with caches of compilers on disk as they were found"
_NOT_ALONE = "other levels were made at the same time"


@dataclass
class Runner:
    """A session of a level that is measured.

    Attributes:
        member: the level.
        key: of its session.
        making: seconds of making it; first: of the first step.
        judged: columns about correctness.
        warm, samples: seconds of a step.
        failure: what ended it.
    """

    member: Member
    key: str
    making: float = 0.0
    first: float = 0.0
    judged: dict[str, Any] = field(default_factory=dict)
    warm: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    failure: Exception | None = None

    @property
    def right(self) -> bool:
        """Whether its results are those of the reference, and it is alive."""
        return self.failure is None and self.judged.get("verdict") == "ok"

    def timing(self, pace: Pace) -> Timing:
        """What was measured."""
        complete = self.failure is None and len(self.samples) == pace.rounds
        return Timing(self.making + self.first, tuple(self.warm), tuple(self.samples), self.failure, complete)


def measure_steps(
    crew: Crew, subject: Subject, phase: str, folder: Path, pace: Pace, emit: Emit
) -> list[Runner]:
    """Measure one step of a network on all levels: error, first call, time, and ratio to PyTorch eager.

    A level that does not run, or fails, has a row with the reason. One that computes something else has the
    verdict "wrong", its times are kept, and it has no ratio.
    """
    runners = begun(crew, subject, phase, folder, pace, emit)
    with dropping(runners):
        run_rounds(runners, pace)
        base = next((r for r in runners if r.member.name == BASELINE and r.right and r.samples), None)
        for runner in runners:
            columns = {**subject.columns(phase), **runner.member.columns()}
            for row in runner.timing(pace).rows(protocol=INTERLEAVED, **columns):
                if row.verdict == "not_compared":
                    row = replace(row, **runner.judged)
                if row.quantity == "first_call":
                    seconds = f"making {runner.making:.3f} s, first step {runner.first:.3f} s"
                    alone = f"; {_NOT_ALONE}" if pace.at_once > 1 else ""
                    row = replace(row, note=f"{seconds}; {_AS_FOUND}{alone}")
                emit(row)
            if phase == INFERENCE and runner.right and runner.samples:
                each = [seconds / subject.operators for seconds in runner.samples]
                per: dict[str, Any] = {
                    "quantity": PER_OPERATOR,
                    "unit": "s",
                    "samples": tuple(each),
                    "protocol": INTERLEAVED,
                }
                note = f"time of a step by its {subject.operators} operators"
                emit(Row(**columns, **per, **asdict(median_interval(each)), note=note))
            if base is not None and runner is not base and runner.right:
                ratio = ratio_row(
                    runner.timing(pace), base.timing(pace), BASELINE, protocol=INTERLEAVED, **columns
                )
                if ratio is not None:
                    emit(ratio)
    return runners


def begun(
    crew: Crew, subject: Subject, phase: str, folder: Path, pace: Pace, emit: Emit, key: str = ""
) -> list[Runner]:
    """Sessions of all levels that run a network, first steps done and judged; rows of those that do not."""
    key = key or f"{subject.title} {phase} {subject.shape}"
    count = _checked_steps(phase)
    expected = _reference(crew, subject, phase, count, folder)
    reasons = {
        member.name: member.missing or (member.untrainable if phase != INFERENCE else "")
        for member in crew.members
    }
    runners = {m.name: Runner(m, key) for m in crew.members if not reasons[m.name]}
    for runner in runners.values():
        runner.member.start()
    with threads([runner.member for runner in runners.values()], pace.at_once) as pool:
        first = pool.map(
            lambda r: _first_steps(r, subject, phase, expected.learning.rate, folder), runners.values()
        )
        reasons |= dict(zip(runners, first, strict=True))
    for member in crew.members:
        if reasons[member.name]:
            columns = {**subject.columns(phase), **member.columns(), "note": reasons[member.name]}
            emit(Row(**columns, quantity="time", unit="s", value=None, verdict="unsupported"))
        elif runners[member.name].failure is None:
            found = _results(folder, member)
            runners[member.name].judged = judged(subject, phase, found, expected)
    return [runner for name, runner in runners.items() if not reasons[name]]


def _first_steps(runner: Runner, subject: Subject, phase: str, rate: float, folder: Path) -> str:
    """Make the session and run its first steps; returns the reason why the level does not run it."""
    member = runner.member
    own = Path(folder, f"{member.name}-{phase}-{abs(hash(runner.key))}")
    own.mkdir(exist_ok=True)
    job = Job(subject.model, subject.inputs, phase, member.threads, member.device, str(own), rate)
    count = _checked_steps(phase)
    try:
        made = member.ask("make", key=runner.key, job=job.columns())
        if "unavailable" in made:
            return str(made["unavailable"])
        path = str(_results_path(folder, member))
        done = member.ask("results", key=runner.key, count=count, path=path)
    except WorkerFailed as failure:
        fail(runner, failure)
        return ""
    runner.making, runner.first = made["seconds"], done["first"]
    return ""


def fail(runner: Runner, failure: Exception) -> None:
    """It takes no further part; its process ends, and the level's next session has a new one."""
    runner.failure = failure
    runner.member.end()


@contextmanager
def dropping(runners: Sequence[Runner]) -> Iterator[None]:
    """End the sessions of ``runners``, those added meanwhile too; on an interruption their processes."""
    try:
        with stopping(lambda: [runner.member for runner in runners]):
            yield
    finally:
        _dropped(runners)


def _dropped(runners: Sequence[Runner]) -> None:
    for runner in runners:
        if runner.failure is None:
            try:
                runner.member.ask("drop", key=runner.key)
            except WorkerFailed:
                runner.member.end()


def _checked_steps(phase: str) -> int:
    return 1 if phase == INFERENCE else _TRAINING_CHECKS


@dataclass(frozen=True)
class Expected:
    """What a level should give.

    Attributes:
        results: of the first steps in float64, logits (steps, batch, classes) or losses (steps,); or the
            reason (str) why there are none.
        by: whose they are.
        learning: how the network is trained for them.
    """

    results: np.ndarray | str
    by: str
    learning: Learning = field(default_factory=lambda: Learning(LEARNING_RATE))


def _reference(crew: Crew, subject: Subject, phase: str, count: int, folder: Path) -> Expected:
    threads = max((member.threads for member in crew.members), default=1)
    job = Job(subject.model, subject.inputs, phase, threads, "cpu", str(folder))
    by = NUMPY if subject.multiply_adds <= NUMPY_MULTIPLY_ADDS else TORCH
    path = folder / "reference.npy"
    limit = max((member.limit for member in crew.members), default=600.0)
    try:
        learning = crew.reference().ask(
            "reference", limit, job=job.columns(), count=count, by=by, path=str(path)
        )
    except WorkerFailed as failure:
        crew.end_reference()
        return Expected(f"there is no reference in float64 to compare with: {failure}", by)
    return Expected(np.load(path), by, Learning(**learning))


def _results_path(folder: Path, member: Member) -> Path:
    return folder / f"results-{member.name}.npy"


def _results(folder: Path, member: Member) -> np.ndarray:
    return np.load(_results_path(folder, member))  # type: ignore[no-any-return]


def judged(subject: Subject, phase: str, found: np.ndarray, reference: Expected) -> dict[str, Any]:
    """Columns about correctness.

    Args:
        subject: the network.
        phase: "inference" or "training_step".
        found: logits (steps, batch, classes), or losses (steps,) of the first two training steps.
        reference: what they should be.
    """
    expected = reference.results
    if isinstance(expected, str):
        return {"note": expected}
    note = f"reference: {reference.by}"
    if found.shape != expected.shape:
        wrong = f"results have shape {found.shape}, expected is {expected.shape}"
        return {"verdict": "wrong", "note": f"{wrong}; {note}"}
    if phase == INFERENCE:
        norms = compare(found, expected)
        limit = tolerance(np.float32, subject.longest_sum)
        columns = {"error": norms.max_relative, "error_norm": LOGITS_NORM, "tolerance": limit}
        return {**columns, "verdict": norms.verdict(limit), "note": note}
    note = f"learning rate {reference.learning.rate:g}; {note}"
    if not np.isfinite(expected).all():
        return {"note": f"the losses in float64 are not finite; {note}"}
    learning = reference.learning
    limits = [max(LOSS_TOLERANCE, SENSITIVITIES * each) for each in (learning.loss, learning.change)]
    errors = loss_errors(found, expected)
    # Shown is the one that is nearer to its tolerance, or beyond.
    error, limit = max(zip(errors, limits, strict=True), key=lambda pair: pair[0] / pair[1])
    if not np.isfinite(found).all():
        verdict, error = "wrong", math.inf
    elif error > limit:
        verdict = "wrong"
    elif hidden := _hidden(expected, max(learning.loss, learning.change)):
        verdict, note = "not_compared", f"{hidden}; {note}"
    else:
        verdict = "ok"
    columns = {"error": error, "error_norm": LOSS_NORM, "tolerance": limit if math.isfinite(limit) else None}
    return {**columns, "verdict": verdict, "note": note}


def loss_errors(found: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """The relative errors of the first loss and of its change by the first update.

    Of the difference of the changes :data:`LOSS_ROUNDING` of the loss does not count.

    Args:
        found, expected: losses (2,) of two steps.
    """
    first = float(abs(found[0] - expected[0]) / max(abs(expected[0]), 1e-30))
    change = expected[1] - expected[0]
    beyond = abs((found[1] - found[0]) - change) - _rounding(expected)
    return first, float(max(beyond, 0.0) / max(abs(change), 1e-30))


def _rounding(expected: np.ndarray) -> float:
    return LOSS_ROUNDING * float(np.abs(expected).max())


def _hidden(expected: np.ndarray, sensitivity: float) -> str:
    """Why two losses say nothing about gradients, as an update that changes nothing would pass, or most
    others; "" where they do."""
    change = abs(expected[1] - expected[0])
    if change * (1 - LOSS_TOLERANCE) <= _rounding(expected):
        return "the first update changes the loss by no more than float32 rounds it to"
    if SENSITIVITIES * sensitivity > MOST_TOLERANCE:
        return f"weights that are wrong by one eps of float32 change what is compared by {sensitivity:.2g}"
    return ""


def run_rounds(runners: Sequence[Runner], pace: Pace, seed: int = 0) -> None:
    """Let all take turns, in an order shuffled anew each round; sessions of one level one after the other."""
    rng = np.random.default_rng(seed)
    for number in range(pace.warmup + pace.rounds):
        groups: dict[str, list[Runner]] = {}
        for runner in runners:
            groups.setdefault(runner.member.name, []).append(runner)
        names = list(groups)
        for index in rng.permutation(len(names)):
            group = groups[names[index]]
            time.sleep(pace.settle)
            for place in rng.permutation(len(group)):
                if group[place].failure is None:
                    _turn(group[place], pace, number < pace.warmup)
            failure = next((runner.failure for runner in group if runner.failure is not None), None)
            for runner in group:
                runner.failure = failure  # they had one process


def _turn(runner: Runner, pace: Pace, warming: bool) -> None:
    known = [runner.first, *runner.warm, *runner.samples[:1]]
    expected = max(min(known), 1e-7)
    count = 1 if warming else max(1, min(_MOST_STEPS, math.ceil(pace.turn / expected)))
    lead_in = 0.0 if warming or expected > _LONG_STEP_SECONDS else LEAD_IN_SECONDS
    try:
        turn = runner.member.ask("steps", key=runner.key, count=count, lead_in=lead_in)
    except WorkerFailed as failure:
        fail(runner, failure)
        return
    (runner.warm if warming else runner.samples).append(turn["seconds"] / count)


def in_folder(action: Callable[[Path], None]) -> None:
    """Call ``action`` with a new folder, which is deleted afterwards."""
    with TemporaryDirectory(prefix="meta500-") as folder:
        action(Path(folder))


def unsupported(crew: Crew, columns: Mapping[str, Any], reason: str, emit: Emit) -> None:
    """A row for every level: this was not measured, and why."""
    for member in crew.members:
        what = {**columns, **member.columns(), "quantity": "time", "unit": "s"}
        emit(Row(**what, value=None, verdict="unsupported", note=reason))
