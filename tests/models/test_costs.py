"""Parameters, multiply-adds and activations against published numbers, PyTorch's counter and sums by hand."""

import tracemalloc

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from meta500 import models
from meta500.backends.network import network
from meta500.errors import UserError
from meta500.graph import Builder, ops
from meta500.models.costs import costs, costs_per_image, outline
from meta500.models.initialization import initialize

# 10^9 multiply-adds of one 224 x 224 image, as torchvision's documentation of its weights gives them.
PUBLISHED = {
    "alexnet": 0.714,
    "densenet121": 2.834,
    "googlenet": 1.498,
    "mobilenet_v2": 0.301,
    "resnet18": 1.814,
    "resnet34": 3.664,
    "resnet50": 4.089,
    "squeezenet1_1": 0.349,
    "vgg16": 15.47,
    "vgg19": 19.632,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_multiply_adds(name):
    more = {"auxiliary": False} if name == "googlenet" else {}
    found = costs_per_image(name, **more)
    assert round(found.multiply_adds / 1e9, 3) == PUBLISHED[name]
    assert found.flops == 2 * found.multiply_adds and found.image == (3, 224, 224)
    assert found.parameters == sum(node.parameters for node in found.nodes)


@pytest.mark.parametrize(
    ("name", "options"),
    [("unet", {"size": 32}), ("lenet", {}), ("unet_ronneberger", {"size": 32, "depth": 1, "channels": 4})],
)
def test_operations_are_those_of_pytorchs_counter(name, options):
    model = models.create(name, batch=3, **options)
    rng = np.random.default_rng(0)
    fed = {
        "image": rng.normal(size=model.inputs["image"].shape).astype(np.float32),
        "label": rng.integers(0, 2, model.inputs["label"].shape),
    }
    with network(model, backend="torch") as net, FlopCounterMode(display=False) as counter:
        net.inference(fed)
    assert counter.get_total_flops() == costs(model).flops == 3 * costs_per_image(name, **options).flops


def test_activations_by_hand():
    found = costs_per_image("lenet")
    conv1, conv2 = 6 * 28 * 28, 16 * 10 * 10
    values = 2 * conv1 + conv1 // 4 + 2 * conv2 + conv2 // 4 + 400 + 2 * 120 + 2 * 84 + 10 + 1
    assert found.activation_bytes == 4 * values == sum(n.activation_bytes for n in found.nodes)
    assert costs_per_image("lenet", dtype="float64") == found == costs_per_image("lenet", batch=7)
    first = found.nodes[0]
    assert (first.name, first.operator, first.shape, first.parameters) == (
        "conv1",
        "Conv",
        (1, 6, 28, 28),
        156,
    )
    assert (first.multiply_adds, first.activation_bytes) == (conv1 * 25, 4 * conv1)


def test_operators_are_sorted_by_work_and_sum_up():
    found = costs_per_image("googlenet")
    groups = found.operators()
    assert next(iter(groups)) == "Conv" and "Concat" in groups
    for key in ("parameters", "multiply_adds", "activation_bytes"):
        assert sum(getattr(part, key) for _, part in groups.values()) == getattr(found, key)
    assert sum(count for count, _ in groups.values()) == len(found.nodes)


def small(operation, *shapes, dtype=np.float32, **fields):
    builder = Builder("small")
    inputs = [builder.input(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    builder.output(builder.add(operation, *inputs, name="y", **fields))
    return costs(builder.build())


@pytest.mark.parametrize(
    ("operation", "shapes", "fields", "count"),
    [
        (ops.Conv, ((2, 6, 9, 8), (4, 3, 3, 2)), {"group": 2, "strides": (2, 1)}, 2 * 4 * 4 * 7 * 3 * 6),
        (ops.ConvTranspose, ((2, 6, 5, 4), (6, 3, 2, 2)), {"strides": (2, 2)}, 2 * 6 * 5 * 4 * 3 * 4),
        (ops.Gemm, ((5, 3), (5, 7)), {"transA": 1}, 5 * 3 * 7),
        (ops.Gemm, ((5, 3), (7, 3), (7,)), {"transB": 1}, 5 * 3 * 7),
        (ops.MatMul, ((2, 1, 4, 3), (6, 3, 5)), {}, 2 * 6 * 4 * 5 * 3),
        (ops.MatMul, ((3,), (3,)), {}, 3),
        (ops.Add, ((5, 3), (5, 3)), {}, 0),
    ],
)
def test_multiply_adds_of_single_operators(operation, shapes, fields, count):
    assert small(operation, *shapes, **fields).multiply_adds == count


def test_a_shared_parameter_counts_once_and_values_that_are_no_floats_have_their_own_size():
    builder = Builder("shared")
    x = builder.input("x", np.float64, (2, 3))
    w = builder.parameter("w", np.ones((3, 3)))
    y = builder.add(ops.MatMul, builder.add(ops.MatMul, x, w, name="one"), w, name="two")
    builder.output(builder.add(ops.ArgMax, y, name="best"))
    found = costs(builder.build())
    assert [n.parameters for n in found.nodes] == [9, 0, 0] and found.parameters == 9
    assert [n.activation_bytes for n in found.nodes] == [24, 24, 8 * 3]


def test_what_cannot_be_counted_is_refused_by_name():
    with pytest.raises(
        UserError, match=r"'conv1'.*'image' \(float32\[N, 1, 28, 28\]\) is not known in numbers"
    ):
        costs(models.lenet(None))
    with pytest.raises(UserError, match=r"'y'.*multiply-adds of operator ai.onnx.Det are not known"):
        small(ops.Det, (3, 3))
    with pytest.raises(UserError, match="unknown model 'resnet'"):
        costs_per_image("resnet")
    with pytest.raises(UserError, match="unknown initialization 'he'"):
        costs_per_image("vgg16", initialization="he")
    with pytest.raises(UserError, match="batch must be"):
        costs_per_image("vgg16", batch=0)


def test_an_outline_takes_no_memory_for_its_weights():
    tracemalloc.start()
    model = outline("alexnet", batch=1)
    with_weights = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    total = sum(array.nbytes for array in model.graph.initializers.values())
    # Reserved once, in the network's own type, and not copied.
    assert total < with_weights < 1.1 * total
    assert not any(array.flags.writeable for array in model.graph.initializers.values())


def test_a_builder_copies_what_others_could_change():
    builder = Builder("copies")
    own = np.ones(3, np.float32)
    view = own[:]
    view.flags.writeable = False
    fixed = np.ones(3, np.float32)
    fixed.flags.writeable = False
    names = [builder.parameter(f"p{i}", value) for i, value in enumerate((own, view, fixed))]
    x = builder.input("x", np.float32, (3,))
    builder.output(builder.add(ops.Sum, (x, *names)))
    arrays = builder.build().graph.initializers
    own[:] = 7
    assert arrays["p0"].tolist() == arrays["p1"].tolist() == [1, 1, 1]
    assert arrays["p2"] is fixed


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_zeros_have_the_type_of_the_network(dtype):
    value = initialize("zeros", "w", (2, 3), dtype=dtype)
    assert value.dtype == np.dtype(dtype) and not value.any()
