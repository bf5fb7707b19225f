"""Picture files: pixels and masks as they are stored, exact resizing of masks, and what is refused."""

import pickle
import re
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from meta500.datasets import pictures
from meta500.datasets.pictures import (
    IMAGENET_DEVIATION,
    IMAGENET_MEAN,
    PictureFiles,
    Prepare,
    ReadLabelled,
    ReadMasked,
    check_pictures,
    in_turn,
    mask_reader,
    picture_set,
    read_mask,
    read_picture,
)
from meta500.errors import UserError

RANDOM = np.random.default_rng(0)
RGB = RANDOM.integers(0, 256, (9, 13, 3), dtype=np.uint8)
GRAY = RGB[..., 0].copy()
# ITU-R BT.601 in Pillow's 16 bits of fixed point.
LUMINANCE = ((RGB.astype(np.int64) @ [19595, 38470, 7471] + 0x8000) >> 16).astype(np.uint8)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(rows, kind, depth=8, *extra, size=None):
    """A PNG from its rows of packed bytes: colour type ``kind``, ``depth`` bits per channel."""
    height = len(rows) if size is None else size[0]
    width = size[1] if size else len(rows[0])
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    chunks = [chunk(b"IHDR", header), *extra, chunk(b"IDAT", packed), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def saved(tmp_path, array, name="a.png", mode=None, **options):
    path = tmp_path / name
    image = Image.fromarray(array) if mode is None else Image.fromarray(array).convert(mode)
    image.save(path, **options)
    return path


def refused(call, *words):
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, text
    return text


def test_colours_and_gray_are_read_exactly(tmp_path):
    for name in ("a.png", "a.bmp", "a.tif"):
        found = read_picture(saved(tmp_path, RGB, name))
        assert found.dtype == np.uint8 and found.flags.c_contiguous and found.flags.writeable
        np.testing.assert_array_equal(found, RGB.transpose(2, 0, 1))
        np.testing.assert_array_equal(read_picture(tmp_path / name, 1), LUMINANCE[np.newaxis])
        path = saved(tmp_path, GRAY, name)
        np.testing.assert_array_equal(read_picture(path, 1), GRAY[np.newaxis])
        np.testing.assert_array_equal(read_picture(path), np.stack([GRAY] * 3))
    lossless = saved(tmp_path, RGB, "a.webp", lossless=True)
    np.testing.assert_array_equal(read_picture(lossless), RGB.transpose(2, 0, 1))


def test_jpeg_is_what_pillow_decodes_and_the_ending_of_the_name_does_not_matter(tmp_path):
    path = saved(tmp_path, RGB, "a.jpg")
    np.testing.assert_array_equal(read_picture(path), np.asarray(Image.open(path)).transpose(2, 0, 1))
    hidden = tmp_path / "b.jpg"
    hidden.write_bytes(saved(tmp_path, RGB).read_bytes())
    np.testing.assert_array_equal(read_picture(hidden), RGB.transpose(2, 0, 1))


def test_palette_alpha_and_one_bit_are_converted(tmp_path):
    indices = RANDOM.integers(0, 4, (5, 6), dtype=np.uint8)
    colours = RANDOM.integers(0, 256, (4, 3), dtype=np.uint8)
    palette, transparent = chunk(b"PLTE", colours.tobytes()), chunk(b"tRNS", b"\x00\x80\xff\x10")
    for extra in ((palette,), (palette, transparent)):
        (tmp_path / "p.png").write_bytes(png(indices, 3, 8, *extra))
        np.testing.assert_array_equal(read_picture(tmp_path / "p.png"), colours[indices].transpose(2, 0, 1))
    # The colours below transparent pixels stay those that are stored.
    alpha = np.dstack([RGB, RANDOM.integers(0, 256, RGB.shape[:2], dtype=np.uint8)])
    np.testing.assert_array_equal(read_picture(saved(tmp_path, alpha)), RGB.transpose(2, 0, 1))
    np.testing.assert_array_equal(read_picture(saved(tmp_path, alpha), 1)[0], LUMINANCE)
    gray_alpha = png([np.dstack([GRAY, alpha[..., 3]])[i].ravel() for i in range(9)], 4, size=(9, 13))
    (tmp_path / "la.png").write_bytes(gray_alpha)
    np.testing.assert_array_equal(read_picture(tmp_path / "la.png"), np.stack([GRAY] * 3))
    bits = GRAY > 127
    np.testing.assert_array_equal(read_picture(saved(tmp_path, bits), 1)[0], np.where(bits, 255, 0))
    gif = saved(tmp_path, indices * 80, "a.gif")
    np.testing.assert_array_equal(read_picture(gif, 1)[0], indices * 80)


def test_cmyk_is_converted_without_a_profile(tmp_path):
    cmyk = RANDOM.integers(0, 256, (4, 5, 4), dtype=np.uint8)
    path = tmp_path / "c.tif"
    Image.fromarray(cmyk, "CMYK").save(path)
    ink = 255 - cmyk.astype(np.float64)
    expected = ink[..., :3] * ink[..., 3:] / 255
    assert np.abs(read_picture(path).transpose(1, 2, 0) - expected).max() <= 1
    jpeg = tmp_path / "c.jpg"
    Image.fromarray(cmyk, "CMYK").save(jpeg)
    np.testing.assert_array_equal(
        read_picture(jpeg), np.asarray(Image.open(jpeg).convert("RGB")).transpose(2, 0, 1)
    )


@pytest.mark.parametrize(
    "name, array, words",
    [
        ("a.png", (GRAY.astype(np.uint16) * 256), "is a PNG of mode I;16 (16 bits per channel)"),
        ("a.tif", (GRAY.astype(np.uint16) * 256), "is a TIFF of mode I;16"),
        ("a.tif", GRAY.astype(np.float32), "is a TIFF of mode F"),
        ("a.tif", GRAY.astype(np.int32), "is a TIFF of mode I"),
    ],
)
def test_more_than_8_bits_are_refused(tmp_path, name, array, words):
    path = saved(tmp_path, array, name)
    refused(lambda: read_picture(path), path, words, "at most 8 bits per channel", "scale it first")


def test_16_bit_colours_are_refused_although_pillow_would_cut_them_to_8(tmp_path):
    path = tmp_path / "deep.png"
    rows = RANDOM.integers(0, 256, (2, 3 * 6), dtype=np.uint8)
    path.write_bytes(png(rows, 2, 16, size=(2, 3)))
    assert Image.open(path).mode == "RGB"
    refused(lambda: read_picture(path), path, "of mode RGB (16 bits per channel)")
    (tmp_path / "la16.png").write_bytes(
        png(RANDOM.integers(0, 256, (2, 12), dtype=np.uint8), 4, 16, size=(2, 3))
    )
    refused(lambda: read_picture(tmp_path / "la16.png"), "16 bits per channel")


def test_other_colour_spaces_are_refused(tmp_path):
    path = saved(tmp_path, RGB, "lab.tif", mode="LAB")
    refused(lambda: read_picture(path), path, "is a TIFF of mode LAB; convert it to one of", "RGB")


def test_exif_orientation_is_applied_only_when_asked(tmp_path):
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(RGB).save(path, exif=exif, quality=100)
    stored = np.asarray(Image.open(path)).transpose(2, 0, 1)
    np.testing.assert_array_equal(read_picture(path), stored)
    # Orientation 6: the stored picture is turned clockwise by a quarter.
    np.testing.assert_array_equal(read_picture(path, upright=True), np.rot90(stored, -1, axes=(1, 2)))


def test_missing_empty_and_foreign_files(tmp_path):
    refused(lambda: read_picture(tmp_path / "no.png"), tmp_path / "no.png", "there is no such file")
    refused(lambda: read_picture(tmp_path), tmp_path, "cannot be read: Is a directory")
    empty = tmp_path / "empty.jpg"
    empty.write_bytes(b"")
    refused(lambda: read_picture(empty), empty, "is empty")
    page = tmp_path / "page.jpg"
    page.write_bytes(b"<!DOCTYPE html><html>404</html>")
    refused(lambda: read_picture(page), page, "is no picture of a known format (BMP, GIF,", "b'<!DOCTYP'")
    # A format of Pillow's that runs other programs.
    script = tmp_path / "a.eps"
    script.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n")
    refused(lambda: read_picture(script), script, "is no picture of a known format")
    refused(lambda: read_picture(page, 2), "channels must be 1 (gray) or 3 (RGB), not 2")
    refused(lambda: read_picture(page, True), "channels must be")


def test_long_files_are_not_read(tmp_path, monkeypatch):
    path = saved(tmp_path, RGB)
    refused(lambda: pictures.file_bytes(path, 10), path, "has more than 10 bytes")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data|Truncated File Read")
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.gif", "a.tif", "a.webp"])
def test_every_cut_of_a_file_is_an_error_or_harmless(tmp_path, name):
    whole = saved(tmp_path, RGB, name)
    data, expected = whole.read_bytes(), read_picture(whole)
    path = tmp_path / f"cut_{name}"
    harmless = 0
    for length in range(0, len(data), 1 if len(data) < 700 else 7):
        path.write_bytes(data[:length])
        try:
            found = read_picture(path)
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            harmless += 1
            np.testing.assert_array_equal(found, expected)
    assert harmless <= 4


def test_cut_files_say_where(tmp_path):
    path = saved(tmp_path, RGB, "a.png", compress_level=0)
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    size = len(data)
    refused(
        lambda: read_picture(path),
        path,
        f"the PNG is cut off: its chunk IDAT at byte 33 goes to byte {size - 12}, the file has {size - 20} bytes",
    )
    path.write_bytes(data[:-12])
    refused(lambda: read_picture(path), f"the PNG is cut off at byte {size - 12}: there is no IEND chunk")
    jpeg = saved(tmp_path, RGB, "a.jpg")
    jpeg.write_bytes(jpeg.read_bytes()[:-40])
    length = jpeg.stat().st_size
    refused(
        lambda: read_picture(jpeg),
        jpeg,
        f"the JPEG is damaged or cut off: the file has {length} bytes and no end-of-image marker at its end",
    )
    bitmap = saved(tmp_path, RGB, "a.bmp")
    whole = bitmap.stat().st_size
    bitmap.write_bytes(bitmap.read_bytes()[:-5])
    refused(
        lambda: read_picture(bitmap),
        f"the BMP is damaged or cut off: the file has {whole - 5} bytes, its header says {whole}",
    )
    webp = saved(tmp_path, RGB, "a.webp")
    whole = webp.stat().st_size
    webp.write_bytes(webp.read_bytes()[:-5])
    refused(lambda: read_picture(webp), f"the file has {whole - 5} bytes, its header says {whole}")


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_changed_bit_of_a_png_passes(tmp_path_factory, place, bit):
    path = tmp_path_factory.mktemp("bits") / "a.png"
    Image.fromarray(RGB).save(path)
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    refused(lambda: read_picture(path), path)


def test_damaged_png_names_chunk_and_byte(tmp_path):
    path = saved(tmp_path, RGB)
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    refused(lambda: read_picture(path), path, "the PNG is damaged: wrong checksum of chunk IDAT at byte 33")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    refused(lambda: read_picture(path), "no header (IHDR) at byte 8")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"12 4", b""))
    refused(lambda: read_picture(path), "at byte 8 a PNG chunk should start; its name is b'12 4'")
    for palette in ((), (chunk(b"PLTE", b"\1\2\3\4"),)):
        path.write_bytes(png([[0, 0]], 3, 8, *palette))
        refused(lambda: read_picture(path), f"its palette (PLTE) has {4 * len(palette)} bytes")
    # Checksums fit, but the compressed rows end early.
    broken = zlib.compress(bytes(20))[:-6]
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", broken) + chunk(b"IEND", b""))
    refused(
        lambda: read_picture(path), path, "its pixels (IDAT) have 2 bytes when decompressed; 4 x 4 pixels"
    )


