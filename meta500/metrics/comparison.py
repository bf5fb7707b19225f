"""Comparison of runs: the same measurements of two or more run folders, as ratios with verdicts.

A verdict is called only where it can be trusted: the whole interval of the ratio must be beyond a
stated minimum, and too few samples give "unknown". The intervals are so wide that all of them hold
together (Bonferroni), so that among many measurements chance alone seldom makes a regression. They
speak of the noise inside the runs. How much the machine differs between two runs they cannot know
(equal code can differ by more than 5 % on a shared machine), which is what the minimum, the list of
differences of the machines and the note on the median of all times are for. The trustworthy
comparison is one interleaved run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.machine import differences
from meta500.metrics.matching import KEY, by_key, directions, fault, words
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
from meta500.metrics.statistics import (
    Interval,
    effect_word,
    independent_ratio,
    judged_together,
    reachable,
    samples_for,
    superiority,
)
from meta500.metrics.statistics import verdict as direction_of_change

# One sample of these says nothing about the next: without an interval no verdict is possible.
NOISY = (
    "time", "first_call", "throughput", "bandwidth", "ratio", "overhead", "speedup", "efficiency",
    "time_to_accuracy", "energy", "latency", "data_time",
)  # fmt: skip
MINIMUM = 0.05
PACE_ROWS = 5
MINIMUMS = {"accuracy": 0.02, "top1": 0.02, "top5": 0.02, "iou": 0.02, "dice": 0.02}
COLUMNS = ("what", "who", "quantity", "baseline run", "run", "ratio", "effect", "verdict", "note")


@dataclass(frozen=True)
class ComparedRow:
    """One measurement in the baseline run (old) and in another run (new).

    ``old`` and ``new`` stand for all rows with the same key, pooled. ``ratio`` is the interval of
    new / old, None where there is none. ``verdict`` is "regression", "improvement", "same" or
    "unknown"; ``note`` says why, where the numbers alone do not. ``effect`` is how often a sample of
    the run is larger than one of the baseline (:func:`~meta500.metrics.statistics.superiority`), None
    without two samples of each. ``counted`` tells whether this is one of the ``comparisons``.
    """

    run: str
    key: tuple[Any, ...]
    old: Row
    new: Row
    ratio: Interval | None
    verdict: str
    note: str
    effect: float | None = None
    counted: bool = False


@dataclass(frozen=True)
class Comparison:
    """All compared rows of all runs against the first.

    machine: (run, key, value in the baseline, value in the run) of all differences of machines, and of
        the versions of backends.
    unmatched: (run that lacks it, description) of measurements that only one of the two has.
    notes: what else a reader must know, e.g. that a run was interrupted.
    comparisons: how many intervals were judged; confidence: with which all of them hold together;
        each: the confidence that each of them needed for that.
    """

    baseline: str
    runs: tuple[str, ...]
    machine: list[tuple[str, str, Any, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparisons: int = 0
    confidence: float = 0.95
    each: float = 1.0
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
            what, who = words(row.old)
            name = row.old.quantity + (f" to {row.old.baseline}" if row.old.baseline else "")
            old, new = _number(row.old), f"{row.run}: {_number(row.new)}"
            shown = (what, who, name, old, new, _interval(row.ratio), _effect(row), row.verdict, row.note)
            lines.append(dict(zip(COLUMNS, shown, strict=True)))
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON output; the pooled rows without their samples."""
        plain = asdict(self)
        for entry in plain["rows"]:
            entry["key"] = dict(zip(KEY, entry["key"], strict=True))
            entry["old"], entry["new"] = entry["old"]["value"], entry["new"]["value"]
            size = entry["effect"]
            entry["effect"] = None if size is None else {"superiority": size, "word": effect_word(size)}
        return plain


