"""Tables for the terminal, made from result rows alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from meta500.benchmarks.protocol import label
from meta500.metrics.rows import Row

_SCALES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
# What a table needs where there is no terminal whose width could be asked.
WIDTH = 118


def console(stderr: bool = False) -> Any:
    """A rich console; as wide as the tables need where the output is no terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=WIDTH)


def duration(seconds: float | None) -> str:
    """Seconds with three digits in the unit that fits."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    scale, unit = _scale(seconds)
    return f"{_digits(seconds / scale)} {unit}"


def size(count: float | None) -> str:
    """Bytes in MiB."""
    return "-" if count is None else f"{count / 2**20:.0f} MiB"


def timed(row: Row) -> str:
    """A time with its interval, in one unit; a single sample has none."""
    if row.value is None:
        return row.verdict
    scale, unit = _scale(row.value)
    text = _digits(row.value / scale)
    if row.low is not None and row.high is not None and row.confidence != 0:
        text += f" [{_digits(row.low / scale)}, {_digits(row.high / scale)}]"
    return f"{text} {unit}"


def interval(row: Row | None) -> str:
    """A ratio with its interval."""
    if row is None or row.value is None:
        return "-"
    if row.low is None or row.high is None or row.confidence == 0:
        return f"{row.value:.3f}"
    return f"{_digits(row.value)} [{_digits(row.low)}, {_digits(row.high)}]"


def error(row: Row) -> str:
    """Error against float64 with its verdict."""
    if row.verdict in ("failed", "unsupported"):
        return row.verdict
    if row.error is None:
        return "-"
    return f"{row.error:.1e}" + ("" if row.verdict == "ok" else f" {row.verdict}!")


def measurement_table(title: str, rows: Sequence[Row]) -> Any:
    """One line per (what, phase, implementation): time, ratio, error, throughput, first call, memory.

    Args:
        title: of the table.
        rows: of one level; quantities "time", "ratio", "first_call", "throughput", "peak_memory".
    """
    times = [r for r in rows if r.quantity == "time"]
    found = _Lookup(rows)
    baselines = {r.baseline for r in rows if r.quantity == "ratio"}
    columns: list[tuple[str, Any]] = [("median time [interval]", timed)]
    if len(baselines) == 1:
        columns.append((f"ratio to {baselines.pop()}", lambda r: interval(found.of("ratio", r))))
    if any(r.error is not None or r.verdict != "not_compared" for r in times):
        columns.append(("error", error))
    if found.any("throughput"):
        columns.append(("samples/s", lambda r: _plain(found.of("throughput", r))))
    if found.any("first_call"):
        columns.append(("first call", lambda r: duration(_value(found.of("first_call", r)))))
    if found.any("peak_memory"):
        columns.append(("peak memory", lambda r: size(_value(found.of("peak_memory", r)))))
    table = table_of(title, ["what", "by"], [name for name, _ in columns])
    last = ""
    for row in times:
        what = ", ".join(filter(None, (row.node or row.model, row.phase.replace("_", " "))))
        if last and what != last:
            table.add_section()
        who = ", ".join(filter(None, (label(row), row.optimizer)))
        table.add_row(what if what != last else "", who, *(cell(row) for _, cell in columns))
        last = what
    return table


def overhead_table(rows: Sequence[Row]) -> Any:
    """The ratios of our Network to plain PyTorch, and of the reference optimizer to the native one."""
    table = table_of(
        "Overhead of a training step", ["network", "what", "relative to"], ["ratio [interval]", "rounds"]
    )
    for row in (r for r in rows if r.quantity == "ratio"):
        who = f"meta500 {label(row)}, {row.optimizer}"
        table.add_row(row.model, who, row.baseline, interval(row), str(row.repeats))
    return table


def table_of(title: str, left: Sequence[str], right: Sequence[str]) -> Any:
    """An empty rich table with left- and right-aligned columns; backends and operators are never broken."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold", pad_edge=False)
    for name in left:
        table.add_column(name, overflow="fold", no_wrap=name in ("backend", "operator"))
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _scale(seconds: float) -> tuple[float, str]:
    return next(((s, u) for s, u in _SCALES if seconds >= s), _SCALES[-1])


def _digits(number: float) -> str:
    """Three significant digits, without an exponent."""
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    return f"{number:.{max(0, 2 - math.floor(math.log10(abs(number))))}f}"


def _value(row: Row | None) -> float | None:
    return row.value if row is not None else None


def _plain(row: Row | None) -> str:
    value = _value(row)
    return "-" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


class _Lookup:
    """Rows by what they measured, who did it, and the quantity."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = {(r.quantity, *self._key(r)): r for r in rows}

    @staticmethod
    def _key(row: Row) -> tuple[Any, ...]:
        return (row.level, row.model, row.node, row.phase, row.backend, row.mode, row.optimizer)

    def of(self, quantity: str, row: Row) -> Row | None:
        return self._rows.get((quantity, *self._key(row)))

    def any(self, quantity: str) -> bool:
        return any(key[0] == quantity for key in self._rows)
