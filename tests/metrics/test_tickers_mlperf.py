"""MLPerf's log lines: the schema of each, their order, and what they say."""

from __future__ import annotations

import json

import pytest

from meta500.errors import UserError
from meta500.metrics.tickers import AccuracyLimit, MlperfWriter, ScoreLimit, StepLimit

pytest.importorskip("mlperf_logging")


def lines(path):
    """The lines of a log as dictionaries, each checked against the schema."""
    found = []

    def refuse(name):
        raise ValueError(name)

    for text in path.read_text().splitlines():
        mark, _, rest = text.partition(" ")
        assert mark == ":::MLLOG"
        line = json.loads(rest, parse_constant=refuse)
        assert list(line) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
        assert line["namespace"] == ""
        assert type(line["time_ms"]) is int
        assert line["event_type"] in ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME")
        assert line["key"] and isinstance(line["key"], str)
        assert line["metadata"]["file"].startswith("meta500/metrics/tickers/")
        assert type(line["metadata"]["lineno"]) is int
        ending = {"INTERVAL_START": "_start", "INTERVAL_END": "_stop"}.get(line["event_type"], "")
        assert line["key"].endswith(ending)
        found.append(line)
    times = [line["time_ms"] for line in found]
    assert times == sorted(times)
    return found


def keys(found):
    return [line["key"] for line in found]


EPOCH = ["epoch_start", "tracked_stats", "epoch_stop"]
EVAL = ["eval_start", "eval_accuracy", "eval_loss", "eval_stop"]


def test_lines_of_a_run(ticker_runner, run_folder):
    summary = ticker_runner(MlperfWriter(seed=7, optimizer="sgd"), folder=run_folder).run(2)
    found = lines(run_folder.path / "mlperf.log")
    facts = ["seed", "global_batch_size", "opt_name", "train_samples", "eval_samples"]
    assert keys(found) == [*facts, "run_start", *([*EPOCH, *EVAL] * 2), "run_stop"]
    assert {line["key"]: line["value"] for line in found[:5]} == {
        "seed": 7,
        "global_batch_size": 4,
        "opt_name": "sgd",
        "train_samples": 10,
        "eval_samples": 7,
    }
    accuracies = [line for line in found if line["key"] == "eval_accuracy"]
    assert [line["value"] for line in accuracies] == [e.accuracy for e in summary.epochs]
    assert [line["metadata"]["epoch_num"] for line in accuracies] == [1, 2]
    assert [line["metadata"]["samples_count"] for line in accuracies] == [10, 20]
    stats = [line for line in found if line["key"] == "tracked_stats"]
    assert [line["value"]["train_loss"] for line in stats] == [e.loss for e in summary.epochs]
    assert [line["value"]["throughput"] for line in stats] == [10 / e.train_seconds for e in summary.epochs]
    assert [line["metadata"]["step"] for line in stats] == [3, 6]
    assert found[-1]["metadata"]["status"] == "success"


def test_lines_are_read_by_mlperf_itself(ticker_runner, run_folder):
    parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser")
    ticker_runner(MlperfWriter(), folder=run_folder).run(1)
    path = run_folder.path / "mlperf.log"
    parsed, failed = parser.parse_file(str(path), ruleset="4.1.0")
    assert not failed
    assert [line.key for line in parsed] == keys(lines(path))


@pytest.mark.parametrize(
    "limits, status",
    [
        ([StepLimit(4)], "success"),
        ([AccuracyLimit(0.01)], "success"),
        ([ScoreLimit(1e-9, "test_loss", at_least=False), StepLimit(4)], "aborted"),
    ],
)
def test_success_is_the_target_where_there_is_one(ticker_runner, run_folder, limits, status):
    ticker_runner(MlperfWriter(), *limits, folder=run_folder).run(2)
    found = lines(run_folder.path / "mlperf.log")
    assert found[-1]["metadata"]["status"] == status
    assert found[-1]["metadata"]["reason"]
    assert keys(found).count("epoch_start") == keys(found).count("epoch_stop")


def test_a_run_that_diverges_ends_its_intervals_and_is_aborted(fakes, ticker_runner, run_folder):
    fakes.poison(ticker_runner(MlperfWriter(), folder=run_folder), 5).run(3)
    found = lines(run_folder.path / "mlperf.log")
    assert keys(found)[-3:] == ["epoch_start", "epoch_stop", "run_stop"]
    assert found[-1]["metadata"]["status"] == "aborted"
    assert "loss is nan in step 5" in found[-1]["metadata"]["reason"]


def test_numbers_that_are_not_finite_are_strings_in_the_lines(fakes, ticker_runner, run_folder):
    fakes.poison(ticker_runner(MlperfWriter(), folder=run_folder, nan_abort=False), 2).run(1)
    found = {line["key"]: line["value"] for line in lines(run_folder.path / "mlperf.log")}
    assert found["tracked_stats"]["train_loss"] == "nan"
    assert found["eval_loss"] == "nan"


def test_a_log_that_exists_is_not_overwritten(ticker_runner, tmp_path):
    (tmp_path / "a.log").write_text("mine")
    with pytest.raises(UserError, match=r"a.log exists already"):
        ticker_runner(MlperfWriter(tmp_path / "a.log")).run(1)
    assert (tmp_path / "a.log").read_text() == "mine"


def test_lines_of_a_resumed_run_are_those_of_the_whole(resumed, run_folder):
    resumed(MlperfWriter(), folder=run_folder)
    found = lines(run_folder.path / "mlperf.log")
    begin = keys(found).index("run_start")
    assert keys(found)[begin:] == ["run_start", *([*EPOCH, *EVAL] * 3), "run_stop"]
    places = [line["metadata"] for line in found if line["key"].startswith("epoch_")]
    samples = [(place["epoch_num"], place["samples_count"]) for place in places]
    assert samples == [(1, 0), (1, 10), (2, 10), (2, 20), (3, 20), (3, 30)]
