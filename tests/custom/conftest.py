"""One cache of compiled libraries for the tests of this folder, apart from the user's."""

import pytest

from meta500.custom import CustomOperator, remove
from meta500.graph.custom import custom_operations


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(monkeypatch, compiled):
    monkeypatch.setenv("META500_CACHE", str(compiled))


@pytest.fixture(autouse=True)
def forget():
    """Operators that a test defines are gone after it."""
    before = set(custom_operations())
    yield
    for key, cls in list(custom_operations().items()):
        if key not in before and issubclass(cls, CustomOperator):
            remove(*key)
