"""Folders of pictures: classes by subfolder, or pictures with masks of equal names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from meta500.datasets.arguments import check_different, class_names, fraction, integer
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.picture_arrays import at_most, boolean
from meta500.datasets.pictures import (
    PictureFiles,
    ReadLabelled,
    ReadMasked,
    check_pictures,
    in_turn,
    mask_reader,
    picture_set,
    read_mask,
)
from meta500.datasets.places import folder_of
from meta500.errors import UserError, choose

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
# Files that operating systems leave in folders.
_LITTER = ("desktop.ini", "thumbs.db")
_TRAIN, _TESTS = "train", ("test", "val", "validation", "valid")
# The number that most sets use for void, and from where on others count as numbers of classes like it.
_VOID, _NEAR_VOID = 255, 240
_PICTURES, _MASKS = "images", ("masks", "annotations")


def image_folder(
    folder: str | Path | None = None,
    size: int = 224,
    channels: int = 3,
    fit: str = "crop",
    classes: Sequence[str] | None = None,
    test: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    limit: int | None = None,
    upright: bool = False,
    normalize: bool = False,
    check: bool = False,
) -> tuple[LazyDataset, LazyDataset]:
    """Pictures in one folder per class, as (train, test).

    ``image`` is (N, channels, size, size) float32 in [0, 1], ``label`` (N,) int64. The classes are the names
    of the subfolders, sorted. The folder holds either both parts (``train/CLASS/...`` and ``test/CLASS/...``,
    or ``val``, ``validation`` or ``valid`` for ``test``) and no other folders, or the classes
    (``CLASS/...``), which are then split at random with each class in proportion. Nothing is decoded before
    it is asked for.

    Args:
        folder: must be given.
        size: side in pixels.
        channels: 3 (RGB) or 1 (gray); see `meta500.datasets.pictures.read_picture` for what is converted.
        fit: "crop" or "stretch", see `meta500.datasets.pictures.Prepare`.
        classes: the subfolders to take, label k for the k-th; None: all, sorted.
        test: subfolder with the test pictures, where there are several that could be it, or others beside it.
        test_fraction, seed: of the split, where the folder has no parts.
        limit: at most so many pictures of each part, taken from the classes in turn.
        upright: turn pictures as their EXIF orientation says.
        normalize: subtract ImageNet's mean and divide by its deviation per channel.
        check: decode every picture now.

    Raises:
        UserError: no such folder, no or empty classes, a test class without training pictures, a folder
            beside those of the parts, a file that is no picture; with ``check`` also what `read_picture`
            raises.
    """
    name = "image-folder"
    root = _given(name, folder)
    share = fraction("test_fraction", test_fraction)

    def labelled(part: Path, wanted: Sequence[str] | None, known: bool) -> LazyDataset:
        found, files, labels = labelled_files(part, wanted, known)
        return picture_set(
            name,
            ReadLabelled(files, labels, channels, boolean("upright", upright)),
            len(files),
            classes=found,
            size=size,
            fit=fit,
            channels=channels,
            normalize=boolean("normalize", normalize),
            labels=labels,
        )

    if classes is not None and not isinstance(classes, list | tuple):
        raise UserError(f"classes must be a list of subfolders, such as ['cat', 'dog'], not {classes!r}")
    wanted = None if classes is None else tuple(str(entry) for entry in classes)
    if wanted == ():
        raise UserError("classes must be at least one subfolder, not an empty list")
    parts = _parts(name, root, test)
    if parts is None:
        train, tested = labelled(root, wanted, False).split(share, seed, stratified=True)
    else:
        train = labelled(parts[0], wanted, False)
        tested = labelled(parts[1], train.classes, True)
    train, tested = (part.subset(in_turn(part.class_labels(), limit)) for part in (train, tested))
    if boolean("check", check):
        check_pictures(train, tested)
    return train, tested


def mask_folder(
    folder: str | Path | None = None,
    size: int = 512,
    channels: int = 3,
    fit: str = "stretch",
    classes: int | Sequence[str] | None = None,
    ignore: int | None = None,
    test: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    limit: int | None = None,
    upright: bool = False,
    normalize: bool = False,
    check: bool = False,
) -> tuple[LazyDataset, LazyDataset]:
    """Pictures with masks, as (train, test).

    ``image`` is (N, channels, size, size) float32 in [0, 1], ``label`` (N, size, size) int64, the class of
    each pixel. The folder holds ``images/NAME.*`` and ``masks/NAME.png`` (or ``annotations/NAME.png``), or
    such pairs of folders in ``train`` and in ``test`` (or ``val``, ``validation``, ``valid``). Without parts,
    it is split at random. A mask is a PNG whose palette indices or gray values are the classes; see
    `meta500.datasets.pictures.read_mask`.

    Args:
        folder: must be given.
        size, channels, fit, test, test_fraction, seed, upright, normalize, check: as for `image_folder`.
        classes: number of classes or their names; the masks may hold 0 to that number less 1. None: the
            largest number in any mask, plus 1; every mask is decoded for it, and 255 far above the other
            numbers is refused, being void in most sets.
        ignore: number in the masks that counts in no loss and no score, 0..255.
        limit: at most so many pictures of each part, the first by name.

    Raises:
        UserError: no such folder, a picture without a mask or a mask without a picture, two pictures of one
            name; when a sample is read, also a mask of another size than its picture or with another number.
    """
    name = "mask-folder"
    root = _given(name, folder)
    share = fraction("test_fraction", test_fraction)
    if ignore is not None and integer("ignore", ignore, minimum=0) > 255:
        raise UserError(f"ignore must be a number that a mask can hold, 0..255, not {ignore}")
    parts = _parts(name, root, test)
    pairs = [_pairs(part) for part in ((root,) if parts is None else parts)]
    names = _class_names(classes, ignore, [masks for _, masks in pairs])
    known = {number: number for number in range(len(names))}
    meaning = f"masks hold 0..{len(names) - 1} ({len(names)} classes)"
    if ignore is not None:
        known[ignore], meaning = ignore, f"{meaning} and {ignore} (ignored)"
    mask = mask_reader(known, f"{meaning}; set classes= or ignore= for others")
    sets = [
        picture_set(
            name,
            ReadMasked(pictures, masks, mask, channels, boolean("upright", upright)),
            len(pictures),
            classes=names,
            size=size,
            fit=fit,
            channels=channels,
            normalize=boolean("normalize", normalize),
            ignore=ignore,
        )
        for pictures, masks in pairs
    ]
    train, tested = sets if parts is not None else sets[0].split(share, seed)
    train, tested = at_most(train, limit), at_most(tested, limit)
    if boolean("check", check):
        check_pictures(train, tested)
    return train, tested


def labelled_files(
    root: Path, classes: Sequence[str] | None = None, known: bool = False
) -> tuple[tuple[str, ...], PictureFiles, np.ndarray]:
    """Classes, files and their int64 labels of ``root/CLASS/*``, ordered by class and by name.

    Args:
        root: the folder of the classes.
        classes: the subfolders to take, in the order of their labels; None: all, sorted by name.
        known: ``classes`` are those of the training part: other subfolders are refused, missing ones are not.

    Raises:
        UserError: no folder or class, an empty one, a picture beside them, one that is not in ``classes``.
    """
    entries = folder_entries(root)
    found = [entry for entry, is_folder in entries.items() if is_folder]
    loose = [entry for entry in entries if entry not in found and entry.lower().endswith(ENDINGS)]
    if found and loose:
        raise UserError(
            f"{root / loose[0]}: is a picture beside the folders of the classes; move it into one"
        )
    if not found:
        raise UserError(f"{root}: has no subfolders; one folder of pictures per class is needed")
    if classes is not None:
        for entry in found if known else classes:
            choose(
                f"class in {root}" if known else f"subfolder of {root}", entry, classes if known else found
            )
        check_different("classes", classes)
    names: list[str] = []
    labels: list[int] = []
    chosen = tuple(found if classes is None else classes)
    for number, entry in enumerate(chosen):
        if entry not in found:
            continue
        files = picture_names(root / entry)
        names.extend(f"{entry}/{file}" for file in files)
        labels.extend([number] * len(files))
    return chosen, PictureFiles.of(root, names), np.array(labels, np.int64)


def picture_names(folder: Path, endings: Iterable[str] = ENDINGS) -> list[str]:
    """Names of the picture files in a folder, sorted; files whose name starts with a dot are left out.

    Raises:
        UserError: no such folder, none in it, or something that is no picture by the ending of its name.
    """
    endings = tuple(endings)
    found = {entry: kind for entry, kind in folder_entries(folder).items() if entry.lower() not in _LITTER}
    for entry, is_folder in found.items():
        if is_folder or not entry.lower().endswith(endings):
            raise UserError(
                f"{folder / entry}: is no picture file ({', '.join(endings)}); move it out of this folder"
            )
    names = list(found)
    if not names:
        raise UserError(f"{folder}: has no pictures ({', '.join(endings)})")
    return names


def folder_entries(folder: Path) -> dict[str, bool]:
    """Whether it is a folder, by name, sorted; names that start with a dot are left out.

    Raises:
        UserError: no such folder, or one that cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            found = {entry.name: entry.is_dir() for entry in entries if not entry.name.startswith(".")}
    except FileNotFoundError:
        raise UserError(f"{folder}: there is no such folder") from None
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed: {error.strerror or error}") from None
    return dict(sorted(found.items()))


def _given(name: str, folder: str | Path | None) -> Path:
    if folder is None:
        raise UserError(f"dataset '{name}' needs folder=..., the folder of the pictures")
    return folder_of(name, folder)


def _parts(name: str, root: Path, test: str | None) -> tuple[Path, Path] | None:
    """Folders of the training and the test part; None where the folder has no parts."""
    if not (root / _TRAIN).is_dir():
        if test is not None:
            raise UserError(
                f"dataset '{name}': test={test!r} needs {root / _TRAIN} beside it; without parts, give "
                "test_fraction"
            )
        return None
    entries = [entry for entry, is_folder in folder_entries(root).items() if is_folder]
    found = [entry for entry in _TESTS if entry in entries]
    others = [f"{entry}/" for entry in entries if entry not in (_TRAIN, *_TESTS)]
    listed = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
    if test is not None:
        if not (root / test).is_dir() or test == _TRAIN:
            raise UserError(f"dataset '{name}': test={test!r}: {root / test} is no folder of test pictures")
        found = [test]
    elif others:
        what = f"{', '.join(f'{entry}/' for entry in (_TRAIN, *found))} taken for parts of the set"
        raise UserError(
            f"{root}: has {what}, and {listed} beside, which would be left out; rename '{_TRAIN}' if it is a "
            "class, else move the others away or give test= (the folder of the test part)"
        )
    if not found:
        raise UserError(
            f"{root}: has {_TRAIN}/ but no test part ({', '.join(f'{entry}/' for entry in _TESTS)}); to "
            f"split the training pictures give folder={root / _TRAIN}"
        )
    if len(found) > 1:
        raise UserError(f"{root}: has {' and '.join(f'{entry}/' for entry in found)}; choose with test=")
    return root / _TRAIN, root / found[0]


def _pairs(root: Path) -> tuple[PictureFiles, PictureFiles]:
    """Pictures and masks of a part in the same order, by name without ending."""
    places = [entry for entry in _MASKS if (root / entry).is_dir()]
    if len(places) != 1 or not (root / _PICTURES).is_dir():
        raise UserError(
            f"{root}: needs the folder {_PICTURES}/ and one of {', '.join(f'{m}/' for m in _MASKS)}"
        )
    pictures = _by_stem(root / _PICTURES, ENDINGS)
    masks = _by_stem(root / places[0], (".png",))
    for have, other, what in ((pictures, masks, "mask"), (masks, pictures, "picture")):
        alone = [stem for stem in have if stem not in other]
        if alone:
            place = root / (places[0] if what == "mask" else _PICTURES)
            more = f" (and {len(alone) - 1} more)" if len(alone) > 1 else ""
            raise UserError(f"{place}: there is no {what} for '{have[alone[0]]}'{more}")
    stems = sorted(pictures)
    return (
        PictureFiles.of(root / _PICTURES, [pictures[stem] for stem in stems]),
        PictureFiles.of(root / places[0], [masks[stem] for stem in stems]),
    )


def _by_stem(folder: Path, endings: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in picture_names(folder, endings):
        stem = name.rpartition(".")[0]
        if stem in found:
            raise UserError(f"{folder}: '{found[stem]}' and '{name}' have the same name but for the ending")
        found[stem] = name
    return found


def _class_names(
    classes: int | Sequence[str] | None, ignore: int | None, masks: Sequence[PictureFiles]
) -> tuple[str, ...]:
    names = class_names(_counted(ignore, masks) if classes is None else classes)
    if len(names) > 256:
        raise UserError(f"classes must be at most 256, as many as a mask can hold numbers, not {len(names)}")
    return names


def _counted(ignore: int | None, masks: Sequence[PictureFiles]) -> int:
    """The largest number in any mask, plus 1.

    Raises:
        UserError: 255 is far from the other numbers, or every pixel is ignored.
    """
    seen, with_void = np.zeros(256, bool), None
    for files in masks:
        for index in range(len(files)):
            present = np.bincount(read_mask(files.path(index))[0].ravel(), minlength=256) > 0
            seen |= present
            if present[_VOID] and with_void is None:
                with_void = files.path(index)
    if ignore is not None:
        seen[ignore] = False
    numbers = np.flatnonzero(seen)
    if not numbers.size:
        raise UserError(f"ignore={ignore}: every pixel of every mask is ignored")
    below = int(numbers[-2]) if numbers.size > 1 else 0
    if numbers[-1] == _VOID and below < _NEAR_VOID:
        raise UserError(
            f"{with_void}: holds {_VOID}, and no mask a number from {below + 1} to {_VOID - 1}: give "
            f"ignore={_VOID} if {_VOID} is void, or classes={_VOID + 1} if it is a class"
        )
    return int(numbers[-1]) + 1
