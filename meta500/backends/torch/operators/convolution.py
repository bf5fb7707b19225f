"""Conv and ConvTranspose: one torch kernel call each wherever torch's padding can say what ONNX's says."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.windows import (
    explicit_pads,
    extents,
    per_axis,
    same_pads,
    spatial_rank,
    window_pads,
)
from meta500.backends.windows import refuse_odd
from meta500.errors import UserError

Ints = tuple[int, ...]

_CONV = (F.conv1d, F.conv2d, F.conv3d)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def _check_kernel(operator: str, kernel_shape: Ints | None, w: Tensor) -> None:
    if kernel_shape is not None and tuple(kernel_shape) != tuple(w.shape[2:]):
        raise UserError(
            f"{operator}: kernel_shape is {tuple(kernel_shape)}, but the weight has shape {tuple(w.shape)}"
        )


@rules.rule("Conv", since=1)
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX Conv: (N, C, D1..Dr), (M, C/group, k1..kr), (M) -> (N, M, O1..Or), r = 1 to 3.

    Raises:
        UserError: attributes that contradict each other or the shapes.
    """
    rank = spatial_rank("Conv", x.shape)
    strides = per_axis("Conv", "strides", strides, rank)
    dilations = per_axis("Conv", "dilations", dilations, rank)
    _check_kernel("Conv", kernel_shape, w)
    begin, end = window_pads("Conv", auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
    if begin != end or min(begin) < 0:
        # torch pads both ends alike: write the zeros out (this keeps channels-last).
        x = F.pad(x, [p for pair in zip(reversed(begin), reversed(end), strict=True) for p in pair])
        begin = (0,) * rank
    return _CONV[rank - 1](x, w, b, strides, begin, dilations, group)


@rules.rule("ConvTranspose", since=1)
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
    since_version: int = 22,
) -> Tensor:
    """ONNX ConvTranspose: (N, C, D1..Dr), (C, M/group, k1..kr), (M) -> (N, M, O1..Or), r = 1 to 3.

    Raises:
        UserError: attributes that contradict each other or the shapes; before version 11 an odd total
            padding, see ``refuse_odd``.
    """
    name = "ConvTranspose"
    rank = spatial_rank(name, x.shape)
    strides = per_axis(name, "strides", strides, rank)
    dilations = per_axis(name, "dilations", dilations, rank)
    extra = per_axis(name, "output_padding", output_padding, rank, default=0)
    _check_kernel(name, kernel_shape, w)
    begin, end = explicit_pads(name, auto_pad, pads, rank)
    reach = extents(w.shape[2:], dilations)
    full = [s * (n - 1) + r for s, n, r in zip(strides, x.shape[2:], reach, strict=True)]

    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        if output_shape is None:
            output_shape = tuple(n * s for n, s in zip(x.shape[2:], strides, strict=True))
        wanted = per_axis(name, "output_shape", output_shape, rank)
        total = [f + e - o for f, e, o in zip(full, extra, wanted, strict=True)]
        begin, end = _total_pads(auto_pad, total, since_version)
    elif min(begin + end) < 0:
        raise UserError(f"{name}: pads {begin + end} has a negative entry; ONNX allows none")
    return _cropped(x, w, b, strides, begin, end, extra, dilations, group, full)


def _total_pads(auto_pad: str, total: list[int], since_version: int) -> tuple[Ints, Ints]:
    """Begin and end crop from the total (equations in ONNX ConvTranspose 11).

    An output larger than what the kernel reaches grows at its end (node test convtranspose_output_shape).
    """
    crops = [max(t, 0) for t in total]
    missing = [min(t, 0) for t in total]
    refuse_odd(crops, since_version)
    begin, end = same_pads(auto_pad, crops)
    return begin, tuple(e + m for e, m in zip(end, missing, strict=True))


def _cropped(
    x: Tensor,
    w: Tensor,
    b: Tensor | None,
    strides: Ints,
    begin: Ints,
    end: Ints,
    extra: Ints,
    dilations: Ints,
    group: int,
    full: list[int],
) -> Tensor:
    """Transposed convolution whose full result loses ``begin`` and ``end`` and gains ``extra`` at the end.

    torch crops both ends by ``padding`` and adds ``output_padding`` at the end, so the wanted range
    ``[begin, full + extra - end)`` is one call unless that addition is negative or not below the stride;
    then the rest of the longer side is cut off the result, or zeros are added behind it.
    """
    padding, added, starts, lengths = [], [], [], []
    for axis, size in enumerate(full):
        low, high = begin[axis], size + extra[axis] - end[axis]
        limit = max(strides[axis], dilations[axis])
        if extra[axis] >= limit:
            raise UserError(
                f"ConvTranspose: output_padding {extra} must be smaller than the stride {strides} "
                f"or the dilation {dilations}"
            )
        if high <= low:
            raise UserError(
                f"ConvTranspose: pads {begin + end} leave nothing of {size} output elements "
                f"along spatial axis {axis}"
            )
        p = low
        q = high - size + p
        if q >= limit:
            p = min(max(size - high, 0), low)
            q = high - size + p
        padding.append(p)
        added.append(min(max(q, 0), limit - 1))
        starts.append(low - p)
        lengths.append(high - low)
    function = _TRANSPOSED[len(full) - 1]
    y = function(x, w, b, strides, tuple(padding), tuple(added), group, dilations)
    short = [max(s + n - m, 0) for s, n, m in zip(starts, lengths, y.shape[2:], strict=True)]
    if any(short):
        # Behind the last element that the kernel reaches there is the bias alone.
        y = function(x, w, None, strides, tuple(padding), tuple(added), group, dilations)
        y = F.pad(y, [p for n in reversed(short) for p in (0, n)])
        if b is not None:
            y = y + b.reshape(-1, *(1,) * len(full))
    for axis, (start, length) in enumerate(zip(starts, lengths, strict=True), start=2):
        if length != y.shape[axis]:
            y = y.narrow(axis, start, length)
    return y
