"""Logs for TensorBoard, MLPerf and MLflow, read back by other readers than what wrote them."""

from __future__ import annotations

import math
import os
import resource
import struct
import sys

import pytest

from meta500.errors import UserError
from meta500.metrics.run import RunFolder
from meta500.metrics.tickers import (
    MetricTicker,
    MlflowWriter,
    MlperfWriter,
    RowsTicker,
    TensorBoardWriter,
    create_log,
)
from meta500.metrics.tickers.logs import PACKAGES

WRITERS = {"tensorboard": TensorBoardWriter, "mlperf": MlperfWriter, "mlflow": MlflowWriter}


def needs(name):
    for package in PACKAGES[name]:
        pytest.importorskip(package)


@pytest.fixture(params=list(WRITERS))
def log(request):
    """The name of each log that can be written here."""
    needs(request.param)
    return request.param


# -- an event file, parsed by hand --------------------------------------------------------------


def crc32c(data):
    """The Castagnoli checksum, bit by bit; that of b"123456789" is 0xE3069283 (RFC 3720)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """The payloads of a TFRecord file, with both checksums of each checked."""
    rest, found = path.read_bytes(), []
    while rest:
        (length,) = struct.unpack("<Q", rest[:8])
        assert struct.unpack("<I", rest[8:12]) == (masked(rest[:8]),)
        payload = rest[12 : 12 + length]
        assert len(payload) == length
        assert struct.unpack("<I", rest[12 + length : 16 + length]) == (masked(payload),)
        found.append(payload)
        rest = rest[16 + length :]
    return found


def message(data):
    """A protocol buffer as {field number: [values]}: integers, or the bytes of the others."""
    found, i = {}, 0

    def varint():
        nonlocal i
        value = shift = 0
        while True:
            byte = data[i]
            i += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while i < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value, i = data[i : i + size], i + size
        found.setdefault(key >> 3, []).append(value)
    return found


def scalars(folder):
    """{tag: [(step, value, seconds since the epoch)]} of the one event file in a folder; fields by number
    as in TensorFlow's event.proto and summary.proto."""
    (path,) = folder.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, *events = map(message, records(path))
    assert first[3] == [b"brain.Event:2"]
    found = {}
    for event in events:
        (seconds,) = struct.unpack("<d", event[1][0])
        for value in message(event[5][0])[1]:
            value = message(value)
            # A number that is 0 is not written.
            number = struct.unpack("<f", value[2][0])[0] if 2 in value else 0.0
            found.setdefault(value[1][0].decode(), []).append((event[2][0], number, seconds))
    return found


def single(values):
    return [struct.unpack("<f", struct.pack("<f", value))[0] for value in values]


def test_the_checksum_of_these_tests_is_that_of_rfc_3720():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def check_scalars(found, summary):
    """Every number of a Summary is there, at its step, in time order."""
    per_step = {
        "train/loss": summary.losses,
        "train/step_seconds": summary.step_seconds,
        "train/data_seconds": summary.data_seconds,
    }
    per_epoch = {
        "train/epoch_loss": [e.loss for e in summary.epochs],
        "test/loss": [e.test_loss for e in summary.epochs],
        "test/accuracy": [e.accuracy for e in summary.epochs],
    }
    for name in summary.epochs[0].scores:
        per_epoch[f"test/{name}"] = [e.scores[name] for e in summary.epochs]
    assert set(found) == {*per_step, *per_epoch}
    for name, values in per_step.items():
        assert [v for _, v, _ in found[name]] == single(values)
        assert [s for s, _, _ in found[name]] == list(range(1, len(values) + 1))
    for name, values in per_epoch.items():
        assert [v for _, v, _ in found[name]] == single(values)
        assert [s for s, _, _ in found[name]] == [e.step for e in summary.epochs]
    for points in found.values():
        times = [seconds for _, _, seconds in points]
        assert times == sorted(times)


def test_event_file_has_every_step_and_epoch(ticker_runner, run_folder):
    needs("tensorboard")
    ticker = TensorBoardWriter()
    summary = ticker_runner(ticker, MetricTicker("iou"), folder=run_folder).run(2)
    found = scalars(run_folder.path / "tensorboard")
    check_scalars(found, summary)
    assert ticker.written.parent == run_folder.path / "tensorboard"
    between = found["train/loss"][-1][2] - found["train/loss"][0][2]
    assert between == pytest.approx(summary.wall_seconds[-1] - summary.wall_seconds[0], abs=0.5)


