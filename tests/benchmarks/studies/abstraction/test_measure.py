"""Measuring levels: right ones, a wrong one, one that is missing, one that refuses and one that dies."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta500.benchmarks.studies.abstraction.crew import Crew
from meta500.benchmarks.studies.abstraction.findings import fastest
from meta500.benchmarks.studies.abstraction.footprint import (
    OWN_PROCESSES,
    counted_environment,
    measure_footprint,
)
from meta500.benchmarks.studies.abstraction.level import Job
from meta500.benchmarks.studies.abstraction.measure import (
    LOSS_ROUNDING,
    LOSS_TOLERANCE,
    MOST_TOLERANCE,
    SENSITIVITIES,
    Expected,
    Runner,
    dropping,
    judged,
    loss_errors,
    measure_steps,
)
from meta500.benchmarks.studies.abstraction.reference import NUMPY, Learning, float64_results, reference
from meta500.benchmarks.studies.abstraction.settings import Pace
from meta500.benchmarks.studies.abstraction.subject import Subject, written
from meta500.benchmarks.studies.select import one, select
from meta500.benchmarks.workers import WorkerFailed
from meta500.metrics.rows import Row
from meta500.models import create

_ROUNDING = LOSS_ROUNDING * 2.0
_PACE = Pace(3, 1, 0.001, 0.0, 10.0, 120.0, 2, 2, (2, 4), (1, 2))

_FAKES = """
import os
import time
import numpy as np
from meta500.benchmarks.studies.abstraction.level import INFERENCE, Level, Session, Unavailable


class Known(Session):
    def __init__(self, job, shift=0.0, factor=1.0):
        super().__init__()
        known = np.load(os.environ["KNOWN"])
        first, second = known["losses"]
        self.logits = (known["logits"] + shift).astype(np.float32)
        self.losses = [np.float32(first), np.float32(first + factor * (second - first))]
        self.phase, self.count = job.phase, 0
        self.block = bytearray(50_000_000)

    def step(self):
        work = np.ones(100_000)
        if self.phase == INFERENCE:
            return self.logits
        self.count += 1
        return np.asarray(self.losses[min(self.count, 2) - 1])


class Dying(Known):
    def run(self, count):
        os._exit(3)


def refuse(job):
    raise Unavailable("it has no such operators")


def level(name, rank, make, **more):
    return Level(name=name, title=name.title(), rank=rank, what="a fake", make=make, **more)


def sleep(job):
    open(os.environ["MARK"], "w").close()
    time.sleep(600)


EAGER = level("eager", 0, Known)
SAME = level("same", 1, Known, untrainable="it has no gradients")
WRONG = level("wrong", 2, lambda job: Known(job, 0.01, 3.0))
MISSING = level("missing", 3, Known, missing=lambda device: f"no library for {device}")
REFUSING = level("refusing", 4, refuse)
DYING = level("dying", 5, Dying)
SLEEPING = level("sleeping", 6, sleep)
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of fake levels, which this process and those of the levels can import."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "fake_levels.py").write_text(_FAKES)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    names = ("EAGER", "SAME", "WRONG", "MISSING", "REFUSING", "DYING")
    return [f"fake_levels:{name}" for name in names]


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """A small network; its right results, which the fake levels know, in a file of their own."""
    folder = tmp_path / "subject"
    folder.mkdir()
    found = written("mlp", create("mlp", batch=3, hidden=(8,)), folder, seed=0)
    inference, training = (
        Job(found.model, found.inputs, phase, 1, "cpu", str(folder))
        for phase in ("inference", "training_step")
    )
    logits = float64_results(inference, 1, NUMPY)[0]
    losses, _ = reference(training, 2, NUMPY)
    np.savez(folder / "known.npz", logits=logits, losses=losses)
    monkeypatch.setenv("KNOWN", str(folder / "known.npz"))
    return found


