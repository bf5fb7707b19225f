"""Figures of reports: which there are, from which rows, and that both kinds show the same numbers."""

import base64
import html

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.plots.bars import Bar
from meta500.metrics.plots.boxes import draw_boxes
from meta500.metrics.plots.curves import Curve, Panel
from meta500.metrics.report import interactive
from meta500.metrics.report.figures import FILE_CHARACTERS, WANTED, figures_of
from meta500.metrics.report.interactive import MOST_POINTS, Store, thinned
from meta500.metrics.report.reports import draw
from tests.metrics.report_rows import hostile_rows, measured_rows, timed, training_rows


def numbers(store, entry):
    """The numbers that stand for themselves or in the store."""
    if isinstance(entry, list):
        return np.array(entry, float)
    return np.frombuffer(base64.b64decode(store.arrays[entry["array"]]), "<f8")


def test_every_kind_of_figure_is_drawn_from_its_rows_and_nothing_is_missing():
    rows = measured_rows() + training_rows()
    figures, missing = figures_of(rows)
    assert {figure.kind for figure in figures} >= set(WANTED)
    assert missing == []
    names = [figure.name for figure in figures]
    assert len(set(names)) == len(names)
    known = set(map(id, rows))
    for figure in figures:
        assert figure.rows and set(map(id, figure.rows)) <= known
        assert figure.draw().get_axes()
    [errors] = [figure for figure in figures if figure.kind == "Heat map of errors"]
    assert {row.quantity for row in errors.rows} == {"max_relative"}


def test_what_has_no_rows_is_said_with_the_reason():
    figures, missing = figures_of(training_rows())
    assert {figure.section for figure in figures} == {"Training", "End to end"}
    reasons = dict(missing)
    assert set(reasons) == set(WANTED) - {"Training curves", "End to end"}
    assert "meta500 scale" in reasons["Scaling"] and "meta500 operators" in reasons["Heat map of errors"]


def test_pages_that_are_too_many_are_left_out_and_named():
    rows = [timed(1e-3, level=0, operator="Conv", node=f"node {n}", backend="torch") for n in range(300)]
    figures, missing = figures_of(rows)
    bars = [figure for figure in figures if figure.kind == "Layers and operators"]
    assert len(bars) == 4
    assert any("Further figures of forward time" in what and "first 4 of" in why for what, why in missing)
    assert sum(len(figure.rows) for figure in bars) < 300


def test_names_of_files_are_short_and_differ_without_regard_to_case():
    rows = [timed(1.0, level=1, model="a", phase=p, backend="b") for p in ("x" * 300, "x" * 301, "Y", "y")]
    names = [figure.name for figure in figures_of(rows)[0]]
    assert len({name.lower() for name in names}) == len(names) == 8
    assert max(map(len, names)) <= FILE_CHARACTERS + 2


def test_interactive_bars_have_the_numbers_of_the_rows():
    found = [Bar("a", "x", 2e-3, 1e-3, 4e-3, (1e-3, 2e-3, 4e-3)), Bar("a", "y", None, note="unsupported")]
    store = Store()
    spec = interactive.bars(store, found, quantity="time", unit="s", interval="median, 95 % interval")
    trace = spec["data"][0]
    np.testing.assert_allclose(numbers(store, trace["x"]), [2.0])
    np.testing.assert_allclose(numbers(store, trace["error_x"]["array"]), [2.0])
    np.testing.assert_allclose(numbers(store, trace["error_x"]["arrayminus"]), [1.0])
    assert spec["layout"]["xaxis"]["title"]["text"] == "time (ms, median, 95 % interval)"
    assert [note["text"] for note in spec["layout"]["annotations"]] == ["unsupported"]


