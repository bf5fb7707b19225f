"""A function interpreted by PyTorch against itself compiled in every mode: results first, then times.

``torch.compile`` is called in one place, :func:`compiled`; whatever compiles takes it as an argument.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import SETTLE_SECONDS, Emit, ratio_row, version
from meta500.benchmarks.studies.compiler.settings import EAGER, Settings
from meta500.metrics.clocks import Timing, interleave
from meta500.metrics.norms import ErrorNorms, compare, tolerance
from meta500.metrics.rows import Row

# What ratios are relative to.
BASELINE = f"torch {EAGER}"
INTERLEAVED = "interleaved"
# Messages of the compiler hold whole listings.
NOTE_CHARACTERS = 500

Function = Callable[..., Any]
Compile = Callable[[Function, str], Function]


@dataclass(frozen=True)
class Work:
    """A function of tensors with its inputs.

    Attributes:
        function: a Python function from tensors to one tensor.
        inputs: what it is called with, on the device.
        exact: its result in float64; None where it is not known.
        terms: of the longest chain of sums behind one element of the result.
    """

    function: Function
    inputs: Sequence[Any]
    exact: np.ndarray[Any, Any] | None = field(default=None, repr=False)
    terms: int = 1

    def call(self, function: Function) -> Callable[[], Any]:
        """``function`` on the inputs, without arguments."""
        return lambda: function(*self.inputs)


def compiled(function: Function, mode: str) -> Function:
    """``torch.compile`` of a Python function for fixed shapes.

    Each call makes a copy of the function's code, to which the compiler attaches what it makes: else the
    guards of one mode would be tried before those of the next.

    Args:
        function: a plain Python function; modules are wrapped in one.
        mode: of torch.compile.
    """
    import torch

    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return torch.compile(copy, mode=mode, dynamic=False)


@contextmanager
def conditions(settings: Settings, device: str) -> Iterator[None]:
    """PyTorch as it measures: no gradients, its threads, float32 without TF32, and nothing compiled before.

    Everything is restored afterwards, and what was compiled is forgotten.
    """
    from meta500.backends.torch.ambient import Ambient, parse_device

    forget_compiled()
    try:
        with Ambient(parse_device(device), gradients=False, threads=settings.used_threads):
            yield
    finally:
        forget_compiled()


def forget_compiled() -> None:
    """Drop what torch.compile has compiled in this process."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


def who(settings: Settings, mode: str, device: str) -> dict[str, Any]:
    """The columns of a row that say who ran."""
    return {
        "backend": "torch",
        "mode": mode,
        "version": version("torch"),
        "threads": settings.used_threads,
        "ranks": 1,
        "device": device,
        "seed": settings.seed,
    }


def synchronizing(device: str) -> Callable[[], object] | None:
    """Waits for the device; None where nothing runs beside the host."""
    if device == "cpu":
        return None
    import torch

    return partial(torch.cuda.synchronize, device)


