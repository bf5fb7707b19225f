"""Allreduce of large arrays as a ring of messages: every element travels twice, in pieces that stay in cache.

The array is cut into as many chunks as there are ranks. In P - 1 steps every rank sends a chunk to the next
rank and adds what it receives to its own; then it holds the sum of one chunk, and in P - 1 further steps the
sums go round (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", Journal of Parallel and Distributed Computing 69, 2009). Each chunk is summed up once, in one
order, so that all ranks get the same bits, and the same in every run.

MPI libraries use this algorithm too, but on one machine theirs may be several times slower than
point-to-point messages, which copy directly from process to process. A mean costs only 1/P of a pass over the
array, since each rank divides its own chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.distributed import buffers
from meta500.distributed.pending import SPIN_SECONDS, PeerTimeout, poll
from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

# From this many bytes per rank on the ring is used; below, the steps' latencies weigh more.
BYTES_PER_RANK = 2 * 1024 * 1024
# A chunk travels in pieces of about this many bytes: what arrived is added while it is in cache, and while
# the next piece is on its way.
PIECE_BYTES = 1024 * 1024
TAG = 1
_COMBINE: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
}


def suits(network: CommunicationNetwork, array: np.ndarray) -> bool:
    """Whether the ring is meant for an array; the same on all ranks."""
    size = network.size
    return (
        size > 1
        and array.nbytes >= BYTES_PER_RANK * size
        and network.algorithm == "auto"
        and array.dtype in buffers.NATIVE_FLOATS
    )


def allreduce(
    network: CommunicationNetwork,
    name: str,
    send: np.ndarray | None,
    receive: np.ndarray,
    op: str,
    divisor: float = 1.0,
    factor: float = 1.0,
) -> None:
    """``receive`` = the combination of all ranks' ``factor * send``, divided by ``divisor``; blocking.

    Args:
        send: contiguous array; None: ``receive`` holds this rank's values.
        receive: contiguous array of the same shape and type, apart from ``send`` in memory.
        op: "sum", "mean" (a sum; the divisor is the caller's), "max" or "min".
        factor: of this rank's values; with 0 they are not looked at.

    Raises:
        PeerTimeout: another rank did not come within the network's timeout.
    """
    target = receive.reshape(-1)
    source = target if send is None else send.reshape(-1)
    with _complete(network, name, source, target):
        chunks = _reduce_scatter(network, name, source, target, op, divisor, factor)
        _pass_on(network, name, target, chunks)


def _pass_on(
    network: CommunicationNetwork, name: str, target: np.ndarray, chunks: Sequence[Sequence[tuple[int, int]]]
) -> None:
    """Give the finished chunks round, until every rank has all of them."""
    size, rank, comm = network.size, network.rank, network._private
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        receives = [comm.Irecv(target[a:b], before, TAG) for a, b in chunks[(rank - step) % size]]
        sends = [comm.Isend(target[a:b], after, TAG) for a, b in chunks[(rank + 1 - step) % size]]
        for request in (*receives, *sends):
            _wait(network, name, request)


def reduce_at_root(
    network: CommunicationNetwork,
    name: str,
    send: np.ndarray | None,
    receive: np.ndarray,
    op: str,
    divisor: float = 1.0,
    factor: float = 1.0,
) -> None:
    """As :func:`allreduce`, but only the root's ``receive`` holds the result; that of others is work space.

    Every rank sends the chunk that it has summed up to the root.
    """
    size, rank, root, comm = network.size, network.rank, network.root, network._private
    target = receive.reshape(-1)
    source = target if send is None else send.reshape(-1)
    with _complete(network, name, source, target):
        chunks = _reduce_scatter(network, name, source, target, op, divisor, factor)
        if rank == root:
            requests = [
                comm.Irecv(target[a:b], other, TAG)
                for other in range(size)
                if other != root
                for a, b in chunks[(other + 1) % size]
            ]
        else:
            requests = [comm.Isend(target[a:b], root, TAG) for a, b in chunks[(rank + 1) % size]]
        for request in requests:
            _wait(network, name, request)


@contextmanager
def _complete(network: CommunicationNetwork, name: str, *arrays: np.ndarray) -> Iterator[None]:
    """The whole exchange, or none after it.

    Messages of an exchange that was given up may still arrive: into its arrays, which are kept for them, and
    into receives of the next one, where they would be taken for its own.

    Raises:
        UserError: an earlier exchange was given up.
    """
    if network._given_up:
        raise UserError(
            f"{name}: an earlier exchange waited in vain for another rank, whose messages may still come; "
            "make a new CommunicationNetwork on all ranks"
        )
    try:
        yield
    except PeerTimeout:
        network._given_up += [*arrays, *network._work]
        raise


def _reduce_scatter(
    network: CommunicationNetwork,
    name: str,
    source: np.ndarray,
    target: np.ndarray,
    op: str,
    divisor: float,
    factor: float,
) -> list[list[tuple[int, int]]]:
    """Make chunk rank + 1 of ``target`` the result; the chunks, as lists of pieces (begin, end)."""
    size, rank, comm = network.size, network.rank, network._private
    bounds = [len(target) * k // size for k in range(size + 1)]
    pieces = max(1, -(-len(target) * target.itemsize // (size * PIECE_BYTES)))
    chunks = [_pieces(low, high, pieces) for low, high in pairwise(bounds)]
    scratch = network._scratch(len(target) // size + 1, target.dtype)
    after, before = (rank + 1) % size, (rank - 1) % size
    combine = _COMBINE[op]
    for step in range(size - 1):
        incoming = chunks[(rank - step - 1) % size]
        start = incoming[0][0]
        places = [scratch[a - start : b - start] for a, b in incoming]
        receives = [comm.Irecv(place, before, TAG) for place in places]
        sends = []
        for a, b in chunks[(rank - step) % size]:
            if step:
                sends.append(comm.Isend(target[a:b], after, TAG))
            else:
                sends.append(comm.Isend(_scaled(source, target, a, b, factor), after, TAG))
        for (a, b), place, request in zip(incoming, places, receives, strict=True):
            _wait(network, name, request)
            combine(_scaled(source, target, a, b, factor), place, out=target[a:b])
            if step == size - 2 and divisor != 1:
                np.divide(target[a:b], target.dtype.type(divisor), out=target[a:b])
        for request in sends:
            _wait(network, name, request)
    return chunks


def _scaled(source: np.ndarray, target: np.ndarray, a: int, b: int, factor: float) -> np.ndarray:
    """Elements a to b of ``factor * source``, in ``target`` unless the factor is 1."""
    if factor == 1:
        return source[a:b]
    if factor == 0:
        target[a:b] = 0
        return target[a:b]
    return np.multiply(source[a:b], target.dtype.type(factor), out=target[a:b])


def _pieces(low: int, high: int, count: int) -> list[tuple[int, int]]:
    return list(pairwise(low + (high - low) * k // count for k in range(count + 1)))


def _wait(network: CommunicationNetwork, name: str, request: Any) -> None:
    if not request.Test():
        poll(
            request.Test,
            timeout=network.timeout,
            spin=SPIN_SECONDS,
            what=lambda: f"{name} on rank {network.rank} of {network.size}",
        )
