"""What a layer-4 program must print: the same training on the numpy backend, batch for batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meta500.backends.generated.exaslang.training import WEIGHTS
from meta500.backends.generated.exaslang.variant import Variant
from meta500.backends.network import Network
from meta500.benchmarks.generation.command import Prepared
from meta500.benchmarks.generation.config import Config
from meta500.benchmarks.generation.exaslang_files import Written
from meta500.benchmarks.generation.shuffle import sample_order
from meta500.datasets import Dataset
from meta500.errors import UserError
from meta500.graph import Model

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Losses:
    """Mean losses.

    Attributes:
        training: of every epoch.
        validation: after every epoch; empty without validation data.
        weights: of the parameters at the end, by name.
    """

    training: list[float]
    validation: list[float]
    weights: dict[str, np.ndarray]


def batches(data: Dataset, config: Config, count: int, batch: int, epoch: int | None) -> Iterator[Batch]:
    """The batches of an epoch in a program's order; in the data's own order without an epoch."""
    order = np.arange(len(data))
    if epoch is not None and config.shuffle:
        order = sample_order(len(data), config.seed, epoch)
    for step in range(count):
        chosen = order[step * batch : (step + 1) * batch]
        yield {config.inputs.get(name, name): array[chosen] for name, array in data.inputs.items()}


def reference(
    prepared: Prepared, config: Config, variant: Variant, written: Written, precision: str
) -> Losses:
    """Train the network on the numpy backend.

    Without a halo every block is a picture of its own, as the program sees it.
    """
    from meta500 import optimizers
    from meta500.backends.network import network

    known = optimizers.options(config.optimizer)
    hyper = {name: value for name, value in config.hyper.items() if name in known}
    blocks = (1, 1) if variant.halo else variant.blocks
    training, held, losses = written.training, [], []
    model = in_blocks(prepared, blocks)
    with network(model, backend="numpy", precision=precision) as net:
        _begin(net, written, precision)
        optimizer = optimizers.create(config.optimizer, net, **hyper)
        for epoch in range(training.epochs):
            found = [
                float(optimizer.train(_cut(b, blocks), outputs=["loss"])["loss"])
                for b in batches(prepared.train, config, training.batches, written.batch, epoch)
            ]
            losses.append(float(np.mean(found)))
            if training.validation:
                assert prepared.validation is not None
                found = [
                    float(net.inference(_cut(b, blocks), outputs=["loss"])["loss"])
                    for b in batches(prepared.validation, config, training.validation, written.batch, None)
                ]
                held.append(float(np.mean(found)))
        names = net.get_params()
        weights = dict(zip(names, net.fetch_tensors(names), strict=True))
    return Losses(losses, held, weights)


def _begin(net: Network, written: Written, precision: str) -> None:
    """Begin with the program's weights: those of a float64 network are rounded for a float32 program."""
    weights = np.frombuffer(written.files[WEIGHTS], "<f8").astype(precision)
    for name, array in written.trained.parts(weights).items():
        net.feed_tensor(name, array)


def in_blocks(prepared: Prepared, blocks: tuple[int, int]) -> Model:
    """The network for batches that `_cut` has cut."""
    from meta500.backends.generated.forms import with_shapes

    if blocks == (1, 1):
        return prepared.subject.model
    shapes = {name: _cut_shape(shape, blocks) for name, shape in prepared.subject.shapes.items()}
    model = prepared.subject.model
    # What a model declares of its outputs is about whole pictures.
    outputs = dict.fromkeys(model.graph.outputs)
    return with_shapes(model.with_graph(replace(model.graph, outputs=outputs)), shapes)


def _cut_shape(shape: tuple[int, ...], blocks: tuple[int, int]) -> tuple[int, ...]:
    columns, rows = blocks
    return (shape[0] * columns * rows, *shape[1:-2], shape[-2] // rows, shape[-1] // columns)


def _cut(batch: Batch, blocks: tuple[int, int]) -> dict[str, np.ndarray]:
    """Pictures cut into blocks, which become pictures of the batch."""
    columns, rows = blocks
    if blocks == (1, 1):
        return dict(batch)
    return {
        name: np.concatenate(
            [part for strip in np.split(array, rows, axis=-2) for part in np.split(strip, columns, axis=-1)]
        )
        for name, array in batch.items()
    }


def print_losses(found: Losses) -> None:
    """The training loss of every epoch, for people."""
    for epoch, loss in enumerate(found.training):
        sys.stdout.write(f"epoch {epoch}: training loss {loss:.10g}\n")


def conclude(worst: float, faults: Sequence[str], precision: str) -> None:
    """Say that a program does what the network does.

    Raises:
        UserError: it does not.
    """
    if faults:
        raise UserError("the program does not do what the network does: " + "; ".join(faults[:5]))
    sys.stdout.write(f"The same as the numpy backend in {precision}, to {worst:.1e}.\n")


def compare(found: Losses, wanted: Losses, limit: float) -> tuple[float, list[str]]:
    """The largest relative difference of losses and weights, and what is beyond ``limit``.

    Raises:
        UserError: another number of losses.
    """
    faults, worst = [], 0.0
    for what, ours, theirs in (
        ("training loss", found.training, wanted.training),
        ("validation loss", found.validation, wanted.validation),
    ):
        if len(ours) != len(theirs):
            raise UserError(f"the program printed {len(ours)} of {len(theirs)} {what}es")
        for epoch, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            difference = abs(a - b) / max(abs(b), 1e-300)
            worst = max(worst, difference)
            if not difference <= limit:
                faults.append(f"epoch {epoch}, {what}: {a!r}, by numpy {b!r}")
    for name, array in wanted.weights.items():
        scale = max(float(np.abs(array).max()), 1e-300)
        difference = float(np.abs(found.weights[name] - array).max()) / scale
        worst = max(worst, difference)
        if not difference <= limit:
            faults.append(f"parameter '{name}': differs by {difference:.1e} of its largest element")
    return worst, faults
