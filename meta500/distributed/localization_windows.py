"""Operators with windows on blocks of an image: convolution, transposed convolution, pooling.

Output cell o of a window operator reads the input cells o*s - p to o*s - p + e - 1 (stride s, padding p,
extent e). Outputs are cut where the inputs are, divided by the stride; what a block's outputs read beyond its
inputs is its halo, and only at the border of the image there is padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meta500.backends.windows import Windows, sliding, transposed
from meta500.distributed.blocks import Cut
from meta500.distributed.localization import Localization
from meta500.graph import Operation


@dataclass(frozen=True)
class Reach:
    """What the outputs of every block read beyond its inputs, and the padding that is left, along one axis.

    A negative ``before`` or ``after`` counts cells at the block's border that none of its outputs reads.
    """

    outputs: Cut
    before: list[int]
    after: list[int]
    begins: list[int]
    ends: list[int]


def window_operator(to: Localization, op: Operation) -> None:
    """Conv, MaxPool, AveragePool and LpPool."""
    x = op.operands[0]
    layout = to.read_whole(x)
    if any(axis < 2 for axis in layout):
        to.refuse(op, f"axis {min(layout)} of '{x}' is cut, which is no spatial axis")
    if len([name for name in op.results if name]) > 1:
        to.refuse(op, "indices count the cells of the whole image")
    shape = to.shape(op, x)
    spatial = to.sizes(op, x, range(2, len(shape)))
    kernel = op.attributes.get("kernel_shape") or to.sizes(op, op.operands[1], range(2, len(shape)))
    windows = _sliding(op, spatial, kernel, _pads(op))
    begins, ends = list(windows.begins), list(windows.ends)
    results, local = {}, list(spatial)
    for axis, cut in sorted(layout.items()):
        i = axis - 2
        reach = _reach(to, op, cut, windows, i)
        own = to.index(cut)
        before, after = reach.before[own], reach.after[own]
        begins[i], ends[i] = reach.begins[own], reach.ends[own]
        local[i] = to.length(cut)
        if to.halo:
            widths = [[max(w, 0) for w in side] for side in (reach.before, reach.after)]
            x = to.extended(op, x, axis, cut, *widths)
            local[i] += max(before, 0) + max(after, 0)
        else:
            begins[i] += max(before, 0)
            ends[i] += max(after, 0)
        x, local[i] = _trimmed(to, op, x, axis, local, (begins, ends), windows, (before, after), reach)
        results[axis] = reach.outputs
    changes: dict[str, Any] = {"X": x, "pads": (*begins, *ends)}
    to.keep(
        op, results, **changes, **({} if op.attributes.get("auto_pad") is None else {"auto_pad": "NOTSET"})
    )


def _pads(op: Operation) -> tuple[Sequence[int] | None, str]:
    auto = op.attributes.get("auto_pad") or "NOTSET"
    return op.attributes.get("pads"), str(auto)


def _sliding(
    op: Operation, spatial: Sequence[int], kernel: Sequence[int], pads: tuple[Sequence[int] | None, str]
) -> Windows:
    given = op.attributes
    return sliding(
        op.op_type,
        spatial,
        kernel,
        given.get("strides"),
        pads[0] if pads[1] == "NOTSET" else None,
        given.get("dilations"),
        pads[1],
        given.get("ceil_mode") or 0,
    )


def _reach(to: Localization, op: Operation, cut: Cut, windows: Windows, i: int) -> Reach:
    stride, extent, count = windows.strides[i], windows.extents[i], windows.outputs[i]
    begin, end = windows.begins[i], windows.ends[i]
    bounds = (0, *(min(-(-b // stride), count) for b in cut.bounds[1:-1]), count)
    outputs = Cut(cut.direction, bounds, cut.stride * stride)
    reach = Reach(outputs, [], [], [], [])
    for (low, high), (first, last) in zip(cut.blocks, outputs.blocks, strict=True):
        if last <= first:
            to.refuse(
                op, f"a block has no outputs: {count} outputs are cut at {list(bounds)}; use fewer blocks"
            )
        reads, until = first * stride - begin, (last - 1) * stride - begin + extent
        reach.before.append(low - max(reads, 0))
        reach.after.append(min(until, cut.size) - high)
        reach.begins.append(max(-reads, 0))
        # Padding that the last window leaves out stays, so that sizes are computed as for the whole image.
        reach.ends.append(end if last == count else max(until - cut.size, 0))
    return reach


def _trimmed(
    to: Localization,
    op: Operation,
    x: str,
    axis: int,
    local: list[int],
    pads: tuple[list[int], list[int]],
    windows: Windows,
    unread: tuple[int, int],
    reach: Reach,
) -> tuple[str, int]:
    """``x`` without cells that no output reads, where they would shift or add outputs; and its length."""
    i = axis - 2
    begin, end, length = max(-unread[0], 0), 0, local[i]
    wanted = to.length(reach.outputs)

    def outputs() -> int:
        size = length - begin - end
        if size < 1:
            return -1
        given = [1 if j != i else size for j in range(len(local))]
        kernel = [1 if j != i else windows.kernel[i] for j in range(len(local))]
        flat = [0 if j != i else pads[0][i] for j in range(len(local))]
        tail = [0 if j != i else pads[1][i] for j in range(len(local))]
        if size + pads[0][i] + pads[1][i] < windows.extents[i]:
            return -1
        return _sliding(op, given, kernel, ((*flat, *tail), "NOTSET")).outputs[i]

    if outputs() != wanted and unread[1] < 0:
        end = -unread[1]
    if outputs() != wanted:
        to.refuse(
            op, f"its windows do not fit blocks of {local[i]} cells along axis {axis}; use fewer blocks"
        )
    if begin or end:
        x = to.slice(x, {axis: (begin, length - end)})
    return x, length - begin - end


def transposed_convolution(to: Localization, op: Operation) -> None:
    """ConvTranspose: output o is reached by the inputs i with o + p = i*s + tap."""
    x = op.operands[0]
    layout = to.read_whole(x)
    if any(axis < 2 for axis in layout):
        to.refuse(op, f"axis {min(layout)} of '{x}' is cut, which is no spatial axis")
    rank = len(to.shape(op, x))
    spatial = to.sizes(op, x, range(2, rank))
    given = op.attributes
    kernel = tuple(given.get("kernel_shape") or to.sizes(op, op.operands[1], range(2, rank)))
    pads, auto = _pads(op)
    windows, shape = transposed(
        spatial,
        kernel,
        given.get("strides"),
        pads if auto == "NOTSET" else None,
        given.get("dilations"),
        given.get("output_padding"),
        given.get("output_shape"),
        auto,
        op.since_version,
    )
    begins, ends = list(windows.begins), list(windows.ends)
    full = [(n - 1) * s + e for n, s, e in zip(spatial, windows.strides, windows.extents, strict=True)]
    extra = [max(o + b + e - f, 0) for o, b, e, f in zip(shape, begins, ends, full, strict=True)]
    results = {}
    for axis, cut in sorted(layout.items()):
        i = axis - 2
        stride, extent, pad = windows.strides[i], windows.extents[i], windows.begins[i]
        bounds = (0, *(min(b * stride, shape[i]) for b in cut.bounds[1:-1]), shape[i])
        outputs = Cut(cut.direction, bounds, cut.stride / stride)
        before, after = [], []
        for (low, high), (first, last) in zip(cut.blocks, outputs.blocks, strict=True):
            if last <= first:
                to.refuse(
                    op, f"a block has no outputs: {shape[i]} are cut at {list(bounds)}; use fewer blocks"
                )
            lowest = min(max(math.ceil((first + pad - (extent - 1)) / stride), 0), low)
            highest = max(min((last - 1 + pad) // stride, cut.size - 1), high - 1)
            before.append(low - lowest if to.halo else 0)
            after.append(highest + 1 - high if to.halo else 0)
        x = to.extended(op, x, axis, cut, before, after)
        own = to.index(cut)
        length = to.length(cut) + before[own] + after[own]
        first = outputs.blocks[own][0]
        begins[i] = pad + first - (to.own(cut)[0] - before[own]) * stride
        ends[i] = (length - 1) * stride + extent - begins[i] - to.length(outputs)
        extra[i], ends[i] = max(-ends[i], 0), max(ends[i], 0)
        if begins[i] < 0 or extra[i] >= max(stride, windows.dilations[i]):
            to.refuse(op, f"its outputs do not fit blocks of {length} cells along axis {axis}")
        results[axis] = outputs
    changes: dict[str, Any] = {"X": x, "pads": (*begins, *ends), "output_padding": tuple(extra)}
    to.keep(op.replace(output_shape=None, auto_pad="NOTSET"), results, **changes)
