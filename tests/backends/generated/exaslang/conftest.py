"""Small networks, their training as a layer-4 program in the interpreter, and the same on the numpy backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.backends.generated.exaslang.execute import execute
from meta500.backends.generated.exaslang.parse import parse
from meta500.backends.generated.exaslang.training import Trained, Training, training_program
from meta500.backends.generated.exaslang.variant import Variant
from meta500.backends.generated.forms import with_shapes
from meta500.backends.generated.fusion import fused
from meta500.backends.generated.updates import update_kind
from meta500.benchmarks.generation import forms
from meta500.graph import Builder, MeanSquaredError, Model, ops

HYPER = {
    "learning_rate": 0.05,
    "momentum": 0.8,
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 1e-8,
    "weight_decay": 0.0,
}
OPTIONS = {
    "sgd": ("learning_rate", "weight_decay"),
    "momentum": ("learning_rate", "momentum", "weight_decay"),
    "adam": ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay"),
    "adamw": ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay"),
}
RULES = {
    "sgd": meta500.optimizers.SGD,
    "momentum": meta500.optimizers.Momentum,
    "adam": meta500.optimizers.Adam,
    "adamw": meta500.optimizers.AdamW,
}
CLASSES = 3


class Draft:
    """A network in the making, float64, with the input "image"."""

    def __init__(self, name: str, batch: int, shape: tuple[int, int, int], seed: int = 0) -> None:
        self.builder, self.rng = Builder(name), np.random.default_rng(seed)
        self.batch, self.size = batch, shape[1:]
        self.channels = {"image": shape[0]}
        self.image = self.builder.input("image", np.float64, (batch, *shape))

    def _made(self, name: str, channels: int) -> str:
        self.channels[name] = channels
        return name

    def parameter(self, name: str, shape: tuple[int, ...]) -> str:
        return self.builder.parameter(
            name, self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        )

    def conv(
        self,
        x: str,
        channels: int,
        name: str,
        kernel: int | tuple[int, int] = 3,
        bias: bool = True,
        weight: str = "",
        **attributes: Any,
    ) -> str:
        kernel = (kernel, kernel) if isinstance(kernel, int) else kernel
        groups = attributes.get("group", 1)
        shape = (channels, self.channels[x] // groups, *kernel)
        weight = weight or self.parameter(f"{name}.weight", shape)
        taken = self.parameter(f"{name}.bias", (channels,)) if bias else None
        reach = attributes.pop("pads", (kernel[0] // 2, kernel[1] // 2) * 2)
        made = self.builder.add(
            ops.Conv, x, weight, taken, name=name, kernel_shape=kernel, pads=reach, **attributes
        )
        return self._made(made, channels)

    def up(self, x: str, channels: int, name: str, kernel: int = 2, **attributes: Any) -> str:
        weight = self.parameter(f"{name}.weight", (self.channels[x], channels, kernel, kernel))
        bias = self.parameter(f"{name}.bias", (channels,))
        strides = attributes.pop("strides", (2, 2))
        made = self.builder.add(
            *(ops.ConvTranspose, x, weight, bias),
            name=name,
            kernel_shape=(kernel, kernel),
            strides=strides,
            **attributes,
        )
        return self._made(made, channels)

    def relu(self, x: str) -> str:
        return self.one(ops.Relu, x)

    def one(self, operation: Any, *x: str, **attributes: Any) -> str:
        return self._made(self.builder.add(operation, *x, **attributes), self.channels[x[0]])

    def pool(self, x: str, kind: Any = ops.AveragePool, kernel: int = 2, **attributes: Any) -> str:
        attributes = {"strides": (kernel, kernel), **attributes}
        return self.one(kind, x, kernel_shape=(kernel, kernel), **attributes)

    def concat(self, *x: str) -> str:
        return self._made(self.builder.add(ops.Concat, x, axis=1), sum(self.channels[v] for v in x))

    def joined(self, operation: Any, x: tuple[str, ...]) -> str:
        return self._made(self.builder.add(operation, x), self.channels[x[0]])

    def finish(self, x: str, loss: str = "cross_entropy") -> Model:
        self.builder.output(x, "logits")
        if loss == "cross_entropy":
            label = self.builder.input("label", np.int64, (self.batch, *self.size))
            made = self.builder.add(ops.SoftmaxCrossEntropyLoss, "logits", label, outputs=["loss"])
        else:
            target = self.builder.input("label", np.float64, (self.batch, self.channels[x], *self.size))
            made = self.builder.add(MeanSquaredError, "logits", target, outputs=["loss"])
        self.builder.output(made)
        return self.builder.build()


# -- networks -------------------------------------------------------------------------------------


def two_layers(d: Draft, kind: Any = ops.AveragePool, loss: str = "cross_entropy") -> Model:
    """The first architecture of the U-Net thesis, section 6.1.2: a skip of one channel."""
    skip = d.relu(d.conv(d.image, 1, "first"))
    x = d.relu(d.conv(d.pool(skip, kind), 2, "second"))
    return d.finish(d.conv(d.concat(skip, d.up(x, 2, "up")), CLASSES, "last"), loss)


def convolutions(d: Draft, loss: str = "cross_entropy") -> Model:
    """The second one: convolutions with different channels."""
    return d.finish(d.conv(d.conv(d.image, 4, "first"), CLASSES, "second"), loss)


def three_layers(d: Draft, kind: Any = ops.AveragePool) -> Model:
    """The third one: a skip of three channels."""
    skip = d.relu(d.conv(d.image, 3, "first"))
    x = d.relu(d.conv(d.pool(skip, kind), 2, "second"))
    x = d.relu(d.conv(x, 4, "third"))
    return d.finish(d.conv(d.concat(skip, d.up(x, 3, "up")), CLASSES, "last"))


def unet(d: Draft) -> Model:
    """The fourth one, reduced as the thesis' measurements take it, of one level."""
    return meta500.models.unet(
        n=0, batch=d.batch, size=d.size, channels_in=d.channels["image"], depth=1, dtype="float64"
    )


