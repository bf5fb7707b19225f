"""Level 0 (``meta500 operators``): verdicts, accuracy, gradients and times of operators, into one run folder.

Every case is a piece of work of its own: whatever goes wrong in it becomes a row with verdict "failed" and
its message, and the next case goes on. Rows are written as soon as they are known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from meta500.benchmarks.operators import tables
from meta500.benchmarks.operators.case_runner import failed_row, measure_case
from meta500.benchmarks.operators.plan import (
    DTYPES,
    Plan,
    check_dtypes,
    chosen_cases,
    chosen_shapes,
    own_type,
)
from meta500.benchmarks.operators.quantities import VERDICT
from meta500.benchmarks.operators.roofline import Roofline, last_level_cache, measure_roofline
from meta500.benchmarks.operators.sweep_runner import measure_problem
from meta500.benchmarks.operators.timing import backend_options, measure_empty
from meta500.benchmarks.protocol import Emit, version
from meta500.metrics.rows import Row, to_json_line
from meta500.metrics.run import RunFolder

# How the roofline is measured in a quick run.
QUICK_ROOFLINE = {"product_size": 1024, "min_repeats": 3, "min_seconds": 0.05}


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
    from meta500.benchmarks.tables import console as make_console
    from meta500.metrics.plots import plots_from_run

    plan.check()
    work: list[Any] = chosen_shapes(plan) if plan.sweep else chosen_cases(plan)
    check_dtypes(plan, work)
    if plan.custom:
        from meta500.benchmarks.operators.custom import compile_libraries

        compile_libraries(work)
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
                    measure_problem(plan, item, str(dtype), roofline, emit)
                else:
                    measure_case(plan, item, dtype, roofline, emit)
            except Exception as error:
                emit(_failed(item, dtype, error))


def _prepare(
    plan: Plan, work: Sequence[Any], folder: RunFolder, emit: Emit, step: Callable[[str], None]
) -> Roofline:
    """Measure the roofline and the cost of an empty call."""
    step("roofline")
    dtypes = plan.dtypes
    if not dtypes:
        own = {"float32"} if plan.sweep else {own_type(case) for case in work}
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


def _failed(item: Any, dtype: str | None, error: Exception) -> Row:
    what = {"level": 0, "operator": item.operator, "node": item.name, "dtype": dtype or ""}
    return failed_row({**what, "quantity": VERDICT, "unit": "1"}, error)


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
