"""A loader: the batches of a sampler, made ahead of time by workers, in order, and always the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any

import numpy as np

from meta500.datasets.arguments import integer
from meta500.datasets.augmentations import Augment, Roles, Step, parsed
from meta500.datasets.samplers import Sampler
from meta500.datasets.samples import Samples
from meta500.datasets.workers import Batch, Pending, Processes, Threads
from meta500.errors import UserError, choose

KINDS = ("thread", "process")


class Loader:
    """The batches of a sampler, read and augmented by workers while the network computes.

    Batches come in the sampler's order, with the same bits whatever ``workers``, ``kind`` and ``prefetch``
    are: a sample depends on its number, the seed and the epoch only. At most ``workers * prefetch`` batches
    are under way or ready at a time. What a worker raises is raised where its batch is asked for.

    Threads share this process' memory and suit what is done outside of Python's lock (decoding pictures,
    numpy on large arrays). Processes have no lock in common, and no memory except for the set's large arrays;
    they start within the first epoch, and a set has to be picklable for them. Their numerical libraries use
    one thread each. With processes, a script needs ``if __name__ == "__main__":`` around what it does,
    imports of mpi4py.MPI included.

    Workers live until `close`, or the end of a ``with`` block; a later epoch starts new ones.

    Args:
        sampler: a Sampler, or anything with ``dataset`` and ``batches(epoch)`` (a list of 1-D index arrays).
        workers: 0 makes every batch when it is asked for, in the thread that asks.
        kind: "thread" or "process".
        prefetch: batches that are made ahead, per worker.
        augment: steps (see `meta500.datasets.augmentations`) or their texts, in their order.
        seed: of the augmentation; None: the sampler's, else 0.

    Attributes:
        sampler, dataset, batch_size, drop_last, seed: of the sampler (``seed`` None where it has none).
        augment: the steps.
        augment_seed: their seed.
        next_epoch: number of the epoch that the next iteration gives; set it to resume.

    Raises:
        UserError: a sampler that gives no index batches, or whose batches are not the samples of its
            indices, an unknown kind or augmentation, a negative number
            of workers, less than one batch of prefetch.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        workers: int = 0,
        kind: str = "thread",
        prefetch: int = 2,
        augment: Iterable[str | Step] = (),
        seed: int | None = None,
    ) -> None:
        if not callable(getattr(sampler, "batches", None)) or not isinstance(
            getattr(sampler, "dataset", None), Samples
        ):
            raise UserError(
                f"a Loader takes a sampler with .dataset and .batches(epoch), not {type(sampler).__name__}"
            )
        if isinstance(sampler, Sampler) and type(sampler).epoch is not Sampler.epoch:
            raise UserError(
                f"{type(sampler).__name__} has an epoch() of its own, which a Loader would not call: "
                "override batches(), or make the change a step of augment=..."
            )
        self.sampler = sampler
        self.dataset: Samples = sampler.dataset
        self.batch_size = getattr(sampler, "batch_size", None)
        self.drop_last = getattr(sampler, "drop_last", None)
        self.seed: int | None = getattr(sampler, "seed", None)
        self.workers = integer("workers", workers, minimum=0)
        self.kind = choose("kind of workers", kind, KINDS)
        self.prefetch = integer("prefetch", prefetch, minimum=1)
        self.augment = parsed(augment)
        own = 0 if self.seed is None else self.seed
        self.augment_seed = integer("seed", own if seed is None else seed, minimum=0)
        self.next_epoch = 0
        self._pool: Threads | Processes | None = None

    def over(self, sampler: Any) -> Loader:
        """A loader around another sampler, otherwise like this one, with workers of its own."""
        return Loader(
            sampler,
            workers=self.workers,
            kind=self.kind,
            prefetch=self.prefetch,
            augment=self.augment,
            seed=self.augment_seed,
        )

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The sample indices of every batch of ``epoch``, each 1-D int64.

        Raises:
            UserError: ``epoch`` is no integer of at least 0.
        """
        return self.sampler.batches(integer("epoch", epoch, minimum=0))  # type: ignore[no-any-return]

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of ``epoch`` from the one with number ``first`` on; those before are not read.

        An iterator that is left early cancels what has not begun.

        Raises:
            UserError: ``epoch`` or ``first`` is no integer of at least 0; later, a sample that cannot be
                read, and a worker process that died.
        """
        batches = self.batches(epoch)
        chosen = batches[integer("first", first, minimum=0) :]
        load = _Load(self.dataset, self.augment, self.augment_seed)
        if self.workers == 0:
            return (load(epoch, indices) for indices in chosen)
        # A resumed run may begin with the short last batch; memory is made for those of later epochs.
        return self._ahead(epoch, chosen, load, max(map(len, batches), default=0))

    def close(self) -> None:
        """End the workers; waits for the batches that they are making."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __iter__(self) -> Iterator[Batch]:
        number = integer("next_epoch", self.next_epoch, minimum=0)
        self.next_epoch = number + 1
        return self.epoch(number)

    def __len__(self) -> int:
        return len(self.sampler)

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ahead(self, epoch: int, batches: Sequence[np.ndarray], load: _Load, largest: int) -> Iterator[Batch]:
        if not batches:
            return
        pool = self._started(load, largest)
        under_way: deque[Pending] = deque()
        further = iter(batches)
        try:
            for indices in islice(further, self.workers * self.prefetch):
                under_way.append(pool.submit(epoch, indices))
            while under_way:
                batch = under_way.popleft().result()
                for indices in islice(further, 1):
                    under_way.append(pool.submit(epoch, indices))
                yield batch
        except GeneratorExit:
            raise
        except BaseException:
            # A broken pool stays broken; after anything else a new one costs little.
            self._pool = None if self._pool is pool else self._pool
            for pending in under_way:
                pending.cancel()
            pool.close()
            raise
        finally:
            for pending in under_way:
                pending.cancel()

    def _started(self, load: _Load, samples: int) -> Threads | Processes:
        if self._pool is None:
            name = self.dataset.name
            if self.kind == "thread":
                self._pool = Threads(name, load, self.workers)
            else:
                self._pool = Processes(
                    name,
                    load,
                    self.workers,
                    shapes=self.dataset.shapes,
                    dtypes=self.dataset.dtypes,
                    samples=samples,
                    slots=self.workers * self.prefetch,
                )
        return self._pool


@dataclass(frozen=True)
class _Load:
    """Makes a batch; a class, since closures cannot be pickled."""

    dataset: Samples
    steps: tuple[Step, ...]
    seed: int

    def __call__(self, epoch: int, indices: np.ndarray) -> Batch:
        if len(indices) == 0:
            return self.dataset.empty_batch()
        if not self.steps:
            return self.dataset.batch(indices)
        roles = Roles(self.dataset.label, self.dataset.ignore)
        return self.dataset.batch(indices, Augment(self.steps, self.seed, epoch, roles))
