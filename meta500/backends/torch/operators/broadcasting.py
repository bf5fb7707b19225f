"""The broadcasting rules that ONNX operators had before version 7 (8 for the variadic ones)."""

from __future__ import annotations

from torch import Tensor

from meta500.errors import UserError


def aligned(operator: str, a: Tensor, b: Tensor, broadcast: int, axis: int | None) -> Tensor:
    """``b`` reshaped so that numpy's broadcasting against ``a`` does what ONNX Add-1 and -6 describe.

    With ``broadcast``, ``b`` has one element, or its shape is a run of the axes of ``a`` starting at ``axis``
    (at the end of ``a`` without ``axis``), with 1 in place of any of their sizes, as ONNX's own cases have
    it. Without it both have the same shape.

    Raises:
        UserError: the shapes fit neither way.
    """
    left, right = tuple(a.shape), tuple(b.shape)
    if left == right:
        return b
    if broadcast and b.numel() == 1 and b.ndim <= a.ndim:
        return b.reshape(())
    start = a.ndim - b.ndim if axis is None else axis + a.ndim if axis < 0 else axis
    part = left[start : start + b.ndim] if start >= 0 else ()
    fits = len(part) == b.ndim and all(m in (1, n) for m, n in zip(right, part, strict=True))
    if broadcast and fits:
        return b.reshape(right + (1,) * (a.ndim - start - b.ndim))
    raise UserError(
        f"{operator}: shapes {left} and {right} do not fit with broadcast={broadcast} and axis={axis} "
        "by the rules before version 7"
    )


def require_same_shapes(operator: str, tensors: tuple[Tensor, ...]) -> None:
    """Check the inputs of a variadic operator before version 8, which does not broadcast.

    Raises:
        UserError: the shapes differ.
    """
    if any(t.shape != tensors[0].shape for t in tensors):
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise UserError(f"{operator}: before version 8 all inputs have one shape, these have {shapes}")
