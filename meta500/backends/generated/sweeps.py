"""Sweeps: kernels that run together over bands of image rows, so that they meet in the cache.

In every band each kernel goes as far as the rows that it reads are there: behind a stencil by the halo,
behind a pooling at half the number of rows. The bounds of all bands are computed here, by going through the
sweep once, and printed as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import Access
from meta500.backends.generated.images import overlap
from meta500.backends.generated.ir import Stage, Tensor
from meta500.backends.generated.layout import Place
from meta500.backends.generated.rolling import Rolling

# Rows of a band (of the longest kernel of the sweep) that are tried, largest first.
_BANDS = (64, 32, 16, 8)
# What a sweep touches in one band may fill so much of the cache.
_SHARE = 0.6


@dataclass(frozen=True)
class Rows:
    """What a sweep must know of a kernel.

    Attributes:
        stages: what it computes.
        axis: the split axis; None if it has none.
        size: its length.
        granule: ranges begin at multiples of this.
        preferred: so many rows at once are worth waiting for; 0 where it does not matter.
    """

    stages: tuple[Stage, ...]
    axis: str | None
    size: int
    granule: int
    preferred: int = 0


@dataclass(frozen=True)
class Sweep:
    """Consecutive kernels (by position) with their bounds.

    Attributes:
        first, last: positions of the kernels, the last one included.
        bounds: for every band, and one more, the row where each kernel begins; None for a single kernel that
            runs as a whole.
        rolling: tensors of which only some rows are stored.
        cleared: tensors whose surrounding zeros are written before it begins.
    """

    first: int
    last: int
    bounds: tuple[tuple[int, ...], ...] | None = None
    rolling: tuple[Rolling, ...] = ()
    cleared: tuple[str, ...] = ()


def sweeps(
    kernels: Sequence[Rows],
    places: Mapping[str, Place],
    tensors: Mapping[str, Tensor],
    cache_bytes: int,
    real_bytes: int,
) -> list[Sweep]:
    """The kernels of a region in sweeps, each as long as its bands fit into the cache."""
    found: list[Sweep] = []
    begin = 0
    while begin < len(kernels):
        best = Sweep(begin, begin)
        if _worthwhile(kernels[begin], places, cache_bytes, real_bytes):
            end = begin
            while end + 1 < len(kernels) and kernels[end + 1].axis is not None:
                end += 1
                band = _fitting(kernels[begin : end + 1], places, tensors, cache_bytes, real_bytes)
                if band is None:
                    break
                bounds = progress(kernels[begin : end + 1], tensors, band)
                best = Sweep(begin, end, bounds)
        found.append(best)
        begin = best.last + 1
    return found


def _worthwhile(kernel: Rows, places: Mapping[str, Place], cache_bytes: int, real_bytes: int) -> bool:
    """Whether the pictures of a kernel are larger than the cache."""
    if kernel.axis is None:
        return False
    names = {n for stage in kernel.stages for n in (*stage.reads(), *stage.writes()) if n in places}
    total = sum(places[n].size * real_bytes for n in names if _pictures(places[n]))
    return total > cache_bytes // 2


def _pictures(place: Place) -> bool:
    return len(place.strides) >= 3


def _fitting(
    kernels: Sequence[Rows],
    places: Mapping[str, Place],
    tensors: Mapping[str, Tensor],
    cache_bytes: int,
    real_bytes: int,
) -> int | None:
    """Rows of a band, None if even the smallest one does not fit."""
    most = max(kernel.size for kernel in kernels)
    row_bytes = 0.0
    stages = [stage for kernel in kernels for stage in kernel.stages]
    for name in {n for stage in stages for n in (*stage.reads(), *stage.writes())}:
        place = places.get(name)
        if place is None or not _pictures(place):
            continue
        # Bytes per row of the longest kernel; a stencil's halo counts two rows of its own.
        elements = tensors[name].size / tensors[name].shape[0]
        row_bytes += elements * real_bytes / most
    # A kernel that waits for its preferred number of rows is in step with no other one anyway.
    granules = [k.granule * (most // k.size if k.size else 1) for k in kernels if not k.preferred]
    granule = max(granules, default=1)
    for band in _BANDS:
        if band <= most // 2 and band % granule == 0 and row_bytes * (band + 2) <= _SHARE * cache_bytes:
            return band
    return None


def _row_dimension(stage: Stage, axis: str, tensor: str) -> int | None:
    """The dimension of a written tensor along which a kernel's rows go."""
    for access in [stage.write] + ([stage.winner[0]] if stage.winner else []):
        if access.tensor == tensor:
            for dimension, index in enumerate(access.indices):
                if axis in index.axes:
                    return dimension
    return None


