"""Learning rate schedules: functions from the step (0 for the first) to the learning rate of that
step.

Each function below makes a schedule. A step is one call of ``train``; for a schedule in epochs,
multiply its lengths by the batches per epoch. Within their length all agree with the schedulers of
``torch.optim.lr_scheduler`` that they name::

    Adam(network, warmup(cosine(1e-3, steps=10_000), steps=500))
"""

from __future__ import annotations

import inspect
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meta500.backends.hyperparameters import as_float
from meta500.errors import UserError, choose


@dataclass(frozen=True)
class Schedule:
    """A schedule: call it with a step. ``text`` names it, also in saved optimizer states."""

    text: str
    function: Callable[[int], float] = field(repr=False, compare=False)

    def __call__(self, step: int) -> float:
        """The learning rate of step 0, 1, ... Raises UserError for a negative step."""
        if step < 0:
            raise UserError(f"schedule {self.text}: there is no step {step}, the first is 0")
        return float(self.function(step))


def _number(owner: str, name: str, value: Any) -> float:
    number = as_float(value)
    if number is None or number < 0.0:
        raise UserError(f"schedule {owner}: {name} = {value!r} is not valid: give a finite number at least 0")
    return number


def _positive(owner: str, name: str, value: Any) -> float:
    number = _number(owner, name, value)
    if number == 0.0:
        raise UserError(f"schedule {owner}: {name} = {value!r} is not valid: give a finite number above 0")
    return number


