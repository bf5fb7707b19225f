"""What is known of the published datasets before a file of them is opened: their places and their terms.

Addresses and sizes are those of the publishers, checksums those that the publishers, or torchvision's
dataset classes, give. Terms are said as the publisher says them; where one says nothing, so does the entry.
Sets that need no files (digits, digits-segmentation, synthetic) and own folders have no entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meta500.datasets.places import folder_of
from meta500.errors import choose


@dataclass(frozen=True)
class RemoteFile:
    """One file of a dataset as it is published.

    Attributes:
        url: where it is.
        name: what it is called here.
        md5: checksum, 32 hexadecimal digits.
        bytes: its size; None where it is not known.
        mirrors: further places of the same file, in the order in which they are asked.
        unpack: whether it is an archive that loaders want unpacked; they read other .gz as they are.
        gives: what of the entry's ``unpacked`` comes from it.
    """

    url: str
    name: str
    md5: str
    bytes: int | None
    mirrors: tuple[str, ...] = ()
    unpack: bool = False
    gives: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """A published dataset.

    Attributes:
        name: what `meta500.datasets.load` calls it.
        title: what the publisher calls it.
        files: what is downloaded; empty where it cannot be (see ``how``).
        unpacked: the files that its loader looks for once everything is there, relative to the folder of the
            dataset; of pictures only the folders.
        instead: other sets of files that the loader takes as well, each complete.
        by_hand: files that a person has to get; their url is empty.
        classes: number of classes that the loader gives by default.
        samples: of training and of test, as the loader gives them by default.
        shape: (channels, height, width) of a picture; 0 where pictures differ in size.
        default_loss: see `meta500.datasets.Samples`.
        licence: the publisher's terms.
        homepage, citation: of the publisher.
        how: how to come by the files where no program can download them.
    """

    name: str
    title: str
    files: tuple[RemoteFile, ...]
    unpacked: tuple[str, ...]
    classes: int
    samples: tuple[int, int]
    shape: tuple[int, int, int]
    default_loss: str
    licence: str
    homepage: str
    citation: str
    instead: tuple[tuple[str, ...], ...] = ()
    by_hand: tuple[RemoteFile, ...] = ()
    how: str = ""

    @property
    def bytes(self) -> int | None:
        """Size of what is downloaded; None where nothing is, or a size is not known."""
        sizes = [file.bytes for file in self.files]
        return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None


def entry(name: str) -> Entry:
    """The entry of the dataset ``name``.

    Raises:
        UserError: there is none; lists those that there are.
    """
    return _ENTRIES[choose("published dataset", name, _ENTRIES)]


def published(name: str) -> Entry | None:
    """The entry of the dataset ``name``; None where there is none."""
    return _ENTRIES.get(name)


def entries() -> tuple[Entry, ...]:
    """All entries, sorted by name."""
    return tuple(_ENTRIES[name] for name in sorted(_ENTRIES))


def missing(name: str, /, folder: str | Path | None = None, **options: Any) -> list[str]:
    """The files that the dataset ``name`` needs and that are not there, relative to its folder.

    Nothing is opened, and of folders of pictures only that they are there is looked at. A set without an
    entry needs no files.

    Args:
        options: those that the set is loaded with; some need other files. Options and values that the loader
            does not know are left for it to refuse.

    Raises:
        UserError: ``folder`` is given and does not exist.
    """
    if name not in _ENTRIES:
        return []
    place = folder_of(name, folder)
    first, *others = _wanted(_ENTRIES[name], options)
    if any(all(_is_there(place, path) for path in paths) for paths in others):
        return []
    return [path for path in first if not _is_there(place, path)]


def how_to_get(name: str, /, **options: Any) -> str:
    """What to do to come by the files of the dataset ``name`` as it is loaded with ``options``.

    Raises:
        UserError: no published dataset of this name.
    """
    found = entry(name)
    for (of, option, value), files in _BY_HAND.items():
        if of == name and str(options.get(option)) == value:
            listed = " and ".join(f"{file.url} (MD5 {file.md5})" for file in files)
            return f"download {listed}, and unpack it in the folder of the dataset"
    return f"get them with `meta500 data get {name}`" if found.files else found.how


def _wanted(found: Entry, options: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Sets of files, each of which the loader takes with these options; the first is what to ask for."""
    every = (found.unpacked, *found.instead)
    if found.name == "stl10" and options.get("part") == "unlabelled":
        return _in("stl10_binary", _STL10_UNLABELLED), _STL10_UNLABELLED
    if found.name == "stl10" and options.get("fold") is not None:
        return tuple((*paths, paths[0].replace("train_X.bin", "fold_indices.txt")) for paths in every)
    if found.name in ("cifar10", "cifar100") and options.get("format") in ("binary", "python"):
        python = options["format"] == "python"
        kept = [paths for paths in every if any(path.endswith(".bin") for path in paths) != python]
        return tuple(sorted(kept, key=lambda paths: "/" not in paths[0]))
    if found.name == "voc-segmentation":
        year = str(options.get("year", "2012"))
        lists = (options.get("train", "train"), options.get("test", "val"))
        files = (*_VOC[:3], *(f"ImageSets/Segmentation/{part}.txt" for part in lists))
        # The folder itself may be that of the year.
        return (_in(f"VOCdevkit/VOC{year}", files), _in(f"VOC{year}", files), files)
    return every


