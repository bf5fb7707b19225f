"""``meta500 watch`` as a process, on runs that go on, that ended and that were killed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "110",
    "TERM": "xterm",
}


def command(*words):
    return [sys.executable, "-m", "meta500", *map(str, words)]


def meta500(*words):
    return subprocess.run(
        command(*words), env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "mlp"
    done = meta500("train", "--epochs", 2, "--backend", "numpy", "--model", "mlp", "--out", path)
    assert done.returncode == 0, done.stderr
    return path


def test_without_a_terminal_only_the_end_is_printed(finished):
    done = meta500("watch", finished)
    assert done.returncode == 0
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    assert line.startswith(f"{finished}: finished, epoch 2 of 2, 46 steps, loss ")


def test_changes_as_json_lines_are_those_of_the_rows(tmp_path):
    path = tmp_path / "run"
    train = command("train", "--epochs", 4, "--backend", "numpy", "--batch-size", 128, "--out", path)
    with subprocess.Popen(
        train, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        while not (path / "run.json").exists():
            assert run.poll() is None
            time.sleep(0.01)
        watched = meta500("watch", path, "--json", "--interval", 0.05)
        assert run.wait() == 0
    assert watched.returncode == 0, watched.stderr
    states = [json.loads(line) for line in watched.stdout.splitlines()]
    assert len(states) > 2
    assert states[0]["status"] == "running"
    assert states[-1]["status"] == "finished"
    assert states[-1]["progress"]["done"] == 1.0
    losses = [point for state in states for point in state["series"].get("loss", [])]
    rows = [r for r in RunFolder.open(path).rows if r.phase == "training_step" and r.quantity == "loss"]
    assert [value for _, _, value in losses] == [value for row in rows for value in row.samples]


def test_on_a_terminal_curves_and_progress_are_drawn(finished):
    leader, follower = pty.openpty()
    with subprocess.Popen(command("watch", finished), env=ENVIRONMENT, stdout=follower) as process:
        os.close(follower)
        drawn = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            drawn += piece
        assert process.wait() == 0
    os.close(leader)
    text = drawn.decode()
    for words in ("finished", "loss and test loss over samples", "accuracy over samples", "epoch 2/2", "┌"):
        assert words in text, text


def test_once_says_how_a_killed_run_stands_and_the_exit_code_tells(tmp_path):
    path = tmp_path / "run"
    train = command("train", "--epochs", 1000, "--backend", "numpy", "--model", "mlp", "--out", path)
    with subprocess.Popen(
        train, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        while not (path / "progress.json").exists():
            assert run.poll() is None
            time.sleep(0.01)
        once = meta500("watch", "--once", path)
        assert once.returncode == 0, once.stderr
        assert "running" in once.stdout
        run.kill()
    for words in ([], ["--once"], ["--once", "--json"]):
        watched = meta500("watch", path, *words)
        assert watched.returncode == 1, words
        assert "interrupted" in watched.stdout
        assert "the process that wrote this run is gone" in watched.stdout


def test_ctrl_c_ends_the_watching_alone(tmp_path):
    run = RunFolder.create(tmp_path / "run", environment={}, command=["meta500"])
    with subprocess.Popen(
        command("watch", run.path, "--json"),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["status"] == "running"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert said == f"meta500: stopped watching; still running: {run.path}\n"
    run.append(Row(level=1, quantity="time", unit="s", value=0.1))
    run.finish()


def test_other_runs_show_their_last_measurements(tmp_path):
    with RunFolder.create(tmp_path / "run", environment={}, command=["meta500"]) as run:
        run.append(Row(level=0, node="a[/b]", backend="numpy", quantity="time", unit="s", value=0.125))
    once = meta500("watch", "--once", run.path)
    assert once.returncode == 0, once.stderr
    assert "a[/b]" in once.stdout
    assert "0.125 s" in once.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [(["nowhere"], "there is no such folder"), (["{run}", "--interval", "0"], "--interval must be positive")],
)
def test_mistakes_are_one_line(finished, words, said):
    done = meta500("watch", *(word.format(run=finished) for word in words))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