def residual(d: Draft) -> Model:
    """1x1 convolutions, some without a bias, an addition, and a product of activations."""
    x = d.relu(d.conv(d.image, 2, "narrow", kernel=1))
    x = d.one(ops.Add, x, d.conv(d.one(ops.Tanh, x), 2, "inner", bias=False))
    x = d.one(ops.Mul, x, d.one(ops.Sigmoid, x))
    return d.finish(d.conv(x, CLASSES, "head", kernel=1, bias=False))


def numbers(d: Draft) -> Model:
    """Weights of one element: matrices of one element are numbers for the generator."""
    x = d.conv(d.image, 1, "first", kernel=1)
    return d.finish(d.conv(d.relu(x), 1, "second", kernel=1), "mean_squared_error")


def shared(d: Draft) -> Model:
    """One weight in two layers."""
    x = d.relu(d.conv(d.image, 2, "before"))
    x = d.relu(d.conv(x, 2, "first"))
    x = d.conv(x, 2, "again", weight="first.weight")
    return d.finish(d.conv(x, CLASSES, "head", kernel=1))


def joined(d: Draft) -> Model:
    """Three pictures concatenated, one of them the image."""
    a, b = d.conv(d.image, 2, "a"), d.conv(d.image, 1, "b", kernel=1)
    x = d.concat(b, d.image, d.relu(a))
    return d.finish(d.conv(x, CLASSES, "head", kernel=1), "mean_squared_error")


NETWORKS: dict[str, Callable[[Draft], Model]] = {
    "two_layers": two_layers,
    "two_layers_max": functools.partial(two_layers, kind=ops.MaxPool),
    "two_layers_squares": functools.partial(two_layers, loss="mean_squared_error"),
    "convolutions": convolutions,
    "three_layers": three_layers,
    "three_layers_max": functools.partial(three_layers, kind=ops.MaxPool),
    "unet": unet,
    "residual": residual,
    "numbers": numbers,
    "shared": shared,
    "joined": joined,
}


