"""ImageDecoder: the pixels of an encoded image, read by Pillow."""

from __future__ import annotations

import io

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.errors import UserError, choose

_PILLOW_MODE = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


@rules.rule("ImageDecoder", 20)
def image_decoder(encoded_stream: np.ndarray, *, pixel_format: str = "RGB") -> np.ndarray:
    """The bytes (uint8, 1-D) of an image file as pixels (height, width, channels), uint8.

    What can't be decoded gives an empty (0, 0, channels) array, as ONNX asks for.

    Raises:
        UserError: Pillow is not installed, an unknown ``pixel_format``, or pixels of more than 8 bits, which
            the result can't hold.
    """
    choose("pixel_format of ImageDecoder", pixel_format, _PILLOW_MODE)
    try:
        from PIL import Image
    except ImportError:
        raise UserError("ImageDecoder needs Pillow to read images: pip install pillow") from None
    try:
        with Image.open(io.BytesIO(encoded_stream.tobytes())) as image:
            image.load()
            mode, wide = image.mode, image.convert(_PILLOW_MODE[pixel_format])
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return np.zeros((0, 0, 1 if pixel_format == "Grayscale" else 3), np.uint8)
    if mode.startswith(("I", "F")):
        raise UserError(
            f"ImageDecoder: the image has pixels of mode {mode}, more than the 8 bits of the result"
        )
    pixels = np.asarray(wide)
    if pixels.ndim == 2:
        return pixels[:, :, None].copy()
    return np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels)
