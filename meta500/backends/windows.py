"""Geometry of sliding windows: what convolution and pooling compute from pads, strides and dilations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meta500.errors import UserError, choose

AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Windows:
    """Windows over D spatial axes: every field has one entry per axis.

    ``begins`` and ``ends`` are the padding, ``outputs`` the number of window positions.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Length that one dilated window covers."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def spans(self) -> tuple[int, ...]:
        """Length that all windows together cover, from the first padded element."""
        return tuple(
            (o - 1) * s + e if o else 0
            for o, s, e in zip(self.outputs, self.strides, self.extents, strict=True)
        )

    def offsets(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """For every position in the kernel: its index, and the slices of the padded array that the
        windows see there (one element per window)."""
        for index in itertools.product(*(range(k) for k in self.kernel)):
            yield (
                index,
                tuple(
                    slice(i * d, i * d + (o - 1) * s + 1 if o else i * d, s)
                    for i, d, o, s in zip(index, self.dilations, self.outputs, self.strides, strict=True)
                ),
            )

    def counts(self, spatial: Sequence[int], include_pad: bool) -> list[np.ndarray]:
        """Per axis, how many elements of each window are input elements.

        With ``include_pad`` the padding counts too, but never what lies beyond it (with ceil_mode the last
        window may reach further).
        """
        result = []
        for i, n in enumerate(spatial):
            starts = np.arange(self.outputs[i]) * self.strides[i] - self.begins[i]
            places = starts[:, None] + np.arange(self.kernel[i]) * self.dilations[i]
            low, high = (-self.begins[i], n + self.ends[i]) if include_pad else (0, n)
            result.append(((places >= low) & (places < high)).sum(axis=1))
        return result


def per_axis(
    operator: str, name: str, values: Sequence[int] | None, rank: int, least: int, default: int
) -> tuple[int, ...]:
    """An attribute with one entry per spatial axis, checked; ``default`` where it is absent.

    Raises:
        UserError: the wrong number of entries, or one below ``least``.
    """
    if values is None or len(values) == 0:
        return (default,) * rank
    if len(values) != rank or min(values) < least:
        raise UserError(
            f"{operator}: {name} is {list(values)}, expected {rank} integers of at least {least} "
            f"(one per spatial axis)"
        )
    return tuple(int(v) for v in values)


def explicit_pads(
    operator: str, pads: Sequence[int] | None, auto_pad: str, rank: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """``pads`` as (begins, ends).

    Raises:
        UserError: wrong length, negative, or not zero beside an ``auto_pad`` other than NOTSET.
    """
    choose(f"auto_pad of {operator}", auto_pad, AUTO_PADS)
    if pads is None or len(pads) == 0:
        return (0,) * rank, (0,) * rank
    if len(pads) != 2 * rank or min(pads) < 0:
        raise UserError(
            f"{operator}: pads is {list(pads)}, expected {2 * rank} integers of at least 0 "
            f"(begin of every spatial axis, then end of every spatial axis)"
        )
    if auto_pad != "NOTSET" and any(pads):
        raise UserError(f"{operator}: pads {list(pads)} and auto_pad {auto_pad} exclude each other")
    return tuple(pads[:rank]), tuple(pads[rank:])


def divided(total: int, auto_pad: str) -> tuple[int, int]:
    """A total padding as (begin, end): the odd element goes to the end for SAME_UPPER, else to the begin."""
    small = total // 2
    return (small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small)


def refuse_negative(operator: str, auto_pad: str, total: int, axis: int) -> None:
    """Refuse a pooling whose windows leave out more than one element along an axis.

    The equation of ONNX's text gives a negative padding there, which ``pads`` must not be; runtimes disagree
    on where the first window starts.

    Raises:
        UserError: always.
    """
    raise UserError(
        f"{operator}: auto_pad {auto_pad} gives a total padding of {total} along spatial axis {axis}, which "
        "ONNX does not define; make the kernel as large as the stride, or write auto_pad VALID or pads"
    )


def sliding(
    operator: str,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int = 0,
) -> Windows:
    """Windows of a convolution or a pooling over an input of the given spatial shape.

    Output sizes follow ONNX: floor((n + pads - extent) / stride) + 1, or with ``ceil_mode`` the ceiling,
    where a window that would start in the padding at the end is dropped; ceil(n / stride) for SAME_UPPER and
    SAME_LOWER.

    Raises:
        UserError: an attribute has the wrong length or sign, or the window is larger than the padded input.
    """
    rank = len(spatial)
    kernel = per_axis(operator, "kernel_shape", kernel, rank, 1, 1)
    strides = per_axis(operator, "strides", strides, rank, 1, 1)
    dilations = per_axis(operator, "dilations", dilations, rank, 1, 1)
    begins, ends = (list(part) for part in explicit_pads(operator, pads, auto_pad, rank))
    outputs = []
    for i, n in enumerate(spatial):
        extent, stride = (kernel[i] - 1) * dilations[i] + 1, strides[i]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            outputs.append(math.ceil(n / stride))
            total = (outputs[i] - 1) * stride + extent - n
            if total < -1 and not operator.startswith("Conv"):
                refuse_negative(operator, auto_pad, total, i)
            begins[i], ends[i] = divided(max(total, 0), auto_pad)
            continue
        room = n + begins[i] + ends[i] - extent
        if room < 0:
            raise UserError(
                f"{operator}: the window covers {extent} elements along spatial axis {i}, more than the "
                f"{n + begins[i] + ends[i]} of the padded input (shape {tuple(spatial)})"
            )
        count = (-(-room // stride) if ceil_mode and auto_pad == "NOTSET" else room // stride) + 1
        if ceil_mode and (count - 1) * stride >= n + begins[i]:
            count -= 1
        outputs.append(count)
    return Windows(kernel, strides, dilations, tuple(begins), tuple(ends), tuple(outputs))


def padded(x: np.ndarray, windows: Windows, value: float | int) -> np.ndarray:
    """The part of ``x`` (N, C, *spatial) that the windows see, filled with ``value`` outside ``x``.

    Its spatial shape is ``windows.spans``; a view where nothing has to be filled.
    """
    spans, begins, spatial = windows.spans, windows.begins, x.shape[2:]
    if not any(begins) and all(n >= span for n, span in zip(spatial, spans, strict=True)):
        return x[(slice(None), slice(None), *(slice(span) for span in spans))]
    result = np.full((*x.shape[:2], *spans), value, x.dtype)
    inner = tuple(slice(b, b + n) for b, n in zip(begins, spatial, strict=True))
    kept = tuple(slice(max(min(n, span - b), 0)) for n, span, b in zip(spatial, spans, begins, strict=True))
    result[(slice(None), slice(None), *inner)] = x[(slice(None), slice(None), *kept)]
    return result


def unpadded(buffer: np.ndarray, windows: Windows, spatial: Sequence[int]) -> np.ndarray:
    """The part of a padded buffer (N, C, *lengths) that lies on an array of the given spatial shape."""
    inner = (slice(b, b + n) for b, n in zip(windows.begins, spatial, strict=True))
    return buffer[(slice(None), slice(None), *inner)]


def buffer_shape(windows: Windows, spatial: Sequence[int]) -> tuple[int, ...]:
    """Spatial shape of a buffer that holds all windows and the whole (shifted) array."""
    return tuple(max(span, b + n) for span, b, n in zip(windows.spans, windows.begins, spatial, strict=True))


def transposed(
    spatial: Sequence[int],
    kernel: tuple[int, ...],
    strides: Sequence[int] | None,
    pads: Sequence[int] | None,
    dilations: Sequence[int] | None,
    output_padding: Sequence[int] | None,
    output_shape: Sequence[int] | None,
    auto_pad: str,
    since_version: int,
) -> tuple[Windows, tuple[int, ...]]:
    """Windows of the convolution whose adjoint is wanted, and the spatial shape of the result.

    A total padding below zero counts as zero: the missing elements are zeros at the end.

    Raises:
        UserError: attributes do not fit, or ``refuse_odd`` applies.
    """
    rank = len(spatial)
    steps = per_axis("ConvTranspose", "strides", strides, rank, 1, 1)
    spread = per_axis("ConvTranspose", "dilations", dilations, rank, 1, 1)
    extra = per_axis("ConvTranspose", "output_padding", output_padding, rank, 0, 0)
    if output_shape:
        shape: tuple[int, ...] | None = per_axis("ConvTranspose", "output_shape", output_shape, rank, 1, 1)
        explicit_pads("ConvTranspose", None, auto_pad, rank)
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        explicit_pads("ConvTranspose", pads, auto_pad, rank)
        shape = tuple(n * s for n, s in zip(spatial, steps, strict=True))
    else:
        shape = None
        begins, ends = explicit_pads("ConvTranspose", pads, auto_pad, rank)
    full = [
        s * (n - 1) + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(spatial, steps, kernel, spread, extra, strict=True)
    ]
    if shape is None:
        shape = tuple(f - b - e for f, b, e in zip(full, begins, ends, strict=True))
        if min(shape) < 1:
            raise UserError(
                f"ConvTranspose: pads {list(pads or ())} leave nothing of an output of shape {tuple(full)}"
            )
    else:
        totals = [max(f - n, 0) for f, n in zip(full, shape, strict=True)]
        refuse_odd(totals, since_version)
        sides = [divided(total, auto_pad) for total in totals]
        begins, ends = (tuple(side[i] for side in sides) for i in (0, 1))
    return Windows(kernel, steps, spread, begins, ends, tuple(spatial)), shape


def refuse_odd(totals: Sequence[int], since_version: int) -> None:
    """Refuse what ConvTranspose-1 leaves open: which side gets the odd element of a total padding.

    Its equations have the sides exchanged against its own description of ``auto_pad``, against version 11
    and against what runtimes do for both.

    Raises:
        UserError: an odd total before version 11.
    """
    if since_version < 11 and any(total % 2 for total in totals):
        raise UserError(
            f"ConvTranspose version {since_version}: total paddings {list(totals)} have an odd number, whose "
            "sides are defined in two ways there; convert the model to opset 11 or later, or write pads"
        )
