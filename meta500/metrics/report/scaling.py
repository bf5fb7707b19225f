"""The table of scaling: step time and efficiency of each scheme by ranks, measured and predicted."""

from __future__ import annotations

from collections.abc import Sequence

from meta500.metrics.plots.scaling import Series, is_drawn, studies_from_rows
from meta500.metrics.report.cells import Cell, Column, DataTable, named, number_cell, unit_for, without_empty
from meta500.metrics.report.measured import Shown
from meta500.metrics.report.sources import Source
from meta500.metrics.rows import Row

STEP_TIMES = ("step_time", "predicted_step_time", "checked_step_time")


def scaling_table(sources: Sequence[Source]) -> Shown | None:
    """One line per rank count of each scheme; None where there are no steps on several ranks.

    Efficiency is the time on one rank over that on p ranks; with strong scaling, over p times that.
    """
    lines = []
    shown: list[Row] = []
    for source in sources:
        rows = [row for row in source.rows if row.level == 3 and row.quantity in STEP_TIMES]
        for study in studies_from_rows(rows):
            for series in study.series:
                lines += [(source.name, study.title, series, ranks) for ranks in _ranks(series)]
        shown += [row for row in rows if is_drawn(row) and row.phase == "training_step"]
    if not lines:
        return None
    times = [t for _, _, series, _ in lines for t in (*_measured(series), *_predicted(series))]
    factor, unit = unit_for("s", times)
    cells = []
    for name, title, series, ranks in lines:
        measured = next((m for m in series.measured if m.ranks == ranks), None)
        predicted = dict(series.predicted).get(ranks)
        time = measured.seconds if measured else predicted
        cells.append(
            [
                Cell(name if len(sources) > 1 else ""),
                Cell(title),
                Cell(series.scheme),
                Cell(series.scaling),
                number_cell(ranks),
                number_cell(measured.seconds, measured.low, measured.high, factor) if measured else Cell(),
                number_cell(measured.checked if measured else None, factor=factor),
                number_cell(predicted, factor=factor),
                _efficiency(series, ranks, time),
            ]
        )
    numbers = (
        ("ranks", ""),
        ("step time", unit),
        ("model without this rank count", unit),
        ("predicted", unit),
        ("efficiency", "%"),
    )
    heads = (*named("run", "study", "scheme", "scaling"), *(Column(name, of, True) for name, of in numbers))
    if len(sources) == 1:
        # The first column always stays; alone, a source needs no name.
        heads, cells = heads[1:], [line[1:] for line in cells]
    columns, kept = without_empty(heads, cells)
    note = "Efficiency: time on one rank over that on p ranks (strong scaling: over p times that), measured "
    note += "where it was, else predicted."
    return Shown(DataTable("scaling", "Scaling", columns, kept, note), shown)


def _ranks(series: Series) -> list[int]:
    return sorted({m.ranks for m in series.measured} | {ranks for ranks, _ in series.predicted})


def _measured(series: Series) -> list[float]:
    return [m.seconds for m in series.measured]


def _predicted(series: Series) -> list[float]:
    return [seconds for _, seconds in series.predicted]


def _efficiency(series: Series, ranks: int, time: float | None) -> Cell:
    if series.single is None or not time:
        return Cell()
    value = series.single / time / (ranks if series.scaling == "strong" else 1)
    return Cell(f"{100 * value:.0f}", 100 * value)
