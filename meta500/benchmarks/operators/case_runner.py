"""Measures one case of Level 0: verdict, accuracy, gradients and times on every backend of the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meta500.backends.network import network
from meta500.benchmarks.operators import conformance
from meta500.benchmarks.operators.accuracy import (
    CONVERTED,
    data_type,
    in_type,
    leaves,
    measure_accuracy,
    reference,
    terms_of,
)
from meta500.benchmarks.operators.cases import Case
from meta500.benchmarks.operators.conformance import outcome
from meta500.benchmarks.operators.plan import Plan
from meta500.benchmarks.operators.quantities import (
    CHECK,
    GRADIENT,
    GRADIENT_CHECK,
    HOST_NOTE,
    SKIPPED,
    VERDICT,
)
from meta500.benchmarks.operators.roofline import Roofline
from meta500.benchmarks.operators.timing import (
    BACKWARD,
    FORWARD,
    Work,
    backend_options,
    count_rows,
    measure_times,
    work_of,
)
from meta500.benchmarks.protocol import Emit, Protocol, shape_text, version, who
from meta500.errors import UserError
from meta500.metrics.rows import Row

VERDICTS = {
    conformance.RIGHT: "ok",
    conformance.WRONG: "wrong",
    conformance.REFUSED: "unsupported",
    conformance.CRASHED: "failed",
}


def measure_case(
    plan: Plan, case: Case, precision: str | None, roofline: Roofline | None, emit: Emit
) -> None:
    """All measurements of one case in one precision (None: its own types).

    Args:
        plan: says what to measure and on which backends.
        case: with inputs and expected outputs.
        precision: type of all floating-point data.
        roofline: of this machine; None without times.
        emit: receives the rows.
    """
    inputs, expected = case.data()[0]
    own = data_type(expected, inputs)
    what = _what(case, precision or own, inputs)
    if precision is not None:
        if own not in CONVERTED:
            emit(skipped_row(what, f"{precision} does not apply: the case has no {'/'.join(CONVERTED)} data"))
            return
        inputs = {name: in_type(value, precision) for name, value in inputs.items()}
    exact = _reference(case, inputs, precision)
    terms = 1 if exact is None else terms_of(case.model(), inputs, exact)
    judged: dict[str, dict[str, Any]] = {}
    results: dict[str, dict[str, Any]] = {}
    for backend in plan.backends:
        found = _judge(case, backend, precision, inputs, (exact, terms), what, emit)
        if found is not None:
            results[backend], judged[backend] = found
    if plan.gradients:
        _check_gradients(case, plan, what, precision, emit)
    if plan.timed and results:
        work = work_of(case.model(), inputs, next(iter(results.values())), what, precision)
        time_work(plan, work, list(results), roofline, judged, emit)


def time_work(
    plan: Plan,
    work: Work,
    backends: Sequence[str],
    roofline: Roofline | None,
    judged: Mapping[str, Mapping[str, Any]],
    emit: Emit,
    protocol: Protocol | None = None,
) -> None:
    """Times of forward and, with gradients, of forward plus backward.

    Args:
        plan: says whether gradients are wanted, and with how many threads.
        work: the call.
        backends: those that ran it.
        roofline, judged, emit, protocol: see :func:`measure_times`; the protocol is the plan's by default.
    """
    options = [backend_options(backend, plan.threads) for backend in backends]
    for phase, counts in ((FORWARD, work.counts), (BACKWARD, work.backward)):
        if phase == BACKWARD and not (plan.gradients and work.differentiated and _differentiable(work)):
            continue
        for row in count_rows(counts, phase, **work.what):
            emit(row)
        measure_times(work, options, protocol or plan.protocol, plan.threads, roofline, emit, phase, judged)


def _differentiable(work: Work) -> bool:
    """Whether the operator has a gradient; operators without an entry (networks, custom ones) are tried."""
    from meta500.benchmarks.operators.differentiability import DIFFERENTIABLE, TABLE

    entry = TABLE.get(str(work.what.get("operator", "")))
    return entry is None or entry.kind == DIFFERENTIABLE


def _judge(
    case: Case,
    backend: str,
    precision: str | None,
    inputs: Mapping[str, Any],
    exact: tuple[Mapping[str, Any] | None, int],
    what: Mapping[str, Any],
    emit: Emit,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Verdict and accuracy rows of one backend; its outputs and the columns about correctness if it ran.

    The expected values decide where the case is run in its own types or in wider ones. Where it is run in
    narrower ones, they are no measure; then the float64 run on the same rounded inputs is.

    ``exact`` holds the results of that run, None where there is none, and the terms behind one element.
    """
    columns = {**what, "phase": CHECK, **_who(backend)}
    narrowed = precision is not None and _narrower(precision, case)
    options = {} if precision is None else {"precision": precision}
    found = None if narrowed else outcome(case, backend, **options)
    results: dict[str, Any] | None = None
    accuracy = None
    failure: Exception | None = None
    if found is None or found.result in (conformance.RIGHT, conformance.WRONG):
        try:
            with network(case.model(), backend=backend, **options) as net:
                columns |= {k: v for k, v in who(net).items() if k != "threads"}
                host = conformance.how_it_runs(net) == conformance.HOST
                results = net.inference(dict(inputs))
            right, terms = exact
            if right is not None:
                accuracy = measure_accuracy(results, right, terms)
        except Exception as error:
            failure = error
    if found is None:
        verdict, note = _verdict_by_accuracy(accuracy, failure)
        note = note or (HOST_NOTE if results is not None and host else "")
        worst = accuracy.max_relative if accuracy is not None else None
    else:
        verdict, worst = VERDICTS[found.result], found.error
        note = found.message or (HOST_NOTE if found.how == conformance.HOST else "")
    emit(_verdict_row(columns, verdict, note, worst, case, narrowed))
    if failure is not None and found is not None:
        emit(failed_row({**columns, "quantity": "max_relative", "unit": "1"}, failure))
    if results is None:
        return None
    correct: dict[str, Any] = {"verdict": verdict}
    if accuracy is not None:
        for row in accuracy.rows(**columns, **correct):
            emit(row)
        correct |= {
            "error": accuracy.max_relative,
            "error_norm": "max_relative",
            "tolerance": accuracy.tolerance,
        }
    return results, correct


