"""Networks and data for the tests of generated steps over several ranks; run by the MPI processes."""

from __future__ import annotations

import numpy as np

import meta500
from meta500.models import layers


def model(name, batch, dtype="float64"):
    """A small network: "unet", "digits", "mlp", or residual blocks without ("residual") or with normalisation ("bn")."""
    if name == "unet":
        return meta500.models.create("unet", n=0, batch=batch, depth=2, size=(16, 16), dtype=dtype)
    if name == "digits":
        return meta500.models.create("digits_cnn", batch=batch, dtype=dtype)
    if name == "mlp":
        return meta500.models.create("mlp", batch=batch, shape=(2, 3, 3), hidden=(5,), classes=3, dtype=dtype)
    net = layers.draft(name, initialization="kaiming_normal", seed=3, dtype=dtype)
    x = net.builder.input("image", net.dtype, (batch, 2, 12, 12))
    x = layers.relu(net, layers.convolution(net, x, "first", (2, 4), 3, pad=1), "relu")
    for number in range(2):
        y = layers.convolution(net, x, f"block{number}.conv1", (4, 4), 3, pad=1)
        if name == "bn":
            y = layers.batch_norm(net, y, f"block{number}.norm", 4)
        y = layers.relu(net, y, f"block{number}.relu1")
        y = layers.convolution(net, y, f"block{number}.conv2", (4, 4), 3, pad=1)
        x = layers.relu(net, layers.add(net, x, y, f"block{number}.sum"), f"block{number}.relu2")
    x = layers.flatten(net, layers.global_average_pool(net, x, "pool"), "flat")
    logits = layers.linear(net, x, "fc", (4, 5))
    return layers.finish(net, logits, (batch,), {"batch": batch})


def batches(net_model, count, samples, seed=0):
    """``count`` batches of ``samples`` samples."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        fed = {}
        for name, declared in net_model.inputs.items():
            shape = (samples, *declared.shape[1:])
            real = declared.dtype.name.startswith("float")
            fed[name] = (
                rng.standard_normal(shape).astype(declared.dtype) if real else rng.integers(0, 3, shape)
            )
        found.append(fed)
    return found


def parameters(net):
    """Copies of all parameters."""
    names = list(net.get_params())
    return {n: np.array(a) for n, a in zip(names, net.fetch_tensors(names), strict=True)}


def part(fed, sizes, rank):
    """The samples of one rank, of ``sizes`` samples each."""
    first = sum(sizes[:rank])
    return {name: array[first : first + sizes[rank]] for name, array in fed.items()}
