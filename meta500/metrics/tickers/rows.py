"""A training run as result rows, written into the run folder while it goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from meta500.errors import UserError, choose
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.rows import KINDS, Row
from meta500.metrics.tickers.limits import ScoreLimit
from meta500.metrics.tickers.metric import MetricTicker
from meta500.metrics.tickers.summary import EpochSummary

SECONDS = {
    "train": "train_time",
    "data": "data_time",
    "test": "test_time",
    "test_data": "test_data_time",
    "tickers": "ticker_time",
    "loop": "loop_time",
    "wall": "wall_time",
}


class RowsTicker(Ticker):
    """Append the run's rows (level 2) to a RunFolder as they come.

    - Every ``chunk`` steps, or ``seconds``, and at the end of each training set, four rows of phase
      "training_step" whose ``samples`` have one entry per step and whose ``step`` is the last of
      these steps: "loss", "samples_seen", "training_time" (seconds inside the optimizer) and "data_time"
      (seconds of waiting for batches), these three up to the step. ``value`` is the median of the losses, and
      the last entry of the other three. With workers that make batches ahead both times contain the
      contention for the cores, so step times that are to be compared need ``workers=0`` or spare cores.
    - After every epoch: phase "training_set" with "loss" (mean over its samples), "samples_seen" and
      "data_time" (seconds of waiting for its batches, this epoch alone); phase "test_set" with "loss",
      "accuracy" and the metric tickers' scores.
    - At the end, phase "run": where the time went, and the time in training to each score's target;
      a target that was not reached is a row of verdict "failed" with the best value in its note. A
      run that failed or was interrupted has verdict "failed" and the reason in the note of its
      "wall_time".

    Args:
        folder: None: the Runner's.
        chunk: steps per group of step rows; fewer rows cost less time.
        seconds: a group is written when its first step is this old, since a process that is killed
            loses what it has not written.
        what: fields of the rows, such as ``model="digits-cnn"`` or ``optimizer="adam"``; they
            replace what is found out from the run (see `row_fields`).

    Raises:
        UserError: an unknown field, no run folder, a chunk below 1.
    """

    root_only = True

    def __init__(
        self, folder: Any = None, *, chunk: int = 100, seconds: float = math.inf, **what: Any
    ) -> None:
        if chunk < 1:
            raise UserError(f"chunk must be at least 1, not {chunk}")
        for name in what:
            choose("field of result rows", name, KINDS)
        self.folder, self.chunk, self.seconds, self.what = folder, chunk, seconds, what
        self._target: Any = None
        self._written = 0.0
        self._steps: list[tuple[float, int, float, float]] = []

    def before_run(self, state: RunState) -> None:
        self._steps, self._target = [], None
        target = self.folder or state.folder
        if target is None:
            raise UserError("RowsTicker needs a run folder: give it one, or the Runner folder=...")
        self._fields = row_fields(state, self.what)
        self._target = target
        self._written = 0.0

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Write the rows of the steps and epochs before, so that the folder has the whole run."""
        summary = state.summary
        seconds = summary.train_seconds
        begin = 0
        for epoch in summary.epochs:
            self._restored_steps(state, begin, epoch.step, epoch.epoch, seconds)
            place = {"step": epoch.step, "epoch": epoch.epoch, "seconds": epoch.total_train_seconds}
            self._target.extend(self._epoch_rows(state, epoch, place))
            begin = epoch.step
        self._restored_steps(state, begin, len(summary.losses), state.epoch, seconds)

    def _restored_steps(
        self, state: RunState, begin: int, end: int, epoch: int, seconds: list[float]
    ) -> None:
        summary = state.summary
        waited = np.cumsum(summary.data_seconds).tolist()
        for start in range(begin, end, self.chunk):
            stop = min(start + self.chunk, end)
            self._steps = list(
                zip(
                    summary.losses[start:stop],
                    summary.samples[start:stop],
                    seconds[start:stop],
                    waited[start:stop],
                    strict=True,
                )
            )
            self._flush(state, {"step": stop, "epoch": epoch, "seconds": seconds[stop - 1]})

    def after_optimizer_step(self, state: RunState) -> None:
        assert state.loss is not None
        self._steps.append((state.loss, state.samples_seen, state.train_seconds, state.data_ns * 1e-9))
        if len(self._steps) >= self.chunk or state.wall_seconds - self._written > self.seconds:
            self._flush(state)

    def after_training_set(self, state: RunState) -> None:
        self._flush(state)

    def after_epoch(self, state: RunState) -> None:
        self._target.extend(self._epoch_rows(state, state.summary.epochs[-1], {}))

    def _epoch_rows(self, state: RunState, epoch: EpochSummary, place: dict[str, Any]) -> list[Row]:
        rows = [
            self._row(state, phase="training_set", quantity="loss", unit="1", value=epoch.loss, **place),
            self._row(
                state,
                phase="training_set",
                quantity="samples_seen",
                unit="samples",
                value=epoch.samples_seen,
                **place,
            ),
            self._row(
                state,
                phase="training_set",
                quantity="data_time",
                unit="s",
                value=epoch.data_seconds,
                **place,
            ),
        ]
        units = {t.name: t.unit for t in state.runner.tickers if isinstance(t, MetricTicker)}
        tested = {"loss": epoch.test_loss, "accuracy": epoch.accuracy, **epoch.scores}
        rows += [
            self._row(state, phase="test_set", quantity=name, unit=units.get(name, "1"), value=value, **place)
            for name, value in tested.items()
            if value is not None
        ]
        return rows

    def after_run(self, state: RunState) -> None:
        if self._target is None:
            return
        self._flush(state)
        failed = state.status in ("failed", "interrupted")
        rows = []
        for part, quantity in SECONDS.items():
            verdict = (
                {"verdict": "failed", "note": state.abort_reason or ""} if failed and part == "wall" else {}
            )
            value = state.summary.seconds[part]
            rows.append(self._row(state, phase="run", quantity=quantity, unit="s", value=value, **verdict))
        rows += [self._limit(state, t) for t in state.runner.tickers if isinstance(t, ScoreLimit)]
        self._target.extend(rows)
        self._target = None

    def _flush(self, state: RunState, place: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._written = state.wall_seconds
        if not self._steps:
            return
        losses, seen, seconds, waited = zip(*self._steps, strict=True)
        self._steps = []
        series: list[tuple[str, str, tuple[float, ...], float]] = [
            ("loss", "1", losses, float(np.median(losses))),
            ("samples_seen", "samples", seen, seen[-1]),
            ("training_time", "s", seconds, seconds[-1]),
            ("data_time", "s", waited, waited[-1]),
        ]
        self._target.extend(
            self._row(
                state, phase="training_step", quantity=name, unit=unit, samples=raw, value=value, **place
            )
            for name, unit, raw, value in series
        )

    def _limit(self, state: RunState, limit: ScoreLimit) -> Row:
        quantity, reached = f"time_to_{limit.score}", limit.reached
        if reached is None:
            best = "none was measured" if math.isnan(limit.best) else f"the best was {limit.best:.6g}"
            note = f"target {limit.target:g} not reached: {best}"
            return self._row(
                state,
                phase="run",
                quantity=quantity,
                unit="s",
                value=None,
                verdict="failed",
                note=note,
            )
        wall = f"{reached.wall_seconds:.6g} s wall time"
        note = f"target {limit.target:g} reached with {reached.value:.6g}; {wall}"
        place = {"step": reached.step, "epoch": reached.epoch, "seconds": reached.train_seconds}
        return self._row(
            state,
            phase="run",
            quantity=quantity,
            unit="s",
            value=reached.train_seconds,
            note=note,
            **place,
        )

    def _row(self, state: RunState, **fields: Any) -> Row:
        place = {"step": state.step, "epoch": state.epoch, "seconds": state.train_seconds}
        return Row(**{**self._fields, **place, **fields})


def row_fields(state: RunState, what: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of Row that say what runs and who runs it, as far as the run tells; ``what`` replaces
    them.

    model: the model's name; optimizer: ``name`` or class name; dataset: the training set's name;
    backend,
    mode, device, threads: the network's; dtype: of the network's first floating-point input; batch:
    the Runner's batch size, where the training set was a Dataset, a Sampler or a Loader; protocol: how many
    workers made batches ahead meanwhile, such as "2 workers (thread)", "" without any.
    """
    network, optimizer, train_set = state.network, state.optimizer, state.runner.train_set
    dtypes = [getattr(kind, "dtype", None) for kind in network.inputs.values()]
    floating = [np.dtype(d).name for d in dtypes if d is not None and np.dtype(d).kind == "f"]
    found = {
        "level": 2,
        "model": getattr(getattr(network, "model", None), "name", ""),
        "optimizer": getattr(optimizer, "name", type(optimizer).__name__),
        "dataset": getattr(getattr(train_set, "dataset", None), "name", ""),
        "backend": network.backend,
        "mode": getattr(network, "mode", ""),
        "device": str(getattr(network, "device", "")),
        "threads": getattr(network, "threads", None),
        "dtype": floating[0] if floating else "",
        "batch": getattr(train_set, "batch_size", None),
        "seed": getattr(train_set, "seed", None),
        "protocol": workers_of(train_set),
    }
    return {**found, **what}


def workers_of(source: Any) -> str:
    """The workers of a Loader in words; "" where batches are made when they are asked for."""
    number = getattr(source, "workers", 0)
    return f"{number} worker{'' if number == 1 else 's'} ({source.kind})" if number else ""
