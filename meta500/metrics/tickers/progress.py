"""A progress bar with an honest remaining time; says nothing where there is no terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meta500.metrics.events import RunState
from meta500.metrics.tickers.pace import Pace, PaceTicker, duration, left_words

if TYPE_CHECKING:
    from rich.console import Console

REFRESH_NS = 100_000_000


class ProgressTicker(PaceTicker):
    """Progress bar (rich) with loss, accuracy and remaining time, and one line per epoch.

    It draws from inside its events, at most ten times per second and without a thread of its own,
    so that drawing never runs beside a timed step and its cost is part of the ticker time. Nothing
    is written when the console is no terminal, such as a file or a pipe.

    Args:
        console: None: standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._given = console
        self._bar: Any = None

    def before_run(self, state: RunState) -> None:
        from rich.console import Console

        console = self._given or Console(stderr=True)
        if not console.is_terminal:
            return
        from rich.progress import BarColumn, Progress, TextColumn

        self._pace = Pace(state)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=self._pace.batches, status="")
        self._shown_ns = 0
        self._bar.start()

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        if self._bar is not None:
            self._pace.restore(state)
            self._bar.update(self._task, completed=self._pace.done)

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

    def begin(self, state: RunState, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=f"{_epoch(state)} {what}")
            self._pace.begin()

    def advance(self, state: RunState, test: bool) -> None:
        if self._bar is None:
            return
        now = self._pace.advance(test)
        due = now - self._shown_ns >= REFRESH_NS
        if not due:
            self._bar.advance(self._task)
            return
        self._shown_ns = now
        parts = [f"loss {state.loss:.4g}"]
        if state.summary.accuracy is not None:
            parts.append(f"accuracy {100 * state.summary.accuracy:.2f} %")
        left = left_words(self._pace.seconds(state), self._pace.remaining.complete, self._pace.may_stop)
        if left:
            parts.append(left)
        self._bar.update(self._task, advance=1, status="  ".join(parts))
        self._bar.refresh()


def _epoch(state: RunState) -> str:
    return f"epoch {state.epoch - state.first_epoch + 1}/{state.epochs}"
