"""Run folders on disk: whatever ends a run, the rows until then and the reason stay readable."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meta500.errors import UserError
from meta500.metrics import run as module
from meta500.metrics.rows import Row, read_csv, read_jsonl
from meta500.metrics.run import RunFolder

PACKAGE = str(Path(module.__file__).parents[2])
ENVIRONMENT = {"cpu": {"model": "abacus"}}


def a_row(**fields):
    return Row(**{"level": 1, "quantity": "time", "unit": "s", "value": 0.1, **fields})


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", environment=ENVIRONMENT, command=["meta500", "bench"])


def refuse(*_args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def info_of(run):
    return json.loads((run.path / "run.json").read_text())


def python(program, *arguments, **options):
    """Run a program in a process of its own that finds the package."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": PACKAGE}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)


def test_life_of_a_run(tmp_path):
    run = RunFolder.create(root=tmp_path, seeds={"weights": 3}, environment=ENVIRONMENT)
    assert run.path.parent == tmp_path
    assert run.path.name == run.id
    assert run.status == "running"
    info = info_of(run)
    assert info == run.info
    assert info["command"] == sys.argv
    assert info["seeds"] == {"weights": 3}
    assert info["environment"] == ENVIRONMENT
    assert info["finished"] is None

    run.append(a_row())
    run.extend(a_row(step=i) for i in range(2))
    run.finish(message="done")
    again = RunFolder.open(run.path)
    assert again.problems == []
    assert (again.id, again.status, again.info["message"]) == (run.id, "finished", "done")
    assert again.info["started"] <= again.info["finished"]
    assert again.info["started"].endswith("+00:00")
    assert again.rows == [a_row(run_id=run.id, step=step) for step in (None, 0, 1)]
    assert again.environment == ENVIRONMENT


def test_two_runs_at_once_get_two_folders(tmp_path):
    made = {RunFolder.create(root=tmp_path, environment=ENVIRONMENT).path for _ in range(3)}
    assert len(made) == 3
    assert made == set(tmp_path.iterdir())


def test_environment_is_captured_by_default(tmp_path):
    run = RunFolder.create(tmp_path / "a" / "b")
    assert info_of(run)["environment"]["versions"]["numpy"]


def test_each_row_is_on_disk_at_once(run):
    for count in range(1, 4):
        run.append(a_row(step=count))
        assert len(read_csv(run.rows_path)) == count
        assert len(run.rows) == count


def test_a_killed_process_leaves_its_rows(tmp_path):
    program = """import os, signal, sys
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
run = RunFolder.create(sys.argv[1], environment={})
for step in range(5):
    run.append(Row(level=1, quantity="time", unit="s", value=0.5, step=step))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = python(program, tmp_path / "run")
    assert done.returncode == -signal.SIGKILL, done.stderr
    run = RunFolder.open(tmp_path / "run")
    assert [row.step for row in run.rows] == list(range(5))
    assert run.status == "running"
    assert len(run.problems) == 1
    assert "still going or was killed" in run.problems[0]


def test_writing_needs_no_heavy_imports(tmp_path):
    program = """import sys
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
with RunFolder.create(sys.argv[1]) as run:
    run.append(Row(level=1, quantity="time", unit="s", value=0.5))
