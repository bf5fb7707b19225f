"""``meta500 history``: adds runs to a history, and prints and plots it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meta500.metrics import history
from meta500.metrics.plots.history import history_plots
from meta500.metrics.run import RunFolder
from meta500.metrics.trends import RATE, Mark, Series, Trends, commit_name, trends


def add_runs(paths: Sequence[Path], file: Path, *, as_json: bool = False) -> None:
    """Add run folders to a history file; those that are in it already are told and left out.

    Raises:
        UserError: see :func:`meta500.metrics.history.add`.
    """
    runs = [RunFolder.open(path) for path in paths]
    added = history.add(file, runs)
    present = [run.id for run in runs if run.id not in added]
    if as_json:
        sys.stdout.write(json.dumps({"file": str(file), "added": added, "present": present}) + "\n")
        return
    for run in dict.fromkeys(run.id for run in runs):
        sys.stdout.write(f"{run}: {'added to' if run in added else 'is already in'} {file}\n")


def show_history(
    file: Path,
    *,
    text: str = "",
    minimum: float | None = None,
    rate: float = RATE,
    out: Path | None = None,
    show_all: bool = False,
    as_json: bool = False,
) -> None:
    """Print and plot a history.

    Args:
        file: of the history.
        text: only measurements with this text in their words.
        minimum: smallest relative change that is marked.
        rate: of false alarms, in all series together.
        out: folder for the plots; by default named after the file.
        show_all: list the series without a change too.
        as_json: print JSON instead of tables.

    Raises:
        UserError: the file is damaged, or has nothing to show.
    """
    from meta500.benchmarks.tables import console

    found = trends(history.read(file), text=text, minimum=minimum, rate=rate)
    folder = out if out is not None else file.with_name(f"{file.stem}-plots")
    plots = history_plots(found, folder)
    if as_json:
        about = to_dict(found) | {"plots": [str(path) for path in plots]}
        sys.stdout.write(json.dumps(about, default=str) + "\n")
        return
    printer = console()
    for line in _about(found):
        printer.print(line, highlight=False, markup=False)
    _print(printer, found, show_all)
    if plots:
        printer.print(f"Plots: {folder}", highlight=False, soft_wrap=True)


def to_dict(found: Trends) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "runs": [
            {"run": e.run, "started": e.started, "commit": e.commit, "dirty": e.dirty, "machine": e.machine}
            for e in found.entries
        ],
        "machines": list(found.machines),
        "rate": found.rate,
        "tested": found.tested,
        "rate_of_each": found.each if found.tested else None,
        "series": [
            {
                "what": s.what,
                "who": s.who,
                "quantity": s.quantity,
                "unit": s.unit,
                "machine": s.machine,
                "runs": [e.run for e in s.entries],
                "values": [p.value for p in s.points],
                "faults": [list(fault) for fault in s.faults],
                "tested": s.tested,
                "changes": [_mark_dict(mark) for mark in s.marks],
            }
            for s in found.series
        ],
    }


def _mark_dict(mark: Mark) -> dict[str, Any]:
    return {
        "verdict": mark.verdict,
        "ratio": mark.change.ratio,
        "p": mark.change.p,
        "before": {"run": mark.before.run, "commit": mark.before.commit},
        "after": {"run": mark.after.run, "commit": mark.after.commit},
        "software": [list(entry) for entry in mark.software],
    }


def _about(found: Trends) -> list[str]:
    """Machines and the test in words, before any number."""
    lines = []
    for machine in found.machines:
        here = [entry for entry in found.entries if entry.machine == machine]
        cpu = here[0].environment.get("cpu") or {}
        model = cpu.get("model") or "unknown processor"
        many = f"{len(here)} runs" if len(here) > 1 else "1 run"
        lines.append(f"machine {machine}: {model}, {many}, first {commit_name(here[0])}")
    if len(found.machines) > 1:
        lines.append("note: series of different machines are not joined")
    several = f"{found.tested} of {len(found.series)} series searched"
    if found.tested:
        lines.append(
            f"changes: {several}; without any change, one or more would be marked with "
            f"{100 * found.rate:.3g} % probability ({100 * found.each:.2g} % each, Bonferroni)"
        )
    else:
        lines.append(f"changes: {several}; for all of them {found.needed} runs each are needed")
    return lines


def _print(printer: Any, found: Trends, show_all: bool) -> None:
    from meta500.benchmarks.tables import table_of

    chosen = [
        s for s in found.series if show_all or s.marks or s.faults or not any(t.marks for t in found.series)
    ]
    table = table_of(
        f"{len(found.entries)} runs",
        ["what", "who", "quantity", "machine"],
        ["runs", "first", "last", "changes"],
    )
    for series in chosen:
        table.add_row(
            series.what,
            series.who,
            series.quantity,
            series.machine[:6],
            str(len(series.points)),
            *(_number(series, index) for index in (0, -1)),
            "\n".join(_marks(series)),
        )
    printer.print(table)
    for series in chosen:
        for mark in series.marks:
            for key, old, new in mark.software:
                name = f"{series.what}, {series.who}: at {commit_name(mark.after)}"
                printer.print(f"{name}: {key} was {old}, is {new}", highlight=False, markup=False)
    if len(chosen) < len(found.series):
        count = len(found.series) - len(chosen)
        printer.print(f"{count} series without a change (--all shows them)", highlight=False)


def _marks(series: Series) -> list[str]:
    lines = [
        f"{mark.verdict} {100 * (mark.change.ratio - 1):+.3g} % at {commit_name(mark.after)}"
        for mark in series.marks
    ]
    lines += [f"{what} in {run}" for run, what in series.faults]
    return lines or (["none"] if series.tested else ["too few runs"])


def _number(series: Series, index: int) -> str:
    if not series.points:
        return "-"
    value = series.points[index].value
    return f"{value:.4g}" + ("" if series.unit == "1" else f" {series.unit}")
