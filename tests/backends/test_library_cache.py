"""The cache's folders on disk: where they are, their size, and clearing them."""

import os
from pathlib import Path

import pytest

from meta500.backends import library_cache
from meta500.backends.library_cache import (
    cache_folder,
    cache_size,
    clear_cache,
    load_fact,
    load_object,
    publish,
    store_fact,
    store_object,
    workplace,
    write_record,
)
from meta500.backends.toolchain import compile_text
from meta500.errors import UserError

TEXTS = {"a.cpp": 'extern "C" int answer() { return 42; }\n'}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("META500_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("META500_CACHE", "~/here")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/here")
    monkeypatch.delenv("META500_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "meta500"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/somebody/.cache/meta500")


def test_size_and_clearing(cache):
    assert cache_size() == 0
    assert clear_cache() == 0
    path = compile_text(TEXTS)
    size = sum(item.stat().st_size for item in cache.rglob("*") if item.is_file())
    assert cache_size() == size > path.stat().st_size
    (cache / "somebody else's").write_text("stays")
    assert clear_cache() == size
    assert [item.name for item in cache.rglob("*") if item.is_file()] == ["somebody else's"]
    assert compile_text(TEXTS) == path


def test_clearing_spares_what_is_being_built(cache):
    with workplace("libraries") as folder:
        (folder / library_cache.LIBRARY).write_bytes(b"library")
        write_record(folder, {}, {})
        stale = folder.with_name(".build-old")
        stale.mkdir()
        os.utime(stale, (1, 1))
        clear_cache()
        assert not stale.exists()
        publish(folder, cache / "libraries" / "key")
    assert library_cache.intact(cache / "libraries" / "key")


def test_clearing_does_not_follow_links(cache, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("stays")
    (cache / "libraries").mkdir(parents=True)
    (cache / "libraries" / "link").symlink_to(other)
    clear_cache()
    assert (other / "file").exists()
    assert list((cache / "libraries").iterdir()) == []


def test_objects(cache):
    assert load_object("k") is None
    store_object("k", b"machine code")
    assert load_object("k") == b"machine code"
    store_object("k", b"newer")
    assert load_object("k") == b"newer"
    for damage in (b"", b"short", (cache / "objects/k").read_bytes()[:32], b"\0" * 40):
        (cache / "objects/k").write_bytes(damage)
        assert load_object("k") is None
    assert [path.name for path in (cache / "objects").iterdir()] == ["k"]


def test_facts(cache):
    assert load_fact("k") is None
    store_fact("k", "two\nlines\r\n")
    assert load_fact("k") == "two\nlines\r\n"
    path = cache / "compilers" / "k"
    os.utime(path, (1, 1))
    assert load_fact("k") is None
    store_fact("k", "ä")
    assert load_fact("k") == "ä"
    path.write_bytes(path.read_bytes()[:-1])
    assert load_fact("k") is None


def test_entry_that_cannot_be_replaced(cache, monkeypatch):
    entry = cache / "libraries" / "key"
    with workplace("libraries") as folder:
        (entry / "in the way").mkdir(parents=True)
        rename = Path.rename
        monkeypatch.setattr(
            Path, "rename", lambda self, to: rename(self, to) if self == folder else os.rmdir(self)
        )
        with pytest.raises(UserError, match="key: cannot be replaced; remove this folder"):
            publish(folder, entry)
