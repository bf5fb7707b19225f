"""Hyper-parameters that check every value they are given.

A hyper-parameter is declared in the class body of an optimizer and is then an ordinary attribute::

    class Adam(UpdateRuleOptimizer):
        beta1 = Real(below=1.0)

Assigning to it, in the constructor or at any later time, either stores a Python float (never a
numpy scalar: those would widen float32 parameters to float64) or raises. ``declared(optimizer)``
lists the values, which is what a saved state contains.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any

from meta500.errors import UserError

Rate = float | Callable[[int], float]


def as_float(value: Any) -> float | None:
    """``value`` as a finite Python float; None if it is none (bool and text are none)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


class Hyper:
    """Base of the declarations; ``check`` says what is stored."""

    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = self.check(type(instance).__name__, value)

    def value(self, instance: Any) -> Any:
        """The value that ``instance`` has; the declaration itself when asked on the class."""
        return self if instance is None else instance.__dict__[self.name]

    def check(self, owner: str, value: Any) -> Any:
        """The value to store. Raises UserError naming owner, option, value and valid range."""
        raise NotImplementedError


class Real(Hyper):
    """A finite number of [0, ``below``); without ``below`` any finite number >= 0."""

    def __init__(self, below: float = math.inf) -> None:
        self.below = below

    def __get__(self, instance: Any, owner: type | None = None) -> float:
        return self.value(instance)

    def check(self, owner: str, value: Any) -> float:
        number = as_float(value)
        if number is None or not 0.0 <= number < self.below:
            limit = "at least 0" if math.isinf(self.below) else f"at least 0 and below {self.below:g}"
            raise UserError(f"{owner}: {self.name} = {value!r} is not valid: give a finite number {limit}")
        return number


class Flag(Hyper):
    """True or False."""

    def __get__(self, instance: Any, owner: type | None = None) -> bool:
        return self.value(instance)

    def check(self, owner: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise UserError(f"{owner}: {self.name} = {value!r} is not valid: give True or False")
        return value


class LearningRate(Hyper):
    """A finite number >= 0, or a schedule: a function from the step (0, 1, ...) to one."""

    def __get__(self, instance: Any, owner: type | None = None) -> Rate:
        return self.value(instance)

    def check(self, owner: str, value: Any) -> Rate:
        if callable(value):
            return value
        number = as_float(value)
        if number is None or number < 0.0:
            raise UserError(
                f"{owner}: {self.name} = {value!r} is not valid: give a finite number at least 0, "
                "or a schedule (a function from the step to such a number, see "
                "meta500.optimizers.schedules)"
            )
        return number


def declared(optimizer: Any) -> dict[str, Any]:
    """All hyper-parameters that the optimizer's class and its bases declare, by name."""
    names: dict[str, None] = {}
    for cls in reversed(type(optimizer).__mro__):
        names.update((key, None) for key, value in vars(cls).items() if isinstance(value, Hyper))
    return {name: getattr(optimizer, name) for name in names}


def rate_at(optimizer: Any, step: int) -> float:
    """The learning rate of a step (counted from 0): the number itself, or the schedule's value.

    Raises:
        UserError: the schedule gave something else than a finite number >= 0.
    """
    rate = optimizer.learning_rate
    if isinstance(rate, float):
        return rate
    value = rate(step)
    number = as_float(value)
    if number is None or number < 0.0:
        raise UserError(
            f"{type(optimizer).__name__}: the schedule {describe_rate(rate)} gave the learning "
            f"rate {value!r} at step {step}: it must give a finite number at least 0"
        )
    return number


def describe_rate(rate: Rate) -> float | str:
    """What a saved state says of a learning rate: the number, or the schedule's name.

    Plain functions go by their qualified name; their code is not compared.
    """
    if isinstance(rate, float):
        return rate
    text = getattr(rate, "text", None)
    return text if isinstance(text, str) else getattr(rate, "__qualname__", type(rate).__qualname__)
