"""``meta500 watch``: how runs stand, live in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def watch(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN")],
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 0.5,
    once: Annotated[bool, typer.Option("--once", help="Say how it stands now, and end.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print every change as a line of JSON, with the points that are new."),
    ] = False,
) -> None:
    """Show progress, curves and last measurements of runs until they are over.

    Without a terminal only their ends are printed. Ctrl-C ends the watching, not the runs. The exit code is 1
    when a run failed or was interrupted.
    """
    from meta500.benchmarks.watching import watch_command

    raise typer.Exit(watch_command(runs, interval=interval, once=once, as_json=as_json))