def compare_modes(
    work: Work,
    modes: Sequence[str],
    settings: Settings,
    emit: Emit,
    what: Mapping[str, Any],
    *,
    device: str,
    compile: Compile = compiled,
) -> dict[str, Timing]:
    """Interpreted against compiled in each mode, in one interleaved run; inside of :func:`conditions`.

    Before and behind that every function is called once and its result compared with float64, and the
    compiled ones with the interpreted one; the worse of the two counts, since what a mode runs later is not
    what it runs first (CUDA graphs are recorded in the second call). Rows: "time" of each, with the error
    against float64; "error" of each compiled one against the interpreted one; "ratio" of the times of each
    compiled one that is right to the interpreted one. A mode that does not compile, or whose call fails, has
    a row with verdict "failed".

    Args:
        work: what is called.
        modes: of ``torch.compile``.
        settings: protocol, threads, seed.
        emit: receives the rows.
        what: columns that say what was measured, at least ``level``.
        device: where the work's inputs are.
        compile: from a function and a mode to the compiled function.

    Returns:
        The timings of the functions that ran, by mode.

    Raises:
        Exception: whatever the interpreted function raises.
    """
    plain = work.call(work.function)
    expected = host(plain())
    limit = tolerance(expected.dtype, work.terms)
    results = {EAGER: [expected]}
    actions: dict[str, Callable[[], Any]] = {EAGER: plain}
    for mode in modes:
        columns = {**what, **who(settings, mode, device)}
        try:
            action = work.call(compile(work.function, mode))
            results[mode] = [host(action())]
        except Exception as failure:  # a compiler may fail in any way; the others go on
            emit(failed(failure, **columns))
            continue
        actions[mode] = action
    # The exact result may come from NumPy, whose threads go on spinning for a while.
    time.sleep(SETTLE_SECONDS)
    timings = interleave(actions, synchronize=synchronizing(device), **settings.protocol.limits())
    for mode, action in actions.items():
        if timings[mode].failure is None:
            try:
                results[mode].append(host(action()))
            except Exception as failure:
                timings[mode] = replace(timings[mode], failure=failure)
    judged = {mode: _judged(found, work.exact, limit) for mode, found in results.items()}
    for mode, timing in timings.items():
        columns = {**what, **who(settings, mode, device)}
        if mode != EAGER:
            error = _apart(results[mode], expected, 2 * limit, columns)
            emit(error)
            if error.verdict != "ok" and judged[mode]["verdict"] != "wrong":
                judged[mode] = {**judged[mode], "verdict": "wrong", "note": "not what eager gives"}
        columns["protocol"] = INTERLEAVED
        # First calls in this process depend on what is in the compiler's caches.
        for row in timing.rows(**{**columns, **judged[mode]}):
            if row.quantity == "time":
                emit(row)
        right = judged[mode]["verdict"] != "wrong" and judged[EAGER]["verdict"] != "wrong"
        if mode != EAGER and right:
            ratio = ratio_row(timing, timings[EAGER], BASELINE, **columns)
            if ratio is not None:
                emit(ratio)
    return timings


def failed(failure: Exception, *, quantity: str = "time", unit: str = "s", **columns: Any) -> Row:
    """The row of what failed, with the reason."""
    note = " ".join(f"{type(failure).__name__}: {failure}".split())[:NOTE_CHARACTERS]
    return Row(quantity=quantity, unit=unit, value=None, verdict="failed", note=note, **columns)


def host(tensor: Any) -> np.ndarray[Any, Any]:
    """A copy in host memory: a CUDA graph overwrites its outputs in the next call."""
    return np.array(tensor.detach().cpu().numpy())


def _apart(
    results: Sequence[np.ndarray[Any, Any]],
    expected: np.ndarray[Any, Any],
    limit: float,
    columns: Mapping[str, Any],
) -> Row:
    """The row "error" of the worst of the results against the interpreted one; both may be off."""
    apart = worst(results, expected, limit)
    return Row(
        quantity="error",
        unit="1",
        value=apart.max_relative,
        baseline=BASELINE,
        error_norm="max_relative",
        tolerance=limit,
        verdict=apart.verdict(limit),
        **columns,
    )


def worst(
    results: Sequence[np.ndarray[Any, Any]], expected: np.ndarray[Any, Any], limit: float
) -> ErrorNorms:
    """The norms of the result that is furthest off, of one beyond the limit if there is one."""
    found = [compare(result, expected) for result in results]
    wrong = [norms for norms in found if norms.verdict(limit) != "ok"]
    return max(wrong or found, key=lambda norms: norms.max_relative)


def _judged(
    results: Sequence[np.ndarray[Any, Any]], exact: np.ndarray[Any, Any] | None, limit: float
) -> dict[str, Any]:
    """Error columns of the worst of the results against float64."""
    if exact is None:
        return {"verdict": "not_compared"}
    norms = worst(results, exact, limit)
    return {
        "error": norms.max_relative,
        "error_norm": "max_relative",
        "tolerance": limit,
        "verdict": norms.verdict(limit),
    }
