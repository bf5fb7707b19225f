"""Memory that is foreseen: what is tried, in which groups, and what is refused with its numbers."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.benchmarks.operators import sweep_runner
from meta500.benchmarks.studies.codegen import epochs, memory
from meta500.benchmarks.studies.codegen.memory import (
    Foreseen,
    available_memory,
    foresee,
    foreseen_rows,
    groups_that_fit,
    may_not_fit,
    references,
)
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.benchmarks.variants import VARIANTS, variants
from meta500.benchmarks.workers import WorkerFailed

GIB = 2.0**30
POINT = Point(3, 512, 64, "float32", 2)
ALL = variants(None, tuned=True)


def needing(number):
    """What is foreseen to need this many bytes at batch 64, all of them in proportion to the batch."""
    peaks = (number / 8, number / 4)
    return Foreseen(replace(POINT, batch=8), replace(POINT, batch=16), peaks, POINT)


def test_what_grows_with_the_batch_is_scaled_and_what_is_constant_is_not():
    # 3 GiB whatever the batch (a compiler's imports, weights, moments), and 0.1 GiB per image.
    found = Foreseen(
        replace(POINT, batch=8), replace(POINT, batch=16), (3.8 * GIB, 4.6 * GIB), replace(POINT, batch=64)
    )
    assert found.bytes == pytest.approx((3 + 6.4) * GIB)
    assert found.refusal(5 * GIB) == (
        "batch 64 of 512 pixels would need 9.40 GiB (3.80 GiB at batch 8 of 512 pixels and 4.60 GiB at batch "
        "16 of 512 pixels); 5.00 GiB are available"
    )
    # Noise never makes a larger step need less than a smaller one.
    falling = replace(found, peaks=(4.6 * GIB, 4.5 * GIB))
    assert falling.bytes == 4.5 * GIB


@given(st.integers(1, 200), st.integers(4, 64).map(lambda k: 16 * k))
def test_references_are_smaller_steps_of_halvable_images(batch, size):
    point = replace(POINT, batch=batch, size=size)
    first, second = references(point)
    works = [p.batch * p.size**2 for p in (first, second, point)]
    assert works == sorted(set(works)) and works[1] <= works[2] / 2 + 1
    assert all(p.size % 16 == 0 and p.size > 0 and p.batch > 0 for p in (first, second))
    assert replace(first, batch=batch, size=size) == replace(second, batch=batch, size=size) == point


def test_a_single_image_is_foreseen_from_smaller_ones(monkeypatch, synthetic):
    """The step that might not fit is not run in order to find out whether it fits."""
    point, ran = replace(POINT, n=8, batch=1), []
    assert [(p.batch, p.size) for p in references(point)] == [(1, 128), (1, 256)]

    def measure_net(plan, net, emit, seed):
        size = net.options["size"]
        ran.append((net.options["batch"], size))
        emit(synthetic.row("eager", "peak_memory", 2 * GIB + size**2 * 1e4, point))
        emit(synthetic.row("generated", "peak_memory", None, point, verdict="failed", note="ended"))

    monkeypatch.setattr(memory, "measure_net", measure_net)
    found = foresee(point, [VARIANTS["generated"], VARIANTS["eager"]], {})
    assert ran == [(1, 128), (1, 256)]
    assert found["eager"].bytes == pytest.approx(2 * GIB + 512**2 * 1e4)
    assert found["generated"] == "at batch 1 of 128 pixels: ended"


def test_without_a_smaller_step_the_reason_is_given():
    smallest = replace(POINT, n=8, batch=1, size=16)
    assert references(smallest) is None
    assert "no smaller step tells" in foresee(smallest, ALL[:1], {})["generated"]


def test_the_limit_of_a_container_holds(monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    monkeypatch.setattr(sweep_runner, "_memory_limit", lambda: 4 * GIB)
    assert available_memory() == pytest.approx(0.9 * 4 * GIB)


def test_only_large_steps_are_foreseen():
    # U-Net(3) at batch 64 and 512 pixels: many GiB of activations; a small one has none to speak of.
    assert may_not_fit(POINT, 9, 20 * GIB) and may_not_fit(POINT, 1, 20 * GIB)
    assert not may_not_fit(Point(0, 64, 2, "float32", 2), 9, 20 * GIB)
    # Twice the numbers in double precision: there is memory between the two needs.
    need = {
        dtype: next(g for g in range(1, 1000) if not may_not_fit(Point(1, 512, 8, dtype, 2), 1, g * GIB))
        for dtype in ("float32", "float64")
    }
    assert need["float64"] - 1 == pytest.approx(2 * (need["float32"] - 1), abs=2)


@given(st.lists(st.floats(0.1, 30.0), min_size=9, max_size=9), st.floats(1.0, 64.0))
def test_groups_hold_every_variant_that_fits_once(needs, available):
    foreseen = {v.name: needing(need) for v, need in zip(ALL, needs, strict=True)}
    available *= 1 + 1e-9  # sums of what is foreseen are rounded
    need = dict(zip((v.name for v in ALL), needs, strict=True))
    groups, left_out = groups_that_fit(ALL, foreseen, available)
    ours, *others = ALL
    seen = [v for group in groups for v in group if v is not ours]
    if need["generated"] > available:
        assert ours in left_out and all(need[v.name] <= available for v in seen)
    else:
        assert ours not in left_out and all(group[0] is ours for group in groups) and groups
        assert {v.name for v in left_out} == {
            v.name for v in others if need["generated"] + need[v.name] > available
        }
    assert all(sum(need[v.name] for v in group) <= available * (1 + 1e-12) for group in groups)
    assert sorted(v.name for v in (*seen, *left_out) if v is not ours) == sorted(v.name for v in others)


def test_what_could_not_be_measured_is_left_out():
    foreseen = {v.name: needing(GIB) for v in ALL} | {"eager": "make: no memory"}
    groups, left_out = groups_that_fit(ALL, foreseen, 100 * GIB)
    assert [v.name for v in left_out] == ["eager"] and len(groups) == 1
    assert "eager" not in {r.mode for r in foreseen_rows(POINT, foreseen, ALL)}


def test_a_batch_that_does_not_fit_is_a_row_with_numbers(monkeypatch):
    two = [VARIANTS["generated"], VARIANTS["eager"]]
    foreseen = {"generated": needing(1.8 * GIB), "eager": needing(17 * GIB)}
    ran = []
    monkeypatch.setattr(memory, "available_memory", lambda: 10 * GIB)
    monkeypatch.setattr(memory, "foresee", lambda *_: foreseen)
    monkeypatch.setattr(epochs, "measure_net", lambda plan, *_, **__: ran.append(plan.variants))
    rows = []
    epochs.measure_epochs(POINT, two, 3, {}, rows.append)
    assert ran == [(VARIANTS["generated"],)]
    predicted = {r.backend: r.value for r in rows if r.quantity == "predicted_peak"}
    assert predicted == pytest.approx({"generated": 1.8 * GIB, "plain PyTorch": 17 * GIB})
    (refused,) = (r for r in rows if r.verdict == "unsupported")
    assert (refused.mode, refused.quantity, refused.value) == ("eager", "epoch_rate", None)
    assert refused.note.startswith("batch 64 of 512 pixels would need 17.00 GiB (2.12 GiB at batch 8")


def test_two_groups_give_the_times_of_the_generated_code_once(monkeypatch, synthetic):
    row = synthetic.row
    three = [VARIANTS[name] for name in ("generated", "eager", "compile")]
    foreseen = {v.name: needing(4 * GIB) for v in three}
    monkeypatch.setattr(memory, "available_memory", lambda: 10 * GIB)
    monkeypatch.setattr(memory, "foresee", lambda *_: foreseen)

    losses = []

    def measure_net(plan, net, emit, seed, known):
        losses.append(dict(known))
        known.update({variant.name: 1.0 for variant in plan.variants})
        for variant in plan.variants:
            emit(row(variant.name, "time", 1.0))
            if variant.name != "generated":
                emit(row(variant.name, "ratio", 2.0, baseline="generated"))

    monkeypatch.setattr(epochs, "measure_net", measure_net)
    rows = []
    epochs.measure_epochs(POINT, three, 3, {}, rows.append)
    found = [(r.mode, r.quantity) for r in rows if r.quantity in ("time", "ratio")]
    assert found == [
        ("", "time"),
        ("eager", "time"),
        ("eager", "ratio"),
        ("compile", "time"),
        ("compile", "ratio"),
    ]
    # The second group is compared with the first.
    assert losses == [{}, {"generated": 1.0, "eager": 1.0}]


class Planner:
    def ask(self, order, limit):
        return {"arenas": 3, "handed": 4}


def peaks_of(monkeypatch, synthetic, peaks):
    """Stands in for the processes; ``peaks`` are GiB in turn by variant, None fails. Returns who ran."""
    ran = []

    def measure_net(plan, net, emit, seed):
        ran.append([variant.name for variant in plan.variants])
        for variant in plan.variants:
            peak = peaks[variant.name].pop(0)
            failed = {} if peak is not None else {"verdict": "failed", "note": "ended"}
            emit(synthetic.row(variant.name, "peak_memory", None if failed else peak * GIB, **failed))

    monkeypatch.setattr(memory, "measure_net", measure_net)
    monkeypatch.setattr(memory.generation, "made_worker", lambda *_: (Planner(), {}))
    return ran


SMALL = Point(0, 64, 2, "float32", 2)


def test_peaks_of_several_processes_are_one_row(monkeypatch, synthetic):
    ran = peaks_of(monkeypatch, synthetic, {"generated": [3.0, 1.0, 2.0], "eager": [None]})
    rows = []
    memory.measure_memory(SMALL, [VARIANTS["generated"], VARIANTS["eager"]], 3, {}, rows.append)
    (peak,) = (r for r in rows if r.quantity == "peak_memory" and r.value is not None)
    assert peak.samples == (3 * GIB, GIB, 2 * GIB) and peak.value == 2 * GIB and peak.repeats == 3
    assert ran == [["generated", "eager"], ["generated"], ["generated"]]
    assert sum(r.verdict == "failed" for r in rows) == 1
    assert [r.value for r in rows if r.quantity == "planned_memory"] == [7.0]


def test_what_is_compared_is_measured_often(monkeypatch, synthetic):
    """The generated code and who may be PyTorch's most frugal variant; the others once."""
    names = ["generated", "eager", "channels-last", "compile"]
    peaks = {"generated": [9.0] * 8, "eager": [2.0] * 8, "channels-last": [2.1] * 8, "compile": [2.5]}
    ran = peaks_of(monkeypatch, synthetic, peaks)
    rows = []
    memory.measure_memory(SMALL, [VARIANTS[name] for name in names], 8, {}, rows.append)
    assert ran == [names] + [names[:3]] * 7
    counts = {r.mode: len(r.samples) for r in rows if r.quantity == "peak_memory"}
    assert counts == {"": 8, "eager": 8, "channels-last": 8, "compile": 1}
    # When time is over nothing is repeated.
    peaks |= {"generated": [9.0], "eager": [2.0], "channels-last": [2.1], "compile": [2.5]}
    ran.clear()
    memory.measure_memory(SMALL, [VARIANTS[n] for n in names], 8, {}, rows.append, max_seconds=0.0)
    assert ran == [names]


