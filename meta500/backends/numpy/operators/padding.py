"""Pad: grow or cut axes, filled with a constant or from the tensor itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import normal_axes, numeric_vjp, scatter_sum
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Gradients = tuple[np.ndarray | None, ...]

PAD_MODES = ("constant", "reflect", "edge", "wrap")


def _pad(
    x: np.ndarray,
    pads: Sequence[int],
    mode: str,
    constant: Any,
    axes: Sequence[int] | None,
    modes: Sequence[str],
    saved: dict[str, Any],
) -> np.ndarray:
    choose("mode of Pad", mode, modes)
    normal = tuple(range(x.ndim)) if axes is None else normal_axes(axes, x.ndim, "Pad")
    if len(pads) != 2 * len(normal):
        raise UserError(f"Pad: {len(pads)} pads for {len(normal)} axes of {x.shape}; expected two per axis")
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(normal):
        widths[axis] = (int(pads[i]), int(pads[i + len(normal)]))
    for axis, (begin, end) in enumerate(widths):
        check_pad(x.shape, axis, begin, end, mode)
    kept = tuple(slice(max(-b, 0), n - max(-e, 0)) for (b, e), n in zip(widths, x.shape, strict=True))
    grown = [(max(b, 0), max(e, 0)) for b, e in widths]
    saved.update(kept=kept, mode=mode, grown=grown)
    if mode == "constant":
        return np.pad(x[kept], grown, mode="constant", constant_values=constant)
    indices = {}
    y = x
    for axis, sides in enumerate(grown):
        if kept[axis] != slice(0, x.shape[axis]) or any(sides):
            indices[axis] = np.pad(np.arange(x.shape[axis])[kept[axis]], sides, mode=mode)  # type: ignore[call-overload]
            y = y.take(indices[axis], axis=axis)
    saved["indices"] = indices
    return y


def check_pad(shape: tuple[int, ...], axis: int, begin: int, end: int, mode: str) -> None:
    """Refuse what has no defined meaning.

    Raises:
        UserError: more is cut off than there is; an empty axis is filled from itself; one side is cut where
            the other side is filled with elements that the cut would change.
    """
    left = shape[axis] + min(begin, 0) + min(end, 0)
    grown = max(begin, end)
    if left < 0:
        raise UserError(f"Pad: pads {begin} and {end} cut more than axis {axis} of {shape} has")
    if mode == "constant" or grown <= 0:
        return
    if left == 0:
        raise UserError(f"Pad: axis {axis} of {shape} has no elements left to fill from in mode {mode}")
    reach = {"edge": 1, "reflect": grown + 1, "wrap": math.inf}[mode]
    if min(begin, end) < 0 and reach > left:
        raise UserError(
            f"Pad: pads {begin} and {end} of axis {axis} cut elements that mode {mode} fills with; "
            f"ONNX does not say which comes first"
        )


def _pad_constant(x: np.ndarray, constant: np.ndarray | None) -> Any:
    if constant is None:
        return "" if x.dtype == object else x.dtype.type(0)
    if constant.size != 1:
        raise UserError(f"Pad: constant_value has shape {constant.shape}, expected one value")
    return constant.reshape(())


@rules.rule("Pad", 18, host=("pads", "axes"))
def pad_axes(
    x: np.ndarray,
    pads: list[int],
    constant_value: np.ndarray | None = None,
    axes: list[int] | None = None,
    *,
    mode: str = "constant",
    since_version: int,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX Pad over the given axes (all without ``axes``); negative pads cut. Mode "wrap" from version 19 on.

    Raises:
        UserError: unknown mode, wrong number of pads, or a combination without a defined meaning.
    """
    modes = PAD_MODES if since_version >= 19 else PAD_MODES[:3]
    return _pad(x, pads, mode, _pad_constant(x, constant_value), axes, modes, saved)


@rules.rule("Pad", 11, host=("pads",))
def pad(
    x: np.ndarray,
    pads: list[int],
    constant_value: np.ndarray | None = None,
    *,
    mode: str = "constant",
    saved: dict[str, Any],
) -> np.ndarray:
    """Versions 11 and 13: pads for all axes."""
    return _pad(x, pads, mode, _pad_constant(x, constant_value), None, PAD_MODES[:3], saved)


@rules.rule("Pad", 2)
def pad_attributes(
    x: np.ndarray,
    *,
    mode: str = "constant",
    pads: tuple[int, ...],
    value: float = 0.0,
    saved: dict[str, Any],
) -> np.ndarray:
    """Version 2: pads and value are attributes."""
    return _pad(x, pads, mode, x.dtype.type(value), None, PAD_MODES[:3], saved)


@rules.rule("Pad", 1)
def pad_paddings(
    x: np.ndarray,
    *,
    mode: str = "constant",
    paddings: tuple[int, ...],
    value: float = 0.0,
    saved: dict[str, Any],
) -> np.ndarray:
    """Version 1: the attribute is called ``paddings``."""
    return _pad(x, paddings, mode, x.dtype.type(value), None, PAD_MODES[:3], saved)


@pad_axes.vjp
@pad.vjp
@pad_attributes.vjp
@pad_paddings.vjp
@numeric_vjp
def pad_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The inner part of the cotangent; what was filled from x goes back there, the rest to the constant."""
    x, saved = call.inputs[0], call.saved
    rest: list[np.ndarray | None] = [None] * (len(call.inputs) - 1)
    if saved["mode"] != "constant":
        d_x = d
        for axis, index in saved["indices"].items():
            d_x = scatter_sum(d_x, index, x.shape[axis], axis)
        if len(rest) > 1 and call.inputs[2] is not None:
            rest[1] = np.zeros(call.inputs[2].shape, d.dtype)
        return (d_x, *rest)
    inner = tuple(slice(b, n - e) for (b, e), n in zip(saved["grown"], d.shape, strict=True))
    d_x = np.zeros(x.shape, d.dtype)
    d_x[saved["kept"]] = d[inner]
    if len(call.inputs) > 2 and call.inputs[2] is not None and call.needs[2]:
        outside = d.copy()
        outside[inner] = 0
        rest[1] = outside.sum().reshape(call.inputs[2].shape)
    return (d_x, *rest)
