"""``meta500 recipe``: experiments with fixed parts and acceptance bounds: list, show, check, run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

recipe = typer.Typer(
    help="Run experiments with fixed parts, and say whether their published results are reproduced.",
    no_args_is_help=True,
    add_completion=False,
)

NameOrFile = Annotated[
    str, typer.Argument(help="A shipped recipe's name, or a TOML file.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@recipe.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """List the shipped recipes, and which data they need."""
    from meta500.benchmarks.recipes.report import catalogue, catalogue_table
    from meta500.benchmarks.tables import console

    entries = catalogue()
    if as_json:
        sys.stdout.write(json.dumps(entries) + "\n")
    else:
        console().print(catalogue_table(entries))


@recipe.command("show")
def show(name_or_file: NameOrFile, as_json: AsJson = False) -> None:
    """Show what a recipe fixes, what may be set, and its metrics with their bounds."""
    from meta500.benchmarks.recipes.recipe import find
    from meta500.benchmarks.recipes.report import description, metric_table, value_table
    from meta500.benchmarks.tables import console

    found = find(name_or_file)
    about = description(found)
    if as_json:
        sys.stdout.write(json.dumps(about) + "\n")
        return
    printer = console()
    for text in (f"{found.title} ({found.name})", found.description, f"Source: {found.source}"):
        printer.print(text, markup=False, highlight=False)
    printer.print(f"Seeds: {found.seeds}", highlight=False)
    for dataset, files in about["missing"].items():
        printer.print(f"Missing: {', '.join(files)} (meta500 data get {dataset})", highlight=False)
    printer.print(value_table(found))
    printer.print(metric_table(found))


@recipe.command("check")
def check(
    name_or_file: NameOrFile,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A mutable value, key=value, again and again.")
    ] = None,
) -> None:
    """Check everything that a run needs, without running: exit code 0 if it could start, else 2."""
    from meta500.benchmarks.options import pairs
    from meta500.benchmarks.recipes.checks import check as check_recipe
    from meta500.benchmarks.recipes.recipe import find, with_settings

    found = with_settings(find(name_or_file), pairs("--set", settings))
    check_recipe(found)
    typer.echo(f"recipe '{found.name}' is valid and could start")


@recipe.command("run")
def run(
    name_or_file: NameOrFile,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A mutable value, key=value, again and again.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds. [default: the recipe's]")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder, new or of a run to go on with. [default: runs/NAME-TIME-ID]"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, one epoch: does it run? Decides nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe with its seeds: exit code 0 reproduced, 1 not reproduced or failed, 3 undecided."""
    from meta500.benchmarks.options import pairs
    from meta500.benchmarks.recipes.execution import exit_code, run_recipe
    from meta500.benchmarks.recipes.recipe import find, with_settings
    from meta500.benchmarks.recipes.report import conclusion, result, verdict_table
    from meta500.benchmarks.tables import console

    found = with_settings(find(name_or_file), pairs("--set", settings))
    folder, verdicts = run_recipe(found, seeds=seeds, out=out, quick=quick)
    if as_json:
        sys.stdout.write(json.dumps(result(folder)) + "\n")
    else:
        printer = console()
        printer.print(verdict_table(found, verdicts))
        for line in conclusion(folder, verdicts):
            printer.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(exit_code(verdicts, folder.failed))
