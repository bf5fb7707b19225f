"""Running a recipe: every run with every seed, what each measured, and the verdicts from all."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from meta500.benchmarks.recipes import values
from meta500.benchmarks.recipes.acceptance import (
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    Verdict,
    judge,
    worst,
)
from meta500.benchmarks.recipes.checks import check
from meta500.benchmarks.recipes.folder import Outcome, RecipeFolder, opened
from meta500.benchmarks.recipes.recipe import Recipe, Run
from meta500.benchmarks.training import Setup, progress, train
from meta500.errors import UserError
from meta500.metrics.run import RunFolder
from meta500.metrics.scores import score
from meta500.metrics.tickers import ScheduleTicker, Summary

EXIT_CODES = {REPRODUCED: 0, NOT_REPRODUCED: 1, UNDECIDED: 3}


def run_recipe(
    recipe: Recipe, *, seeds: int | None = None, out: Path | None = None, quick: bool = False
) -> tuple[RecipeFolder, list[Verdict]]:
    """Run a recipe, or what is missing of an earlier run in ``out``.

    Seeds are the outer loop and runs the inner one, so that what slows the machine down for a while slows
    all runs of a seed. A training that fails is noted, and the others are run all the same.

    Args:
        recipe: with what was set.
        seeds: how many; None: as the recipe, or the earlier run, says.
        out: the folder; None: a new one in runs/.
        quick: one epoch, and one seed unless ``seeds`` are given; nothing is decided then.

    Returns:
        The folder and the verdicts on all metrics.

    Raises:
        UserError: what does not fit, before anything starts; see `meta500.benchmarks.recipes.checks`.
        KeyboardInterrupt: by Ctrl-C, after what was done is written.
    """
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {seeds}")
    check(recipe)
    with opened(recipe, out, seeds, quick) as folder:
        sys.stderr.write(f"Writing to {folder.path}\n")
        outcomes: list[Outcome] = []
        folder.write("running", outcomes, _verdicts(folder, outcomes, quick))
        total = len(folder.seeds) * len(recipe.runs)
        try:
            for seed in folder.seeds:
                for run in recipe.runs:
                    name = f"{run.name}, " if len(recipe.runs) > 1 else ""
                    outcomes.append(_done(folder, run, seed, quick, f"{name}seed {seed}", total, outcomes))
                    folder.write("running", outcomes, _verdicts(folder, outcomes, quick))
        except KeyboardInterrupt:
            folder.write("interrupted", outcomes, _verdicts(folder, outcomes, quick))
            sys.stderr.write(f"Go on with the same command and --out {folder.path}\n")
            raise
        verdicts = _verdicts(folder, outcomes, quick)
        folder.write("finished", outcomes, verdicts)
    return folder, verdicts


def train_once(setup: Setup, path: Path, schedule: tuple[Any, str] | None, *, memory: bool = False) -> None:
    """One training into a new run folder, with what it measured in run.json.

    Args:
        setup: what to train.
        path: of the folder.
        schedule: of the learning rate, and what it counts; None: constant.
        memory: whether the peak of this process's memory is that of the training.

    Raises:
        Exception: whatever the training raises; the folder says so, too.
    """
    with RunFolder.create(path, seeds={"seed": setup.seed}) as folder:
        folder.info |= {"setup": asdict(setup), "ranks": 1, "measured": {}}
        tickers: list[Any] = [progress()]
        if schedule is not None:
            folder.info["schedule"] = {
                "learning_rate": str(getattr(schedule[0], "text", "")),
                "per": schedule[1],
            }
            tickers.insert(0, ScheduleTicker("learning_rate", schedule[0], schedule[1]))  # type: ignore[arg-type]
        summary = train(setup, folder, tickers)
        folder.info["measured"] = measured(summary)
        if memory:
            from meta500.benchmarks.memory import high_water_mark

            folder.info["measured"]["peak_memory"] = {"": float(high_water_mark())}
        if summary.status == "failed":
            folder.finish("failed", summary.abort_reason or "")
        elif summary.status == "stopped":
            folder.finish("finished", summary.abort_reason or "")


def measured(summary: Summary) -> dict[str, dict[str, float]]:
    """The quantities of a training by name, each with its values; see `Outcome`.

    ``step_seconds`` is the median time inside of the optimizer per step, without the first step, which
    builds and compiles and is ``first_step_seconds``; ``data_seconds`` the mean time per step that fetching
    the batches took; ``train_seconds`` the time inside of the optimizer in all. The best of a quantity is its
    highest or lowest over the epochs, whichever is better; numbers that are not finite are left out.
    """
    epochs = summary.epochs
    curves: dict[str, tuple[list[float | None], bool]] = {
        "test_accuracy": ([e.accuracy for e in epochs], True),
        "test_loss": ([e.test_loss for e in epochs], False),
        "train_loss": ([e.loss for e in epochs], False),
    }
    for name in dict.fromkeys(name for e in epochs for name in e.scores):
        curves[name] = ([e.scores.get(name) for e in epochs], score(name).higher_is_better)
    found: dict[str, dict[str, float]] = {}
    for name, (curve, higher) in curves.items():
        known = [value for value in curve if value is not None and math.isfinite(value)]
        last = curve[-1] if curve else None
        if known and last is not None and math.isfinite(last):
            found[name] = {"final": last, "best": max(known) if higher else min(known)}
    steps = summary.step_seconds
    if steps:
        found["step_seconds"] = {"": statistics.median(steps[1:] or steps)}
        found["first_step_seconds"] = {"": steps[0]}
        found["data_seconds"] = {"": summary.seconds["data"] / len(steps)}
        found["train_seconds"] = {"": math.fsum(steps)}
    return found


def exit_code(verdicts: Sequence[Verdict], failed: Sequence[Outcome] = ()) -> int:
    """0 reproduced, 1 not reproduced or a training ``failed``, 3 undecided."""
    return EXIT_CODES[worst(verdicts, failed)]


def _done(
    folder: RecipeFolder, run: Run, seed: int, quick: bool, name: str, total: int, before: Sequence[Outcome]
) -> Outcome:
    """The outcome of a training that was run earlier, or is run now."""
    recipe = folder.recipe
    setup = recipe.setup(run, seed)
    if quick:
        setup = replace(setup, epochs=1)
    found = folder.outcome(run, seed, setup)
    number = f"training {len(before) + 1} of {total}"
    if found is not None:
        sys.stderr.write(f"{name} ({number}): {found.status} earlier\n")
        return found
    folder.set_aside(run, seed)
    sys.stderr.write(f"{name} ({number})\n")
    path = folder.training(run, seed)
    reason = ""
    if recipe.isolated:
        from meta500.benchmarks.recipes.worker import train_apart

        train_apart(recipe.values_of(run), seed, setup.epochs, path, lock=folder.lock)
    else:
        try:
            train_once(setup, path, values.schedule(recipe.values_of(run)))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error)
    found = folder.outcome(run, seed, setup)
    if found is None:
        found = Outcome(run.name, seed, "failed", reason or "the training left no run folder", {})
    if found.status == "failed":
        sys.stderr.write(f"{name}: failed: {found.reason}\n")
    return found


def _verdicts(folder: RecipeFolder, outcomes: Sequence[Outcome], quick: bool) -> list[Verdict]:
    """The verdicts on all metrics from the trainings so far."""
    recipe = folder.recipe
    by_place = {(outcome.run, outcome.seed): outcome for outcome in outcomes}
    verdicts = []
    for metric in recipe.metrics:
        found: dict[int, float] = {}
        failures: dict[int, str] = {}
        waiting = 0
        for seed in folder.seeds:
            parts = [by_place.get((name, seed)) for name in metric.runs]
            failed = [part for part in parts if part is not None and part.status == "failed"]
            if failed:
                where = f"run '{failed[0].run}': " if len(recipe.runs) > 1 else ""
                failures[seed] = f"{where}{failed[0].reason}"
            elif any(part is None for part in parts):
                waiting += 1
            elif cut := next(
                (p for p in parts if p and p.reason and metric.quantity not in p.measured), None
            ):
                where = f"run '{cut.run}': " if len(recipe.runs) > 1 else ""
                failures[seed] = f"{where}it ended before {metric.quantity} was measured: {cut.reason}"
            else:
                of_runs = {
                    part.run: part.measured.get(metric.quantity, {}).get(metric.at, math.nan)
                    for part in parts
                    if part is not None
                }
                found[seed] = metric.of(of_runs)
        verdicts.append(
            judge(
                metric,
                found,
                failures=failures,
                waiting=waiting,
                # One of many seeds is no single run: --seeds must not make a verdict easier to have.
                single_run=recipe.single_run and recipe.seeds == 1,
                quick=quick,
            )
        )
    return verdicts
