"""Attribution of kernels to kinds of layers: names, arithmetic, and that the parts sum to the whole."""

import math

import numpy as np
import pytest

import meta500
from meta500.benchmarks.generation import forms
from meta500.benchmarks.kernel_counts import KernelWork, kernel_works
from meta500.benchmarks.kernels import Profile
from meta500.benchmarks.studies.codegen.layer_times import (
    Group,
    Layer,
    _stages_of,
    convolution_share,
    group_name,
    grouped,
    layer_rows,
    layers_of,
)

CONV, RELU = Layer("convolution", "forward"), Layer("ReLU", "forward")


@pytest.mark.parametrize(
    ("origin", "layers"),
    [
        ("Conv encoder1.conv1; Relu encoder1.relu1", [CONV, RELU]),
        ("adjoint of Conv head by head.weight", [Layer("convolution", "backward")]),
        ("adjoint of ConvTranspose d.up by x; adjoint of Relu r by y",
         [Layer("transposed convolution", "backward"), Layer("ReLU", "backward")]),
        ("optimizer adam", [Layer("optimizer")]),
        ("copy of image", [Layer("copy of the input")]),
        ("AveragePool p; AveragePool q", [Layer("pooling", "forward")]),
        ("Softmax s", [Layer("Softmax", "forward")]),
    ],
)  # fmt: skip
def test_origins_name_their_layers(origin, layers):
    assert layers_of(origin) == layers


def test_fused_kernels_are_named_by_all_that_is_in_them():
    assert group_name([CONV]) == "convolution forward"
    assert group_name([CONV, RELU]) == "convolution + ReLU, forward"
    both = [Layer("loss", "forward"), Layer("ReLU", "backward"), CONV]
    assert group_name(both) == "convolution + loss + ReLU, forward and backward"


@pytest.mark.parametrize("batch", [1, 2])
def test_every_kernel_is_in_one_group_and_convolutions_do_their_operations(batch):
    model = meta500.models.unet(n=1, batch=batch, size=32)
    shapes = {"image": (batch, 3, 32, 32), "label": (batch, 32, 32)}
    with meta500.network(model, backend="generated", threads=1, target="avx2") as net:
        schedule = forms.plan(net, forms.training(net, shapes, "adam")).schedule
    works, groups = kernel_works(schedule), grouped(list(_stages_of(schedule)))
    assert sorted(k for g in groups for k in g.kernels) == list(range(len(works)))
    types, forward = model.graph.types(), 0
    for op in model.graph.operations:
        if op.op_type == "Conv":
            weight = model.graph.initializers[op.W]
            forward += 2 * math.prod(types[op.Y].shape) * weight[0].size
    found = sum(g.arithmetic.get(CONV, 0.0) for g in groups)
    # The sums themselves; the bias begins them and costs nothing.
    assert found == forward
    by_relu = sum(g.arithmetic.get(RELU, 0.0) for g in groups)
    relus = sum(math.prod(types[op.Y].shape) for op in model.graph.operations if op.op_type == "Relu")
    # A comparison and a selection, or one of them, for each element.
    assert relus <= by_relu <= 3 * relus
    fused = next(g for g in groups if g.name == "convolution + ReLU, forward")
    assert 0.9 < convolution_share(fused.arithmetic) < 1
    assert any(g.name == "optimizer" for g in groups)


def test_attribution_sums_to_the_whole():
    works = [KernelWork(f"k{i}", "map", "map", "x", None, 1) for i in range(3)]
    rng = np.random.default_rng(0)
    seconds = rng.uniform(0.1, 1.0, (6, 3))
    wall = list(seconds.sum(axis=1) + 0.5)
    groups = [
        Group("convolution forward", {CONV: 95.0, RELU: 5.0}, [0, 2]),
        Group("convolution + ReLU, forward", {CONV: 80.0, RELU: 20.0}, [1]),
    ]
    plain = [w / 1.25 for w in wall]
    rows = list(layer_rows(groups, Profile("default", works, seconds, wall, []), plain, {"level": 1}))
    times = [r.samples for r in rows if r.quantity == "layer_time"]
    assert np.sum(times, axis=0) == pytest.approx(wall)
    shares = [r.samples for r in rows if r.quantity == "layer_share"]
    assert np.sum(shares, axis=0) == pytest.approx(np.ones(6))
    kernels = [r.samples for r in rows if r.quantity == "kernel_time"]
    assert np.sum(kernels, axis=0) == pytest.approx(seconds.sum(axis=1))
    (outside,) = (r for r in rows if r.quantity == "outside_share")
    assert outside.samples == pytest.approx(0.5 / np.array(wall))
    # Only the first group is convolutions to 90 %.
    (mostly,) = (r for r in rows if r.quantity == "convolution_share")
    assert mostly.samples == pytest.approx(seconds[:, [0, 2]].sum(axis=1) / seconds.sum(axis=1))
    (cost,) = (r for r in rows if r.quantity == "stopwatch_cost")
    assert cost.value == pytest.approx(1.25)
    amounts = {(r.operator, r.node): r.value for r in rows if r.quantity == "arithmetic"}
    assert amounts["convolution + ReLU, forward", "ReLU forward"] == 20.0
    assert convolution_share({}) == 0.0
