"""Many tensors in few messages: small ones are joined to buckets, large ones travel in their own memory.

What is joined with what depends on names, shapes and element types only, which all ranks share, never on
strides or devices, which they may not. Within an element type the order is that of the sorted names, so that
ranks may name their tensors in different orders.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.distributed import buffers, ring
from meta500.distributed.pending import Pending, PendingMany
from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

# Tensors of at least this many bytes are reduced in their own memory, smaller ones are joined.
LARGE_BYTES = 256 * 1024
# Layouts of the last signatures are kept; training steps have the same one again and again.
KEPT_PLANS = 64


@dataclass(frozen=True)
class Part:
    """Where a tensor lies in a bucket, in elements."""

    name: str
    start: int
    count: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    """Tensors joined to one message of ``count`` elements; ``weighted``: the last one is the weight."""

    dtype: np.dtype
    parts: tuple[Part, ...]
    count: int
    weighted: bool = False


@dataclass(frozen=True)
class Plan:
    """The messages for a set of tensors: the buckets first, then ``alone``, names of large tensors."""

    buckets: tuple[Bucket, ...]
    alone: tuple[str, ...]


def plan(
    signature: Iterable[tuple[str, tuple[int, ...], np.dtype]], bucket_bytes: int, weighted: bool
) -> Plan:
    """Divide tensors, given as (name, shape, element type), into messages.

    A tensor of at least 256 KiB whose type MPI reduces itself goes alone. ``weighted`` adds one element at
    the end of the first bucket, for which the smallest large tensor is joined if nothing else is.
    """
    entries = [(name, shape, dtype, buffers.wire_dtype(dtype)) for name, shape, dtype in signature]
    # The widest type first: the weight travels in the first bucket and should lose nothing.
    entries.sort(key=lambda entry: (-entry[3].itemsize, entry[3].str, entry[0]))
    small: list[tuple[str, tuple[int, ...], np.dtype, np.dtype]] = []
    large: list[tuple[str, tuple[int, ...], np.dtype, np.dtype]] = []
    for entry in entries:
        _, shape, dtype, wire = entry
        is_large = dtype == wire and math.prod(shape) * wire.itemsize >= LARGE_BYTES
        (large if is_large else small).append(entry)
    if weighted and large and not small:
        smallest = min(range(len(large)), key=lambda k: math.prod(large[k][1]) * large[k][3].itemsize)
        small.append(large.pop(smallest))
    buckets: list[Bucket] = []
    parts: list[Part] = []
    count = 0

    def close(dtype: np.dtype) -> None:
        nonlocal parts, count
        extra = weighted and not buckets
        buckets.append(Bucket(dtype, tuple(parts), count + extra, extra))
        parts, count = [], 0

    current: np.dtype | None = None
    for name, shape, _, wire in small:
        if parts and (wire != current or count * wire.itemsize >= bucket_bytes):
            close(current)  # type: ignore[arg-type]
        current = wire
        elements = math.prod(shape)
        parts.append(Part(name, count, elements, shape))
        count += elements
    if current is not None:
        close(current)
    return Plan(tuple(buckets), tuple(entry[0] for entry in large))


def start(
    network: CommunicationNetwork,
    name: str,
    blocking: bool,
    tensors: Mapping[str, Any],
    op: str,
    weight: float | None,
    total: float | None,
    bucket_bytes: int,
    in_place: bool,
) -> PendingMany:
    """Begin the bucketed allreduce of `CommunicationNetwork.sync_all_many`; ``blocking``: and end it.

    Raises:
        UserError: as there.
    """
    begin = perf_counter_ns()
    if not tensors:
        return Pending(network, name, [], dict, 0, 0, begin)
    if op != "mean":
        weight = None
    elif weight is not None:
        check_weight(name, weight)
    if total is not None and not (math.isfinite(total) and total > 0):
        raise UserError(f"{name}: total has to be the positive sum of all weights, got {total!r}")
    known = weight is not None and total is not None
    counted = weight is not None and not known
    layout = _plan_of(network, name, tensors, op, bucket_bytes, counted)
    if in_place:
        for key, tensor in tensors.items():
            _check_writable(name, key, tensor)
    # What every element of this rank is multiplied by before the sum.
    factor = None if weight is None else float(weight) / (total if known else 1.0)  # type: ignore[operator]
    divisor = float(network.size) if op == "mean" and weight is None else 1.0
    joined = [_filled(bucket, tensors, factor, weight) for bucket in layout.buckets]
    # Tensors on the same memory would be reduced in it once each.
    places = Counter(_address(tensors[key]) for key in layout.alone) if in_place else Counter()
    alone = {
        key: _own(network, tensors[key], factor, in_place and places[_address(tensors[key])] == 1, blocking)
        for key in layout.alone
    }
    messages = [(network._MPI.IN_PLACE, buffer, 1.0) for buffer in joined] + list(alone.values())
    requests = []
    divided = [False] * len(messages)
    with network._errors(name):
        for index, (send, receive, scale) in enumerate(messages):
            if not blocking:
                requests.append(network.comm.Iallreduce(send, receive, network._ops[op]))
            elif ring.suits(network, receive):
                # The total weight comes with the first message; the others can be divided on the way.
                divided[index] = not (counted and index == 0)
                own = None if send is network._MPI.IN_PLACE else send
                last = divisor if divided[index] else 1.0
                ring.allreduce(network, name, own, receive, op, last, scale)
            else:
                network.comm.Allreduce(send, receive, network._ops[op])
            if blocking and counted and index == 0:
                divisor = _total_weight(name, receive)
    requests.reverse()
    volume = sum(receive.nbytes for _, receive, _ in messages)

    def finish() -> dict[str, Any]:
        last = _total_weight(name, joined[0]) if counted else divisor
        for (_, receive, _), done in zip(messages, divided, strict=True):
            if last != 1 and not done:
                np.divide(receive, receive.dtype.type(last), out=receive)
        results: dict[str, Any] = {}
        for bucket, buffer in zip(layout.buckets, joined, strict=True):
            for part in bucket.parts:
                piece = buffer[part.start : part.start + part.count].reshape(part.shape)
                results[part.name] = _result(piece, tensors[part.name], in_place)
        for key, (_, receive, _) in alone.items():
            results[key] = _result(receive, tensors[key], in_place)
        return {key: results[key] for key in tensors}

    return Pending(network, name, requests, finish, volume, volume, begin)


def check_weight(name: str, weight: float) -> None:
    """Check the weight of a rank.

    Raises:
        UserError: negative, infinite or NaN.
    """
    if not (math.isfinite(weight) and weight >= 0):
        raise UserError(f"{name}: a weight has to be a finite number of at least 0, got {weight!r}")


def _total_weight(name: str, buffer: np.ndarray) -> float:
    """The weights of all ranks, from the end of the first bucket."""
    total = float(buffer[-1])
    if total == 0:
        raise UserError(f"{name}: the weights of all ranks are 0, there is nothing to average")
    return total


def _plan_of(
    network: CommunicationNetwork,
    name: str,
    tensors: Mapping[str, Any],
    op: str,
    bucket_bytes: int,
    weighted: bool,
) -> Plan:
    signature = tuple(
        (key, tuple(np.shape(tensor)), buffers.host_dtype(tensor)) for key, tensor in tensors.items()
    )
    key = (signature, bucket_bytes, weighted, op == "mean")
    found: Plan | None = network._plans.get(key)
    if found is None:
        if not (isinstance(bucket_bytes, int | np.integer) and bucket_bytes > 0):
            raise UserError(
                f"{name}: bucket_bytes has to be a positive number of bytes, got {bucket_bytes!r}"
            )
        for tensor_name, _, dtype in signature:
            if op == "mean" and not buffers.is_float(dtype):
                raise UserError(f"{name}: '{tensor_name}' is {dtype}, whose mean is no {dtype}; use op='sum'")
        found = plan(signature, int(bucket_bytes), weighted)
        if len(network._plans) >= KEPT_PLANS:
            network._plans.pop(next(iter(network._plans)))
        network._plans[key] = found
    return found


def _check_writable(name: str, key: str, tensor: Any) -> None:
    if isinstance(tensor, np.ndarray):
        if not tensor.flags.writeable:
            raise UserError(f"{name}: '{key}' is a read-only array and cannot be written in place")
    elif not buffers.is_torch(tensor):
        raise UserError(f"{name}: '{key}' is a {type(tensor).__name__} and cannot be written in place")


def _filled(
    bucket: Bucket, tensors: Mapping[str, Any], factor: float | None, weight: float | None
) -> np.ndarray:
    """A new buffer with the tensors of a bucket times ``factor``; zeros where the factor is 0."""
    buffer = np.empty(bucket.count, bucket.dtype)
    for part in bucket.parts:
        piece = buffer[part.start : part.start + part.count].reshape(part.shape)
        if factor == 0:
            # Not multiplied: what a rank without samples holds may be NaN.
            piece[...] = 0
        elif factor is None or factor == 1:
            piece[...] = buffers.host(tensors[part.name])
        else:
            np.multiply(
                buffers.host(tensors[part.name]), bucket.dtype.type(factor), out=piece, casting="unsafe"
            )
    if bucket.weighted:
        buffer[-1] = weight
    return buffer


def _own(
    network: CommunicationNetwork, tensor: Any, factor: float | None, in_place: bool, blocking: bool
) -> tuple[Any, np.ndarray, float]:
    """Send and receive buffers of a large tensor, its own memory where that may be.

    The last number is the factor that is left to the exchange: the ring multiplies on the way.
    """
    array = buffers.packed(tensor)
    if in_place and buffers.in_host(tensor) and array.flags.writeable and _is_own(array, tensor):
        send, receive = network._MPI.IN_PLACE, array
    else:
        send, receive = array, np.empty(array.shape, array.dtype)
    if factor is None:
        return send, receive, 1.0
    if blocking and ring.suits(network, receive):
        return send, receive, factor
    # In its own memory whatever the factor: MPI wants that on all ranks or on none.
    if factor == 0:
        receive[...] = 0
    elif factor == 1:
        if receive is not array:
            receive[...] = array
    else:
        np.multiply(array, array.dtype.type(factor), out=receive)
    return network._MPI.IN_PLACE, receive, 1.0


def _address(tensor: Any) -> int:
    """What tells the memory of one tensor from that of another: where its elements begin."""
    if buffers.is_torch(tensor):
        return int(tensor.data_ptr()) if buffers.in_host(tensor) else id(tensor)
    return int(tensor.__array_interface__["data"][0])


def _is_own(array: np.ndarray, tensor: Any) -> bool:
    """Whether a buffer is the tensor's own memory, not a packed copy."""
    return array is tensor or bool(buffers.is_torch(tensor) and array.ctypes.data == tensor.data_ptr())


