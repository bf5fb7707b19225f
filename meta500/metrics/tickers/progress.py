"""A progress bar with an honest remaining time; says nothing where there is no terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meta500.metrics.events import RunState, Ticker

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_NS = 100_000_000
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


class ProgressTicker(Ticker):
    """Progress bar (rich) with loss, accuracy and remaining time, and one line per epoch.

    It draws from inside its events, at most ten times per second and without a thread of its own,
    so that drawing never runs beside a timed step and its cost is part of the ticker time. Nothing
    is written when the console is no terminal, such as a file or a pipe.

    Args:
        console: None: standard error.
    """

    root_only = True

    def __init__(self, console: Console | None = None) -> None:
        self._given = console
        self._bar: Any = None

    def before_run(self, state: RunState) -> None:
        from rich.console import Console

        console = self._given or Console(stderr=True)
        if not console.is_terminal:
            return
        from rich.progress import BarColumn, Progress, TextColumn

        tested = state.runner.test_set is not None
        self._remaining = RemainingTime(
            state.epochs, state.train_batches, state.test_batches if tested else 0
        )
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        batches = None
        if state.train_batches is not None and (not tested or state.test_batches is not None):
            batches = state.epochs * (state.train_batches + (state.test_batches or 0))
        self._task = self._bar.add_task("starting", total=batches, status="")
        self._shown_ns = 0
        self._bar.start()

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        tests = state.epoch - state.first_epoch
        done = ((state.train_batches or 0) * tests + state.batch, (state.test_batches or 0) * tests)
        left = self._remaining.left if self._bar is not None else []
        for kind, count in enumerate(left):
            left[kind] = None if count is None else max(count - done[kind], 0)
        if self._bar is not None:
            self._bar.update(self._task, completed=sum(done))

    def before_training_set(self, state: RunState) -> None:
        self._begin(state, "training")

    def before_test_set(self, state: RunState) -> None:
        self._begin(state, "testing")

    def after_optimizer_step(self, state: RunState) -> None:
        self._advance(state, test=False)

    def after_inference_step(self, state: RunState) -> None:
        self._advance(state, test=True)

    def after_epoch(self, state: RunState) -> None:
        if self._bar is None:
            return
        epoch = state.summary.epochs[-1]
        parts = [f"{_epoch(state)}: loss {epoch.loss:.4g}"]
        if epoch.test_loss is not None:
            parts.append(f"test loss {epoch.test_loss:.4g}")
        if epoch.accuracy is not None:
            parts.append(f"accuracy {100 * epoch.accuracy:.2f} %")
        parts += [f"{name} {value:.4g}" for name, value in epoch.scores.items()]
        parts.append(f"{duration(epoch.train_seconds)} training")
        self._bar.console.print(", ".join(parts), markup=False, highlight=False)

    def after_run(self, state: RunState) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _begin(self, state: RunState, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=f"{_epoch(state)} {what}")
            self._mark_ns = time.perf_counter_ns()

    def _advance(self, state: RunState, test: bool) -> None:
        if self._bar is None:
            return
        now = time.perf_counter_ns()
        self._remaining.add((now - self._mark_ns) * 1e-9, test)
        self._mark_ns = now
        due = now - self._shown_ns >= REFRESH_NS
        if not due:
            self._bar.advance(self._task)
            return
        self._shown_ns = now
        parts = [f"loss {state.loss:.4g}"]
        if state.summary.accuracy is not None:
            parts.append(f"accuracy {100 * state.summary.accuracy:.2f} %")
        left = self._remaining.seconds()
        if left is not None:
            parts.append(f"{'' if self._remaining.complete else 'at least '}{duration(left)} left")
        self._bar.update(self._task, advance=1, status="  ".join(parts))
        self._bar.refresh()


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


def _epoch(state: RunState) -> str:
    return f"epoch {state.epoch - state.first_epoch + 1}/{state.epochs}"
