"""Running a graph step by step, and taking cotangents back through the tape of such a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meta500.backends.rules import Call, Rule
from meta500.backends.values import add, apply, leaves
from meta500.errors import UserError
from meta500.graph import Graph, Operation, Visitor
from meta500.graph.model import operations_for
from meta500.graph.types import is_floating


@dataclass
class Step:
    """One bound operation: call :meth:`forward` with arrays, then :meth:`backward` with the call.

    ``operands`` are the operation's own inputs, then the values that its subgraphs (``bodies``) read from the
    graph around them.
    """

    op: Operation
    rule: Rule
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: dict[str, Any]
    host: tuple[int, ...]
    bodies: dict[str, Body] = field(default_factory=dict)

    def forward(self, inputs: tuple[Any, ...], rng: np.random.Generator, record: bool = False) -> Call:
        """Run the rule; ``record`` keeps what a backward through subgraphs needs.

        Raises:
            UserError: what the rule refuses, with the node's name.
        """
        keywords = dict(self.attributes)
        if self.bodies:
            own = len(self.op.operands)
            scope = dict(zip(self.operands[own:], inputs[own:], strict=True))
            keywords |= {n: BoundBody(body, scope, rng, record) for n, body in self.bodies.items()}
            inputs = inputs[:own]
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
        except (ValueError, TypeError, IndexError, ZeroDivisionError, OverflowError) as error:
            raise self._refusal(inputs, error) from error
        except MemoryError as error:
            raise self._refusal(inputs, str(error) or "not enough memory") from error
        except AttributeError as error:
            if all(isinstance(v, np.ndarray | np.generic) for v in inputs if v is not None):
                raise  # a fault of the rule, not of a sequence or map where a tensor belongs
            raise self._refusal(inputs, error) from error
        call.outputs = results if isinstance(results, tuple) else (results,)
        named = [index for index, name in enumerate(self.results) if name]
        if named and named[-1] >= len(call.outputs):
            raise UserError(
                f"{self.op.label}: gives {len(call.outputs)} outputs, the graph names {len(self.results)}"
            )
        return call

    def _refusal(self, inputs: Sequence[Any], reason: object) -> UserError:
        shapes = ", ".join(map(_description, inputs))
        return UserError(f"{self.op.label}: cannot run on inputs {shapes}: {reason}")

    def backward(self, call: Call, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """Cotangents of the operands from those of the outputs.

        Raises:
            UserError: the operator has no gradient.
        """
        if self.rule.backward is None:
            raise UserError(f"{self.op.label}: the numpy backend has no gradient for {self.op.op_type}")
        own = len(self.op.operands) if self.bodies else len(call.needs)
        needs, captured = call.needs, self.operands[own:]
        wanted = frozenset(name for name, need in zip(captured, needs[own:], strict=False) if need)
        bound = [call.attributes[name] for name in self.bodies]
        for body in bound:
            body.wanted, body.captured_cotangents = wanted & set(body.body.captured), {}
        call.needs = needs[:own]
        try:
            found = tuple(self.rule.backward(call, *cotangents))
        except UserError as error:
            raise UserError(f"{self.op.label}: {error}") from None
        if not self.bodies:
            return found
        found += (None,) * (own - len(found))
        for name in captured:
            total = None
            for body in bound:
                total = add(total, body.captured_cotangents.get(name))
            if total is None and name in wanted:
                scope = next(body.scope for body in bound if name in body.scope)
                total = apply(np.zeros_like, scope[name])
            found += (total,)
        return found


def _description(value: Any) -> str:
    """Type and shape of a value, for messages."""
    if value is None:
        return "-"
    if isinstance(value, list | dict):
        return f"{type(value).__name__} of {len(value)}"
    array = np.asarray(value)
    return f"{array.dtype}{list(array.shape)}"


Tape = list[tuple[Step, Call]]


class Plan:
    """The steps that some outputs need, in order, with the values that may be dropped after each."""

    def __init__(
        self, graph: Graph, wanted: Sequence[str], visitor: Visitor, given: Iterable[str] = ()
    ) -> None:
        given = (*given, *graph.inputs, *graph.initializers)
        self.steps: list[Step] = [op.accept(visitor, None) for op in operations_for(graph, wanted, given)]
        last: dict[str, int] = {}
        for index, step in enumerate(self.steps):
            last.update(dict.fromkeys(step.operands, index))
        keep = set(wanted) | set(given)
        self.drop: list[list[str]] = [[] for _ in self.steps]
        for name, index in last.items():
            if name and name not in keep:
                self.drop[index].append(name)

    def run(self, values: dict[str, Any], rng: np.random.Generator, tape: Tape | None) -> None:
        """Run the steps over ``values``; with a ``tape``, record the calls and drop nothing."""
        record = tape is not None
        for step, drop in zip(self.steps, self.drop, strict=True):
            call = step.forward(tuple(values[n] if n else None for n in step.operands), rng, record)
            for name, value in zip(step.results, call.outputs, strict=False):
                if name:
                    values[name] = value
            if tape is not None:
                tape.append((step, call))
                continue
            for name in drop:
                values.pop(name, None)


def pullback(tape: Tape, cotangents: dict[str, Any], active: Iterable[str]) -> dict[str, Any]:
    """Take ``cotangents`` of values back through ``tape`` to everything that the ``active`` values reach.

    Args:
        tape: the steps that ran, in order, with their calls.
        cotangents: by name of the value; changed in place. Those of results are taken out on the way.
        active: names of the values to differentiate by.

    Returns:
        ``cotangents``, in which the active values' are summed at every fan-out (absent where zero).

    Raises:
        UserError: an operation between has no gradient.
    """
    reached = set(active)
    for step, call in tape:
        if any(name in reached for name in step.operands):
            outputs = zip(step.results, call.outputs, strict=False)
            reached.update(name for name, value in outputs if name and is_differentiable(value))
    for step, call in reversed(tape):
        given = tuple(cotangents.pop(name, None) if name else None for name in step.results)
        call.needs = tuple(name in reached for name in step.operands)
        if all(g is None for g in given) or not any(call.needs):
            continue
        for name, need, gradient in zip(step.operands, call.needs, step.backward(call, given), strict=False):
            if not need:
                continue
            if gradient is None:
                raise UserError(f"{step.op.label}: has no gradient with respect to its input '{name}'")
            cotangents[name] = add(cotangents.get(name), gradient)
    return cotangents


def is_differentiable(value: Any) -> bool:
    """Whether gradients flow through ``value``: some tensor in it is floating point."""
    tensors = leaves(value)
    if isinstance(value, list) and not value:
        return True
    return any(isinstance(t, np.ndarray | np.generic) and is_floating(t.dtype) for t in tensors)


@dataclass
class Body:
    """A subgraph of one operation, bound to its enclosing scope at every call."""

    graph: Graph
    captured: tuple[str, ...]
    plan: Plan

    @classmethod
    def of(cls, graph: Graph, visitor: Visitor) -> Body:
        """The body of an attribute's graph; ``visitor`` makes its steps."""
        captured = tuple(sorted(graph.free_names()))
        return cls(graph, captured, Plan(graph, tuple(graph.outputs), visitor, captured))


