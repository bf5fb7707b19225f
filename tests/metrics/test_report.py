"""Pages: everything is on them, nothing is executed or loaded, and verdicts follow from intervals."""

import base64
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.plots.lines import Line, LinePanel, draw_lines
from meta500.metrics.report import Figure, Finding, Findings, Paragraph, Section, Table, write_page
from meta500.metrics.report.findings import (
    AGREES,
    CONTRADICTS,
    NOT_MEASURED,
    UNDECIDED,
    all_of,
    confident_interval,
    decisive,
    judged,
    row_interval,
    stands,
)
from meta500.metrics.report.page import Heading, facts_of
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval

HOSTILE = "<script>alert(1)</script>\" onload='x' & {{ 7 * 7 }} é"


def picture(name="time", caption="Time against size."):
    line = Line("a", [1, 2, 4], [1e-3, 2e-3, 5e-3], [0.9e-3, 1.9e-3, 4e-3], [1.1e-3, 2.1e-3, 6e-3])
    panel = LinePanel("", "size", "time ({unit})", [line], log_x=True, log_y=True, seconds=True)
    return Figure(name, caption, lambda: draw_lines([panel]))


class Reader(HTMLParser):
    """Tags that are open, attributes, and the text."""

    void = {"meta", "img", "br", "link"}

    def __init__(self):
        super().__init__()
        self.stack, self.seen, self.text, self.attributes = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.attributes += attributes
        if tag not in self.void:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(path):
    reader = Reader()
    reader.feed(path.read_text())
    assert not reader.stack
    return reader


def page(tmp_path, *parts, heading=None):
    path = tmp_path / "report.html"
    sections = [Section("First", list(parts)), Section("Second", [])]
    write_page(path, heading or Heading("A study"), sections, tmp_path / "plots", [("rows.csv", "the rows")])
    return path


def test_all_parts_are_on_the_page_and_figures_are_inside_and_in_files(tmp_path):
    findings = Findings(
        [Finding("2.0 times as fast.", "it is slower", "section 3", "contradicts"), Finding("So.")]
    )
    table = Table("Times", ("what", "time"), [("a", "1 ms"), ("b", "2 ms")], note="Medians.")
    path = page(tmp_path, Paragraph("Hello."), findings, table, picture())
    reader = read(path)
    text = " ".join(" ".join(reader.text).split())
    for word in ("Hello.", "contradicts", "2.0 times as fast.", "The source (section 3): it is slower", "So.",
                 "Times", "1 ms", "Medians.", "Time against size.", "the rows"):  # fmt: skip
        assert word in text
    assert reader.seen.count("tr") == 3 and reader.seen.count("h2") == 2
    image = dict(reader.attributes)["src"]
    assert image.startswith("data:image/svg+xml;base64,")
    assert base64.b64decode(image.partition(",")[2]).lstrip().startswith(b"<?xml")
    assert sorted(p.name for p in (tmp_path / "plots").iterdir()) == ["time.pdf", "time.png"]


def test_an_interval_may_stand_below_its_number_and_words_stay_together(tmp_path):
    table = Table("Times", ("what", "time"), [("a [1]", "2.5 [2, 3] ms"), ("b", "-")])
    text = page(tmp_path, table).read_text()
    assert "<td>a [1]</td>" in text
    assert '<td class="number"><span>2.5</span> <span>[2, 3] ms</span></td>' in text
    assert '<td class="number"><span>-</span></td>' in text


def test_nothing_is_loaded_from_elsewhere(tmp_path):
    reader = read(page(tmp_path, picture()))
    assert not {"script", "link", "iframe", "object", "embed"} & set(reader.seen)
    for name, value in reader.attributes:
        if name == "src":
            assert value.startswith("data:")
        if name == "href":
            assert not re.match(r"[a-z]+:|//", value)


def test_hostile_texts_stay_texts(tmp_path):
    heading = Heading(HOSTILE, [HOSTILE], [(HOSTILE, HOSTILE)], [HOSTILE])
    parts = [
        Paragraph(HOSTILE),
        Findings([Finding(HOSTILE, HOSTILE, HOSTILE, "agrees")]),
        Table(HOSTILE, (HOSTILE, HOSTILE), [(HOSTILE, HOSTILE)], note=HOSTILE),
        picture(caption=HOSTILE),
    ]
    reader = read(page(tmp_path, *parts, heading=heading))
    assert "script" not in reader.seen and not any(name.startswith("on") for name, _ in reader.attributes)
    assert "".join(reader.text).count(HOSTILE) >= 13


def test_the_same_report_is_the_same_file(tmp_path):
    first = page(tmp_path, picture()).read_bytes()
    assert page(tmp_path, picture()).read_bytes() == first


def test_two_figures_of_one_name_are_refused(tmp_path):
    with pytest.raises(UserError, match="two figures are called 'time'"):
        page(tmp_path, picture(), picture())


def test_a_figure_that_cannot_be_drawn_costs_only_itself(tmp_path):
    broken = Figure("broken", "What would be here.", lambda: draw_lines([]))
    path = page(tmp_path, broken, picture())
    text = "".join(read(path).text)
    assert "Not drawn: there is nothing to draw" in text and "What would be here." in text
    assert "data:image/svg+xml" in path.read_text()
    with pytest.raises(UserError, match="two figures are called 'broken'"):
        page(tmp_path, broken, broken)