def test_a_plan_that_fails_costs_no_other_row(monkeypatch, synthetic):
    peaks_of(monkeypatch, synthetic, {"generated": [1.0], "eager": [2.0]})

    def fails(*_):
        raise WorkerFailed("make: no compiler")

    monkeypatch.setattr(memory.generation, "made_worker", fails)
    rows = []
    memory.measure_memory(SMALL, [VARIANTS["generated"], VARIANTS["eager"]], 1, {}, rows.append)
    assert [r.value for r in rows if r.quantity == "peak_memory"] == [GIB, 2 * GIB]
    (failed,) = (r for r in rows if r.verdict == "failed")
    assert (failed.quantity, failed.note) == ("planned_memory", "make: no compiler")


def test_without_the_generated_code_nothing_is_planned(monkeypatch, synthetic):
    peaks_of(monkeypatch, synthetic, {"eager": [2.0]})
    rows = []
    memory.measure_memory(SMALL, [VARIANTS["eager"]], 1, {}, rows.append)
    assert {r.quantity for r in rows} == {"peak_memory"}


def test_a_variant_that_failed_has_no_rate_and_says_why(monkeypatch, synthetic):
    small = Point(0, 64, 2, "float32", 2)

    def measure_net(plan, net, emit, seed, known):
        emit(synthetic.row("eager", "time", None, small, verdict="failed", note="the process ended"))

    monkeypatch.setattr(epochs, "measure_net", measure_net)
    rows = []
    epochs.measure_epochs(small, [VARIANTS["generated"], VARIANTS["eager"]], 3, {}, rows.append)
    assert [(r.quantity, r.value, r.verdict, r.note) for r in rows] == [
        ("time", None, "failed", "the process ended"),
        ("epoch_rate", None, "failed", "the process ended"),
    ]
