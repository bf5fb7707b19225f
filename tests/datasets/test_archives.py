"""Unpacking: what is refused, what a damaged archive is called, and that nothing stays half."""

import gzip
import hashlib
import io
import os
import stat
import struct
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.datasets import archives
from meta500.datasets.archives import UNPACKING, Limits, extract
from meta500.errors import UserError

KINDS = ("tar", "tar.gz", "zip")
FILES = {"readme.txt": b"hello", "batches/one.bin": bytes(range(256)) * 40, "batches/deep/two.bin": b""}


def member(name, kind=tarfile.REGTYPE, size=0, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.size, made.linkname = kind, size, link
    return made


def tar_of(path, *members, mode="w"):
    """A tar with (TarInfo, bytes) members."""
    with tarfile.open(path, mode) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    return path


def packed(folder, kind, files):
    path = folder / f"data.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    members = [(member(name, size=len(data)), data) for name, data in files.items()]
    return tar_of(path, *members, mode="w:gz" if kind.endswith("gz") else "w")


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if not path.is_dir()
    }


def refused(archive, target, *parts, limits=archives.LIMITS):
    """One clear message, and nothing left in the target or beside it."""
    before = contents(target.parent)
    with pytest.raises(UserError) as caught:
        extract(archive, target, limits=limits)
    text = str(caught.value)
    assert str(archive) in text and "\n" not in text
    for part in parts:
        assert part in text, text
    assert contents(target.parent) == before
    assert not list(target.glob(UNPACKING + "*"))
    return text


@pytest.mark.parametrize("kind", KINDS)
def test_all_files_come_out(tmp_path, kind):
    archive = packed(tmp_path, kind, FILES)
    read = []
    found = extract(archive, tmp_path / "new" / "target", advance=read.append)
    assert found == {name: hashlib.md5(data).hexdigest() for name, data in sorted(FILES.items())}
    assert contents(tmp_path / "new" / "target") == FILES
    assert 0 < sum(read) <= archive.stat().st_size


def test_gz_gives_one_file(tmp_path):
    (tmp_path / "labels.bin.gz").write_bytes(gzip.compress(b"12345"))
    assert list(extract(tmp_path / "labels.bin.gz", tmp_path / "out")) == ["labels.bin"]
    assert contents(tmp_path / "out") == {"labels.bin": b"12345"}


@settings(max_examples=15, deadline=None)
@given(
    st.dictionaries(
        st.text("abcde", min_size=1, max_size=3), st.binary(max_size=2000), min_size=1, max_size=5
    ),
    st.sampled_from(KINDS),
)
def test_bytes_survive(tmp_path_factory, files, kind):
    folder = tmp_path_factory.mktemp("round")
    extract(packed(folder, kind, files), folder / "out")
    assert contents(folder / "out") == files


def test_what_is_there_stays_and_same_names_are_replaced(tmp_path):
    (tmp_path / "out" / "batches").mkdir(parents=True)
    (tmp_path / "out" / "batches" / "mine.bin").write_bytes(b"mine")
    (tmp_path / "out" / "readme.txt").write_bytes(b"old")
    extract(packed(tmp_path, "tar", FILES), tmp_path / "out")
    assert contents(tmp_path / "out") == {**FILES, "batches/mine.bin": b"mine"}


def test_permissions_of_the_archive_are_not_taken_over(tmp_path):
    info = member("run.sh", size=2)
    info.mode, info.uid = 0o7777, 0
    extract(tar_of(tmp_path / "a.tar", (info, b"hi")), tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) & 0o7111 == 0


def test_of_two_members_of_one_name_the_last_stays(tmp_path):
    archive = tar_of(tmp_path / "a.tar", (member("x", size=1), b"1"), (member("x", size=2), b"22"))
    assert extract(archive, tmp_path / "out") == {"x": hashlib.md5(b"22").hexdigest()}
    assert contents(tmp_path / "out") == {"x": b"22"}


def test_left_overs_of_a_killed_process_are_removed(tmp_path):
    left = tmp_path / "out" / f"{UNPACKING}abc"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"half")
    extract(packed(tmp_path, "tar", FILES), tmp_path / "out")
    assert contents(tmp_path / "out") == FILES


