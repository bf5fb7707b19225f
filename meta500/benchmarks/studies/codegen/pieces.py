"""The pieces of the study of generated U-Nets."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from meta500.benchmarks.main_job import compiler_problem
from meta500.benchmarks.protocol import NORMAL, QUICK, Emit
from meta500.benchmarks.studies.codegen.convolutions import measure_convolutions
from meta500.benchmarks.studies.codegen.epochs import EPOCH_RATE, EPOCHS_PER_SECOND, measure_epochs
from meta500.benchmarks.studies.codegen.generation import (
    COMPILED,
    measure_first_calls,
    measure_generation,
    refused_generation,
)
from meta500.benchmarks.studies.codegen.layer_times import STOPWATCHES, measure_layers
from meta500.benchmarks.studies.codegen.memory import measure_memory, refused_row
from meta500.benchmarks.studies.codegen.settings import (
    EPOCHS,
    GENERATION,
    LAYERS,
    MEMORY,
    ROOFLINE,
    SINGLE,
    Point,
    Settings,
)
from meta500.benchmarks.studies.study import CODEGEN, Piece, Study
from meta500.benchmarks.variants import GENERATED, VARIANTS, Variant

TITLE = "Generated C++ for U-Nets against PyTorch"
SOURCE = (
    "S. Kemmler, Code Generation for U-Nets Using the ExaStencils Code Generation Framework, master's "
    "thesis, Friedrich-Alexander-Universität Erlangen-Nürnberg, 2022"
)
PROTOCOL = (
    "U-Net(n) of figure 15 with average pooling and transposed convolutions, cross entropy over all pixels, "
    "Adam; weights and images are seeded random numbers, the same for all. An epoch is 128 images, as in "
    "section 6.3.7; its rate follows from the time of a training step (forward, loss, backward, update).",
    "Every variant is a process of its own with its own number of threads; they take turns in an order that "
    "is shuffled in each round, so that a drift of the machine meets all. Warm-up rounds are apart. Numbers "
    "are medians with 95 % intervals from order statistics; ratios are paired by round.",
    "Rounds end after some minutes, at least 7 are sampled. With fewer than all threads the generated code "
    "and eager PyTorch alone are measured.",
    "First losses of all variants must agree to 0.1 %; loss and gradients of the generated step are compared "
    "with numpy in double precision on a small form of the network. What is wrong is in no ranking.",
    "Generation runs in a process that has its imports done, with an empty cache of compiled code.",
    "Peak memory is the high-water mark (VmHWM) of a process that loads, makes the network and trains three "
    "steps; compilers that it starts are not in it. A step that may not fit memory is foreseen from two "
    "smaller ones, and not tried where it does not.",
    "Layer times are stopwatches around the kernels of a generated step by one thread. Fused kernels are "
    "named by all that is in them; their time is not divided.",
    "Rooflines: single convolutions with bias, forward; the limits are measured in the same run by matrix "
    "products and by copying.",
)
QUICK_PROTOCOL = (
    "In the quick mode the error against double precision is measured on the first network alone, peak "
    "memory in one process each, and PyTorch's compiler is left out: its first call alone takes most of a "
    "minute. Single convolutions are larger than those of the networks here.",
)
_UNCOMPILED = "left out of the quick mode: its first call alone takes most of a minute; the full mode has it"
# The allocator of a user who knows it is not tuned in quick.
_QUICK_VARIANTS = ("generated", "eager", "channels-last")
_FEW_THREADS_VARIANTS = ("generated", "eager")
_COMPILED = "compile"
_WAYS = ("eager", "channels-last", "compile", "compile-channels-last")
_MEMORY_VARIANTS = ("generated", *_WAYS)
_SMALL_BATCH = 8
# Of the rounds of one case, and of the processes whose memory is compared.
_EPOCHS_SECONDS, _MEMORY_SECONDS = 600.0, 1800.0
# Enough for the intervals of nine networks and batches that are judged together.
_MEMORY_PROCESSES = 8


def plan(settings: Settings) -> Study:
    """The pieces of work.

    Raises:
        UserError: settings that can't be measured; names the option.
    """
    settings.check()
    cache = _Cache()
    makers: dict[str, Callable[[Settings, _Cache], Iterator[Piece]]] = {
        GENERATION: _generation,
        EPOCHS: _epochs,
        MEMORY: _memory,
        LAYERS: _layers,
        ROOFLINE: _roofline,
    }
    # What is compiled when generation is measured is found by the parts after it.
    pieces = [
        piece
        for part, make in makers.items()
        if part in settings.chosen_parts
        for piece in make(settings, cache)
    ]
    protocol = (*PROTOCOL, *QUICK_PROTOCOL) if settings.quick else PROTOCOL
    return Study(CODEGEN, TITLE, SOURCE, settings.as_json(), pieces, protocol)


class _Cache:
    """A folder for code that this process compiles, empty at first and gone with the process."""

    @functools.cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="meta500-")

    @property
    def path(self) -> Path:
        """The folder of meta500's compiled code."""
        return Path(self._folder.name) / "generated"

    @property
    def environment(self) -> dict[str, str]:
        """For processes: both backends keep what they compile in the folder."""
        inductor = str(Path(self._folder.name) / "inductor")
        return {"META500_CACHE": str(self.path), "TORCHINDUCTOR_CACHE_DIR": inductor}

    @contextmanager
    def used(self) -> Iterator[None]:
        """This process uses it too."""
        before = os.environ.get("META500_CACHE")
        os.environ["META500_CACHE"] = str(self.path)
        try:
            yield
        finally:
            if before is None:
                del os.environ["META500_CACHE"]
            else:
                os.environ["META500_CACHE"] = before