@dataclass
class BoundBody:
    """A subgraph as a rule sees it: ``body(*inputs)`` gives the tuple of its outputs.

    With ``record`` every run leaves a tape for :meth:`pullback`. ``wanted`` says for which captured values a
    gradient is needed, ``captured_cotangents`` gathers those.
    """

    body: Body
    scope: Mapping[str, Any]
    rng: np.random.Generator
    record: bool
    wanted: frozenset[str] = frozenset()
    captured_cotangents: dict[str, Any] = field(default_factory=dict)
    runs: list[tuple[dict[str, Any], Tape]] = field(default_factory=list)

    @property
    def graph(self) -> Graph:
        """The subgraph, with the types of its inputs and outputs."""
        return self.body.graph

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the subgraph once.

        Raises:
            UserError: another number of inputs than the subgraph has.
        """
        graph = self.graph
        if len(inputs) != len(graph.inputs):
            raise UserError(f"subgraph '{graph.name}' takes {len(graph.inputs)} inputs, got {len(inputs)}")
        values = {**self.scope, **graph.initializers, **dict(zip(graph.inputs, inputs, strict=True))}
        tape: Tape | None = [] if self.record else None
        self.body.plan.run(values, self.rng, tape)
        if tape is not None:
            self.runs.append((values, tape))
        return tuple(values[name] for name in graph.outputs)

    def pullback(self, run: int, cotangents: Sequence[Any], inputs: bool = True) -> tuple[Any, ...]:
        """Cotangents of the inputs of the ``run``-th call from those of its outputs (None for zero).

        Those of captured values are added up in ``captured_cotangents``.
        """
        values, tape = self.runs[run]
        graph = self.graph
        seeds: dict[str, Any] = {}
        for name, cotangent in zip(graph.outputs, cotangents, strict=True):
            seeds[name] = add(seeds.get(name), cotangent)
        seeds = {name: seed for name, seed in seeds.items() if seed is not None}
        active = set(self.wanted)
        if inputs:
            active.update(name for name in graph.inputs if is_differentiable(values[name]))
        found = pullback(tape, seeds, active)
        for name in self.wanted:
            total = add(self.captured_cotangents.get(name), found.get(name))
            if total is not None:
                self.captured_cotangents[name] = total
        return tuple(found.get(name) if name in active else None for name in graph.inputs)
