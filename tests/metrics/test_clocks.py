"""What is timed and what is not, on functions that move an injected clock by known amounts."""

import gc
import weakref

import pytest

from meta500.errors import UnsupportedOperation, UserError
from meta500.metrics.clocks import Timer, Timing, clock_overhead, interleave, measure
from meta500.metrics.statistics import ratio_interval


class Clock:
    """Nanoseconds that only pass when a function says so."""

    def __init__(self):
        self.now = 0
        self.calls = []

    def __call__(self):
        return self.now

    def function(self, name, *nanoseconds):
        """A function that takes these times in turn, the last one from then on."""
        times = list(nanoseconds)

        def run():
            self.calls.append(name)
            self.now += times.pop(0) if len(times) > 1 else times[0]

        return run


def seconds(*nanoseconds):
    return tuple(pytest.approx(n * 1e-9) for n in nanoseconds)


@pytest.fixture
def clock():
    return Clock()


def test_first_call_and_warmup_are_no_samples(clock):
    function = clock.function("f", 9000, 500, 400, 10, 11, 12)
    timing = measure(function, warmup=2, min_repeats=3, min_seconds=0, clock=clock)
    assert timing.first_call == pytest.approx(9e-6)
    assert timing.warmup == seconds(500, 400)
    assert timing.samples == seconds(10, 11, 12)
    assert timing.median == pytest.approx(11e-9)
    assert timing.complete
    assert timing.failure is None


def test_setup_is_outside_and_before_every_call(clock):
    function, setup = clock.function("f", 10), clock.function("setup", 700)
    timing = measure(function, warmup=1, min_repeats=2, min_seconds=0, setup=setup, clock=clock)
    assert (timing.first_call, *timing.warmup, *timing.samples) == seconds(10, 10, 10, 10)
    assert clock.calls == ["setup", "f"] * 4


def test_the_device_is_waited_for_at_both_ends(clock):
    queue = []

    def launch():
        queue.append(300)

    def leftovers():
        queue.append(5000)

    def wait():
        clock.now += sum(queue)
        queue.clear()

    options = {"warmup": 0, "min_repeats": 2, "min_seconds": 0, "clock": clock}
    timing = measure(launch, setup=leftovers, synchronize=wait, **options)
    assert timing.samples == seconds(300, 300)
    assert measure(launch, **options).samples == (0.0, 0.0)


def test_each_round_runs_every_function_once_in_changing_order(clock):
    names = ("a", "b", "c")
    functions = {name: clock.function(name, 10) for name in names}
    options = {"warmup": 2, "min_repeats": 40, "min_seconds": 0, "clock": clock}
    interleave(functions, **options)
    order = clock.calls
    assert order[:3] == list(names)
    assert order[3:9] == list(names) * 2
    rounds = [tuple(order[i : i + 3]) for i in range(9, len(order), 3)]
    assert len(rounds) == 40
    assert all(sorted(r) == list(names) for r in rounds)
    assert len(set(rounds)) == 6

    clock.calls = []
    interleave(functions, **options)
    assert clock.calls == order
    clock.calls = []
    interleave(functions, seed=1, **options)
    assert clock.calls != order


def test_samples_of_a_round_are_pairs(clock):
    """A machine that gets slower and slower during the run changes no ratio."""
    drift = iter(range(1, 10_000))
    pace = [1]

    def progress(rounds, taken):
        pace[0] = next(drift)

    def function(cost):
        def run():
            clock.now += cost * pace[0]

        return run

    timings = interleave(
        {"a": function(300), "b": function(200)},
        min_repeats=20,
        min_seconds=0,
        progress=progress,
        clock=clock,
    )
    assert timings["a"].samples[-1] > 10 * timings["a"].samples[1]
    interval = ratio_interval(timings["a"].samples, timings["b"].samples)
    assert (interval.low, interval.high) == seconds(1.5e9, 1.5e9)


@pytest.mark.parametrize(
    ("min_repeats", "min_seconds", "rounds"),
    [(3, 0, 3), (3, 1.0, 10), (20, 1.0, 20), (1, 1.01, 11)],
)
def test_both_the_count_and_the_duration_are_reached(clock, min_repeats, min_seconds, rounds):
    functions = {"a": clock.function("a", 60_000_000), "b": clock.function("b", 40_000_000)}
    timings = interleave(functions, min_repeats=min_repeats, min_seconds=min_seconds, clock=clock)
    assert len(timings["a"].samples) == len(timings["b"].samples) == rounds
    assert timings["a"].complete


