"""The IDX format: what an independent writer wrote is read back exactly, and what is wrong is named."""

import gzip
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.datasets.idx import idx_header, read_idx
from meta500.errors import UserError

# struct's letter and IDX's code of each type, from the format's description.
TYPES = {"B": 0x08, "b": 0x09, "h": 0x0B, "i": 0x0C, "f": 0x0D, "d": 0x0E}
DTYPES = {"B": np.uint8, "b": np.int8, "h": np.int16, "i": np.int32, "f": np.float32, "d": np.float64}


def written(letter, shape, values):
    header = bytes([0, 0, TYPES[letter], len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return header + struct.pack(f">{len(values)}{letter}", *values)


@st.composite
def contents(draw):
    letter = draw(st.sampled_from(sorted(TYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    count = math.prod(shape)
    if letter in "fd":
        element = st.floats(width=32 if letter == "f" else 64)
    else:
        bounds = np.iinfo(DTYPES[letter])
        element = st.integers(int(bounds.min), int(bounds.max))
    return letter, shape, draw(st.lists(element, min_size=count, max_size=count))


@settings(max_examples=60, deadline=None)
@given(content=contents(), packed=st.booleans())
def test_any_array_is_read_back(content, packed, tmp_path_factory):
    letter, shape, values = content
    path = tmp_path_factory.mktemp("idx") / "file"
    data = written(letter, shape, values)
    path.write_bytes(gzip.compress(data) if packed else data)
    found = read_idx(path)
    assert found.dtype == DTYPES[letter] and found.dtype.isnative and found.shape == tuple(shape)
    np.testing.assert_array_equal(found.ravel(), np.array(values, DTYPES[letter]))
    header = idx_header(path)
    assert (header.shape, header.offset, header.packed) == (tuple(shape), 4 + 4 * len(shape), packed)


GOOD = written("h", (2, 3), [1, -2, 3, 4, 5, 600])


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_every_cut_is_named(cut, tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(GOOD[:cut])
    with pytest.raises(UserError, match=rf"cut: byte {cut}: the file ends here"):
        read_idx(path)
    packed = gzip.compress(GOOD[:cut])
    path.write_bytes(packed)
    with pytest.raises(UserError, match=rf"cut: byte {cut} of the unpacked data: the file ends here"):
        read_idx(path)


def test_every_cut_of_a_packed_file_is_named(tmp_path):
    path, packed = tmp_path / "cut.gz", gzip.compress(GOOD)
    for cut in range(2, len(packed)):
        path.write_bytes(packed[:cut])
        with pytest.raises(
            UserError, match=rf"cut.gz: byte {cut}: the file ends here, inside its gzip stream"
        ):
            read_idx(path)


def test_every_changed_byte_of_a_packed_file_is_noticed(tmp_path):
    path, packed = tmp_path / "x.gz", gzip.compress(GOOD, mtime=0)
    # The bytes of the gzip header that say nothing of the contents: flags aside, time, extra flags, system.
    for place in range(10, len(packed)):
        path.write_bytes(packed[:place] + bytes([packed[place] ^ 0x10]) + packed[place + 1 :])
        with pytest.raises(UserError, match=r"x.gz: "):
            read_idx(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"byte 0: the file ends here; magic number and rank end at byte 4"),
        (b"\0\0\x0a\x01\0\0\0\1\0", r"byte 0: is no IDX file: it starts with 00 00 0a 01"),
        (b"\x89PNG\r\n", r"byte 0: is no IDX file: it starts with 89 50 4e 47"),
        (b"\0\0\x08\xff", r"byte 3: has 255 dimensions; at most 64"),
        (GOOD + b"x", r"byte 24: the file goes on here: it has 25 bytes; int16 of shape \(2, 3\) .* has 24"),
        (b"\0\0\x08\x03" + b"\xff" * 12, r"byte 16: the file ends here: it has 16 bytes; uint8 of shape"),
        (
            b"\0\0\x0e\x04" + b"\0\0\0\0" + b"\xff" * 12,
            r"byte 4: the dimensions \(0, 4294967295, .* more than an array can have",
        ),
        (
            gzip.compress(GOOD + b"x", mtime=0),
            r"goes on after byte 24 of the unpacked data, where int16 of shape \(2, 3\)",
        ),
        (
            gzip.compress(GOOD, mtime=0) + b"xyz",
            r"the gzip stream is damaged after byte 24 of the unpacked data",
        ),
        (
            gzip.compress(b"\0\0\x08\x02\xff\xff\xff\xff\xff\xff\xff\xff", mtime=0),
            r"the dimensions \(4294967295, 4294967295\) need \d+ bytes, more than \d+ bytes of gzip can hold",
        ),
    ],
)
def test_what_is_wrong_is_named(data, message, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{path}.*{message}"):
        read_idx(path)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"nothing: cannot be read: No such file"):
        read_idx(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"cannot be read: Is a directory"):
        idx_header(tmp_path)
