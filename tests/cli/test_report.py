"""``meta500 report`` as a process: what it writes and prints, and its messages."""

import json
import subprocess
import sys

import pytest

from tests.metrics.report_rows import make_run, measured_rows, training_rows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("report") / "a run", measured_rows() + training_rows())


def report(folder, *arguments):
    words = [sys.executable, "-m", "meta500", "report", *map(str, arguments)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def test_all_formats_and_a_second_run_of_the_same_command(run, tmp_path):
    formats = ("--format", "html,markdown,latex", "--format", "svg", "--figure", "loss-samples")
    for _ in range(2):
        done = report(tmp_path, run, *formats, "--title", "My report")
        assert done.returncode == 0, done.stderr
    found = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert found == ["loss-samples.svg", "report.html", "report.json", "tables.md", "tables.tex"]
    assert done.stdout.splitlines()[0].startswith("report/loss-samples.svg  (")
    assert "<h1>My report</h1>" in (tmp_path / "report" / "report.html").read_text()
    assert (tmp_path / "report" / "tables.md").read_text().startswith("# My report\n")
    assert "\\toprule" in (tmp_path / "report" / "tables.tex").read_text()


def test_json_names_files_figures_tables_and_what_is_missing(run, tmp_path):
    done = report(tmp_path, run, "--format", "png", "--filter", "unet-0", "--json", "--out", "x")
    found = json.loads(done.stdout)
    assert found["files"] and all(name.startswith("x/") and name.endswith(".png") for name in found["files"])
    assert "time-1-inference" in found["figures"] and found["tables"] == []
    assert "Scaling" in [entry["what"] for entry in found["missing"]]


def test_figures_that_the_next_report_lacks_are_removed_and_named(run, tmp_path):
    report(tmp_path, run, "--format", "svg", "--filter", "-accuracy")
    before = {path.name for path in (tmp_path / "report").glob("*.svg")}
    done = report(tmp_path, run, "--format", "svg", "--filter", "unet-0", "--json")
    after = {path.name for path in (tmp_path / "report").glob("*.svg")}
    assert {f"report/{name}" for name in before - after} == set(json.loads(done.stdout)["removed"])
    assert "loss-samples.svg" in before - after and after
    assert "note: report/loss-samples.svg: removed: an earlier report wrote it" in done.stderr


def test_a_table_of_another_tool(tmp_path):
    (tmp_path / "other.csv").write_text("kernel,ms\nconv,1.5\nconv,1.7\nrelu,0.5\n")
    pairs = ("operator=kernel", "value=ms", "unit==ms", "level==0", "quantity==time")
    words = [word for pair in pairs for word in ("--column", pair)]
    done = report(tmp_path, "other.csv", "--format", "markdown", *words)
    assert done.returncode == 0, done.stderr
    assert "conv" in (tmp_path / "report" / "tables.md").read_text()


def test_files_of_others_stay(run, tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.html").write_text("mine")
    done = report(tmp_path, run)
    assert done.returncode == 2
    assert "report/report.html: is there already and was not written by `meta500 report`" in done.stderr
    assert (tmp_path / "report" / "report.html").read_text() == "mine"


def test_no_such_run(tmp_path):
    done = report(tmp_path, "nothing")
    assert done.returncode == 2 and "nothing" in done.stderr and "Traceback" not in done.stderr
