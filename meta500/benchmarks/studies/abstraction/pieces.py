"""The pieces of the study."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meta500.benchmarks.protocol import Emit, shape_text
from meta500.benchmarks.studies.abstraction.accelerator import measure_accelerator, no_accelerator
from meta500.benchmarks.studies.abstraction.crew import Crew
from meta500.benchmarks.studies.abstraction.dispatch import measure_dispatch
from meta500.benchmarks.studies.abstraction.footprint import counted_environment, measure_footprint
from meta500.benchmarks.studies.abstraction.level import CPU, INFERENCE, TRAINING
from meta500.benchmarks.studies.abstraction.limits import too_much
from meta500.benchmarks.studies.abstraction.measure import (
    MOST_TOLERANCE,
    SENSITIVITIES,
    in_folder,
    measure_steps,
    unsupported,
)
from meta500.benchmarks.studies.abstraction.settings import Pace, Settings
from meta500.benchmarks.studies.abstraction.subject import Subject, needs, network_options, written
from meta500.benchmarks.studies.study import ABSTRACTION, Piece, Study
from meta500.metrics.rows import Row

TITLE = "The cost of abstractions: one network from eager PyTorch down to a vendor's library"
SOURCE = "Comparing the costs of abstraction for DL frameworks (2021)"
# Levels whose first step imports much are prepared in pairs; nothing is timed meanwhile.
_AT_ONCE = 2

Point = tuple[int, int]


def plan(settings: Settings) -> Study:
    """The pieces of work.

    Raises:
        UserError: settings that can't be measured.
    """
    settings.check()
    return Study(
        name=ABSTRACTION,
        title=TITLE,
        source=SOURCE,
        settings=_recorded(settings),
        pieces=_pieces(settings),
        protocol=_protocol(settings),
    )


def _pieces(settings: Settings) -> list[Piece]:
    phases = [INFERENCE, *([TRAINING] if settings.training else [])]
    pieces = [Piece("levels", "levels: what can run here", lambda emit: _levels(settings, emit))]
    if settings.quick:
        # Starting processes takes longer than what they measure: all times come from the same ones.
        title = f"{settings.model}: times, and the cost of an operator"
        pieces.append(Piece("times", title, lambda emit: _all_times(settings, phases, emit)))
        pieces.append(_footprint_piece(settings, _last_point(settings), INFERENCE))
    else:
        pieces += [_point_piece(settings, point, phases) for point in settings.points]
        pieces.append(Piece("dispatch", "cost of an operator", lambda emit: _dispatch(settings, emit)))
        pieces += [_footprint_piece(settings, point, phase) for phase in phases for point in settings.points]
    pieces.append(Piece("accelerator", "use of the accelerator", lambda emit: _accelerator(settings, emit)))
    return pieces


def _point_piece(settings: Settings, point: Point, phases: list[str]) -> Piece:
    batch, size = point
    return Piece(
        f"times-b{batch}-s{size}",
        f"{settings.model}: times, batch {batch}" + (f", size {size}" if size else ""),
        lambda emit: _times(settings, point, phases, emit),
    )


def _footprint_piece(settings: Settings, point: Point, phase: str) -> Piece:
    batch, size = point
    what = f"{phase.replace('_', ' ')}, batch {batch}" + (f", size {size}" if size else "")
    return Piece(
        f"memory-{phase}-b{batch}-s{size}",
        f"{settings.model}: memory and allocations, {what}",
        lambda emit: _footprint(settings, point, phase, emit),
    )


def _last_point(settings: Settings) -> Point:
    """The end of the scan of the batch."""
    return settings.all_batches[-1], settings.fixed[1]


# -- pieces -------------------------------------------------------------------------------------------------


def _levels(settings: Settings, emit: Emit) -> None:
    with _crew(settings) as crew:
        for member in crew.members:
            columns: dict[str, Any] = {"level": 1, "quantity": "available", "unit": "1", **member.columns()}
            columns["operator"] = member.level.title
            if member.missing:
                emit(Row(**columns, value=None, verdict="unsupported", note=member.missing))
            else:
                emit(Row(**columns, value=1.0, note=member.level.what))


def _times(settings: Settings, point: Point, phases: list[str], emit: Emit) -> None:
    with _crew(settings) as crew:
        if not settings.misfit(point[1]):
            crew.prepare(_AT_ONCE)
        for phase in phases:
            _point_times(settings, point, phase, crew, emit)


def _all_times(settings: Settings, phases: list[str], emit: Emit) -> None:
    """Inference everywhere, training at the largest batch, and chains of operators."""
    with _crew(settings) as crew:
        crew.prepare(_AT_ONCE)
        for phase in phases:
            points = settings.points if phase == INFERENCE else [_last_point(settings)]
            for point in points:
                _point_times(settings, point, phase, crew, emit)
        in_folder(lambda folder: measure_dispatch(crew, folder, settings.pace, settings.seed, emit))


def _point_times(settings: Settings, point: Point, phase: str, crew: Crew, emit: Emit) -> None:
    def measure(subject: Subject, folder: Path) -> None:
        measure_steps(crew, subject, phase, folder, settings.pace, emit)

    _at_point(settings, point, phase, emit, crew, measure)


def _at_point(
    settings: Settings,
    point: Point,
    phase: str,
    emit: Emit,
    crew: Crew,
    measure: Callable[[Subject, Path], Any],
) -> None:
    """Measure at a point, unless it would need too much: then rows say so."""
    reason = settings.misfit(point[1]) or too_much(settings, point, phase, crew)
    if reason:
        unsupported(crew, _columns(settings, point, phase), reason, emit)
        return
    in_folder(lambda folder: measure(_subject(settings, point, folder), folder))


def _dispatch(settings: Settings, emit: Emit) -> None:
    with _crew(settings) as crew:
        crew.prepare(_AT_ONCE)
        in_folder(lambda folder: measure_dispatch(crew, folder, settings.pace, settings.seed, emit))


def _footprint(settings: Settings, point: Point, phase: str, emit: Emit) -> None:
    def measure(subject: Subject, folder: Path) -> None:
        at_once = _AT_ONCE if settings.device == CPU else 1
        environment, uncounted = counted_environment(folder)
        with _crew(settings, environment) as crew:
            measure_footprint(crew, subject, phase, folder, emit, at_once, uncounted, settings.pace.processes)

    with _crew(settings) as crew:
        _at_point(settings, point, phase, emit, crew, measure)


def _accelerator(settings: Settings, emit: Emit) -> None:
    if settings.device == CPU:
        no_accelerator(_columns(settings, settings.fixed, INFERENCE), emit)
        return
    with _crew(settings) as crew:
        in_folder(
            lambda folder: measure_accelerator(crew, _subject(settings, settings.fixed, folder), folder, emit)
        )


# -- what they share ----------------------------------------------------------------------------------------


def _crew(settings: Settings, environment: Mapping[str, str] | None = None) -> Crew:
    threads, limit = settings.resolved_threads, settings.pace.order_limit
    return Crew(
        settings.chosen,
        threads,
        settings.device,
        limit,
        environment,
        settings.left_out,
        settings.untrained,
    )


def _subject(settings: Settings, point: Point, folder: Path) -> Subject:
    from meta500.models import create

    model = create(settings.model, seed=settings.seed, **network_options(settings.options, *point))
    return written(settings.model, model, folder, settings.seed)


def _columns(settings: Settings, point: Point, phase: str) -> dict[str, Any]:
    """The columns of what is not measured, whose network is not even made."""
    batch, size = point
    fits = not settings.misfit(size)
    image = needs(settings.model, settings.options, size if fits else settings.fixed[1]).image
    shape = shape_text([(batch, *(image if fits else (*image[:-2], size, size)))])
    return {
        "level": 1,
        "model": settings.model,
        "phase": phase,
        "shape": shape,
        "dtype": "float32",
        "batch": batch,
    }


def _recorded(settings: Settings) -> dict[str, Any]:
    found = asdict(settings)
    found |= {
        "network": settings.model,
        "network_options": settings.options,
        "threads": settings.resolved_threads,
    }
    return found | {"levels": settings.chosen, "batches": settings.all_batches, "sizes": settings.all_sizes}


def _protocol(settings: Settings) -> list[str]:
    pace = settings.pace
    batch, size = settings.fixed
    together = f", {pace.at_once} levels at the same time" if pace.at_once > 1 else ""
    trained = f"; it is measured at batch {_last_point(settings)[0]} alone" if settings.quick else ""
    scans = f"The batch is scanned over {_listed(settings.all_batches)}"
    if len(settings.all_sizes) > 1:
        scans += f" at {size} x {size} pixels, the size over {_listed(settings.all_sizes)} at batch {batch}"
    elif size:
        scans += f" at {size} x {size} pixels"
    return [
        "Every level gets the same network as an ONNX file with its weights, the same inputs, and a "
        f"process of its own with {settings.resolved_threads} threads; a step goes from images in host "
        "memory to logits (or the loss) in host memory.",
        f"{scans}. A point is left out, with a row that says so, where the network does not take "
        "images of the size, a step of the baseline would "
        f"take more than {pace.step_limit:g} s by its multiply-adds, or all processes together more "
        "memory than is free.",
        "Before it is timed each level's result is compared with float64: logits within 16 eps "
        "sqrt(n), n the terms of the sums behind a logit; of training the first loss, and its decrease "
        "by the first update, each within 1 % (beyond what float32 rounds the loss to), or within "
        f"{SENSITIVITIES:g} times what weights that are wrong by one eps make of it in float64; where that "
        f"is more than {MOST_TOLERANCE:.0%}, gradients are not compared. A level that is "
        "wrong, or was not compared, has no ratio and no place in a ranking.",
        f"Levels take turns, in an order shuffled anew in each of {pace.rounds} rounds after "
        f"{pace.warmup} of warm-up, after a rest of {pace.settle:g} s; a turn is {pace.turn:g} s of "
        "steps, at least one. Times are medians with order-statistic intervals, ratios are paired by "
        f"round. Making a session and its first step are reported apart{together}.",
        "Training is forward in training form, cross-entropy, backward, and plain SGD, by a learning rate "
        f"with which to first order one update lowers the loss by 2 % (rows name it){trained}. Dropout keeps "
        "its operators and drops nothing, as no two levels would drop the same.",
        "Memory and allocations come from further processes, which are not timed, with a small library "
        "preloaded that counts malloc and its kin and anonymous mmap. Peak memory is the kernel's "
        "high-water mark of resident memory, put back after the first steps, so that compilation does "
        f"not count, and is read after each of three more; {_processes(pace)}",
        "The cost of an operator is the slope of the time over the length of chains of tiny operators.",
    ]


def _processes(pace: Pace) -> str:
    if pace.processes == 1:
        return "one process per level shows it, which decides nothing, as another one may need more or less."
    return (
        f"its median is one of {pace.processes} samples, each of a process of its own, which finds compiled "
        "what one before them has compiled: one process says little about the next. Intervals reach from the "
        "smallest to the largest sample."
    )


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))