@pytest.mark.parametrize("side", [8193, 12_000, 60_000])
def test_claims_of_too_many_pixels_are_refused_before_decoding(tmp_path, side):
    path = tmp_path / "bomb.png"
    path.write_bytes(png([[0]], 0, size=(side, side)))
    with pytest.warns(Image.DecompressionBombWarning) if 9459 < side < 13_377 else _nothing():
        refused(lambda: read_picture(path), path, "claims", "67108864")
    with pytest.warns(Image.DecompressionBombWarning) if 9459 < side < 13_377 else _nothing():
        refused(lambda: read_mask(path), path, "claims")


class _nothing:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def test_pillow_may_not_be_told_to_accept_cut_files(tmp_path, monkeypatch):
    path = saved(tmp_path, RGB)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    refused(lambda: read_picture(path), path, "PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set", "set it to False")


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", [0, 3])
def test_masks_give_stored_numbers_of_any_depth(tmp_path, kind, depth):
    height, width = 6, 8 * 3
    numbers = RANDOM.integers(0, 2**depth, (height, width), dtype=np.uint8)
    bits = np.unpackbits(numbers[..., np.newaxis], axis=-1)[..., 8 - depth :]
    rows = np.packbits(bits.reshape(height, -1), axis=-1)
    palette = RANDOM.integers(0, 256, 3 * 2**depth, dtype=np.uint8).tobytes()
    extra = (chunk(b"PLTE", palette),) if kind == 3 else ()
    path = tmp_path / "m.png"
    path.write_bytes(png(rows, kind, depth, *extra, size=(height, width)))
    found, colours = read_mask(path)
    np.testing.assert_array_equal(found, numbers)
    assert found.dtype == np.uint8 and colours == (palette if kind == 3 else b"")


