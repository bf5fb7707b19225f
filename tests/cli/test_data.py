"""``meta500 data``: what it lists, gets and checks, and its messages."""

import gzip
import hashlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from meta500.cli.application import application
from meta500.datasets import catalog
from meta500.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("META500_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "data"


def run(*arguments):
    found = CliRunner().invoke(application, ["data", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def refused(*arguments):
    with pytest.raises(UserError) as caught:
        CliRunner().invoke(application, ["data", *map(str, arguments)], catch_exceptions=False)
    return str(caught.value)


class Handler(BaseHTTPRequestHandler):
    """Serves ``server.files``; where there is ``server.slow``, stops after that many bytes."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        body = self.server.files.get(self.path.lstrip("/"))
        first = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.send_response(404 if body is None else 206 if first else 200)
        body = body or b""
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - first))
        self.end_headers()
        self.server.asked.append((self.path, first))
        if self.server.slow is not None:
            self.wfile.write(body[first : first + self.server.slow])
            self.wfile.flush()
            self.server.stopped.set()
            self.server.go_on.wait(60)
            return
        self.wfile.write(body[first:])


@contextmanager
def serving(files):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads, server.block_on_close = True, False
    server.files, server.asked, server.slow = files, [], None
    server.stopped, server.go_on = threading.Event(), threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.go_on.set()
        server.shutdown()
        server.server_close()


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def small_mnist(monkeypatch):
    """MNIST in the publisher's format, with 60 and 20 pictures, on a server of this machine."""
    random = np.random.default_rng(0)
    files = {}
    for part, count in (("train", 60), ("t10k", 20)):
        pictures = random.integers(0, 256, (count, 28, 28), np.uint8)
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx(pictures))
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.arange(count, dtype=np.uint8) % 10))
    with serving(files) as server:
        url = f"http://127.0.0.1:{server.server_port}/"
        remote = tuple(
            replace(
                file,
                url=url + file.name,
                mirrors=(),
                md5=hashlib.md5(files[file.name]).hexdigest(),
                bytes=len(files[file.name]),
            )
            for file in catalog.entry("mnist").files
        )
        changed = {**catalog._ENTRIES, "mnist": replace(catalog.entry("mnist"), files=remote)}
        monkeypatch.setattr(catalog, "_ENTRIES", changed)
        yield server


def test_list():
    text = run("list")
    for name in ("mnist", "cifar100", "voc-segmentation", "imagenet", "digits", "image-folder"):
        assert f" {name} " in text
    assert "50,000 + 10,000" in text and "3 x 32 x 32" in text and "170 MB" in text and "by hand" in text
    assert "data info NAME" in text and "own files" in text and "no files needed" in text
    records = {record["name"]: record for record in json.loads(run("list", "--json"))}
    assert records["cifar10"]["bytes"] == 170_052_171 and records["cifar10"]["here"] is False
    assert records["synthetic"]["kind"] == "no files needed" and records["arrays"]["kind"] == "own files"


def test_info(data_folder):
    text = run("info", "cifar10")
    assert "CIFAR-10" in text and "c32a1d4ab5d03f1284b67883e8d87530" in text and "50,000 for training" in text
    assert f"folder: {data_folder / 'cifar10'}: lacks cifar-10-batches-bin/data_batch_1.bin" in text
    assert "to get it: meta500 data get cifar10" in text and "normalize=False" in text
    assert "image-net.org" in run("info", "imagenet")
    assert "MIT, Zalando SE" in run("info", "fashion-mnist")
    made = run("info", "digits")
    assert "1,438 for training" in made and "CC BY 4.0" in made and "shape: 1 x 8 x 8" in made
    assert "path=(must be given)" in run("info", "arrays")
    assert json.loads(run("info", "stl10", "--json"))["shape"] == [3, 96, 96]
    assert "unknown dataset 'mnits'" in refused("info", "mnits")


def test_get_check_and_load(small_mnist, data_folder):
    text = run("get", "mnist")
    assert (
        text.startswith("mnist: downloaded train-images-idx3-ubyte.gz, ")
        and str(data_folder / "mnist") in text
    )
    assert len(small_mnist.asked) == 4 and catalog.missing("mnist") == []
    assert f"folder: {data_folder / 'mnist'}: complete" in run("info", "mnist")
    assert "was here already" in run("get", "mnist") and len(small_mnist.asked) == 4
    text = run("check", "mnist", "--dataset-option", "full=false")
    assert f"mnist: all is right in {data_folder / 'mnist'}: 60 + 20 samples" in text
    assert "as published: train-images-idx3-ubyte.gz" in text
    assert "image: float32 (1, 28, 28)" in text


def test_check_finds_damage(small_mnist, tmp_path):
    run("get", "mnist", "--folder", tmp_path / "mine", "--json")
    path = tmp_path / "mine" / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    text = refused("check", "mnist", "--folder", tmp_path / "mine", "--dataset-option", "full=false")
    assert str(path) in text and "MD5" in text
    # What is used as it came is compared when it is got again.
    got = json.loads(run("get", "mnist", "--folder", tmp_path / "mine", "--json"))
    assert got[0]["downloaded"] == ["t10k-labels-idx1-ubyte.gz"]
    record = json.loads(
        run("check", "mnist", "--folder", tmp_path / "mine", "--dataset-option", "full=false", "--json")
    )
    assert (record["train"], record["test"], record["classes"], len(record["archives"])) == (60, 20, 10, 4)
    assert record["arrays"]["image"] == {"shape": [1, 28, 28], "dtype": "float32"}


