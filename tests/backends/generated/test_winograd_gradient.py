"""Winograd's form of weight gradients: compiled layers against float64, with the direct form's error beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ValueInfoProto, helper, numpy_helper

import meta500
from meta500.backends.generated.companions import Companion
from meta500.backends.generated.network import GeneratedNetwork
from meta500.backends.generated.schedule import Kernel, Schedule
from meta500.backends.generated.toom_cook import toom_cook
from meta500.backends.generated.winograd_gradient import (
    ACROSS,
    COLUMNS,
    DOWN,
    ROWS,
    WinogradGradient,
    transforms,
)
from meta500.graph import load

PROCESSORS = len(os.sched_getaffinity(0))
_DESCRIPTION = Path("/proc/cpuinfo")
PROCESSOR = _DESCRIPTION.read_text() if _DESCRIPTION.exists() else ""
# batch, input channels, output channels, rows, columns; whether columns are transformed too, lanes of 16.
LAYERS = {
    "nested": ((1, 16, 16, 32, 32), True, 16),
    "nested, unequal channels": ((2, 32, 16, 20, 64), True, 16),
    "nested, half vectors, last band shorter": ((1, 16, 20, 44, 48), True, 8),
    "nested, long rows": ((1, 16, 16, 12, 192), True, 16),
    "rows only": ((2, 8, 8, 36, 64), False, 16),
    "rows only, half vectors": ((3, 10, 12, 20, 40), False, 8),
    "rows only, 16 columns": ((2, 18, 8, 32, 16), False, 16),
}
DIRECT = {
    "few channels": (1, 7, 16, 32, 32),
    "odd number of rows": (1, 16, 16, 33, 32),
    "odd number of columns": (1, 16, 16, 32, 31),
    "channels in no blocks": (1, 9, 18, 32, 32),
}


def layer(
    shape: tuple[int, ...], op_type: str = "Conv", kernel: int = 3, pad: int = 1, **attributes: Any
) -> tuple[meta500.Model, dict[str, np.ndarray]]:
    """sum(t * conv(x)): the gradient of the result is ``t``."""
    n, c, k, height, width = shape
    rng = np.random.default_rng(sum(shape))
    groups = attributes.get("group", 1)
    weights = (k, c // groups) if op_type == "Conv" else (c, k // groups)
    stored = {
        "w": rng.standard_normal((*weights, kernel, kernel), np.float32),
        "b": rng.standard_normal(k, np.float32),
    }
    nodes = [
        helper.make_node(op_type, ["x", "w", "b"], ["y"], pads=[pad] * 4, name="layer", **attributes),
        helper.make_node("Mul", ["y", "t"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["loss"], keepdims=0),
    ]
    step = attributes.get("strides", [1, 1])[0]
    size = [
        (s + 2 * pad - kernel) // step + 1 if op_type == "Conv" else (s - 1) * step - 2 * pad + kernel
        for s in (height, width)
    ]
    fed = {
        "x": np.maximum(rng.standard_normal((n, c, height, width), np.float32), 0),
        "t": rng.standard_normal((n, k, *size), np.float32),
    }
    inputs = [helper.make_tensor_value_info(name, 1, x.shape) for name, x in fed.items()]
    initializers = [numpy_helper.from_array(x, name) for name, x in stored.items()]
    graph = helper.make_graph(nodes, "layer", inputs, [ValueInfoProto(name="loss")], initializers)
    opsets = [helper.make_opsetid("", 17)]
    return load(helper.make_model(graph, opset_imports=opsets, ir_version=10)), fed


def reference(x: np.ndarray, t: np.ndarray, pad: int = 1) -> np.ndarray:
    """The gradient of 3 x 3 weights in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    rows, columns = t.shape[2:]
    gradient = np.zeros((t.shape[1], x.shape[1], 3, 3))
    for r in range(3):
        for q in range(3):
            part = x[:, :, r : r + rows, q : q + columns]
            gradient[:, :, r, q] = np.einsum("nkij,ncij->kc", t, part, optimize=True)
    return gradient


