"""Limits that end a run: time, steps, and a score that has been reached."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal

from meta500.errors import UserError, choose
from meta500.metrics.events import Answer, RunState, Ticker
from meta500.metrics.tickers.summary import Reached


class TimeLimit(Ticker):
    """Stop after the optimizer step or test set in which ``seconds`` have passed.

    ``clock`` "wall" counts everything since the run began, "train" only the time inside the
    optimizer. A step is never cut short, so the run may take one step, or one test set, longer.
    """

    def __init__(self, seconds: float, clock: Literal["wall", "train"] = "wall") -> None:
        if not seconds > 0:
            raise UserError(f"a time limit must be a positive number of seconds, not {seconds!r}")
        self.seconds = float(seconds)
        self.clock = choose("clock", clock, ("wall", "train"))

    def abort_after_optimizer_step(self, state: RunState) -> Answer:
        used = state.wall_seconds if self.clock == "wall" else state.train_seconds
        if used < self.seconds:
            return None
        return f"time limit of {self.seconds:g} s ({self.clock} clock) reached after {used:.3g} s"

    def abort_after_test_set(self, state: RunState) -> Answer:
        return self.abort_after_optimizer_step(state)


class StepLimit(Ticker):
    """Stop after ``steps`` optimizer steps; the epoch they end in is not tested."""

    def __init__(self, steps: int) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise UserError(f"a step limit must be an integer of at least 1, not {steps!r}")
        self.steps = steps

    def abort_after_optimizer_step(self, state: RunState) -> Answer:
        return f"step limit of {self.steps} reached" if state.step >= self.steps else None


class ScoreLimit(Ticker):
    """Record when a score of the test set reaches ``target``, and stop there unless ``stop`` is
    False.

    ``score`` is "accuracy", "test_loss" or the name of a `MetricTicker`; ``at_least`` False asks
    for a value of at most ``target`` (losses, errors). The time to the target, in training and in
    wall seconds, is appended to ``state.summary.reached``; ``best`` is the best value of the run so
    far, ``reached`` None until the target is reached.

    Raises:
        UserError: the score is not among those of the epoch (the choices are named), at the first
            test set.
    """

    def __init__(
        self, target: float, score: str = "accuracy", *, at_least: bool = True, stop: bool = True
    ) -> None:
        if not math.isfinite(target):
            raise UserError(f"the target of '{score}' must be a finite number, not {target!r}")
        self.target, self.score, self.at_least, self.stop = float(target), score, at_least, stop
        self.reached: Reached | None = None
        self.best = math.nan

    def before_run(self, state: RunState) -> None:
        self.reached, self.best = None, math.nan

    def saved_state(self) -> dict[str, Any]:
        reached = None if self.reached is None else asdict(self.reached)
        return {"score": self.score, "best": self.best, "target": self.target, "reached": reached}

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        if saved and saved["score"] == self.score:
            self.best = float(saved["best"])
            if saved["reached"] is not None and saved["target"] == self.target:
                self.reached = Reached(**saved["reached"])

    def abort_after_test_set(self, state: RunState) -> Answer:
        epoch = state.summary.epochs[-1]
        values = {"accuracy": epoch.accuracy, "test_loss": epoch.test_loss, **epoch.scores}
        known = {name: value for name, value in values.items() if value is not None}
        value = known[choose("score of the test set", self.score, known)]
        better = max if self.at_least else min
        if not math.isnan(value):
            self.best = value if math.isnan(self.best) else better(self.best, value)
        if self.reached is not None or not (value >= self.target if self.at_least else value <= self.target):
            return None
        self.reached = Reached(
            self.score,
            self.target,
            value,
            epoch.epoch,
            epoch.step,
            epoch.samples_seen,
            epoch.total_train_seconds,
            epoch.total_wall_seconds,
        )
        state.summary.reached.append(self.reached)
        if not self.stop:
            return None
        return (
            f"{self.score} {value:.4g} reached the target {self.target:g} after "
            f"{epoch.total_train_seconds:.3g} s "
            f"of training ({epoch.total_wall_seconds:.3g} s wall time, step {epoch.step})"
        )


class AccuracyLimit(ScoreLimit):
    """Time to accuracy: stop when the test accuracy (a fraction) is at least ``target``.

    Raises:
        UserError: ``target`` outside (0, 1], such as a percentage.
    """

    def __init__(self, target: float, *, stop: bool = True) -> None:
        if not 0 < target <= 1:
            raise UserError(f"a target accuracy is a fraction in (0, 1], not {target!r} (97 % is 0.97)")
        super().__init__(target, "accuracy", stop=stop)
