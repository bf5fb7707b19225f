"""Buffers that hold only some rows of a tensor, and the sweeps along which they roll."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.backends.generated.affine import indices
from meta500.backends.generated.cpp import sources
from meta500.backends.generated.expressions import Access, Load
from meta500.backends.generated.ir import SUM, Axis, Stage, Tensor
from meta500.backends.generated.network import GeneratedNetwork
from meta500.backends.generated.schedule import Schedule
from meta500.backends.generated.sweeps import Rows, progress

# So small that pictures of 64 x 64 pixels do not fit.
CACHE = 1 << 17


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = GeneratedNetwork._schedule_options
    monkeypatch.setattr(
        GeneratedNetwork, "_schedule_options", lambda net: replace(usual(net), cache_bytes=CACHE)
    )


def fed(model: meta500.Model, size: tuple[int, int], batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "image": rng.standard_normal((batch, 3, *size)),
        "label": rng.integers(0, 3, (batch, *size)),
    }


def trained(model: meta500.Model, inputs: Mapping[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    with meta500.network(model, precision="float64", **options) as net:
        found = dict(net.inference_and_backprop(dict(inputs), loss="loss"))
        found |= {name: np.array(net.native(gradient)) for name, gradient in net.gradient()}
        if options["backend"] == "generated":
            (executable,) = net._executables.values()
            assert rolled(executable.schedule)
        return found


def rolled(plan: Schedule) -> dict[str, int]:
    """Tensors of which only some rows are stored, and how many."""
    return {name: place.rolling for name, place in plan.places.items() if place.rolling}


@pytest.mark.sampled(5)
@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [(64, 64), (96, 80), (80, 48)])
def test_training_is_the_same_as_with_whole_tensors(size: tuple[int, int], threads: int) -> None:
    """Two images per thread: the second one finds the rows of the first one in all buffers."""
    model = meta500.models.unet(n=1, batch=4, size=size)
    inputs = fed(model, size, 4)
    wanted = trained(model, inputs, backend="numpy")
    for _ in range(2):
        found = trained(model, inputs, backend="generated", threads=threads)
        for name, value in wanted.items():
            np.testing.assert_allclose(
                found[name], value, rtol=0, atol=1e-11 * np.abs(value).max() + 1e-15, err_msg=name
            )


@pytest.mark.usefixtures("small_cache")
def test_buffers_hold_what_every_band_touches() -> None:
    """By brute force over all kernels and bands: what a kernel touches is stored, and was not dropped before."""
    model = meta500.models.unet(n=0, batch=2, size=64)
    with meta500.network(model, backend="generated", threads=1) as net:
        net.inference_and_backprop(
            {n: x.astype("f") if x.dtype.kind == "f" else x for n, x in fed(model, (64, 64), 2).items()},
            loss="loss",
        )
        (executable,) = net._executables.values()
    plan = executable.schedule
    seen = 0
    for step in plan.steps:
        for sweep in step.sweeps:
            for one in sweep.rolling:
                place, height = plan.places[one.tensor], plan.program.tensors[one.tensor].shape[2]
                assert place.rolling == one.rows <= height // 2
                assert list(one.first) == sorted(one.first) and list(one.end) == sorted(one.end)
                written: set[int] = set()
                assert sweep.bounds is not None
                for band, (first, end) in enumerate(zip(one.first, one.end, strict=True)):
                    for at, kernel in enumerate(step.kernels[sweep.first : sweep.last + 1]):
                        low, high = sweep.bounds[band][at], sweep.bounds[band + 1][at]
                        if low == high:
                            continue
                        axis = kernel.nest.split
                        assert axis is not None
                        for part in kernel.parts:
                            sizes = dict(part.stage.sizes)
                            reads = [x.access for x in part.stage.loads() if x.access.tensor == one.tensor]
                            for access in reads:
                                rows = touched(access.indices[2], axis.name, low, high, sizes)
                                assert first <= min(rows) and max(rows) < end
                                inside = {row for row in rows if 0 <= row < height}
                                assert inside <= written
                                seen += len(inside)
                            if part.stage.write.tensor == one.tensor:
                                rows = touched(part.stage.write.indices[2], axis.name, low, high, sizes)
                                assert first <= min(rows) and max(rows) < end
                                written |= rows
    assert seen > 1000


def touched(index: Any, axis: str, low: int, high: int, sizes: Mapping[str, int]) -> set[int]:
    """All values of an index."""
    values = {index.constant}
    for name, step in index.terms:
        span = range(low, high) if name == axis else range(sizes[name])
        values = {value + step * at for value in values for at in span}
    return values


def test_kernels_that_wait_for_all_rows_of_the_one_before() -> None:
    """Many of them, as in a chain of products of matrices: one after the other, to the end."""
    rows, count = 64, 40
    tensors = {f"t{i}": Tensor(f"t{i}", (1, 1, rows, rows)) for i in range(count + 1)}
    axes = tuple(Axis(name, rows) for name in "ijr")
    kernels = []
    for i in range(count):
        value = Load(Access(f"t{i}", indices((0, 0, "r", "j"))))
        stage = Stage(f"s{i}", "", axes, Access(f"t{i + 1}", indices((0, 0, "i", "j"))), value, SUM)
        kernels.append(Rows((stage,), "i", rows, 1))
    table = progress(kernels, tensors, 8)
    assert table[-1] == (rows,) * count
    assert all(done[i] == rows or done[i + 1] == 0 for done in table for i in range(count - 1))


@pytest.mark.usefixtures("small_cache")
def test_without_sweeps_nothing_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = GeneratedNetwork._schedule_options
    monkeypatch.setattr(GeneratedNetwork, "_schedule_options", lambda net: replace(usual(net), cache_bytes=0))
    model = meta500.models.unet(n=0, batch=2, size=64)
    with meta500.network(model, backend="generated", threads=1) as net:
        inputs = {n: x.astype("f") if x.dtype.kind == "f" else x for n, x in fed(model, (64, 64), 2).items()}
        net.inference_and_backprop(inputs, loss="loss")
        (executable,) = net._executables.values()
    assert rolled(executable.schedule) == {}
    assert "Rolling" not in sources(executable.schedule)["network.cpp"]
