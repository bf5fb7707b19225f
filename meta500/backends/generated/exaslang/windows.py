"""Windows over small pictures: sums over all pixels become sums over the positions of a window.

For pictures no larger than a convolution's window, the adjoint of the convolution sums over the pixels of a
picture and computes which weight belongs to each. Loops over cells need offsets: the position in the window
is the axis.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from meta500.backends.generated.affine import Affine, Guard
from meta500.backends.generated.ir import Axis, Stage


def over_windows(stage: Stage, pictures: Collection[str]) -> Stage:
    """The stage with axes of windows for those axes that are rows or columns of what it reads.

    Args:
        stage: any.
        pictures: names of the tensors that are pictures.
    """
    if stage.write.tensor not in pictures:
        return stage
    for dimension in (-2, -1):
        pixel = stage.write.indices[dimension]
        read = {
            load.access.indices[dimension].axes[0]
            for load in stage.loads()
            if load.access.tensor in pictures and load.access.indices[dimension].is_axis
        }
        if pixel.is_axis:
            for name in sorted(read - set(stage.write.axes)):
                stage = _over_window(stage, pixel.axes[0], name)
    return stage


def _over_window(stage: Stage, pixel: str, summed: str) -> Stage:
    """An axis of the window instead of ``summed``, if an index is the distance of the two axes."""
    distances = [
        (index, index.coefficient(pixel))
        for load in stage.loads()
        for index in load.access.indices
        if set(index.axes) == {pixel, summed}
        and index.coefficient(pixel) == -index.coefficient(summed)
        and abs(index.coefficient(pixel)) == 1
    ]
    if not distances:
        return stage
    index, sign = distances[0]
    sizes = stage.sizes
    low, high = index.bounds(sizes)
    kept = []
    for guard in stage.guards:
        if guard.index == index:
            low, high = max(low, guard.low), min(high, guard.high - 1)
        else:
            kept.append(guard)
    window = next(name for n in range(len(sizes) + 1) if (name := f"window{n}") not in sizes)
    axes = tuple(Axis(window, high - low + 1) if axis.name == summed else axis for axis in stage.axes)
    # index = sign (pixel - summed) + constant = window + low
    place = Affine.axis(pixel) + Affine.axis(window, -sign, sign * (index.constant - low))
    moved = replace(stage, guards=tuple(kept)).substitute({summed: place}, axes)
    return replace(moved, guards=(*moved.guards, Guard(place, 0, sizes[summed])))
