"""Samplers that give every rank its own part of each global batch.

All ranks walk the same global order (same sampler, same seed), so no index is ever communicated: what a rank
takes follows from its number alone. The union over ranks is the serial epoch, every sample once, the short
last batch included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meta500.datasets import Sampler
from meta500.datasets.arguments import integer
from meta500.errors import UserError


class DistributedSampler:
    """Rank r's slice of every batch of ``sampler``, whose ``batch_size`` is the global one, N * b.

    The slices are those of ``numpy.array_split``: consecutive, in rank order, and their sizes differ by at
    most one. Every rank has the same number of batches; in a last batch with fewer samples than ranks some
    slices have no samples (arrays of length 0), so that all ranks still meet in every step.

    Attributes:
        dataset, batch_size, drop_last, seed: of ``sampler``; ``batch_size`` is the global one.
        rank, ranks: which part this is.
        next_epoch: number of the epoch that the next iteration gives.

    Raises:
        UserError: ``sampler`` is no Sampler, a rank outside of 0 to ranks - 1, or a global batch with fewer
            samples than ranks.
    """

    def __init__(self, sampler: Sampler, rank: int, ranks: int) -> None:
        if not isinstance(sampler, Sampler):
            raise UserError(
                f"DistributedSampler wraps a Sampler whose batch_size is that of all ranks together, not "
                f"{type(sampler).__name__}"
            )
        self.sampler = sampler
        self.ranks = integer("ranks", ranks, minimum=1)
        self.rank = integer("rank", rank, minimum=0)
        if self.rank >= self.ranks:
            raise UserError(f"rank must be from 0 to {self.ranks - 1} for {self.ranks} ranks, not {rank}")
        if sampler.batch_size < self.ranks:
            raise UserError(
                f"the global batch of {sampler.batch_size} samples is smaller than the {self.ranks} ranks "
                "that "
                f"share it; give the sampler a batch_size of at least {self.ranks}"
            )
        self.dataset, self.batch_size = sampler.dataset, sampler.batch_size
        self.drop_last = sampler.drop_last
        self.seed = getattr(sampler, "seed", None)
        self.next_epoch = 0

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The sample indices of this rank's batches of ``epoch``, each 1-D int64, maybe of length 0."""
        order = self.sampler.indices(epoch)
        starts = range(0, len(order), self.batch_size)
        return [self._slice(order[start : start + self.batch_size]) for start in starts]

    def indices(self, epoch: int) -> np.ndarray:
        """The sample indices that ``epoch`` gives to this rank, in order: 1-D int64."""
        return np.concatenate(self.batches(epoch))

    def epoch(self, epoch: int, first: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """This rank's part of the batches of ``epoch`` from number ``first`` on; the same at every call.

        Raises:
            UserError: ``epoch`` is no integer of at least 0.
        """
        batches = self.batches(epoch)[first:]
        return (self._batch(indices) for indices in batches)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        number = self.next_epoch
        self.next_epoch = number + 1
        return self.epoch(number)

    def __len__(self) -> int:
        return len(self.sampler)

    def _batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        return self.dataset.batch(indices) if len(indices) else self.dataset.empty_batch()

    def _slice(self, batch: np.ndarray) -> np.ndarray:
        """``np.array_split(batch, ranks)[rank]`` without making the other parts."""
        size, longer = divmod(len(batch), self.ranks)
        begin = self.rank * size + min(self.rank, longer)
        return batch[begin : begin + size + (self.rank < longer)]


class DealtSampler:
    """Whole batches of ``sampler`` in turns: rank r gets the batches r, r + N, r + 2 N, ...

    For walks in which ranks do not meet at every batch, such as a test set: all batches keep their size,
    which a network with a fixed batch size needs, and the ranks' numbers of batches differ by at most one. A
    rank may have none.

    Raises:
        UserError: as `DistributedSampler`.
    """

    def __init__(self, sampler: Sampler, rank: int, ranks: int) -> None:
        if not isinstance(sampler, Sampler):
            raise UserError(f"DealtSampler wraps a Sampler, not {type(sampler).__name__}")
        self.sampler = sampler
        self.ranks = integer("ranks", ranks, minimum=1)
        self.rank = integer("rank", rank, minimum=0)
        if self.rank >= self.ranks:
            raise UserError(f"rank must be from 0 to {self.ranks - 1} for {self.ranks} ranks, not {rank}")
        self.dataset, self.batch_size = sampler.dataset, sampler.batch_size
        self.drop_last = sampler.drop_last
        self.seed = getattr(sampler, "seed", None)

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The sample indices of this rank's batches of ``epoch``, each 1-D int64."""
        order = self.sampler.indices(epoch)
        starts = range(self.rank * self.batch_size, len(order), self.ranks * self.batch_size)
        return [order[start : start + self.batch_size] for start in starts]

    def epoch(self, epoch: int, first: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """This rank's batches of ``epoch`` from number ``first`` on; the same at every call."""
        batches = self.batches(epoch)[first:]
        return (self.dataset.batch(indices) for indices in batches)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self.epoch(0)

    def __len__(self) -> int:
        return len(range(self.rank, len(self.sampler), self.ranks))
