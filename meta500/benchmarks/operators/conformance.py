"""Whether backends give what ONNX's cases expect: right, wrong, refused or crashed, and how they do it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.network import HOST, NATIVE, Network, network
from meta500.backends.onnx_backend import refuse_random
from meta500.benchmarks.operators.cases import Case, Value, cases
from meta500.errors import UserError
from meta500.graph.types import BFLOAT16, is_floating

RIGHT, WRONG, REFUSED, CRASHED = "right", "wrong", "refused", "crashed"
RESULTS = (RIGHT, WRONG, REFUSED, CRASHED)

# Backends agree in float64 over some hundred layers to this part of an output's largest number.
_AGREEMENT = 1e-10


@dataclass(frozen=True)
class Outcome:
    """What a backend made of a case.

    Attributes:
        result: "right", "wrong", "refused" (a clear error, before a number was given) or "crashed".
        how: "native", or "host" if some node ran on the declared fallback; "" if it was refused.
        error: largest absolute difference to an expected number; None where there is none.
        message: what is wrong, or why it was refused.
        seconds: of building and running, on a clock that measured it once: not a measurement of speed.
    """

    case: Case
    backend: str
    result: str
    how: str
    error: float | None
    message: str
    seconds: float


def outcome(case: Case, backend: str, **options: Any) -> Outcome:
    """Run a case on a backend and compare.

    Arrays must have the expected dtype and shape, strings and integers must be equal, floating-point numbers
    lie within the case's tolerances; sequences, maps and empty optionals must have the expected structure.
    A case of suite "light-random" is compared with another backend, both in float64.

    Args:
        case: what to run.
        backend: name of the backend.
        options: of the backend; with ``precision`` expected floating-point numbers are taken in it.

    Raises:
        UserError: an unknown backend. (What a case runs into is in the result.)
    """
    from meta500.backends.network import backend_class

    backend_class(backend)
    if case.suite == "light-random":
        options = {**options, "precision": "float64"}
    start = time.perf_counter()
    how, error, message = "", None, ""
    try:
        refuse_random(case.model(), backend)
        with network(case.model(), backend=backend, **options) as net:
            how = how_it_runs(net)
            error, message = _compare(case, net)
        result = WRONG if message else RIGHT
    except UserError as refusal:
        result, message, how = REFUSED, str(refusal), ""
    except Exception as crash:  # whatever else comes out of a backend is a fault to be reported
        result, message = CRASHED, f"{type(crash).__name__}: {crash}"
    return Outcome(case, backend, result, how, error, message, time.perf_counter() - start)


def sweep(
    suites: Iterable[str], backends: Iterable[str], report: Callable[[Outcome], None] | None = None
) -> list[Outcome]:
    """The outcomes of all cases of ``suites`` on ``backends``.

    Args:
        suites: names of suites.
        backends: names of backends.
        report: called with each outcome when it is known.

    Raises:
        UserError: an unknown suite or backend.
    """
    suites, backends = tuple(suites), tuple(backends)
    found = []
    for suite in suites:
        for case in cases(suite):
            for backend in backends:
                found.append(outcome(case, backend))
                if report is not None:
                    report(found[-1])
    return found


@dataclass(frozen=True)
class Count:
    """Numbers of cases of one suite on one backend by their outcome."""

    suite: str
    backend: str
    cases: int
    right_native: int
    right_host: int
    refused: int
    wrong: int
    crashed: int


def summary(outcomes: Sequence[Outcome]) -> list[Count]:
    """One :class:`Count` per suite and backend, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for found in outcomes:
        groups.setdefault((found.case.suite, found.backend), []).append(found)
    return [
        Count(
            suite,
            backend,
            len(group),
            sum(o.result == RIGHT and o.how == NATIVE for o in group),
            sum(o.result == RIGHT and o.how == HOST for o in group),
            *(sum(o.result == result for o in group) for result in (REFUSED, WRONG, CRASHED)),
        )
        for (suite, backend), group in groups.items()
    ]


def summary_table(counts: Sequence[Count]) -> Any:
    """The counts as a rich table."""
    from rich.table import Table

    table = Table(title="Cases of the ONNX backend suites")
    table.add_column("suite")
    table.add_column("backend")
    for title in ("cases", "right, native", "right, host", "refused", "wrong", "crashed"):
        table.add_column(title, justify="right")
    for count in counts:
        numbers = (count.cases, count.right_native, count.right_host, count.refused)
        table.add_row(count.suite, count.backend, *map(str, (*numbers, count.wrong, count.crashed)))
    return table


def how_it_runs(net: Network) -> str:
    """Whether all nodes of a network, those of subgraphs included, run natively."""
    return HOST if any(node.how == HOST for node in net.coverage()) else NATIVE


