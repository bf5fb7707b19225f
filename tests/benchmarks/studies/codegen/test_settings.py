"""What is chosen to be measured, and the arithmetic of epochs."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.benchmarks.studies.codegen import Settings, plan
from meta500.benchmarks.studies.codegen.epochs import with_epochs
from meta500.benchmarks.studies.codegen.pieces import variants_of
from meta500.benchmarks.studies.codegen.settings import epochs_per_second
from meta500.errors import UserError
from meta500.metrics import Row


def test_an_epoch_is_two_batches_of_64_and_sixteen_of_8():
    # Section 6.3.7: "the code is executed twice for each epoch since there are two batches" of 64.
    step = 0.5
    assert epochs_per_second(64 / step) == pytest.approx(1 / (2 * step))
    assert epochs_per_second(8 / step) == pytest.approx(1 / (16 * step))


@given(st.integers(1, 128), st.lists(st.floats(1e-4, 100.0), min_size=1, max_size=5))
def test_rates_of_images_become_rates_of_epochs(batch, seconds):
    rates = tuple(batch / s for s in seconds)
    row = Row(level=1, quantity="throughput", unit="samples/s", value=rates[0], low=min(rates), high=max(rates),
              samples=rates, batch=batch)  # fmt: skip
    found = with_epochs(row)
    assert (found.quantity, found.unit) == ("epoch_rate", "epochs/s")
    # 128 images take 128 / batch steps.
    assert found.samples == pytest.approx([1 / (s * 128 / batch) for s in seconds])
    assert found.low <= found.value <= found.high
    assert with_epochs(replace(row, quantity="time", unit="s")) == replace(row, quantity="time", unit="s")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"parts": ("epoch",)}, "unknown --part 'epoch'. Did you mean 'epochs'"),
        ({"parts": ("layers", "layers")}, "--part: 'layers' is given twice"),
        ({"precisions": ("float16",)}, "unknown --precision 'float16'"),
        ({"n": (9,)}, "--n: 9 is out of range; 0 to 8"),
        ({"n": (1, 1)}, "--n: '1' is given twice"),
        ({"batches": (0,)}, "--batch: 0 is too few"),
        ({"size": 100}, "--size: 100 pixels cannot be halved 4 times; give a multiple of 16"),
        ({"threads": 10_000}, "--threads: 10000 must be 1 to"),
        ({"seed": -1}, "--seed: -1"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        plan(Settings(**changes))


def test_the_full_study_is_the_thesis():
    settings = Settings(threads=1)
    points = settings.points()
    thesis = {(n, b, 512) for n in range(4) for b in (8, 64)}
    # And one size more, with the smaller batch alone.
    assert {(p.n, p.batch, p.size) for p in points} == thesis | {(4, 8, 512)}
    # Double precision with the smallest batch alone.
    assert {(p.n, p.batch) for p in points if p.dtype == "float64"} == {(n, 8) for n in range(4)}
    assert {v.name for v in variants_of(settings, points[0])} >= {"generated", "eager", "compile-tuned"}
    keys = [piece.key for piece in plan(settings).pieces]
    assert len(set(keys)) == len(keys) == 1 + 5 + len(points) + 9 + 5 + 1


def test_threads_go_by_powers_of_two(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(12))
    assert Settings().chosen_threads == (12, 8, 4, 2, 1)
    assert Settings(quick=True).chosen_threads == (12, 1)
    assert Settings(threads=4).chosen_threads == (4, 2, 1)
    precise = Settings(precisions=("float64",), batches=(64,))
    assert {p.dtype for p in precise.points()} == {"float64"}


def test_steps_of_minutes_are_measured_by_one_thread_only_if_asked_for(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    scaled = {(p.n, p.batch) for p in Settings().points() if p.threads == 1}
    # Of the largest network the smaller batch; of n = 4 nothing.
    assert scaled == {(n, b) for n in range(3) for b in (8, 64)} | {(3, 8)}
    asked = Settings(n=(3, 4)).points()
    assert {(p.n, p.batch) for p in asked if p.threads == 1} == {(n, b) for n in (3, 4) for b in (8, 64)}


def test_with_fewer_threads_only_what_is_told_of_them_is_measured(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4))
    for settings in (Settings(), Settings(quick=True)):
        for point in settings.points():
            names = [v.name for v in variants_of(settings, point)]
            assert (names == ["generated", "eager"]) == (point.threads < 4)


def test_quick_leaves_the_compiler_of_pytorch_out():
    settings = Settings(quick=True)
    assert not any(v.compiled for p in settings.points() for v in variants_of(settings, p))
    assert {(p.n, p.threads) for p in settings.points()} == {
        (0, settings.most_threads),
        (0, 1),
        (1, settings.most_threads),
    }
    assert not any(v.tuned for p in settings.points() for v in variants_of(settings, p))
    assert "PyTorch's compiler is left out" in plan(settings).protocol[-1]
    assert "quick" not in " ".join(plan(Settings()).protocol)


def test_settings_are_kept_with_their_defaults():
    kept = plan(Settings(quick=True, threads=1, parts=("layers",))).settings
    assert kept == json.loads(json.dumps(kept))
    assert (kept["n"], kept["batches"], kept["size"], kept["threads"]) == ([0, 1], [2], 128, 1)


def test_parts_are_chosen():
    keys = [piece.key for piece in plan(Settings(quick=True, parts=("layers", "roofline"))).pieces]
    assert [key.split("-")[0] for key in keys] == ["layers", "roofline"]
