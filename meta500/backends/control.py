"""The control flow of ONNX over the callables that rules get for subgraphs, for any kind of tensor.

A backend gives the few functions on tensors that are needed (:class:`Arrays`); its rules for Loop and Scan
call these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph.types import TensorType, ValueType

Body = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Arrays:
    """``stack(tensors, axis)``; ``select(tensor, axis, index)``; ``empty(shape, numpy dtype)``; ``count(i)``
    and ``true()`` make the scalar tensors that a body gets as iteration number and condition; ``truth`` is
    the Python bool of a condition."""

    stack: Callable[[Sequence[Any], int], Any]
    select: Callable[[Any, int, int], Any]
    empty: Callable[[tuple[int, ...], np.dtype], Any]
    count: Callable[[int], Any]
    true: Callable[[], Any]
    truth: Callable[[Any], bool]


@dataclass(frozen=True)
class ScanAxes:
    """Which axis every scanned tensor has, and whether it is scanned backwards."""

    axes: tuple[int, ...]
    reverse: tuple[bool, ...]

    @classmethod
    def of(
        cls, what: str, count: int, axes: Sequence[int] | None, directions: Sequence[int] | None
    ) -> ScanAxes:
        """Attributes as ONNX has them, with their defaults: axis 0, forward.

        Raises:
            UserError: another number of entries than ``count``, or a direction that is neither 0 nor 1.
        """
        axes = tuple(axes or (0,) * count)
        directions = tuple(directions or (0,) * count)
        if len(axes) != count or len(directions) != count or any(d not in (0, 1) for d in directions):
            raise UserError(
                f"{what}: {count} axes and directions (0 or 1) are needed, "
                f"got {list(axes)} and {list(directions)}"
            )
        return cls(axes, tuple(bool(d) for d in directions))

    def index(self, which: int, step: int, length: int) -> int:
        """Where scan ``which`` is at a step."""
        return length - 1 - step if self.reverse[which] else step

    def axis(self, which: int, rank: int) -> int:
        """The axis of scan ``which`` as a number from 0.

        Raises:
            UserError: outside of the tensor's rank.
        """
        axis = self.axes[which]
        if not -rank <= axis < rank:
            raise UserError(f"scan axis {axis} is outside of rank {rank}")
        return axis % rank


def scalar(value: Any) -> Any:
    """A number or bool out of the nested list of a tensor with one element."""
    while isinstance(value, list | tuple):
        if len(value) != 1:
            raise UserError(f"one element is needed here, got {len(value)}")
        value = value[0]
    return value


def loop(
    body: Body,
    maximum: Any,
    condition: Any,
    carried: Sequence[Any],
    arrays: Arrays,
    types: Sequence[ValueType | None],
) -> tuple[tuple[Any, ...], int]:
    """ONNX Loop: run ``body(i, condition, *carried)`` until ``maximum`` runs or a false condition.

    Args:
        maximum: as a Python number, or None for no limit.
        condition: as a Python bool, or None for true.
        types: types of the body's outputs, for the shape of scan outputs of a loop that never runs.

    Returns:
        The carried values and the scan outputs, and the number of runs.

    Raises:
        UserError: the body returns another number of values than the loop carries.
    """
    limit, goes_on = scalar(maximum), scalar(condition) in (None, True)
    state = tuple(carried)
    scans: list[list[Any]] = [[] for _ in types[1 + len(state) :]]
    if len(types) < 1 + len(state):
        raise UserError(f"the body has {len(types)} outputs for a condition and {len(state)} carried values")
    done = 0
    while goes_on and (limit is None or done < limit):
        results = body(arrays.count(done), arrays.true(), *state)
        state = results[1 : 1 + len(state)]
        for collected, value in zip(scans, results[1 + len(state) :], strict=True):
            collected.append(value)
        goes_on = arrays.truth(results[0])
        done += 1
    stacked = [
        arrays.stack(values, 0) if done else nothing(kind, 0, 0, arrays)
        for values, kind in zip(scans, types[1 + len(state) :], strict=True)
    ]
    return (*state, *stacked), done


def scan(
    body: Body,
    state: Sequence[Any],
    scanned: Sequence[Any],
    inputs: ScanAxes,
    outputs: ScanAxes,
    arrays: Arrays,
    types: Sequence[ValueType | None],
    length: int | None = None,
) -> tuple[tuple[Any, ...], int]:
    """ONNX Scan (from version 9): run the body over the slices of ``scanned``.

    Args:
        length: number of steps; None for the whole axis.
        types: types of the body's outputs.

    Returns:
        The final state and the scan outputs, and the number of steps.

    Raises:
        UserError: the scanned axes have several lengths.
    """
    lengths = {x.shape[inputs.axis(k, x.ndim)] for k, x in enumerate(scanned)}
    if len(lengths) != 1:
        raise UserError(f"the scan inputs must have one length along their scan axes, got {sorted(lengths)}")
    steps = lengths.pop() if length is None else length
    state = tuple(state)
    scans: list[list[Any]] = [[] for _ in types[len(state) :]]
    for step in range(steps):
        slices = [
            arrays.select(x, inputs.axis(k, x.ndim), inputs.index(k, step, steps))
            for k, x in enumerate(scanned)
        ]
        results = body(*state, *slices)
        state = results[: len(state)]
        for collected, value in zip(scans, results[len(state) :], strict=True):
            collected.append(value)
    stacked = []
    for k, values in enumerate(scans):
        if outputs.reverse[k]:
            values = values[::-1]
        kind = types[len(state) + k]
        rank = values[0].ndim + 1 if values else len(getattr(kind, "shape", None) or ()) + 1
        axis = outputs.axis(k, rank)
        stacked.append(arrays.stack(values, axis) if values else nothing(kind, axis, 0, arrays))
    return (*state, *stacked), steps


def batch_lengths(lengths: list[int] | None, batch: int, longest: int) -> list[int]:
    """The sequence length of every entry of a batch.

    Raises:
        UserError: another number of lengths than entries, or one outside of 0 to ``longest``.
    """
    if lengths is None:
        return [longest] * batch
    if len(lengths) != batch or any(not 0 <= length <= longest for length in lengths):
        raise UserError(f"sequence_lens must be {batch} lengths from 0 to {longest}, got {lengths}")
    return lengths


def nothing(kind: ValueType | None, axis: int, length: int, arrays: Arrays) -> Any:
    """The scan output of no runs: its elements have the shape that the body declares, 0 where unknown.

    Raises:
        UserError: the body does not declare the rank or type of the output.
    """
    if not isinstance(kind, TensorType) or kind.shape is None or kind.dtype is None:
        raise UserError("a loop that never runs needs scan outputs with a declared type and rank")
    shape = [d if isinstance(d, int) else 0 for d in kind.shape]
    return arrays.empty((*shape[:axis], length, *shape[axis:]), kind.dtype)


def element_runs(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The arguments of every run of SequenceMap: sequences element by element, tensors as they are.

    Raises:
        UserError: the first value is no sequence, or sequences differ in length.
    """
    if not isinstance(values[0], list):
        raise UserError("the first input must be a sequence")
    count = len(values[0])
    for value in values:
        if isinstance(value, list) and len(value) != count:
            raise UserError(f"sequences must have one length, got {count} and {len(value)}")
    return [tuple(v[i] if isinstance(v, list) else v for v in values) for i in range(count)]
