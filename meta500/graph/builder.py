"""Writes a network with the same typed classes that the parser fills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph.model import Graph, Model
from meta500.graph.operation import Operation
from meta500.graph.operators import OPSETS, Identity
from meta500.graph.passes import FOLLOW, MODE_KEY, infer_types
from meta500.graph.types import Dimension, TensorType, is_floating
from meta500.graph.validate import check_graph

# New enough for node metadata in the file, old enough for every current runtime.
DEFAULT_OPSET = 21


class Builder:
    """Collects inputs, parameters and operations; :meth:`build` makes the :class:`Model`.

    Operations are made at the builder's opset by ``builder.add(ops.Conv, X=x, W=w, pads=(1, 1, 1, 1))`` and
    return the name of their output (a tuple of names when there are several).
    """

    def __init__(self, name: str, opset: int = DEFAULT_OPSET) -> None:
        self.name = name
        self.opset = opset
        self._graph = Graph(name=name)
        self._taken: set[str] = set()
        self._trainable: list[str] = []
        self._renamed: dict[str, str] = {}

    def input(self, name: str, dtype: Any, shape: Sequence[Dimension]) -> str:
        """Declare an input of numpy ``dtype`` and ``shape`` (ints, symbolic names or None)."""
        self._claim(name)
        self._graph.inputs[name] = TensorType(np.dtype(dtype), tuple(shape))
        return name

    def parameter(self, name: str, value: np.ndarray) -> str:
        """Add a trainable tensor (floating point).

        Raises:
            UserError: the value is not floating point or the name is taken.
        """
        array = np.asarray(value)
        if not is_floating(array.dtype):
            raise UserError(f"parameter '{name}' must be floating point, got {array.dtype}")
        self.constant(array, name)
        self._trainable.append(name)
        return name

    def constant(self, value: Any, name: str | None = None) -> str:
        """Add a tensor that is not trained; the builder names it if ``name`` is None.

        ``value`` is copied, unless it is an array that owns its memory and is read-only.
        """
        array = np.asarray(value)
        if array.flags.writeable or not array.flags.owndata:
            array = np.array(array)
        array.flags.writeable = False
        name = self._claim(name) if name is not None else self._fresh("constant")
        self._graph.initializers[name] = array
        return name

    def add(
        self,
        operation: type[Operation],
        *args: Any,
        name: str | None = None,
        outputs: Sequence[str] | int = 1,
        follow_mode: bool = False,
        **fields: Any,
    ) -> Any:
        """Add one operation.

        Args:
            operation: class from :mod:`meta500.graph.operators` or a custom one.
            *args: its inputs (names of values) and attributes, in order.
            **fields: inputs and attributes by name.
            name: name of the node; by default the operator with a number.
            outputs: how many outputs to take, or their names.
            follow_mode: the node trains in training steps and infers in inference (batch normalisation and
                dropout); see :func:`meta500.graph.passes.training_form`.

        Returns:
            The name of the output, or a tuple of names.

        Raises:
            UserError: an unknown field, a missing input or attribute, or an input that does not exist.
        """
        node = name if name is not None else self._fresh(operation.op_type.lower())
        op = operation(
            *args,
            name=node,
            opset=self.opset if operation.domain == "" else OPSETS.get(operation.domain),
            metadata={MODE_KEY: FOLLOW} if follow_mode else None,
            **fields,
        )
        op = op.renamed(self._renamed)
        known = self._graph.values()
        for value in op.operands:
            if value and value not in known:
                raise UserError(f"{op.label}: reads '{value}', which the network does not have yet")
        formals = op.signature.outputs
        if op.results:
            raise UserError(
                f"{op.label}: too many inputs, {op.results[0]!r} is left over; a variable number of "
                "inputs is given as one tuple, names of outputs as outputs=(...)"
            )
        count = outputs if isinstance(outputs, int) else len(outputs)
        if isinstance(outputs, int):
            names = [node if i == 0 and node not in self._taken else f"{node}:{i}" for i in range(count)]
        else:
            names = list(outputs)
        names = [self._claim(n) for n in names]
        if len(formals) == 1 and formals[0].variadic:
            op = op.replace(**{formals[0].name: tuple(names)})
        else:
            op = op.replace(**{f.name: n for f, n in zip(formals, names, strict=False)})
        op.validate()
        self._graph.operations.append(op)
        return names[0] if len(names) == 1 else tuple(names)

    def output(self, value: str, name: str | None = None) -> str:
        """Make ``value`` an output, under ``name`` if given.

        The value is then called ``name`` in the model; the builder goes on to understand its old name.

        Raises:
            UserError: there is no such value, or the name is taken.
        """
        value = self._renamed.get(value, value)
        if value not in self._graph.values():
            raise UserError(f"output '{value}': the network has no such value")
        if name is not None and name != value:
            if value in self._graph.inputs or value in self._graph.initializers:
                value = self.add(Identity, value, outputs=[name])
            else:
                self._claim(name)
                self._graph.operations = [op.renamed({value: name}) for op in self._graph.operations]
                self._graph.outputs = {name if k == value else k: v for k, v in self._graph.outputs.items()}
                self._renamed = {k: name if v == value else v for k, v in self._renamed.items()}
                self._renamed[value] = name
                value = name
        self._graph.outputs[value] = None
        return value

    def build(self, metadata: Mapping[str, str] | None = None) -> Model:
        """The finished model, with inferred types.

        Raises:
            UserError: no output, or types that do not fit together.
        """
        if not self._graph.outputs:
            raise UserError(f"network '{self.name}' has no output")
        check_graph(self._graph)
        graph = replace(
            self._graph,
            inputs=dict(self._graph.inputs),
            outputs=dict(self._graph.outputs),
            initializers=dict(self._graph.initializers),
            operations=list(self._graph.operations),
        )
        domains = {op.domain for op in graph.operations if op.domain in OPSETS}
        model = Model(
            graph=graph,
            opset_imports={"": self.opset, **{d: OPSETS[d] for d in sorted(domains - {""})}},
            metadata=dict(metadata or {}),
            trainable=tuple(self._trainable),
            producer_name="meta500",
        )
        return infer_types(model)

    def _claim(self, name: str) -> str:
        if not name:
            raise UserError("a value needs a name")
        if name in self._taken:
            raise UserError(f"the name '{name}' is taken in network '{self.name}'")
        self._taken.add(name)
        return name

    def _fresh(self, stem: str) -> str:
        index = 1
        while f"{stem}_{index}" in self._taken:
            index += 1
        return self._claim(f"{stem}_{index}") if stem == "constant" else f"{stem}_{index}"