def _runnable(names: Sequence[str], point: Point, quantity: str, unit: str, emit: Emit) -> list[Variant]:
    """Variants by their names; without a compiler a row instead of the generated code."""
    chosen = [VARIANTS[name] for name in names]
    problem = compiler_problem(point.threads)
    if not problem:
        return chosen
    for variant in chosen:
        if variant.backend == GENERATED:
            emit(refused_row(point, variant, quantity, unit, problem))
    return [variant for variant in chosen if variant.backend != GENERATED]


def _generation(settings: Settings, cache: _Cache) -> Iterator[Piece]:
    batch, most = settings.chosen_batches[0], settings.most_threads
    dtype = settings.precisions_of(batch, most)[0]
    points = [settings.point(n, batch, dtype, most) for n in settings.chosen_n]
    repeats, compiles = (5, 1) if settings.quick else (7, 7)

    def run(emit: Emit) -> None:
        if problem := compiler_problem(most):
            for row in refused_generation(points, problem):
                emit(row)
            return
        measure_generation(points, repeats, compiles, cache.path, emit, settings.seed)

    yield Piece("generation", "generating and compiling, all networks", run)
    if settings.quick:
        return
    for point in points:

        def first_calls(emit: Emit, point: Point = point) -> None:
            who = _runnable((GENERATED, *COMPILED), point, "first_call", "s", emit)
            measure_first_calls(point, who, emit, settings.seed)

        yield Piece(f"first-calls-{point.n}", f"first steps with empty caches, unet-{point.n}", first_calls)


def variants_of(settings: Settings, point: Point) -> list[Variant]:
    """Who is compared at a point."""
    if point.threads < settings.most_threads:
        names: Sequence[str] = _FEW_THREADS_VARIANTS
    elif settings.quick:
        names = _QUICK_VARIANTS
    else:
        names = ("generated", *_WAYS, *(f"{way}-tuned" for way in _WAYS))
    return [VARIANTS[name] for name in names]


