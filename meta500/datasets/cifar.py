"""CIFAR-10 and CIFAR-100: pictures of 32 x 32 pixels, in the publisher's binary files or Python pickles.

A binary file has a record per sample: the label (CIFAR-10) or the coarse and the fine label (CIFAR-100), one
byte each, then 1024 bytes of red, of green and of blue, row by row. A pickle holds a dict with the same bytes
as an array (N, 3072) under "data", and lists of labels; it is not run (see `plain_pickle`). Source: https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta500.datasets.catalog import entry
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
    whole_records,
)
from meta500.datasets.pictures import file_bytes
from meta500.datasets.places import folder_of
from meta500.datasets.plain_pickle import Number, read_pickle
from meta500.errors import UserError, choose

FORMATS = ("auto", "binary", "python")
LABELS = ("fine", "coarse")
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FINE = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
    can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
    dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
    lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree
    pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
    seal shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
    worm
"""
_COARSE = """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
    household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
    vehicles_1 vehicles_2
"""
FINE_CLASSES, COARSE_CLASSES = tuple(_FINE.split()), tuple(_COARSE.split())
# Mean and deviation per channel of the training pictures (0..255), from fb.resnet.torch, the code of S. Gross
# and M. Wilber, Training and Investigating Residual Nets (2016): datasets/cifar10.lua, cifar100.lua.
_STATISTICS = {
    "cifar10": ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar100": ((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
}
# MD5 of the unpacked files, where one is published.
_MD5 = {
    "cifar10": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
    },
    "cifar100": {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
        "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
        "test.bin": "4499cfba6c016c1be1438163640a0898",
    },
}
_SIDE, _PLANE, _PICTURE = 32, 1024, 3072


@dataclass(frozen=True)
class _Kind:
    """A set in one format: where its files are, and what they hold.

    Attributes:
        folder: that of the publisher's archive.
        parts: files of the training and of the test part.
        samples: published number of samples of a file, by part.
        labels: the labels' names in a pickle, in the order of the bytes in a record, with their classes.
        names: file with the class names, by label; in a pickle, with their key.
    """

    name: str
    title: str
    folder: str
    parts: tuple[tuple[str, ...], tuple[str, ...]]
    samples: tuple[int, int]
    labels: Mapping[str, tuple[str, ...]]
    names: dict[str, tuple[str, str]]


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_TEN = {"labels": CLASSES}
_HUNDRED = {"coarse_labels": COARSE_CLASSES, "fine_labels": FINE_CLASSES}
_KINDS = {
    ("cifar10", "binary"): _Kind(
        "cifar10",
        "CIFAR-10",
        "cifar-10-batches-bin",
        (tuple(f"{batch}.bin" for batch in _BATCHES), ("test_batch.bin",)),
        (10_000, 10_000),
        _TEN,
        {"labels": ("batches.meta.txt", "")},
    ),
    ("cifar10", "python"): _Kind(
        "cifar10",
        "CIFAR-10",
        "cifar-10-batches-py",
        (_BATCHES, ("test_batch",)),
        (10_000, 10_000),
        _TEN,
        {"labels": ("batches.meta", "label_names")},
    ),
    ("cifar100", "binary"): _Kind(
        "cifar100",
        "CIFAR-100",
        "cifar-100-binary",
        (("train.bin",), ("test.bin",)),
        (50_000, 10_000),
        _HUNDRED,
        {"coarse_labels": ("coarse_label_names.txt", ""), "fine_labels": ("fine_label_names.txt", "")},
    ),
    ("cifar100", "python"): _Kind(
        "cifar100",
        "CIFAR-100",
        "cifar-100-python",
        (("train",), ("test",)),
        (50_000, 10_000),
        _HUNDRED,
        {"coarse_labels": ("meta", "coarse_label_names"), "fine_labels": ("meta", "fine_label_names")},
    ),
}