print([name for name in ("pandas", "torch", "scipy", "matplotlib", "onnx") if name in sys.modules])
"""
    done = python(program, tmp_path / "run")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (None, "finished", ""),
        (ValueError("no luck"), "failed", "ValueError: no luck"),
        (KeyboardInterrupt(), "interrupted", "interrupted by the user"),
        (SystemExit(0), "finished", ""),
        (SystemExit(3), "failed", "SystemExit: 3"),
    ],
)
def test_the_end_of_the_block_is_noted(run, error, status, message):
    def block():
        with run:
            run.append(a_row())
            if error is not None:
                raise error

    if error is None:
        block()
    else:
        with pytest.raises(type(error)):
            block()
    again = RunFolder.open(run.path)
    assert (again.status, again.info["message"]) == (status, message)
    assert len(again.rows) == 1


def test_the_first_end_counts(run):
    with run:
        run.finish("failed", "loss is NaN")
    assert RunFolder.open(run.path).info["message"] == "loss is NaN"
    with pytest.raises(UserError, match=r"is over \(failed\)"):
        run.append(a_row())
    with pytest.raises(UserError, match="'done' is no final status; use one of finished, failed"):
        run.finish("done")


def test_a_row_of_another_run_is_refused(run):
    with pytest.raises(UserError, match="belongs to run other"):
        run.append(a_row(run_id="other"))
    run.append(a_row(run_id=run.id))
    assert len(run.rows) == 1


def test_opened_runs_are_read_only(run):
    run.append(a_row())
    run.finish()
    with RunFolder.open(run.path) as again:
        with pytest.raises(UserError, match="opened for reading"):
            again.append(a_row())
        with pytest.raises(UserError, match="opened for reading"):
            again.finish()
    assert len(again.rows) == 1


def test_existing_targets_are_not_overwritten(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("x")
    with pytest.raises(UserError, match="full: is not empty; name a new or empty folder"):
        RunFolder.create(tmp_path / "full", environment={})
    with pytest.raises(UserError, match=r"precious.txt: is a file"):
        RunFolder.create(tmp_path / "full" / "precious.txt", environment={})
    with pytest.raises(UserError, match="a part of the path is a file"):
        RunFolder.create(tmp_path / "full" / "precious.txt" / "run", environment={})
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["precious.txt"]
    (tmp_path / "empty").mkdir()
    assert RunFolder.create(tmp_path / "empty", environment={}).path == tmp_path / "empty"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full: free some space"),
        (errno.EACCES, "permission denied: choose a folder"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_unwritable_places_are_explained(tmp_path, monkeypatch, number, words):
    def refuse(*_args, **_options):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(UserError, match=f"{tmp_path}/a: cannot be written: {words}"):
            RunFolder.create(tmp_path / "a", environment={})
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(UserError, match=f"run.json: cannot be written: {words}"):
            RunFolder.create(tmp_path / "b", environment={})
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(UserError, match=f"rows.csv: cannot be written: {words}"):
            RunFolder.create(tmp_path / "c", environment={})
    run = RunFolder.create(tmp_path / "d", environment={})
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=f"plots: cannot be written: {words}"):
        run.plot_path("loss.png")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write")
def test_a_read_only_place_is_explained():
    with pytest.raises(UserError, match="/proc/meta500/run: cannot be written"):
        RunFolder.create("/proc/meta500/run", environment={})


def test_disk_full_in_the_middle_of_a_row(run, monkeypatch):
    run.append(a_row(step=0))
    before = run.rows_path.read_bytes()
    real = os.write

    def fills_up(descriptor, data):
        if len(data) > 20:
            return real(descriptor, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(UserError, match=r"rows.csv: .*disk is full.*\(1 rows so far are intact\)"):
        run.append(a_row(step=1))
    assert run.rows_path.read_bytes() == before
    monkeypatch.undo()
    run.append(a_row(step=2))
    assert [row.step for row in run.rows] == [0, 2]


def test_ctrl_c_in_the_middle_of_a_row(run, monkeypatch):
    run.append(a_row(step=0))
    real = os.write

    def interrupted(descriptor, data):
        if len(data) > 20:
            return real(descriptor, data[:20])
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt), run:
        run.append(a_row(step=1))
    again = RunFolder.open(run.path)
    assert (again.status, len(again.rows), again.problems) == ("interrupted", 1, [])


def test_short_writes_are_continued(run, monkeypatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    run.append(a_row(note="a long note, with a comma"))
    assert run.rows[0].note == "a long note, with a comma"


def test_a_real_full_file_in_a_process_of_its_own(tmp_path):
    """The operating system really cuts a row: the file may not grow beyond a limit."""
    resource = pytest.importorskip("resource")
    program = """import sys
from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
try:
    with RunFolder.create(sys.argv[1], environment={}) as run:
        for step in range(1000):
            run.append(Row(level=1, quantity="time", unit="s", value=0.5, step=step))
except UserError as error:
    print(error)
