"""The catalog: complete, consistent with the loaders, and told what is missing."""

import importlib
import re

import pytest

from meta500.datasets import catalog
from meta500.datasets.archives import is_archive
from meta500.datasets.samples import LOSSES
from meta500.errors import UserError

NAMES = (
    "cifar10",
    "cifar100",
    "fashion-mnist",
    "imagenet",
    "mnist",
    "oxford-pets",
    "stl10",
    "voc-segmentation",
)


def put(folder, *paths):
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"")


def test_names():
    assert tuple(entry.name for entry in catalog.entries()) == NAMES
    assert catalog.entry("cifar10").title == "CIFAR-10"
    assert catalog.published("digits") is None and catalog.published("mnist") is catalog.entry("mnist")
    with pytest.raises(UserError, match="unknown published dataset 'mnits'. Did you mean 'mnist'?"):
        catalog.entry("mnits")


@pytest.mark.parametrize("name", NAMES)
def test_entries_are_complete(name):
    entry = catalog.entry(name)
    assert entry.title and entry.licence and entry.citation and entry.homepage.startswith("http")
    assert entry.default_loss in LOSSES and entry.classes > 1 and min(entry.samples) > 0
    assert len(entry.shape) == 3 and entry.shape[0] in (1, 3)
    assert bool(entry.files) != bool(entry.how)
    for file in (*entry.files, *entry.by_hand):
        assert re.fullmatch(r"[0-9a-f]{32}", file.md5) and "/" not in file.name
    for file in entry.files:
        assert file.bytes and file.gives
        for url in (file.url, *file.mirrors):
            assert re.match(r"https?://", url) and url.endswith(f"/{file.name}")
        assert not file.unpack or is_archive(file.name)
        assert file.unpack or file.gives == (file.name,)
    if entry.files:
        assert sorted(gift for file in entry.files for gift in file.gives) == sorted(entry.unpacked)
        assert entry.bytes == sum(file.bytes for file in entry.files)
    else:
        assert entry.bytes is None


