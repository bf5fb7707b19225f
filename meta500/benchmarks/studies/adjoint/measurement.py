"""Times, errors, repeatability and memory of all forms of one adjoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.generated.ir import GATHER, REDUCTION
from meta500.benchmarks.main_job import compiler_problem
from meta500.benchmarks.protocol import Emit, Protocol, ratio_row, version
from meta500.benchmarks.studies.adjoint.forms import (
    FORMS,
    PARALLEL,
    SERIAL,
    SERIAL_SCATTER,
    Compiled,
    NothingToProtect,
    compiled,
    predicted_private_bytes,
)
from meta500.benchmarks.studies.adjoint.processor_time import ProcessorTime
from meta500.benchmarks.studies.adjoint.subjects import Subject
from meta500.metrics.clocks import Timing, interleave
from meta500.metrics.norms import compare, tolerance
from meta500.metrics.rows import Row

ONE_THREAD = "1 thread"
_WORKER_SECONDS = 300.0
# Fewer repetitions of long runs are enough.
_REPEAT_SECONDS = 5.0


@dataclass(frozen=True)
class Conditions:
    """How all adjoints are measured.

    Attributes:
        threads: numbers of threads, from 1 to the most.
        protocol: of the timing.
        repeats: how often each form runs, for five seconds at most, to see whether its results repeat.
        seed: of the data, for the process that measures memory.
    """

    threads: tuple[int, ...]
    protocol: Protocol
    repeats: int
    seed: int = 0

    @property
    def most(self) -> int:
        """The most threads."""
        return self.threads[-1]


@dataclass(frozen=True)
class Variant:
    """A form with a number of threads."""

    form: str
    threads: int
    code: Compiled

    @property
    def key(self) -> str:
        """Its name among those measured together."""
        return f"{self.form}/{self.threads}"

    def prepare(self) -> None:
        """Wake the threads and bring the data where they are in a loop."""
        self.code.use_threads(self.threads)
        self.code.run()


def measure(subject: Subject, conditions: Conditions, emit: Emit, resident: int = 0) -> None:
    """All forms of one adjoint.

    Args:
        subject: what is differentiated.
        conditions: how.
        emit: receives the rows.
        resident: the size of a stencil whose memory is measured in processes of its own; 0: not.
    """
    codes: dict[str, Compiled] = {}
    try:
        for form in FORMS:
            code = _code(subject, form, conditions.most, emit)
            if code is not None:
                codes[form] = code
        if codes:
            _measured(subject, codes, conditions, emit)
    finally:
        for code in codes.values():
            code.close()
    if REDUCTION in codes:
        _private_memory(subject, codes[REDUCTION], conditions, emit, resident)


def _code(subject: Subject, form: str, threads: int, emit: Emit) -> Compiled | None:
    """A form, compiled; where there is none a row says why."""
    if form in PARALLEL and threads == 1:
        reason = "a single thread needs no protection; parallel forms begin with 2 threads"
    elif problem := compiler_problem(1 if form in SERIAL else threads):
        reason = problem
    else:
        try:
            return compiled(subject, form, threads)
        except NothingToProtect as found:
            reason = f"nothing to protect, the loops are those of the gather: {found}"
    what = _what(subject, form, threads)
    emit(Row(**what, quantity="time", unit="s", value=None, verdict="unsupported", note=reason))
    return None


def _measured(subject: Subject, codes: dict[str, Compiled], conditions: Conditions, emit: Emit) -> None:
    variants = [
        Variant(form, threads, code)
        for form, code in codes.items()
        for threads in ((1,) if form in SERIAL else conditions.threads)
    ]
    actions: dict[str, Callable[[], object]] = {v.key: v.code.run for v in variants}
    setups: dict[str, Callable[[], object]] = {v.key: v.prepare for v in variants}
    watched = f"{GATHER}/{conditions.most}"
    processors = ProcessorTime(watched)
    limits = conditions.protocol.limits()
    timings = interleave(actions, setup=processors.around(setups), seed=conditions.seed, **limits)
    processors.end()
    judged = _judged(subject, variants, timings, conditions, emit)
    for variant in variants:
        what = _what(subject, variant.form, variant.threads)
        emit(timings[variant.key].rows(protocol="interleaved", **what, **judged.get(variant.key, {}))[0])
        if variant.key == watched and variant.key in judged:
            share = processors.share(variant.threads)
            note = "this system has no clocks of threads" if math.isnan(share) else ""
            emit(Row(**what, quantity="processor_share", unit="1", value=share, note=note))
        _ratios(variant, timings, what, judged, emit)


def _judged(
    subject: Subject,
    variants: Sequence[Variant],
    timings: Mapping[str, Timing],
    conditions: Conditions,
    emit: Emit,
) -> dict[str, dict[str, Any]]:
    """Error and verdict of every variant that runs, by its key."""
    wanted = subject.reference({n: a.astype(np.float64) for n, a in subject.arrays.items()})
    limit = tolerance(np.float32, subject.terms)
    plain: np.ndarray | None = None
    judged: dict[str, dict[str, Any]] = {}
    for variant in variants:
        if timings[variant.key].failure is not None:
            continue
        what = _what(subject, variant.form, variant.threads)
        found, differing, count = _repeated(variant, conditions.repeats)
        norms = compare(found, wanted)
        verdict: dict[str, Any] = {
            "error": norms.max_relative,
            "error_norm": "max_relative",
            "tolerance": limit,
            "verdict": norms.verdict(limit),
        }
        judged[variant.key] = verdict
        emit(Row(**what, quantity="error", unit="1", value=norms.max_relative, **verdict))
        emit(Row(**what, quantity="differing_runs", unit="1", value=differing, repeats=count))
        plain = found if variant.form == SERIAL_SCATTER else plain
        if plain is not None:
            share = float(np.mean(_bits(found) != _bits(plain)))
            emit(Row(**what, quantity="differing_elements", unit="1", value=share))
    return judged


def _repeated(variant: Variant, repeats: int) -> tuple[np.ndarray, float, int]:
    """The result of a first run, the share of further ones that differ from it in a bit, and their number."""
    variant.code.use_threads(variant.threads)
    first = variant.code.run().copy()
    differing = count = 0
    end = time.perf_counter() + _REPEAT_SECONDS
    while count < repeats and (not count or time.perf_counter() < end):
        differing += bool((_bits(variant.code.run()) != _bits(first)).any())
        count += 1
    return first, differing / count, count


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.int32)


def _ratios(
    variant: Variant,
    timings: Mapping[str, Timing],
    what: dict[str, Any],
    judged: Mapping[str, dict[str, Any]],
    emit: Emit,
) -> None:
    """Ratios of times to its baselines, where the results of both are right."""
    bases = {SERIAL_SCATTER: f"{SERIAL_SCATTER}/1"}
    if variant.form in PARALLEL and variant.threads > 1:
        bases[ONE_THREAD] = f"{variant.form}/1"
    if variant.form in PARALLEL and variant.form != GATHER:
        bases[GATHER] = f"{GATHER}/{variant.threads}"
    for name, key in bases.items():
        if key == variant.key or any(judged.get(k, {}).get("verdict") != "ok" for k in (key, variant.key)):
            continue
        row = ratio_row(
            timings[variant.key], timings[key], name, protocol="interleaved", **what, **judged[variant.key]
        )
        if row is not None:
            emit(row)


def _private_memory(
    subject: Subject, code: Compiled, conditions: Conditions, emit: Emit, resident: int
) -> None:
    """Bytes of private copies as the loops predict, as the schedule allocates, and as a process grows."""
    what = {**_what(subject, REDUCTION, conditions.most), "quantity": "private_memory", "unit": "B"}
    predicted = predicted_private_bytes(subject, conditions.most)
    emit(Row(**what, protocol="predicted", value=predicted))
    emit(Row(**what, protocol="allocated", value=code.plan.private_bytes))
    if not resident:
        return
    from meta500.benchmarks.workers import Worker, WorkerFailed

    for form in (REDUCTION, GATHER):
        asked = {"stencil": subject.name, "size": resident, "seed": conditions.seed}
        with_form: dict[str, Any] = {**what, "mode": form, "protocol": "resident"}
        worker = Worker("meta500.benchmarks.studies.adjoint.memory_worker")
        try:
            grown = worker.ask("grown", _WORKER_SECONDS, form=form, threads=conditions.most, **asked)
            emit(Row(**with_form, value=grown))
        except WorkerFailed as failure:
            emit(Row(**with_form, value=None, verdict="failed", note=str(failure)))
        finally:
            worker.close()


def _what(subject: Subject, form: str, threads: int) -> dict[str, Any]:
    return {
        "level": 0,
        "model": subject.model,
        "operator": subject.operator,
        "node": subject.name,
        "phase": subject.phase,
        "shape": subject.shape,
        "dtype": "float32",
        "batch": 1,
        "backend": "generated",
        "mode": form,
        "version": version("generated"),
        "threads": 1 if form in SERIAL else threads,
        "device": "cpu",
        "ranks": 1,
    }
