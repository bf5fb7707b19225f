from __future__ import annotations

import numpy as np
import pytest

from meta500.errors import UserError
from meta500.metrics.events import EVENTS, QUESTIONS, Abort, Dispatcher, Ticker, combine
from meta500.metrics.runner import Runner

TRAINING_STEP = ["before_optimizer_step", "after_optimizer_step", "abort_after_optimizer_step"]
TEST_STEP = ["before_inference_step", "after_inference_step"]


def epoch(train_batches, test_batches):
    test = ["before_test_set", *TEST_STEP * test_batches, "after_test_set"]
    return [
        "before_epoch",
        "before_training_set",
        *TRAINING_STEP * train_batches,
        "after_training_set",
        *(test if test_batches else []),
        "after_epoch",
        *(["abort_after_test_set"] if test_batches else []),
    ]


@pytest.fixture
def runner(fakes):
    def make(*tickers, test=True, optimizer=fakes.Sgd, **options):
        network = fakes.LinearNetwork()
        test_set = fakes.dataset(7, seed=1) if test else None
        options = {"batch_size": 4, **options}
        return Runner(network, optimizer(network), fakes.dataset(10), test_set, tickers=tickers, **options)

    return make


@pytest.mark.parametrize("kind", ["Sgd", "NativeSgd"])
def test_exact_order_of_events_for_reference_and_native_optimizers(fakes, runner, kind):
    recorder = fakes.Recorder()
    summary = runner(recorder, optimizer=getattr(fakes, kind)).run(2)
    assert recorder.log == ["before_run", *epoch(3, 2) * 2, "after_run"]
    assert summary.status == "finished"
    assert set(recorder.log) == set(EVENTS)


def test_without_a_test_set_its_events_and_question_do_not_fire(fakes, runner):
    recorder = fakes.Recorder()
    runner(recorder, test=False).run(1)
    assert recorder.log == ["before_run", *epoch(3, 0), "after_run"]


def test_every_event_reaches_all_tickers_in_their_order(fakes, runner):
    log = []
    runner(fakes.Recorder(log, "a "), fakes.Recorder(log, "b ")).run(1)
    assert log[::2] == [f"a {e}" for e in ["before_run", *epoch(3, 2), "after_run"]]
    assert log[1::2] == [f"b {e}" for e in ["before_run", *epoch(3, 2), "after_run"]]


@pytest.mark.parametrize("answer", [True, np.True_, "enough", Abort("enough")])
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_yes_ends_the_run_and_goes_straight_to_after_run(fakes, runner, question, answer):
    recorder = fakes.Recorder(**{question: lambda state: answer})
    summary = runner(recorder).run(5)
    cut = recorder.log.index(question)
    assert recorder.log == [*["before_run", *epoch(3, 2)][: cut + 1], "after_run"]
    assert summary.status == "stopped"
    assert summary.succeeded
    wanted = question if isinstance(answer, bool | np.bool_) else "enough"
    assert wanted in summary.abort_reason


@pytest.mark.parametrize("answer", [False, None, np.False_, ""])
def test_a_no_does_not_end_it(fakes, runner, answer):
    actions = {question: lambda state: answer for question in QUESTIONS}
    assert runner(fakes.Recorder(**actions)).run(2).status == "finished"


def test_all_are_asked_and_reasons_joined_and_one_failure_fails_the_run(fakes, runner):
    a = fakes.Recorder(abort_after_optimizer_step=lambda state: "slow")
    b = fakes.Recorder(abort_after_optimizer_step=lambda state: Abort("bad", failed=True))
    summary = runner(a, b).run(1)
    assert summary.abort_reason == "slow; bad"
    assert summary.status == "failed"
    assert not summary.succeeded


def test_an_answer_that_is_no_answer_is_an_error(fakes, runner):
    with pytest.raises(UserError, match="not 3"):
        runner(fakes.Recorder(abort_after_test_set=lambda state: 3)).run(1)


