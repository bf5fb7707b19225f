"""A dataset whose samples are read when they are asked for: pictures in files, bytes that become floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meta500.datasets.arguments import sample_indices
from meta500.datasets.dataset import Dataset, floating_dtype
from meta500.datasets.samples import LOSSES, Change, Samples, changed
from meta500.errors import UserError, choose

# (index) -> arrays by input as they are stored, e.g. uint8 pictures of any size.
Read = Callable[[int], dict[str, np.ndarray]]
# (sample as stored or changed, its index) -> arrays by input as the network takes them.
Prepare = Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]]


@dataclass(frozen=True, eq=False)
class LazyDataset(Samples):
    """Samples that ``read`` gives and ``prepare`` brings to the shapes and dtypes of the network's inputs.

    A sample of a batch is ``prepare(change(read(i), i), i)``: augmentation sees pictures as they are stored
    (uint8, their own size), and resizing, scaling and normalising come last.

    Args:
        name: see `Samples`, also for label, classes, licence, default_loss and ignore.
        length: number of samples.
        read: may be called by several threads at once, and can be pickled; a ``UserError`` that names the
            file where it cannot be read.
        prepare: None: what is read is ready.
        sample_shapes: shape of one prepared sample by input.
        sample_dtypes: dtype by input.
        labels: (length,) integer classes, where the label is one class per sample; `class_labels` gives them
            without reading anything. They have to be those that ``read`` gives.

    Raises:
        UserError: no samples, an unknown loss, labels of another length or that do not fit the classes.
    """

    name: str
    length: int
    read: Read
    sample_shapes: Mapping[str, tuple[int, ...]]
    sample_dtypes: Mapping[str, np.dtype]
    prepare: Prepare | None = None
    label: str | None = "label"
    classes: tuple[str, ...] | None = None
    licence: str = ""
    default_loss: str = "cross_entropy"
    ignore: int | None = None
    labels: np.ndarray | None = None

    def __post_init__(self) -> None:
        choose("loss", self.default_loss, LOSSES)
        if self.length < 1:
            raise UserError(f"dataset '{self.name}' has no samples")
        object.__setattr__(
            self, "sample_dtypes", {key: np.dtype(value) for key, value in self.sample_dtypes.items()}
        )
        object.__setattr__(
            self, "sample_shapes", {key: tuple(value) for key, value in self.sample_shapes.items()}
        )
        if self.label is not None and self.label not in self.sample_shapes:
            raise UserError(
                f"dataset '{self.name}' has no input '{self.label}' to take as its label: "
                f"give label= one of {', '.join(self.sample_shapes)}, or None for a set without labels"
            )
        if self.labels is not None:
            labels = np.asarray(self.labels)
            if labels.shape != (self.length,) or labels.dtype.kind not in "iu":
                raise UserError(
                    f"dataset '{self.name}': its labels are {labels.dtype} of shape {labels.shape}; "
                    f"{self.length} integers are needed"
                )
            if self.classes is not None and not 0 <= labels.min() <= labels.max() < len(self.classes):
                raise UserError(
                    f"dataset '{self.name}': labels run from {labels.min()} to {labels.max()}, outside "
                    f"0..{len(self.classes) - 1} of its {len(self.classes)} classes"
                )
            object.__setattr__(self, "labels", labels.astype(np.int64))

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        arrays = ", ".join(f"{k}: {v} {self.dtypes[k]}" for k, v in self.shapes.items())
        return f"LazyDataset('{self.name}', {len(self)} samples, {arrays})"

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.sample_shapes

    @property
    def dtypes(self) -> Mapping[str, np.dtype]:
        return self.sample_dtypes

    def sample(self, index: int, change: Change | None = None) -> dict[str, np.ndarray]:
        """The sample ``index``, as it goes into a batch."""
        found = self.read(index)
        if change is not None:
            found = change(found, index)
        if self.prepare is not None:
            found = self.prepare(found, index)
        return changed(self.name, found, self.shapes, self.dtypes, index)

    def batch(
        self, indices: Sequence[int] | np.ndarray, change: Change | None = None
    ) -> dict[str, np.ndarray]:
        chosen = sample_indices(self.name, len(self), indices)
        result = {
            key: np.empty((len(chosen), *shape), self.dtypes[key]) for key, shape in self.shapes.items()
        }
        for place, index in enumerate(chosen.tolist()):
            sample = self.sample(index, change)
            for key, array in result.items():
                array[place] = sample[key]
        return result

    def subset(self, indices: Sequence[int] | np.ndarray) -> LazyDataset:
        chosen = sample_indices(self.name, len(self), indices)
        # A change sees the index within the subset, as it does for a Dataset.
        return replace(
            self,
            length=len(chosen),
            read=_Chosen(self.read, chosen),
            prepare=None if self.prepare is None else _Chosen(self.prepare, chosen),
            labels=None if self.labels is None else self.labels[chosen],
        )

    def cast(self, dtype: str | type | np.dtype) -> LazyDataset:
        target = floating_dtype(dtype)
        dtypes = {key: target if kind.kind == "f" else kind for key, kind in self.dtypes.items()}
        return replace(self, sample_dtypes=dtypes, prepare=_Cast(self.name, self.prepare, dtypes))

    def in_memory(self) -> Dataset:
        return Dataset(
            self.name,
            self.batch(np.arange(len(self))),
            self.label,
            self.classes,
            self.licence,
            self.default_loss,
            self.ignore,
        )

    def class_labels(self) -> np.ndarray | None:
        return self.labels


@dataclass(frozen=True)
class _Chosen:
    """``function`` of the samples ``indices``; a class, since closures cannot be pickled."""

    function: Callable[..., dict[str, np.ndarray]]
    indices: np.ndarray

    def __call__(self, *arguments: object) -> dict[str, np.ndarray]:
        *before, index = arguments
        return self.function(*before, int(self.indices[index]))  # type: ignore[call-overload]


@dataclass(frozen=True)
class _Cast:
    name: str
    prepare: Prepare | None
    dtypes: Mapping[str, np.dtype]

    def __call__(self, sample: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        if self.prepare is not None:
            sample = self.prepare(sample, index)
        found = {}
        for key, array in sample.items():
            with np.errstate(over="ignore"):
                cast = array.astype(self.dtypes.get(key, array.dtype), copy=False)
            if cast.dtype.kind == "f" and np.isinf(cast).any() and not np.isinf(array).any():
                raise UserError(
                    f"dataset '{self.name}': '{key}' of sample {index} reaches {np.abs(array).max():g}, more "
                    f"than {cast.dtype} holds ({np.finfo(cast.dtype).max:g})"
                )
            found[key] = cast
        return found