def test_masks_must_hold_numbers(tmp_path):
    path = saved(tmp_path, RGB)
    refused(
        lambda: read_mask(path),
        path,
        "is a PNG of RGB with 8 bits per channel; a mask must hold class numbers",
    )
    deep = saved(tmp_path, GRAY.astype(np.uint16), "deep.png")
    refused(lambda: read_mask(deep), deep, "is a PNG of grayscale with 16 bits per channel")
    jpeg = saved(tmp_path, GRAY, "m.jpg")
    refused(lambda: read_mask(jpeg), jpeg, "is a JPEG; masks must be PNG files")
    jpeg.write_bytes(b"")
    refused(lambda: read_mask(jpeg), jpeg, "is empty; a picture is needed (PNG)")


def test_mask_reader_maps_numbers_and_names_the_first_wrong_pixel(tmp_path):
    reader = mask_reader({1: 0, 2: 1, 3: 2}, "a trimap holds 1, 2 and 3")
    numbers = np.array([[1, 2, 3], [3, 2, 1]], np.uint8)
    path = saved(tmp_path, numbers)
    np.testing.assert_array_equal(reader(path), numbers - 1)
    numbers[1, 2] = 4
    path = saved(tmp_path, numbers)
    refused(lambda: reader(path), path, "pixel (row 1, column 2) holds 4; a trimap holds 1, 2 and 3")


