"""Tables of training runs: how good they got and how soon, and the ends of all their curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meta500.metrics.plots.from_rows import CURVE, rows_of_runs, telling_fields
from meta500.metrics.report.cells import (
    Cell,
    Column,
    DataTable,
    named,
    number_cell,
    unit_for,
    without_empty,
    words,
)
from meta500.metrics.report.measured import field_text, in_words, spaced
from meta500.metrics.report.sources import Source
from meta500.metrics.rows import Row

# Quantities that are a part of one, and read as percentages.
PERCENT = ("accuracy", "top1", "top5")
NOT_REACHED = "not reached"


@dataclass(frozen=True)
class TrainingRun:
    """The rows of one training run's curves.

    Attributes:
        name: of the source, followed by "#2", "#3" ... for the further runs of one source.
        target: accuracy that the run was to reach; None where there was none.
    """

    name: str
    rows: Sequence[Row]
    target: float | None = None

    def points(self, phase: str, quantity: str) -> list[Row]:
        """The points of a curve, in the order of the rows."""
        return [row for row in self.rows if (row.phase, row.quantity) == (phase, quantity)]

    def samples_at(self, step: int | None) -> float | None:
        """Training samples seen after a step."""
        seen = (r.value for r in self.rows if r.quantity == "samples_seen" and r.step == step)
        return next(seen, None)


def training_runs(sources: Sequence[Source]) -> list[TrainingRun]:
    """The training runs in all sources."""
    return [
        TrainingRun(f"{source.name}#{place}" if place > 1 else source.name, rows, _target(source))
        for source in sources
        for place, rows in enumerate(rows_of_runs(source.rows), start=1)
    ]


def training_table(runs: Sequence[TrainingRun]) -> DataTable:
    """One line per training run: what ran, loss and accuracy, samples, seconds, and the way to the target.

    Where no target was given and several runs have the same network and data, the target is the lowest of
    their best accuracies: the highest that all of them reached.
    """
    firsts = [run.rows[0] for run in runs]
    known = [name for name in CURVE if name != "run_id"]
    telling = telling_fields(firsts, known, ("model", "dataset", "optimizer", "backend", "mode"))
    fields = [name for name in telling if len({field_text(row, name) for row in firsts}) > 1]
    alike = [name for name in known if len({field_text(row, name) for row in firsts}) == 1]
    shared = [in_words(firsts[0], name) for name in alike if name != "version"]
    common = _common_targets(runs)
    scale, unit = unit_for("s", (_last(run.rows).seconds for run in runs))
    lines = []
    for run in runs:
        last, accuracies = _last(run.rows), run.points("test_set", "accuracy")
        finite = [row for row in accuracies if math.isfinite(_value(row))]
        best = max(finite, key=_value, default=None)
        losses = [run.points(*place) for place in (("training_set", "loss"), ("training_step", "loss"))]
        loss = next((points[-1].value for points in losses if points), None)
        test_loss = run.points("test_set", "loss")
        target = run.target if run.target is not None else common.get(_task(run))
        lines.append(
            (
                *words(run.name, *(field_text(run.rows[0], name) for name in fields)),
                number_cell(None if last.epoch is None else last.epoch + 1),
                number_cell(last.step),
                number_cell(run.samples_at(last.step)),
                number_cell(last.seconds, factor=scale),
                number_cell(loss),
                number_cell(test_loss[-1].value if test_loss else None),
                number_cell(accuracies[-1].value if accuracies else None, factor=100),
                number_cell(best.value if best else None, factor=100),
                *_way_to(run, accuracies, target, scale),
            )
        )
    numbers = (
        ("epochs", ""), ("steps", ""), ("samples", ""), ("training time", unit), ("training loss", ""),
        ("test loss", ""), ("last accuracy", "%"), ("best accuracy", "%"), ("target", "%"),
        ("time to target", unit), ("samples to target", ""),
    )  # fmt: skip
    heads = [Column("run"), *named(*map(spaced, fields)), *(Column(name, of, True) for name, of in numbers)]
    columns, kept = without_empty(heads, lines)
    notes = [
        f"in all lines: {', '.join(filter(None, shared))}" if any(shared) else "",
        "losses are the last ones, accuracies those of the test set",
    ]
    if common:
        notes.append("a target that was not given is the highest accuracy that all runs of a task reached")
    text = "; ".join(filter(None, notes))
    return DataTable("training", "Training runs", columns, kept, f"{text[0].upper()}{text[1:]}.")


def curves_table(runs: Sequence[TrainingRun]) -> DataTable:
    """One line per curve of each run: its points, first, last, smallest and largest value."""
    lines = []
    for run in runs:
        for phase, quantity, unit in dict.fromkeys((r.phase, r.quantity, r.unit) for r in run.rows):
            chosen = [r for r in run.points(phase, quantity) if r.unit == unit]
            values = [x for r in chosen for x in (r.samples or (r.value,)) if x is not None]
            percent = quantity in PERCENT and unit == "1"
            factor, shown = (100.0, "%") if percent else unit_for(unit, values)
            finite = [x for x in values if math.isfinite(x)]
            lines.append(
                (
                    *words(run.name, spaced(phase), spaced(quantity)),
                    number_cell(len(values)),
                    *(number_cell(values[i], factor=factor) if values else Cell() for i in (0, -1)),
                    *(number_cell(f(finite), factor=factor) if finite else Cell() for f in (min, max)),
                    Cell(shown),
                )
            )
    numbers = ("points", "first", "last", "smallest", "largest")
    heads = (*named("run", "phase", "quantity"), *(Column(n, numeric=True) for n in numbers), Column("unit"))
    return DataTable("training-curves", "Training runs: their curves", heads, tuple(lines))


def _target(source: Source) -> float | None:
    setup = (source.info or {}).get("setup")
    target = setup.get("target_accuracy") if isinstance(setup, Mapping) else None
    return float(target) if isinstance(target, int | float) and not isinstance(target, bool) else None


def _task(run: TrainingRun) -> tuple[str, str]:
    return run.rows[0].model, run.rows[0].dataset


def _common_targets(runs: Sequence[TrainingRun]) -> dict[tuple[str, str], float]:
    """By network and data, the highest accuracy that all of several runs without a target reached."""
    best: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        points = [_value(row) for row in run.points("test_set", "accuracy")]
        finite = [x for x in points if math.isfinite(x)]
        if run.target is None and finite:
            best.setdefault(_task(run), []).append(max(finite))
    return {task: min(values) for task, values in best.items() if len(values) > 1}


def _way_to(
    run: TrainingRun, accuracies: Sequence[Row], target: float | None, scale: float
) -> tuple[Cell, Cell, Cell]:
    """The target, and training time and samples until it was reached."""
    if target is None or not accuracies:
        return Cell(), Cell(), Cell()
    reached = next((row for row in accuracies if _value(row) >= target), None)
    shown = number_cell(target, factor=100)
    if reached is None:
        return shown, Cell(NOT_REACHED), Cell(NOT_REACHED)
    return shown, number_cell(reached.seconds, factor=scale), number_cell(run.samples_at(reached.step))


def _last(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: row.step or 0)


def _value(row: Row) -> float:
    return math.nan if row.value is None else row.value
