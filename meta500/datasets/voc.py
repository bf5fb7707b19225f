"""PASCAL VOC segmentation: pictures, masks in the publisher's colour map, and their XML annotations.

The format is described in M. Everingham and J. Winn, "The PASCAL Visual Object Classes Challenge 2012
(VOC2012) Development Kit" (2012). A mask is a PNG whose palette indices are the classes: 0 background, 1 to
20 the object classes, 255 void (borders and objects that are too hard to tell).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element, TreeBuilder

import numpy as np

from meta500.datasets.catalog import entry, how_to_get
from meta500.datasets.image_folder import folder_entries
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.picture_arrays import at_most, boolean, needed_file, verify_count
from meta500.datasets.pictures import (
    PictureFiles,
    ReadMasked,
    check_pictures,
    file_bytes,
    mask_reader,
    picture_set,
)
from meta500.datasets.places import folder_of
from meta500.errors import UserError, choose

NAME = "voc-segmentation"
OBJECTS = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *(
        "diningtable",
        "dog",
        "horse",
        "motorbike",
        "person",
        "pottedplant",
        "sheep",
        "sofa",
        "train",
        "tvmonitor",
    ),
)
CLASSES = ("background", *OBJECTS)
VOID = 255
VOIDS = ("ignore", "background", "class")
# Pictures by year and list, as the publisher counts them.
SAMPLES = MappingProxyType(
    {
        "2007": {"train": 209, "val": 213, "trainval": 422, "test": 210},
        "2012": {"train": 1464, "val": 1449, "trainval": 2913},
    }
)
_LONGEST_XML, _DEEPEST_XML = 2**20, 16


class VocObject(NamedTuple):
    """An object; ``box`` is (xmin, ymin, xmax, ymax) in pixels, the first being 1 and the last included."""

    name: str
    box: tuple[float, float, float, float]
    difficult: bool
    truncated: bool


class VocAnnotation(NamedTuple):
    """An annotation: file name, width and height of the picture in pixels, and the objects in it."""

    filename: str
    width: int
    height: int
    objects: tuple[VocObject, ...]


def voc_segmentation(
    folder: str | Path | None = None,
    year: str = "2012",
    size: int = 512,
    fit: str = "stretch",
    void: str = "ignore",
    train: str = "train",
    test: str = "val",
    channels: int = 3,
    limit: int | None = None,
    normalize: bool = False,
    full: bool = True,
    check: bool = False,
) -> tuple[LazyDataset, LazyDataset]:
    """PASCAL VOC segmentation, as (train, test): 1,464 and 1,449 pictures with the defaults.

    ``image`` is (N, channels, size, size) float32 in [0, 1], ``label`` (N, size, size) int64 in 0..20, with
    255 for void. When a sample is read, its picture, mask and annotation are compared in name and size, and
    the palette of the mask with `colour_map`.

    Args:
        folder: holds ``VOCdevkit/VOC2012`` (or 2007), or is ``VOCdevkit`` or ``VOC2012`` itself; None: the
            named place of the dataset.
        year: "2012" or "2007".
        size: side in pixels.
        fit: "stretch" or "crop", see `meta500.datasets.pictures.Prepare`.
        void: "ignore": void is 255 and counts in no loss and no score; "background": it is class 0; "class":
            it is a 22nd class.
        train: list of the training pictures, "train" or "trainval".
        test: list of the test pictures, "val", or "test" (2007; that of 2012 was never published).
        channels: 3 (RGB) or 1 (gray).
        limit: at most so many pictures of each part, the first of its list.
        normalize: subtract ImageNet's mean and divide by its deviation per channel; VOC has none of its own.
        full: the lists must have the published numbers of pictures; False: a part of the set will do.
        check: decode everything now.

    Raises:
        UserError: a missing file, a damaged list, a list of another length with ``full``; when a sample is
            read, a damaged or mislabelled file, a mask in another palette, or one of another size.
    """
    year = choose(f"year of dataset '{NAME}'", str(year), SAMPLES)
    choose(f"void of dataset '{NAME}'", void, VOIDS)
    choose(f"train of dataset '{NAME}'", train, ("train", "trainval"))
    choose(f"test of dataset '{NAME}'", test, [name for name in ("val", "test") if name in SAMPLES[year]])
    if (train, test) == ("trainval", "val"):
        raise UserError(f"dataset '{NAME}': the pictures of test='val' are among those of train='trainval'")
    root = _root(folder_of(NAME, folder), year)
    outside = {"ignore": VOID, "background": 0, "class": len(CLASSES)}[void]
    mask = mask_reader(
        {number: number for number in range(len(CLASSES))} | {VOID: outside},
        "masks of VOC hold 0..20 and 255 (void)",
        colour_map().tobytes(),
    )
    sets = []
    for part in (train, test):
        pictures, masks, annotations = _files(root, year, part, boolean("full", full))
        sets.append(
            picture_set(
                NAME,
                ReadVoc(ReadMasked(pictures, masks, mask, channels), annotations),
                len(pictures),
                classes=(*CLASSES, "void") if void == "class" else CLASSES,
                size=size,
                fit=fit,
                channels=channels,
                normalize=boolean("normalize", normalize),
                licence=entry(NAME).licence,
                ignore=VOID if void == "ignore" else None,
            )
        )
    chosen = at_most(sets[0], limit), at_most(sets[1], limit)
    if boolean("check", check):
        check_pictures(*chosen)
    return chosen


@dataclass(frozen=True, eq=False)
class ReadVoc:
    """Reads a picture with its mask and compares both with the annotation."""

    masked: ReadMasked
    annotations: PictureFiles

    def __call__(self, index: int) -> dict[str, np.ndarray]:
        sample = self.masked(index)
        path, picture = self.annotations.path(index), self.masked.pictures.path(index)
        said = voc_annotation(path)
        if said.filename != picture.name:
            raise UserError(f"{path}: annotates '{said.filename}', not '{picture.name}'")
        height, width = sample["image"].shape[1:]
        if (said.width, said.height) != (width, height):
            raise UserError(
                f"{path}: says that the picture is {said.width} pixels wide and {said.height} high; it is "
                f"{width} wide and {height} high ({picture})"
            )
        return sample


def colour_map() -> np.ndarray:
    """The colours of VOC's masks, uint8 (256, 3): RGB by palette index.

    The bits of an index, lowest first, go to red, green and blue in turn, from the highest bit of these
    downwards (`VOClabelcolormap` of the development kit).
    """
    index = np.arange(256)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(8):
        colours[:, bit % 3] |= ((index >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return colours


def voc_objects(path: str | Path) -> tuple[VocObject, ...]:
    """The objects of a VOC annotation, in the order of the file.

    Raises:
        UserError: as `voc_annotation`.
    """
    return voc_annotation(path).objects


def voc_annotation(path: str | Path) -> VocAnnotation:
    """An annotation in VOC's XML; those of the Oxford-IIIT pets have the same form.

    Raises:
        UserError: no such file, more than 1 MiB, no XML, a document type (its entities can blow up or name
            other files), another root than <annotation>, or a missing or impossible value.
    """
    root = _tree(path)
    if root.tag != "annotation":
        raise UserError(f"{path}: its root is <{root.tag}>; an annotation's is <annotation>")
    objects = []
    for number, found in enumerate(root.findall("object"), start=1):
        where = f"object {number}"
        sides = ("xmin", "ymin", "xmax", "ymax")
        xmin, ymin, xmax, ymax = (_number(path, found, f"bndbox/{side}", where) for side in sides)
        box = xmin, ymin, xmax, ymax
        if xmin > xmax or ymin > ymax:
            raise UserError(f"{path}: {where} has the box {box}; its minimum is above its maximum")
        flags = (found.findtext(flag, "0").strip() == "1" for flag in ("difficult", "truncated"))
        objects.append(VocObject(_text(path, found, "name", where), box, *flags))
    width, height = (_number(path, root, f"size/{side}", "it") for side in ("width", "height"))
    if width < 1 or height < 1 or width % 1 or height % 1:
        raise UserError(f"{path}: says that the picture has {width:g} x {height:g} pixels")
    return VocAnnotation(_text(path, root, "filename", "it"), int(width), int(height), tuple(objects))


def _root(folder: Path, year: str) -> Path:
    """The folder VOC<year>, wherever the given one starts."""
    places = (folder / "VOCdevkit" / f"VOC{year}", folder / f"VOC{year}", folder)
    for place in places:
        if (place / "JPEGImages").is_dir():
            if place.name.startswith("VOC20") and place.name != f"VOC{year}":
                raise UserError(f"dataset '{NAME}': {place} is not VOC{year}; give year='{place.name[3:]}'")
            return place
    raise UserError(
        f"dataset '{NAME}': there is no {places[0] / 'JPEGImages'}; {how_to_get(NAME, year=year)}, or give "
        "folder=..."
    )


def _files(root: Path, year: str, part: str, full: bool) -> tuple[PictureFiles, PictureFiles, PictureFiles]:
    """Pictures, masks and annotations of a list."""
    path = needed_file(NAME, root, f"ImageSets/Segmentation/{part}.txt")
    names = file_bytes(path, _LONGEST_XML).decode("utf-8", "replace").split()
    seen = set()
    for name in names:
        if not re.fullmatch(r"[0-9A-Za-z_]+", name) or name in seen:
            what = "is listed twice" if name in seen else "is no name of a picture"
            raise UserError(f"{path}: '{name}' {what}")
        seen.add(name)
    verify_count(path, len(names), SAMPLES[year][part], full)
    found = []
    for kind, ending in (("JPEGImages", ".jpg"), ("SegmentationClass", ".png"), ("Annotations", ".xml")):
        place = root / kind
        there = folder_entries(place) if place.is_dir() else {}
        lacking = [name for name in names if name + ending not in there]
        if lacking:
            raise UserError(
                f"dataset '{NAME}': there is no {place / (lacking[0] + ending)}, which {path} lists; "
                f"{len(lacking)} of {len(names)} are missing"
            )
        found.append(PictureFiles.of(place, [name + ending for name in names]))
    return found[0], found[1], found[2]


def _tree(path: str | Path) -> Element:
    """The root of an XML file without document type and entities."""
    from xml.parsers import expat

    builder, depth = TreeBuilder(), 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST_XML:
            raise UserError(f"{path}: line {parser.CurrentLineNumber}: elements are nested too deeply")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(tag)

    def doctype(*_: Any) -> None:
        raise UserError(
            f"{path}: line {parser.CurrentLineNumber}: has a document type; annotations with one are not read"
        )

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.data, doctype
    try:
        parser.Parse(file_bytes(path, _LONGEST_XML), True)
    except expat.ExpatError as error:
        raise UserError(
            f"{path}: is no well-formed XML: {expat.ErrorString(error.code)} at byte "
            f"{max(parser.ErrorByteIndex, 0)} (line {error.lineno})"
        ) from None
    except (LookupError, ValueError) as error:
        raise UserError(f"{path}: has an encoding that is not read: {error}") from None
    return builder.close()


def _text(path: str | Path, owner: Element, place: str, what: str) -> str:
    text = (owner.findtext(place) or "").strip()
    if not text:
        raise UserError(f"{path}: {what} has no <{place.replace('/', '><')}>")
    return text


def _number(path: str | Path, owner: Element, place: str, what: str) -> float:
    text = _text(path, owner, place, what)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{path}: <{place.replace('/', '><')}> of {what} is '{text}', not a number")
    return value