"""

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))

    done = python(program, tmp_path / "run", preexec_fn=limit)
    run = RunFolder.open(tmp_path / "run")
    steps = [row.step for row in run.rows]
    assert steps == list(range(len(steps)))
    assert len(steps) > 5
    assert f"({len(steps)} rows so far are intact)" in done.stdout
    assert "larger than the system allows" in done.stdout
    assert run.problems == []
    assert run.status == "failed"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_dev_full(run):
    run.append(a_row())
    real, run._descriptor = run._descriptor, os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(UserError, match="the disk is full"):
            run.append(a_row())
    finally:
        os.close(run._descriptor)
        run._descriptor = real
    assert len(run.rows) == 1


def test_run_json_is_replaced_as_a_whole(run, monkeypatch):
    before = (run.path / "run.json").read_bytes()

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match="disk is full"):
        run.finish()
    assert (run.path / "run.json").read_bytes() == before
    assert sorted(p.name for p in run.path.iterdir()) == ["rows.csv", "run.json"]


def test_the_error_of_the_block_is_not_hidden_by_a_full_disk(run, monkeypatch):
    with pytest.raises(ValueError, match="the cause") as caught, run:
        monkeypatch.setattr(os, "replace", refuse)
        raise ValueError("the cause")
    assert "disk is full" in caught.value.__notes__[0]


def test_a_cut_last_line_is_reported(run):
    run.extend([a_row(step=0), a_row(step=1)])
    run.finish()
    run.rows_path.write_bytes(run.rows_path.read_bytes()[:-3])
    again = RunFolder.open(run.path)
    assert [row.step for row in again.rows] == [0]
    assert "rows.csv, line 3: the last line is incomplete" in again.problems[0]


def test_a_cut_header_is_reported(run):
    run.rows_path.write_bytes(b"schema,run_i")
    again = RunFolder.open(run.path)
    assert again.rows == []
    assert any("line 1: the last line is incomplete" in problem for problem in again.problems)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: (path / "run.json").unlink(), "is no run folder: there is no run.json"),
        (lambda path: (path / "rows.csv").unlink(), "rows.csv: is missing"),
        (
            lambda path: (path / "run.json").write_text('{\n "a" 1}'),
            "run.json, line 2, column 6: is damaged",
        ),
        (lambda path: (path / "run.json").write_bytes(b"\xff"), "byte 0 is no UTF-8"),
        (lambda path: (path / "run.json").write_text("[]"), "does not describe a run"),
        (
            lambda path: (path / "rows.csv").write_text("schema,level\n1,x\n"),
            "rows.csv, line 2: column",
        ),
    ],
)
def test_damaged_folders_are_explained(run, change, words):
    change(run.path)
    with pytest.raises(UserError, match=words) as caught:
        RunFolder.open(run.path)
    assert str(run.path) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("format", "other", "does not describe a run"),
        ("schema_version", 2, "version 2 was written by a newer meta500"),
        ("schema_version", None, "None is no version"),
        ("status", "sleeping", "'status' or 'environment' holds 'sleeping'"),
        ("environment", [], "is damaged"),
        ("environment", {"cpu": "text"}, "run.json: is damaged: 'environment.cpu' is no table: 'text'"),
        ("environment", {"cpu": {"vector": 5}}, "'environment.cpu.vector' is no list: 5"),
        ("environment", {"versions": [1]}, "'environment.versions' is no table"),
        ("environment", {"gpus": 5}, "'environment.gpus' is no list: 5"),
        ("environment", {"gpus": ["one"]}, "'environment.gpus' is no list of tables: 'one'"),
        ("environment", {"python": 3}, "'environment.python' is no table: 3"),
        ("id", ..., "'id' is missing"),
    ],
)
def test_damaged_run_json_is_explained(run, key, value, words):
    info = info_of(run)
    info[key] = value
    info = {k: v for k, v in info.items() if v is not ...}
    (run.path / "run.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=words):
        RunFolder.open(run.path)


@pytest.mark.parametrize(
    "environment", [{}, {"cpu": None, "gpus": None}, {"cpu": {}, "gpus": [], "versions": {}}]
)
def test_environments_may_be_incomplete(run, environment):
    (run.path / "run.json").write_text(json.dumps(info_of(run) | {"environment": environment}))
    assert RunFolder.open(run.path).environment == environment


def test_open_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        RunFolder.open(tmp_path / "nowhere")


def test_plots_and_jsonl(run, tmp_path):
    run.append(a_row(value=float("inf")))
    path = run.plot_path("loss.png")
    assert path == run.path / "plots" / "loss.png"
    assert path.parent.is_dir()
    assert read_jsonl(run.export_jsonl()) == run.rows
    assert (run.path / "rows.jsonl").exists()
    with pytest.raises(UserError, match="cannot be written"):
        run.export_jsonl(tmp_path / "no" / "such" / "folder.jsonl")


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunFolder.create(tmp_path / "r") as run:
        run.append(Row(level=0, quantity="time", unit="s", value=1.0, note="kept\nin two lines"))
        run.checkpoint(done=["first"])
        run.append(Row(level=0, quantity="time", unit="s", value=2.0))
        raise KeyboardInterrupt
    with RunFolder.resume(tmp_path / "r") as again:
        assert again.id == run.id and again.status == "running"
        assert again.info["checkpoint"]["done"] == ["first"]
        assert [row.value for row in again.rows] == [1.0]
        again.append(Row(level=0, quantity="time", unit="s", value=3.0))
    read = RunFolder.open(tmp_path / "r")
    assert read.status == "finished" and [row.value for row in read.rows] == [1.0, 3.0]
    with pytest.raises(UserError, match="is finished"):
        RunFolder.resume(tmp_path / "r")


def test_what_cannot_be_gone_on_with_is_left_as_it_is(tmp_path):
    with RunFolder.create(tmp_path / "r") as run:
        run.append(Row(level=0, quantity="time", unit="s", value=1.0))
        run.finish("interrupted")
    with pytest.raises(UserError, match="no checkpoint"):
        RunFolder.resume(tmp_path / "r")
    with pytest.raises(UserError, match="takes no checkpoint"):
        run.checkpoint()
    with RunFolder.create(tmp_path / "s") as run:
        run.append(Row(level=0, quantity="time", unit="s", value=1.0))
        run.checkpoint()
        run.finish("failed")
    rows = (tmp_path / "s" / "rows.csv").read_bytes()
    (tmp_path / "s" / "rows.csv").write_bytes(rows[: rows.index(b"\n") + 1])
    with pytest.raises(UserError, match="rows are lost"):
        RunFolder.resume(tmp_path / "s")
    assert (tmp_path / "s" / "rows.csv").read_bytes() == rows[: rows.index(b"\n") + 1]
    assert RunFolder.open(tmp_path / "s").status == "failed"
