"""The state of the pass that turns a network into the local network of one block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from meta500.distributed.blocks import Cut, Layout
from meta500.errors import UserError
from meta500.graph import AllReduce, HaloExchange, Model, Operation, TensorType, ops
from meta500.graph.model import unique


@dataclass
class Localization:
    """A local network in the making.

    Attributes:
        model: the global network, with types.
        position: row and column of this block.
        group: name of the grid of processes.
        halo: whether neighbours communicate; without it each block is an image of its own.
        layouts: the cut axes of the values that have any.
        operations, initializers: of the local network.
    """

    model: Model
    position: tuple[int, int]
    group: str
    halo: bool = True
    layouts: dict[str, Layout] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    initializers: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.types = graph.types()
        self.taken = graph.values()
        self.initializers.update(graph.initializers)
        self._parameters = frozenset(self.model.parameters)
        self._free = {n for n in graph.inputs if n not in graph.initializers}
        self._made: dict[Any, str] = {}
        self._tag = 0

    # -- reading ---------------------------------------------------------------------------------------

    def refuse(self, op: Operation, reason: str) -> NoReturn:
        """Raises:
        UserError: always; names the node.
        """
        raise UserError(f"{op.label} cannot run on blocks of the image: {reason}")

    def layout(self, name: str) -> Layout:
        """The cut axes of a value, none where all processes have the same."""
        return self.layouts.get(name, {})

    def read_whole(self, name: str) -> Layout:
        """The layout of a value that an operation reads; an input of the network is not cut any more."""
        self._free.discard(name)
        return self.layout(name)

    def index(self, cut: Cut) -> int:
        """The number of this block along a direction."""
        return self.position[cut.direction]

    def own(self, cut: Cut) -> tuple[int, int]:
        """Begin and end of this block."""
        return cut.blocks[self.index(cut)]

    def length(self, cut: Cut) -> int:
        """Cells of this block."""
        begin, end = self.own(cut)
        return end - begin

    def shape(self, op: Operation, name: str) -> tuple[Any, ...]:
        """The global shape of a value, whose rank must be known."""
        found = self.types.get(name)
        if not isinstance(found, TensorType) or found.shape is None:
            self.refuse(op, f"the rank of '{name}' is not known")
        return found.shape

    def sizes(self, op: Operation, name: str, axes: Sequence[int]) -> list[int]:
        """Global sizes of some axes, which must be numbers."""
        shape = self.shape(op, name)
        for axis in axes:
            if not isinstance(shape[axis], int):
                self.refuse(op, f"'{name}' has the shape {list(shape)}; axis {axis} must be a number")
        return [shape[axis] for axis in axes]

    def fraction(self, layout: Layout) -> float:
        """The share of the cells of a value that this block has."""
        share = 1.0
        for cut in layout.values():
            share *= self.length(cut) / cut.size
        return share

    # -- writing ---------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """A name that no value has."""
        name = unique(stem, self.taken)
        self.taken.add(name)
        return name

    def constant(self, stem: str, value: Any, dtype: Any = np.int64) -> str:
        """A new initializer."""
        array = np.array(value, dtype)
        array.flags.writeable = False
        name = self.fresh(stem)
        self.initializers[name] = array
        return name

    def add(self, operation: type[Operation], stem: str, *operands: Any, **fields: Any) -> str:
        """A new operation with one result, whose name is returned."""
        result = self.fresh(stem)
        opset = self.model.opset if operation.domain == "" else None
        fields[operation.signature_at(opset).outputs[0].name] = result
        op = operation(*operands, name=result, opset=opset, **fields)
        self.operations.append(op)
        return result

    def keep(self, op: Operation, layout: Layout, **changes: Any) -> None:
        """``op`` with other fields; all its results have ``layout``."""
        op = op.replace(**changes) if changes else op
        self.operations.append(op)
        for name in op.results:
            if name and layout:
                self.layouts[name] = layout

    def aligned(self, op: Operation, name: str, wanted: Layout) -> str:
        """The value ``name`` with the layout ``wanted``: as it is, cut by whoever feeds it, or sliced here.

        Raises:
            UserError: it is cut at other places.
        """
        have = self.layout(name)
        if set(have) == set(wanted) and all(have[axis].same(cut) for axis, cut in wanted.items()):
            return name
        if have:
            self.refuse(op, f"'{name}' is cut at {_text(have)}, but {_text(wanted)} is needed")
        shape = self.shape(op, name)
        for axis, cut in wanted.items():
            if shape[axis] != cut.size:
                self.refuse(op, f"'{name}' has {shape[axis]} cells along axis {axis}, {cut.size} are needed")
        if name in self._free:
            self._free.discard(name)
            self.layouts[name] = wanted
            return name
        key = (name, tuple((axis, cut.direction, cut.bounds) for axis, cut in sorted(wanted.items())))
        if key not in self._made:
            self._made[key] = self._sliced(name, {axis: self.own(cut) for axis, cut in wanted.items()})
            self.layouts[self._made[key]] = wanted
        return self._made[key]

    def _sliced(self, name: str, ranges: Mapping[int, tuple[int, int]]) -> str:
        array = self.initializers.get(name)
        if array is not None and name not in self._parameters and name not in self.model.graph.inputs:
            places = [slice(None)] * array.ndim
            for axis, (begin, end) in ranges.items():
                places[axis] = slice(begin, end)
            return self.constant(f"{name}:block", array[tuple(places)], array.dtype)
        return self.slice(name, ranges)

    def slice(self, name: str, ranges: Mapping[int, tuple[int, int]]) -> str:
        """A Slice of a value: begin and end by axis."""
        starts, ends = zip(*ranges.values(), strict=True)
        if self.model.opset < 10:
            return self.add(
                ops.Slice, f"{name}:slice", name, starts=tuple(starts), ends=tuple(ends), axes=tuple(ranges)
            )
        parts = [self.constant(f"{name}:slice", part) for part in (starts, ends, tuple(ranges))]
        return self.add(ops.Slice, f"{name}:slice", name, *parts)

    def extended(
        self, op: Operation, name: str, axis: int, cut: Cut, before: Sequence[int], after: Sequence[int]
    ) -> str:
        """The value ``name`` with ``before[i]`` and ``after[i]`` cells of the neighbours around block i.

        Raises:
            UserError: a halo wider than the neighbour's block.
        """
        if not any(before) and not any(after):
            return name
        lengths = [end - begin for begin, end in cut.blocks]
        for i in range(len(lengths)):
            for width, other in ((before[i], i - 1), (after[i], i + 1)):
                if width and width > lengths[other]:
                    self.refuse(
                        op,
                        f"it reads {width} cells beyond block {i}, and block {other} has {lengths[other]} "
                        f"(of {cut.size}, axis {axis}): use fewer blocks",
                    )
        key = (name, axis, tuple(before), tuple(after))
        if key not in self._made:
            tag, self._tag = self._tag, self._tag + 1
            i = self.index(cut)
            widths = {
                "before": before[i],
                "after": after[i],
                "send_before": after[i - 1] if i else 0,
                "send_after": before[i + 1] if i + 1 < len(lengths) else 0,
            }
            self._made[key] = self.add(
                HaloExchange,
                f"{name}:halo",
                name,
                axis=axis,
                direction=cut.direction,
                group=self.group,
                tag=tag,
                **widths,
            )
        return self._made[key]

    def total(self, name: str, result: str, share: float | None = None) -> None:
        """``result`` = the sum over all processes of ``name``, times this block's ``share`` if given."""
        if share is not None:
            dtype = getattr(self.types.get(result), "dtype", None) or np.dtype(np.float32)
            name = self.add(ops.Mul, f"{result}:share", name, self.constant(f"{result}:share", share, dtype))
        self.operations.append(AllReduce(name, result, group=self.group, name=f"{result}:sum"))


def _text(layout: Layout) -> str:
    return ", ".join(f"axis {axis} {cut}" for axis, cut in sorted(layout.items())) or "nothing"
