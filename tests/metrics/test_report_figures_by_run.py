"""Figures of several runs, names that are cut, rows of pages, and numbers that cannot be drawn."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.plots.roofline import BANDWIDTH, PEAK, PHASE
from meta500.metrics.plots.scaling import studies_from_rows
from meta500.metrics.report import interactive_models
from meta500.metrics.report.figures import figures_of
from meta500.metrics.report.interactive import Store
from meta500.metrics.report.names import columned, unique_names
from meta500.metrics.report.page_figure import MOST_PAGES
from meta500.metrics.report.reports import Request, draw, write_report
from meta500.metrics.rows import Row
from tests.metrics.report_rows import make_run, measured_rows, scaling_rows, timed, training_rows

BY_RUN = ("Roofline", "Heat map of errors", "Scaling")


def spec_of(figure):
    return figure.interactive(Store())


def of_runs(**rows):
    """Rows with the names of their runs."""
    return [replace(row, run_id=name) for name, some in rows.items() for row in some]


def faster(rows, factor):
    """The same rows of a machine that is so much faster."""
    changed = []
    for row in rows:
        scale = factor if row.quantity.endswith("_rate") or row.phase == PHASE else 1.0
        changed.append(replace(row, value=row.value and scale * row.value))
    return changed


def test_rooflines_errors_and_scaling_have_figures_for_each_run():
    rows = [row for row in measured_rows() if row.level != 3]
    rows = of_runs(slow=rows + scaling_rows(10.0), fast=faster(rows, 10) + scaling_rows(1.0))
    figures, _ = figures_of(rows)
    for kind in BY_RUN:
        mine = [figure for figure in figures if figure.kind == kind]
        for run in ("slow", "fast"):
            [figure] = [f for f in mine if f.name.endswith(f"-{run}") and "errors-" not in f.name[1:]]
            assert f", {run}" in figure.title and {row.run_id for row in figure.rows} == {run}
    named = {figure.name: figure for figure in figures}
    roofs = [spec_of(named[f"roofline-forward-float32-{run}"]) for run in ("slow", "fast")]
    for roof, factor in zip(roofs, (1, 10), strict=True):
        assert max(roof["data"][0]["y"]) == pytest.approx(2.0 * factor)
        assert roof["data"][2]["y"] == pytest.approx([factor, factor])
    # The efficiency on one rank is 100 % only where the time of the same run is taken.
    for run in ("slow", "fast"):
        data = spec_of(named[f"scaling-weak-{run}"])["data"]
        measured = [trace for trace in data if trace.get("xaxis") == "x2" and "error_y" in trace]
        assert [trace["y"][0] for trace in measured] == pytest.approx([100, 100])


def test_one_run_has_no_name_in_its_figures():
    names = {figure.name for figure in figures_of(of_runs(only=measured_rows()))[0]}
    assert {"errors", "scaling-weak", "roofline-forward-float32"} <= names


def test_runs_that_are_too_many_for_figures_of_their_own_are_named():
    rows = of_runs(**{f"run {n}": scaling_rows() for n in range(10)})
    figures, missing = figures_of(rows)
    assert sum(figure.name.startswith("scaling-weak") for figure in figures) == 8
    assert ("Scaling of further runs", "only the first 8 of 10") in [(a, b[:22]) for a, b in missing]


def test_classes_are_counted_run_by_run_and_latencies_compared():
    rows = []
    for node, value in (("a", 1.0), ("b", 3.0)):
        for quantity in ("label_count", "label_expected"):
            rows.append(Row(level=2, phase="sampling", node=node, quantity=quantity, unit="1", value=value))
    rows.append(timed(1e-3, level=2, phase="sampling", quantity="latency", mode="shuffle"))
    figures = {f.name: f for f in figures_of(of_runs(one=rows, two=rows))[0]}
    assert set(figures) == {"sampling-latency", "sampling-labels-one", "sampling-labels-two"}
    assert len(figures["sampling-labels-one"].draw().axes[0].get_xticklabels()) == 2
    legend = [text.get_text() for text in figures["sampling-latency"].draw().legends[0].get_texts()]
    assert [text.split(", median")[0] for text in legend] == ["shuffle, one", "shuffle, two"]


@given(st.lists(st.text("ab\t\n …", max_size=40), max_size=30), st.integers(12, 30))
def test_short_names_differ_where_the_names_do(names, most):
    for shorten in (None, columned):
        short = unique_names(names, most, shorten)
        assert set(short) == set(names) and len(set(short.values())) == len(short)
        lines = [line for name in short.values() for line in name.split("\n")]
        assert all(len(line) <= most for line in lines)


LONG = [f"{'a' * 60}{n}{'b' * 60}" for n in (1, 2)]


def test_long_names_are_not_merged_in_any_figure():
    rows = []
    for name in LONG:
        one = {"level": 0, "operator": name, "backend": name, "dtype": "float32"}
        rows += [
            Row(**one, phase="forward", quantity=q, unit="1", value=1e9) for q in ("flop_rate", "byte_rate")
        ]
        rows += [Row(**one, phase="conformance", quantity="max_relative", unit="1", value=1e-6)]
        rows += [Row(level=1, model=name, phase="inference", quantity="ratio", unit="1", value=2.0, low=1.5,
                     high=3.0, confidence=0.9, backend=name, baseline="x")]  # fmt: skip
        rows += training_rows(model=name)
    for quantity in (PEAK, BANDWIDTH):
        rows.append(Row(level=0, phase=PHASE, dtype="float32", quantity=quantity, unit="1", value=1e10))
    rows += scaling_rows(schemes=LONG)
    figures = {figure.name: figure for figure in figures_of(rows)[0]}
    roof = spec_of(figures["roofline-forward-float32"])
    assert len({trace["name"] for trace in roof["data"][2:]}) == 2
    axes = spec_of(figures["errors"])["layout"]
    assert len(set(axes["xaxis"]["ticktext"])) == len(set(axes["yaxis"]["ticktext"])) == 2
    shown = [label.get_text() for label in figures["errors"].draw().axes[0].get_yticklabels()]
    assert len(set(shown)) == 2
    for name in ("loss-samples", "scaling-weak"):
        legend = [text.get_text() for text in figures[name].draw().legends[0].get_texts()]
        assert len(set(legend)) == len(legend) and sum("aaa" in text for text in legend) >= 2
    assert len(set(spec_of(figures["end-to-end"])["layout"]["yaxis"]["ticktext"])) == 2
    assert len(set(spec_of(figures["ratio-1-x"])["layout"]["yaxis"]["ticktext"])) >= 2


def test_two_identical_runs_have_bars_of_their_own():
    figures = {f.name: f for f in figures_of(training_rows() + training_rows())[0]}
    spec = spec_of(figures["end-to-end"])
    assert [name[-5:] for name in spec["layout"]["yaxis"]["ticktext"]] == ["run 1", "run 2"]
    assert sum(len(trace["x"]) for trace in spec["data"]) == 4


def test_pages_of_errors_and_ratios_count_their_own_rows():
    rows = []
    for n in range(120):
        given = {"level": 0, "operator": f"Op{n:03}", "backend": "torch", "dtype": "float32", "unit": "1"}
        rows.append(Row(**given, phase="conformance", quantity="max_relative", value=1e-7))
        rows.append(Row(**given, phase="forward", quantity="ratio", value=2.0, low=1.0, high=3.0,
                        confidence=0.9, baseline="numpy"))  # fmt: skip
    figures, _ = figures_of(rows)
    for kind in ("Heat map of errors", "Ratios"):
        pages = [figure for figure in figures if figure.kind == kind]
        assert len(pages) > 1
        found = [row.operator for figure in pages for row in figure.rows]
        assert sorted(found) == sorted({row.operator for row in rows})


def test_further_figures_are_named_though_the_next_page_has_no_value():
    failed = {"quantity": "time", "unit": "s", "phase": "forward", "value": None, "verdict": "failed"}
    rows = []
    for n in range(300):
        given = {"level": 0, "operator": "Conv", "node": f"node {n}", "backend": "torch"}
        rows.append(timed(1e-3, **given) if n < 60 or n > 240 else Row(**given, **failed))
    figures, missing = figures_of(rows)
    assert any(what == "Further figures of forward time" for what, _ in missing)
    assert 1 <= sum(figure.kind == "Layers and operators" for figure in figures) <= MOST_PAGES


def test_dollars_are_no_formulas_in_scaling_messages_and_sampling():
    word = "$\\frac{1}$"
    rows = scaling_rows(model=word, schemes=(word, "b"))
    rows.append(timed(1e-6, level=3, node=word, operator=word, phase="message", shape="64 B"))
    for quantity in ("label_count", "label_expected", "latency"):
        rows.append(timed(1.0, level=2, phase="sampling", node=word, dataset=word, mode=word, note=word,
                          quantity=quantity))  # fmt: skip
    figures = figures_of(rows)[0]
    assert {f.name for f in figures} >= {"scaling-weak", "scaling-errors", "scaling-network",
                                         "sampling-latency", "sampling-labels"}  # fmt: skip
    for figure in figures:
        assert draw(figure, ["svg"])["svg"]


BAD = (0.0, -1.0, math.nan, math.inf)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("quantity", ["step_time", "predicted_step_time", "checked_step_time", "cores",
                                      "efficiency_threshold", "ranks_inefficient"])  # fmt: skip
def test_scaling_is_drawn_without_numbers_that_have_no_place(quantity, bad):
    rows = scaling_rows()
    place = next(n for n, row in enumerate(rows) if row.quantity == quantity)
    rows[place] = replace(rows[place], value=bad, low=None, high=None)
    figures, missing = figures_of(rows)
    [figure] = [figure for figure in figures if figure.name == "scaling-weak"]
    json.dumps(spec_of(figure), allow_nan=False)
    assert draw(figure, ["png"])["png"]
    said = [what for what, _ in missing if what.startswith("Scaling: 1 number")]
    assert len(said) == quantity.endswith("step_time")


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("quantity", ["flop_rate", "byte_rate", PEAK, BANDWIDTH])
def test_a_roofline_is_drawn_without_numbers_that_have_no_place(quantity, bad):
    rows = measured_rows()
    place = next(n for n, row in enumerate(rows) if row.quantity == quantity)
    rows.append(rows[place])
    rows[place] = replace(rows[place], value=bad, operator="Bad", node="bad")
    figures, missing = figures_of(rows)
    said = [what for what, _ in missing if what == "Roofline: 1 number"]
    assert len(said) == (quantity != "flop_rate" or bad != 0)
    [figure] = [figure for figure in figures if figure.kind == "Roofline"]
    spec = spec_of(figure)
    json.dumps(spec, allow_nan=False)
    assert not any(None in trace["x"] or None in trace["y"] for trace in spec["data"])
    assert draw(figure, ["png"])["png"]


@pytest.mark.parametrize("ends", [(0.0, 0.2), (0.05, math.inf)])
def test_intervals_without_a_place_on_the_axis_are_left_out(ends):
    rows = [replace(r, low=ends[0], high=ends[1]) if r.quantity == "step_time" else r for r in scaling_rows()]
    [study] = studies_from_rows(rows)
    assert all(m.low == m.seconds == m.high for series in study.series for m in series.measured)


def test_one_bad_figure_costs_only_itself(tmp_path):
    rows = measured_rows() + training_rows()
    # The size of a message is the first word of its shape.
    rows += [timed(1e-6, level=3, phase="message", shape="no size", node="inside", operator="one_way")]
    run = make_run(tmp_path / "run", rows)
    report = write_report(Request([str(run)], tmp_path / "out", formats=["html", "svg"]))
    [(what, why)] = [pair for pair in report.missing if "Messages" in pair[0]]
    assert what == "Messages" and "invalid literal" in why and "ValueError" in why
    assert "scaling-weak" in report.figures and "scaling-network" not in report.figures
    assert not (tmp_path / "out" / "scaling-network.svg").exists()
    assert "invalid literal" in (tmp_path / "out" / "report.html").read_text()


def test_a_figure_that_only_plotly_cannot_show_stays_static(tmp_path, monkeypatch):
    monkeypatch.setattr(interactive_models, "heatmap", lambda cells: {"data": [math.nan], "layout": {}})
    run = make_run(tmp_path / "run", measured_rows())
    report = write_report(Request([str(run)], tmp_path / "out"))
    [(what, why)] = [pair for pair in report.missing if "interactive" in pair[0]]
    assert what.startswith("Errors against") and "ValueError" in why
    assert "errors" in report.figures


def test_a_figure_for_a_format_without_figures_is_refused(tmp_path):
    run = make_run(tmp_path / "run", measured_rows())
    for name in ("nonsense", "errors"):
        with pytest.raises(UserError, match="have tables only"):
            write_report(Request([str(run)], tmp_path / "out", formats=["markdown"], figures=[name]))


def test_interactive_scaling_shows_what_the_static_one_shows():
    [study] = studies_from_rows(scaling_rows())
    spec = interactive_models.scaling(Store(), study, "weak")
    traces = {trace["name"]: trace for trace in spec["data"]}
    single = np.median([0.11, 0.132])
    assert traces["ideal"]["x"] == [1, 32]
    assert traces["ideal"]["y"] == pytest.approx([1e3 * single] * 2)
    assert {"ranks share cores", "from here on below 50 %", interactive_models.RINGS} <= set(traces)
    symbols = [(t["marker"]["symbol"], t) for t in spec["data"] if "marker" in t and t["x"] != [None]]
    crosses = [t for symbol, t in symbols if symbol == "x"]
    assert [t["x"] for t in crosses] == [[16]] * 2
    assert [t["y"] for t in crosses] == [pytest.approx([100 * 1.1 / 2.6])] * 2
    rings = [t for symbol, t in symbols if symbol == "circle-open"]
    assert [t["x"] for t in rings] == [[2, 4]] * 4
    line, *areas = spec["layout"]["shapes"]
    assert (line["y0"], line["y1"], line["yref"]) == (50, 50, "y2")
    assert [(a["xref"], a["x0"], a["x1"]) for a in areas] == [
        (x, pytest.approx(2 * 2**0.25), pytest.approx(4 * 2**0.25)) for x in ("x", "x2")
    ]
    alone = interactive_models.scaling(Store(), replace(study, fit=None, threshold=None), "weak")
    assert alone["layout"]["shapes"] == []
