"""Arrays of .npz and .npy files as sets, and what is refused of them."""

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from meta500.datasets import Dataset
from meta500.datasets.arrays import arrays
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.picture_arrays import MappedArray
from meta500.errors import UserError

RNG = np.random.default_rng(0)
GRAY, GRAY_TEST = RNG.integers(0, 256, (9, 5, 6), np.uint8), RNG.integers(0, 256, (4, 5, 6), np.uint8)
COLOUR = RNG.integers(0, 256, (10, 6, 5, 3), np.uint8)
CLASSES = np.arange(9) % 3


def npy(array, version=b"\x01\x00"):
    """A .npy file by its description (numpy.lib.format), for row-major arrays."""
    text = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape!r}, }}"
    length = 4 if version == b"\x02\x00" else 2
    filled = text.ljust(-(8 + length + len(text) + 1) % 64 + len(text)) + "\n"
    size = struct.pack("<I" if length == 4 else "<H", len(filled))
    return b"\x93NUMPY" + version + size + filled.encode("latin-1") + array.tobytes()


def write(place, **found):
    """A .npz, or a folder of .npy where the name has no ending."""
    if place.suffix == ".npz":
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in found.items():
                archive.writestr(f"{name}.npy", npy(array))
    else:
        place.mkdir()
        for name, array in found.items():
            (place / f"{name}.npy").write_bytes(npy(array))
    return place


@pytest.mark.parametrize("place", ["mnist.npz", "mnist"])
@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("train-image", "train-label", "test-image", "test-label"),
    ],
)
def test_parts_by_name(place, names, tmp_path):
    held = (GRAY, CLASSES.astype(np.uint8), GRAY_TEST, np.arange(4, dtype=np.uint8))
    path = write(tmp_path / place, **dict(zip(names, held, strict=True)))
    train, test = arrays(path)
    for part, images, labels in ((train, *held[:2]), (test, *held[2:])):
        assert isinstance(part, LazyDataset) and part.name == "mnist"
        assert part.shapes == {"image": (1, 5, 6), "label": ()} and part.classes == ("0", "1", "2", "3")
        assert part.default_loss == "cross_entropy" and part.class_labels().tolist() == labels.tolist()
        batch = part.batch(np.arange(len(part)))
        np.testing.assert_array_equal(batch["image"][:, 0], images.astype(np.float32) / 255)
        assert batch["label"].tolist() == labels.tolist() and batch["label"].dtype == np.int64
        assert part.read(1)["image"].dtype == np.uint8
        again = pickle.loads(pickle.dumps(part))
        np.testing.assert_array_equal(again.batch([2])["image"], part.batch([2])["image"])


def test_numpys_own_files_are_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x_train=GRAY, y_train=CLASSES, x_test=GRAY, y_test=CLASSES)
    (tmp_path / "b").mkdir()
    np.save(tmp_path / "b" / "image.npy", np.asfortranarray(GRAY))
    np.save(tmp_path / "b" / "label.npy", CLASSES.astype(">i2"))
    for part in arrays(tmp_path / "a.npz"):
        np.testing.assert_array_equal(part.batch([7])["image"][0, 0], GRAY[7].astype(np.float32) / 255)
    train, test = arrays(tmp_path / "b")
    seen = np.concatenate(
        [np.stack([part.read(i)["image"][0] for i in range(len(part))]) for part in (train, test)]
    )
    assert sorted(row.tobytes() for row in seen) == sorted(row.tobytes() for row in GRAY)


def test_a_set_without_parts_is_split(tmp_path):
    path = write(tmp_path / "mine.npz", image=GRAY, label=CLASSES)
    train, test = arrays(path, test_fraction=1 / 3, seed=3)
    assert np.bincount(test.class_labels()).tolist() == [1, 1, 1] and len(train) == 6
    again = arrays(path, test_fraction=1 / 3, seed=3)[1]
    np.testing.assert_array_equal(again.batch([0, 1, 2])["image"], test.batch([0, 1, 2])["image"])
    for part in (train, test):
        for i in range(len(part)):
            match = (part.read(i)["image"][0] == GRAY).all(axis=(1, 2))
            assert CLASSES[match].tolist() == [part.class_labels()[i]]
    only = arrays(write(tmp_path / "t.npz", train_x=GRAY, train_y=CLASSES), test_fraction=1 / 3)
    assert [len(part) for part in only] == [6, 3]
    assert [len(part) for part in arrays(path, limit=4, test_fraction=1 / 3)] == [4, 3]


