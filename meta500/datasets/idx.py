"""The IDX format of MNIST: a magic number, the sizes of the dimensions, the elements.

A file starts with two zero bytes, a byte for the type of the elements (0x08 uint8, 0x09 int8, 0x0B int16,
0x0C int32, 0x0D float32, 0x0E float64) and a byte for the number of dimensions; then each dimension as a
big-endian uint32, then the elements, row-major and big-endian, and nothing else. The file may be packed with
gzip; what is packed is seen by its first two bytes, whatever the file is called.

Source: Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of handwritten digits, "The IDX file format".
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from meta500.errors import UserError

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP = b"\x1f\x8b"
# numpy's limit.
_MOST_DIMENSIONS = 64
# No deflate stream unpacks to more than 1032 times its size (zlib's "Maximum Compression Factor").
_MOST_EXPANSION = 1032
_CHUNK = 1 << 20


@dataclass(frozen=True)
class IdxHeader:
    """What an IDX file says of itself.

    Attributes:
        path: the file.
        dtype: of the elements as stored, big-endian where it has more than one byte.
        shape: sizes of the dimensions.
        offset: byte at which the elements start, in the unpacked data.
        packed: the file is packed with gzip.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    packed: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def idx_header(path: str | os.PathLike[str]) -> IdxHeader:
    """The header of an IDX file, checked against the size of the file.

    For a packed file, only a size that it cannot hold is noticed; `read_idx` checks the rest.

    Raises:
        UserError: the file cannot be read, is no IDX file, or has fewer or more bytes than its header says;
            the message names file and offset.
    """
    place = Path(path)
    try:
        with open(place, "rb") as file:
            header = _header(place, file)
    except OSError as error:
        raise UserError(f"{place}: cannot be read: {error.strerror or error}") from None
    return header


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array of an IDX file, plain or packed with gzip, in the byte order of this machine.

    Raises:
        UserError: as `idx_header`; a packed file that is cut off or damaged, or whose unpacked data have
            another size than the header says.
    """
    place = Path(path)
    try:
        with open(place, "rb") as file:
            header = _header(place, file)
            file.seek(0)
            stream = _unpacked(file, header.packed)
            _take(place, stream, header.packed, 0, header.offset, "the dimensions")
            data = _take(place, stream, header.packed, header.offset, header.nbytes, "the elements")
            end = header.offset + header.nbytes
            # Reading past the end also has gzip compare its checksum.
            if _read(place, stream, header.packed, end, 1):
                raise UserError(
                    f"{place}: goes on after byte {end} of the unpacked data, where {header.dtype.name} of "
                    f"shape {header.shape} ends"
                )
    except OSError as error:
        raise UserError(f"{place}: cannot be read: {error.strerror or error}") from None
    array = np.frombuffer(data, header.dtype).reshape(header.shape)
    return array.astype(header.dtype.newbyteorder("="), copy=False)


def _header(path: Path, file: IO[bytes]) -> IdxHeader:
    packed = file.read(2) == _GZIP
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    stream = _unpacked(file, packed)
    magic = _take(path, stream, packed, 0, 4, "magic number and rank")
    if magic[:2] != b"\0\0" or magic[2] not in TYPES:
        raise UserError(
            f"{path}: byte 0: is no IDX file: it starts with {magic.hex(' ')}, not with 00 00, one of "
            f"{', '.join(f'{code:02x}' for code in TYPES)} for the type, and the number of dimensions"
        )
    dtype, rank = np.dtype(TYPES[magic[2]]), magic[3]
    if rank > _MOST_DIMENSIONS:
        raise UserError(f"{path}: byte 3: has {rank} dimensions; at most {_MOST_DIMENSIONS} can be read")
    shape = struct.unpack(f">{rank}I", _take(path, stream, packed, 4, 4 * rank, "the dimensions"))
    header = IdxHeader(path, dtype, shape, 4 + 4 * rank, packed)
    end = header.offset + header.nbytes
    if packed and end > _MOST_EXPANSION * size:
        raise UserError(
            f"{path}: byte 4 of the unpacked data: the dimensions {shape} need {end} bytes, more than "
            f"{size} bytes of gzip can hold"
        )
    if not packed and end != size:
        how = "ends" if size < end else "goes on"
        raise UserError(
            f"{path}: byte {min(size, end)}: the file {how} here: it has {size} bytes; {dtype.name} of shape "
            f"{shape} with its header has {end}"
        )
    # Dimensions of nothing beside huge ones: no bytes, but no array either.
    if math.prod(max(side, 1) for side in shape) * dtype.itemsize > np.iinfo(np.intp).max:
        raise UserError(f"{path}: byte 4: the dimensions {shape} are more than an array can have")
    return header


def _unpacked(file: IO[bytes], packed: bool) -> IO[bytes]:
    return gzip.GzipFile(fileobj=file, mode="rb") if packed else file  # type: ignore[return-value]


def _take(path: Path, stream: IO[bytes], packed: bool, at: int, count: int, what: str) -> bytearray:
    """The ``count`` bytes from byte ``at``, where the stream stands."""
    data = bytearray()
    while len(data) < count:
        chunk = _read(path, stream, packed, at + len(data), min(count - len(data), _CHUNK))
        if not chunk:
            unpacked = " of the unpacked data" if packed else ""
            raise UserError(
                f"{path}: byte {at + len(data)}{unpacked}: the file ends here; {what} end at byte "
                f"{at + count}"
            )
        data += chunk
    return data


def _read(path: Path, stream: IO[bytes], packed: bool, at: int, count: int) -> bytes:
    if not packed:
        return stream.read(count)
    try:
        return stream.read(count)
    except EOFError:
        size = path.stat().st_size
        raise UserError(f"{path}: byte {size}: the file ends here, inside its gzip stream") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path}: the gzip stream is damaged after byte {at} of the unpacked data: {error}"
        ) from None
