"""``meta500 compare``: the same measurements of two or more runs, with a verdict and an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; the first is the baseline.")],
    minimum: Annotated[
        float | None,
        typer.Option(help="Smallest relative change that counts. [default: 0.05; accuracies 0.02]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the plots. [default: compare/ in the last run]")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show unchanged measurements too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare runs: ratios with intervals, effect sizes, plots.

    Exit code 0: no regression; 1: a regression; 2: bad input.
    """
    from meta500.benchmarks.comparison import compare_runs

    raise typer.Exit(compare_runs(runs, minimum=minimum, out=out, show_all=show_all, as_json=as_json))
