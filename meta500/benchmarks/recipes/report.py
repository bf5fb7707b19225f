"""Recipes and their verdicts as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta500.benchmarks.recipes.acceptance import REPORTED, REPRODUCED, Verdict, worst
from meta500.benchmarks.recipes.checks import missing, needs_download
from meta500.benchmarks.recipes.folder import RecipeFolder, bounds, plain
from meta500.benchmarks.recipes.recipe import Metric, Recipe, find, shipped
from meta500.benchmarks.tables import duration, size, table_of

# More values than these do not fit into a cell.
_VALUES = 6


def verdict_table(recipe: Recipe, verdicts: Sequence[Verdict]) -> Any:
    """A rich table with one line per metric: mean, the seeds' values, interval, bounds, verdict."""
    table = table_of(
        f"{recipe.title} ({recipe.name})",
        ["metric"],
        ["mean", "seeds' values", "interval of the mean", "bounds", "verdict"],
    )
    for v in verdicts:
        unit, found = v.metric.unit, list(v.values.values())
        values = "  ".join(number(value, unit) for value in found[:_VALUES])
        if len(found) > _VALUES:
            values += f"  ... ({len(found)})"
        interval = "-"
        if v.low is not None and v.high is not None:
            ends = f"[{number(v.low, unit)}, {number(v.high, unit)}]"
            interval = f"{ends} {100 * v.metric.confidence:g} %"
        mean = "-" if v.mean is None else number(v.mean, unit)
        limits = bounds(v.metric.low, v.metric.high)
        table.add_row(v.metric.name, mean, values or "-", interval, limits, v.verdict)
    return table


def conclusion(folder: RecipeFolder, verdicts: Sequence[Verdict]) -> list[str]:
    """What is said below the table: why a metric is not reproduced, failures that are in none, the verdict,
    notes, the folder."""
    lines = [
        f"{v.metric.name}: {v.verdict}: {v.reason}"
        for v in verdicts
        if v.verdict not in (REPRODUCED, REPORTED) or not v.values
    ]
    used = {name for v in verdicts for name in v.metric.runs}
    lines += [
        f"run '{o.run}', seed {o.seed} failed: {o.reason} (no metric uses it)"
        for o in folder.failed
        if o.run not in used
    ]
    seeds = f"{len(folder.seeds)} seed{'s' if len(folder.seeds) > 1 else ''}"
    lines.append(f"Recipe '{folder.recipe.name}', {seeds}: {worst(verdicts, folder.failed)}")
    return [*lines, *folder.notes, f"Results: {folder.path}"]


def result(folder: RecipeFolder) -> dict[str, Any]:
    """The outcome for ``--json``: recipe.json without the recipe's text and the environment."""
    kept = {k: v for k, v in folder.info.items() if k not in ("text", "environment", "decides")}
    return {"folder": str(folder.path), **plain(kept)}


def catalogue() -> list[dict[str, Any]]:
    """The shipped recipes: name, title, what they train, and the datasets that have to be got."""
    found = []
    for name in shipped():
        recipe = find(name)
        setups = [recipe.setup(run) for run in recipe.runs]
        found.append(
            {
                "name": name,
                "title": recipe.title,
                "models": list(dict.fromkeys(setup.model for setup in setups)),
                "datasets": list(dict.fromkeys(setup.dataset for setup in setups)),
                "trainings": len(recipe.runs) * recipe.seeds,
                "epochs": max(setup.epochs for setup in setups),
                "downloads": needs_download(recipe),
                "missing": missing(recipe),
            }
        )
    return found


def catalogue_table(entries: Sequence[dict[str, Any]]) -> Any:
    """A rich table of the shipped recipes."""
    table = table_of("Recipes", ["name", "title", "model", "dataset"], ["trainings", "epochs", "data"])
    for entry in entries:
        data = "here" if not entry["missing"] else f"meta500 data get {' '.join(entry['missing'])}"
        table.add_row(
            entry["name"],
            entry["title"],
            ", ".join(entry["models"]),
            ", ".join(entry["datasets"]),
            str(entry["trainings"]),
            str(entry["epochs"]),
            data,
        )
    return table


def description(recipe: Recipe) -> dict[str, Any]:
    """Everything about a recipe as plain values."""
    return plain(
        {
            "name": recipe.name,
            "title": recipe.title,
            "description": recipe.description,
            "source": recipe.source,
            "file": str(recipe.path),
            "seeds": recipe.seeds,
            "single_run": recipe.single_run,
            "isolated": recipe.isolated,
            "fixed": recipe.fixed,
            "mutable": recipe.mutable,
            "runs": {run.name: {**run.overrides, "without": run.without} for run in recipe.runs},
            "metrics": [vars(metric) for metric in recipe.metrics],
            "missing": missing(recipe),
        }
    )


def value_table(recipe: Recipe) -> Any:
    """A rich table of the fixed and mutable values, and of those of each run."""
    table = table_of("Values", ["", "key"], ["value"])
    parts = [("fixed", recipe.fixed), ("mutable", recipe.mutable)]
    if len(recipe.runs) > 1 or recipe.runs[0].overrides:
        parts += [
            (f"run {run.name}", run.overrides | {f"without {key}": "" for key in run.without})
            for run in recipe.runs
        ]
    for title, entries in parts:
        for index, (key, value) in enumerate(entries.items()):
            table.add_row(title if not index else "", key, _shown(value))
        if not entries:
            table.add_row(title, "-", "")
    return table


def metric_table(recipe: Recipe) -> Any:
    """A rich table of the metrics with their bounds."""
    table = table_of("Metrics", ["metric", "what"], ["bounds", "confidence"])
    for metric in recipe.metrics:
        limits = bounds(metric.low, metric.high)
        table.add_row(metric.name, _what(metric), limits, f"{100 * metric.confidence:g} %")
    return table


def number(value: float, unit: str) -> str:
    """A value in its unit, short."""
    if unit == "s":
        return duration(value) if value >= 0 else f"-{duration(-value)}"
    return size(value) if unit == "B" else f"{value:.4g}"


def _what(metric: Metric) -> str:
    quantity = " ".join(filter(None, (metric.at, metric.quantity)))
    if metric.form == "difference":
        return f"{quantity}: {metric.runs[0]} minus {metric.runs[1]}"
    return f"{quantity}: {metric.runs[0]}" + (f" by {metric.runs[1]}" if metric.form == "ratio" else "")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_shown(entry) for entry in value) + "]"
    return str(value)