def test_a_page_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        page(tmp_path, Paragraph("x"))


def test_tables_and_findings_refuse_what_does_not_fit():
    with pytest.raises(UserError, match="3 cells, there are 2 columns"):
        Table("t", ("a", "b"), [("1", "2", "3")])
    with pytest.raises(UserError, match="must be one of"):
        Finding("x", "claim")
    with pytest.raises(UserError, match="must be one of"):
        Finding("x", "", "", "agrees")
    with pytest.raises(UserError, match="must be one of"):
        Finding("x", "claim", "", "perhaps")


@given(st.floats(-10, 10), st.floats(0, 5), st.floats(-10, 10), st.booleans())
def test_verdicts_follow_from_intervals(low, width, border, above):
    high = low + width
    verdict = stands(low, high, border, claimed_above=above)
    opposite = stands(-high, -low, -border, claimed_above=not above)
    assert verdict == opposite
    if low <= border <= high:
        assert verdict == "undecided"
    else:
        assert (verdict == "agrees") == ((low > border) == above)


def test_a_claim_about_several_things():
    assert all_of([AGREES, AGREES]) == AGREES
    assert all_of([AGREES, UNDECIDED]) == UNDECIDED
    assert all_of([AGREES, UNDECIDED, CONTRADICTS]) == CONTRADICTS
    assert all_of([AGREES, NOT_MEASURED]) == AGREES
    assert all_of([NOT_MEASURED]) == all_of([]) == NOT_MEASURED


def test_intervals_of_several_things_are_wider():
    """Of 9 samples the ends are the second of each side at 95 %, which miss in 3.9 %: too often for two."""
    samples = [float(k) for k in range(9)]
    row = Row(
        level=0, quantity="ratio", unit="1", value=4.0, low=1.0, high=7.0, confidence=0.96, samples=samples
    )
    for found in (confident_interval(samples), row_interval(row)):
        assert (found.low, found.high) == (1.0, 7.0) and decisive(found)
    for found in (confident_interval(samples, 2), row_interval(row, 2)):
        assert (found.low, found.high) == (0.0, 8.0) and found.confidence == 1 - 2 / 2**9
        assert decisive(found, 2) and decisive(found, 25) and not decisive(found, 26)


def test_rows_without_samples_keep_their_interval():
    known = {"level": 0, "quantity": "ratio", "unit": "1", "value": 2.0}
    assert row_interval(None) is None and row_interval(Row(**known)) is None
    found = row_interval(Row(**known, low=1.5, high=2.5, confidence=0.95), 5)
    assert found == Interval(2.0, 1.5, 2.5, 0.95)
    assert not decisive(found, 5)


def test_intervals_of_few_samples_judge_nothing():
    assert judged(Interval(2.0, 1.9, 2.1, 0.95), 1.0, claimed_above=True) == AGREES
    assert judged(Interval(2.0, 1.9, 2.1, 0.95), 1.0, claimed_above=False) == CONTRADICTS
    assert judged(Interval(2.0, 1.9, 2.1, 0.75), 1.0, claimed_above=True) == UNDECIDED
    assert judged(Interval(2.0, 1.9, 2.1, 0.95), 1.0, claimed_above=True, cases=3) == UNDECIDED
    assert judged(None, 1.0, claimed_above=True) == NOT_MEASURED


def test_facts_of_a_run_leave_out_what_is_unknown():
    info = {
        "id": "1",
        "command": ["/usr/bin/meta500", "study", "compile"],
        "environment": {
            "cpu": {"model": "A CPU", "physical_cores": 2, "vector": ["avx2"]},
            "python": {"version": "3"},
        },
    }
    facts = dict(facts_of(info))
    assert facts == {
        "Command": "meta500 study compile",
        "Run": "1",
        "Processor": "A CPU, 2 cores, avx2",
        "Software": "Python 3",
    }


def test_lines_refuse_differing_lengths_and_nothing():
    with pytest.raises(UserError, match="same length"):
        Line("a", [1, 2], [1])
    with pytest.raises(UserError, match="same length"):
        Line("a", [1], [1], low=[0])
    with pytest.raises(UserError, match="no panels"):
        draw_lines([])


def test_lines_are_drawn_where_the_numbers_are_with_unit_and_intervals():
    panel = LinePanel("t", "threads", "time ({unit})", [
        Line("a", [1, 2], [2e-3, 1e-3], [1.9e-3, 0.8e-3], [2.1e-3, 1.2e-3]), Line("b", [1, 2], [4e-3, float("nan")]),
    ], seconds=True, x_ticks=[1, 2], marks=[(3e-3, "limit")])  # fmt: skip
    figure = draw_lines([panel, LinePanel("u", "x", "y", [Line("a", [1, 10], [1, 5])], log_x=True)])
    axes = figure.axes[0]
    assert axes.get_ylabel() == "time (ms)"
    assert next(list(line.get_ydata()) for line in axes.lines if len(line.get_xdata()) == 2) == [2.0, 1.0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "2"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a", "b"]
