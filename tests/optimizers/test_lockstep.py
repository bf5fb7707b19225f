"""Two optimizers in lock-step: what is measured, what is written, what is refused."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest

from meta500.errors import UserError
from meta500.optimizers import SGD, AcceleGrad, Adam, compare_optimizers

BATCHES = [{"scale": 1.0}, {"scale": 0.5}, {"scale": 2.0}]


class Data:
    """A dataset of ten samples; the batch is the mean of its samples."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 10

    def batch(self, indices):
        self.asked.append([int(i) for i in indices])
        return {"scale": 0.1 * float(np.mean(indices))}


class Sampler:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def epoch(self, k):
        self.epochs.append(k)
        return iter([{"scale": 1.0 + k}, {"scale": 2.0 + k}])


def test_same_rule_on_two_backends_agrees(make_network):
    a, b = make_network("numpy"), make_network("torch")
    b.feed_tensor("layer.bias", np.zeros(5))  # replaced by a's
    result = compare_optimizers(Adam(a), Adam(b), BATCHES, steps=20)
    assert result.steps == 20
    assert result.parameters == ["layer.weight", "layer.bias", "scale"]
    assert result.first_divergence(1e-13) is None
    assert result.series("layer.bias").shape == (21,)
    assert result.series("layer.bias", "norm")[0] > 0


def test_numbers_are_those_of_the_definition(make_network):
    a, b = make_network(), make_network()
    single_a, single_b = make_network(), make_network()
    result = compare_optimizers(SGD(a, 0.01), SGD(b, 0.02), BATCHES)
    assert result.steps == 3
    first, second = SGD(single_a, 0.01), SGD(single_b, 0.02)
    for step, batch in enumerate(BATCHES, 1):
        loss_a, loss_b = float(first.train(batch)["loss"]), float(second.train(batch)["loss"])
        for row in (row for row in result.rows if row.step == step):
            x, y = (np.ravel(n.params[row.parameter]) for n in (single_a, single_b))
            assert row.l2 == pytest.approx(math.sqrt(sum((x - y) ** 2)), rel=1e-12)
            assert row.maximum == pytest.approx(max(abs(x - y)), rel=1e-12)
            assert row.norm == pytest.approx(math.sqrt(sum(x**2)), rel=1e-12)
            assert (row.loss_a, row.loss_b) == (loss_a, loss_b)
    assert result.series("scale")[0] == 0.0
    divergence = result.first_divergence(1e-6)
    assert (divergence.step, divergence.parameter) == (1, "layer.weight")
    frame = result.to_frame()
    assert list(frame.columns)[:4] == ["step", "parameter", "l2", "maximum"]
    assert len(frame) == 4 * 3


def test_steps_are_on_disk_one_by_one(make_network, tmp_path):
    path = tmp_path / "difference.csv"
    seen = []

    def batches():
        for batch in BATCHES:
            seen.append(len(path.read_text().splitlines()))
            yield batch

    result = compare_optimizers(Adam(make_network()), SGD(make_network()), batches(), path=path)
    assert seen == [1 + 3, 1 + 6, 1 + 9]
    with open(path, newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["l2"]) for row in rows] == [row.l2 for row in result.rows]
    assert [float(row["loss_b"]) for row in rows[3:]] == [row.loss_b for row in result.rows[3:]]


def test_datasets_and_samplers_are_gone_through_again(make_network):
    data, sampler = Data(), Sampler()
    compare_optimizers(SGD(make_network()), SGD(make_network()), data, batch_size=4, steps=4)
    assert data.asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    result = compare_optimizers(SGD(make_network()), SGD(make_network()), sampler, steps=5)
    assert sampler.epochs == [0, 1, 2]
    assert result.steps == 5
    assert compare_optimizers(SGD(make_network()), SGD(make_network()), Data()).steps == 1


def test_different_precision_is_compared_from_rounded_parameters(make_network):
    result = compare_optimizers(SGD(make_network()), SGD(make_network("torch", dtype="float32")), BATCHES)
    relative = result.series("layer.weight") / result.series("layer.weight", "norm")
    assert (relative < 1e-6).all()
    assert (relative > 0).all()


def test_divergence_to_infinity_is_seen_without_warnings(make_network):
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="meta500")
        with np.errstate(all="ignore"):
            result = compare_optimizers(
                SGD(make_network(), 1e200), SGD(make_network(), 1e200), BATCHES, steps=6
            )
    assert result.first_divergence(1e-6) is not None


def test_refusals(make_network, tmp_path):
    network = make_network()
    a, b = Adam(network), SGD(make_network())
    with pytest.raises(UserError, match="each on a network of its own"):
        compare_optimizers(a, a, BATCHES)
    with pytest.raises(UserError, match="each on a network of its own"):
        compare_optimizers(a, SGD(network), BATCHES)
    with pytest.raises(UserError, match="steps = 0 is not valid"):
        compare_optimizers(a, b, BATCHES, steps=0)
    with pytest.raises(UserError, match="gave 0 batches, at least 1 needed"):
        compare_optimizers(a, b, [])
    with pytest.raises(UserError, match="gave 3 batches, 5 needed"):
        compare_optimizers(Adam(make_network()), SGD(make_network()), iter(BATCHES), steps=5)
    missing = tmp_path / "no" / "file.csv"
    with pytest.raises(UserError, match=f"cannot write '{missing}'"):
        compare_optimizers(a, b, BATCHES, path=missing)
    a.train({})
    with pytest.raises(UserError, match="a at 1 and b at 0"):
        compare_optimizers(a, b, BATCHES)


def test_error_of_the_data_is_not_blamed_on_the_file(make_network, tmp_path):
    def broken():
        yield BATCHES[0]
        raise FileNotFoundError("image 17 is gone")

    with pytest.raises(FileNotFoundError, match="image 17"):
        compare_optimizers(Adam(make_network()), SGD(make_network()), broken(), path=tmp_path / "d.csv")
    assert len((tmp_path / "d.csv").read_text().splitlines()) == 1 + 6


def test_different_parameter_sets_are_refused(make_network):
    a, b = make_network(), make_network()
    b.params["extra"] = np.ones(2)
    with pytest.raises(UserError, match=r"only in a: \[\], only in b: \['extra'\]"):
        compare_optimizers(AcceleGrad(a), SGD(b), BATCHES)
    del b.params["extra"]
    b.params["layer.bias"] = np.ones(6)
    with pytest.raises(UserError, match=r"'layer.bias' has shape \(5,\) in a and \(6,\) in b"):
        compare_optimizers(AcceleGrad(a), SGD(b), BATCHES)
    with pytest.raises(UserError, match="no series 'l3' of parameter 'scale'"):
        compare_optimizers(SGD(a), SGD(make_network()), BATCHES).series("scale", "l3")
