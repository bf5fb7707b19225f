"""Files of weights (safetensors, with a checksum), and their way back into ONNX.

The format is described in ``program/weights.h``. Parameters and statistics have their names in the network;
the optimizer's slots are called ``optimizer/SLOT/PARAMETER``; the metadata say network, optimizer, step,
epoch and seed.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.generation.folder import replace_file
from meta500.errors import UserError
from meta500.graph import Model
from meta500.graph.types import is_floating

FORMAT = "meta500 weights"
SLOTS = "optimizer/"
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_ZEROS = "00000000"


def save_weights(
    path: str | os.PathLike[str], tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write float32 and float64 tensors.

    Raises:
        UserError: another dtype, or a file that can't be written.
    """
    try:
        replace_file(Path(path), weights_bytes(tensors, metadata))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error}") from None


def weights_bytes(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> bytes:
    """The contents of a file of weights; see :func:`save_weights`."""
    header: dict[str, Any] = {"__metadata__": {"crc32": _ZEROS, "format": FORMAT, **(metadata or {})}}
    names = {dtype: name for name, dtype in _DTYPES.items()}
    data = []
    offset = 0
    for name, array in tensors.items():
        dtype = array.dtype.newbyteorder("<")
        if dtype not in names:
            raise UserError(f"'{name}' is {array.dtype}; files of weights hold float32 and float64")
        data.append(np.ascontiguousarray(array, dtype).tobytes())
        header[name] = {
            "dtype": names[dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data[-1])],
        }
        offset += len(data[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    crc = zlib.crc32(struct.pack("<Q", len(text)) + text)
    for part in data:
        crc = zlib.crc32(part, crc)
    text = text.replace(_ZEROS.encode(), f"{crc:08x}".encode(), 1)
    return b"".join([struct.pack("<Q", len(text)), text, *data])


def load_weights(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata of a file.

    Files without our format (of other programs) need no checksum.

    Raises:
        UserError: the file can't be read, is damaged or no file of weights.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    if len(data) < 8 or length > len(data) - 8:
        raise UserError(f"{path}: is no complete file of weights")
    text, body = data[8 : 8 + length], data[8 + length :]
    try:
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError("no object")
        metadata = {str(k): str(v) for k, v in header.pop("__metadata__", {}).items()}
        entries = {name: _entry(entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: is no file of weights, or damaged: its header is wrong ({error})") from None
    _check_crc(path, data, text, metadata)
    tensors = {}
    end = 0
    for name, (kind, shape, first, last) in entries.items():
        if kind not in _DTYPES:
            raise UserError(f"{path}: '{name}' is {kind}; this program reads {', '.join(_DTYPES)}")
        dtype = _DTYPES[kind]
        size = math.prod(shape) * dtype.itemsize
        if not 0 <= first <= last <= len(body) or last - first != size or min(shape, default=1) < 0:
            raise UserError(f"{path}: is damaged: '{name}' lies outside of the file or has another size")
        tensors[name] = np.frombuffer(body[first:last], dtype).astype(dtype.newbyteorder("=")).reshape(shape)
        end += size
    if end != len(body):
        raise UserError(f"{path}: is damaged: its tensors have {end} bytes, the file has {len(body)}")
    return tensors, metadata


def _entry(entry: Any) -> tuple[str, list[int], int, int]:
    """dtype, shape, and the bytes from and to which a tensor lies."""
    first, last = entry["data_offsets"]
    return str(entry["dtype"]), [int(n) for n in entry["shape"]], int(first), int(last)


def _check_crc(path: Any, data: bytes, text: bytes, metadata: Mapping[str, str]) -> None:
    stated = metadata.get("crc32", "")
    if not stated:
        if metadata.get("format") == FORMAT:
            raise UserError(f"{path}: is damaged: it has no checksum")
        return
    key = b'"crc32":"'
    place = text.find(key)
    found = ""
    if place >= 0:
        digits = 8 + place + len(key)
        found = f"{zlib.crc32(data[digits + 8 :], zlib.crc32(data[:digits] + _ZEROS.encode())):08x}"
    if found != stated:
        raise UserError(f"{path}: is damaged: its checksum is {found}, it says {stated}")


def import_weights(model: Model, path: str | os.PathLike[str]) -> Model:
    """``model`` with the weights of a file that a stand-alone program has saved.

    Args:
        model: in the precision of the program.
        path: of the file; the optimizer's slots in it are left out.

    Raises:
        UserError: a damaged file, a parameter that it lacks, a tensor that the model does not have, or one of
            another shape or dtype.
    """
    tensors, _ = load_weights(path)
    found = {name: array for name, array in tensors.items() if not name.startswith(SLOTS)}
    initializers = dict(model.graph.initializers)
    for name in model.parameters:
        if name not in found:
            raise UserError(f"{path}: has no tensor '{name}', a parameter of network '{model.name}'")
    for name, array in found.items():
        current = initializers.get(name)
        if current is None or not is_floating(current.dtype):
            raise UserError(f"{path}: has a tensor '{name}', which network '{model.name}' does not have")
        if current.shape != array.shape or current.dtype != array.dtype:
            raise UserError(
                f"{path}: '{name}' is {array.dtype}{list(array.shape)}, in network '{model.name}' it is "
                f"{current.dtype}{list(current.shape)}"
            )
        array.flags.writeable = False
        initializers[name] = array
    return model.with_graph(replace(model.graph, initializers=initializers))
