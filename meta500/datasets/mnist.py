"""MNIST and Fashion-MNIST: pictures of 28 x 28 gray pixels in ten classes, in IDX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meta500.datasets.catalog import entry
from meta500.datasets.idx import IdxHeader, idx_header, read_idx
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.picture_arrays import (
    Array,
    MappedArray,
    array_set,
    boolean,
    needed_file,
    verify_classes,
    verify_count,
    verify_md5,
)
from meta500.datasets.places import folder_of
from meta500.errors import UserError

CLASSES = tuple("0123456789")
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
# Mean and deviation of the training pixels in [0, 1]: MNIST's as in PyTorch's example (mnist/main.py of
# github.com/pytorch/examples), Fashion-MNIST's as in github.com/chatflip/CalculationMeanStd.
NORMALIZATION = ((0.1307,), (0.3081,))
FASHION_NORMALIZATION = ((0.2860,), (0.3530,))
# MD5 of the unpacked files; the catalog has those of the packed ones.
_MD5 = {
    "mnist": {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
}
_SIDE = 28


def mnist(
    folder: str | Path | None = None,
    size: int | None = None,
    normalize: bool = False,
    limit: int | None = None,
    check: bool = False,
    full: bool = True,
) -> tuple[LazyDataset, LazyDataset]:
    """MNIST's handwritten digits, as (train, test) of 60,000 and 10,000.

    "image" is float32 (1, 28, 28) in [0, 1], "label" int64 in 0..9. Pictures are held as bytes: mapped from
    plain files, in memory (47 MB) from packed ones.

    Files: ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
    ``t10k-labels-idx1-ubyte``, plain or with ``.gz``; a plain one is preferred. For their format see `idx`.

    Args:
        folder: where the files are; None: the named place (see `places`).
        size: side to which pictures are resized; None: 28.
        normalize: subtract the training pixels' mean and divide by their deviation.
        limit: at most so many samples of each part, the first.
        check: compare the MD5 of every file, packed or plain, with that of the published one.
        full: files with another number of samples than published are refused; False takes any.

    Raises:
        UserError: a file that is missing, cut off, damaged, not of this kind or of another size, or a label
            outside of 0..9; the message names file and byte.
    """
    return _load("mnist", CLASSES, NORMALIZATION, folder, size, normalize, limit, check, full)


def fashion_mnist(
    folder: str | Path | None = None,
    size: int | None = None,
    normalize: bool = False,
    limit: int | None = None,
    check: bool = False,
    full: bool = True,
) -> tuple[LazyDataset, LazyDataset]:
    """Zalando's pictures of clothes, as (train, test) of 60,000 and 10,000; files and options as for `mnist`.

    Raises:
        UserError: as `mnist`.
    """
    return _load(
        "fashion-mnist",
        FASHION_CLASSES,
        FASHION_NORMALIZATION,
        folder,
        size,
        normalize,
        limit,
        check,
        full,
    )


def _load(
    name: str,
    classes: tuple[str, ...],
    normalization: tuple[tuple[float, ...], tuple[float, ...]],
    folder: str | Path | None,
    size: int | None,
    normalize: bool,
    limit: int | None,
    check: bool,
    full: bool,
) -> tuple[LazyDataset, LazyDataset]:
    place = folder_of(name, folder)
    chosen = normalization if boolean("normalize", normalize) else None
    check, full = boolean("check", check), boolean("full", full)
    files = [
        (
            needed_file(name, place, f"{part}-images-idx3-ubyte", f"{part}-images-idx3-ubyte.gz"),
            needed_file(name, place, f"{part}-labels-idx1-ubyte", f"{part}-labels-idx1-ubyte.gz"),
            published,
        )
        for part, published in (("train", 60_000), ("t10k", 10_000))
    ]
    published_as = entry(name)
    md5 = _MD5[name] | {file.name: file.md5 for file in published_as.files}
    sets = []
    for images, labels, published in files:
        if check:
            verify_md5(images, md5[images.name])
            verify_md5(labels, md5[labels.name])
        pictures = _pictures(images, published, full)
        sets.append(
            array_set(
                name,
                [pictures],
                _labels(labels, images, pictures.shape[0]),
                classes=classes,
                licence=published_as.licence,
                size=size,
                normalize=chosen,
                limit=limit,
            )
        )
    return sets[0], sets[1]


def _pictures(path: Path, published: int, full: bool) -> Array:
    header = _header(path, 3)
    count, *sides = header.shape
    if sides != [_SIDE, _SIDE]:
        raise UserError(
            f"{path}: byte 8: pictures of {sides[0]} x {sides[1]} pixels; {_SIDE} x {_SIDE} are needed"
        )
    verify_count(path, count, published, full)
    shape = (count, 1, _SIDE, _SIDE)
    if header.packed:
        return read_idx(path).reshape(shape)
    return MappedArray(path, header.dtype, shape, header.offset)


def _labels(path: Path, images: Path, count: int) -> np.ndarray:
    header = _header(path, 1)
    if header.shape != (count,):
        raise UserError(f"{path}: byte 4: has {header.shape[0]} labels; {images} has {count} pictures")
    labels = read_idx(path)
    unpacked = " of the unpacked data" if header.packed else ""
    verify_classes(path, labels, 0, 9, header.offset, 1, unpacked)
    return labels


def _header(path: Path, rank: int) -> IdxHeader:
    header = idx_header(path)
    if header.dtype != np.uint8 or len(header.shape) != rank:
        raise UserError(
            f"{path}: byte 2: holds {header.dtype.name} with {len(header.shape)} dimensions; uint8 with "
            f"{rank} is needed (it starts with 00 00 08 0{rank})"
        )
    return header
