"""Sources of reports: which runs and files are found, how they are named, and what is said about them."""

import gzip
import json
import shutil

import pytest

from meta500.errors import UserError
from meta500.metrics.folders import find_results, find_run_folders, short_names
from meta500.metrics.report.foreign import ColumnMap
from meta500.metrics.report.sources import read_sources
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder

TIMES = ColumnMap(
    columns={"model": "net", "value": "t"}, constants={"level": 1, "quantity": "time", "unit": "ms"}
)


def make_run(path, *, status="finished", command=("meta500", "bench", "--out", "a b"), message=""):
    run = RunFolder.create(path, environment={"cpu": {"model": "one CPU"}}, command=list(command))
    run.append(Row(level=1, model="net", quantity="time", unit="s", value=0.5, backend="torch"))
    if status != "running":
        run.finish(status, message)
    return path


def test_a_run_folder_comes_with_its_rows_its_environment_and_its_command(tmp_path):
    path = make_run(tmp_path / "first")
    (source,) = read_sources([str(path)])
    assert (source.name, source.path) == ("first", path)
    assert source.rows == tuple(RunFolder.open(path).rows)
    assert source.info["environment"] == {"cpu": {"model": "one CPU"}}
    assert source.command == "meta500 bench --out 'a b'"
    assert source.problems == ()


def test_runs_are_found_in_folders_and_by_patterns_each_once_in_natural_order(tmp_path):
    for name in ("run-2", "run-10", "other"):
        make_run(tmp_path / name)
    assert [s.name for s in read_sources(tmp_path)] == ["other", "run-2", "run-10"]
    pattern = str(tmp_path / "run-*")
    assert [s.name for s in read_sources([pattern, str(tmp_path)])] == ["run-2", "run-10", "other"]
    # What lies in a run folder is not a source of its own.
    assert [s.name for s in read_sources([str(tmp_path / "**")])] == ["other", "run-2", "run-10"]


def test_names_have_as_many_parts_as_tell_them_apart(tmp_path):
    paths = [make_run(tmp_path / a / "run") for a in ("one", "two")]
    assert [s.name for s in read_sources(paths)] == ["one/run", "two/run"]
    assert short_names([]) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/somewhere/bin/meta500", "train"], "meta500 train"),
        (["/somewhere/meta500/__main__.py", "train", "--out", "x;y"], "meta500 train --out 'x;y'"),
        (["my script.py", "3"], "python 'my script.py' 3"),
        ([], ""),
        ("no list", ""),
    ],
)
def test_commands_are_quoted_as_one_would_type_them(tmp_path, words, expected):
    path = make_run(tmp_path / "run")
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"command": words}))
    assert read_sources(path)[0].command == expected


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("failed", "was failed: loss is NaN"),
        ("interrupted", "was interrupted: loss is NaN"),
        ("running", "not finished"),
    ],
)
def test_a_run_that_did_not_finish_says_so(tmp_path, status, words):
    path = make_run(tmp_path / "run", status=status, message="loss is NaN")
    (problem,) = read_sources(path)[0].problems
    assert str(path) in problem and words in problem


def test_rows_alone_are_read_and_those_of_a_run_stand_for_the_run(tmp_path):
    path = make_run(tmp_path / "run")
    (source,) = read_sources([path / "rows.csv", path])
    assert source.path == path and source.info is not None
    alone = tmp_path / "measured.csv"
    shutil.copy(path / "rows.csv", alone)
    (source,) = read_sources(alone)
    assert (source.name, source.info, source.command, source.problems) == ("measured.csv", None, "", ())
    assert source.rows == tuple(RunFolder.open(path).rows)
    (path / "run.json").unlink()
    (source,) = read_sources(path)
    assert source.info is None and "there is no run.json" in source.problems[0]


def test_an_incomplete_last_line_is_left_out_and_named(tmp_path):
    path = make_run(tmp_path / "run")
    alone = tmp_path / "measured.csv"
    alone.write_text((path / "rows.csv").read_text() + "1,cut")
    (source,) = read_sources(alone)
    assert len(source.rows) == 1 and "line 3: the last line is incomplete" in source.problems[0]


def test_tables_of_other_tools_are_read_beside_runs(tmp_path):
    run = make_run(tmp_path / "run")
    table = tmp_path / "theirs.tsv"
    table.write_text("net\tt\na\t3\n")
    mine, theirs = read_sources([run, str(tmp_path / "*.tsv")], TIMES)
    assert mine.info is not None and theirs.info is None
    assert theirs.rows == (Row(level=1, model="a", quantity="time", unit="s", value=0.003),)


def test_a_table_without_a_map_and_a_map_without_a_table_are_errors(tmp_path):
    run = make_run(tmp_path / "run")
    table = tmp_path / "theirs.csv"
    table.write_text("net,t\na,3\n")
    with pytest.raises(UserError, match=r"theirs.csv: no result rows .*'schema'.* field=column"):
        read_sources([run, table])
    with pytest.raises(UserError, match="no file needs it"):
        read_sources(run, TIMES)


def test_paths_that_are_wrong_are_named(tmp_path):
    with pytest.raises(UserError, match="no folder was given"):
        read_sources([])
    with pytest.raises(UserError, match=r"nowhere: there is no such file or folder"):
        read_sources(tmp_path / "nowhere")
    with pytest.raises(UserError, match="nothing matches this pattern"):
        read_sources(str(tmp_path / "*.csv"))
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(UserError, match="no run folder in it"):
        read_sources(str(tmp_path / "*.txt"))
    with pytest.raises(UserError, match=r"notes.txt: is a file; name a run folder"):
        find_run_folders(tmp_path / "notes.txt")
    assert find_results(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]


def test_packed_files_are_read_like_plain_ones(tmp_path):
    run = make_run(tmp_path / "run")
    (tmp_path / "run.csv.gz").write_bytes(gzip.compress((run / "rows.csv").read_bytes()))
    (tmp_path / "theirs.csv.gz").write_bytes(gzip.compress(b"net,t\na,3\n"))
    theirs, mine = sorted(read_sources(str(tmp_path / "*.gz"), TIMES), key=lambda s: s.name, reverse=True)
    assert mine.name == "run.csv.gz" and mine.rows == tuple(RunFolder.open(run).rows)
    assert [row.value for row in theirs.rows] == [0.003]
    cut = gzip.compress(b"net,t\na,3\n")[:-9]
    (tmp_path / "theirs.csv.gz").write_bytes(cut)
    with pytest.raises(UserError, match=r"theirs.csv.gz: is damaged: no whole gzip file"):
        read_sources(tmp_path / "theirs.csv.gz", TIMES)


@pytest.mark.parametrize("text", ["x" * 200_000 + ",t\n1,2\n", "a\rb\rc\r", '"net\n', ",,,\n,,,\n"])
def test_files_that_are_no_table_of_rows_are_explained_whatever_is_in_them(tmp_path, text):
    path = tmp_path / "theirs.csv"
    path.write_bytes(text.encode())
    with pytest.raises(UserError, match=r"theirs.csv: no result rows"):
        read_sources(path)
    with pytest.raises(UserError, match=r"theirs.csv"):
        read_sources(path, TIMES)


def test_environments_of_the_wrong_kind_are_named(tmp_path):
    path = make_run(tmp_path / "run")
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"environment": {"cpu": "fast"}}))
    with pytest.raises(UserError, match=r"run.json: is damaged: 'environment.cpu' is no table: 'fast'"):
        read_sources(path)