def _is_there(place: Path, path: str) -> bool:
    """Whether a file or folder exists; of a .gz that loaders read as it is, also unpacked."""
    return (place / path).exists() or (path.endswith(".gz") and (place / path.removesuffix(".gz")).exists())


def _idx(host: str, mirror: str, *sums: tuple[str, str, int]) -> tuple[RemoteFile, ...]:
    """The four files of MNIST's format."""
    return tuple(
        RemoteFile(
            f"{host}{name}.gz", f"{name}.gz", md5, size, (f"{mirror}{name}.gz",), gives=(f"{name}.gz",)
        )
        for name, md5, size in sums
    )


def _cifar(name: str, md5: str, size: int, *gives: str) -> tuple[RemoteFile, ...]:
    url = f"https://www.cs.toronto.edu/~kriz/{name}"
    return (RemoteFile(url, name, md5, size, unpack=True, gives=gives),)


_IDX = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_CIFAR10 = (*(f"{name}.bin" for name in _BATCHES), "batches.meta.txt")
_CIFAR10_PYTHON = (*_BATCHES, "batches.meta")
_CIFAR100 = ("train.bin", "test.bin", "fine_label_names.txt", "coarse_label_names.txt")
_CIFAR100_PYTHON = ("train", "test", "meta")
_STL10 = ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "class_names.txt")
_VOC = (
    *("JPEGImages", "SegmentationClass", "Annotations"),
    *("ImageSets/Segmentation/train.txt", "ImageSets/Segmentation/val.txt"),
)
_PETS = (
    *("annotations/list.txt", "annotations/trainval.txt", "annotations/test.txt", "annotations/trimaps"),
)


_STL10_UNLABELLED = ("unlabeled_X.bin", "test_X.bin")
_VOC_2007 = "http://host.robots.ox.ac.uk/pascal/VOC/voc2007/"
_CIFAR_PLACE = "https://www.cs.toronto.edu/~kriz/"


def _archive(place: str, name: str, md5: str, size: int | None = None) -> RemoteFile:
    return RemoteFile(place + name, name, md5, size, unpack=True)


