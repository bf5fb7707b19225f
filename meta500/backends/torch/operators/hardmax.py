"""Hardmax: one at the first maximum, zero elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.errors import UserError


def _first_maximum(x: Tensor) -> Tensor:
    """1 at the first maximum of every row of the last axis, else 0; the gradient is zero."""
    if not x.numel():
        return x
    places = torch.arange(x.shape[-1], device=x.device)
    hot = places == x.argmax(-1, keepdim=True)
    # Filled instead of made anew: the result stays part of the graph, with gradient zero.
    return x.masked_fill(hot, 1).masked_fill(~hot, 0)


@rules.rule("Hardmax", 13)
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX Hardmax: 1 at the first maximum along ``axis``, else 0.

    Raises:
        UserError: the axis is out of range.
    """
    if not -x.ndim <= axis < x.ndim:
        raise UserError(f"Hardmax: axis {axis} is outside of the {x.ndim} axes of the input")
    return _first_maximum(x.movedim(axis, -1)).movedim(-1, axis)


@rules.rule("Hardmax", 1)
def hardmax_coerced(x: Tensor, *, axis: int = 1) -> Tensor:
    """Hardmax before version 13: over all axes from ``axis`` on, taken as one.

    Raises:
        UserError: the axis is out of range.
    """
    if not -x.ndim <= axis <= x.ndim:
        raise UserError(f"Hardmax: axis {axis} is outside of the {x.ndim} axes of the input")
    start = axis + x.ndim if axis < 0 else axis
    matrix = x.flatten(start) if start < x.ndim else x.unsqueeze(-1)
    return _first_maximum(matrix).reshape(x.shape)
