"""What all levels run: a network with its weights and one batch of inputs, as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import shape_text
from meta500.graph import Model
from meta500.models.costs import costs


@dataclass(frozen=True)
class Subject:
    """A network on disk.

    Attributes:
        title: in rows.
        model, inputs: paths, as :class:`~meta500.benchmarks.studies.abstraction.level.Job` has them.
        shape: of the images.
        operators: of one inference.
        multiply_adds: of one inference.
        longest_sum: terms of the longest chain of sums behind a logit.
    """

    title: str
    model: str
    inputs: str
    shape: tuple[int, ...]
    operators: int
    multiply_adds: int
    longest_sum: int

    def columns(self, phase: str) -> dict[str, Any]:
        """The columns of a row that say what was measured."""
        return {
            "level": 1,
            "model": self.title,
            "phase": phase,
            "shape": shape_text([self.shape]),
            "dtype": "float32",
            "batch": self.shape[0],
        }


def network_options(options: Mapping[str, Any], batch: int, size: int) -> dict[str, Any]:
    """Options of a network at a point; size 0: it has none."""
    return {**options, "batch": batch, **({"size": size} if size else {})}


def written(title: str, model: Model, folder: Path, seed: int) -> Subject:
    """Write a network and one batch of seeded inputs into a folder.

    Dropout drops nothing in the written network: every level has a generator of its own, and no two masks, so
    no two losses, would be the same.
    """
    from meta500.graph.model import operations_for

    model = without_dropout(model)
    path, inputs = folder / "network.onnx", folder / "inputs.npz"
    model.save(path)
    rng = np.random.default_rng(seed)
    types = {name: value for name, value in model.inputs.items() if value is not None}
    shape = tuple(types["image"].shape)  # type: ignore[union-attr,arg-type]
    arrays = {"image": rng.standard_normal(shape).astype(np.float32)}
    if "label" in types:
        classes: Any = model.outputs["logits"].shape[1]  # type: ignore[union-attr,index]
        # One per image, or one per pixel.
        labels = tuple(types["label"].shape)  # type: ignore[union-attr,arg-type]
        arrays["label"] = rng.integers(0, classes, labels).astype(np.int64)
    np.savez(inputs, allow_pickle=False, **arrays)
    weights = [model.graph.initializers[name] for name in model.parameters]
    wanted = operations_for(model.graph, ["logits"], (*model.inputs, *model.graph.initializers))
    return Subject(
        title=title,
        model=str(path),
        inputs=str(inputs),
        shape=shape,
        operators=len(wanted),
        multiply_adds=costs(model).multiply_adds,
        longest_sum=1 + sum(w.size // w.shape[0] for w in weights if w.ndim > 1),
    )


def without_dropout(model: Model) -> Model:
    """The model with 0 as the ratio of every Dropout node; a node stays the operator that it is."""
    from meta500.graph.model import unique

    graph = model.graph
    if all(op.op_type != "Dropout" for op in graph.operations):
        return model
    zero = unique("dropout.none", graph.values())
    operations = [
        op.replace(ratio=zero if op.since_version >= 12 else 0.0) if op.op_type == "Dropout" else op
        for op in graph.operations
    ]
    read = {name for op in operations for name in op.operands}
    dropouts = [op for op in graph.operations if op.op_type == "Dropout"]
    unused = {name for op in dropouts for name in op.operands} - read
    kept = {name: array for name, array in graph.initializers.items() if name not in unused}
    changed = replace(graph, operations=operations, initializers={**kept, zero: np.zeros((), np.float32)})
    return model.with_graph(changed)


@dataclass(frozen=True)
class Needs:
    """What one image needs in inference.

    Attributes:
        multiply_adds: of all layers.
        activations, largest: bytes of all activations, and of the largest layer's.
        weights: bytes of the weights.
        image: shape of the image, without the batch.
    """

    multiply_adds: int
    activations: int
    largest: int
    weights: int
    image: tuple[int, ...] = ()


@lru_cache(maxsize=64)
def _needs(name: str, options: tuple[tuple[str, Any], ...]) -> Needs:
    from meta500.models.costs import outline

    model = outline(name, **dict(options))
    found = costs(model)
    largest = max(node.activation_bytes for node in found.nodes)
    kind: Any = model.inputs["image"]
    image = tuple(int(extent) for extent in kind.shape[1:])
    return Needs(found.multiply_adds, found.activation_bytes, largest, 4 * found.parameters, image)


def needs(name: str, options: Mapping[str, Any], size: int) -> Needs:
    """What one image of a network needs.

    Raises:
        UserError: the network cannot be made with these options, or not at this size.
    """
    chosen = network_options(options, 1, size)
    return _needs(name, tuple((key, _hashable(value)) for key, value in chosen.items()))


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
