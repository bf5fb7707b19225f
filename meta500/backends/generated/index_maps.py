"""Tables of positions as a few affine maps: how copies between irregular places become stages.

A table says for every position along one dimension of a result which position of the source it reads, or
which ones, a column for each. It is cut into pieces in which all of them are affine in the same one or two
axes: ``Pad`` by reflection has three pieces, enlarging by the nearest element one with two axes, enlarging
linearly one for every phase and some at the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meta500.backends.generated.affine import Affine

# A table that needs more pieces than this is no regular one.
MOST_PIECES = 16
_PERIODS = 16
Table = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Piece:
    """Positions start + sum of steps * axes, each of which reads one source per column.

    Attributes:
        sizes: of the axes, of which there are one or two.
        start, steps: the positions in the result.
        sources: per column the first position in the source and the step of every axis.
    """

    sizes: tuple[int, ...]
    start: int
    steps: tuple[int, ...]
    sources: tuple[tuple[int, tuple[int, ...]], ...]

    def axes(self, name: str) -> dict[str, int]:
        """Names and sizes of its axes."""
        return {f"{name}{'_' * i}": size for i, size in enumerate(self.sizes)}

    def place(self, name: str) -> Affine:
        """The position in the result."""
        return Affine.of(dict(zip(self.axes(name), self.steps, strict=True)), self.start)

    def source(self, name: str, column: int = 0) -> Affine:
        """The position in the source."""
        start, steps = self.sources[column]
        return Affine.of(dict(zip(self.axes(name), steps, strict=True)), start)


def pieces(table: Table, labels: Table | None = None, limit: int = MOST_PIECES) -> list[Piece] | None:
    """The table (n,) or (n, columns) as pieces that cover every position once.

    Args:
        table: positions in the source.
        labels: (n,); only positions with equal labels may be in one piece.
        limit: most pieces.

    Returns:
        None where more than ``limit`` would be needed.
    """
    index = np.asarray(table, np.int64)
    index = index.reshape(len(index), -1)
    marks = np.zeros(len(index), np.int64) if labels is None else np.asarray(labels)
    best = _runs(index, marks, np.arange(len(index)), limit)
    for period in range(2, min(_PERIODS, len(index)) + 1):
        if len(best) == 1:
            break
        found = _folded(index, marks, period) or _phases(index, marks, period, limit)
        if len(found) < len(best):
            best = found
    return best if len(best) <= limit else None


def _runs(index: np.ndarray, labels: np.ndarray, places: np.ndarray, limit: int) -> list[Piece]:
    """Longest stretches of constant steps; ``places`` are in arithmetic progression.

    More than ``limit`` pieces are of no use: the rest is left out then.
    """
    found: list[Piece] = []
    first = 0
    stride = int(places[1] - places[0]) if len(places) > 1 else 1
    steps = np.diff(index, axis=0)
    # The last positions before another label, or another step, begins.
    ends = np.flatnonzero(labels[1:] != labels[:-1])
    turns = np.flatnonzero((steps[1:] != steps[:-1]).any(axis=1)) + 1
    while first < len(index) and len(found) <= limit:
        last = min(_following(ends, first, len(index) - 1), _following(turns, first + 1, len(index) - 1))
        # A jump between two positions is no run: the second one may begin a longer one.
        if last == first + 1 and (abs(steps[first]) > 1).any() and last + 1 < len(index):
            last = first
        step = steps[first] if last > first else np.zeros(index.shape[1], np.int64)
        sources = tuple((int(s), (int(d),)) for s, d in zip(index[first], step, strict=True))
        found.append(Piece((last - first + 1,), int(places[first]), (stride,), sources))
        first = last + 1
    return found


def _following(ends: np.ndarray, first: int, otherwise: int) -> int:
    """The first of ``ends``, in ascending order, that is not before ``first``."""
    at = int(np.searchsorted(ends, first))
    return int(ends[at]) if at < len(ends) else otherwise


def _folded(index: np.ndarray, labels: np.ndarray, period: int) -> list[Piece]:
    """One piece with two axes, position = period * a + b, if the sources are affine in both; else none."""
    if len(index) % period or len(index) == period or (labels != labels[0]).any():
        return []
    rows = index.reshape(-1, period, index.shape[1])
    a, b = rows[1, 0] - rows[0, 0], rows[0, 1] - rows[0, 0]
    wanted = rows[0, 0] + a * np.arange(len(rows))[:, None, None] + b * np.arange(period)[:, None]
    if (rows != wanted).any():
        return []
    sources = tuple((int(s), (int(m), int(n))) for s, m, n in zip(rows[0, 0], a, b, strict=True))
    return [Piece((len(rows), period), 0, (period, 1), sources)]


def _phases(index: np.ndarray, labels: np.ndarray, period: int, limit: int) -> list[Piece]:
    """Every residue class of positions by itself."""
    found: list[Piece] = []
    for phase in range(period):
        if len(found) > limit:
            break
        places = np.arange(phase, len(index), period)
        found += _runs(index[places], labels[places], places, limit)
    return found


def frame(shape: Sequence[int], inner: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """What lies around a box, as boxes that do not overlap: first and one past the last position each.

    Every position belongs to the first dimension along which it is outside of ``inner``.
    """
    found = []
    for axis, (low, high) in enumerate(inner):
        for start, stop in ((0, low), (high, shape[axis])):
            box = [*inner[:axis], (start, stop), *((0, size) for size in shape[axis + 1 :])]
            if all(first < last for first, last in box):
                found.append(box)
    return found
