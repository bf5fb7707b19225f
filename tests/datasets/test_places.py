"""Where the files of datasets are looked for."""

from pathlib import Path

import pytest

from meta500.datasets.places import data_root, folder_of
from meta500.errors import UserError


def test_the_root_is_the_variable_or_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("META500_DATA", str(tmp_path / "data"))
    assert data_root() == tmp_path / "data"
    assert folder_of("mnist") == tmp_path / "data" / "mnist"
    assert not (tmp_path / "data").exists()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("META500_DATA", "~/sets")
    assert data_root() == tmp_path / "sets"
    monkeypatch.setenv("META500_DATA", "")
    assert data_root() == tmp_path / ".cache" / "meta500" / "data"
    monkeypatch.delenv("META500_DATA")
    assert folder_of("mnist") == tmp_path / ".cache" / "meta500" / "data" / "mnist"


def test_a_given_folder_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folder_of("mnist", str(tmp_path)) == tmp_path
    assert folder_of("mnist", "~") == tmp_path
    with pytest.raises(UserError, match=r"dataset 'mnist': folder=no/such: there is no such folder"):
        folder_of("mnist", "no/such")
    with pytest.raises(UserError, match=r"dataset 'mnist': folder is empty; give the path, or '.' for"):
        folder_of("mnist", "")
    for wrong in (3, b"/tmp", ["a"]):
        with pytest.raises(UserError, match=r"dataset 'mnist': folder must be a path .*, not"):
            folder_of("mnist", wrong)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UserError, match=r"dataset 'mnist': folder=.*/file: is a file, no folder"):
        folder_of("mnist", tmp_path / "file")


def test_a_root_that_is_no_folder_or_not_known(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("META500_DATA", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"META500_DATA=.*/file: is no folder"):
        data_root()

    def homeless(*_):
        raise RuntimeError

    monkeypatch.delenv("META500_DATA")
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(UserError, match="no home folder to keep datasets in: set META500_DATA"):
        data_root()
    with pytest.raises(UserError, match="~/x: there is no home folder for '~'"):
        folder_of("mnist", "~/x")
