"""Single convolutions: counts of the thesis, the graph's shapes, light speed, and counters."""

import errno
from contextlib import contextmanager

import numpy as np
import pytest

import meta500
from meta500.benchmarks.operators.roofline import BANDWIDTH, PEAK, Roof, Roofline
from meta500.benchmarks.protocol import Protocol
from meta500.benchmarks.studies.codegen import convolutions, counters
from meta500.benchmarks.studies.codegen.convolutions import (
    Convolution,
    chosen_convolutions,
    convolution_model,
    measure_convolutions,
    rate_rows,
    traffic_rows,
)
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.errors import UserError
from meta500.metrics.clocks import Timing

THESIS = Point(3, 512, 64, "float32", 18)
ONCE = Protocol(warmup=0, min_repeats=1, min_seconds=0.0, max_seconds=5.0)


def test_work_of_an_epoch_is_that_of_the_thesis():
    # Section 6.3.7: 14.5 GFLOP and 1476 MB for convolution 0, 38.65 GFLOP and 2148 MB for convolution 1.
    first, second, _ = chosen_convolutions(THESIS)
    assert first.calls_per_epoch == 2
    assert 2 * first.flops == pytest.approx(14.5e9, rel=1e-3)
    assert 2 * first.bytes == pytest.approx(1476e6, rel=1e-3)
    assert (2 * first.bytes_read, 2 * first.bytes_written) == pytest.approx((402e6, 1.074e9), rel=2e-3)
    assert 2 * second.flops == pytest.approx(38.65e9, rel=1e-3)
    assert 2 * second.bytes == pytest.approx(2148e6, rel=1e-3)


@pytest.mark.parametrize("n", [0, 3])
def test_shapes_are_those_of_the_graph(n):
    model = meta500.models.unet(n=n, batch=2, size=64)
    types, by_name = model.graph.types(), {op.name: op for op in model.graph.operations}
    for found in chosen_convolutions(Point(n, 64, 2, "float32", 1)):
        op = by_name[found.node]
        weight = model.graph.initializers[op.W].shape
        assert types[op.X].shape == (2, found.channels_in, found.size, found.size)
        assert types[op.Y].shape == (2, found.channels_out, found.size, found.size)
        assert weight == (found.channels_out, found.channels_in, 3, 3) and tuple(op.pads) == (1, 1, 1, 1)


def roofline(peak, bandwidth, cache=None):
    kinds = ((PEAK, "float32", peak), (BANDWIDTH, "", bandwidth))
    return Roofline(tuple(Roof(q, "x", "torch", d, 18, (v,)) for q, d, v in kinds), 18, cache)


def test_light_speed_is_that_of_the_thesis():
    # 1267 GFLOP/s and 70 GB/s: 47.43 epochs/s by memory for convolution 0, and 32.59 for convolution 1.
    first, second, _ = chosen_convolutions(THESIS)
    found = {}
    for one in (first, second):
        timing = Timing(None, (), tuple([one.calls_per_epoch / 16.7 / 4] * 8))
        found[one.node] = {
            r.quantity: r for r in rate_rows(timing, one, roofline(1267e9, 70e9), {"level": 1})
        }
    light = found[first.node]["light_speed"]
    assert light.value == pytest.approx(47.43, rel=1e-3) and light.note == "bound by memory"
    assert found[second.node]["light_speed"].value == pytest.approx(32.59, rel=1e-3)
    # A quarter of an epoch's calls' time each: rates follow from seconds per call.
    seconds = first.calls_per_epoch / 16.7 / 4
    assert found[first.node]["epoch_rate"].value == pytest.approx(1 / (2 * seconds))
    assert found[first.node]["light_share"].value == pytest.approx(1 / (2 * seconds) / 47.43, rel=1e-3)


def test_a_layer_that_fits_the_cache_is_told():
    first, _, _ = chosen_convolutions(THESIS)
    timing = Timing(None, (), (1.0,))
    rows = rate_rows(timing, first, roofline(1e9, 1e15, cache=first.bytes), {"level": 1})
    assert rows[1].note == "bound by arithmetic; its data fit the last-level cache"


