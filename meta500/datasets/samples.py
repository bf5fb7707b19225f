"""What samplers, loaders and runs need of a set of samples, in memory or read when they are asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.datasets.arguments import fraction as checked_fraction
from meta500.datasets.arguments import integer, stream
from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.datasets.dataset import Dataset

LOSSES = ("cross_entropy", "mse")
_SPLIT_STREAM = 1

# What is done to one sample between reading and batching, such as augmentation: (arrays by input, index of
# the sample in the set) -> arrays by input. It must not write into the arrays that it gets.
Change = Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]]


class Samples(ABC):
    """Samples for a network's inputs, numbered from 0; `Dataset` and `LazyDataset` are the two kinds.

    Attributes:
        name: what the set is called in rows, plots and messages.
        label: name of the input that holds the truth, or None for a set without one.
        classes: names of the classes, label value ``k`` meaning ``classes[k]``; None where the
            label is no class, or the classes have no names.
        licence: licence of the data, with its source.
        default_loss: the loss that fits the label, "cross_entropy" (integer labels) or "mse".
        ignore: label value that counts in no loss and no score (the void of PASCAL VOC), or None.
    """

    name: str
    label: str | None
    classes: tuple[str, ...] | None
    licence: str
    default_loss: str
    ignore: int | None

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of one sample, by input."""

    @property
    @abstractmethod
    def dtypes(self) -> Mapping[str, np.dtype]:
        """dtype by input."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def batch(
        self, indices: Sequence[int] | np.ndarray, change: Change | None = None
    ) -> dict[str, np.ndarray]:
        """The samples ``indices`` (1-D, in that order, repeats allowed), by network input.

        The arrays are C-contiguous, writable and nobody else's. ``change`` is applied to every sample as it
        was read, before it is resized, scaled and put into the batch.

        Raises:
            UserError: ``indices`` is empty, not 1-D, not integer, or outside [0, len(self)); a sample that
                cannot be read, or has another shape or dtype after ``change`` than the set says.
        """

    @abstractmethod
    def subset(self, indices: Sequence[int] | np.ndarray) -> Any:
        """A set of the samples ``indices`` (as in `batch`), otherwise like this one."""

    @abstractmethod
    def cast(self, dtype: str | type | np.dtype) -> Any:
        """This set with its floating-point arrays as ``dtype``; integer and bool arrays are kept.

        Raises:
            UserError: ``dtype`` is no float16, float32 or float64, or a value would overflow.
        """

    @abstractmethod
    def in_memory(self) -> Dataset:
        """All samples as arrays."""

    @abstractmethod
    def class_labels(self) -> np.ndarray | None:
        """The class of every sample, (len(self),) int64, without reading any picture; None where the label
        is not one class per sample."""

    def empty_batch(self) -> dict[str, np.ndarray]:
        """A batch of no samples: arrays of shape (0, ...)."""
        return {name: np.empty((0, *shape), self.dtypes[name]) for name, shape in self.shapes.items()}

    def split(self, fraction: float, seed: int = 0, *, stratified: bool = False) -> tuple[Any, Any]:
        """Split at random into (train, test); every sample lands in exactly one of the two.

        The test set gets ``fraction`` of the samples, rounded to the nearest count. Both keep the
        order of this set.

        Args:
            fraction: share of the test set, strictly between 0 and 1.
            seed: the same seed gives the same split.
            stratified: take the test samples from each class in proportion, to within one sample
                (largest remainder); needs one integer label per sample.

        Raises:
            UserError: ``fraction`` outside (0, 1), a part that would be empty, or ``stratified``
                without integer labels of shape (N,).
        """
        share = checked_fraction("fraction", fraction)
        test_size = int(np.floor(len(self) * share + 0.5))
        if not 0 < test_size < len(self):
            empty = "test" if test_size == 0 else "training"
            raise UserError(
                f"dataset '{self.name}': fraction {fraction} of {len(self)} samples "
                f"leaves the {empty} set empty"
            )
        order = stream(seed, _SPLIT_STREAM).permutation(len(self))
        if stratified:
            is_test = self._stratified_choice(order, share, test_size)
        else:
            is_test = np.zeros(len(self), dtype=bool)
            is_test[order[:test_size]] = True
        return self.subset(np.flatnonzero(~is_test)), self.subset(np.flatnonzero(is_test))

    def first(self, count: int) -> Any:
        """A set of the first ``count`` samples.

        Raises:
            UserError: ``count`` is no integer from 1 to the number of samples.
        """
        if integer("count", count, minimum=1) > len(self):
            raise UserError(f"dataset '{self.name}' has {len(self)} samples, fewer than {count}")
        return self.subset(np.arange(count))

    def _stratified_choice(self, order: np.ndarray, share: float, test_size: int) -> np.ndarray:
        labels = self.class_labels()
        if labels is None:
            found = "none"
            if self.label is not None:
                found = f"{self.dtypes[self.label]} of shape {(len(self), *self.shapes[self.label])}"
            raise UserError(
                f"dataset '{self.name}': a stratified split needs one integer label per sample, "
                f"found {found}; split with stratified=False"
            )
        _, class_of, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        counts, remainders = np.divmod(sizes * share, 1)
        counts = counts.astype(np.int64)
        missing = test_size - int(counts.sum())
        counts[np.argsort(-remainders, kind="stable")[:missing]] += 1
        is_test = np.zeros(len(self), dtype=bool)
        for number, count in enumerate(counts):
            members = order[class_of[order] == number]
            is_test[members[:count]] = True
        return is_test


def changed(
    name: str,
    sample: dict[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, np.dtype],
    index: int,
) -> dict[str, np.ndarray]:
    """``sample`` if its arrays have the shapes and dtypes of the set ``name``.

    Raises:
        UserError: an input is missing, or has another shape or dtype.
    """
    for key, shape in shapes.items():
        if key not in sample:
            raise UserError(f"dataset '{name}': sample {index} has no '{key}'")
        array = sample[key]
        if array.shape != shape or array.dtype != dtypes[key]:
            raise UserError(
                f"dataset '{name}': '{key}' of sample {index} is {array.dtype} of shape {array.shape} after "
                f"reading and augmentation; the set's is {dtypes[key]} of shape {shape}"
            )
    return sample