def test_sizes_and_checksums_as_published():
    found = {
        file.name: (file.md5, file.bytes)
        for name in ("cifar10", "stl10")
        for file in catalog.entry(name).files
    }
    assert found == {
        "cifar-10-binary.tar.gz": ("c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
        "stl10_binary.tar.gz": ("91f7769df0f17e558f3565bffb0c7dfb", 2_640_397_119),
    }


@pytest.mark.parametrize("name", NAMES)
def test_missing_files(name, tmp_path):
    entry = catalog.entry(name)
    assert catalog.missing(name, tmp_path) == list(entry.unpacked)
    put(tmp_path, *entry.unpacked[1:])
    assert catalog.missing(name, tmp_path) == [entry.unpacked[0]]
    put(tmp_path, entry.unpacked[0])
    assert catalog.missing(name, tmp_path) == []


@pytest.mark.parametrize("name", [name for name in NAMES if catalog.entry(name).instead])
def test_other_files_do_as_well(name, tmp_path):
    for number, paths in enumerate(catalog.entry(name).instead):
        put(tmp_path / str(number), *paths)
        assert catalog.missing(name, tmp_path / str(number)) == []
        (tmp_path / str(number) / paths[-1]).unlink()
        assert catalog.missing(name, tmp_path / str(number)) == list(catalog.entry(name).unpacked)


def test_idx_files_may_be_unpacked(tmp_path):
    names = [path.removesuffix(".gz") for path in catalog.entry("mnist").unpacked]
    put(tmp_path, *names[:3], f"{names[3]}.gz")
    assert catalog.missing("mnist", tmp_path) == []


def test_nothing_is_missing_where_no_files_are_needed(tmp_path, monkeypatch):
    assert catalog.missing("digits") == catalog.missing("image-folder", tmp_path / "no") == []
    monkeypatch.setenv("META500_DATA", str(tmp_path))
    assert catalog.missing("imagenet") == ["train", "val"]
    with pytest.raises(UserError, match="dataset 'mnist': folder=.*/no: there is no such folder"):
        catalog.missing("mnist", tmp_path / "no")


@pytest.mark.parametrize("name", NAMES)
def test_the_loader_wants_what_the_catalog_lists(name, tmp_path):
    """Without its files a loader names the first that the catalog says is missing, and with empty ones another."""
    from meta500.datasets.registry import load

    wanted = set(catalog.missing(name, tmp_path))
    with pytest.raises(UserError, match=f"dataset '{name}': there is no ") as caught:
        load(name, folder=str(tmp_path))
    path = re.search(r"there is no (\S+?)[;,]? ", str(caught.value) + " ")[1].removeprefix(f"{tmp_path}/")
    names = {path, path + ".gz", *(f"{folder}/{path}" for folder in FOLDERS)}
    assert names & wanted, (path, wanted)


FOLDERS = ("cifar-10-batches-bin", "cifar-100-binary", "stl10_binary")


@pytest.mark.parametrize("name", ("cifar10", "cifar100", "stl10"))
def test_loaders_find_every_set_of_files(name, tmp_path):
    """Empty files are refused for what is in them, and not as missing."""
    from meta500.datasets.registry import load

    entry = catalog.entry(name)
    for number, paths in enumerate((entry.unpacked, *entry.instead)):
        put(tmp_path / str(number), *paths)
        with pytest.raises(UserError) as caught:
            load(name, folder=str(tmp_path / str(number)))
        assert "there is no" not in str(caught.value)
        assert any(str(tmp_path / str(number) / path) in str(caught.value) for path in paths)


def test_classes_and_losses_are_the_loaders():
    cifar, mnist, stl10, pets, voc = (
        importlib.import_module(f"meta500.datasets.{name}")
        for name in ("cifar", "mnist", "stl10", "pets", "voc")
    )
    known = {
        "cifar10": cifar.CLASSES,
        "cifar100": cifar.FINE_CLASSES,
        "mnist": mnist.CLASSES,
        "fashion-mnist": mnist.FASHION_CLASSES,
        "stl10": stl10.CLASSES,
        "oxford-pets": pets.TRIMAP,
        "voc-segmentation": voc.CLASSES,
    }
    assert {name: len(classes) for name, classes in known.items()} == {
        name: catalog.entry(name).classes for name in known
    }
    assert catalog.entry("oxford-pets").samples == (pets.SAMPLES["trainval"], pets.SAMPLES["test"])
    assert catalog.entry("voc-segmentation").samples == (
        voc.SAMPLES["2012"]["train"],
        voc.SAMPLES["2012"]["val"],
    )


def test_options_say_which_files_are_needed(tmp_path):
    voc = catalog.missing("voc-segmentation", tmp_path, year="2007", test="test", size=64)
    assert voc == catalog.missing("voc-segmentation", tmp_path, year=2007, test="test")
    assert voc[0] == "VOCdevkit/VOC2007/JPEGImages"
    assert voc[3:] == [f"VOCdevkit/VOC2007/ImageSets/Segmentation/{part}.txt" for part in ("train", "test")]
    put(tmp_path, *catalog.entry("voc-segmentation").unpacked)
    assert catalog.missing("voc-segmentation", tmp_path) == []
    assert catalog.missing("voc-segmentation", tmp_path, year="2007", test="test") == voc
    put(tmp_path, *(path.removeprefix("VOCdevkit/") for path in voc))
    assert catalog.missing("voc-segmentation", tmp_path, year="2007", test="test") == []

    pictures = ["stl10_binary/unlabeled_X.bin", "stl10_binary/test_X.bin"]
    assert catalog.missing("stl10", tmp_path, part="unlabelled") == pictures
    put(tmp_path, *catalog.entry("stl10").unpacked)
    assert catalog.missing("stl10", tmp_path, part="labelled") == []
    assert catalog.missing("stl10", tmp_path, part="unlabelled") == pictures[:1]
    assert catalog.missing("stl10", tmp_path, fold=0) == ["stl10_binary/fold_indices.txt"]
    put(tmp_path, "unlabeled_X.bin", "test_X.bin")
    assert catalog.missing("stl10", tmp_path, part="unlabelled") == []

    put(tmp_path, *catalog.entry("cifar10").unpacked)
    assert catalog.missing("cifar10", tmp_path) == catalog.missing("cifar10", tmp_path, format="binary") == []
    assert catalog.missing("cifar10", tmp_path, format="python")[0] == "cifar-10-batches-py/data_batch_1"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("voc-segmentation", {"year": "2007", "test": "test"}),
        ("voc-segmentation", {"train": "trainval", "year": "2007", "test": "test"}),
        ("stl10", {"part": "unlabelled"}),
        ("cifar10", {"format": "python"}),
        ("cifar100", {"format": "python"}),
    ],
)
def test_loaders_want_what_the_catalog_lists_with_options(name, options, tmp_path):
    """With empty files there, none is missing for the loader either."""
    from meta500.datasets.registry import load

    for path in catalog.missing(name, tmp_path, **options):
        (tmp_path / path).mkdir(parents=True) if "." not in path and name[0] == "v" else put(tmp_path, path)
    assert catalog.missing(name, tmp_path, **options) == []
    with pytest.raises(UserError) as caught:
        load(name, folder=str(tmp_path), **options)
    assert "there is no " not in str(caught.value), caught.value


@pytest.mark.parametrize("name", ("cifar10", "cifar100", "stl10"))
def test_lists_of_names_are_asked_for(name, tmp_path):
    texts = [path for path in catalog.entry(name).unpacked if path.endswith(".txt")]
    put(tmp_path, *(path for path in catalog.entry(name).unpacked if path not in texts))
    assert texts and catalog.missing(name, tmp_path) == texts


def test_how_to_get():
    assert catalog.how_to_get("mnist") == "get them with `meta500 data get mnist`"
    assert catalog.how_to_get("voc-segmentation", year="2012").endswith("data get voc-segmentation`")
    for options in ({"year": "2007"}, {"year": 2007, "size": 8}):
        how = catalog.how_to_get("voc-segmentation", **options)
        assert "VOCtrainval_06-Nov-2007.tar (MD5 c52e279531787c972589f7e41ab4ae64) and http" in how
    assert "cifar-10-python.tar.gz" in catalog.how_to_get("cifar10", format="python")
    assert "image-net.org" in catalog.how_to_get("imagenet")
