"""Settings, pieces, and one stencil from its text to the report."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time

import pytest

from meta500.benchmarks.protocol import Protocol
from meta500.benchmarks.studies.adjoint import Settings, loops, measurement, plan, processor_time, sections
from meta500.benchmarks.studies.adjoint.forms import FORMS, compiled, predicted_private_bytes
from meta500.benchmarks.studies.adjoint.measurement import Conditions, measure
from meta500.benchmarks.studies.adjoint.memory_worker import grown
from meta500.benchmarks.studies.adjoint.subjects import (
    STENCILS,
    Convolution,
    convolution_subjects,
    stencil_subject,
)
from meta500.benchmarks.studies.select import one, select
from meta500.errors import UserError
from meta500.metrics.clocks import interleave
from meta500.metrics.report import Figure

HERE = len(os.sched_getaffinity(0))


def test_importing_the_package_is_light() -> None:
    code = "import sys, meta500.benchmarks.studies.adjoint; print([m for m in ('torch', 'matplotlib', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(threads=0), "--threads 0"),
        (Settings(threads=HERE + 1), f"--threads {HERE + 1}: this process may use {HERE}"),
        (Settings(seed=-1), "--seed -1"),
        (Settings(parts=("stencil",)), "--part"),
    ],
)
def test_settings_that_cannot_be_measured(settings, message) -> None:
    with pytest.raises(UserError, match=message):
        plan(settings)


def test_threads_are_doubled_up_to_the_most() -> None:
    assert Settings(threads=1).thread_counts == (1,)
    assert Settings(threads=6).thread_counts == (1, 2, 4, 6)
    assert Settings(threads=8).thread_counts == (1, 2, 4, 8)


def test_pieces() -> None:
    quick = plan(Settings(quick=True))
    keys = [piece.key for piece in quick.pieces]
    assert len(keys) == len(set(keys))
    assert sum(key.startswith("stencil ") for key in keys) == len(STENCILS)
    assert sum(key.startswith("unet-3 ") for key in keys) == 3
    assert [p.key for p in plan(Settings(quick=True, parts=("stencils",))).pieces] == keys[:7]
    only = [p.key for p in plan(Settings(quick=True, parts=("unet",))).pieces]
    assert only == [keys[0], *keys[7:]]
    full = plan(Settings())
    assert {p.key.split()[0] for p in full.pieces} == {
        "example",
        "stencil",
        "unet-0",
        "unet-1",
        "unet-2",
        "unet-3",
    }
    assert len(full.protocol) >= 3 and full.settings["threads"] == HERE


def test_the_verdicts_on_a_convolution() -> None:
    rows: list = []
    loops.verdicts(convolution_subjects(Convolution("Conv", 2, 3, 3, 8), "unet-0"), rows.append)
    found = {(row.mode.removeprefix("loop "), row.phase.removeprefix("read of ")): row.value for row in rows}
    parallel = {axis for (axis, phase), value in found.items() if phase == "write" and value == 1}
    assert parallel == {"n", "k", "i", "j"}
    assert {axis for axis in parallel if found[axis, "x"] == 1} == {"n"}
    assert {axis for axis in parallel if found[axis, "w"] == 1} == {"k"}
    # Windows of an up-convolution do not overlap.
    rows.clear()
    loops.verdicts(convolution_subjects(Convolution("ConvTranspose", 2, 3, 2, 8), "unet-0"), rows.append)
    exclusive = {row.mode for row in rows if row.phase == "read of x" and row.value == 1}
    assert exclusive == {"loop n", "loop i", "loop j", "loop c"}


def test_the_example_loops() -> None:
    rows: list = []
    loops.examples(rows.append)
    assert [row.value for row in rows[:-1]] == [1, 1, 0, 1, 0, 0] and math.isnan(rows[-1].value)


@pytest.mark.skipif(HERE < 2, reason="parallel forms begin with two threads")
def test_one_stencil_from_its_text_to_the_report() -> None:
    rows: list = []
    subject = stencil_subject(STENCILS[0], 5000)
    protocol = Protocol(warmup=1, min_repeats=6, min_seconds=0.0, max_seconds=20.0)
    loops.verdicts([subject], rows.append)
    loops.transposed(subject, rows.append)
    measure(subject, Conditions((1, 2), protocol, repeats=3), rows.append)
    forms = {(row.mode, row.threads) for row in select(rows, quantity="time")}
    parallel = {(form, threads) for form in ("gather", "reduction", "atomics") for threads in (1, 2)}
    assert forms == parallel | {("serial scatter", 1), ("serial gather", 1)}
    assert {row.verdict for row in select(rows, quantity="error")} == {"ok"}
    assert all(len(row.samples) == 6 for row in select(rows, quantity="time"))
    for mode in ("gather", "reduction"):
        assert one(rows, quantity="differing_runs", mode=mode, threads=2).value == 0
    assert one(rows, quantity="private_memory", protocol="allocated").value == 2 * (20_000 + 32)
    made = sections(rows)
    verdicts = {f.claim: f.verdict for f in made[0].parts[0].findings if f.claim}
    assert verdicts["The adjoint of a stencil computation can be a stencil computation."] == "agrees"
    assert verdicts["Reorganisation slows down serial code."] != "not measured"
    names = {part.name for section in made for part in section.parts if isinstance(part, Figure)}
    assert names == {"time-1-d-3-point", "speedup-stencils", "memory"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_a_process_grows_by_the_private_copies() -> None:
    """Two copies of 6 MB, in huge pages of 2 MiB at most."""
    order = {"stencil": "1-D 3-point", "size": 1_500_000, "seed": 0, "threads": 2}
    predicted = predicted_private_bytes(stencil_subject(STENCILS[0], 1_500_000), 2)
    assert predicted == 2 * 6_000_000
    found = grown({**order, "form": "reduction"})
    assert 0.95 * predicted <= found <= predicted + (4 << 20)


@pytest.mark.slow
@pytest.mark.skipif(HERE < 2, reason="parallel forms begin with two threads")
def test_memory_of_processes_of_their_own() -> None:
    rows: list = []
    protocol = Protocol(warmup=0, min_repeats=6, min_seconds=0.0, max_seconds=20.0)
    subject = stencil_subject(STENCILS[0], 1_500_000)
    measure(subject, Conditions((1, 2), protocol, repeats=1), rows.append, resident=1_500_000)
    by_form = {row.mode: row.value for row in select(rows, protocol="resident")}
    assert by_form["gather"] < 3e6 and by_form["reduction"] > 11e6


def test_one_thread_has_no_parallel_forms() -> None:
    rows: list = []
    protocol = Protocol(warmup=0, min_repeats=6, min_seconds=0.0, max_seconds=20.0)
    measure(stencil_subject(STENCILS[0], 5000), Conditions((1,), protocol, repeats=1), rows.append)
    refused = [row for row in rows if row.verdict == "unsupported"]
    assert {row.mode for row in refused} == {"gather", "reduction", "atomics"}
    assert all("needs no protection" in row.note for row in refused)
    assert {row.mode for row in select(rows, quantity="ratio")} == {"serial gather"}
    sections(rows)


@pytest.mark.skipif(HERE < 2, reason="parallel forms begin with two threads")
def test_there_is_no_ratio_to_a_wrong_result(monkeypatch) -> None:
    def spoiled(subject, form, threads):
        code = compiled(subject, form, threads)
        run = code.run
        code.run = lambda: run() + 1 if form == wrong else run()
        return code

    monkeypatch.setattr(measurement, "compiled", spoiled)
    protocol = Protocol(warmup=0, min_repeats=6, min_seconds=0.0, max_seconds=20.0)
    others = {"serial scatter": "gather", "gather": "serial scatter"}
    for wrong, right in others.items():
        rows: list = []
        measure(stencil_subject(STENCILS[0], 5000), Conditions((1, 2), protocol, repeats=1), rows.append)
        assert {row.mode for row in select(rows, quantity="time", verdict="wrong")} == {wrong}
        found = select(rows, quantity="ratio")
        assert {row.baseline for row in found} == {right, "1 thread"}
        assert wrong not in {row.mode for row in found}


@pytest.mark.skipif(HERE < 2, reason="parallel forms begin with two threads")
def test_the_share_of_the_processors_is_that_of_the_timed_rounds(monkeypatch) -> None:
    """Threads that use three quarters of a processor while the gather runs, and nothing at other times."""
    clock = {"wall": 0.0, "used": 0.0}

    def interleaved(actions, *, setup, seed, **limits):
        for _ in range(5):
            for name, begin in setup.items():
                begin()
                clock["wall"] += 1.0
                clock["used"] += 1.5 if name == "gather/2" else 0.1
        return interleave(actions, seed=seed, **limits)

    monkeypatch.setattr(measurement, "interleave", interleaved)
    monkeypatch.setattr(processor_time, "threads_time", lambda: clock["used"])
    monkeypatch.setattr(processor_time.time, "perf_counter", lambda: clock["wall"])
    rows: list = []
    protocol = Protocol(warmup=0, min_repeats=6, min_seconds=0.0, max_seconds=20.0)
    measure(stencil_subject(STENCILS[0], 5000), Conditions((1, 2), protocol, repeats=1), rows.append)
    (row,) = select(rows, quantity="processor_share")
    assert (row.mode, row.threads, row.value) == ("gather", 2, pytest.approx(0.75))


def test_clocks_of_threads() -> None:
    before, since = processor_time.threads_time(), time.thread_time()
    while time.thread_time() < since + 0.02:
        pass
    assert processor_time.threads_time() - before >= 0.02
    assert math.isnan(processor_time.ProcessorTime("gather").share(2))


def test_without_a_compiler_nothing_is_supported(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    rows: list = []
    protocol = Protocol(warmup=0, min_repeats=6, min_seconds=0.0, max_seconds=20.0)
    measure(stencil_subject(STENCILS[0], 5000), Conditions((1, 2), protocol, repeats=1), rows.append)
    assert {row.mode for row in rows} == {*FORMS}
    assert {(row.quantity, row.verdict, row.value) for row in rows} == {("time", "unsupported", None)}
    assert all("/nonexistent" in row.note for row in rows)


def test_functions_of_the_package_stay_functions() -> None:
    """A module of the same name would take their place once it is imported."""
    from meta500.benchmarks.studies import adjoint

    adjoint.plan(Settings(quick=True))
    adjoint.sections([])
    assert callable(adjoint.plan) and callable(adjoint.sections)