def compare(
    runs: Sequence[RunFolder],
    *,
    minimum: float | Mapping[str, float] | None = None,
    confidence: float = 0.95,
    higher_is_better: Iterable[str] = (),
    lower_is_better: Iterable[str] = (),
) -> Comparison:
    """Compare every run with the first one, measurement by measurement.

    Rows match if they agree in :data:`~meta500.metrics.matching.KEY`; several rows of a run with the same
    key are pooled (:func:`~meta500.metrics.matching.by_key`).

    Verdicts: a row that was right and is now wrong, unsupported or failed is a regression, the
    reverse an improvement; two bad ones are not timed against each other. An error counts only
    against its tolerance. Deterministic quantities with one value, such as memory or accuracy, have no
    interval and are called by the value.
    Everything else: the ratio new / old must be beyond the minimum, in the direction that the
    quantity gives, with its whole interval (:func:`~meta500.metrics.statistics.independent_ratio`;
    where rows have an interval but no samples, the quotients of its ends). All these intervals, of all
    runs, hold together with ``confidence``: each has the confidence of
    :func:`~meta500.metrics.statistics.judged_together`, and what cannot reach it is "unknown".

    Args:
        runs: the first is the baseline.
        minimum: smallest relative change that counts, for all quantities or by quantity; by default
            5 %, and 2 % for accuracies.
        confidence: with which all judged intervals hold together.
        higher_is_better: further quantities of which more is better.
        lower_is_better: further quantities of which less is better.

    Raises:
        UserError: fewer than two runs, a run has no measurement in common with the first, the
            minimum is negative, or the confidence outside of (0, 1).
    """
    if len(runs) < 2:
        raise UserError(f"a comparison needs two runs or more, {len(runs)} given")
    limits = dict(MINIMUMS) if minimum is None or isinstance(minimum, Mapping) else {}
    limits |= minimum if isinstance(minimum, Mapping) else {}
    default = MINIMUM if minimum is None or isinstance(minimum, Mapping) else float(minimum)
    if not all(limit >= 0 for limit in (default, *limits.values())):
        raise UserError(f"minimum {minimum} must not be negative; 0.05 means 5 %")
    better = directions(higher_is_better, lower_is_better)

    names = _names(runs)
    comparison = Comparison(names[0], names[1:])
    for name, run in zip(names, runs, strict=True):
        comparison.notes.extend(run.problems)
        if run.status in ("failed", "interrupted"):
            reason = f": {run.info.get('message')}" if run.info.get("message") else ""
            comparison.notes.append(f"{name}: the run was {run.status}{reason}")
    old_rows = by_key(runs[0].rows)
    pairs: list[tuple[str, tuple[Any, ...], Row, Row]] = []
    for name, run in zip(names[1:], runs[1:], strict=True):
        new_rows = by_key(run.rows)
        for entry in differences(runs[0].environment, run.environment):
            comparison.machine.append((name, *entry))
        comparison.machine.extend((name, *entry) for entry in _versions(old_rows, new_rows))
        common = [key for key in old_rows if key in new_rows]
        if not common:
            raise UserError(
                f"{name} ({len(new_rows)} measurements) and {names[0]} ({len(old_rows)}) have no "
                "measurement in common: compare runs of the same command"
            )
        pairs += [(name, key, old_rows[key], new_rows[key]) for key in common]
        missing = [(name, old_rows[key]) for key in old_rows if key not in new_rows]
        missing += [(names[0], new_rows[key]) for key in new_rows if key not in old_rows]
        for lacking, row in missing:
            comparison.unmatched.append((lacking, ", ".join((*words(row), row.quantity))))

    reach = [_reach(old, new, better.get(old.quantity)) for _, _, old, new in pairs]
    counted, each = judged_together(reach, confidence)
    candidates = max(1, sum(r > 0 for r in reach))
    # Where none can be judged, the intervals are still shown, as those of all together.
    shown = each if any(counted) else 1 - (1 - confidence) / candidates
    enough = samples_for(1 - (1 - confidence) / candidates)
    advice = f"{enough} and {enough} would do for all {candidates} comparisons"
    for (name, key, old, new), judged in zip(pairs, counted, strict=True):
        ratio, verdict, note = _judge(
            old,
            new,
            better.get(old.quantity),
            minimum=limits.get(old.quantity, default),
            shown=shown,
            needed=each if judged else 1.0,
            advice=advice,
        )
        comparison.rows.append(
            ComparedRow(name, key, old, new, ratio, verdict, note, _size(old, new), judged)
        )
    for name in names[1:]:
        comparison.notes.extend(_pace(name, comparison.rows))
    return replace(comparison, comparisons=sum(counted), confidence=confidence, each=each)


def _versions(old: Mapping[Any, Row], new: Mapping[Any, Row]) -> list[tuple[str, str, str]]:
    """Backends whose version (of the generated one: with its compiler) is another one."""

    def of(rows: Mapping[Any, Row]) -> dict[str, str]:
        found: dict[str, set[str]] = {}
        for row in rows.values():
            if row.version:
                found.setdefault(row.backend, set()).add(row.version)
        return {backend: " and ".join(sorted(versions)) for backend, versions in found.items()}

    before, now = of(old), of(new)
    return [
        (f"version of backend {name}", before[name], now[name])
        for name in before
        if name in now and before[name] != now[name]
    ]