def test_the_limit_stops_between_rounds(clock):
    functions = {"a": clock.function("a", 300_000_000), "b": clock.function("b", 700_000_000)}
    timings = interleave(functions, warmup=1, min_repeats=50, min_seconds=0, max_seconds=4.5, clock=clock)
    # One second each for the warm-up and every round, behind the first calls: the fourth begins at 4.0 s.
    assert len(timings["a"].samples) == len(timings["b"].samples) == 4
    assert not timings["a"].complete


def test_first_calls_that_compile_for_long_leave_time_for_rounds(clock):
    calls = []

    def compiled():
        clock.now += 10**6 if calls else 40 * 10**9
        calls.append(None)

    timing = measure(compiled, warmup=1, min_repeats=5, min_seconds=0, max_seconds=1, clock=clock)
    assert timing.first_call == 40 and len(timing.samples) == 5 and timing.complete


def test_one_round_is_sampled_whatever_it_takes(clock):
    timing = measure(clock.function("f", 10**10), warmup=3, min_seconds=0, max_seconds=5, clock=clock)
    assert timing.warmup == seconds(10**10)
    assert timing.samples == seconds(10**10)
    assert not timing.complete


def failing(clock, name, at, error):
    count = [0]

    def run():
        count[0] += 1
        clock.now += 10
        if count[0] >= at:
            raise error

    return run


@pytest.mark.parametrize(("at", "first", "warm", "kept"), [(1, None, 0, 0), (2, 1e-8, 0, 0), (5, 1e-8, 1, 2)])
def test_a_failure_ends_one_function_and_keeps_its_samples(clock, at, first, warm, kept):
    error = ValueError("no such kernel")
    functions = {"bad": failing(clock, "bad", at, error), "good": clock.function("good", 20)}
    timings = interleave(functions, warmup=1, min_repeats=6, min_seconds=0, clock=clock)
    bad, good = timings["bad"], timings["good"]
    assert bad.failure is error
    assert bad.first_call == (first if first is None else pytest.approx(first))
    assert (len(bad.warmup), len(bad.samples)) == (warm, kept)
    assert not bad.complete
    assert good.failure is None
    assert good.complete
    assert good.samples == seconds(*[20] * 6)


def test_a_failed_function_holds_no_memory(clock):
    held = weakref.WeakSet()

    class Array:
        pass

    def allocates():
        activation = Array()
        held.add(activation)
        raise MemoryError("too large")

    alive = []
    functions = {"bad": allocates, "good": lambda: alive.append(len(held))}
    timings = interleave(functions, warmup=0, min_repeats=2, min_seconds=0, clock=clock)
    assert isinstance(timings["bad"].failure, MemoryError)
    assert alive == [0, 0, 0]


def test_everything_failing_ends(clock):
    timings = interleave({"f": failing(clock, "f", 3, OSError("gone"))}, clock=clock)
    assert timings["f"].samples == ()
    with pytest.raises(UserError, match="nothing was timed: gone"):
        timings["f"].interval()


def test_failing_setup_and_synchronize_count_as_failures(clock):
    for option in ("setup", "synchronize"):
        functions = {"a": clock.function("a", 1), "b": clock.function("b", 1)}
        broken = {option: {"a": failing(clock, "x", 1, OSError(option))}}
        timings = interleave(functions, min_repeats=2, min_seconds=0, clock=clock, **broken)
        assert str(timings["a"].failure) == option
        assert len(timings["b"].samples) == 2


def test_alone_a_failure_is_raised(clock):
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, clock=clock)


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_off_while_measuring_and_restored(clock, enabled):
    states = []
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        measure(lambda: states.append(gc.isenabled()), min_repeats=2, min_seconds=0, clock=clock)
        assert gc.isenabled() is enabled
        with pytest.raises(KeyboardInterrupt):
            measure(failing(clock, "f", 2, KeyboardInterrupt()), clock=clock)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()
    assert states == [False] * 4


def test_reference_cycles_of_one_function_do_not_burden_the_next(clock):
    class Node:
        pass

    alive, counts = weakref.WeakSet(), []

    def litter():
        node = Node()
        node.itself = node
        alive.add(node)

    interleave(
        {"litter": litter, "look": lambda: counts.append(len(alive))},
        min_repeats=20,
        min_seconds=0,
        clock=clock,
    )
    assert counts == [0] * len(counts)


