"""The small training problem of all proofs: networks, batches, and what is compared."""

import numpy as np

import meta500
from meta500 import optimizers
from meta500.distributed import CommunicationNetwork

PER_RANK = 4
FEATURES, CLASSES = 6, 3


def model(seed=1, hidden=(5,), dtype="float64"):
    return meta500.models.mlp(
        batch=None, shape=(FEATURES,), hidden=hidden, classes=CLASSES, dtype=dtype, seed=seed
    )


def network(backend="numpy", seed=1, hidden=(5,), dtype="float64"):
    return meta500.network(model(seed, hidden, dtype), backend=backend)


def batches(ranks, uneven=True, steps=5):
    """Global batches (image, label); the third is uneven: ranks get different numbers, the last ones none."""
    rng = np.random.default_rng(11)
    sizes = [PER_RANK * ranks] * steps
    if uneven:
        sizes[2] = ranks + 1
        sizes[3] = max(ranks - 1, 1)
    return [
        {"image": rng.normal(size=(size, FEATURES)), "label": rng.integers(0, CLASSES, size)}
        for size in sizes
    ]


def part(batch, rank, ranks):
    """The rank's slice of a global batch."""
    return {name: np.array_split(array, ranks)[rank] for name, array in batch.items()}


def optimizer(name, net, **options):
    rates = {"sgd": 0.1, "momentum": 0.05, "adam": 0.01, "accelegrad": 0.5}
    return optimizers.create(name, net, learning_rate=rates[name], **options)


def values(net):
    """All parameters as one vector."""
    return np.concatenate([array.ravel() for array in net.fetch_tensors(net.get_params())])


def gradient(net, x, batch):
    """The gradient vector of a batch's mean loss at the parameters x; zeros without samples."""
    begin = 0
    for name in net.get_params():
        shape = net.native(name).shape
        size = int(np.prod(shape))
        net.feed_tensor(name, x[begin : begin + size].reshape(shape))
        begin += size
    if len(batch["label"]) == 0:
        return np.zeros_like(x)
    net.inference_and_backprop(batch)
    return np.concatenate([net.native(name).ravel() for _, name in net.gradient()])


def communication(**options):
    return CommunicationNetwork(timeout=30, **options)


def same_everywhere(comm, array):
    """Whether an array has the same bits on all ranks."""
    gathered = comm.comm.allgather(np.ascontiguousarray(array).tobytes())
    return all(bits == gathered[0] for bits in gathered)
