"""Messages between two ranks, for `meta500.distributed.communication`."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.distributed import buffers
from meta500.distributed.collectives import stored
from meta500.distributed.pending import SPIN_SECONDS, SPIN_SECONDS_PER_BYTE, PeerTimeout, Pending, poll
from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

# Receivers that wait for whoever comes give the processor away soon: they are server threads, mostly.
SERVER_SPIN = 200e-6


def send(network: CommunicationNetwork, name: str, tensor: Any, rank: int, tag: int) -> None:
    """Send a tensor; returns when it may be changed again.

    Raises:
        PeerTimeout: nobody received it within the network's timeout.
        UserError: no such rank or tag.
    """
    begin = perf_counter_ns()
    array = buffers.packed(tensor)
    try:
        request = _isend(network, array, rank, tag)
        if not request.Test():
            poll(
                request.Test,
                timeout=network.timeout,
                spin=SPIN_SECONDS + SPIN_SECONDS_PER_BYTE * array.nbytes,
                what=lambda: f"{name} on rank {network.rank} of {network.size}, a message to rank {rank},",
            )
    except network._MPI.Exception as error:
        raise network._explained(name, error) from error
    network._count_now(name, begin, array.nbytes, 0)


def start_send(network: CommunicationNetwork, name: str, tensor: Any, rank: int, tag: int) -> Pending[None]:
    """Begin to send a tensor, which must not change until ``wait``."""
    begin = perf_counter_ns()
    array = buffers.packed(tensor)
    with network._errors(name):
        request = _isend(network, array, rank, tag)
    return Pending(network, name, [request], lambda: None, array.nbytes, 0, begin, keep=array)


def receive(
    network: CommunicationNetwork,
    name: str,
    like: Any,
    rank: int | None,
    tag: int | None,
    out: Any | None = None,
) -> tuple[Any, int, int]:
    """Receive a tensor shaped as ``like``; the tensor, its sender and its tag.

    Args:
        rank: the sender, None for any.
        tag: None for any.
        out: where to put it, a new tensor by default.

    Raises:
        PeerTimeout: nothing came within the network's timeout.
        UserError: a message of another size, no such rank or tag.
    """
    begin = perf_counter_ns()
    array = None
    if out is not None:
        buffers.check_out(out, like, name)
        array = out if type(out) is np.ndarray else buffers.host(out)
    if array is None or not (array.flags.c_contiguous and buffers.in_host(out)):
        array = np.empty(np.shape(like), buffers.host_dtype(like))
    wanted = network._checked_tag(tag)
    status = network._MPI.Status()
    try:
        if rank is None:
            _from_any(network, name, array, wanted, status)
        else:
            _from_one(network, name, array, network._checked_rank(rank, "rank"), wanted, status)
    except network._MPI.Exception as error:
        raise network._explained(name, error) from error
    sender = status.Get_source()
    count = status.Get_count(network._MPI.BYTE)
    if count != array.nbytes:
        raise UserError(
            f"{name}: rank {sender} sent {count} bytes with tag {status.Get_tag()}, rank {network.rank} "
            f"expected {array.nbytes} bytes ({buffers.describe(like)})"
        )
    result = out if array is out else stored(array, like, out)
    network._count_now(name, begin, 0, count)
    return result, sender, status.Get_tag()


def _isend(network: CommunicationNetwork, array: np.ndarray, rank: int, tag: int) -> Any:
    data = array if array.dtype in buffers.NATIVE_FLOATS else buffers.as_bytes(array)
    return network.comm.Isend(
        data, network._checked_rank(rank, "rank"), network._checked_tag(tag, exact=True)
    )


def _from_one(
    network: CommunicationNetwork, name: str, array: np.ndarray, rank: int, tag: int, status: Any
) -> None:
    data = array if array.dtype in buffers.NATIVE_FLOATS else buffers.as_bytes(array)
    request = network.comm.Irecv(data, rank, tag)
    if request.Test(status):
        return
    try:
        poll(
            lambda: request.Test(status),
            timeout=network.timeout,
            spin=SPIN_SECONDS,
            what=lambda: f"{name} on rank {network.rank} of {network.size}, a message from rank {rank},",
        )
    except PeerTimeout:
        # What comes later must not be written into memory that has another use by then.
        request.Cancel()
        request.Wait()
        raise


def _from_any(network: CommunicationNetwork, name: str, array: np.ndarray, tag: int, status: Any) -> None:
    comm, source = network.comm, network._MPI.ANY_SOURCE
    # Matched probes: what was looked at cannot be received by another thread in between.
    message = poll(
        lambda: comm.Improbe(source, tag, status),
        timeout=network.timeout,
        spin=SERVER_SPIN,
        what=lambda: f"{name} on rank {network.rank} of {network.size}",
    )
    count = status.Get_count(network._MPI.BYTE)
    message.Recv(buffers.as_bytes(array) if count == array.nbytes else np.empty(count, np.uint8))
