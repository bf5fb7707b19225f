"""Latencies and label bias of samplers and loaders, as rows, plots and in the run folder of the command."""

import json
import math

import numpy as np
import pytest
from scipy.stats import chisquare

from meta500.benchmarks.sampling import sampling_command
from meta500.datasets import ChoiceSampler, Dataset, OrderedSampler, ShuffleSampler
from meta500.datasets.loader import Loader
from meta500.errors import UserError
from meta500.metrics import sampling
from meta500.metrics.plots.sampling import draw_labels, draw_latencies
from meta500.metrics.run import RunFolder
from meta500.metrics.sampling import chi_square, measure, total_variation


def classes(labels, **options):
    labels = np.asarray(labels)
    image = np.zeros((len(labels), 1, 2, 2), np.float32)
    return Dataset("d", {"image": image, "label": labels}, classes=("a", "b", "c"), **options)


def by_quantity(rows):
    return {row.quantity: row for row in rows if not row.node}


def test_every_sample_once_has_no_bias():
    data = classes([0, 0, 1, 2, 2, 2, 2, 1])
    with Loader(ShuffleSampler(data, 3, seed=1), workers=2) as loader:
        found = measure(loader, 2)
    assert (found.samples, found.batches, len(found.first), len(found.latencies)) == (16, 6, 2, 4)
    np.testing.assert_array_equal(found.labels.counts, [4, 4, 8])
    np.testing.assert_array_equal(found.labels.expected, [4, 4, 8])
    assert found.labels.total_variation == 0 and found.labels.chi_square == (0, 1)
    assert found.throughput == pytest.approx(16 / found.seconds)


def test_the_bias_of_what_was_drawn():
    # The last batch is left out, and with it every third class.
    data = classes([0, 0, 1, 1, 2, 2])
    found = measure(OrderedSampler(data, 4, drop_last=True))
    np.testing.assert_array_equal(found.labels.counts, [2, 2, 0])
    np.testing.assert_allclose(found.labels.expected, [4 / 3] * 3)
    assert found.labels.total_variation == pytest.approx(1 / 3)
    statistic, p = chisquare([2, 2, 0], [4 / 3] * 3)
    assert found.labels.chi_square == pytest.approx((statistic, p))


def test_draws_with_replacement_are_as_likely_as_chance():
    data = classes(np.repeat([0, 1, 2], [50, 30, 20]))
    ps = [measure(ChoiceSampler(data, 50, seed=seed, samples=200)).labels.chi_square[1] for seed in range(60)]
    assert 0.3 < np.mean(ps) < 0.7 and min(ps) > 1e-4


def test_distances_and_tests_against_their_definitions():
    assert total_variation(np.array([3, 1]), np.array([1, 1])) == 0.25
    assert total_variation(np.array([5, 0]), np.array([0, 2])) == 1
    assert chi_square(np.array([1, 3]), np.array([4, 0])) == (math.inf, 0)
    assert chi_square(np.array([6, 2, 0]), np.array([4.0, 4.0, 0.0])) == pytest.approx(
        tuple(chisquare([6, 2], [4, 4]))
    )


def test_masks_are_counted_without_ignored_pixels_and_have_no_p_value():
    masks = np.array([[[0, 1], [255, 1]], [[2, 2], [2, 255]]])
    data = classes(masks, ignore=255)
    found = measure(OrderedSampler(data, 1), 3)
    np.testing.assert_array_equal(found.labels.counts, [3, 6, 9])
    assert found.labels.ignored == 6 and found.labels.chi_square is None
    rows = found.rows(dataset="d")
    assert by_quantity(rows)["label_ignored"].value == 6 and "p_value" not in by_quantity(rows)


def test_sets_without_classes_have_latencies_only():
    for label, values in ((None, np.zeros(4)), ("label", np.zeros(4, np.float32))):
        arrays = {"x": np.zeros((4, 2)), "label": values}
        data = Dataset("d", arrays, label=label, default_loss="mse")
        found = measure(OrderedSampler(data, 2))
        assert found.labels is None
        assert set(by_quantity(found.rows())) == {"latency", "mean_latency", "first_call", "throughput"}
    with pytest.raises(UserError, match="there are no counted labels to plot"):
        draw_labels(found.rows())
    with pytest.raises(UserError, match="there is no latency of batches"):
        draw_latencies([])


def test_rows_hold_every_latency():
    found = measure(OrderedSampler(classes([0, 1, 2, 0, 1]), 1), 2)
    rows = found.rows(dataset="d", batch=1)
    latency, first = by_quantity(rows)["latency"], by_quantity(rows)["first_call"]
    assert latency.samples == found.latencies and len(found.latencies) == 8
    assert latency.value == pytest.approx(np.median(found.latencies)) and latency.unit == "s"
    assert latency.low <= latency.value <= latency.high
    assert first.samples == found.first and len(found.first) == 2
    counts = [(row.node, row.value) for row in rows if row.quantity == "label_count"]
    assert counts == [("a", 4), ("b", 4), ("c", 2)]
    assert {row.phase for row in rows} == {"sampling"} and {row.dataset for row in rows} == {"d"}


