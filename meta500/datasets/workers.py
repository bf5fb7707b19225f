"""Workers that make batches: threads of this process, or processes of their own.

Processes are spawned, never forked, since a fork copies locks that other threads (of BLAS, of MPI) hold. They
get the set once, at their start. What is large in it lies in memory that all of them share, and so do the
batches on their way back: anonymous memory whose only names are open files, so that no batch and no copy of
the set is left behind however a process ends. (Killed all at once, the pool's semaphores may be.)
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np

from meta500.datasets.dataset import Dataset
from meta500.errors import UserError

Batch = dict[str, np.ndarray]
# (epoch, sample indices) -> batch.
Load = Callable[[int, np.ndarray], Batch]

# Batches of fewer bytes are pickled: up to here that takes less time than two trips through shared memory.
SHARED_FROM = 1 << 16
# Arrays of a set from this size on lie in shared memory instead of once in every process.
_LARGE = 1 << 16
_ALIGNED = 64
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Pending:
    """A batch of the set ``name`` that is being made: its ``future``, and the one that this waits for."""

    def __init__(self, name: str, future: Future[Any], making: Future[Any] | None = None) -> None:
        self._name, self._future = name, future
        self._making = future if making is None else making

    def cancel(self) -> None:
        """Do not make it, unless that has begun."""
        self._making.cancel()

    def result(self) -> Batch:
        """The batch, waited for.

        Raises:
            UserError: a worker process died, or the workers were closed.
            Exception: what making it raised.
        """
        try:
            return self._future.result()  # type: ignore[no-any-return]
        except CancelledError:
            raise UserError(
                f"dataset '{self._name}': its loader was closed while an epoch was under way"
            ) from None
        except BrokenProcessPool:
            raise UserError(
                f"dataset '{self._name}': a worker process that loads it died (killed, out of memory, a "
                "crash in a decoder, or a script without `if __name__ == '__main__':` around what it does, "
                "imports of mpi4py.MPI included): "
                "use fewer workers, or threads"
            ) from None


class Threads:
    """``workers`` threads that call ``load``."""

    def __init__(self, name: str, load: Load, workers: int) -> None:
        self._name, self._load = name, load
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="meta500-data")

    def submit(self, epoch: int, indices: np.ndarray) -> Pending:
        """Begin a batch."""
        return Pending(self._name, _begun(self._pool, self._load, epoch, indices))

    def close(self) -> None:
        """Wait for batches that have been begun, and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Processes:
    """``workers`` processes that call ``load``, which has to be picklable.

    Args:
        name: of the set, for messages.
        load: makes a batch.
        workers: number of processes; they start when they are first needed.
        shapes, dtypes: of one sample, by input.
        samples: the largest batch.
        slots: so many batches at once go through shared memory; further ones are pickled.

    Raises:
        UserError: ``load`` cannot be pickled.
    """

    def __init__(
        self,
        name: str,
        load: Load,
        workers: int,
        *,
        shapes: Mapping[str, Sequence[int]],
        dtypes: Mapping[str, np.dtype],
        samples: int,
        slots: int,
    ) -> None:
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        self._name = name
        self._layout = _Layout(shapes, dtypes, samples)
        self._memory = None
        self._free: deque[int] = deque()
        if self._layout.size >= SHARED_FROM:
            self._memory = context.RawArray("b", slots * self._layout.size)
            self._free.extend(range(slots))
        try:
            pickled, buffers = _packed(load)
        except Exception as error:
            raise UserError(
                f"dataset '{name}' cannot be sent to worker processes: {error}; use threads (kind 'thread')"
            ) from None
        shared = context.RawArray("b", max(1, sum(_rounded(b.nbytes) for b in buffers)))
        places = _copied_into(memoryview(shared).cast("B"), buffers)
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_begin,
            initargs=(pickled, shared, places, self._memory, self._layout),
        )

    def submit(self, epoch: int, indices: np.ndarray) -> Pending:
        """Begin a batch."""
        slot = self._free.popleft() if self._free else None
        with _without_interrupts():
            made = _begun(self._pool, _make, epoch, indices, slot)
        if slot is None:
            return Pending(self._name, made)
        copied: Future[Batch] = Future()
        made.add_done_callback(lambda future: self._take_out(future, slot, len(indices), copied))
        return Pending(self._name, copied, made)

    def close(self) -> None:
        """Wait for batches that have been begun, and end the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _take_out(self, made: Future[Any], slot: int, samples: int, copied: Future[Batch]) -> None:
        """Copy a batch out of its slot, in the thread that hears of it, so that nobody waits for the copy."""
        try:
            found = made.result()
            if found is None:
                views = self._layout.views(self._memory, slot, samples)
                found = {name: view.copy() for name, view in views.items()}
        except BaseException as error:
            self._free.append(slot)
            copied.set_exception(error)
        else:
            self._free.append(slot)
            copied.set_result(found)


def _begun(pool: Executor, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """``pool.submit``; if the pool is broken or closed, the future says so, as those before it do."""
    try:
        return pool.submit(function, *arguments)
    except BrokenProcessPool as error:
        broken: Future[Any] = Future()
        broken.set_exception(error)
        return broken
    except RuntimeError:
        closed: Future[Any] = Future()
        closed.cancel()
        return closed


class _Layout:
    """Where the arrays of a batch lie in a slot of shared memory."""

    def __init__(
        self, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, np.dtype], samples: int
    ) -> None:
        self.samples = samples
        self.arrays: dict[str, tuple[int, tuple[int, ...], np.dtype]] = {}
        self.size = 0
        for name, shape in shapes.items():
            dtype = np.dtype(dtypes[name])
            self.arrays[name] = (self.size, tuple(shape), dtype)
            self.size += _rounded(samples * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)

    def fits(self, batch: Batch) -> bool:
        """Whether a batch can go through a slot."""
        return batch.keys() == self.arrays.keys() and all(
            len(array) <= self.samples and (array.shape[1:], array.dtype) == self.arrays[name][1:]
            for name, array in batch.items()
        )

    def views(self, memory: Any, slot: int, samples: int) -> Batch:
        """The arrays of ``samples`` samples in a slot."""
        return {
            name: np.frombuffer(
                memory,
                dtype,
                samples * int(np.prod(shape, dtype=np.int64)),
                slot * self.size + begin,
            ).reshape(samples, *shape)
            for name, (begin, shape, dtype) in self.arrays.items()
        }


# -- in the worker processes -----------------------------------------------------------------------------


class _Worker:
    """What a worker process holds: how to make batches, or why it cannot, and where they go."""

    load: Load | None = None
    failure: Exception | None = None
    memory: Any = None
    layout: _Layout


def _begin(pickled: bytes, shared: Any, places: Sequence[slice], memory: Any, layout: _Layout) -> None:
    """The start of a worker process."""
    # Ctrl-C reaches every process of a terminal; the main one decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # For libraries that are loaded from now on, and for those that are loaded.
    os.environ.update(dict.fromkeys(_THREAD_LIMITS, "1"))
    try:
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)
        whole = memoryview(shared).cast("B").toreadonly()
        _Worker.memory, _Worker.layout = memory, layout
        _Worker.load = pickle.loads(pickled, buffers=[whole[place] for place in places])
    except Exception as error:
        # Told with the first batch, as it is: an error here would only be told as a dead process.
        _Worker.failure = _sendable(error)


def _make(epoch: int, indices: np.ndarray, slot: int | None) -> Batch | None:
    """Make a batch; None if it lies in the slot."""
    if _Worker.failure is not None:
        raise _Worker.failure
    assert _Worker.load is not None
    try:
        batch = _Worker.load(epoch, indices)
    except Exception as error:
        sendable = _sendable(error)
        if sendable is error:
            raise
        raise sendable from error
    if slot is None or not _Worker.layout.fits(batch):
        return batch
    for name, view in _Worker.layout.views(_Worker.memory, slot, len(indices)).items():
        view[...] = batch[name]
    return None


def _end_with_parent() -> None:
    """End this process when the main one is gone, however that ended."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _sendable(error: Exception) -> Exception:
    """``error``, or one with its words if it does not survive pickling."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:
        pass
    kind = UserError if isinstance(error, UserError) else RuntimeError
    return kind(str(error) if kind is UserError else f"{type(error).__name__}: {error}")


# -- sending the set -------------------------------------------------------------------------------------


class _Pickler(pickle.Pickler):
    """Sends files that are mapped into memory by their names, and sets in memory without a copy of them."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.memmap:
            return _mapped_file(value)
        if type(value) is Dataset:
            return _dataset, ({field.name: getattr(value, field.name) for field in fields(value)},)
        return NotImplemented


