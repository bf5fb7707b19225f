"""Comparison of runs: the same measurements of two or more run folders, as ratios with verdicts.

A verdict is called only where it can be trusted: the whole interval of the ratio must be beyond a
stated minimum, and too few samples give "unknown". The interval speaks of the noise inside the
runs. How much the machine differs between two runs it cannot know (equal code can differ by more
than 5 % on a shared machine), which is what the minimum, the list of differences of the machines and
the note on the median of all times are for. The trustworthy comparison is one interleaved run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.machine import differences
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
from meta500.metrics.statistics import Interval, ratio_interval
from meta500.metrics.statistics import verdict as direction_of_change

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
# One sample of these says nothing about the next: without an interval no verdict is possible.
NOISY = (
    "time", "first_call", "throughput", "bandwidth", "ratio", "overhead", "speedup", "efficiency",
    "time_to_accuracy", "energy", "latency", "data_time",
)  # fmt: skip
# Curves of these are pooled to samples; of all others the last point counts.
POOLED = ("time", "throughput", "bandwidth")
MINIMUM = 0.05
PACE_ROWS = 5
MINIMUMS = {"accuracy": 0.02, "top1": 0.02, "top5": 0.02, "iou": 0.02, "dice": 0.02}
BAD_VERDICTS = ("wrong", "unsupported", "failed")
COLUMNS = ("what", "who", "quantity", "baseline run", "run", "ratio", "verdict", "note")


@dataclass(frozen=True)
class ComparedRow:
    """One measurement in the baseline run (old) and in another run (new).

    ``old`` and ``new`` stand for all rows with the same key, pooled. ``ratio`` is the interval of
    new / old, None where there is none. ``verdict`` is "regression", "improvement", "same" or
    "unknown"; ``note`` says why, where the numbers alone do not.
    """

    run: str
    key: tuple[Any, ...]
    old: Row
    new: Row
    ratio: Interval | None
    verdict: str
    note: str


@dataclass(frozen=True)
class Comparison:
    """All compared rows of all runs against the first.

    machine: (run, key, value in the baseline, value in the run) of all differences of machines.
    unmatched: (run that lacks it, description) of measurements that only one of the two has.
    notes: what else a reader must know, e.g. that a run was interrupted.
    """

    baseline: str
    runs: tuple[str, ...]
    machine: list[tuple[str, str, Any, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    rows: list[ComparedRow] = field(default_factory=list)
    unmatched: list[tuple[str, str]] = field(default_factory=list)

    @property
    def regressions(self) -> list[ComparedRow]:
        """Rows that got worse; a comparison passes if there are none."""
        return [row for row in self.rows if row.verdict == "regression"]

    @property
    def improvements(self) -> list[ComparedRow]:
        """Rows that got better."""
        return [row for row in self.rows if row.verdict == "improvement"]

    def table(self) -> list[dict[str, str]]:
        """Rows for printing, with the keys :data:`COLUMNS`; regressions, improvements, others."""
        order = {"regression": 0, "improvement": 1, "unknown": 2, "same": 3}
        lines = []
        for row in sorted(self.rows, key=lambda r: order[r.verdict]):
            what, who = _words(row.old)
            ratio = row.ratio
            interval = "" if ratio is None else f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
            name = row.old.quantity + (f" to {row.old.baseline}" if row.old.baseline else "")
            old, new = _number(row.old), f"{row.run}: {_number(row.new)}"
            shown = (what, who, name, old, new, interval, row.verdict, row.note)
            lines.append(dict(zip(COLUMNS, shown, strict=True)))
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON output; the pooled rows without their samples."""
        plain = asdict(self)
        for entry in plain["rows"]:
            entry["key"] = dict(zip(KEY, entry["key"], strict=True))
            entry["old"], entry["new"] = entry["old"]["value"], entry["new"]["value"]
        return plain


