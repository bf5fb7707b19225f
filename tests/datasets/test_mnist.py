"""MNIST and Fashion-MNIST from files in the publishers' format."""

import gzip
import hashlib
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from meta500.datasets import mnist as module
from meta500.datasets.mnist import fashion_mnist, mnist
from meta500.errors import UserError

COUNTS = {"train": 7, "t10k": 4}


def pictures(count, seed):
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28), np.uint8)


def labels(count):
    return [(3 * i + 1) % 10 for i in range(count)]


def write(folder, packed=False):
    for seed, (part, count) in enumerate(COUNTS.items()):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + pictures(count, seed).tobytes()
        truth = struct.pack(">II", 0x801, count) + bytes(labels(count))
        for name, data in (("images-idx3", images), ("labels-idx1", truth)):
            path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("load", [mnist, fashion_mnist])
def test_files_are_read_exactly(load, packed, tmp_path):
    write(tmp_path, packed)
    for seed, (part, count) in enumerate(zip(load(tmp_path, full=False), COUNTS.values(), strict=True)):
        assert len(part) == count and part.shapes == {"image": (1, 28, 28), "label": ()}
        assert part.dtypes == {"image": np.float32, "label": np.int64}
        stored = [part.read(i) for i in range(count)]
        assert all(s["image"].dtype == np.uint8 and s["label"].dtype == np.int64 for s in stored)
        np.testing.assert_array_equal(np.stack([s["image"][0] for s in stored]), pictures(count, seed))
        batch = part.batch(np.arange(count))
        np.testing.assert_array_equal(batch["image"][:, 0], pictures(count, seed).astype(np.float32) / 255)
        assert batch["label"].tolist() == labels(count) == part.class_labels().tolist()
        again = pickle.loads(pickle.dumps(part))
        np.testing.assert_array_equal(again.batch([1])["image"], part.batch([1])["image"])
    assert len(part.classes) == 10 and part.licence and part.default_loss == "cross_entropy"


def test_mapped_pictures_are_pickled_as_their_place(tmp_path):
    write(tmp_path)
    train, _ = mnist(tmp_path, full=False)
    assert len(pickle.dumps(train)) < 7 * 28 * 28


def test_names_differ(tmp_path):
    write(tmp_path)
    assert [load(tmp_path, full=False)[0].name for load in (mnist, fashion_mnist)] == [
        "mnist",
        "fashion-mnist",
    ]
    assert fashion_mnist(tmp_path, full=False)[0].classes[9] == "Ankle boot"


