"""Picture files: decoding into uint8 arrays, masks by their stored numbers, and resizing for a network.

What Pillow decodes is taken from the file's bytes, whatever the ending of its name. `read_picture` gives
uint8 (C, H, W); `read_mask` gives the numbers that a mask stores and never its colours; `Prepare` brings both
to the side that a network takes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta500.datasets.arguments import integer, picture_side
from meta500.datasets.lazy import LazyDataset, Read
from meta500.datasets.png import KINDS, SIGNATURE, PngHeader, check_png
from meta500.errors import UserError, choose

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
FITS = ("stretch", "crop")
# Most pixels of a picture, 8192 x 8192: a file of a few kB may claim billions.
LARGEST = 2**26
# Bytes of a file; no encoding of LARGEST pixels with 8 bits per channel needs more.
_LONGEST = 2**29
# Side of the crop and of the shorter side before it, in the usual evaluation on ImageNet.
_CROP, _SHORTER = 224, 256
# Mean and deviation per channel of the ImageNet training pictures in [0, 1], as the field uses them.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)

_CONVERTED = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


def read_picture(path: str | os.PathLike[str], channels: int = 3, *, upright: bool = False) -> np.ndarray:
    """The picture of a file, uint8 (channels, H, W), C-contiguous.

    With 3 channels (RGB), gray is repeated; with 1, colours become luminance (ITU-R BT.601, 0.299 R + 0.587 G
    + 0.114 B). A palette is applied. Alpha is dropped, so the colours are those that are stored. CMYK is
    converted without a colour profile. Of several pictures in a file (GIF, TIFF) the first is read. Pictures
    of 16 bits per channel, of floats, and in other colour spaces are refused: what their numbers mean is the
    user's to say.

    Every checksum of a PNG is verified, and that it has as many pixels as it claims. The other formats have
    no checksums: files that are cut off are refused, one whose bytes changed somewhere may decode to other
    pixels without a sign.

    Args:
        path: a file of `FORMATS`, of at most `LARGEST` pixels.
        channels: 3 or 1.
        upright: turn and mirror the picture as its EXIF orientation says. The default gives the pixels as
            they are stored, as masks and boxes of published sets are drawn on them. (The orientation of a
            TIFF is part of that format, and always followed.)

    Raises:
        UserError: no such file, no picture, damaged or cut off, too large, or of a kind that is refused.
    """
    channels = _channels(channels)
    with _opened(Path(path)) as (picture, data, png):
        _check_kind(path, picture, png)
        with _decoding(path, picture, data):
            picture.load()
            if upright:
                from PIL import ImageOps

                ImageOps.exif_transpose(picture, in_place=True)
            # Pillow would warn that transparency is dropped.
            picture.info.pop("transparency", None)
            gray = channels == 1 or picture.mode in ("1", "L", "LA")
            pixels = np.asarray(picture.convert("L" if gray else "RGB"))
    if gray:
        return np.repeat(pixels[np.newaxis], channels, axis=0)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def read_mask(path: str | os.PathLike[str]) -> tuple[np.ndarray, bytes]:
    """The numbers that a mask stores, uint8 (H, W), and its palette (3 bytes per entry; empty without one).

    A mask is a PNG: with a palette, the numbers are its indices; grayscale, they are the stored gray values
    (of 1, 2, 4 or 8 bits, not scaled). Anything else has colours and no class numbers, and is refused.

    Raises:
        UserError: no such file, damaged or cut off, too large, or not such a PNG.
    """
    with _opened(Path(path), "PNG") as (picture, data, png):
        if png is None:
            raise UserError(f"{path}: is a {picture.format}; masks must be PNG files")
        if png.kind not in (0, 3) or png.depth == 16:
            raise UserError(
                f"{path}: is a PNG of {KINDS[png.kind]} with {png.depth} bits per channel; a mask must "
                "hold class numbers: palette, or grayscale of at most 8 bits"
            )
        with _decoding(path, picture, data):
            numbers = np.array(picture, np.uint8)
    if png.kind == 0 and 1 < png.depth < 8:
        # Pillow spreads such gray over 0..255 (one bit stays 0 and 1).
        numbers //= 255 // (2**png.depth - 1)
    return numbers, png.palette


@dataclass(frozen=True, eq=False)
class MaskReader:
    """Reads masks whose stored numbers stand for classes; made by `mask_reader`.

    Called with a path it gives uint8 (H, W) classes, or raises what `read_mask` raises, and a ``UserError``
    for a number that stands for nothing, and for another palette than the set's.
    """

    table: np.ndarray
    meaning: str
    palette: bytes = b""

    def __call__(self, path: str | os.PathLike[str]) -> np.ndarray:
        numbers, palette = read_mask(path)
        if self.palette:
            self._check_palette(path, numbers, palette)
        classes = self.table[numbers]
        if classes.min() < 0:
            row, column = np.argwhere(classes < 0)[0].tolist()
            raise UserError(
                f"{path}: pixel (row {row}, column {column}) holds {numbers[row, column]}; {self.meaning}"
            )
        return classes.astype(np.uint8)

    def _check_palette(self, path: str | os.PathLike[str], numbers: np.ndarray, palette: bytes) -> None:
        if not palette:
            raise UserError(f"{path}: has no palette; masks of this set have the publisher's colour map")
        found, wanted = (
            np.frombuffer(colours, np.uint8).reshape(-1, 3) for colours in (palette, self.palette)
        )
        differ = (found != wanted[: len(found)]).any(axis=1)
        if differ.any():
            entry = int(differ.argmax())
            raise UserError(
                f"{path}: entry {entry} of its palette is {tuple(found[entry].tolist())}, the publisher's "
                f"colour map has {tuple(wanted[entry].tolist())}: its numbers would be other classes"
            )
        if numbers.max() >= len(palette) // 3:
            raise UserError(
                f"{path}: a pixel holds {numbers.max()}, outside its palette of {len(palette) // 3} entries"
            )


def mask_reader(classes: Mapping[int, int], meaning: str, palette: bytes = b"") -> MaskReader:
    """A reader of masks.

    ``classes`` is the class by stored number, both 0..255; other numbers are refused, and ``meaning`` says in
    that message what is right. ``palette`` is what the masks' palettes have to be (they may end earlier);
    empty: any or none.
    """
    table = np.full(256, -1, np.int16)
    for number, value in classes.items():
        table[number] = value
    return MaskReader(table, meaning, palette)


@dataclass(frozen=True, eq=False)
class PictureFiles:
    """Names of files in a folder, as one array: a million names take 30 MB and are pickled at once."""

    folder: str
    names: np.ndarray

    @classmethod
    def of(cls, folder: Path, names: Sequence[str]) -> PictureFiles:
        """``names`` are relative to ``folder``."""
        return cls(str(folder), np.array([os.fsencode(name) for name in names]))

    def path(self, index: int) -> Path:
        return Path(self.folder, os.fsdecode(self.names[index]))

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, eq=False)
class ReadLabelled:
    """Reads picture ``index`` ("image", uint8 (C, H, W)) with its class ("label", int64)."""

    files: PictureFiles
    labels: np.ndarray
    channels: int = 3
    upright: bool = False

    def __call__(self, index: int) -> dict[str, np.ndarray]:
        image = read_picture(self.files.path(index), self.channels, upright=self.upright)
        return {"image": image, "label": np.asarray(self.labels[index], np.int64)}


@dataclass(frozen=True, eq=False)
class ReadMasked:
    """Reads picture ``index`` ("image", uint8 (C, H, W)) with its mask ("label", uint8 (H, W))."""

    pictures: PictureFiles
    masks: PictureFiles
    mask: MaskReader
    channels: int = 3
    upright: bool = False

    def __call__(self, index: int) -> dict[str, np.ndarray]:
        picture, path = self.pictures.path(index), self.masks.path(index)
        image = read_picture(picture, self.channels, upright=self.upright)
        label = self.mask(path)
        if label.shape != image.shape[1:]:
            raise UserError(
                f"{path}: the mask has {label.shape[0]} x {label.shape[1]} pixels, its picture {picture} "
                f"{image.shape[1]} x {image.shape[2]} (rows x columns)"
            )
        return {"image": image, "label": label}


@dataclass(frozen=True)
class Prepare:
    """Brings a stored picture to ``size`` x ``size``: float32 in [0, 1], or normalised.

    "image" uint8 (C, H, W) becomes float32 (C, size, size), bilinear with antialiasing; a mask "label" (H, W)
    becomes int64 (size, size) with the nearest number, on the same grid; a class stays.

    ``fit`` "stretch" brings each side to ``size``, whatever the picture's proportions; "crop" brings the
    shorter side to ``size`` x 256 / 224 and takes the centre, as is usual for ImageNet. ``mean`` is
    subtracted per channel from the values in [0, 1], then they are divided by ``deviation``; None: neither.
    """

    size: int
    fit: str = "stretch"
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    def __call__(self, sample: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        image, label = sample["image"], sample["label"]
        if image.dtype != np.uint8 or image.ndim != 3 or len(image) not in (1, 3):
            raise UserError(
                f"picture {index} is {image.dtype} of shape {image.shape} before resizing; it must be uint8 "
                "(1 or 3, H, W)"
            )
        height, width, top, left = self._grid(image.shape[1], image.shape[2], index)
        resized = self._resized(image, height, width, top, left)
        scaled = np.divide(resized, np.float32(255), out=np.empty(resized.shape, np.float32))
        if self.mean is not None and self.deviation is not None:
            scaled -= np.array(self.mean, np.float32)[:, np.newaxis, np.newaxis]
            scaled /= np.array(self.deviation, np.float32)[:, np.newaxis, np.newaxis]
        if label.ndim:
            if label.shape != image.shape[1:]:
                raise UserError(
                    f"the mask of picture {index} has {label.shape[0]} x {label.shape[1]} pixels after "
                    f"augmentation, the picture {image.shape[1]} x {image.shape[2]}"
                )
            # The number whose pixel holds the centre of the new pixel.
            rows = (2 * (top + np.arange(self.size)) + 1) * label.shape[0] // (2 * height)
            columns = (2 * (left + np.arange(self.size)) + 1) * label.shape[1] // (2 * width)
            label = label[rows[:, np.newaxis], columns]
        return {**sample, "image": scaled, "label": label.astype(np.int64)}

    def _grid(self, height: int, width: int, index: int) -> tuple[int, int, int, int]:
        """Height and width after resizing, and row and column where the crop starts."""
        if self.fit == "stretch":
            return self.size, self.size, 0, 0
        shorter = round(self.size * _SHORTER / _CROP)
        longer = shorter * max(height, width) // min(height, width)
        if shorter * longer > LARGEST:
            raise UserError(
                f"picture {index} has {height} x {width} pixels: too long to be resized to a shorter side of "
                f'{shorter}; choose fit="stretch"'
            )
        high, wide = (shorter, longer) if height <= width else (longer, shorter)
        return high, wide, round((high - self.size) / 2), round((wide - self.size) / 2)

    def _resized(self, image: np.ndarray, height: int, width: int, top: int, left: int) -> np.ndarray:
        from PIL import Image

        pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
        resized = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
        found = np.asarray(resized)[top : top + self.size, left : left + self.size]
        return found[np.newaxis] if found.ndim == 2 else found.transpose(2, 0, 1)


def picture_set(
    name: str,
    read: Read,
    length: int,
    *,
    classes: tuple[str, ...],
    size: int,
    fit: str,
    channels: int,
    normalize: bool,
    labels: np.ndarray | None = None,
    licence: str = "",
    ignore: int | None = None,
) -> LazyDataset:
    """A set of pictures: "image" float32 (channels, size, size); "label" int64, () with ``labels``, else a
    mask (size, size).

    Raises:
        UserError: a size outside of 1 to 16384, an unknown fit, channels other than 1 and 3, ``normalize``
            with 1 channel.
    """
    picture_side(f"dataset '{name}': size", size)
    choose(f"fit of dataset '{name}'", fit, FITS)
    if normalize and _channels(channels) != 3:
        raise UserError(f"dataset '{name}': normalize needs channels=3: its mean is that of colour pictures")
    return LazyDataset(
        name=name,
        length=length,
        read=read,
        sample_shapes={
            "image": (_channels(channels), size, size),
            "label": () if labels is not None else (size, size),
        },
        sample_dtypes={"image": np.dtype(np.float32), "label": np.dtype(np.int64)},
        prepare=Prepare(size, fit, *((IMAGENET_MEAN, IMAGENET_DEVIATION) if normalize else ())),
        classes=classes,
        licence=licence,
        ignore=ignore,
        labels=labels,
    )


def check_pictures(*sets: LazyDataset) -> None:
    """Read every sample once, on all processors.

    Raises:
        UserError: for the first sample that cannot be read.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for data in sets:
            # Few at a time: the results of all would not fit into memory.
            for start in range(0, len(data), 64):
                for _ in pool.map(data.read, range(start, min(start + 64, len(data)))):
                    pass


