"""Folders of pictures: labels by subfolder, masks by name, and what is refused."""

import pickle

import numpy as np
import pytest
from PIL import Image

from meta500.datasets.image_folder import image_folder, labelled_files, mask_folder, picture_names
from meta500.errors import UserError

RANDOM = np.random.default_rng(1)


def save(path, height=6, width=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def save_mask(path, numbers):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(numbers, np.uint8)).save(path)


def classes(root, counts, part=""):
    return {
        f"{name}/{i}.png": save(root / part / name / f"{i}.png", 5 + i)
        for name, count in counts.items()
        for i in range(count)
    }


def refused(call, *words):
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, text


@pytest.mark.parametrize("test", ["test", "val", "validation", "valid"])
def test_two_parts(tmp_path, test):
    train = classes(tmp_path, {"dog": 2, "cat": 3}, "train")
    classes(tmp_path, {"dog": 1}, test)
    (tmp_path / "train" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "train" / "cat" / "._0.png").write_bytes(b"x")
    (tmp_path / "train" / "cat" / "Thumbs.db").write_bytes(b"x")
    first, second = image_folder(tmp_path, size=4, fit="stretch")
    assert first.classes == second.classes == ("cat", "dog")
    assert (len(first), len(second)) == (5, 1)
    assert first.class_labels().tolist() == [0, 0, 0, 1, 1] and second.class_labels().tolist() == [1]
    assert first.shapes == {"image": (3, 4, 4), "label": ()}
    for index, name in enumerate(["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png", "dog/1.png"]):
        stored = first.read(index)
        np.testing.assert_array_equal(stored["image"], train[name].transpose(2, 0, 1))
        assert stored["label"] == first.class_labels()[index] and stored["label"].dtype == np.int64
    batch = first.batch([4, 0])
    assert batch["image"].dtype == np.float32 and batch["label"].tolist() == [1, 0]
    again = pickle.loads(pickle.dumps(first)).batch([4, 0])
    np.testing.assert_array_equal(again["image"], batch["image"])


def test_one_tree_is_split_with_each_class_in_proportion(tmp_path):
    classes(tmp_path, {"a": 10, "b": 5})
    train, test = image_folder(str(tmp_path), size=4, test_fraction=0.2, seed=3)
    assert np.bincount(train.class_labels()).tolist() == [8, 4]
    assert np.bincount(test.class_labels()).tolist() == [2, 1]
    same = image_folder(tmp_path, size=4, test_fraction=0.2, seed=3)
    np.testing.assert_array_equal(test.batch([0, 1, 2])["image"], same[1].batch([0, 1, 2])["image"])
    for data in (train, test):
        found = np.array([int(data.batch([i])["label"][0]) for i in range(len(data))])
        np.testing.assert_array_equal(found, data.class_labels())
    seen = {data.read(i)["image"].tobytes() for data in (train, test) for i in range(len(data))}
    assert len(seen) == 15


def test_limit_takes_classes_in_turn(tmp_path):
    classes(tmp_path, {"a": 4, "b": 4, "c": 1}, "train")
    classes(tmp_path, {"a": 2, "b": 2}, "test")
    train, test = image_folder(tmp_path, size=4, limit=5)
    assert train.class_labels().tolist() == [0, 0, 1, 1, 2] and test.class_labels().tolist() == [0, 0, 1, 1]
    assert train.batch(np.arange(5))["label"].tolist() == [0, 0, 1, 1, 2]


def test_chosen_classes_give_labels_in_their_order(tmp_path):
    classes(tmp_path, {"a": 4, "b": 4, "c": 4}, "train")
    classes(tmp_path, {"a": 2, "c": 1}, "test")
    train, test = image_folder(tmp_path, size=4, classes=("c", "a"), channels=1)
    assert train.classes == ("c", "a") and train.class_labels().tolist() == [0] * 4 + [1] * 4
    assert test.class_labels().tolist() == [0, 1, 1] and train.shapes["image"] == (1, 4, 4)
    only, _ = image_folder(tmp_path / "train", size=4, classes=["b"])
    assert only.classes == ("b",)
    refused(
        lambda: image_folder(tmp_path, classes=("a", "d")),
        "unknown subfolder of",
        tmp_path / "train",
        "'d'",
        "a, b, c",
    )
    refused(lambda: image_folder(tmp_path, classes=("a", "c", "a")), "different names: 'a' is named twice")
    for wrong in ("ac", iter("ac"), {"a", "c"}, 2):
        refused(
            lambda wrong=wrong: image_folder(tmp_path, classes=wrong), "classes must be a list of subfolders"
        )
    refused(lambda: image_folder(tmp_path, classes=[]), "classes must be at least one subfolder")


