"""Timing of functions: first call, warm-up and samples apart, and compared functions interleaved.

Rules that hold for every measurement here:

- The clock is ``time.perf_counter_ns``. With ``synchronize`` (for example ``network.synchronize``)
  the device is waited for before the clock starts and before it stops.
- The first call (compilation, building, first touch of memory) and the warm-up are never among the
  samples.
- What a function returns is freed before the clock stops, as it is in a loop around the function.
- The cyclic garbage collector is off while measuring: its pauses depend on what was allocated
  before, so they would be charged to whoever is running. Before each sample the young generations
  are collected outside of the clock, so that reference cycles left by one function do not keep
  memory from the next. Its state before is restored afterwards.
- Rounds go on until both a number of rounds and a duration are reached, or until a limit.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import numpy as np

from meta500.errors import UnsupportedOperation, UserError
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, median_interval

Action = Callable[[], object]
PerFunction = Action | Mapping[str, Action] | None
NANOSECONDS = 1e-9
LEAD_IN_SECONDS = 0.02


@dataclass(frozen=True)
class Timing:
    """Seconds that one function took.

    ``first_call`` is None if already that failed. ``samples`` are in the order of the rounds, so
    those of functions measured together are pairs. ``failure`` is the exception that ended the
    measurement of this function; the samples before it are kept. ``complete`` says whether the
    number of rounds and the duration asked for were reached.
    """

    first_call: float | None
    warmup: tuple[float, ...]
    samples: tuple[float, ...]
    failure: Exception | None = None
    complete: bool = True

    def interval(self, confidence: float = 0.95) -> Interval:
        """Median of the samples with its interval, in seconds.

        Raises:
            UserError: there is no sample; names the failure.
        """
        if not self.samples:
            raise UserError(f"nothing was timed: {self.failure or 'there are no samples'}")
        return median_interval(self.samples, confidence)

    def rows(self, *, confidence: float = 0.95, **what: Any) -> list[Row]:
        """Result rows: "time" with its interval and samples, and "first_call", both in seconds.

        ``what`` are the other fields of the rows, at least ``level``. A function that failed gives
        one row with verdict "failed" or, for an operation that the backend does not have,
        "unsupported", and the reason in the note; its samples are kept.
        """
        summary: dict[str, Any] = {"value": None}
        if self.samples:
            summary = asdict(self.interval(confidence))
        counts = {"warmup": len(self.warmup), "repeats": len(self.samples)}
        if self.failure is not None:
            reason = f"{type(self.failure).__name__}: {self.failure}"
            missing = isinstance(self.failure, UnsupportedOperation)
            what = {**what, "verdict": "unsupported" if missing else "failed", "note": reason}
        timed = {"quantity": "time", "unit": "s", "samples": self.samples}
        rows = [Row(**{**timed, **summary, **counts, **what})]
        if self.failure is None and self.first_call is not None:
            first = {"quantity": "first_call", "unit": "s", "value": self.first_call}
            rows.append(Row(**{**first, "warmup": 0, "repeats": 1, **what}))
        return rows

    @property
    def median(self) -> float:
        """Median of the samples, in seconds."""
        return self.interval().value


def measure(
    function: Action,
    *,
    warmup: int = 1,
    min_repeats: int = 10,
    min_seconds: float = 0.5,
    max_seconds: float = 60.0,
    synchronize: Action | None = None,
    setup: Action | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Timing:
    """Time one function alone; the parameters are those of :func:`interleave`.

    Raises:
        Exception: whatever the function raises.
    """
    timing = interleave(
        {"function": function},
        warmup=warmup,
        min_repeats=min_repeats,
        min_seconds=min_seconds,
        max_seconds=max_seconds,
        synchronize=synchronize,
        setup=setup,
        clock=clock,
    )["function"]
    if timing.failure is not None:
        raise timing.failure
    return timing


def interleave(
    functions: Mapping[str, Action],
    *,
    warmup: int = 1,
    min_repeats: int = 10,
    min_seconds: float = 0.5,
    max_seconds: float = 60.0,
    synchronize: PerFunction = None,
    setup: PerFunction = None,
    seed: int = 0,
    settle: float = 0.0,
    progress: Callable[[int, float], object] | None = None,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> dict[str, Timing]:
    """Time several functions against each other; a drift of the machine meets all of them alike.

    First one call of each, apart, in the order given; then ``warmup`` rounds, reported but not
    sampled; then rounds in which every function runs once. The order is shuffled anew in each round
    (seeded), so that no function always follows the same other one. Sample i of all functions comes
    from the same round.

    A function that raises an ``Exception`` takes no further part: its timing carries the exception
    as ``failure`` and the samples so far, the others go on. The local variables of the frames of
    its traceback are cleared, so that what it had allocated does not burden the others.
    (``KeyboardInterrupt`` ends everything.)

    Args:
        functions: name to a function without arguments; its result is dropped.
        warmup: calls of each function after the first and before the samples.
        min_repeats: rounds to sample at least.
        min_seconds: time that the sampled rounds take at least, all functions and set-up together.
        max_seconds: time after which no further round is begun, counted from the end of the first calls
            (which may compile for longer than that) and including set-up. At least one round is sampled,
            whatever it takes; a timing cut short is not ``complete``.
        synchronize: waits for the device; one for all functions or a mapping from names.
        setup: called before every call, outside of the clock; one for all functions or a mapping
            from names.
        seed: of the order of the rounds.
        settle: seconds of rest before each sample, followed by calls of the function outside of the clock
            for 20 ms (one at least). For functions of different libraries on the same cores: their
            idle threads go on spinning for a while (OpenBLAS's for 0.1 s), which slows whoever
            runs next several times. The rest lets them go to sleep, and the calls wake the function's own
            and give the system time to spread them over the cores, as in a loop around it alone.
        progress: called between rounds, outside of the clock, with the number of sampled rounds and
            the seconds that they took.
        clock: the time in nanoseconds.

    Raises:
        UserError: no functions, unknown names in a mapping, or limits that contradict each other.
    """
    _check_limits(functions, warmup, min_repeats, min_seconds, max_seconds)
    if not 0 <= settle < 60:
        raise UserError(f"settle {settle} must be a number of seconds from 0 to 60")
    waits = _per_function("synchronize", synchronize, functions)
    setups = _per_function("setup", setup, functions)
    first: dict[str, float] = {}
    warm: dict[str, list[float]] = {name: [] for name in functions}
    samples: dict[str, list[float]] = {name: [] for name in functions}
    failures: dict[str, Exception] = {}

    def call(name: str, keep: Callable[[float], object], rest: bool = False) -> None:
        try:
            if name in setups:
                setups[name]()
            if rest:
                time.sleep(settle)
                awake = time.perf_counter() + min(settle, LEAD_IN_SECONDS)
                functions[name]()
                while time.perf_counter() < awake:
                    if name in setups:
                        setups[name]()
                    functions[name]()
                if name in setups:
                    setups[name]()
            keep(_sample(functions[name], waits.get(name), clock))
        except Exception as failure:
            traceback.clear_frames(failure.__traceback__)
            failures[name] = failure

    def running() -> list[str]:
        return [name for name in functions if name not in failures]

    rng = np.random.default_rng(seed)

    def exhausted() -> bool:
        return (clock() - begin) * NANOSECONDS >= max_seconds

    rounds, taken = 0, 0.0
    with _without_collector():
        for name in functions:
            call(name, lambda seconds, name=name: first.setdefault(name, seconds))  # type: ignore[misc]
        begin = clock()
        for _ in range(warmup):
            if exhausted():
                break
            for name in running():
                call(name, warm[name].append)
        start = clock()
        while running() and (rounds < min_repeats or taken < min_seconds):
            if rounds and exhausted():
                break
            alive = running()
            for index in rng.permutation(len(alive)):
                call(alive[index], samples[alive[index]].append, rest=settle > 0)
            rounds, taken = rounds + 1, (clock() - start) * NANOSECONDS
            if progress is not None:
                progress(rounds, taken)
    enough = rounds >= min_repeats and taken >= min_seconds
    return {
        name: Timing(
            first_call=first.get(name),
            warmup=tuple(warm[name]),
            samples=tuple(samples[name]),
            failure=failures.get(name),
            complete=enough and name not in failures and len(warm[name]) == warmup,
        )
        for name in functions
    }


def clock_overhead(repeats: int = 1000, clock: Callable[[], int] = time.perf_counter_ns) -> Interval:
    """Seconds that measuring itself adds to a sample, measured on a function that does nothing.

    Raises:
        UserError: ``repeats`` is not positive.
    """
    if repeats < 1:
        raise UserError(f"repeats {repeats} is not positive")
    with _without_collector():
        return median_interval([_sample(_nothing, None, clock) for _ in range(repeats)])


class Timer:
    """Stopwatch around a block, for a loop of one's own; may be used again and again.

    ``with timer: ...`` appends the block's seconds to ``timer.samples``; a block that raises is not
    kept. ``synchronize`` waits for the device before the clock starts and before it stops. The
    garbage collector is left as it is.
    """

    def __init__(
        self, synchronize: Action | None = None, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.samples: list[float] = []
        self._synchronize, self._clock = synchronize, clock
        self._start: int | None = None

    def __enter__(self) -> Timer:
        if self._start is not None:
            raise UserError("this timer is running already; use a second one for a nested block")
        if self._synchronize is not None:
            self._synchronize()
        self._start = self._clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        start, self._start = self._start, None
        if kind is None and start is not None:
            if self._synchronize is not None:
                self._synchronize()
            self.samples.append((self._clock() - start) * NANOSECONDS)

    @property
    def seconds(self) -> float:
        """Seconds of the last block.

        Raises:
            UserError: no block has ended yet.
        """
        if not self.samples:
            raise UserError("this timer has not timed anything yet")
        return self.samples[-1]

    def timing(self, warmup: int = 0) -> Timing:
        """The blocks as a :class:`Timing`: first one apart, then ``warmup`` ones, then samples."""
        first = self.samples[0] if self.samples else None
        return Timing(first, tuple(self.samples[1 : 1 + warmup]), tuple(self.samples[1 + warmup :]))


def _nothing() -> None:
    pass


def _sample(function: Action, synchronize: Action | None, clock: Callable[[], int]) -> float:
    gc.collect(1)
    if synchronize is None:
        start = clock()
        function()
        return (clock() - start) * NANOSECONDS
    synchronize()
    start = clock()
    function()
    synchronize()
    return (clock() - start) * NANOSECONDS


@contextmanager
def _without_collector() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _per_function(option: str, given: PerFunction, functions: Mapping[str, Action]) -> Mapping[str, Action]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return dict.fromkeys(functions, given)
    unknown = [name for name in given if name not in functions]
    if unknown:
        raise UserError(f"{option} for unknown function '{unknown[0]}'; measured are: {', '.join(functions)}")
    return given


def _check_limits(
    functions: Mapping[str, Action],
    warmup: int,
    min_repeats: int,
    min_seconds: float,
    max_seconds: float,
) -> None:
    if not functions:
        raise UserError("there is no function to measure")
    for name, function in functions.items():
        if not callable(function):
            raise UserError(f"'{name}' is no function but {type(function).__name__}")
    if warmup < 0 or min_repeats < 1:
        raise UserError(f"warmup {warmup} must be at least 0 and min_repeats {min_repeats} at least 1")
    if not 0 <= min_seconds <= max_seconds:
        raise UserError(f"min_seconds {min_seconds} must be between 0 and max_seconds {max_seconds}")