def test_mask_reader_compares_palettes(tmp_path):
    palette = bytes(range(30))
    reader = mask_reader({0: 0, 1: 1, 9: 2}, "0, 1 and 9", palette)
    path = tmp_path / "m.png"
    path.write_bytes(png([[0, 1], [9, 0]], 3, 8, chunk(b"PLTE", palette)))
    np.testing.assert_array_equal(reader(path), [[0, 1], [2, 0]])
    path.write_bytes(png([[0, 1], [1, 0]], 3, 8, chunk(b"PLTE", palette[:6])))
    np.testing.assert_array_equal(reader(path), [[0, 1], [1, 0]])
    path.write_bytes(png([[0, 1], [9, 0]], 3, 8, chunk(b"PLTE", palette[:6])))
    refused(lambda: reader(path), path, "a pixel holds 9, outside its palette of 2 entries")
    path.write_bytes(png([[0, 1], [1, 0]], 3, 8, chunk(b"PLTE", palette[:3] + b"\7\7\7")))
    refused(
        lambda: reader(path),
        path,
        "entry 1 of its palette is (7, 7, 7), the publisher's colour map has (3, 4, 5)",
    )
    path.write_bytes(png([[0, 1], [1, 0]], 0))
    refused(lambda: reader(path), path, "has no palette")


def sample(height, width, channels=3, mask=True):
    image = RANDOM.integers(0, 256, (channels, height, width), dtype=np.uint8)
    label = RANDOM.integers(0, 5, (height, width), dtype=np.uint8) if mask else np.asarray(3, np.int64)
    return {"image": image, "label": label}


def test_prepare_of_the_same_size_only_scales():
    given_ = sample(16, 16)
    found = Prepare(16)(given_, 0)
    np.testing.assert_array_equal(found["image"], given_["image"].astype(np.float32) / 255)
    np.testing.assert_array_equal(found["label"], given_["label"])
    assert found["image"].dtype == np.float32 and found["label"].dtype == np.int64
    whole = Prepare(16)(sample(16, 16, 1, mask=False), 0)
    assert whole["image"].shape == (1, 16, 16) and whole["label"] == 3 and whole["label"].shape == ()