def _epochs(settings: Settings, cache: _Cache) -> Iterator[Piece]:
    for point in settings.points():
        rounds = 6 if settings.quick else 7 if point.batch > _SMALL_BATCH else 11
        first = point == settings.points()[0]
        error = first if settings.quick else point.threads == settings.most_threads
        names = tuple(variant.name for variant in variants_of(settings, point))

        def run(
            emit: Emit,
            point: Point = point,
            names: tuple[str, ...] = names,
            rounds: int = rounds,
            error: bool = error,
            first: bool = first,
        ) -> None:
            warmup = 1 if settings.quick or point.batch > _SMALL_BATCH else 2
            variants = _runnable(names, point, EPOCH_RATE, EPOCHS_PER_SECOND, emit)
            how: dict[str, Any] = {"warmup": warmup, "seed": settings.seed, "max_seconds": _EPOCHS_SECONDS}
            measure_epochs(point, variants, rounds, cache.environment, emit, error=error, **how)
            if settings.quick and first:
                emit(refused_row(point, VARIANTS[_COMPILED], EPOCH_RATE, EPOCHS_PER_SECOND, _UNCOMPILED))

        yield Piece(f"epochs-{_key(point)}", f"epochs, {point}", run)


def _memory(settings: Settings, cache: _Cache) -> Iterator[Piece]:
    names = ("generated", "eager") if settings.quick else _MEMORY_VARIANTS
    # Of the smaller networks it is hardly more than what the libraries need.
    for n in settings.chosen_n[-1:] if settings.quick else settings.chosen_n:
        for batch in settings.batches_of(n):
            dtype = settings.precisions_of(batch, settings.most_threads)[0]
            point = settings.point(n, batch, dtype, settings.most_threads)

            def run(emit: Emit, point: Point = point) -> None:
                chosen = _runnable(names, point, "peak_memory", "B", emit)
                repeats = 1 if settings.quick else _MEMORY_PROCESSES
                how: dict[str, Any] = {"seed": settings.seed, "max_seconds": _MEMORY_SECONDS}
                measure_memory(point, chosen, repeats, cache.environment, emit, **how)

            yield Piece(f"memory-{_key(point)}", f"peak memory, {point}", run)


def _layers(settings: Settings, cache: _Cache) -> Iterator[Piece]:
    batch = settings.chosen_batches[0]
    for n in settings.chosen_n[:1] if settings.quick else settings.chosen_n:
        # By one thread, as table 8: nobody waits for others then.
        point = settings.point(n, batch, settings.precisions_of(batch, 1)[0], 1)

        def run(emit: Emit, point: Point = point) -> None:
            if problem := compiler_problem(point.threads):
                emit(replace(refused_row(point, VARIANTS[GENERATED], "time", "s", problem), mode=STOPWATCHES))
                return
            with cache.used():
                measure_layers(point, 7 if settings.quick else 11, settings.quick, emit, settings.seed)

        yield Piece(f"layers-{_key(point)}", f"time by layer, {point}", run)


def _roofline(settings: Settings, cache: _Cache) -> Iterator[Piece]:
    n = max(settings.n) if settings.n else 3
    point = settings.point(n, max(settings.chosen_batches), SINGLE, settings.most_threads)
    # Single layers are small: more pixels and images than the networks have, so that they are not only calls.
    if settings.quick and settings.size is None:
        point = replace(point, size=256)
    if settings.quick and not settings.batches:
        point = replace(point, batch=_SMALL_BATCH)

    def run(emit: Emit) -> None:
        protocol = QUICK if settings.quick else NORMAL
        with cache.used():
            measure_convolutions(point, protocol, settings.quick, emit, (_SMALL_BATCH, 1), settings.seed)

    yield Piece("roofline", f"single convolutions, unet-{n}", run)


def _key(point: Point) -> str:
    kind = "" if point.dtype == SINGLE else f"-{point.dtype}"
    return f"{point.n}-{point.batch}-{point.threads}{kind}"
