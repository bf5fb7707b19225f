"""The Runner and its data: sets that are read when asked for, workers, resuming, labels that are ignored."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest

from meta500.datasets import Dataset, LazyDataset, OrderedSampler, ShuffleSampler
from meta500.datasets.loader import Loader
from meta500.errors import UserError
from meta500.metrics import scores
from meta500.metrics.position import Position, position
from meta500.metrics.rows import read_csv
from meta500.metrics.runner import Runner, fixed_batch_size
from meta500.metrics.tickers import MetricTicker, RowsTicker, SummaryTicker


@dataclass(frozen=True, eq=False)
class Read:
    """Samples of a Dataset; notes which ones are read."""

    data: Dataset
    read: list

    def __call__(self, index):
        self.read.append(index)
        return {name: array[index] for name, array in self.data.inputs.items()}


def lazily(data):
    return LazyDataset(data.name, len(data), Read(data, []), data.shapes, data.dtypes, ignore=data.ignore)


@pytest.fixture
def made(fakes):
    def make(train, test=None, *, tickers=(), batch="N", **options):
        network = fakes.LinearNetwork(batch=batch)
        options = {"batch_size": 4, **options} if batch == "N" else options
        return Runner(network, fakes.Sgd(network), train, test, tickers=tickers, **options)

    return make


def test_a_set_read_when_asked_for_trains_as_one_in_memory(fakes, made):
    train, test = fakes.dataset(22), fakes.dataset(9, seed=1)
    expected = made(train, test, seed=3).run(2)
    for loading in (None, {"workers": 2}):
        runner = made(lazily(train), lazily(test), seed=3, loading=loading)
        found = runner.run(2)
        assert found.losses == expected.losses
        for one, two in zip(found.epochs, expected.epochs, strict=True):
            assert (one.loss, one.test_loss, one.accuracy) == (two.loss, two.test_loss, two.accuracy)
        assert fixed_batch_size(runner.network, lazily(train)) is None
    # The run closes the workers that it started, and starts new ones.
    assert runner.train_set._pool is None
    assert len(runner.run(1).losses) == 6 and runner.train_set._pool is None


def test_loaders_are_taken_as_they_are(fakes, made):
    data = fakes.dataset(20)
    expected = made(ShuffleSampler(data, 8, seed=1), data).run(2).losses
    with Loader(ShuffleSampler(data, 8, seed=1), workers=1) as loader:
        runner = made(loader, Loader(OrderedSampler(data, 3)))
        assert runner.run(2).losses == expected
        # It is its owner who closes it.
        assert loader._pool is not None and runner.label == "label"
    with pytest.raises(UserError, match="sampler has batch_size 5, but the network takes"):
        made(Loader(ShuffleSampler(data, 5, seed=1)), batch=4)
    with pytest.raises(UserError, match="ends with a batch of 2 samples"):
        made(Loader(OrderedSampler(fakes.dataset(10), 4)), batch=4)


def test_only_training_samples_are_augmented(fakes, made):
    def doubled(sample, random, roles):
        return {**sample, "image": sample["image"] * np.float32(2)}

    data, seen = fakes.dataset(8), []
    recorder = fakes.Recorder(
        after_optimizer_step=lambda s: seen.append(float(s.inputs["image"].sum())),
        after_inference_step=lambda s: seen.append(float(s.inputs["image"].sum())),
    )
    runner = made(data, data, tickers=[recorder], loading={"augment": [doubled]}, batch_size=8)
    runner.run(1)
    total = float(data.inputs["image"].sum(dtype=np.float64))
    assert seen == pytest.approx([2 * total, total], rel=1e-5)


@pytest.mark.parametrize("loading", [None, {"workers": 2, "prefetch": 1}])
def test_resuming_reads_nothing_that_is_skipped(fakes, made, loading):
    train, kept = fakes.dataset(22), {}

    def keep(state):
        if state.step == 9:
            kept["position"] = Position.from_plain(copy.deepcopy(position(state).plain()))
            kept["parameters"] = {k: v.copy() for k, v in state.network.parameters.items()}

    whole = made(lazily(train), tickers=[fakes.Recorder(after_optimizer_step=keep)], seed=5).run(3)
    data = lazily(train)
    runner = made(data, seed=5, loading=loading)
    runner.network.parameters.update(kept["parameters"])
    resumed = runner.run(3, resume=kept["position"])
    assert resumed.losses == whole.losses and len(resumed.data_seconds) == 18
    assert resumed.data_seconds[:9] == whole.data_seconds[:9]
    sampler = ShuffleSampler(train, 4, seed=5)
    unread = np.concatenate([*sampler.batches(1)[3:], *sampler.batches(2)])
    assert sorted(data.read.read) == sorted(unread.tolist())
    assert [e.loss for e in resumed.epochs] == [e.loss for e in whole.epochs]
    del kept["position"].summary["data_seconds"]
    with pytest.raises(UserError, match="has no 'data_seconds' per step: it was written by an older meta500"):
        made(data, seed=5).run(3, resume=kept["position"])


def test_other_samplers_skip_too(fakes, made):
    """A sampler with an ``epoch`` of its own is walked over; one without reads nothing."""
    from meta500.metrics.runner import _batches

    class Own(OrderedSampler):
        def epoch(self, epoch):
            return super().epoch(epoch)

    for kind, read in ((Own, 12), (OrderedSampler, 4)):
        data = lazily(fakes.dataset(12))
        found = list(_batches(kind(data, 4), 0, skip=2))
        assert len(found) == 1 and len(data.read.read) == read
    assert list(_batches([1, 2, 3], 0, skip=1)) == [2, 3]


def test_every_training_row_tells_the_time_of_data_apart(fakes, made, run_folder):
    summary = made(fakes.dataset(18), tickers=[RowsTicker(chunk=2)], folder=run_folder).run(2)
    rows = read_csv(run_folder.rows_path)
    steps = [r for r in rows if (r.phase, r.quantity) == ("training_step", "data_time")]
    places = [r.step for r in rows if (r.phase, r.quantity) == ("training_step", "training_time")]
    assert [r.step for r in steps] == places
    waited = [x for r in steps for x in r.samples]
    assert waited == pytest.approx(np.cumsum(summary.data_seconds), rel=1e-9)
    assert [r.value for r in steps] == [r.samples[-1] for r in steps]
    epochs = [r.value for r in rows if (r.phase, r.quantity) == ("training_set", "data_time")]
    assert epochs == [e.data_seconds for e in summary.epochs]
    assert sum(epochs) == pytest.approx(waited[-1], rel=1e-9) and min(epochs) > 0


IGNORE = 9


class Ignoring:
    """Makes the small network's loss a mean over the labels that are not 9."""

    def __init__(self, network):
        self.forward = network.forward
        network.forward = self

    def __call__(self, inputs):
        kept = inputs["label"] != IGNORE
        logits = self.forward({**inputs, "label": np.where(kept, inputs["label"], 0)})[0]["logits"]
        if not kept.any():
            return {"logits": logits, "loss": np.asarray(math.nan)}, np.full_like(logits, np.nan)
        found, _ = self.forward({k: v[kept] for k, v in inputs.items()})
        p = np.zeros_like(logits)
        return {"logits": logits, "loss": found["loss"]}, p


