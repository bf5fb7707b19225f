"""Where a training run stands between two optimizer steps, as plain values that a file can hold."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from meta500.errors import UserError
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.tickers.summary import EpochSummary, Reached, Summary

# Clocks of the state that count nanoseconds up.
_CLOCKS = ("train_ns", "data_ns", "test_ns", "test_data_ns", "ticker_ns")


@dataclass(frozen=True)
class Position:
    """A run after ``batch`` batches of ``epoch``.

    ``clocks`` are nanoseconds by name ("wall_ns" since the run began, the others those of RunState),
    ``summary`` is the Summary so far as a dictionary, ``tickers`` what tickers saved of themselves.
    """

    epoch: int
    batch: int
    step: int
    samples_seen: int
    loss: float | None
    clocks: Mapping[str, int]
    summary: Mapping[str, Any]
    tickers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """As a dictionary of numbers, texts, lists and dictionaries."""
        return asdict(self)

    @classmethod
    def from_plain(cls, entry: Mapping[str, Any]) -> Position:
        """The counterpart of ``plain``.

        Raises:
            UserError: an entry is missing.
        """
        missing = [f.name for f in fields(cls) if f.name not in entry]
        if missing:
            raise UserError(f"the saved position of the run lacks {', '.join(missing)}")
        return cls(**{f.name: entry[f.name] for f in fields(cls)})


def position(state: RunState) -> Position:
    """The position of a run inside ``after_optimizer_step``, for tickers that come last."""
    clocks = {name: getattr(state, name) for name in _CLOCKS}
    clocks["wall_ns"] = time.perf_counter_ns() - state.started_ns
    return Position(
        epoch=state.epoch,
        batch=state.batch,
        step=state.step,
        samples_seen=state.samples_seen,
        loss=state.loss,
        clocks=clocks,
        summary=asdict(state.summary),
        tickers={key: ticker.saved_state() for key, ticker in _keyed(state)},
    )


def restore(state: RunState, saved: Position) -> None:
    """Set the state of a run to a position, its Summary and tickers included."""
    for name in ("epoch", "batch", "step", "samples_seen", "loss"):
        setattr(state, name, getattr(saved, name))
    for name in _CLOCKS:
        setattr(state, name, int(saved.clocks[name]))
    state.started_ns = time.perf_counter_ns() - int(saved.clocks["wall_ns"])
    _fill(state.summary, saved.summary)
    for key, ticker in _keyed(state):
        ticker.restore_state(saved.tickers.get(key, {}), state)


def _fill(summary: Summary, saved: Mapping[str, Any]) -> None:
    for name in ("losses", "samples", "step_seconds", "data_seconds", "wall_seconds"):
        if name not in saved:
            raise UserError(
                f"the saved position of the run has no '{name}' per step: it was written by an older "
                "meta500, which has to go on with it"
            )
        setattr(summary, name, list(saved[name]))
    summary.epochs = [EpochSummary(**epoch) for epoch in saved["epochs"]]
    summary.current = None if saved["current"] is None else EpochSummary(**saved["current"])
    summary.reached = [Reached(**entry) for entry in saved["reached"]]
    summary.nonfinite_losses = int(saved["nonfinite_losses"])


def _keyed(state: RunState) -> list[tuple[str, Ticker]]:
    """Tickers by class name and their number among those of the class."""
    counts: dict[str, int] = {}
    found = []
    for ticker in state.runner.tickers:
        name = type(ticker).__name__
        number = counts[name] = counts.get(name, 0) + 1
        found.append((name if number == 1 else f"{name}-{number}", ticker))
    return found
