"""Hyper-parameters of the optimizer as functions of the step or the epoch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from meta500.errors import UserError, choose
from meta500.metrics.events import RunState, Ticker


class ScheduleTicker(Ticker):
    """Set ``optimizer.NAME = function(k)`` before optimizer steps.

    ``per`` "step": before every step, k the number of steps done so far (0 for the first). ``per``
    "epoch": before every epoch, k its number (from 0, or the Runner's ``first_epoch``). ``history``
    holds (steps done, value) of every change.

    Raises:
        UserError: the optimizer has no such hyper-parameter (those it has are named: its
            ``hyper_parameters()``, or else its numeric attributes) or it cannot be set, or the
            function gives something else than a finite number.
    """

    def __init__(
        self, name: str, function: Callable[[int], float], per: Literal["step", "epoch"] = "step"
    ) -> None:
        if not callable(function):
            raise UserError(
                f"the schedule of '{name}' must be a function of the step or epoch, not {function!r}"
            )
        self.name, self.function = name, function
        self.per = choose("schedule unit", per, ("step", "epoch"))
        self.history: list[tuple[int, float]] = []

    def before_run(self, state: RunState) -> None:
        self.history = []
        optimizer = state.optimizer
        # Setting an attribute that nothing reads would silently train with the old value.
        if callable(getattr(optimizer, "hyper_parameters", None)):
            known = optimizer.hyper_parameters()
        else:
            known = [
                n for n in dir(optimizer) if not n.startswith("_") and _is_number(getattr(optimizer, n, None))
            ]
        choose(f"hyper-parameter of {type(optimizer).__name__}", self.name, known)

    def before_epoch(self, state: RunState) -> None:
        if self.per == "epoch":
            self._set(state, state.epoch, state.step)

    def before_optimizer_step(self, state: RunState) -> None:
        if self.per == "step":
            self._set(state, state.step - 1, state.step - 1)

    def _set(self, state: RunState, k: int, done: int) -> None:
        value = self.function(k)
        if not _is_number(value) or not math.isfinite(value):
            raise UserError(
                f"the schedule of '{self.name}' gave {value!r} for {self.per} {k}: no finite number"
            )
        if self.history and self.history[-1][1] == value:
            return
        try:
            setattr(state.optimizer, self.name, value)
        except AttributeError as error:
            raise UserError(f"{type(state.optimizer).__name__}.{self.name} cannot be set: {error}") from None
        self.history.append((done, float(value)))


def _is_number(value: object) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool) and getattr(value, "ndim", 0) == 0