def test_figures_show_what_was_measured():
    found = measure(ChoiceSampler(classes([0, 1, 2, 0, 1]), 2, seed=1), 3)
    rows = found.rows(dataset="d", mode="no workers", note="sampler choice")
    figure = draw_labels(rows)
    drawn = [bar.get_height() for bar in figure.axes[0].patches]
    np.testing.assert_allclose(drawn, 100 * found.labels.counts / 15)
    assert "p = " in figure.axes[0].get_title(loc="left")
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["a", "b", "c"]
    order, share = draw_latencies(rows).axes
    assert len(order.lines[0].get_xdata()) == len(found.latencies)
    assert order.get_ylabel().startswith("time until the batch is there (")
    assert share.get_xlim() == (0, 100)
    two = draw_latencies([*rows, *found.rows(dataset="d", mode="3 thread workers")])
    assert [text.get_text().split(",")[0] for text in two.legends[0].texts] == [
        "no workers",
        "3 thread workers",
    ]


def test_many_classes_are_an_outline():
    labels = np.arange(200) % 100
    data = Dataset("d", {"image": np.zeros((200, 1, 2, 2)), "label": labels})
    rows = measure(OrderedSampler(data, 20)).rows(dataset="d")
    axes = draw_labels(rows).axes[0]
    assert axes.get_xlabel() == "number of the class" and len(axes.patches) == 2
    np.testing.assert_allclose(axes.patches[0].get_data().values, np.ones(100))


def test_the_command_writes_a_run_folder(tmp_path, capsys):
    common = ("digits", {"test_fraction": 0.9}, "choice", 20, 3, 2, 2, ["flip", "crop:1"])
    assert sampling_command(*common, tmp_path / "run", True) == 0
    told = json.loads(capsys.readouterr().out)
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "finished" and run.info["sampling"]["augment"] == ["flip", "crop:1"]
    rows = by_quantity(run.rows)
    assert told["latency"] == rows["latency"].value and told["samples"] == sum(told["label_counts"].values())
    assert rows["latency"].mode == "2 thread workers" and rows["latency"].seed == 3
    assert {path.name for path in (tmp_path / "run" / "plots").glob("*.png")} == {
        "sampling-latency.png",
        "sampling-labels.png",
    }
    assert sampling_command(*common[:6], 0, [], tmp_path / "other", False) == 0
    table = capsys.readouterr().out
    assert "no workers" in table and "label bias" in table and "sampler choice" in table
    again = by_quantity(RunFolder.open(tmp_path / "other").rows)
    # The same seed draws the same labels.
    assert again["total_variation"].value == rows["total_variation"].value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: "digit"}, "unknown dataset 'digit'. Did you mean 'digits'?"),
        ({2: "shuffled"}, "unknown sampler 'shuffled'. Did you mean 'shuffle'?"),
        ({2: "shuffle:3"}, "sampler 'shuffle:3': only bucket takes a value"),
        ({2: "bucket:x"}, "write bucket:64"),
        ({5: 0}, "--epochs must be at least 1, got 0"),
        ({7: ["warp"]}, "unknown augmentation 'warp'"),
    ],
)
def test_what_cannot_be_sampled_says_so(tmp_path, change, message):
    arguments = ["digits", {}, "shuffle", 20, 0, 1, 0, [], tmp_path / "run", False]
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(UserError) as caught:
        sampling_command(*arguments)
    assert message in str(caught.value) and not (tmp_path / "run").exists()


def test_only_samplers_are_measured():
    with pytest.raises(UserError, match=r"a sampler or loader with .epoch\(k\) and .dataset, not list"):
        measure([])
    with pytest.raises(UserError, match="epochs must be an integer of at least 1, not 0"):
        measure(OrderedSampler(classes([0, 1, 2]), 1), 0)


class Source:
    """Gives batches of a set and notes when."""

    def __init__(self, data, events):
        self.dataset, self.events = data, events

    def epoch(self, number):
        for indices in OrderedSampler(self.dataset, 2).batches(number):
            self.events.append("batch")
            yield self.dataset.batch(indices)


@pytest.mark.parametrize("labels", [[0, 1, 2, 0], np.zeros((4, 2, 2), np.int64)])
def test_labels_are_counted_after_the_timed_walk(monkeypatch, labels):
    """Workers would go on while labels are counted, outside of the clock."""
    events = []
    add = sampling._Counts.add
    monkeypatch.setattr(sampling._Counts, "add", lambda own, x: (events.append("count"), add(own, x)))
    found = measure(Source(classes(labels), events), 2)
    assert events[:4] == ["batch"] * 4 and "count" in events[4:]
    assert found.labels.counts.sum() == 2 * np.size(labels) and found.batches == 4


def test_class_labels_are_counted_by_number_unless_a_step_may_change_them():
    events = []
    data = classes([0, 1, 2, 2])
    read = type(data).batch

    class Watched(Dataset):
        def batch(self, indices, change=None):
            events.append(len(indices))
            return read(self, indices, change)

    data = Watched(data.name, data.inputs, classes=data.classes)

    def relabel(sample, random, roles):
        return {**sample, "label": np.int64(1)}

    found = measure(Loader(OrderedSampler(data, 2), augment=["flip"]))
    assert events == [2, 2] and found.labels.counts.tolist() == [1, 1, 2]
    found = measure(Loader(OrderedSampler(data, 2), augment=[relabel]))
    assert found.labels.counts.tolist() == [0, 4, 0]


def test_the_mean_latency_stands_beside_the_median():
    found = measure(OrderedSampler(classes([0, 1, 2, 0, 1]), 1))
    assert by_quantity(found.rows())["mean_latency"].value == pytest.approx(np.mean(found.latencies))
    assert "mean_latency" not in by_quantity(measure(OrderedSampler(classes([0, 1, 2]), 3)).rows())
