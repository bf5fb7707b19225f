"""PNG files: the length of their pixels, and what no decoder tells of damaged ones."""

import io
import itertools
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from meta500.datasets.pictures import read_mask, read_picture
from meta500.datasets.png import SIGNATURE, PngHeader, check_png, unpacked_size
from meta500.errors import UserError

SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(rows, height, width, kind=0, depth=8, interlaced=0, parts=1, before=b""):
    """A PNG of ``rows``, bytes that need not fit the header; its pixels in so many chunks."""
    packed = zlib.compress(rows)
    cuts = [len(packed) * k // parts for k in range(parts + 1)]
    pixels = [chunk(b"IDAT", packed[a:b]) for a, b in itertools.pairwise(cuts)]
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    return SIGNATURE + chunk(b"IHDR", header) + before + b"".join(pixels) + chunk(b"IEND", b"")


def check(data):
    return check_png("a.png", data, 2**26)


def test_missing_rows_do_not_become_zeros(tmp_path):
    path = tmp_path / "a.png"
    rows = (b"\0" + b"\7" * 8) * 6
    path.write_bytes(png(rows, 6, 8))
    assert (read_picture(path, 1) == 7).all() and (read_mask(path)[0] == 7).all()
    path.write_bytes(png(rows[:-18], 6, 8))
    with Image.open(path) as picture:
        assert not np.asarray(picture)[4:].any()  # what Pillow makes of it
    for read in (read_picture, read_mask):
        with pytest.raises(UserError) as caught:
            read(path)
        assert str(caught.value) == (
            f"{path}: the PNG is damaged: its pixels (IDAT) have 36 bytes when decompressed; 6 x 8 pixels "
            "(rows x columns) of grayscale with 8 bits per channel have 54"
        )


@pytest.mark.parametrize("lost", [1, 9, 53, 54])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_too_few_bytes_are_counted(lost, parts):
    with pytest.raises(UserError, match=rf"have {54 - lost} bytes when decompressed; .* have 54"):
        check(png(bytes(54)[lost:], 6, 8, parts=parts))


def test_too_many_bytes_are_refused_before_they_are_unpacked():
    with pytest.raises(UserError, match="have more than 54 bytes when decompressed"):
        check(png(bytes(55), 6, 8))
    with pytest.raises(UserError, match="have more than 54 bytes when decompressed"):
        check(png(bytes(1 << 26), 6, 8))


def reference_size(height, width, bits, interlaced):
    """By the places of Adam7's pattern (PNG, section 8.2), pixel by pixel."""
    if not interlaced:
        return height * (1 + (width * bits + 7) // 8)
    pattern = ["16462646", "77777777", "56565656", "77777777", "36463646", "77777777", "56565656", "77777777"]
    total = 0
    for number in "1234567":
        lengths = [sum(pattern[y % 8][x % 8] == number for x in range(width)) for y in range(height)]
        total += sum(1 + (length * bits + 7) // 8 for length in lengths if length)
    return total


@given(
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from([(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 2), (4, 8), (6, 8)]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_length_is_that_of_the_format(height, width, kind, interlaced):
    code, depth = kind
    found = unpacked_size(PngHeader(width, height, depth, code, interlaced))
    assert found == reference_size(height, width, depth * SAMPLES[code], interlaced)
    palette = chunk(b"PLTE", bytes(12)) if code == 3 else b""
    data = png(bytes(found), height, width, code, depth, int(interlaced), 2, palette)
    assert check(data)[:2] == (width, height)
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()


def test_what_is_damaged_although_its_checksums_fit():
    whole = png(bytes(54), 6, 8)
    header, end = whole[:33], chunk(b"IEND", b"")
    packed = zlib.compress(bytes(54))
    apart = chunk(b"IDAT", packed[:5]) + chunk(b"tEXt", b"a\0b") + chunk(b"IDAT", packed[5:])
    cases = {
        header + apart + end: r"at byte 65 its pixels .IDAT. go on after tEXt",
        header + header[8:] + whole[33:]: r"a second header .IHDR. at byte 33",
        header + chunk(b"IDAT", b"no zlib") + end: r"cannot be decompressed after 0 of 54 bytes .Error -3",
        header + chunk(b"IDAT", packed[:-1] + b"\xff") + end: r"cannot be decompressed after \d+ of 54 bytes",
        header + chunk(b"IDAT", b"") + end: "have 0 bytes when decompressed",
        header + end: "have 0 bytes when decompressed",
    }
    for data, words in cases.items():
        with pytest.raises(UserError, match=rf"a.png: the PNG is damaged: .*{words}"):
            check(data)
