"""Partitions of batches over ranks: disjoint, complete, the last batch included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.datasets import BucketSampler, ChoiceSampler, Dataset, OrderedSampler, ShuffleSampler
from meta500.distributed.samplers import DealtSampler, DistributedSampler
from meta500.errors import UserError


def dataset(samples):
    return Dataset("numbers", {"x": np.arange(samples, dtype=np.float64)[:, None]}, label=None)


def global_sampler(kind, data, batch, drop_last):
    if kind == "ordered":
        return OrderedSampler(data, batch, drop_last=drop_last)
    if kind == "shuffle":
        return ShuffleSampler(data, batch, seed=3, drop_last=drop_last)
    if kind == "bucket":
        return BucketSampler(data, batch, bucket_size=3, seed=3, drop_last=drop_last)
    return ChoiceSampler(data, batch, seed=3, drop_last=drop_last)


@given(
    kind=st.sampled_from(["ordered", "shuffle", "bucket", "choice"]),
    samples=st.integers(1, 60),
    ranks=st.integers(1, 6),
    local=st.integers(1, 5),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_the_ranks_parts_are_the_serial_batches(kind, samples, ranks, local, drop_last, epoch):
    data = dataset(samples)
    if drop_last and samples < ranks * local:
        return
    serial = [b["x"] for b in global_sampler(kind, data, ranks * local, drop_last).epoch(epoch)]
    parts = []
    for rank in range(ranks):
        sampler = DistributedSampler(global_sampler(kind, data, ranks * local, drop_last), rank, ranks)
        parts.append([b["x"] for b in sampler.epoch(epoch)])
        assert len(parts[-1]) == len(sampler) == len(serial)
        np.testing.assert_array_equal(
            sampler.indices(epoch), np.concatenate(parts[-1])[:, 0].astype(np.int64)
        )
    for batch, slices in zip(serial, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(slices), batch)
        np.testing.assert_array_equal(slices[-1], np.array_split(batch, ranks)[-1])
        sizes = [len(s) for s in slices]
        assert max(sizes) - min(sizes) <= 1
        assert all(s.shape[1:] == (1,) for s in slices)


@given(samples=st.integers(1, 60), ranks=st.integers(1, 6), batch=st.integers(1, 9))
def test_dealt_batches_are_disjoint_and_complete(samples, ranks, batch):
    serial = [b["x"] for b in OrderedSampler(dataset(samples), batch).epoch(0)]
    dealt = [DealtSampler(OrderedSampler(dataset(samples), batch), rank, ranks) for rank in range(ranks)]
    parts = [[b["x"] for b in sampler.epoch(0)] for sampler in dealt]
    assert [len(s) for s in dealt] == [len(p) for p in parts]
    for number, expected in enumerate(serial):
        np.testing.assert_array_equal(parts[number % ranks][number // ranks], expected)
    assert sum(map(len, parts)) == len(serial)


def test_epochs_follow_each_other_and_can_be_resumed():
    sampler = DistributedSampler(ShuffleSampler(dataset(12), 4, seed=1), 1, 2)
    first, second = ([b["x"] for b in sampler] for _ in range(2))
    assert sampler.next_epoch == 2
    sampler.next_epoch = 1
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in sampler]), np.concatenate(second))
    assert not np.array_equal(np.concatenate(first), np.concatenate(second))


def test_what_does_not_fit_is_refused():
    data = dataset(8)
    with pytest.raises(UserError, match="wraps a Sampler"):
        DistributedSampler(data, 0, 2)
    with pytest.raises(UserError, match="from 0 to 1"):
        DistributedSampler(OrderedSampler(data, 4), 2, 2)
    with pytest.raises(UserError, match="smaller than the 4 ranks"):
        DistributedSampler(OrderedSampler(data, 3), 0, 4)
    with pytest.raises(UserError, match="from 0 to 1"):
        DealtSampler(OrderedSampler(data, 4), 2, 2)