def test_tensorboard_itself_reads_the_event_file(ticker_runner, run_folder):
    needs("tensorboard")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    summary = ticker_runner(TensorBoardWriter(), folder=run_folder).run(2)
    events = reader.EventAccumulator(str(run_folder.path / "tensorboard")).Reload()
    found = {
        tag: [(e.step, e.value, e.wall_time) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }
    check_scalars(found, summary)


def test_a_second_run_gets_an_event_file_of_its_own(ticker_runner, tmp_path):
    needs("tensorboard")
    ticker = TensorBoardWriter(tmp_path / "events")
    made = ticker_runner(ticker)
    made.run(1)
    made.run(1)
    files = sorted((tmp_path / "events").iterdir())
    assert len(files) == 2 and all(len(records(path)) == 1 + 3 + 1 for path in files)


# -- MLflow -------------------------------------------------------------------------------------


def mlflow_run(database):
    """The client and the one run of a database."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{database}")
    experiment = client.get_experiment_by_name("meta500")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


def history(client, run):
    return {
        name: [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }


def test_mlflow_gives_back_metrics_parameters_and_status(ticker_runner, run_folder):
    needs("mlflow")
    ticker = MlflowWriter(model="points-linear", seed=3)
    summary = ticker_runner(ticker, MetricTicker("iou"), folder=run_folder).run(2)
    client, run = mlflow_run(run_folder.path / "mlflow" / "mlflow.db")
    assert (run.info.status, run.info.run_id) == ("FINISHED", ticker.run_id)
    parameters = run.data.params
    assert parameters["model"] == "points-linear"
    assert (parameters["seed"], parameters["batch"], parameters["epochs"]) == ("3", "4", "2")
    assert (parameters["backend"], parameters["dataset"]) == ("fake", "points")
    assert run.data.tags["meta500.run"] == run_folder.id
    found = history(client, run)
    assert [v for _, v, _ in found["train/loss"]] == summary.losses
    check_scalars({k: [(s, *single([v]), t) for s, v, t in points] for k, points in found.items()}, summary)
    assert [v for _, v, _ in found["test/iou"]] == [e.scores["iou"] for e in summary.epochs]
    assert run.info.end_time - run.info.start_time == pytest.approx(1000 * summary.seconds["wall"], abs=2)


def test_mlflow_tells_a_run_that_diverged(fakes, ticker_runner, run_folder):
    needs("mlflow")
    fakes.poison(ticker_runner(MlflowWriter(), folder=run_folder), 2).run(3)
    client, run = mlflow_run(run_folder.path / "mlflow" / "mlflow.db")
    assert run.info.status == "FAILED"
    assert "loss is nan in step 2" in run.data.tags["meta500.reason"]
    assert math.isnan(history(client, run)["train/loss"][1][1])


def test_mlflow_gets_names_that_it_takes(ticker_runner, run_folder):
    needs("mlflow")
    score = MetricTicker(lambda prediction, target: 0.5)
    ticker_runner(MlflowWriter(), score, folder=run_folder).run(1)
    _, run = mlflow_run(run_folder.path / "mlflow" / "mlflow.db")
    assert run.data.metrics["test/_lambda_"] == 0.5


def test_mlflow_takes_more_metrics_than_one_call_and_odd_names_of_folders(ticker_runner, tmp_path):
    needs("mlflow")
    folder = tmp_path / "a%20b?c #ü"
    made = ticker_runner(MlflowWriter(folder), train=1600, test=0)
    summary = made.run(1)
    assert (folder / "mlflow.db").is_file()
    client, run = mlflow_run(str(folder / "mlflow.db").replace("%", "%25").replace("?", "%3F"))
    assert len(summary.losses) == 400
    assert [v for _, v, _ in history(client, run)["train/loss"]] == summary.losses


# -- all of them --------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["tensorboard", "mlflow"])
def test_resumed_runs_log_the_whole_run(resumed, log, run_folder):
    needs(log)
    summary = resumed(create_log(log), folder=run_folder)
    if log == "tensorboard":
        check_scalars(scalars(run_folder.path / "tensorboard"), summary)
    else:
        found = history(*mlflow_run(run_folder.path / "mlflow" / "mlflow.db"))
        check_scalars({k: [(s, *single([v]), t) for s, v, t in p] for k, p in found.items()}, summary)


def test_a_full_disk_in_the_middle_ends_the_run_and_loses_none_of_it(
    fakes, ticker_runner, log, run_folder, monkeypatch
):
    """From step 2 on no file may grow, while the log's ticker has its turn, beyond what the log has then."""
    monkeypatch.setattr(f"meta500.metrics.tickers.{log}_writer.FLUSH_SECONDS", 0.0, raising=False)
    ticker = create_log(log)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = []

    def limit(state):
        if state.step >= 2:
            size.append(os.path.getsize(ticker.written))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size[0], unlimited[1]))

    def lift(state):
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    events = ("after_optimizer_step", "after_training_set", "before_test_set", "after_epoch", "after_run")
    before = fakes.Recorder(**dict.fromkeys(events, limit))
    after = fakes.Recorder(**dict.fromkeys(events, lift))
    made = ticker_runner(before, ticker, after, RowsTicker(), folder=run_folder, train=2000)
    try:
        with pytest.raises(UserError, match="cannot be written") as raised, run_folder:
            made.run(2)
    finally:
        lift(None)
    assert str(raised.value).startswith(f"{ticker.written} cannot be written: ")
    assert after.log[-1] == "after_run"
    read = RunFolder.open(run_folder.path)
    assert read.status == "failed"
    losses = [r for r in read.rows if (r.phase, r.quantity) == ("training_step", "loss")]
    assert [x for r in losses for x in r.samples] == made.state.summary.losses
    assert len(made.state.summary.losses) >= 2


@pytest.mark.parametrize("name", list(WRITERS))
def test_a_package_that_is_missing_is_told_with_its_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, PACKAGES[name][0], None)
    with pytest.raises(UserError, match=rf"needs the package '{PACKAGES[name][0]}'.*'meta500\[{name}\]'"):
        create_log(name)


def test_names_and_fields_that_are_unknown_are_refused(log):
    with pytest.raises(UserError, match="Did you mean 'tensorboard'"):
        create_log("tensorbord")
    with pytest.raises(UserError, match="Did you mean 'model'"):
        create_log(log, modl="x")


def test_a_folder_or_a_path_is_needed(ticker_runner, log):
    with pytest.raises(UserError, match="needs a path, since the Runner has no run folder"):
        ticker_runner(create_log(log)).run(1)