@pytest.mark.parametrize("kind", ("tar", "zip"))
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/evil", "absolute path"),
        ("../evil", "leaves the folder with '..'"),
        ("a/../../evil", "leaves the folder with '..'"),
        ("a\\..\\evil", "backslash"),
        ("a\nb", "line break"),
        ("a\rb", "control character"),
        ("a\x1b[31mb", "control character"),
        ("a\u2028b", "control character"),
    ],
)
def test_names_that_lead_out_are_refused(tmp_path, kind, name, reason):
    archive = packed(tmp_path, kind, {"good": b"1", name: b"evil"})
    refused(
        archive,
        tmp_path / "out",
        f"member '{name}'" if name.isprintable() and "\\" not in name else "member",
        reason,
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (tarfile.SYMTYPE, "it is a link"),
        (tarfile.LNKTYPE, "it is a link"),
        (tarfile.FIFOTYPE, "a device, a pipe"),
        (tarfile.CHRTYPE, "a device, a pipe"),
        (tarfile.BLKTYPE, "a device, a pipe"),
        (b"Z", "of an unknown kind"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, kind, reason):
    archive = tar_of(
        tmp_path / "a.tar", (member("good", size=1), b"1"), (member("bad", kind, link="/etc"), None)
    )
    refused(archive, tmp_path / "out", "member 'bad' at byte 1024", reason)


def test_a_link_and_a_file_behind_it_are_refused(tmp_path):
    archive = tar_of(
        tmp_path / "a.tar",
        (member("out", tarfile.SYMTYPE, link=str(tmp_path)), None),
        (member("out/evil", size=4), b"evil"),
    )
    refused(archive, tmp_path / "target", "member 'out' at byte 0", "it is a link")
    assert not (tmp_path / "evil").exists()


def test_links_in_a_zip_are_refused(tmp_path):
    info = zipfile.ZipInfo("bad")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    refused(tmp_path / "a.zip", tmp_path / "out", "member 'bad' at byte 0", "a link or a device")


@pytest.mark.parametrize("kind", KINDS)
def test_files_do_not_go_through_a_link_in_the_target(tmp_path, kind):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "batches").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"out/batches: is a link, and files would be unpacked through it"):
        extract(packed(tmp_path, kind, FILES), tmp_path / "out")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_encrypted_and_strangely_packed_zips_are_refused(tmp_path):
    archive = packed(tmp_path, "zip", {"a": b"1" * 100})
    data = bytearray(archive.read_bytes())
    central = data.index(b"PK\x01\x02")
    data[central + 8] |= 1
    archive.write_bytes(data)
    refused(archive, tmp_path / "out", "member 'a' at byte 0", "encrypted")
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_BZIP2) as made:
        made.writestr("a", b"1" * 100)
    refused(archive, tmp_path / "out", "member 'a'", "packed with method 12")


@pytest.mark.parametrize("kind", KINDS)
def test_limits_on_members_and_bytes(tmp_path, kind):
    archive = packed(tmp_path, kind, {f"f{n}": b"x" * 3000 for n in range(5)})
    refused(archive, tmp_path / "out", "member 'f3'", "more than 3 members", limits=Limits(members=3))
    refused(archive, tmp_path / "out", "unpacks to more than 9000 bytes", limits=Limits(size=9000))
    assert len(extract(archive, tmp_path / "out", limits=Limits(members=5, size=30_000))) == 5


@pytest.mark.parametrize("kind", ("tar.gz", "zip", "gz"))
def test_bombs(tmp_path, kind):
    if kind == "gz":
        archive = tmp_path / "a.gz"
        archive.write_bytes(gzip.compress(bytes(1 << 20)))
    else:
        archive = packed(tmp_path, kind, {"zeros": bytes(1 << 20)})
    assert archive.stat().st_size < 4000
    text = refused(archive, tmp_path / "out", limits=Limits(ratio=100, ratio_from=1 << 16))
    assert f"the archive of {archive.stat().st_size} bytes unpacks to more than 100 times that" in text
    assert extract(archive, tmp_path / "out", limits=Limits(ratio=100, ratio_from=1 << 22))


def test_a_zip_whose_header_lies_about_the_size(tmp_path):
    archive = packed(tmp_path, "zip", {"zeros": bytes(1 << 20)})
    data = archive.read_bytes().replace(struct.pack("<I", 1 << 20), struct.pack("<I", 100))
    archive.write_bytes(data)
    refused(archive, tmp_path / "out", "member 'zeros' at byte 0", "damaged")


def test_a_sparse_member_counts_with_its_holes(tmp_path):
    # GNU tar's old sparse format: 10 GB that hold 512 bytes.
    header = bytearray(member("big", size=512).tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:398], header[398:410] = b"%011o\0" % 0, b"%011o\0" % 512
    header[482:483], header[483:495] = b"\0", b"%011o\0" % (8 << 30)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + b"x" * 512 + bytes(1024))
    refused(
        tmp_path / "a.tar",
        tmp_path / "out",
        "member 'big' at byte 0",
        "more than",
        limits=Limits(size=1 << 20),
    )


