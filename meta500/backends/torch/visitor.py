"""Turns operations into nodes of a ``torch.fx`` graph that call torch rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from meta500.backends.network import HOST, NATIVE, UNSUPPORTED, NodeCoverage
from meta500.backends.numpy import visitor as numpy_visitor
from meta500.backends.numpy.operators.seeding import whole_seed
from meta500.backends.rules import Rule
from meta500.backends.torch.operators import rules
from meta500.backends.torch.subgraphs import emit_with_bodies
from meta500.backends.torch.tensors import (
    attribute_name,
    has_dtype,
    native_tensor,
    to_host_value,
    tracked_or_host_value,
)
from meta500.graph import (
    Graph,
    MapType,
    Operation,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
    Visitor,
)
from meta500.graph.types import dtype_name

# Literals up to this many elements are written into the graph; longer host constants stay tensors.
_LITERAL = 4096
# Operators that hand on whatever value they get, numpy arrays for missing element types included.
_ANY_VALUES = {
    "Identity", "If", "Loop", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
}  # fmt: skip


# Inputs (operator, position) whose rule takes a number, or a tensor with a gradient: Pad's constant_value.
_TRACKED = {("Pad", 2)}


@dataclass
class Emitter:
    """What a visit writes to: the fx graph, the module that owns its attributes, and the values so far.

    ``constants`` are the values known when the graph is built (initializers that are not trained and results
    of Constant nodes), as numpy arrays; ``types`` the types of the values, where known; ``source`` the graph
    that is visited; ``random`` whether some operation draws random numbers; ``literals`` the constants whose
    values were written into the graph.
    """

    graph: fx.Graph
    root: torch.nn.Module
    device: torch.device
    generator: str
    compiled: bool = False
    values: dict[str, fx.Node] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    types: Mapping[str, ValueType | None] = field(default_factory=dict)
    source: Graph | None = None
    seed: int = 0
    random: bool = False
    literals: set[str] = field(default_factory=set)

    def tensor(self, name: str) -> fx.Node | None:
        """The node of a value; a constant becomes an attribute of the module when it is first used."""
        if not name:
            return None
        if name not in self.values:
            self.values[name] = self.keep("constant", self.constants[name])
        return self.values[name]

    def keep(self, stem: str, array: np.ndarray) -> fx.Node:
        """The node of a constant that the module holds; strings and the like stay numpy arrays."""
        attribute = attribute_name(stem, self.root)
        value = native_tensor(array, self.device)
        if isinstance(value, torch.Tensor):
            self.root.register_buffer(attribute, value, persistent=False)
        else:
            setattr(self.root, attribute, value)
        return self.graph.get_attr(attribute)

    def host(self, name: str, tracked: bool = False) -> Any:
        """The value as Python numbers: a literal if it is known now, else fetched when the network runs.

        With ``tracked`` it stays a tensor where gradients flow through it.
        """
        if not name:
            return None
        constant = self.constants.get(name)
        if constant is not None and constant.size <= _LITERAL:
            self.literals.add(name)
            return _literal(constant.tolist())
        fetch = tracked_or_host_value if tracked else to_host_value
        return self.graph.call_function(fetch, (self.tensor(name),))


class TorchVisitor(Visitor):
    """Looks every operation up in the rules; overriding ``visit_<operator>`` replaces a rule."""

    backend = "torch"

    def visit_operation(self, op: Operation, network: Emitter) -> None:
        """Emit ``op`` into the fx graph; onto the host when only numpy has a rule for it.

        Raises:
            UnsupportedOperation: neither torch nor numpy has a rule for this version.
        """
        entry = rules.find(op.domain, op.op_type, op.since_version)
        if op.op_type == "Constant" and op.domain == "":
            network.constants[op.results[0]] = _constant(op)
            return
        if entry is None or host_reason(op, entry.rule, network.types):
            self._emit_host(op, network)
            return
        args = [
            network.host(name, (op.op_type, position) in _TRACKED)
            if position in entry.host_positions
            else network.tensor(name)
            for position, name in enumerate(op.operands)
        ]
        keywords = {
            name: _attribute(value, network) for name, value in numpy_visitor.bind(entry.rule, op).items()
        }
        if op.op_type == "ConstantOfShape" and keywords.get("value") is None:
            # A tensor on the network's device; without one the rule would not know the device.
            keywords["value"] = _attribute(np.zeros(1, np.float32), network)
        if "rng" in entry.rule.injected:
            network.random = True
            keywords["rng"] = _generator(op, keywords, network)
        graphs = numpy_visitor.body_graphs(op, network.source)
        if graphs:
            node = emit_with_bodies(op, entry.rule, graphs, args, keywords, network, type(self))
        else:
            node = network.graph.call_function(entry.rule.function, tuple(args), keywords)
        node.meta["operation"] = op
        _bind_results(op, node, network)

    def _emit_host(self, op: Operation, network: Emitter) -> None:
        from meta500.backends.torch.host import HostOperation

        step = numpy_visitor.NumpyVisitor(network.source).visit_operation(op, None)
        attribute = attribute_name("host", network.root)
        network.root.add_module(attribute, HostOperation(step, network.device, network.seed))
        network.random = network.random or "rng" in step.rule.injected
        node = network.graph.call_module(attribute, tuple(network.tensor(name) for name in step.operands))
        node.meta["operation"] = op
        for index, name in enumerate(op.results):
            if name:
                network.values[name] = network.graph.call_function(_item, (node, index))


class _Follower(fx.Interpreter):
    """Runs a module node by node and remembers at which it is."""

    current: fx.Node | None = None

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        return super().run_node(n)


def failing_node(module: fx.GraphModule, arguments: Sequence[Any]) -> str:
    """The label of the operation that fails when ``module`` runs once more; empty if none does."""
    follower = _Follower(module)
    try:
        with torch.no_grad():
            follower.run(*arguments)  # type: ignore[no-untyped-call]
    except Exception:
        operation = follower.current.meta.get("operation") if follower.current is not None else None
        return operation.label if operation is not None else ""
    return ""


def lacking_type(op: Operation, types: Mapping[str, ValueType | None]) -> str:
    """The first element type around ``op`` that torch has no tensors of; empty if there is none."""
    if op.op_type in _ANY_VALUES and op.domain == "":
        return ""
    for name in (*op.operands, *op.results):
        kind = types.get(name)
        while isinstance(kind, SequenceType | OptionalType):
            kind = kind.element
        if isinstance(kind, MapType):
            return "map"
        if isinstance(kind, TensorType) and kind.dtype is not None and not has_dtype(kind.dtype):
            return dtype_name(kind.dtype)
    return ""


def host_reason(op: Operation, rule: Rule, types: Mapping[str, ValueType | None]) -> str:
    """Why ``op`` runs on the host although torch has a rule for it; empty where it runs natively."""
    lacking = lacking_type(op, types)
    if lacking:
        return f"torch has no {lacking}"
    return rule.host_when(op, types) if rule.host_when else ""


def _item(values: tuple[Any, ...], index: int) -> Any:
    return values[index]


def _bind_results(op: Operation, node: fx.Node, network: Emitter) -> None:
    if len(op.results) == 1 and not _returns_tuple(op):
        network.values[op.results[0]] = node
        return
    for index, name in enumerate(op.results):
        if name:
            network.values[name] = network.graph.call_function(_element, (node, index))


def _element(value: Any, index: int) -> Any:
    """Output ``index`` of a rule, which returns a tuple only when it has several outputs."""
    return value[index] if isinstance(value, tuple | list) else value


def _returns_tuple(op: Operation) -> bool:
    """Whether the rule of ``op`` may return a tuple although one output is asked for."""
    return len(op.signature.outputs) > 1 or any(formal.variadic for formal in op.signature.outputs)


def _generator(op: Operation, keywords: dict[str, Any], network: Emitter) -> fx.Node:
    """The network's generator, or one of the node's own, seeded once, where the node has a seed.

    Compiled graphs draw from PyTorch's default generators; there the rule sees the seed and refuses it.
    Dropout keeps its seed: it draws numpy's numbers, from a stream that belongs to the network's generator.
    """
    seed = keywords.get("seed")
    if seed is None or network.compiled or op.op_type == "Dropout":
        return network.graph.get_attr(network.generator)
    keywords["seed"] = None
    attribute = attribute_name("generator", network.root)
    generator = torch.Generator(device=network.device)
    generator.manual_seed(whole_seed(seed))
    setattr(network.root, attribute, generator)
    return network.graph.get_attr(attribute)


def _constant(op: Operation) -> np.ndarray:
    """The value of a Constant node: known when the graph is built, so never computed again."""
    step = numpy_visitor.NumpyVisitor().visit_operation(op, None)
    return np.asarray(step.forward((), np.random.default_rng(0)).outputs[0])


def _attribute(value: Any, network: Emitter) -> Any:
    if isinstance(value, np.ndarray):
        return network.keep("attribute", value)
    if value is None or isinstance(value, int | float | str | tuple):
        return value
    attribute = attribute_name("attribute", network.root)
    setattr(network.root, attribute, value)
    return network.graph.get_attr(attribute)


def _literal(value: Any) -> Any:
    return tuple(_literal(item) for item in value) if isinstance(value, list) else value


def node_coverage(op: Operation, types: Mapping[str, ValueType | None] | None = None) -> NodeCoverage:
    """How the torch backend runs ``op``, the operations of its subgraphs included.

    Its own rule, numpy's on the host (also where torch lacks an element type), or not at all.
    """
    common = (op.name, op.op_type, op.domain, op.since_version)
    types = types or {}
    how, reason = NATIVE, ""
    for subgraph in op.subgraphs.values():
        scope = {**types, **subgraph.types()}
        for inner in (node_coverage(inner, scope) for inner in subgraph.operations):
            if inner.how == UNSUPPORTED:
                return NodeCoverage(*common, UNSUPPORTED, f"its subgraph has {inner.op_type}: {inner.reason}")
            if inner.how == HOST:
                how, reason = HOST, f"{inner.op_type} of its subgraph: {inner.reason}"
    known = rules.find(op.domain, op.op_type, op.since_version)
    host = "numpy rule on the host" if known is None else host_reason(op, known.rule, types)
    if known is not None and not host:
        return NodeCoverage(*common, how, reason or known.rule.note)
    fallback = numpy_visitor.node_coverage(op)
    if fallback.how == UNSUPPORTED:
        return NodeCoverage(*common, UNSUPPORTED, fallback.reason)
    return NodeCoverage(*common, HOST, host)