@pytest.mark.parametrize("height, width, size", [(40, 20, 10), (20, 10, 40), (33, 17, 8)])
def test_stretching_is_pillows_bilinear_with_antialiasing(height, width, size):
    given_ = sample(height, width)
    found = Prepare(size)(given_, 0)["image"]
    resized = Image.fromarray(given_["image"].transpose(1, 2, 0)).resize(
        (size, size), Image.Resampling.BILINEAR
    )
    np.testing.assert_array_equal(
        found, np.asarray(resized).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    )
    # Averaging: halving a fine checkerboard gives gray and not one of its colours.
    board = np.zeros((3, 32, 32), np.uint8)
    board[:, ::2, ::2] = board[:, 1::2, 1::2] = 254
    small = Prepare(8)({"image": board, "label": np.asarray(0)}, 0)["image"]
    assert np.abs(small - 127 / 255).max() < 0.02


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 60),
    width=st.integers(1, 60),
    size=st.integers(1, 40),
    fit=st.sampled_from(pictures.FITS),
)
def test_masks_take_the_number_at_the_centre_of_each_pixel(height, width, size, fit):
    label = np.random.default_rng(height * 61 + width).integers(0, 9, (height, width), dtype=np.uint8)
    image = np.repeat(label[np.newaxis] * 20, 3, axis=0)
    found = Prepare(size, fit)({"image": image, "label": label}, 0)
    assert found["image"].shape == (3, size, size) and found["label"].shape == (size, size)
    high, wide, top, left = size, size, 0, 0
    if fit == "crop":
        shorter = round(size * 256 / 224)
        longer = shorter * max(height, width) // min(height, width)
        high, wide = (shorter, longer) if height <= width else (longer, shorter)
        top, left = round((high - size) / 2), round((wide - size) / 2)
    for row in range(size):
        for column in range(0, size, 3):
            y, x = (row + top + 0.5) * height / high, (column + left + 0.5) * width / wide
            assert found["label"][row, column] in {
                label[int(y + e), int(x + f)] for e in (-1e-9, 0) for f in (-1e-9, 0)
            }


def test_mask_and_picture_stay_on_the_same_grid():
    label = np.zeros((50, 80), np.uint8)
    label[10:30, 40:70] = 1
    for fit in pictures.FITS:
        found = Prepare(24, fit)({"image": np.repeat(label[np.newaxis] * 255, 3, axis=0), "label": label}, 0)
        assert np.mean((found["image"][0] > 0.5) == (found["label"] == 1)) > 0.97


def test_crop_is_the_usual_one_of_imagenet():
    given_ = sample(300, 450, mask=False)
    found = Prepare(224, "crop")(given_, 0)["image"]
    whole = Image.fromarray(given_["image"].transpose(1, 2, 0)).resize((384, 256), Image.Resampling.BILINEAR)
    expected = np.asarray(whole.crop((80, 16, 304, 240))).transpose(2, 0, 1)
    np.testing.assert_array_equal(found, expected.astype(np.float32) / np.float32(255))