def trained(
    model: meta500.Model, fed: Mapping[str, np.ndarray], **options: Any
) -> tuple[dict[str, np.ndarray], Schedule]:
    """Gradients by parameter, and the schedule."""
    with meta500.network(model, backend="generated", **options) as net:
        net.inference_and_backprop(dict(fed), loss="loss")
        found = {name: np.array(net.native(gradient)) for name, gradient in net.gradient()}
        (executable,) = net._executables.values()
        return found, executable.schedule


def kernels(plan: Schedule) -> list[Kernel]:
    return [kernel for step in plan.steps for kernel in step.kernels]


def gradients(plan: Schedule) -> list[WinogradGradient]:
    return [kernel.nest for kernel in kernels(plan) if isinstance(kernel.nest, WinogradGradient)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", LAYERS)
def test_error_is_at_most_four_times_that_of_the_direct_form(case: str) -> None:
    shape, nested, lanes = LAYERS[case]
    model, fed = layer(shape)
    wanted, bias = reference(fed["x"], fed["t"]), fed["t"].sum((0, 2, 3), np.float64)
    direct, plan = trained(model, fed, threads=1, winograd=False)
    assert not gradients(plan)
    limit = 4 * np.abs(direct["w"] - wanted).max()
    assert 0 < limit < 1e-5 * np.abs(wanted).max()
    quick, plan = trained(model, fed, threads=min(shape[0], PROCESSORS, 2))
    (form,) = gradients(plan)
    assert (form.across is not None) == nested
    if plan.options.lanes == 16:
        assert form.lanes == lanes
    assert np.abs(quick["w"] - wanted).max() <= limit
    assert form.companion is not None and form.companion.held
    np.testing.assert_allclose(quick["b"], bias, rtol=1e-5, atol=1e-5 * np.abs(bias).max())


@pytest.mark.skipif("avx2" not in PROCESSOR, reason="the processor has no AVX2")
@pytest.mark.parametrize("shape", [(1, 16, 16, 20, 32), (1, 8, 10, 16, 24)], ids=["nested", "rows only"])
def test_narrow_vectors_and_fewer_registers(shape: tuple[int, ...]) -> None:
    model, fed = layer(shape)
    quick, plan = trained(model, fed, threads=1, target="avx2")
    (form,) = gradients(plan)
    assert form.lanes == 8 and form.block[0] == 2
    wanted = reference(fed["x"], fed["t"])
    np.testing.assert_allclose(quick["w"], wanted, atol=2e-6 * np.abs(wanted).max())
    _, plan = trained(model, fed, threads=1, target="x86-64")
    assert not gradients(plan)


@pytest.mark.parametrize("case", DIRECT)
def test_other_shapes_keep_the_direct_form(case: str) -> None:
    model, fed = layer(DIRECT[case])
    quick, plan = trained(model, fed, threads=1)
    assert not gradients(plan)
    np.testing.assert_allclose(quick["w"], reference(fed["x"], fed["t"]), rtol=1e-3, atol=1e-3)


def test_convolution_without_padding_and_a_window_that_ends_with_the_picture() -> None:
    model, fed = layer((2, 16, 16, 34, 34), pad=0)
    quick, plan = trained(model, fed, threads=1)
    assert len(gradients(plan)) == 1
    wanted = reference(fed["x"], fed["t"], 0)
    np.testing.assert_allclose(quick["w"], wanted, atol=2e-6 * np.abs(wanted).max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel": 1, "pad": 0},
        {"strides": [2, 2]},
        {"group": 2},
        {"kernel": 3, "dilations": [1, 1], "op_type": "ConvTranspose", "strides": [2, 2]},
    ],
    ids=["1x1", "strided", "groups", "transposed"],
)
def test_other_convolutions_keep_the_direct_form(attributes: dict[str, Any]) -> None:
    model, fed = layer((2, 16, 16, 32, 32), **attributes)
    quick, plan = trained(model, fed, threads=1)
    assert not gradients(plan)
    with meta500.network(model, backend="numpy", precision="float64") as net:
        net.inference_and_backprop({n: x.astype(np.float64) for n, x in fed.items()}, loss="loss")
        for name, gradient in net.gradient():
            wanted = net.native(gradient)
            np.testing.assert_allclose(quick[name], wanted, atol=2e-6 * np.abs(wanted).max())