def cifar10(
    folder: str | Path | None = None,
    format: str = "auto",
    size: int | None = None,
    normalize: bool = False,
    limit: int | None = None,
    check: bool = False,
    full: bool = True,
) -> tuple[LazyDataset, LazyDataset]:
    """CIFAR-10, as (train, test) of 50,000 and 10,000.

    "image" is float32 (3, 32, 32) in [0, 1], "label" int64 in 0..9. Pictures are held as bytes: mapped from
    the binary files, in memory (184 MB) from pickles.

    Files, in the folder or in that of the publisher's archive in it: ``data_batch_1.bin`` to
    ``data_batch_5.bin``, ``test_batch.bin`` and ``batches.meta.txt``, or ``data_batch_1`` to
    ``data_batch_5``, ``test_batch`` and ``batches.meta``.

    Args:
        folder: where the files are; None: the named place (see `places`).
        format: "binary", "python" (pickles), or "auto": that of the files that are there, binary if both are.
        size: side to which pictures are resized; None: 32.
        normalize: subtract the training pictures' mean and divide by their deviation, per channel.
        limit: at most so many samples of each part, the first.
        check: compare the MD5 of every pickle with the published one. None is published for the unpacked
            binary files: their sizes, labels and class names are always checked, their pixels cannot be.
        full: files with another number of samples than published are refused; False takes any.

    Raises:
        UserError: a file that is missing, cut off, damaged or of another size, a pickle with anything that
            these files do not hold, a label outside of 0..9, other class names; the message names file and
            byte.
    """
    return _load("cifar10", "labels", folder, format, size, normalize, limit, check, full)


def cifar100(
    folder: str | Path | None = None,
    labels: str = "fine",
    format: str = "auto",
    size: int | None = None,
    normalize: bool = False,
    limit: int | None = None,
    check: bool = False,
    full: bool = True,
) -> tuple[LazyDataset, LazyDataset]:
    """CIFAR-100, as (train, test) of 50,000 and 10,000; see `cifar10` for pictures and options.

    Files: ``train.bin``, ``test.bin``, ``fine_label_names.txt`` and ``coarse_label_names.txt``, or ``train``,
    ``test`` and ``meta``.

    Args:
        labels: "fine" (100 classes) or "coarse" (20); both are checked.
        check: compare the MD5 of pickles and ``.bin`` files with the published one. None is published for the
            two text files, whose contents are always checked.

    Raises:
        UserError: as `cifar10`.
    """
    key = f"{choose('labels', labels, LABELS)}_labels"
    return _load("cifar100", key, folder, format, size, normalize, limit, check, full)


def _load(
    name: str,
    label: str,
    folder: str | Path | None,
    format: str,
    size: int | None,
    normalize: bool,
    limit: int | None,
    check: bool,
    full: bool,
) -> tuple[LazyDataset, LazyDataset]:
    check, full = boolean("check", check), boolean("full", full)
    statistics = None
    if boolean("normalize", normalize):
        mean, deviation = _STATISTICS[name]
        statistics = tuple(m / 255 for m in mean), tuple(d / 255 for d in deviation)
    is_binary, kind, place = _place(name, folder, format)
    held: dict[Path, Any] = {}
    for key, (file, list_name) in kind.names.items():
        path = _found(kind, place, file, check)
        if is_binary:
            names = file_bytes(path).decode("utf-8", "replace").split()
        else:
            held.setdefault(path, read_pickle(path))
            names = [_name(item) for item in _entry(path, held[path], list_name, list)]
        _check_names(path, names, kind.labels[key], kind.title)
    sets = []
    for files, samples in zip(kind.parts, kind.samples, strict=True):
        pictures, labels = [], []
        for file in files:
            path = _found(kind, place, file, check)
            found = (_binary if is_binary else _python)(path, kind.labels, label, samples, full)
            pictures.append(found[0])
            labels.append(found[1])
        sets.append(
            array_set(
                name,
                pictures,
                np.concatenate(labels),
                classes=kind.labels[label],
                licence=entry(name).licence,
                size=size,
                normalize=statistics,
                limit=limit,
            )
        )
    return sets[0], sets[1]


