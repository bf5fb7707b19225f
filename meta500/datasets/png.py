"""PNG files chunk by chunk: lengths, checksums, and whether there are as many pixels as the header says.

Pillow, which decodes them, verifies neither the checksums of the pixels nor that there are enough: rows that
are missing come out as zeros. Format: Portable Network Graphics, third edition (W3C).
"""

from __future__ import annotations

import os
import zlib
from typing import NamedTuple

from meta500.errors import UserError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
# Colour types, and their numbers of samples per pixel.
KINDS = {0: "grayscale", 2: "RGB", 3: "palette", 4: "grayscale with alpha", 6: "RGBA"}
_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
# Passes of Adam7, the one way of interlacing: first column, first row, and the steps of both.
_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
# Bytes that are decompressed at once.
_AT_ONCE = 1 << 16


class PngHeader(NamedTuple):
    """Width and height in pixels, bits per sample, colour type (a key of `KINDS`), whether the picture is
    interlaced, and the bytes of its palette."""

    width: int
    height: int
    depth: int
    kind: int
    interlaced: bool
    palette: bytes = b""


def check_png(path: str | os.PathLike[str], data: bytes, most: int) -> PngHeader:
    """The header of a PNG whose chunks are whole.

    Args:
        path: what messages call the file.
        data: its contents; they start with `SIGNATURE`.
        most: pixels above which the compressed data is not looked at; the caller refuses such a picture.

    Raises:
        UserError: a chunk that is cut off or has a wrong checksum, no header or two, no palette where one is
            needed, compressed data that is damaged or not as long as the header says; names file and byte.
    """
    view, position = memoryview(data), len(SIGNATURE)
    header: PngHeader | None = None
    pixels: list[memoryview] = []
    before = ""
    while True:
        if position + 12 > len(data):
            raise UserError(f"{path}: the PNG is cut off at byte {len(data)}: there is no IEND chunk")
        length, kind = int.from_bytes(view[position : position + 4], "big"), data[position + 4 : position + 8]
        if not kind.isalpha():
            raise UserError(f"{path}: at byte {position} a PNG chunk should start; its name is {kind!r}")
        name, end = kind.decode("ascii"), position + 12 + length
        if end > len(data):
            raise UserError(
                f"{path}: the PNG is cut off: its chunk {name} at byte {position} goes to byte {end}, the "
                f"file has {len(data)} bytes"
            )
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise UserError(f"{path}: the PNG is damaged: wrong checksum of chunk {name} at byte {position}")
        content = view[position + 8 : end - 4]
        if (header is None) != (name == "IHDR"):
            which = "no header" if header is None else "a second header"
            raise UserError(f"{path}: the PNG is damaged: {which} (IHDR) at byte {position}")
        if header is None:
            header = _header(path, position, content)
        elif name == "PLTE":
            header = header._replace(palette=bytes(content))
        elif name == "IDAT":
            # Decoders end with the first other chunk.
            if pixels and before != "IDAT":
                raise UserError(
                    f"{path}: the PNG is damaged: at byte {position} its pixels (IDAT) go on after {before}"
                )
            pixels.append(content)
        elif name == "IEND":
            if header.kind == 3 and not (3 <= len(header.palette) <= 768 and len(header.palette) % 3 == 0):
                raise UserError(
                    f"{path}: the PNG is damaged: its palette (PLTE) has {len(header.palette)} bytes"
                )
            if header.width * header.height <= most:
                _check_pixels(path, header, pixels)
            return header
        position, before = end, name


def _header(path: str | os.PathLike[str], position: int, content: memoryview) -> PngHeader:
    if len(content) != 13 or content[9] not in KINDS or content[12] > 1:
        raise UserError(f"{path}: the PNG is damaged: no header (IHDR) at byte {position}")
    width, height = int.from_bytes(content[:4], "big"), int.from_bytes(content[4:8], "big")
    return PngHeader(width, height, content[8], content[9], content[12] == 1)


def unpacked_size(header: PngHeader) -> int:
    """Bytes of the pixels before compression: each row its filter type and its samples, in whole bytes."""
    bits = header.depth * _SAMPLES[header.kind]
    total = 0
    for column, row, columns, rows in _ADAM7 if header.interlaced else ((0, 0, 1, 1),):
        width = -(-max(header.width - column, 0) // columns)
        height = -(-max(header.height - row, 0) // rows)
        # A pass without columns has no rows either, and no filter types.
        total += height * (1 + (width * bits + 7) // 8) if width else 0
    return total


def _check_pixels(path: str | os.PathLike[str], header: PngHeader, pixels: list[memoryview]) -> None:
    """Decompress the pixels, at most as many bytes as belong to the picture and some, and count them."""
    wanted, found = unpacked_size(header), 0
    unpacker = zlib.decompressobj()
    try:
        for content in pixels:
            # In pieces: what is left of one is copied each time.
            for start in range(0, len(content), _AT_ONCE):
                packed: bytes | memoryview = content[start : start + _AT_ONCE]
                while packed and found <= wanted and not unpacker.eof:
                    found += len(unpacker.decompress(packed, _AT_ONCE))
                    packed = unpacker.unconsumed_tail
        while found <= wanted and not unpacker.eof and (rest := unpacker.decompress(b"", _AT_ONCE)):
            found += len(rest)
    except zlib.error as error:
        raise UserError(
            f"{path}: the PNG is damaged: its pixels (IDAT) cannot be decompressed after {found} of {wanted} "
            f"bytes ({error})"
        ) from None
    if found != wanted:
        amount = f"{found}" if found < wanted else f"more than {wanted}"
        raise UserError(
            f"{path}: the PNG is damaged: its pixels (IDAT) have {amount} bytes when decompressed; "
            f"{header.height} x {header.width} pixels (rows x columns) of {KINDS[header.kind]} with "
            f"{header.depth} bits per channel have {wanted}"
        )
