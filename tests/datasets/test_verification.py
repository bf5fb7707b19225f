"""Checking a dataset's files against the checksums that were kept, and loading with all checks."""

import hashlib

import numpy as np
import pytest

from meta500.datasets import catalog
from meta500.datasets.checksums import verify_checksums, write_checksums
from meta500.datasets.verification import needs_files, verify
from meta500.errors import UserError


def md5(data):
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def small_cifar(tmp_path):
    """CIFAR-10 in the publisher's binary format, with 4 samples in each file, and the list of checksums."""
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    sums = {}
    for number, path in enumerate(catalog.entry("cifar10").unpacked):
        data = "\n".join((*names, "", "")).encode()
        if path.endswith(".bin"):
            pictures = np.random.default_rng(number).integers(0, 256, (4, 3073), np.uint8)
            pictures[:, 0] = np.arange(4)
            data = pictures.tobytes()
        (tmp_path / path).write_bytes(data)
        sums[path] = md5(data)
    write_checksums(tmp_path / "cifar-10-binary.tar.gz.md5", sums)
    return tmp_path


def test_all_is_right(small_cifar):
    found = verify("cifar10", small_cifar, {"full": False})
    assert (found.folder, found.archives, found.compared) == (small_cifar, (), 7)
    assert (len(found.train), len(found.test)) == (20, 4)


def test_a_pixel_that_no_published_checksum_covers(small_cifar):
    path = small_cifar / "cifar-10-batches-bin" / "data_batch_2.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"data_batch_2.bin.*MD5") as caught:
        verify("cifar10", small_cifar, {"full": False})
    assert md5(data) in str(caught.value)


def test_a_kept_archive_is_compared(small_cifar):
    (small_cifar / "cifar-10-binary.tar.gz").write_bytes(b"no")
    with pytest.raises(UserError, match=r"cifar-10-binary.tar.gz.*c32a1d4ab5d03f1284b67883e8d87530"):
        verify("cifar10", small_cifar, {"full": False})


def test_lists_of_checksums(tmp_path):
    (tmp_path / "a b").write_bytes(b"1")
    write_checksums(tmp_path / "x.md5", {"a b": md5(b"1")})
    assert verify_checksums(tmp_path / "x.md5") == 1
    assert (tmp_path / "x.md5").read_text() == f"{md5(b'1')}  a b\n"
    write_checksums(tmp_path / "x.md5", {"a b": md5(b"1"), "gone": md5(b"2")})
    with pytest.raises(UserError, match="gone: cannot be read"):
        verify_checksums(tmp_path / "x.md5")
    (tmp_path / "x.md5").write_text("something\n")
    with pytest.raises(UserError, match="x.md5: line 1 is no MD5 and a name; remove this list"):
        verify_checksums(tmp_path / "x.md5")
    with pytest.raises(UserError, match="no.md5: cannot be read"):
        verify_checksums(tmp_path / "no.md5")


def test_which_sets_need_files():
    assert needs_files("mnist") and needs_files("arrays") and not needs_files("synthetic")


def test_lists_hold_any_name_but_their_own(tmp_path):
    path = tmp_path / "z.md5"
    (tmp_path / "a\rb").write_bytes(b"1")
    write_checksums(path, {"a\rb": md5(b"1")})
    assert verify_checksums(path) == 1
    with pytest.raises(UserError, match=r"z.md5: cannot be the list of checksums"):
        write_checksums(path, {"a": md5(b"1"), "z.md5": md5(b"2")})
