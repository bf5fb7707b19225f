"""The Typer application: registers the verbs."""

from __future__ import annotations

from typing import Annotated

import typer

from meta500.cli import (
    bench,
    compare,
    data,
    diff,
    generate,
    history,
    info,
    launch,
    models,
    operators,
    plot,
    recipe,
    report,
    scale,
    serve,
    study,
    train,
    watch,
)

application = typer.Typer(
    name="meta500",
    help="Measures deep learning at every level and compares the implementations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # as "rich", "[default: ...]" would vanish
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(show: bool) -> None:
    if show:
        from meta500 import __version__

        typer.echo(f"meta500 {__version__}")
        raise typer.Exit


@application.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Measures deep learning at every level and compares the implementations."""


application.command("bench")(bench.bench)
application.command("train")(train.train)
application.command("watch")(watch.watch)
application.command("compare")(compare.compare)
application.add_typer(history.history, name="history")
application.command("plot")(plot.plot)
application.command("report")(report.report)
application.command("diff")(diff.diff)
application.command("models")(models.models)
application.command("operators")(operators.operators)
application.add_typer(generate.generate, name="generate")
application.add_typer(data.data, name="data")
application.command("launch", context_settings=launch.SETTINGS)(launch.launch)
application.add_typer(recipe.recipe, name="recipe")
application.command("scale")(scale.scale)
application.add_typer(study.study, name="study")
application.command("serve")(serve.serve)
application.command("info")(info.info)
