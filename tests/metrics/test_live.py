"""Following a run: what comes in pieces has to give what is read at once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics import live
from meta500.metrics.live import LiveRun, Progress, Series
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder, being_written
from meta500.metrics.tickers import AccuracyLimit, ProgressFile, RowsTicker, StepLimit, TimeLimit

ENVIRONMENT = {"cpu": {"model": "abacus"}}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    return RunFolder.create(tmp_path / "run", environment=ENVIRONMENT, command=["meta500"])


def steps(step, losses, begin=0, **what):
    """The rows of a group of steps, as `RowsTicker` writes them; 10 samples and 0.5 s a step."""
    numbers = range(begin + 1, begin + len(losses) + 1)
    place = {"level": 2, "phase": "training_step", "step": step, "epoch": 0, "seconds": 0.5 * step, **what}
    return [
        Row(quantity="loss", unit="1", value=losses[-1], samples=tuple(losses), **place),
        Row(
            quantity="samples_seen",
            unit="samples",
            value=1,
            samples=tuple(10.0 * n for n in numbers),
            **place,
        ),
        Row(quantity="training_time", unit="s", value=1, samples=tuple(0.5 * n for n in numbers), **place),
        Row(quantity="data_time", unit="s", value=0.0, samples=(0.0,) * len(losses), **place),
    ]


def epoch_rows(step, **what):
    place = {"level": 2, "step": step, "epoch": 0, "seconds": 0.5 * step, **what}
    return [
        Row(phase="training_set", quantity="loss", unit="1", value=2.5, **place),
        Row(phase="test_set", quantity="loss", unit="1", value=2.0, **place),
        Row(phase="test_set", quantity="accuracy", unit="1", value=0.25, **place),
    ]


def test_series_of_a_run_that_was_read_at_once(folder):
    folder.extend([*steps(2, [4.0, 3.0]), *epoch_rows(2)])
    followed = LiveRun(folder.path)
    assert followed.poll()
    assert {name: series.points() for name, series in followed.series.items()} == {
        "loss": [(10, 0.5, 4), (20, 1, 3)],
        "train_loss": [(20, 1, 2.5)],
        "test_loss": [(20, 1, 2)],
        "accuracy": [(20, 1, 0.25)],
    }
    assert followed.rows == 7
    assert not followed.poll()


@given(cuts=st.lists(st.integers(0, 10**6), max_size=12), data=st.data())
def test_any_pieces_give_the_whole(cuts, data, tmp_path_factory):
    whole = RunFolder.create(tmp_path_factory.mktemp("r") / "whole", environment=ENVIRONMENT)
    note = data.draw(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20))
    whole.extend(steps(2, [4.0, 3.0]))
    whole.append(Row(level=1, quantity="time", unit="s", value=0.1, note=note + '",\n"'))
    whole.extend([*epoch_rows(2), *steps(3, [math.nan], begin=2)])
    whole.finish()
    content = whole.rows_path.read_bytes()
    part = RunFolder.create(tmp_path_factory.mktemp("r") / "part", environment=ENVIRONMENT)
    part.finish()
    followed = LiveRun(part.path)
    merged: dict[str, list] = {}
    mark = 0
    for cut in sorted({c % (len(content) + 1) for c in cuts} | {len(content)}):
        part.rows_path.write_bytes(content[:cut])
        followed.poll()
        assert followed.problem == ""
        new = followed.since(mark)
        mark = new["mark"]
        if new["reset"]:
            merged = {}
        for name, points in new["series"].items():
            merged.setdefault(name, []).extend(points)
    expected = LiveRun(whole.path)
    expected.poll()
    assert merged == expected.snapshot()["series"]
    assert merged["loss"][-1] == [30.0, 1.5, "NaN"]
    assert followed.rows == expected.rows == 12
    assert [row.note for row in followed.latest] == [row.note for row in whole.rows if row.level == 1]


def test_another_training_begins_new_curves(folder):
    folder.extend(steps(2, [4.0, 3.0], model="a"))
    followed = LiveRun(folder.path)
    followed.poll()
    first = followed.snapshot()
    folder.extend(steps(1, [9.0], model="b"))
    assert followed.poll()
    second = followed.since(first["mark"])
    assert second["reset"]
    assert second["series"] == {"loss": [[10.0, 0.5, 9.0]]}
    assert followed.training["model"] == "b"
    # The same run once more: its steps begin anew.
    folder.extend(steps(1, [7.0], model="b"))
    followed.poll()
    assert followed.since(second["mark"])["series"] == {"loss": [[10.0, 0.5, 7.0]]}


def test_rows_that_a_resumed_run_drops_are_forgotten(folder):
    folder.extend(steps(2, [4.0, 3.0]))
    folder.checkpoint()
    folder.extend(steps(4, [2.0, 1.0], begin=2))
    folder.finish("interrupted")
    followed = LiveRun(folder.path)
    followed.poll()
    mark = followed.mark
    again = RunFolder.resume(folder.path)
    again.extend(steps(3, [2.5], begin=2))
    followed.poll()
    new = followed.since(mark)
    assert new["reset"]
    assert [point[2] for point in new["series"]["loss"]] == [4.0, 3.0, 2.5]
    assert followed.status == "running"
    again.finish()
    followed.poll()
    assert followed.over


def test_a_resume_between_two_looks_is_noticed(folder):
    folder.extend(steps(1, [4.0]))
    folder.checkpoint()
    folder.extend(steps(2, [8.0], begin=1))
    folder.finish("interrupted")
    followed = LiveRun(folder.path)
    followed.poll()
    again = RunFolder.resume(folder.path)
    again.extend(steps(2, [7.0], begin=1))
    again.extend(steps(3, [6.0], begin=2))
    followed.poll()
    assert [value for _, _, value in followed.series["loss"].points()] == [4.0, 7.0, 6.0]
    again.finish()


def test_the_last_point_is_known_whatever_was_thinned(folder, monkeypatch):
    monkeypatch.setattr(live, "MOST_POINTS", 4)
    folder.extend(steps(20, [float(n) for n in range(20)]))
    followed = LiveRun(folder.path)
    followed.poll()
    assert len(followed.series["loss"].points()) < 6
    assert followed.last == {"loss": (200.0, 10.0, 19.0)}
    assert followed.counts == {"loss": 20}


def test_a_long_series_is_thinned_evenly(monkeypatch):
    monkeypatch.setattr(live, "MOST_POINTS", 10)
    series = Series()
    for number in range(100):
        series.add(number + 1, number, number, number)
    assert len(series.points()) <= 11
    assert series.every == 16
    assert [value for _, _, value in series.points()] == list(range(0, 100, 16))
    assert series.points(mark=81) == [(96, 96, 96)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"1,2,3\n", "3 cells, the header has"),
        (b'1,"a"b\n', "no CSV"),
        (b"\xff\n", "no CSV"),
    ],
)
def test_damaged_rows_are_said_and_what_was_read_stays(folder, line, said):
    folder.extend(steps(2, [4.0, 3.0]))
    folder.finish()
    followed = LiveRun(folder.path)
    followed.poll()
    with open(folder.rows_path, "ab") as file:
        file.write(line)
    assert followed.poll()
    assert said in followed.problem
    assert str(folder.rows_path) in followed.problem
    assert not followed.poll()
    assert said in followed.problem
    assert len(followed.series["loss"].points()) == 2


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"version": 1}'])
def test_damaged_progress_is_said(folder, content):
    (folder.path / "progress.json").write_bytes(content)
    followed = LiveRun(folder.path)
    followed.poll()
    assert "progress.json" in followed.problem


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        LiveRun(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"no run\.json"):
        LiveRun(tmp_path)


def test_a_run_whose_process_was_killed_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "DEAD_SECONDS", 0.05)
    program = (
        "import sys, time\nfrom meta500.metrics.run import RunFolder\n"
        "RunFolder.create(sys.argv[1], environment={})\nprint('made', flush=True)\ntime.sleep(60)\n"
    )
    path = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        assert being_written(path) is True
        followed = LiveRun(path)
        followed.poll()
        time.sleep(0.1)
        followed.poll()
        assert followed.status == "running"
        process.kill()
        process.wait()
    assert being_written(path) is False
    followed.poll()
    assert followed.status == "running"  # one question alone decides nothing
    time.sleep(0.1)
    assert followed.poll()
    assert followed.status == "interrupted"
    assert "gone" in followed.message


def test_asking_whether_a_run_is_written_does_not_keep_it_from_being_written(tmp_path):
    import fcntl

    run = RunFolder.create(tmp_path / "run", environment=ENVIRONMENT)
    run.checkpoint()
    run.finish("interrupted")
    asking = os.open(run.rows_path, os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    freed = threading.Timer(0.03, os.close, (asking,))
    freed.start()
    assert RunFolder.resume(run.path).status == "running"
    freed.join()


class Looked(ProgressFile):
    """Keeps what it wrote."""

    def __init__(self):
        self.seen = []

    def _write(self, state):
        super()._write(state)
        self.seen.append(Progress.read(state.folder.path / "progress.json"))


def test_the_progress_file_says_where_the_run_is(ticker_runner, tmp_path):
    run = RunFolder.create(tmp_path / "run", environment=ENVIRONMENT)
    looked = Looked()
    made = ticker_runner(RowsTicker(run), looked, test=11, folder=run)
    summary = made.run(2)
    run.finish()
    seen = looked.seen
    phases = [progress.phase for progress in seen]
    assert phases[0] == "starting"
    assert phases[-1] == "over"
    assert phases.count("testing") >= 2
    last = seen[-1]
    assert last.step == len(summary.losses) == 6
    assert last.done == 1.0
    assert last.remaining == 0.0
    assert last.remaining_complete
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    followed = LiveRun(run.path)
    followed.poll()
    assert followed.progress == last
    losses = [value for _, _, value in followed.series["loss"].points()]
    assert len(losses) == last.step
    assert np.isfinite(losses).all()
    json.dumps(followed.snapshot(), allow_nan=False)


def test_limits_bound_what_remains(ticker_runner, tmp_path):
    run = RunFolder.create(tmp_path / "run", environment=ENVIRONMENT)
    limits = [TimeLimit(1000.0), AccuracyLimit(1.0)]
    looked = Looked()
    ticker_runner(looked, *limits, test=11, folder=run).run(2)
    assert all(progress.may_stop for progress in looked.seen)
    ticker_runner(looked, TimeLimit(1e-9), folder=run).run(1000)
    last = looked.seen[-1]
    assert not last.may_stop
    assert last.done == 1.0
    assert last.remaining in (None, 0.0)


def test_a_progress_file_that_cannot_be_written_ends_no_run(ticker_runner, tmp_path):
    run = RunFolder.create(tmp_path / "run", environment=ENVIRONMENT)
    (run.path / "progress.json").mkdir()
    made = ticker_runner(ProgressFile(), StepLimit(2), folder=run)
    assert made.run(1).status == "stopped"
