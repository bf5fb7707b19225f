"""The tables of a comparison with plain PyTorch, made from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta500.benchmarks.against_torch import COLD_START, INTERLEAVED, OWN_PROCESS, WARM_START
from meta500.benchmarks.protocol import label
from meta500.benchmarks.step_worker import INFERENCE, TRAINING
from meta500.benchmarks.tables import duration, error, interval, size, table_of, timed
from meta500.benchmarks.variants import GENERATED, INSTALLED, PLAIN_TORCH, TUNED
from meta500.metrics.rows import Row


def all_tables(rows: Sequence[Row]) -> list[Any]:
    """The tables of those phases that have rows: the best of PyTorch, then every variant; memory; start."""
    tables = []
    for phase in (TRAINING, INFERENCE):
        timed_rows = [r for r in rows if r.phase == phase and r.protocol == INTERLEAVED]
        if timed_rows:
            tables += [best_table(timed_rows), variants_table(timed_rows)]
    memory = [r for r in rows if r.quantity == "peak_memory" and r.protocol == OWN_PROCESS]
    if memory:
        tables.append(memory_table(memory))
    starts = [r for r in rows if r.protocol in (COLD_START, WARM_START)]
    if starts:
        tables.append(start_table(starts))
    return tables


def best_table(rows: Sequence[Row]) -> Any:
    """One line per network: the generated backend, the fastest of plain PyTorch, and how many times faster.

    Args:
        rows: of one phase; quantities "time" and "ratio".
    """
    title = (
        f"{rows[0].phase.replace('_', ' ').capitalize()}: {GENERATED} against the fastest of plain PyTorch"
    )
    ways = [
        way for way in (INSTALLED, TUNED) if any(_way(r) == way for r in rows if r.backend == PLAIN_TORCH)
    ]
    columns = ["error", GENERATED]
    for way in ways:
        columns += [f"PyTorch {way}", "times faster"]
    table = table_of(title, ["network"], columns)
    for model in dict.fromkeys(r.model for r in rows):
        times = [r for r in rows if r.model == model and r.quantity == "time"]
        ours = next((r for r in times if r.backend == GENERATED), None)
        cells = ["-", "-"] if ours is None else [error(ours), _short(ours)]
        for way in ways:
            best = fastest([r for r in times if r.backend == PLAIN_TORCH and _way(r) == way])
            cells += ["-", "-"] if best is None else [_named(best), interval(_ratio(rows, best))]
        table.add_row(model, *cells)
    return table


def variants_table(rows: Sequence[Row]) -> Any:
    """One line per network and variant: time, ratio to the generated backend, first call.

    Args:
        rows: of one phase; quantities "time", "ratio" and "first_call".
    """
    title = f"{rows[0].phase.replace('_', ' ').capitalize()}: all variants"
    right = ["median time [interval]", f"times {GENERATED} [interval]", "rounds", "first call"]
    table = table_of(title, ["network", "by"], right)
    for model in dict.fromkeys(r.model for r in rows):
        for place, row in enumerate(r for r in rows if r.model == model and r.quantity == "time"):
            first = _of(rows, row, "first_call")
            table.add_row(
                "" if place else model,
                label(row),
                timed(row) if row.verdict != "wrong" else f"{timed(row)} wrong!",
                interval(_ratio(rows, row)),
                str(row.repeats),
                duration(first.value if first is not None else None),
            )
        table.add_section()
    return table


def memory_table(rows: Sequence[Row]) -> Any:
    """One line per network: peak memory of the generated backend and of PyTorch's most frugal variant."""
    table = table_of(
        "Peak memory of a training process", ["network"], [GENERATED, "least of PyTorch", "share", "by"]
    )
    for model in dict.fromkeys(r.model for r in rows):
        mine = [r for r in rows if r.model == model]
        ours = next((r for r in mine if r.backend == GENERATED), None)
        best = fastest([r for r in mine if r.backend == PLAIN_TORCH])
        share = "-"
        if ours is not None and best is not None and ours.value is not None and best.value:
            share = f"{ours.value / best.value:.2f}"
        cells = [_bytes(ours), _bytes(best), share, best.mode if best is not None else "-"]
        table.add_row(model, *cells)
    return table


def start_table(rows: Sequence[Row]) -> Any:
    """One line per network: time until a training step is done, less a step, by empty and by full caches."""
    who = list(dict.fromkeys(label(r) for r in rows))
    table = table_of("Start of training: empty caches / full caches", ["network"], who)
    for model in dict.fromkeys(r.model for r in rows):
        cells = []
        for name in who:
            mine = {r.protocol: r for r in rows if r.model == model and label(r) == name}
            cells.append(" / ".join(_start(mine.get(p)) for p in (COLD_START, WARM_START)))
        table.add_row(model, *cells)
    return table


def fastest(rows: Sequence[Row]) -> Row | None:
    """The row with the smallest value; None where none has one. What is wrong or failed is not fast."""
    found = [r for r in rows if r.value is not None and r.verdict not in ("wrong", "failed", "unsupported")]
    return min(found, key=lambda r: r.value or 0.0, default=None)


def _way(row: Row) -> str:
    return TUNED if row.mode.endswith(TUNED) else INSTALLED


def _named(row: Row) -> str:
    return f"{duration(row.value)} ({row.mode.removesuffix(f', {TUNED}')})"


def _ratio(rows: Sequence[Row], row: Row) -> Row | None:
    return _of(rows, row, "ratio")


def _of(rows: Sequence[Row], row: Row, quantity: str) -> Row | None:
    same = (row.model, row.phase, row.backend, row.mode)
    return next(
        (r for r in rows if r.quantity == quantity and (r.model, r.phase, r.backend, r.mode) == same), None
    )


def _bytes(row: Row | None) -> str:
    return "-" if row is None else row.verdict if row.value is None else size(row.value)


def _short(row: Row) -> str:
    return row.verdict if row.value is None else duration(row.value)


def _start(row: Row | None) -> str:
    return "-" if row is None else _short(row)
