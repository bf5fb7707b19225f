"""Memory that other ranks read and write without the owner's help: MPI windows with passive targets.

MPI allocates the memory (``MPI_Win_allocate``) and one access epoch (``MPI_Win_lock_all``) lasts as long as
the window, so that ranks of one machine reach it directly even while its owner computes for long. Whether
that holds between machines is up to the network; some MPI libraries need the owner to be inside of some MPI
call, for which a thread that polls (`CommunicationNetwork.probe`) is enough.

MPI's own lock of a target waits for the target in common libraries. So locks are words beside the memory,
taken by atomic operations: many readers or one writer. Operations outside of a lock take one themselves:
:meth:`Window.get` a shared one, :meth:`Window.put` and :meth:`Window.accumulate` an exclusive one, so that a
reader never sees half of an update. A window is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.distributed import buffers
from meta500.distributed.pending import poll
from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

ACCUMULATIONS = ("max", "min", "sum")
# The lock word: the number of readers, plus WRITER while one writes. Readers that come then go away again.
WRITER = -(2**40)
# The memory begins behind the lock word, on a cache line of its own.
HEADER_BYTES = 64
LOCK_SPIN = 1e-3


class Window:
    """One tensor's memory on each rank. Made by `CommunicationNetwork.window`, collectively.

    Attributes:
        local: this rank's memory as a native tensor (a view). Read and write it inside of
            ``locked(rank)`` only, while others may access it.

    Raises:
        UserError: an element type that cannot be communicated, or shapes that differ between ranks.
    """

    def __init__(self, network: CommunicationNetwork, tensor: Any) -> None:
        array = buffers.packed(tensor)
        MPI = network._MPI
        self._network, self._MPI = network, MPI
        self.dtype, self.shape = array.dtype, array.shape
        with network._errors("window"):
            kinds = network.comm.allgather((array.dtype.name, array.shape))
            for rank, kind in enumerate(kinds):
                if kind != kinds[0]:
                    raise UserError(
                        f"window: rank {rank} gives {kind[0]} {list(kind[1])}, rank 0 "
                        f"{kinds[0][0]} {list(kinds[0][1])}; all have to be equal"
                    )
            self._start = -(-HEADER_BYTES // array.itemsize) * array.itemsize
            self._win = MPI.Win.Allocate(self._start + array.nbytes, 1, MPI.INFO_NULL, network.comm)
            memory = np.frombuffer(self._win.tomemory(), np.uint8)
            memory[: self._start] = 0
            network.comm.Barrier()
            self._win.Lock_all()
        self._array = memory[self._start : self._start + array.nbytes].view(array.dtype).reshape(array.shape)
        self._like = tensor
        self._locks: dict[int, bool] = {}
        self.local = buffers.native(self._array, tensor) if buffers.in_host(tensor) else self._array
        with self.locked(network.rank):
            self._array[...] = array
        # Nobody reads before all have written their values.
        network.barrier()

    def lock(self, rank: int, exclusive: bool = True) -> None:
        """Begin an access to the memory of a rank: alone, or (``exclusive=False``) beside other readers.

        Raises:
            PeerTimeout: others held the lock for longer than the network's timeout.
            UserError: this rank holds a lock on it already.
        """
        network = self._network
        network._checked_rank(rank, "rank")
        if rank in self._locks:
            raise UserError(f"window: rank {network.rank} holds a lock on rank {rank} already")

        def taken() -> bool:
            if exclusive:
                return self._swap(rank, 0, WRITER) == 0
            if self._add(rank, 1) >= 0:
                return True
            self._add(rank, -1)
            return False

        poll(
            taken,
            timeout=network.timeout,
            spin=LOCK_SPIN,
            what=lambda: f"window lock of rank {rank} on rank {network.rank} of {network.size}",
        )
        self._locks[rank] = exclusive
        self._win.Sync()

    def unlock(self, rank: int) -> None:
        """End the access: everything begun is complete at both sides."""
        if rank not in self._locks:
            raise UserError(f"window: rank {self._network.rank} holds no lock on rank {rank}")
        self._win.Sync()
        self.flush(rank)
        self._add(rank, -WRITER if self._locks.pop(rank) else -1)

    @contextmanager
    def locked(self, rank: int, exclusive: bool = True) -> Iterator[Window]:
        """A block that holds the lock."""
        self.lock(rank, exclusive)
        try:
            yield self
        finally:
            self.unlock(rank)

    def flush(self, rank: int) -> None:
        """Wait until everything begun to a rank under a lock is complete at both sides."""
        with self._network._errors("window flush"):
            self._win.Flush(rank)

    def get(self, rank: int, out: Any | None = None) -> Any:
        """A copy of a rank's memory, as a native tensor (``out`` if given)."""
        begin = perf_counter_ns()
        if out is not None:
            buffers.check_out(out, self._like, "window get")
        array = np.empty(self.shape, self.dtype)
        with self._held(rank, False), self._network._errors("window get"):
            self._win.Get(buffers.as_bytes(array), rank, self._span(array))
            self._win.Flush(rank)
        self._network._count_now("window_get", begin, 0, array.nbytes)
        if out is None:
            return buffers.native(array, self._like)
        buffers.store(array, out)
        return out

    def put(self, rank: int, tensor: Any) -> None:
        """Overwrite a rank's memory."""
        begin = perf_counter_ns()
        array = self._fitting("window put", tensor)
        with self._held(rank, True), self._network._errors("window put"):
            self._win.Put(buffers.as_bytes(array), rank, self._span(array))
            self._win.Flush(rank)
        self._network._count_now("window_put", begin, array.nbytes, 0)

    def accumulate(self, rank: int, tensor: Any, op: str = "sum") -> None:
        """Combine a tensor with a rank's memory there; each element is updated atomically.

        Types that MPI cannot reduce (float16, bfloat16, ...) are read, combined in float32 and written
        back, which takes an exclusive lock.

        Raises:
            UserError: such a type under a shared lock.
        """
        begin = perf_counter_ns()
        name = "window accumulate"
        choose("operation", op, ACCUMULATIONS)
        array = self._fitting(name, tensor)
        wire = buffers.wire_dtype(self.dtype)
        received = 0
        with self._held(rank, True), self._network._errors(name):
            if wire == self.dtype:
                self._win.Accumulate(array.reshape(-1), rank, self._start, self._network._ops[op])
            else:
                if not self._locks.get(rank, True):
                    raise UserError(f"{name}: {self.dtype} needs an exclusive lock on rank {rank}")
                old = np.empty(self.shape, self.dtype)
                self._win.Get(buffers.as_bytes(old), rank, self._span(old))
                self._win.Flush(rank)
                received = old.nbytes
                combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
                array = combine(old.astype(wire), array.astype(wire)).astype(self.dtype)
                self._win.Put(buffers.as_bytes(array), rank, self._span(array))
            self._win.Flush(rank)
        self._network._count_now("window_accumulate", begin, array.nbytes, received)

    def fetch_add(self, rank: int, value: float, index: int = 0) -> Any:
        """Add to one element (flat index) of a rank's memory and return what it was, in one atomic step."""
        begin = perf_counter_ns()
        if buffers.wire_dtype(self.dtype) != self.dtype:
            raise UserError(f"window fetch_add: {self.dtype} has no atomic addition; use float32 or integers")
        count = int(np.prod(self.shape, dtype=np.int64))
        if not 0 <= index < count:
            raise UserError(f"window fetch_add: index has to be from 0 to {count - 1}, got {index}")
        old, added = np.empty(1, self.dtype), np.array([value], self.dtype)
        with self._held(rank, False), self._network._errors("window fetch_add"):
            self._win.Fetch_and_op(added, old, rank, self._start + index * self.dtype.itemsize, self._MPI.SUM)
            self._win.Flush(rank)
        self._network._count_now("window_fetch_add", begin, added.nbytes, old.nbytes)
        return old[0]

    def fence(self) -> None:
        """Wait until all ranks are here and everything begun before is complete; collective."""
        self._network.barrier()

    def free(self) -> None:
        """Give the memory back; collective. ``local`` must not be used afterwards."""
        self._network.barrier()
        self._win.Unlock_all()
        self._win.Free()

    @contextmanager
    def _held(self, rank: int, exclusive: bool) -> Iterator[None]:
        """The lock that the caller holds, or one for this operation."""
        if rank in self._locks:
            yield
        else:
            with self.locked(rank, exclusive):
                yield

    def _span(self, array: np.ndarray) -> tuple[int, int, Any]:
        return (self._start, array.nbytes, self._MPI.BYTE)

    def _add(self, rank: int, value: int) -> int:
        """Add to the lock word of a rank; what it was."""
        old = np.empty(1, np.int64)
        with self._network._errors("window lock"):
            self._win.Fetch_and_op(np.array([value], np.int64), old, rank, 0, self._MPI.SUM)
            self._win.Flush(rank)
        return int(old[0])

    def _swap(self, rank: int, expected: int, value: int) -> int:
        """Set the lock word of a rank if it is as expected; what it was."""
        old = np.empty(1, np.int64)
        with self._network._errors("window lock"):
            words = np.array([value, expected], np.int64)
            self._win.Compare_and_swap(words[:1], words[1:], old, rank, 0)
            self._win.Flush(rank)
        return int(old[0])

    def _fitting(self, name: str, tensor: Any) -> np.ndarray:
        array = buffers.packed(tensor)
        if array.dtype != self.dtype or array.shape != self.shape:
            raise UserError(
                f"{name}: got {array.dtype} {list(array.shape)}, "
                f"the window has {self.dtype} {list(self.shape)}"
            )
        return array
