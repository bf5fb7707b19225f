"""Turns operations into steps that call a numpy rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.network import NATIVE, UNSUPPORTED, NodeCoverage
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.reference import reference_function, reference_refusal
from meta500.backends.rules import Call, Rule
from meta500.errors import UserError
from meta500.graph import Operation, Visitor


@dataclass
class Step:
    """One bound operation: call :meth:`forward` with arrays, then :meth:`backward` with the call."""

    op: Operation
    rule: Rule
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: dict[str, Any]
    host: tuple[int, ...]

    def forward(self, inputs: tuple[Any, ...], rng: np.random.Generator) -> Call:
        """Run the rule.

        Raises:
            UserError: what the rule refuses, with the node's name.
        """
        keywords = dict(self.attributes)
        call = Call(inputs, (), keywords, ())
        if "saved" in self.rule.injected:
            keywords["saved"] = call.saved
        if "rng" in self.rule.injected:
            keywords["rng"] = rng
        args = list(inputs)
        for position in self.host:
            if position < len(args) and args[position] is not None:
                args[position] = np.asarray(args[position]).tolist()
        try:
            results = self.rule.function(*args, **keywords)
        except UserError as error:
            raise UserError(f"{self.op.label}: {error}") from None
        except (ValueError, TypeError, IndexError, ZeroDivisionError) as error:
            shapes = ", ".join("-" if a is None else f"{a.dtype}{list(a.shape)}" for a in map(_array, inputs))
            raise UserError(f"{self.op.label}: cannot run on inputs {shapes}: {error}") from error
        call.outputs = results if isinstance(results, tuple) else (results,)
        return call

    def backward(self, call: Call, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Cotangents of the inputs from those of the outputs.

        Raises:
            UserError: the operator has no gradient.
        """
        if self.rule.backward is None:
            raise UserError(f"{self.op.label}: the numpy backend has no gradient for {self.op.op_type}")
        try:
            return tuple(self.rule.backward(call, *cotangents))
        except UserError as error:
            raise UserError(f"{self.op.label}: {error}") from None


def _array(value: Any) -> Any:
    return None if value is None else np.asarray(value)


class NumpyVisitor(Visitor):
    """Looks every operation up in the rules; overriding ``visit_<operator>`` replaces a rule."""

    backend = "numpy"

    def visit_operation(self, op: Operation, network: Any) -> Step:
        """The step that runs ``op``.

        Raises:
            UnsupportedOperation: neither a rule nor onnx.reference covers this version.
        """
        entry = rules.find(op.domain, op.op_type, op.since_version)
        if entry is None:
            function = reference_function(op)
            if function is None:
                return super().visit_operation(op, network)  # type: ignore[no-any-return]
            return Step(op, Rule(function), op.operands, op.results, {}, ())
        return Step(op, entry.rule, op.operands, op.results, bind(entry.rule, op), entry.host_positions)


def bind(rule: Rule, op: Operation) -> dict[str, Any]:
    """Keyword arguments of ``rule`` for ``op``: its attributes and the injected constants.

    Raises:
        UserError: the operation has an attribute that the rule does not know.
    """
    keywords = {}
    for name, value in op.attributes.items():
        if name in rule.attributes:
            keywords[name] = value
        elif name != "consumed_inputs":
            raise UserError(f"{op.label}: attribute '{name}' is not supported")
    if "n_outputs" in rule.injected:
        keywords["n_outputs"] = len(op.results)
    if "since_version" in rule.injected:
        keywords["since_version"] = op.since_version
    return keywords


def node_coverage(op: Operation) -> NodeCoverage:
    """How the numpy backend runs ``op``."""
    common = (op.name, op.op_type, op.domain, op.since_version)
    if rules.find(op.domain, op.op_type, op.since_version) is not None:
        return NodeCoverage(*common, NATIVE)
    refusal = reference_refusal(op)
    if refusal:
        return NodeCoverage(*common, UNSUPPORTED, refusal)
    return NodeCoverage(*common, NATIVE, "onnx.reference")


Forward = Callable[..., Any]