def compare(
    runs: Sequence[RunFolder],
    *,
    minimum: float | Mapping[str, float] | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    higher_is_better: Iterable[str] = (),
    lower_is_better: Iterable[str] = (),
) -> Comparison:
    """Compare every run with the first one, measurement by measurement.

    Rows match if they agree in :data:`KEY`. Several rows of a run with the same key are pooled:
    their samples, or their values where they have none. Rows on a curve (with step or epoch) count
    by their last point per seed, except that times and rates of single steps are pooled.

    Verdicts: a row that was right and is now wrong, unsupported or failed is a regression, the
    reverse an improvement; two bad ones are not timed against each other. An error counts only
    against its tolerance.
    Everything else: the ratio new / old must be beyond the minimum, in the direction that the
    quantity gives, with its whole interval (unpaired seeded bootstrap of the ratio of medians;
    where rows have an interval but no samples, the quotients of its ends). Deterministic quantities
    with one value, such as memory or accuracy, have no interval and are called by the value.

    Args:
        runs: the first is the baseline.
        minimum: smallest relative change that counts, for all quantities or by quantity; by default
            5 %, and 2 % for accuracies.
        confidence: of the intervals.
        seed: of the bootstrap.
        higher_is_better, lower_is_better: further quantities with a known direction.

    Raises:
        UserError: fewer than two runs, a run has no measurement in common with the first, or the
            minimum is negative.
    """
    if len(runs) < 2:
        raise UserError(f"a comparison needs two runs or more, {len(runs)} given")
    limits = dict(MINIMUMS) if minimum is None or isinstance(minimum, Mapping) else {}
    limits |= minimum if isinstance(minimum, Mapping) else {}
    default = MINIMUM if minimum is None or isinstance(minimum, Mapping) else float(minimum)
    if not all(limit >= 0 for limit in (default, *limits.values())):
        raise UserError(f"minimum {minimum} must not be negative; 0.05 means 5 %")
    better = dict.fromkeys([*LOWER_IS_BETTER, *lower_is_better], "lower")
    better |= dict.fromkeys([*HIGHER_IS_BETTER, *higher_is_better], "higher")

    names = _names(runs)
    comparison = Comparison(names[0], names[1:])
    for name, run in zip(names, runs, strict=True):
        comparison.notes.extend(run.problems)
        if run.status in ("failed", "interrupted"):
            reason = f": {run.info.get('message')}" if run.info.get("message") else ""
            comparison.notes.append(f"{name}: the run was {run.status}{reason}")
    old_rows = _by_key(runs[0].rows)
    for name, run in zip(names[1:], runs[1:], strict=True):
        for entry in differences(runs[0].environment, run.environment):
            comparison.machine.append((name, *entry))
        new_rows = _by_key(run.rows)
        common = [key for key in old_rows if key in new_rows]
        if not common:
            raise UserError(
                f"{name} ({len(new_rows)} measurements) and {names[0]} ({len(old_rows)}) have no "
                "measurement in common: compare runs of the same command"
            )
        for key in common:
            old, new = old_rows[key], new_rows[key]
            limit = limits.get(old.quantity, default)
            ratio, verdict, note = _judge(
                old, new, better.get(old.quantity), minimum=limit, confidence=confidence, seed=seed
            )
            comparison.rows.append(ComparedRow(name, key, old, new, ratio, verdict, note))
        comparison.notes.extend(_pace(name, comparison.rows))
        missing = [(name, old_rows[key]) for key in old_rows if key not in new_rows]
        missing += [(names[0], new_rows[key]) for key in new_rows if key not in old_rows]
        for lacking, row in missing:
            comparison.unmatched.append((lacking, ", ".join((*_words(row), row.quantity))))
    return comparison


def _pace(name: str, rows: Iterable[ComparedRow]) -> list[str]:
    """A note on what all times have in common: a change of one thing rarely changes all of them."""
    times = [row.ratio.value for row in rows if row.run == name and row.ratio and row.old.quantity == "time"]
    if len(times) < PACE_ROWS:
        return []
    pace = float(np.median(times))
    return [f"{name}: the median of all {len(times)} ratios of times is {pace:.3f}; if all of them "
            "moved alike, the machine was faster or slower"]  # fmt: skip


def _judge(
    old: Row, new: Row, better: str | None, *, minimum: float, confidence: float, seed: int
) -> tuple[Interval | None, str, str]:
    """Ratio, verdict and note of one measurement."""
    was_bad, is_bad = _bad(old), _bad(new)
    if was_bad or is_bad:
        note = f"{was_bad or old.verdict} before, now {is_bad or new.verdict}{_reason(new)}"
        verdict = "same" if was_bad and is_bad else "regression" if is_bad else "improvement"
        return None, verdict, note
    if old.unit != new.unit:
        return None, "unknown", f"unit {old.unit} before, now {new.unit}"
    notes = []
    if old.protocol != new.protocol:
        notes.append(f"protocol {old.protocol or 'unstated'} before, now {new.protocol}")
    ratio = _ratio(old, new, confidence, seed)
    if old.quantity == "error":
        known = old.tolerance is not None or old.verdict == new.verdict == "ok"
        notes.append("within the tolerance" if known else "no tolerance is stated")
        return ratio, "same" if known else "unknown", "; ".join(notes)
    if better is None:
        notes.append(f"whether more {old.quantity} is better is not known")
        return ratio, "unknown", "; ".join(notes)
    if ratio is None:
        notes.append("no ratio of values that are not positive and finite")
        return None, _without_ratio(old, new, better), "; ".join(notes)
    # Two intervals of the runs taken together only reach the square of their confidence.
    change = direction_of_change(ratio, minimum=minimum, confidence=confidence**2)
    if change == "unknown":
        notes.append("too few samples for a verdict")
    worse = "slower" if better == "lower" else "faster"
    names = {"same": "same", "unknown": "unknown", worse: "regression"}
    return ratio, names.get(change, "improvement"), "; ".join(notes)