def _reach(old: Row, new: Row, better: str | None) -> float:
    """The confidence that the ratio's interval can reach; 0 where no interval decides."""
    if better is None or _decided(old, new) or _by_value(old, new) or not _divisible(old, new):
        return 0.0
    if old.samples and new.samples:
        return reachable(len(old.samples), len(new.samples))
    ratio = _ratio(old, new, 0.5)
    return ratio.confidence if ratio is not None else 0.0


def _decided(old: Row, new: Row) -> bool:
    """Whether something else than the ratio decides."""
    return bool(fault(old) or fault(new)) or old.unit != new.unit or old.quantity == "error"


def _size(old: Row, new: Row) -> float | None:
    if min(len(old.samples), len(new.samples)) < 2 or _decided(old, new) or _by_value(old, new):
        return None
    if any(math.isnan(x) for x in (*old.samples, *new.samples)):
        return None
    return superiority(new.samples, old.samples)


def _interval(ratio: Interval | None) -> str:
    if ratio is None:
        return ""
    # One sample of each has no interval, and neither has a value without noise.
    if ratio.low == ratio.high:
        return f"{ratio.value:.3f}"
    return f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _effect(row: ComparedRow) -> str:
    return "" if row.effect is None else f"A = {row.effect:.2f}, {effect_word(row.effect)}"


def _pace(name: str, rows: Iterable[ComparedRow]) -> list[str]:
    """A note on what all times have in common: a change of one thing rarely changes all of them."""
    times = [row.ratio.value for row in rows if row.run == name and row.ratio and row.old.quantity == "time"]
    if len(times) < PACE_ROWS:
        return []
    pace = float(np.median(times))
    return [f"{name}: the median of all {len(times)} ratios of times is {pace:.3f}; if all of them "
            "moved alike, the machine was faster or slower"]  # fmt: skip


def _judge(
    old: Row,
    new: Row,
    better: str | None,
    *,
    minimum: float,
    shown: float,
    needed: float,
    advice: str,
) -> tuple[Interval | None, str, str]:
    """Ratio, verdict and note of one measurement.

    Args:
        old, new: the measurement in both runs.
        better: "lower" or "higher", None if it is not known.
        minimum: smallest relative change that counts.
        shown: confidence of the interval.
        needed: confidence without which no verdict is called.
        advice: what would be enough, for the note.
    """
    was_bad, is_bad = fault(old), fault(new)
    if was_bad or is_bad:
        note = f"{was_bad or old.verdict} before, now {is_bad or new.verdict}{_reason(new)}"
        verdict = "same" if was_bad and is_bad else "regression" if is_bad else "improvement"
        return None, verdict, note
    if old.unit != new.unit:
        return None, "unknown", f"unit {old.unit} before, now {new.unit}"
    notes = []
    if old.protocol != new.protocol:
        notes.append(f"protocol {old.protocol or 'unstated'} before, now {new.protocol}")
    ratio = _ratio(old, new, shown)
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
    change = direction_of_change(ratio, minimum=minimum, confidence=needed)
    if change == "unknown":
        counts = f"{len(old.samples) or 1} and {len(new.samples) or 1}"
        notes.append(f"too few samples for a verdict: {counts}; {advice}")
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


def _divisible(old: Row, new: Row) -> bool:
    """Whether all values and samples are positive and finite."""
    return all(
        x is not None and math.isfinite(x) and x > 0
        for x in (old.value, new.value, *old.samples, *new.samples)
    )


def _ratio(old: Row, new: Row, confidence: float) -> Interval | None:
    """Interval of new / old, None where there is no such quotient."""
    assert old.value is not None and new.value is not None
    if not _divisible(old, new):
        return None
    value = new.value / old.value
    if _by_value(old, new):
        return Interval(value, value, value, 1.0)
    if old.samples and new.samples:
        return independent_ratio(new.samples, old.samples, confidence)
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


def _reason(row: Row) -> str:
    if row.error is not None and row.tolerance is not None:
        return f" ({row.error_norm or 'error'} {row.error:.3g}, tolerance {row.tolerance:.3g})"
    if row.quantity == "error" and row.value is not None and row.tolerance is not None:
        return f" (error {row.value:.3g}, tolerance {row.tolerance:.3g})"
    return f" ({row.note})" if row.note else ""


def _names(runs: Sequence[RunFolder]) -> tuple[str, ...]:
    """Short names: the folder's own, or the whole path where two folders share it."""
    short = [run.path.resolve().name for run in runs]
    return tuple(
        name if short.count(name) == 1 else str(run.path) for name, run in zip(short, runs, strict=True)
    )


def _number(row: Row) -> str:
    if row.value is None:
        return row.verdict
    return f"{row.value:.4g}" if row.unit == "1" else f"{row.value:.4g} {row.unit}"
