"""Bias gradients that are computed on the way of the gradients of weights."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from onnx import ValueInfoProto, helper, numpy_helper

import meta500
from meta500.backends.generated.affine import Affine, indices
from meta500.backends.generated.companions import fitted
from meta500.backends.generated.contraction import DUAL, Blocked
from meta500.backends.generated.expressions import Access, Apply, Load
from meta500.backends.generated.ir import SUM, Axis, Stage
from meta500.backends.generated.schedule import Kernel, Schedule
from meta500.graph import load

THREADS = min(2, len(os.sched_getaffinity(0)))
# Operator, images, input and output channels, rows, columns, its attributes, and whether dy is the held factor.
LAYERS: dict[str, tuple[str, tuple[int, ...], dict[str, Any], bool]] = {
    "3x3": ("Conv", (2, 3, 5, 17, 32), {"kernel_shape": [3, 3], "pads": [1] * 4}, True),
    "3x3, masked": ("Conv", (2, 3, 4, 16, 19), {"kernel_shape": [3, 3], "pads": [1] * 4}, True),
    "strided": ("Conv", (2, 4, 6, 32, 32), {"kernel_shape": [2, 2], "strides": [2, 2]}, True),
    "groups": ("Conv", (4, 4, 8, 16, 16), {"kernel_shape": [3, 3], "pads": [1] * 4, "group": 2}, True),
    "transposed": ("ConvTranspose", (2, 4, 6, 16, 16), {"kernel_shape": [2, 2], "strides": [2, 2]}, False),
}


def layer(
    op_type: str, shape: tuple[int, ...], attributes: dict[str, Any]
) -> tuple[meta500.Model, dict[str, np.ndarray]]:
    """sum(t * relu(layer(x))^2): the gradient of the layer's result is computed, not given."""
    n, c, k, height, width = shape
    rng = np.random.default_rng(sum(shape))
    group, kernel = attributes.get("group", 1), attributes["kernel_shape"]
    weights = (k, c // group) if op_type == "Conv" else (c, k // group)
    stored = {"w": rng.standard_normal((*weights, *kernel)), "b": rng.standard_normal(k)}
    nodes = [
        helper.make_node(op_type, ["x", "w", "b"], ["y"], name="layer", **attributes),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Mul", ["z", "z"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
    ]
    fed = {"x": rng.standard_normal((n, c, height, width))}
    inputs = [helper.make_tensor_value_info("x", 11, fed["x"].shape)]
    initializers = [numpy_helper.from_array(x, name) for name, x in stored.items()]
    graph = helper.make_graph(nodes, "layer", inputs, [ValueInfoProto(name="loss")], initializers)
    opsets = [helper.make_opsetid("", 17)]
    return load(helper.make_model(graph, opset_imports=opsets, ir_version=10)), fed


def check(
    model: meta500.Model, fed: dict[str, np.ndarray], threads: int, wrt: list[str] | None = None
) -> Schedule:
    """The gradients, of all parameters or of ``wrt``, are those of the numpy backend; returns the schedule."""
    with meta500.network(model, backend="numpy", precision="float64") as net:
        net.inference_and_backprop(fed, loss="loss", wrt=wrt)
        names = [f"grad/{n}" for n in wrt] if wrt else [gradient for _, gradient in net.gradient()]
        wanted = net.fetch_tensors(names)
    with meta500.network(model, backend="generated", precision="float64", threads=threads) as net:
        for _ in range(2):
            net.inference_and_backprop(fed, loss="loss", wrt=wrt)
        for name, gradient, right in zip(names, net.fetch_tensors(names), wanted, strict=True):
            scale = np.abs(right).max()
            np.testing.assert_allclose(gradient, right, atol=1e-12 * scale, rtol=1e-10, err_msg=name)
        (executable,) = net._executables.values()
        return executable.schedule


def hosts(plan: Schedule) -> list[Kernel]:
    kernels = [kernel for step in plan.steps for kernel in step.kernels]
    return [kernel for kernel in kernels if kernel.companion is not None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", LAYERS)
@pytest.mark.parametrize("alone", [False, True], ids=["own images", "all together"])
def test_bias_gradient_is_computed_on_the_way(case: str, alone: bool) -> None:
    """With images for every thread, and with one image that the threads share."""
    op_type, shape, attributes, held = LAYERS[case]
    model, fed = layer(op_type, (1, *shape[1:]) if alone else shape, attributes)
    plan = check(model, fed, THREADS)
    (host,) = hosts(plan)
    assert isinstance(host.nest, Blocked) and host.nest.companion is not None
    assert host.nest.companion.held == held
    assert host.companion is not None
    if case == "3x3, masked":
        assert host.nest.masked
    assert f"sum of the {'held' if held else 'moving'} factor" in str(plan)
    names = [kernel.name for step in plan.steps for kernel in step.kernels]
    assert host.companion.name not in names


def test_one_thread_writes_both_sums_without_copies() -> None:
    op_type, shape, attributes, _ = LAYERS["3x3"]
    model, fed = layer(op_type, (1, *shape[1:]), attributes)
    plan = check(model, fed, 1)
    (host,) = hosts(plan)
    assert not host.sums and not plan.partials


def dual() -> Blocked:
    """dw[k, c] += dy[k, i, j] * x[c, i, j]"""
    k, c, i, j = (Axis(name, size) for name, size in (("k", 4), ("c", 3), ("i", 8), ("j", 16)))
    held, moving = (Load(Access(name, indices([axis, "i", "j"]))) for name, axis in (("dy", "k"), ("x", "c")))
    stage = Stage(
        "weight", "", (k, c, i, j), Access("dw", indices(["k", "c"])), Apply("mul", (held, moving)), SUM
    )
    return Blocked(
        stage, DUAL, held, moving, 16, (j, 1), (i, 2), (), ((k, 2), (c, 1)), (), (), (), False, True
    )


def total(source: str, read: list[Any], axes: list[tuple[str, int]], written: list[str]) -> Stage:
    """A sum of one tensor."""
    loops = tuple(Axis(name, size) for name, size in axes)
    return Stage("bias", "", loops, Access("db", indices(written)), Load(Access(source, indices(read))), SUM)


def test_axes_are_matched_whatever_their_names() -> None:
    stage = total("dy", ["j", "c", "k"], [("j", 4), ("c", 8), ("k", 16)], ["j"])
    companion = fitted(dual(), stage, True)
    assert companion is not None and companion.held and companion.private
    assert str(companion.stage.write) == "db[k]"
    assert str(companion.stage.value) == "dy[k, i, j]"
    assert [axis.name for axis in companion.others] == ["c"]
    companion = fitted(dual(), total("x", ["a", "b", "d"], [("a", 3), ("b", 8), ("d", 16)], ["a"]), False)
    assert companion is not None and not companion.held
    assert [axis.name for axis in companion.others] == ["k"]


@pytest.mark.parametrize(
    "stage",
    [
        total("other", ["k", "i", "j"], [("k", 4), ("i", 8), ("j", 16)], ["k"]),
        total("dy", ["k", "i", "j"], [("k", 4), ("i", 7), ("j", 16)], ["k"]),
        total("dy", ["k", Affine.axis("i", 1, 1), "j"], [("k", 4), ("i", 8), ("j", 16)], ["k"]),
        total("dy", ["k", Affine.axis("i", 2), "j"], [("k", 4), ("i", 8), ("j", 16)], ["k"]),
        total("dy", ["k", "i", "j"], [("k", 4), ("i", 8), ("j", 16)], ["k", "i"]),
        total("dy", ["k", "i", "j"], [("k", 4), ("i", 8), ("j", 16)], []),
        total("dy", ["k", "i", "j"], [("k", 4), ("i", 8), ("j", 16), ("n", 2)], ["k"]),
        total("dy", [0, "i", "j"], [("i", 8), ("j", 16)], []),
    ],
    ids=["tensor", "fewer rows", "shifted", "strided", "keeps rows", "sums channels", "repeated", "a part"],
)
def test_sums_over_something_else_stay_alone(stage: Stage) -> None:
    assert fitted(dual(), stage, True) is None


def test_sums_per_image_are_no_private_copies() -> None:
    """A factor for every image and channel: its gradient is a sum over the pixels that the same image needs."""
    n, c, size = 2 * THREADS, 3, 16
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="layer"),
        helper.make_node("ReduceMean", ["a"], ["mean"], axes=[2, 3]),
        helper.make_node("Mul", ["a", "mean"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "scaled"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
    ]
    rng = np.random.default_rng(3)
    stored = {"w": rng.standard_normal((c, c, 1, 1))}
    fed = {"x": rng.standard_normal((n, c, size, size))}
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, 11, array.shape) for name, array in fed.items()],
        [ValueInfoProto(name="loss")],
        [numpy_helper.from_array(x, name) for name, x in stored.items()],
    )
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    plan = check(model, fed, THREADS)
    duals = [k for step in plan.steps for k in step.kernels if isinstance(k.nest, Blocked)]
    assert any(k.nest.form == DUAL and k.merge is None for k in duals)


