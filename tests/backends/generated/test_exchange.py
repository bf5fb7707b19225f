"""When gradients are reduced over ranks: what joins, in which order, and where in a schedule it begins."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meta500
from meta500.backends.generated import cpp, mpi
from meta500.backends.generated.exchange import END, _buckets, order_of_use
from meta500.backends.generated.forms import Form
from meta500.backends.generated.images import IMAGES
from meta500.backends.generated.packing import Packing
from meta500.backends.generated.schedule import Schedule
from meta500.errors import UserError


@given(
    st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=12),
    st.integers(1, 300),
    st.data(),
)
def test_buckets_hold_every_wanted_gradient_once_from_the_last_to_the_first(shapes, elements, data):
    packing = Packing.of({f"p{i}": tuple(shape) for i, shape in enumerate(shapes)})
    wanted = [n for n in packing.offsets if data.draw(st.booleans(), label=n)]
    ranges, names = _buckets(packing, wanted, elements)
    found = [name for text in names for name in reversed(text.split(", "))]
    assert found == wanted[::-1]
    for (first, end), text in zip(ranges, names, strict=True):
        inside = text.split(", ")
        assert first == packing.offsets[inside[0]]
        assert end == packing.offsets[inside[-1]] + packing.elements(inside[-1])
        # Without its first parameter, which was the last to join, it was too small.
        if len(inside) > 1:
            assert end - packing.offsets[inside[1]] < elements
    # No element is reduced twice.
    ordered = sorted(ranges)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ordered))


def planned(name: str, threads: int, bucket: int, optimizer: str = "adam", **options: object) -> Schedule:
    model = meta500.models.create(name, **options)
    with meta500.network(model, backend="generated", threads=threads) as net:
        shapes = tuple((n, t.shape) for n, t in model.inputs.items())
        updates = tuple(net._forms[True][1].items())
        variables = tuple(net.get_params())
        form = Form(tuple(model.outputs), shapes, "loss", variables, False, updates, optimizer, bucket)
        return net.planned(form)[0]


UNET = {"n": 0, "batch": 4, "depth": 2, "size": (32, 32)}


@pytest.mark.parametrize("threads", [1, 2])
def test_every_range_begins_after_its_last_writer_and_before_the_update(threads):
    plan = planned("unet", threads, 1, **UNET)
    exchange = plan.exchange
    assert exchange is not None and len(exchange.needs) == len(exchange.exchange.ranges) > 10
    for number, (first, end) in enumerate(exchange.exchange.ranges):
        stops = [s for s in exchange.stops if number in s.parts]
        assert len(stops) == exchange.needs[number] > 0
        written = set()
        for stop in stops:
            step = plan.steps[stop.step]
            if stop.position == END:
                kernels = step.kernels
            elif step.kind == IMAGES:
                kernels = step.kernels[: step.sweeps[stop.position].last + 1]
            else:
                kernels = step.kernels[: stop.position + 1]
            for kernel in kernels:
                for part in kernel.parts:
                    stage = part.merge or part.stage
                    if exchange.exchange.tensor in stage.writes():
                        place = plan.places[exchange.exchange.tensor]
                        low, high = place.address(stage.write).bounds(stage.sizes)
                        written |= set(range(max(low, first), min(high + 1, end)))
        assert written == set(range(first, end)), exchange.exchange.names[number]
    after = {p.stage.name for s in plan.steps[exchange.last + 1 :] for k in s.kernels for p in k.parts}
    assert after == set(exchange.exchange.after) == {"adam.first_moment", "adam.second_moment", "adam.x"}


def test_in_regions_of_images_sums_are_merged_where_they_are_complete():
    plan = planned("unet", 2, 1, **UNET)
    assert plan.exchange is not None
    numbers = [n for n, step in enumerate(plan.steps) if step.kind == IMAGES]
    early = {name for n in numbers for name in plan.exchange.early(n)}
    merged = {
        one.name
        for n in numbers
        for kernel in plan.steps[n].kernels
        for one in kernel.sums
        if one.merge is not None and one.merge.write.tensor == plan.exchange.exchange.tensor
    }
    assert early == merged and len(early) > 5
    text = "\n".join(cpp.sources(plan).values())
    for name in early:
        # Once, by one thread: its loop is not shared.
        calls = [line for line in text.splitlines() if f"{name}_merge(" in line and "long pitch" not in line]
        assert len(calls) == 1 and "meta500::share" not in calls[0]
    assert "reductions over ranks" in str(plan) and "sum over ranks" in str(plan.program)


def test_order_of_use_is_that_of_the_graph():
    graph = meta500.models.create("digits_cnn", batch=2).graph
    names = [f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2") for kind in ("weight", "bias")]
    assert order_of_use(graph, reversed(names))[::2] == ["conv1.bias", "conv2.bias", "fc1.bias", "fc2.bias"]
    assert order_of_use(graph, ["unused", *names]) == [*names, "unused"]


def test_programs_without_ranks_know_nothing_of_mpi():
    text = "".join(cpp.sources(planned("unet", 2, 0, **UNET)).values()).lower()
    assert "mpi" not in text and "exchange" not in text


def test_nothing_imports_mpi_unless_a_communicator_is_given():
    script = (
        "import sys, meta500\n"
        "net = meta500.network(meta500.models.create('mlp', batch=2), backend='generated', threads=1)\n"
        "assert not any(name.startswith('mpi4py') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# -- the library and its header ----------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch):
    """The MPI library as asked for anew, with what headers a test wants."""
    pytest.importorskip("mpi4py.MPI", exc_type=ImportError)
    mpi.mpi_library.cache_clear()
    yield mpi.mpi_library
    mpi.mpi_library.cache_clear()


def test_flags_name_the_loaded_library_and_its_header(library):
    found = library()
    assert found.path.is_file() and "libmpi" in found.path.name
    assert any(Path(flag[2:], "mpi.h").is_file() for flag in found.include if flag.startswith("-I"))
    assert f"-DMETA500_MPI={found.identity}" in found.flags and str(found.path.parent) in found.flags[-1]


def test_another_header_or_library_has_another_identity(tmp_path, library):
    found = library()
    header = tmp_path / "mpi.h"
    header.write_text("#define MPICH_VERSION\n")
    other = mpi._identity(found.path, header, found.version, found.include)
    assert other != found.identity
    header.write_text("#define MPICH_VERSION 1\n")
    assert mpi._identity(found.path, header, found.version, found.include) != other


def test_without_a_header_of_that_library_the_message_says_what_to_install(tmp_path, library, monkeypatch):
    # A header of the other family is none.
    family = mpi._family(mpi._loaded(sys.modules["mpi4py.MPI"]))
    other = "OMPI_MAJOR_VERSION" if family == mpi.MPICH else "MPICH_VERSION"
    (tmp_path / "mpi.h").write_text(f"#define {other} 4\n")
    monkeypatch.setattr(mpi, "_includes", lambda path: iter([(f"-I{tmp_path}",), ("-I/nowhere",)]))
    with pytest.raises(UserError, match=r"there is no mpi\.h of the MPI library.*MPICXX"):
        library()


def test_compiler_wrappers_are_asked(tmp_path, monkeypatch):
    wrapper = tmp_path / "mpicxx"
    wrapper.write_text('#!/bin/sh\ntest "$1" = "-show" && echo c++ -I/some/include -DX=1 -L/lib -lmpi\n')
    wrapper.chmod(0o755)
    assert list(mpi._told([str(wrapper), "-show"])) == [("-I/some/include", "-DX=1")]
    assert list(mpi._told([str(wrapper), "--showme:compile"])) == []
    assert list(mpi._told([str(tmp_path / "none"), "-show"])) == []
    monkeypatch.setenv("MPICXX", str(wrapper))
    assert ("-I/some/include", "-DX=1") in list(mpi._includes(tmp_path / "lib" / "libmpi.so"))


@pytest.mark.parametrize("wrong", [3, "world", object()])
def test_what_is_no_communicator_is_refused(wrong):
    model = meta500.models.create("mlp", batch=2)
    with pytest.raises(UserError, match="mpi4py communicator"):
        meta500.network(model, backend="generated", threads=1, communicator=wrong)
