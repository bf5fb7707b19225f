"""From a graph to a program: every operation becomes stages by the lowering rule of its operator.

A rule is a function ``rule(to, op)``: it reads shapes and constants from ``to``, a :class:`Lowering`, and
adds stages there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from meta500.backends.generated.affine import Affine, Guard, affine, indices
from meta500.backends.generated.expressions import Access, Constant, Expr, Load
from meta500.backends.generated.ir import (
    CONSTANT,
    FLAG,
    INPUT,
    LABEL,
    PARAMETER,
    RANDOM,
    REAL,
    SET,
    VALUE,
    Axis,
    Program,
    Stage,
    Tensor,
    leaves,
    without_unit_axes,
)
from meta500.backends.generated.rule_table import rules
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph.model import Graph, Model
from meta500.graph.operation import Operation
from meta500.graph.types import TensorType, is_floating
from meta500.graph.visitor import BaseVisitor, unsupported

BACKEND = "generated"
_AXES = {1: ("c",), 2: ("n", "c"), 3: ("n", "c", "i"), 4: ("n", "c", "i", "j")}


class Lowering(BaseVisitor):
    """A program in the making.

    Args:
        graph: operations with static types for all values.
        parameters: initializers that stay outside of the program and may change between runs.
        name: of the program.

    Attributes:
        trainable: parameters whose value no rule may take as a constant; of the others it may, and the
            program says so (``baked``).
    """

    backend = BACKEND

    def __init__(self, graph: Graph, parameters: Iterable[str], name: str) -> None:
        self.graph = graph
        self.types = graph.types()
        self.parameters = set(parameters)
        self.trainable: frozenset[str] = frozenset()
        self.program = Program(name)
        self.known: dict[str, np.ndarray] = {
            n: a for n, a in graph.initializers.items() if n not in self.parameters
        }
        self.origins: dict[str, set[str]] = {n: {n} for n in self.known}
        self.op: Operation | None = None
        self.names = graph.values()
        self.drawn = 0

    def visit_operation(self, op: Operation, network: Any = None) -> None:
        """Add the stages of ``op``, or fold it where all its inputs are known.

        Raises:
            UnsupportedOperation: no rule for this operator, or a form of it that the rule refuses.
        """
        self.op = op
        given = [name for name in op.operands if name]
        if all(name in self.known for name in given) and op.op_type not in _RANDOM:
            self._fold(op, given)
            return
        rule = rules().find(op)
        if rule is None:
            self.refuse("no lowering rule")
        rule(self, op)

    # -- what rules read ---------------------------------------------------------------------------

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the present operation.

        Raises:
            UnsupportedOperation: always.
        """
        assert self.op is not None
        raise unsupported(self.op, BACKEND, reason)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value; refuses one that is not static."""
        if name in self.known:
            return self.known[name].shape
        if name in self.program.tensors:
            return self.program.tensors[name].shape
        found = self.types.get(name)
        if not isinstance(found, TensorType) or not found.static:
            self.refuse(f"the shape of '{name}' is not known before the run")
        return tuple(found.shape)  # type: ignore[arg-type]

    def constant(self, name: str, what: str) -> np.ndarray:
        """The contents of a value that must be known before the run, such as a shape.

        Raises:
            UnsupportedOperation: it is computed from inputs or parameters.
        """
        if name in self.parameters - self.trainable and name in self.graph.initializers:
            self.program.baked.add(name)
            return self.graph.initializers[name]
        if name not in self.known:
            self.refuse(f"{what} ('{name}') must be a constant")
        self.program.baked |= self.origins[name]
        return self.known[name]

    def integers(self, op: Operation, field: str) -> list[int] | None:
        """Whole numbers that are an attribute or a constant input, by version; None where there are none.

        Raises:
            UnsupportedOperation: the input is computed from inputs or parameters.
        """
        given = getattr(op, field, None)
        if isinstance(given, str):
            return [int(n) for n in self.constant(given, field).reshape(-1)] if given else None
        return None if given is None else [int(n) for n in given]

    def real(self, op: Operation) -> None:
        """Refuse ``op`` if its first result has no floating-point elements."""
        if self._result_dtype(op, op.results[0]) != REAL:
            self.refuse("only floating-point elements are generated")

    def dtype(self, name: str) -> str:
        """The IR type of a value."""
        if name in self.program.tensors:
            return self.program.tensors[name].dtype
        found = self.known[name].dtype if name in self.known else getattr(self.types.get(name), "dtype", None)
        if found is None:
            self.refuse(f"the element type of '{name}' is not known")
        return self._ir_dtype(found, name)

    def _result_dtype(self, op: Operation, name: str) -> str:
        """The declared IR type of a result, that of the first operand where none is declared."""
        known = getattr(self.types.get(name), "dtype", None) is not None
        return self.dtype(name if known else op.operands[0])

    def _ir_dtype(self, dtype: np.dtype, name: str) -> str:
        if is_floating(dtype):
            return REAL
        kinds = {"int64": LABEL, "int32": "int32", "bool": FLAG}
        if dtype.name not in kinds:
            self.refuse(f"'{name}' is {dtype}; generated code has floating point, int64, int32 and bool")
        return kinds[dtype.name]

    def load(self, name: str, at: Sequence[Affine | str | int], held: bool = False) -> Expr:
        """The element of a value; a known scalar becomes a number."""
        if name in self.known and self.known[name].size == 1 and self.known[name].dtype.kind in "fiub":
            self.program.baked |= self.origins[name]
            return Constant(float(self.known[name].reshape(())))
        return Load(Access(self.tensor(name), indices(at)), held)

    def tensor(self, name: str) -> str:
        """The tensor of a value, made now if it is a constant, an input or a parameter."""
        if name in self.program.tensors:
            return name
        if 0 in self.shape(name):
            self.refuse(f"'{name}' has shape {list(self.shape(name))}, which has no elements")
        if name in self.known:
            array = self.known[name]
            dtype = self._ir_dtype(array.dtype, name)
            self.program.tensors[name] = Tensor(name, array.shape, dtype, CONSTANT)
            self.program.constants[name] = array
            self.program.baked |= self.origins[name]
            return name
        role = INPUT if name in self.graph.inputs and name not in self.graph.initializers else PARAMETER
        self.program.tensors[name] = Tensor(name, self.shape(name), self.dtype(name), role)
        return name

    # -- what rules add ----------------------------------------------------------------------------

    def new(self, name: str, shape: Sequence[int], dtype: str = REAL, role: str = VALUE) -> str:
        """A new tensor ``name`` (with a number if the name is taken)."""
        found, number = self.program.unique(name), 2
        while found in self.names:
            found, number = self.program.unique(f"{name}.{number}"), number + 1
        self.program.tensors[found] = Tensor(found, tuple(shape), dtype, role)
        return found

    def result(
        self, op: Operation, position: int = 0, dtype: str | None = None, shape: Sequence[int] | None = None
    ) -> str:
        """The tensor of one output of ``op``.

        Args:
            op: the present operation.
            position: of the output.
            dtype: IR type, by default the declared one.
            shape: as the rule computes it, by default the one that type inference found.

        Raises:
            UnsupportedOperation: the output is missing, or its shape not known or without elements.
        """
        name = op.results[position] if position < len(op.results) else ""
        if not name:
            self.refuse(f"output {position} is missing")
        shape = self.shape(name) if shape is None else shape
        if 0 in shape:
            self.refuse(f"'{name}' has shape {list(shape)}, which has no elements")
        dtype = self._result_dtype(op, name) if dtype is None else dtype
        self.program.tensors[name] = Tensor(name, tuple(shape), dtype, VALUE)
        return name

    def fold(self, name: str, value: np.ndarray) -> None:
        """Make ``name`` a constant; what it is computed from are shapes only."""
        self.known[name], self.origins[name] = value, set()

    def random_state(self) -> tuple[Expr, Expr]:
        """The seed of the network and the number of the run, as whole numbers."""
        self.program.tensors.setdefault(RANDOM, Tensor(RANDOM, (2,), LABEL, INPUT))
        return tuple(Load(Access(RANDOM, indices([i])), held=True) for i in (0, 1))  # type: ignore[return-value]

    def draw(self, count: int) -> int:
        """The first of ``count`` numbers that no other random stage of the program uses."""
        self.drawn += count
        return self.drawn - count

    def emit(
        self,
        tensor: str,
        at: Sequence[Affine | str | int],
        axes: Mapping[str, int],
        value: Expr,
        combine: str = SET,
        guards: Sequence[Guard] = (),
        initial: Expr | None = None,
        winner: tuple[Access, Affine] | None = None,
        onto: bool = False,
    ) -> Stage:
        """Add a stage that writes ``tensor[at]``; axes of size 1 become the index 0.

        Raises:
            UserError: an index leaves its tensor: shapes do not fit together.
        """
        assert self.op is not None
        stage = Stage(
            name=self.program.unique_stage(tensor),
            origin=f"{self.op.op_type} {self.op.name}".strip(),
            axes=tuple(Axis(name, size) for name, size in axes.items()),
            write=Access(tensor, indices(at)),
            value=value,
            combine=combine,
            guards=tuple(guards),
            initial=initial,
            winner=winner,
            onto=onto,
        )
        stage = without_unit_axes(stage).simplified()
        wrong = leaves(stage, self.program.tensors)
        if wrong:
            raise UserError(f"{self.op.label}: shapes do not fit: {wrong}")
        self.program.stages.append(stage)
        return stage

    def axes(self, shape: Sequence[int]) -> dict[str, int]:
        """Axes that run over all elements of a shape, in order."""
        names = _AXES.get(len(shape), tuple(f"d{i}" for i in range(len(shape))))
        return dict(zip(names, shape, strict=True))

    def broadcast(self, name: str, axes: Mapping[str, int]) -> Expr:
        """The element of a value that numpy's broadcasting combines with the element at ``axes``."""
        shape, names = self.shape(name), list(axes)
        if len(shape) > len(names):
            assert self.op is not None
            raise UserError(
                f"{self.op.label}: '{name}' of shape {list(shape)} has more than {len(names)} axes"
            )
        aligned = names[len(names) - len(shape) :] if shape else []
        at = [affine(0 if size == 1 else axis) for axis, size in zip(aligned, shape, strict=True)]
        return self.load(name, at)

    def elementwise(self, op: Operation, function: Callable[..., Expr], names: Sequence[str]) -> None:
        """A stage that computes ``function`` of the broadcast elements of ``names``."""
        shapes = [self.shape(name) for name in names]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise UserError(f"{op.label}: shapes {[list(s) for s in shapes]} do not broadcast") from None
        result = self.result(op, shape=shape)
        axes = self.axes(shape)
        self.emit(result, list(axes), axes, function(*(self.broadcast(name, axes) for name in names)))

    # -- constant folding --------------------------------------------------------------------------

    def _fold(self, op: Operation, given: Sequence[str]) -> None:
        from meta500.backends.numpy.visitor import NumpyVisitor

        try:
            step = op.accept(NumpyVisitor(self.graph), None)
        except UnsupportedOperation:
            self.refuse("no lowering rule")
        if step.bodies:
            self.refuse("no lowering rule")
        inputs = tuple(self.known[name] if name else None for name in step.operands)
        outputs = step.forward(inputs, np.random.default_rng(0)).outputs
        values = dict(zip(op.results, outputs, strict=False))
        origins = set().union(*(self.origins[name] for name in given)) if given else set()
        for name in op.results:
            if name and not isinstance(values[name], np.ndarray | np.generic):
                self.refuse(f"'{name}' is no tensor")
            if name:
                self.known[name] = np.asarray(values[name])
                self.origins[name] = origins


