"""Where the windows of a convolution or a pooling lie: paddings, output sizes and counts from shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from meta500.backends.torch.compilation import constant_in_graphs
from meta500.backends.windows import refuse_negative
from meta500.errors import UserError

AUTO_PAD = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")

Ints = tuple[int, ...]


def spatial_rank(operator: str, shape: Sequence[int]) -> int:
    """Number of spatial axes of an input of shape (N, C, D1, ..., Dr).

    Raises:
        UserError: fewer than 1 or more than 3 spatial axes, for which torch has no kernel.
    """
    rank = len(shape) - 2
    if not 1 <= rank <= 3:
        raise UserError(
            f"{operator}: the input has shape {tuple(shape)}, that is {rank} spatial axes; "
            "torch has 1 to 3 behind batch and channel"
        )
    return rank


def per_axis(operator: str, name: str, value: Sequence[int] | None, rank: int, default: int = 1) -> Ints:
    """The attribute ``name`` with one entry for each spatial axis, ``default`` where it is absent.

    Raises:
        UserError: the attribute has another number of entries.
    """
    if value is None:
        return (default,) * rank
    if len(value) != rank:
        raise UserError(
            f"{operator}: {name} is {tuple(value)}, but the input has {rank} spatial axes, "
            f"which need {rank} entries"
        )
    return tuple(value)


def extents(kernel: Sequence[int], dilations: Sequence[int]) -> Ints:
    """Number of input positions that a dilated kernel reaches over, per axis."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))


def explicit_pads(operator: str, auto_pad: str, pads: Sequence[int] | None, rank: int) -> tuple[Ints, Ints]:
    """Begin and end paddings as written in ``pads`` (zeros where absent), after checking both attributes.

    Raises:
        UserError: unknown ``auto_pad``, a wrong number of pads, or nonzero pads beside an ``auto_pad``.
    """
    if auto_pad not in AUTO_PAD:
        raise UserError(f"{operator}: auto_pad '{auto_pad}' is not one of {', '.join(AUTO_PAD)}")
    if pads is None:
        return (0,) * rank, (0,) * rank
    if len(pads) != 2 * rank:
        raise UserError(
            f"{operator}: pads is {tuple(pads)}; {rank} spatial axes need {2 * rank} entries, "
            "all begins before all ends"
        )
    if auto_pad != "NOTSET" and any(pads):
        raise UserError(f"{operator}: pads {tuple(pads)} and auto_pad {auto_pad} exclude each other")
    return tuple(pads[:rank]), tuple(pads[rank:])


def same_pads(auto_pad: str, total: Sequence[int]) -> tuple[Ints, Ints]:
    """Split total paddings in two; of an odd one the extra element goes to the end for SAME_UPPER."""
    small = tuple(t // 2 for t in total)
    large = tuple(t - t // 2 for t in total)
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def window_pads(
    operator: str,
    auto_pad: str,
    pads: Sequence[int] | None,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Ints, Ints]:
    """Begin and end paddings of a convolution or pooling over an input with spatial ``sizes``.

    SAME_* pads so that ``output = ceil(input / stride)`` (ONNX Conv).

    Raises:
        UserError: see ``explicit_pads``.
    """
    begin, end = explicit_pads(operator, auto_pad, pads, len(sizes))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        reach = extents(kernel, dilations)
        total = [(-(-n // s) - 1) * s + r - n for n, s, r in zip(sizes, strides, reach, strict=True)]
        for axis, padding in enumerate(total):
            if padding < -1 and not operator.startswith("Conv"):
                refuse_negative(operator, auto_pad, padding, axis)
        return same_pads(auto_pad, [max(t, 0) for t in total])
    return begin, end


def pooled_sizes(
    operator: str,
    auto_pad: str,
    sizes: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: int,
) -> Ints:
    """Spatial output sizes of a pooling (ONNX MaxPool-22).

    In ceil mode a last window that would start in the end padding is left out, as version 22 states and
    every runtime does for the older versions too, whose text leaves its value undefined.

    Raises:
        UserError: a window is larger than the padded input, or ``ceil_mode`` would matter with VALID, where
            ONNX's text and its shape inference disagree.
    """
    out = []
    for axis, reach in enumerate(extents(kernel, dilations)):
        n, s = sizes[axis], strides[axis]
        room = n + begin[axis] + end[axis] - reach
        if room < 0:
            raise UserError(
                f"{operator}: the window reaches over {reach} elements, the padded input has "
                f"{n + begin[axis] + end[axis]} along spatial axis {axis}"
            )
        count = room // s + 1
        if ceil_mode and auto_pad == "VALID" and room % s:
            raise UserError(
                f"{operator}: ceil_mode with auto_pad VALID has {count} windows along spatial axis {axis} by "
                f"ONNX's text and {count + 1} by its shape inference; write auto_pad NOTSET instead"
            )
        if ceil_mode:
            count = -(-room // s) + 1
            if (count - 1) * s >= n + begin[axis]:
                count -= 1
        out.append(count)
    return tuple(out)


@lru_cache(maxsize=256)
def _counts(low: int, high: int, begin: int, kernel: int, stride: int, dilation: int, out: int) -> Ints:
    starts = (i * stride - begin for i in range(out))
    return tuple(sum(low <= start + j * dilation < high for j in range(kernel)) for start in starts)


@constant_in_graphs
def window_counts(low: int, high: int, begin: int, kernel: int, stride: int, dilation: int, out: int) -> Ints:
    """For each of ``out`` windows along one axis, how many of its taps lie in ``low <= position < high``.

    Position 0 is the first element of the unpadded input; the first window starts at ``-begin``.
    """
    return _counts(low, high, begin, kernel, stride, dilation, out)
