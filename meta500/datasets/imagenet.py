"""ImageNet (ILSVRC 2012 classification), from the folders into which its archives are unpacked.

Nothing is downloaded: the archives need an account at image-net.org. ``ILSVRC2012_img_train.tar`` holds one
archive per class, each unpacked into ``train/WNID``; ``ILSVRC2012_img_val.tar`` holds the 50,000 validation
pictures, sorted into ``val/WNID`` or left flat in ``val``. WNID is the number of a WordNet synset, such as
n01440764.

Source: O. Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", International Journal of
Computer Vision 115 (2015). Known of the published files: n02105855_2933.JPEG is a PNG, and 22 training
pictures are CMYK; both are read by their contents and converted as `meta500.datasets.pictures.read_picture`
says.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from meta500.datasets.catalog import entry
from meta500.datasets.image_folder import folder_entries, labelled_files, picture_names
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.picture_arrays import boolean
from meta500.datasets.pictures import (
    PictureFiles,
    ReadLabelled,
    check_pictures,
    file_bytes,
    in_turn,
    picture_set,
)
from meta500.datasets.places import folder_of, given_path
from meta500.errors import UserError

NAME = "imagenet"
CLASSES, SAMPLES = 1000, {"train": 1_281_167, "val": 50_000}
GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
DEVKIT = "ILSVRC2012_devkit_t12"
_LONGEST_TEXT, _LONGEST_META = 2**24, 2**26
_ENDINGS = (".jpeg", ".jpg", ".png")


def imagenet(
    folder: str | Path | None = None,
    size: int = 224,
    fit: str = "crop",
    channels: int = 3,
    synsets: str | Path | None = None,
    limit: int | None = None,
    normalize: bool = False,
    full: bool = True,
    check: bool = False,
) -> tuple[LazyDataset, LazyDataset]:
    """ImageNet, as (train, validation): 1,281,167 and 50,000 pictures of 1,000 classes.

    ``image`` is (N, channels, size, size) float32 in [0, 1], ``label`` (N,) int64. The classes are the WNIDs,
    sorted, so that label k is what the field calls class k (and not ILSVRC2012_ID k).

    The validation pictures are in ``val/WNID/*.JPEG``, or flat in ``val``. If flat, the class of
    ILSVRC2012_val_NNNNNNNN.JPEG is line NNNNNNNN of ILSVRC2012_validation_ground_truth.txt, an ILSVRC2012_ID,
    whose WNID is in the development kit's meta.mat. Both are looked for in the folder, in
    ``ILSVRC2012_devkit_t12`` and in ``data`` of either.

    Args:
        folder: holds ``train`` and ``val``; None: the named place of the dataset.
        size: side in pixels.
        fit: "crop" (shorter side to ``size`` x 256 / 224, then the centre) or "stretch".
        channels: 3 (RGB) or 1 (gray).
        synsets: for flat validation pictures, a text file in place of meta.mat: either a line
            ``ILSVRC2012_ID WNID`` per class, or the WNID of one validation picture per line, in their order
            (the ground truth is not needed then).
        limit: at most so many pictures of each part, taken from the classes in turn.
        normalize: subtract ImageNet's mean and divide by its deviation per channel.
        full: there must be 1,000 classes with the published numbers of pictures; False: a part of the set,
            such as of 10 or 100 classes, will do.
        check: decode every picture now; hours for the full set.

    Raises:
        UserError: a missing or empty folder, one whose name is no WNID, other numbers with ``full``, a
            damaged list; with ``check`` also what `read_picture` raises.
    """
    root = folder_of(NAME, folder)
    for part in ("train", "val"):
        if not (root / part).is_dir():
            raise UserError(
                f"dataset '{NAME}': there is no {root / part}; its archives need an account at "
                "image-net.org: unpack them there, or give folder=..."
            )
    classes, files, labels = labelled_files(root / "train")
    for wnid in classes:
        if not _is_wnid(wnid):
            raise UserError(f"{root / 'train' / wnid}: its name is no WNID such as n01440764")
    if _is_flat(root / "val"):
        tested = _flat(root, classes, None if synsets is None else given_path("synsets", synsets))
    else:
        tested = labelled_files(root / "val", classes, known=True)[1:]
    parts = {"train": (files, labels), "val": tested}
    if boolean("full", full):
        if len(classes) != CLASSES:
            raise UserError(
                f"{root / 'train'}: has {len(classes)} classes; ImageNet has {CLASSES} (full=False takes "
                "any number)"
            )
        for part, (found, _) in parts.items():
            if len(found) != SAMPLES[part]:
                raise UserError(
                    f"{root / part}: has {len(found)} pictures; ImageNet has {SAMPLES[part]} (full=False "
                    "takes any number)"
                )
    sets = []
    for found, numbers in parts.values():
        whole = picture_set(
            NAME,
            ReadLabelled(found, numbers, channels),
            len(found),
            classes=classes,
            size=size,
            fit=fit,
            channels=channels,
            normalize=boolean("normalize", normalize),
            labels=numbers,
            licence=entry(NAME).licence,
        )
        sets.append(whole if limit is None else whole.subset(in_turn(numbers, limit)))
    if boolean("check", check):
        check_pictures(*sets)
    return sets[0], sets[1]


def _is_wnid(text: str) -> bool:
    return re.fullmatch(r"n\d{8}", text, re.ASCII) is not None


def _is_flat(folder: Path) -> bool:
    """Whether pictures lie in ``folder`` itself and no folders."""
    return not any(folder_entries(folder).values())


def _flat(root: Path, classes: tuple[str, ...], synsets: Path | None) -> tuple[PictureFiles, np.ndarray]:
    """The validation pictures of ``val`` and their classes, by the number in their names."""
    names = picture_names(root / "val", _ENDINGS)
    numbers = [_number(root / "val", name) for name in names]
    wnids, path = _wnids(root, synsets)
    known = {wnid: label for label, wnid in enumerate(classes)}
    labels = np.empty(len(names), np.int64)
    for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
        if not 1 <= number <= len(wnids):
            raise UserError(f"{path}: has {len(wnids)} lines, none for {root / 'val' / name}")
        wnid = wnids[number - 1]
        if wnid not in known:
            raise UserError(
                f"{path}: line {number} is of class {wnid}, which has no folder in {root / 'train'}"
            )
        labels[place] = known[wnid]
    return PictureFiles.of(root / "val", names), labels


def _number(folder: Path, name: str) -> int:
    found = re.fullmatch(r"ILSVRC2012_val_(\d{8})\.\w+", name, re.ASCII)
    if found is None:
        raise UserError(
            f"{folder / name}: is not called ILSVRC2012_val_NNNNNNNN.JPEG; its class is not known"
        )
    return int(found[1])


def _wnids(root: Path, synsets: Path | None) -> tuple[list[str], Path]:
    """WNID of every validation picture in order, and the file with a line for each."""
    by_id: dict[int, str] | None = None
    if synsets is not None:
        rows = [line.split() for line in _lines(synsets)]
        if all(len(row) == 1 and _is_wnid(row[0]) for row in rows):
            # Some lists of synsets are sorted by WNID, others by ILSVRC2012_ID: which one cannot be seen.
            if len(rows) == CLASSES:
                raise UserError(
                    f"{synsets}: has {CLASSES} WNIDs and does not say which ILSVRC2012_ID each has; lines "
                    "'ILSVRC2012_ID WNID' are needed, or one WNID per validation picture"
                )
            return [row[0] for row in rows], synsets
        by_id = _ids(synsets, rows)
    places = [folder / sub for folder in (root, root / DEVKIT) for sub in ("", "data")]
    truth = _first(places, GROUND_TRUTH, root)
    if by_id is None:
        by_id = _meta(_first(places, "meta.mat", root))
    wnids = []
    for number, line in enumerate(_lines(truth), 1):
        if not (line.isascii() and line.isdigit()) or int(line) not in by_id:
            raise UserError(f"{truth}: line {number} is '{line[:40]}', no ILSVRC2012_ID of a class")
        wnids.append(by_id[int(line)])
    return wnids, truth


def _first(places: list[Path], name: str, root: Path) -> Path:
    for place in places:
        if (place / name).is_file():
            return place / name
    raise UserError(
        f"dataset '{NAME}': {root / 'val'} has no folders of classes, and there is no {places[-1] / name} to "
        f"tell the classes by; unpack {DEVKIT}.tar.gz there, or give synsets="
    )


def _lines(path: Path) -> list[str]:
    lines = [line.strip() for line in file_bytes(path, _LONGEST_TEXT).decode("utf-8", "replace").splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise UserError(f"{path}: is empty")
    return lines


def _ids(path: Path, rows: list[list[str]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for number, row in enumerate(rows, 1):
        if len(row) < 2 or not (row[0].isascii() and row[0].isdigit()) or not _is_wnid(row[1]):
            raise UserError(
                f"{path}: line {number} is '{' '.join(row)[:80]}'; 'ILSVRC2012_ID WNID' is needed"
            )
        if int(row[0]) in found or row[1] in found.values():
            raise UserError(f"{path}: line {number}: {row[0]} {row[1]} is there twice")
        found[int(row[0])] = row[1]
    return found


def _meta(path: Path) -> dict[int, str]:
    """WNID by ILSVRC2012_ID of the classes in the development kit's meta.mat (those without children)."""
    import io

    from scipy.io import loadmat

    data = file_bytes(path, _LONGEST_META)
    try:
        synsets = loadmat(io.BytesIO(data), squeeze_me=True)["synsets"]
        rows = [
            (int(row["ILSVRC2012_ID"]), str(row["WNID"]))
            for row in np.atleast_1d(synsets)
            if int(row["num_children"]) == 0
        ]
    except Exception as error:
        # loadmat raises ValueError, TypeError, KeyError, zlib.error and others for damaged files.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{path}: is damaged or no meta.mat of the development kit: 'synsets' with ILSVRC2012_ID, WNID "
            f"and num_children is needed ({reason}; the file has {len(data)} bytes)"
        ) from None
    wrong = [row for row in rows if not _is_wnid(row[1])]
    if wrong or not rows or len(dict(rows)) < len(rows) or len({wnid for _, wnid in rows}) < len(rows):
        what = f"'{wrong[0][1]}' is no WNID" if wrong else "no classes, or one twice"
        raise UserError(f"{path}: is no meta.mat of the development kit: {what}")
    return dict(rows)