@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("per_image", ["addend", "factor"])
def test_sums_per_image_and_over_all_images_stay_apart(per_image: str, threads: int) -> None:
    """What is added to every image has a gradient per image, what every image is multiplied with as well."""
    n, c, size = 4, 3, 16
    rng = np.random.default_rng(5)
    stored = {"w": rng.standard_normal((c, c, 3, 3)), "b": rng.standard_normal((c, 1, 1))}
    convolution = helper.make_node("Conv", ["x", "w"], ["a"], name="layer", pads=[1] * 4)
    if per_image == "addend":  # Gradients: of v per image, of w over all.
        layers = [convolution, helper.make_node("Add", ["a", "v"], ["y"])]
        del stored["b"]
    else:  # Gradients: of v per image, of b over all.
        scaled = helper.make_node("Mul", ["a", "v"], ["scaled"])
        layers = [convolution, scaled, helper.make_node("Add", ["scaled", "b"], ["y"])]
    nodes = [
        *layers,
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("Mul", ["z", "z"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
    ]
    fed = {"x": rng.standard_normal((n, c, size, size)), "v": rng.standard_normal((n, c, 1, 1))}
    graph = helper.make_graph(
        nodes,
        per_image,
        [helper.make_tensor_value_info(name, 11, array.shape) for name, array in fed.items()],
        [ValueInfoProto(name="loss")],
        [numpy_helper.from_array(x, name) for name, x in stored.items()],
    )
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    check(model, fed, threads, ["v", *stored])
