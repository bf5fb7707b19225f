"""Finished runs in order: by accuracy, loss, seconds, or the time to an accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meta500.errors import UserError, choose
from meta500.metrics.live import LiveRun, number_of, plain
from meta500.metrics.rows import read_csv
from meta500.web.jobs import Job

METRICS = {"accuracy": True, "loss": False, "seconds": False, "time_to_accuracy": False}
TARGET = 0.9


def results(folder: Path) -> dict[str, Any] | None:
    """What a run that is over has reached, ready for JSON; None if there is no run.

    Keys: ``accuracy`` and ``loss`` of the last test set, ``best_accuracy``, ``seconds`` of training,
    ``epochs`` tested, ``improvements`` (pairs of seconds and accuracy, each better than all before),
    ``progress`` as `LiveRun.snapshot` gives it.
    """
    try:
        live = LiveRun(folder)
    except UserError:
        return None
    live.poll()
    best, improvements = -math.inf, []
    for seconds, value in _accuracies(live):
        if value > best:
            best = value
            improvements.append([plain(seconds), value])
    last, counts = live.last, live.counts
    return {
        "accuracy": plain(last["accuracy"][2]) if "accuracy" in last else None,
        "best_accuracy": best if improvements else None,
        "loss": plain(last["test_loss"][2]) if "test_loss" in last else None,
        "seconds": plain(max((seconds for _, seconds, _ in last.values()), default=None)),
        "epochs": counts.get("test_loss") or counts.get("accuracy", 0),
        "improvements": improvements,
        "progress": live.snapshot()["progress"],
    }


def _accuracies(live: LiveRun) -> list[tuple[float, float]]:
    """Seconds and accuracy of every test: from the rows where the series has not kept all of them."""
    kept = live.series["accuracy"].points() if "accuracy" in live.series else []
    if len(kept) == live.counts.get("accuracy", 0):
        return [(seconds, accuracy) for _, seconds, accuracy in kept]
    return [
        (row.seconds or 0.0, row.value)
        for row in read_csv(live.path / "rows.csv", [])
        if (row.phase, row.quantity) == ("test_set", "accuracy") and row.value is not None
    ]


def ranking(jobs: Iterable[Job], metric: str, target: float = TARGET) -> dict[str, Any]:
    """The finished ones of ``jobs``, the best first; equal values share a rank, and those without a number,
    such as NaN, come last without one. ``left_out`` counts the jobs that are not finished, or have no
    results.

    Raises:
        UserError: an unknown metric, or a target outside (0, 1].
    """
    choose("metric", metric[:80], METRICS)
    if not 0 < target <= 1:
        raise UserError(f"target must be an accuracy in (0, 1], got {target:g}")
    descending = METRICS[metric]
    every = list(jobs)
    measured: list[tuple[float, Job]] = []
    without: list[tuple[float | None, Job]] = []
    for job in every:
        if job.state == "finished" and job.results is not None:
            number = value(job.results, metric, target)
            if number is None or math.isnan(number):
                without.append((number, job))
            else:
                measured.append((number, job))
    measured.sort(key=lambda entry: -entry[0] if descending else entry[0])
    lines: list[dict[str, Any]] = []
    for place, (number, job) in enumerate(measured):
        tied = place > 0 and measured[place - 1][0] == number
        lines.append(_line(job, lines[-1]["rank"] if tied else place + 1, number))
    lines += [_line(job, None, nothing) for nothing, job in without]
    answer: dict[str, Any] = {"metric": metric, "order": "descending" if descending else "ascending"}
    if metric == "time_to_accuracy":
        answer["target"] = target
    return answer | {"runs": lines, "left_out": len(every) - len(lines)}


def value(found: dict[str, Any], metric: str, target: float) -> float | None:
    """The number that a run is ranked by; None where it has none."""
    if metric != "time_to_accuracy":
        return number_of(found[metric])  # type: ignore[no-any-return]
    reached = (seconds for seconds, accuracy in found["improvements"] if accuracy >= target)
    return number_of(next(reached, None))  # type: ignore[no-any-return]


def _line(job: Job, rank: int | None, number: float | None) -> dict[str, Any]:
    assert job.results is not None
    shown = ("accuracy", "best_accuracy", "loss", "seconds", "epochs")
    return {
        "rank": rank,
        "id": job.id,
        "label": job.label,
        "model": job.model,
        **{key: job.setup[key] for key in ("dataset", "backend", "optimizer", "native")},
        "value": plain(number),
        **{key: job.results[key] for key in shown},
    }
