from __future__ import annotations

import itertools
import math

import matplotlib
import numpy as np
import pytest

from meta500.errors import UserError
from meta500.metrics.plots import (
    PALETTE,
    Bar,
    Curve,
    Panel,
    Ratio,
    bar_plot,
    curve_plots,
    draw_bars,
    draw_curves,
    draw_ratios,
    ratio_plot,
    running_mean,
    save,
)
from meta500.metrics.plots.style import number, time_unit

NAMES = [
    "Conv 8x16x512x512 * 32x16x3x3",
    "ConvTranspose 8x32x64x64 * 32x16x2x2 with stride 2",
    "BatchNormalization 8x16x512x512 (training)",
    "SoftmaxCrossEntropyLoss 8x2x512x512",
    *(f"Operator{k}" for k in range(8)),
]
SERIES = ["numpy", "torch eager", "torch compile (inductor, max-autotune)"]


# -- what a reader must be able to read ---------------------------------------------------------


def texts(figure):
    """All texts that are drawn, with their boxes in pixels."""
    figure.draw_without_rendering()
    found = list(figure.texts)
    for legend in figure.legends:
        found += legend.get_texts()
    everything = [*figure.axes, *(child for ax in figure.axes for child in ax.child_axes)]
    for axes in everything:
        found += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        found += [axes.xaxis.offsetText, axes.yaxis.offsetText]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            found += [
                label
                for tick in ticks
                if low <= tick.get_loc() <= high
                for label in (tick.label1, tick.label2)
            ]
    shown = [t for t in found if t.get_visible() and t.get_text().strip()]
    return [(t.get_text(), t.get_window_extent()) for t in shown]


