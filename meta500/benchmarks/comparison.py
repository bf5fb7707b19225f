"""``meta500 compare``: prints and plots the comparison of run folders."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meta500.metrics.comparison import Comparison, compare
from meta500.metrics.plots import Ratio, curve_plots, curves_from_rows, four_panels, ratio_plot
from meta500.metrics.run import RunFolder


def compare_runs(
    paths: Sequence[Path],
    *,
    minimum: float | None = None,
    out: Path | None = None,
    show_all: bool = False,
    as_json: bool = False,
) -> int:
    """Compare run folders; the first is the baseline.

    Args:
        paths: of the run folders.
        minimum: smallest relative change that counts.
        out: folder for the plots; ``compare/`` in the last run by default.
        show_all: list unchanged measurements too.
        as_json: print JSON instead of tables.

    Returns:
        1 when something got worse, else 0; "unknown" is no regression.

    Raises:
        UserError: a run cannot be read, or they cannot be compared.
    """
    from meta500.benchmarks.tables import console

    runs = [RunFolder.open(path) for path in paths]
    result = compare(runs, minimum=minimum)
    plots = _plots(runs, result, out if out is not None else runs[-1].path / "compare")
    if as_json:
        sys.stdout.write(json.dumps(result.to_dict(), default=str) + "\n")
    else:
        _print(console(), result, show_all, plots)
    return 1 if result.regressions else 0


def _print(console: Any, result: Comparison, show_all: bool, plots: Sequence[Path]) -> None:
    from rich.table import Table

    if not result.machine:
        console.print("machine: nothing recorded differs", highlight=False)
    for run, key, old, new in result.machine:
        console.print(f"machine: {run}: {key} was {old}, is {new}", highlight=False, markup=False)
    for note in result.notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(_correction(result), highlight=False, markup=False)
    lines = [line for line in result.table() if show_all or line["verdict"] != "same"]
    if lines:
        table = Table(title=f"Against {result.baseline}", title_justify="left")
        names = [name for name in lines[0] if any(line[name] for line in lines)]
        for name in names:
            table.add_column(name, overflow="fold")
        for line in lines:
            table.add_row(*(line[name] for name in names))
        console.print(table)
    counts = {
        v: sum(r.verdict == v for r in result.rows) for v in ("regression", "improvement", "same", "unknown")
    }
    console.print(
        ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
        + f", {len(result.unmatched)} in one run only",
        highlight=False,
    )
    if plots:
        console.print(f"Plots: {plots[0].parent}", highlight=False, soft_wrap=True)


def _correction(result: Comparison) -> str:
    """Over how many comparisons the intervals are widened, in words."""
    whole = f"{100 * result.confidence:.4g} %"
    if not result.comparisons:
        return f"intervals: no measurement has enough samples to be judged with {whole} confidence"
    many = (
        f"all {result.comparisons} comparisons hold together with {whole}"
        if result.comparisons > 1
        else f"one comparison, {whole}"
    )
    each = f"; each interval has at least {100 * result.each:.6g} % (Bonferroni)"
    return f"intervals: {many}{each if result.comparisons > 1 else ''}"


def _plots(runs: Sequence[RunFolder], result: Comparison, folder: Path) -> list[Path]:
    """Ratios with intervals, per run, and the training curves of all runs in one figure."""
    written: list[Path] = []
    for run in result.runs:
        ratios = [
            Ratio(
                f"{line['what']}, {line['who']}",
                row.ratio.value,
                row.ratio.low,
                row.ratio.high,
                row.old.quantity.replace("_", " "),
            )
            for row, line in ((r, _line(result, r)) for r in result.rows if r.run == run)
            if row.ratio is not None and row.old.quantity in ("time", "throughput", "peak_memory")
        ]
        ratios.sort(key=lambda ratio: ratio.group)
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run}-over-{result.baseline}")
        for start in range(0, len(ratios), 30):
            name = stem + (f"-{start // 30 + 1}" if start else "")
            written += ratio_plot(
                ratios[start : start + 30],
                [folder / f"{name}.png", folder / f"{name}.pdf"],
                quantity=f"{run} relative to {result.baseline}",
            )
    curves = curves_from_rows([row for run in runs for row in run.rows])
    if four_panels(curves):
        written += curve_plots(curves, folder)
    return written


def _line(result: Comparison, row: Any) -> dict[str, str]:
    from dataclasses import replace

    return replace(result, rows=[row]).table()[0]
