"""Reductions, gathers and broadcasts of one tensor, for `meta500.distributed.communication`."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.distributed import buffers, ring
from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

Array = Any


def wire(network: CommunicationNetwork, name: str, tensor: Array, op: str) -> np.ndarray:
    """The tensor as a buffer of the type in which it is reduced; a copy only where it has to be."""
    if op not in network._ops:
        choose("operation", op, network._ops)
    array = tensor if type(tensor) is np.ndarray else buffers.host(tensor)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    dtype = array.dtype
    if dtype in buffers.NATIVE_FLOATS:
        return array
    wire = buffers.wire_dtype(dtype)
    if op == "mean" and wire.kind != "f":
        raise UserError(f"{name}: a mean of {dtype} is no {dtype}; use op='sum' or floats")
    return array.astype(wire, copy=False)


def reduction(
    network: CommunicationNetwork, name: str, tensor: Array, op: str, out: Array | None
) -> tuple[Any, np.ndarray, bool]:
    """Send and receive buffers of a reduction; whether the latter is the memory of ``out``."""
    send = wire(network, name, tensor, op)
    if out is None:
        return send, np.empty(send.shape, send.dtype), False
    # The usual case first, since this is what a call costs beyond MPI: two arrays with memory of their own.
    if type(out) is np.ndarray and type(tensor) is np.ndarray and out.base is None and send.base is None:
        flags = out.flags
        if flags.c_contiguous and flags.writeable and out.dtype is send.dtype is tensor.dtype:
            if out is tensor:
                return network._MPI.IN_PLACE, send, True
            if out.shape == tensor.shape:
                return send, out, True
    buffers.check_out(out, tensor, name)
    if out is tensor and (send is out or buffers.same_memory(send, buffers.host(out))):
        return network._MPI.IN_PLACE, send, True
    receive = out if type(out) is np.ndarray else buffers.host(out)
    if receive.flags.c_contiguous and receive.dtype == send.dtype and buffers.in_host(out):
        if not np.may_share_memory(send, receive):
            return send, receive, True
        if buffers.same_memory(send, receive):
            return network._MPI.IN_PLACE, receive, True
    return send, np.empty(send.shape, send.dtype), False


def divide(network: CommunicationNetwork, array: np.ndarray, op: str) -> None:
    """Make a sum over ranks the mean, in place, if ``op`` asks for it."""
    if op == "mean" and network.size > 1:
        np.divide(array, network.size, out=array)


def stored(array: np.ndarray, like: Array, out: Array | None) -> Array:
    """The native result with the values of a buffer: ``out``, or a tensor like ``like``."""
    if out is None:
        return buffers.native(array, like)
    buffers.store(array, out)
    return out


def reduce_at_root(network: CommunicationNetwork, tensor: Array, op: str, out: Array | None) -> Array | None:
    """See `CommunicationNetwork.sync_all_at_root`."""
    begin = perf_counter_ns()
    name = "sync_all_at_root"
    if network.is_root:
        send, receive, direct = reduction(network, name, tensor, op, out)
    else:
        send, receive, direct = wire(network, name, tensor, op), None, True
    values = receive if receive is not None else send
    with network._errors(name):
        if ring.suits(network, values):
            work = network._scratch(values.size, values.dtype, 1) if receive is None else receive
            own = None if send is network._MPI.IN_PLACE else send
            ring.reduce_at_root(network, name, own, work, op, network.size if op == "mean" else 1)
        else:
            network.comm.Reduce(send, receive, network._ops[op], network.root)
            if receive is not None:
                divide(network, receive, op)
    result = None
    if receive is not None:
        result = out if direct else stored(receive, tensor, out)
    network._count_now(name, begin, values.nbytes, 0 if receive is None else values.nbytes)
    return result


def gather_at_root(network: CommunicationNetwork, tensor: Array) -> list[Array] | None:
    """See `CommunicationNetwork.gather_at_root`."""
    begin = perf_counter_ns()
    name = "gather_at_root"
    array = buffers.packed(tensor)
    with network._errors(name):
        headers = network.comm.gather((array.dtype.name, array.shape), network.root)
        data = buffers.as_bytes(array)
        if headers is None:
            network.comm.Gatherv(data, None, network.root)
            network._count_now(name, begin, array.nbytes, 0)
            return None
        parts = [np.empty(shape, array.dtype) for _, shape in headers]
        for rank, (dtype, _) in enumerate(headers):
            if dtype != array.dtype.name:
                raise UserError(
                    f"{name}: rank {rank} has elements of type {dtype}, the root {array.dtype.name}"
                )
        sizes = [part.nbytes for part in parts]
        whole = np.empty(sum(sizes), np.uint8)
        network.comm.Gatherv(data, (whole, sizes), network.root)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for part, start in zip(parts, starts, strict=False):
        buffers.as_bytes(part)[...] = whole[start : start + part.nbytes]
    network._count_now(name, begin, array.nbytes, whole.nbytes)
    return [buffers.native(part, tensor) for part in parts]


def broadcast(network: CommunicationNetwork, tensor: Array, out: Array | None) -> Array:
    """See `CommunicationNetwork.sync_all_with_root`."""
    begin = perf_counter_ns()
    name = "sync_all_with_root"
    root = network.rank == network.root
    array: Any = tensor
    if type(array) is np.ndarray and out is tensor and array.dtype in buffers.NATIVE_FLOATS:
        flags = array.flags
        if flags.c_contiguous and flags.writeable:
            try:
                network.comm.Bcast(array, network.root)
            except network._MPI.Exception as error:
                raise network._explained(name, error) from error
            nbytes = array.nbytes
            network._count_now(name, begin, nbytes if root else 0, 0 if root else nbytes)
            return array
    if out is None:
        array = buffers.packed(tensor) if root else np.empty(np.shape(tensor), buffers.host_dtype(tensor))
    else:
        buffers.check_out(out, tensor, name)
        array = buffers.packed(tensor if root else out)
    try:
        network.comm.Bcast(
            array if array.dtype in buffers.NATIVE_FLOATS else buffers.as_bytes(array), network.root
        )
    except network._MPI.Exception as error:
        raise network._explained(name, error) from error
    if out is None:
        result = buffers.native(array.copy() if root else array, tensor)
    else:
        result = out if array is out else stored(array, tensor, out)
    nbytes = array.nbytes
    network._count_now(name, begin, nbytes if root else 0, 0 if root else nbytes)
    return result
