from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

from meta500.datasets import OrderedSampler, ShuffleSampler
from meta500.errors import UserError
from meta500.metrics import scores
from meta500.metrics.runner import Runner, fixed_batch_size
from meta500.metrics.tickers import NanAbort, SummaryTicker


@pytest.fixture
def parts(fakes):
    def make(batch="N", **options):
        network = fakes.LinearNetwork(batch=batch, **options)
        return network, fakes.Sgd(network)

    return make


def test_it_trains(fakes, parts):
    summary = Runner(*parts(), fakes.dataset(200), fakes.dataset(90, seed=1), batch_size=16).run(5)
    assert summary.status == "finished"
    assert len(summary.losses) == 5 * 13
    assert len(summary.epochs) == 5
    assert summary.losses[-1] < 0.3 * summary.losses[0]
    assert summary.accuracy > 0.95
    assert summary.best_accuracy >= summary.accuracy


def test_two_runs_with_the_same_seed_have_identical_losses(fakes, parts):
    runs = [
        Runner(*parts(), fakes.dataset(50), batch_size=8, seed=seed, logits=None).run(3).losses
        for seed in (4, 4, 5)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_means_are_weighted_by_samples_with_a_short_last_batch(fakes, parts):
    network, optimizer = parts()
    train, test = fakes.dataset(10), fakes.dataset(11, seed=1)
    sizes, losses = [], []
    recorder = fakes.Recorder(
        after_optimizer_step=lambda s: (sizes.append(s.samples), losses.append(s.loss)),
    )
    summary = Runner(network, optimizer, train, test, tickers=[recorder], batch_size=4).run(1)
    epoch = summary.epochs[0]
    assert sizes == [4, 4, 2]
    assert epoch.loss == pytest.approx(np.average(losses, weights=sizes), rel=1e-14)
    assert epoch.loss != pytest.approx(np.mean(losses), rel=1e-6)
    whole, _ = network.forward(test.batch(range(11)))
    assert epoch.test_loss == pytest.approx(float(whole["loss"]), rel=1e-13)
    assert epoch.accuracy == scores.accuracy(whole["logits"], test.inputs["label"])
    assert (epoch.samples, epoch.test_samples, epoch.steps) == (10, 11, 3)


def test_every_epoch_is_counted_from_zero(fakes, parts):
    network, optimizer = parts()
    test = fakes.dataset(11, seed=1)
    summary = Runner(network, optimizer, fakes.dataset(10), test, batch_size=4).run(2)
    one, two = summary.epochs
    whole, _ = network.forward(test.batch(range(11)))
    assert one.accuracy < two.accuracy
    assert two.accuracy == scores.accuracy(whole["logits"], test.inputs["label"])
    assert two.loss == pytest.approx(np.average(summary.losses[3:], weights=[4, 4, 2]), rel=1e-14)
    assert (two.samples, two.test_samples, two.steps, two.step) == (10, 11, 3, 6)


def test_a_loss_that_is_a_sum_is_divided_by_the_samples_once(fakes, parts):
    network, optimizer = parts(loss_reduction="sum")
    optimizer.learning_rate = 0.0
    data = fakes.dataset(11)
    options = {"batch_size": 4, "loss_reduction": "sum"}
    epoch = Runner(network, optimizer, data, data, **options).run(1).epochs[0]
    mean = float(network.forward(data.batch(range(11)))[0]["loss"]) / 11
    assert epoch.loss == pytest.approx(mean, rel=1e-13)
    assert epoch.test_loss == pytest.approx(mean, rel=1e-13)


def test_only_needed_outputs_are_fetched(fakes, parts):
    network, optimizer = parts()
    fetched = []
    train = optimizer.train
    optimizer.train = lambda inputs, outputs=None: (
        fetched.append(outputs),
        train(inputs, outputs),
    )[1]
    recorder = fakes.Recorder()
    Runner(network, optimizer, fakes.dataset(4), fakes.dataset(4), tickers=[recorder]).run(1)
    assert fetched == [["loss"]]
    assert network.asked == [("inference", ["loss", "logits"])]
    recorder.train_outputs = ("logits",)
    Runner(network, optimizer, fakes.dataset(4), tickers=[recorder], logits=None).run(1)
    assert fetched[-1] == ["loss", "logits"]


def test_samplers_are_asked_for_epochs_from_zero_and_the_test_set_is_always_the_same(fakes, parts):
    asked = {"train": [], "test": []}

    class Spy(OrderedSampler):
        def epoch(self, epoch):
            asked[self.name].append(epoch)
            return super().epoch(epoch)

    train, test = Spy(fakes.dataset(8), 4), Spy(fakes.dataset(8), 4)
    train.name, test.name = "train", "test"
    runner = Runner(*parts(), train, test)
    runner.run(3)
    runner.run(2, first_epoch=3)
    assert asked == {"train": [0, 1, 2, 3, 4], "test": [0] * 5}


def test_a_dataset_is_shuffled_anew_every_epoch_and_the_test_set_in_order(fakes, parts):
    data = fakes.dataset(12)
    first = []
    recorder = fakes.Recorder(
        after_optimizer_step=lambda s: first.append(s.inputs["image"].copy()),
        after_inference_step=lambda s: first.append(s.inputs["image"].copy()),
    )
    Runner(*parts(), data, data, tickers=[recorder], batch_size=12, seed=3).run(2)
    sampler = ShuffleSampler(data, 12, seed=3)
    for index, epoch in ((0, 0), (2, 1)):
        assert np.array_equal(first[index], next(sampler.epoch(epoch))["image"])
    assert not np.array_equal(first[0], first[2])
    assert np.array_equal(first[1], data.inputs["image"])
    assert np.array_equal(first[3], data.inputs["image"])


def test_any_list_of_batches_will_do(fakes, parts):
    batches = list(OrderedSampler(fakes.dataset(10), 4))
    summary = Runner(*parts(), batches, batches).run(2)
    assert [e.samples for e in summary.epochs] == [10, 10]


def test_a_generator_serves_one_epoch_only(fakes, parts):
    def batches():
        return (b for b in OrderedSampler(fakes.dataset(10), 4))

    assert Runner(*parts(), batches(), logits=None).run(1).epochs[0].samples == 10
    with pytest.raises(UserError, match=r"training set.*walked only once.*2 epochs"):
        Runner(*parts(), batches(), logits=None).run(2)


# -- networks with a fixed batch size -----------------------------------------------------------


def test_a_fixed_batch_size_drops_the_last_training_batch_and_keeps_all_test_samples(fakes, parts):
    runner = Runner(*parts(batch=4), fakes.dataset(10), fakes.dataset(8))
    assert (runner.batch_size, runner.test_batch_size) == (4, 4)
    epoch = runner.run(1).epochs[0]
    assert (epoch.samples, epoch.test_samples) == (8, 8)


@pytest.mark.parametrize(
    ("options", "test", "message"),
    [
        ({}, 10, r"10 samples.*fixed batch size 4.*last 2"),
        ({"batch_size": 5}, 8, "batch_size is 5.*exactly 4"),
        ({"test_batch_size": 2}, 8, "test_batch_size is 2.*exactly 4"),
        ({"drop_last": False}, 8, "drop_last=False.*10 samples.*4"),
    ],
)
def test_what_does_not_fit_a_fixed_batch_size_is_refused_beforehand(fakes, parts, options, test, message):
    with pytest.raises(UserError, match=message):
        Runner(*parts(batch=4), fakes.dataset(10), fakes.dataset(test), **options)


def test_samplers_that_do_not_fit_a_fixed_batch_size_are_refused_beforehand(fakes, parts):
    data = fakes.dataset(10)
    with pytest.raises(UserError, match=r"training set's sampler has batch_size 5.*exactly 4"):
        Runner(*parts(batch=4), OrderedSampler(data, 5))
    with pytest.raises(UserError, match=r"test set's sampler ends with a batch of 2.*drop_last"):
        Runner(*parts(batch=4), data, OrderedSampler(data, 4))
    Runner(*parts(batch=4), data, OrderedSampler(data, 4, drop_last=True)).run(1)


def test_batches_from_a_plain_iterable_are_checked_one_by_one(fakes, parts):
    batches = list(OrderedSampler(fakes.dataset(10), 4))
    with pytest.raises(UserError, match=r"batch 3 of the training set has 2 samples.*exactly 4"):
        Runner(*parts(batch=4), batches, logits=None).run(1)


def test_the_fixed_batch_size_is_that_of_the_inputs_that_are_fed(fakes):
    network = fakes.LinearNetwork(batch=4)
    assert fixed_batch_size(network) == 4
    assert fixed_batch_size(fakes.LinearNetwork()) is None
    network.inputs["temperature"] = type(network.inputs["image"])(shape=(1,))
    assert fixed_batch_size(network, fakes.dataset(8)) == 4
    with pytest.raises(UserError, match="'temperature' 1"):
        fixed_batch_size(network)
    network.inputs = {"image": None, "label": type(network.inputs["image"])(shape=None)}
    assert fixed_batch_size(network) is None


# -- NaN ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_ends_the_run_by_default(fakes, parts, value):
    network, optimizer = parts()
    steps = itertools.count(1)
    train = optimizer.train

    def poisoned(inputs, outputs=None):
        result = train(inputs, outputs)
        return {"loss": np.float32(value)} if next(steps) == 4 else result

    optimizer.train = poisoned
    summary = Runner(network, optimizer, fakes.dataset(12), batch_size=4, logits=None).run(3)
    assert summary.status == "failed"
    assert len(summary.losses) == 4
    assert summary.nonfinite_losses == 1
    assert f"loss is {value} in step 4 (epoch 1, after 16 samples)" in summary.abort_reason


def test_without_nan_abort_the_losses_are_still_counted(fakes, parts):
    network, optimizer = parts()
    optimizer.train = lambda inputs, outputs=None: {"loss": np.array(np.nan)}
    runner = Runner(network, optimizer, fakes.dataset(8), batch_size=4, logits=None, nan_abort=False)
    summary = runner.run(2)
    assert summary.status == "finished"
    assert summary.nonfinite_losses == 4


def test_default_tickers_are_added_once(fakes, parts):
    mine = NanAbort()
    given = [mine, SummaryTicker()]
    runner = Runner(*parts(), fakes.dataset(4), tickers=given)
    assert runner.tickers == [given[1], mine]
    assert [type(t) for t in Runner(*parts(), fakes.dataset(4)).tickers] == [
        SummaryTicker,
        NanAbort,
    ]
    with pytest.raises(UserError, match="2 SummaryTickers"):
        Runner(*parts(), fakes.dataset(4), tickers=[SummaryTicker(), SummaryTicker()])


# -- clocks -------------------------------------------------------------------------------------


class Clock:
    """A clock that moves only when it is told to."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", made)
    return made


def test_time_is_charged_to_what_took_it(fakes, parts, clock):
    network, optimizer = parts()
    train, infer = optimizer.train, network.inference
    milli = 1_000_000

    def wait(milliseconds, function):
        def slow(*args, **kwargs):
            clock.now += milliseconds * milli
            return function(*args, **kwargs)

        return slow

    optimizer.train, network.inference = wait(5, train), wait(7, infer)
    data = fakes.dataset(10)
    batches = OrderedSampler(data, 4)
    batches.epoch = lambda k: (wait(2, lambda b=b: b)() for b in OrderedSampler(data, 4).epoch(k))
    tests = OrderedSampler(data, 5)
    tests.epoch = lambda k: (wait(3, lambda b=b: b)() for b in OrderedSampler(data, 5).epoch(k))
    ticker = fakes.Recorder(
        after_optimizer_step=wait(11, lambda s: None), after_epoch=wait(100, lambda s: None)
    )
    summary = Runner(network, optimizer, batches, tests, tickers=[ticker]).run(2)
    expected = {"train": 30, "data": 12, "test": 28, "test_data": 12, "tickers": 266, "loop": 0}
    expected["wall"] = sum(expected.values())
    assert summary.seconds == pytest.approx({k: v / 1000 for k, v in expected.items()}, abs=1e-12)
    assert summary.step_seconds == pytest.approx([0.005] * 6)
    assert summary.train_seconds == pytest.approx(np.arange(1, 7) * 0.005)
    one, two = summary.epochs
    assert (one.train_seconds, one.data_seconds, one.test_seconds) == pytest.approx((0.015, 0.006, 0.014))
    assert (two.train_seconds, two.test_seconds) == pytest.approx((0.015, 0.014))
    assert (one.total_train_seconds, two.total_train_seconds) == pytest.approx((0.015, 0.030))
    # Wall time at the end of the first epoch: 3 steps, 2 tests, and 3 ticker calls.
    assert one.total_wall_seconds == pytest.approx(0.015 + 0.006 + 0.014 + 0.006 + 0.033)


def test_the_device_is_waited_for_before_and_after_every_step(fakes, parts):
    network, optimizer = parts()
    counts = []
    train = optimizer.train

    def counting(inputs, outputs=None):
        counts.append(network.synchronized)
        return train(inputs, outputs)

    optimizer.train = counting
    Runner(network, optimizer, fakes.dataset(8), batch_size=4, logits=None).run(1)
    assert counts == [1, 3]
    assert network.synchronized == 4


# -- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "lss"}, "Did you mean 'loss'"),
        ({"logits": "scores"}, "no output 'scores'.*logits, loss.*logits=None"),
        ({"loss_reduction": "max"}, "mean, sum"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"tickers": [NanAbort]}, "create an object"),
        ({"tickers": NanAbort()}, r"tickers=\[...\]"),
    ],
)
def test_bad_arguments_are_refused(fakes, parts, options, message):
    with pytest.raises(UserError, match=message):
        Runner(*parts(), fakes.dataset(8), fakes.dataset(8), **options)


@pytest.mark.parametrize("epochs", [0, -1, 1.5, True, "3"])
def test_bad_epochs_are_refused(fakes, parts, epochs):
    with pytest.raises(UserError, match="epochs must be an integer"):
        Runner(*parts(), fakes.dataset(8)).run(epochs)


@pytest.mark.parametrize(
    ("train_set", "message"),
    [
        ([], "training set gave no batch in epoch 0"),
        ([np.zeros((4, 4))], "input name: array"),
        ([{"image": np.zeros((0, 4)), "label": np.zeros(0, int)}], "without samples"),
        (7, "must be a Dataset"),
    ],
)
def test_bad_training_sets_are_refused(parts, train_set, message):
    with pytest.raises(UserError, match=message):
        Runner(*parts(), train_set).run(1)


def test_a_loss_that_is_missing_or_no_scalar_is_refused(fakes, parts):
    network, optimizer = parts()
    for result, message in (({}, "gave no 'loss'"), ({"loss": np.zeros(3)}, r"scalar.*\(3,\)")):
        optimizer.train = lambda inputs, outputs=None, result=result: result
        with pytest.raises(UserError, match=message):
            Runner(network, optimizer, fakes.dataset(4), logits=None).run(1)


def test_a_test_set_without_its_label_is_refused(fakes, parts):
    batches = [{"image": np.zeros((4, 4), np.float32), "label": np.zeros(4, int)}]
    with pytest.raises(UserError, match=r"no label input 'truth'.*image, label"):
        Runner(*parts(), batches, batches, label="truth").run(1)