@dataclass(frozen=True)
class Subject:
    """A network with data: per input, one array per step; float64 pictures, int64 labels."""

    model: Model
    fed: dict[str, list[np.ndarray]]

    @property
    def steps(self) -> int:
        return len(next(iter(self.fed.values())))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: arrays[0].shape for name, arrays in self.fed.items()}

    @functools.cached_property
    def stages(self) -> Any:
        with meta500.network(self.model, backend="generated", threads=1, precision="float64") as net:
            return fused(net.stages(forms.training(net, self.shapes())))

    def weights(self) -> dict[str, np.ndarray]:
        return {
            name: np.asarray(self.model.graph.initializers[name], np.float64)
            for name in self.model.parameters
        }


def data_for(model: Model, steps: int = 2, seed: int = 1) -> Subject:
    """Random pictures and labels."""
    rng, fed = np.random.default_rng(seed), {}
    for name, kind in model.graph.inputs.items():
        shape = kind.shape
        fed[name] = [
            rng.integers(0, CLASSES, shape) if kind.dtype.kind == "i" else rng.standard_normal(shape)
            for _ in range(steps)
        ]
    return Subject(model, fed)


@functools.cache
def subject_of(name: str, batch: int = 2, shape: tuple[int, int, int] = (1, 4, 4), steps: int = 1) -> Subject:
    return data_for(NETWORKS[name](Draft(name, batch, shape)), steps)


@pytest.fixture(scope="session")
def draft():
    """``draft(name, batch, (channels, rows, columns))``: a :class:`Draft`."""
    return Draft


@pytest.fixture(scope="session")
def subject():
    """``subject(name, batch=2, shape=(1, 4, 4), steps=1)``: a network of :data:`NETWORKS` with data."""
    return subject_of


@pytest.fixture(scope="session")
def with_data():
    """``with_data(model, steps=2)``: the network with random data."""
    return data_for


@pytest.fixture(scope="session")
def networks():
    """Names of the networks."""
    return tuple(NETWORKS)


# -- programs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a training gave: mean losses by epoch, weights by name."""

    losses: list[float]
    weights: dict[str, np.ndarray]


def program_of(
    subject: Subject, variant: Variant, optimizer: str = "sgd", epochs: int = 3, **hyper: float
) -> Trained:
    given = HYPER | hyper
    training = Training(epochs, subject.steps, 0, update_kind(optimizer, given["weight_decay"]), given)
    return training_program(subject.stages, variant, training)


def interpret(tree: Any, trained: Trained, subject: Subject, blocks: tuple[int, int]) -> Outcome:
    """Run a program on the subject's data and weights."""
    weights = subject.weights()
    flat = np.concatenate([weights[p.name].ravel() for p in trained.parameters])
    saved = np.full_like(flat, np.nan)

    def load(_: str, offset: int, array: np.ndarray, count: int, total: int, block: Any) -> None:
        assert total == flat.size
        array[:count] = flat[offset : offset + count]

    def save(_: str, offset: int, array: np.ndarray, count: int, total: int, block: Any) -> None:
        saved[offset : offset + count] = array[:count]

    def reader(arrays: list[np.ndarray]) -> Callable[..., Any]:
        def read(
            epoch: int, step: int, sample: int, channel: int, i0: Any, i1: Any, x: Any, y: Any, block: Any
        ):
            # The C++ header finds the block from the position.
            assert (np.floor(x * blocks[0]) == block[0]).all() and (np.floor(y * blocks[1]) == block[1]).all()
            picture = arrays[step][sample]
            picture = picture[channel] if picture.ndim == 3 else picture
            rows, columns = picture.shape[0] // blocks[1], picture.shape[1] // blocks[0]
            return picture[block[1] * rows + i1, block[0] * columns + i0].astype(np.float64)

        return read

    external: dict[str, Callable[..., Any]] = {
        "meta500_load": load,
        "meta500_save": save,
        "meta500_read": lambda block: None,
    }
    for number, name in enumerate(trained.inputs):
        external[f"meta500_training_{number}"] = reader(subject.fed[name])
    printed = execute(tree, blocks, external)
    return Outcome(
        [float(line[3]) for line in printed if "training_loss" in line],
        {p.name: saved[p.offset : p.offset + p.size].reshape(p.shape) for p in trained.parameters},
    )


