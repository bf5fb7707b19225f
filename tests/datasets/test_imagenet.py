"""ImageNet in folders: classes in the field's order, flat validation pictures, and what is refused."""

import pickle

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from meta500.datasets import imagenet as module
from meta500.datasets.imagenet import DEVKIT, GROUND_TRUTH, imagenet
from meta500.errors import UserError

RANDOM = np.random.default_rng(4)
WNIDS = ("n01440764", "n01443537", "n02084071")
# ILSVRC2012_IDs are in another order than the WNIDs.
IDS = {"n01440764": 3, "n01443537": 1, "n02084071": 2}
VAL = ("n02084071", "n01440764", "n01440764", "n01443537")


def refused(call, *words):
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, text


def save(path, height=10, width=14):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path, "JPEG")


def train(root, each=3):
    for wnid in WNIDS:
        for i in range(each):
            save(root / "train" / wnid / f"{wnid}_{i * 7}.JPEG")


def flat(root):
    for number, _ in enumerate(VAL, 1):
        save(root / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")


def ground_truth(place):
    place.mkdir(parents=True, exist_ok=True)
    (place / GROUND_TRUTH).write_text("".join(f"{IDS[wnid]}\n" for wnid in VAL))


def meta(place, rows=None):
    """meta.mat as the development kit has it: the classes and, after them, synsets with children."""
    place.mkdir(parents=True, exist_ok=True)
    if rows is None:
        rows = [(number, wnid, 0) for wnid, number in sorted(IDS.items(), key=lambda item: item[1])]
        rows.append((1001, "n00001740", 3))
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("words", "O"), ("num_children", "O"), ("children", "O")]
    synsets = np.zeros((len(rows), 1), kind)
    for i, (number, wnid, children) in enumerate(rows):
        synsets[i, 0] = (
            float(number),
            wnid,
            f"words of {wnid}",
            float(children),
            np.arange(children, dtype=float),
        )
    savemat(place / "meta.mat", {"synsets": synsets})


def load(folder, **options):
    return imagenet(folder, **{"size": 8, "full": False, **options})


def test_folders_of_classes(tmp_path):
    train(tmp_path)
    for number, wnid in enumerate(VAL, 1):
        save(tmp_path / "val" / wnid / f"ILSVRC2012_val_{number:08d}.JPEG")
    first, second = load(tmp_path)
    assert first.classes == second.classes == WNIDS
    assert first.class_labels().tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert second.class_labels().tolist() == [0, 0, 1, 2]
    assert first.shapes == {"image": (3, 8, 8), "label": ()} and "non-commercial" in first.licence
    path = tmp_path / "train" / WNIDS[1] / f"{WNIDS[1]}_14.JPEG"
    np.testing.assert_array_equal(first.read(4)["image"], np.asarray(Image.open(path)).transpose(2, 0, 1))
    batch = second.batch(np.arange(4))
    assert batch["label"].tolist() == [0, 0, 1, 2] and batch["image"].dtype == np.float32
    again = pickle.loads(pickle.dumps(second)).batch(np.arange(4))
    np.testing.assert_array_equal(again["image"], batch["image"])
    few, few_val = load(tmp_path, limit=4)
    assert few.class_labels().tolist() == [0, 0, 1, 2] and few_val.class_labels().tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("place", [".", "data", DEVKIT, f"{DEVKIT}/data"])
def test_flat_validation_pictures_by_the_development_kit(tmp_path, place):
    train(tmp_path)
    flat(tmp_path)
    ground_truth(tmp_path / place)
    meta(tmp_path / place)
    _, second = load(tmp_path)
    assert second.class_labels().tolist() == [WNIDS.index(wnid) for wnid in VAL] == [2, 0, 0, 1]
    assert second.batch([0, 3])["label"].tolist() == [2, 1]


def test_synsets_as_text(tmp_path):
    train(tmp_path)
    flat(tmp_path)
    listed = tmp_path / "synsets.txt"
    listed.write_text("".join(f"{number} {wnid} some words\n" for wnid, number in IDS.items()))
    refused(
        lambda: load(tmp_path, synsets=listed),
        f"there is no {tmp_path / DEVKIT / 'data' / GROUND_TRUTH} to tell the classes by",
        "synsets=",
    )
    ground_truth(tmp_path)
    assert load(tmp_path, synsets=str(listed))[1].class_labels().tolist() == [2, 0, 0, 1]
    listed.write_text("\n".join(VAL) + "\n")
    assert load(tmp_path, synsets=listed)[1].class_labels().tolist() == [2, 0, 0, 1]
    listed.write_text("\n".join(f"n{i:08d}" for i in range(1000)))
    refused(
        lambda: load(tmp_path, synsets=listed),
        listed,
        "has 1000 WNIDs and does not say which ILSVRC2012_ID each has",
    )
    for text, words in (
        ("1 n01443537\nfish\n", "line 2 is 'fish'; 'ILSVRC2012_ID WNID' is needed"),
        ("1 n01443537\n1 n01440764\n", "line 2: 1 n01440764 is there twice"),
        ("1 n01443537\n2 n01443537\n", "line 2: 2 n01443537 is there twice"),
        ("\n\n", "is empty"),
        ("n01443537\n", "has 1 lines, none for"),
        ("n01443537\n" * 3 + "n99999999\n", "line 4 is of class n99999999, which has no folder in"),
        ("1 n01443537\n", "line 1 is '2', no ILSVRC2012_ID of a class"),
    ):
        listed.write_text(text)
        refused(lambda: load(tmp_path, synsets=listed), words)
    refused(lambda: load(tmp_path, synsets=tmp_path / "no.txt"), tmp_path / "no.txt", "there is no such file")


