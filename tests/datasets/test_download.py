"""Downloads from a server on this machine: whole, resumed, broken off, wrong, refused."""

import gzip
import hashlib
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console

from meta500.datasets import catalog, download
from meta500.datasets.catalog import RemoteFile
from meta500.errors import UserError

DATA = bytes(os.urandom(300_000))


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files``; what ``server.ways`` says about a path changes how."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, path = self.server, self.path
        asked = self.headers.get("Range")
        server.asked.append((path, asked))
        way = server.ways.get(path, {})
        if path in server.redirects:
            self.send_response(302)
            self.send_header("Location", server.redirects[path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        status = way.get("status", [])
        if status:
            self.answer(status.pop(0), b"<html>no</html>")
            return
        data = server.files.get(path)
        if data is None:
            self.answer(404, b"<html>not found</html>")
            return
        first, code, headers = 0, 200, {}
        if asked and way.get("ranges", True):
            first = int(asked.removeprefix("bytes=").removesuffix("-"))
            if first >= len(data):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
                return
            code = 206
            shift = way.get("shift", 0)
            headers["Content-Range"] = f"bytes {first + shift}-{len(data) - 1}/{len(data)}"
        headers.update(way.get("headers", {}))
        self.answer(code, data[first:], headers, way.get("cut", []), way.get("length", True))

    def answer(self, code, body, headers=None, cut=(), length=True):
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        try:
            if cut:
                self.wfile.write(body[: cut.pop(0)])
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(2)
            else:
                self.wfile.write(body)
        except OSError:  # the client has gone
            self.close_connection = True


@contextmanager
def serving():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.files, server.ways, server.redirects, server.asked = {}, {}, {}, []
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as found:
        found.files["/data.bin"] = DATA
        yield found


def remote(server, path="/data.bin", data=DATA, **more):
    values = {"name": "data.bin", "md5": hashlib.md5(data).hexdigest(), "bytes": len(data), **more}
    return RemoteFile(url=server.url + path, **values)


def ranges(server):
    return [asked for _, asked in server.asked]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(file, folder, *parts):
    with pytest.raises(UserError) as caught:
        download.download(file, folder)
    text = str(caught.value)
    assert "\n" not in text
    for part in parts:
        assert part in text, text
    return text


def test_whole(server, tmp_path):
    seen = []
    path = download.download(remote(server), tmp_path / "new", report=lambda *now: seen.append(now))
    assert path == tmp_path / "new" / "data.bin" and path.read_bytes() == DATA
    assert names(tmp_path / "new") == ["data.bin"]
    assert seen[0] == ("downloading data.bin", 0, len(DATA)) and seen[-1][1:] == (len(DATA), len(DATA))
    assert ranges(server) == [None]


def test_what_is_there_is_not_fetched_again(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(DATA)
    download.download(remote(server), tmp_path)
    assert server.asked == []


def test_what_is_there_and_damaged_is_fetched(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(DATA[:-1])
    download.download(remote(server), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == DATA


def test_a_size_that_is_not_known(server, tmp_path):
    assert download.download(remote(server, bytes=None), tmp_path).read_bytes() == DATA


def test_goes_on_with_a_part(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:100_000])
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert ranges(server) == ["bytes=100000-"]
    assert names(tmp_path) == ["data.bin"]


def test_a_part_that_is_whole_needs_no_connection(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA)
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert server.asked == []


def test_a_whole_part_of_unknown_size(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA)
    assert download.download(remote(server, bytes=None), tmp_path).read_bytes() == DATA
    assert server.asked == []


def test_a_part_of_unknown_size_goes_on(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    assert download.download(remote(server, bytes=None), tmp_path).read_bytes() == DATA
    assert ranges(server) == ["bytes=1000-"]


@pytest.mark.parametrize("size", (None, len(DATA)))
def test_a_part_that_is_too_long_begins_anew(server, tmp_path, size):
    (tmp_path / "data.bin.part").write_bytes(DATA + b"more")
    assert download.download(remote(server, bytes=size), tmp_path).read_bytes() == DATA
    assert ranges(server)[-1] is None


def test_a_server_without_ranges_begins_anew(server, tmp_path):
    server.ways["/data.bin"] = {"ranges": False}
    (tmp_path / "data.bin.part").write_bytes(b"x" * 100_000)
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert ranges(server) == ["bytes=100000-"]


def test_a_wrong_content_range_begins_anew(server, tmp_path):
    server.ways["/data.bin"] = {"shift": 1}
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert ranges(server) == ["bytes=1000-", None]


def test_a_damaged_part_begins_anew(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert ranges(server) == ["bytes=1000-", None]


def test_a_broken_connection_goes_on(server, tmp_path):
    server.ways["/data.bin"] = {"cut": [100_000, 0, 150_000]}
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    first, *others = ranges(server)
    assert first is None and len(others) == 3 and all(others)
    assert 0 < int(others[0][6:-1]) <= 100_000 and int(others[2][6:-1]) > int(others[0][6:-1])


def test_a_connection_that_always_breaks(server, tmp_path):
    server.ways["/data.bin"] = {"cut": [100_000] + [0] * 20}
    text = refused(remote(server), tmp_path, "data.bin: could not be downloaded from http://127.0.0.1")
    assert "the connection broke, 4 times" in text
    assert f"{tmp_path / 'data.bin.part'} is kept, and the same command goes on with it" in text
    assert names(tmp_path) == ["data.bin.part"]
    assert 0 < (tmp_path / "data.bin.part").stat().st_size <= 100_000
    server.ways.clear()
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert names(tmp_path) == ["data.bin"]


def test_interrupted_by_hand(server, tmp_path):
    def stop(_, done, __):
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download.download(remote(server), tmp_path, report=stop)
    assert names(tmp_path) == ["data.bin.part"]
    download.download(remote(server), tmp_path)
    assert (tmp_path / "data.bin").read_bytes() == DATA and ranges(server)[1] is not None


@pytest.mark.parametrize("size", (None, len(DATA)))
def test_interrupted_while_the_checksum_is_computed(server, tmp_path, monkeypatch, size):
    def stop(*_, **__):
        raise KeyboardInterrupt

    file = remote(server, bytes=size)
    with monkeypatch.context() as patch:
        patch.setattr("pooch.core.hash_matches", stop)
        with pytest.raises(KeyboardInterrupt):
            download.download(file, tmp_path)
    assert names(tmp_path) == ["data.bin.part"] and (tmp_path / "data.bin.part").read_bytes() == DATA
    assert download.download(file, tmp_path).read_bytes() == DATA
    assert names(tmp_path) == ["data.bin"] and ranges(server) == [None]


KILLED = """
import os, signal, sys
import pooch.core
from meta500.datasets import catalog, download

def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

url, md5, size, folder, when = sys.argv[1:]
file = catalog.RemoteFile(url, "data.bin", md5, int(size))
if when == "checking":
    pooch.core.hash_matches = kill
download.download(file, folder, report=kill if when == "receiving" else None)
"""


def killed(file, folder, when):
    command = [sys.executable, "-c", KILLED, file.url, file.md5, str(file.bytes), str(folder), when]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9


def test_killed_while_the_checksum_is_computed(server, tmp_path):
    others = {"tmpabcdefgh": DATA, "tmp1234567_": b""}  # not ours, though called so
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "tmplinkabcd").symlink_to("data.bin.part")
    killed(remote(server), tmp_path, "checking")
    assert (tmp_path / "data.bin.part").read_bytes() == DATA
    # The lock, data.bin.part, its other name, and the three that were there.
    assert len(names(tmp_path)) == 6
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert names(tmp_path) == sorted(["data.bin", "tmplinkabcd", *others])
    assert ranges(server) == [None]


def test_killed_while_receiving_leaves_no_temporary_file(server, tmp_path):
    killed(remote(server), tmp_path, "receiving")
    assert names(tmp_path) == [".data.bin.lock", "data.bin.part"]


@pytest.mark.parametrize("size", (None, len(DATA)))
def test_a_whole_part_with_a_wrong_checksum_is_removed(server, tmp_path, size):
    (tmp_path / "data.bin.part").write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    assert download.download(remote(server, bytes=size), tmp_path).read_bytes() == DATA
    assert ranges(server)[-1] is None and names(tmp_path) == ["data.bin"]


def test_a_part_beside_the_good_file_is_removed(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(DATA)
    os.link(tmp_path / "data.bin", tmp_path / "data.bin.part")  # killed after pooch had moved it
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert names(tmp_path) == ["data.bin"] and server.asked == []


def test_a_disk_without_hard_links(server, tmp_path, monkeypatch):
    def never(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(download.os, "link", never)
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    assert names(tmp_path) == ["data.bin"]
    refused(remote(server, md5="0" * 32), tmp_path, "it was removed")


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.ways["/data.bin"] = {"status": [503, 429, 500]}
    assert download.download(remote(server), tmp_path).read_bytes() == DATA
    server.ways["/data.bin"] = {"status": [503] * 9}
    refused(remote(server), tmp_path / "b", "HTTP 503 Service Unavailable, 4 times")


def test_not_found_is_asked_once(server, tmp_path):
    refused(remote(server, "/other"), tmp_path, f"{server.url}/other: HTTP 404 Not Found")
    assert len(server.asked) == 1 and names(tmp_path) == []


def test_mirrors_in_order(server, tmp_path):
    server.files["/wrong"] = DATA[:-1] + b"?"
    mirrors = (f"{server.url}/wrong", f"{server.url}/data.bin", f"{server.url}/never")
    assert download.download(remote(server, "/gone", mirrors=mirrors), tmp_path).read_bytes() == DATA
    assert [path for path, _ in server.asked] == ["/gone", "/wrong", "/data.bin"]


def test_a_wrong_checksum(server, tmp_path):
    found, wanted = hashlib.md5(DATA).hexdigest(), "0" * 32
    text = refused(remote(server, md5=wanted), tmp_path, str(tmp_path / "data.bin"))
    assert f"the MD5 of what came is {found}, wanted {wanted}; it was removed" in text
    assert "is kept" not in text and names(tmp_path) == [] and len(server.asked) == 1


def test_another_size(server, tmp_path):
    refused(remote(server, bytes=10), tmp_path, f"has {len(DATA)} bytes, wanted 10")
    server.ways["/data.bin"] = {"length": False}
    refused(remote(server, bytes=200_000), tmp_path, "gave more than the 200000 bytes of the file")
    assert names(tmp_path) == []
    refused(remote(server, bytes=400_000), tmp_path, f"has {len(DATA)} bytes, wanted 400000")


def test_the_file_is_not_unpacked_on_the_way(server, tmp_path):
    data = gzip.compress(DATA)
    server.files["/data.bin"] = data
    server.ways["/data.bin"] = {"headers": {"Content-Encoding": "x-gzip"}}
    assert download.download(remote(server, data=data), tmp_path).read_bytes() == data


def test_redirects(server, tmp_path):
    server.redirects.update({"/a": "/data.bin", "/ftp": "ftp://127.0.0.1/data.bin", "/loop": "/loop"})
    assert download.download(remote(server, "/a"), tmp_path).read_bytes() == DATA
    refused(remote(server, "/ftp"), tmp_path / "b", "leads to an address that is not http or https")
    refused(remote(server, "/loop"), tmp_path / "b", "without end")


@pytest.mark.parametrize("url", ("ftp://host/a", "file:///etc/passwd", "/etc/passwd", "doi:10.1/x"))
def test_only_http(tmp_path, url):
    file = RemoteFile(url, "a", "0" * 32, None)
    refused(file, tmp_path, f"{url}: only http and https addresses are downloaded")
    refused(RemoteFile("http://127.0.0.1:9/a", "a", "0" * 32, None, (url,)), tmp_path, url)


def test_nobody_there(server, tmp_path):
    dead = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    dead.server_close()
    url = f"http://127.0.0.1:{dead.server_port}/a"
    refused(replace(remote(server), url=url), tmp_path, f"{url}: Connection refused")
    assert (
        download.download(replace(remote(server), url=url, mirrors=(server.url + "/data.bin",)), tmp_path)
    ).read_bytes() == DATA


def test_no_network(server, tmp_path, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    file = replace(remote(server), url="http://a.invalid/a", mirrors=("http://b.invalid/a",))
    why = "the name of the host is not known, or there is no network"
    refused(file, tmp_path, f"from http://a.invalid/a: {why}; nor from http://b.invalid/a: {why}")


def test_no_secure_connection(server, tmp_path):
    url = server.url.replace("http:", "https:") + "/data.bin"
    refused(replace(remote(server), url=url), tmp_path, f"{url}: the connection is not secure: ")


def test_a_server_that_says_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", (0.2, 0.2))
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    monkeypatch.setattr(Handler, "do_GET", lambda self: time.sleep(1))
    refused(remote(server), tmp_path, "no bytes for 0.2 s, 2 times")


def test_no_space_before_and_during(server, tmp_path, monkeypatch):
    (tmp_path / "data.bin.part").write_bytes(DATA[:1000])
    with monkeypatch.context() as patch:
        usage = type("Usage", (), {"free": 5})
        patch.setattr(download.shutil, "disk_usage", lambda _: usage)
        text = refused(remote(server), tmp_path, f"{tmp_path}: no space is left on its disk")
        assert "299000 bytes are to come and 5 are free" in text and "data.bin.part is kept" in text
    assert server.asked == []

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download.ResumingDownloader, "_collect", full)
        refused(remote(server), tmp_path, "no space is left", "make room, and the same command goes on")
    assert names(tmp_path) == ["data.bin.part"]


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    refused(remote(server), tmp_path / "file" / "sub", "file/sub: this folder cannot be made")


def test_one_process_per_file(server, tmp_path):
    lock = tmp_path / ".data.bin.lock"
    program = (
        "import sys; from pathlib import Path; from meta500.datasets import download\n"
        "with download._locked(Path(sys.argv[1]), 'x'):\n    print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        who = f"{tmp_path / 'data.bin'}: another process (process {other.pid}) is getting it"
        refused(remote(server), tmp_path, who, "wait until it has ended")
        assert server.asked == []
        other.kill()
        other.wait(30)
    assert lock.exists()  # the lock went with the process, the file stays
    download.download(remote(server), tmp_path)
    assert names(tmp_path) == ["data.bin"]


def packed(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def toy(server, monkeypatch, tmp_path):
    """A published dataset of one archive and one plain file, on this machine's server."""
    archive = packed({"toy/train.bin": b"train", "toy/test.bin": b"test"})
    server.files.update({"/toy.tar.gz": archive, "/labels.gz": b"labels"})
    made = replace(
        catalog.entry("mnist"),
        name="toy",
        unpacked=("toy/train.bin", "toy/test.bin", "labels.gz"),
        files=(
            remote(
                server,
                "/toy.tar.gz",
                archive,
                name="toy.tar.gz",
                unpack=True,
                gives=("toy/train.bin", "toy/test.bin"),
            ),
            remote(server, "/labels.gz", b"labels", name="labels.gz", gives=("labels.gz",)),
        ),
        instead=(("other.bin",),),
    )
    monkeypatch.setattr(catalog, "_ENTRIES", {"toy": made, "imagenet": catalog.entry("imagenet")})
    monkeypatch.setenv("META500_DATA", str(tmp_path / "data"))
    return made


def test_get(server, toy, tmp_path):
    place = tmp_path / "data" / "toy"
    assert catalog.missing("toy") == list(toy.unpacked)
    got = download.get("toy")
    assert got == download.Got("toy", place, ("toy.tar.gz", "labels.gz"), toy.bytes, 2)
    assert (place / "toy" / "train.bin").read_bytes() == b"train" and names(place) == [
        "labels.gz",
        "toy",
        "toy.tar.gz.md5",
    ]
    assert catalog.missing("toy") == []
    server.asked.clear()
    assert download.get("toy").downloaded == () and server.asked == []


def test_get_fetches_only_what_is_missing_or_damaged(server, toy, tmp_path):
    download.get("toy", tmp_path / "mine", keep_archives=True)
    assert names(tmp_path / "mine") == ["labels.gz", "toy", "toy.tar.gz", "toy.tar.gz.md5"]
    server.asked.clear()
    (tmp_path / "mine" / "labels.gz").write_bytes(b"damage")
    assert download.get("toy", tmp_path / "mine").downloaded == ("labels.gz",)
    (tmp_path / "mine" / "toy" / "test.bin").unlink()
    got = download.get("toy", tmp_path / "mine")
    assert (got.downloaded, got.files) == ((), 2)  # the archive is still there
    assert [path for path, _ in server.asked] == ["/labels.gz"]


def test_get_takes_other_files_of_the_dataset(server, toy, tmp_path):
    (tmp_path / "other.bin").write_bytes(b"")
    assert download.get("toy", tmp_path).downloaded == () and server.asked == []


def test_get_reports_both_steps(toy, tmp_path):
    seen = {}
    download.get("toy", tmp_path, report=lambda what, done, whole: seen.update({what: (done, whole)}))
    size = toy.files[0].bytes
    assert seen["downloading toy.tar.gz"] == seen["unpacking toy.tar.gz"] == (size, size)


def test_get_of_an_archive_without_the_files(server, toy, tmp_path, monkeypatch):
    archive = packed({"toy/train.bin": b"train"})
    server.files["/toy.tar.gz"] = archive
    file = replace(toy.files[0], md5=hashlib.md5(archive).hexdigest(), bytes=len(archive))
    monkeypatch.setitem(catalog._ENTRIES, "toy", replace(toy, files=(file,)))
    with pytest.raises(
        UserError, match=r"toy.tar.gz: does not hold toy/test.bin, which the dataset 'toy' needs"
    ):
        download.get("toy", tmp_path)


def test_get_refuses(toy, tmp_path):
    with pytest.raises(UserError, match="unknown published dataset 'digits'"):
        download.get("digits")
    with pytest.raises(UserError, match="dataset 'imagenet' cannot be downloaded by a program: "):
        download.get("imagenet")
    assert not (tmp_path / "data").exists()
    (tmp_path / "data" / "toy").mkdir(parents=True)
    with (
        download._locked(tmp_path / "data" / "toy" / ".get.lock", "x"),
        pytest.raises(
            UserError, match=rf"dataset 'toy' in .*: another process \(process {os.getpid()}\) is getting"
        ),
    ):
        download.get("toy")


def test_bars():
    with download.bars(Console(file=io.StringIO())) as report:
        assert report is None
    shown = Console(file=io.StringIO(), force_terminal=True, width=160)
    with download.bars(shown) as report:
        report("downloading a", 0, None)
        report("downloading a", 2_000_000, 4_000_000)
    text = shown.file.getvalue()
    assert "downloading a" in text and "2.0/4.0 MB" in text


def test_importing_datasets_loads_no_downloader():
    program = "import meta500.datasets, meta500.datasets.catalog, sys; print({'pooch', 'requests'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("name", ["toy.tar.gz.md5", "labels.gz", "toy.tar.gz", "labels.gz.part/x"])
def test_archives_do_not_replace_the_files_beside_them(server, toy, tmp_path, monkeypatch, name):
    archive = packed({"toy/train.bin": b"train", "toy/test.bin": b"test", name: b"evil"})
    server.files["/toy.tar.gz"] = archive
    first = remote(server, "/toy.tar.gz", archive, name="toy.tar.gz", unpack=True, gives=toy.files[0].gives)
    monkeypatch.setattr(catalog, "_ENTRIES", {"toy": replace(toy, files=(first, toy.files[1]))})
    with pytest.raises(UserError, match=r"toy.tar.gz: member '.*is that of the archive or of a file kept"):
        download.get("toy", tmp_path / "mine")
    assert names(tmp_path / "mine") == ["toy.tar.gz"]


def test_where_to_must_be_a_path(toy):
    for wrong, words in (("", "folder is empty"), (3, "folder must be a path .*, not 3")):
        with pytest.raises(UserError, match=f"dataset 'toy': {words}"):
            download.get("toy", wrong)
