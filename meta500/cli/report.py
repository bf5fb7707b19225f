"""``meta500 report``: runs as a page to look at, and as tables and figures for papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Run folders, folders that hold them, patterns, rows.csv, or CSV files of other tools.",
            metavar="RUN",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    title: Annotated[
        str | None, typer.Option(help="Of the page. Default: names the runs.", show_default=False)
    ] = None,
    filter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Only rows with this text in their run, network, operator, backend, ...; 'one|other' for "
            "either, -TEXT for those without it. Several: all must fit.",
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="html, markdown, latex, png, pdf, svg; several with commas. Default: html.",
            show_default=False,
        ),
    ] = None,
    figures: Annotated[
        list[str] | None,
        typer.Option("--figure", metavar="NAME", help="Only this figure; the page shows the names."),
    ] = None,
    columns: Annotated[
        Path | None,
        typer.Option(metavar="MAP.toml", help="What the columns of another tool's CSV files are."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=COLUMN", help="The column of a field of another tool's CSV files."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Report on runs: one HTML page with tables and figures, or tables and figures as files."""
    import json

    from meta500.metrics.report.column_map import read_column_map
    from meta500.metrics.report.reports import Request, write_report

    kinds = [kind.strip() for entry in formats or ["html"] for kind in entry.split(",")]
    found = write_report(
        Request(
            runs=runs,
            out=out,
            title=title or "",
            filter=filter or (),
            formats=kinds,
            figures=figures or (),
            columns=read_column_map(columns, column or ()) if columns or column else None,
            words=[
                *(["--columns", str(columns)] if columns else []),
                *(word for pair in column or () for word in ("--column", pair)),
            ],
        )
    )
    for note in found.notes:
        typer.echo(f"meta500: note: {note}", err=True)
    for path in found.removed:
        typer.echo(
            f"meta500: note: {path}: removed: an earlier report wrote it, this one has no such figure",
            err=True,
        )
    if as_json:
        missing = [{"what": what, "why": why} for what, why in found.missing]
        lists = {"figures": found.figures, "tables": found.tables, "missing": missing, "notes": found.notes}
        typer.echo(
            json.dumps(
                {"files": list(map(str, found.files)), "removed": list(map(str, found.removed))} | lists
            )
        )
        return
    for path in found.files:
        typer.echo(f"{path}  ({path.stat().st_size / 1e6:.1f} MB)")