def test_a_test_class_needs_training_pictures(tmp_path):
    classes(tmp_path, {"a": 1}, "train")
    classes(tmp_path, {"a": 1, "z": 1}, "val")
    refused(lambda: image_folder(tmp_path), "unknown class in", tmp_path / "val", "'z'", "Choose one of: a")


def test_upright_and_normalize(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part / "a").mkdir(parents=True)
        exif = Image.Exif()
        exif[0x0112] = 3
        Image.fromarray(RANDOM.integers(0, 256, (6, 6, 3), dtype=np.uint8)).save(
            tmp_path / part / "a" / "x.jpg", exif=exif
        )
    stored = image_folder(tmp_path, size=6, fit="stretch")[0].batch([0])["image"]
    turned = image_folder(tmp_path, size=6, fit="stretch", upright=True)[0].batch([0])["image"]
    np.testing.assert_array_equal(turned, stored[..., ::-1, ::-1])
    normal = image_folder(tmp_path, size=6, fit="stretch", normalize=True)[0].batch([0])["image"]
    np.testing.assert_allclose(normal[0, 0], (stored[0, 0] - 0.485) / 0.229, atol=1e-6)
    refused(lambda: image_folder(tmp_path, upright="no"), "upright must be True or False, not 'no'")
    refused(lambda: image_folder(tmp_path, normalize=1), "normalize must be True or False, not 1")


def test_refused_folders(tmp_path):
    refused(image_folder, "dataset 'image-folder' needs folder=")
    refused(lambda: image_folder(tmp_path / "no"), "folder=", tmp_path / "no", "there is no such folder")
    refused(lambda: image_folder(tmp_path), tmp_path, "has no subfolders")
    classes(tmp_path, {"a": 1}, "train")
    refused(
        lambda: image_folder(tmp_path),
        tmp_path,
        "has train/ but no test part (test/, val/",
        f"folder={tmp_path / 'train'}",
    )
    classes(tmp_path, {"a": 1}, "test")
    classes(tmp_path, {"a": 2}, "val")
    refused(lambda: image_folder(tmp_path), "has test/ and val/; choose with test=")
    assert len(image_folder(tmp_path, size=4, test="val")[1]) == 2
    refused(
        lambda: image_folder(tmp_path, test="held_out"),
        "test='held_out'",
        tmp_path / "held_out",
        "is no folder of test pictures",
    )
    refused(lambda: image_folder(tmp_path, test="train"), "test='train'")
    refused(
        lambda: image_folder(tmp_path / "train", test="val"), "test='val' needs", tmp_path / "train" / "train"
    )
    (tmp_path / "train" / "b").mkdir()
    refused(lambda: image_folder(tmp_path, test="val"), tmp_path / "train" / "b", "has no pictures (.bmp")
    (tmp_path / "train" / "b" / "notes.txt").write_text("x")
    refused(
        lambda: image_folder(tmp_path, test="val"),
        tmp_path / "train" / "b" / "notes.txt",
        "is no picture file",
    )
    (tmp_path / "train" / "b" / "notes.txt").unlink()
    (tmp_path / "train" / "b" / "deeper.png").mkdir()
    refused(lambda: image_folder(tmp_path, test="val"), "deeper.png: is no picture file")
    save(tmp_path / "train" / "loose.png")
    refused(
        lambda: image_folder(tmp_path, test="val"),
        tmp_path / "train" / "loose.png",
        "is a picture beside the folders of the classes",
    )
    refused(
        lambda: image_folder(tmp_path, test_fraction=1.5),
        "test_fraction must be a number strictly between 0 and 1",
    )
    refused(lambda: picture_names(tmp_path / "no"), tmp_path / "no", "there is no such folder")
    refused(lambda: picture_names(tmp_path / "train" / "a" / "0.png"), "cannot be listed: Not a directory")


def test_check_decodes_everything(tmp_path):
    classes(tmp_path, {"a": 2}, "train")
    classes(tmp_path, {"a": 2}, "test")
    image_folder(tmp_path, check=True)
    bad = tmp_path / "test" / "a" / "1.png"
    bad.write_bytes(bad.read_bytes()[:-30])
    image_folder(tmp_path)
    refused(lambda: image_folder(tmp_path, check=True), bad, "the PNG is cut off")
    refused(lambda: image_folder(tmp_path)[1].batch([1]), bad, "the PNG is cut off")


