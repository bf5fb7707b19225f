"""Finished runs in order: ties, NaN, runs without the number, and those that are not over."""

import math

import pytest

from meta500.errors import UserError
from meta500.metrics import RunFolder, live
from meta500.metrics.rows import Row
from meta500.web.jobs import Job
from meta500.web.ranking import ranking, results

SETUP = {"dataset": "digits", "backend": "numpy", "optimizer": "sgd", "native": False}


def job(name, state="finished", **found):
    plain = {
        "accuracy": None,
        "best_accuracy": None,
        "loss": None,
        "seconds": None,
        "epochs": 0,
        "improvements": [],
    }
    over = {**plain, **found} if state == "finished" else None
    return Job(name, SETUP, "", "mlp", "2026-01-01", state, results=over)


def order(jobs, *arguments):
    return [(line["id"], line["rank"]) for line in ranking(jobs, *arguments)["runs"]]


def test_ties_nan_and_unfinished_runs():
    jobs = [
        job("a", accuracy=0.5),
        job("b", accuracy=0.9),
        job("c", accuracy="NaN"),
        job("d", accuracy=0.9),
        job("e"),
        job("f", accuracy=0.7),
        job("g", "running"),
        job("h", "failed"),
    ]
    found = ranking(jobs, "accuracy")
    assert [(line["id"], line["rank"]) for line in found["runs"]] == [
        ("b", 1), ("d", 1), ("f", 3), ("a", 4), ("c", None), ("e", None),
    ]  # fmt: skip
    assert [line["value"] for line in found["runs"]] == [0.9, 0.9, 0.7, 0.5, "NaN", None]
    assert found["left_out"] == 2 and found["order"] == "descending"


def test_less_is_better():
    jobs = [
        job("a", loss=2.0, seconds=1.0),
        job("b", loss=1.0, seconds="Infinity"),
        job("c", loss=1.5, seconds=0.5),
    ]
    assert order(jobs, "loss") == [("b", 1), ("c", 2), ("a", 3)]
    assert order(jobs, "seconds") == [("c", 1), ("a", 2), ("b", 3)]


def test_time_to_accuracy():
    jobs = [
        job("slow", improvements=[[1.0, 0.5], [9.0, 0.95]]),
        job("fast", improvements=[[2.0, 0.9], [30.0, 0.99]]),
        job("never", improvements=[[1.0, 0.89]]),
    ]
    assert order(jobs, "time_to_accuracy", 0.9) == [("fast", 1), ("slow", 2), ("never", None)]
    assert order(jobs, "time_to_accuracy", 0.91) == [("slow", 1), ("fast", 2), ("never", None)]
    assert order(jobs, "time_to_accuracy", 0.5)[:1] == [("slow", 1)]


def test_bad_questions():
    with pytest.raises(UserError, match="unknown metric"):
        ranking([], "size")
    for target in (0, 1.1, math.nan):
        with pytest.raises(UserError, match="target must be"):
            ranking([], "time_to_accuracy", target)
    assert ranking([], "loss") == {"metric": "loss", "order": "ascending", "runs": [], "left_out": 0}


def test_results_of_a_run(tmp_path):
    with RunFolder.create(tmp_path / "run", environment={}) as run:
        for epoch, accuracy in enumerate([0.5, 0.4, 0.8], 1):
            what = {"level": 2, "model": "mlp", "step": epoch, "epoch": epoch, "seconds": 2.0 * epoch}
            run.append(Row(phase="test_set", quantity="loss", unit="1", value=1 / epoch, **what))
            run.append(Row(phase="test_set", quantity="accuracy", unit="1", value=accuracy, **what))
    assert results(tmp_path / "run") == {
        "accuracy": 0.8,
        "best_accuracy": 0.8,
        "loss": 1 / 3,
        "seconds": 6.0,
        "epochs": 3,
        "improvements": [[2.0, 0.5], [6.0, 0.8]],
        "progress": None,
    }
    assert results(tmp_path / "nothing") is None


def test_results_of_a_run_with_more_tests_than_are_kept(tmp_path, monkeypatch):
    """A series keeps every second, fourth, ... point then; a result is exact all the same."""
    monkeypatch.setattr(live, "MOST_POINTS", 4)
    accuracies = [0.1, 0.2, 0.3, 0.9, 0.4, 0.5, 0.6, 0.91, 0.7, 0.8]
    with RunFolder.create(tmp_path / "run", environment={}) as run:
        for epoch, accuracy in enumerate(accuracies, 1):
            what = {"level": 2, "model": "mlp", "step": epoch, "epoch": epoch, "seconds": 2.0 * epoch}
            run.append(Row(phase="test_set", quantity="loss", unit="1", value=1 / epoch, **what))
            run.append(Row(phase="test_set", quantity="accuracy", unit="1", value=accuracy, **what))
    found = results(tmp_path / "run")
    assert (found["accuracy"], found["best_accuracy"], found["loss"]) == (0.8, 0.91, 0.1)
    assert (found["seconds"], found["epochs"]) == (20.0, 10)
    assert found["improvements"] == [[2.0, 0.1], [4.0, 0.2], [6.0, 0.3], [8.0, 0.9], [16.0, 0.91]]