def ignoring(fakes, samples, seed, void):
    data = fakes.dataset(samples, seed)
    labels = data.inputs["label"].copy()
    labels[list(void)] = IGNORE
    return Dataset("void", {**data.inputs, "label": labels}, ignore=IGNORE)


def test_ignored_labels_count_in_no_mean_and_no_score(fakes):
    network = fakes.LinearNetwork()
    Ignoring(network)
    optimizer = fakes.Sgd(network, learning_rate=0.0)
    # The batches have 4, 1 and 0 labels that count, and the last one 2 of 3.
    test = ignoring(fakes, 15, 1, [4, 5, 7, 8, 9, 10, 11, 13])
    train = ignoring(fakes, 8, 2, [0, 1, 2])
    tickers = [MetricTicker("iou"), MetricTicker("dice"), MetricTicker(scores.Accuracy(2))]
    runner = Runner(
        network,
        optimizer,
        OrderedSampler(train, 4),
        OrderedSampler(test, 4),
        tickers=tickers,
    )
    # The gradient of this network is not that of its loss, so it stands still.
    network.inference_and_backprop = lambda inputs, loss="loss", outputs=None: network.inference(
        inputs, outputs
    )
    epoch = runner.run(1).epochs[0]
    kept = test.inputs["label"] != IGNORE
    some = {name: array[kept] for name, array in test.inputs.items()}
    expected = network.forward(some)[0]
    assert kept.sum() == 7 and epoch.test_samples == 15
    assert epoch.test_loss == pytest.approx(float(expected["loss"]), rel=1e-13)
    assert epoch.accuracy == scores.accuracy(expected["logits"], some["label"])
    for name, score in (("iou", scores.IoU()), ("dice", scores.Dice()), ("top2", scores.Accuracy(2))):
        score.update(expected["logits"], some["label"])
        assert epoch.scores[name] == score.value()
    kept = train.inputs["label"] != IGNORE
    some = {name: array[kept] for name, array in train.inputs.items()}
    assert epoch.loss == pytest.approx(float(network.forward(some)[0]["loss"]), rel=1e-13)
    assert epoch.samples == 8


def test_a_test_set_of_ignored_labels_has_no_loss(fakes):
    network = fakes.LinearNetwork()
    Ignoring(network)
    runner = Runner(network, fakes.Sgd(network), fakes.dataset(4), ignoring(fakes, 4, 1, range(4)))
    network.inference_and_backprop = lambda inputs, loss="loss", outputs=None: network.inference(
        inputs, outputs
    )
    epoch = runner.run(1).epochs[0]
    assert math.isnan(epoch.test_loss) and math.isnan(epoch.accuracy)


