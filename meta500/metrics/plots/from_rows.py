"""From result rows to curves, bars and ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.bars import Bar, Ratio
from meta500.metrics.plots.curves import Curve
from meta500.metrics.rows import KINDS, NO_VALUE_VERDICTS, Row

if TYPE_CHECKING:
    import pandas

Rows = Iterable[Row]
WHAT = ("model", "node", "operator", "shape", "dtype", "batch", "optimizer", "dataset")
WHO = ("backend", "mode", "version", "device", "threads", "ranks", "protocol", "seed", "run_id")
SERIES = ("model", "dataset", "optimizer", "backend", "mode", "device", "dtype", "batch")
CURVE = (*SERIES, "threads", "ranks", "version", "seed", "run_id")
CURVE_PHASES = ("training_step", "training_set", "test_set")


def as_rows(data: Rows | pandas.DataFrame) -> list[Row]:
    """Rows from rows or from a frame as `meta500.metrics.rows.to_frame` makes it.

    Absent numbers of a frame (NaN, NA) become None, except for ``value``, where NaN is a result.

    Raises:
        UserError: a column of the frame is no field of result rows, or a value does not fit.
    """
    if isinstance(data, Iterable) and not hasattr(data, "columns"):
        return list(data)
    unknown = [name for name in data.columns if name not in KINDS]
    if unknown:
        raise UserError(f"the frame has columns that are no fields of result rows: {unknown}")
    return [Row(**_present(record)) for record in data.to_dict("records")]


def curves_from_rows(data: Rows | pandas.DataFrame) -> list[Curve]:
    """Curves of all quantities in the rows of training runs, as `RowsTicker` writes them.

    Runs are told apart by their fields and, where these are equal, by their steps beginning anew.
    A label names the fields in which the runs differ.
    """
    runs = curves_of_runs(data)
    labels = describe([row for row, _ in runs], CURVE, ("optimizer", "backend", "mode"))
    return [
        replace(curve, label=label)
        for label, (_, curves) in zip(_distinct(labels), runs, strict=True)
        for curve in curves
    ]


def curves_of_runs(data: Rows | pandas.DataFrame) -> list[tuple[Row, list[Curve]]]:
    """The first row of every training run, which says what ran, and the run's curves without labels."""
    return [
        (rows[0], _step_curves("", rows) + _epoch_curves("", rows)) for rows in rows_of_runs(as_rows(data))
    ]


def bars_from_rows(data: Rows | pandas.DataFrame) -> list[Bar]:
    """Bars of rows of one quantity: categories are what was measured, series who ran it."""
    rows = as_rows(data)
    categories = describe(rows, WHAT, ("model", "node", "operator"))
    series = describe(rows, WHO, ("backend", "mode"))
    bars: dict[tuple[str, str], Bar] = {}
    for row, category, who in zip(rows, categories, series, strict=True):
        note = row.verdict if row.verdict in ("unsupported", "failed", "wrong") else ""
        value = None if row.verdict == "wrong" else row.value
        # The last one counts where a measurement was repeated.
        bars[category, who] = Bar(category, who, value, row.low, row.high, row.samples, note)
    return list(bars.values())


def ratios_from_rows(data: Rows | pandas.DataFrame) -> list[Ratio]:
    """Ratios of the rows of quantity "ratio" with an interval, gathered by what was measured."""
    rows = [row for row in as_rows(data) if has_ratio(row)]
    ratios = {
        (group, label): Ratio(label, row.value, row.low, row.high, group)  # type: ignore[arg-type]
        for row, (group, label) in zip(rows, names_of_ratios(rows), strict=True)
    }
    order = {group: place for place, group in enumerate(dict.fromkeys(g for g, _ in ratios))}
    return sorted(ratios.values(), key=lambda ratio: order[ratio.group])


def has_ratio(row: Row) -> bool:
    """Whether a row is a ratio with an interval."""
    return row.quantity == "ratio" and None not in (row.value, row.low, row.high)


