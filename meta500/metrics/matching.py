"""What makes rows of different runs the same measurement, how they become one, and what is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.metrics.rows import Row

KEY = (
    "level", "model", "operator", "node", "phase", "shape", "dtype", "batch", "optimizer",
    "dataset", "backend", "mode", "threads", "ranks", "device", "quantity", "baseline",
)  # fmt: skip
LOWER_IS_BETTER = (
    "time", "first_call", "peak_memory", "memory", "error", "loss", "ratio", "overhead",
    "time_to_accuracy", "rmse", "mse", "mae", "energy", "communication_volume", "latency", "data_time",
)  # fmt: skip
HIGHER_IS_BETTER = (
    "throughput", "bandwidth", "accuracy", "top1", "top5", "iou", "dice", "speedup", "efficiency",
)  # fmt: skip
# Curves of these are pooled to samples; of all others the last point counts.
POOLED = ("time", "throughput", "bandwidth")
BAD_VERDICTS = ("wrong", "unsupported", "failed")


def directions(higher: Iterable[str] = (), lower: Iterable[str] = ()) -> dict[str, str]:
    """From each quantity with a known direction to what is better, "lower" or "higher"."""
    better = dict.fromkeys([*LOWER_IS_BETTER, *lower], "lower")
    return better | dict.fromkeys([*HIGHER_IS_BETTER, *higher], "higher")


def by_key(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
    """One row for every measurement, by the values of its :data:`KEY`, in the order of the rows.

    Several rows of one measurement are pooled: their samples, or their values where they have none. Rows on
    a curve (with step or epoch) count by their last point per seed, except that those of :data:`POOLED` are
    all pooled. A row with a :func:`fault` stands for all.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in KEY), []).append(row)
    return {key: _pooled(group) for key, group in groups.items()}


def _pooled(group: list[Row]) -> Row:
    """One row for all rows with the same key; the worst verdict of them counts."""
    if group[0].quantity not in POOLED:
        group = _curve_ends(group)
    if len(group) == 1:
        return group[0]
    for row in group:
        if fault(row):
            return row
    samples = tuple(x for row in group for x in (row.samples or (row.value,)) if x is not None)
    errors = [row.error for row in group if row.error is not None]
    return replace(
        group[-1],
        samples=samples,
        value=float(np.median(samples)),
        low=None,
        high=None,
        confidence=None,
        error=max(errors) if errors else None,
    )


def _curve_ends(group: list[Row]) -> list[Row]:
    """Rows that are on no curve, and of every curve (one per seed) the last point."""
    ends: dict[int | None, Row] = {}
    plain = []
    for row in group:
        if row.step is None and row.epoch is None:
            plain.append(row)
            continue
        last = ends.get(row.seed)
        if last is None or _place(row) >= _place(last):
            ends[row.seed] = row
    return plain + list(ends.values())


def _place(row: Row) -> tuple[int, int]:
    return (-1 if row.epoch is None else row.epoch, -1 if row.step is None else row.step)


def fault(row: Row) -> str:
    """What is wrong with the result itself, "" if nothing is known to be."""
    if row.verdict in BAD_VERDICTS:
        return row.verdict
    number = row.value if row.quantity == "error" else row.error
    if number is not None and row.tolerance is not None and not number <= row.tolerance:
        return "wrong"
    return ""


def words(row: Row) -> tuple[str, str]:
    """What was measured and who ran it, for people."""
    counts = ((row.threads, "threads"), (row.ranks, "ranks"))
    name = row.node or row.operator
    what = (row.model, name, row.phase, row.shape, row.dtype, row.optimizer, row.dataset)
    batch = f"batch {row.batch}" if row.batch is not None else ""
    who = ("/".join(filter(None, (row.backend, row.mode))), row.device)
    numbers = [f"{count} {unit if count != 1 else unit[:-1]}" for count, unit in counts if count is not None]
    return " ".join(filter(None, (*what, batch))), " ".join(filter(None, (*who, *numbers)))
