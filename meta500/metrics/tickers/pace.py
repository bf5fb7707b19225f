"""How far a run is and how long it still takes, from the batches that were timed."""

from __future__ import annotations

import time
from collections import deque

from meta500.metrics.events import RunState, Ticker
from meta500.metrics.tickers.limits import ScoreLimit, TimeLimit

RECENT = 200


class RemainingTime:
    """Estimates how long a run still takes from its recent training and test batches, each kind on
    its own.

    The first training batch is left out, since it may compile. ``seconds()`` gives None until a
    second one is known or when the number of batches is not. ``complete`` is False as long as test
    batches are due of which none has been timed: the estimate is then a lower bound.
    """

    def __init__(self, epochs: int, train_batches: int | None, test_batches: int | None) -> None:
        self.left = [None if n is None else epochs * n for n in (train_batches, test_batches)]
        self._recent: tuple[deque[float], deque[float]] = (
            deque(maxlen=RECENT),
            deque(maxlen=RECENT),
        )
        self._first = True

    def add(self, seconds: float, test: bool = False) -> None:
        """One more batch is done; ``seconds`` includes its fetching and its tickers."""
        left = self.left[test]
        if left is not None:
            self.left[test] = max(left - 1, 0)
        if self._first and not test:
            self._first = False
        else:
            self._recent[test].append(seconds)

    @property
    def complete(self) -> bool:
        return not self.left[1] or bool(self._recent[1])

    def seconds(self) -> float | None:
        train, test = self.left
        if train is None or test is None or (train and not self._recent[0]):
            return None
        means = [sum(recent) / len(recent) if recent else 0.0 for recent in self._recent]
        return train * means[0] + test * means[1]


class Pace:
    """Counts the batches of a run, training and test, and times them for a `RemainingTime`.

    Args:
        state: the run, at its beginning.

    Attributes:
        batches: of the whole run; None where a sampler does not say how many it gives.
        done: how many of them are.
        remaining: the estimate from the batches alone.
        may_stop: whether a score may end the run before its last batch.
    """

    def __init__(self, state: RunState) -> None:
        test_batches = state.test_batches if state.runner.test_set is not None else 0
        self.remaining = RemainingTime(state.epochs, state.train_batches, test_batches)
        self.batches: int | None = None
        if state.train_batches is not None and test_batches is not None:
            self.batches = state.epochs * (state.train_batches + test_batches)
        self.done = 0
        self.may_stop = any(isinstance(t, ScoreLimit) and t.stop for t in state.runner.tickers)
        self._limits = [
            t.seconds for t in state.runner.tickers if isinstance(t, TimeLimit) and t.clock == "wall"
        ]
        self._mark_ns = time.perf_counter_ns()

    def restore(self, state: RunState) -> None:
        """Count the batches that were done before the checkpoint from which the run goes on."""
        tests = state.epoch - state.first_epoch
        done = ((state.train_batches or 0) * tests + state.batch, (state.test_batches or 0) * tests)
        left = self.remaining.left
        for kind, count in enumerate(left):
            left[kind] = None if count is None else max(count - done[kind], 0)
        self.done = sum(done)

    def seconds(self, state: RunState) -> float | None:
        """Seconds that the run still takes, by its batches or by its time limit, whichever ends it first;
        None where the batches do not tell."""
        left = self.remaining.seconds()
        return (
            None if left is None else min([left, *(max(s - state.wall_seconds, 0.0) for s in self._limits)])
        )

    def fraction(self, state: RunState) -> float | None:
        """How much of the run is done, 0 to 1, by the same two; None where it has no known number of
        batches."""
        if not self.batches:
            return None
        return min(max([self.done / self.batches, *(state.wall_seconds / s for s in self._limits)]), 1.0)

    def begin(self) -> None:
        """A training or test set begins; the time until now belongs to no batch."""
        self._mark_ns = time.perf_counter_ns()

    def advance(self, test: bool) -> int:
        """One more batch is done; gives the time, in nanoseconds of ``time.perf_counter_ns``."""
        now = time.perf_counter_ns()
        self.remaining.add((now - self._mark_ns) * 1e-9, test)
        self._mark_ns = now
        self.done += 1
        return now


class PaceTicker(Ticker):
    """A ticker that follows the batches of both sets; subclasses say what they do with them."""

    root_only = True

    def begin(self, state: RunState, phase: str) -> None:
        """A set begins; ``phase`` is "training" or "testing"."""

    def advance(self, state: RunState, test: bool) -> None:
        """One more batch is done."""

    def before_training_set(self, state: RunState) -> None:
        self.begin(state, "training")

    def before_test_set(self, state: RunState) -> None:
        self.begin(state, "testing")

    def after_optimizer_step(self, state: RunState) -> None:
        self.advance(state, test=False)

    def after_inference_step(self, state: RunState) -> None:
        self.advance(state, test=True)


def left_words(seconds: float | None, complete: bool, may_stop: bool) -> str:
    """The remaining time in words; "" where nothing honest can be said.

    Args:
        seconds: the estimate.
        complete: False makes it a lower bound, see `RemainingTime`.
        may_stop: makes it an upper bound, since a score may end the run sooner.
    """
    if seconds is None or (may_stop and not complete):
        return ""
    bound = "at most " if may_stop else "" if complete else "at least "
    return f"{bound}{duration(seconds)} left"


def duration(seconds: float) -> str:
    """Seconds in words of fixed precision: "0.42 s", "12 s", "3 min 05 s", "2 h 10 min"."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