@pytest.mark.parametrize("event", EVENTS[:-1])
@pytest.mark.parametrize("error", [ZeroDivisionError("x"), KeyboardInterrupt()])
def test_after_run_fires_once_for_all_whatever_raises_where(fakes, runner, event, error):
    def fail(state):
        raise error

    ends = []
    before = fakes.Recorder(after_run=lambda s: ends.append((s.status, s.abort_reason, s.error)))
    broken = fakes.Recorder(**{event: fail})
    behind = fakes.Recorder()
    made = runner(before, broken, behind)
    with pytest.raises(type(error)):
        made.run(2)
    for ticker in (before, broken, behind):
        assert ticker.log.count("after_run") == 1
        assert ticker.log[-1] == "after_run"
        assert ticker.log[:-1] == ["before_run", *epoch(3, 2)][: len(ticker.log) - 1]
    # The others still got the event that one ticker broke on, and before_run in any case.
    assert before.log == broken.log == behind.log
    interrupted = isinstance(error, KeyboardInterrupt)
    status = "interrupted" if interrupted else "failed"
    assert ends == [(status, "interrupted (Ctrl-C)" if interrupted else "ZeroDivisionError: x", error)]
    assert made.state.summary.status == status


def test_errors_in_after_run_do_not_keep_it_from_the_others(fakes, runner):
    def fail(state):
        raise OSError("disk")

    behind = fakes.Recorder()
    made = runner(fakes.Recorder(after_run=fail), behind)
    with pytest.raises(OSError, match="disk"):
        made.run(1)
    assert behind.log[-1] == "after_run"
    assert made.state.summary.status == "failed"
    assert "disk" in made.state.summary.abort_reason


def test_the_first_error_is_raised_and_later_ones_are_notes(fakes, runner):
    def fail(error):
        def raising(state):
            raise error

        return raising

    made = runner(
        fakes.Recorder(after_optimizer_step=fail(UserError("first"))),
        fakes.Recorder(after_optimizer_step=fail(ValueError("second")), after_run=fail(OSError("third"))),
    )
    with pytest.raises(UserError, match="first") as caught:
        made.run(1)
    assert caught.value.__notes__ == ["and also: ValueError: second", "and also: OSError: third"]


def test_ctrl_c_is_not_hidden_by_an_earlier_error():
    error, interrupt = ValueError("x"), KeyboardInterrupt()
    assert combine(error, interrupt) is interrupt
    assert combine(interrupt, error) is interrupt
    assert combine(None, error) is error


def test_an_exception_inside_train_fires_after_run(fakes, runner):
    made = runner(recorder := fakes.Recorder())
    made.optimizer.train = lambda inputs, outputs=None: 1 / 0
    with pytest.raises(ZeroDivisionError):
        made.run(1)
    assert recorder.log[-2:] == ["before_optimizer_step", "after_run"]


def test_a_misspelt_event_is_refused_when_the_class_is_defined():
    with pytest.raises(UserError, match="Did you mean 'after_optimizer_step'"):
        type("Mine", (Ticker,), {"after_optimiser_step": lambda self, state: None})


def test_things_that_are_no_tickers_are_refused():
    with pytest.raises(UserError, match="create an object"):
        Dispatcher([Ticker])
    with pytest.raises(UserError, match="42"):
        Dispatcher([42])


def test_an_event_set_on_the_object_counts_and_what_is_not_overridden_is_not_called():
    ticker = Ticker()
    seen = []
    ticker.after_epoch = seen.append
    dispatcher = Dispatcher([ticker, Ticker()])
    assert [event for event in EVENTS if dispatcher.listeners[event]] == ["after_epoch"]


def test_what_the_state_says_at_each_step(fakes, runner):
    seen = []

    def after(state):
        seen.append((state.epoch, state.step, state.batch, state.samples, state.samples_seen))
        assert set(state.outputs) == {"loss"}
        assert state.loss == float(state.outputs["loss"])
        assert len(state.inputs["label"]) == state.samples

    before = []
    ticker = fakes.Recorder(
        after_optimizer_step=after,
        before_optimizer_step=lambda s: before.append((s.step, s.samples_seen)),
    )
    runner(ticker).run(2)
    assert seen == [
        *[(0, 1, 1, 4, 4), (0, 2, 2, 4, 8), (0, 3, 3, 2, 10)],
        *[(1, 4, 1, 4, 14), (1, 5, 2, 4, 18), (1, 6, 3, 2, 20)],
    ]
    assert before == [(1, 0), (2, 4), (3, 8), (4, 10), (5, 14), (6, 18)]