def test_small_layers_are_measured_and_right(monkeypatch):
    monkeypatch.setattr(convolutions, "measure_roofline", lambda threads, dtypes, **how: roofline(1e12, 1e11))
    monkeypatch.setattr(convolutions, "SETTLE_SECONDS", 0.0)
    one = convolutions.chosen_convolutions(Point(0, 32, 2, "float32", 1))[0]
    monkeypatch.setattr(convolutions, "chosen_convolutions", lambda _: [one])
    rows = []
    measure_convolutions(Point(0, 32, 2, "float32", 1), ONCE, True, rows.append)
    times = [r for r in rows if r.quantity == "time"]
    assert {(r.node, r.backend, r.mode) for r in times} == {
        (one.node, *who)
        for who in (("generated", ""), ("plain PyTorch", "eager"), ("plain PyTorch", "channels-last"))
    }
    assert all(r.verdict == "ok" and 0 < r.error <= r.tolerance for r in times)
    counted = [r for r in rows if r.quantity.startswith("traffic_")]
    assert len(counted) == 2 and all((r.value is None) == (r.verdict == "unsupported") for r in counted)


def small_layer(monkeypatch):
    monkeypatch.setattr(convolutions, "measure_roofline", lambda threads, dtypes, **how: roofline(1e12, 1e11))
    monkeypatch.setattr(convolutions, "SETTLE_SECONDS", 0.0)
    one = convolutions.chosen_convolutions(Point(0, 32, 2, "float32", 1))[0]
    monkeypatch.setattr(convolutions, "chosen_convolutions", lambda _: [one])
    rows = []
    measure_convolutions(Point(0, 32, 2, "float32", 1), ONCE, True, rows.append)
    times = {(r.backend, r.mode): r for r in rows if r.quantity == "time"}
    assert all(times["plain PyTorch", mode].verdict == "ok" for mode in ("eager", "channels-last"))
    assert sum(r.quantity == "light_share" for r in rows) == 2
    assert not [r for r in rows if r.quantity == "ratio" or r.quantity.startswith("traffic")]
    return times["generated", ""]


def test_a_layer_that_cannot_be_generated_costs_nobody_else(monkeypatch):
    def refuses(*_, **__):
        raise UserError("kernel.cpp does not compile")

    monkeypatch.setattr(convolutions, "network", refuses)
    ours = small_layer(monkeypatch)
    assert (ours.verdict, ours.note) == ("failed", "kernel.cpp does not compile")


def test_without_a_compiler_pytorch_is_measured_alone(monkeypatch):
    monkeypatch.setattr(convolutions, "compiler_problem", lambda threads: "no C++ compiler")
    ours = small_layer(monkeypatch)
    assert (ours.verdict, ours.note) == ("unsupported", "no C++ compiler")


def test_the_reference_tells_a_wrong_result():
    one = Convolution("x", 2, 3, 8, 1)
    model, image = convolution_model(one)
    weight, bias = (model.graph.initializers[name] for name in ("weight", "bias"))
    reference = convolutions._reference(image, weight, bias)
    with meta500.network(model, backend="numpy", precision="float64") as net:
        exact = net.inference({"image": image})["result"]
    np.testing.assert_allclose(reference, exact, rtol=1e-12)
    assert convolutions._judged(exact.astype(np.float32), reference, 18)["verdict"] == "ok"
    assert convolutions._judged((exact * 1.001).astype(np.float32), reference, 18)["verdict"] == "wrong"


def test_what_does_not_fit_memory_is_not_tried(monkeypatch):
    monkeypatch.setattr(convolutions, "measure_roofline", lambda *_, **how: roofline(1e12, 1e11))
    monkeypatch.setattr(convolutions, "available_memory", lambda: 1000.0)
    rows = []
    measure_convolutions(THESIS, ONCE, True, rows.append, fallback=(8,))
    refused = [r for r in rows if r.verdict == "unsupported"]
    assert len(refused) == 3 and "GiB are needed, 0.00 GiB are available" in refused[0].note


# -- counters -------------------------------------------------------------------------------------------------