def cut(array: np.ndarray, blocks: tuple[int, int]) -> np.ndarray:
    """Pictures (N, ..., rows, columns) cut into blocks, which become pictures of the batch."""
    strips = np.split(array, blocks[1], axis=-2)
    return np.concatenate([part for strip in strips for part in np.split(strip, blocks[0], axis=-1)])


def numpy_training(
    subject: Subject,
    optimizer: str = "sgd",
    epochs: int = 3,
    blocks: tuple[int, int] = (1, 1),
    **hyper: float,
) -> Outcome:
    """The training on the numpy backend in float64; every block is a picture of its own."""
    model = subject.model
    if blocks != (1, 1):
        shapes = {name: cut(arrays[0], blocks).shape for name, arrays in subject.fed.items()}
        graph = replace(model.graph, outputs=dict.fromkeys(model.graph.outputs))
        model = with_shapes(model.with_graph(graph), shapes)
    given = {name: (HYPER | hyper)[name] for name in OPTIONS[optimizer]}
    losses = []
    with meta500.network(model, backend="numpy", precision="float64") as net:
        rule = RULES[optimizer](net, **given)
        for _ in range(epochs):
            steps = [
                {name: cut(arrays[step], blocks) for name, arrays in subject.fed.items()}
                for step in range(subject.steps)
            ]
            losses.append(float(np.mean([rule.train(fed, outputs=["loss"])["loss"] for fed in steps])))
        names = net.get_params()
        weights = dict(zip(names, net.fetch_tensors(names), strict=True))
    return Outcome(losses, weights)


@pytest.fixture(scope="session")
def program():
    """``program(subject, variant, optimizer="sgd", epochs=3, **hyper)``: the program of a training."""
    return program_of


@pytest.fixture(scope="session")
def interpreted():
    """``interpreted(tree, trained, subject, blocks)``: losses and weights of a program."""
    return interpret


@pytest.fixture(scope="session")
def reference():
    """``reference(subject, optimizer, epochs, blocks, **hyper)``: the same of the numpy backend."""
    return numpy_training


@pytest.fixture(scope="session")
def trains_as_numpy():
    """``trains_as_numpy(subject, variant, optimizer="sgd", epochs=3, **hyper)``: checks losses and weights."""

    def check(
        subject: Subject, variant: Variant, optimizer: str = "sgd", epochs: int = 3, **hyper: float
    ) -> Outcome:
        trained = program_of(subject, variant, optimizer, epochs, **hyper)
        tree = parse(str(trained.tree))
        assert tree == trained.tree
        found = interpret(tree, trained, subject, variant.blocks)
        blocks = (1, 1) if variant.halo else variant.blocks
        wanted = numpy_training(subject, optimizer, epochs, blocks, **hyper)
        assert len(found.losses) == epochs
        np.testing.assert_allclose(found.losses, wanted.losses, rtol=1e-10, atol=0)
        assert set(found.weights) == set(wanted.weights)
        for name, array in wanted.weights.items():
            np.testing.assert_allclose(found.weights[name], array, rtol=1e-10, atol=1e-12, err_msg=name)
        return found

    return check


VARIANTS: dict[str, Variant] = {
    "serial": Variant(),
    "openmp": Variant(parallel="openmp", threads=2),
    "mpi 2x1": Variant(parallel="mpi", blocks=(2, 1)),
    "mpi 1x2": Variant(parallel="mpi", blocks=(1, 2)),
    "mpi 2x2": Variant(parallel="mpi", blocks=(2, 2)),
    "mpi 2x2 without a halo": Variant(parallel="mpi", blocks=(2, 2), halo=False),
    "hybrid": Variant(parallel="hybrid", threads=2, blocks=(2, 1)),
    "cuda": Variant(parallel="cuda"),
}


def _all_variants() -> Iterator[tuple[str, Variant]]:
    for pixels in ("outermost", "innermost"):
        for name, variant in VARIANTS.items():
            yield f"{name}, {pixels}", replace(variant, pixels=pixels, double=True)


@pytest.fixture(scope="session")
def variants():
    """All variants by name, in double precision."""
    return dict(_all_variants())
