"""Level 0 (``meta500 operators``): verdicts, accuracy, gradients and times of operators, into one run folder.

Every case is a piece of work of its own: whatever goes wrong in it becomes a row with verdict "failed" and
its message, and the next case goes on. Rows are written as soon as they are known.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from meta500.backends.network import backend_class, network
from meta500.benchmarks.operators import conformance
from meta500.benchmarks.operators.accuracy import (
    CONVERTED,
    data_type,
    in_type,
    leaves,
    measure_accuracy,
    reference,
)
from meta500.benchmarks.operators.cases import SUITES, Case, cases
from meta500.benchmarks.operators.conformance import outcome
from meta500.benchmarks.operators.roofline import Roofline, last_level_cache, measure_roofline
from meta500.benchmarks.operators.timing import (
    BACKWARD,
    FORWARD,
    Work,
    backend_options,
    count_rows,
    measure_empty,
    measure_times,
    work_of,
)
from meta500.benchmarks.protocol import Emit, Protocol, shape_text, version, who
from meta500.errors import UserError, choose
from meta500.metrics.rows import Row, to_json_line
from meta500.metrics.run import RunFolder

BACKENDS = ("numpy", "torch")
DTYPES = ("float16", "float32", "float64")
VERDICT, GRADIENT, SKIPPED = "verdict", "gradient_error", "skipped"
CHECK, GRADIENT_CHECK = "conformance", "backward"
HOST_NOTE = "on the host"

# How long the calls of one case are measured: short, since there are many; at least 11 rounds.
PROTOCOL = Protocol(warmup=2, min_repeats=11, min_seconds=0.02, max_seconds=20.0)
QUICK_PROTOCOL = Protocol(warmup=1, min_repeats=7, min_seconds=0.005, max_seconds=5.0)
# How the roofline is measured in a quick run.
QUICK_ROOFLINE = {"product_size": 1024, "min_repeats": 3, "min_seconds": 0.05}

VERDICTS = {
    conformance.RIGHT: "ok",
    conformance.WRONG: "wrong",
    conformance.REFUSED: "unsupported",
    conformance.CRASHED: "failed",
}


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        operators, patterns: choose cases; patterns are names with shell wildcards.
        suites: of :data:`meta500.benchmarks.operators.cases.SUITES`.
        backends: names; the first is the baseline of the ratios.
        dtypes: of "float16", "float32", "float64"; empty: the cases' own types.
        threads: of every library.
        time: measure times; None: where operators, cases or a sweep are named.
        gradients: check gradients and, with times, time forward plus backward.
        sweep: "deepbench-conv" or "deepbench-gemm" instead of suites; ``sets`` of it.
        budget: seconds for one shape of a sweep.
        seed: of random data.
        quick: one case of each operator (or ten shapes of a sweep), and fewer repetitions.
        custom: Python files of custom operators, whose examples are the cases instead of suites.
    """

    operators: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    backends: tuple[str, ...] = BACKENDS
    dtypes: tuple[str, ...] = ()
    threads: int = 1
    time: bool | None = None
    gradients: bool = False
    sweep: str | None = None
    sets: tuple[str, ...] = ()
    budget: float = 10.0
    seed: int = 0
    quick: bool = False
    custom: tuple[str, ...] = ()

    @property
    def protocol(self) -> Protocol:
        """How long the calls of one case are measured."""
        return QUICK_PROTOCOL if self.quick else PROTOCOL

    @property
    def timed(self) -> bool:
        """Whether times are measured."""
        if self.time is not None:
            return self.time
        return bool(self.operators or self.patterns or self.sweep or self.custom)

    def check(self) -> None:
        """Raises UserError for what cannot be run: unknown names, options that exclude each other."""
        processors = os.cpu_count() or 1
        if not 1 <= self.threads <= processors:
            raise UserError(
                f"--threads must be from 1 to {processors}, the processors here; got {self.threads}"
            )
        if not self.backends:
            raise UserError("--backend: name at least one backend")
        for backend in self.backends:
            backend_class(backend)
        if len(set(self.backends)) < len(self.backends):
            raise UserError(f"--backend: a backend is named twice: {', '.join(self.backends)}")
        for dtype in self.dtypes:
            choose("dtype", dtype, DTYPES)
        for suite in self.suites:
            choose("suite", suite, SUITES)
        if not self.budget > 0:
            raise UserError(f"--budget must be a positive number of seconds, got {self.budget:g}")
        if self.custom and (self.suites or self.sweep):
            raise UserError("--custom has cases of its own; leave out --suite and --sweep")
        if self.sweep is None:
            if self.sets:
                raise UserError("--set chooses from a sweep; give --sweep too")
            return
        from meta500.benchmarks.operators.sweeps import SWEEPS

        choose("sweep", self.sweep, SWEEPS)
        if self.operators or self.suites:
            what = "operators" if self.operators else "--suite"
            raise UserError(f"--sweep has shapes of its own; leave out {what}, or choose shapes by --cases")


