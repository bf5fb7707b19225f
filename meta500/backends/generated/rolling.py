"""Buffers that roll along with a sweep: of a tensor that lives within one sweep, only some rows are stored.

A full tensor would be written to memory row by row and never be read again once its readers have passed; the
buffer stays in the cache instead. In every band the rows that are still needed move to its front.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import Access
from meta500.backends.generated.ir import Stage, Tensor
from meta500.backends.generated.layout import OWN, SLACK, Place

# A buffer that holds a larger part of its tensor is not worth moving it.
_LARGEST_PART = 0.5


@dataclass(frozen=True)
class Rolling:
    """The rows of a tensor that are stored.

    Attributes:
        tensor: its name.
        first: per band, the lowest row that is still needed.
        end: per band, the row after the highest one that has been touched at its end.
    """

    tensor: str
    first: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return max(end - first for first, end in zip(self.first, self.end, strict=True))


@dataclass(frozen=True)
class Walker:
    """A kernel of a sweep: its stages, the axis along which it goes, and where it begins in every band."""

    stages: tuple[Stage, ...]
    axis: str
    bounds: tuple[int, ...]


def rolling(
    walkers: Sequence[Walker], candidates: Mapping[str, Place], tensors: Mapping[str, Tensor]
) -> list[Rolling]:
    """The tensors of a sweep that need no more than some rows of room.

    Args:
        walkers: all kernels of the sweep.
        candidates: tensors that nothing outside of the sweep touches.
        tensors: of the program.
    """
    found = []
    for name, place in candidates.items():
        if place.kind != OWN or len(place.strides) != 4:
            continue
        height = tensors[name].shape[2]
        one = _needed(walkers, name, height, place)
        if one is not None and one.rows <= _LARGEST_PART * height:
            found.append(one)
    return found


def shortened(place: Place, one: Rolling, lanes: int) -> Place:
    """The storage of the rows of a buffer."""
    pitch = place.strides[2]
    left = place.origin - place.halo.before[2] * pitch if place.halo.any else place.origin
    size = -(-(one.rows * pitch + left + SLACK * lanes) // lanes) * lanes
    return replace(place, origin=left, size=size, rolling=one.rows)


def _needed(walkers: Sequence[Walker], name: str, height: int, place: Place) -> Rolling | None:
    touching = [(w, access) for w in walkers for access in _accesses(w, name)]
    if not touching:
        return None
    before, after = (place.halo.before[2], place.halo.after[2]) if place.halo.any else (0, 0)
    first, end = [], []
    last = -before
    for band in range(len(walkers[0].bounds) - 1):
        lows, highs = [], [last]
        for walker, (stage, access) in touching:
            size = walker.bounds[-1]
            if walker.bounds[band] < size:
                lows.append(max(_rows(walker, stage, access, walker.bounds[band], size)[0], -before))
            if walker.bounds[band + 1] > 0:
                rows = _rows(walker, stage, access, 0, walker.bounds[band + 1])
                highs.append(min(rows[1], height + after - 1) + 1)
        last = max(highs)
        first.append(min([*lows, last]))
        end.append(last)
    return Rolling(name, tuple(first), tuple(end))


def _accesses(walker: Walker, name: str) -> Iterator[tuple[Stage, Access]]:
    for stage in walker.stages:
        written = [stage.write] + ([stage.winner[0]] if stage.winner else [])
        for access in (*(load.access for load in stage.loads()), *written):
            if access.tensor == name:
                yield stage, access


def _rows(walker: Walker, stage: Stage, access: Access, begin: int, end: int) -> tuple[int, int]:
    """The lowest and the highest row that iterations ``begin`` to ``end`` - 1 touch."""
    index = access.indices[2]
    step = index.coefficient(walker.axis)
    low, high = (index - Affine.axis(walker.axis, step)).bounds(stage.sizes)
    ends = (step * begin, step * (end - 1))
    return low + min(ends), high + max(ends)
