"""``meta500 history``: a file with the figures of a project over its commits: add, show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

history = typer.Typer(
    help="Keep the figures of runs in one file over the commits of a project, and show where they changed.",
    no_args_is_help=True,
    add_completion=False,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DEFAULT = Path("history.jsonl")


@history.command("add")
def add(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    file: Annotated[Path, typer.Option("--file", help="The history; made if there is none.")] = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Add runs to a history; a run that is in it already is not added again.

    Exit code 0: all runs are in it; 2: bad input, and nothing was added.
    """
    from meta500.benchmarks.history import add_runs

    add_runs(runs, file, as_json=as_json)


@history.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="The history.")] = DEFAULT,
    filter: Annotated[str, typer.Option(metavar="TEXT", help="Only measurements with this text.")] = "",
    minimum: Annotated[
        float | None,
        typer.Option(help="Smallest relative change that is marked. [default: 0.05; accuracies 0.02]"),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="How often a history without any change has a mark, all series together.")
    ] = 0.05,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the plots. [default: FILE-plots, beside the file]")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="List series without a change too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the measurements over commits, as a table and plots with marks where their level changed.

    Exit code 0, with changes or without; 2: bad input.
    """
    from meta500.benchmarks.history import show_history

    show_history(file, text=filter, minimum=minimum, rate=rate, out=out, show_all=show_all, as_json=as_json)
