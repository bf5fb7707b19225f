"""Roofline plots and heat maps of errors, from the rows of Level 0 runs."""

import math

import pytest

from meta500.errors import UserError
from meta500.metrics.plots import (
    Cell,
    Limits,
    Point,
    cells_from_rows,
    draw_heatmap,
    draw_roofline,
    heatmap_plots,
    limits_from_rows,
    points_from_rows,
    roofline_plots,
)
from meta500.metrics.rows import Row

LIMITS = Limits(100e9, 20e9, 90e9, 15e9)


def machine_rows():
    what = {"level": 0, "phase": "roofline", "threads": 1}
    peak = {**what, "quantity": "peak", "unit": "FLOP/s", "dtype": "float32"}
    return [
        Row(**peak, backend="numpy", value=100e9, samples=(100e9, 80e9, 90e9)),
        Row(**peak, backend="torch", value=70e9, samples=(70e9,)),
        Row(**what, quantity="bandwidth", unit="B/s", backend="torch", value=20e9, samples=(20e9, 10e9)),
        Row(**what, quantity="last_level_cache", unit="B", value=1000.0),
    ]


def timed_rows(node, nbytes, flop_rate, byte_rate, **more):
    what = {"level": 0, "operator": "Conv", "node": node, "phase": "forward", "dtype": "float32"}
    who = {"backend": "torch", "mode": "eager", "verdict": "ok", **more}
    rows = [Row(**what, quantity="bytes", unit="B", value=nbytes)]
    for quantity, unit, value in (("flop_rate", "FLOP/s", flop_rate), ("byte_rate", "B/s", byte_rate)):
        if value:
            ends = {"value": value, "low": 0.9 * value, "high": 1.1 * value}
            rows.append(Row(**what, **who, quantity=quantity, unit=unit, **ends))
    return rows


def test_limits_and_points_of_rows():
    rows = machine_rows() + timed_rows("small", 900.0, 4e9, 2e9) + timed_rows("large", 2e6, 60e9, 1e9)
    rows += timed_rows("movement", 2e6, 0.0, 5e9) + timed_rows("bad", 2e6, 1e9, 1e9, verdict="wrong")
    found = limits_from_rows(rows, "float32")
    assert found == Limits(100e9, 20e9, 90e9, 15e9)
    assert limits_from_rows(rows, "float64") is None
    points = points_from_rows(rows, "forward", "float32")
    assert [(p.intensity, p.rate, p.cached) for p in points] == [(2.0, 4e9, True), (60.0, 60e9, False)]
    assert points[0].series == "torch eager"
    assert points_from_rows(rows, "forward+backward", "float32") == []


def test_the_roof_is_the_smaller_of_both_limits():
    figure = draw_roofline([Point("Conv", "torch", 2.0, 4e9), Point("Gemm", "numpy", 300.0, 90e9)], LIMITS)
    axes = figure.axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    best = axes.lines[0]
    for x, y in zip(best.get_xdata(), best.get_ydata(), strict=True):
        assert y == pytest.approx(min(100.0, 20.0 * x))
    low, high = axes.get_ylim()
    assert low < 4
    assert high > 100
    assert "FLOP/B" in axes.get_xlabel()


def test_data_from_a_cache_are_hollow_and_explained():
    points = [Point("Conv", "numpy", 2.0, 9e9), Point("Conv", "numpy", 2.0, 50e9, cached=True)]
    figure = draw_roofline(points, LIMITS)
    faces = [line.get_markerfacecolor() for line in figure.axes[0].lines if len(line.get_xdata()) == 1]
    assert faces[1] == "white"
    assert faces[0] != "white"
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any("cache" in text for text in texts)


def test_points_that_cannot_stand_on_logarithmic_axes_are_refused():
    with pytest.raises(UserError, match="no points"):
        draw_roofline([], LIMITS)
    with pytest.raises(UserError, match="must be positive"):
        draw_roofline([Point("Conv", "torch", 0.0, 4e9)], LIMITS)


def test_roofline_files_are_one_per_phase_and_type(tmp_path):
    rows = machine_rows() + timed_rows("large", 2e6, 60e9, 1e9)
    assert [p.name for p in roofline_plots(rows, tmp_path, ["png"])] == ["roofline-forward-float32.png"]
    assert roofline_plots(rows[4:], tmp_path, ["png"]) == []


def judged(operator, node, value, backend="torch", dtype="float32", verdict="ok"):
    what = {"level": 0, "operator": operator, "node": node, "phase": "conformance", "dtype": dtype}
    mark = Row(**what, backend=backend, quantity="verdict", unit="1", value=1.0, verdict=verdict)
    if value is None:
        return [mark]
    return [
        mark,
        Row(**what, backend=backend, quantity="max_relative", unit="1", value=value, verdict=verdict),
    ]


def test_cells_are_the_largest_error_in_eps():
    rows = judged("Exp", "exp", 2**-23) + judged("Exp", "exp_2", 3 * 2**-23)
    rows += judged("Exp", "exp_64", 2**-50, dtype="float64") + judged("Log", "log", 2**-8, dtype="bfloat16")
    rows += judged("Not", "not", None, dtype="bool") + judged("Erf", "erf", 0.01, verdict="wrong")
    rows += judged("Exp", "exp_64", 0.0, backend="numpy", dtype="float64")
    cells = {(c.name, c.series): (c.error, c.word) for c in cells_from_rows(rows)}
    assert cells["Exp", "torch\nfloat32"] == (3.0, "")
    assert cells["Exp", "torch\nfloat64"] == (4.0, "")
    assert cells["Log", "torch\nbfloat16"] == (0.5, "")
    assert cells["Not", "torch\nother types"] == (None, "equal")
    assert cells["Erf", "torch\nfloat32"] == (pytest.approx(0.01 * 2**23), "wrong")
    # What all others are measured against is at no distance from itself by definition.
    assert cells["Exp", "numpy\nfloat64"] == (None, "reference")


def test_a_run_about_one_operator_shows_its_cases():
    rows = judged("Exp", "exp", 2**-23) + judged("Exp", "exp_2", 3 * 2**-23)
    assert [(c.name, c.error) for c in cells_from_rows(rows)] == [("exp", 1.0), ("exp_2", 3.0)]


def test_words_and_numbers_in_the_heat_map():
    cells = [
        *(Cell("Exp", "numpy", 2.5), Cell("Exp", "torch", math.inf, "wrong")),
        *(Cell("Log", "numpy", 0.0), Cell("Log", "torch", None, "refused")),
    ]
    figure = draw_heatmap(cells)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["2.5", "inf wrong", "0", "refused"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["Exp", "Log"]
    with pytest.raises(UserError, match="no errors"):
        draw_heatmap([])


def test_many_operators_go_on_further_pages(tmp_path):
    rows = [row for k in range(120) for row in judged(f"Op{k}", f"op_{k}", 2**-23)]
    written = heatmap_plots(rows, tmp_path, ["png"])
    assert [p.name for p in written] == ["errors.png", "errors-2.png", "errors-3.png"]
    assert heatmap_plots(judged("Not", "not", None, dtype="bool"), tmp_path, ["png"]) == []
