"""``meta500 operators`` as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meta500.metrics import RunFolder

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def operators(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "meta500", "operators", *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_quick_run_of_two_operators(tmp_path):
    done = operators("Gemm", "Softmax", "--quick", "--threads", 1, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    for part in ("Measured roofline, 1 thread", "Times", "Operators", "Backends", "GFLOP/s", "Results: run"):
        assert part in done.stdout
    folder = RunFolder.open(tmp_path / "run")
    assert {r.operator for r in folder.rows if r.quantity == "verdict"} == {"Gemm", "Softmax"}
    assert {p.name for p in (tmp_path / "run" / "plots").glob("*.png")} >= {
        "errors.png",
        "roofline-forward-float32.png",
        "time-0-forward.png",
    }
    assert (tmp_path / "run" / "summary.csv").read_text().startswith("operator,backend,cases,ok,")


def test_json_goes_to_stdout_alone(tmp_path):
    done = operators("--cases", "relu", "--no-time", "--json", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(r["quantity"], r["backend"]) for r in rows} >= {("verdict", "numpy"), ("verdict", "torch")}


@pytest.mark.slow
def test_listing_runs_nothing(tmp_path):
    done = operators("--list", "--json", cwd=tmp_path)
    entries = {e["operator"]: e for e in map(json.loads, done.stdout.splitlines())}
    assert entries["Softmax"]["cases"] == 21
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Sotfmax"], "The nearest are: Softmax, "),
        (["Softmax", "--out", "taken"], "taken: is not empty"),
    ],
)
def test_mistakes_get_one_clear_message(arguments, message, tmp_path, monkeypatch, capsys):
    from meta500.cli import main

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["operators", *arguments])
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert "meta500: error: " in shown and message in shown
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
