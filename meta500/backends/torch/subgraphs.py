"""Subgraphs of operations as torch.fx modules, handed to rules as callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from meta500.backends.rules import Rule
from meta500.backends.torch.compilation import outside_of_graphs
from meta500.backends.torch.tensors import attribute_name
from meta500.errors import UserError
from meta500.graph import Graph, Operation
from meta500.graph.model import operations_for

if TYPE_CHECKING:
    from meta500.backends.torch.visitor import Emitter


class BoundBody:
    """A subgraph as a rule sees it: ``body(*inputs)`` gives the tuple of its outputs."""

    def __init__(self, graph: Graph, module: fx.GraphModule, scope: tuple[Any, ...], device: torch.device):
        self.graph, self.module, self.scope, self.device = graph, module, scope, device

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the subgraph once.

        Raises:
            UserError: another number of inputs than the subgraph has.
        """
        if len(inputs) != len(self.graph.inputs):
            raise UserError(
                f"subgraph '{self.graph.name}' takes {len(self.graph.inputs)} inputs, got {len(inputs)}"
            )
        return self.module(*inputs, *self.scope)  # type: ignore[no-any-return]


class SubgraphOperation(torch.nn.Module):
    """An operation with subgraphs: its rule, with a callable for each of them.

    How often a subgraph runs depends on data, hence it is never part of a compiled graph.
    """

    def __init__(self, op: Operation, rule: Rule, device: torch.device) -> None:
        super().__init__()
        self.op, self.rule, self.device = op, rule, device
        self.bodies = torch.nn.ModuleDict()
        self.graphs: dict[str, Graph] = {}

    @outside_of_graphs
    def forward(self, scopes: dict[str, tuple[Any, ...]], *inputs: Any, **keywords: Any) -> Any:
        """The rule's result; ``scopes`` are the values that each subgraph reads from around it."""
        for name, graph in self.graphs.items():
            keywords[name] = BoundBody(graph, self.bodies[name], scopes[name], self.device)  # type: ignore[arg-type]
        try:
            return self.rule.function(*inputs, **keywords)
        except UserError as error:
            raise UserError(f"{self.op.label}: {error}") from None


def emit_with_bodies(
    op: Operation,
    rule: Rule,
    graphs: Mapping[str, Graph],
    args: list[Any],
    keywords: dict[str, Any],
    network: Emitter,
    visitor: Callable[[], Any],
) -> fx.Node:
    """The node of an operation with subgraphs."""
    module = SubgraphOperation(op, rule, network.device)
    scopes = {}
    for name, graph in graphs.items():
        body, captured = _emit_body(graph, network, visitor)
        module.bodies[name] = body
        module.graphs[name] = graph
        scopes[name] = tuple(network.tensor(value) for value in captured)
    attribute = attribute_name(op.op_type.lower(), network.root)
    network.root.add_module(attribute, module)
    return network.graph.call_module(attribute, (scopes, *args), keywords)


def _emit_body(
    graph: Graph, outer: Emitter, visitor: Callable[[], Any]
) -> tuple[fx.GraphModule, tuple[str, ...]]:
    """A module from the subgraph's inputs and the captured values to its outputs, and those values' names."""
    free = sorted(graph.free_names())
    captured = tuple(name for name in free if name not in outer.constants)
    root = torch.nn.Module()
    setattr(root, outer.generator, getattr(outer.root, outer.generator))
    inner = type(outer)(
        fx.Graph(),
        root,
        outer.device,
        outer.generator,
        outer.compiled,
        constants={name: outer.constants[name] for name in free if name in outer.constants},
        types={**outer.types, **graph.types()},
        source=graph,
        seed=outer.seed,
    )
    for index, name in enumerate((*graph.inputs, *captured)):
        inner.values[name] = inner.graph.placeholder(f"input_{index}")
    inner.constants.update(graph.initializers)
    visit = visitor()
    for op in operations_for(graph, list(graph.outputs), (*graph.inputs, *graph.initializers, *free)):
        op.accept(visit, inner)
    inner.graph.output(tuple(inner.tensor(name) for name in graph.outputs))
    outer.literals |= inner.literals
    outer.random = outer.random or inner.random
    return fx.GraphModule(root, inner.graph, class_name="Subgraph"), captured
