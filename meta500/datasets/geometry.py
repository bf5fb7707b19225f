"""Moving pictures and masks: the same place of the scene in both, whatever their element type.

Arrays have the shape (..., H, W). A place is given in pixels, pixel i reaching from i to i + 1, so that its
middle is at i + 0.5 (as in Pillow). Pictures are interpolated linearly, masks take the nearest pixel, since a
mean of two class numbers is another class. Nothing is written into what is given; results are C-contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meta500.errors import UserError

# Pillow's numbers of the linear filter and the affine transform; Pillow itself is imported when it is used.
BILINEAR, AFFINE = 2, 0


def flipped(array: np.ndarray, axis: int) -> np.ndarray:
    """``array`` (..., H, W) mirrored along ``axis``: -1 exchanges left and right, -2 top and bottom."""
    return np.ascontiguousarray(np.flip(array, axis))


def shifted_window(array: np.ndarray, top: int, left: int, fill: int) -> np.ndarray:
    """The window of the array's own size at (top, left), which may be negative; ``fill`` outside of it."""
    height, width = array.shape[-2:]
    result = np.full(array.shape, fill, array.dtype)
    rows = slice(max(0, top), min(height, height + top))
    columns = slice(max(0, left), min(width, width + left))
    if rows.start < rows.stop and columns.start < columns.stop:
        target = (
            ...,
            slice(rows.start - top, rows.stop - top),
            slice(columns.start - left, columns.stop - left),
        )
        result[target] = array[..., rows, columns]
    return result


def resized_picture(picture: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int]) -> np.ndarray:
    """The ``box`` (top, left, height, width) of a picture (C, H, W), scaled to ``size`` (height, width).

    Bilinear, over as many pixels as a new one covers where the picture gets smaller. float64 is computed as
    float32.
    """
    top, left, height, width = box
    return _each_channel(
        picture,
        size,
        lambda image: image.resize((size[1], size[0]), BILINEAR, box=(left, top, left + width, top + height)),
        keep_bytes=True,
    )


def resized_mask(mask: np.ndarray, box: tuple[int, int, int, int], size: tuple[int, int]) -> np.ndarray:
    """The same of a mask (..., H, W), by the nearest pixel."""
    top, left, height, width = box
    rows = top + ((np.arange(size[0]) + 0.5) * height / size[0]).astype(np.intp)
    columns = left + ((np.arange(size[1]) + 0.5) * width / size[1]).astype(np.intp)
    return np.ascontiguousarray(mask[..., rows[:, None], columns])


def rotated_picture(picture: np.ndarray, degrees: float) -> np.ndarray:
    """A picture (C, H, W) turned counter-clockwise around its middle, of the same size, 0 where it was empty.

    float64 is computed as float32.
    """
    height, width = picture.shape[-2:]
    (a, b, c), (d, e, f) = _rotation(degrees, height, width)
    return _each_channel(
        picture,
        (height, width),
        lambda image: image.transform(
            (width, height),
            AFFINE,
            (a, b, c, d, e, f),
            resample=BILINEAR,
        ),
        # Of bytes Pillow's linear transform keeps the whole part, which would darken the picture.
        keep_bytes=False,
    )


def rotated_mask(mask: np.ndarray, degrees: float, fill: int) -> np.ndarray:
    """The same of a mask (..., H, W), by the nearest pixel, ``fill`` where it was empty."""
    height, width = mask.shape[-2:]
    (a, b, c), (d, e, f) = _rotation(degrees, height, width)
    x, y = np.arange(width) + 0.5, (np.arange(height) + 0.5)[:, None]
    columns = np.floor(a * x + b * y + c).astype(np.intp)
    rows = np.floor(d * x + e * y + f).astype(np.intp)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    found = mask[..., np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)]
    return np.where(inside, found, np.asarray(fill, mask.dtype))


def fitting(fill: int, dtype: np.dtype, name: str) -> int:
    """``fill`` if an array of ``dtype`` holds it.

    Raises:
        UserError: it does not.
    """
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= fill <= np.iinfo(dtype).max:
        raise UserError(
            f"the mask '{name}' is {dtype} and cannot hold {fill}, the label that is ignored, where the "
            "picture was moved away"
        )
    return fill


def _rotation(degrees: float, height: int, width: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(a, b, c), (d, e, f): the point (a x + b y + c, d x + e y + f) comes to (x, y)."""
    angle = math.radians(degrees)
    # Quarter turns move whole pixels: without the rounding some would land just outside.
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return (cosine, -sine, x - cosine * x + sine * y), (sine, cosine, y - sine * x - cosine * y)


def _each_channel(
    picture: np.ndarray, size: tuple[int, int], move: Callable[[Any], Any], *, keep_bytes: bool
) -> np.ndarray:
    """``move``, a function of Pillow images, on every channel (bytes as such, or as float32)."""
    from PIL import Image

    own = picture.dtype == np.uint8 and keep_bytes
    source = np.ascontiguousarray(picture if own else picture.astype(np.float32, copy=False))
    channels = source.reshape(-1, *picture.shape[-2:])
    result = np.empty((len(channels), *size), source.dtype)
    for channel, target in zip(channels, result, strict=True):
        target[...] = move(Image.fromarray(channel))
    result = result.reshape(*picture.shape[:-2], *size)
    if result.dtype == picture.dtype:
        return result
    if picture.dtype == np.uint8:
        np.clip(np.rint(result, out=result), 0, 255, out=result)
    return result.astype(picture.dtype)
