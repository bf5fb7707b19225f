"""The loop-nest IR: a program is a list of stages, a stage is one statement in a nest of loops.

A stage runs over all values of its axes (those that its guards allow) and writes one element of a tensor
each time::

    conv1  # Conv "encoder1.conv1"
      for n<8, k<16, i<64, j<64, c<3, r<3, q<3 where 0 <= i+r-1 < 64, 0 <= j+q-1 < 64
        conv1[n, k, i, j] += x[n, c, i+r-1, j+q-1] * w[k, c, r, q]   from b[k]

Axes that the written index lacks are summed over (or maximised over). Everything is static: the sizes of all
tensors and axes are numbers. A tensor may be written by several stages; all of them come before the first one
that reads it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from meta500.backends.generated.affine import Affine, Guard
from meta500.backends.generated.expressions import Access, Apply, Expr, Load, loads, substitute
from meta500.backends.generated.messages import Message

SET, SUM, MAX = "set", "sum", "max"
# Changes its tensor in place by messages between processes.
MESSAGE = "message"
REAL, INDEX, LABEL, FLAG = "real", "int32", "int64", "bool"
# Roles of tensors.
INPUT, PARAMETER, CONSTANT, VALUE, GRADIENT = "input", "parameter", "constant", "value", "gradient"
# The input with the seed and the number of the run, for random numbers.
RANDOM = "random.state"
# The input with the share of this rank in the mean over all ranks.
WEIGHT = "rank.weight"
GATHER, REDUCTION, ATOMICS = "gather", "reduction", "atomics"


@dataclass(frozen=True)
class Axis:
    """A loop from 0 to size - 1."""

    name: str
    size: int


@dataclass(frozen=True)
class Tensor:
    """A tensor of the program.

    Attributes:
        name: unique in the program.
        shape: its dimensions.
        dtype: "real" (the program's floating-point type), "int32", "int64" or "bool".
        role: input, parameter, constant, value or gradient.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = REAL
    role: str = VALUE

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Stage:
    """One statement in a nest of loops.

    Attributes:
        name: unique in the program.
        origin: the operator (and derivative) that it comes from.
        axes: all loops.
        write: the element that is written.
        value: what is written, or one term of the sum or maximum.
        combine: "set", "sum", "max" or "message".
        guards: iterations for which one of them does not hold do nothing.
        initial: what a sum or maximum begins with (an expression of the written element's axes); None for 0
            or minus infinity.
        onto: the sum begins with what the tensor holds already.
        finish: applied to the finished sum or maximum, which it sees as ``Result``.
        winner: for a maximum, where the number of the first winning iteration goes (of several NaN the last),
            and that number as an index expression. Without it, equal maxima share the gradient.
        method: of an adjoint stage: gather, reduction or atomics.
        verdict: why.
        message: of a stage with combine "message": what is exchanged.
    """

    name: str
    origin: str
    axes: tuple[Axis, ...]
    write: Access
    value: Expr
    combine: str = SET
    guards: tuple[Guard, ...] = ()
    initial: Expr | None = None
    onto: bool = False
    finish: Expr | None = None
    winner: tuple[Access, Affine] | None = None
    method: str = ""
    verdict: str = ""
    message: Message | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every axis."""
        return {axis.name: axis.size for axis in self.axes}

    @functools.cached_property
    def reduced(self) -> tuple[Axis, ...]:
        """Axes that the written index lacks."""
        kept = self.write.axes
        return tuple(axis for axis in self.axes if axis.name not in kept)

    @property
    def kept(self) -> tuple[Axis, ...]:
        """Axes of the written index."""
        kept = self.write.axes
        return tuple(axis for axis in self.axes if axis.name in kept)

    def loads(self) -> list[Load]:
        """Everything it reads, without what the tensor holds already."""
        return list(self._loads)

    @functools.cached_property
    def _loads(self) -> tuple[Load, ...]:
        # Asked for by every pass, many times.
        found = loads(self.value) + loads(self.initial) + loads(self.finish)
        return tuple(dict.fromkeys(found))

    def reads(self) -> list[str]:
        """Names of the tensors that it reads, its own included if it adds onto it."""
        return list(self._reads)

    @functools.cached_property
    def _reads(self) -> tuple[str, ...]:
        names = [load.access.tensor for load in self._loads]
        return tuple(dict.fromkeys(names + ([self.write.tensor] if self.onto else [])))

    def writes(self) -> list[str]:
        """Names of the tensors that it writes."""
        return [self.write.tensor] + ([self.winner[0].tensor] if self.winner else [])

    def substitute(self, values: Mapping[str, Affine], axes: tuple[Axis, ...]) -> Stage:
        """The stage over other axes: every old axis in ``values`` is an expression of the new ones."""
        winner = self.winner
        return replace(
            self,
            axes=axes,
            write=self.write.substitute(values),
            value=substitute(self.value, values),
            guards=tuple(guard.substitute(values) for guard in self.guards),
            initial=None if self.initial is None else substitute(self.initial, values),
            finish=None if self.finish is None else substitute(self.finish, values),
            winner=None if winner is None else (winner[0].substitute(values), winner[1].substitute(values)),
        )

    def simplified(self) -> Stage:
        """Without guards that always hold."""
        sizes = self.sizes
        guards = dict.fromkeys(guard for guard in self.guards if not guard.always(sizes))
        return replace(self, guards=tuple(guards))

    @property
    def multiplications(self) -> int:
        """Iterations of the nest, guards not counted: multiply-adds of a contraction."""
        return math.prod(axis.size for axis in self.axes)

    def __str__(self) -> str:
        loops = ", ".join(f"{axis.name}<{axis.size}" for axis in self.axes)
        where = f" where {', '.join(map(str, self.guards))}" if self.guards else ""
        value = str(self.value)
        if isinstance(self.value, Apply) and value.startswith("(") and value.endswith(")"):
            value = value[1:-1]
        if self.message is not None:
            return f"{self.name}  # {self.origin}\n  {self.write.tensor}: {self.message}"
        sign = {SET: "=", SUM: "+=", MAX: "max="}[self.combine]
        tail = f"   from {self.initial}" if self.initial is not None else ""
        tail += "   onto what is there" if self.onto else ""
        tail += f"   then {self.finish}" if self.finish is not None else ""
        tail += f"   winner {self.winner[0]} = {self.winner[1]}" if self.winner else ""
        lines = [f"{self.name}  # {self.origin}"]
        if self.verdict:
            lines.append(f"  # {self.method}: {self.verdict}")
        lines += [f"  for {loops or '1'}{where}", f"    {self.write} {sign} {value}{tail}"]
        return "\n".join(lines)


def without_unit_axes(stage: Stage) -> Stage:
    """``stage`` without loops of one iteration."""
    single = {axis.name: Affine() for axis in stage.axes if axis.size == 1}
    if not single:
        return stage
    return stage.substitute(single, tuple(axis for axis in stage.axes if axis.size != 1))


def leaves(stage: Stage, tensors: Mapping[str, Tensor]) -> str:
    """The first access whose index leaves its tensor, as text; "" where all stay inside."""
    accesses = [load.access for load in stage.loads()] + [stage.write]
    accesses += [stage.winner[0]] if stage.winner else []
    for access in accesses:
        shape = tensors[access.tensor].shape
        if len(shape) != len(access.indices):
            return f"{access} for shape {list(shape)}"
        for index, size in zip(access.indices, shape, strict=True):
            low, high = index.bounds(stage.sizes)
            for guard in stage.guards:
                shift = index - guard.index
                if not shift.terms:
                    low, high = (
                        max(low, guard.low + shift.constant),
                        min(high, guard.high - 1 + shift.constant),
                    )
            if low < 0 or high >= size:
                return f"{access} runs from {low} to {high} in a dimension of {size} (shape {list(shape)})"
    return ""


@dataclass(frozen=True)
class Exchange:
    """Reductions over all ranks that belong to a program: its gradients become sums over ranks.

    Backward begins with this rank's share (the tensor :data:`WEIGHT`) instead of 1, so that the sums are
    weighted means. Every range is reduced as soon as the last stage that writes into it is done; the stages
    in ``after`` see the sums.

    Attributes:
        tensor: the flat tensor of all gradients; "" where only statistics are reduced.
        ranges: first element and end of every part of it, in the order in which all ranks begin with them.
        names: what every range holds.
        statistics: tensors that become weighted means when everything else is reduced.
        after: names of the stages that come afterwards.
        samples: of this rank; its share is this number over the sum of those of all ranks.
    """

    tensor: str
    ranges: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    statistics: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    samples: int = 1

    def lines(self) -> Iterator[str]:
        """The reductions as text."""
        for (first, end), name in zip(self.ranges, self.names, strict=True):
            yield f"{name}  # reduction over ranks"
            yield f"  for e<{end - first}"
            yield f"    {self.tensor}[e+{first}] = sum over ranks of {self.tensor}[e+{first}]"
        for name in self.statistics:
            yield f"{name}  # reduction over ranks"
            yield f"  {name} = sum over ranks of {WEIGHT} * {name}"


@dataclass
class Program:
    """Stages in order, with the tensors that they read and write.

    Attributes:
        name: of the network.
        tensors: by name.
        stages: in an order that may be executed.
        constants: contents of tensors with the role "constant".
        outputs: names of tensors that are handed out, by the name of the graph's output.
        gradients: names of gradient tensors by parameter or input name.
        updates: initializers that a training step overwrites: name -> tensor with the new value.
        faults: tensors with one element that must be 0 after a run, with the message for what it means
            otherwise.
        baked: initializers whose values the stages contain.
        exact: names of sums that keep their direct form, see ``kinks.py``.
        exchange: reductions over ranks, if any.
    """

    name: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, str] = field(default_factory=dict)
    updates: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    baked: set[str] = field(default_factory=set)
    exact: set[str] = field(default_factory=set)
    exchange: Exchange | None = None

    def unique(self, name: str) -> str:
        """``name``, with a number if a tensor has it already."""
        if name not in self.tensors:
            return name
        number = 2
        while f"{name}.{number}" in self.tensors:
            number += 1
        return f"{name}.{number}"

    def unique_stage(self, name: str) -> str:
        """``name``, with a number if a stage has it already."""
        taken = {stage.name for stage in self.stages}
        number, found = 2, name
        while found in taken:
            found, number = f"{name}.{number}", number + 1
        return found

    def writers(self) -> dict[str, list[int]]:
        """For every tensor, positions of the stages that write it."""
        found: dict[str, list[int]] = {}
        for position, stage in enumerate(self.stages):
            for name in stage.writes():
                found.setdefault(name, []).append(position)
        return found

    def readers(self) -> dict[str, list[int]]:
        """For every tensor, positions of the stages that read it."""
        found: dict[str, list[int]] = {}
        for position, stage in enumerate(self.stages):
            for name in stage.reads():
                found.setdefault(name, []).append(position)
        return found

    def lines(self) -> Iterator[str]:
        """The program as text, line by line."""
        yield f"program {self.name}"
        for tensor in self.tensors.values():
            shape = ", ".join(map(str, tensor.shape))
            yield f"  {tensor.role:9} {tensor.dtype:5} {tensor.name}[{shape}]"
        for stage in self.stages:
            yield ""
            yield from str(stage).splitlines()
        if self.exchange is not None:
            yield ""
            yield from self.exchange.lines()
        yield ""
        for kind in ("outputs", "gradients", "updates"):
            pairs = getattr(self, kind)
            if pairs:
                yield f"{kind}: " + ", ".join(f"{k} <- {v}" for k, v in pairs.items())

    def __str__(self) -> str:
        return "\n".join(self.lines())