def _steps(owner: str, name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 1:
        raise UserError(
            f"schedule {owner}: {name} = {value!r} is not valid: give a whole number of steps >= 1"
        )
    return value.__index__()


def _milestones(owner: str, values: Sequence[int]) -> tuple[int, ...]:
    steps = tuple(_steps(owner, "milestones", value) for value in values)
    if any(a >= b for a, b in itertools.pairwise(steps)):
        raise UserError(f"schedule {owner}: milestones = {list(values)} is not valid: give increasing steps")
    return steps


def constant(learning_rate: float) -> Schedule:
    """γ for ever."""
    rate = _number("constant", "learning_rate", learning_rate)
    return Schedule(f"constant({rate!r})", lambda step: rate)


def step_decay(learning_rate: float, every: int, factor: float = 0.1) -> Schedule:
    """γ · factor^⌊step / every⌋ (torch: StepLR)."""
    rate = _number("step_decay", "learning_rate", learning_rate)
    every, factor = _steps("step_decay", "every", every), _number("step_decay", "factor", factor)
    return Schedule(
        f"step_decay({rate!r}, {every}, {factor!r})", lambda step: rate * factor ** (step // every)
    )


def multi_step(learning_rate: float, milestones: Sequence[int], factor: float = 0.1) -> Schedule:
    """γ · factor^(number of milestones reached) (torch: MultiStepLR)."""
    rate = _number("multi_step", "learning_rate", learning_rate)
    steps, factor = _milestones("multi_step", milestones), _number("multi_step", "factor", factor)
    return Schedule(
        f"multi_step({rate!r}, {list(steps)}, {factor!r})",
        lambda step: rate * factor ** bisect_right(steps, step),
    )


def exponential(learning_rate: float, factor: float) -> Schedule:
    """γ · factor^step (torch: ExponentialLR)."""
    rate = _number("exponential", "learning_rate", learning_rate)
    factor = _number("exponential", "factor", factor)
    return Schedule(f"exponential({rate!r}, {factor!r})", lambda step: rate * factor**step)


def cosine(learning_rate: float, steps: int, minimum: float = 0.0) -> Schedule:
    """From γ down to ``minimum`` over ``steps`` along half a cosine (torch: CosineAnnealingLR).

    Loshchilov and Hutter, arXiv:1608.03983, equation 5, without restarts. Afterwards it stays at
    ``minimum``, where torch's rises again.
    """
    rate, low = (
        _number("cosine", "learning_rate", learning_rate),
        _number("cosine", "minimum", minimum),
    )
    length = _steps("cosine", "steps", steps)
    return Schedule(
        f"cosine({rate!r}, {length}, {low!r})",
        lambda step: low + (rate - low) * 0.5 * (1.0 + math.cos(math.pi * min(step, length) / length)),
    )


def linear(learning_rate: float, steps: int, start: float = 1.0 / 3.0, end: float = 1.0) -> Schedule:
    """γ times a factor from ``start`` straight to ``end``, then constant (torch: LinearLR)."""
    rate, length = (
        _number("linear", "learning_rate", learning_rate),
        _steps("linear", "steps", steps),
    )
    start, end = _number("linear", "start", start), _number("linear", "end", end)
    return Schedule(
        f"linear({rate!r}, {length}, {start!r}, {end!r})",
        lambda step: rate * (start + (end - start) * min(step, length) / length),
    )


def warmup(schedule: Callable[[int], float], steps: int, start: float = 0.0) -> Schedule:
    """``schedule`` times a factor that rises from ``start`` to 1 over ``steps``; both count from
    step 0.

    To run the warm-up before the schedule instead of over it, use ``sequence([linear(...),
    schedule], [n])``.
    """
    length, start = _steps("warmup", "steps", steps), _number("warmup", "start", start)
    return Schedule(
        f"warmup({_text(schedule)}, {length}, {start!r})",
        lambda step: schedule(step) * (start + (1.0 - start) * min(step, length) / length),
    )


def sequence(schedules: Sequence[Callable[[int], float]], milestones: Sequence[int]) -> Schedule:
    """One after the other, each from its own step 0, changing at the milestones.

    torch: SequentialLR.
    """
    parts, steps = tuple(schedules), _milestones("sequence", milestones)
    if len(parts) != len(steps) + 1:
        raise UserError(
            f"schedule sequence: {len(parts)} schedules need {max(len(parts) - 1, 0)} milestones "
            f"between them, got {len(steps)}"
        )

    def rate(step: int) -> float:
        index = bisect_right(steps, step)
        return parts[index](step - (steps[index - 1] if index else 0))

    return Schedule(f"sequence([{', '.join(map(_text, parts))}], {list(steps)})", rate)


def one_cycle(
    peak: float,
    steps: int,
    rise: float = 0.3,
    start_divisor: float = 25.0,
    end_divisor: float = 1e4,
) -> Schedule:
    """One cycle of ``steps`` steps, both parts along half a cosine (torch: OneCycleLR, two phases).

    From ``peak / start_divisor`` up to ``peak`` in the first ``rise`` (0 to 1) of the steps, then
    down to ``peak / start_divisor / end_divisor`` in the last step; it stays there. Smith and
    Topin, arXiv:1708.07120. The momentum is not cycled.
    """
    top, length = _number("one_cycle", "peak", peak), _steps("one_cycle", "steps", steps)
    share = _number("one_cycle", "rise", rise)
    first = top / _positive("one_cycle", "start_divisor", start_divisor)
    last = first / _positive("one_cycle", "end_divisor", end_divisor)
    turn, end = share * length - 1.0, length - 1.0
    if not 0.0 < turn < end:
        raise UserError(
            f"schedule one_cycle: rise = {rise!r} is not valid for {length} steps: the peak would "
            f"lie at step {turn:g}, it must lie between 0 and {end:g}"
        )

    def rate(step: int) -> float:
        if step <= turn:
            low, high, part = first, top, step / turn
        else:
            low, high, part = top, last, (min(step, end) - turn) / (end - turn)
        return high + (low - high) * 0.5 * (1.0 + math.cos(math.pi * part))

    return Schedule(f"one_cycle({top!r}, {length}, {share!r}, {start_divisor!r}, {end_divisor!r})", rate)


def _text(schedule: Callable[[int], float]) -> str:
    text = getattr(schedule, "text", None)
    return text if isinstance(text, str) else getattr(schedule, "__qualname__", type(schedule).__qualname__)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "step": step_decay,
    "multi-step": multi_step,
    "exponential": exponential,
    "cosine": cosine,
    "linear": linear,
    "one-cycle": one_cycle,
}


def schedule_names() -> list[str]:
    """The names that ``create_schedule`` knows."""
    return sorted(SCHEDULES)


def create_schedule(name: str, learning_rate: float, **options: Any) -> Schedule:
    """A schedule by name, e.g. ``create_schedule("cosine", 1e-3, steps=1000)``.

    ``learning_rate`` is the first argument of the schedule's function (for one-cycle the peak).

    Raises:
        UserError: unknown name, unknown or missing option (with the choices), or an invalid value.
    """
    make = SCHEDULES[choose("schedule", name, SCHEDULES)]
    accepted = list(inspect.signature(make).parameters.values())[1:]
    for option in options:
        choose(f"option of schedule '{name}'", option, [parameter.name for parameter in accepted])
    for parameter in accepted:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise UserError(f"schedule '{name}' needs the option '{parameter.name}'")
    return make(learning_rate, **options)