def test_boxes_are_quartiles_and_show_every_sample():
    samples = (5.0, 1.0, 2.0, 3.0, 4.0)
    store = Store()
    spec = interactive.boxes(store, [Bar("a", "x", 3.0, samples=samples)], quantity="ratio", unit="1")
    box, points = spec["data"]
    found = [numbers(store, box[key])[0] for key in ("lowerfence", "q1", "median", "q3", "upperfence")]
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert sorted(numbers(store, points["x"])) == sorted(samples)
    axes = draw_boxes([Bar("a", "x", 3.0, samples=samples)], quantity="ratio", unit="1").get_axes()[0]
    [shown] = [line for line in axes.get_lines() if sorted(line.get_xdata()) == sorted(samples)]
    # A point "." is only half as wide as its size.
    assert shown.get_marker() == "o" and shown.get_markersize() >= 2.2


def test_boxes_need_three_finite_samples_and_one_box_per_place():
    two = Bar("a", "x", 1.0, samples=(1.0, 2.0))
    infinite = Bar("b", "x", 1.0, samples=(1.0, 2.0, float("inf")))
    with pytest.raises(UserError, match="nothing has 3 samples or more"):
        draw_boxes([two, infinite], quantity="time", unit="s")
    three = Bar("a", "x", 1.0, samples=(1.0, 2.0, 3.0))
    with pytest.raises(UserError, match="two boxes"):
        draw_boxes([three, three], quantity="time", unit="s")


def test_values_of_a_loss_stand_once_for_both_of_its_figures():
    count = 3 * MOST_POINTS
    values = np.random.default_rng(0).random(count) + 1
    curve = Curve("run", "loss", "training_step", np.arange(count) * 64.0, np.arange(count) * 0.1, values)
    store = Store()
    specs = [
        interactive.curves(store, [curve], Panel("loss", x, "training_step")) for x in ("samples", "seconds")
    ]
    lines = [[trace["y"] for trace in spec["data"]] for spec in specs]
    assert lines[0] == lines[1]
    # Two lines of values, and the places of each of them over samples and over seconds.
    assert len(store.arrays) == 2 + 4
    single = numbers(store, lines[0][0])
    assert single.max() == values.max() and single.min() == values.min() and len(single) <= MOST_POINTS + 2


def test_the_last_point_before_a_value_that_is_not_finite_is_marked():
    values = np.array([3.0, 2.0, np.inf, 1.0])
    curve = Curve("run", "loss", "training_set", np.arange(4.0), np.arange(4.0), values)
    line, mark = interactive.curves(Store(), [curve], Panel("loss", "samples", "training_set"))["data"]
    assert line["y"] == [3.0, 2.0, None, 1.0] and (mark["x"], mark["y"]) == ([1.0], [2.0])
    assert mark["hovertemplate"] == "NaN or infinite from here on"


@given(st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), max_size=300), st.integers(4, 40))
def test_thinned_lines_keep_their_ends_and_extremes(values, most):
    kept = thinned(np.array(values), most)
    assert np.all(np.diff(kept) > 0) and len(kept) <= max(len(values), 0)
    if len(values) > most:
        assert len(kept) <= most + 2
    if values:
        assert kept[0] == 0 and kept[-1] == len(values) - 1
        known = np.array(values)[~np.isnan(values)]
        if len(known):
            shown = np.array(values)[kept]
            assert np.nanmax(shown) == known.max() and np.nanmin(shown) == known.min()


@given(st.text(max_size=60))
def test_texts_for_plotly_have_no_markup_and_lose_no_printable_character(words):
    shown = interactive.text(words)
    assert "<" not in shown and ">" not in shown
    assert html.unescape(shown) == "".join(c if c.isprintable() or c == "\n" else " " for c in words)


def test_hostile_names_are_drawn_as_they_stand():
    figures, missing = figures_of(hostile_rows())
    assert [what for what, _ in missing if what.startswith("Figures")] == []
    store = Store()
    assert {"Scaling", "Sampling"} <= {figure.kind for figure in figures}
    for figure in figures:
        # Formulas between dollars are read only when a file is written.
        assert draw(figure, ["svg"])["svg"]
        for text in texts(figure.interactive(store) if figure.interactive else None):
            assert "<img" not in text and "<svg" not in text and "<script" not in text and "<a " not in text


def texts(value):
    """All texts of a figure."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from texts(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts(entry)
