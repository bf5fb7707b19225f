from __future__ import annotations

import math

import pytest

from meta500.errors import UserError
from meta500.metrics.plots import (
    Bar,
    Ratio,
    as_rows,
    bars_from_rows,
    curves_from_rows,
    draw_bars,
    plots_from_run,
    ratios_from_rows,
)
from meta500.metrics.plots.pages import _on_one_line, _pages, _ratio_chunks
from meta500.metrics.rows import Row, to_frame
from meta500.metrics.run import RunFolder
from meta500.metrics.runner import Runner
from meta500.metrics.tickers import RowsTicker, StepLimit

# -- from rows ----------------------------------------------------------------------------------


@pytest.fixture
def folder(fakes, tmp_path):
    """A run folder with two training runs and some measurements."""
    run = RunFolder.create(tmp_path / "run", environment={}, command=["test"])
    summaries = []
    with run:
        for optimizer in ("adam", "sgd"):
            network = fakes.LinearNetwork()
            ticker = RowsTicker(chunk=4, optimizer=optimizer)
            data = fakes.dataset(50)
            runner = Runner(
                *(network, fakes.Sgd(network), data, data),
                **{"tickers": [ticker], "batch_size": 8, "folder": run},
            )
            summaries.append(runner.run(2))
        what = {"level": 1, "phase": "inference", "quantity": "time", "unit": "s"}
        for model, backend, value in (
            ("unet", "numpy", 0.5),
            ("unet", "torch", 0.1),
            ("cnn", "torch", 0.01),
        ):
            interval = {"low": value * 0.9, "high": value * 1.1, "confidence": 0.95}
            run.append(Row(model=model, backend=backend, value=value, **interval, **what))
        run.append(Row(model="cnn", backend="numpy", value=None, verdict="unsupported", **what))
        run.append(
            Row(
                **{
                    "level": 1,
                    "model": "unet",
                    "phase": "inference",
                    "backend": "torch",
                    "mode": "eager",
                },
                **{"quantity": "ratio", "unit": "1", "value": 1.01, "low": 0.99, "high": 1.02},
                **{"confidence": 0.95, "baseline": "torch/plain"},
            )
        )
    run.summaries = summaries
    return run


@pytest.mark.parametrize("frame", [False, True])
def test_curves_from_rows_are_those_of_the_runs(folder, frame):
    rows = to_frame(folder.rows) if frame else folder.rows
    curves = {(c.label, c.quantity, c.phase): c for c in curves_from_rows(rows)}
    for label, summary in zip(("adam fake eager", "sgd fake eager"), folder.summaries, strict=True):
        loss = curves[label, "loss", "training_step"]
        assert loss.values.tolist() == summary.losses
        assert loss.samples.tolist() == summary.samples
        assert loss.seconds == pytest.approx(summary.train_seconds)
        accuracy = curves[label, "accuracy", "test_set"]
        assert accuracy.values.tolist() == [e.accuracy for e in summary.epochs]
        assert accuracy.samples.tolist() == [50, 100]
        assert accuracy.seconds == pytest.approx([e.total_train_seconds for e in summary.epochs])
    assert len(curves) == 2 * 4


def test_frames_give_back_their_rows(folder):
    rows = [*folder.rows, Row(level=2, quantity="loss", unit="1", value=math.nan)]
    back = as_rows(to_frame(rows))
    assert back[:-1] == rows[:-1]
    assert math.isnan(back[-1].value)
    with pytest.raises(UserError, match="colour"):
        as_rows(to_frame(rows).assign(colour=1))


def test_runs_with_the_same_fields_are_told_apart_by_their_steps(fakes, tmp_path):
    run = RunFolder.create(tmp_path / "run", environment={}, command=["test"])
    for epochs in (1, 2, 1):
        network = fakes.LinearNetwork()
        options = {"tickers": [RowsTicker(chunk=3)], "batch_size": 8, "folder": run, "logits": None}
        Runner(network, fakes.Sgd(network), fakes.dataset(40), **options).run(epochs)
    curves = [c for c in curves_from_rows(run.rows) if c.phase == "training_step"]
    assert [len(c.values) for c in curves] == [5, 10, 5]
    assert [c.label for c in curves] == [f"Sgd fake eager run {k}" for k in (1, 2, 3)]


@pytest.mark.parametrize("limits", [(5, 5), (3, 5), (2, 1)])
def test_runs_of_one_chunk_each_are_told_apart(fakes, tmp_path, limits):
    run = RunFolder.create(tmp_path / "run", environment={}, command=["test"])
    for steps in limits:
        network = fakes.LinearNetwork()
        tickers = [RowsTicker(), StepLimit(steps)]
        options = {"batch_size": 8, "folder": run, "logits": None}
        data = fakes.dataset(40)
        Runner(network, fakes.Sgd(network), data, tickers=tickers, **options).run(1)
    curves = [c for c in curves_from_rows(run.rows) if c.phase == "training_step"]
    assert [len(c.values) for c in curves] == list(limits)


def test_a_chunk_that_was_cut_off_is_left_out(folder):
    rows = folder.rows
    cut = max(k for k, r in enumerate(rows) if (r.phase, r.quantity) == ("training_step", "samples_seen"))
    curves = [c for c in curves_from_rows(rows[:cut]) if c.phase == "training_step"]
    assert [len(c.values) for c in curves] == [14, 11]


