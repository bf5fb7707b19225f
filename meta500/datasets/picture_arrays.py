"""Sets over pictures held as bytes, in memory or mapped from files, which become floats batch by batch.

MNIST, CIFAR and STL-10 are such sets; what their loaders check of files, sizes and labels is here too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meta500.datasets.arguments import integer, picture_side
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.pictures import Prepare
from meta500.errors import UserError


@dataclass(frozen=True, eq=False)
class MappedArray:
    """A read-only array in a file, read where it is used; a pickle of it holds its place, not its contents.

    The system ends a process that reads a mapped file past its end, so `current` compares the file with what
    was mapped before each read.

    Args:
        path: the file.
        dtype, shape: of the array.
        offset: byte of its first element.
        strides: bytes from one element to the next by axis; None: row-major.
        state: size in bytes, time of the last change in ns and inode that the file has to have; None: those
            that it has.

    Raises:
        UserError: the file cannot be read, is too small, or was changed since ``state`` was taken.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int = 0
    strides: tuple[int, ...] | None = None
    state: tuple[int, int, int] | None = None
    array: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            with open(self.path, "rb") as file:
                state = _state(os.fstat(file.fileno()))
                held = np.memmap(file, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise UserError(f"{self.path}: cannot be read: {error}") from None
        if self.state is not None and self.state != state:
            raise _changed(self.path, self.state, state)
        object.__setattr__(self, "state", state)
        try:
            array: np.ndarray = np.ndarray(self.shape, self.dtype, held, self.offset, self.strides)
        except (TypeError, ValueError):
            raise UserError(
                f"{self.path}: has {held.size} bytes, too few for {np.dtype(self.dtype).name} of shape "
                f"{self.shape} from byte {self.offset}"
            ) from None
        object.__setattr__(self, "array", array)

    def __reduce__(self) -> tuple[object, ...]:
        return MappedArray, (self.path, self.dtype, self.shape, self.offset, self.strides, self.state)

    def current(self) -> np.ndarray:
        """The elements, of a file that is as it was when it was mapped.

        Raises:
            UserError: it is gone, was cut off, written to, or replaced.
        """
        try:
            state = _state(os.stat(self.path))
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read any more: {error.strerror or error}") from None
        if self.state is not None and self.state != state:
            raise _changed(self.path, self.state, state)
        return self.array

    def viewed(self, view: np.ndarray) -> MappedArray:
        """``view``, the same elements with other axes, as a mapped array."""
        return MappedArray(self.path, self.dtype, view.shape, self.offset, view.strides, self.state)


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _changed(path: Path, before: tuple[int, int, int], after: tuple[int, int, int]) -> UserError:
    what = f"had {before[0]} bytes and has {after[0]}" if before[0] != after[0] else "was written or replaced"
    return UserError(f"{path}: was changed after the set was loaded (it {what}); load the set again")


Array = np.ndarray | MappedArray


def held_array(array: Array) -> np.ndarray:
    """The elements of a mapped array, or of one in memory.

    Raises:
        UserError: the file of a mapped array has changed.
    """
    return array.current() if isinstance(array, MappedArray) else array


@dataclass(frozen=True, eq=False)
class StoredPictures:
    """Reads a sample of arrays: "image" uint8 (C, H, W), "label" an int64 class, a mask (H, W) or numbers.

    Attributes:
        images: arrays (n, C, H, W) uint8, one after the other.
        labels: (N, ...) for all of them, or None.
    """

    images: tuple[Array, ...]
    labels: Array | None

    def __call__(self, index: int) -> dict[str, np.ndarray]:
        place = index
        for part in self.images:
            if place < part.shape[0]:
                break
            place -= part.shape[0]
        sample = {"image": np.ascontiguousarray(held_array(part)[place])}
        if self.labels is not None:
            label = held_array(self.labels)[index]
            # Masks stay bytes: augmentation and the transfer to workers move eight times less.
            if label.dtype.kind == "f":
                kind = label.dtype.newbyteorder("=")
            else:
                narrow = label.ndim and label.dtype in (np.uint8, np.bool_)
                kind = np.dtype(np.uint8 if narrow else np.int64)
            sample["label"] = label.astype(kind, copy=False)
        for array in sample.values():
            # They may be views of the set itself. (Scalars cannot be written to anyway.)
            if array.ndim:
                array.flags.writeable = False
        return sample


@dataclass(frozen=True)
class ScaledPictures:
    """Brings a stored sample to what networks take: "image" float32 (C, H, W) in [0, 1], or normalised.

    Attributes:
        size: side to which pictures (of 1 or 3 channels) are resized, as `pictures.Prepare` does it; None:
            the size is kept.
        mean, deviation: per channel of the pictures in [0, 1], subtracted and divided by; None: neither.
    """

    name: str
    size: int | None = None
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    def __call__(self, sample: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        image = sample["image"]
        if image.dtype != np.uint8:
            raise UserError(
                f"dataset '{self.name}': 'image' of sample {index} is {image.dtype} after augmentation; "
                "augmentation must keep its bytes (uint8)"
            )
        label = sample.get("label")
        mask = label if label is not None and label.ndim and label.dtype.kind in "iu" else None
        if self.size is not None:
            # Prepare takes a class or a mask; numbers, and the lack of a label, stay out of it.
            prepare = Prepare(self.size, mean=self.mean, deviation=self.deviation)
            found = prepare({"image": image, "label": np.asarray(0) if mask is None else mask}, index)
            return sample | ({"image": found["image"]} if mask is None else found)
        pixels = image.astype(np.float32) / np.float32(255)
        if self.mean is not None:
            pixels -= np.asarray(self.mean, np.float32)[:, np.newaxis, np.newaxis]
            pixels /= np.asarray(self.deviation, np.float32)[:, np.newaxis, np.newaxis]
        return sample | {"image": pixels} | ({} if mask is None else {"label": mask.astype(np.int64)})


def array_set(
    name: str,
    images: Sequence[Array],
    labels: Array | None,
    *,
    classes: tuple[str, ...] | None,
    licence: str = "",
    size: int | None = None,
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    limit: int | None = None,
    default_loss: str = "cross_entropy",
    ignore: int | None = None,
) -> LazyDataset:
    """A set over pictures as bytes.

    Args:
        images: arrays (n, C, H, W) uint8, one after the other.
        labels: (N,) integer classes, (N, H, W) masks, numbers, or None.
        size: see `ScaledPictures`.
        normalize: (mean, deviation) per channel.
        limit: at most so many samples, the first.
        name, classes, licence, default_loss, ignore: see `Samples`.

    Raises:
        UserError: ``size`` or ``limit`` is no integer of at least 1, or ``size`` is too large.
    """
    first = held_array(images[0])
    side = None if size is None else picture_side("size", size)
    shape: tuple[int, ...] = first.shape[1:] if side is None else (first.shape[1], side, side)
    shapes: dict[str, tuple[int, ...]] = {"image": shape}
    dtypes: dict[str, np.dtype] = {"image": np.dtype(np.float32)}
    held = None if labels is None else held_array(labels)
    if held is not None:
        numbers = held.dtype.kind == "f"
        shapes["label"] = held.shape[1:] if held.ndim == 1 or numbers else shape[1:]
        dtypes["label"] = held.dtype.newbyteorder("=") if numbers else np.dtype(np.int64)
    length = sum(len(held_array(part)) for part in images)
    mean, deviation = (None, None) if normalize is None else normalize
    found = LazyDataset(
        name,
        length,
        StoredPictures(tuple(images), labels),
        shapes,
        dtypes,
        ScaledPictures(name, side, mean, deviation),
        label=None if labels is None else "label",
        classes=classes,
        licence=licence,
        default_loss=default_loss,
        ignore=ignore,
        labels=held if held is not None and held.ndim == 1 and held.dtype.kind in "iu" else None,
    )
    return at_most(found, limit)


def at_most(samples: Any, limit: int | None) -> Any:
    """The first ``limit`` samples, or all where there are fewer or ``limit`` is None.

    Raises:
        UserError: ``limit`` is no integer of at least 1.
    """
    if limit is None or integer("limit", limit, minimum=1) >= len(samples):
        return samples
    return samples.first(limit)


def needed_file(name: str, folder: Path, *files: str) -> Path:
    """The first of ``files`` that is in the folder of the dataset ``name``.

    Raises:
        UserError: none is; names the first and how to get it.
    """
    for file in files:
        if (folder / file).is_file():
            return folder / file
    raise UserError(
        f"dataset '{name}': there is no {folder / files[0]}; get it with `meta500 data get {name}`, or give "
        "folder=..."
    )


def verify_md5(path: Path, md5: str) -> None:
    """Compare the MD5 of a file with the published one.

    Raises:
        UserError: they differ, or the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if found != md5:
        raise UserError(f"{path}: is damaged or another file: its MD5 is {found}, the published one is {md5}")


def verify_count(path: Path, found: int, published: int, full: bool) -> None:
    """Compare the number of samples of a file with the published one; not where ``full`` is False.

    Raises:
        UserError: there are none, or they differ.
    """
    if found == 0:
        raise UserError(f"{path}: holds no samples")
    if full and found != published:
        raise UserError(
            f"{path}: holds {found} samples; the published file holds {published} (full=False takes any "
            "number)"
        )


def whole_records(path: Path, record: int, what: str) -> int:
    """The number of records of ``record`` bytes that a file consists of; ``what`` one is.

    Raises:
        UserError: the file ends inside of a record.
    """
    size = path.stat().st_size
    count, rest = divmod(size, record)
    if rest:
        raise UserError(
            f"{path}: byte {size}: the file ends here, {rest} bytes into {what} {count}; a {what} has "
            f"{record}"
        )
    return count


def verify_classes(
    path: object, labels: np.ndarray, lowest: int, highest: int, offset: int, step: int, what: str = ""
) -> None:
    """See that labels are in a range; the label of sample i is at byte ``offset + i * step``.

    Raises:
        UserError: one is outside; names the file, the byte, the sample and the label.
    """
    wrong = np.flatnonzero((labels < lowest) | (labels > highest))
    if wrong.size:
        i = int(wrong[0])
        raise UserError(
            f"{path}: byte {offset + i * step}{what}: sample {i} has the label {labels[i]}; labels are "
            f"{lowest}..{highest}"
        )


def boolean(what: str, value: object) -> bool:
    """Return ``value`` if it is True or False.

    Raises:
        UserError: any other.
    """
    if not isinstance(value, bool | np.bool_):
        raise UserError(f"{what} must be True or False, not {value!r}")
    return bool(value)
