"""The data-generating ticker: losses, exact means and accuracy, and where the time went."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.events import RunState, Status, Ticker
from meta500.metrics.scores import Accuracy


@dataclass
class EpochSummary:
    """One epoch. Means are weighted by samples, so a short last batch counts for what it is, and by the
    labels that count where the set ignores one.

    ``train_seconds`` is the time inside the optimizer, ``data_seconds`` that of waiting for training batches.

    ``loss`` is the mean training loss over the epoch (parameters change while it is taken),
    ``test_loss`` and ``accuracy`` (fraction, top-1) belong to the parameters at its end; None
    without a test set or without the network output. ``scores`` holds the values of metric tickers
    by name. ``step``, ``samples_seen``, ``total_train_seconds`` and ``total_wall_seconds`` are
    totals of the run: the first three at the end of the epoch's training, the wall time at the end
    of the epoch.
    """

    epoch: int
    steps: int = 0
    samples: int = 0
    loss: float = math.nan
    train_seconds: float = 0.0
    data_seconds: float = 0.0
    test_samples: int = 0
    test_loss: float | None = None
    accuracy: float | None = None
    test_seconds: float = 0.0
    scores: dict[str, float] = field(default_factory=dict)
    step: int = 0
    samples_seen: int = 0
    total_train_seconds: float = 0.0
    total_wall_seconds: float = 0.0


@dataclass(frozen=True)
class Reached:
    """The first time that a score reached its target: the time to accuracy.

    ``train_seconds`` counts optimizer steps only, ``wall_seconds`` everything, the tests included.
    """

    score: str
    target: float
    value: float
    epoch: int
    step: int
    samples_seen: int
    train_seconds: float
    wall_seconds: float


@dataclass
class Summary:
    """What a run gives back.

    ``losses``, ``samples`` (training samples seen up to and with the step), ``step_seconds``,
    ``data_seconds`` (waiting for the step's batch) and ``wall_seconds`` (since the run began, at the step's
    end) have one entry per optimizer step.
    ``epochs`` holds complete epochs, ``current`` the epoch under way: after an abort the one that
    was cut short, else None. ``seconds`` says where the wall time went: "train" (inside the
    optimizer), "data" and "test_data" (fetching batches), "test" (inference), "tickers" (the cost
    of measuring), "loop" (the rest), "wall" (all). With workers that make batches ahead, "train" and
    "data" share the cores with them, and only the wall time tells what was gained. ``status`` is "finished",
    "stopped" (a limit), "failed" (NaN, exception) or "interrupted".
    """

    losses: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    data_seconds: list[float] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    epochs: list[EpochSummary] = field(default_factory=list)
    current: EpochSummary | None = None
    reached: list[Reached] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    nonfinite_losses: int = 0
    status: Status = "running"
    abort_reason: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the run came to its end or to a limit, and not to NaN, an exception or Ctrl-C."""
        return self.status in ("finished", "stopped")

    @property
    def accuracy(self) -> float | None:
        """Test accuracy of the last complete epoch."""
        return self.epochs[-1].accuracy if self.epochs else None

    @property
    def best_accuracy(self) -> float | None:
        known = [e.accuracy for e in self.epochs if e.accuracy is not None]
        return max(known, default=None)

    @property
    def train_seconds(self) -> list[float]:
        """Seconds inside the optimizer up to the end of each step: the time axis of curves."""
        return np.cumsum(self.step_seconds).tolist()


