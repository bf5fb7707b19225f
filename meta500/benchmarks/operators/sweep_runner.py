"""Measures one shape of a sweep: whether it fits, whether backends are right, and how fast they are."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from meta500.backends.network import network
from meta500.benchmarks.operators.case_runner import skipped_row, time_work
from meta500.benchmarks.operators.plan import Plan
from meta500.benchmarks.operators.quantities import CHECK, GRADIENT, GRADIENT_CHECK
from meta500.benchmarks.operators.roofline import PEAK, Roofline
from meta500.benchmarks.operators.sweeps import CALLS, Problem, disagreement, obstacle
from meta500.benchmarks.operators.timing import Work
from meta500.benchmarks.protocol import Emit, Protocol, shape_text, version, who
from meta500.errors import UserError
from meta500.metrics.norms import tolerance
from meta500.metrics.rows import Row

# A gradient is a product as well: each backend misses it by as much as its own product.
BOTH = 2.0


def measure_problem(plan: Plan, problem: Problem, dtype: str, roofline: Roofline | None, emit: Emit) -> None:
    """All measurements of one shape in one element type.

    Every backend's outputs are compared with float64 at some places, and with the first backend's everywhere.

    Args:
        plan: says what to measure, on which backends, and the budget.
        problem: the shape.
        dtype: "float16", "float32" or "float64".
        roofline: of this machine; None without times.
        emit: receives the rows.
    """
    what = {
        "level": 0,
        "operator": problem.operator,
        "node": problem.name,
        "dataset": f"DeepBench {', '.join(problem.sets)}",
        "shape": shape_text(list(problem.inputs.values())),
        "dtype": dtype,
    }
    backends = [b for b in plan.backends if not _without_product(b, dtype, what, emit)]
    if not backends:
        return
    short = obstacle(
        problem,
        dtype,
        memory=free_memory(),
        peak=None if roofline is None else _slowest_peak(roofline, backends, dtype),
        calls=(CALLS if plan.timed else 1) * len(backends),
        budget=plan.budget,
    )
    if short is not None:
        resource, needed, reason = short
        emit(skipped_row(what, reason, needed, "B" if resource == "memory" else "s"))
        return
    inputs = problem.data(dtype, plan.seed)
    judged = _judge(problem, backends, inputs, what, dtype, emit)
    if not judged:
        return
    forward, backward = problem.counts(dtype)
    output = ("y", problem.output, np.dtype(dtype))
    work = Work(problem.model(dtype), inputs, what, None, forward, backward, output, tuple(inputs))
    if plan.gradients:
        _judge_gradients(problem, work, list(judged), what, dtype, emit)
    if plan.timed:
        protocol = Protocol(warmup=1, min_repeats=7, min_seconds=0.05, max_seconds=plan.budget)
        time_work(plan, work, list(judged), roofline, judged, emit, protocol)


def free_memory() -> float:
    """Bytes that this process may still take."""
    import psutil

    available = float(psutil.virtual_memory().available)
    limit = _memory_limit()
    return available if limit is None else min(available, float(limit))


@functools.cache
def _memory_limit() -> int | None:
    from meta500.metrics.machine import environment

    limit: int | None = environment()["memory"]["limit_bytes"]
    return limit


def _without_product(backend: str, dtype: str, what: Mapping[str, Any], emit: Emit) -> bool:
    if backend != "numpy" or dtype != "float16":
        return False
    reason = "numpy multiplies float16 by a plain loop, without BLAS: it would take minutes"
    emit(skipped_row({**what, "backend": backend}, reason))
    return True


def _slowest_peak(roofline: Roofline, backends: list[str], dtype: str) -> float | None:
    """The measured peak of the slowest library among the backends; of any library for other backends."""
    rates = []
    for backend in backends:
        own = [r.best for r in roofline.roofs if (r.quantity, r.library, r.dtype) == (PEAK, backend, dtype)]
        rates.append(max(own) if own else roofline.peak(dtype))
    known = [rate for rate in rates if rate]
    return min(known) if known else None


def _judge(
    problem: Problem,
    backends: list[str],
    inputs: Mapping[str, np.ndarray],
    what: Mapping[str, Any],
    dtype: str,
    emit: Emit,
) -> dict[str, dict[str, Any]]:
    """Rows "max_relative" (against float64, at some places) and "disagreement" (with the first backend).

    Returns:
        Columns about correctness by backend, for those that ran.
    """
    limit = tolerance(dtype, problem.length)
    judged: dict[str, dict[str, Any]] = {}
    first: tuple[str, np.ndarray] | None = None
    for backend in backends:
        columns: dict[str, Any] = {**what, "phase": CHECK, "backend": backend, "version": version(backend)}
        try:
            with network(problem.model(dtype), backend=backend) as net:
                columns |= {k: v for k, v in who(net).items() if k != "threads"}
                found = net.inference(inputs)["y"]
            error = problem.error(inputs, found)
            verdict = "ok" if error <= limit else "wrong"
            if first is not None:
                gap = disagreement(found, first[1])
                verdict = "wrong" if gap > BOTH * limit else verdict
                emit(_apart({**columns, "quantity": "disagreement"}, gap, BOTH * limit, first[0]))
        except Exception as failure:
            emit(_failed({**columns, "quantity": "max_relative"}, failure))
            continue
        first = first or (backend, found)
        correct = {**_correct(error, limit), "verdict": verdict}
        emit(Row(**columns, quantity="max_relative", unit="1", value=error, **correct))
        judged[backend] = correct
    return judged


def _judge_gradients(
    problem: Problem, work: Work, backends: list[str], what: Mapping[str, Any], dtype: str, emit: Emit
) -> None:
    """Rows "gradient_error": how far the backends' gradients of both inputs are from the first backend's."""
    terms = max(problem.length, int(np.prod(problem.output)))
    limit = BOTH * tolerance(dtype, terms)
    cotangent = np.random.default_rng(1).standard_normal(problem.output).astype(dtype)
    first: tuple[str, list[np.ndarray]] | None = None
    for backend in backends:
        columns = {**what, "phase": GRADIENT_CHECK, "quantity": GRADIENT, **{"backend": backend}}
        columns["version"] = version(backend)
        try:
            with network(work.model, backend=backend) as net:
                net.inference_and_backprop(dict(work.inputs), "y", wrt=list(work.wrt), cotangent=cotangent)
                found = net.fetch_tensors([f"grad/{name}" for name in work.wrt])
        except Exception as failure:
            emit(_failed(columns, failure))
            continue
        if first is None:
            first = (backend, found)
            continue
        gap = max(disagreement(a, b) for a, b in zip(found, first[1], strict=True))
        emit(_apart(columns, gap, limit, first[0]))


def _apart(columns: Mapping[str, Any], gap: float, limit: float, baseline: str) -> Row:
    """The row of a distance between two backends."""
    return Row(**columns, unit="1", value=gap, baseline=baseline, **_correct(gap, limit))


def _failed(columns: Mapping[str, Any], failure: Exception) -> Row:
    """The row of a backend that refused or crashed."""
    refused = isinstance(failure, UserError)
    note = str(failure) if refused else f"{type(failure).__name__}: {failure}"
    verdict = "unsupported" if refused else "failed"
    return Row(**columns, unit="1", value=None, verdict=verdict, note=note[:500])


def _correct(error: float, limit: float) -> dict[str, Any]:
    return {
        "error": error,
        "error_norm": "max_relative",
        "tolerance": limit,
        "verdict": "ok" if error <= limit else "wrong",
    }
