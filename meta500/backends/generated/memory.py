"""The memory plan: tensors whose lives do not overlap take turns in the same memory.

Memory is cleared once, when it is allocated. The zeros around a tensor survive while only tensors of the same
geometry take turns there. Where others do as well, the zeros are written again whenever its life begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meta500.backends.generated.layout import Place

ALIGNMENT = 64
SIZES = {"std::int32_t": 4, "std::int64_t": 8, "std::uint8_t": 1}


@dataclass(frozen=True)
class Arena:
    """A piece of memory with all that lives in it.

    Attributes:
        places: with offsets in bytes.
        bytes: its size.
        cleared: tensors whose surrounding zeros must be written when their lives begin.
    """

    places: dict[str, Place]
    bytes: int
    cleared: frozenset[str]


@dataclass(frozen=True)
class _Block:
    """A place at its offset."""

    place: Place
    begin: int
    end: int


def element_bytes(place: Place, real_bytes: int) -> int:
    """Bytes of one element."""
    return SIZES.get(place.c_type, real_bytes)


def arrange(
    places: Sequence[Place], lives: Mapping[str, tuple[Any, Any]], real_bytes: int, clearing: bool = False
) -> Arena:
    """Offsets for places of one arena.

    Every place goes into the smallest gap between those that live at the same time: the largest places first,
    or the earliest ones. The smaller result counts.

    Args:
        places: to be arranged.
        lives: for every tensor, the first and last moment at which it is used.
        real_bytes: of the program's floating-point type.
        clearing: whether zeros around a tensor may be written again.
    """
    sizes = {p.tensor: -(-p.size * element_bytes(p, real_bytes) // ALIGNMENT) * ALIGNMENT for p in places}
    largest = sorted(places, key=lambda p: (-sizes[p.tensor], lives[p.tensor][0]))
    earliest = sorted(places, key=lambda p: (lives[p.tensor][0], -sizes[p.tensor]))
    plans = [_placed(order, lives, sizes, clearing) for order in (earliest, largest)]
    blocks = min(plans, key=lambda blocks: max((b.end for b in blocks), default=0))
    found = {b.place.tensor: replace(b.place, offset=b.begin) for b in blocks}
    cleared = frozenset(
        a.place.tensor
        for a in blocks
        if a.place.halo.any and any(a.begin < b.end and b.begin < a.end and not _twins(a, b) for b in blocks)
    )
    assert clearing or not cleared
    return Arena(found, max((b.end for b in blocks), default=0), cleared)


def _placed(
    order: Sequence[Place], lives: Mapping[str, tuple[Any, Any]], sizes: Mapping[str, int], clearing: bool
) -> list[_Block]:
    done: list[_Block] = []
    alike: dict[object, list[_Block]] = {}
    for place in order:
        size = sizes[place.tensor]
        begin, end = lives[place.tensor]
        zeros = place.halo.any
        alive, apart = [], []
        for block in done:
            first, last = lives[block.place.tensor]
            together = first <= end and begin <= last
            if together:
                alive.append(block)
            if together or (not clearing and (zeros or block.place.halo.any)):
                apart.append(block)
        peers = alike.setdefault(place.geometry, [])
        # The memory of a tensor of the same geometry has the zeros already.
        at = _lowest_free(sorted({b.begin for b in peers}), size, alive) if zeros else None
        start = _gap(apart, size) if at is None else at
        block = _Block(place, start, start + size)
        done.append(block)
        peers.append(block)
    return done


def _lowest_free(begins: Sequence[int], size: int, blocks: Sequence[_Block]) -> int | None:
    """The first of ``begins`` from which ``size`` bytes meet none of ``blocks``."""
    return next((at for at in begins if not any(at < b.end and b.begin < at + size for b in blocks)), None)


def _twins(one: _Block, other: _Block) -> bool:
    """Whether two places have their zeros in the same memory."""
    return one.begin == other.begin and one.place.geometry == other.place.geometry


def _gap(blocks: Sequence[_Block], size: int) -> int:
    """The beginning of the smallest gap that is large enough, or the end of all blocks."""
    best: tuple[int, int] | None = None
    reached = 0
    for block in sorted(blocks, key=lambda b: b.begin):
        room = block.begin - reached
        if room >= size and (best is None or room < best[0]):
            best = (room, reached)
        reached = max(reached, block.end)
    return best[1] if best is not None else reached
