"""Messages of HaloExchange and AllReduce on numpy arrays, forward and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import numpy as np

from meta500.backends.process_grid import HALO_EXCHANGE, SUM_OVER_BLOCKS, ProcessGrid, find
from meta500.errors import UserError

# Looks at messages that are not there yet: so many at once, so many with others in between, then with naps.
_EAGER, _PATIENT, _NAP = 64, 4096, 20e-6


@dataclass(frozen=True)
class Halo:
    """The attributes of a HaloExchange."""

    axis: int
    direction: int
    before: int
    after: int
    send_before: int
    send_after: int
    group: str
    tag: int


def extended(x: np.ndarray, halo: Halo) -> np.ndarray:
    """``x`` with the cells of both neighbours around it along ``halo.axis``.

    Raises:
        UserError: no such axis, a block narrower than what it has to send, or a width without a neighbour.
    """
    grid = _checked(x.shape, halo)
    size = x.shape[halo.axis]
    shape = [*x.shape]
    shape[halo.axis] += halo.before + halo.after
    result = np.empty(shape, x.dtype)
    received = _exchanged(
        grid,
        halo,
        2 * halo.tag,
        (x[_part(halo, 0, halo.send_before)], x[_part(halo, size - halo.send_after, size)]),
        (result[_part(halo, 0, halo.before)], result[_part(halo, halo.before + size, shape[halo.axis])]),
    )
    result[_part(halo, halo.before, halo.before + size)] = x
    for part, (begin, end) in zip(
        received, ((0, halo.before), (halo.before + size, shape[halo.axis])), strict=True
    ):
        if part is not None:
            result[_part(halo, begin, end)] = part
    return result


def gathered(cotangent: np.ndarray, halo: Halo) -> np.ndarray:
    """The transposed exchange: cotangents of received cells go back and are added at their owners."""
    total = cotangent.shape[halo.axis]
    size = total - halo.before - halo.after
    shape = (*cotangent.shape[: halo.axis], size, *cotangent.shape[halo.axis + 1 :])
    grid = _checked(shape, halo)
    result = np.array(cotangent[_part(halo, halo.before, halo.before + size)])
    places = (_part(halo, 0, halo.send_before), _part(halo, size - halo.send_after, size))
    received = _exchanged(
        grid,
        halo,
        2 * halo.tag + 1,
        (cotangent[_part(halo, 0, halo.before)], cotangent[_part(halo, total - halo.after, total)]),
        (result[places[0]], result[places[1]]),
    )
    for part, place in zip(received, places, strict=True):
        if part is not None:
            result[place] += part
    return result


def summed(x: np.ndarray, group: str) -> np.ndarray:
    """The sum of ``x`` over the processes of ``group``; 16-bit floats are summed in float32."""
    grid = find(group)
    wide = np.dtype(np.float32) if x.dtype.itemsize < 4 else x.dtype
    total = np.empty(x.shape, wide)
    begin = perf_counter_ns()
    given = np.ascontiguousarray(x, wide)
    _wait([grid.communicator.Iallreduce(given, total)], grid)
    if grid.count is not None:
        grid.count(SUM_OVER_BLOCKS, total.nbytes, total.nbytes, perf_counter_ns() - begin, 1)
    return np.asarray(total.astype(x.dtype, copy=False))


def _part(halo: Halo, begin: int, end: int) -> tuple[slice, ...]:
    return (slice(None),) * halo.axis + (slice(begin, end),)


def _checked(shape: Sequence[int], halo: Halo) -> ProcessGrid:
    """The grid of a halo, after a look at the widths."""
    if not 0 <= halo.axis < len(shape):
        raise UserError(f"axis {halo.axis} of a tensor of shape {list(shape)} does not exist")
    size = shape[halo.axis]
    if max(halo.send_before, halo.send_after) > size:
        raise UserError(
            f"the neighbours need {max(halo.send_before, halo.send_after)} cells of a block that has {size} "
            f"along axis {halo.axis}"
        )
    grid = find(halo.group)
    widths = ((halo.before, halo.send_before), (halo.after, halo.send_after))
    for side, neighbour, pair in zip(
        ("before", "after"), grid.neighbours(halo.direction), widths, strict=True
    ):
        if neighbour is None and any(pair):
            raise UserError(f"rank {grid.rank} has no neighbour {side} it for a halo of {max(pair)} cells")
    return grid


def _exchanged(
    grid: ProcessGrid,
    halo: Halo,
    tag: int,
    given: tuple[np.ndarray, np.ndarray],
    like: tuple[np.ndarray, np.ndarray],
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Send ``given`` to the previous and the next process; what they send, in the shapes of ``like``."""
    requests: list[Any] = []
    received: list[np.ndarray | None] = []
    kept = []  # what is being sent must live until it is
    neighbours = grid.neighbours(halo.direction)
    begin = perf_counter_ns()
    for neighbour, expected in zip(neighbours, like, strict=True):
        part = np.empty(expected.shape, expected.dtype) if neighbour is not None and expected.size else None
        received.append(part)
        if part is not None:
            requests.append(grid.communicator.Irecv(_bytes(part), neighbour, tag))
    for neighbour, part in zip(neighbours, given, strict=True):
        if neighbour is not None and part.size:
            kept.append(np.ascontiguousarray(part))
            requests.append(grid.communicator.Isend(_bytes(kept[-1]), neighbour, tag))
    _wait(requests, grid)
    if grid.count is not None:
        sent, taken = sum(p.nbytes for p in kept), sum(p.nbytes for p in received if p is not None)
        grid.count(HALO_EXCHANGE, sent, taken, perf_counter_ns() - begin, 1)
    return received[0], received[1]


def _wait(requests: list[Any], grid: ProcessGrid) -> None:
    """Wait for messages, at first without a pause.

    Raises:
        UserError: another process does not answer.
    """
    looks, begin = 0, perf_counter()
    while requests and not type(requests[0]).Testall(requests):
        looks += 1
        if looks > _EAGER:
            sleep(0 if looks < _PATIENT else _NAP)  # 0: other processes may need this processor
        if perf_counter() - begin > grid.seconds:
            raise UserError(
                f"rank {grid.rank} waited {grid.seconds:g} s for a message of another block: one of the "
                "ranks has ended, or runs something else"
            )


def _bytes(array: np.ndarray) -> np.ndarray:
    """The memory of a contiguous array, whatever its elements are: MPI has no type for bfloat16."""
    return array.reshape(-1).view(np.uint8)