def _without_ratio(old: Row, new: Row, better: str) -> str:
    """Verdict for values that have no quotient: zero, negative or not finite."""
    assert old.value is not None and new.value is not None
    was_finite, is_finite = math.isfinite(old.value), math.isfinite(new.value)
    if old.value == new.value or (math.isnan(old.value) and math.isnan(new.value)):
        return "same"
    if was_finite != is_finite:
        return "improvement" if is_finite else "regression"
    if was_finite and min(old.value, new.value) == 0 and _by_value(old, new):
        return "regression" if (new.value > old.value) == (better == "lower") else "improvement"
    return "unknown"


def _ratio(old: Row, new: Row, confidence: float, seed: int) -> Interval | None:
    """Interval of new / old, None where there is no such quotient."""
    assert old.value is not None and new.value is not None
    numbers = (old.value, new.value, *old.samples, *new.samples)
    if not all(math.isfinite(x) and x > 0 for x in numbers):
        return None
    value = new.value / old.value
    if _by_value(old, new):
        return Interval(value, value, value, 1.0)
    if old.samples and new.samples:
        return ratio_interval(new.samples, old.samples, confidence, paired=False, seed=seed)
    ends = (old.low, old.high, new.low, new.high)
    if all(end is not None and end > 0 for end in ends):
        # The two runs are independent, so both intervals hold together with the product.
        together = (old.confidence or 0.0) * (new.confidence or 0.0)
        return Interval(value, new.low / old.high, new.high / old.low, together)  # type: ignore[operator]
    return Interval(value, value, value, 0.0)


def _by_value(old: Row, new: Row) -> bool:
    """Whether the quantity has no noise: the same number in every repetition."""
    alike = all(len(set(row.samples)) <= 1 for row in (old, new))
    return alike and old.quantity not in NOISY and (old.low, new.low) == (old.high, new.high)


def _bad(row: Row) -> str:
    """What is wrong with the result itself, "" if nothing is known to be."""
    if row.verdict in BAD_VERDICTS:
        return row.verdict
    number = row.value if row.quantity == "error" else row.error
    if number is not None and row.tolerance is not None and not number <= row.tolerance:
        return "wrong"
    return ""


def _reason(row: Row) -> str:
    if row.error is not None and row.tolerance is not None:
        return f" ({row.error_norm or 'error'} {row.error:.3g}, tolerance {row.tolerance:.3g})"
    if row.quantity == "error" and row.value is not None and row.tolerance is not None:
        return f" (error {row.value:.3g}, tolerance {row.tolerance:.3g})"
    return f" ({row.note})" if row.note else ""


def _by_key(rows: Iterable[Row]) -> dict[tuple[Any, ...], Row]:
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
        if _bad(row):
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


def _names(runs: Sequence[RunFolder]) -> tuple[str, ...]:
    """Short names: the folder's own, or the whole path where two folders share it."""
    short = [run.path.resolve().name for run in runs]
    return tuple(
        name if short.count(name) == 1 else str(run.path) for name, run in zip(short, runs, strict=True)
    )


def _words(row: Row) -> tuple[str, str]:
    """What was measured and who ran it, for people."""
    counts = ((row.threads, "threads"), (row.ranks, "ranks"))
    name = row.node or row.operator
    what = (row.model, name, row.phase, row.shape, row.dtype, row.optimizer, row.dataset)
    batch = f"batch {row.batch}" if row.batch is not None else ""
    who = ("/".join(filter(None, (row.backend, row.mode))), row.device)
    numbers = [f"{count} {unit if count != 1 else unit[:-1]}" for count, unit in counts if count is not None]
    return " ".join(filter(None, (*what, batch))), " ".join(filter(None, (*who, *numbers)))


def _number(row: Row) -> str:
    if row.value is None:
        return row.verdict
    return f"{row.value:.4g}" if row.unit == "1" else f"{row.value:.4g} {row.unit}"