def test_scores_that_ignore_a_label_of_their_own_keep_it(fakes, made):
    own = MetricTicker(scores.Accuracy(2, ignore=1))
    data = fakes.dataset(9)
    made(data, data, tickers=[own]).run(1)
    assert own.metric.ignore == 1
    follows = MetricTicker("rmse")
    made(data, ignoring(fakes, 4, 1, []), tickers=[follows], logits=None)
    assert follows.metric.ignore is None and follows._follows_set


def test_deviations_leave_ignored_targets_out():
    prediction, target = np.array([1.0, 2.0, 3.0]), np.array([0.0, 9.0, 1.0])
    for score, value in ((scores.RMSE(ignore=9), math.sqrt(2.5)), (scores.MAE(ignore=9), 1.5)):
        score.update(prediction, target)
        assert score.value() == value and score.count == 2


def test_ranks_with_unequal_numbers_of_ignored_labels_are_merged_exactly(fakes):
    """Two tickers, each of half of the test batches, give the loss and accuracy of the whole set."""
    test = ignoring(fakes, 16, 1, [0, 1, 2, 5, 12, 13, 14, 15])
    parts = []
    for rank in range(2):
        network = fakes.LinearNetwork()
        Ignoring(network)
        network.inference_and_backprop = lambda inputs, loss="loss", outputs=None, n=network: n.inference(
            inputs, outputs
        )
        batches = [test.batch(range(k, k + 4)) for k in range(4 * rank, 16, 8)]
        own = SummaryTicker()
        runner = Runner(network, fakes.Sgd(network, 0.0), fakes.dataset(4), batches, tickers=[own])
        runner.ignore = IGNORE
        runner._end_test = lambda state, own=own: own.join_ranks(
            state, lambda part: (parts.append(part), [part] if len(parts) == 1 else parts)[1]
        )
        summary = runner.run(1)
    kept = test.inputs["label"] != IGNORE
    whole = network.forward({name: array[kept] for name, array in test.inputs.items()})[0]
    epoch = summary.epochs[0]
    assert epoch.test_samples == 16
    assert epoch.test_loss == pytest.approx(float(whole["loss"]), rel=1e-13)
    assert epoch.accuracy == scores.accuracy(whole["logits"], test.inputs["label"][kept])


@pytest.mark.parametrize(
    ("loading", "message"),
    [
        ([("workers", 2)], "loading must be a mapping of a Loader's options"),
        ({"worker": 2}, "unknown loading option 'worker'. Did you mean 'workers'?"),
        ({"kind": "fibre"}, "unknown kind of workers 'fibre'"),
    ],
)
def test_loading_options_that_cannot_work_are_refused(fakes, made, loading, message):
    with pytest.raises(UserError) as caught:
        made(fakes.dataset(8), loading=loading)
    assert message in str(caught.value)


def test_loading_that_would_have_no_effect_is_refused(fakes, made):
    sampler = OrderedSampler(fakes.dataset(8), 4)
    for options, words in (
        ({"workers": 2}, "workers"),
        ({"workers": 1, "augment": ["flip"]}, "workers and augment"),
    ):
        with pytest.raises(
            UserError, match=f"loading: {words} would have no effect.* a OrderedSampler: wrap the"
        ):
            made(sampler, loading=options)
    with pytest.raises(UserError, match="a Loader: give them to that Loader"):
        made(Loader(sampler), loading={"augment": ["flip"]})
    assert made(sampler, loading={"workers": 0, "kind": "process", "augment": ()}).run(1).losses


def test_a_training_batch_without_any_label_that_counts_is_refused(fakes):
    network = fakes.LinearNetwork()
    Ignoring(network)
    network.inference_and_backprop = lambda inputs, loss="loss", outputs=None: network.inference(
        inputs, outputs
    )
    runner = Runner(network, fakes.Sgd(network, 0.0), OrderedSampler(ignoring(fakes, 12, 1, range(4, 8)), 4))
    with pytest.raises(UserError) as caught:
        runner.run(2)
    assert str(caught.value) == (
        "batch 2 of epoch 0 has no label that counts (all are 9): take larger batches, or leave out such samples"
    )
    assert len(runner.state.summary.losses) == 1


def test_scores_of_another_target_do_not_ignore_the_label_of_the_set(fakes, made):
    data = ignoring(fakes, 4, 1, [])
    data = Dataset("d", {**data.inputs, "depth": np.full((4, 3), 9.0)}, ignore=IGNORE)
    other, same = MetricTicker("rmse", target="depth", name="depth"), MetricTicker("rmse", target="label")
    runner = made(fakes.dataset(8), data, tickers=[other])
    assert runner.run(1).epochs[0].scores["depth"] > 0 and other.metric.count == 12
    assert other.metric.ignore is None
    same.before_test_set(runner.state)
    assert same.metric.ignore == IGNORE


def test_rows_name_the_workers(fakes, made, run_folder):
    made(fakes.dataset(8), tickers=[RowsTicker()], folder=run_folder, loading={"workers": 1}).run(1)
    assert {row.protocol for row in read_csv(run_folder.rows_path)} == {"1 worker (thread)"}
