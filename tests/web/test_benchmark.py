"""What `benchmarks/live_page.py` makes of its measurements, and that it leaves no server behind."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("live_page")


def test_what_must_not_be_with_uploads(benchmark):
    good = {"random": {422: 8}, "zip": {413: 1, 415: 2}}
    fine = benchmark.judged(good, executed=False, left=0, alive=True)
    assert fine["bad"] == [] and fine["accepted"] == fine["server_errors"] == 0 and not fine["executed"]
    for more, facts in (
        ({201: 1}, {}),
        ({500: 1}, {}),
        ({503: 2}, {}),
        ({}, {"executed": True}),
        ({}, {"left": 1}),
        ({}, {"alive": False}),
    ):
        found = benchmark.judged(
            {**good, "x": more}, **{"executed": False, "left": 0, "alive": True, **facts}
        )
        assert len(found["bad"]) == 1, (more, facts)


def test_bad_uploads_end_with_1(benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "uploads", lambda options, folder: {"bad": ["a file was executed"]})
    monkeypatch.setattr(sys, "argv", ["live_page.py", "uploads", "--out", str(tmp_path / "found.json")])
    with pytest.raises(SystemExit) as stop:
        benchmark.main()
    assert stop.value.code == 1 and "executed" in (tmp_path / "found.json").read_text()


def test_the_trace_has_a_new_name_in_every_process():
    command = [sys.executable, "-c", "import hostile_files; print(hostile_files.TRACE)"]
    names = {subprocess.check_output(command, cwd=FOLDER, text=True) for _ in range(2)}
    assert len(names) == 2


def test_where_a_run_was_between_what_it_said(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    place = importlib.import_module("live_clients").place
    assert place([(10.0, 100), (10.5, 200), (11.0, 400)], 10.75) == 300.0


def test_a_server_ends_whatever_happens(benchmark, tmp_path):
    with pytest.raises(ZeroDivisionError), benchmark.Server(tmp_path / "runs") as live:
        process = live.process
        assert process.poll() is None
        raise ZeroDivisionError
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
