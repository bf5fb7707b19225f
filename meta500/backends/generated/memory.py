"""The memory plan: tensors whose lives do not overlap take turns in the same memory.

Memory is cleared once, when it is allocated. The zeros around a tensor must survive, hence only tensors of
the same geometry share a slot; those without such zeros share with any other of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meta500.backends.generated.layout import Place

ALIGNMENT = 64
SIZES = {"std::int32_t": 4, "std::int64_t": 8, "std::uint8_t": 1}


@dataclass
class Slot:
    """A piece of an arena and until when it is taken."""

    geometry: object
    bytes: int
    offset: int
    busy_until: Any


def element_bytes(place: Place, real_bytes: int) -> int:
    """Bytes of one element."""
    return SIZES.get(place.c_type, real_bytes)


def arrange(
    places: Sequence[Place], lives: Mapping[str, tuple[Any, Any]], real_bytes: int
) -> tuple[dict[str, Place], int]:
    """Offsets for places of one arena.

    Args:
        places: to be arranged.
        lives: for every tensor, the first and last moment at which it is used.
        real_bytes: of the program's floating-point type.

    Returns:
        The places with offsets (in bytes), and the size of the arena in bytes.
    """
    slots: list[Slot] = []
    total = 0
    found: dict[str, Place] = {}
    for place in sorted(places, key=lambda p: (lives[p.tensor][0], -p.size)):
        begin, end = lives[place.tensor]
        size = -(-place.size * element_bytes(place, real_bytes) // ALIGNMENT) * ALIGNMENT
        geometry: object = place.geometry if place.halo.any else None
        free = [
            s
            for s in slots
            if s.geometry == geometry
            and s.busy_until < begin
            and (s.bytes >= size if geometry is None else True)
        ]
        if free:
            slot = min(free, key=lambda s: s.bytes)
            slot.busy_until = end
        else:
            slot = Slot(geometry, size, total, end)
            slots.append(slot)
            total += size
        found[place.tensor] = replace(place, offset=slot.offset)
    return found, total
