"""STL-10 from files in the publisher's format."""

import hashlib
import pickle

import numpy as np
import pytest
from PIL import Image

from meta500.datasets import stl10 as module
from meta500.datasets.stl10 import CLASSES, stl10
from meta500.errors import UserError

COUNTS = {"train": 12, "test": 3, "unlabeled": 5}


def pictures(key):
    """(N, 3, rows, columns)."""
    seed = list(COUNTS).index(key)
    return np.random.default_rng(seed).integers(0, 256, (COUNTS[key], 3, 96, 96), np.uint8)


def labels(key):
    return [(i * 7) % 10 for i in range(COUNTS[key])]


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "stl10_binary"
    place.mkdir()
    for key, count in COUNTS.items():
        with open(place / f"{key}_X.bin", "wb") as file:
            for picture in pictures(key):
                for plane in picture:
                    for column in range(96):
                        file.write(bytes(plane[:, column].tolist()))
        if key != "unlabeled":
            (place / f"{key}_y.bin").write_bytes(bytes(label + 1 for label in labels(key)))
        assert count == len(pictures(key))
    (place / "class_names.txt").write_text("\n".join(CLASSES) + "\n")
    (place / "fold_indices.txt").write_text("".join(f"{k} 11 {k + 1} \n" for k in range(10)))
    return tmp_path


def test_labelled_pictures_are_read_exactly(folder):
    for base in (folder, folder / "stl10_binary"):
        for key, part in zip(("train", "test"), stl10(base, full=False), strict=True):
            assert part.classes == CLASSES and part.shapes == {"image": (3, 96, 96), "label": ()}
            found = np.stack([part.read(i)["image"] for i in range(len(part))])
            np.testing.assert_array_equal(found, pictures(key))
            batch = part.batch([2, 0])
            assert batch["label"].tolist() == [labels(key)[2], labels(key)[0]]
            np.testing.assert_array_equal(batch["image"], pictures(key)[[2, 0]].astype(np.float32) / 255)
            again = pickle.loads(pickle.dumps(part))
            np.testing.assert_array_equal(again.batch([1])["image"], part.batch([1])["image"])


def test_unlabelled_pictures(folder):
    for name in ("train_X.bin", "train_y.bin", "test_y.bin", "class_names.txt"):
        (folder / "stl10_binary" / name).unlink()
    train, test = stl10(folder, part="unlabelled", full=False, size=48)
    assert (len(train), len(test)) == (5, 3) and train.label is None and train.classes is None
    assert train.default_loss == "mse" and train.class_labels() is None
    batch = train.batch([4])
    assert list(batch) == ["image"]
    expected = Image.fromarray(pictures("unlabeled")[4].transpose(1, 2, 0)).resize(
        (48, 48), Image.Resampling.BILINEAR
    )
    np.testing.assert_array_equal(
        batch["image"][0], np.asarray(expected).transpose(2, 0, 1).astype(np.float32) / 255
    )
    np.testing.assert_array_equal(test.read(1)["image"], pictures("test")[1])


def test_normalization_is_that_of_the_part(folder):
    for part, key in (("labelled", "train"), ("unlabelled", "unlabeled")):
        mean, deviation = (np.array(values)[:, None, None] for values in module.NORMALIZATION[part])
        train, _ = stl10(folder, part=part, full=False, normalize=True)
        expected = (pictures(key)[0] / 255 - mean) / deviation
        np.testing.assert_allclose(train.batch([0])["image"][0], expected, rtol=1e-5, atol=1e-6)


def test_folds(folder):
    train, test = stl10(folder, fold=4, full=False)
    assert len(train) == 3 and len(test) == 3
    found = np.stack([train.read(i)["image"] for i in range(3)])
    np.testing.assert_array_equal(found, pictures("train")[[4, 11, 5]])
    assert train.class_labels().tolist() == [labels("train")[i] for i in (4, 11, 5)]
    assert len(stl10(folder, fold=4, full=False, limit=2)[0]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"part": "all"}, "unknown part 'all'.*labelled, unlabelled"),
        ({"fold": 10}, r"fold must be 0..9, not 10"),
        ({"fold": -1}, "fold must be an integer of at least 0"),
        ({"fold": 1, "part": "unlabelled"}, "fold=1: the folds are of the labelled pictures"),
        ({"full": True}, r"train_X.bin: holds 12 samples; the published file holds 5000"),
    ],
)
def test_options_are_checked(options, message, folder):
    with pytest.raises(UserError, match=message):
        stl10(folder, **{"full": False} | options)


def test_folds_have_their_size(folder, monkeypatch):
    monkeypatch.setattr(module, "_COUNTS", COUNTS)
    with pytest.raises(UserError, match=r"fold_indices.txt: line 1: has 3 samples; a fold has 1000"):
        stl10(folder, fold=0)


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("train_X.bin", bytes(27648 * 2 + 5), "byte 55301: the file ends here, 5 bytes into picture 2"),
        ("train_X.bin", b"", "holds no samples"),
        ("train_X.bin", bytes(27648 * 11), None),
        ("train_y.bin", bytes([1] * 11), r"byte 11: has 11 labels; .*train_X.bin has 12 pictures"),
        ("train_y.bin", bytes([1, 2, 0] + [1] * 9), r"byte 2: sample 2 has the label 0; labels are 1..10"),
        ("test_y.bin", bytes([1, 11, 3]), r"byte 1: sample 1 has the label 11; labels are 1..10"),
        ("class_names.txt", b"airplane\nbird\ncat\n", "line 3: says cat; class 3 of STL-10 is car"),
        ("class_names.txt", " ".join([*CLASSES, "x"]).encode(), "line 11: says x; there are 10 classes"),
        ("fold_indices.txt", b"1 2\n", "has 1 lines; there are 10 folds"),
        ("fold_indices.txt", b"1 2\n" * 4 + b"1 z\n" * 6, "line 5: holds something else than sample numbers"),
        ("fold_indices.txt", b"\n" * 10, "line 5: has 0 samples"),
        ("fold_indices.txt", b"1 12\n" * 10, r"line 5: its samples must be different numbers in 0..11"),
        ("fold_indices.txt", b"1 1\n" * 10, r"line 5: .*with 1 repeats"),
    ],
)
def test_wrong_files_are_named(file, data, message, folder):
    (folder / "stl10_binary" / file).write_bytes(data)
    match = f"{file}: {message}" if message else r"train_y.bin: byte 11: has 12 labels; .*has 11 pictures"
    with pytest.raises(UserError, match=match):
        stl10(folder, fold=4, full=False)


def test_missing_files_are_named(folder, tmp_path):
    (folder / "stl10_binary" / "test_y.bin").unlink()
    with pytest.raises(
        UserError, match=r"dataset 'stl10': there is no .*test_y.bin; get it with `meta500 data get stl10`"
    ):
        stl10(folder, full=False)


def test_checksums(folder, monkeypatch):
    with pytest.raises(UserError, match=r"train_X.bin: is damaged or another file"):
        stl10(folder, check=True, full=False)
    sums = {
        path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in (folder / "stl10_binary").iterdir()
    }
    monkeypatch.setattr(module, "_MD5", sums | {"test_y.bin": "0" * 32})
    with pytest.raises(
        UserError, match=rf"test_y.bin: .*its MD5 is {sums['test_y.bin']}, the published one is 0{{32}}"
    ):
        stl10(folder, check=True, full=False)
    monkeypatch.setattr(module, "_MD5", sums)
    assert len(stl10(folder, check=True, full=False)[1]) == 3
