"""Blocks of an image: where the axes of a value are cut, and which part a process has."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from meta500.errors import UserError
from meta500.graph.collectives import COLUMNS, ROWS

DIRECTIONS = {ROWS: "rows", COLUMNS: "columns"}


@dataclass(frozen=True)
class Cut:
    """How one axis is divided among the processes along one direction of their grid.

    Attributes:
        direction: 0 along rows of blocks (the height), 1 along columns (the width).
        bounds: where the blocks begin, and the length of the axis: block i has bounds[i] to bounds[i + 1] -
        1. stride: cells of the network's image per cell of this axis.
    """

    direction: int
    bounds: tuple[int, ...]
    stride: Fraction = Fraction(1)

    @property
    def size(self) -> int:
        """Length of the whole axis."""
        return self.bounds[-1]

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Begin and end of every block."""
        return list(itertools.pairwise(self.bounds))

    def same(self, other: Cut) -> bool:
        """Whether both cut at the same places for the same processes."""
        return self.direction == other.direction and self.bounds == other.bounds

    def __str__(self) -> str:
        return f"{DIRECTIONS[self.direction]} {'|'.join(f'{a}:{b}' for a, b in self.blocks)}"


# The cut axes of a value; a value without any is the same on all processes.
Layout = Mapping[int, Cut]


def grid_of(text: str | Sequence[int]) -> tuple[int, int]:
    """Rows and columns of blocks, from "2x1" or (2, 1).

    Raises:
        UserError: anything else, or a number below 1.
    """
    parts = text.lower().split("x") if isinstance(text, str) else list(text)
    try:
        rows, columns = (int(part) for part in parts)
    except (TypeError, ValueError):
        raise UserError(
            f"spatial blocks '{text}' are not understood: write rows x columns, such as 2x1 for an upper "
            "and a lower half"
        ) from None
    if rows < 1 or columns < 1:
        raise UserError(f"spatial blocks {rows}x{columns}: both numbers must be at least 1")
    return rows, columns


def even_bounds(size: int, count: int, granule: int, direction: int) -> tuple[int, ...]:
    """Bounds of ``count`` blocks, as equal as multiples of ``granule`` allow; the last block takes the rest.

    Raises:
        UserError: fewer granules than blocks.
    """
    units = size // granule
    if units < count:
        raise UserError(
            f"an image of {size} {DIRECTIONS[direction]} cannot be cut into {count} blocks: the network's "
            f"strides need blocks of multiples of {granule}, which are {units}"
        )
    lengths = [len(part) * granule for part in np.array_split(np.arange(units), count)]
    inner = list(itertools.accumulate(lengths))[:-1]
    return (0, *inner, size)


def part_of(array: np.ndarray, layout: Layout, position: Sequence[int]) -> np.ndarray:
    """The block of ``array`` that the process at ``position`` (row, column) has, contiguous.

    Raises:
        UserError: the array has another size than the layout.
    """
    places = [slice(None)] * array.ndim
    for axis, cut in layout.items():
        if axis >= array.ndim or array.shape[axis] != cut.size:
            raise UserError(
                f"an array of shape {list(array.shape)} has no axis {axis} with {cut.size} cells to cut"
            )
        places[axis] = slice(*cut.blocks[position[cut.direction]])
    return np.ascontiguousarray(array[tuple(places)])


def assembled(blocks: Sequence[np.ndarray], layout: Layout, columns: int) -> np.ndarray:
    """The whole array from the blocks of all processes in the order of their ranks, ``columns`` per row."""
    first = blocks[0]
    shape = [cut.size if (cut := layout.get(axis)) else n for axis, n in enumerate(first.shape)]
    whole = np.empty(shape, first.dtype)
    for rank, block in enumerate(blocks):
        position = divmod(rank, columns)
        places = [slice(None)] * whole.ndim
        for axis, cut in layout.items():
            places[axis] = slice(*cut.blocks[position[cut.direction]])
        whole[tuple(places)] = block
    return whole