class SummaryTicker(Ticker):
    """Fills ``state.summary``. The Runner puts one before all other tickers, so that they find it
    filled.

    Test loss: mean of the batch losses over samples, or over the labels that count if the set ignores one;
    exact when the loss output is the mean over these (or, with the Runner's ``loss_reduction="sum"``, the sum
    over the samples) of its batch. A test batch without any label that counts has no loss and is left out.
    """

    def __init__(self) -> None:
        self._correct = Accuracy()
        self._train_loss = self._test_loss = 0.0
        self._train_count = self._test_count = 0

    def before_epoch(self, state: RunState) -> None:
        state.summary.current = EpochSummary(state.epoch)
        self._train_loss = self._test_loss = 0.0
        self._train_count = self._test_count = 0
        self._before = (state.train_ns, state.data_ns, state.test_ns)

    def after_optimizer_step(self, state: RunState) -> None:
        summary, epoch, loss = state.summary, _current(state), state.loss
        assert loss is not None
        summary.losses.append(loss)
        summary.samples.append(state.samples_seen)
        summary.step_seconds.append(state.step_seconds)
        summary.data_seconds.append(state.fetch_ns * 1e-9)
        summary.wall_seconds.append(state.wall_seconds)
        summary.nonfinite_losses += not math.isfinite(loss)
        epoch.steps += 1
        epoch.samples += state.samples
        self._train_loss += loss * state.runner.loss_weight(state.counted)
        self._train_count += state.counted
        epoch.loss = self._train_loss / self._train_count if self._train_count else math.nan
        epoch.train_seconds = (state.train_ns - self._before[0]) * 1e-9
        epoch.data_seconds = (state.data_ns - self._before[1]) * 1e-9
        epoch.step, epoch.samples_seen = state.step, state.samples_seen
        epoch.total_train_seconds = state.train_seconds

    def saved_state(self) -> dict[str, Any]:
        return {
            "train_loss": self._train_loss,
            "train_count": self._train_count,
            "before": list(self._before),
        }

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        if saved:
            self._train_loss = float(saved["train_loss"])
            self._train_count = int(saved["train_count"])
            train, data, test = saved["before"]
            self._before = (int(train), int(data), int(test))

    def before_test_set(self, state: RunState) -> None:
        self._correct = Accuracy(ignore=state.runner.ignore)

    def after_inference_step(self, state: RunState) -> None:
        epoch, runner = _current(state), state.runner
        outputs, inputs = state.outputs or {}, state.inputs or {}
        epoch.test_samples += state.samples
        epoch.test_seconds = (state.test_ns - self._before[2]) * 1e-9
        if runner.loss in outputs:
            if state.counted:
                loss = float(np.asarray(outputs[runner.loss]).item())
                self._test_loss += loss * runner.loss_weight(state.counted)
                self._test_count += state.counted
            epoch.test_loss = self._test_loss / self._test_count if self._test_count else math.nan
        if runner.logits is not None:
            if runner.label not in inputs:
                raise UserError(
                    f"the test set has no label input '{runner.label}' (its inputs: "
                    f"{', '.join(inputs)}); "
                    "name it with label=..., or give logits=None to run without accuracy"
                )
            self._correct.update(outputs[runner.logits], inputs[runner.label])
            epoch.accuracy = self._correct.value()

    def join_ranks(self, state: RunState, gather: Callable[[Any], list[Any]]) -> None:
        epoch, correct = _current(state), self._correct
        tested = epoch.test_loss is not None
        part = (
            epoch.test_samples,
            tested,
            self._test_loss,
            self._test_count,
            correct.correct,
            correct.count,
        )
        parts = gather(part)
        epoch.test_samples = sum(p[0] for p in parts)
        if any(p[1] for p in parts):
            self._test_loss = math.fsum(p[2] for p in parts)
            self._test_count = sum(p[3] for p in parts)
            epoch.test_loss = self._test_loss / self._test_count if self._test_count else math.nan
        if state.runner.logits is not None:
            correct.correct, correct.count = sum(p[4] for p in parts), sum(p[5] for p in parts)
            epoch.accuracy = correct.value()

    def after_epoch(self, state: RunState) -> None:
        epoch = _current(state)
        epoch.total_wall_seconds = state.wall_seconds
        state.summary.epochs.append(epoch)
        state.summary.current = None

    def after_run(self, state: RunState) -> None:
        summary = state.summary
        summary.status, summary.abort_reason = state.status, state.abort_reason
        parts = {
            "train": state.train_ns,
            "data": state.data_ns,
            "test": state.test_ns,
            "test_data": state.test_data_ns,
            "tickers": state.ticker_ns,
        }
        assert state.stopped_ns is not None
        wall = state.stopped_ns - state.started_ns
        parts["loop"] = wall - sum(parts.values())
        summary.seconds = {name: ns * 1e-9 for name, ns in {**parts, "wall": wall}.items()}


def _current(state: RunState) -> EpochSummary:
    assert state.summary.current is not None
    return state.summary.current
