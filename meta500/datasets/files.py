"""Datasets as folders of raw files, which programs without Python read.

A folder has the files ``dataset.json`` and one file per array and part. The header says what they hold::

    {"format": "meta500 dataset", "version": 1, "name": "digits", "label": "label", "loss": "cross_entropy",
     "classes": ["0", "1", ...], "licence": "...",
     "parts": {"train": {"samples": 1438, "arrays": {
         "image": {"file": "train_image.bin", "dtype": "float32", "shape": [1, 8, 8], "crc32": "0f3a..."},
         "label": {"file": "train_label.bin", "dtype": "int64", "shape": [], "crc32": "..."}}},
       "validation": {...}}}

A file has the elements of all samples, one sample after the other, row-major, little-endian, and nothing
else; ``shape`` is that of one sample, ``crc32`` the CRC-32 (as in zip) of the file. An array with a
``scale`` has the dtype uint8 and stands for float32 numbers, byte times scale. The part "validation" may be
missing.

A folder without that header may have ``train/NAME.npy`` and ``validation/NAME.npy`` instead.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from meta500.datasets.dataset import LOSSES, Dataset
from meta500.errors import UserError, choose

HEADER, FORMAT, VERSION = "dataset.json", "meta500 dataset", 1
TRAIN, VALIDATION = "train", "validation"
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")
STORAGES = ("exact", "uint8")
_SCALE = np.float32(1 / 255)


def save_files(
    folder: str | os.PathLike[str],
    train: Dataset,
    validation: Dataset | None = None,
    *,
    storage: str = "exact",
) -> list[str]:
    """Write a dataset as raw files; see the module for their format.

    What is to be done to samples before training (augmentation, cropping, scaling) is done to the datasets
    that are given here.

    Args:
        folder: made if it is missing; files of the same names are replaced.
        train: the training part.
        validation: the other part, with the same inputs.
        storage: "exact" keeps every array's type; "uint8" stores the floating-point arrays, which must lie in
            [0, 1], as bytes, rounded to multiples of 1/255: a quarter of the size.

    Returns:
        The names of the files written.

    Raises:
        UserError: another dtype than float32, float64, int64, int32, uint8 and bool, parts that differ in
            their inputs, values that do not fit the storage, or a folder that can't be written.
    """
    choose("storage", storage, STORAGES)
    parts = {TRAIN: train} | ({} if validation is None else {VALIDATION: validation})
    for name, part in parts.items():
        if _kinds(part) != _kinds(train):
            raise UserError(
                f"dataset '{part.name}': the {name} part has {_kinds(part)}, the train part {_kinds(train)}"
            )
    place = Path(folder)
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "name": train.name,
        "label": train.label,
        "loss": train.default_loss,
        "classes": None if train.classes is None else list(train.classes),
        "licence": train.licence,
        "parts": {},
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            arrays = {}
            for key, value in part.inputs.items():
                stored, scale = _stored(part.name, key, value, storage)
                file = _file(name, key)
                _replace(place / file, stored)
                arrays[key] = {
                    "file": file,
                    "dtype": stored.dtype.name,
                    "shape": list(stored.shape[1:]),
                    **({} if scale is None else {"scale": float(scale)}),
                    "crc32": f"{zlib.crc32(stored.data):08x}",
                }
            header["parts"][name] = {"samples": len(part), "arrays": arrays}
        # Last: a folder with a header is complete.
        text = json.dumps(header, indent=1) + "\n"
        _replace(place / HEADER, np.frombuffer(text.encode(), np.uint8))
    except OSError as error:
        raise UserError(f"{place}: the dataset cannot be written: {error}") from None
    return file_names(train, validation)


def stored_array(part: str, data: Dataset, name: str, storage: str) -> tuple[str, str, float]:
    """File, dtype and scale of an array as :func:`save_files` writes it; the scale is 1 for exact storage."""
    dtype = data.inputs[name].dtype
    if storage == "uint8" and dtype.kind == "f":
        return _file(part, name), "uint8", float(_SCALE)
    return _file(part, name), dtype.name, 1.0


def file_names(train: Dataset, validation: Dataset | None = None) -> list[str]:
    """The names of the files that :func:`save_files` writes."""
    parts = {TRAIN: train} | ({} if validation is None else {VALIDATION: validation})
    return [*(_file(name, key) for name, part in parts.items() for key in part.inputs), HEADER]


def _file(part: str, key: str) -> str:
    return f"{part}_{_plain(key)}.bin"


def load_files(folder: str | os.PathLike[str]) -> tuple[Dataset, Dataset | None]:
    """The dataset of a folder as (train, validation).

    Raises:
        UserError: no such folder, a missing, damaged or ill-formed file; the message names it.
    """
    place = Path(folder)
    if not place.is_dir():
        raise UserError(f"{place}: there is no such folder of data files")
    if not (place / HEADER).is_file():
        return _load_npy(place)
    header = _header(place / HEADER)
    found = {}
    for name, part in header["parts"].items():
        where = f"{place / HEADER}: part '{name}'"
        samples, arrays = _entry(part, "samples", int, where), _entry(part, "arrays", dict, where)
        inputs = {key: _array(place, entry, samples, f"{where}, '{key}'") for key, entry in arrays.items()}
        found[name] = Dataset(
            name=str(header.get("name", place.name)),
            inputs=inputs,
            label=header.get("label"),
            classes=header.get("classes"),
            licence=str(header.get("licence", "")),
            default_loss=header.get("loss", LOSSES[0]),
        )
    return found[TRAIN], found.get(VALIDATION)


def _kinds(part: Dataset) -> dict[str, str]:
    return {key: f"{value.dtype}{list(value.shape[1:])}" for key, value in part.inputs.items()}


def _plain(key: str) -> str:
    text = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in key)
    # Two names may become the same text.
    return text if text == key else f"{text}_{zlib.crc32(key.encode()):08x}"


def _stored(name: str, key: str, value: np.ndarray, storage: str) -> tuple[np.ndarray, np.float32 | None]:
    """An array as it is written, and its scale."""
    if value.dtype.name not in DTYPES:
        raise UserError(
            f"dataset '{name}': input '{key}' is {value.dtype}; data files hold {', '.join(DTYPES)}"
        )
    if storage == "uint8" and value.dtype.kind == "f":
        low, high = float(value.min()), float(value.max())
        if not 0 <= low <= high <= 1:
            raise UserError(
                f"dataset '{name}': input '{key}' runs from {low:g} to {high:g}; storage 'uint8' holds [0, "
                "1]: "
                "scale it, or choose storage 'exact'"
            )
        return np.rint(value * 255).astype(np.uint8), _SCALE
    return np.ascontiguousarray(value, value.dtype.newbyteorder("<")), None


def _replace(path: Path, contents: np.ndarray) -> None:
    """Write a file beside its place and move it there: it is never half there."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        contents.tofile(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _header(path: Path) -> dict[str, Any]:
    try:
        header = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except ValueError as error:
        raise UserError(f"{path}: is no JSON: {error}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise UserError(f'{path}: is no header of data files: it lacks "format": "{FORMAT}"')
    if header.get("version") != VERSION:
        raise UserError(
            f"{path}: has version {header.get('version')!r}; this program reads version {VERSION}"
        )
    parts = _entry(header, "parts", dict, str(path))
    for name in parts:
        choose(f"part in {path}", name, (TRAIN, VALIDATION))
    _entry(parts, TRAIN, dict, f"{path}: parts")
    return header


def _entry(owner: Any, key: str, kind: type, where: str) -> Any:
    value = owner.get(key) if isinstance(owner, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{where}: '{key}' must be {_WORDS[kind]}, not {value!r}")
    return value


_WORDS = {int: "a whole number", dict: "an object", str: "a text", list: "a list", float: "a number"}


def _array(place: Path, entry: Any, samples: int, where: str) -> np.ndarray:
    dtype = np.dtype(choose(f"dtype of {where}", _entry(entry, "dtype", str, where), DTYPES))
    shape = (samples, *_entry(entry, "shape", list, where))
    if not all(isinstance(size, int) and size >= 1 for size in shape):
        raise UserError(f"{where}: 'samples' and 'shape' must be positive whole numbers, not {list(shape)}")
    path = place / _entry(entry, "file", str, where)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    wanted = int(np.prod(shape)) * dtype.itemsize
    if len(data) != wanted:
        raise UserError(f"{path}: has {len(data)} bytes; {dtype}{list(shape)} has {wanted}")
    crc = _entry(entry, "crc32", str, where)
    if f"{zlib.crc32(data):08x}" != crc:
        raise UserError(f"{path}: is damaged: its CRC-32 is {zlib.crc32(data):08x}, its header says {crc}")
    array = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    if "scale" in entry:
        if dtype != np.uint8:
            raise UserError(f"{where}: only uint8 has a 'scale', not {dtype}")
        return array.astype(np.float32) * np.float32(_entry(entry, "scale", float, where))
    return array


def _load_npy(place: Path) -> tuple[Dataset, Dataset | None]:
    found = {}
    for name in (TRAIN, VALIDATION):
        files = sorted((place / name).glob("*.npy"))
        if files:
            inputs = {file.stem: _npy(file) for file in files}
            label = "label" if "label" in inputs else None
            whole = label is not None and inputs["label"].dtype.kind in "iu"
            found[name] = Dataset(place.name, inputs, label, default_loss=LOSSES[0] if whole else LOSSES[1])
    if TRAIN not in found:
        raise UserError(f"{place}: has neither {HEADER} nor {TRAIN}/NAME.npy")
    return found[TRAIN], found.get(VALIDATION)


def _npy(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as .npy: {error}") from None
    if array.dtype.name not in DTYPES:
        raise UserError(f"{path}: holds {array.dtype}; data files hold {', '.join(DTYPES)}")
    return np.asarray(array)