# Published files that `meta500 data get` leaves out: by dataset, option and its value.
_BY_HAND: Mapping[tuple[str, str, str], tuple[RemoteFile, ...]] = MappingProxyType(
    {
        ("voc-segmentation", "year", "2007"): (
            _archive(_VOC_2007, "VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64"),
            _archive(_VOC_2007, "VOCtest_06-Nov-2007.tar", "b6e924de25625d8de591ea690078ad9f"),
        ),
        ("cifar10", "format", "python"): (
            _archive(_CIFAR_PLACE, "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071),
        ),
        ("cifar100", "format", "python"): (
            _archive(_CIFAR_PLACE, "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        ),
    }
)


def _in(folder: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names)


_KRIZHEVSKY = (
    "A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, technical report, University of "
    "Toronto (2009)"
)
_CIFAR_TERMS = "none stated; the publisher asks to cite the technical report"

_ENTRIES: Mapping[str, Entry] = MappingProxyType(
    {
        found.name: found
        for found in (
            Entry(
                name="mnist",
                title="The MNIST database of handwritten digits",
                files=_idx(
                    "https://ossci-datasets.s3.amazonaws.com/mnist/",
                    "https://storage.googleapis.com/cvdf-datasets/mnist/",
                    (_IDX[0], "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
                    (_IDX[1], "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
                    (_IDX[2], "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
                    (_IDX[3], "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
                ),
                unpacked=tuple(f"{name}.gz" for name in _IDX),
                classes=10,
                samples=(60_000, 10_000),
                shape=(1, 28, 28),
                default_loss="cross_entropy",
                licence="none stated by the publisher (Y. LeCun, C. Cortes, C. J. C. Burges)",
                homepage="http://yann.lecun.com/exdb/mnist/",
                citation=(
                    "Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Gradient-based learning applied to document "
                    "recognition, Proceedings of the IEEE 86(11) (1998) 2278-2324"
                ),
            ),
            Entry(
                name="fashion-mnist",
                title="Fashion-MNIST",
                files=_idx(
                    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
                    (_IDX[0], "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
                    (_IDX[1], "25c81989df183df01b3e8a0aad5dffbe", 29_515),
                    (_IDX[2], "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
                    (_IDX[3], "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
                ),
                unpacked=tuple(f"{name}.gz" for name in _IDX),
                classes=10,
                samples=(60_000, 10_000),
                shape=(1, 28, 28),
                default_loss="cross_entropy",
                licence="MIT, Zalando SE",
                homepage="https://github.com/zalandoresearch/fashion-mnist",
                citation=(
                    "H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking "
                    "Machine Learning Algorithms, arXiv:1708.07747 (2017)"
                ),
            ),
            Entry(
                name="cifar10",
                title="CIFAR-10",
                files=_cifar(
                    "cifar-10-binary.tar.gz",
                    "c32a1d4ab5d03f1284b67883e8d87530",
                    170_052_171,
                    *_in("cifar-10-batches-bin", _CIFAR10),
                ),
                unpacked=_in("cifar-10-batches-bin", _CIFAR10),
                instead=(_CIFAR10, _in("cifar-10-batches-py", _CIFAR10_PYTHON), _CIFAR10_PYTHON),
                classes=10,
                samples=(50_000, 10_000),
                shape=(3, 32, 32),
                default_loss="cross_entropy",
                licence=_CIFAR_TERMS,
                homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
                citation=_KRIZHEVSKY,
            ),
            Entry(
                name="cifar100",
                title="CIFAR-100",
                files=_cifar(
                    "cifar-100-binary.tar.gz",
                    "03b5dce01913d631647c71ecec9e9cb8",
                    168_513_733,
                    *_in("cifar-100-binary", _CIFAR100),
                ),
                unpacked=_in("cifar-100-binary", _CIFAR100),
                instead=(_CIFAR100, _in("cifar-100-python", _CIFAR100_PYTHON), _CIFAR100_PYTHON),
                classes=100,
                samples=(50_000, 10_000),
                shape=(3, 32, 32),
                default_loss="cross_entropy",
                licence=_CIFAR_TERMS,
                homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
                citation=_KRIZHEVSKY,
            ),
            Entry(
                name="stl10",
                title="STL-10",
                files=(
                    RemoteFile(
                        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                        "stl10_binary.tar.gz",
                        "91f7769df0f17e558f3565bffb0c7dfb",
                        2_640_397_119,
                        ("https://cs.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
                        unpack=True,
                        gives=_in("stl10_binary", _STL10),
                    ),
                ),
                unpacked=_in("stl10_binary", _STL10),
                instead=(_STL10,),
                classes=10,
                samples=(5_000, 8_000),
                shape=(3, 96, 96),
                default_loss="cross_entropy",
                licence=(
                    "none stated; the publisher says that the pictures come from labelled examples of "
                    "ImageNet and asks to cite the paper"
                ),
                homepage="https://cs.stanford.edu/~acoates/stl10/",
                citation=(
                    "A. Coates, H. Lee, A. Y. Ng, An Analysis of Single-Layer Networks in Unsupervised "
                    "Feature Learning, AISTATS (2011)"
                ),
            ),
            Entry(
                name="voc-segmentation",
                title="PASCAL VOC 2012, segmentation",
                files=(
                    RemoteFile(
                        "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
                        "VOCtrainval_11-May-2012.tar",
                        "6cd6e144f989b92b3379bac3b3de84fd",
                        1_999_639_040,
                        ("https://thor.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",),
                        unpack=True,
                        gives=_in("VOCdevkit/VOC2012", _VOC),
                    ),
                ),
                unpacked=_in("VOCdevkit/VOC2012", _VOC),
                instead=(_in("VOC2012", _VOC), _VOC),
                classes=21,
                samples=(1_464, 1_449),
                shape=(3, 0, 0),
                default_loss="cross_entropy",
                licence=(
                    "no licence of its own: the pictures are from flickr, whose terms of use the publisher "
                    "says must be respected"
                ),
                homepage="http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",
                citation=(
                    "M. Everingham, L. Van Gool, C. K. I. Williams, J. Winn, A. Zisserman, The PASCAL Visual "
                    "Object Classes Challenge 2012 (VOC2012) Results"
                ),
            ),
            Entry(
                name="oxford-pets",
                title="The Oxford-IIIT Pet dataset, trimaps",
                files=(
                    RemoteFile(
                        "https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz",
                        "images.tar.gz",
                        "5c4f3ee8e5d25df40f4fd59a7f44e54c",
                        791_918_971,
                        ("https://thor.robots.ox.ac.uk/~vgg/data/pets/images.tar.gz",),
                        unpack=True,
                        gives=("images",),
                    ),
                    RemoteFile(
                        "https://www.robots.ox.ac.uk/~vgg/data/pets/data/annotations.tar.gz",
                        "annotations.tar.gz",
                        "95a8c909bbe2e81eed6a22bccdf3f68f",
                        19_173_078,
                        ("https://thor.robots.ox.ac.uk/~vgg/data/pets/annotations.tar.gz",),
                        unpack=True,
                        gives=_PETS,
                    ),
                ),
                unpacked=("images", *_PETS),
                classes=3,
                samples=(3_680, 3_669),
                shape=(3, 0, 0),
                default_loss="cross_entropy",
                licence="CC BY-SA 4.0; the copyright of a picture stays with its owner",
                homepage="https://www.robots.ox.ac.uk/~vgg/data/pets/",
                citation="O. M. Parkhi, A. Vedaldi, A. Zisserman, C. V. Jawahar, Cats and Dogs, CVPR (2012)",
            ),
            Entry(
                name="imagenet",
                title="ImageNet, ILSVRC 2012 classification",
                files=(),
                by_hand=(
                    RemoteFile(
                        "",
                        "ILSVRC2012_img_train.tar",
                        "1d675b47d978889d74fa0da5fadfb00e",
                        None,
                        gives=("train",),
                    ),
                    RemoteFile(
                        "", "ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", None, gives=("val",)
                    ),
                    RemoteFile("", "ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf", None),
                ),
                unpacked=("train", "val"),
                classes=1_000,
                samples=(1_281_167, 50_000),
                shape=(3, 0, 0),
                default_loss="cross_entropy",
                licence=(
                    "ImageNet's terms of access: non-commercial research and education only; ImageNet does "
                    "not own the copyright of the pictures"
                ),
                homepage="https://www.image-net.org/challenges/LSVRC/2012/",
                citation=(
                    "O. Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, International "
                    "Journal of Computer Vision 115 (2015) 211-252"
                ),
                how=(
                    "ask for access at https://image-net.org, get ILSVRC2012_img_train.tar, "
                    "ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz there, and unpack them into the "
                    "folder of the dataset: the archive of each class into train/WNID, the validation "
                    "pictures into val, the development kit as it is"
                ),
            ),
        )
    }
)