def _dataset(attributes: dict[str, Any]) -> Dataset:
    """A Dataset around its arrays, which its constructor would copy, since they lie in shared memory."""
    made = object.__new__(Dataset)
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def _mapped_file(array: np.memmap) -> Any:
    """How to map the same part of the file again."""
    source: Any = array.base
    while source is not None and not isinstance(source, mmap.mmap):
        source = getattr(source, "base", None)
    plain = array.mode == "r" and array.filename is not None and array.flags.c_contiguous and array.size
    if source is None or not plain:
        return NotImplemented
    # The attribute `offset` of a slice is that of the array that it was cut from.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    start = np.frombuffer(source, np.uint8).ctypes.data
    return np.memmap, (str(array.filename), array.dtype, "r", begin + array.ctypes.data - start, array.shape)


def _packed(load: Load) -> tuple[bytes, list[memoryview]]:
    """``load`` as bytes and, apart, the contents of its large arrays."""
    buffers: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _LARGE:
            return True
        buffers.append(raw)
        return False

    stream = io.BytesIO()
    _Pickler(stream, 5, buffer_callback=keep).dump(load)
    return stream.getvalue(), buffers


def _copied_into(memory: memoryview, buffers: Sequence[memoryview]) -> list[slice]:
    """Copy ``buffers`` one after the other into ``memory``; where they lie there."""
    places, begin = [], 0
    for buffer in buffers:
        place = slice(begin, begin + buffer.nbytes)
        memory[place] = buffer.cast("B") if buffer.format != "B" else buffer
        places.append(place)
        begin += _rounded(buffer.nbytes)
    return places


def _rounded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that start in here do not hear Ctrl-C before they know what to do about it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