def test_mapped_files_are_not_read_into_pickles(tmp_path):
    big = np.zeros((50, 64, 64), np.uint8)
    path = write(
        tmp_path / "d",
        train_image=big,
        train_label=np.arange(50) % 5,
        test_image=big,
        test_label=np.arange(50),
    )
    train, _ = arrays(path)
    assert isinstance(train.read.images[0], MappedArray) and len(pickle.dumps(train)) < 5000


@pytest.mark.parametrize("place", ["c.npz", "c"])
def test_layouts(place, tmp_path):
    path = write(tmp_path / place, image=COLOUR, label=np.arange(10)[:, None])
    for layout in ("auto", "hwc"):
        train, _ = arrays(path, layout=layout)
        assert train.shapes == {"image": (3, 6, 5), "label": ()}
        label = train.class_labels()[0]
        np.testing.assert_array_equal(train.read(0)["image"], COLOUR[label].transpose(2, 0, 1))
    ambiguous = write(tmp_path / "a.npz", image=COLOUR.reshape(10, 3, 10, 3), label=np.arange(10))
    with pytest.raises(UserError, match=r"image.npy: the shape \(10, 3, 10, 3\) does not say which axis"):
        arrays(ambiguous)
    assert arrays(ambiguous, layout="chw")[0].shapes["image"] == (3, 10, 3)
    assert arrays(ambiguous, layout="hwc")[0].shapes["image"] == (3, 3, 10)
    with pytest.raises(UserError, match=r"has the shape \(10, 3, 10, 3\); layout 'hw' needs 3 axes"):
        arrays(ambiguous, layout="hw")
    with pytest.raises(UserError, match="unknown layout 'nchw'"):
        arrays(ambiguous, layout="nchw")


