"""Times of generating and compiling the code of one training step, for networks of growing size."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meta500.benchmarks.against_torch import COLD, Plan, measure_net, unet
from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.step_worker import TRAINING
from meta500.benchmarks.studies.codegen.generation_worker import COMPILING, GENERATING, STEPS
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.benchmarks.variants import VARIANTS, Variant
from meta500.benchmarks.workers import Worker, WorkerFailed
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

WORKER = "meta500.benchmarks.studies.codegen.generation_worker"
EMPTY_CACHE = "process of its own, empty cache"
LIMIT = 1800.0
COMPILED = ("compile", "compile-channels-last")


def columns_of(point: Point, **more: Any) -> dict[str, Any]:
    """The columns that say which network, and that the generated backend ran it."""
    shape = f"{point.batch}x3x{point.size}x{point.size}"
    what = {"level": 1, "model": f"unet-{point.n}", "phase": TRAINING, "shape": shape}
    what |= {"dtype": point.dtype, "batch": point.batch, "optimizer": VARIANTS["generated"].optimizer}
    return {**what, **VARIANTS["generated"].columns(point.threads), **more}


def made_worker(stack: ExitStack, point: Point, seed: int) -> tuple[Worker, dict[str, Any]]:
    """A process of :mod:`generation_worker` with the network of a point, and what it tells about it."""
    worker = stack.enter_context(Worker(WORKER, {"OMP_NUM_THREADS": str(point.threads)}, str(point)))
    net = unet(point.n, point.size, point.batch, point.dtype)
    options = {**net.options, "seed": seed}
    about = worker.ask("make", LIMIT, model=net.model, model_options=options, threads=point.threads)
    return worker, about


def measure_generation(
    points: Sequence[Point], repeats: int, compiles: int, cache: Path, emit: Emit, seed: int = 0
) -> None:
    """Generate the code of every point several times, and compile it, with an empty cache each time.

    Args:
        points: networks; rounds go over all of them.
        repeats: rounds that are sampled, after one that is not.
        compiles: how many of them also compile.
        cache: folder of compiled code for the last round, which later measurements find there.
        emit: receives the rows.
        seed: of the weights.
    """
    samples: dict[Point, dict[str, list[float]]] = {}
    workers: dict[Point, Worker] = {}
    with ExitStack() as stack:
        for point in points:
            try:
                worker, about = made_worker(stack, point, seed)
                worker.ask("generate", LIMIT, cache="")
            except WorkerFailed as failure:
                emit(_without_times(point, "failed", str(failure)))
                continue
            workers[point], samples[point] = worker, {step: [] for step in STEPS}
            what = columns_of(point, quantity="parameters", unit="1")
            emit(Row(**what, value=float(about["parameters"])))
        for number in range(repeats):
            compiling = number >= repeats - compiles
            for point, worker in list(workers.items()):
                try:
                    with TemporaryDirectory(prefix="meta500-") as empty:
                        folder = str(cache) if number == repeats - 1 else empty
                        seconds = worker.ask("generate", LIMIT, cache=folder if compiling else "")
                except WorkerFailed as failure:
                    # The others go on; what it has so far is no measurement.
                    del workers[point], samples[point]
                    emit(_without_times(point, "failed", str(failure)))
                    continue
                for step, taken in seconds.items():
                    samples[point][step].append(taken)
    for point, found in samples.items():
        for step, taken in found.items():
            if taken:
                emit(_row(point, step, taken))
        both = [sum(found[step][k] for step in GENERATING) for k in range(repeats)]
        emit(_row(point, "generating", both))


def refused_generation(points: Sequence[Point], reason: str) -> list[Row]:
    """The rows of networks for which nothing can be compiled."""
    return [_without_times(point, "unsupported", reason) for point in points]


def _without_times(point: Point, verdict: str, reason: str) -> Row:
    what = columns_of(point, phase="generating", quantity="time", unit="s", protocol=EMPTY_CACHE)
    return Row(**what, value=None, verdict=verdict, note=reason)


def _row(point: Point, step: str, taken: Sequence[float]) -> Row:
    summary = asdict(median_interval(taken))
    what = columns_of(point, phase=step, quantity="time", unit="s", protocol=EMPTY_CACHE)
    note = "g++ or clang++ of this machine, translation units at the same time" if step == COMPILING else ""
    return Row(**what, **summary, samples=tuple(taken), warmup=1, repeats=len(taken), note=note)


def measure_first_calls(point: Point, variants: Sequence[Variant], emit: Emit, seed: int = 0) -> None:
    """The first training step of PyTorch's compiler and of the generated backend, with empty caches."""
    plan = Plan((), (COLD,), tuple(variants), rounds=1, threads=point.threads, limit=LIMIT)
    net = unet(point.n, point.size, point.batch, point.dtype)
    try:
        measure_net(plan, net, emit, seed=seed)
    except WorkerFailed as failure:
        what = columns_of(point, quantity="first_call", unit="s")
        emit(Row(**what, value=None, verdict="failed", note=str(failure)))
