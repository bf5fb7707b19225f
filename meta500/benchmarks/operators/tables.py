"""Summaries of a Level 0 run, made from its rows alone: tables for the terminal and summary.csv."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta500.benchmarks.operators.accuracy import epsilon
from meta500.benchmarks.operators.quantities import GRADIENT, HOST_NOTE, SKIPPED, VERDICT
from meta500.benchmarks.operators.roofline import BANDWIDTH, PEAK, PHASE
from meta500.benchmarks.operators.timing import ABOVE, BACKWARD, EMPTY, FORWARD, IN_CACHE, MEASURING
from meta500.benchmarks.protocol import label
from meta500.benchmarks.tables import duration, table_of, timed
from meta500.metrics.rows import Row, csv_line

# More operators than this are summed up; only those with a case that is not right are listed.
MANY = 40
COMPLAINTS = 20
VERDICTS = ("ok", "wrong", "unsupported", "failed")


@dataclass
class Summary:
    """What one backend did with the cases of one operator, or of all operators."""

    operator: str
    backend: str
    cases: int = 0
    verdicts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*VERDICTS, "not_compared"), 0))
    host: int = 0
    ulp: float | None = None
    relative: float | None = None
    epsilons: float | None = None
    gradient: float | None = None
    gradient_wrong: int = 0
    times: int = 0
    best_share: float | None = None

    @property
    def right(self) -> int:
        """Cases with a right result."""
        return self.verdicts["ok"]


def summaries(rows: Iterable[Row], by_operator: bool = True) -> list[Summary]:
    """One summary per operator and backend (or per backend), operators in alphabetic order.

    ``epsilons`` is the largest relative error in units of the distance from 1 to the next number of its type.
    """
    found: dict[tuple[str, str], Summary] = {}
    for row in rows:
        if row.phase in (PHASE, MEASURING) or not row.backend or row.quantity == SKIPPED:
            continue
        if row.level != 0 or "/" in row.backend:
            continue
        operator = (row.operator or row.model) if by_operator else ""
        summary = found.setdefault((operator, row.backend), Summary(operator, row.backend))
        _add(summary, row)
    return [found[key] for key in sorted(found, key=lambda key: (key[0].lower(), key[1]))]


def write_summary(path: Path, rows: Sequence[Row]) -> None:
    """Write the summaries per operator and backend, and per backend (operator "all"), as CSV."""
    columns = (
        "operator", "backend", "cases", *VERDICTS, "not_compared", "host", "max_ulp", "max_relative_error",
        "max_error_in_eps", "max_gradient_error", "wrong_gradients", "times", "best_roofline_share",
    )  # fmt: skip
    lines = [csv_line(columns)]
    for summary in [*summaries(rows), *summaries(rows, by_operator=False)]:
        numbers = (summary.ulp, summary.relative, summary.epsilons, summary.gradient)
        cells = [
            summary.operator or "all",
            summary.backend,
            *(summary.cases, *summary.verdicts.values(), summary.host),
            *numbers,
            *(summary.gradient_wrong, summary.times, summary.best_share),
        ]
        lines.append(csv_line("" if cell is None else str(cell) for cell in cells))
    path.write_text("".join(lines), encoding="utf-8")


def all_tables(rows: Sequence[Row], single: bool = False) -> list[Any]:
    """The rich tables that the rows have something for: roofline, times, operators, backends.

    Args:
        rows: of a run.
        single: list every operator, however many there are.
    """
    tables = [_roofline_table(rows), _time_table(rows), _operator_table(rows, single), _backend_table(rows)]
    return [table for table in tables if table is not None]


def complaints(rows: Sequence[Row]) -> list[str]:
    """Sentences about what is wrong, failed or was left out; long lists are cut, with their length."""
    lines = []
    for verdict in ("wrong", "failed"):
        # Wrong cases come again in the rows of their accuracy and times.
        bad = {
            (row.node or row.model, row.backend, row.dtype, row.phase): row
            for row in rows
            if row.verdict == verdict and row.quantity in (VERDICT, GRADIENT, "max_relative", "disagreement")
        }
        texts = []
        for row in bad.values():
            reason = row.note or ("" if row.error is None else f"error {row.error:.2g}")
            who = f"{verdict}: {row.node or row.model} {row.backend} {row.phase}"
            texts.append(f"{who}: {reason}" if reason else who)
        times = [r for r in rows if r.quantity == "time" and r.verdict == "failed" and verdict == "failed"]
        texts += [f"failed: timing {r.node or r.model} {r.backend} {r.phase}: {r.note}" for r in times]
        lines += _cut(texts, verdict)
    above = dict.fromkeys(r.note for r in rows if r.quantity == "roofline_share" and r.note in ABOVE.values())
    lines += [f"(!) {note}" for note in above]
    skipped = [r for r in rows if r.quantity == SKIPPED]
    return lines + _cut([f"left out: {r.node or r.model} {r.dtype}: {r.note}" for r in skipped], "left out")


def _cut(texts: list[str], what: str) -> list[str]:
    more = len(texts) - COMPLAINTS
    return texts if more <= 0 else [*texts[:COMPLAINTS], f"{what}: {more} more, see rows.csv"]


def _add(summary: Summary, row: Row) -> None:
    value = row.value if row.value is not None and not math.isnan(row.value) else None
    # A sweep has no expected values: there the error at some places against float64 is the verdict.
    swept = row.dataset.startswith("DeepBench")
    if row.quantity == (("max_relative") if swept else VERDICT):
        summary.cases += 1
        summary.verdicts[row.verdict] += 1
        summary.host += row.note == HOST_NOTE and row.verdict == "ok"
    if row.quantity == "max_relative" and value is not None:
        unit = epsilon(row.dtype)
        summary.relative = _larger(summary.relative, value)
        if unit:
            summary.epsilons = _larger(summary.epsilons, value / unit)
    elif row.quantity == "ulp" and value is not None:
        summary.ulp = _larger(summary.ulp, value)
    elif row.quantity == GRADIENT:
        summary.gradient_wrong += row.verdict == "wrong"
        if value is not None:
            summary.gradient = _larger(summary.gradient, value)
    elif row.quantity == "time" and value is not None:
        summary.times += 1
    elif row.quantity == "roofline_share" and value is not None:
        summary.best_share = _larger(summary.best_share, value)


def _larger(a: float | None, b: float) -> float:
    return b if a is None else max(a, b)


def _operator_table(rows: Sequence[Row], single: bool) -> Any:
    found = summaries(rows)
    if not found:
        return None
    operators = list(dict.fromkeys(summary.operator for summary in found))
    title = "Operators"
    if len(operators) > MANY and not single:
        dubious = {s.operator for s in found if s.right < s.cases or s.gradient_wrong}
        title = (
            f"Operators with a case that is not right ({len(dubious)} of {len(operators)}; all: summary.csv)"
        )
        found = [summary for summary in found if summary.operator in dubious]
        if not found:
            return None
    return _summary_table(title, found, with_operator=True)


def _backend_table(rows: Sequence[Row]) -> Any:
    found = summaries(rows, by_operator=False)
    return _summary_table("Backends", found, with_operator=False) if found else None


def _summary_table(title: str, found: Sequence[Summary], with_operator: bool) -> Any:
    columns = [
        "cases",
        "right",
        "of them on host",
        "wrong",
        "refused",
        "failed",
        "max error (eps)",
        "max ULP",
    ]
    gradients = any(s.gradient is not None or s.gradient_wrong for s in found)
    table = table_of(
        title,
        ["operator", "backend"] if with_operator else ["backend"],
        columns + (["gradient error"] if gradients else []),
    )
    last = ""
    for summary in found:
        if with_operator and summary.operator != last and last:
            table.add_section()
        who = [summary.operator if summary.operator != last else "", summary.backend]
        last = summary.operator
        numbers = [
            summary.cases, summary.right, summary.host,
            *(summary.verdicts[name] for name in ("wrong", "unsupported", "failed")),
        ]  # fmt: skip
        cells = [str(number) if number else "-" for number in numbers]
        cells += [_short(summary.epsilons), _short(summary.ulp)]
        if gradients:
            wrong = f" ({summary.gradient_wrong} wrong!)" if summary.gradient_wrong else ""
            cells.append(_short(summary.gradient) + wrong)
        table.add_row(*(who if with_operator else who[1:]), *cells)
    return table


def _time_table(rows: Sequence[Row]) -> Any:
    times = [r for r in rows if r.quantity == "time" and r.level == 0]
    if not times:
        return None
    empty = [f"{label(r)} {timed(r)}" for r in times if r.node == EMPTY]
    several = len({r.dtype for r in times if r.node != EMPTY}) > 1
    if several:
        empty = [f"{label(r)} {r.dtype} {timed(r)}" for r in times if r.node == EMPTY]
    found = {(r.quantity, *_key(r)): r for r in rows if r.level == 0}
    title = "Times" + (f" (a call of an empty network: {', '.join(empty)})" if empty else "")
    if not several and len(times) > len(empty):
        title = f"{title}, {times[-1].dtype}"
    table = table_of(
        title, ["case", "by"], ["median [interval]", "first call", "GFLOP/s", "GB/s", "of roofline", "error"]
    )
    for column in table.columns[1:]:
        column.no_wrap = True
    last = ""
    for row in (r for r in times if r.node != EMPTY):
        what = row.node or row.model
        what += f", {row.dtype}" if several else ""
        what += "" if row.phase == FORWARD else " +backward" if row.phase == BACKWARD else f", {row.phase}"
        if last and what != last:
            table.add_section()
        cells = [timed(row), duration(_value(found.get(("first_call", *_key(row)))))]
        cells += [_rate(found.get((name, *_key(row)))) for name in ("flop_rate", "byte_rate")]
        cells.append(_share(found.get(("roofline_share", *_key(row)))))
        cells.append(_error(row))
        table.add_row(what if what != last else "", label(row), *cells)
        last = what
    return table


def _roofline_table(rows: Sequence[Row]) -> Any:
    found = [r for r in rows if r.phase == PHASE and r.quantity in (PEAK, BANDWIDTH)]
    if not found:
        return None
    table = table_of(
        f"Measured roofline, {found[0].threads} thread(s)",
        ["limit", "by"],
        ["best", "median", "lowest", "samples"],
    )
    for row in found:
        unit = "GFLOP/s" if row.quantity == PEAK else "GB/s"
        ordered = sorted(row.samples)
        numbers = [f"{v / 1e9:.3g} {unit}" for v in (ordered[-1], ordered[len(ordered) // 2], ordered[0])]
        table.add_row(f"{row.node} {row.dtype}".strip(), row.backend, *numbers, str(len(ordered)))
    return table


def _key(row: Row) -> tuple[Any, ...]:
    return (row.model, row.node, row.dataset, row.phase, row.dtype, row.backend, row.mode)


def _value(row: Row | None) -> float | None:
    return row.value if row is not None else None


def _rate(row: Row | None) -> str:
    value = _value(row)
    return "-" if value is None else f"{value / 1e9:.3g}"


def _share(row: Row | None) -> str:
    value = _value(row)
    if value is None or row is None:
        return "-"
    text = f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"
    return (
        f"{text} (cache)" if row.note == IN_CACHE else f"{text} (!)" if row.note in ABOVE.values() else text
    )


def _error(row: Row) -> str:
    if row.verdict in ("wrong", "failed", "unsupported"):
        return row.verdict
    return "-" if row.error is None else f"{row.error:.1e}"


def _short(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if value < 1e5 or math.isinf(value) else f"{value:.0e}"
