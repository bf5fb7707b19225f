"""Which points are left out because they would take too long or need too much memory."""

from __future__ import annotations

from pathlib import Path

from meta500.benchmarks.studies.abstraction.crew import Crew
from meta500.benchmarks.studies.abstraction.level import CPU, INFERENCE, Job
from meta500.benchmarks.studies.abstraction.settings import Settings
from meta500.benchmarks.studies.abstraction.subject import Needs, needs, network_options, written
from meta500.benchmarks.workers import WorkerFailed

# Multiply-adds of the step that is timed to predict longer ones, and up to which nothing is predicted.
_SMALL = 4e9
# A training step does the work of three inferences, and keeps all activations and some gradients.
_TRAINING_WORK, _TRAINING_KEPT = 3.0, 1.5
_INFERENCE_KEPT = 3
# Of the memory that is free.
_SHARE = 0.8


def too_much(settings: Settings, point: tuple[int, int], phase: str, crew: Crew) -> str:
    """Why a point is left out; "" where it is measured.

    The time of a step is predicted from that of a smaller one, measured now on the first level that runs.
    """
    batch, size = point
    needed = needs(settings.model, settings.options, size)
    memory = memory_needed(needed, batch, phase) * max(1, len(crew.present))
    free = free_memory()
    if settings.device == CPU and memory > _SHARE * free:
        return (
            f"the processes of {len(crew.present)} levels would need about {memory / 2**30:.1f} GiB of "
            f"memory, {free / 2**30:.1f} GiB are free, and {_SHARE:.0%} of them may be used"
        )
    work = batch * needed.multiply_adds * (_TRAINING_WORK if phase != INFERENCE else 1.0)
    if work > _SMALL and crew.rate is None:
        crew.rate = _rate(settings, crew)
    rate = crew.rate or 0.0
    limit = settings.pace.step_limit
    if work > _SMALL and rate and work / rate > limit:
        return (
            f"a step would take about {work / rate:.0f} s ({work / 1e9:.0f} G multiply-adds at "
            f"{rate / 1e9:.1f} G/s of {crew.present[0].level.title}); the limit is {limit:g} s"
        )
    return ""


def memory_needed(needed: Needs, batch: int, phase: str) -> float:
    """Bytes of the network of one level, roughly: weights and activations that live at the same time."""
    if phase == INFERENCE:
        return 2 * needed.weights + _INFERENCE_KEPT * batch * needed.largest
    return 3 * needed.weights + _TRAINING_KEPT * batch * needed.activations


def free_memory() -> float:
    """Bytes that processes can still have; infinite where the system does not tell."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except OSError:
        pass
    return float("inf")


def _rate(settings: Settings, crew: Crew) -> float:
    """Multiply-adds per second of an inference on the first level that runs; 0 where none does.

    At the largest point that is small enough, as the cost of a call hardly counts there.
    """
    from meta500.benchmarks.studies.abstraction.measure import in_folder
    from meta500.models import create

    fit = [point for point in settings.points if not settings.misfit(point[1])]
    work = {p: p[0] * needs(settings.model, settings.options, p[1]).multiply_adds for p in fit}
    fitting = [point for point in work if work[point] <= _SMALL] or [min(work, key=lambda p: work[p])]
    point = max(fitting, key=lambda p: work[p])
    rates: list[float] = []

    def measure(folder: Path) -> None:
        model = create(settings.model, seed=settings.seed, **network_options(settings.options, *point))
        subject = written(settings.model, model, folder, settings.seed)
        member = crew.present[0]
        job = Job(subject.model, subject.inputs, INFERENCE, member.threads, member.device, str(folder))
        try:
            member.ask("make", key="rate", job=job.columns())
            member.ask("steps", key="rate", count=1, lead_in=0.1)
            seconds = min(member.ask("steps", key="rate", count=1, lead_in=0)["seconds"] for _ in range(3))
            member.ask("drop", key="rate")
        except WorkerFailed:
            member.end()
            return
        rates.append(work[point] / seconds)

    if crew.present:
        in_folder(measure)
    return rates[0] if rates else 0.0