def test_memory_controllers_are_found_in_the_kernels_list(tmp_path):
    for number in range(2):
        folder = tmp_path / f"uncore_imc_{number}"
        (folder / "events").mkdir(parents=True)
        (folder / "type").write_text(f"{13 + number}\n")
        (folder / "cpumask").write_text("0-1,36\n")
        for name, mask in (("cas_count_read", "0x03"), ("cas_count_write", "0x0c")):
            (folder / "events" / name).write_text(f"event=0x04,umask={mask}\n")
            (folder / "events" / f"{name}.scale").write_text("6.103515625e-5\n")
            (folder / "events" / f"{name}.unit").write_text("MiB\n")
    (tmp_path / "uncore_imc_broken").mkdir()
    found = counters.uncore_events(tmp_path)
    assert len(found) == 2 * 2 * 3 and {e.processor for e in found} == {0, 1, 36}
    assert {(e.direction, e.config) for e in found} == {("read", 0x0304), ("written", 0x0C04)}
    # A line of 64 bytes per count.
    assert all(e.bytes == pytest.approx(64) for e in found)


@pytest.mark.parametrize(
    ("mask", "processors"),
    [("0", [0]), ("0-1\n", [0, 1]), ("0,36", [0, 36]), ("0-2,5,8-9", [0, 1, 2, 5, 8, 9])],
)
def test_lists_of_processors(mask, processors):
    assert counters.processors_of(mask) == processors


def test_the_description_of_an_event_has_the_kernels_layout():
    event = counters.Event("read", 3, 0x10002, 64.0, thread=1)
    data = counters.attribute_bytes(event, 0x61)
    assert len(data) == 64 and data[:8] == b"\x03\0\0\0\x40\0\0\0" and data[8:16] == b"\x02\0\x01\0\0\0\0\0"
    assert data[32:40] == b"\x03" + b"\0" * 7 and data[40:48] == b"\x61" + b"\0" * 7


def counting(monkeypatch, events, counts):
    """Counters that give these numbers in turn, each a sequence."""
    given = {place: iter(numbers) for place, numbers in enumerate(counts)}

    @contextmanager
    def opened(_):
        yield list(given)

    monkeypatch.setattr(counters, "_candidates", lambda: iter([("test", events)]))
    monkeypatch.setattr(counters, "_opened", opened)
    monkeypatch.setattr(counters, "_control", lambda *_: None)
    monkeypatch.setattr(counters, "_count", lambda file: float(next(given[file])))


def test_counts_are_summed_run_by_run(monkeypatch):
    events = [counters.Event("read", 1, 1, 64.0), counters.Event("written", 1, 2, 64.0),
              counters.Event("read", 1, 1, 64.0)]  # fmt: skip
    counting(monkeypatch, events, [(100, 110, 120), (20, 20, 20), (300, 300, 330)])
    calls = []
    traffic = counters.measured_traffic(lambda: calls.append(1), 3)
    assert len(calls) == 3
    assert traffic.bytes == {"read": (400 * 64, 410 * 64, 450 * 64), "written": (20 * 64,) * 3}
    rows = traffic_rows(traffic, {"level": 1})
    assert [(r.quantity, r.value, r.low, r.high, r.repeats, r.note) for r in rows] == [
        ("traffic_read", 410 * 64, 400 * 64, 450 * 64, 3, "test"),
        ("traffic_written", 20 * 64, 20 * 64, 20 * 64, 3, "test"),
    ]


def test_what_the_idle_machine_moves_is_taken_off_its_counters(monkeypatch):
    event = counters.Event("read", 1, 1, 64.0, processor=0)
    # A run, then as long an idle time; the second time the machine was busier without the run.
    counting(monkeypatch, [event], [(100, 10, 50, 60)])
    traffic = counters.measured_traffic(lambda: None, 2)
    assert traffic.bytes == {"read": (90 * 64, 0.0)}


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOENT, "has no such counter"), (errno.EACCES, "kernel.perf_event_paranoid")],
)
def test_a_machine_without_counters_says_why(monkeypatch, number, reason):
    def opened(_):
        raise OSError(number, "x")

    monkeypatch.setattr(counters, "_candidates", lambda: iter([("test", [])]))
    monkeypatch.setattr(counters, "_opened", opened)
    with pytest.raises(UserError, match="no counters of memory traffic: test: ") as caught:
        counters.measured_traffic(lambda: None, 1)
    assert reason in str(caught.value)
    rows = traffic_rows(str(caught.value), {"level": 1})
    assert {r.verdict for r in rows} == {"unsupported"} and all(reason in r.note for r in rows)