def names_of_ratios(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Pairs of group and label, one for each row of a ratio with an interval."""
    groups = describe(rows, (*WHAT, "phase"), ("phase", "model", "node", "operator"))
    labels = describe(rows, (*WHO, "baseline"), ("backend", "mode"))
    return list(zip(groups, labels, strict=True))


def describe(rows: Sequence[Row], fields: Sequence[str], always: Sequence[str]) -> list[str]:
    """One text per row: its ``always`` fields, and as many of the other ``fields`` as tell rows apart.

    Of the others, a field is shown when rows that differ in it would otherwise have the same text: the
    version of a backend only when there are two versions of it, a shape only when one layer has two.
    """
    shown = telling_fields(rows, fields, always)
    return [" ".join(filter(None, (field_word(row, name) for name in shown))) for row in rows]


def telling_fields(rows: Sequence[Row], fields: Sequence[str], always: Sequence[str]) -> list[str]:
    """The fields that `describe` shows: ``always``, and of the others as many as tell rows apart."""
    differing = [name for name in fields if len({getattr(row, name) for row in rows}) > 1]
    shown = [name for name in fields if name in always]
    for name in (n for n in differing if n not in always):
        seen: dict[tuple[Any, ...], set[Any]] = {}
        for row in rows:
            key = tuple(getattr(row, field) for field in shown)
            seen.setdefault(key, set()).add(getattr(row, name))
        if any(len(values) > 1 for values in seen.values()):
            shown = [field for field in fields if field in shown or field == name]
    return shown


def aspect_of(row: Row) -> str:
    """What a protocol says beside how it timed: "interleaved, overhead" is about overhead."""
    return row.protocol.partition(", ")[2]


def is_on_curve(row: Row) -> bool:
    """Whether a row is a point, or a chunk of points, of a training run's curve."""
    return row.phase in CURVE_PHASES and row.step is not None and row.seconds is not None


def rows_of_runs(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of curves, training run by training run; all others are left out."""
    open_runs: dict[tuple[Any, ...], list[Row]] = {}
    last: dict[tuple[Any, ...], tuple[int, set[tuple[str, str, int]]]] = {}
    runs: list[list[Row]] = []
    for row in rows:
        if not is_on_curve(row):
            continue
        assert row.step is not None
        key = tuple(getattr(row, name) for name in CURVE)
        begin = row.step - max(len(row.samples) - 1, 0)
        place = (row.phase, row.quantity, row.step)
        step, seen = last.get(key, (0, set()))
        chunk = row.phase == "training_step"
        anew = row.step < step or place in seen or (chunk and begin <= step and row.step > step)
        if key not in open_runs or anew:
            open_runs[key] = []
            runs.append(open_runs[key])
            seen = set()
        open_runs[key].append(row)
        last[key] = (row.step, seen | {place})
    return runs


def _step_curves(label: str, rows: Sequence[Row]) -> list[Curve]:
    chunks: dict[int, dict[str, tuple[float, ...]]] = {}
    for row in rows:
        if row.phase == "training_step" and row.step is not None and row.samples:
            chunks.setdefault(row.step, {})[row.quantity] = row.samples
    names = ("samples_seen", "training_time", "loss")
    # A process that was killed may have left a chunk without its last rows.
    whole = [chunk for chunk in chunks.values() if all(name in chunk for name in names)]
    if not whole:
        return []
    seen, seconds, losses = (np.concatenate([chunk[name] for chunk in whole]) for name in names)
    return [Curve(label, "loss", "training_step", seen, seconds, losses)]


def _epoch_curves(label: str, rows: Sequence[Row]) -> list[Curve]:
    seen = {r.step: r.value for r in rows if r.quantity == "samples_seen"}
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for row in rows:
        known = row.phase != "training_step" and row.step in seen and row.value is not None
        if known and row.quantity not in ("samples_seen", "data_time"):
            place = points.setdefault((row.quantity, row.phase), [])
            place.append((float(seen[row.step] or 0), float(row.seconds or 0), float(row.value or 0)))
    return [
        Curve(label, quantity, phase, *np.array(values).T) for (quantity, phase), values in points.items()
    ]


def _distinct(labels: Sequence[str]) -> list[str]:
    """The labels, numbered where one comes several times."""
    counts: dict[str, int] = {}
    result = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        repeated = labels.count(label) > 1
        result.append(f"{label} run {counts[label]}".strip() if repeated else label)
    return result


def field_word(row: Row, name: str) -> str:
    """A field's value in words, with its name where it is a number; "" where there is none."""
    value = getattr(row, name)
    if value in (None, "") or (name == "node" and value == row.operator):
        return ""
    if name in ("threads", "ranks"):
        return f"{value} {name[:-1] if value == 1 else name}"
    if name == "operator" and row.node:
        return ""
    return f"{name} {value}" if name in ("batch", "seed") else str(value).replace("_", " ")


def _present(record: dict[str, Any]) -> dict[str, Any]:
    """A frame's record without the numbers that are absent; NaN stays where it is a result."""
    present = {}
    for name, value in record.items():
        if not _absent(value):
            present[name] = value
        elif name == "value":
            without = record.get("verdict") in NO_VALUE_VERDICTS
            present[name] = None if without else float("nan")
    return present


def _absent(value: Any) -> bool:
    # pandas.NA can't be compared with itself, and pandas is not imported for its type.
    missing = value is None or type(value).__name__ == "NAType"
    return missing or (isinstance(value, float) and math.isnan(value))