def test_bars_from_rows(folder):
    rows = [r for r in folder.rows if r.quantity == "time"]
    bars = bars_from_rows(rows)
    assert [(b.category, b.series, b.value) for b in bars] == [
        ("unet", "numpy", 0.5),
        ("unet", "torch", 0.1),
        ("cnn", "torch", 0.01),
        ("cnn", "numpy", None),
    ]
    assert bars[-1].note == "unsupported"
    assert (bars[0].low, bars[0].high) == (0.45, 0.55)


def test_a_wrong_result_has_no_bar():
    row = Row(level=0, operator="Conv", quantity="time", unit="s", value=1.0, verdict="wrong")
    (bar,) = bars_from_rows([row])
    assert (bar.value, bar.note) == (None, "wrong")


def test_labels_name_what_differs():
    base = {"level": 0, "operator": "Conv", "quantity": "time", "unit": "s", "value": 1.0}
    rows = [
        Row(**base, backend="torch", mode=mode, threads=threads, shape="8x8", dtype="float32")
        for mode in ("eager", "compile")
        for threads in (1, 2)
    ]
    assert [b.series for b in bars_from_rows(rows)] == [
        *("torch eager 1 thread", "torch eager 2 threads"),
        *("torch compile 1 thread", "torch compile 2 threads"),
    ]
    assert {b.category for b in bars_from_rows(rows)} == {"Conv"}


def test_ratios_from_rows(folder):
    (ratio,) = ratios_from_rows(folder.rows)
    assert ratio == Ratio("torch eager", 1.01, 0.99, 1.02, "unet inference")


def test_all_plots_of_a_run_are_made_again_from_its_folder_alone(folder):
    written = plots_from_run(folder.path, formats=("svg",))
    assert {p.name for p in written} == {
        *("loss-samples.svg", "loss-seconds.svg", "accuracy-samples.svg", "accuracy-seconds.svg"),
        *("training.svg", "time-1-inference.svg", "ratio-1-torch_plain.svg"),
    }
    assert all(p.parent == folder.path / "plots" and p.stat().st_size > 5000 for p in written)
    before = [p.read_bytes() for p in written]
    for path in written:
        path.unlink()
    assert plots_from_run(RunFolder.open(folder.path), formats=("svg",)) == written
    assert [p.read_bytes() for p in written] == before


def test_many_categories_go_on_several_pages(tmp_path):
    run = RunFolder.create(tmp_path / "run", environment={}, command=["test"])
    base = {"level": 0, "phase": "forward", "backend": "torch", "quantity": "time", "unit": "s"}
    with run:
        for k in range(31):
            run.append(Row(**base, operator=f"Op{k}", value=1e-3 * (k + 1)))
    names = [p.name for p in plots_from_run(run, formats=("svg",))]
    assert names == ["time-0-forward.svg", "time-0-forward-2.svg"]


def test_pages_fit_on_paper_and_hold_every_category_once():
    bars = [Bar(f"Op{k}", who, 1.0) for k in range(40) for who in ("numpy", "torch", "onnxruntime")]
    pages = list(_pages(bars))
    assert [number for number, _ in pages] == ["", "-2", "-3", "-4"]
    assert [bar for _, page in pages for bar in page] == bars
    assert {len(page) for _, page in pages} == {30}
    assert all(draw_bars(page, quantity="time", unit="s").get_size_inches()[1] < 9.5 for _, page in pages)


def test_ratios_of_one_contestant_need_no_headings_and_groups_stay_together():
    single = [Ratio("torch eager", 1.0, 0.9, 1.1, f"case {k}") for k in range(50)]
    lines, who = _on_one_line(single)
    assert who == "torch eager"
    assert [(r.label, r.group) for r in lines] == [(f"case {k}", "") for k in range(50)]
    assert [len(page) for _, page in _ratio_chunks(lines)] == [34, 16]
    pairs = [Ratio(who, 1.0, 0.9, 1.1, f"case {k}") for k in range(15) for who in ("a", "b")]
    assert _on_one_line(pairs) == (pairs, "")
    pages = [page for _, page in _ratio_chunks(pairs)]
    assert [r for page in pages for r in page] == pairs
    assert all(page[0].label == "a" for page in pages)


def test_a_run_without_rows_has_no_plots(tmp_path):
    with RunFolder.create(tmp_path / "run", environment={}, command=["test"]) as run:
        pass
    assert plots_from_run(run.path) == []


def test_labels_show_only_what_tells_rows_apart():
    common = {"level": 0, "operator": "Conv", "quantity": "time", "unit": "s", "value": 1.0}
    rows = [
        Row(**common, node="conv a", shape="1x3", backend="torch", mode="eager", version="2.13"),
        Row(**common, node="conv b", shape="1x5", backend="numpy", version="2.4"),
    ]
    assert {(bar.category, bar.series) for bar in bars_from_rows(rows)} == {
        ("conv a", "torch eager"),
        ("conv b", "numpy"),
    }
    rows.append(Row(**common, node="conv a", shape="1x9", backend="torch", mode="eager", version="2.14"))
    bars = bars_from_rows(rows)
    assert [bar.category for bar in bars] == ["conv a 1x3", "conv b 1x5", "conv a 1x9"]
    assert [bar.series for bar in bars] == ["torch eager 2.13", "numpy 2.4", "torch eager 2.14"]
