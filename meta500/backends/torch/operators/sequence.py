"""Sequences (Python lists) and optionals (None for no value).

Elements are tensors, or numpy arrays where torch lacks the element type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.errors import UserError


def _position(index: int, length: int, end: int) -> int:
    found = index + length if index < 0 else index
    if not 0 <= found < end:
        raise UserError(f"position {index} is outside of a sequence of {length} elements")
    return found


@rules.rule("SequenceConstruct", since=11)
def sequence_construct(*inputs: Any) -> list[Any]:
    """ONNX SequenceConstruct: the inputs as a sequence, in order."""
    return list(inputs)


@rules.rule("SequenceEmpty", since=11)
def sequence_empty(*, dtype: int | None = None) -> list[Any]:
    """ONNX SequenceEmpty: a sequence without elements."""
    return []


@rules.rule("SequenceAt", since=11, host=("position",))
def sequence_at(input_sequence: list[Any], position: int) -> Any:
    """ONNX SequenceAt: one element; a negative position counts from the end.

    Raises:
        UserError: the position is out of range.
    """
    return input_sequence[_position(_number(position), len(input_sequence), len(input_sequence))]


@rules.rule("SequenceInsert", since=11, host=("position",))
def sequence_insert(input_sequence: list[Any], tensor: Any, position: int | None = None) -> list[Any]:
    """ONNX SequenceInsert: the sequence with ``tensor`` at ``position`` (default: at the end).

    Raises:
        UserError: the position is out of range, or the element has another type than the others.
    """
    length = len(input_sequence)
    if length and input_sequence[0].dtype != tensor.dtype:
        raise UserError(f"a sequence of {input_sequence[0].dtype} can't take a {tensor.dtype}")
    index = length if position is None else _position(_number(position), length, length + 1)
    return [*input_sequence[:index], tensor, *input_sequence[index:]]


@rules.rule("SequenceErase", since=11, host=("position",))
def sequence_erase(input_sequence: list[Any], position: int | None = None) -> list[Any]:
    """ONNX SequenceErase: the sequence without the element at ``position`` (default: the last).

    Raises:
        UserError: the position is out of range.
    """
    length = len(input_sequence)
    index = _position(-1 if position is None else _number(position), length, length)
    return [*input_sequence[:index], *input_sequence[index + 1 :]]


@rules.rule("SequenceLength", since=11)
def sequence_length(input_sequence: list[Any]) -> Tensor:
    """ONNX SequenceLength: the number of elements, an int64 scalar on the host."""
    return torch.tensor(len(input_sequence), dtype=torch.int64)


@rules.rule("SplitToSequence", since=11, host=("split",))
@rules.rule("SplitToSequence", since=24, host=("split",))
def split_to_sequence(x: Tensor, split: Any = None, *, axis: int = 0, keepdims: int = 1) -> list[Tensor]:
    """ONNX SplitToSequence: pieces of length 1, of one length (the last may be shorter), or of given lengths.

    ``keepdims`` 0 drops the axis of pieces of length 1, and counts only without ``split``.

    Raises:
        UserError: the lengths do not add up to the size of the axis.
    """
    axis = _axis(axis, x.ndim)
    size = x.shape[axis]
    if split is None:
        if keepdims:
            return list(torch.split(x, 1, axis)) if size else []
        return list(torch.unbind(x, axis))
    if isinstance(split, int):
        if split <= 0:
            raise UserError(f"split must be positive, got {split}")
        return list(torch.split(x, split, axis)) if size else []
    lengths = [int(length) for length in split]
    if any(length < 0 for length in lengths) or sum(lengths) != size:
        raise UserError(f"split {lengths} must be lengths that add up to {size}")
    return list(torch.split(x, lengths, axis)) if lengths else []


@rules.rule("ConcatFromSequence", since=11)
def concat_from_sequence(input_sequence: list[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    """ONNX ConcatFromSequence: the elements joined along ``axis``, or stacked along a new one.

    Raises:
        UserError: the sequence is empty, or its elements differ in their number of axes.
    """
    if not input_sequence:
        raise UserError("an empty sequence cannot be concatenated")
    rank = input_sequence[0].ndim
    if any(element.ndim != rank for element in input_sequence):
        raise UserError("the elements of the sequence must have one number of axes")
    if new_axis:
        return torch.stack(input_sequence, _axis(axis, rank + 1))
    return torch.cat(input_sequence, _axis(axis, rank))


@rules.rule("Optional", since=15)
@rules.rule("Optional", since=28)
def optional(value: Any = None, *, type: Any = None) -> Any:
    """ONNX Optional: an optional that holds ``value``; empty without one."""
    return value


@rules.rule("OptionalGetElement", since=15)
@rules.rule("OptionalGetElement", since=18)
@rules.rule("OptionalGetElement", since=28)
def optional_get_element(value: Any) -> Any:
    """ONNX OptionalGetElement: the value of an optional.

    Raises:
        UserError: it has none.
    """
    if value is None:
        raise UserError("the optional has no value; ask OptionalHasElement first")
    return value


@rules.rule("OptionalHasElement", since=15)
@rules.rule("OptionalHasElement", since=18)
@rules.rule("OptionalHasElement", since=28)
def optional_has_element(value: Any = None) -> Tensor:
    """ONNX OptionalHasElement: whether an optional has a value, a bool scalar on the host."""
    return torch.tensor(value is not None)


def _number(value: Any) -> int:
    while isinstance(value, list | tuple):
        (value,) = value
    return int(value)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise UserError(f"axis {axis} is outside of rank {rank}")
    return axis % rank if rank else 0
