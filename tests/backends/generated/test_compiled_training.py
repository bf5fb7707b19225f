"""Training of the networks with which the U-Net thesis verified its code: losses and parameters over many steps.

In float64 they are those of the numpy backend and of PyTorch's own modules and optimizers to 1e-10, in float32
PyTorch's as far as rounding goes.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import meta500
from meta500.metrics.norms import compare, tolerance

PROCESSORS = len(os.sched_getaffinity(0))
CLASSES = 3


def conv3(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class SmallUNet(nn.Module):
    """Two levels; below, one convolution or two."""

    def __init__(self, channels: int, skip: int, below: int) -> None:
        super().__init__()
        self.first = conv3(channels, skip)
        self.below = nn.ModuleList(conv3(skip if i == 0 else 2, 2) for i in range(below))
        self.pool = nn.AvgPool2d(2, 2)
        self.up = nn.ConvTranspose2d(2, 2, 2, stride=2)
        self.last = conv3(skip + 2, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.relu(self.first(x))
        y = self.pool(skip)
        for layer in self.below:
            y = torch.relu(layer(y))
        return self.last(torch.cat((skip, self.up(y)), 1))


class TwoConvolutions(nn.Module):
    def __init__(self, channels: int, between: int) -> None:
        super().__init__()
        self.first, self.second = conv3(channels, between), conv3(between, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Ronneberger(nn.Module):
    """The U-Net of the publication with padded convolutions and average pooling."""

    def __init__(self, channels: int, base: int, levels: int) -> None:
        super().__init__()
        wide = [base * 2**i for i in range(levels + 1)]
        pairs = zip([channels, *wide[:-1]], wide, strict=True)
        self.down = nn.ModuleList(nn.Sequential(*self.block(a, b)) for a, b in pairs)
        self.pool = nn.AvgPool2d(2, 2)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in wide[:-1])
        self.up_blocks = nn.ModuleList(nn.Sequential(*self.block(2 * w, w)) for w in wide[:-1])
        self.head = nn.Conv2d(base, CLASSES, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [conv3(inputs, outputs), nn.ReLU(), conv3(outputs, outputs), nn.ReLU()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down[:-1]:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for skip, up, block in zip(skips[::-1], self.ups[::-1], self.up_blocks[::-1], strict=True):
            x = block(torch.cat((skip, up(x)), 1))
        return self.head(x)


ARCHITECTURES = {
    "u-net, one below": lambda channels: SmallUNet(channels, 1, 1),
    "two convolutions": lambda channels: TwoConvolutions(channels, 5),
    "u-net, two below": lambda channels: SmallUNet(channels, 3, 2),
    "ronneberger, 1 channel": lambda channels: Ronneberger(channels, 1, 2),
    "ronneberger, 4 channels": lambda channels: Ronneberger(channels, 4, 2),
    "ronneberger, 5 levels": lambda channels: Ronneberger(channels, 2, 4),
}
OPTIMIZERS = {
    "sgd": (0.05, torch.optim.SGD, "SGD"),
    "adam": (0.003, torch.optim.Adam, "Adam"),
}


@functools.cache
def module(architecture: str, channels: int) -> nn.Module:
    torch.manual_seed(101)
    return ARCHITECTURES[architecture](channels)


@functools.cache
def exported(architecture: str, shape: tuple[int, int, int], batch: int) -> meta500.Model:
    example = torch.zeros(batch, *shape)
    return meta500.from_torch(module(architecture, shape[0]), (example,), loss="cross_entropy")


def data(model: meta500.Model, batches: int, real: str) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    (image,) = (n for n in model.inputs if n != "label")
    size, labels = model.inputs[image].shape, model.inputs["label"].shape
    return [
        {image: rng.random(size).astype(real), "label": rng.integers(0, CLASSES, labels)}
        for _ in range(batches)
    ]


def by_pytorch(
    architecture: str, batches: list[dict[str, np.ndarray]], steps: int, optimizer: str, real: str
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and final parameters of PyTorch's own module and optimizer."""
    image = next(n for n in batches[0] if n != "label")
    net = ARCHITECTURES[architecture](batches[0][image].shape[1]).to(getattr(torch, real))
    net.load_state_dict(module(architecture, batches[0][image].shape[1]).state_dict())
    rate, create, _ = OPTIMIZERS[optimizer]
    updates, criterion = create(net.parameters(), rate), nn.CrossEntropyLoss()
    losses = []
    for step in range(steps):
        batch = batches[step % len(batches)]
        updates.zero_grad()
        loss = criterion(net(torch.from_numpy(batch[image])), torch.from_numpy(batch["label"]))
        loss.backward()
        updates.step()
        losses.append(float(loss.detach()))
    return losses, {name: p.detach().numpy() for name, p in net.named_parameters()}


def by_network(
    model: meta500.Model,
    batches: list[dict[str, np.ndarray]],
    steps: int,
    optimizer: str,
    native: bool,
    **options: Any,
) -> tuple[list[float], dict[str, np.ndarray]]:
    rate, _, name = OPTIMIZERS[optimizer]
    with meta500.network(model, **options) as net:
        if native:
            trainer = net.native_optimizer(optimizer, learning_rate=rate)
        else:
            trainer = getattr(meta500.optimizers, name)(net, learning_rate=rate)
        losses = [float(trainer.train(batches[step % len(batches)])["loss"]) for step in range(steps)]
        return losses, dict(zip(net.get_params(), net.fetch_tensors(net.get_params()), strict=True))


