from __future__ import annotations

import csv
import json
import math
import os

import numpy as np
import pytest

from meta500.errors import UserError
from meta500.metrics.rows import Row, read_csv
from meta500.metrics.run import RunFolder
from meta500.metrics.tickers import (
    AccuracyLimit,
    CsvWriter,
    JsonlWriter,
    MetricTicker,
    PlotsTicker,
    RowsTicker,
    ScoreLimit,
    StepTimesTicker,
)

# -- files --------------------------------------------------------------------------------------


def test_csv_has_one_line_per_step_epoch_and_end(ticker_runner, tmp_path):
    writer = CsvWriter(tmp_path / "a.csv")
    summary = ticker_runner(MetricTicker("iou"), writer).run(2)
    with open(tmp_path / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["event"] for r in rows] == [*(["step"] * 3 + ["epoch"]) * 2, "end"]
    assert [float(r["loss"]) for r in rows if r["event"] == "step"] == summary.losses
    assert [int(r["samples_seen"]) for r in rows if r["event"] == "step"] == summary.samples
    epochs = [r for r in rows if r["event"] == "epoch"]
    assert [float(r["accuracy"]) for r in epochs] == [e.accuracy for e in summary.epochs]
    assert [float(r["iou"]) for r in epochs] == [e.scores["iou"] for e in summary.epochs]
    assert rows[0]["accuracy"] == ""
    assert rows[-1]["status"] == "finished"


def test_jsonl_is_standard_json_also_with_nan(fakes, ticker_runner, run_folder):
    runner_ = fakes.poison(ticker_runner(JsonlWriter(), folder=run_folder), 2)
    summary = runner_.run(1)
    text = (run_folder.path / "training.jsonl").read_text()

    def refuse(name):
        raise ValueError(name)

    records = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    assert [r["event"] for r in records] == ["step", "step", "end"]
    assert records[1]["loss"] == "nan"
    assert records[2]["abort_reason"] == summary.abort_reason
    assert "accuracy" not in records[0]


@pytest.mark.parametrize("kind", [CsvWriter, JsonlWriter])
def test_every_record_is_on_disk_at_once(fakes, ticker_runner, tmp_path, kind):
    path = tmp_path / "live"
    sizes = []
    recorder = fakes.Recorder(after_optimizer_step=lambda s: sizes.append(path.read_text().count("\n")))
    ticker_runner(kind(path), recorder, test=0).run(1)
    header = kind is CsvWriter
    assert sizes == [1 + header, 2 + header, 3 + header]


def test_ctrl_c_inside_train_leaves_what_was_there_and_closes_the_files(ticker_runner, run_folder):
    writer, rows = JsonlWriter(), RowsTicker(chunk=100)
    made = ticker_runner(writer, rows, folder=run_folder)
    train = made.optimizer.train

    def interrupted(inputs, outputs=None):
        if made.state.step == 5:
            raise KeyboardInterrupt
        return train(inputs, outputs)

    made.optimizer.train = interrupted
    with pytest.raises(KeyboardInterrupt), run_folder:
        made.run(3)
    records = [json.loads(line) for line in writer.written.read_text().splitlines()]
    assert [r["event"] for r in records] == ["step"] * 3 + ["epoch"] + ["step", "end"]
    assert records[-1]["status"] == "interrupted"
    read = RunFolder.open(run_folder.path)
    assert read.status == "interrupted"
    losses = [r for r in read.rows if (r.phase, r.quantity) == ("training_step", "loss")]
    assert [len(r.samples) for r in losses] == [3, 1]
    assert [x for r in losses for x in r.samples] == made.state.summary.losses
    wall = next(r for r in read.rows if r.quantity == "wall_time")
    assert (wall.verdict, wall.note) == ("failed", "interrupted (Ctrl-C)")