def test_a_wrong_level_has_no_ratio_and_no_rank_and_others_have_reasons(
    fakes: list[str], subject: Subject, tmp_path: Path
) -> None:
    rows: list[Row] = []
    with Crew(fakes, 1, "cpu", 120.0) as crew:
        crew.prepare(2)
        for phase in ("inference", "training_step"):
            measure_steps(crew, subject, phase, tmp_path, _PACE, rows.append)
    for phase in ("inference", "training_step"):
        times = {row.backend: row for row in select(rows, quantity="time", phase=phase)}
        assert set(times) == {"eager", "same", "wrong", "missing", "refusing", "dying"}
        assert times["eager"].verdict == "ok"
        assert times["wrong"].verdict == "wrong"
        assert times["wrong"].value is not None
        assert times["wrong"].error > times["wrong"].tolerance  # type: ignore[operator]
        assert (times["missing"].verdict, times["missing"].note) == ("unsupported", "no library for cpu")
        assert times["refusing"].verdict == "unsupported"
        assert times["refusing"].note == "it has no such operators"
        assert times["dying"].verdict == "failed"
        assert "status 3" in times["dying"].note
        assert not select(rows, quantity="ratio", phase=phase, backend={"wrong", "dying", "eager"})
    times = {row.backend: row for row in select(rows, quantity="time", phase="inference")}
    assert len(times["same"].samples) == _PACE.rounds
    ratio = one(rows, quantity="ratio", phase="inference", backend="same")
    assert ratio is not None
    expected = np.divide(times["same"].samples, times["eager"].samples)
    np.testing.assert_allclose(ratio.samples, expected)
    per = one(rows, quantity="time_per_operator", backend="same")
    assert per is not None
    # Flatten, two products and a ReLU.
    np.testing.assert_allclose(per.samples, np.divide(times["same"].samples, 4))
    assert not select(rows, quantity="time_per_operator", backend={"wrong", "dying"})
    trained = one(select(rows, phase="training_step", backend="same"), quantity="time")
    assert trained is None
    assert [r.note for r in select(rows, phase="training_step", backend="same")] == ["it has no gradients"]
    ranking = fastest(rows, "inference")
    assert ranking is not None
    assert "wrong" not in ranking.text.lower()


def test_memory_and_allocations_are_those_of_the_process_that_computes(
    fakes: list[str], subject: Subject, tmp_path: Path
) -> None:
    rows: list[Row] = []
    environment, uncounted = counted_environment(tmp_path)
    assert not uncounted
    with Crew([*fakes[:1], *fakes[3:]], 1, "cpu", 120.0, environment) as crew:
        measure_footprint(crew, subject, "inference", tmp_path, rows.append, processes=2)
    peak = one(rows, quantity="peak_memory", backend="eager")
    network = one(rows, quantity="network_memory", backend="eager")
    assert peak is not None
    assert network is not None
    assert peak.value is not None
    # The session holds a block of 50 MB, and little else.
    assert network.value is not None
    assert 50e6 <= network.value < 130e6
    assert network.value < peak.value
    assert len(network.samples) == len(peak.samples) == 2
    assert network.protocol == peak.protocol == OWN_PROCESSES
    calls = one(rows, quantity="allocations", backend="eager")
    size = one(rows, quantity="allocated_bytes", backend="eager")
    assert calls is not None
    assert size is not None
    assert calls.value is not None
    assert size.value is not None
    assert calls.value >= 1
    assert size.value >= 800_000
    verdicts = {row.backend: row.verdict for row in select(rows, quantity="peak_memory")}
    assert verdicts["missing"] == verdicts["refusing"] == "unsupported"
    assert verdicts["dying"] == "failed"


def _subject(longest_sum: int = 100) -> Subject:
    return Subject("mlp", "", "", (2, 1), 3, 10, longest_sum)


@pytest.mark.parametrize(("factor", "verdict"), [(0.9, "ok"), (1.1, "wrong")])
def test_logits_are_wrong_just_beyond_the_tolerance(factor: float, verdict: str) -> None:
    expected = np.ones((1, 2, 3))
    limit = 16 * np.finfo(np.float32).eps * 10
    columns = judged(_subject(), "inference", expected * (1 + factor * limit), Expected(expected, "numpy"))
    assert columns["verdict"] == verdict
    assert columns["tolerance"] == pytest.approx(limit)
    assert columns["error"] == pytest.approx(factor * limit)


@pytest.mark.parametrize(
    ("losses", "errors"),
    [
        ((2.0, 1.5), (0.0, 0.0)),
        ((2.018, 1.518), (0.009, 0.0)),
        ((2.0, 1.51), (0.0, 0.02 - 2 * _ROUNDING)),
        ((2.0, 2.0), (0.0, 1.0 - 2 * _ROUNDING)),
    ],
)
def test_training_is_judged_by_the_first_loss_and_what_the_update_makes_of_it(
    losses: tuple[float, float], errors: tuple[float, float]
) -> None:
    expected = np.array([2.0, 1.5])
    assert loss_errors(np.array(losses), expected) == pytest.approx(errors, abs=1e-9)
    columns = _trained(np.array(losses), expected)
    assert columns["error"] == pytest.approx(max(errors), abs=1e-9)
    assert columns["verdict"] == ("ok" if max(errors) <= LOSS_TOLERANCE else "wrong")


