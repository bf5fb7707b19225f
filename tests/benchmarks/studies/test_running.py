"""Studies piece by piece: rows, failures, interruption and going on, and the report from the folder alone."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
import types

import pytest

from meta500.benchmarks.studies import study as studies
from meta500.benchmarks.studies.report import missing_table, write_report
from meta500.benchmarks.studies.running import run_study
from meta500.benchmarks.studies.select import one, select, unique
from meta500.benchmarks.studies.study import Piece, Study, sections_of
from meta500.errors import UserError
from meta500.metrics.contention import Contention
from meta500.metrics.report import Finding, Findings, Paragraph, Section
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder


def row(node, value=1.0, **more):
    return Row(**{"level": 0, "node": node, "quantity": "time", "unit": "s", "value": value, **more})


def emits(*rows, log=None, key=""):
    def run(emit):
        if log is not None:
            log.append(key)
        for entry in rows:
            emit(entry)

    return run


def small(log=None, **changes):
    pieces = tuple(Piece(key, f"piece {key}", emits(row(key), log=log, key=key)) for key in "abc")
    whole = Study(
        "toy", "A toy study", "a source", {"quick": True, "sizes": (1, 2)}, pieces, ("By counting.",)
    )
    return dataclasses.replace(whole, **changes)


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    """A study called "toy" whose report lists its nodes."""
    package = types.ModuleType("toy_study")
    package.sections = lambda rows: [
        Section("Findings", [Findings([Finding(f"{len(rows)} rows: " + " ".join(r.node for r in rows))])])
    ]
    monkeypatch.setitem(sys.modules, "toy_study", package)
    monkeypatch.setitem(studies._PACKAGES, "toy", "toy_study")
    monkeypatch.setattr(studies, "NAMES", (*studies.NAMES, "toy"))


def test_every_piece_is_run_once_and_the_report_is_made_from_the_folder(tmp_path):
    log, seen = [], []
    folder = run_study(small(log), out=tmp_path / "s", progress=lambda *what: seen.append(what))
    assert log == ["a", "b", "c"] and seen[1] == (2, 3, "piece b")
    opened = RunFolder.open(folder.path)
    assert opened.status == "finished" and [r.node for r in opened.rows] == ["a", "b", "c"]
    assert opened.info["study"]["done"] == ["a", "b", "c"]
    page = write_report(opened).read_text()
    assert "3 rows: a b c" in page and "A quick run" in page and "By counting." in page
    assert "did not finish" not in page


def test_parts_during_which_other_programs_worked_are_named(tmp_path, monkeypatch):
    shares = iter([0.25, None, 0.0])
    monkeypatch.setattr(Contention, "share", lambda self: next(shares))
    folder = run_study(small(), out=tmp_path / "s")
    about = json.loads((tmp_path / "s" / "run.json").read_text())["study"]
    assert about["others"] == {"a": 0.25, "c": 0.0} and set(about["seconds"]) == {"a", "b", "c"}
    folder.info["study"] |= {
        "seconds": {"a": 2.0, "b": 60.0, "c": 0.5},
        "others": {"a": 0.04, "b": 0.48, "c": 0.9},
    }
    page = write_report(folder).read_text()
    assert "during 1 of 3 parts" in page and "b (48%)" in page and "c (" not in page
    folder.info["study"]["others"] = {"a": 0.04, "b": 0.01, "c": 0.9}
    assert "Other programs" not in write_report(folder).read_text()


def test_a_finished_study_is_not_run_again(tmp_path):
    run_study(small(), out=tmp_path / "s")
    log = []
    assert run_study(small(log), out=tmp_path / "s").status == "finished"
    assert log == []


def test_a_piece_that_fails_costs_only_itself(tmp_path):
    def fails(emit):
        emit(row("half"))
        raise ValueError("no such kernel")

    def refuses(emit):
        raise UserError("--mode 'x' is unknown")

    pieces = (Piece("bad", "", fails), Piece("worse", "", refuses), Piece("good", "", emits(row("good"))))
    folder = run_study(small(pieces=pieces), out=tmp_path / "s")
    assert folder.status == "finished"
    assert [(r.node, r.verdict, r.note) for r in folder.rows] == [
        ("half", "not_compared", ""),
        ("bad", "failed", "ValueError: no such kernel"),
        ("worse", "failed", "--mode 'x' is unknown"),
        ("good", "not_compared", ""),
    ]
    page = write_report(folder).read_text()
    assert "ValueError: no such kernel" in page and "--mode &#39;x&#39; is unknown" in page


def test_an_interrupted_study_goes_on_and_drops_the_rows_of_the_piece_under_way(tmp_path, capsys):
    def stopped(emit):
        emit(row("b", 7.0))
        raise KeyboardInterrupt

    pieces = small().pieces
    broken = small(pieces=(pieces[0], Piece("b", "", stopped), pieces[2]))
    with pytest.raises(KeyboardInterrupt):
        run_study(broken, out=tmp_path / "s")
    assert "1 of 3 parts" in capsys.readouterr().err
    half = RunFolder.open(tmp_path / "s")
    assert half.status == "interrupted" and [r.value for r in half.rows] == [1.0, 7.0]
    assert "1 of 3 parts are done" in (tmp_path / "s" / "report.html").read_text()
    log = []
    folder = run_study(small(log), out=tmp_path / "s")
    assert log == ["b", "c"]
    assert [(r.node, r.value) for r in folder.rows] == [("a", 1.0), ("b", 1.0), ("c", 1.0)]
    assert folder.status == "finished" and len(folder.info["continued"]) == 1
    assert len({r.run_id for r in folder.rows}) == 1


def test_a_killed_study_goes_on(tmp_path):
    """Killed without a chance to note anything, in the middle of a row."""
    script = textwrap.dedent(
        f"""
        import os, signal
        from meta500.benchmarks.studies.running import run_study
        from meta500.benchmarks.studies.study import Piece, Study
        from meta500.metrics.rows import Row
        def row(node):
            return Row(level=0, node=node, quantity="time", unit="s", value=1.0)
        def killed(emit):
            emit(row("b"))
            os.kill(os.getpid(), signal.SIGKILL)
        pieces = (Piece("a", "", lambda emit: emit(row("a"))), Piece("b", "", killed), Piece("c", "", print))
        settings = {{"quick": True, "sizes": (1, 2)}}
        study = Study("toy", "A toy study", "a source", settings, pieces, ("By counting.",))
        run_study(study, out=__import__("pathlib").Path(
            {str(tmp_path / "s")!r}))
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open(tmp_path / "s" / "rows.csv", "a") as rows:
        rows.write("1,half a row")
    folder = run_study(small(), out=tmp_path / "s")
    assert [r.node for r in folder.rows] == ["a", "b", "c"] and folder.status == "finished"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"quick": False, "sizes": (1, 2)}}, ["quick = true", "now it is false"]),
        ({"settings": {"quick": True, "sizes": (1, 2), "new": 1}}, ["new = null", "now it is 1"]),
        ({"name": "adjoint"}, ["not one of the study 'adjoint'"]),
        ({"pieces": small().pieces[:2]}, ["other parts"]),
        ({"protocol": ("By weighing.",)}, ["measures it otherwise"]),
    ],
)
def test_a_folder_is_gone_on_with_by_the_same_study_only(tmp_path, changes, words):
    with RunFolder.create(tmp_path / "s") as folder:
        folder.info["study"] = {
            "name": "toy",
            "settings": {"quick": True, "sizes": [1, 2]},
            "pieces": ["a", "b", "c"],
            "protocol": ["By counting."],
            "done": [],
            "notes": [],
        }
        folder.checkpoint()
        folder.finish("interrupted")
    before = (tmp_path / "s" / "run.json").read_bytes()
    with pytest.raises(UserError) as error:
        run_study(small(**changes), out=tmp_path / "s")
    for word in words:
        assert word in str(error.value)
    assert (tmp_path / "s" / "run.json").read_bytes() == before