def test_a_header_that_asks_for_much_memory(tmp_path):
    info = member("././@PaxHeader", tarfile.XHDTYPE, size=1 << 30)
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(4096))
    refused(tmp_path / "a.tar", tmp_path / "out", "its header says that it has 1073741824 bytes more")


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_is_found(tmp_path, kind):
    archive = packed(tmp_path, kind, {"a": os.urandom(700), "b": os.urandom(700)})
    whole = archive.read_bytes()
    # A tar ends with zeros, of which one block is enough.
    needed = 4 * 512 + 2 * 512 + 512 if kind == "tar" else len(whole)
    for length in {0, 1, *range(100, needed, 97), needed - 1}:
        archive.write_bytes(whole[:length])
        refused(archive, tmp_path / "out", "damaged or cut short", "get it again")
    archive.write_bytes(whole[:needed])
    assert list(extract(archive, tmp_path / "out")) == ["a", "b"]


def test_the_cut_member_is_named(tmp_path):
    archive = packed(tmp_path, "tar", {"a": bytes(512), "b": bytes(2000)})
    archive.write_bytes(archive.read_bytes()[:2000])
    refused(archive, tmp_path / "out", "member 'b' at byte 1024: the archive is damaged or cut short")
    archive = packed(tmp_path, "tar.gz", {"a": os.urandom(512), "b": os.urandom(2000)})
    archive.write_bytes(archive.read_bytes()[:1500])
    refused(archive, tmp_path / "out", "member 'b' at byte 1024 of the tar inside: the archive is damaged")


def test_a_damaged_header_in_the_middle_is_no_end(tmp_path):
    archive = packed(tmp_path, "tar", {"a": bytes(512), "b": bytes(512)})
    data = bytearray(archive.read_bytes())
    data[1030] ^= 0xFF
    archive.write_bytes(data)
    refused(archive, tmp_path / "out", "at byte 1024", "neither a header nor the end mark")


@pytest.mark.parametrize("kind", ("tar.gz", "zip"))
def test_a_wrong_byte_is_found_by_the_checksum(tmp_path, kind):
    archive = packed(tmp_path, kind, {"a": os.urandom(3000)})
    data = bytearray(archive.read_bytes())
    data[1500] ^= 0x10
    archive.write_bytes(data)
    refused(archive, tmp_path / "out", "damaged")


def test_names_are_fit_for_a_terminal(tmp_path):
    archive = tar_of(tmp_path / "a.tar", (member("\x1b[31m../x", tarfile.SYMTYPE, link="y"), None))
    assert "\x1b" not in refused(archive, tmp_path / "out", "\\x1b[31m")


def test_files_of_no_such_kind(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"<html>not found</html>" * 100)
    refused(tmp_path / "a.tar", tmp_path / "out", "damaged or cut short")
    (tmp_path / "a.rar").write_bytes(b"x")
    refused(tmp_path / "a.rar", tmp_path / "out", "is no archive that can be unpacked: .tar, .tar.gz")
    refused(tmp_path / "b.zip", tmp_path / "out", "there is no such archive")


def test_a_folder_where_a_file_belongs(tmp_path):
    (tmp_path / "out" / "readme.txt").mkdir(parents=True)
    with pytest.raises(UserError, match=r"out/readme.txt: cannot be put here"):
        extract(packed(tmp_path, "tar", FILES), tmp_path / "out")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"file: cannot be written"):
        extract(packed(tmp_path, "tar", FILES), tmp_path / "file")


def test_a_full_disk(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archives._Unpacking, "write", full)
    refused(packed(tmp_path, "tar", FILES), tmp_path / "out", "no space is left to unpack it", "make room")


def test_an_interrupted_unpacking_leaves_nothing(tmp_path):
    archive = packed(tmp_path, "tar", {"a": bytes(5000), "b": bytes(5000)})

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(archive, tmp_path / "out", advance=stop)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["list.md5", "./list.md5", "list.md5/a", "data.{kind}"])
def test_members_do_not_take_the_names_of_other_files(tmp_path, kind, name):
    archive = packed(tmp_path, kind, {"good": b"1", name.format(kind=kind): b"2"})
    (tmp_path / "list.md5").write_bytes(b"kept")
    with pytest.raises(UserError, match="is that of the archive or of a file kept beside it"):
        extract(archive, tmp_path, reserved=["list.md5"])
    assert (tmp_path / "list.md5").read_bytes() == b"kept" and not (tmp_path / "good").exists()


def test_the_folder_itself_is_a_folder_and_no_file(tmp_path):
    folder = tar_of(tmp_path / "a.tar", (member(".", tarfile.DIRTYPE), None), (member("./a", size=1), b"1"))
    assert list(extract(folder, tmp_path / "out")) == ["a"]
    archive = tar_of(tmp_path / "b.tar", (member(".", size=1), b"1"))
    refused(archive, tmp_path / "out", "member '.'", "a file with the name of the folder itself")
