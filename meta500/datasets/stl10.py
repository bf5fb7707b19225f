"""STL-10: pictures of 96 x 96 pixels in ten classes, few of them labelled, in plain binary files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from meta500.datasets.arguments import integer
from meta500.datasets.catalog import entry
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.picture_arrays import (
    MappedArray,
    array_set,
    at_most,
    boolean,
    needed_file,
    verify_classes,
    verify_count,
    verify_md5,
    whole_records,
)
from meta500.datasets.pictures import file_bytes
from meta500.datasets.places import folder_of
from meta500.errors import UserError, choose

CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
PARTS = ("labelled", "unlabelled")
# Mean and deviation per channel in [0, 1] of the labelled training pictures, and of these with the unlabelled
# ones: S. Löwe, P. O'Connor, B. Veeling, Putting An End to End-to-End (2019), its code (get_dataloader.py).
NORMALIZATION = {
    "labelled": ((0.4469, 0.4400, 0.4069), (0.2603, 0.2566, 0.2713)),
    "unlabelled": ((0.4313, 0.4156, 0.3663), (0.2683, 0.2610, 0.2687)),
}
_MD5 = {
    "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "train_y.bin": "5a34089d4802c674881badbb80307741",
    "unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4",
    "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
}
_COUNTS = {"train": 5_000, "test": 8_000, "unlabeled": 100_000}
_SIDE, _FOLDS, _FOLD_SIZE = 96, 10, 1_000
_PICTURE = 3 * _SIDE * _SIDE


def stl10(
    folder: str | Path | None = None,
    part: str = "labelled",
    fold: int | None = None,
    size: int | None = None,
    normalize: bool = False,
    limit: int | None = None,
    check: bool = False,
    full: bool = True,
) -> tuple[LazyDataset, LazyDataset]:
    """STL-10, as (train, test).

    "image" is float32 (3, 96, 96) in [0, 1], "label" int64 in 0..9 (the files' 1..10 less 1). Pictures stay
    on disk as bytes (mapped). With ``part="labelled"`` the parts have 5,000 (or 1,000 with ``fold``) and
    8,000 samples. With ``part="unlabelled"`` there is no "label": 100,000 pictures to learn from, of a
    broader distribution, and the 8,000 of the test part; the loss is "mse", as for an autoencoder.

    Files, in the folder or in its ``stl10_binary``: ``train_X.bin``, ``test_X.bin`` and ``unlabeled_X.bin``
    hold pictures of 3 x 96 x 96 bytes: red, green and blue plane, each column by column. ``train_y.bin`` and
    ``test_y.bin`` hold a byte per label, ``class_names.txt`` a name per line, ``fold_indices.txt`` a line per
    fold. Only those of the chosen part are needed.

    Args:
        folder: where the files are; None: the named place (see `places`).
        part: "labelled" or "unlabelled".
        fold: 0..9, one of the published choices of 1,000 training samples; None: all.
        size: side to which pictures are resized; None: 96.
        normalize: subtract the pictures' mean and divide by their deviation, per channel: those of the 5,000
            training pictures, for the unlabelled part those of these and the 100,000 together.
        limit: at most so many samples of each part, the first.
        check: compare the MD5 of the pictures' and labels' files with the published one. None is published
            for the two text files; their contents are always checked.
        full: files with another number of samples than published are refused; False takes any, and folds of
            any size.

    Raises:
        UserError: a file that is missing, cut off or of another size, a label outside of 1..10, other class
            names, a fold that does not fit; the message names file and byte or line.
    """
    choose("part", part, PARTS)
    check, full = boolean("check", check), boolean("full", full)
    chosen = NORMALIZATION[part] if boolean("normalize", normalize) else None
    labelled = part == "labelled"
    if fold is not None:
        if not labelled:
            raise UserError(f'fold={fold!r}: the folds are of the labelled pictures: give part="labelled"')
        if integer("fold", fold, minimum=0) >= _FOLDS:
            raise UserError(f"fold must be 0..{_FOLDS - 1}, not {fold}")
    base = folder_of("stl10", folder)
    place = base / "stl10_binary" if (base / "stl10_binary").is_dir() else base
    trained = "train" if labelled else "unlabeled"
    if labelled:
        _check_names(needed_file("stl10", place, "class_names.txt"))
    sets = []
    for key in (trained, "test"):
        images = needed_file("stl10", place, f"{key}_X.bin")
        labels = needed_file("stl10", place, f"{key}_y.bin") if labelled else None
        if check:
            for path in (images,) if labels is None else (images, labels):
                verify_md5(path, _MD5[path.name])
        pictures = _pictures(images, _COUNTS[key], full)
        sets.append(
            array_set(
                "stl10",
                [pictures],
                None if labels is None else _labels(labels, images, pictures.shape[0]),
                classes=CLASSES if labelled else None,
                licence=entry("stl10").licence,
                size=size,
                normalize=chosen,
                default_loss="cross_entropy" if labelled else "mse",
            )
        )
    train, test = sets
    if fold is not None:
        train = train.subset(_fold(needed_file("stl10", place, "fold_indices.txt"), fold, len(train), full))
    return at_most(train, limit), at_most(test, limit)


def _pictures(path: Path, published: int, full: bool) -> MappedArray:
    count = whole_records(path, _PICTURE, "picture")
    verify_count(path, count, published, full)
    # Column by column: the last axis is the one whose elements are _SIDE bytes apart.
    strides = (_PICTURE, _SIDE * _SIDE, 1, _SIDE)
    return MappedArray(path, np.dtype(np.uint8), (count, 3, _SIDE, _SIDE), 0, strides)


def _labels(path: Path, images: Path, count: int) -> np.ndarray:
    size = path.stat().st_size
    if size != count:
        raise UserError(f"{path}: byte {min(size, count)}: has {size} labels; {images} has {count} pictures")
    labels = np.frombuffer(file_bytes(path), np.uint8)
    verify_classes(path, labels, 1, len(CLASSES), 0, 1)
    return labels - np.uint8(1)


def _check_names(path: Path) -> None:
    names = file_bytes(path).decode("utf-8", "replace").split()
    for line, wanted in enumerate(CLASSES):
        found = names[line] if line < len(names) else "nothing"
        if found != wanted:
            raise UserError(f"{path}: line {line + 1}: says {found}; class {line + 1} of STL-10 is {wanted}")
    if len(names) > len(CLASSES):
        raise UserError(f"{path}: line {len(CLASSES) + 1}: says {names[len(CLASSES)]}; there are 10 classes")


def _fold(path: Path, fold: int, count: int, full: bool) -> np.ndarray:
    """Indices of the training samples of a fold, in the file's order."""
    lines = file_bytes(path).decode("ascii", "replace").splitlines()
    if len(lines) < _FOLDS:
        raise UserError(f"{path}: has {len(lines)} lines; there are {_FOLDS} folds, one per line")
    try:
        indices = np.array([int(word) for word in lines[fold].split()], np.int64)
    except (ValueError, OverflowError):
        raise UserError(f"{path}: line {fold + 1}: holds something else than sample numbers") from None
    if not indices.size or (full and indices.size != _FOLD_SIZE):
        raise UserError(f"{path}: line {fold + 1}: has {indices.size} samples; a fold has {_FOLD_SIZE}")
    if indices.min() < 0 or indices.max() >= count or len(np.unique(indices)) < indices.size:
        raise UserError(
            f"{path}: line {fold + 1}: its samples must be different numbers in 0..{count - 1}; they run "
            f"from {indices.min()} to {indices.max()} with {indices.size - len(np.unique(indices))} repeats"
        )
    return indices
