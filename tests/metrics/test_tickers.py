from __future__ import annotations

import io
import math
from types import SimpleNamespace

import numpy as np
import pytest

from meta500.datasets import OrderedSampler
from meta500.errors import UserError
from meta500.metrics import scores
from meta500.metrics.runner import Runner
from meta500.metrics.tickers import (
    AccuracyLimit,
    MetricTicker,
    NanAbort,
    ProgressTicker,
    ScheduleTicker,
    ScoreLimit,
    StepLimit,
    TimeLimit,
)
from meta500.metrics.tickers.pace import RemainingTime, duration, left_words

# -- metrics ------------------------------------------------------------------------------------


def mean_of_maxima(prediction, target):
    """A metric whose mean over batches is not its value over the whole."""
    return float(np.abs(prediction - target).max())


def test_metrics_equal_those_of_the_whole_test_set(fakes, ticker_runner):
    tickers = [
        MetricTicker("top5", name="top"),
        MetricTicker("iou"),
        MetricTicker(scores.Accuracy(k=2)),
        MetricTicker("rmse", target="truth"),
        MetricTicker(mean_of_maxima, output="logits", target="truth"),
    ]
    tickers[0].metric = scores.Accuracy(k=3)
    made = ticker_runner(*tickers, test=11)
    found = made.run(2).epochs[-1].scores
    data = fakes.dataset(11, seed=1).inputs
    logits = made.network.forward(data)[0]["logits"]
    assert found == pytest.approx(
        {
            "top": 1.0,
            "iou": np.mean(scores.iou_per_class(scores.confusion_matrix(logits, data["label"]))),
            "top2": scores.accuracy(logits, data["label"], k=2),
            "rmse": scores.rmse(logits, data["truth"]),
            "mean_of_maxima": mean_of_maxima(logits, data["truth"]),
        },
        rel=1e-13,
    )


def test_a_metric_asks_for_its_output(fakes):
    network = fakes.LinearNetwork()
    data = fakes.dataset(8)
    metric = MetricTicker("rmse", output="logits", target="truth")
    summary = Runner(network, fakes.Sgd(network), data, data, tickers=[metric], logits=None).run(1)
    assert "rmse" in summary.epochs[0].scores
    assert summary.accuracy is None


@pytest.mark.parametrize(
    ("ticker", "options", "message"),
    [
        (lambda: [MetricTicker("acc")], {}, "unknown score 'acc'"),
        (lambda: [MetricTicker(scores.RMSE)], {}, "a Score object"),
        (lambda: [MetricTicker(3)], {}, "not 3"),
        (lambda: [MetricTicker("iou")], {"logits": None}, "which network output"),
        (lambda: [MetricTicker("iou", target="mask")], {}, "no 'mask', only: image, label, truth"),
        (lambda: [MetricTicker("iou", output="probabilities")], {}, "'probabilities'"),
        (
            lambda: [MetricTicker("iou"), MetricTicker("iou")],
            {},
            "two metric tickers are called 'iou'",
        ),
    ],
)
def test_bad_metrics_are_refused(ticker_runner, ticker, options, message):
    with pytest.raises(UserError, match=message):
        ticker_runner(*ticker(), **options).run(1)


# -- NaN ----------------------------------------------------------------------------------------


def test_nan_abort_keeps_gradients_parameters_and_inputs(fakes, ticker_runner, run_folder):
    nan = NanAbort()
    made = fakes.poison(ticker_runner(nan, folder=run_folder), 2)
    summary = made.run(3)
    assert summary.status == "failed"
    assert nan.saved == run_folder.path / "nan-step-2.npz"
    for part in ("loss is nan in step 2", "W (12 of 12), b (3 of 3)", str(nan.saved)):
        assert part in summary.abort_reason
    assert np.isnan(nan.gradients["W"]).all()
    assert np.array_equal(nan.inputs["image"], made.state.inputs["image"])
    with np.load(nan.saved) as saved:
        assert set(saved) == {
            *("gradients/W", "gradients/b", "parameters/W", "parameters/b"),
            *("inputs/image", "inputs/label", "inputs/truth"),
        }
        assert np.array_equal(saved["gradients/b"], nan.gradients["b"], equal_nan=True)
    fakes.poison(ticker_runner(nan, folder=run_folder), 2).run(1)
    assert nan.saved == run_folder.path / "nan-step-2-2.npz"


