"""Sequences (Python lists) and optionals (None for no value)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.rules import Call
from meta500.errors import UserError


def zeros(value: Any) -> Any:
    """The zero cotangent of a value: an array of zeros, or a list of them."""
    return [zeros(element) for element in value] if isinstance(value, list) else np.zeros_like(value)


def filled(cotangent: Any, value: Any) -> Any:
    """``cotangent`` with zeros where it is None, in the structure of ``value``."""
    if cotangent is None:
        return zeros(value)
    if isinstance(value, list):
        return [filled(c, v) for c, v in zip(cotangent, value, strict=True)]
    return cotangent


def position_in(position: Any, length: int, end: int) -> int:
    """An index into a sequence of ``length``, counted from the end when negative; at most ``end``.

    Raises:
        UserError: out of range.
    """
    index = int(np.asarray(position).reshape(()))
    found = index + length if index < 0 else index
    if not 0 <= found < end:
        raise UserError(f"position {index} is outside of a sequence of {length} elements")
    return found


@rules.rule("SequenceConstruct", 11)
def sequence_construct(*inputs: np.ndarray) -> list[np.ndarray]:
    """A sequence of the inputs, in order."""
    return list(inputs)


@sequence_construct.vjp
def sequence_construct_vjp(call: Call, d_sequence: list[Any]) -> tuple[Any, ...]:
    return tuple(filled(d_sequence, list(call.inputs)))


@rules.rule("SequenceEmpty", 11)
def sequence_empty(*, dtype: int | None = None) -> list[np.ndarray]:
    """A sequence without elements."""
    return []


@rules.rule("SequenceAt", 11)
def sequence_at(input_sequence: list[Any], position: np.ndarray) -> Any:
    """One element.

    Raises:
        UserError: the position is out of range.
    """
    return input_sequence[position_in(position, len(input_sequence), len(input_sequence))]


@sequence_at.vjp
def sequence_at_vjp(call: Call, d_tensor: Any) -> tuple[Any, ...]:
    sequence, position = call.inputs
    found: list[Any] = [None] * len(sequence)
    found[position_in(position, len(sequence), len(sequence))] = d_tensor
    return found, None


@rules.rule("SequenceInsert", 11)
def sequence_insert(input_sequence: list[Any], tensor: Any, position: np.ndarray | None = None) -> list[Any]:
    """The sequence with ``tensor`` at ``position`` (default: at the end).

    Raises:
        UserError: the position is out of range, or the element has another type than the others.
    """
    length = len(input_sequence)
    if length and np.asarray(input_sequence[0]).dtype != np.asarray(tensor).dtype:
        raise UserError(
            f"a sequence of {np.asarray(input_sequence[0]).dtype} can't take a {np.asarray(tensor).dtype}"
        )
    index = length if position is None else position_in(position, length, length + 1)
    return [*input_sequence[:index], tensor, *input_sequence[index:]]


@sequence_insert.vjp
def sequence_insert_vjp(call: Call, d_sequence: list[Any]) -> tuple[Any, ...]:
    sequence, tensor = call.inputs[:2]
    position = call.inputs[2] if len(call.inputs) > 2 else None
    length = len(sequence)
    index = length if position is None else position_in(position, length, length + 1)
    rest = [*d_sequence[:index], *d_sequence[index + 1 :]]
    return rest, filled(d_sequence[index], tensor), None


@rules.rule("SequenceErase", 11)
def sequence_erase(input_sequence: list[Any], position: np.ndarray | None = None) -> list[Any]:
    """The sequence without the element at ``position`` (default: the last).

    Raises:
        UserError: the position is out of range.
    """
    index = _erased(input_sequence, position)
    return [*input_sequence[:index], *input_sequence[index + 1 :]]


@sequence_erase.vjp
def sequence_erase_vjp(call: Call, d_sequence: list[Any]) -> tuple[Any, ...]:
    index = _erased(call.inputs[0], call.inputs[1] if len(call.inputs) > 1 else None)
    return [*d_sequence[:index], None, *d_sequence[index:]], None


def _erased(sequence: list[Any], position: np.ndarray | None) -> int:
    return position_in(-1 if position is None else position, len(sequence), len(sequence))


@rules.rule("SequenceLength", 11)
def sequence_length(input_sequence: list[Any]) -> np.ndarray:
    """Number of elements, an int64 scalar."""
    return np.array(len(input_sequence), np.int64)


@rules.rule("SplitToSequence", 11)
@rules.rule("SplitToSequence", 24)
def split_to_sequence(
    input: np.ndarray, split: np.ndarray | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[np.ndarray]:
    """Pieces of ``input`` along ``axis``: of length 1 (without ``split``), of one length, or of given ones.

    ``keepdims`` 0 drops the axis of pieces of length 1, and counts only without ``split``.

    Raises:
        UserError: the lengths do not add up to the size of the axis.
    """
    axis = _axis(axis, input.ndim)
    size = input.shape[axis]
    if split is None:
        pieces = np.split(input, size, axis) if size else []
        return pieces if keepdims else [np.squeeze(piece, axis) for piece in pieces]
    bounds = split_bounds(np.asarray(split).tolist(), size)
    index = (slice(None),) * axis
    return [input[(*index, slice(low, high))] for low, high in bounds]


@split_to_sequence.vjp
def split_to_sequence_vjp(call: Call, d_sequence: list[Any]) -> tuple[Any, ...]:
    x, axis = call.inputs[0], _axis(call.attributes.get("axis", 0), call.inputs[0].ndim)
    pieces = filled(d_sequence, call.outputs[0])
    if not pieces:
        return np.zeros_like(x), None
    if pieces[0].ndim < x.ndim:
        pieces = [np.expand_dims(piece, axis) for piece in pieces]
    return np.concatenate(pieces, axis), None


def split_bounds(split: int | list[int], size: int) -> list[tuple[int, int]]:
    """Begin and end of every piece; a number splits into equal pieces, the last may be shorter.

    Raises:
        UserError: a length below zero (or zero, for equal pieces), or lengths that do not add up to ``size``.
    """
    if isinstance(split, list):
        if any(length < 0 for length in split) or sum(split) != size:
            raise UserError(f"split {split} must be lengths that add up to {size}")
        ends = np.cumsum(split).tolist()
        return list(zip([0, *ends[:-1]], ends, strict=True)) if split else []
    if split <= 0:
        raise UserError(f"split must be positive, got {split}")
    return [(low, min(low + split, size)) for low in range(0, size, split)]


@rules.rule("ConcatFromSequence", 11)
def concat_from_sequence(input_sequence: list[Any], *, axis: int, new_axis: int = 0) -> np.ndarray:
    """The elements joined along ``axis``, or stacked along a new one.

    Raises:
        UserError: the sequence is empty.
    """
    if not input_sequence:
        raise UserError("an empty sequence cannot be concatenated")
    if new_axis:
        return np.stack(input_sequence, _axis(axis, input_sequence[0].ndim + 1))
    return np.concatenate(input_sequence, _axis(axis, input_sequence[0].ndim))


@concat_from_sequence.vjp
def concat_from_sequence_vjp(call: Call, d_result: np.ndarray) -> tuple[Any, ...]:
    sequence, axis = call.inputs[0], _axis(call.attributes["axis"], d_result.ndim)
    if call.attributes.get("new_axis", 0):
        return (list(np.moveaxis(d_result, axis, 0)),)
    ends = np.cumsum([element.shape[axis] for element in sequence])
    return (np.split(d_result, ends[:-1], axis),)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise UserError(f"axis {axis} is outside of rank {rank}")
    return axis % rank if rank else 0


@rules.rule("Optional", 15)
@rules.rule("Optional", 28)
def optional(input: Any = None, *, type: Any = None) -> Any:
    """An optional that holds ``input``; empty without one."""
    return input


@optional.vjp
def optional_vjp(call: Call, d_output: Any) -> tuple[Any, ...]:
    return (d_output,)


@rules.rule("OptionalGetElement", 15)
@rules.rule("OptionalGetElement", 18)
@rules.rule("OptionalGetElement", 28)
def optional_get_element(input: Any) -> Any:
    """The value of an optional.

    Raises:
        UserError: it has none.
    """
    if input is None:
        raise UserError("the optional has no value; ask OptionalHasElement first")
    return input


@optional_get_element.vjp
def optional_get_element_vjp(call: Call, d_output: Any) -> tuple[Any, ...]:
    return (d_output,)


@rules.rule("OptionalHasElement", 15)
@rules.rule("OptionalHasElement", 18)
@rules.rule("OptionalHasElement", 28)
def optional_has_element(input: Any = None) -> np.ndarray:
    """Whether an optional has a value, a bool scalar."""
    return np.array(input is not None)
