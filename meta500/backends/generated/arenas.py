"""When every tensor of a schedule is alive, and where it lies in its arena."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from meta500.backends.generated import memory
from meta500.backends.generated.expressions import loads
from meta500.backends.generated.images import IMAGES
from meta500.backends.generated.layout import OWN, SHARED, Place

if TYPE_CHECKING:
    from meta500.backends.generated.schedule import Kernel, Schedule

_END = 1 << 40


def touched_at_end(kernel: Kernel) -> list[str]:
    """What a merge reads and writes when the region ends: what was summed up is no longer needed then."""
    if kernel.merge is None:
        return []
    ends = loads(kernel.merge.initial) + loads(kernel.merge.finish)
    return [*(load.access.tensor for load in ends), *kernel.merge.writes()]


def arrange(result: Schedule) -> None:
    """Offsets of all places in their arenas."""
    moments: dict[str, list[int]] = {}
    # Tensors of all threads are alive during whole regions of images: every thread is elsewhere in them.
    shared: dict[str, list[tuple[int, int]]] = {}
    # The sweep of every moment, as region and position.
    sweep_at: dict[int, tuple[int, int]] = {}
    time = 0
    for number, step in enumerate(result.steps):
        sweep_of = {p: i for i, s in enumerate(step.sweeps) for p in range(s.first, s.last + 1)}
        start = time
        for position, kernel in enumerate(step.kernels):
            # All tensors of a sweep are alive together.
            time = start + sweep_of[position] + 1
            sweep_at[time] = (number, sweep_of[position])
            stages = [kernel.stage] + [one.merge or one.stage for one in kernel.parts]
            for stage in stages:
                for name in (*stage.reads(), *stage.writes()):
                    moments.setdefault(name, []).append(time)
                    whole = [(number, 0), (number, _END)] if step.kind == IMAGES else [(number, time)]
                    shared.setdefault(name, []).extend(whole)
            for one in kernel.sums if step.kind == IMAGES else ():
                for name in touched_at_end(one):
                    moments[name].append(_END)
    kinds: dict[str, list[Place]] = {SHARED: [], OWN: []}
    for place in result.places.values():
        if place.kind in kinds:
            kinds[place.kind].append(place)
    shared_lives = {n: (min(m), max(m)) for n, m in shared.items()}
    own_lives = {n: (min(m), max(m)) for n, m in moments.items()}
    real_bytes = result.options.real_bytes
    for name in result.program.faults:
        shared_lives[name] = ((0, 0), (_END, _END))
    arena = memory.arrange(kinds[SHARED], shared_lives, real_bytes)
    result.places.update(arena.places)
    result.shared_bytes = arena.bytes
    for kernel in (k for s in result.steps for k in s.kernels if k.prepared):
        result.prepared[kernel.name] = result.shared_bytes
        result.shared_bytes += -(-kernel.prepared * real_bytes // memory.ALIGNMENT) * memory.ALIGNMENT
    arena = memory.arrange(kinds[OWN], own_lives, real_bytes, clearing=True)
    result.places.update(arena.places)
    for name in sorted(arena.cleared):
        number, at = sweep_at[own_lives[name][0]]
        sweep = result.steps[number].sweeps[at]
        result.steps[number].sweeps[at] = replace(sweep, cleared=(*sweep.cleared, name))
    scratch = max((k.scratch for s in result.steps for k in s.kernels), default=0)
    result.scratch, result.own_bytes = arena.bytes, arena.bytes + scratch * real_bytes
    lives = {name: (0, 0) for name in result.partials}
    partials = [replace(place, tensor=name) for name, place in result.partials.items()]
    arena = memory.arrange(partials, lives, real_bytes)
    result.partial_bytes = arena.bytes
    result.partials = {n: replace(p, tensor=result.partials[n].tensor) for n, p in arena.places.items()}
