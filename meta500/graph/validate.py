"""Structural checks of a graph: single assignment, order, cycles, dangling names."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from meta500.errors import UserError
from meta500.graph.model import Graph
from meta500.graph.operation import Operation


def check_graph(graph: Graph, outer: frozenset[str] = frozenset()) -> None:
    """Check ``graph`` and its subgraphs; ``outer`` are the names of the enclosing scopes.

    Raises:
        UserError: a value written twice, read before it is written, written by nobody, a cycle, or an
            output that nothing produces. The message names node and value.
    """
    known = set(outer) | set(graph.inputs) | set(graph.initializers) | set(graph.sparse_initializers)
    written: dict[str, Operation] = {}
    for op in graph.operations:
        for name in op.results:
            if not name:
                continue
            if name in written:
                raise UserError(
                    f"{op.label}: writes '{name}', which {written[name].label} has written already"
                )
            if name in graph.inputs or name in graph.initializers:
                raise UserError(f"{op.label}: writes '{name}', which is an input or initializer of the graph")
            written[name] = op
    # A name of the enclosing scopes that is written here means the value written here, nothing before it.
    known -= set(written) - set(graph.inputs)
    for op in graph.operations:
        needed = [name for name in op.operands if name]
        for subgraph in op.subgraphs.values():
            needed += sorted(subgraph.free_names())
        for name in needed:
            if name in known:
                continue
            if name not in written:
                raise UserError(
                    f"{op.label}: reads '{name}', which no node writes and which is no input or initializer"
                )
            raise UserError(_disorder(graph, op, name, written))
        for subgraph in op.subgraphs.values():
            check_graph(subgraph, frozenset(known))
        known.update(name for name in op.results if name)
    for name in graph.outputs:
        if name not in known:
            raise UserError(f"graph '{graph.name}': nothing produces its output '{name}'")


def _disorder(graph: Graph, op: Operation, name: str, written: dict[str, Operation]) -> str:
    """Why ``name`` is read by ``op`` before it is written: a cycle, or only the order in the file."""
    position = {id(node): index for index, node in enumerate(graph.operations)}
    dependencies: dict[int, set[int]] = {}
    for node in graph.operations:
        names = list(node.operands)
        for subgraph in node.subgraphs.values():
            names += subgraph.free_names()
        dependencies[position[id(node)]] = {position[id(written[n])] for n in names if n in written}
    try:
        TopologicalSorter(dependencies).prepare()
    except CycleError as error:
        cycle = [graph.operations[index].label for index in error.args[1]]
        return f"the graph has a cycle: {' -> '.join(reversed(cycle))}"
    return (
        f"{op.label}: reads '{name}' before {written[name].label} writes it; "
        "nodes must be sorted topologically"
    )
