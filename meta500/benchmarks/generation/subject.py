"""MODEL on the command line as a network: a name of ours, an ONNX file, or a Python file with a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.generation.modules import load_module
from meta500.errors import UserError, choose
from meta500.graph import Model, TensorType, infer_types, load

LOSS = "loss"
# Names of losses in configurations, and in meta500.models.
_LOSSES = {"cross_entropy": "cross_entropy", "mean_squared_error": "mse"}
_OPERATORS = {"cross_entropy": "SoftmaxCrossEntropyLoss", "mean_squared_error": "MeanSquaredError"}


@dataclass(frozen=True)
class Source:
    """What decides which network is meant.

    Attributes:
        model: name, path, or path:Name.
        name: class or module in a Python file, if not in ``model``.
        options: of the network's function or class.
        loss: "cross_entropy", "mean_squared_error" or "" for the model's own.
        label: name of the input that an appended loss adds.
        seed: of the initial weights.
        examples: arrays of a few samples by input name, label not included; of a module they are needed.
        classes: number of classes of the data, if known.
    """

    model: str
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    loss: str = ""
    label: str = "label"
    seed: int = 0
    examples: dict[str, np.ndarray] = field(default_factory=dict)
    classes: int | None = None


@dataclass(frozen=True)
class Subject:
    """A network and the shapes that it is generated for.

    Attributes:
        model: the network, with a loss called "loss" if it trains.
        shapes: of all its inputs.
        open_batch: whether the first dimension of every input may have any size.
    """

    model: Model
    shapes: dict[str, tuple[int, ...]]
    open_batch: bool

    def with_batch(self, batch: int) -> dict[str, tuple[int, ...]]:
        """The shapes for another batch."""
        return {name: (batch, *shape[1:]) for name, shape in self.shapes.items()}


def load_subject(
    source: Source, shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> Subject:
    """The network of ``source`` with the shapes of its inputs; see `load_network` and `shaped`."""
    return shaped(load_network(source), shapes, batch)


def load_network(source: Source) -> Model:
    """The network of ``source``, with its loss.

    Raises:
        UserError: an unknown name, a file that can't be read, options that do not apply, or a loss that the
            network can't have.
    """
    model = _load(source)
    if LOSS in model.outputs:
        _check_own(model, source)
    elif source.loss:
        from meta500.models.from_torch import with_loss

        if source.label in model.graph.values():
            raise UserError(
                f"network '{model.name}': '{source.label}' is taken, the loss needs it for its input"
            )
        model = infer_types(with_loss(model, _LOSSES[source.loss], source.label))
    return model


def shaped(
    model: Model, shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> Subject:
    """A network with the shapes of all its inputs.

    Args:
        model: the network.
        shapes: of inputs, by name.
        batch: the first dimension of inputs that leave it open.

    Raises:
        UserError: an unknown input, one whose shape is not known, or a shape that is not the declared one.
    """
    known = dict(shapes or {})
    for name in known:
        choose(f"input of network '{model.name}'", name, model.inputs)
    found = {name: _shape(name, value, known.get(name), batch) for name, value in model.inputs.items()}
    opened = all(
        isinstance(value, TensorType) and value.shape and isinstance(value.shape[0], str | None)
        for value in model.inputs.values()
    )
    return Subject(model, found, opened)


def _load(source: Source) -> Model:
    from meta500 import models

    path, _, name = source.model.partition(":")
    if path.endswith(".py"):
        if name and source.name and name != source.name:
            raise UserError(f"model '{source.model}': the configuration names another class, '{source.name}'")
        return _module(source, path, name or source.name)
    if source.name:
        raise UserError(f"model '{source.model}' is no Python file: it has no class '{source.name}'")
    if source.model.endswith(".onnx") or Path(source.model).is_file():
        if source.options:
            raise UserError(f"model options {sorted(source.options)} do not apply to a file")
        return load(source.model)
    known = models.options(source.model)
    found: dict[str, Any] = {"batch": "N", "seed": source.seed}
    image = source.examples.get("image")
    if image is not None and image.ndim == 4:
        found |= {"channels_in": image.shape[1], "size": (image.shape[2], image.shape[3])}
    if source.classes is not None:
        found["classes"] = source.classes
    if source.loss == "mean_squared_error":
        found["loss"] = False
    options = {key: value for key, value in found.items() if key in known}
    return models.create(source.model, **{**options, **source.options})


def _module(source: Source, path: str, name: str) -> Model:
    from meta500 import models

    module = load_module(path, name, source.options, source.seed)
    if not source.examples:
        raise UserError(
            f"{source.model}: the inputs of a module are not known: give them by --shape NAME=8x3x64x64, "
            "or by the "
            "data of a configuration"
        )
    loss = _LOSSES[source.loss] if source.loss else None
    names = list(source.examples)
    # One sample would become part of the shape, a few leave it open.
    examples = [a if len(a) > 1 else np.concatenate([a, a]) for a in source.examples.values()]
    return models.from_torch(
        module, examples, input_names=names, loss=loss, label=source.label, dynamic_batch=True
    )


def _check_own(model: Model, source: Source) -> None:
    """Refuse a loss of the configuration that is not the one that the model has."""
    if not source.loss:
        return
    found = model.graph.producers()[LOSS].op_type
    if found != _OPERATORS[source.loss]:
        raise UserError(
            f"network '{model.name}' has a loss of its own, {found}; leave the loss '{source.loss}' out"
        )


def _shape(name: str, value: Any, given: Sequence[int] | None, batch: int | None) -> tuple[int, ...]:
    if not isinstance(value, TensorType) or value.shape is None or value.dtype is None:
        if given is None:
            raise UserError(f"input '{name}' has no declared shape; give it by --shape {name}=...")
        return tuple(given)
    declared = list(value.shape)
    if given is not None:
        if len(given) != len(declared) or any(
            isinstance(d, int) and d != g for d, g in zip(declared, given, strict=True)
        ):
            raise UserError(f"input '{name}' is declared {list(declared)}; {list(given)} does not fit")
        declared = list(given)
    elif declared and not isinstance(declared[0], int) and batch is not None:
        declared[0] = batch
    elif declared and isinstance(declared[0], int) and batch is not None and declared[0] != batch:
        raise UserError(f"input '{name}' has the fixed batch {declared[0]}; {batch} does not fit")
    if not all(isinstance(d, int) and d >= 1 for d in declared):
        sizes = "x".join(str(d) if isinstance(d, int) else "?" for d in declared)
        raise UserError(
            f"input '{name}' has the shape {list(value.shape)}: generated code needs all sizes; "
            f"give --batch, or --shape {name}={sizes}"
        )
    return tuple(int(size) for size in declared if size is not None)


def with_examples(source: Source, shapes: Mapping[str, Sequence[int]]) -> Source:
    """``source`` with random examples of these shapes, float32, of the inputs that are no label."""
    rng = np.random.default_rng(0)
    return replace(
        source,
        examples={
            name: rng.random(tuple(shape), np.float32)
            for name, shape in shapes.items()
            if name != source.label
        },
    )
