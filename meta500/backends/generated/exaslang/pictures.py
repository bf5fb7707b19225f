"""How the IR's tensors become fields and variables, and its iterations loops over cells."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.exaslang.names import Names
from meta500.backends.generated.expressions import Access, Apply, Expr, Load
from meta500.backends.generated.ir import CONSTANT, INPUT, PARAMETER, SUM, Axis, Program, Stage
from meta500.errors import UserError


@dataclass(frozen=True)
class Picture:
    """A tensor [image, channel, row, column] or [image, row, column] as a field.

    Attributes:
        field: name of the field.
        level: of the field; the next finer level has twice as many rows and columns.
        images, channels: rows and columns of the matrix in every cell.
        size: rows and columns of cells.
    """

    field: str
    level: int
    images: int
    channels: int
    size: tuple[int, int]


@dataclass(frozen=True)
class Array:
    """A parameter, its gradient, or a number, as a variable with one row."""

    variable: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def at(self, access: Access) -> Affine:
        """The column of an element."""
        total, step = Affine(), 1
        for index, extent in zip(reversed(access.indices), reversed(self.shape), strict=True):
            total, step = total + index * step, step * extent
        return total


@dataclass(frozen=True)
class Loop:
    """The loop over cells of a stage.

    Attributes:
        level: of the cells.
        base: axes of the rows and columns.
        taps: axes that are written out: positions in a window.
        counters: other axes of what is written.
        sums: other axes that are summed over.
        images: names of the axes over images.
    """

    level: int
    base: tuple[Axis, Axis]
    taps: tuple[Axis, ...]
    counters: tuple[Axis, ...]
    sums: tuple[Axis, ...]
    images: frozenset[str]

    def points(self, axes: Sequence[Axis]) -> Iterator[dict[str, Affine]]:
        """All positions of some taps."""
        for values in itertools.product(*(range(axis.size) for axis in axes)):
            yield {axis.name: Affine((), v) for axis, v in zip(axes, values, strict=True)}


@dataclass
class Tensors:
    """All tensors of a program as fields and variables."""

    pictures: dict[str, Picture]
    arrays: dict[str, Array]
    levels: dict[tuple[int, int], int]


def columns(size: int) -> int:
    """Columns of a matrix of one row.

    The generator takes matrices of one element for numbers, and then loses what is added to them.
    """
    return max(size, 2)


def refuse(stage: Stage, why: str) -> UserError:
    """An error that names the node of a stage."""
    return UserError(f"{stage.origin or stage.name}: layer-4 code can't express it: {why}")


def tensors_of(program: Program, names: Names, blocks: tuple[int, int]) -> Tensors:
    """Fields and variables of a program's tensors.

    Args:
        program: stages in order.
        names: taken so far.
        blocks: columns and rows of blocks.

    Raises:
        UserError: a tensor that is neither a picture, nor a parameter or its gradient, nor a number.
    """
    gradients = set(program.gradients.values())
    used = {name for stage in program.stages for name in (*stage.reads(), *stage.writes())}
    images = {
        name: t
        for name, t in program.tensors.items()
        if name in used and t.role != PARAMETER and name not in gradients and len(t.shape) in (3, 4)
    }
    if not images:
        raise UserError(
            f"network '{program.name}': layer-4 code needs pictures [image, channel, row, column]"
        )
    finest = max((t.shape[-2], t.shape[-1]) for t in images.values())
    levels = _levels(program.name, finest, {(t.shape[-2], t.shape[-1]) for t in images.values()}, blocks)
    found = Tensors({}, {}, levels)
    for name, t in program.tensors.items():
        if name not in used:
            continue
        if t.role == CONSTANT:
            raise refuse(_user(program, name), f"the numbers '{name}' {list(t.shape)}, which no file holds")
        if name in images:
            channels = t.shape[1] if len(t.shape) == 4 else 1
            size = (t.shape[-2], t.shape[-1])
            found.pictures[name] = Picture(names.new(name), levels[size], t.shape[0], channels, size)
        elif t.role == PARAMETER or name in gradients or (not t.shape and t.role != INPUT):
            found.arrays[name] = Array(names.new(name), t.shape)
        else:
            why = f"'{name}' of shape {list(t.shape)} is no picture with rows and columns"
            raise refuse(_user(program, name), why)
    return found


def _user(program: Program, name: str) -> Stage:
    """The first stage that has to do with a tensor."""
    return next(s for s in program.stages if name in (*s.writes(), *s.reads()))


def _levels(
    network: str, finest: tuple[int, int], sizes: set[tuple[int, int]], blocks: tuple[int, int]
) -> dict[tuple[int, int], int]:
    halvings = {size: _halvings(finest, size) for size in sizes}
    for size, count in halvings.items():
        if count is None:
            raise UserError(
                f"network '{network}': pictures of {size[0]} x {size[1]} pixels are no halves, quarters, ... "
                f"of {finest[0]} x {finest[1]}, as the levels of layer-4 code are"
            )
        if 1 in size:
            raise UserError(
                f"network '{network}': pictures of {size[0]} x {size[1]} pixels are too small for a level; "
                "take larger images or fewer poolings"
            )
    deepest = max(c for c in halvings.values() if c is not None)
    # The generator takes a block of level L to be 2^L cells wide: positions must not leave it.
    widest = max(-(-finest[1] // blocks[0]), -(-finest[0] // blocks[1]))
    top = max((widest - 1).bit_length(), deepest)
    return {size: top - count for size, count in halvings.items() if count is not None}


def _halvings(finest: tuple[int, int], size: tuple[int, int]) -> int | None:
    count = 0
    while (size[0] << count, size[1] << count) != finest:
        count += 1
        if size[0] << count > finest[0]:
            return None
    return count


def loop_of(stage: Stage, tensors: Tensors) -> Loop:
    """The loop over cells that a stage becomes.

    Raises:
        UserError: no loop over cells can do what the stage does.
    """
    accesses = [a for a in _accesses(stage) if a.tensor in tensors.pictures]
    base = (_base(stage, accesses, tensors, -2), _base(stage, accesses, tensors, -1))
    size = (base[0].size, base[1].size)
    if size not in tensors.levels:
        raise refuse(stage, f"no level has {size[0]} x {size[1]} cells")
    names = {axis.name for axis in base}
    spatial = {n for a in accesses for index in a.indices[-2:] for n in index.axes}
    taps = tuple(a for a in stage.axes if a.name in spatial - names)
    others = [a for a in stage.axes if a.name not in spatial | names]
    kept = stage.write.axes
    return Loop(
        tensors.levels[size],
        base,
        taps,
        tuple(a for a in others if a.name in kept),
        tuple(a for a in others if a.name not in kept),
        frozenset(name for access in accesses for name in access.indices[0].axes),
    )


def _accesses(stage: Stage) -> list[Access]:
    winner = [stage.winner[0]] if stage.winner else []
    return [stage.write, *winner, *(load.access for load in stage.loads())]


def _base(stage: Stage, accesses: Sequence[Access], tensors: Tensors, dimension: int) -> Axis:
    """The axis that runs over the cells in one direction."""
    written = stage.write.tensor in tensors.pictures
    used = [stage.write] if written else list(accesses)
    common: set[str] | None = None
    for access in used:
        axes = set(access.indices[dimension].axes)
        common = axes if common is None else common & axes
    if not common:
        raise refuse(stage, "it does not run over the pixels of a picture")
    steps = {name: max(abs(a.indices[dimension].coefficient(name)) for a in used) for name in common}
    widest = [name for name in steps if steps[name] == max(steps.values())]
    if len(widest) != 1:
        raise refuse(stage, f"several loops share the index {used[0].indices[dimension]}")
    return next(a for a in stage.axes if a.name == widest[0])


def offsets(
    stage: Stage, loop: Loop, access: Access, tensors: Tensors, point: Mapping[str, Affine]
) -> tuple[int, int]:
    """Where, as (x, y), an access to a picture is from the cell of the loop.

    Raises:
        UserError: steps, or a distance, that accesses between levels do not have.
    """
    picture = tensors.pictures[access.tensor]
    found = []
    for axis, index in zip(loop.base, access.indices[-2:], strict=True):
        step = index.coefficient(axis.name)
        rest = (index - Affine.axis(axis.name, step)).substitute(point)
        if rest.terms:
            raise refuse(stage, f"the index {index} of '{access.tensor}'")
        if (step, picture.level) not in ((1, loop.level), (2, loop.level + 1)):
            raise refuse(
                stage,
                f"steps of {step} over '{access.tensor}' ({picture.size[0]} x {picture.size[1]} pixels) in a "
                f"loop over {loop.base[0].size} x {loop.base[1].size}",
            )
        if step == 2 and rest.constant not in (0, 1):
            raise refuse(stage, f"windows of '{access.tensor}' that reach beyond their two rows and columns")
        found.append(rest.constant)
    return found[1], found[0]


def check_guards(stage: Stage, program: Program, tensors: Tensors) -> None:
    """Whether zeros around pictures do what the guards of a stage do.

    Raises:
        UserError: a condition that is more than that.
    """
    factors = _factors(stage.value)
    for guard in stage.guards:
        meets = [
            load
            for load in factors
            if load.access.tensor in tensors.pictures
            and any(
                index == guard.index and (guard.low, guard.high) == (0, extent)
                for index, extent in zip(
                    load.access.indices[-2:], tensors.pictures[load.access.tensor].size, strict=True
                )
            )
        ]
        if stage.combine != SUM or not meets:
            raise refuse(stage, f"the condition {guard}")
    allowed = {guard.index for guard in stage.guards}
    for access in _accesses(stage):
        for index, extent in zip(access.indices, program.tensors[access.tensor].shape, strict=True):
            low, high = index.bounds(stage.sizes)
            if (low < 0 or high >= extent) and (index not in allowed or access == stage.write):
                raise refuse(stage, f"the index {index} leaves '{access.tensor}'")


def _factors(value: Expr) -> list[Load]:
    if isinstance(value, Load):
        return [value]
    if isinstance(value, Apply) and value.function == "mul":
        return [load for argument in value.arguments for load in _factors(argument)]
    return []
