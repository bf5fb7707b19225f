"""Arrays of .npz and .npy files as a set."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np

from meta500.datasets.arguments import class_names, integer
from meta500.datasets.dataset import Dataset
from meta500.datasets.picture_arrays import Array, MappedArray, array_set, at_most, held_array
from meta500.datasets.places import given_path
from meta500.datasets.samples import Samples
from meta500.errors import UserError, choose

_AUTO = {
    "image": ("image", "images", "x", "data"),
    "label": ("label", "labels", "y", "target", "targets", "mask", "masks"),
}
_LAYOUTS = ("auto", "chw", "hwc", "hw")
_TRAIN, _TEST, _WHOLE = "train", "test", ""
_PART_FIRST, _PART_LAST = re.compile(r"(train|test)[_-](.+)", re.I), re.compile(r"(.+)[_-](train|test)", re.I)
# Kinds of numpy dtypes that are read: bool, signed, unsigned, floating.
_KINDS = "biuf"
_MOST_AXES = 32
# Most classes that labels may ask for: one large number by mistake would make as many names.
_MOST_UNNAMED = 100_000
# Labels that are checked at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class _Stored:
    """An array as it is stored: where, and the byte of its first element there."""

    where: str
    array: Array
    start: int

    @property
    def held(self) -> np.ndarray:
        return held_array(self.array)

    def byte(self, place: tuple[int, ...]) -> int:
        return self.start + sum(i * step for i, step in zip(place, self.held.strides, strict=True))

    def seen_as(self, view: np.ndarray) -> _Stored:
        array = self.array.viewed(view) if isinstance(self.array, MappedArray) else view
        return _Stored(self.where, array, self.start)


def arrays(
    path: str | Path,
    image: str = "auto",
    label: str = "auto",
    layout: str = "auto",
    classes: int | Sequence[str] | None = None,
    ignore: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    size: int | None = None,
    limit: int | None = None,
) -> tuple[Samples, Samples]:
    """Arrays of a .npz file, or of the .npy files in a folder, as (train, test).

    An array's name says its part and what it holds: ``train_image``, ``x_train``, ``test-labels``. Where no
    name has a part, or there is no test part, samples are split at random, each class in proportion.

    uint8 images are pictures: they stay bytes, .npy files stay on disk (mapped), and "image" becomes float32
    (C, H, W) in [0, 1], batch by batch. Floating-point images are held in memory and taken as they are,
    whatever their shape and range.

    "label" becomes int64: a class () from integers of shape (N,) or (N, 1), a mask (H, W) from integers of
    the pictures' size. Floating-point labels are kept, with "mse" as the loss.

    Format: numpy.lib.format, versions 1.0 and 2.0. Nothing is ever unpickled: arrays of Python objects are
    refused.

    Args:
        path: the .npz file, or the folder.
        image: name of the images without their part; "auto": image, images, x or data.
        label: the same of the labels; "auto": label, labels, y, target, targets, mask or masks. "none": a set
            without labels.
        layout: axes of a picture, "chw", "hwc" (channels last) or "hw" (one channel, no axis for it). "auto":
            for uint8 what the shape says, where it can say it; for floating-point images as they are.
        classes: a list of their names, or how many; None: as many as the highest label needs, at most
            100,000.
        ignore: label value of masks that counts in no loss.
        test_fraction: share of the test part where there is none, strictly between 0 and 1.
        seed: of that split.
        size: side to which pictures of 1 or 3 channels are resized; None: as they are stored.
        limit: at most so many samples of each part, the first.

    Raises:
        UserError: no such file, a damaged or cut off one, arrays that are missing, ambiguous, of Python
            objects, or that do not fit one another, labels outside of the classes; the message names file
            and byte.
    """
    choose("layout", layout, _LAYOUTS)
    place = given_path("path", path)
    parts = _chosen(place, sorted(_names(place)), image, label)
    stored = {
        part: {key: _laid_out(_load(place, name), key, layout) for key, name in names.items()}
        for part, names in parts.items()
    }
    for part in stored.values():
        _check_fit(part, size)
    _check_same_types(list(stored.values()))
    names_of_classes = _classes(
        [part["label"] for part in stored.values() if "label" in part], classes, ignore
    )
    sets = {key: _as_set(place.stem, part, names_of_classes, ignore, size) for key, part in stored.items()}
    train = sets[_TRAIN] if _TRAIN in sets else sets[_WHOLE]
    test = sets.get(_TEST)
    if test is None:
        train, test = train.split(test_fraction, seed, stratified=train.class_labels() is not None)
    elif train.shapes != test.shapes or train.dtypes != test.dtypes:
        raise UserError(f"{place}: the parts differ: train {train!r}, test {test!r}")
    return at_most(train, limit), at_most(test, limit)


def _names(place: Path) -> list[str]:
    """Names of the arrays in a .npz file or a folder."""
    if place.is_dir():
        return [file.stem for file in place.glob("*.npy")]
    with _archive(place) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _archive(place: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(place)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        raise UserError(
            f"{place}: is no .npz file, or cut off: {error} (a folder of .npy files can be given too)"
        ) from None
    except OSError as error:
        raise UserError(f"{place}: cannot be read: {error.strerror or error}") from None


def _chosen(place: Path, names: list[str], image: str, label: str) -> dict[str, dict[str, str]]:
    """Names of the arrays by part and by what they hold."""
    found: dict[str, dict[str, str]] = {}
    wanted = {"image": image} | ({} if label == "none" else {"label": label})
    for name in names:
        first, last = _PART_FIRST.fullmatch(name), _PART_LAST.fullmatch(name)
        part, rest = first.groups() if first else last.groups()[::-1] if last else (_WHOLE, name)
        for key, given in wanted.items():
            if rest.lower() in _AUTO[key] if given == "auto" else rest == given:
                before = found.setdefault(part.lower(), {}).setdefault(key, name)
                if before != name:
                    raise UserError(
                        f"{place}: both '{before}' and '{name}' could be the {key}: give {key}=..."
                    )
    listed = ", ".join(names) or "nothing"
    if _WHOLE in found and len(found) > 1:
        raise UserError(
            f"{place}: has arrays with and without a part (train, test) in their names: {listed}; keep those "
            "that are meant"
        )
    if not found or set(found) == {_TEST}:
        raise UserError(
            f"{place}: has no array for the image{' of training' if found else ''}; it has: {listed}; give "
            "image=... (its name without train or test)"
        )
    for part, keys in found.items():
        for key in wanted:
            if key not in keys:
                none = ' or label="none"' if key == "label" else ""
                raise UserError(
                    f"{place}: has no array for the {key}{f' of the part {part}' if part else ''}; it has: "
                    f"{listed}; give {key}=...{none}"
                )
    return found


def _load(place: Path, name: str) -> _Stored:
    if place.is_dir():
        path = place / f"{name}.npy"
        try:
            with open(path, "rb") as file:
                dtype, shape, strides = _npy_header(str(path), file)
                start, size = file.tell(), path.stat().st_size
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
        _check_size(str(path), dtype, shape, start, size)
        return _Stored(str(path), MappedArray(path, dtype, shape, start, strides), start)
    where = f"{place}: {name}.npy"
    with _archive(place) as archive:
        try:
            with archive.open(f"{name}.npy") as member:
                dtype, shape, strides = _npy_header(where, member)
                start, size = member.tell(), archive.getinfo(f"{name}.npy").file_size
                _check_size(where, dtype, shape, start, size)
                # Reading to the end has zipfile compare the checksum.
                data = member.read()
            if start + len(data) != size:
                raise EOFError(f"it ends after {start + len(data)} of {size} bytes")
        except (
            zipfile.BadZipFile,
            EOFError,
            zlib.error,
            NotImplementedError,
            RuntimeError,
            OSError,
        ) as error:
            raise UserError(f"{where}: is damaged or cannot be unpacked: {error}") from None
        except MemoryError:
            raise UserError(f"{where}: does not fit into memory: it has {size} bytes") from None
    return _Stored(where, np.ndarray(shape, dtype, data, 0, strides), start)


def _npy_header(where: str, file: IO[bytes]) -> tuple[np.dtype, tuple[int, ...], tuple[int, ...]]:
    """dtype, shape and strides of the array of a .npy file."""
    try:
        version = np.lib.format.read_magic(file)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise ValueError(f"version {version[0]}.{version[1]} is not read")
        shape, fortran, dtype = readers[version](file)
    except (ValueError, TypeError, SyntaxError, RecursionError, TokenError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{where}: byte 0: has no header of .npy: {reason}") from None
    if dtype.hasobject:
        raise UserError(f"{where}: byte 0: holds Python objects, which are never loaded; save numbers")
    if dtype.kind not in _KINDS or dtype.itemsize > 8:
        raise UserError(f"{where}: byte 0: holds {dtype}; integers, floats or bool are needed")
    if any(side < 1 for side in shape) or not 0 < len(shape) <= _MOST_AXES:
        raise UserError(f"{where}: byte 0: has the shape {shape}; samples along its first axis are needed")
    sides = shape if fortran else shape[::-1]
    steps = tuple(prod(sides[:axis]) * dtype.itemsize for axis in range(len(sides)))
    return dtype, shape, steps if fortran else steps[::-1]


def _check_size(where: str, dtype: np.dtype, shape: tuple[int, ...], start: int, size: int) -> None:
    end = start + prod(shape) * dtype.itemsize
    if size != end:
        raise UserError(
            f"{where}: byte {min(size, end)}: the array {'ends' if size < end else 'goes on'} here; "
            f"{dtype.name} of shape {shape} with its header has {end} bytes, not {size}"
        )


def _laid_out(stored: _Stored, key: str, layout: str) -> _Stored:
    """Images with their axes in the order (N, C, H, W), classes as (N,)."""
    array = stored.held
    if key == "label":
        is_column = array.ndim == 2 and array.shape[1] == 1 and array.dtype.kind in "iu"
        return stored.seen_as(array[:, 0]) if is_column else stored
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        raise UserError(f"{stored.where}: holds {array.dtype.name}; images are uint8 or floating-point")
    if layout == "auto":
        if array.dtype != np.uint8:
            return stored
        layout = _seen_layout(stored)
    if array.ndim != len(layout) + 1:
        raise UserError(
            f"{stored.where}: has the shape {array.shape}; layout '{layout}' needs {len(layout) + 1} axes"
        )
    if layout == "hw":
        return stored.seen_as(array[:, np.newaxis])
    return stored.seen_as(array.transpose(0, 3, 1, 2)) if layout == "hwc" else stored


def _seen_layout(stored: _Stored) -> str:
    shape = stored.held.shape
    if len(shape) == 3:
        return "hw"
    if len(shape) == 4 and (shape[1] in (1, 3)) != (shape[3] in (1, 3)):
        return "chw" if shape[1] in (1, 3) else "hwc"
    raise UserError(
        f"{stored.where}: the shape {shape} does not say which axis holds the channels (1 or 3): give "
        "layout=chw, hwc or hw"
    )


def _check_fit(part: dict[str, _Stored], size: int | None) -> None:
    image = part["image"]
    pictures = image.held.dtype == np.uint8
    if size is not None and (not pictures or image.held.shape[1] not in (1, 3)):
        raise UserError(
            f"{image.where}: holds {image.held.dtype.name} of shape {image.held.shape}; size={size} resizes "
            "uint8 pictures of 1 or 3 channels only"
        )
    if "label" not in part:
        return
    label = part["label"]
    shape = label.held.shape
    if len(shape) < 1 or shape[0] != len(image.held):
        raise UserError(f"{label.where}: has {shape[0]} labels, {image.where} has {len(image.held)} images")
    mask = (len(image.held), *image.held.shape[2:])
    if pictures and label.held.dtype.kind != "f" and shape not in (shape[:1], mask):
        raise UserError(
            f"{label.where}: has the shape {shape}; classes {shape[:1]} or masks {mask} fit {image.where}"
        )


def _check_same_types(parts: list[dict[str, _Stored]]) -> None:
    """Bytes in one part and floats in another would be scaled differently."""
    for key in ("image", "label"):
        found = {part[key].held.dtype.newbyteorder("="): part[key].where for part in parts if key in part}
        if len(found) > 1 and (key == "image" or any(dtype.kind == "f" for dtype in found)):
            listed = ", ".join(f"{where} holds {dtype.name}" for dtype, where in found.items())
            raise UserError(f"{listed}: the parts need the same type of {key}")


def _classes(
    labels: list[_Stored], classes: int | Sequence[str] | None, ignore: int | None
) -> tuple[str, ...] | None:
    """Names of the classes of integer labels, each of which is checked."""
    if not labels or labels[0].held.dtype.kind == "f":
        for option, given in (("classes", classes), ("ignore", ignore)):
            if given is not None:
                raise UserError(f"{option}={given!r}: there are no integer labels")
        return None
    if ignore is not None:
        integer("ignore", ignore, minimum=np.iinfo(np.int64).min)
    names = None if classes is None else class_names(classes)
    highest = max(_highest(stored, names, ignore) for stored in labels)
    return names if names is not None else tuple(str(k) for k in range(highest + 1))


def _highest(stored: _Stored, names: tuple[str, ...] | None, ignore: int | None) -> int:
    """The highest label, 0 or more, after each was checked."""
    labels = stored.held
    most = _MOST_UNNAMED if names is None else len(names)
    if ignore is not None and labels.ndim == 1:
        raise UserError(f"ignore={ignore!r}: is for masks; {stored.where} holds one class per sample")
    highest = 0
    # Part by part: masks may be larger than memory.
    step = max(1, _AT_ONCE // prod(labels.shape[1:]))
    for start in range(0, len(labels), step):
        chunk = stored.held[start : start + step]
        wrong = (chunk < 0) | (chunk >= most)
        if ignore is not None:
            wrong &= chunk != ignore
        if wrong.any():
            first = np.argwhere(wrong)[0].tolist()
            sample = start + first[0]
            advice = ", or give classes=, their number or names" if names is None else ""
            raise UserError(
                f"{stored.where}: byte {stored.byte((sample, *first[1:]))}: sample {sample} has the label "
                f"{int(chunk[tuple(first)])}; labels are 0..{most - 1}{advice}"
            )
        counted = chunk if ignore is None else chunk[chunk != ignore]
        highest = max(highest, int(counted.max(initial=0)))
    return highest


def _as_set(
    name: str,
    part: dict[str, _Stored],
    classes: tuple[str, ...] | None,
    ignore: int | None,
    size: int | None,
) -> Samples:
    images, labels = part["image"], part.get("label")
    numbers = labels is not None and labels.held.dtype.kind == "f"
    loss = "mse" if numbers or labels is None else "cross_entropy"
    if images.held.dtype == np.uint8:
        return array_set(
            name,
            [images.array],
            None if labels is None else labels.array,
            classes=classes,
            size=size,
            default_loss=loss,
            ignore=ignore,
        )
    inputs = {"image": images.held.astype(images.held.dtype.newbyteorder("="))}
    if labels is not None:
        kind = labels.held.dtype.newbyteorder("=") if numbers else np.dtype(np.int64)
        inputs["label"] = labels.held.astype(kind)
    return Dataset(name, inputs, None if labels is None else "label", classes, "", loss, ignore)