def test_another_run_is_left_alone(tmp_path):
    with RunFolder.create(tmp_path / "s") as folder:
        folder.append(row("x"))
    with pytest.raises(UserError, match="not one of the study 'toy'"):
        run_study(small(), out=tmp_path / "s")
    with pytest.raises(UserError, match="holds no study"):
        write_report(RunFolder.open(tmp_path / "s"))


def test_two_processes_cannot_write_one_study(tmp_path):
    folder = RunFolder.create(tmp_path / "s")
    folder.checkpoint()
    script = f"from meta500.metrics.run import RunFolder; RunFolder.resume({str(tmp_path / 's')!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "another process is writing this run" in done.stderr
    folder.append(row("still here"))
    folder.finish()
    assert [r.node for r in RunFolder.open(tmp_path / "s").rows] == ["still here"]


def test_changes_of_the_machine_are_noted(tmp_path):
    def stopped(emit):
        raise KeyboardInterrupt

    pieces = small().pieces
    with pytest.raises(KeyboardInterrupt):
        run_study(small(pieces=(pieces[0], Piece("b", "", stopped), pieces[2])), out=tmp_path / "s")
    file = tmp_path / "s" / "run.json"
    info = json.loads(file.read_text())
    info["environment"]["versions"]["torch"] = "0.1"
    file.write_text(json.dumps(info))
    folder = run_study(small(), out=tmp_path / "s")
    assert "versions.torch changed" in folder.info["study"]["notes"][0]
    assert "versions.torch changed" in write_report(folder).read_text()


