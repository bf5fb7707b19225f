"""Turns operations into steps that call a numpy rule."""

from __future__ import annotations

from typing import Any

from meta500.backends.network import NATIVE, UNSUPPORTED, NodeCoverage
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.plan import Body, Step
from meta500.backends.rules import Rule
from meta500.errors import UserError
from meta500.graph import Graph, Operation, Visitor
from meta500.graph.passes import gradient_graph


class NumpyVisitor(Visitor):
    """Looks every operation up in the rules; overriding ``visit_<operator>`` replaces a rule.

    ``graph`` is the graph whose operations are visited; only Gradient, which names values of it, asks for it.
    """

    backend = "numpy"

    def __init__(self, graph: Graph | None = None) -> None:
        self.graph = graph

    def visit_operation(self, op: Operation, network: Any) -> Step:
        """The step that runs ``op``.

        Raises:
            UnsupportedOperation: no rule covers this version.
        """
        entry = rules.find(op.domain, op.op_type, op.since_version)
        if entry is None:
            return super().visit_operation(op, network)  # type: ignore[no-any-return]
        graphs = body_graphs(op, self.graph)
        bodies = {name: Body.of(graph, type(self)(graph)) for name, graph in graphs.items()}
        captured = dict.fromkeys(name for body in bodies.values() for name in body.captured)
        attributes = bind(entry.rule, op)
        operands = (*op.operands, *captured)
        return Step(op, entry.rule, operands, op.results, attributes, entry.host_positions, bodies)


def body_graphs(op: Operation, graph: Graph | None) -> dict[str, Graph]:
    """The graphs that the rule of ``op`` gets as callables, by the name of its parameter.

    They are its graph attributes; for Gradient, the part of ``graph`` between its variables and its target.
    """
    if op.op_type == "Gradient" and op.domain == "ai.onnx.preview.training":
        return {"body": gradient_graph(op, graph)}
    return op.subgraphs


def bind(rule: Rule, op: Operation) -> dict[str, Any]:
    """Keyword arguments of ``rule`` for ``op``: its attributes and the injected constants.

    Raises:
        UserError: the operation has an attribute that the rule does not know.
    """
    keywords = {}
    for name, value in op.attributes.items():
        if op.attribute_kind(name) == "GRAPH":
            continue
        if name in rule.attributes:
            keywords[name] = value
        elif name != "consumed_inputs":
            raise UserError(f"{op.label}: attribute '{name}' is not supported")
    if "n_outputs" in rule.injected:
        keywords["n_outputs"] = len(op.results)
    if "since_version" in rule.injected:
        keywords["since_version"] = op.since_version
    if "node_label" in rule.injected:
        keywords["node_label"] = op.label
    return keywords


def node_coverage(op: Operation) -> NodeCoverage:
    """How the numpy backend runs ``op``, the operations of its subgraphs included."""
    common = (op.name, op.op_type, op.domain, op.since_version)
    for subgraph in op.subgraphs.values():
        for inner in map(node_coverage, subgraph.operations):
            if inner.how == UNSUPPORTED:
                return NodeCoverage(*common, UNSUPPORTED, f"its subgraph has {inner.op_type}: {inner.reason}")
    if rules.find(op.domain, op.op_type, op.since_version) is not None:
        return NodeCoverage(*common, NATIVE)
    return NodeCoverage(*common, UNSUPPORTED, f"no rule for version {op.since_version}")
