"""The Oxford-IIIT pets: pictures of 37 breeds with a trimap of the pet in each.

Source: O. M. Parkhi, A. Vedaldi, A. Zisserman and C. V. Jawahar, "Cats and Dogs", CVPR (2012). ``list.txt``,
``trainval.txt`` and ``test.txt`` have lines ``NAME CLASS-ID SPECIES BREED-ID`` and comments from ``#`` on.

What is known to be wrong in the published files, and what is done about it:

- Some ``.jpg`` are in truth PNG or GIF (Abyssinian_5 and _34, Egyptian_Mau_14, _139, _145, _156, _167, _177,
  _186, _191), with a palette or with alpha, or are gray (Egyptian_Mau_129, staffordshire_bull_terrier_2 and
  _22). They are read by their contents and become RGB as `meta500.datasets.pictures.read_picture` says.
- beagle_116 and chihuahua_121 are listed by others as damaged JPEG. They are read if the decoder reads them;
  if not, the error names them.
- A picture or trimap that is not there is an error that names it. Nothing is left out silently: ``skip``
  leaves out what it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meta500.datasets.arguments import fraction, integer, stream
from meta500.datasets.catalog import entry
from meta500.datasets.image_folder import folder_entries
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.picture_arrays import boolean, needed_file, verify_count
from meta500.datasets.pictures import (
    PictureFiles,
    ReadLabelled,
    ReadMasked,
    check_pictures,
    file_bytes,
    in_turn,
    mask_reader,
    picture_set,
)
from meta500.datasets.places import folder_of
from meta500.errors import UserError, choose

NAME = "oxford-pets"
# By CLASS-ID, from 1; the names of cats start with a capital.
BREEDS = (
    *("Abyssinian", "american_bulldog", "american_pit_bull_terrier", "basset_hound", "beagle", "Bengal"),
    *(
        "Birman",
        "Bombay",
        "boxer",
        "British_Shorthair",
        "chihuahua",
        "Egyptian_Mau",
        "english_cocker_spaniel",
    ),
    *("english_setter", "german_shorthaired", "great_pyrenees", "havanese", "japanese_chin", "keeshond"),
    *(
        "leonberger",
        "Maine_Coon",
        "miniature_pinscher",
        "newfoundland",
        "Persian",
        "pomeranian",
        "pug",
        "Ragdoll",
    ),
    *("Russian_Blue", "saint_bernard", "samoyed", "scottish_terrier", "shiba_inu", "Siamese", "Sphynx"),
    *("staffordshire_bull_terrier", "wheaten_terrier", "yorkshire_terrier"),
)
SPECIES = ("cat", "dog")
TRIMAP = ("pet", "background", "border")
TASKS = ("trimap", "breed", "species")
SPLITS = ("publisher", "first", "random")
# Lines of the publisher's lists.
SAMPLES = {"list": 7349, "trainval": 3680, "test": 3669}
_SPLIT_STREAM = 9
_LONGEST_LIST = 2**24


class Pet(NamedTuple):
    """A line of a list: name of the files without ending, CLASS-ID, SPECIES (1 cat, 2 dog), BREED-ID."""

    name: str
    number: int
    species: int
    breed: int


def oxford_pets(
    folder: str | Path | None = None,
    size: int = 512,
    task: str = "trimap",
    breeds: Sequence[str] | str | None = None,
    split: str = "publisher",
    test_fraction: float = 0.2,
    seed: int = 0,
    fit: str = "stretch",
    channels: int = 3,
    limit: int | None = None,
    skip: Sequence[str] | str = (),
    normalize: bool = False,
    full: bool = True,
    check: bool = False,
) -> tuple[LazyDataset, LazyDataset]:
    """The Oxford-IIIT pets, as (train, test): 3,680 and 3,669 pictures with the defaults.

    ``image`` is (N, channels, size, size) float32 in [0, 1]. ``label`` is, by task:

    - "trimap": (N, size, size) int64: 0 pet, 1 background, 2 border (1, 2 and 3 in the files).
    - "breed": (N,) int64, CLASS-ID less 1; with ``breeds``, the place in these.
    - "species": (N,) int64: 0 cat, 1 dog.

    The set of the U-Net code generation thesis (section 6.1.1: 128 Abyssinians, reshaped to 512 x 512, values
    in [0, 1]) is ``oxford_pets(breeds=("Abyssinian",), split="first", limit=128)``; which 128 it took is not
    said there. With the publisher's split an Abyssinian is in the training list about 100 times only.

    Args:
        folder: holds ``images`` and ``annotations``; None: the named place of the dataset.
        size: side in pixels.
        task: what the label is.
        breeds: breeds to take, as they are called in `BREEDS`; None: all.
        split: "publisher": trainval.txt and test.txt; "first": the first ``limit`` of list.txt (taken from
            the breeds in turn) for training, of the others at most as many for test; "random": list.txt,
            at random.
        test_fraction, seed: of the random split.
        fit: "stretch" or "crop", see `meta500.datasets.pictures.Prepare`.
        channels: 3 (RGB) or 1 (gray).
        limit: at most so many pictures of each part, taken from the breeds in turn; with split "first",
            exactly so many for training.
        skip: names of pictures to leave out, such as "beagle_116".
        normalize: subtract ImageNet's mean and divide by its deviation per channel; the pets have none of
            their own.
        full: the lists must have the published numbers of lines; False: a part of the set will do.
        check: decode everything now.

    Raises:
        UserError: a missing file, a damaged or mislabelled line of a list, lists of other lengths with
            ``full``, an unknown breed or name to skip; when a sample is read, a damaged file, a trimap of
            another size than its picture or with other values than 1, 2 and 3.
    """
    choose(f"task of dataset '{NAME}'", task, TASKS)
    choose(f"split of dataset '{NAME}'", split, SPLITS)
    share = fraction("test_fraction", test_fraction)
    wanted = _names(breeds) or BREEDS
    for breed in wanted:
        choose(f"breed of dataset '{NAME}'", breed, BREEDS)
    if len(set(wanted)) < len(wanted):
        raise UserError(f"dataset '{NAME}': breeds={wanted}: a breed is named twice")
    root = folder_of(NAME, folder)
    listed = _lists(root, split, boolean("full", full))
    everything = {pet.name: pet for part in listed for pet in part}
    for name in _names(skip):
        choose(f"name to skip of dataset '{NAME}'", name, everything)
    kept = [
        [pet for pet in part if BREEDS[pet.number - 1] in wanted and pet.name not in _names(skip)]
        for part in listed
    ]
    sets = []
    for part, pets in zip(("training", "test"), _split(kept, split, share, seed, limit), strict=True):
        if not pets:
            raise UserError(
                f"dataset '{NAME}': split='{split}' leaves no {part} pictures of {', '.join(wanted)}"
            )
        sets.append(_set(root, pets, task, wanted, channels, size, fit, boolean("normalize", normalize)))
    if boolean("check", check):
        check_pictures(*sets)
    return sets[0], sets[1]


def _set(
    root: Path, pets: list[Pet], task: str, breeds: Sequence[str], channels: int, *options: Any
) -> LazyDataset:
    """The set of ``pets`` with the labels of ``task``."""
    size, fit, normalize = options
    pictures = _existing(root / "images", ".jpg", pets)
    labels = None
    read: ReadMasked | ReadLabelled
    if task == "trimap":
        masks = _existing(root / "annotations" / "trimaps", ".png", pets)
        classes: tuple[str, ...] = TRIMAP
        meaning = "a trimap holds 1 (pet), 2 (background) and 3 (border)"
        read = ReadMasked(pictures, masks, mask_reader({1: 0, 2: 1, 3: 2}, meaning), channels)
    else:
        if task == "species":
            classes, numbers = SPECIES, [pet.species - 1 for pet in pets]
        else:
            classes, numbers = tuple(breeds), [breeds.index(BREEDS[pet.number - 1]) for pet in pets]
        labels = np.array(numbers, np.int64)
        read = ReadLabelled(pictures, labels, channels)
    return picture_set(
        NAME,
        read,
        len(pets),
        classes=classes,
        size=size,
        fit=fit,
        channels=channels,
        normalize=normalize,
        labels=labels,
        licence=entry(NAME).licence,
    )


def _lists(root: Path, split: str, full: bool) -> list[list[Pet]]:
    """The training and the test list, or the one list of all."""
    if split != "publisher":
        return [_list(root, "list", full)]
    parts = [_list(root, "trainval", full), _list(root, "test", full)]
    both = {pet.name for pet in parts[0]} & {pet.name for pet in parts[1]}
    if both:
        raise UserError(f"{root / 'annotations'}: '{min(both)}' is in trainval.txt and in test.txt")
    return parts


def _list(root: Path, name: str, full: bool) -> list[Pet]:
    path = needed_file(NAME, root, f"annotations/{name}.txt")
    pets: dict[str, Pet] = {}
    for number, line in enumerate(file_bytes(path, _LONGEST_LIST).decode("utf-8", "replace").splitlines(), 1):
        fields = line.partition("#")[0].split()
        if not fields:
            continue
        if len(fields) != 4 or not all(field.isascii() and field.isdigit() for field in fields[1:]):
            raise UserError(
                f"{path}: line {number} is '{line[:80]}'; NAME CLASS-ID SPECIES BREED-ID is needed"
            )
        pet = Pet(fields[0], *(int(field) for field in fields[1:]))
        _check_pet(pet, f"{path}: line {number}")
        if pet.name in pets:
            raise UserError(f"{path}: line {number}: '{pet.name}' is listed twice")
        pets[pet.name] = pet
    verify_count(path, len(pets), SAMPLES[name], full)
    return list(pets.values())


def _check_pet(pet: Pet, where: str) -> None:
    """See that name, class and species say the same."""
    breed, _, picture = pet.name.rpartition("_")
    if breed not in BREEDS or not picture.isdigit():
        raise UserError(f"{where}: '{pet.name}' is no breed and number, such as {BREEDS[0]}_1")
    number = BREEDS.index(breed) + 1
    if pet.number != number:
        raise UserError(f"{where}: '{pet.name}' has the CLASS-ID {pet.number}; that of {breed} is {number}")
    species = 1 if breed[0].isupper() else 2
    if pet.species != species:
        raise UserError(
            f"{where}: '{pet.name}' has the SPECIES {pet.species}; a {SPECIES[species - 1]} has {species}"
        )


def _split(
    parts: list[list[Pet]], split: str, share: float, seed: int, limit: int | None
) -> tuple[list[Pet], list[Pet]]:
    if split == "first":
        if limit is None:
            raise UserError(f"dataset '{NAME}': split='first' needs limit=, the number of training pictures")
        chosen = _in_turn(parts[0], limit)
        if len(chosen) < limit:
            raise UserError(
                f"dataset '{NAME}': limit={limit} with split='first', but there are {len(parts[0])} "
                "pictures of these breeds"
            )
        names = {pet.name for pet in chosen}
        return chosen, _in_turn([pet for pet in parts[0] if pet.name not in names], limit)
    if split == "random":
        order = stream(integer("seed", seed, minimum=0), _SPLIT_STREAM).permutation(len(parts[0]))
        tested = set(order[: round(len(order) * share)].tolist())
        halves = [[pet for i, pet in enumerate(parts[0]) if (i in tested) == test] for test in (False, True)]
    else:
        halves = parts
    return _in_turn(halves[0], limit), _in_turn(halves[1], limit)


def _in_turn(pets: list[Pet], limit: int | None) -> list[Pet]:
    return [pets[i] for i in in_turn(np.array([pet.number for pet in pets], np.int64), limit)]


def _existing(place: Path, ending: str, pets: list[Pet]) -> PictureFiles:
    there = folder_entries(place) if place.is_dir() else {}
    lacking = [pet.name for pet in pets if pet.name + ending not in there]
    if lacking:
        raise UserError(
            f"dataset '{NAME}': there is no {place / (lacking[0] + ending)} ({len(lacking)} of {len(pets)} "
            f"are missing); get it with `meta500 data get {NAME}`, or leave it out with skip="
        )
    return PictureFiles.of(place, [pet.name + ending for pet in pets])


def _names(given: Sequence[str] | str | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())