def test_pieces_with_the_same_key_are_refused(tmp_path):
    piece = small().pieces[0]
    with pytest.raises(UserError, match="same key"):
        run_study(small(pieces=(piece, piece)), out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_missing_table_names_what_and_why_once():
    rows = [
        row("a"),
        row("b", None, verdict="unsupported", note="no GPU", backend="cudnn"),
        row("b", None, verdict="unsupported", note="no GPU", backend="cudnn"),
        row("c", None, verdict="failed", note="<boom>", phase="training_step", batch=4),
    ]
    table = missing_table(rows)
    assert [tuple(r) for r in table.rows] == [
        ("b", "cudnn", "unsupported", "no GPU"),
        ("c, training step, batch 4", "", "failed", "<boom>"),
    ]
    assert missing_table(rows[:1]) is None


def test_selecting_rows():
    rows = [
        row("a", 1.0),
        row("b", 2.0, threads=2),
        row("a", 3.0, threads=1),
        row("a", None, verdict="failed"),
    ]
    assert [r.value for r in select(rows, node="a", verdict="not_compared")] == [1.0, 3.0]
    assert [r.value for r in select(rows, threads={1, 2})] == [2.0, 3.0]
    assert one(rows, node="a").value == 3.0 and one(rows, node="z") is None
    assert unique(rows, "node") == ["a", "b"] and unique(rows, "threads") == [2, 1]
    with pytest.raises(KeyError):
        select(rows, nod="a")


def test_unknown_studies_are_refused():
    with pytest.raises(UserError, match="unknown study 'compil'.*Did you mean 'compile'"):
        sections_of("compil", [])


@pytest.mark.parametrize("name", ["compile", "abstraction", "adjoint", "codegen"])
def test_reports_of_no_rows_at_all_claim_nothing(name):
    sections = sections_of(name, [])
    findings = [f for s in sections for p in s.parts if isinstance(p, Findings) for f in p.findings]
    assert findings and all(f.verdict in ("", "not measured") for f in findings)
    assert not any(isinstance(p, Paragraph) and not p.text for s in sections for p in s.parts)


def cli(*arguments, cwd):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "meta500", "study", *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compile", "--part", "product"), ["--part", "product", "products"]),
        (("abstraction", "--level", "libtroch"), ["--level", "libtroch", "libtorch"]),
        (("adjoint", "--part", "unets"), ["--part", "unets", "unet"]),
        (("codegen", "--precision", "float16"), ["--precision", "float16", "float32"]),
        (("report", "nowhere"), ["nowhere", "there is no such folder"]),
    ],
)
def test_mistakes_end_in_one_line(arguments, words, tmp_path):
    done = cli(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    message = [line for line in done.stderr.splitlines() if line.startswith("meta500: error:")]
    assert len(message) == 1
    for word in words:
        assert word in message[0]
    assert not (tmp_path / "runs").exists()