@pytest.mark.parametrize("place", ["m.npz", "m"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, bool])
def test_masks(place, dtype, tmp_path):
    masks = (RNG.integers(0, 2, (10, 6, 5)) if dtype is bool else RNG.integers(0, 4, (10, 6, 5))).astype(
        dtype
    )
    path = write(tmp_path / place, train_image=COLOUR, train_mask=masks, test_image=COLOUR, test_mask=masks)
    train, _ = arrays(path)
    assert train.shapes == {"image": (3, 6, 5), "label": (6, 5)} and train.class_labels() is None
    assert train.classes == tuple(str(k) for k in range(int(masks.max()) + 1))
    assert train.read(3)["label"].dtype == (np.int64 if dtype is np.int16 else np.uint8)
    batch = train.batch([3, 1])
    assert batch["label"].dtype == np.int64
    np.testing.assert_array_equal(batch["label"], masks[[3, 1]])
    resized = arrays(path, size=12)[0].batch([3])
    expected = Image.fromarray(masks[3].astype(np.uint8)).resize((12, 12), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(resized["label"][0], np.asarray(expected))
    expected = Image.fromarray(COLOUR[3]).resize((12, 12), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(
        resized["image"][0], np.asarray(expected).transpose(2, 0, 1).astype(np.float32) / 255
    )


def test_void_of_masks(tmp_path):
    masks = np.zeros((10, 6, 5), np.uint8)
    masks[4, 2, 1], masks[5, 0, 0] = 255, 3
    path = write(tmp_path / "v", image=COLOUR, mask=masks)
    train, _ = arrays(path, ignore=255)
    assert train.ignore == 255 and train.classes == ("0", "1", "2", "3")
    header = (path / "mask.npy").stat().st_size - masks.size
    with pytest.raises(
        UserError, match=rf"mask.npy: byte {header + 4 * 30 + 11}: sample 4 has the label 255"
    ):
        arrays(path, classes=4)
    with pytest.raises(
        UserError, match=rf"byte {header + 5 * 30}: sample 5 has the label 3; labels are 0..2"
    ):
        arrays(path, classes=["a", "b", "c"], ignore=255)
    assert arrays(path, classes=["a", "b", "c", "d"], ignore=255)[0].classes == ("a", "b", "c", "d")


def test_numbers_as_labels(tmp_path):
    angles = RNG.random((9, 2)).astype(">f4")
    path = write(tmp_path / "r.npz", image=GRAY, target=angles)
    train, test = arrays(path)
    assert train.default_loss == "mse" and train.classes is None and train.shapes["label"] == (2,)
    found = np.concatenate([part.batch(np.arange(len(part)))["label"] for part in (train, test)])
    assert found.dtype == np.float32 and sorted(map(tuple, found)) == sorted(map(tuple, angles.astype("f4")))
    assert arrays(path, size=8)[0].batch([0])["label"].dtype == np.float32
    for option in ({"classes": 3}, {"ignore": 1}):
        with pytest.raises(UserError, match=r"there are no integer labels"):
            arrays(path, **option)


def test_floats_are_held_as_they_are(tmp_path):
    features = RNG.normal(size=(9, 4)).astype(">f8")
    path = write(tmp_path / "f.npz", data=features, y=CLASSES)
    train, test = arrays(path)
    assert isinstance(train, Dataset) and train.classes == ("0", "1", "2")
    assert train.dtypes == {"image": np.float64, "label": np.int64} and train.dtypes["image"].isnative
    found = np.concatenate([train.inputs["image"], test.inputs["image"]])
    assert sorted(map(tuple, found)) == sorted(map(tuple, features))
    with pytest.raises(UserError, match=r"holds float64 of shape \(9, 4\); size=8 resizes uint8 pictures"):
        arrays(path, size=8)
    pictures = write(tmp_path / "g.npz", x=COLOUR.astype(np.float32), y=np.arange(10))
    assert arrays(pictures)[0].shapes["image"] == (6, 5, 3)
    assert arrays(pictures, layout="hwc")[0].shapes["image"] == (3, 6, 5)


def test_sets_without_labels(tmp_path):
    path = write(tmp_path / "u", train_x=GRAY, test_x=GRAY_TEST)
    train, test = arrays(path, label="none")
    assert train.label is None and train.default_loss == "mse" and list(test.batch([0])) == ["image"]
    assert arrays(path, label="none", size=9)[0].batch([0])["image"].shape == (1, 1, 9, 9)
    with pytest.raises(
        UserError, match=r'has no array for the label of the part test; .*give label=... or label="none"'
    ):
        arrays(path)


def test_arrays_are_chosen_by_name(tmp_path):
    path = write(tmp_path / "n", train_a=GRAY, train_b=CLASSES, train_x=GRAY, train_images=GRAY)
    train, _ = arrays(path, image="a", label="b")
    assert len(train) == 7
    with pytest.raises(UserError, match=r"both 'train_images' and 'train_x' could be the image: give image="):
        arrays(path, label="b")
    with pytest.raises(
        UserError,
        match=r"n: has no array for the image of the part train; it has: .*train_a, train_b.*give image=",
    ):
        arrays(path, image="c", label="b")


@pytest.mark.parametrize(
    ("found", "options", "message"),
    [
        ({}, {}, "has no array for the image; it has: nothing"),
        (
            {"test_x": GRAY, "test_y": CLASSES},
            {},
            "has no array for the image of training; it has: test_x, test_y",
        ),
        (
            {"image": GRAY, "label": CLASSES, "x_train": GRAY, "y_train": CLASSES},
            {},
            "has arrays with and without a part",
        ),
        ({"x": GRAY, "y": CLASSES[:8]}, {}, r"y.npy: has 8 labels, .*x.npy has 9 images"),
        (
            {"x": GRAY, "y": GRAY[:, :4]},
            {},
            r"y.npy: has the shape \(9, 4, 6\); classes \(9,\) or masks \(9, 5, 6\) fit",
        ),
        (
            {"x": GRAY.astype(np.int32), "y": CLASSES},
            {},
            r"x.npy: holds int32; images are uint8 or floating-point",
        ),
        (
            {"x": GRAY, "y": CLASSES - 1},
            {},
            r"y.npy: byte \d+: sample 0 has the label -1; labels are 0..99999, or give classes=",
        ),
        (
            {"x": GRAY, "y": CLASSES},
            {"classes": 2},
            r"y.npy: byte \d+: sample 2 has the label 2; labels are 0..1",
        ),
        ({"x": GRAY, "y": CLASSES}, {"classes": 0}, "classes must be an integer from 1 to 1000000, not 0"),
        (
            {"x": GRAY, "y": CLASSES},
            {"classes": "abc"},
            "classes must be the number of classes or a list of all their names, not 'abc'",
        ),
        (
            {"x": GRAY, "y": CLASSES},
            {"ignore": 1},
            "ignore=1: is for masks; .*y.npy holds one class per sample",
        ),
        (
            {"x": GRAY, "y": np.where(CLASSES == 1, 10**12, 0)},
            {},
            r"y.npy: byte \d+: sample 1 has the label 1000000000000; labels are 0..99999, or give classes=",
        ),
        (
            {"x": GRAY, "y": np.full(9, 2**63, np.uint64)},
            {},
            "sample 0 has the label 9223372036854775808; labels are 0..99999, or give classes=",
        ),
        ({"x": GRAY, "y": CLASSES}, {"classes": 10**9}, "classes must be an integer from 1 to 1000000, not"),
        ({"x": GRAY, "y": CLASSES}, {"classes": ["a", "b", "a"]}, "different names: 'a' is named twice"),
        ({"x": GRAY, "y": CLASSES}, {"classes": []}, "classes must be at least one name"),
        ({"x": GRAY, "y": CLASSES}, {"classes": iter("abc")}, "a list of all their names, not <str_"),
        ({"x": GRAY, "y": CLASSES}, {"size": 200_000}, "size .* from 1 to 16384, not 200000"),
        ({"x": GRAY, "y": CLASSES}, {"size": 2**40}, "size .* from 1 to 16384, not 1099511627776"),
        ({"x": GRAY, "y": CLASSES}, {"ignore": 1.5}, "ignore must be an integer"),
        (
            {"x": GRAY, "y": CLASSES},
            {"test_fraction": 1},
            "test_fraction|fraction must be a number strictly between",
        ),
        ({"x": GRAY, "y": CLASSES}, {"limit": -1}, "limit must be an integer of at least 1"),
        (
            {"x": np.zeros((9, 2, 4, 4), np.uint8), "y": CLASSES},
            {"layout": "chw", "size": 3},
            "1 or 3 channels only",
        ),
        ({"x": GRAY, "y": CLASSES * 1j}, {}, r"y.npy: byte 0: holds complex128; integers, floats or bool"),
        ({"x": GRAY[:0], "y": CLASSES[:0]}, {}, r"x.npy: byte 0: has the shape \(0, 5, 6\); samples along"),
        ({"x": np.float32(1), "y": CLASSES}, {}, r"x.npy: byte 0: has the shape \(\); samples along"),
        (
            {"x_train": GRAY, "y_train": CLASSES, "x_test": GRAY.astype(np.float32), "y_test": CLASSES},
            {},
            r"x_t\w+.npy holds \w+, .*x_t\w+.npy holds \w+: the parts need the same type of image",
        ),
        (
            {"x_train": GRAY, "y_train": CLASSES, "x_test": GRAY, "y_test": CLASSES / 2},
            {},
            "the parts need the same type of label",
        ),
        (
            {"x_train": GRAY, "y_train": CLASSES, "x_test": GRAY[:, 1:], "y_test": CLASSES},
            {},
            "the parts differ: train LazyDataset",
        ),
    ],
)
@pytest.mark.parametrize("place", ["w.npz", "w"])
def test_what_does_not_fit_is_named(found, options, message, place, tmp_path):
    path = write(tmp_path / place, **{name: np.asarray(array) for name, array in found.items()})
    with pytest.raises(UserError, match=message):
        arrays(path, **options)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').write('x')",)


@pytest.mark.parametrize("place", ["o.npz", "o"])
def test_objects_are_never_loaded(place, tmp_path):
    trace, path = tmp_path / "written", tmp_path / place
    hostile = np.array([Hostile(trace)] * 9, object)
    if place == "o":
        path.mkdir()
        np.save(path / "x.npy", GRAY)
        np.save(path / "y.npy", hostile)
    else:
        np.savez(path, x=GRAY, y=hostile)
    with pytest.raises(UserError, match=r"y.npy: byte 0: holds Python objects, which are never loaded"):
        arrays(path)
    assert not trace.exists()


def test_files_that_are_cut_off_or_too_long(tmp_path):
    path = write(tmp_path / "d", x=GRAY, y=CLASSES)
    whole = (path / "x.npy").read_bytes()
    for cut in (0, 5, 9, 40, 127):
        (path / "x.npy").write_bytes(whole[:cut])
        with pytest.raises(UserError, match=r"x.npy: byte 0: has no header of .npy"):
            arrays(path)
    for cut in (128, len(whole) - 1):
        (path / "x.npy").write_bytes(whole[:cut])
        with pytest.raises(
            UserError, match=rf"x.npy: byte {cut}: the array ends here; uint8 of shape \(9, 5, 6\)"
        ):
            arrays(path)
    (path / "x.npy").write_bytes(whole + b"xy")
    with pytest.raises(
        UserError, match=rf"x.npy: byte {len(whole)}: the array goes on here; .*has {len(whole)} bytes, not"
    ):
        arrays(path)
    (path / "x.npy").write_bytes(npy(GRAY, b"\x02\x00"))
    assert len(arrays(path)[0]) == 7
    (path / "x.npy").write_bytes(npy(GRAY, b"\x03\x00"))
    with pytest.raises(UserError, match=r"x.npy: byte 0: has no header of .npy: version 3.0 is not read"):
        arrays(path)


def test_archives_that_are_cut_off_or_damaged(tmp_path):
    path = write(tmp_path / "a.npz", x=GRAY, y=CLASSES)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a.npz: is no .npz file, or cut off: File is not a zip file"):
        arrays(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", npy(GRAY)[:-3])
        archive.writestr("y.npy", npy(CLASSES))
    with pytest.raises(UserError, match=rf"a.npz: x.npy: byte {len(npy(GRAY)) - 3}: the array ends here"):
        arrays(path)
    path.write_bytes(whole)
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("x.npy").header_offset + 30 + len("x.npy")
    for place in (start + 5, start + 150):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(UserError, match=r"a.npz: x.npy: "):
            arrays(path)
    with pytest.raises(UserError, match=r"nothing.npz: cannot be read: No such file"):
        arrays(tmp_path / "nothing.npz")


CONTENT = io.BytesIO()
np.savez_compressed(CONTENT, x=GRAY, y=CLASSES)


@settings(max_examples=150, deadline=None)
@given(
    place=st.integers(0, len(CONTENT.getvalue()) - 1), byte=st.integers(0, 255), header=st.binary(max_size=60)
)
def test_damage_gives_one_error_or_the_arrays(place, byte, header, tmp_path_factory):
    folder = tmp_path_factory.mktemp("npz")
    whole = CONTENT.getvalue()
    (folder / "a.npz").write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
    (folder / "x.npy").write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header)
    (folder / "y.npy").write_bytes(npy(CLASSES))
    for path in (folder / "a.npz", folder):
        try:
            train, test = arrays(path)
        except UserError as error:
            assert str(folder) in str(error)
        else:
            for part in (train, test):
                for i in range(len(part)):
                    match = (part.read(i)["image"][0] == GRAY).all(axis=(1, 2))
                    assert CLASSES[match].tolist() == [part.class_labels()[i]]


def test_many_classes_can_be_asked_for(tmp_path):
    path = write(tmp_path / "w.npz", x=GRAY, y=CLASSES * 100_000)
    with pytest.raises(UserError, match="sample 1 has the label 100000; labels are 0..99999"):
        arrays(path)
    assert len(arrays(path, classes=200_001)[0].classes) == 200_001


@pytest.mark.parametrize(
    ("path", "message"), [("", "path is empty"), (3, "path must be a path"), (b"x", "not b")]
)
def test_paths_that_are_none(path, message):
    with pytest.raises(UserError, match=message):
        arrays(path)


def shrink(path):
    os.truncate(path, 200)


def remove(path):
    path.unlink()


def replace(path):
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[::-1])


def rewrite(path):
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            shrink,
            "was changed after the set was loaded .it had [0-9]+ bytes and has 200.; load the set again",
        ),
        (remove, "cannot be read any more: No such file"),
        (replace, "was changed after the set was loaded .it was written or replaced"),
        (rewrite, "was changed after the set was loaded .it was written or replaced"),
    ],
)
def test_a_mapped_file_that_changes_is_named_and_never_read(change, words, tmp_path):
    """Reading a mapped file past its end would kill the process."""
    place = write(tmp_path / "w", x=np.zeros((300, 1, 8, 8), np.uint8), y=np.arange(300) % 3)
    data, _ = arrays(place)
    sent = pickle.dumps(data)
    assert data.batch([200])["image"].shape == (1, 1, 8, 8)
    change(place / "x.npy")
    with pytest.raises(UserError, match=f"x.npy: {words}"):
        data.batch([200])
    # A worker process maps the file anew: it must not take the other one.
    with pytest.raises(UserError, match=r"x\.npy: (was changed|cannot be read)"):
        pickle.loads(sent)
