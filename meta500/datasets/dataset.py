"""A dataset: arrays held in memory under the names of the network inputs that they feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meta500.datasets.arguments import sample_indices
from meta500.datasets.samples import LOSSES, Change, Samples, changed
from meta500.errors import UserError, choose


@dataclass(frozen=True, eq=False)
class Dataset(Samples):
    """Samples for a network's inputs; entry ``i`` of every array belongs to sample ``i``.

    Attributes:
        name: what the set is called in rows, plots and messages.
        inputs: arrays of shape (samples, ...) by network input, e.g. "image" (N, 1, 8, 8) float32
            and "label" (N,) int64. They are stored C-contiguous and read-only; writable arrays are
            copied, so what the caller does later to its own does not reach the set.
        label: name of the input that holds the truth, or None for a set without one.
        classes: names of the classes, label value ``k`` meaning ``classes[k]``; None where the
            label is no class, or the classes have no names.
        licence: licence of the data, with its source.
        default_loss: the loss that fits the label, "cross_entropy" (integer labels) or "mse".
        ignore: label value that counts in no loss and no score, or None.

    Raises:
        UserError: no arrays, no samples, arrays of unequal length, an array that is not numeric, an
            unknown label input or loss, or labels that do not fit the loss or the classes.
    """

    name: str
    inputs: dict[str, np.ndarray]
    label: str | None = "label"
    classes: tuple[str, ...] | None = None
    licence: str = ""
    default_loss: str = "cross_entropy"
    ignore: int | None = None

    def __post_init__(self) -> None:
        if not self.inputs:
            raise UserError(f"dataset '{self.name}' has no inputs: give at least one array")
        arrays = {str(key): _read_only(value) for key, value in self.inputs.items()}
        object.__setattr__(self, "inputs", arrays)
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(str(c) for c in self.classes))
        self._check_arrays()
        choose("loss", self.default_loss, LOSSES)
        if self.label is not None:
            if self.label not in arrays:
                raise UserError(
                    f"dataset '{self.name}' has no input '{self.label}' to take as its label: "
                    f"give label= one of {', '.join(arrays)}, or None for a set without labels"
                )
            self._check_labels(arrays[self.label])

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def __repr__(self) -> str:
        arrays = ", ".join(f"{k}: {v.shape[1:]} {v.dtype}" for k, v in self.inputs.items())
        return f"Dataset('{self.name}', {len(self)} samples, {arrays})"

    def __reduce__(self) -> tuple[object, ...]:
        # Through the constructor: numpy's own pickling would give back writable arrays.
        return Dataset, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {key: value.shape[1:] for key, value in self.inputs.items()}

    @property
    def dtypes(self) -> Mapping[str, np.dtype]:
        return {key: value.dtype for key, value in self.inputs.items()}

    def batch(
        self, indices: Sequence[int] | np.ndarray, change: Change | None = None
    ) -> dict[str, np.ndarray]:
        chosen = sample_indices(self.name, len(self), indices)
        taken = {key: value.take(chosen, axis=0) for key, value in self.inputs.items()}
        if change is not None:
            shapes, dtypes = self.shapes, self.dtypes
            for place, index in enumerate(chosen.tolist()):
                sample = change({key: value[index] for key, value in self.inputs.items()}, index)
                changed(self.name, sample, shapes, dtypes, index)
                for key, array in taken.items():
                    array[place] = sample[key]
        return taken

    def subset(self, indices: Sequence[int] | np.ndarray) -> Dataset:
        """A dataset of the samples ``indices`` (as in `batch`), otherwise like this one."""
        taken = self.batch(indices)
        for array in taken.values():
            array.flags.writeable = False
        return replace(self, inputs=taken)

    def cast(self, dtype: str | type | np.dtype) -> Dataset:
        target = floating_dtype(dtype)
        arrays = {}
        for key, value in self.inputs.items():
            if np.issubdtype(value.dtype, np.floating) and value.dtype != target:
                with np.errstate(over="ignore"):
                    cast = value.astype(target)
                if np.isinf(cast).any() and not np.array_equal(np.isinf(cast), np.isinf(value)):
                    largest = np.abs(value[np.isfinite(value)]).max()
                    raise UserError(
                        f"dataset '{self.name}': input '{key}' reaches {largest:g}, more than "
                        f"{target.name} holds ({np.finfo(target).max:g})"
                    )
                cast.flags.writeable = False
                value = cast
            arrays[key] = value
        return replace(self, inputs=arrays)

    def in_memory(self) -> Dataset:
        return self

    def class_labels(self) -> np.ndarray | None:
        labels = None if self.label is None else self.inputs[self.label]
        if labels is None or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            return None
        return labels.astype(np.int64)

    def _check_arrays(self) -> None:
        for key, value in self.inputs.items():
            if value.dtype.kind in "OUSMm":
                raise UserError(
                    f"dataset '{self.name}': input '{key}' has dtype {value.dtype}; numbers are needed"
                )
            if value.ndim == 0:
                raise UserError(
                    f"dataset '{self.name}': input '{key}' is a scalar; its first axis must be the samples"
                )
        lengths = {key: len(value) for key, value in self.inputs.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"'{key}' {n}" for key, n in lengths.items())
            raise UserError(f"dataset '{self.name}': inputs of unequal length: {listed}")
        if len(self) == 0:
            raise UserError(f"dataset '{self.name}' has no samples")

    def _check_labels(self, labels: np.ndarray) -> None:
        if self.default_loss != "cross_entropy" and self.classes is None:
            return
        where = f"dataset '{self.name}': label '{self.label}'"
        if not np.issubdtype(labels.dtype, np.integer):
            raise UserError(f"{where} must hold integer class numbers, not {labels.dtype}")
        if labels.size == 0:
            raise UserError(f"{where} has shape {labels.shape}: no label in it")
        if self.ignore is not None:
            labels = labels[labels != self.ignore]
            if labels.size == 0:
                return
        low, high = int(labels.min()), int(labels.max())
        if low < 0:
            raise UserError(f"{where} holds {low}; class numbers start at 0")
        if self.classes is not None and high >= len(self.classes):
            raise UserError(
                f"{where} holds {high}, outside 0..{len(self.classes) - 1} of its {len(self.classes)} classes"
            )


def floating_dtype(dtype: str | type | np.dtype) -> np.dtype:
    """``dtype`` as float16, float32 or float64.

    Raises:
        UserError: any other.
    """
    try:
        target = np.dtype(dtype)
    except TypeError:
        raise UserError(f"unknown dtype {dtype!r}: choose float16, float32 or float64") from None
    choose("floating-point dtype", target.name, ("float16", "float32", "float64"))
    return target


def _read_only(value: np.ndarray) -> np.ndarray:
    array = np.asarray(value)
    # A read-only view of somebody's writable array could still change: only an owner is trusted.
    if array.flags.owndata and array.flags.c_contiguous and not array.flags.writeable:
        return array
    copy = np.array(array, order="C", copy=True)
    copy.flags.writeable = False
    return copy
