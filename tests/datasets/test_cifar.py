"""CIFAR-10 and CIFAR-100 from records and from pickles as Python 2 and 3 write them; hostile pickles do nothing."""

import hashlib
import io
import pickle
import pickletools
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.datasets import cifar as module
from meta500.datasets.cifar import CLASSES, COARSE_CLASSES, FINE_CLASSES, cifar10, cifar100
from meta500.datasets.plain_pickle import read_pickle
from meta500.errors import UserError

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]


def pictures(seed, count):
    """(count, 3072) as the files hold them."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def labels(seed, count, classes):
    return np.random.default_rng((seed, classes)).integers(0, classes, count).tolist()


def python2_pickle(value, numpy_core="numpy.core"):
    """Protocol 2 as cPickle of Python 2 writes it: str as BINSTRING, every object memorized."""
    out, memo = io.BytesIO(), 0
    out.write(b"\x80\x02")

    def put():
        nonlocal memo
        memo += 1
        out.write(b"q" + bytes([memo]) if memo < 256 else b"r" + struct.pack("<I", memo))

    def save(item):
        if isinstance(item, bytes):
            short = len(item) < 256
            out.write((b"U" + bytes([len(item)]) if short else b"T" + struct.pack("<i", len(item))) + item)
            put()
        elif item is None:
            out.write(b"N")
        elif isinstance(item, bool):
            out.write(b"\x88" if item else b"\x89")
        elif isinstance(item, int):
            if 0 <= item < 256:
                out.write(b"K" + bytes([item]))
            elif 0 <= item < 65536:
                out.write(b"M" + struct.pack("<H", item))
            else:
                out.write(b"J" + struct.pack("<i", item))
        elif isinstance(item, list):
            out.write(b"]")
            put()
            out.write(b"(")
            for element in item:
                save(element)
            out.write(b"e")
        elif isinstance(item, dict):
            out.write(b"}")
            put()
            out.write(b"(")
            for key, element in item.items():
                save(key)
                save(element)
            out.write(b"u")
        elif isinstance(item, tuple):
            for element in item:
                save(element)
            out.write({1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(item)])
            put()
        elif isinstance(item, np.ndarray):
            fortran = item.flags.f_contiguous and not item.flags.c_contiguous
            out.write(f"c{numpy_core}.multiarray\n_reconstruct\n".encode())
            put()
            out.write(b"cnumpy\nndarray\n")
            put()
            save((0,))
            save(b"b")
            out.write(b"\x87")
            put()
            out.write(b"R")
            put()
            out.write(b"(K\x01")
            save(item.shape)
            out.write(b"cnumpy\ndtype\n")
            put()
            save(b"u1")
            out.write(b"K\x00K\x01\x87")
            put()
            out.write(b"R")
            put()
            out.write(b"(K\x03")
            save(b"|")
            out.write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t")
            put()
            out.write(b"b")
            save(fortran)
            save(item.tobytes("F" if fortran else "C"))
            out.write(b"t")
            put()
            out.write(b"b")
        else:
            raise AssertionError(item)

    save(value)
    out.write(b".")
    return out.getvalue()


def test_the_python2_writer_writes_what_pickle_reads():
    value = {b"data": pictures(0, 2), b"labels": [1, 300, -7], b"n": (None, True)}
    found = pickle.loads(python2_pickle(value), encoding="bytes")
    np.testing.assert_array_equal(found.pop(b"data"), value.pop(b"data"))
    assert found == value


WRITERS = {
    "python 2": python2_pickle,
    "protocol 2": lambda value: pickle.dumps(value, 2),
    "protocol 3": lambda value: pickle.dumps(value, 3),
    "protocol 4": lambda value: pickle.dumps(value, 4),
    "protocol 5": lambda value: pickle.dumps(value, 5),
    "numpy 1": lambda value: pickle.dumps(value, 2).replace(b"numpy._core.", b"numpy.core."),
    "text keys": lambda value: pickle.dumps({key.decode(): item for key, item in value.items()}, 4),
    "column-major": lambda value: python2_pickle(
        {key: np.asfortranarray(item) if key == b"data" else item for key, item in value.items()}
    ),
}


def write10(place, form, writer=python2_pickle, count=3):
    place.mkdir(exist_ok=True)
    for seed, batch in enumerate([*BATCHES, "test_batch"]):
        images, truth = pictures(seed, count), labels(seed, count, 10)
        if form == "binary":
            records = b"".join(bytes([k]) + row.tobytes() for k, row in zip(truth, images, strict=True))
            (place / f"{batch}.bin").write_bytes(records)
        else:
            value = {
                b"batch_label": batch.encode(),
                b"labels": truth,
                b"data": images,
                b"filenames": [f"{i}.png".encode() for i in range(count)],
            }
            (place / batch).write_bytes(writer(value))
    if form == "binary":
        (place / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
    else:
        meta = {
            b"num_cases_per_batch": 10000,
            b"label_names": [name.encode() for name in CLASSES],
            b"num_vis": 3072,
        }
        (place / "batches.meta").write_bytes(writer(meta))


def write100(place, form, count=4):
    place.mkdir(exist_ok=True)
    for seed, part in enumerate(("train", "test")):
        images, fine, coarse = pictures(seed, count), labels(seed, count, 100), labels(seed, count, 20)
        if form == "binary":
            rows = zip(coarse, fine, images, strict=True)
            (place / f"{part}.bin").write_bytes(b"".join(bytes([c, f]) + row.tobytes() for c, f, row in rows))
        else:
            value = {
                b"filenames": [b"x.png"] * count,
                b"fine_labels": fine,
                b"coarse_labels": coarse,
                b"data": images,
            }
            (place / part).write_bytes(python2_pickle(value))
    names = {"fine_label_names": FINE_CLASSES, "coarse_label_names": COARSE_CLASSES}
    if form == "binary":
        for key, classes in names.items():
            (place / f"{key}.txt").write_text("\n".join(classes) + "\n")
    else:
        meta = {key.encode(): [name.encode() for name in classes] for key, classes in names.items()}
        (place / "meta").write_bytes(python2_pickle(meta))


def check_part(part, seeds, count, classes):
    expected = np.concatenate([pictures(seed, count) for seed in seeds]).reshape(-1, 3, 32, 32)
    truth = [label for seed in seeds for label in labels(seed, count, classes)]
    assert len(part) == len(expected) and part.class_labels().tolist() == truth
    stored = [part.read(i) for i in range(len(part))]
    np.testing.assert_array_equal(np.stack([s["image"] for s in stored]), expected)
    assert stored[0]["image"].dtype == np.uint8 and [int(s["label"]) for s in stored] == truth
    batch = part.batch(np.arange(len(part)))
    np.testing.assert_array_equal(batch["image"], expected.astype(np.float32) / 255)
    assert batch["label"].tolist() == truth and batch["label"].dtype == np.int64
    again = pickle.loads(pickle.dumps(part)).batch([len(part) - 1])
    np.testing.assert_array_equal(again["image"], batch["image"][-1:])


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("inside", [False, True])
def test_cifar10_is_read_exactly(form, inside, tmp_path):
    inner = {"binary": "cifar-10-batches-bin", "python": "cifar-10-batches-py"}[form]
    write10(tmp_path / inner if inside else tmp_path, form)
    for format in ("auto", form):
        train, test = cifar10(tmp_path, format=format, full=False)
        check_part(train, range(5), 3, 10)
        check_part(test, [5], 3, 10)
    assert train.classes == CLASSES and train.name == "cifar10" and train.licence
    assert train.shapes == {"image": (3, 32, 32), "label": ()}


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize(("kind", "classes"), [("fine", FINE_CLASSES), ("coarse", COARSE_CLASSES)])
def test_cifar100_is_read_exactly(form, kind, classes, tmp_path):
    write100(tmp_path, form)
    for seed, part in enumerate(cifar100(tmp_path, labels=kind, full=False)):
        check_part(part, [seed], 4, len(classes))
        assert part.classes == classes
    assert (len(FINE_CLASSES), len(COARSE_CLASSES)) == (100, 20)
    assert len(set(FINE_CLASSES)) == 100 and list(FINE_CLASSES) == sorted(FINE_CLASSES)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_spelling_of_the_pickles_is_read(writer, tmp_path):
    write10(tmp_path, "python", WRITERS[writer])
    train, test = cifar10(tmp_path, full=False)
    check_part(train, range(5), 3, 10)
    check_part(test, [5], 3, 10)


def test_labels_as_numpy_scalars_are_read(tmp_path):
    write10(tmp_path, "python")
    value = {b"data": pictures(0, 3), b"labels": [np.int64(k) for k in labels(0, 3, 10)]}
    for protocol in (2, 4):
        (tmp_path / "data_batch_1").write_bytes(pickle.dumps(value, protocol))
        check_part(cifar10(tmp_path, full=False)[0], range(5), 3, 10)


def test_binary_files_come_first(tmp_path):
    write10(tmp_path / "cifar-10-batches-bin", "binary", count=2)
    write10(tmp_path / "cifar-10-batches-py", "python", count=3)
    assert len(cifar10(tmp_path, full=False)[1]) == 2
    assert len(cifar10(tmp_path, format="python", full=False)[1]) == 3


def test_options(tmp_path):
    write10(tmp_path, "binary")
    train, test = cifar10(tmp_path, normalize=True, limit=4, full=False)
    assert (len(train), len(test)) == (4, 3)
    stored = pictures(1, 3)[0].reshape(3, 32, 32).astype(np.float64)
    mean, deviation = np.array([125.3, 123.0, 113.9]), np.array([63.0, 62.1, 66.7])
    expected = (stored - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(train.batch([3])["image"][0], expected, rtol=1e-5, atol=1e-6)
    assert cifar10(tmp_path, size=224, full=False)[0].batch([0])["image"].shape == (1, 3, 224, 224)
    for call, message in (
        (lambda: cifar10(tmp_path, format="pickle"), "unknown format 'pickle'"),
        (lambda: cifar100(tmp_path, labels="both"), "unknown labels 'both'"),
        (lambda: cifar10(tmp_path), r"data_batch_1.bin: holds 3 samples; the published file holds 10000"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_missing_files_are_named(tmp_path):
    for call, file in (
        (lambda: cifar10(tmp_path), "batches.meta.txt"),
        (lambda: cifar10(tmp_path, format="python"), "batches.meta"),
        (lambda: cifar100(tmp_path), "coarse_label_names.txt"),
    ):
        with pytest.raises(
            UserError, match=rf"dataset 'cifar100?': there is no {tmp_path}/{file}; get it with"
        ):
            call()
    write10(tmp_path, "binary")
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(
        UserError, match="there is no .*data_batch_4.bin; get it with `meta500 data get cifar10`"
    ):
        cifar10(tmp_path, full=False)


@pytest.mark.parametrize(
    ("file", "data", "message"),
    [
        ("data_batch_2.bin", bytes(3073 + 100), "byte 3173: the file ends here, 100 bytes into sample 1"),
        ("data_batch_2.bin", b"", "holds no samples"),
        (
            "test_batch.bin",
            bytes(3073) + b"\x0a" + bytes(3072),
            r"byte 3073: sample 1 has the label 10; labels are 0..9",
        ),
        ("batches.meta.txt", b"airplane\nbird\n", "name 2 is bird; class 1 of CIFAR-10 is automobile"),
        ("batches.meta.txt", b"airplane\n", "name 2 is missing"),
        ("batches.meta.txt", " ".join([*CLASSES, "x"]).encode(), "has 11 names; CIFAR-10 has 10"),
    ],
)
def test_wrong_binary_files_are_named(file, data, message, tmp_path):
    write10(tmp_path, "binary")
    (tmp_path / file).write_bytes(data)
    with pytest.raises(UserError, match=f"{file}: {message}"):
        cifar10(tmp_path, full=False)


def test_both_labels_of_cifar100_are_checked(tmp_path):
    write100(tmp_path, "binary")
    for record, byte, message in (
        (b"\x14\x00", 3074, r"sample 1 has the label 20; labels are 0..19"),
        (b"\x00\x64", 3075, r"sample 1 has the label 100; labels are 0..99"),
    ):
        (tmp_path / "test.bin").write_bytes(bytes(3074) + record + bytes(3072))
        with pytest.raises(UserError, match=f"test.bin: byte {byte}: {message}"):
            cifar100(tmp_path, full=False)


def batch(**changes):
    value = {b"labels": [1, 2], b"data": pictures(0, 2)} | {k.encode(): v for k, v in changes.items()}
    return python2_pickle({key: item for key, item in value.items() if item is not None})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (python2_pickle([1, 2]), r"has no 'data' \(ndarray\) in its dict; it has: none, it is a list"),
        (batch(data=None), r"has no 'data' \(ndarray\) in its dict; it has: labels"),
        (batch(labels=None), r"has no 'labels' \(list\) in its dict; it has: data"),
        (batch(data=pictures(0, 2)[:, :3000]), r"'data' is uint8 of shape \(2, 3000\); uint8 \(N, 3072\)"),
        (pickle.dumps({"data": pictures(0, 2).astype(np.int16), "labels": [1, 2]}), "'data' is int16"),
        (batch(labels=[1]), "has 1 'labels' for 2 pictures"),
        (batch(labels=[1, -1]), r"byte \d+: sample 1 has -1 in 'labels'; labels are 0..9"),
        (batch(labels=[1, b"cat"]), r"sample 1 has a bytes in 'labels'"),
        (
            pickle.dumps({"data": pictures(0, 2).astype(np.float32), "labels": [1, 2]}),
            "dtype 'f4'; integers are needed",
        ),
        (pickle.dumps({"data": np.array([None]), "labels": [1]}, 2), "dtype 'O8'; integers are needed"),
        (batch() + b"x", r"byte \d+: the pickle ends here, the file goes on"),
        (b"not a pickle", r"byte 0 of 12: is no pickle of CIFAR, damaged or cut off"),
        (b"", r"byte 0 of 0: is no pickle of CIFAR"),
    ],
)
def test_wrong_pickles_are_named(data, message, tmp_path):
    write10(tmp_path, "python")
    (tmp_path / "data_batch_3").write_bytes(data)
    with pytest.raises(UserError, match=rf"data_batch_3: .*{message}"):
        cifar10(tmp_path, full=False)


def test_the_byte_of_a_wrong_label_is_its_place(tmp_path):
    write10(tmp_path, "python")
    data = batch(labels=[1, 77])
    (tmp_path / "data_batch_1").write_bytes(data)
    (place,) = [at for _, value, at in pickletools.genops(data) if value == 77]
    with pytest.raises(UserError, match=f"data_batch_1: byte {place}: sample 1 has 77"):
        cifar10(tmp_path, full=False)


def test_wrong_class_names_in_pickles_are_named(tmp_path):
    write10(tmp_path, "python")
    for names, found in (([b"airplane", b"bird"], "bird"), ([b"airplane", [b"x"]], "a list")):
        (tmp_path / "batches.meta").write_bytes(python2_pickle({b"label_names": names}))
        with pytest.raises(
            UserError, match=rf"batches.meta: name 2 is {found}; class 1 of CIFAR-10 is automobile"
        ):
            cifar10(tmp_path, full=False)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return exec, (f"open({str(self.path)!r}, 'w').write('x')",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_does_nothing(protocol, tmp_path):
    """The same pickle writes the file where pickle.load reads it."""
    trace = tmp_path / "written"
    data = pickle.dumps({"labels": [1], "data": Hostile(trace)}, protocol)
    pickle.loads(data)
    assert trace.exists()
    trace.unlink()
    write10(tmp_path, "python")
    (tmp_path / "data_batch_1").write_bytes(data)
    with pytest.raises(UserError) as caught:
        cifar10(tmp_path, full=False)
    assert not trace.exists()
    if protocol >= 2:
        names = [at for opcode, _, at in pickletools.genops(data) if "GLOBAL" in opcode.name]
        module_name = "builtins" if protocol >= 3 else "__builtin__"
        assert str(caught.value).startswith(
            f"{tmp_path}/data_batch_1: byte {names[0]}: the pickle names the global {module_name}.exec, which is refused"
        )
    else:
        assert "which is refused" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"\x80\x02cos\nsystem\nU\x02ls\x85R.",
            r"byte 2: the pickle names the global os.system, which is refused",
        ),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", r"byte 17: the pickle names the global posix.system"),
        (b"\x80\x02(ios\nsystem\n.", r"byte 3: the pickle has the operation INST, which is refused"),
        (b"\x80\x02\x82\x01.", r"byte 2: the pickle has the operation EXT1"),
        (b"\x80\x02cnumpy\nndarray\n)\x81.", r"byte 18: the pickle has the operation NEWOBJ"),
        (b"\x80\x02U\x01xQ.", r"byte 5: the pickle has the operation BINPERSID"),
        (b"\x80\x02cnumpy\nndarray\nK\x05\x85R.", r"byte 21: a call of ndarray|a call of ndarray"),
        (b"\x80\x02cnumpy\ndtype\nU\x01O\x85R.", r"dtype 'O'; integers are needed"),
        (b"\x80\x02cnumpy\ndtype\nU\x02u1\x85R(K\x03U\x01!tb.", r"the byte order '!'"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0utf-7\x86R.", r"text encoded as utf-7"),
        (
            b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\n\x85R.",
            r"an array of the class dtype",
        ),
        (b"\x80\x02]}b.", r"dict in place of tuple"),
        (b"\x80\x02]K\x01\x85b.", r"not enough values to unpack"),
        (b"\x80\x02K\x01K\x02a.", r"Number in place of list"),
        (b"\x80\x02}K\x01K\x02s.", r"Number in place of str"),
        (b"\x80\x02}(K\x01u.", r"zip\(\) argument 2 is shorter"),
        (b"\x80\x02h\x07.", r"byte 2 of 5: .*7"),
        (b"\x80\x02r\xff\xff\xff\xff.", r"list index out of range"),
        (b"\x80\x02.", r"not enough values to unpack"),
        (b"\x80\x02NN.", r"too many values to unpack"),
        (b"\x80\x02e.", r"pop from empty list"),
        (b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.", r"is no pickle of CIFAR, damaged or cut off"),
        (b"\x80\x02]" + b"\x85" * 20000 + b"N\x93.", r"NoneType in place of str"),
    ],
)
def test_other_operations_are_refused(data, message, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{path}: .*({message})"):
        read_pickle(path)


def test_arrays_of_other_integers_are_read(tmp_path):
    path = tmp_path / "x"
    for dtype in ("<i2", ">i4", "u8", "i1"):
        for order in "CF":
            array = np.array([[1, 2, 3], [-4 if "i" in dtype else 4, 5, 6]], dtype, order=order)
            for protocol in (2, 4, 5):
                path.write_bytes(pickle.dumps({"data": array}, protocol))
                found = read_pickle(path)["data"]
                np.testing.assert_array_equal(found, array)
                assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")


SMALL = python2_pickle({b"labels": [1, 2, 300], b"data": np.arange(6, dtype=np.uint8).reshape(2, 3)})


def test_every_cut_of_a_pickle_is_named(tmp_path):
    path = tmp_path / "cut"
    for cut in range(len(SMALL)):
        path.write_bytes(SMALL[:cut])
        with pytest.raises(
            UserError, match=rf"cut: byte \d+ of {cut}: is no pickle of CIFAR, damaged or cut off"
        ):
            read_pickle(path)


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, len(SMALL) - 1), byte=st.integers(0, 255), more=st.binary(max_size=3))
def test_damaged_pickles_give_one_error_or_a_value(place, byte, more, tmp_path_factory):
    path = tmp_path_factory.mktemp("pickle") / "x"
    path.write_bytes(SMALL[:place] + bytes([byte]) + more + SMALL[place + 1 :])
    try:
        read_pickle(path)
    except UserError as error:
        assert str(path) in str(error)


def test_the_python2_writer_writes_the_published_files(tmp_path):
    write10(tmp_path / "ten", "python")
    write100(tmp_path / "hundred", "python")
    for path, published in (
        ("ten/batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
        ("hundred/meta", "7973b15100ade9c7d40fb424638fde48"),
    ):
        assert hashlib.md5((tmp_path / path).read_bytes()).hexdigest() == published


def test_checksums(tmp_path, monkeypatch):
    write10(tmp_path, "python")
    with pytest.raises(
        UserError, match=r"data_batch_1: is damaged or another file: its MD5 is \w{32}, the published"
    ):
        cifar10(tmp_path, check=True, full=False)
    sums = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()}
    monkeypatch.setitem(module._MD5, "cifar10", sums)
    check_part(cifar10(tmp_path, check=True, full=False)[1], [5], 3, 10)
    monkeypatch.setitem(module._MD5, "cifar10", sums | {"test_batch": "0" * 32})
    with pytest.raises(UserError, match="test_batch: is damaged"):
        cifar10(tmp_path, check=True, full=False)
    write100(tmp_path, "binary")
    with pytest.raises(UserError, match=r"train.bin: is damaged"):
        cifar100(tmp_path, check=True, full=False)
