"""Winograd's forms of convolutions and of their gradients by the input: compiled layers against float64."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.backends.generated.forms import Form
from meta500.backends.generated.network import GeneratedNetwork
from meta500.backends.generated.schedule import Schedule
from meta500.backends.generated.toom_cook import toom_cook
from meta500.backends.generated.winograd import DOUBLE, SHORT, SINGLE, Winograd
from meta500.backends.targets import can_run
from meta500.backends.targets import target as find
from meta500.graph import Builder, ops

PROCESSORS = len(os.sched_getaffinity(0))
# Channels of the image, between the convolutions, and of the result; rows, columns.
BRANCHES = {
    "64 columns": (16, 16, 20, 8, 64),
    "192 columns, several tiles": (16, 16, 16, 8, 192),
    "32 columns, two rows of tiles in a vector, blocks of two": (18, 16, 22, 16, 32),
    "16 columns, four rows of tiles in a vector": (16, 24, 16, 16, 16),
    "half vectors": (16, 16, 16, 36, 32),
    "F(2, 3) across": (16, 20, 16, 12, 48),
    "rows only": (4, 6, 8, 8, 128),
    "rows only, short rows": (8, 8, 8, 8, 20),
    "many channels": (64, 64, 16, 4, 64),
}
TWICE = {"64 columns", "rows only"}


def test_matrices_compute_correlations_exactly():
    rng = np.random.default_rng(3)

    def numbers(*shape: int) -> np.ndarray:
        return np.vectorize(lambda n: Fraction(int(n), 7), otypes=[object])(rng.integers(-50, 50, shape))

    for (m, down), (k, across) in itertools.product([(4, SINGLE), (4, DOUBLE), (2, SHORT)], repeat=2):
        rows, columns = toom_cook(m, 3, down), toom_cook(k, 3, across)
        x, g = numbers(m + 2, k + 2), numbers(3, 3)
        a, c = (np.array(t.output, object) for t in (rows, columns))
        b, d = (np.array(t.data, object) for t in (rows, columns))
        f, h = (np.array(t.filter, object) for t in (rows, columns))
        found = a @ ((f @ g @ h.T) * (b @ x @ d.T)) @ c.T
        wanted = [[(x[i : i + 3, j : j + 3] * g).sum() for j in range(k)] for i in range(m)]
        assert np.array_equal(found, np.array(wanted, object))


def branches(shapes: Mapping[str, tuple[int, ...]], batch: int, relu: bool = True) -> meta500.Model:
    """For each shape two convolutions, with a ReLU between them; "loss" is the sum of the results times ``t``.

    Those in ``TWICE`` add another convolution of what is between: its gradient is a sum of two.
    """
    b = Builder("branches")
    rng = np.random.default_rng(5)

    def convolution(x: str, name: str, c: int, k: int) -> str:
        # Whole numbers, and a bias of a half: no rounding error decides about a ReLU.
        w = b.parameter(f"{name}.w", rng.integers(-2, 3, (k, c, 3, 3)).astype(np.float32))
        bias = b.parameter(f"{name}.b", rng.integers(-3, 3, k).astype(np.float32) + 0.5)
        return b.add(ops.Conv, x, w, bias, pads=(1, 1, 1, 1), name=name)

    parts = []
    for number, (name, (c, m, k, rows, columns)) in enumerate(shapes.items()):
        x = b.input(f"x{number}", np.float32, (batch, c, rows, columns))
        t = b.input(f"t{number}", np.float32, (batch, k, rows, columns))
        a = convolution(x, f"first{number}", c, m)
        a = b.add(ops.Relu, a, name=f"relu{number}") if relu else a
        y = convolution(a, f"second{number}", m, k)
        if name in TWICE:
            y = b.add(ops.Add, y, convolution(a, f"third{number}", m, k))
        y = b.add(ops.Identity, y, outputs=[f"y{number}"])
        b.output(y)
        parts.append(b.add(ops.ReduceSum, b.add(ops.Mul, y, t), keepdims=0))
    b.output(b.add(ops.Sum, tuple(parts), outputs=["loss"]))
    return b.build()


def whole(model: meta500.Model, seed: int) -> dict[str, np.ndarray]:
    """Images of whole numbers."""
    rng = np.random.default_rng(seed)
    return {
        name: (rng.integers(-2, 3, t.shape) if name[0] == "x" else rng.standard_normal(t.shape)).astype("f")
        for name, t in model.inputs.items()
    }


def normal(model: meta500.Model, seed: int) -> dict[str, np.ndarray]:
    """Images and weights without structure."""
    rng = np.random.default_rng(seed)
    shapes = {name: t.shape for name, t in model.inputs.items()}
    shapes |= {name: w.shape for name, w in model.graph.initializers.items() if w.ndim}
    return {name: rng.standard_normal(shape).astype("f") for name, shape in shapes.items()}


def results(net: Any, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All outputs and the gradients by the images, in float64."""
    fed = {name: x for name, x in given.items() if name in net.model.inputs}
    for name in set(given) - set(fed):
        net.feed_tensor(name, given[name])
    images = [name for name in fed if name[0] == "x"]
    found = dict(net.inference_and_backprop(fed, loss="loss", wrt=images))
    del found["loss"]
    for name in images:
        found[f"grad/{name}"] = net.native(f"grad/{name}")
    return {name: np.array(value, np.float64) for name, value in found.items()}