def test_nan_abort_without_a_folder_writes_nothing_but_keeps_them(
    fakes, ticker_runner, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    nan = NanAbort()
    fakes.poison(ticker_runner(nan), 1).run(1)
    assert nan.saved is None
    assert set(nan.gradients) == {"W", "b"}
    assert list(tmp_path.iterdir()) == []
    chosen = NanAbort(tmp_path / "grads")
    fakes.poison(ticker_runner(chosen), 1).run(1)
    assert chosen.saved == tmp_path / "grads"
    assert chosen.saved.exists()


def test_nan_abort_tells_what_it_could_not_keep(fakes, ticker_runner, tmp_path):
    made = fakes.poison(ticker_runner(NanAbort(tmp_path / "missing" / "x.npz")), 1)
    fetch = made.network.fetch_tensors

    def without_gradients(names):
        if names[0].startswith("grad/"):
            raise UserError("freed")
        return fetch(names)

    made.network.fetch_tensors = without_gradients
    reason = made.run(1).abort_reason
    assert reason.startswith("loss is nan in step 1")
    assert "the gradients are not kept by the network" in reason
    assert "could not be saved" in reason


def test_nan_in_the_test_loss_is_found_too(ticker_runner):
    made = ticker_runner()
    made.network.inference = lambda inputs, outputs=None: {
        "loss": np.array(np.inf),
        "logits": np.zeros((len(inputs["label"]), 3)),
    }
    summary = made.run(3)
    assert summary.status == "failed"
    assert "test loss is inf after epoch 0" in summary.abort_reason
    assert len(summary.epochs) == 1


# -- limits -------------------------------------------------------------------------------------


def test_step_limit(ticker_runner):
    summary = ticker_runner(StepLimit(4)).run(3)
    assert len(summary.losses) == 4
    assert summary.status == "stopped"
    assert summary.abort_reason == "step limit of 4 reached"
    assert len(summary.epochs) == 1
    assert (summary.current.epoch, summary.current.steps) == (1, 1)


@pytest.mark.parametrize("clock", ["wall", "train"])
def test_time_limit(ticker_runner, clock):
    made = ticker_runner(TimeLimit(1e-9, clock))
    summary = made.run(2)
    assert len(summary.losses) == 1
    assert f"({clock} clock)" in summary.abort_reason
    assert ticker_runner(TimeLimit(1e4, clock)).run(2).status == "finished"


def test_the_clock_of_the_time_limit_is_the_one_asked_for():
    state = SimpleNamespace(wall_seconds=5.0, train_seconds=1.0)
    assert TimeLimit(3, "train").abort_after_optimizer_step(state) is None
    assert TimeLimit(3, "wall").abort_after_test_set(state)


def test_accuracy_limit_records_the_time_to_accuracy(ticker_runner):
    limit = AccuracyLimit(0.9)
    summary = ticker_runner(limit, train=60, test=30).run(50)
    assert summary.status == "stopped"
    last = summary.epochs[-1]
    assert last.accuracy >= 0.9
    assert all(e.accuracy < 0.9 for e in summary.epochs[:-1])
    (reached,) = summary.reached
    assert reached is limit.reached
    assert reached.value == last.accuracy
    assert (reached.step, reached.samples_seen) == (last.step, last.samples_seen)
    assert reached.train_seconds == pytest.approx(summary.train_seconds[-1])
    assert reached.wall_seconds > reached.train_seconds
    assert "accuracy" in summary.abort_reason


def test_a_target_is_recorded_once_and_need_not_stop_the_run(ticker_runner):
    limit = AccuracyLimit(0.05, stop=False)
    summary = ticker_runner(limit, train=60, test=30).run(3)
    assert summary.status == "finished"
    assert [r.epoch for r in summary.reached] == [0]
    assert limit.best == max(e.accuracy for e in summary.epochs)


def test_score_limit_for_a_score_that_falls(ticker_runner):
    metric = MetricTicker("mae", target="truth")
    assert ticker_runner(metric, ScoreLimit(1e9, "mae", at_least=False)).run(3).status == "stopped"
    metric = MetricTicker("mae", target="truth")
    never = ScoreLimit(1e-9, "mae", at_least=False)
    summary = ticker_runner(metric, never).run(3)
    assert summary.status == "finished"
    assert never.reached is None
    assert never.best == min(e.scores["mae"] for e in summary.epochs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AccuracyLimit(97), "fraction.*0.97"),
        (lambda: AccuracyLimit(0), "fraction"),
        (lambda: TimeLimit(0), "positive"),
        (lambda: TimeLimit(math.nan), "positive"),
        (lambda: TimeLimit(1, "cpu"), "train, wall"),
        (lambda: StepLimit(0), "at least 1"),
        (lambda: ScoreLimit(math.inf), "finite"),
    ],
)
def test_bad_limits_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_limit_on_an_unknown_score_names_those_there_are(ticker_runner):
    with pytest.raises(UserError, match=r"unknown score of the test set 'iou'.*accuracy, test_loss"):
        ticker_runner(ScoreLimit(0.5, "iou")).run(1)


# -- schedules ----------------------------------------------------------------------------------


