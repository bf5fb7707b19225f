"""Run by test_communication_compression.py on several ranks: compressed exchanges against a serial simulation."""

import numpy as np
import pytest
import torch

from meta500.distributed import CommunicationNetwork, TopK
from meta500.errors import UserError

network = CommunicationNetwork(compression="top-k:0.1")
rank, size = network.rank, network.size
SHAPES = {"w": (17, 9), "b": (5,), "s": (), "e": (0, 3)}


def gradients(r, step):
    rng = np.random.default_rng([r, step])
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def top(values, count):
    sent = np.zeros_like(values)
    order = np.argsort(-np.abs(values), kind="stable")[:count]
    sent[order] = values[order]
    return sent


def check_against_simulation():
    """Several steps, ranks of different weights, one of them without samples in some steps."""
    compression = network.compression
    residuals = [{name: np.zeros(int(np.prod(shape))) for name, shape in SHAPES.items()} for _ in range(size)]
    for step in range(6):
        weights = [float((r + step) % 3) if size > 1 else 2.0 for r in range(size)]
        if not sum(weights):
            weights[0] = 1.0
        blocking = step % 2 == 0
        tensors = gradients(rank, step)
        run = network.sync_all_many if blocking else network.sync_all_many_start
        results = run(tensors, weight=weights[rank])
        results = results if blocking else results.wait()
        assert list(results) == list(SHAPES)
        for name, shape in SHAPES.items():
            total = np.zeros(int(np.prod(shape)))
            for r in range(size):
                if weights[r] == 0:
                    continue
                wanted = gradients(r, step)[name].ravel() + residuals[r][name]
                sent = top(wanted, compression.kept(wanted.size))
                residuals[r][name] = wanted - sent
                total += weights[r] * sent
            np.testing.assert_allclose(results[name].ravel(), total / sum(weights), rtol=1e-13, atol=1e-15)
            assert results[name].shape == shape
            held = compression.residual(name)
            np.testing.assert_array_equal(
                0 * residuals[rank][name] if held is None else held, residuals[rank][name]
            )


def check_nothing_is_lost():
    """What was sent and what is kept add up to what was given, to the last bit of float64 sums of few terms."""
    plain = CommunicationNetwork(network.comm, compression=TopK(0.2))
    given, received = np.zeros(50), np.zeros(50)
    for step in range(10):
        x = np.round(np.random.default_rng([rank, step]).normal(size=50) * 1024)
        given += x
        received += plain.sync_all_many({"x": x}, op="sum")["x"]
    everything = network.sync_all(given, op="sum")
    kept = network.sync_all(plain.compression.residual("x"), op="sum")
    np.testing.assert_array_equal(received + kept, everything)
    plain.close()


def check_everything_sent_is_an_allreduce():
    plain = CommunicationNetwork(network.comm, compression="top-k:1.0")
    for dtype in (np.float64, np.float32, np.float16):
        tensors = {name: array.astype(dtype) for name, array in gradients(rank, 3).items()}
        results = plain.sync_all_many(tensors)
        for name in SHAPES:
            expected = np.mean(
                [gradients(r, 3)[name].astype(dtype).astype(float) for r in range(size)], axis=0
            )
            np.testing.assert_allclose(
                results[name].astype(float), expected, rtol=np.finfo(dtype).eps, atol=np.finfo(dtype).eps
            )
            assert results[name].dtype == dtype
            assert not plain.compression.residual(name).any()
        plain.compression.load_state_dict({})
    plain.close()


def check_torch_in_place():
    plain = CommunicationNetwork(network.comm, compression=TopK(0.5))
    x = torch.tensor([4.0, -8.0, 1.0, 2.0], dtype=torch.bfloat16)
    assert plain.sync_all_many({"x": x}, in_place=True)["x"] is x
    assert x.tolist() == [4.0, -8.0, 0.0, 0.0]
    assert plain.compression.residual("x").tolist() == [0.0, 0.0, 1.0, 2.0]
    # Extremes are no sums: they stay uncompressed.
    assert plain.sync_all_many({"x": x}, op="max")["x"].tolist() == x.tolist()
    plain.close()


def check_nan_is_sent():
    plain = CommunicationNetwork(network.comm, compression=TopK(0.1))
    x = np.zeros(30)
    x[7] = np.nan if rank == 0 else 1.0
    assert np.isnan(plain.sync_all_many({"x": x})["x"][7])
    assert not np.isnan(plain.compression.residual("x")).any()
    plain.close()


def check_state_goes_on():
    """With the state of another object the next exchange is the same."""
    first, second = TopK(0.3), TopK(0.3)
    a, b = (
        CommunicationNetwork(network.comm, compression=first),
        CommunicationNetwork(network.comm, compression=second),
    )
    a.sync_all_many(gradients(rank, 1))
    second.load_state_dict(first.state_dict())
    one, two = a.sync_all_many(gradients(rank, 2)), b.sync_all_many(gradients(rank, 2))
    for name in SHAPES:
        np.testing.assert_array_equal(one[name], two[name])
    a.close()
    b.close()


def check_volume():
    """10 % of the elements with 4 bytes of index each: the counters show what was sent."""
    fresh = CommunicationNetwork(network.comm, compression=TopK(0.1))
    fresh.sync_all_many({"x": np.ones(100_000, np.float32)})
    volume = fresh.counters["sync_all_many"]
    assert (
        volume.sent == 16 + 10_000 * 8 == fresh.compression.message_bytes({"x": np.ones(100_000, np.float32)})
    )
    assert volume.received == size * volume.sent
    fresh.close()


def check_refusals():
    fresh = CommunicationNetwork(network.comm, compression=TopK(0.1))
    fresh.sync_all_many({"x": np.ones(30)})
    with pytest.raises(UserError, match="'x' has 20 elements, its residual 30"):
        fresh.sync_all_many({"x": np.ones(20)})
    with pytest.raises(UserError, match="'n' is int64"):
        fresh.sync_all_many({"n": np.arange(3)}, op="sum")
    with pytest.raises(UserError, match="weight"):
        fresh.sync_all_many({"x": np.ones(30)}, weight=-1.0)
    with pytest.raises(UserError, match="weights of all ranks are 0"):
        fresh.sync_all_many({"x": np.ones(30)}, weight=0.0)
    fresh.close()


for check in [value for name, value in sorted(globals().items()) if name.startswith("check_")]:
    check()
network.close()