def test_a_small_decrease_is_judged_beyond_what_float32_rounds_the_loss_to() -> None:
    # The decrease of 2e-5 is wrong by 3 %, which is less than the rounding of a loss of 2.3.
    expected = np.array([2.3, 2.3 - 2e-5])
    assert _trained(expected - [0, 6e-7], expected)["verdict"] == "ok"
    assert _trained(expected - [0, 2e-6], expected)["verdict"] == "wrong"
    # One that rounding hides says nothing, whatever it is.
    hidden = np.array([2.3, 2.3 - 1e-7])
    columns = _trained(hidden, hidden)
    assert columns["verdict"] == "not_compared"
    assert "rounds" in columns["note"]
    # But what is wrong beyond rounding is.
    for found in (hidden * 1.1, np.array([2.3, 23.0]), np.array([2.3, np.nan])):
        assert _trained(found, hidden)["verdict"] == "wrong"


def _trained(
    found: np.ndarray, expected: np.ndarray, change: float = 0.0, loss: float = 0.0
) -> dict[str, Any]:
    reference = Expected(expected, "numpy", Learning(1e-5, loss, change))
    return judged(_subject(), "training_step", found, reference)


def test_the_tolerance_of_training_follows_from_how_weights_wrong_by_one_eps_change_the_losses() -> None:
    expected = np.array([2.0, 1.9])
    off = expected + np.array([0, 0.1 * 0.1])
    assert _trained(off, expected)["verdict"] == "wrong"
    assert _trained(off, expected)["tolerance"] == LOSS_TOLERANCE
    allowed = _trained(off, expected, 0.11 / SENSITIVITIES)
    assert (allowed["verdict"], allowed["tolerance"]) == ("ok", pytest.approx(0.11))
    assert "learning rate 1e-05" in allowed["note"]
    assert _trained(off, expected, 0.09 / SENSITIVITIES)["verdict"] == "wrong"
    # A change that is sensitive says nothing for the first loss.
    assert _trained(expected * 1.05, expected, 0.11 / SENSITIVITIES)["verdict"] == "wrong"
    assert (
        _trained(expected * 1.05, expected, loss=0.06 / SENSITIVITIES)["verdict"] == "wrong"
    )  # the change is
    assert _trained(expected + 0.1, expected, loss=0.06 / SENSITIVITIES)["verdict"] == "ok"
    for sensitivity in (1.1 * MOST_TOLERANCE / SENSITIVITIES, math.inf):
        hidden = _trained(expected, expected, sensitivity)
        assert hidden["verdict"] == "not_compared"
        assert "one eps" in hidden["note"]
        assert _trained(expected * 1.3, expected, sensitivity)["verdict"] == "wrong"
        for second in (np.nan, np.inf):
            assert _trained(np.array([2.0, second]), expected, sensitivity)["verdict"] == "wrong"
    assert _trained(np.array([2.0, 500.0]), expected, MOST_TOLERANCE / 4)["verdict"] == "wrong"
    assert _trained(expected, expected * np.nan) == {
        "note": "the losses in float64 are not finite; learning rate 1e-05; reference: numpy"
    }


def test_results_of_another_shape_are_wrong_and_without_reference_nothing_is_said() -> None:
    found = judged(_subject(), "inference", np.ones((1, 2, 4)), Expected(np.ones((1, 2, 3)), "numpy"))
    assert found["verdict"] == "wrong"
    assert "(1, 2, 4)" in found["note"]
    columns = judged(_subject(), "inference", np.ones(3), Expected("it broke", "numpy"))
    assert columns == {"note": "it broke"}


def _interrupt_when_there_is(mark: Path) -> None:
    while not mark.exists():
        time.sleep(0.02)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_an_interruption_does_not_wait_for_a_running_order(
    fakes: list[str], subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "sleeping"
    monkeypatch.setenv("MARK", str(mark))
    begin = time.monotonic()
    with Crew(["fake_levels:SLEEPING"], 1, "cpu", 300.0) as crew:
        member = crew.members[0]
        crew.prepare(1)
        busy = member.start().pid
        interrupted = threading.Thread(target=_interrupt_when_there_is, args=(mark,))
        interrupted.start()
        with pytest.raises(KeyboardInterrupt):
            measure_steps(crew, subject, "inference", tmp_path, _PACE, lambda row: None)
        with pytest.raises(WorkerFailed, match="stopped"):
            member.ask("drop", key="")
    interrupted.join()
    assert time.monotonic() - begin < 300  # of 600 that it would sleep
    with pytest.raises(ProcessLookupError):
        os.kill(busy, 0)


def test_an_interruption_between_turns_ends_busy_processes(fakes: list[str]) -> None:
    with Crew(fakes[:1], 1, "cpu", 60.0) as crew:
        runner = Runner(crew.members[0], "key")
        runner.member.ask("drop", key="")
        with pytest.raises(KeyboardInterrupt), dropping([runner]):
            raise KeyboardInterrupt
        assert runner.member._worker is None
        runner = Runner(Crew(fakes[:1], 1, "cpu", 60.0).members[0], "key")
        with pytest.raises(ValueError, match="x"), dropping([runner]):
            raise ValueError("x")
        assert runner.member._worker is not None
        runner.member.end()