def chosen_cases(plan: Plan) -> list[Case]:
    """The cases that a plan names.

    Raises:
        UserError: an unknown suite, operator, or a pattern that no case matches; names what is near.
    """
    suites = ("custom",) if plan.custom else plan.suites or ("node",)
    if plan.custom:
        from meta500.benchmarks.operators.custom import example_cases

        found = example_cases(plan.custom, plan.operators, plan.seed)
    elif not plan.operators:
        found = [case for suite in suites for case in cases(suite)]
    else:
        found = []
        refusals = []
        for operator in plan.operators:
            have = []
            for suite in suites:
                try:
                    have += cases(suite, [operator])
                except UserError as refusal:
                    refusals.append(refusal)
            if not have:
                raise refusals[0]
            found += have
        found = list(dict.fromkeys(found))
    if not plan.patterns:
        return _one_of_each(found) if plan.quick else found
    patterns = [pattern.removeprefix("test_") for pattern in plan.patterns]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(case.name, pattern) for case in found):
            import difflib

            near = difflib.get_close_matches(pattern, [case.name for case in found], n=5, cutoff=0.3)
            hint = f"; near are: {', '.join(near)}" if near else ""
            raise UserError(f"no case matches '{pattern}' among {len(found)} of {', '.join(suites)}{hint}")
    return [case for case in found if any(fnmatch.fnmatchcase(case.name, p) for p in patterns)]


def _one_of_each(found: Sequence[Case]) -> list[Case]:
    """The first case of each operator, one that is not written out as a function if there is one."""
    chosen: dict[str, Case] = {}
    for case in sorted(found, key=lambda case: case.expanded):
        chosen.setdefault(case.operator or case.name, case)
    return [case for case in found if case in chosen.values()]


def run(plan: Plan, *, out: Path | None = None, as_json: bool = False, quiet: bool = False) -> bool:
    """Run a plan, write the run folder with summary.csv and plots, print tables.

    Args:
        plan: what to run.
        out: the run folder; None for a new one in ``runs/``.
        as_json: print the rows as JSON lines instead of tables.
        quiet: print only where the results are, and what was wrong.

    Returns:
        Whether anything was wrong or failed.

    Raises:
        UserError: bad input, before anything is run.
    """
    from meta500.benchmarks.operators import tables
    from meta500.benchmarks.tables import console as make_console
    from meta500.metrics.plots import plots_from_run

    plan.check()
    work: list[Any] = _problems(plan) if plan.sweep else chosen_cases(plan)
    _check_dtypes(plan, work)
    console = make_console(stderr=as_json)
    rows: list[Row] = []
    with RunFolder.create(out, command=sys.argv, seeds={"seed": plan.seed}) as folder:
        folder.info |= {"threads": plan.threads, "backends": list(plan.backends)}

        def emit(row: Row) -> None:
            folder.append(row)
            rows.append(row)
            if as_json:
                sys.stdout.write(to_json_line(replace(row, run_id=folder.id)))

        with machine_threads(plan.threads), _progress(console, len(work), quiet or as_json) as step:
            roofline = _prepare(plan, work, folder, emit, step) if plan.timed else None
            _run_all(plan, work, roofline, emit, step)
        tables.write_summary(folder.path / "summary.csv", rows)
    plots = plots_from_run(folder.path)
    bad = [r for r in rows if r.verdict in ("wrong", "failed")]
    if not (as_json or quiet):
        for table in tables.all_tables(rows, single=bool(plan.operators or plan.patterns)):
            console.print(table)
    if not as_json:
        for line in tables.complaints(rows):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        where = f"Results: {folder.path} (summary.csv, {len(plots)} plots in plots/)"
        console.print(where, highlight=False, soft_wrap=True, markup=False)
    return bool(bad)