def test_options(tmp_path):
    write(tmp_path)
    train, test = mnist(tmp_path, normalize=True, limit=5, full=False)
    assert (len(train), len(test)) == (5, 4)
    expected = (pictures(7, 0)[:5] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(train.batch(np.arange(5))["image"][:, 0], expected, rtol=1e-5, atol=1e-6)
    large, _ = mnist(tmp_path, size=40, full=False)
    expected = np.asarray(Image.fromarray(pictures(7, 0)[2]).resize((40, 40), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(large.batch([2])["image"][0, 0], expected.astype(np.float32) / 255)
    assert large.shapes["image"] == (1, 40, 40) and large.batch([2])["label"].tolist() == [7]
    for option, message in (
        ({"limit": 0}, "limit must be an integer of at least 1, not 0"),
        ({"size": 2.5}, "size .pixels per side. must be an integer from 1 to 16384, not 2.5"),
        ({"normalize": "no"}, "normalize must be True or False, not 'no'"),
        ({"check": 1}, "check must be True or False, not 1"),
        ({"full": None}, "full must be True or False, not None"),
    ):
        with pytest.raises(UserError, match=message):
            mnist(tmp_path, **{"full": False} | option)


@pytest.mark.parametrize("packed", [False, True])
def test_stored_pictures_cannot_be_written_to(packed, tmp_path):
    write(tmp_path, packed)
    train, _ = mnist(tmp_path, full=False)
    with pytest.raises(ValueError, match="read-only"):
        train.read(0)["image"][:] = 0
    image = train.batch([0])["image"]
    image[:] = 0
    np.testing.assert_array_equal(train.read(0)["image"][0], pictures(7, 0)[0])


def test_augmentation_must_keep_bytes(tmp_path):
    write(tmp_path)
    train, _ = mnist(tmp_path, full=False)
    flipped = train.batch([3], lambda sample, i: sample | {"image": sample["image"][..., ::-1]})
    np.testing.assert_array_equal(flipped["image"], train.batch([3])["image"][..., ::-1])
    with pytest.raises(UserError, match="'image' of sample 3 is float64 after augmentation"):
        train.batch([3], lambda sample, i: sample | {"image": sample["image"] / 2})


def test_missing_files_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("META500_DATA", str(tmp_path))
    with pytest.raises(
        UserError,
        match=r"dataset 'fashion-mnist': there is no .*/fashion-mnist/train-images-idx3-ubyte; get it with "
        r"`meta500 data get fashion-mnist`, or give folder=",
    ):
        fashion_mnist()
    (tmp_path / "mnist").mkdir()
    write(tmp_path / "mnist")
    assert len(mnist(full=False)[0]) == 7
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="there is no .*t10k-labels-idx1-ubyte"):
        mnist(full=False)


def test_published_numbers_of_samples(tmp_path):
    write(tmp_path)
    with pytest.raises(
        UserError, match=r"train-images-idx3-ubyte: holds 7 samples; the published file holds 60000"
    ):
        mnist(tmp_path)


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        (
            "train-labels-idx1-ubyte",
            struct.pack(">II", 0x801, 6) + bytes(6),
            "byte 4: has 6 labels; .*has 7 pictures",
        ),
        (
            "train-labels-idx1-ubyte",
            struct.pack(">II", 0x801, 7) + bytes([0, 1, 2, 10, 4, 5, 6]),
            r"byte 11: sample 3 has the label 10; labels are 0..9",
        ),
        ("train-labels-idx1-ubyte", struct.pack(">II", 0x801, 7) + bytes(6), r"byte 14: the file ends here"),
        (
            "t10k-images-idx3-ubyte",
            struct.pack(">II", 0x801, 7) + bytes(7),
            "byte 2: holds uint8 with 1 dimensions; uint8 with 3 is needed",
        ),
        (
            "t10k-images-idx3-ubyte",
            struct.pack(">IIII", 0x803, 1, 28, 27) + bytes(28 * 27),
            "byte 8: pictures of 28 x 27 pixels; 28 x 28 are needed",
        ),
        ("t10k-images-idx3-ubyte", struct.pack(">IIII", 0x803, 0, 28, 28), "holds no samples"),
    ],
)
def test_wrong_files_are_named(file, data, message, tmp_path):
    write(tmp_path)
    (tmp_path / file).write_bytes(data)
    with pytest.raises(UserError, match=f"{file}: {message}"):
        mnist(tmp_path, full=False)


def test_wrong_labels_of_packed_files_are_named(tmp_path):
    write(tmp_path, packed=True)
    wrong = struct.pack(">II", 0x801, 4) + bytes([0, 255, 2, 3])
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(wrong))
    with pytest.raises(UserError, match=r"gz: byte 9 of the unpacked data: sample 1 has the label 255"):
        mnist(tmp_path, full=False)


def test_a_file_that_shrank_after_loading_is_named(tmp_path):
    write(tmp_path)
    data = pickle.dumps(mnist(tmp_path, full=False)[0])
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        UserError, match=r"train-images-idx3-ubyte: was changed .* had 5504 bytes and has 5503"
    ):
        pickle.loads(data)


@pytest.mark.parametrize("packed", [False, True])
def test_checksums(packed, tmp_path, monkeypatch):
    write(tmp_path, packed)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.*: is damaged or another file: its MD5 is"):
        mnist(tmp_path, check=True, full=False)
    if not packed:
        sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
        monkeypatch.setitem(module._MD5, "mnist", sums)
        assert len(mnist(tmp_path, check=True, full=False)[0]) == 7