def _place(name: str, folder: str | Path | None, format: str) -> tuple[bool, _Kind, Path]:
    """Whether the files are binary, what they are, and where."""
    choose("format", format, FORMATS)
    base = folder_of(name, folder)
    formats = ("binary", "python") if format == "auto" else (format,)
    for candidate in formats:
        kind = _KINDS[name, candidate]
        for place in (base, base / kind.folder):
            if any((place / file).is_file() for file in (*kind.parts[0], *kind.parts[1])):
                return candidate == "binary", kind, place
    return formats[0] == "binary", _KINDS[name, formats[0]], base


def _found(kind: _Kind, place: Path, file: str, check: bool) -> Path:
    path = needed_file(kind.name, place, file)
    if check and file in _MD5[kind.name]:
        verify_md5(path, _MD5[kind.name][file])
    return path


def _name(item: Any) -> str:
    if isinstance(item, bytes):
        return item.decode("latin-1")
    return item if isinstance(item, str) else f"a {type(item).__name__}"


def _check_names(path: Path, names: list[str], published: tuple[str, ...], title: str) -> None:
    for number, wanted in enumerate(published):
        found = names[number] if number < len(names) else "missing"
        if found != wanted:
            raise UserError(f"{path}: name {number + 1} is {found}; class {number} of {title} is {wanted}")
    if len(names) > len(published):
        raise UserError(f"{path}: has {len(names)} names; {title} has {len(published)} such classes")


def _binary(
    path: Path, classes: Mapping[str, tuple[str, ...]], label: str, published: int, full: bool
) -> tuple[Array, np.ndarray]:
    """Pictures and labels of a file of records."""
    record = len(classes) + _PICTURE
    count = whole_records(path, record, "sample")
    verify_count(path, count, published, full)
    chosen = np.empty(0, np.int64)
    for at, (key, names) in enumerate(classes.items()):
        labels = MappedArray(path, np.dtype(np.uint8), (count,), at, (record,)).array.astype(np.int64)
        verify_classes(path, labels, 0, len(names) - 1, at, record)
        if key == label:
            chosen = labels
    strides = (record, _PLANE, _SIDE, 1)
    shape = (count, 3, _SIDE, _SIDE)
    return MappedArray(path, np.dtype(np.uint8), shape, len(classes), strides), chosen


def _python(
    path: Path, classes: Mapping[str, tuple[str, ...]], label: str, published: int, full: bool
) -> tuple[Array, np.ndarray]:
    """Pictures and labels of a pickle."""
    content = read_pickle(path)
    data = _entry(path, content, "data", np.ndarray)
    if data.dtype != np.uint8 or data.shape[1:] != (_PICTURE,):
        raise UserError(
            f"{path}: 'data' is {data.dtype} of shape {data.shape}; uint8 (N, {_PICTURE}) is needed"
        )
    verify_count(path, len(data), published, full)
    for key, names in classes.items():
        labels = _entry(path, content, key, list)
        if len(labels) != len(data):
            raise UserError(f"{path}: has {len(labels)} '{key}' for {len(data)} pictures")
        for sample, value in enumerate(labels):
            if not isinstance(value, Number) or not 0 <= value < len(names):
                where = f"byte {value.offset}: " if isinstance(value, Number) else ""
                found = str(value) if isinstance(value, Number) else f"a {type(value).__name__}"
                raise UserError(
                    f"{path}: {where}sample {sample} has {found} in '{key}'; labels are 0..{len(names) - 1}"
                )
    return data.reshape(-1, 3, _SIDE, _SIDE), np.array(content[label], np.int64)


def _entry(path: Path, content: Any, key: str, kind: type) -> Any:
    if not isinstance(content, dict) or not isinstance(content.get(key), kind):
        keys = ", ".join(content) if isinstance(content, dict) else f"none, it is a {type(content).__name__}"
        raise UserError(f"{path}: has no '{key}' ({kind.__name__}) in its dict; it has: {keys}")
    return content[key]