def exact(model: meta500.Model, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    with meta500.network(model, backend="numpy", precision="float64") as net:
        return results(net, {name: x.astype(np.float64) for name, x in given.items()})


def network(model: meta500.Model, **options: Any) -> GeneratedNetwork:
    return meta500.network(model, backend="generated", **{"threads": min(2, PROCESSORS), **options})


def plan_of(net: GeneratedNetwork) -> Schedule:
    (executable,) = net._executables.values()
    return executable.schedule


def forms(plan: Schedule) -> list[Winograd]:
    return [k.nest for step in plan.steps for k in step.kernels if isinstance(k.nest, Winograd)]


def test_error_is_at_most_four_times_that_of_the_direct_form():
    model = branches(BRANCHES, 2, relu=False)
    with network(model) as fast, network(model, winograd=False) as direct:
        for seed in range(2):
            given = normal(model, seed)
            found, plain = results(fast, given), results(direct, given)
            for name, value in exact(model, given).items():
                error, limit = (np.abs(x[name] - value).max() for x in (found, plain))
                assert error <= 4 * limit, (seed, name)
        assert len(forms(plan_of(fast))) == 4 * len(BRANCHES) + 2 * len(TWICE)
        assert not forms(plan_of(direct))


def test_all_threads_at_one_image():
    """Every thread has its own rows; with ReLUs, and masks in backward."""
    model = branches(BRANCHES, 1)
    given = whole(model, 3)
    with network(model) as net:
        found, used = results(net, given), forms(plan_of(net))
        lanes = net.target.vector_bytes // 4
    for name, value in exact(model, given).items():
        assert np.abs(found[name] - value).max() <= 1e-5 * np.abs(value).max(), name
    assert len(used) == 4 * len(BRANCHES) + 2 * len(TWICE)
    across = {len(f.across.output) if f.across else 0 for f in used}
    shapes = {(f.lanes, f.groups, f.across is None, f.block) for f in used}
    if lanes == 16:
        assert across == {0, 2, 4}
        assert shapes == {
            (16, 1, False, 4),
            (16, 2, False, 2),
            (16, 2, False, 4),
            (16, 4, False, 4),
            (8, 1, False, 4),
            (16, 1, True, 2),
            (16, 1, True, 4),
            (4, 1, True, 4),
        }
    if lanes == 8:
        assert across == {0, 4}
        assert shapes == {
            (8, 1, False, 2),
            (8, 2, False, 2),
            (4, 1, False, 2),
            (8, 1, True, 2),
            (4, 1, True, 2),
        }


@pytest.mark.parametrize("target", ["avx2", "x86-64"])
def test_narrow_vectors(target):
    if not can_run(find(target)):
        pytest.skip(f"this processor does not run code for {target}")
    chosen = {name: BRANCHES[name] for name in ("64 columns", "rows only", "F(2, 3) across")}
    model = branches(chosen, 2)
    given = whole(model, 1)
    with network(model, target=target) as net:
        found, used = results(net, given), forms(plan_of(net))
    assert {f.block for f in used} == {2}
    assert max(f.lanes for f in used) == find(target).vector_bytes // 4
    for name, value in exact(model, given).items():
        assert np.abs(found[name] - value).max() <= 1e-5 * np.abs(value).max(), name


def test_bands_of_rows_change_nothing(monkeypatch):
    shapes = {"squares": (16, 16, 16, 64, 64), "rows only": (4, 8, 4, 48, 64), "groups": (16, 16, 16, 64, 32)}
    model = branches(shapes, 2)
    given = whole(model, 9)
    options = GeneratedNetwork._schedule_options
    found = {}
    for size in (0, 1 << 18):
        monkeypatch.setattr(
            GeneratedNetwork,
            "_schedule_options",
            lambda net, size=size: replace(options(net), cache_bytes=size),
        )
        with network(model) as net:
            found[size] = results(net, given)
            plan = plan_of(net)
    swept = [
        step.kernels[position].nest
        for step in plan.steps
        for sweep in step.sweeps
        if sweep.bounds is not None and len(sweep.bounds) > 2
        for position in range(sweep.first, sweep.last + 1)
    ]
    assert sum(isinstance(nest, Winograd) for nest in swept) >= 4
    for name, value in found[0].items():
        assert np.array_equal(found[1 << 18][name], value), name


def planned(shape: Sequence[int], **options: Any) -> list[Winograd]:
    """The forms of the first convolution of a branch, in inference."""
    model = branches({"one": tuple(shape)}, 2)
    sizes = tuple((name, tuple(t.shape)) for name, t in model.inputs.items() if name == "x0")
    with network(model, **options) as net:
        plan, _, _ = net.planned(Form(("y0",), sizes))
    return forms(plan)


def test_only_where_it_is_faster():
    full = {"target": "avx2"}
    assert len(planned((8, 8, 8, 8, 64), **full)) == 2
    assert not planned((3, 3, 3, 8, 64), **full), "few channels"
    assert not planned((8, 9, 9, 8, 64), **full), "results in no blocks"
    assert not planned((8, 8, 8, 6, 64), **full), "rows in no tiles"
    assert not planned((8, 8, 8, 8, 63), **full), "columns in no vectors"
    assert not planned((8, 8, 8, 8, 64), precision="float64")
    assert not planned((8, 8, 8, 8, 64), winograd=False)


def test_other_windows_stay_direct():
    b = Builder("windows")
    rng = np.random.default_rng(0)
    x = b.input("x", np.float32, (2, 8, 32, 64))
    windows = {
        "stride": ((8, 8, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        "dilation": ((8, 8, 3, 3), {"dilations": (2, 2), "pads": (2, 2, 2, 2)}),
        "taps": ((8, 8, 5, 5), {"pads": (2, 2, 2, 2)}),
        "groups": ((8, 4, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    }
    for name, (shape, attributes) in windows.items():
        w = b.parameter(f"{name}.w", rng.standard_normal(shape).astype(np.float32))
        b.output(b.add(ops.Conv, x, w, outputs=[name], **attributes))
    model = b.build()
    fed = {"x": rng.standard_normal((2, 8, 32, 64)).astype(np.float32)}
    with network(model) as net, meta500.network(model, backend="numpy") as reference:
        found, wanted = net.inference(fed), reference.inference(fed)
        assert not forms(plan_of(net))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4)


def test_option_is_stated():
    with network(branches({"one": (8, 8, 8, 8, 64)}, 2), winograd=False) as net:
        assert net.options["winograd"] is False


@pytest.mark.parametrize(
    ("n", "depth"), [(2, 2), *(pytest.param(n, 4, marks=pytest.mark.slow) for n in (2, 3))]
)
def test_whole_network(n, depth):
    model = meta500.models.unet(n=n, depth=depth, batch=2, size=64)
    rng = np.random.default_rng(2)
    image, label = rng.standard_normal((2, 3, 64, 64)), rng.integers(0, 3, (2, 64, 64))
    with meta500.network(model, backend="numpy", precision="float64") as reference:
        wanted = reference.inference_and_backprop({"image": image, "label": label}, loss="loss")
        gradients = {name: reference.native(g) for name, g in reference.gradient()}
    with network(model) as net:
        found = net.inference_and_backprop({"image": image.astype("f"), "label": label}, loss="loss")
        assert len(forms(plan_of(net))) >= 10
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max())
        for name, gradient in net.gradient():
            value = gradients[name]
            assert np.abs(net.native(gradient) - value).max() <= 1e-3 * np.abs(value).max(), name