def test_progress_is_told_and_not_timed(clock):
    told = []

    def progress(rounds, taken):
        told.append((rounds, pytest.approx(taken)))
        clock.now += 10**6

    timing = measure(clock.function("f", 10), min_repeats=1, min_seconds=0, clock=clock)
    timings = interleave(
        {"f": clock.function("f", 10)}, min_repeats=3, min_seconds=0, progress=progress, clock=clock
    )
    assert told == [(1, 10e-9), (2, 20e-9 + 1e-3), (3, 30e-9 + 2e-3)]
    assert timings["f"].samples == timing.samples * 3


def test_overhead_is_the_time_of_measuring_nothing(clock):
    def ticking():
        clock.now += 25
        return clock.now

    interval = clock_overhead(repeats=9, clock=ticking)
    assert (interval.value, interval.low, interval.high) == seconds(25, 25, 25)
    assert interval.confidence > 0.95
    assert clock_overhead(repeats=20).low >= 0


def test_timer_around_own_blocks(clock):
    queue = []

    def wait():
        clock.now += sum(queue)
        queue.clear()

    timer = Timer(synchronize=wait, clock=clock)
    with pytest.raises(UserError, match="not timed anything"):
        _ = timer.seconds
    for cost in (100, 30, 20, 10):
        queue.append(7000)
        with timer:
            queue.append(cost)
    with pytest.raises(KeyError), timer:
        raise KeyError
    assert timer.seconds == pytest.approx(10e-9)
    timing = timer.timing(warmup=1)
    assert timing.first_call == pytest.approx(100e-9)
    assert timing.warmup == seconds(30)
    assert timing.samples == seconds(20, 10)
    with timer, pytest.raises(UserError, match="running already"):
        timer.__enter__()


def test_rows_of_a_timing():
    timing = Timing(first_call=3.0, warmup=(2.0,), samples=(1.0, 1.5, 1.25, 1.0, 1.1, 1.2))
    time, first = timing.rows(level=0, operator="Conv", backend="numpy", protocol="interleaved")
    assert (time.quantity, time.unit, time.value) == ("time", "s", pytest.approx(1.15))
    assert (time.low, time.high, time.confidence) == (1.0, 1.5, 0.96875)
    assert (time.samples, time.warmup, time.repeats) == (timing.samples, 1, 6)
    assert (time.operator, time.backend, time.protocol) == ("Conv", "numpy", "interleaved")
    assert (first.quantity, first.value, first.warmup, first.samples) == ("first_call", 3.0, 0, ())
    assert first.operator == "Conv"


def test_rows_of_a_failure_keep_the_samples():
    timing = Timing(3.0, (), (1.0, 2.0), failure=ValueError("no kernel"), complete=False)
    (row,) = timing.rows(level=0)
    assert (row.verdict, row.note) == ("failed", "ValueError: no kernel")
    assert (row.samples, row.value) == ((1.0, 2.0), 1.5)
    (row,) = Timing(None, (), (), failure=ValueError("x")).rows(level=0, verdict="ok")
    assert (row.verdict, row.value) == ("failed", None)


def test_rows_of_an_operation_that_the_backend_does_not_have():
    failure = UnsupportedOperation(
        node="n", op_type="Foo", domain="", since_version=1, backend="numpy", reason="too new"
    )
    (row,) = Timing(None, (), (), failure=failure).rows(level=0)
    assert (row.verdict, row.value) == ("unsupported", None)
    assert "ai.onnx.Foo" in row.note


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"functions": {}}, "no function to measure"),
        ({"functions": {"f": 3}}, "'f' is no function but int"),
        ({"warmup": -1}, "warmup -1"),
        ({"min_repeats": 0}, "min_repeats 0"),
        ({"min_seconds": 9, "max_seconds": 5}, "min_seconds 9 must be between 0 and max_seconds 5"),
        ({"min_seconds": float("nan")}, "min_seconds nan"),
        ({"setup": {"g": int}}, "setup for unknown function 'g'; measured are: f"),
        ({"synchronize": {"g": int}}, "synchronize for unknown function 'g'"),
    ],
)
def test_bad_limits_are_named(options, words):
    with pytest.raises(UserError, match=words):
        interleave(**{"functions": {"f": int}, **options})
    with pytest.raises(UserError, match="repeats 0"):
        clock_overhead(repeats=0)


def test_settling_calls_each_function_before_its_sample_outside_of_the_clock():
    calls = []
    functions = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    timings = interleave(functions, warmup=0, min_repeats=3, min_seconds=0.0, settle=1e-9)
    assert all(len(timing.samples) == 3 for timing in timings.values())
    # One first call each, then at least two in a row: those that wake, and the sample.
    assert calls[:2] == ["a", "b"] and len(calls) >= 2 + 2 * 3 * 2
    with pytest.raises(UserError, match="settle -1"):
        interleave(functions, settle=-1)
