"""The Oxford-IIIT pets: lists, trimaps, splits, and what is refused."""

import inspect
import pickle

import numpy as np
import pytest
from PIL import Image

from meta500.datasets.pets import BREEDS, SAMPLES, TRIMAP, oxford_pets
from meta500.errors import UserError

RANDOM = np.random.default_rng(3)
HEADER = """#Image CLASS-ID SPECIES BREED ID
#ID: 1:37 Class ids
#SPECIES: 1:Cat 2:Dog
#BREED ID: 1-25:Cat 1:12:Dog
#All images with 1st letter as captial are cat images
#images with small first letter are dog images
"""


def refused(call, *words):
    with pytest.raises(UserError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert str(word) in text, text


def line(name):
    breed = name.rpartition("_")[0]
    cats = [b for b in BREEDS if b[0].isupper()]
    same = cats if breed in cats else [b for b in BREEDS if b not in cats]
    return f"{name} {BREEDS.index(breed) + 1} {1 if breed in cats else 2} {same.index(breed) + 1}"


def publish(root, train, test):
    """Files of the publisher's form for pictures of these names; the trimaps by name."""
    for folder in ("images", "annotations/trimaps"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    trimaps = {}
    for number, name in enumerate([*train, *test]):
        height, width = 8 + number % 5, 12
        pixels = RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{name}.jpg")
        trimaps[name] = RANDOM.integers(1, 4, (height, width), dtype=np.uint8)
        Image.fromarray(trimaps[name]).save(root / "annotations" / "trimaps" / f"{name}.png")
    (root / "images" / "Abyssinian_100.mat").write_bytes(b"left by the publisher")
    write(root, "list", HEADER, sorted([*train, *test]))
    write(root, "trainval", "", train)
    write(root, "test", "", test)
    return trimaps


def write(root, name, header, names):
    (root / "annotations" / f"{name}.txt").write_text(header + "".join(line(n) + "\n" for n in names))


TRAIN = ["Abyssinian_100", "Abyssinian_101", "beagle_2", "Sphynx_7", "Abyssinian_102"]
TEST = ["beagle_20", "Abyssinian_201", "yorkshire_terrier_9"]


@pytest.fixture
def pets(tmp_path):
    publish(tmp_path, TRAIN, TEST)
    return tmp_path


def load(folder, **options):
    return oxford_pets(folder, **{"size": 16, "full": False, **options})


def test_class_ids_are_those_of_the_publisher():
    assert len(BREEDS) == 37 and list(BREEDS) == sorted(BREEDS, key=str.lower)
    assert sum(breed[0].isupper() for breed in BREEDS) == 12
    for published in (
        "american_bulldog_100 2 2 1",
        "basset_hound_126 4 2 3",
        "Sphynx_9 34 1 12",
    ):
        assert line(published.split()[0]) == published
    assert SAMPLES["trainval"] + SAMPLES["test"] == SAMPLES["list"]


def test_trimaps_become_classes_exactly(tmp_path):
    trimaps = publish(tmp_path, TRAIN, TEST)
    train, test = load(tmp_path)
    assert (len(train), len(test)) == (5, 3) and train.classes == TRIMAP == ("pet", "background", "border")
    assert train.shapes == {"image": (3, 16, 16), "label": (16, 16)} and train.ignore is None
    assert "CC BY-SA 4.0" in train.licence and train.class_labels() is None
    for data, names in ((train, TRAIN), (test, TEST)):
        for index, name in enumerate(names):
            stored = data.read(index)
            np.testing.assert_array_equal(stored["label"], trimaps[name] - 1)
            jpeg = np.asarray(Image.open(tmp_path / "images" / f"{name}.jpg"))
            np.testing.assert_array_equal(stored["image"], jpeg.transpose(2, 0, 1))
    batch = train.batch([0, 4])
    assert 0 <= batch["image"].min() <= batch["image"].max() <= 1 and batch["label"].dtype == np.int64
    again = pickle.loads(pickle.dumps(train)).batch([0, 4])
    np.testing.assert_array_equal(again["label"], batch["label"])


def test_breeds_and_species_without_decoding(pets):
    for path in (pets / "images").glob("*.jpg"):
        path.write_bytes(b"")
    train, test = load(pets, task="breed")
    assert train.classes == BREEDS and train.class_labels().tolist() == [0, 0, 4, 33, 0]
    assert test.class_labels().tolist() == [4, 0, 36]
    train, test = load(pets, task="species")
    assert train.classes == ("cat", "dog") and train.class_labels().tolist() == [0, 0, 1, 0, 0]
    assert test.class_labels().tolist() == [1, 0, 1]
    train, test = load(pets, task="breed", breeds=("beagle", "Abyssinian"))
    assert train.classes == ("beagle", "Abyssinian") and train.class_labels().tolist() == [1, 1, 0, 1]
    assert test.class_labels().tolist() == [0, 1]
    assert load(pets, breeds="Abyssinian")[0].classes == TRIMAP
    assert load(pets, task="breed", limit=3)[0].class_labels().tolist() == [0, 4, 33]


def test_labels_of_samples_are_the_class_labels(pets):
    train, _ = load(pets, task="breed")
    np.testing.assert_array_equal(train.batch(np.arange(5))["label"], train.class_labels())


def test_the_set_of_the_thesis(tmp_path):
    names = [f"Abyssinian_{i}" for i in range(100, 120)]
    publish(tmp_path, [*names[:10], "beagle_3"], [*names[10:], "beagle_4"])
    train, test = load(tmp_path, breeds=("Abyssinian",), split="first", limit=12, size=32)
    assert (len(train), len(test)) == (12, 8)
    paths = [train.read.pictures.path(i).stem for i in range(12)]
    assert paths == sorted(names)[:12]
    assert [test.read.pictures.path(i).stem for i in range(8)] == sorted(names)[12:]
    batch = train.batch(np.arange(8))
    assert batch["image"].shape == (8, 3, 32, 32) and batch["label"].shape == (8, 32, 32)
    assert 0 <= batch["image"].min() <= batch["image"].max() <= 1
    defaults = inspect.signature(oxford_pets).parameters
    assert [defaults[key].default for key in ("size", "fit", "normalize")] == [512, "stretch", False]
    refused(
        lambda: load(tmp_path, breeds="Abyssinian", split="first", limit=21),
        "limit=21",
        "there are 20 pictures of these breeds",
    )
    refused(
        lambda: load(tmp_path, breeds="Abyssinian", split="first", limit=20),
        "leaves no test pictures of Abyssinian",
    )
    refused(lambda: load(tmp_path, split="first"), "split='first' needs limit=")
    refused(
        lambda: load(tmp_path, breeds="Bengal"), "split='publisher' leaves no training pictures of Bengal"
    )


def test_random_split(tmp_path):
    names = [f"Bengal_{i}" for i in range(30)]
    publish(tmp_path, names[:20], names[20:])
    train, test = load(tmp_path, split="random", test_fraction=0.3, seed=4)
    assert (len(train), len(test)) == (21, 9)

    def of(data):
        return [data.read.pictures.path(i).stem for i in range(len(data))]

    assert sorted(of(train) + of(test)) == sorted(names)
    assert of(load(tmp_path, split="random", test_fraction=0.3, seed=4)[1]) == of(test)
    assert of(load(tmp_path, split="random", test_fraction=0.3, seed=5)[1]) != of(test)
    assert len(load(tmp_path, split="random", limit=3)[0]) == 3


def test_files_known_to_be_other_formats_are_read(tmp_path):
    names = ["Abyssinian_5", "Egyptian_Mau_139", "Egyptian_Mau_129", "Abyssinian_1"]
    trimaps = publish(tmp_path, names, ["pug_1"])
    pixels = {}
    for name, kind, mode in (
        ("Abyssinian_5", "PNG", "RGBA"),
        ("Egyptian_Mau_139", "GIF", "P"),
        ("Egyptian_Mau_129", "JPEG", "L"),
    ):
        colours = RANDOM.integers(0, 256, (*trimaps[name].shape, 3), dtype=np.uint8)
        image = Image.fromarray(colours).convert(mode)
        if mode == "RGBA":
            image.putalpha(100)
        image.save(tmp_path / "images" / f"{name}.jpg", kind)
        pixels[name] = np.asarray(Image.open(tmp_path / "images" / f"{name}.jpg").convert("RGB"))
    train, _ = load(tmp_path)
    for index, name in enumerate(names[:3]):
        np.testing.assert_array_equal(train.read(index)["image"], pixels[name].transpose(2, 0, 1))
    assert train.batch(np.arange(4))["image"].shape == (4, 3, 16, 16)


def test_missing_files_are_named_and_can_be_left_out(pets):
    (pets / "annotations" / "trimaps" / "beagle_2.png").unlink()
    (pets / "images" / "Sphynx_7.jpg").unlink()
    picture, trimap = pets / "images" / "Sphynx_7.jpg", pets / "annotations" / "trimaps" / "beagle_2.png"
    refused(
        lambda: load(pets),
        f"there is no {picture} (1 of 5 are missing)",
        "meta500 data get oxford-pets",
        "skip=",
    )
    refused(lambda: load(pets, skip="Sphynx_7"), f"there is no {trimap} (1 of 4 are missing)")
    train, test = load(pets, skip=("Sphynx_7", "beagle_2"))
    assert (len(train), len(test)) == (3, 3)
    assert len(load(pets, task="breed", skip="Sphynx_7")[0]) == 4
    refused(
        lambda: load(pets, skip="Sphynx_8"),
        "unknown name to skip of dataset 'oxford-pets' 'Sphynx_8'",
        "Sphynx_7",
    )


def test_trimaps_must_hold_1_2_and_3_and_fit(pets):
    path = pets / "annotations" / "trimaps" / "Abyssinian_100.png"
    numbers = np.full((8, 12), 2, np.uint8)
    numbers[5, 6] = 0
    Image.fromarray(numbers).save(path)
    refused(
        lambda: load(pets)[0].batch([0]),
        path,
        "pixel (row 5, column 6) holds 0; a trimap holds 1 (pet), 2 (background) and 3",
    )
    refused(lambda: load(pets, check=True), path)
    Image.fromarray(numbers[:4]).save(path)
    refused(lambda: load(pets)[0].batch([0]), path, "the mask has 4 x 12 pixels, its picture", "8 x 12")
    path.write_bytes(path.read_bytes()[:50])
    refused(lambda: load(pets)[0].batch([0]), path, "the PNG is cut off")
    load(pets, task="breed", check=True)
    jpeg = pets / "images" / "Abyssinian_100.jpg"
    jpeg.write_bytes(jpeg.read_bytes()[:-60])
    refused(lambda: load(pets, task="breed", check=True), jpeg, "the JPEG is damaged or cut off")


@pytest.mark.parametrize(
    "text, words",
    [
        ("Abyssinian_1 1 1", "line 7 is 'Abyssinian_1 1 1'; NAME CLASS-ID SPECIES BREED-ID is needed"),
        ("Abyssinian_1 one 1 1", "NAME CLASS-ID SPECIES BREED-ID is needed"),
        ("Abyssinian_1 2 1 1", "line 7: 'Abyssinian_1' has the CLASS-ID 2; that of Abyssinian is 1"),
        ("Abyssinian_1 1 2 1", "line 7: 'Abyssinian_1' has the SPECIES 2; a cat has 1"),
        ("beagle_1 5 1 4", "line 7: 'beagle_1' has the SPECIES 1; a dog has 2"),
        ("poodle_1 5 2 4", "line 7: 'poodle_1' is no breed and number, such as Abyssinian_1"),
        ("../beagle_1 5 2 4", "'../beagle_1' is no breed and number"),
        ("beagle_x 5 2 4", "'beagle_x' is no breed and number"),
        ("beagle_1 5 2 4\nbeagle_1 5 2 4", "line 8: 'beagle_1' is listed twice"),
        ("", "holds no samples"),
    ],
)
def test_damaged_lists(pets, text, words):
    path = pets / "annotations" / "list.txt"
    path.write_text(HEADER + text + "\n")
    refused(lambda: load(pets, split="random"), path, words)


def test_lists_must_be_whole_and_apart(pets):
    annotations = pets / "annotations"
    refused(
        lambda: oxford_pets(pets), annotations / "trainval.txt", "holds 5 samples", "holds 3680", "full=False"
    )
    refused(
        lambda: oxford_pets(pets, split="random"), annotations / "list.txt", "holds 8 samples", "holds 7349"
    )
    write(pets, "test", "", [*TEST, "beagle_2"])
    refused(lambda: load(pets), annotations, "'beagle_2' is in trainval.txt and in test.txt")
    (annotations / "test.txt").unlink()
    refused(lambda: load(pets), f"there is no {annotations / 'test.txt'}", "meta500 data get oxford-pets")


def test_options_are_checked(pets, monkeypatch):
    refused(
        lambda: load(pets, task="head"),
        "unknown task of dataset 'oxford-pets' 'head'",
        "breed, species, trimap",
    )
    refused(lambda: load(pets, split="half"), "unknown split of dataset", "first, publisher, random")
    refused(lambda: load(pets, breeds=("abyssinian",)), "unknown breed of dataset", "Abyssinian")
    refused(lambda: load(pets, breeds=("pug", "pug")), "a breed is named twice")
    refused(lambda: load(pets, limit=0), "limit must be an integer of at least 1, not 0")
    refused(
        lambda: load(pets, split="random", test_fraction=2), "test_fraction must be a number strictly between"
    )
    refused(lambda: load(pets, split="random", seed=-1), "seed must be an integer of at least 0, not -1")
    for name in ("full", "check", "normalize"):
        refused(lambda name=name: load(pets, **{name: "no"}), f"{name} must be True or False, not 'no'")
    monkeypatch.setenv("META500_DATA", str(pets / "nowhere"))
    refused(oxford_pets, "there is no", "oxford-pets/annotations/trainval.txt", "give folder=...")