_RANDOM = (
    "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial",
    "Dropout",
)  # fmt: skip


def lower(model: Model, outputs: Sequence[str], external: Iterable[str]) -> Program:
    """The program that computes ``outputs`` of a model whose shapes are all known.

    Args:
        model: with static types for its inputs.
        outputs: names of graph values.
        external: initializers that stay outside of the program: parameters and statistics.

    Raises:
        UnsupportedOperation: a node without a rule; it is named.
        UserError: a value that is no tensor.
    """
    from meta500.graph.model import operations_for

    graph, external = model.graph, list(external)
    to = Lowering(graph, external, model.name)
    to.trainable = frozenset(model.parameters)
    for op in operations_for(graph, outputs):
        if op.op_type == "Constant":
            to.op = op
            to._fold(op, [])
            continue
        op.accept(to, None)
    for name in outputs:
        if name not in to.program.tensors and not (
            name in to.known or name in graph.inputs or name in graph.initializers
        ):
            raise UserError(f"output '{name}' is not computed by the graph")
        to.program.outputs[name] = to.tensor(name)
    # What nothing reads has a gradient, too: zero.
    unread = [name for name, t in graph.inputs.items() if is_floating(getattr(t, "dtype", None))]
    for name in [*external, *unread]:
        found = to.types.get(name)
        if (
            name not in to.known
            and isinstance(found, TensorType)
            and found.static
            and 0 not in to.shape(name)
        ):
            to.tensor(name)
    return to.program