def progress(
    kernels: Sequence[Rows], tensors: Mapping[str, Tensor], band: int
) -> tuple[tuple[int, ...], ...]:
    """Where every kernel stands after every band.

    Args:
        kernels: in order.
        tensors: their tensors.
        band: rows that the longest kernel advances.
    """
    most = max(kernel.size for kernel in kernels)
    done = [0] * len(kernels)
    table = [tuple(done)]
    number = 0
    while any(done[m] < k.size for m, k in enumerate(kernels)):
        number += 1
        for m, kernel in enumerate(kernels):
            wanted = min(kernel.size, -(-number * band * kernel.size // most))
            if number * band >= most:
                wanted = kernel.size
            allowed = _allowed(kernels, m, done, tensors)
            # At the end, too, no kernel makes up for its delay in one band: rows would pile up.
            share = -(-band * kernel.size // most)
            unit = kernel.preferred or kernel.granule
            target = min(wanted, allowed, done[m] + -(-share // unit) * unit)
            if target < kernel.size:
                target -= target % unit
            done[m] = max(done[m], target)
        table.append(tuple(done))
        # Kernels that read all rows of the one before run one after the other.
        if number > (4 * most + 4) * len(kernels):
            raise AssertionError(f"a sweep does not end: {kernels[0].stages[0].name}")
    return tuple(table)


def _allowed(kernels: Sequence[Rows], m: int, done: Sequence[int], tensors: Mapping[str, Tensor]) -> int:
    """Rows up to which a kernel may go, given what those before it have done."""
    kernel = kernels[m]
    allowed = kernel.size
    writers: dict[str, list[tuple[int, Stage]]] = {}
    for p in range(m):
        for stage in kernels[p].stages:
            for name in stage.writes():
                writers.setdefault(name, []).append((p, stage))
    for stage in kernel.stages:
        # What it writes itself must not be written later by a kernel before it.
        for access in [*(load.access for load in stage.loads()), stage.write]:
            for p, producer in writers.get(access.tensor, []):
                if done[p] < kernels[p].size and _meets(stage, access, producer):
                    reach = _reach(kernel, stage, access, kernels[p], producer, done[p], tensors)
                    allowed = min(allowed, reach)
    return max(allowed, 0)


def _meets(stage: Stage, access: Access, producer: Stage) -> bool:
    """Whether a producer writes a part of what is accessed."""
    written = [producer.write] + ([producer.winner[0]] if producer.winner else [])
    return any(w.tensor == access.tensor and overlap(access, stage, w, producer) for w in written)


def _reach(
    kernel: Rows,
    stage: Stage,
    access: Access,
    producer: Rows,
    source: Stage,
    done: int,
    tensors: Mapping[str, Tensor],
) -> int:
    """Rows up to which ``stage`` finds what ``source`` has written in the first ``done`` rows."""
    assert kernel.axis is not None and producer.axis is not None
    dimension = _row_dimension(source, producer.axis, access.tensor)
    if dimension is None:
        return 0
    # The first row that is not written yet.
    frontier = _lowest(producer, source, access.tensor, dimension, done)
    index = access.indices[dimension]
    step = index.coefficient(kernel.axis)
    rest = index - Affine.axis(kernel.axis, step)
    high = rest.bounds(stage.sizes)[1]
    last = tensors[access.tensor].shape[dimension] - 1
    if step <= 0:
        # Against the rows, or all of them at once.
        return 0 if min(index.bounds(stage.sizes)[1], last) >= frontier else kernel.size
    # Largest hi with step * (hi - 1) + high < frontier.
    return (frontier - 1 - high) // step + 1


def _lowest(producer: Rows, stage: Stage, tensor: str, dimension: int, done: int) -> int:
    """The lowest row that iterations from ``done`` on still write."""
    lowest = 1 << 60
    assert producer.axis is not None
    for access in [stage.write] + ([stage.winner[0]] if stage.winner else []):
        if access.tensor != tensor:
            continue
        index = access.indices[dimension]
        step = index.coefficient(producer.axis)
        rest = index - Affine.axis(producer.axis, step)
        low = rest.bounds(stage.sizes)[0]
        lowest = min(lowest, low + (step * done if step > 0 else step * (producer.size - 1)))
    return lowest