def test_labelled_files_of_many_classes_are_one_array(tmp_path):
    for name in ("b", "a", "B", "é"):
        save(tmp_path / name / "x.jpeg")
    found, files, labels = labelled_files(tmp_path)
    assert found == ("B", "a", "b", "é") and labels.tolist() == [0, 1, 2, 3]
    assert files.path(3) == tmp_path / "é" / "x.jpeg" and files.names.dtype.kind == "S"


def pairs(root, count=4, masks="masks", height=6):
    found = []
    for i in range(count):
        numbers = RANDOM.integers(0, 3, (height + i, 8))
        numbers[0, :3] = 0, 1, 2
        found.append((save(root / "images" / f"p{i}.jpg", height + i), numbers))
        save_mask(root / masks / f"p{i}.png", numbers)
    return found


@pytest.mark.parametrize("masks", ["masks", "annotations"])
def test_masks_by_name_in_two_parts(tmp_path, masks):
    expected = pairs(tmp_path / "train", 3, masks)
    pairs(tmp_path / "test", 2, masks)
    train, test = mask_folder(tmp_path, size=10)
    assert (len(train), len(test)) == (3, 2) and train.classes == ("0", "1", "2") and train.ignore is None
    assert train.shapes == {"image": (3, 10, 10), "label": (10, 10)} and train.class_labels() is None
    for index, (_, numbers) in enumerate(expected):
        np.testing.assert_array_equal(train.read(index)["label"], numbers)
    assert train.batch([0, 2])["label"].dtype == np.int64


def test_masks_are_split_limited_and_named(tmp_path):
    pairs(tmp_path, 10)
    train, test = mask_folder(tmp_path, size=8, classes=["sky", "sea", "land"], test_fraction=0.3)
    assert (len(train), len(test)) == (7, 3) and train.classes == ("sky", "sea", "land")
    train, test = mask_folder(tmp_path, size=8, classes=3, limit=2)
    assert (len(train), len(test)) == (2, 2) and train.classes == ("0", "1", "2")


def test_ignored_number_and_wrong_numbers(tmp_path):
    for part in ("train", "test"):
        pairs(tmp_path / part, 2)
    numbers = np.zeros((6, 8), np.uint8)
    numbers[4, 5] = 255
    save_mask(tmp_path / "train" / "masks" / "p0.png", numbers)
    train, _ = mask_folder(tmp_path, size=8, ignore=255)
    assert train.classes == ("0", "1", "2") and train.ignore == 255
    np.testing.assert_array_equal(train.read(0)["label"], numbers)
    refused(
        lambda: mask_folder(tmp_path, size=8),
        tmp_path / "train" / "masks" / "p0.png",
        "holds 255, and no mask a number from 3 to 254: give ignore=255 if 255 is void, or classes=256",
    )
    assert len(mask_folder(tmp_path, size=8, classes=256)[0].classes) == 256
    train, _ = mask_folder(tmp_path, size=8, classes=3)
    path = tmp_path / "train" / "masks" / "p0.png"
    refused(
        lambda: train.batch([0]),
        path,
        "pixel (row 4, column 5) holds 255; masks hold 0..2 (3 classes); set classes= or ignore=",
    )
    refused(lambda: mask_folder(tmp_path, classes=3, check=True), path, "holds 255")
    train, _ = mask_folder(tmp_path, classes=1, ignore=255)
    refused(lambda: train.batch([1]), "masks hold 0..0 (1 classes) and 255 (ignored)")


def test_every_stem_needs_a_partner(tmp_path):
    pairs(tmp_path)
    extra = tmp_path / "images" / "alone.png"
    save(extra)
    refused(lambda: mask_folder(tmp_path), tmp_path / "masks", "there is no mask for 'alone.png'")
    extra.unlink()
    (tmp_path / "images" / "p1.jpg").unlink()
    (tmp_path / "images" / "p2.jpg").unlink()
    refused(
        lambda: mask_folder(tmp_path), tmp_path / "images", "there is no picture for 'p1.png' (and 1 more)"
    )
    save(tmp_path / "images" / "p0.png")
    refused(lambda: mask_folder(tmp_path), "'p0.jpg' and 'p0.png' have the same name but for the ending")


