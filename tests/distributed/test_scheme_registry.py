"""Schemes by name; nothing here starts MPI."""

import subprocess
import sys

import pytest

from meta500 import UserError
from meta500.distributed import registry


def test_names_and_options():
    assert {
        "consistent-decentralized",
        "consistent-neighbors",
        "consistent-parameter-server",
        "inconsistent-decentralized",
        "inconsistent-parameter-server",
        "model-average",
        "stale-synchronous",
    } <= set(registry.names())
    assert registry.options("model-average")["every"] == 1
    assert registry.options("stale-synchronous")["bound"] == 1
    assert registry.options("consistent-neighbors")["topology"] == "ring"
    for name in registry.names():
        assert {"broadcast", "loss_reduction"} <= set(registry.options(name))
        assert not {"optimizer", "communication"} & set(registry.options(name))


def test_promises_are_stated_by_the_classes():
    promised = {name: registry.scheme_class(name) for name in registry.names()}
    assert (
        promised["consistent-decentralized"].consistent and promised["consistent-decentralized"].synchronous
    )
    assert promised["consistent-neighbors"].synchronous and not promised["consistent-neighbors"].consistent
    assert not promised["inconsistent-parameter-server"].synchronous
    assert not promised["inconsistent-decentralized"].consistent


def test_unknown_names():
    with pytest.raises(UserError, match="consistent-decentralized"):
        registry.create("consistent-decentralised", None)
    with pytest.raises(UserError, match="every"):
        registry.create("model-average", None, None, evry=2)


def test_looking_schemes_up_loads_neither_mpi_nor_torch():
    program = (
        "import sys; from meta500.distributed import registry\n"
        "for name in registry.names():\n"
        "    if name != 'ddp': registry.options(name)\n"
        "print([m for m in ('mpi4py.MPI', 'torch') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
