"""``meta500 compare`` and ``meta500 history`` as a user runs them: processes, exit codes, files, messages."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def meta500(*arguments, cwd, code=0):
    """The finished process, which must end with the exit code and without a traceback."""
    command = [sys.executable, "-m", "meta500", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def make(tmp_path):
    """A run of one time of 20 samples around the factor per network."""

    def run(name, factor=1.0, *, cpu="abacus", networks=("unet-0",), day=1, n=20, status="finished"):
        environment = {"cpu": {"model": cpu}, "git": {"commit": f"{day:02d}" * 20, "dirty": False}}
        made = RunFolder.create(tmp_path / name, environment=environment)
        made.info["started"] = f"2026-01-{day:02d}T00:00:00+00:00"
        rng = np.random.default_rng(day)
        for network in networks:
            taken = factor * np.exp(0.02 * rng.standard_normal(n))
            made.append(
                Row(
                    level=1,
                    model=network,
                    phase="inference",
                    backend="torch",
                    quantity="time",
                    unit="s",
                    value=float(np.median(taken)),
                    samples=tuple(taken),
                )
            )
        made.finish(status)
        return made.path

    return run


def test_exit_codes_of_compare(make, tmp_path):
    make("old")
    make("slow", 2.0, day=2)
    make("few", 2.0, day=3, n=5)
    assert "1 regression" in meta500("compare", "old", "slow", cwd=tmp_path, code=1).stdout
    assert "1 improvement" in meta500("compare", "slow", "old", cwd=tmp_path, code=0).stdout
    # Too few samples are no regression, however large the ratio.
    found = meta500("compare", "old", "few", cwd=tmp_path, code=0).stdout
    assert "1 unknown" in found and "no measurement has enough samples" in found
    for arguments, message in (
        (("old", "nowhere"), "nowhere: there is no such folder"),
        (("old",), "needs two runs or more"),
        (("old", "slow", "--minimum", "-1"), "must not be negative"),
    ):
        assert message in meta500("compare", *arguments, cwd=tmp_path, code=2).stderr


def test_machines_come_before_any_number(make, tmp_path):
    make("old")
    make("new", 1.5, cpu="slide rule", day=2)
    lines = meta500("compare", "old", "new", cwd=tmp_path, code=1).stdout.splitlines()
    assert lines[0] == "machine: new: cpu.model was abacus, is slide rule"
    assert lines[1].startswith("machine: new: git.commit was ")
    assert lines[2] == "intervals: one comparison, 95 %"
    found = json.loads(meta500("compare", "old", "new", "--json", cwd=tmp_path, code=1).stdout)
    assert list(found).index("machine") < list(found).index("rows")
    same = meta500("compare", "old", "old", "--all", cwd=tmp_path).stdout
    assert same.startswith("machine: nothing recorded differs\n")


def test_the_output_says_over_how_many_comparisons(make, tmp_path):
    networks = [f"net{i}" for i in range(10)]
    make("old", networks=networks)
    make("new", 1.5, day=2, networks=networks)
    text = meta500("compare", "old", "new", cwd=tmp_path, code=1).stdout
    assert (
        "all 10 comparisons hold together with 95 %; each interval has at least 99.5 % (Bonferroni)" in text
    )
    assert "A = 1.00" in text and "large" in text
    found = json.loads(meta500("compare", "old", "new", "--json", cwd=tmp_path, code=1).stdout)
    assert (found["comparisons"], found["each"]) == (10, pytest.approx(0.995))
    assert all(row["ratio"]["confidence"] >= 0.995 for row in found["rows"])
    assert found["rows"][0]["effect"] == {"superiority": 1.0, "word": "large"}


def test_history_of_a_project(make, tmp_path):
    runs = [make(f"run{day}", 1.0 if day < 10 else 1.5, day=day) for day in range(1, 19)]
    meta500("history", "add", *runs[:-1], "--file", "h.jsonl", cwd=tmp_path)
    text = meta500("history", "add", runs[0], runs[-1], "--file", "h.jsonl", cwd=tmp_path).stdout
    assert text.count("is already in h.jsonl") == text.count("added to h.jsonl") == 1
    assert len((tmp_path / "h.jsonl").read_text().splitlines()) == 18
    text = meta500("history", "show", "h.jsonl", cwd=tmp_path).stdout
    assert text.startswith("machine ") and "abacus, 18 runs" in text
    assert "1 of 1 series searched" in text and "regression +" in text and "10101010" in text
    assert {p.name for p in (tmp_path / "h-plots").iterdir()} == {"history-1.png", "history-1.pdf"}
    shown = meta500("history", "show", "h.jsonl", "--json", "--out", "p", cwd=tmp_path).stdout
    (series,) = json.loads(shown)["series"]
    (change,) = series["changes"]
    assert (change["before"]["commit"], change["after"]["commit"]) == ("09" * 20, "10" * 20)
    assert change["verdict"] == "regression" and len(series["values"]) == 18
    assert (tmp_path / "p" / "history-1.png").stat().st_size > 1000


def test_bad_input_of_history(make, tmp_path):
    run = make("run")
    make("cut", status="interrupted", day=2)

    def message(*arguments):
        return meta500("history", *arguments, cwd=tmp_path, code=2).stderr

    assert "h.jsonl: there is no such file" in message("show", "h.jsonl")
    assert "cut: the run is interrupted" in message("add", run, "cut", "--file", "h.jsonl")
    assert not (tmp_path / "h.jsonl").exists()
    meta500("history", "add", run, "--file", "h.jsonl", cwd=tmp_path)
    assert "has 'nothing' in its name" in message("show", "h.jsonl", "--filter", "nothing")
    assert "rate of false alarms 2.0" in message("show", "h.jsonl", "--rate", 2)
    with open(tmp_path / "h.jsonl", "ab") as file:
        file.write(b'{"format": "meta5')
    assert "h.jsonl, line 2: is incomplete" in message("show", "h.jsonl")
    assert "h.jsonl, line 2: is incomplete" in message("add", run, "--file", "h.jsonl")


def test_two_processes_that_add_at_once_lose_nothing(make, tmp_path):
    runs = [make(f"run{day}", day=day) for day in range(1, 9)]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "meta500", "history", "add", *map(str, share), "--file", "h.jsonl"],
            cwd=tmp_path,
            env=ENVIRONMENT,
        )
        for share in (runs[:6], runs[2:])
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    lines = (tmp_path / "h.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["run"] for line in lines) == sorted(RunFolder.open(r).id for r in runs)
