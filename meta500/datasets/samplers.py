"""Samplers: in which order, and in which batches, the samples of a dataset are given out.

Every order depends on the seed and the epoch's number alone, so any epoch can be repeated, and a
run resumed at it. The last batch of an epoch is shorter where the batch size does not divide the
number of samples, or is left out with ``drop_last``; it is never empty.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from meta500.datasets.arguments import integer, stream
from meta500.datasets.samples import Samples
from meta500.errors import UserError

_SHUFFLE_STREAM, _CHOICE_STREAM, _BUCKET_STREAM = 2, 3, 4


class Sampler(ABC):
    """Batches of a dataset, epoch by epoch; a subclass says in `order` which samples come when.

    Iterating over a sampler gives the batches of its next epoch (0, 1, 2, ...), `epoch` those of
    any one. ``len(sampler)`` is the number of batches per epoch.

    Attributes:
        dataset: where the samples come from.
        batch_size: samples per batch.
        drop_last: leave out a last batch with fewer samples.
        next_epoch: number of the epoch that the next iteration gives; set it to resume.

    Raises:
        UserError: ``batch_size`` is no integer of at least 1, or an epoch would have no batch,
            because ``drop_last`` is set and the batch is larger than the set.
    """

    def __init__(self, dataset: Samples, batch_size: int, *, drop_last: bool = False) -> None:
        self.dataset = dataset
        self.batch_size = integer("batch_size", batch_size, minimum=1)
        self.drop_last = drop_last
        self.next_epoch = 0
        if len(self) == 0:
            raise UserError(
                f"batch_size {batch_size} is larger than the {self.samples_per_epoch} samples of "
                f"an epoch of dataset '{dataset.name}', and drop_last leaves the short batch out: "
                "no batch remains"
            )

    @property
    def samples_per_epoch(self) -> int:
        """Number of samples that `order` gives, before ``drop_last``."""
        return len(self.dataset)

    @abstractmethod
    def order(self, epoch: int) -> np.ndarray:
        """The sample indices of ``epoch``, in order: (samples_per_epoch,) int64."""

    def indices(self, epoch: int) -> np.ndarray:
        """The sample indices that ``epoch`` gives out, in order: 1-D int64, no dropped batch in it.

        Batch ``b`` holds the entries from ``b * batch_size`` up to ``(b + 1) * batch_size``.

        Raises:
            UserError: ``epoch`` is no integer of at least 0.
        """
        order = self.order(integer("epoch", epoch, minimum=0))
        return order[: len(self) * self.batch_size] if self.drop_last else order

    def epoch(self, epoch: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches of ``epoch``, each as `Dataset.batch` gives it; the same at every call.

        Raises:
            UserError: ``epoch`` is no integer of at least 0 (raised here, not at the first batch).
        """
        batches = self.batches(epoch)
        return (self.dataset.batch(indices) for indices in batches)

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The sample indices of every batch of ``epoch``, each 1-D int64.

        Raises:
            UserError: ``epoch`` is no integer of at least 0.
        """
        order = self.indices(epoch)
        starts = range(0, len(order), self.batch_size)
        return [order[start : start + self.batch_size] for start in starts]

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        number = self.next_epoch
        self.next_epoch = number + 1
        return self.epoch(number)

    def __len__(self) -> int:
        whole, rest = divmod(self.samples_per_epoch, self.batch_size)
        return whole if self.drop_last or rest == 0 else whole + 1


class OrderedSampler(Sampler):
    """Every sample once per epoch, in the order of the dataset."""

    def order(self, epoch: int) -> np.ndarray:
        return np.arange(len(self.dataset), dtype=np.int64)


class ShuffleSampler(Sampler):
    """Every sample exactly once per epoch, in a random order that depends on (seed, epoch)."""

    def __init__(self, dataset: Samples, batch_size: int, *, seed: int = 0, drop_last: bool = False) -> None:
        super().__init__(dataset, batch_size, drop_last=drop_last)
        self.seed = integer("seed", seed, minimum=0)

    def order(self, epoch: int) -> np.ndarray:
        return stream(self.seed, _SHUFFLE_STREAM, epoch).permutation(len(self.dataset))


class BucketSampler(Sampler):
    """Every sample exactly once per epoch, shuffled by buckets of neighbouring samples.

    The dataset is cut into buckets of ``bucket_size`` consecutive samples (the last one may be
    smaller); the buckets come in random order, and the samples within each too. Reads stay close
    together, at the price of a weaker shuffle: 1 keeps single samples, len(dataset) shuffles all.

    Raises:
        UserError: as `Sampler`; or ``bucket_size`` is no integer of at least 1.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int,
        *,
        bucket_size: int,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last=drop_last)
        self.bucket_size = integer("bucket_size", bucket_size, minimum=1)
        self.seed = integer("seed", seed, minimum=0)

    def order(self, epoch: int) -> np.ndarray:
        random = stream(self.seed, _BUCKET_STREAM, epoch)
        samples = np.arange(len(self.dataset), dtype=np.int64)
        starts = random.permutation(np.arange(0, len(samples), self.bucket_size))
        buckets = (samples[start : start + self.bucket_size] for start in starts)
        return np.concatenate([random.permutation(bucket) for bucket in buckets])


class ChoiceSampler(Sampler):
    """Samples drawn with replacement, each with the same probability, from (seed, epoch).

    Args:
        samples: draws per epoch; None draws as many as the dataset has.

    Raises:
        UserError: as `Sampler`; or ``samples`` is no integer of at least 1.
    """

    def __init__(
        self,
        dataset: Samples,
        batch_size: int,
        *,
        seed: int = 0,
        samples: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self._samples = len(dataset) if samples is None else integer("samples", samples, minimum=1)
        super().__init__(dataset, batch_size, drop_last=drop_last)
        self.seed = integer("seed", seed, minimum=0)

    @property
    def samples_per_epoch(self) -> int:
        return self._samples

    def order(self, epoch: int) -> np.ndarray:
        random = stream(self.seed, _CHOICE_STREAM, epoch)
        return random.integers(len(self.dataset), size=self._samples, dtype=np.int64)