def test_damaged_development_kits(tmp_path):
    train(tmp_path)
    flat(tmp_path)
    refused(
        lambda: load(tmp_path), tmp_path / "val", "has no folders of classes, and there is no", GROUND_TRUTH
    )
    kit = tmp_path / DEVKIT / "data"
    ground_truth(kit)
    refused(lambda: load(tmp_path), f"there is no {kit / 'meta.mat'} to tell the classes by")
    meta(kit)
    data = (kit / "meta.mat").read_bytes()
    for cut in (0, 100, len(data) // 2):
        (kit / "meta.mat").write_bytes(data[:cut])
        refused(
            lambda: load(tmp_path), kit / "meta.mat", "is damaged or no meta.mat", f"the file has {cut} bytes"
        )
    savemat(kit / "meta.mat", {"other": np.zeros(3)})
    refused(
        lambda: load(tmp_path),
        kit / "meta.mat",
        "'synsets' with ILSVRC2012_ID, WNID and num_children is needed",
    )
    meta(kit, [(1, "fish", 0), (2, "n01440764", 0)])
    refused(lambda: load(tmp_path), kit / "meta.mat", "'fish' is no WNID")
    meta(kit, [(1, "n01440764", 0), (1, "n01443537", 0)])
    refused(lambda: load(tmp_path), kit / "meta.mat", "no classes, or one twice")
    meta(kit)
    truth = kit / GROUND_TRUTH
    for text, words in (
        ("2\n1001\n", "line 2 is '1001', no ILSVRC2012_ID of a class"),
        ("2\nx\n", "line 2 is 'x'"),
        ("2\n1\n3\n", "has 3 lines, none for"),
    ):
        truth.write_text(text)
        refused(lambda: load(tmp_path), truth, words)
    ground_truth(kit)
    save(tmp_path / "val" / "cat.JPEG")
    refused(
        lambda: load(tmp_path), tmp_path / "val" / "cat.JPEG", "is not called ILSVRC2012_val_NNNNNNNN.JPEG"
    )


def test_refused_folders(tmp_path, monkeypatch):
    refused(
        lambda: load(tmp_path),
        f"there is no {tmp_path / 'train'}; its archives need an account at image-net.org",
    )
    train(tmp_path)
    refused(lambda: load(tmp_path), f"there is no {tmp_path / 'val'}")
    save(tmp_path / "val" / "n09999999" / "x.JPEG")
    refused(lambda: load(tmp_path), "unknown class in", tmp_path / "val", "'n09999999'")
    (tmp_path / "train" / "cats").mkdir()
    save(tmp_path / "train" / "cats" / "x.JPEG")
    refused(lambda: load(tmp_path), tmp_path / "train" / "cats", "is no WNID such as n01440764")
    refused(lambda: load(tmp_path / "no"), "there is no such folder")
    monkeypatch.setenv("META500_DATA", str(tmp_path))
    refused(imagenet, f"there is no {tmp_path / 'imagenet' / 'train'}")


def test_full_compares_the_published_numbers(tmp_path, monkeypatch):
    train(tmp_path)
    save(tmp_path / "val" / WNIDS[0] / "x.JPEG")
    refused(
        lambda: imagenet(tmp_path),
        tmp_path / "train",
        "has 3 classes; ImageNet has 1000 (full=False takes any number)",
    )
    monkeypatch.setattr(module, "CLASSES", 3)
    refused(lambda: imagenet(tmp_path), tmp_path / "train", "has 9 pictures; ImageNet has 1281167")
    monkeypatch.setattr(module, "SAMPLES", {"train": 9, "val": 50_000})
    refused(lambda: imagenet(tmp_path), tmp_path / "val", "has 1 pictures; ImageNet has 50000")
    monkeypatch.setattr(module, "SAMPLES", {"train": 9, "val": 1})
    assert len(imagenet(tmp_path)[1]) == 1


def test_known_oddities_and_check(tmp_path):
    train(tmp_path, 1)
    save(tmp_path / "val" / WNIDS[0] / "x.JPEG")
    odd = tmp_path / "train" / "n02084071" / "n02084071_2933.JPEG"
    pixels = RANDOM.integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(odd, "PNG")
    cmyk = tmp_path / "train" / "n02084071" / "n02084071_5.JPEG"
    Image.fromarray(pixels).convert("CMYK").save(cmyk, "JPEG")
    first, _ = load(tmp_path, check=True)
    np.testing.assert_array_equal(first.read(3)["image"], pixels.transpose(2, 0, 1))
    assert first.read(4)["image"].shape == (3, 9, 9)
    odd.write_bytes(odd.read_bytes()[:100])
    load(tmp_path)
    refused(lambda: load(tmp_path, check=True), odd, "the PNG is cut off")
    for name in ("full", "check", "normalize"):
        refused(lambda name=name: load(tmp_path, **{name: "no"}), f"{name} must be True or False, not 'no'")