def agree(
    architecture: str,
    shape: tuple[int, int, int],
    batch: int,
    optimizer: str,
    *,
    threads: int,
    native: bool,
    steps: int = 50,
    numpy: bool = True,
    batches: int = 2,
) -> None:
    model = exported(architecture, shape, batch)
    given = data(model, batches, "float64")
    options = {"precision": "float64", "threads": threads}
    losses, parameters = by_network(model, given, steps, optimizer, native, backend="generated", **options)
    references = [by_pytorch(architecture, given, steps, optimizer, "float64")]
    if numpy:
        references.append(
            by_network(model, given, steps, optimizer, False, backend="numpy", precision="float64")
        )
    for wanted, wanted_parameters in references:
        np.testing.assert_allclose(losses, wanted, rtol=1e-10)
        assert set(parameters) == set(wanted_parameters)
        for name, value in wanted_parameters.items():
            assert compare(parameters[name], value).max_relative <= 1e-9, name
    # On the same batch.
    assert losses[-batches] < losses[0]


def few(threads: int) -> int:
    return min(threads, PROCESSORS)


# Every architecture, shape, optimizer, batch, number of threads and way at least once; all together below.
SELECTION = [
    ("u-net, one below", (1, 4, 4), 8, "adam", 1, True),
    ("u-net, one below", (3, 4, 4), 64, "sgd", 2, True),
    ("two convolutions", (3, 4, 4), 8, "sgd", 2, False),
    ("u-net, two below", (3, 4, 4), 64, "adam", 2, True),
    ("u-net, two below", (1, 4, 4), 8, "sgd", 1, False),
    ("ronneberger, 1 channel", (3, 4, 4), 8, "adam", 2, True),
    ("ronneberger, 4 channels", (3, 24, 40), 8, "adam", 2, True),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("architecture", "shape", "batch", "optimizer", "threads", "native"), SELECTION)
def test_losses_over_fifty_steps(architecture, shape, batch, optimizer, threads, native):
    agree(architecture, shape, batch, optimizer, threads=few(threads), native=native)


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 5, 50])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("threads", sorted({1, few(2)}))
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("batch", [8, 64])
@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 4, 4)])
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "ronneberger, 5 levels"])
def test_every_configuration(architecture, shape, batch, optimizer, threads, native, epochs):
    agree(
        architecture, shape, batch, optimizer, threads=threads, native=native, steps=2 * epochs, numpy=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("threads", sorted({1, few(2)}))
@pytest.mark.parametrize("batch", [8, 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    ("architecture", "shape"),
    [
        ("ronneberger, 5 levels", (3, 16, 48)),
        ("ronneberger, 4 channels", (1, 20, 68)),
        ("u-net, two below", (3, 64, 96)),
    ],
)
def test_larger_pictures(architecture, shape, batch, optimizer, threads):
    agree(architecture, shape, batch, optimizer, threads=threads, native=True, numpy=False)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("architecture", ["u-net, one below", "u-net, two below", "ronneberger, 5 levels"])
def test_full_pictures(architecture, optimizer):
    agree(
        architecture,
        (3, 512, 512),
        8,
        optimizer,
        threads=few(2),
        native=True,
        steps=4,
        numpy=False,
        batches=1,
    )


@pytest.mark.sampled(3, first=1)
@pytest.mark.parametrize(
    ("architecture", "shape", "batch", "optimizer", "threads"),
    [
        ("u-net, two below", (3, 4, 4), 64, "adam", 2),
        ("ronneberger, 4 channels", (3, 24, 40), 8, "sgd", 2),
        ("ronneberger, 4 channels", (3, 32, 32), 8, "adam", 1),
    ],
)
def test_single_precision_is_as_good_as_pytorch(architecture, shape, batch, optimizer, threads):
    model, steps = exported(architecture, shape, batch), 50
    given = data(model, 2, "float32")
    options = {"backend": "generated", "precision": "float32", "threads": few(threads)}
    losses, parameters = by_network(model, given, steps, optimizer, True, **options)
    wanted, theirs = by_pytorch(architecture, given, steps, optimizer, "float32")
    longer = [{n: a.astype("float64") if a.dtype == "float32" else a for n, a in b.items()} for b in given]
    exact, exact_parameters = by_pytorch(architecture, longer, steps, optimizer, "float64")
    # The terms of all sums of a step, as if they came one after the other.
    terms = sum(p.size for p in theirs.values()) + batch * shape[1] * shape[2]
    limit = tolerance("float32", terms)
    np.testing.assert_allclose(losses, wanted, rtol=limit)
    np.testing.assert_allclose(losses, exact, rtol=limit)
    for name, value in exact_parameters.items():
        ours = compare(parameters[name].astype("float64"), value).l2_relative
        pytorch = compare(theirs[name].astype("float64"), value).l2_relative
        assert ours <= 4 * pytorch + limit, name


@pytest.mark.sampled(2, first=1)
@pytest.mark.parametrize("threads", sorted({1, few(2)}))
def test_gradients_of_a_deep_unet(threads):
    """Outputs and gradients of the U-Net of the models, five levels deep."""
    from meta500.models import create

    model = create("unet", n=1, batch=3, size=(16, 32), dtype="float64")
    rng = np.random.default_rng(3)
    fed = {"image": rng.standard_normal((3, 3, 16, 32)), "label": rng.integers(0, 3, (3, 16, 32))}
    names = [*model.parameters, "image"]
    gradients = [f"grad/{n}" for n in names]
    with (
        meta500.network(model, backend="numpy") as reference,
        meta500.network(model, backend="generated", threads=threads) as net,
    ):
        wanted = reference.inference_and_backprop(fed, wrt=names)
        found = net.inference_and_backprop(fed, wrt=names)
        for name, value in wanted.items():
            assert compare(found[name], value).max_relative <= 1e-10, name
        for name, ours, theirs in zip(
            names, net.fetch_tensors(gradients), reference.fetch_tensors(gradients), strict=True
        ):
            assert compare(ours, theirs).max_relative <= 1e-10, name
