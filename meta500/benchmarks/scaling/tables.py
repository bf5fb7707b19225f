"""Tables of a scaling study for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from meta500.benchmarks.scaling.analysis import Check
from meta500.benchmarks.tables import duration, table_of
from meta500.distributed.model.prediction import Limit, Prediction, efficiency
from meta500.metrics.plots.style import time_unit


def measured_table(found: Sequence[Check], volumes: Mapping[tuple[str, str, int], float]) -> Any:
    """Measured steps, efficiency, and the prediction by a model that has not seen this rank count."""
    columns = ["ranks", "step [interval]", "efficiency", "handed over", "predicted", "error"]
    table = table_of("Scaling, measured", ["scheme", "scaling"], columns)
    single = {(c.scheme, c.scaling): c.seconds for c in found if c.ranks == 1}
    last = ("", "")
    for check in found:
        name = (check.scheme, check.scaling)
        if last[0] not in ("", check.scheme):
            table.add_section()
        one = single.get(name)
        share = one / check.seconds / (1 if check.scaling == "weak" else check.ranks) if one else math.nan
        volume = volumes[check.scheme, check.scaling, check.ranks]
        table.add_row(
            check.scheme if check.scheme != last[0] else "",
            check.scaling if name != last else "",
            str(check.ranks),
            _interval(check),
            "-" if one is None else f"{100 * share:.0f} %",
            f"{volume / 2**20:.3g} MiB" if volume else "-",
            duration(check.predicted),
            f"{100 * check.error:+.0f} %" if check.ranks > 1 else "-",
        )
        last = name
    return table


def _interval(check: Check) -> str:
    """Median and interval in one unit."""
    factor, unit = time_unit(check.seconds)
    numbers = [f"{factor * seconds:.3g}" for seconds in (check.seconds, check.low, check.high)]
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}] {unit}"


def predicted_table(curves: Mapping[str, Sequence[Prediction]], scaling: str) -> Any:
    """Predicted step time and efficiency by scheme, one column for each rank count."""
    counts = sorted({p.ranks for curve in curves.values() for p in curve})
    # About as many columns as fit on a terminal, the largest count among them.
    every = max(1, math.ceil(len(counts) / 5))
    shown = counts[::-1][::every][::-1]
    heads = [f"{ranks}" for ranks in shown]
    table = table_of(f"{scaling} scaling, predicted: step (efficiency) by ranks", ["scheme"], heads)
    for scheme, curve in curves.items():
        by_ranks = {p.ranks: p for p in curve}
        cells = []
        for ranks in shown:
            if ranks not in by_ranks:
                cells.append("-")
                continue
            share = efficiency(by_ranks[ranks], curve[0].seconds)
            cells.append(f"{duration(by_ranks[ranks].seconds)} ({100 * share:.0f} %)")
        table.add_row(scheme, *cells)
    return table


def limit_table(found: Mapping[str, Mapping[str, Limit]], threshold: float, largest: int) -> Any:
    """Where each scheme stops paying, by scaling and scheme."""
    heads = [f"efficiency below {100 * threshold:.0f} %", "another is faster", "more ranks are slower"]
    table = table_of(f"Where schemes stop paying, up to {largest} ranks", ["scheme", "scaling"], heads)
    for scaling, limits in found.items():
        for scheme, limit in limits.items():
            by = f"from {limit.overtaken} ({limit.by})" if limit.overtaken else "-"
            cells = [f"from {n}" if n else "-" for n in (limit.inefficient, limit.slower)]
            table.add_row(scheme, scaling, cells[0], by, cells[1])
    return table