def test_in_double_precision_the_form_is_direct() -> None:
    model, fed = layer((1, 16, 16, 32, 32))
    found, plan = trained(
        model, {n: x.astype(np.float64) for n, x in fed.items()}, threads=1, precision="float64"
    )
    assert not gradients(plan)
    np.testing.assert_allclose(found["w"], reference(fed["x"], fed["t"]), rtol=1e-12, atol=1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("n", "size"), [(2, 32), (3, 32)])
def test_whole_networks(n: int, size: int) -> None:
    """Losses and all gradients, the images shared out to threads and in bands of rows."""
    batch, threads = 2, min(2, PROCESSORS)
    model = meta500.models.unet(n=n, batch=batch, size=size)
    rng = np.random.default_rng(n)
    fed = {
        "image": rng.standard_normal((batch, 3, size, size), np.float32),
        "label": rng.integers(0, 3, (batch, size, size)),
    }
    quick, plan = trained(model, fed, threads=threads)
    assert len(gradients(plan)) > 2
    with meta500.network(model, backend="numpy", precision="float64") as net:
        net.inference_and_backprop({**fed, "image": fed["image"].astype(np.float64)}, loss="loss")
        for name, gradient in net.gradient():
            wanted = net.native(gradient)
            error = np.abs(quick[name] - wanted).max() / np.abs(wanted).max()
            assert error < 2e-5, name


def test_bands_begin_where_the_caller_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small cache cuts the rows of all kernels into bands, whole pictures for nobody."""
    model, fed = layer((2, 16, 16, 64, 64))
    wanted, plan = trained(model, fed, threads=1)
    options = replace(plan.options, cache_bytes=1 << 19)
    monkeypatch.setattr(GeneratedNetwork, "_schedule_options", lambda net: options)
    found, plan = trained(model, fed, threads=1)
    assert any(s.bounds and len(s.bounds) > 2 for step in plan.steps for s in step.sweeps)
    assert gradients(plan)
    for name, gradient in wanted.items():
        np.testing.assert_allclose(found[name], gradient, atol=2e-6 * np.abs(gradient).max())


@pytest.mark.parametrize(("length", "points"), [(ROWS, DOWN), (COLUMNS, ACROSS)])
def test_transforms_are_exact(length: int, points: tuple[Fraction, ...]) -> None:
    found = transforms(length, points)
    data = [Fraction(3 * i * i - 5 * i + 2, 7) for i in range(length + 2)]
    held = [Fraction(i * i + 1, 3 + i) for i in range(length)]

    def by(matrix: Any, vector: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    products = [a * b for a, b in zip(by(found.held, held), by(found.moving, data), strict=True)]
    wanted = [sum(data[r + i] * held[i] for i in range(length)) for r in range(3)]
    assert by(found.result, products) == wanted
    assert found.products == length + 2 == len(found.moving)


def test_points_must_be_different_and_enough() -> None:
    for points in ([Fraction(0), Fraction(1)], [Fraction(0), Fraction(1), Fraction(1)]):
        with pytest.raises(ValueError, match=r"F\(3, 2\) needs 3 different points"):
            toom_cook(3, 2, points)


def test_a_companion_must_sum_up_the_held_factor() -> None:
    model, fed = layer((1, 16, 16, 32, 32))
    _, plan = trained(model, fed, threads=1)
    (form,) = gradients(plan)
    companion = form.companion
    assert isinstance(companion, Companion) and form.welcomes(companion)
    assert not form.welcomes(replace(companion, held=False))
