"""Padding of any rank in the four modes of ONNX Pad, without an index tensor."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.numpy.operators.padding import check_pad
from meta500.backends.torch.operators.integers import as_signed, as_type

Ints = tuple[int, ...]
Scalar = bool | int | float

_TORCH_MODES = {"reflect": "reflect", "edge": "replicate"}


def pad(x: Tensor, begin: Ints, end: Ints, mode: str, value: Scalar) -> Tensor:
    """``x`` with ``begin[a]`` elements before and ``end[a]`` after axis ``a``; negative counts cut off.

    Modes: constant, reflect (without repeating the edge), edge, wrap. Outside of constant mode the negative
    ones are cut off first.

    Raises:
        UserError: more cut off than there is, nothing to repeat, or one end cut off where the other one
            repeats what the cut would change.
    """
    for axis, (b, e) in enumerate(zip(begin, end, strict=True)):
        check_pad(tuple(x.shape), axis, b, e, mode)
    more = tuple(max(b, 0) for b in begin), tuple(max(e, 0) for e in end)
    less = tuple(max(-b, 0) for b in begin), tuple(max(-e, 0) for e in end)
    if mode == "constant":
        pairs = [p for pair in zip(reversed(more[0]), reversed(more[1]), strict=True) for p in pair]
        return _cut(torch.constant_pad_nd(x, pairs, value), *less)
    x = _cut(x, *less)
    begin, end = more
    if _torch_can(x, begin, end, mode):
        pairs = [p for a in range(x.ndim - 1, 1, -1) for p in (begin[a], end[a])]
        return F.pad(x, pairs, mode=_TORCH_MODES[mode])
    y = as_signed(x)
    for axis, (b, e) in enumerate(zip(begin, end, strict=True)):
        if b or e:
            y = _PADDERS[mode](y, axis, b, e)
    return as_type(y, x.dtype)


def _cut(x: Tensor, begin: Ints, end: Ints) -> Tensor:
    for axis, (b, e) in enumerate(zip(begin, end, strict=True)):
        if b or e:
            size = x.shape[axis]
            x = x.narrow(axis, min(b, size), max(size - b - e, 0))
    return x


def _torch_can(x: Tensor, begin: Ints, end: Ints, mode: str) -> bool:
    """Whether one kernel of torch pads: floats, spatial axes only, one reflection at most."""
    if mode not in _TORCH_MODES or not x.is_floating_point() or not 3 <= x.ndim <= 5:
        return False
    if any(begin[:2]) or any(end[:2]) or x.numel() == 0:
        return False
    return mode == "edge" or all(
        max(b, e) < n for n, b, e in zip(x.shape[2:], begin[2:], end[2:], strict=True)
    )


def _edge(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    shape = list(x.shape)
    parts = []
    for count, place in ((begin, 0), (end, x.shape[axis] - 1)):
        shape[axis] = count
        parts.append(x.narrow(axis, place, 1).expand(shape))
    return torch.cat([parts[0], x, parts[1]], axis)


def _reflect(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    """Mirror at the outermost elements, again and again where the pads are longer than the axis.

    One element has nothing beside it to mirror: it is repeated, as numpy does.
    """
    if x.shape[axis] == 1:
        return _edge(x, axis, begin, end)
    while begin or end:
        size = x.shape[axis]
        b, e = min(begin, size - 1), min(end, size - 1)
        before = x.narrow(axis, 1, b).flip(axis)
        after = x.narrow(axis, size - 1 - e, e).flip(axis)
        x = torch.cat([before, x, after], axis)
        begin, end = begin - b, end - e
    return x


def _wrap(x: Tensor, axis: int, begin: int, end: int) -> Tensor:
    size = x.shape[axis]
    copies = [x] * (1 + begin // size + end // size)
    head = x.narrow(axis, size - begin % size, begin % size)
    tail = x.narrow(axis, 0, end % size)
    return torch.cat([head, *copies, tail], axis)


_PADDERS = {"edge": _edge, "reflect": _reflect, "wrap": _wrap}
