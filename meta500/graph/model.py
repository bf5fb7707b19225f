"""A network as data: models, graphs and model-local functions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph.operation import Operation
from meta500.graph.types import SparseTensor, TensorType, ValueType, is_floating

PARAMETERS_KEY = "meta500.parameters"

# Inputs that hold settings or statistics, never weights, although they may be float initializers.
_NOT_TRAINABLE: dict[str, frozenset[int]] = {
    "BatchNormalization": frozenset({3, 4}),
    "Clip": frozenset({1, 2}),
    "Dropout": frozenset({1, 2}),
    "Pad": frozenset({2}),
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
    "Range": frozenset({0, 1, 2}),
    "OneHot": frozenset({1, 2}),
    "NonMaxSuppression": frozenset({2, 3, 4}),
    "QuantizeLinear": frozenset({1, 2}),
    "DequantizeLinear": frozenset({1, 2}),
    "Cast": frozenset({0}),
    "Pow": frozenset({1}),
    "SoftmaxCrossEntropyLoss": frozenset({2}),
    "NegativeLogLikelihoodLoss": frozenset({2}),
    "MeanSquaredError": frozenset({1}),
}


@dataclass(frozen=True)
class Annotation:
    """What a file says about a value in words: ``doc_string`` and ``metadata`` (metadata_props)."""

    doc_string: str = ""
    metadata: tuple[tuple[str, str], ...] = ()


@dataclass
class Graph:
    """Operations in topological order, with the names and types of what flows between them.

    ``inputs`` and ``outputs`` keep their order; an input that is also an initializer has a default.
    ``value_types`` holds the types known for other values; the annotations are those of inputs, outputs and
    values, and of initializers.
    """

    name: str = "graph"
    inputs: dict[str, ValueType | None] = field(default_factory=dict)
    outputs: dict[str, ValueType | None] = field(default_factory=dict)
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    sparse_initializers: dict[str, SparseTensor] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    value_types: dict[str, ValueType | None] = field(default_factory=dict)
    doc_string: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    quantization: tuple[bytes, ...] = ()
    value_annotations: dict[str, Annotation] = field(default_factory=dict)
    tensor_annotations: dict[str, Annotation] = field(default_factory=dict)

    def producers(self) -> dict[str, Operation]:
        """The operation that writes each value."""
        return {name: op for op in self.operations for name in op.results if name}

    def consumers(self) -> dict[str, list[tuple[Operation, int]]]:
        """The operations that read each value, with the position among their operands."""
        found: dict[str, list[tuple[Operation, int]]] = {}
        for op in self.operations:
            for position, name in enumerate(op.operands):
                if name:
                    found.setdefault(name, []).append((op, position))
        return found

    def values(self) -> set[str]:
        """Names of all values of this graph (subgraphs not included)."""
        names = set(self.inputs) | set(self.initializers) | set(self.sparse_initializers)
        for op in self.operations:
            names.update(name for name in op.results if name)
        return names

    def types(self) -> dict[str, ValueType | None]:
        """The types of all values, as far as they are known; initializers have the type of their array."""
        tensors = {name: TensorType(a.dtype, a.shape) for name, a in self.initializers.items()}
        return {**self.value_types, **self.outputs, **self.inputs, **tensors}

    def walk(self) -> Iterator[Operation]:
        """All operations, those of subgraphs included."""
        for op in self.operations:
            yield op
            for subgraph in op.subgraphs.values():
                yield from subgraph.walk()

    def free_names(self) -> set[str]:
        """Values that this graph reads from an enclosing scope."""
        known = self.values()
        needed = {name for op in self.operations for name in op.operands if name}
        for op in self.operations:
            for subgraph in op.subgraphs.values():
                needed |= subgraph.free_names()
        needed |= set(self.outputs)
        return needed - known


def captured_names(op: Operation) -> tuple[str, ...]:
    """The values of the enclosing graph that the subgraphs of ``op`` read, sorted."""
    free: set[str] = set()
    for subgraph in op.subgraphs.values():
        free |= subgraph.free_names()
    return tuple(sorted(free))


def operations_for(graph: Graph, wanted: Iterable[str], given: Iterable[str] = ()) -> list[Operation]:
    """The operations that the values ``wanted`` need, in order, when the values ``given`` are known."""
    needed, known = set(wanted) - set(given), set(given)
    chosen: list[Operation] = []
    for op in reversed(graph.operations):
        if needed & set(op.results):
            needed.update(name for name in (*op.operands, *captured_names(op)) if name not in known)
            chosen.append(op)
    return chosen[::-1]


@dataclass
class Function:
    """A model-local function: a graph without types, called by (domain, name, overload)."""

    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operations: list[Operation]
    opset_imports: dict[str, int]
    attributes: tuple[str, ...] = ()
    attribute_defaults: dict[str, tuple[str, Any]] = field(default_factory=dict)
    overload: str = ""
    doc_string: str = ""
    value_types: dict[str, ValueType | None] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass
class Model:
    """A graph with the versions that give its operators their meaning.

    ``opset_imports`` maps domains (``""`` is ai.onnx) to versions. ``trainable`` names the parameters; None
    lets :attr:`parameters` decide. ``path`` says where the model came from, for messages.
    """

    graph: Graph
    opset_imports: dict[str, int]
    ir_version: int = 10
    functions: dict[tuple[str, str, str], Function] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    trainable: tuple[str, ...] | None = None
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    doc_string: str = ""
    training_info: tuple[bytes, ...] = ()
    configuration: tuple[bytes, ...] = ()
    path: str = ""

    @property
    def name(self) -> str:
        """Name of the graph."""
        return self.graph.name

    @property
    def opset(self) -> int:
        """Version of the ai.onnx operator set."""
        return self.opset_imports.get("", 1)

    @property
    def inputs(self) -> dict[str, ValueType | None]:
        """Inputs that have to be fed: graph inputs without a default."""
        return {k: v for k, v in self.graph.inputs.items() if k not in self.graph.initializers}

    @property
    def outputs(self) -> dict[str, ValueType | None]:
        """The graph's outputs with their types."""
        return self.graph.outputs

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the trainable initializers, in graph order.

        They are ``trainable`` where the model says so (networks of the builder and of PyTorch do). For other
        files: every floating-point initializer of rank one or more that some operation takes as a
        weight, that is, anywhere but in an input that holds settings or statistics (running mean and
        variance, clip bounds, scales, pad values, ...).
        """
        if self.trainable is not None:
            return self.trainable
        weights = {
            name: array.ndim > 0 and is_floating(array.dtype)
            for name, array in self.graph.initializers.items()
        }
        used = self.graph.consumers()
        return tuple(
            name
            for name, is_float in weights.items()
            if is_float
            and used.get(name)
            and all(position not in _NOT_TRAINABLE.get(op.op_type, ()) for op, position in used[name])
        )

    def with_graph(self, graph: Graph) -> Model:
        """The same model over another graph."""
        return replace(self, graph=graph)

    def parameter_count(self) -> int:
        """Number of trainable scalars."""
        return sum(self.graph.initializers[name].size for name in self.parameters)

    def to_proto(self) -> Any:
        """The model as ``onnx.ModelProto``."""
        from meta500.graph.writer import model_to_proto

        return model_to_proto(self)

    def save(self, path: str | os.PathLike[str], external_data: bool = False) -> None:
        """Write an ONNX file; with ``external_data`` the weights go to ``<path>.data`` beside it.

        Raises:
            UserError: the file can't be written.
        """
        from meta500.graph.writer import save

        save(self, path, external_data)

    def batch(self) -> int | None:
        """First dimension of the first tensor input, where it is a number."""
        for value in self.inputs.values():
            if isinstance(value, TensorType) and value.shape:
                first = value.shape[0]
                return first if isinstance(first, int) else None
        return None


def check_parameters(model: Model, names: Iterable[str]) -> tuple[str, ...]:
    """``names`` as a tuple, each a floating-point initializer of ``model``.

    Raises:
        UserError: a name that is no initializer, or not floating point.
    """
    names = tuple(names)
    for name in names:
        array = model.graph.initializers.get(name)
        if array is None:
            raise UserError(f"parameter '{name}' is no initializer of {model.path or model.name}")
        if not is_floating(array.dtype):
            raise UserError(f"parameter '{name}' is {array.dtype}; parameters are floating point")
    return names


def parameters_text(names: Sequence[str]) -> str:
    """Names of parameters as one metadata text: a line each, or a JSON list where lines would not tell them
    apart."""
    text = "\n".join(names)
    return json.dumps(list(names)) if text.startswith("[") or any("\n" in name for name in names) else text


def parameters_of_text(text: str) -> list[str]:
    """The inverse of `parameters_text`.

    Raises:
        UserError: the text begins as a JSON list and is none of texts.
    """
    if not text.startswith("["):
        return text.split("\n") if text else []
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"metadata '{PARAMETERS_KEY}': no list of parameter names: {text[:60]}")
    return names


def unique(name: str, taken: set[str] | Mapping[str, Any]) -> str:
    """``name``, or the first of ``name_1``, ``name_2``, ... that is not taken."""
    if name not in taken:
        return name
    index = 1
    while f"{name}_{index}" in taken:
        index += 1
    return f"{name}_{index}"
