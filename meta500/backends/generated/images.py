"""Which stages treat every image of the batch by itself, and the regions that follow from it.

A region of kind "images" gives every thread whole images: it runs all stages of the region on one image, then
on the next, without any barrier. Stages that sum over images add into a copy of their result that belongs to
the thread; the copies are added up where the region ends. All threads work together on the stages of a region
of kind "whole", one stage after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meta500.backends.generated.expressions import Access, Index, walk
from meta500.backends.generated.ir import INPUT, RANDOM, SUM, Program, Stage

IMAGES, WHOLE = "images", "whole"
LOCAL, REDUCING, FREE, MIXING = "local", "reducing", "free", "mixing"


@dataclass
class Batch:
    """The images of a program.

    Attributes:
        count: how many there are; 0 if there is no such dimension.
        tensors: those whose dimension 0 counts the images.
        axes: for every stage (by name) the axis that runs over the images, if it has one.
        kinds: for every stage local, reducing, free or mixing.
        last: tensors that are stored with the images side by side.
    """

    count: int = 0
    tensors: set[str] = field(default_factory=set)
    axes: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    last: frozenset[str] = frozenset()


@dataclass
class Region:
    """Stages that run together, in order."""

    kind: str
    stages: list[Stage] = field(default_factory=list)


def find_batch(program: Program) -> Batch:
    """The batch dimension, followed from dimension 0 of the inputs through all stages."""
    inputs = [t for t in program.tensors.values() if t.role == INPUT and t.shape and t.name != RANDOM]
    batch = Batch(inputs[0].shape[0] if inputs else 0)
    if batch.count < 2:
        batch.count = 0
    batch.tensors = {t.name for t in inputs if t.shape[0] == batch.count and batch.count}
    while _spread(program, batch):
        pass
    for stage in program.stages:
        kind, axis = _kind(stage, batch)
        batch.kinds[stage.name] = kind
        if axis:
            batch.axes[stage.name] = axis
    return batch


def _leading(access: Access) -> str | None:
    """The axis that is the whole index of dimension 0."""
    index = access.indices[0] if access.indices else None
    return index.axes[0] if index is not None and index.is_axis else None


def _image_axis(stage: Stage, batch: Batch) -> str | None:
    """The axis with which all tensors of images are read; "" if they are read differently or in part."""
    found = {_leading(load.access) for load in stage.loads() if load.access.tensor in batch.tensors}
    if not found:
        return None
    axis = next(iter(found)) if len(found) == 1 else None
    return axis if axis and _all_images(stage, batch, axis) else ""


def _all_images(stage: Stage, batch: Batch, axis: str) -> bool:
    """Whether an axis runs over the whole batch: that of a slice does not, and guards may hold it back."""
    return stage.sizes[axis] == batch.count and not any(axis in guard.index.axes for guard in stage.guards)


def _spread(program: Program, batch: Batch) -> bool:
    changed = False
    for stage in program.stages:
        axis = _image_axis(stage, batch)
        for access in [stage.write] + ([stage.winner[0]] if stage.winner else []):
            name = access.tensor
            shape = program.tensors[name].shape
            if name in batch.tensors or not axis or not shape or shape[0] != batch.count:
                continue
            if _leading(access) == axis:
                batch.tensors.add(name)
                changed = True
    return changed


def _shared(stage: Stage, batch: Batch, axis: str) -> bool:
    """Whether a tensor that belongs to no image, such as a constant, is read at the number of the image."""
    others = [load.access for load in stage.loads() if load.access.tensor not in batch.tensors]
    if any(axis in access.axes for access in others):
        return True
    # Or the number of the image is part of a value, such as the number of an element.
    parts = [part for part in (stage.value, stage.initial, stage.finish) if part is not None]
    return any(isinstance(e, Index) and axis in e.index.axes for part in parts for e in walk(part))


def _kind(stage: Stage, batch: Batch) -> tuple[str, str | None]:
    if stage.message is not None:
        return MIXING, None
    axis = _image_axis(stage, batch)
    written = stage.write.tensor in batch.tensors
    if axis is None:
        if not written:
            return FREE, None
        own = _leading(stage.write)
        alone = own and _all_images(stage, batch, own) and not _shared(stage, batch, own)
        return (LOCAL, own) if alone else (MIXING, None)
    if axis == "" or _shared(stage, batch, axis):
        return MIXING, None
    if written:
        return (LOCAL, axis) if _leading(stage.write) == axis else (MIXING, None)
    if axis in stage.write.axes or stage.combine != SUM:
        return MIXING, None
    return REDUCING, axis


def divide(program: Program, batch: Batch) -> list[Region]:
    """The stages of a program in regions, in an order that respects what they read and write.

    A stage joins the open region as long as nothing it needs is summed up over that region's images.
    """
    before = _predecessors(program)
    wanted = [_wanted(stage, program, batch) for stage in program.stages]
    waiting = list(range(len(program.stages)))
    done: set[int] = set()
    regions: list[Region] = []
    while waiting:
        kind = wanted[waiting[0]]
        region = Region(kind)
        unfinished: set[int] = set()  # sums over images that are complete when the region ends
        progress = True
        while progress:
            progress = False
            for position in list(waiting):
                stage = program.stages[position]
                if wanted[position] != kind or not before[position] <= done:
                    continue
                if before[position] & unfinished:
                    continue
                region.stages.append(stage)
                waiting.remove(position)
                done.add(position)
                if kind == IMAGES and batch.kinds[stage.name] == REDUCING:
                    unfinished.add(position)
                progress = True
        regions.append(region)
    return regions


def _wanted(stage: Stage, program: Program, batch: Batch) -> str:
    """The kind of region for a stage: images where it works on pictures one by one."""
    if batch.kinds[stage.name] not in (LOCAL, REDUCING):
        return WHOLE
    names = [*stage.reads(), *stage.writes()]
    if not batch.last.isdisjoint(names):
        return WHOLE
    shapes = [program.tensors[n].shape for n in names if n in batch.tensors]
    return IMAGES if any(size > 1 for shape in shapes for size in shape[2:]) else WHOLE


def _predecessors(program: Program) -> list[set[int]]:
    """For every stage, those that must come before it.

    They are the writers of what it reads and the readers and writers of what it writes, as far as both touch
    the same part of a tensor.
    """
    result: list[set[int]] = []
    writers: dict[str, list[tuple[int, Access, Stage]]] = {}
    readers: dict[str, list[tuple[int, Access, Stage]]] = {}
    message: int | None = None
    for position, stage in enumerate(program.stages):
        reads = [load.access for load in stage.loads()] + ([stage.write] if stage.onto else [])
        writes = [stage.write] + ([stage.winner[0]] if stage.winner else [])
        needed = set()
        if stage.message is not None:
            # All processes exchange in the same order.
            needed |= {message} if message is not None else set()
            message = position
        for access in reads:
            needed |= {p for p, a, s in writers.get(access.tensor, ()) if overlap(access, stage, a, s)}
        for access in writes:
            before = (*writers.get(access.tensor, ()), *readers.get(access.tensor, ()))
            needed |= {p for p, a, s in before if p not in needed and overlap(access, stage, a, s)}
        result.append(needed)
        for access in reads:
            readers.setdefault(access.tensor, []).append((position, access, stage))
        for access in writes:
            writers.setdefault(access.tensor, []).append((position, access, stage))
    return result


def overlap(first: Access, one: Stage, second: Access, other: Stage) -> bool:
    """Whether accesses of two stages to the same tensor may touch the same element: their ranges meet."""
    for a, b in zip(first.indices, second.indices, strict=True):
        low, high = a.bounds(one.sizes)
        other_low, other_high = b.bounds(other.sizes)
        if high < other_low or other_high < low:
            return False
    return True
