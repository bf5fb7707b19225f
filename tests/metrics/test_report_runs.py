"""The page of runs and its folder: everything is on it, names stay texts, foreign files are left alone."""

import base64
import gzip
import hashlib
import json
import re
import shlex
from html.parser import HTMLParser

import pytest

from meta500.errors import UserError
from meta500.metrics import RunFolder
from meta500.metrics.report.environments import environments_of
from meta500.metrics.report.output import MANIFEST, Output
from meta500.metrics.report.reports import (
    Request,
    chosen_rows,
    latex_text,
    named_rows,
    slim,
    write_report,
)
from meta500.metrics.report.run_page import MOST_LINES, RunPage, embedded, file_name, page_text, ranges
from meta500.metrics.report.sources import read_sources
from meta500.metrics.report.summary import summary_of
from meta500.metrics.report.tables import Cell, Column, DataTable, tables_of
from meta500.metrics.rows import read_csv
from tests.metrics.report_rows import (
    HOSTILE,
    data_of,
    hostile_rows,
    make_run,
    measured_rows,
    timed,
    training_rows,
)


class Reader(HTMLParser):
    """Elements with their attributes, and the texts outside of scripts and styles."""

    void = {"meta", "img", "br", "link", "input"}

    def __init__(self, text):
        super().__init__()
        self.stack, self.elements, self.texts, self.scripts = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.void:
            self.stack.append(tag)
            if tag == "script":
                self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif not self.stack or self.stack[-1] != "style":
            self.texts.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page of two runs, one of them hostile in all its names, and what was written."""
    root = tmp_path_factory.mktemp("reports")
    good = make_run(root / "good", measured_rows() + training_rows(), cpu="One CPU")
    bad = make_run(root / "<svg onload=alert(1)>", hostile_rows(), cpu=HOSTILE[1])
    report = write_report(Request([str(good), str(bad)], root / "out", title=HOSTILE[0]))
    return root, report, (root / "out" / "report.html").read_text()


def test_only_the_scripts_with_a_checksum_run_and_nothing_is_loaded(written):
    reader = Reader(written[2])
    [policy] = [a["content"] for tag, a in reader.elements if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none';") and "connect-src" not in policy
    allowed = re.search(r"script-src ([^;]*)", policy)[1].split()
    executed = [text for attributes, text in reader.scripts if "type" not in attributes]
    sums = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in executed]
    assert [f"'sha256-{value}'" for value in sums] == allowed and len(sums) == 2
    assert "plotly.js" in executed[1][:200]
    for tag, attributes in reader.elements:
        assert tag not in ("iframe", "object", "embed", "link", "base", "form", "svg")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            assert re.match(r"#|data:(image/svg\+xml|application/gzip);base64,", attributes.get(name, "#"))


def test_hostile_names_stand_on_the_page_as_texts(written):
    texts = " ".join(Reader(written[2]).texts)
    for name in HOSTILE[:5]:
        assert " ".join(name.split()) in " ".join(texts.split())
    assert "<svg onload=alert(1)>" in texts
    assert json.dumps(data_of(written[2]))


def test_figures_have_both_kinds_a_command_and_rows(written):
    root, report, text = written
    data = data_of(text)
    reader = Reader(text)
    figures = [a["data-name"] for tag, a in reader.elements if tag == "figure"]
    assert set(figures) == set(report.figures) == set(data["rows"])
    # Three kinds have only the static figure.
    alone = {name for name in figures if re.match("sampling|scaling-(errors|network)", name)}
    assert alone and set(data["figures"]) == set(figures) - alone
    commands = [t for t in reader.texts if t.startswith("meta500 report ")]
    assert len(commands) == len(figures)
    words = shlex.split(commands[0])
    assert words[2:4] == [str(root / "good"), str(root / "<svg onload=alert(1)>")]
    assert words[4:6] == ["--figure", figures[0]] and words[6:] == [
        "--format",
        "svg",
        "--out",
        str(root / "out"),
    ]
    for image in (a["src"] for tag, a in reader.elements if tag == "img"):
        assert b"<svg" in base64.b64decode(image.partition(",")[2])


def test_the_files_in_the_page_are_the_rows_and_figures_point_into_them(written, tmp_path):
    root, _, text = written
    files = [a for tag, a in Reader(text).elements if a.get("class") == "file"]
    assert [a["download"] for a in files] == ["good.csv.gz", "svg-onload-alert-1.csv.gz"]
    path = tmp_path / "rows.csv"
    path.write_bytes(gzip.decompress(base64.b64decode(files[0]["href"].partition(",")[2])))
    rows = read_csv(path)
    assert rows == read_csv(root / "good" / "rows.csv")
    places = [line for line in data_of(text)["rows"]["loss-samples"] if line[0] == 0]
    [[_, first, last]] = places
    assert [(r.phase, r.quantity) for r in rows[first : last + 1]] == [("training_step", "loss")]


def test_all_tables_are_on_the_page_with_values_to_sort_by(written):
    root, report, text = written
    reader = Reader(text)
    keys = [
        a["id"].removeprefix("table-") for _, a in reader.elements if a.get("id", "").startswith("table-")
    ]
    assert keys == list(report.tables) and keys
    values = [float(a["data-value"]) for tag, a in reader.elements if tag == "td" and "data-value" in a]
    tables = tables_of(read_sources([str(root / "good"), str(root / "<svg onload=alert(1)>")]))
    cells = [cell for table in tables for row in table.rows[:MOST_LINES] for cell in row]
    assert values and values == [cell.value for cell in cells if cell.value is not None]


def test_the_summary_names_verdicts_and_the_main_results():
    rows = measured_rows() + training_rows() + training_rows(optimizer="adam")[:-3]
    pairs = dict(summary_of([], rows))
    assert pairs["Verdicts"].startswith("11 ok, 2 wrong, 1 unsupported, ")
    assert pairs["Highest test accuracy"] == "80.00 % after epoch 2: mlp sgd torch"
    assert pairs["Ratios"] == "1 with an interval: 0 below 1, 1 above 1, 0 with 1 in their interval"
    assert "Shortest time to accuracy" not in pairs


def test_differences_between_machines_come_first(tmp_path):
    paths = [make_run(tmp_path / name, [], cpu=cpu) for name, cpu in (("a", "Fast CPU"), ("b", "Slow CPU"))]
    found = environments_of(read_sources(list(map(str, paths))))
    assert found.main[0].name == "Processor" and found.main[0].differs
    assert [value.split(",")[0] for value in found.main[0].values] == ["Fast CPU", "Slow CPU"]
    assert not found.main[1].differs and found.details[0].name == "cpu.model"
    assert found.differences == ("Processor", "cpu.model")


def test_what_differs_is_what_comparisons_say(tmp_path):
    machine = {"cpu": {"model": "CPU"}, "memory": {"total_bytes": 8, "available_bytes": 4}}
    environments = [
        {**machine, "git": {"commit": "a", "dirty": False}, "load": [0.1, 0.1, 0.1]},
        {**machine, "git": {"commit": "a", "dirty": True}, "load": [0.3, 0.1, 0.1]},
        {**machine, "memory": {"total_bytes": 8, "available_bytes": 1}, "load": [1.5, 0.1, 0.1]},
    ]
    paths = []
    for place, environment in enumerate(environments):
        with RunFolder.create(tmp_path / str(place), environment=environment, command=["meta500"]) as run:
            paths.append(str(run.path))
    assert environments_of(read_sources(paths[:2])).differences == ()
    found = environments_of(read_sources(paths))
    assert set(found.differences) == {"git.commit", "load"}
    assert {f.name: f.values for f in found.details}["git.dirty"] == ("no", "yes", "unknown")


def test_a_command_of_the_wrong_kind_is_no_command(tmp_path):
    path = make_run(tmp_path / "run", [])
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"command": 3, "continued": "now"}))
    assert [fact.name for fact in environments_of(read_sources(path)).main] == ["Processor", "Software"]


def test_long_tables_are_cut_with_a_sentence():
    rows = tuple((Cell(f"line {n}"), Cell(str(n), float(n))) for n in range(MOST_LINES + 5))
    table = DataTable("t", "Long", (Column("a"), Column("b", "s", numeric=True)), rows)
    text = page_text(RunPage("Title", [], tables=[table]))
    assert f"line {MOST_LINES - 1}" in text and f"line {MOST_LINES}" not in text
    assert f"The first {MOST_LINES} of {MOST_LINES + 5} lines" in text
    # Without an interactive figure the page needs no plotly.
    assert len(text) < 100_000


def test_filters_choose_rows_and_the_message_names_the_runs(tmp_path):
    run = make_run(tmp_path / "first", measured_rows())
    sources = read_sources([str(run)])
    [chosen] = chosen_rows(sources, ["numpy", "-conv"])
    assert {r.backend for r in chosen.rows} == {"numpy"} and "Conv" not in {r.operator for r in chosen.rows}
    with pytest.raises(UserError, match=r"filter 'nothing': no row fits; the runs are: first"):
        chosen_rows(sources, ["nothing"])


def test_rows_of_several_sources_are_named_after_them(tmp_path):
    paths = [str(make_run(tmp_path / name, training_rows())) for name in ("a", "b")]
    rows, places = named_rows(read_sources(paths))
    assert {row.run_id for row in rows} == {"a", "b"}
    assert sorted(places.values()) == [(s, n) for s in (0, 1) for n in range(len(training_rows()))]
    page = RunPage("", [], rows=places)
    assert ranges(page, [rows[0], rows[1], rows[3], rows[-1]]) == [
        [0, 0, 1, 3, 3],
        [1, len(rows) // 2 - 1] * 1 + [len(rows) // 2 - 1],
    ]


def test_runs_in_one_file_stay_apart_beside_another_source(tmp_path):
    both = [make_run(tmp_path / name, training_rows()) / "rows.csv" for name in ("a", "b")]
    head, *lines = both[0].read_text().splitlines()
    (tmp_path / "both.csv").write_text("\n".join([head, *lines, *both[1].read_text().splitlines()[1:], ""]))
    ids = [read_csv(path)[0].run_id for path in both]
    sources = read_sources([str(tmp_path / "both.csv"), str(tmp_path / "a")])
    rows, _ = named_rows(sources)
    assert {row.run_id for row in rows} == {f"both.csv {ids[0]}", f"both.csv {ids[1]}", "a"}
    assert {row.run_id for row in named_rows(sources[:1])[0]} == set(ids)
    names = {
        row[0].text for table in tables_of(sources) if table.key == "training-totals" for row in table.rows
    }
    assert names == {row.run_id for row in rows}


def test_numbers_that_are_not_finite_are_written_for_scripts():
    numbers = (float("inf"), -float("inf"), float("nan"), 1e-300, None)
    rows = tuple((Cell("a"), Cell(str(number), number)) for number in numbers)
    table = DataTable("t", "Odd", (Column("a"), Column("b", numeric=True)), rows)
    cells = [a for tag, a in Reader(page_text(RunPage("", [], tables=[table]))).elements if tag == "td"]
    assert [a.get("data-value") for a in cells[1::2]] == ["Infinity", "-Infinity", None, "1e-300", None]


def test_files_of_an_earlier_report_go_unless_they_were_changed(tmp_path):
    run = str(make_run(tmp_path / "run", training_rows()))
    out = tmp_path / "out"
    formats = ["markdown", "svg"]
    first = write_report(Request([run], out, formats=formats))
    assert first.removed == () and (out / "loss-samples.svg").exists()
    gone, kept = sorted(path for path in first.files if path.suffix == ".svg")[:2]
    kept.write_text("edited")
    (out / "mine.svg").write_text("mine")
    other = str(make_run(tmp_path / "other", [timed(1.0, level=1, model="m", backend="b")]))
    # A figure alone is made beside the others, and figures do not replace tables.
    write_report(Request([run], out, formats=["png"], figures=["loss-samples"]))
    second = write_report(Request([other], out, formats=["svg"]))
    assert (
        set(second.removed) == {p for p in first.files if p.suffix == ".svg"} - {kept}
        and gone in second.removed
    )
    names = {path.name for path in out.iterdir()}
    assert names == {"mine.svg", kept.name, "loss-samples.png", "tables.md", MANIFEST} | {
        p.name for p in second.files
    }
    listed = json.loads((out / MANIFEST).read_text())["files"]
    assert set(listed) == names - {"mine.svg", MANIFEST}


def test_a_list_of_files_removes_nothing_elsewhere(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "far.svg").write_text("x")
    (tmp_path / "out" / "link.svg").symlink_to(tmp_path / "far.svg")
    sums = dict.fromkeys(
        ("../far.svg", "link.svg", str(tmp_path / "far.svg")), hashlib.sha256(b"x").hexdigest()
    )
    (tmp_path / "out" / MANIFEST).write_text(json.dumps({"format": "meta500 report", "files": sums}))
    assert Output(tmp_path / "out").remove_others([".svg"]) == []
    assert (tmp_path / "far.svg").exists() and (tmp_path / "out" / "link.svg").is_symlink()


def test_the_first_line_of_latex_names_all_packages():
    def first(text):
        table = DataTable("t", "Title", (Column("a"),), ((Cell(text),),))
        return latex_text([table]).splitlines()[0]

    assert first("a") == r"% needs: \usepackage{array,booktabs,longtable}"
    assert first('"a"') == r"% needs: \usepackage{array,booktabs,longtable} and \usepackage[T1]{fontenc}"


def test_own_files_are_replaced_and_others_are_not(tmp_path):
    Output(tmp_path).write("report.html", "one")
    Output(tmp_path).write("report.html", "two")
    assert (tmp_path / "report.html").read_text() == "two"
    (tmp_path / "tables.md").write_text("mine")
    with pytest.raises(UserError, match=r"tables\.md: is there already and was not written by"):
        Output(tmp_path).write("tables.md", "theirs")
    (tmp_path / "report.html").write_text("edited")
    with pytest.raises(UserError, match=r"report\.html: was changed after"):
        Output(tmp_path).write("report.html", "three")
    assert (tmp_path / "report.html").read_text() == "edited"
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(UserError, match=r"is not the list of a report's files"):
        Output(tmp_path)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        Output(tmp_path / "out")


def test_what_is_embedded_ends_no_script_and_is_the_same_json():
    data = {"names": [*HOSTILE, "\u2028\u2029"]}
    text = embedded(data)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == data


def test_names_of_files_of_rows():
    assert file_name("../../etc/passwd") == "etc-passwd"
    assert file_name("runs/a b.csv") == "runs-a-b"
    assert file_name("<>") == "rows"
    assert file_name("rows of a.csv.gz") == "rows-of-a"


def test_slim_pictures_keep_hundredths_of_a_point_and_the_rest():
    svg = b'<path d="M 1.23456 -7.891 \nL 3 4" transform="scale(0.015625)"/>'
    assert slim(svg) == b'<path d="M 1.23 -7.89 L 3 4" transform="scale(0.015625)"/>'


def test_unknown_formats_and_figures(tmp_path):
    run = str(make_run(tmp_path / "run", [timed(1.0, level=1, model="m", backend="b")]))
    with pytest.raises(UserError, match="unknown format of reports 'hmtl'. Did you mean 'html'"):
        write_report(Request([run], tmp_path / "out", formats=["hmtl"]))
    with pytest.raises(UserError, match="unknown figure 'time-1-backward'"):
        write_report(Request([run], tmp_path / "out", figures=["time-1-backward"]))
    assert not (tmp_path / "out").exists()