def _run_all(
    plan: Plan, work: Sequence[Any], roofline: Roofline | None, emit: Emit, step: Callable[[str], None]
) -> None:
    for item in work:
        step(item.name)
        for dtype in plan.dtypes or (("float32",) if plan.sweep else (None,)):
            try:
                if plan.sweep:
                    from meta500.benchmarks.operators.sweep_runner import measure_problem

                    measure_problem(plan, item, str(dtype), roofline, emit)
                else:
                    measure_case(plan, item, dtype, roofline, emit)
            except Exception as error:
                emit(_failed(item, dtype, error))


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
    judged: dict[str, dict[str, Any]] = {}
    results: dict[str, dict[str, Any]] = {}
    for backend in plan.backends:
        found = _judge(case, backend, precision, inputs, exact, what, emit)
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
    exact: Mapping[str, Any] | None,
    what: Mapping[str, Any],
    emit: Emit,
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Verdict and accuracy rows of one backend; its outputs and the columns about correctness if it ran.

    The expected values decide where the case is run in its own types or in wider ones. Where it is run in
    narrower ones, they are no measure; then the float64 run on the same rounded inputs is.
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
            if exact is not None:
                accuracy = measure_accuracy(results, exact, inputs)
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
        emit(_failed_row({**columns, "quantity": "max_relative", "unit": "1"}, failure))
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


def _prepare(
    plan: Plan, work: Sequence[Any], folder: RunFolder, emit: Emit, step: Callable[[str], None]
) -> Roofline:
    """Measure the roofline and the cost of an empty call."""
    step("roofline")
    dtypes = plan.dtypes
    if not dtypes:
        own = {"float32"} if plan.sweep else {_own_type(case) for case in work}
        dtypes = tuple(dtype for dtype in DTYPES if dtype in own) or ("float32",)
    cache = last_level_cache(folder.environment)
    how: dict[str, Any] = QUICK_ROOFLINE if plan.quick else {}
    roofline = measure_roofline(plan.threads, dtypes, cache=cache, **how)
    for row in roofline.rows():
        emit(row)
    step("cost of a call")
    for dtype in dtypes:
        options = [backend_options(backend, plan.threads) for backend in plan.backends]
        measure_empty(options, dtype, plan.protocol, plan.threads, emit)
    return roofline


def _problems(plan: Plan) -> list[Any]:
    from meta500.benchmarks.operators.sweeps import problems, smallest

    found = problems(str(plan.sweep), plan.patterns or None, plan.sets or None)
    return smallest(found) if plan.quick and not plan.patterns else found


def _check_dtypes(plan: Plan, work: Sequence[Any]) -> None:
    """Raises UserError when a type applies to none of the cases."""
    if not plan.dtypes or plan.sweep:
        return
    if any(_own_type(case) in CONVERTED for case in work):
        return
    names = ", ".join(dict.fromkeys(case.operator or case.name for case in work[:5]))
    raise UserError(
        f"--dtype {plan.dtypes[0]} does not apply: no chosen case has floating-point data ({names}); "
        "leave it out to run them in their own types"
    )


def _own_type(case: Case) -> str:
    inputs, expected = case.data()[0]
    return data_type(expected, inputs)


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


def _failed(item: Any, dtype: str | None, error: Exception) -> Row:
    what = {"level": 0, "operator": item.operator, "node": item.name, "dtype": dtype or ""}
    return _failed_row({**what, "quantity": VERDICT, "unit": "1"}, error)


def _failed_row(columns: Mapping[str, Any], error: Exception) -> Row:
    note = f"{type(error).__name__}: {error}"[:500]
    return Row(**columns, value=None, verdict="failed", note=note)


@contextmanager
def machine_threads(threads: int) -> Iterator[None]:
    """Limit numpy's BLAS and, if it is installed, PyTorch to ``threads`` threads while this lasts.

    Once for the whole run: a limit on every call would cost more than many an operator.
    """
    from threadpoolctl import threadpool_limits

    torch: Any = None
    if version("torch"):
        import torch as found

        torch = found
    before = torch.get_num_threads() if torch is not None else 0
    with threadpool_limits(limits=threads, user_api="blas"):
        if torch is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)


@contextmanager
def _progress(console: Any, total: int, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A bar with the current case, on a terminal; nothing elsewhere."""
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        begun = [""]

        def step(name: str) -> None:
            if begun[0] and begun[0] not in ("roofline", "cost of a call"):
                bar.advance(task)
            begun[0] = name
            bar.update(task, description=name)

        yield step