def _compare(case: Case, net: Network) -> tuple[float | None, str]:
    """The largest difference over a case's data sets, and the first thing that is wrong."""
    largest: float | None = None
    for index, (inputs, given) in enumerate(case.data()):
        expected, rtol, atol = given, case.rtol, case.atol
        if case.suite == "light-random":
            expected = agreed(case, "torch" if net.backend == "numpy" else "numpy")[index]
        fed = {name: _copied(value) for name, value in inputs.items()}
        found = net.inference(fed, outputs=list(expected))
        for name, want in expected.items():
            if case.suite == "light-random":
                rtol, atol = 0.0, _AGREEMENT * float(np.abs(want).max())
            error, message = difference(found[name], _in_precision(want, net.precision), rtol, atol)
            largest = error if largest is None or (error is not None and error > largest) else largest
            if message:
                return largest, f"output '{name}': {message}"
        for name, value in inputs.items():
            if difference(fed[name], value, 0.0, 0.0)[1]:
                return largest, f"input '{name}' was changed"
    return largest, ""


@functools.lru_cache(maxsize=8)
def agreed(case: Case, backend: str) -> list[dict[str, Value]]:
    """The outputs of ``backend`` in float64 for each data set of ``case``.

    Raises:
        UserError: the backend refuses the case, or gives an output without variation, which proves nothing.
    """
    found = []
    with network(case.model(), backend=backend, precision="float64") as net:
        for inputs, _ in case.data():
            outputs = net.inference(inputs)
            for name, value in outputs.items():
                if not np.isfinite(value).all() or value.std() <= 1e-3 * np.abs(value).max():
                    raise UserError(
                        f"case '{case.name}': output '{name}' does not vary, it can't be compared"
                    )
            found.append(outputs)
    return found


def difference(found: Value, expected: Value, rtol: float, atol: float) -> tuple[float | None, str]:
    """How a value misses what is expected.

    Args:
        found, expected: arrays, sequences, dicts or None.
        rtol, atol: tolerances for floating-point numbers, as in ``numpy.allclose``; bfloat16 gets two units
            in the last place, as in onnx's own runner.

    Returns:
        The largest absolute difference between two finite numbers (None where there are none), and what is
        wrong ("" if nothing is).
    """
    if expected is None or found is None:
        same = found is None and expected is None
        return None, "" if same else f"expected {_kind(expected)}, got {_kind(found)}"
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(expected):
            return None, f"expected a map with keys {list(expected)}, got {_kind(found)}"
        return _worst((f"[{k!r}]", difference(found[k], v, rtol, atol)) for k, v in expected.items())
    if isinstance(expected, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(expected):
            return None, f"expected {_kind(expected)}, got {_kind(found)}"
        pairs = enumerate(zip(found, expected, strict=True))
        return _worst((f"[{i}]", difference(f, e, rtol, atol)) for i, (f, e) in pairs)
    if isinstance(found, list | tuple | Mapping):
        return None, f"expected {_kind(expected)}, got {_kind(found)}"
    return _array_difference(np.asarray(found), np.asarray(expected), rtol, atol)


def _worst(parts: Iterable[tuple[str, tuple[float | None, str]]]) -> tuple[float | None, str]:
    largest: float | None = None
    for place, (error, message) in parts:
        largest = error if largest is None or (error is not None and error > largest) else largest
        if message:
            return largest, f"{place} {message}"
    return largest, ""


def _array_difference(
    found: np.ndarray, expected: np.ndarray, rtol: float, atol: float
) -> tuple[float | None, str]:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return None, f"expected {_kind(expected)}, got {_kind(found)}"
    if expected.dtype.kind in "OUS":
        same = [_text(v) for v in found.ravel()] == [_text(v) for v in expected.ravel()]
        return None, "" if same else "the strings differ"
    if expected.dtype.kind in "biu":
        unequal = found != expected
        return None, _count(unequal, found, expected) if unequal.any() else ""
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    if expected.dtype == BFLOAT16 and rtol > 0:
        rtol = max(rtol, 2**-6)
    with np.errstate(all="ignore"):
        f, e = found.astype(wide), expected.astype(wide)
        close = np.isclose(f, e, rtol=rtol, atol=atol, equal_nan=True)
        gaps = np.abs(f - e)[np.isfinite(f) & np.isfinite(e)]
    error = float(gaps.max()) if gaps.size else None
    return error, "" if close.all() else _count(~close, found, expected)


def _count(unequal: np.ndarray, found: np.ndarray, expected: np.ndarray) -> str:
    first = tuple(int(i) for i in np.argwhere(unequal)[0])
    return (
        f"{np.count_nonzero(unequal)} of {unequal.size} numbers are wrong, the first at {list(first)}: "
        f"expected {expected[first]}, got {found[first]}"
    )


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return f"a map with keys {list(value)}"
    if isinstance(value, list | tuple):
        return f"a sequence of {len(value)}"
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}"


def _copied(value: Value) -> Value:
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return None if value is None else np.array(value)


def _in_precision(value: Value, precision: str | None) -> Value:
    if precision is None or value is None:
        return value
    if isinstance(value, list):
        return [_in_precision(item, precision) for item in value]
    array = np.asarray(value)
    return array.astype(precision) if is_floating(array.dtype) and array.dtype.kind != "c" else value