def assert_readable(figure):
    boxes = texts(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in boxes:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"{text!r} leaves the figure: {box}"
    for (a, box_a), (b, box_b) in itertools.combinations(boxes, 2):
        over = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
        under = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
        assert over < 1 or under < 1, f"{a!r} and {b!r} overlap"
    return [text for text, _ in boxes]


def test_the_check_itself_finds_overlaps_and_texts_outside():
    from meta500.metrics.plots.style import new_figure

    figure = new_figure(3, 2)
    figure.text(0.5, 0.5, "one")
    figure.text(0.52, 0.5, "two")
    with pytest.raises(AssertionError, match="overlap"):
        assert_readable(figure)
    figure = new_figure(3, 2)
    figure.text(0.9, 0.5, "much too long")
    with pytest.raises(AssertionError, match="leaves the figure"):
        assert_readable(figure)


# -- curves -------------------------------------------------------------------------------------


def run_curves(label, steps=300, rate=5.0, broken_at=None, seed=0):
    rng = np.random.default_rng(seed)
    k = np.arange(1, steps + 1)
    loss = 2.3 * np.exp(-rate * k / steps) * (1 + 0.1 * rng.random(steps)) + 0.01
    ends = np.linspace(steps // 5, steps, 5).astype(int) - 1
    accuracy = 1 - 0.9 * np.exp(-rate * (ends + 1) / steps)
    if broken_at is not None:
        loss[broken_at:] = np.nan
        accuracy[ends >= broken_at] = np.nan
    seconds = 0.01 * k
    return [
        Curve(label, "loss", "training_step", 64 * k, seconds, loss),
        Curve(label, "accuracy", "test_set", 64 * k[ends], seconds[ends], accuracy),
    ]


def three_points(label="adam torch"):
    x, t = [1437, 2874, 4311], [0.5, 1.0, 1.6]
    return [
        Curve(label, "loss", "training_set", x, t, [1.2, 0.5, 0.3]),
        Curve(label, "accuracy", "test_set", x, t, [0.8, 0.93, 0.97]),
    ]


def several():
    names = ["adam numpy", "adam torch eager", "accelegrad (reference) numpy float64 batch 64"]
    curves = [run_curves(n, rate=4 + i, seed=i) for i, n in enumerate(names)]
    return [c for curve in [*curves, run_curves("diverged", broken_at=200)] for c in curve]


@pytest.mark.parametrize("curves", [several(), three_points()], ids=["several", "three points"])
def test_curves_are_readable_and_have_units(curves):
    figure = draw_curves(curves)
    words = assert_readable(figure)
    labels = [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes]
    assert labels == [
        ("training samples seen", "training loss"),
        ("training time (s)", "training loss"),
        ("training samples seen", "test accuracy (%)"),
        ("training time (s)", "test accuracy (%)"),
    ]
    for curve in curves:
        assert curve.label in words


@pytest.mark.parametrize("quantity", ["loss", "accuracy"])
def test_a_single_panel_is_readable(quantity):
    phase = "training_step" if quantity == "loss" else "test_set"
    assert_readable(draw_curves(several(), [Panel(quantity, "seconds", phase)]))


def test_curves_of_one_label_look_alike_in_all_panels_and_labels_differ_in_grey():
    figure = draw_curves(several())
    looks = []
    for axes in figure.axes:
        bold = [line for line in axes.lines if line.get_marker() not in ("None", "X")]
        looks.append([(ln.get_color(), ln.get_marker(), ln.get_linestyle()) for ln in bold])
    assert looks[0] == looks[1] == looks[2] == looks[3]
    colours, markers, lines = zip(*looks[0], strict=True)
    assert set(colours) <= set(PALETTE)
    for kind in (colours, markers, lines):
        assert len(set(kind)) == 4


def test_drawn_values_are_the_data():
    figure = draw_curves(three_points())
    line = figure.axes[2].lines[0]
    assert line.get_xdata().tolist() == [1437, 2874, 4311]
    assert line.get_ydata() == pytest.approx([80, 93, 97])
    assert figure.axes[3].lines[0].get_xdata().tolist() == [0.5, 1.0, 1.6]
    # Both kinds of axis begin where training began.
    assert all(ax.get_xlim()[0] == 0 for ax in figure.axes)


def test_long_lines_are_faint_with_a_running_mean_in_front():
    (curve, _) = run_curves("a", steps=400)
    figure = draw_curves([curve], [Panel("loss", "samples", "training_step")])
    faint, mean = figure.axes[0].lines
    assert np.array_equal(faint.get_ydata(), curve.values)
    assert faint.get_alpha() < 0.5
    assert mean.get_ydata() == pytest.approx(running_mean(curve.values, 20))
    assert any("running mean" in t for t in assert_readable(figure))


def test_the_point_before_the_first_nan_is_marked():
    figure = draw_curves(several(), [Panel("loss", "samples", "training_step")])
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [line.get_xdata().tolist() for line in crosses] == [[64 * 200]]
    assert "NaN or infinite from here on" in [t for t, _ in texts(figure)]
    whole = draw_curves(three_points())
    assert not any("NaN" in t for t, _ in texts(whole))


def test_only_nan_and_single_points_do_not_break_a_plot():
    x = [1, 2]
    nan = Curve("nan", "loss", "training_step", x, x, [math.nan, math.inf])
    one = Curve("one", "loss", "training_step", [1], [1], [2.0])
    assert_readable(draw_curves([nan, one]))
    assert_readable(draw_curves([nan]))


def test_loss_axes_are_logarithmic_only_where_that_helps():
    def scale(values, **panel):
        curve = Curve("a", "loss", "training_step", range(1, 4), range(1, 4), values)
        return draw_curves([curve], [Panel("loss", "samples", "training_step", **panel)]).axes[0].get_yscale()

    assert scale([2.0, 1.0, 0.5]) == "linear"
    assert scale([2.0, 1.0, 0.05]) == "log"
    assert scale([2.0, 1.0, 0.0]) == "linear"
    assert scale([2.0, 1.0, 0.5], log=True) == "log"
    with pytest.raises(UserError, match="positive"):
        scale([2.0, 1.0, 0.0], log=True)


def test_running_mean_equals_a_plain_loop():
    values = np.random.default_rng(0).standard_normal(23)
    values[[4, 22]] = np.nan
    for window in (1, 2, 5, 40):
        got = running_mean(values, window)
        for i, x in enumerate(values):
            near = values[max(0, i - (window - 1) // 2) : i + window // 2 + 1]
            expected = np.nan if np.isnan(x) else np.nanmean(near)
            assert got[i] == pytest.approx(expected, nan_ok=True)


def test_long_times_are_shown_in_minutes():
    curve = Curve("a", "loss", "training_set", [1, 2], [1800.0, 3600.0], [1.0, 0.5])
    axes = draw_curves([curve], [Panel("loss", "seconds", "training_set")]).axes[0]
    assert axes.get_xlabel() == "training time (min)"
    assert axes.lines[0].get_xdata().tolist() == [30, 60]


# -- bars ---------------------------------------------------------------------------------------


def many_bars():
    rng = np.random.default_rng(0)
    bars = []
    for name, base in zip(NAMES, 10 ** np.linspace(-5, -1, len(NAMES)), strict=True):
        for who, factor in zip(SERIES, (4, 1, 0.8), strict=True):
            raw = np.sort(base * factor * (1 + 0.2 * rng.random(15)))
            bars.append(Bar(name, who, raw[7], raw[3], raw[11], tuple(raw)))
    bars[3] = Bar(NAMES[1], SERIES[0], None, note="unsupported")
    bars[6] = Bar(NAMES[2], SERIES[0], math.nan)
    return bars


@pytest.mark.parametrize("log", [None, False])
@pytest.mark.parametrize("dots", [True, False])
def test_many_bars_with_long_names_are_readable(log, dots):
    look = {"interval": "median, 95 % interval", "title": "U-Net"}
    figure = draw_bars(many_bars(), quantity="time per call", unit="s", log=log, dots=dots, **look)
    words = assert_readable(figure)
    assert figure.axes[0].get_xlabel() == "time per call (ms, median, 95 % interval)"
    assert figure.axes[0].get_xscale() == ("linear" if log is False else "log")
    assert "unsupported" in words
    assert "NaN" in words
    for name in SERIES:
        assert name in words


def test_bars_have_the_lengths_intervals_and_texts_of_the_data():
    bars = [Bar("a", "x", 0.002, 0.001, 0.004), Bar("a", "y", 0.003), Bar("b", "x", 0.012345)]
    figure = draw_bars(bars, quantity="time", unit="s")
    axes = figure.axes[0]
    assert [p.get_width() for p in axes.patches] == pytest.approx([2, 3, 12.345])
    assert [t.get_text() for t in axes.texts] == ["2.00", "3.00", "12.3"]
    (interval,) = [line for line in axes.lines if line.get_marker() == "|"]
    assert interval.get_xdata() == pytest.approx([1, 4])
    faces = [p.get_facecolor() for p in axes.patches]
    assert faces[0] == faces[2] != faces[1]
    assert [matplotlib.colors.to_hex(f).upper() for f in faces[:2]] == list(PALETTE[:2])
    assert len({p.get_hatch() for p in axes.patches}) == 2
    assert [t.get_text() for t in axes.get_yticklabels()] == ["a", "b"]


@pytest.mark.parametrize("log", [True, False])
def test_values_stand_behind_the_interval_and_inside_the_axes(log):
    bars = [Bar("a", "x", 900.0, 800.0, 1100.0), Bar("b", "x", 1.0, 0.9, 100.0)]
    figure = draw_bars(bars, quantity="time", unit="1", log=log)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for text, bar in zip(axes.texts, bars, strict=True):
        box = text.get_window_extent()
        end = axes.transData.transform((bar.high, 0))[0]
        assert end < box.x0 < end + 30
        assert box.x1 <= axes.get_window_extent().x1


def test_raw_samples_are_drawn_as_dots_when_asked_for():
    bars = [Bar("a", "x", 2.0, samples=(1.0, 2.0, 5.0))]
    axes = draw_bars(bars, quantity="time", unit="1", dots=True).axes[0]
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 5]
    assert axes.get_xlim()[1] > 5
    assert not draw_bars(bars, quantity="time", unit="1").axes[0].lines


@pytest.mark.parametrize(
    ("unit", "value", "label"),
    [
        ("s", 3e-5, "thing (µs)"),
        ("s", 3e-9, "thing (ns)"),
        ("s", 2.0, "thing (s)"),
        ("B", 5 * 2**20, "thing (MiB)"),
        ("FLOP/s", 3e10, "thing (GFLOP/s)"),
        ("samples/s", 1234.0, "thing (samples/s)"),
        ("1", 3.0, "thing"),
    ],
)
def test_units_on_the_axis(unit, value, label):
    axes = draw_bars([Bar("a", "x", value)], quantity="thing", unit=unit).axes[0]
    assert axes.get_xlabel() == label


def test_a_logarithmic_axis_shows_every_bar():
    axes = draw_bars([Bar("a", "x", 1e-5), Bar("b", "x", 1.0)], quantity="t", unit="1").axes[0]
    low, high = axes.get_xlim()
    assert low < 1e-5
    assert high > 1.0


@pytest.mark.parametrize(
    ("bars", "options", "message"),
    [
        ([], {}, "no bar has a value"),
        ([Bar("a", "x", None)], {}, "no bar has a value"),
        ([Bar("a", "x", 1.0), Bar("a", "x", 2.0)], {}, "two bars"),
        ([Bar("a", "x", 0.0)], {"log": True}, "positive"),
    ],
)
def test_bad_bars_are_refused(bars, options, message):
    with pytest.raises(UserError, match=message):
        draw_bars(bars, quantity="time", unit="s", **options)


# -- ratios -------------------------------------------------------------------------------------


def ratios():
    return [
        Ratio("digits CNN, training step, torch eager", 1.043, 1.031, 1.055, "Network"),
        Ratio("U-Net n=3 torch eager", 1.004, 0.998, 1.011, "Network"),
        Ratio("Adam, a very long name of something that wraps", 0.78, 0.75, 0.83, "optimizers"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        ratios(),
        ratios()[:1],
        [*ratios(), Ratio("numpy", 23, 20, 27)],
        [Ratio("a", 1.001, 0.999, 1.003)],
    ],
    ids=["near", "one", "wide", "narrow"],
)
def test_ratios_are_readable(data):
    look = {"title": "Overhead", "below": "faster", "above": "slower"}
    figure = draw_ratios(data, quantity="time relative to plain PyTorch", **look)
    words = assert_readable(figure)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "time relative to plain PyTorch (ratio, 95 % interval)"
    assert "1" in words
    low, high = axes.get_xlim()
    assert low < min(r.low for r in data)
    assert high > max(r.high for r in data)
    assert low < 1 < high


def test_long_words_below_the_axis_stay_in_the_picture():
    long = "training step time of torch eager relative to plain PyTorch eager adam (torch.optim)"
    figure = draw_ratios(ratios(), quantity=long)
    assert_readable(figure)
    assert figure.axes[0].get_xlabel().split() == f"{long} (ratio, 95 % interval)".split()


def test_ratios_show_the_data_and_whether_the_interval_excludes_one():
    figure = draw_ratios(ratios(), quantity="time")
    axes = figure.axes[0]
    points = [line for line in axes.lines if line.get_marker() in ("o", "<", ">")]
    assert [float(np.ravel(p.get_xdata())[0]) for p in points] == [1.043, 1.004, 0.78]
    assert [p.get_marker() for p in points] == [">", "o", "<"]
    assert points[1].get_markerfacecolor() == "white"
    numbers = [t.get_text() for t in axes.child_axes[0].get_yticklabels()]
    assert "1.043  [1.031, 1.055]" in numbers
    assert [line for line in axes.lines if list(line.get_xdata()) == [1, 1]]


@pytest.mark.parametrize(
    "ratio", [Ratio("a", 0.0, 0.0, 1.0), Ratio("a", 2.0, 3.0, 4.0), Ratio("a", math.nan, 1, 2)]
)
def test_bad_ratios_are_refused(ratio):
    with pytest.raises(UserError, match="'a'"):
        draw_ratios([ratio], quantity="time")
    with pytest.raises(UserError, match="no ratio"):
        draw_ratios([], quantity="time")


# -- files and settings -------------------------------------------------------------------------

SIGNATURES = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


def test_files_of_all_formats_are_written_and_returned(tmp_path):
    paths = [tmp_path / "new" / f"bars.{kind}" for kind in SIGNATURES]
    assert bar_plot(many_bars()[:3], paths, quantity="time", unit="s") == paths
    for path in paths:
        assert path.read_bytes().startswith(SIGNATURES[path.suffix[1:]])
    assert b"/Type3" not in paths[1].read_bytes()
    ratio = ratio_plot(ratios(), tmp_path / "ratio.png", quantity="time")
    assert ratio[0].stat().st_size > 5000
    with pytest.raises(UserError, match=r"bars.jpg.*\.png, \.pdf or \.svg"):
        bar_plot(many_bars(), tmp_path / "bars.jpg", quantity="time", unit="s")
    with pytest.raises(UserError, match="cannot be written"):
        save(draw_ratios(ratios(), quantity="time"), paths[0] / "below" / "a.png")


def test_the_four_plots_and_their_overview(tmp_path):
    written = curve_plots(several(), tmp_path, formats=["png"])
    names = ["loss-samples", "loss-seconds", "accuracy-samples", "accuracy-seconds", "training"]
    assert [p.name for p in written] == [f"{n}.png" for n in names]
    assert all(p.stat().st_size > 10_000 for p in written)
    import matplotlib.image

    height, width = matplotlib.image.imread(written[0]).shape[:2]
    assert width == round(6.4 * 0.8 * 200)
    assert height > 600
    with pytest.raises(UserError, match=r"nothing|no loss"):
        curve_plots([], tmp_path)


def test_the_same_data_give_the_same_files_whatever_the_user_has_set(tmp_path):
    def files(folder):
        panel = Panel("accuracy", "samples", "test_set")
        paths = [folder / f"a.{kind}" for kind in SIGNATURES]
        return [p.read_bytes() for p in save(draw_curves(three_points(), [panel]), paths)]

    first = files(tmp_path / "a")
    mine = {"font.size": 23, "axes.grid": False, "xtick.direction": "in", "axes.facecolor": "red"}
    with matplotlib.rc_context(mine):
        before = dict(matplotlib.rcParams)
        assert files(tmp_path / "b") == first
        assert dict(matplotlib.rcParams) == before


def test_pyplot_stays_out():
    import subprocess
    import sys

    code = (
        "import sys, meta500.metrics.plots as p\n"
        "assert 'matplotlib' not in sys.modules and 'pandas' not in sys.modules\n"
        "p.draw_ratios([p.Ratio('a', 1, 1, 1)], quantity='t')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.012345, "0.0123"),
        (12.345, "12.3"),
        (0.99996, "1.00"),
        (9.996, "10.0"),
        (1234.5, "1230"),
        (98765.0, "98800"),
        (123456.0, "1.23e5"),
        (0.00012345, "1.23e-4"),
        (-0.5, "-0.500"),
        (0.0, "0"),
        (math.nan, "NaN"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(5e-8, "ns"), (5e-5, "µs"), (0.05, "ms"), (5, "s"), (1000, "min"), (1e5, "h")],
)
def test_time_units(seconds, unit):
    factor, name = time_unit(seconds)
    assert name == unit
    assert 0.5 < seconds * factor < 1000