def _verdict_row(
    columns: Mapping[str, Any],
    verdict: str,
    note: str,
    worst: float | None,
    case: Case,
    narrowed: bool,
) -> Row:
    """Value 1: right, 0: wrong; the error is the largest absolute distance from the expected values."""
    values = {"ok": 1.0, "wrong": 0.0, "not_compared": float("nan")}
    return Row(
        quantity=VERDICT,
        unit="1",
        value=values.get(verdict),
        verdict=verdict,
        note=note,
        error=worst,
        error_norm="" if worst is None else "max_relative" if narrowed else "max_absolute",
        tolerance=None if narrowed else case.rtol,
        **columns,
    )


def _verdict_by_accuracy(accuracy: Any, failure: Exception | None) -> tuple[str, str]:
    if isinstance(failure, UserError):
        return "unsupported", str(failure)
    if failure is not None:
        return "failed", f"{type(failure).__name__}: {failure}"
    if accuracy is None:
        return "not_compared", "there is no float64 reference, and no expected values in this type"
    if accuracy.max_relative <= accuracy.tolerance:
        return "ok", ""
    if accuracy.max_relative == float("inf"):
        return "wrong", (
            "a number is NaN or infinite where it is not in float64, or the reverse; in a narrower type the "
            "usual reason is an overflow inside the operator"
        )
    return "wrong", (
        f"relative error {accuracy.max_relative:.2g} against float64, "
        f"rounding explains {accuracy.tolerance:.2g}"
    )


def _narrower(precision: str, case: Case) -> bool:
    """Whether some data of the case lose digits in ``precision``."""
    inputs, expected = case.data()[0]
    types = {
        np.asarray(a).dtype.name for v in (*inputs.values(), *expected.values()) for a in leaves(v)
    } & set(CONVERTED)
    return any(not np.can_cast(np.dtype(t), precision, "safe") for t in types if t != "bfloat16")


def _reference(case: Case, inputs: Mapping[str, Any], precision: str | None) -> dict[str, Any] | None:
    """The float64 outputs; None for random numbers, and for types that float64 cannot replace."""
    try:
        return reference(case.model(), inputs, precision)
    except Exception:
        # The reference is no subject of this case: that numpy fails in float64 is seen where it is one.
        return None


def _check_gradients(
    case: Case, plan: Plan, what: Mapping[str, Any], precision: str | None, emit: Emit
) -> None:
    from meta500.benchmarks.operators import gradients

    checks = gradients.check_case(case, plan.backends, plan.seed)
    for backend in dict.fromkeys(check.backend for check in checks):
        mine = [check for check in checks if check.backend == backend]
        errors = [check.error for check in mine if check.error is not None]
        results = {check.result for check in mine}
        verdict = (
            "wrong"
            if gradients.WRONG in results
            else "ok"
            if gradients.RIGHT in results
            else "unsupported"
            if gradients.REFUSED in results
            else "not_compared"
        )
        notes = dict.fromkeys(f"{check.wrt}: {check.message}" for check in mine if check.message)
        limit = gradients.AGREEMENT if "/" in backend else gradients.TOLERANCE
        worst = max(errors) if errors else None
        unknown = None if verdict == "unsupported" else float("nan")
        emit(
            Row(
                **{**what, "dtype": "float64", "phase": GRADIENT_CHECK},
                **_who(backend),
                quantity=GRADIENT,
                unit="1",
                value=unknown if worst is None else worst,
                error=worst,
                error_norm="" if worst is None else "relative",
                tolerance=limit,
                verdict=verdict,
                note="; ".join(notes)[:500],
            )
        )


def _what(case: Case, dtype: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    shapes = [np.shape(v) for value in inputs.values() for v in leaves(value)]
    return {
        "level": 0,
        "model": "" if case.operator else case.name,
        "operator": case.operator,
        "node": case.name if case.operator else "",
        "dataset": case.suite,
        "shape": shape_text(shapes),
        "dtype": dtype,
    }


def _who(backend: str) -> dict[str, Any]:
    return {"backend": backend, "version": version(backend)}


def skipped_row(what: Mapping[str, Any], reason: str, value: float = 0.0, unit: str = "1") -> Row:
    """A measurement that was left out, with the reason; ``value`` is what it would have needed."""
    return Row(**what, quantity=SKIPPED, unit=unit, value=value, verdict="not_compared", note=reason)


def failed_row(columns: Mapping[str, Any], error: Exception) -> Row:
    """A measurement that an error ended."""
    note = f"{type(error).__name__}: {error}"[:500]
    return Row(**columns, value=None, verdict="failed", note=note)
