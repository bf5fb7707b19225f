"""Interpreted against compiled functions, with cheap stand-ins for the compiler."""

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from meta500.benchmarks.protocol import QUICK as QUICK_PROTOCOL
from meta500.benchmarks.studies.compiler import Settings, fresh, products
from meta500.benchmarks.studies.compiler import modes as compiler_modes
from meta500.benchmarks.studies.compiler.fresh import emit_first_calls, first_call
from meta500.benchmarks.studies.compiler.modes import Work, compare_modes, compiled, conditions
from meta500.benchmarks.studies.select import one, select
from meta500.benchmarks.workers import WorkerFailed
from meta500.metrics.rows import Row

torch = pytest.importorskip("torch")

QUICK = Settings(quick=True, threads=1)
WHAT = {"level": 0, "operator": "MatMul", "phase": "test"}


def unchanged(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """A compiler that changes nothing."""
    return function


def measured(work: Work, compile: Callable[..., Any], modes: tuple[str, ...]) -> list[Row]:
    rows: list[Row] = []
    with conditions(QUICK, "cpu"):
        compare_modes(work, modes, QUICK, rows.append, WHAT, device="cpu", compile=compile)
    return rows


def doubling(exact: bool = True) -> Work:
    values = torch.arange(6.0).reshape(2, 3) + 1

    def double(x: Any) -> Any:
        return 2 * x

    return Work(double, [values], 2 * values.double().numpy() if exact else None)


def test_times_ratios_and_errors_of_every_mode() -> None:
    rows = measured(doubling(), unchanged, ("default", "max-autotune"))
    times = select(rows, quantity="time")
    assert [row.mode for row in times] == ["eager", "default", "max-autotune"]
    assert all(row.verdict == "ok" and row.error == 0 for row in times)
    assert all(row.threads == 1 and row.device == "cpu" and len(row.samples) >= 7 for row in times)
    assert len({len(row.samples) for row in times}) == 1
    for mode in ("default", "max-autotune"):
        ratio, time, plain = (
            one(rows, quantity="ratio", mode=mode),
            one(times, mode=mode),
            one(times, mode="eager"),
        )
        assert ratio is not None and time is not None and plain is not None
        assert ratio.baseline == "torch eager"
        assert ratio.samples == tuple(a / b for a, b in zip(time.samples, plain.samples, strict=True))
        apart = one(rows, quantity="error", mode=mode)
        assert apart is not None and apart.value == 0 and apart.verdict == "ok"


def test_a_wrong_result_has_a_time_but_no_ratio() -> None:
    def wrong_in_one_mode(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        return (lambda x: function(x) + 1) if mode == "default" else function

    rows = measured(doubling(), wrong_in_one_mode, ("default", "max-autotune"))
    time = one(rows, quantity="time", mode="default")
    assert time is not None and time.verdict == "wrong" and time.error is not None and time.error > 0.05
    assert not select(rows, quantity="ratio", mode="default")
    assert one(rows, quantity="ratio", mode="max-autotune") is not None
    apart = one(rows, quantity="error", mode="default")
    assert apart is not None and apart.verdict == "wrong"


def after_three_calls(function: Callable[..., Any], error: float) -> Callable[..., Any]:
    """As a mode whose first calls record what the later ones replay."""
    count = itertools.count()
    return lambda x: function(x) + (error if next(count) >= 3 else 0)


@pytest.mark.parametrize("exact", [True, False])
def test_a_later_call_that_is_wrong_has_no_ratio(exact: bool) -> None:
    rows = measured(doubling(exact), lambda function, mode: after_three_calls(function, 1.0), ("default",))
    time, apart = one(rows, quantity="time", mode="default"), one(rows, quantity="error", mode="default")
    assert time is not None and time.verdict == "wrong"
    assert apart is not None and apart.verdict == "wrong"
    assert not select(rows, quantity="ratio")
    plain = one(rows, quantity="time", mode="eager")
    assert plain is not None and plain.verdict == ("ok" if exact else "not_compared")


def test_a_call_that_fails_after_the_timing_is_a_failure() -> None:
    state = {"calls": 0, "last": 10**9}

    def compile(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        def call(x: Any) -> Any:
            state["calls"] += 1
            if state["calls"] > state["last"]:
                raise RuntimeError("the graph is gone")
            return function(x)

        return call

    few = replace(QUICK_PROTOCOL, min_seconds=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settings, "protocol", few)
        # First call, interleave's first, warm-up, samples; the next one is behind the clock.
        state.update(calls=0, last=2 + few.warmup + few.min_repeats)
        rows = measured(doubling(), compile, ("default",))
    (failed,) = select(rows, verdict="failed", quantity="time")
    assert "the graph is gone" in failed.note and len(failed.samples) == few.min_repeats
    assert not select(rows, quantity="ratio")


@pytest.mark.parametrize("when", ["compiling", "calling"])
def test_what_fails_has_a_row_with_the_reason(when: str) -> None:
    def failing(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        def call(x: Any) -> Any:
            raise RuntimeError("no kernel\nfor this")

        return call(None) if when == "compiling" else call

    rows = measured(doubling(), failing, ("default",))
    (failed,) = select(rows, verdict="failed")
    assert (failed.mode, failed.value) == ("default", None)
    assert failed.note == "RuntimeError: no kernel for this"
    assert one(rows, quantity="time", mode="eager") is not None


def test_without_a_reference_nothing_is_judged_but_the_difference() -> None:
    rows = measured(doubling(exact=False), unchanged, ("default",))
    assert {row.verdict for row in select(rows, quantity="time")} == {"not_compared"}
    assert one(rows, quantity="ratio", mode="default") is not None


def test_conditions_restore_threads_and_gradients() -> None:
    threads = torch.get_num_threads()
    with conditions(Settings(threads=threads + 1), "cpu"):
        assert torch.get_num_threads() == threads + 1
        assert not torch.is_grad_enabled()
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_products_end_to_end() -> None:
    rows: list[Row] = []
    products.measure_product(QUICK, 24, "cpu", rows.append, compile=unchanged)
    assert {(row.quantity, row.backend, row.mode) for row in rows} == {
        ("time", "torch", "eager"),
        *((q, "torch", m) for q in ("time", "ratio", "error") for m in QUICK.chosen_modes),
        ("time", "numpy", ""),
        ("ratio", "numpy", ""),
    }
    assert {row.shape for row in rows} == {"24x24 * 24x24"}
    assert {row.verdict for row in select(rows, quantity="time")} == {"ok"}
    a, b = products.matrices(24, 0)
    work = products.product(24, "cpu", 0)
    np.testing.assert_array_equal(
        work.call(work.function)().numpy(), (torch.from_numpy(a) @ torch.from_numpy(b))
    )


def test_first_calls_are_medians_over_processes_and_failures_are_rows() -> None:
    answers = {"eager": iter([1.0, 3.0, 2.0]), "default": iter([5.0, 9.0, 4.0])}

    def call(work: Any, mode: str, device: str, settings: Settings) -> float:
        assert (work, device, settings.threads) == ({"kind": "product", "size": 8}, "cpu", 1)
        if mode == "max-autotune":
            raise WorkerFailed("the process ended with status 1")
        return next(answers[mode])

    rows: list[Row] = []
    modes = ["eager", "default", "max-autotune"]
    emit_first_calls({"kind": "product", "size": 8}, modes, 3, QUICK, "cpu", rows.append, WHAT, call)
    by_mode = {row.mode: row for row in rows}
    assert by_mode["default"].samples == (5.0, 9.0, 4.0) and by_mode["default"].value == 5.0
    assert by_mode["eager"].value == 2.0
    assert by_mode["max-autotune"].verdict == "failed"
    assert "status 1" in by_mode["max-autotune"].note
    assert {row.protocol for row in rows} == {"fresh process"}


def test_numpy_in_a_fresh_process() -> None:
    assert 0 < first_call({"kind": "product", "size": 8}, "numpy", "cpu", QUICK) < 60


@pytest.mark.parametrize("mode", ["eager", "default"])
def test_a_fresh_process_calls_one_function_once(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first call of a process initialises must not be paid by another call before the clock."""
    made: list[str] = []

    def product(size: int, device: str, seed: int) -> Work:
        def multiply(x: Any) -> Any:
            made.append("called")
            return x

        return Work(multiply, [torch.ones(size)])

    def compile(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        made.append(f"compiled, {mode}")
        return function

    monkeypatch.setattr(products, "product", product)
    monkeypatch.setattr(compiler_modes, "compiled", compile)
    order = {"work": {"kind": "product", "size": 3}, "mode": mode, "device": "cpu", "settings": asdict(QUICK)}
    assert fresh._answer(order) > 0
    assert made == (["called"] if mode == "eager" else ["compiled, default", "called"])


def test_first_calls_of_products_are_interpreted_too() -> None:
    asked: list[str] = []

    def call(work: Any, mode: str, device: str, settings: Settings) -> float:
        asked.append(mode)
        return 1.0

    products.measure_first_product(QUICK, 8, "cpu", [].append, call=call)
    assert asked == ["eager", "default", "numpy"]


def test_a_fresh_process_says_what_is_wrong() -> None:
    with pytest.raises(WorkerFailed, match="unknown kind of work 'cake'"):
        first_call({"kind": "cake"}, "default", "cpu", QUICK)


def test_missing_cuda_is_said() -> None:
    rows: list[Row] = []
    products.emit_missing_cuda(QUICK, rows.append)
    if torch.cuda.is_available():
        assert rows == []
    else:
        (row,) = rows
        assert (row.verdict, row.device, row.value) == ("unsupported", "cuda", None)
        assert "no CUDA device" in row.note


@pytest.mark.slow
def test_products_with_the_real_compiler() -> None:
    rows: list[Row] = []
    products.measure_product(QUICK, 32, "cpu", rows.append, compile=compiled)
    assert {row.mode for row in select(rows, quantity="ratio", backend="torch")} == set(QUICK.chosen_modes)
    assert {row.verdict for row in select(rows, quantity="time")} == {"ok"}


@pytest.mark.slow
def test_first_call_with_the_real_compiler() -> None:
    seconds = first_call({"kind": "product", "size": 16}, "default", "cpu", QUICK)
    assert math.isfinite(seconds) and seconds > 0


@pytest.mark.slow
def test_every_mode_is_compiled_from_its_own_code() -> None:
    from torch._dynamo.utils import counters

    def add(x: Any) -> Any:
        return x + 1

    counters.clear()
    with conditions(QUICK, "cpu"):
        one_mode, other = compiled(add, "default"), compiled(add, "reduce-overhead")
        assert one_mode(torch.ones(3)).tolist() == other(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
        assert counters["stats"]["unique_graphs"] == 2