def test_schedules_per_step_and_per_epoch(ticker_runner):
    made = ticker_runner(ScheduleTicker("learning_rate", lambda step: 0.1 / (1 + step)))
    made.run(2)
    assert made.optimizer.rates == pytest.approx([0.1 / (1 + k) for k in range(6)])
    ticker = ScheduleTicker("learning_rate", lambda epoch: 0.5**epoch, per="epoch")
    made = ticker_runner(ticker)
    made.run(2)
    assert made.optimizer.rates == [1.0] * 3 + [0.5] * 3
    assert ticker.history == [(0, 1.0), (3, 0.5)]


def test_a_schedule_of_something_that_is_no_hyper_parameter_is_refused(fakes, ticker_runner):
    with pytest.raises(UserError, match="Did you mean 'learning_rate'"):
        ticker_runner(ScheduleTicker("learning_rte", lambda k: 0.1)).run(1)
    with pytest.raises(UserError, match="hyper-parameter of NativeSgd"):
        ticker_runner(ScheduleTicker("learning_rate", lambda k: 0.1), optimizer=fakes.NativeSgd).run(1)
    made = ticker_runner(ScheduleTicker("rates", lambda k: 0.1))
    made.optimizer.hyper_parameters = lambda: {"learning_rate": 0.5}
    with pytest.raises(UserError, match="Choose one of: learning_rate"):
        made.run(1)


@pytest.mark.parametrize("value", [math.nan, "0.1", None])
def test_a_schedule_must_give_finite_numbers(ticker_runner, value):
    with pytest.raises(UserError, match="no finite number"):
        ticker_runner(ScheduleTicker("learning_rate", lambda k: value)).run(1)


# -- progress -----------------------------------------------------------------------------------


def console(terminal):
    from rich.console import Console

    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def test_progress_is_quiet_where_there_is_no_terminal(ticker_runner):
    quiet = console(False)
    ticker_runner(ProgressTicker(quiet)).run(2)
    assert quiet.file.getvalue() == ""


def test_progress_shows_epochs_and_ends_also_on_errors(fakes, ticker_runner):
    loud = console(True)
    summary = ticker_runner(ProgressTicker(loud), MetricTicker("mae", target="truth")).run(2)
    text = loud.file.getvalue()
    for epoch in summary.epochs:
        line = f"epoch {epoch.epoch + 1}/2: loss {epoch.loss:.4g}, test loss {epoch.test_loss:.4g}"
        assert line in text
        assert f"accuracy {100 * epoch.accuracy:.2f} %, mae {epoch.scores['mae']:.4g}" in text

    def fail(state):
        raise ValueError("x")

    loud = console(True)
    ticker = ProgressTicker(loud)
    with pytest.raises(ValueError, match="x"):
        ticker_runner(ticker, fakes.Recorder(after_optimizer_step=fail)).run(1)
    assert ticker._bar is None


def test_progress_has_no_thread_of_its_own(fakes, ticker_runner):
    import threading

    counts = []
    recorder = fakes.Recorder(before_optimizer_step=lambda s: counts.append(threading.active_count()))
    before = threading.active_count()
    ticker_runner(ProgressTicker(console(True)), recorder).run(1)
    assert set(counts) == {before}


def test_progress_without_a_known_number_of_batches(fakes, ticker_runner):
    class Unknown:
        def __iter__(self):
            return iter(OrderedSampler(fakes.dataset(10), 4))

    assert ticker_runner(ProgressTicker(console(True)), train=Unknown()).run(2).status == "finished"


def test_remaining_time_is_counted_apart_for_training_and_tests():
    remaining = RemainingTime(epochs=3, train_batches=4, test_batches=2)
    assert remaining.seconds() is None
    remaining.add(100.0)  # the first one compiles
    assert remaining.seconds() is None
    for _ in range(3):
        remaining.add(1.0)
    assert remaining.seconds() == pytest.approx(8 * 1.0)
    assert not remaining.complete
    remaining.add(10.0, test=True)
    assert remaining.complete
    assert remaining.seconds() == pytest.approx(8 * 1.0 + 5 * 10.0)
    assert RemainingTime(3, None, 2).seconds() is None
    done = RemainingTime(1, 2, 0)
    done.add(1.0)
    done.add(1.0)
    assert done.seconds() == 0
    assert done.complete


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((None, True, False), ""),
        ((12.4, True, False), "12 s left"),
        ((12.4, False, False), "at least 12 s left"),
        ((12.4, True, True), "at most 12 s left"),
        ((12.4, False, True), ""),
    ],
)
def test_words_about_the_remaining_time_say_what_it_bounds(arguments, words):
    assert left_words(*arguments) == words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.416, "0.42 s"),
        (12.4, "12 s"),
        (59.7, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
