"""The communication interface of distributed training, over MPI.

Deep500's ``CommunicationNetwork`` (table 5.6 of the thesis) with every operation on buffers: native
tensors go in and come out, numpy or torch, of any floating-point type, shape and strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

import numpy as np

from meta500.distributed import collectives, point_to_point, ring
from meta500.distributed.mpi import mpi
from meta500.distributed.pending import Pending, PendingMany
from meta500.distributed.volume import Counters
from meta500.errors import UserError, choose

Array = Any

ALGORITHMS = ("auto", "mpi")
OPERATIONS = ("max", "mean", "min", "sum")
# Small tensors are joined until a bucket holds this many bytes.
BUCKET_BYTES = 4 * 1024 * 1024
# Tags of user messages lie below; every MPI library has tags up to 32767.
LARGEST_TAG = 32767


class CommunicationNetwork:
    """A group of ranks that exchange tensors.

    Tensors are numpy arrays or torch tensors. Results are native tensors of the same kind, element type,
    shape and device as what was given; nothing changes its arguments unless ``out`` or ``in_place`` says so.
    Float16, bfloat16 and 8-bit floats are reduced in float32 and rounded once. CUDA tensors pass through host
    memory.

    Operations named ``sync_...``, ``gather_...``, ``reduce_...``, ``barrier``, ``broadcast_object``,
    ``window`` and ``split`` are collective: all ranks call them in the same order, from one thread at a
    time. Messages between two ranks (``send_...``, ``wait_for_...``) may come from any thread.

    Args:
        comm: an mpi4py communicator; COMM_WORLD by default. It is duplicated (collectively), so that
            messages of others on the same communicator are never met.
        root: the rank that the ``..._root`` operations mean.
        compression: what :meth:`sync_all_many` compresses with, a
            `meta500.distributed.compression.TopK` or its text, such as "top-k:0.01"; None for none.
        timeout: seconds that a rank waits for others before it gives up with an error; None for ever.
            Blocking collectives (:meth:`sync_all`, :meth:`sync_all_many`, ...) wait inside of MPI, without
            a limit.
        algorithm: "auto": blocking reductions of large float32 and float64 arrays go round a ring of messages
            (`meta500.distributed.ring`); "mpi": all are the MPI library's.
        timeline: a `meta500.distributed.timeline.Timeline` that records every operation.

    Attributes:
        comm: the duplicate, an mpi4py communicator.
        rank, size: this rank and the number of ranks.
        counters: calls, bytes and seconds by operation (`meta500.distributed.volume.Counters`).

    Raises:
        UserError: MPI is missing, or an argument is out of range.
    """

    def __init__(
        self,
        comm: Any = None,
        *,
        root: int = 0,
        compression: Any = None,
        timeout: float | None = 600.0,
        timeline: Any = None,
        algorithm: str = "auto",
    ) -> None:
        MPI = mpi()
        if comm is None:
            comm = MPI.COMM_WORLD
        if not isinstance(comm, MPI.Intracomm):
            raise UserError(f"comm has to be an mpi4py communicator, got {type(comm).__name__}")
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise UserError(f"timeout has to be a positive number of seconds or None, got {timeout!r}")
        self._MPI = MPI
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.root = self._checked_rank(root, "root")
        if isinstance(compression, str):
            from meta500.distributed.compression import from_text

            compression = from_text(compression)
        self.comm = comm.Dup()
        # Messages inside of collectives have a communicator of their own: a receiver of any tag must not
        # meet them.
        self._private = comm.Dup()
        self.compression, self.timeout, self.timeline = compression, timeout, timeline
        self.counters = Counters()
        self._in_flight: set[Pending[Any]] = set()
        self.algorithm = choose("allreduce algorithm", algorithm, ALGORITHMS)
        self._work = [np.empty(0, np.uint8)] * 2
        # Memory of exchanges that were given up: messages may still come.
        self._given_up: list[np.ndarray] = []
        self._plans: dict[Any, Any] = {}
        self._ops = {"sum": MPI.SUM, "mean": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self._closed = False

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.root

    # -- all ranks --------------------------------------------------------------------------------

    def sync_all(self, tensor: Array, *, op: str = "mean", out: Array | None = None) -> Array:
        """Combine the tensors of all ranks; every rank gets the result (allreduce).

        Args:
            tensor: same shape and element type on all ranks.
            op: "mean", "sum", "max" or "min", element by element.
            out: where to put the result, which may be ``tensor`` itself; a new tensor by default.
        """
        begin = perf_counter_ns()
        send, receive, direct = collectives.reduction(self, "sync_all", tensor, op, out)
        try:
            if receive.nbytes >= ring.BYTES_PER_RANK and ring.suits(self, receive):
                own = None if send is self._MPI.IN_PLACE else send
                ring.allreduce(self, "sync_all", own, receive, op, self.size if op == "mean" else 1)
            else:
                self.comm.Allreduce(send, receive, self._ops[op])
                collectives.divide(self, receive, op)
        except self._MPI.Exception as error:
            raise self._explained("sync_all", error) from error
        result = out if direct else collectives.stored(receive, tensor, out)
        nbytes = receive.nbytes
        self._count_now("sync_all", begin, nbytes, nbytes)
        return result

    def sync_all_start(self, tensor: Array, *, op: str = "mean", out: Array | None = None) -> Pending[Array]:
        """Begin :meth:`sync_all` and return at once; ``.wait()`` gives the result.

        ``tensor`` and ``out`` must be left alone until then.
        """
        begin = perf_counter_ns()
        send, receive, direct = collectives.reduction(self, "sync_all_start", tensor, op, out)
        try:
            request = self.comm.Iallreduce(send, receive, self._ops[op])
        except self._MPI.Exception as error:
            raise self._explained("sync_all_start", error) from error

        def finish() -> Array:
            collectives.divide(self, receive, op)
            return out if direct else collectives.stored(receive, tensor, out)

        nbytes = receive.nbytes
        return Pending(self, "sync_all_start", [request], finish, nbytes, nbytes, begin, keep=send)

    def sync_all_many(
        self,
        tensors: Mapping[str, Array],
        *,
        op: str = "mean",
        weight: float | None = None,
        total: float | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        in_place: bool = False,
    ) -> dict[str, Array]:
        """:meth:`sync_all` of many tensors in few messages.

        Tensors below 256 KiB are joined to buckets, larger ones that are contiguous are reduced in their own
        memory. The names, in any order, shapes and element types have to be the same on all ranks.

        Args:
            tensors: by name.
            op: as for :meth:`sync_all`.
            weight: w_r of this rank, for op "mean": the result is sum_r w_r x_r / sum_r w_r. All ranks or
                none give one. With weight 0 the values of this rank are not looked at. The gradient of a
                mean loss over batches of different sizes is this with w_r = number of samples of rank r.
            total: sum of the weights of all ranks where it is known already: saves a pass over the data.
            bucket_bytes: a bucket is closed when it holds this many bytes.
            in_place: write the results into the given tensors.

        Returns:
            The results by name, in the order of ``tensors``.

        Raises:
            UserError: an unusable tensor or weight, or the weights of all ranks are 0.
        """
        return self._many("sync_all_many", True, tensors, op, weight, total, bucket_bytes, in_place).wait()

    def sync_all_many_start(
        self,
        tensors: Mapping[str, Array],
        *,
        op: str = "mean",
        weight: float | None = None,
        total: float | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        in_place: bool = False,
    ) -> PendingMany:
        """Begin :meth:`sync_all_many` and return at once; ``.wait()`` gives the results.

        The tensors must be left alone until then.
        """
        return self._many("sync_all_many_start", False, tensors, op, weight, total, bucket_bytes, in_place)

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        begin = perf_counter_ns()
        with self._errors("barrier"):
            request = self.comm.Ibarrier()
        Pending(self, "barrier", [request], lambda: None, 0, 0, begin).wait()

    # -- the root ---------------------------------------------------------------------------------

    def sync_all_at_root(self, tensor: Array, *, op: str = "mean", out: Array | None = None) -> Array | None:
        """Combine the tensors of all ranks at the root (reduce); None on the other ranks."""
        return collectives.reduce_at_root(self, tensor, op, out)

    def gather_at_root(self, tensor: Array) -> list[Array] | None:
        """The tensors of all ranks, in the order of ranks, at the root; None elsewhere.

        Shapes may differ from rank to rank, element types must not.
        """
        return collectives.gather_at_root(self, tensor)

    def sync_all_with_root(self, tensor: Array, *, out: Array | None = None) -> Array:
        """The root's tensor on all ranks (broadcast); others give one of the same shape and type."""
        return collectives.broadcast(self, tensor, out)

    def sync_all_with_root_many(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """The root's tensors on all ranks, in one message; names in any order, shapes as everywhere."""
        from meta500.distributed.buckets import Joined

        begin = perf_counter_ns()
        name = "sync_all_with_root_many"
        joined = Joined.of(tensors)
        data = joined.pack(tensors) if self.is_root else joined.empty()
        with self._errors(name):
            self.comm.Bcast(data, self.root)
        results = joined.unpack(data, tensors)
        self._count_now(name, begin, *((data.nbytes, 0) if self.is_root else (0, data.nbytes)))
        return results

    def send_to_root(self, tensor: Array, tag: int = 0) -> None:
        """Send to the root; returns when ``tensor`` may be changed again."""
        point_to_point.send(self, "send_to_root", tensor, self.root, tag)

    def wait_for_root(self, like: Array, tag: int = 0, *, out: Array | None = None) -> Array:
        """Receive a tensor shaped as ``like`` from the root, into ``out`` if given."""
        return point_to_point.receive(self, "wait_for_root", like, self.root, tag, out)[0]

    # -- pairs ------------------------------------------------------------------------------------

    def send_to_rank(self, tensor: Array, rank: int, tag: int = 0) -> None:
        """Send to a rank; returns when ``tensor`` may be changed again."""
        point_to_point.send(self, "send_to_rank", tensor, rank, tag)

    def send_to_rank_start(self, tensor: Array, rank: int, tag: int = 0) -> Pending[None]:
        """Begin :meth:`send_to_rank` and return at once; ``tensor`` must be left alone until ``.wait()``."""
        return point_to_point.start_send(self, "send_to_rank_start", tensor, rank, tag)

    def wait_for_rank(self, like: Array, rank: int, tag: int = 0, *, out: Array | None = None) -> Array:
        """Receive a tensor shaped as ``like`` from a rank, into ``out`` if given."""
        return point_to_point.receive(self, "wait_for_rank", like, rank, tag, out)[0]

    def wait_for_any_rank(self, like: Array, tag: int | None = None) -> tuple[Array, int, int]:
        """Receive a tensor shaped as ``like`` from whoever sends first.

        Args:
            like: gives shape, element type, kind and device.
            tag: only messages with this tag; None for any.

        Returns:
            The tensor, the rank that sent it, and its tag.
        """
        return point_to_point.receive(self, "wait_for_any_rank", like, None, tag)

    def probe(self, rank: int | None = None, tag: int | None = None) -> tuple[int, int] | None:
        """Source and tag of a message that could be received now, None if there is none. Never blocks."""
        MPI = self._MPI
        status = MPI.Status()
        source = MPI.ANY_SOURCE if rank is None else self._checked_rank(rank, "rank")
        with self._errors("probe"):
            found = self.comm.Iprobe(source, self._checked_tag(tag), status)
        return (status.Get_source(), status.Get_tag()) if found else None

    # -- neighbours -------------------------------------------------------------------------------

    def reduce_from_neighbors(self, tensor: Array, weights: Mapping[int, float] | None = None) -> Array:
        """sum_j W[rank, j] x_j over this rank and its neighbours.

        Args:
            tensor: x of this rank; same shape and element type on all ranks.
            weights: this rank's row of W, by rank: neighbours are the others in it, and a rank that it
                lacks has weight 0. Neighbourhood has to be mutual: j in the row of i if and only if i
                in the row of j. None for a ring with equal weights: 1/3 for this rank and each of the two
                beside it, 1/2 where these two are the same (2 ranks), 1 for a single rank.

        Returns:
            A new tensor. Summed up in the order of ranks.
        """
        from meta500.distributed.buckets import reduce_from_neighbors

        results = reduce_from_neighbors(self, "reduce_from_neighbors", {"": tensor}, weights)
        return results[""]

    def reduce_from_neighbors_many(
        self, tensors: Mapping[str, Array], weights: Mapping[int, float] | None = None
    ) -> dict[str, Array]:
        """:meth:`reduce_from_neighbors` of many tensors, one message per neighbour and element type."""
        from meta500.distributed.buckets import reduce_from_neighbors

        return reduce_from_neighbors(self, "reduce_from_neighbors_many", tensors, weights)

    # -- windows, objects, groups -----------------------------------------------------------------

    def window(self, tensor: Array) -> Any:
        """Memory of every rank that all ranks can read and write one-sidedly, see
        `meta500.distributed.windows.Window`; it starts with the values of ``tensor``."""
        from meta500.distributed.windows import Window

        return Window(self, tensor)

    def gather_objects(self, obj: Any) -> list[Any] | None:
        """Small Python objects (rows, messages) of all ranks at the root, pickled; None elsewhere."""
        begin = perf_counter_ns()
        with self._errors("gather_objects"):
            objects: list[Any] | None = self.comm.gather(obj, self.root)
        self._count_now("gather_objects", begin, 0, 0)
        return objects

    def broadcast_object(self, obj: Any) -> Any:
        """The root's small Python object on all ranks, pickled."""
        begin = perf_counter_ns()
        with self._errors("broadcast_object"):
            result = self.comm.bcast(obj, self.root)
        self._count_now("broadcast_object", begin, 0, 0)
        return result

    def split(self, color: int, key: int = 0) -> CommunicationNetwork:
        """A network of the ranks that give the same ``color``, in the order of ``key`` and rank; root 0."""
        with self._errors("split"):
            part = self.comm.Split(color, key)
        try:
            return CommunicationNetwork(part, timeout=self.timeout, timeline=self.timeline)
        finally:
            part.Free()

    def close(self) -> None:
        """Free the communicators; collective, and nothing works afterwards."""
        if not self._closed:
            from meta500.distributed.agreement import Agreement

            self._closed = True
            Agreement.release(self)
            self.comm.Free()
            self._private.Free()

    def __enter__(self) -> CommunicationNetwork:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        # Freeing is collective: after an error on one rank the others may never come.
        if kind is None:
            self.close()

    def __repr__(self) -> str:
        return f"CommunicationNetwork(rank={self.rank}, size={self.size}, root={self.root})"

    # -- inside -----------------------------------------------------------------------------------

    def _many(
        self,
        name: str,
        blocking: bool,
        tensors: Mapping[str, Array],
        op: str,
        weight: float | None,
        total: float | None,
        bucket_bytes: int,
        in_place: bool,
    ) -> PendingMany:
        from meta500.distributed.buckets import start

        choose("operation", op, OPERATIONS)
        if self.compression is not None and op in ("mean", "sum"):
            weighted = weight if op == "mean" else None
            pending: PendingMany = self.compression.start(self, name, tensors, op, weighted, in_place)
            return pending
        return start(self, name, blocking, tensors, op, weight, total, bucket_bytes, in_place)

    def _scratch(self, count: int, dtype: np.dtype, which: int = 0) -> np.ndarray:
        """Work space of collectives, (count,), which keeps its memory from call to call."""
        nbytes = count * dtype.itemsize
        if self._work[which].nbytes < nbytes:
            self._work[which] = np.empty(nbytes, np.uint8)
        return self._work[which][:nbytes].view(dtype)

    def _checked_rank(self, rank: int, name: str) -> int:
        if type(rank) is int and 0 <= rank < self.size:
            return rank
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or not 0 <= rank < self.size:
            raise UserError(f"{name} has to be a rank from 0 to {self.size - 1}, got {rank!r}")
        return int(rank)

    def _checked_tag(self, tag: int | None, exact: bool = False) -> int:
        if type(tag) is int and 0 <= tag <= LARGEST_TAG:
            return tag
        if tag is None and not exact:
            return int(self._MPI.ANY_TAG)
        if isinstance(tag, bool) or not isinstance(tag, int | np.integer) or not 0 <= tag <= LARGEST_TAG:
            raise UserError(f"tag has to be a number from 0 to {LARGEST_TAG}, got {tag!r}")
        return int(tag)

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Errors of MPI as UserError that names operation and rank."""
        try:
            yield
        except self._MPI.Exception as error:
            raise self._explained(name, error) from error

    def _explained(self, name: str, error: Any) -> UserError:
        return UserError(f"{name} failed on rank {self.rank} of {self.size}: {error.Get_error_string()}")

    def _count_now(self, name: str, begin: int, sent: int, received: int) -> None:
        """Count a call that began at ``begin`` and ends now."""
        end = perf_counter_ns()
        # Written out: a further call would cost as much as all of this.
        counters = self.counters
        with counters.lock:
            totals = counters.totals[name]
            totals[0] += 1
            totals[1] += sent
            totals[2] += received
            totals[3] += end - begin
        if self.timeline is not None:
            self.timeline.record("communication", name, begin, end, sent + received)

    def _count(self, name: str, begin: int, end: int, sent: int, received: int, inside: int) -> None:
        self.counters.add(name, sent, received, inside)
        if self.timeline is not None:
            self.timeline.record("communication", name, begin, end, sent + received)