def test_refused_mask_folders(tmp_path):
    refused(mask_folder, "dataset 'mask-folder' needs folder=")
    refused(
        lambda: mask_folder(tmp_path), tmp_path, "needs the folder images/ and one of masks/, annotations/"
    )
    pairs(tmp_path)
    (tmp_path / "annotations").mkdir()
    refused(lambda: mask_folder(tmp_path), "needs the folder images/ and one of masks/, annotations/")
    (tmp_path / "annotations").rmdir()
    for wrong in (0, 257, ("a", "a"), True, ()):
        refused(lambda wrong=wrong: mask_folder(tmp_path, classes=wrong), "classes must be")
    refused(
        lambda: mask_folder(tmp_path, classes="sky"),
        "the number of classes or a list of all their names, not 'sky'",
    )
    refused(lambda: mask_folder(tmp_path, classes=iter("ab")), "a list of all their names, not <str_")
    refused(
        lambda: mask_folder(tmp_path, ignore=256),
        "ignore must be a number that a mask can hold, 0..255, not 256",
    )
    save(tmp_path / "masks" / "p3.jpg")
    refused(lambda: mask_folder(tmp_path), tmp_path / "masks" / "p3.jpg", "is no picture file (.png)")
    (tmp_path / "masks" / "p3.jpg").unlink()
    save_mask(tmp_path / "masks" / "p3.png", np.zeros((3, 3)))
    data = mask_folder(tmp_path, classes=3, size=8)
    refused(
        lambda: [part.batch(np.arange(len(part))) for part in data],
        "the mask has 3 x 3 pixels, its picture",
        "9 x 8",
    )
    save(tmp_path / "masks" / "p3.png", 9)
    refused(lambda: mask_folder(tmp_path, size=8), tmp_path / "masks" / "p3.png", "is a PNG of RGB")


def test_folders_beside_the_parts_are_not_left_out_silently(tmp_path):
    for part in ("train", "test", "validation"):
        classes(tmp_path, {"a": 2}, part)
    classes(tmp_path, {"car": 1, "bus": 1})
    (tmp_path / ".cache").mkdir()
    refused(
        lambda: image_folder(tmp_path),
        f"{tmp_path}: has train/, test/, validation/ taken for parts of the set, and bus/, car/ beside",
        "rename 'train' if it is a class",
    )
    assert len(image_folder(tmp_path, size=4, test="test")[1]) == 2
    pairs(tmp_path / "m" / "train")
    pairs(tmp_path / "m" / "test")
    pairs(tmp_path / "m")
    refused(lambda: mask_folder(tmp_path / "m"), "taken for parts of the set, and images/, masks/ beside")


def test_a_class_that_is_called_train_is_told(tmp_path):
    classes(tmp_path, {"train": 3, "bus": 3, "car": 3})
    refused(
        lambda: image_folder(tmp_path),
        "has train/ taken for parts of the set, and bus/, car/ beside",
        "rename 'train' if it is a class",
    )


@pytest.mark.parametrize("load", [image_folder, mask_folder])
def test_a_folder_is_a_path(load):
    refused(lambda: load(""), "folder is empty; give the path, or '.' for the current folder")
    refused(lambda: load(3), "folder must be a path (a text or a Path), not 3")
    refused(lambda: load(b"/tmp"), "folder must be a path (a text or a Path), not b'/tmp'")


@pytest.mark.parametrize(
    ("numbers", "options", "words"),
    [
        ((0, 255), {}, "no mask a number from 1 to 254"),
        ((255,), {}, "no mask a number from 1 to 254"),
        ((1, 255), {"ignore": 1}, "no mask a number from 1 to 254"),
        ((1, 239, 255), {}, "no mask a number from 240 to 254"),
        ((1,), {"ignore": 1}, "ignore=1: every pixel of every mask is ignored"),
    ],
)
def test_255_is_no_class_by_itself(tmp_path, numbers, options, words):
    for place in range(4):
        save(tmp_path / "images" / f"{place}.png", 4, 4)
        save_mask(tmp_path / "masks" / f"{place}.png", np.resize(numbers, (4, 4)))
    refused(lambda: mask_folder(tmp_path, **options), words)
    if len(numbers) > 1:
        assert len(mask_folder(tmp_path, size=4, classes=256, **options)[0].classes) == 256
    save_mask(tmp_path / "masks" / "0.png", np.full((4, 4), 250))
    if numbers[-1] == 255:
        assert len(mask_folder(tmp_path, size=4, **options)[0].classes) == 256
