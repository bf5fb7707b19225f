"""The events of a training run: their order, the ticker base class and the state that every event
receives.

The order is that of the Runner in the Deep500 thesis (section 5.3.3); this is the one place that
states it, and `EVENTS` lists it:

    before_run
      for every epoch:
        before_epoch
        before_training_set
          for every batch:
            before_optimizer_step
            after_optimizer_step
            abort_after_optimizer_step      question
        after_training_set
        before_test_set                     from here to after_test_set only with a test set
          for every batch:
            before_inference_step
            after_inference_step
        after_test_set
        after_epoch
        abort_after_test_set                question, only with a test set
    after_run

Rules that hold for every run:

- An event reaches every ticker, in the order in which the tickers were given. A ticker that raises
  does not keep the event from the others; once they have had it the run ends with that error.
- A question reaches every ticker too. The run ends when any of them says yes; it then goes straight
  to ``after_run``, without the closing events of the epoch that was cut short.
- ``after_run`` fires exactly once for every ticker, whatever ended the run: the last epoch, a
  question, an exception, Ctrl-C. `RunState.status` and `RunState.abort_reason` say which. An
  exception is raised again after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.metrics.tickers.summary import Summary

EVENTS = (
    "before_run",
    "before_epoch",
    "before_training_set",
    "before_optimizer_step",
    "after_optimizer_step",
    "abort_after_optimizer_step",
    "after_training_set",
    "before_test_set",
    "before_inference_step",
    "after_inference_step",
    "after_test_set",
    "after_epoch",
    "abort_after_test_set",
    "after_run",
)
QUESTIONS = ("abort_after_optimizer_step", "abort_after_test_set")

Status = Literal["running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True)
class Abort:
    """A yes to an abort question; ``failed`` makes it a failed run (NaN), not a stopped one."""

    reason: str
    failed: bool = False


Answer = bool | str | Abort | None


@dataclass
class RunState:
    """What an event can know about the run so far. Tickers read it; the Runner writes it.

    ``epochs`` is the number of epochs asked for, ``first_epoch`` the number of the first of them.

    ``epoch`` counts from 0, as samplers and result rows do. ``step`` counts optimizer steps over
    the whole
    run: inside ``before_optimizer_step`` it is the number, from 1, of the step about to run, from
    then on the number of steps done. ``samples_seen`` counts training samples of completed steps.
    ``inputs``, ``outputs`` and ``samples`` (batch size) belong to the current batch, ``loss`` is
    the loss of the last optimizer step. ``counted`` is what a mean loss of the batch is over: its labels
    without those that the set ignores, where it ignores one, else its samples. ``train_batches`` and
    ``test_batches`` are the batches of one epoch, None where a sampler does not say. Times are nanoseconds of
    ``time.perf_counter_ns``.
    """

    runner: Any
    network: Any
    optimizer: Any
    summary: Summary
    epochs: int
    first_epoch: int = 0
    folder: Any = None
    train_batches: int | None = None
    test_batches: int | None = None

    epoch: int = 0
    step: int = 0
    batch: int = 0
    samples: int = 0
    counted: int = 0
    samples_seen: int = 0
    inputs: Mapping[str, np.ndarray] | None = None
    outputs: Mapping[str, np.ndarray] | None = None
    loss: float | None = None

    step_ns: int = 0
    fetch_ns: int = 0
    train_ns: int = 0
    data_ns: int = 0
    test_ns: int = 0
    test_data_ns: int = 0
    ticker_ns: int = 0
    started_ns: int = 0
    stopped_ns: int | None = None

    status: Status = "running"
    abort_reason: str | None = None
    error: BaseException | None = None

    @property
    def step_seconds(self) -> float:
        """Seconds of the last optimizer step, or of the last inference step inside the test set."""
        return self.step_ns * 1e-9

    @property
    def train_seconds(self) -> float:
        """Seconds inside ``optimizer.train`` so far: no data loading, no tickers, no tests."""
        return self.train_ns * 1e-9

    @property
    def wall_seconds(self) -> float:
        """Seconds since the run began, everything included; stands still before after_run."""
        now = time.perf_counter_ns() if self.stopped_ns is None else self.stopped_ns
        return (now - self.started_ns) * 1e-9


class Ticker:
    """Base of all tickers: override only the events that you need.

    ``train_outputs`` and ``test_outputs`` name the network outputs that the ticker wants to find in
    ``state.outputs`` in the optimizer's and in the inference steps; the Runner fetches those of all
    tickers and no others. ``root_only`` True is for tickers that print or write files: in a run on
    several ranks they exist on rank 0 alone. A method called ``before_...``, ``after_...`` or ``abort_...``
    that is no event raises a UserError when its class is defined, since it would never be called.
    """

    train_outputs: Sequence[str] = ()
    test_outputs: Sequence[str] = ()
    root_only = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith(("before_", "after_", "abort_")):
                choose(f"event in ticker {cls.__name__}", name, EVENTS)

    def before_run(self, state: RunState) -> None:
        """Open files, reset counters: a ticker may serve several runs, one after the other."""

    def before_epoch(self, state: RunState) -> None:
        """``state.epoch`` has just been set."""

    def before_training_set(self, state: RunState) -> None:
        """The first batch has not been fetched yet."""

    def before_optimizer_step(self, state: RunState) -> None:
        """``state.inputs`` holds the batch; ``state.step`` numbers the step about to run."""

    def after_optimizer_step(self, state: RunState) -> None:
        """``loss``, ``outputs``, ``step_ns`` and ``samples_seen`` of the state are of this step."""

    def abort_after_optimizer_step(self, state: RunState) -> Answer:
        """Return True, a reason or an `Abort` to end the run here."""
        return None

    def after_training_set(self, state: RunState) -> None:
        """All optimizer steps of the epoch are done."""

    def before_test_set(self, state: RunState) -> None:
        """Only with a test set."""

    def before_inference_step(self, state: RunState) -> None:
        """``state.inputs`` holds the batch of the test set."""

    def after_inference_step(self, state: RunState) -> None:
        """``state.outputs`` and ``state.step_ns`` are of this inference step."""

    def after_test_set(self, state: RunState) -> None:
        """All batches of the test set are done."""

    def after_epoch(self, state: RunState) -> None:
        """``state.summary.epochs[-1]`` is complete, scores of the test set included."""

    def abort_after_test_set(self, state: RunState) -> Answer:
        """Return True, a reason or an `Abort` to end the run here."""
        return None

    def after_run(self, state: RunState) -> None:
        """Close files. Called exactly once for each before_run, whatever ended the run."""

    # Not events: what a run on several ranks, and one that is interrupted and resumed, needs.

    def join_ranks(self, state: RunState, gather: Callable[[Any], list[Any]]) -> None:
        """After the last inference step of this rank's part of the test set: take in the other ranks'.

        ``gather(part)`` gives the parts of all ranks in rank order, on all ranks. Every rank has to
        call it as often; so a ticker that is ``root_only`` must not.
        """

    def saved_state(self) -> dict[str, Any]:
        """What ``restore_state`` needs to go on after an optimizer step, as JSON can hold it."""
        return {}

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        """Go on from ``saved`` ({} if there is none); called in a resumed run after ``before_epoch``,
        when ``state`` and ``state.summary`` are restored."""


class Dispatcher:
    """Delivers events to tickers and keeps the time that they take.

    Only overridden methods are called, so that an event that nobody listens to costs one dictionary
    look-up.

    Raises:
        UserError: something in ``tickers`` is no `Ticker` (a class instead of an object, for
            example).
    """

    def __init__(self, tickers: Sequence[Ticker]) -> None:
        for ticker in tickers:
            if not isinstance(ticker, Ticker):
                hint = " (the class was given; create an object of it)" if isinstance(ticker, type) else ""
                raise UserError(f"tickers must be objects of Ticker subclasses, not {ticker!r}{hint}")
        self.listeners: dict[str, list[Callable[[RunState], Any]]] = {
            event: [getattr(ticker, event) for ticker in tickers if _overrides(ticker, event)]
            for event in EVENTS
        }

    def fire(self, event: str, state: RunState) -> None:
        """Deliver ``event`` to all listeners, then raise the first error that came up.

        Errors of further listeners are attached to the first one as notes.
        """
        self._deliver(event, state)

    def ask(self, question: str, state: RunState) -> Abort | None:
        """Ask all listeners; several reasons are joined, and one failure makes it failed."""
        yes = [_abort(question, answer) for answer in self._deliver(question, state)]
        aborts = [a for a in yes if a is not None]
        if not aborts:
            return None
        return Abort("; ".join(a.reason for a in aborts), any(a.failed for a in aborts))

    def _deliver(self, event: str, state: RunState) -> list[Any]:
        listeners = self.listeners[event]
        if not listeners:
            return []
        answers: list[Any] = []
        first: BaseException | None = None
        begin = time.perf_counter_ns()
        for listener in listeners:
            try:
                answers.append(listener(state))
            # Ctrl-C too: the listeners that follow must see before_run and after_run in any case.
            except BaseException as error:
                first = combine(first, error)
        state.ticker_ns += time.perf_counter_ns() - begin
        if first is not None:
            raise first
        return answers


def combine(first: BaseException | None, later: BaseException) -> BaseException:
    """Keep the first error and attach a later one to it as a note, so that none is lost.

    A KeyboardInterrupt wins over other errors, since the user's wish to end must reach the caller.
    """
    if first is None or first is later:
        return later
    if isinstance(later, KeyboardInterrupt) and not isinstance(first, KeyboardInterrupt):
        first, later = later, first
    first.add_note(f"and also: {type(later).__name__}: {later}")
    return first


def _overrides(ticker: Ticker, event: str) -> bool:
    """Whether the ticker's class, or an attribute set on the object, replaces the event."""
    return event in vars(ticker) or getattr(type(ticker), event) is not getattr(Ticker, event)


def _abort(question: str, answer: Any) -> Abort | None:
    """Turn an answer into an Abort or None; anything but bool, str, Abort or None is a mistake."""
    if answer is None or isinstance(answer, Abort):
        return answer
    if isinstance(answer, str):
        return Abort(answer) if answer else None
    if isinstance(answer, bool | np.bool_):
        return Abort(f"a ticker answered yes to {question}") if answer else None
    raise UserError(f"{question} must answer with a bool, a reason (str) or an Abort, not {answer!r}")
