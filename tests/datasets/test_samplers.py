"""Samplers: every sample once, the same order for the same (seed, epoch), never an empty batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.datasets import (
    BucketSampler,
    ChoiceSampler,
    Dataset,
    OrderedSampler,
    ShuffleSampler,
)
from meta500.datasets.arguments import stream
from meta500.errors import UserError


def numbered(samples):
    return Dataset("toy", {"id": np.arange(samples, dtype=np.int64)}, label=None)


def make(kind, data, batch_size, **options):
    if kind is BucketSampler:
        options.setdefault("bucket_size", 5)
    if kind is OrderedSampler:
        options.pop("seed", None)
    return kind(data, batch_size, **options)


ONCE = [OrderedSampler, ShuffleSampler, BucketSampler]
SEEDED = [ShuffleSampler, BucketSampler, ChoiceSampler]


@given(
    kind=st.sampled_from([*ONCE, ChoiceSampler]),
    samples=st.integers(1, 50),
    batch_size=st.integers(1, 60),
    drop_last=st.booleans(),
    start=st.tuples(st.integers(0, 2**40), st.integers(0, 2**31)),
)
def test_batches_cover_the_epoch(kind, samples, batch_size, drop_last, start):
    seed, epoch = start
    data = numbered(samples)
    if drop_last and batch_size > samples:
        with pytest.raises(UserError, match="no batch remains"):
            make(kind, data, batch_size, seed=seed, drop_last=True)
        return
    sampler = make(kind, data, batch_size, seed=seed, drop_last=drop_last)
    batches = [batch["id"] for batch in sampler.epoch(epoch)]
    sizes = [len(batch) for batch in batches]
    assert len(batches) == len(sampler)
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] == batch_size if drop_last else 0 < sizes[-1] <= batch_size
    given_out = np.concatenate(batches)
    np.testing.assert_array_equal(given_out, sampler.indices(epoch))
    kept = samples - samples % batch_size if drop_last else samples
    assert len(given_out) == kept
    if kind is not ChoiceSampler:
        assert len(set(given_out)) == kept
    again = make(kind, data, batch_size, seed=seed, drop_last=drop_last)
    np.testing.assert_array_equal(again.indices(epoch), given_out)


def test_ordered_sampler_keeps_the_order():
    batches = [b["id"].tolist() for b in OrderedSampler(numbered(5), 2)]
    assert batches == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("kind", SEEDED)
def test_order_depends_on_seed_and_epoch(kind):
    data = numbered(40)
    orders = {
        tuple(make(kind, data, 4, seed=seed).indices(epoch))
        for seed in (0, 1, 2, 2**32)
        for epoch in (0, 1, 2)
    }
    assert len(orders) == 12


def test_streams_of_large_seeds_and_zero_keys_are_their_own():
    # Written one after the other as 32-bit words, some of these would be the same.
    keys = [(5,), (5, 0), (5, 3), (5, 3, 0), (5 + 3 * 2**32,), (5 + 3 * 2**32, 0)]
    assert len({stream(*key).random() for key in keys}) == len(keys)


@pytest.mark.parametrize("kind", SEEDED)
def test_order_does_not_depend_on_the_batch_size(kind):
    data = numbered(40)
    np.testing.assert_array_equal(
        make(kind, data, 3, seed=1).indices(2), make(kind, data, 8, seed=1).indices(2)
    )


def test_iterating_gives_one_epoch_after_the_other():
    sampler = ShuffleSampler(numbered(10), 4, seed=3)
    epochs = [np.concatenate([b["id"] for b in sampler]) for _ in range(3)]
    for number, order in enumerate(epochs):
        np.testing.assert_array_equal(order, sampler.indices(number))
    assert sampler.next_epoch == 3
    sampler.next_epoch = 1
    np.testing.assert_array_equal(np.concatenate([b["id"] for b in sampler]), epochs[1])


def test_shuffle_puts_every_sample_everywhere():
    sampler = ShuffleSampler(numbered(6), 2, seed=0)
    places = np.stack([sampler.indices(epoch) for epoch in range(300)])
    for place in places.T:
        # 300 draws of 6 equally likely samples: 50 expected, standard deviation 6.5.
        assert (abs(np.bincount(place, minlength=6) - 50) < 30).all()


def test_bucket_sampler_keeps_buckets_together_and_mixes_within():
    sampler = BucketSampler(numbered(20), 4, bucket_size=5, seed=0)
    orders = np.stack([sampler.indices(epoch) for epoch in range(10)])
    buckets = orders.reshape(10, 4, 5) // 5
    assert (buckets == buckets[:, :, :1]).all()
    assert len({tuple(row) for row in buckets[:, :, 0]}) > 1
    assert any((np.diff(order.reshape(4, 5)) != 1).any() for order in orders)


def test_choice_sampler_draws_with_replacement_and_any_number():
    sampler = ChoiceSampler(numbered(10), 32, seed=0, samples=1000)
    counts = np.bincount(sampler.indices(0), minlength=10)
    assert len(sampler) == 32 and counts.sum() == 1000
    assert (abs(counts - 100) < 50).all() and counts.std() > 0


@pytest.mark.parametrize("kind", [*ONCE, ChoiceSampler])
@pytest.mark.parametrize("batch_size", [0, -2, 1.5, True])
def test_batch_size_is_checked(kind, batch_size):
    with pytest.raises(UserError, match="batch_size must be an integer of at least 1"):
        make(kind, numbered(4), batch_size)


def test_other_values_are_checked():
    data = numbered(4)
    with pytest.raises(UserError, match="seed must be"):
        ShuffleSampler(data, 2, seed=-1)
    with pytest.raises(UserError, match="bucket_size must be"):
        BucketSampler(data, 2, bucket_size=0)
    with pytest.raises(UserError, match="samples must be"):
        ChoiceSampler(data, 2, samples=0)
    with pytest.raises(UserError, match="4 samples of an epoch of dataset 'toy'"):
        OrderedSampler(data, 5, drop_last=True)
    for epoch in (-1, 0.5):
        with pytest.raises(UserError, match="epoch must be"):
            OrderedSampler(data, 2).epoch(epoch)