def test_check_of_sets_without_download(tmp_path):
    assert "digits: all is right: 1,438 + 359 samples" in run("check", "digits")
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 3), np.float32), y=np.arange(10) % 2)
    assert "arrays: all is right" in run("check", "arrays", "--folder", tmp_path / "mine.npz")
    assert "dataset 'digits' has no files: leave out the folder" in refused(
        "check", "digits", "--folder", tmp_path
    )
    text = refused("check", "mnist", "--folder", tmp_path, "--dataset-option", "folder=x")
    assert "the folder is given twice" in text


def test_loading_never_downloads(small_mnist):
    from meta500.datasets import load

    with pytest.raises(
        UserError, match=r"dataset 'mnist': there is no .*; get it with `meta500 data get mnist`"
    ):
        load("mnist")
    assert "get it with `meta500 data get mnist`" in refused("check", "mnist")
    assert small_mnist.asked == []


def test_an_archive_is_unpacked_and_its_files_are_checked(monkeypatch, data_folder):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in catalog.entry("cifar10").unpacked:
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
    body = buffer.getvalue()
    with serving({"a.tar.gz": body}) as server:
        file = replace(
            catalog.entry("cifar10").files[0],
            url=f"http://127.0.0.1:{server.server_port}/a.tar.gz",
            md5=hashlib.md5(body).hexdigest(),
            bytes=len(body),
        )
        changed = {**catalog._ENTRIES, "cifar10": replace(catalog.entry("cifar10"), files=(file,))}
        monkeypatch.setattr(catalog, "_ENTRIES", changed)
        text = run("get", "cifar10", "--keep-archives")
    assert "unpacked 7 files" in text and (data_folder / "cifar10" / "cifar-10-binary.tar.gz").exists()
    assert catalog.missing("cifar10") == []
    place = data_folder / "cifar10"
    done = subprocess.run(["md5sum", "-c", "--quiet", "cifar-10-binary.tar.gz.md5"], cwd=place, check=False)
    assert done.returncode == 0
    (place / "cifar-10-batches-bin" / "data_batch_3.bin").write_bytes(b"abd")
    text = refused("check", "cifar10")
    assert "data_batch_3.bin" in text and hashlib.md5(b"abc").hexdigest() in text


def test_get_refuses(tmp_path):
    assert "cannot be downloaded by a program: ask for access at https://image-net.org" in refused(
        "get", "imagenet"
    )
    assert "dataset 'digits' is not downloaded: see `meta500 data info digits`" in refused(
        "get", "mnist", "digits"
    )
    text = refused("get", "mnist", "cifar10", "--folder", tmp_path)
    assert "is for one dataset; 2 are named" in text
    assert not (tmp_path / "data").exists()


def test_sample(tmp_path):
    found = CliRunner().invoke(
        application,
        [
            "data",
            "sample",
            "digits",
            "--batch-size",
            "100",
            "--out",
            str(tmp_path / "run"),
            "--sampler",
            "choice",
        ],
        catch_exceptions=False,
    )
    assert found.exit_code == 0 and (tmp_path / "run" / "rows.csv").exists()
    assert "unknown sampler 'no'" in refused("sample", "digits", "--sampler", "no", "--out", tmp_path / "b")


def test_interrupted_as_a_process_and_gone_on_with(tmp_path, data_folder):
    body = os.urandom(400_000)
    file = f"RemoteFile(url, 'data.bin', '{hashlib.md5(body).hexdigest()}', {len(body)}, gives=('data.bin',))"
    program = (
        "import sys; from dataclasses import replace\n"
        "from meta500.datasets import catalog; from meta500.datasets.catalog import RemoteFile\n"
        "from meta500.cli import main\n"
        f"url = sys.argv.pop()\nentry = replace(catalog.entry('mnist'), files=({file},), unpacked=('data.bin',))\n"
        "catalog._ENTRIES = {'mnist': entry}\nmain(['data', 'get', 'mnist'])"
    )
    with serving({"data.bin": body}) as server:
        server.slow = 200_000
        command = [sys.executable, "-c", program, f"http://127.0.0.1:{server.server_port}/data.bin"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert server.stopped.wait(60)
            part = data_folder / "mnist" / "data.bin.part"
            while not (part.exists() and part.stat().st_size):
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
            assert process.wait(60) == 130
        assert said.startswith("mnist: licence or terms: none stated by the publisher")
        assert said.endswith("interrupted; what has come is kept, and the same command goes on with it\n")
        assert "Traceback" not in said and "run folder" not in said
        kept = part.stat().st_size
        assert 0 < kept <= 200_000
        server.slow = None
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("mnist: downloaded data.bin (400 kB); in ")
        assert server.asked[-1] == ("/data.bin", kept)
    assert (data_folder / "mnist" / "data.bin").read_bytes() == body and not part.exists()
