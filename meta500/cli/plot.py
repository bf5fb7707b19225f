"""``meta500 plot``: accuracy and loss of runs against each other, over samples and over seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[
        list[str], typer.Argument(help="Run folders, folders that hold them, or patterns.", metavar="RUN")
    ],
    filter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Only runs with this text in their name, network, optimizer, ...; 'one|other' for either, "
            "-TEXT for those without it. Several: all must fit.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Above the plots. Default: what the runs share.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the plots.")] = Path("versus"),
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", help="png, pdf or svg. Default: png and pdf.", show_default=False),
    ] = None,
    aggregate: Annotated[
        str,
        typer.Option(help="range or quartiles: runs that differ only in their seeds as medians with a band."),
    ] = "none",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Plot runs against each other: accuracy and loss over samples and over seconds."""
    import json

    from meta500.errors import choose
    from meta500.metrics.plots.style import FORMATS
    from meta500.metrics.plots.versus import read_versus, write_versus

    kinds = formats or ["png", "pdf"]
    for kind in kinds:
        choose("format of plots", kind, FORMATS)
    found = read_versus(runs, filter=filter, aggregate=aggregate)  # type: ignore[arg-type]
    written = write_versus(found, out, title=title, formats=kinds)
    for note in found.notes:
        typer.echo(f"meta500: note: {note}", err=True)
    if as_json:
        lines = [
            {"label": line.label, "runs": [{"name": r.name, "folder": str(r.folder)} for r in line.runs]}
            for line in found.lines
        ]
        typer.echo(json.dumps({"files": list(map(str, written)), "lines": lines, "notes": list(found.notes)}))
        return
    for line in found.lines:
        names = ", ".join(run.name for run in line.runs)
        typer.echo(line.label if names == line.label else f"{line.label}: {names}")
    typer.echo(f"Plots: {out}")