def _result(array: np.ndarray, tensor: Any, in_place: bool) -> Any:
    if in_place:
        buffers.store(array, tensor)
        return tensor
    return buffers.native(array, tensor)


@dataclass(frozen=True)
class Joined:
    """All bytes of several tensors in one message, for moving data without arithmetic."""

    entries: tuple[tuple[str, tuple[int, ...], np.dtype, int], ...]
    nbytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> Joined:
        """Layout from names, shapes and element types; every tensor begins at a multiple of 16 bytes."""
        entries, start = [], 0
        for name in sorted(tensors):
            shape, dtype = tuple(np.shape(tensors[name])), buffers.host_dtype(tensors[name])
            entries.append((name, shape, dtype, start))
            start += -(-math.prod(shape) * dtype.itemsize // 16) * 16
        return cls(tuple(entries), start)

    def empty(self) -> np.ndarray:
        """A buffer for the message, (nbytes,) uint8, with anything in it."""
        return np.empty(self.nbytes, np.uint8)

    def pack(self, tensors: Mapping[str, Any]) -> np.ndarray:
        """The message with the tensors' values."""
        data = self.empty()
        for name, piece in self.pieces(data).items():
            piece[...] = buffers.host(tensors[name])
        return data

    def pieces(self, data: np.ndarray) -> dict[str, np.ndarray]:
        """The tensors as views of a message."""
        return {
            name: data[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for name, shape, dtype, start in self.entries
        }

    def unpack(self, data: np.ndarray, like: Mapping[str, Any]) -> dict[str, Any]:
        """Native tensors as those of ``like``, in its order; they may share the message's memory."""
        pieces = self.pieces(data)
        return {name: buffers.native(pieces[name], like[name]) for name in like}


def ring_weights(rank: int, size: int) -> dict[int, float]:
    """Equal weights of a rank and the two beside it on a ring; with 2 ranks the one neighbour counts once."""
    members = sorted({(rank - 1) % size, rank, (rank + 1) % size})
    return {member: 1 / len(members) for member in members}


def reduce_from_neighbors(
    network: CommunicationNetwork,
    name: str,
    tensors: Mapping[str, Any],
    weights: Mapping[int, float] | None,
) -> dict[str, Any]:
    """sum_j W[rank, j] x_j for all tensors, see `CommunicationNetwork.reduce_from_neighbors`.

    Raises:
        UserError: a weight that is not finite, or a rank that does not exist.
    """
    begin = perf_counter_ns()
    if weights is None:
        weights = ring_weights(network.rank, network.size)
    for rank, value in weights.items():
        network._checked_rank(rank, f"{name}: a neighbour")
        if not math.isfinite(value):
            raise UserError(f"{name}: the weight of rank {rank} is {value!r}; use a finite number")
    if not tensors:
        return {}
    for key, tensor in tensors.items():
        if not buffers.is_float(buffers.host_dtype(tensor)):
            raise UserError(f"{name}: '{key}' is {buffers.host_dtype(tensor)}; use a floating-point type")
    others = sorted(rank for rank in weights if rank != network.rank)
    # A single bucket for each type: one message per neighbour and type.
    layout = _joined_plan(tensors)
    mine = [_filled(bucket, tensors, None, None) for bucket in layout.buckets]
    received = {rank: [np.empty_like(buffer) for buffer in mine] for rank in others}
    comm = network._private
    with network._errors(name):
        requests = [
            comm.Irecv(buffer, rank, tag) for rank in others for tag, buffer in enumerate(received[rank])
        ]
        requests += [comm.Isend(buffer, rank, tag) for rank in others for tag, buffer in enumerate(mine)]

    def finish() -> dict[str, Any]:
        results: dict[str, Any] = {}
        for index, bucket in enumerate(layout.buckets):
            total = np.zeros(bucket.count, bucket.dtype)
            for rank in sorted(weights):
                term = mine[index] if rank == network.rank else received[rank][index]
                total += term * bucket.dtype.type(weights[rank])
            for part in bucket.parts:
                piece = total[part.start : part.start + part.count].reshape(part.shape)
                results[part.name] = buffers.native(piece, tensors[part.name])
        return {key: results[key] for key in tensors}

    volume = sum(buffer.nbytes for buffer in mine) * len(others)
    return Pending(network, name, requests, finish, volume, volume, begin).wait()


def _joined_plan(tensors: Mapping[str, Any]) -> Plan:
    by_type: dict[np.dtype, list[Part]] = {}
    counts: dict[np.dtype, int] = {}
    for name in sorted(tensors):
        shape = tuple(np.shape(tensors[name]))
        wire = buffers.wire_dtype(buffers.host_dtype(tensors[name]))
        begin = counts.get(wire, 0)
        by_type.setdefault(wire, []).append(Part(name, begin, math.prod(shape), shape))
        counts[wire] = begin + math.prod(shape)
    wires = sorted(by_type, key=lambda dtype: dtype.str)
    return Plan(tuple(Bucket(wire, tuple(by_type[wire]), counts[wire]) for wire in wires), ())
