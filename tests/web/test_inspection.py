"""The process that looks at what came from outside: what it may do, and that its faults are told as such."""

import asyncio

import pytest

from meta500.errors import UserError
from meta500.web.application import Page
from meta500.web.inspectors import _FILES, CHECK, Inspectors
from meta500.web.limits import GIBI, Limits
from meta500.web.setups import DEFAULTS, OPTIONS
from meta500.web.storage import Storage

SETUP = {**DEFAULTS, **{key: {} for key in OPTIONS}, "model": "mlp", "batch_size": 8}


def ask(task, **request):
    return asyncio.run(Inspectors().ask(task, "the run", **request))


def test_a_native_optimizer_of_torch():
    """Importing what it needs tries whether a temporary file can be written."""
    pytest.importorskip("torch")
    setup = {**SETUP, "backend": "torch", "native": True, "optimizer": "adam"}
    assert ask("setup", setup=setup, path=None, shown="mlp") == {}


def test_nothing_is_written_for_an_upload(tmp_path, monkeypatch):
    assert _FILES["upload"] == 0 < _FILES["setup"]
    # Whatever a check leaves in its temporary folder goes with it.
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert ask("setup", setup={**SETUP, "backend": "numpy", "optimizer": "sgd"}, path=None, shown="mlp") == {}
    assert list(tmp_path.iterdir()) == []


def test_a_fault_is_told_as_what_it_is(tmp_path):
    """Not as a lack of memory; and paths of the server are nobody's business."""
    with pytest.raises(UserError) as error:
        ask("upload", path=str(tmp_path / "secret"), shown="net.onnx")
    assert str(error.value).startswith("the run could not be checked: FileNotFoundError: ")
    assert "net.onnx" in str(error.value) and str(tmp_path) not in str(error.value)
    with pytest.raises(UserError, match="could not be checked: KeyError"):
        ask("setup", setup={}, path=None, shown="mlp")


@pytest.mark.parametrize(("limit", "bound"), [(2 * GIBI, 2 * GIBI), (None, CHECK)])
def test_a_check_has_the_memory_of_a_run(tmp_path, limit, bound):
    storage = Storage(tmp_path)
    assert Page(storage, Limits(memory=limit)).inspectors.memory == bound
    storage.close()