def test_files_are_not_overwritten_unless_asked(ticker_runner, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("mine")
    with pytest.raises(UserError, match=r"a.csv exists already.*overwrite=True"):
        ticker_runner(CsvWriter(path)).run(1)
    assert path.read_text() == "mine"
    ticker_runner(CsvWriter(path, overwrite=True)).run(1)
    assert path.read_text().startswith("event,")


def test_files_that_cannot_be_written_are_told(ticker_runner, tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        ticker_runner(CsvWriter(tmp_path / "no" / "a.csv")).run(1)
    with pytest.raises(UserError, match="needs a path"):
        ticker_runner(CsvWriter()).run(1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the full device of Linux")
def test_a_full_disk_is_told_and_after_run_still_reaches_the_others(fakes, ticker_runner):
    recorder = fakes.Recorder()
    with pytest.raises(UserError, match="/dev/full cannot be written: No space left"):
        ticker_runner(JsonlWriter("/dev/full", overwrite=True), recorder).run(1)
    assert recorder.log[-1] == "after_run"


# -- rows ---------------------------------------------------------------------------------------


def test_rows_of_a_run(ticker_runner, run_folder):
    what = {"model": "points-linear", "optimizer": "sgd"}
    summary = ticker_runner(
        RowsTicker(chunk=2, **what), MetricTicker("mae", target="truth"), folder=run_folder
    ).run(2)
    rows = read_csv(run_folder.rows_path)
    assert {(r.level, r.model, r.optimizer, r.dataset) for r in rows} == {
        (2, "points-linear", "sgd", "points")
    }
    assert {(r.backend, r.mode, r.device, r.threads, r.dtype) for r in rows} == {
        ("fake", "eager", "cpu", 1, "float32")
    }
    assert {(r.batch, r.seed) for r in rows} == {(4, 0)}

    def series(quantity):
        chunks = [r for r in rows if (r.phase, r.quantity) == ("training_step", quantity)]
        assert [r.step for r in chunks] == [2, 3, 5, 6]
        return [x for r in chunks for x in r.samples]

    assert series("loss") == summary.losses
    assert series("samples_seen") == summary.samples
    assert series("training_time") == pytest.approx(summary.train_seconds, rel=1e-12)
    points = {(r.phase, r.quantity): [] for r in rows}
    for r in rows:
        points[r.phase, r.quantity].append((r.epoch, r.step, r.value))
    epochs = summary.epochs
    assert points["test_set", "accuracy"] == [(k, 3 + 3 * k, e.accuracy) for k, e in enumerate(epochs)]
    assert points["test_set", "loss"] == [(k, 3 + 3 * k, e.test_loss) for k, e in enumerate(epochs)]
    assert points["test_set", "mae"] == [(k, 3 + 3 * k, e.scores["mae"]) for k, e in enumerate(epochs)]
    assert points["training_set", "loss"] == [(k, 3 + 3 * k, e.loss) for k, e in enumerate(epochs)]
    assert points["training_set", "samples_seen"] == [(0, 3, 10), (1, 6, 20)]
    assert points["run", "wall_time"][0][2] == summary.seconds["wall"]
    assert points["run", "ticker_time"][0][2] == summary.seconds["tickers"]


def test_rows_of_targets_reached_and_not(ticker_runner, run_folder):
    tickers = [AccuracyLimit(0.1, stop=False), ScoreLimit(1e-9, "test_loss", at_least=False)]
    ticker_runner(RowsTicker(), *tickers, folder=run_folder, train=60, test=30).run(2)
    rows = {r.quantity: r for r in run_folder.rows if r.quantity.startswith("time_to")}
    reached, missed = rows["time_to_accuracy"], rows["time_to_test_loss"]
    assert reached.value == reached.seconds == tickers[0].reached.train_seconds
    assert "target 0.1 reached with" in reached.note
    assert (missed.value, missed.verdict) == (None, "failed")
    assert f"the best was {tickers[1].best:.6g}" in missed.note


def test_rows_of_a_run_that_diverged(fakes, ticker_runner, run_folder):
    fakes.poison(ticker_runner(RowsTicker(), folder=run_folder), 2).run(1)
    rows = run_folder.rows
    losses = next(r for r in rows if r.quantity == "loss")
    assert math.isnan(losses.samples[1]) and math.isnan(losses.value)
    assert "loss is nan in step 2" in next(r for r in rows if r.quantity == "wall_time").note


def test_rows_need_a_folder_and_known_fields(ticker_runner):
    with pytest.raises(UserError, match="run folder"):
        ticker_runner(RowsTicker()).run(1)
    with pytest.raises(UserError, match="Did you mean 'model'"):
        RowsTicker(modl="x")
    with pytest.raises(UserError, match="chunk"):
        RowsTicker(chunk=0)


def test_step_times_keep_raw_samples_without_first_call_warm_up_and_short_batches(fakes, ticker_runner):
    ticker = StepTimesTicker(warmup=2, optimizer="sgd")
    seconds = []
    recorder = fakes.Recorder(
        after_optimizer_step=lambda s: seconds.append((s.samples, s.step_seconds)),
    )
    ticker_runner(ticker, recorder, train=18, test=8).run(3)
    rows = {(r.phase, r.quantity): r for r in ticker.rows}
    assert set(rows) == {
        (phase, quantity)
        for phase in ("training_step", "inference", "fetch")
        for quantity in ("time", "first_call")
    }
    time = rows["training_step", "time"]
    whole = [s for samples, s in seconds[1:] if samples == 4]
    assert time.samples == tuple(whole[2:])
    assert time.value == np.median(whole[2:])
    assert time.low <= time.value <= time.high
    assert (time.warmup, time.repeats, time.batch, time.unit) == (2, 9, 4, "s")
    assert time.note == "3 calls with another batch size than 4 left out"
    assert rows["training_step", "first_call"].value == seconds[0][1]
    assert rows["inference", "time"].repeats == 6 - 1 - 2
    assert rows["training_step", "time"].optimizer == "sgd"


def test_step_times_go_to_the_run_folder_and_few_steps_have_a_first_call_only(ticker_runner, run_folder):
    ticker = StepTimesTicker()
    ticker_runner(ticker, train=4, test=0, folder=run_folder).run(1)
    assert [(r.phase, r.quantity) for r in run_folder.rows] == [
        ("training_step", "first_call"),
        ("fetch", "first_call"),
    ]
    assert all(isinstance(r, Row) and r.samples == () for r in ticker.rows)


# -- plots --------------------------------------------------------------------------------------


def test_plots_are_written_at_the_end_also_after_an_abort(fakes, ticker_runner, run_folder):
    ticker = PlotsTicker(formats=("png",))
    fakes.poison(ticker_runner(ticker, folder=run_folder), 5).run(3)
    names = sorted(p.name for p in (run_folder.path / "plots").iterdir())
    assert names == [
        *("accuracy-samples.png", "accuracy-seconds.png"),
        *("loss-samples.png", "loss-seconds.png", "training.png"),
    ]
    assert sorted(p.name for p in ticker.written) == names


def test_plots_need_a_folder(ticker_runner):
    with pytest.raises(UserError, match="needs a folder"):
        ticker_runner(PlotsTicker()).run(1)