def in_turn(labels: np.ndarray, limit: int | None) -> np.ndarray:
    """Indices, ascending, of at most ``limit`` samples taken from the classes in turn; None: all.

    The first sample of each class comes first, then the second of each, so that few samples of a set that is
    sorted by class have all classes.

    Raises:
        UserError: ``limit`` is no integer of at least 1.
    """
    if limit is None:
        return np.arange(len(labels))
    count = integer("limit", limit, minimum=1)
    by_class = np.argsort(labels, kind="stable")
    ordered = labels[by_class]
    place = np.empty(len(labels), np.int64)
    place[by_class] = np.arange(len(labels)) - np.searchsorted(ordered, ordered)
    return np.sort(np.lexsort((labels, place))[:count])


def file_bytes(path: str | os.PathLike[str], longest: int = _LONGEST) -> bytes:
    """The contents of a file of at most ``longest`` bytes.

    Raises:
        UserError: no such file, unreadable, or longer.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(longest + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) > longest:
        raise UserError(f"{path}: has more than {longest} bytes; no such file is as long")
    return data


def _channels(channels: int) -> int:
    if isinstance(channels, bool) or channels not in (1, 3):
        raise UserError(f"channels must be 1 (gray) or 3 (RGB), not {channels!r}")
    return channels


@contextmanager
def _opened(path: Path, formats: str = ", ".join(FORMATS)) -> Iterator[tuple[Any, bytes, PngHeader | None]]:
    """The picture, not decoded yet, its bytes, and its header if it is a PNG; kind and size are checked."""
    from PIL import Image, ImageFile, UnidentifiedImageError

    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise UserError(
            f"{path}: not read, since PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set: pictures that are cut off "
            "would pass for whole; set it to False"
        )
    data = file_bytes(path)
    if not data:
        raise UserError(f"{path}: is empty; a picture is needed ({formats})")
    png = check_png(path, data, LARGEST) if data.startswith(SIGNATURE) else None
    try:
        opened = Image.open(io.BytesIO(data), formats=FORMATS)
    except UnidentifiedImageError:
        raise UserError(
            f"{path}: is no picture of a known format ({formats}), or its header is damaged: it starts with "
            f"{data[:8]!r}"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UserError(f"{path}: claims more than {LARGEST} pixels, the most that are read") from None
    except Exception as error:
        raise _damaged(path, "picture", error, data) from None
    with opened as picture:
        width, height = picture.size
        if width * height > LARGEST:
            raise UserError(
                f"{path}: claims {height} x {width} pixels (rows x columns); at most {LARGEST} are read"
            )
        yield picture, data, png


@contextmanager
def _decoding(path: str | os.PathLike[str], picture: Any, data: bytes) -> Iterator[None]:
    """Within it, any error of Pillow is a damaged file."""
    try:
        yield
    except Exception as error:
        raise _damaged(path, picture.format, error, data) from None


def _damaged(path: str | os.PathLike[str], what: str, error: Exception, data: bytes) -> Exception:
    """What to raise: decoders raise OSError, SyntaxError, ValueError, struct.error, zlib.error and others."""
    if isinstance(error, MemoryError):
        return error
    length = f"the file has {len(data)} bytes"
    claimed = None
    if data.startswith(b"BM") and len(data) >= 6:
        claimed = int.from_bytes(data[2:6], "little")
    elif data.startswith(b"RIFF") and len(data) >= 8:
        claimed = int.from_bytes(data[4:8], "little") + 8
    elif data.startswith(b"\xff\xd8") and not data.rstrip(b"\0").endswith(b"\xff\xd9"):
        length += " and no end-of-image marker at its end"
    if claimed is not None and claimed != len(data):
        length += f", its header says {claimed}"
    # The reason in Pillow's words, on one line.
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"{path}: the {what} is damaged or cut off: {length} ({reason})")


def _check_kind(path: str | os.PathLike[str], picture: Any, png: PngHeader | None) -> None:
    """Refuse what has no one conversion into 8 bits per channel."""
    bits = (png.depth,) if png is not None else ()
    if picture.format == "TIFF":
        bits = picture.tag_v2.get(258, ())
    if max(bits, default=0) > 8 or picture.mode.startswith(("I", "F")):
        depth = f" ({max(bits)} bits per channel)" if bits else ""
        raise UserError(
            f"{path}: is a {picture.format} of mode {picture.mode}{depth}; at most 8 bits per channel are "
            "read: scale it first"
        )
    if picture.mode not in _CONVERTED:
        raise UserError(
            f"{path}: is a {picture.format} of mode {picture.mode}; convert it to one of "
            f"{', '.join(_CONVERTED)}"
        )