def test_normalising_subtracts_the_mean_and_divides_by_the_deviation():
    given_ = sample(8, 8)
    found = Prepare(8, "stretch", IMAGENET_MEAN, IMAGENET_DEVIATION)(given_, 0)["image"]
    expected = (given_["image"] / 255 - np.reshape(IMAGENET_MEAN, (3, 1, 1))) / np.reshape(
        IMAGENET_DEVIATION, (3, 1, 1)
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32


def test_prepare_refuses_what_augmentation_must_not_give():
    prepare = Prepare(8)
    refused(
        lambda: prepare({"image": np.zeros((3, 4, 4)), "label": np.asarray(0)}, 7),
        "picture 7 is float64 of shape (3, 4, 4)",
        "it must be uint8",
    )
    wrong = {"image": np.zeros((3, 4, 4), np.uint8), "label": np.zeros((4, 5), np.uint8)}
    refused(
        lambda: prepare(wrong, 7),
        "the mask of picture 7 has 4 x 5 pixels after augmentation, the picture 4 x 4",
    )
    thin = {"image": np.zeros((3, 1, 5000), np.uint8), "label": np.asarray(0)}
    refused(lambda: Prepare(224, "crop")(thin, 7), "picture 7 has 1 x 5000 pixels: too long", 'fit="stretch"')
    assert Prepare(224)(thin, 7)["image"].shape == (3, 224, 224)


def files(tmp_path, count=6):
    for i in range(count):
        saved(tmp_path, RGB[: 4 + i], f"p{i}.png")
        saved(tmp_path, GRAY[: 4 + i] % 3, f"m{i}.png")
    names = [PictureFiles.of(tmp_path, [f"{kind}{i}.png" for i in range(count)]) for kind in "pm"]
    return names


def test_readers_are_pickled_and_used_by_threads(tmp_path):
    pictures_, masks = files(tmp_path)
    reader = mask_reader({0: 0, 1: 1, 2: 2}, "0..2")
    masked = picture_set(
        "m",
        ReadMasked(pictures_, masks, reader),
        6,
        classes=("a", "b", "c"),
        size=5,
        fit="stretch",
        channels=3,
        normalize=False,
    )
    labelled = picture_set(
        "l",
        ReadLabelled(pictures_, np.arange(6) % 2),
        6,
        classes=("a", "b"),
        size=5,
        fit="crop",
        channels=3,
        normalize=True,
        labels=np.arange(6) % 2,
    )
    for data in (masked, labelled):
        expected = data.batch(np.arange(6))
        assert expected["image"].dtype == np.float32 and expected["label"].dtype == np.int64
        copy = pickle.loads(pickle.dumps(data))
        with ThreadPoolExecutor(4) as pool:
            for again in pool.map(lambda _, copy=copy: copy.batch(np.arange(6)), range(8)):
                for key, array in expected.items():
                    np.testing.assert_array_equal(again[key], array)
        check_pictures(data)
    assert labelled.class_labels().tolist() == [0, 1, 0, 1, 0, 1] and masked.class_labels() is None
    assert labelled.batch([3])["label"].shape == (1,) and masked.batch([3])["label"].shape == (1, 5, 5)
    stored = masked.read(2)
    np.testing.assert_array_equal(stored["image"], RGB[:6].transpose(2, 0, 1))
    np.testing.assert_array_equal(stored["label"], GRAY[:6] % 3)
    assert stored["label"].dtype == np.uint8
    # Names of other alphabets survive the array of bytes.
    assert PictureFiles.of(tmp_path, ["ä b.png", "x"]).path(0) == tmp_path / "ä b.png"


def test_a_mask_of_another_size_is_refused(tmp_path):
    pictures_, masks = files(tmp_path)
    saved(tmp_path, GRAY[:3] % 3, "m2.png")
    read = ReadMasked(pictures_, masks, mask_reader({0: 0, 1: 1, 2: 2}, "0..2"))
    read(1)
    refused(
        lambda: read(2),
        tmp_path / "m2.png",
        "the mask has 3 x 13 pixels, its picture",
        tmp_path / "p2.png",
        "6 x 13",
    )
    data = picture_set(
        "m", read, 6, classes=("a", "b", "c"), size=5, fit="stretch", channels=3, normalize=False
    )
    refused(lambda: check_pictures(data), tmp_path / "m2.png")


def test_options_of_a_set_are_checked(tmp_path):
    read = ReadLabelled(files(tmp_path)[0], np.zeros(6, np.int64))

    def make(**options):
        defaults = {"classes": ("a",), "size": 5, "fit": "stretch", "channels": 3, "normalize": False}
        return picture_set("l", read, 6, labels=np.zeros(6, np.int64), **{**defaults, **options})

    refused(
        lambda: make(size=0),
        "dataset 'l': size (pixels per side) must be an integer from 1 to 16384, not 0",
    )
    for side in (200_000, 2**40):
        refused(lambda side=side: make(size=side), f"from 1 to 16384, not {side}")
    refused(lambda: make(fit="squeeze"), "unknown fit of dataset 'l' 'squeeze'", "crop, stretch")
    refused(lambda: make(channels=4), "channels must be 1 (gray) or 3 (RGB), not 4")
    refused(lambda: make(channels=1, normalize=True), "normalize needs channels=3")


def test_few_samples_have_all_classes():
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    assert in_turn(labels, None).tolist() == list(range(9))
    assert in_turn(labels, 3).tolist() == [0, 3, 5]
    assert in_turn(labels, 5).tolist() == [0, 1, 3, 4, 5]
    assert in_turn(labels, 8).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert in_turn(labels, 99).tolist() == list(range(9))
    assert in_turn(labels[::-1].copy(), 3).tolist() == [0, 4, 6]
    refused(lambda: in_turn(labels, 0), "limit must be an integer of at least 1, not 0")


def test_importing_the_loaders_imports_neither_pillow_nor_scipy():
    import subprocess
    import sys

    names = ("pictures", "image_folder", "voc", "pets", "imagenet")
    code = f"import sys\nfor n in {names}: __import__('meta500.datasets.' + n)\n"
    code += "print([m for m in sys.modules if re.fullmatch('PIL|torch|scipy|pooch', m)])"
    found = subprocess.run(
        [sys.executable, "-c", "import re\n" + code], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\[\]\n", found.stdout)
