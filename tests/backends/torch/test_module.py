"""The ordinary PyTorch module of a model: the same results as the torch backend, in both modes."""

import importlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import meta500
from meta500 import models
from meta500.backends.torch.module import torch_module
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Builder, ops

# The zoo, as small as it goes; dropout is random, and has tests of its own.
CASES = {
    "alexnet": {"size": (63, 103), "dropout": 0},
    "densenet121": {"size": 29},
    "digits_cnn": {},
    "googlenet": {"size": 32, "small_images": True, "dropout": 0, "auxiliary_dropout": 0},
    "lenet": {"activation": "tanh", "pool": "average"},
    "mlp": {},
    "mobilenet_v2": {"size": 32, "dropout": 0},
    "resnet18": {"size": 32},
    "resnet34": {"size": 32, "small_images": True},
    "resnet50": {"size": 32},
    "squeezenet1_1": {"size": 41, "dropout": 0},
    "unet": {"size": 32},
    "unet_ronneberger": {"size": 188, "channels": 2, "dropout": 0},
    "vgg16": {"size": 32, "dropout": 0, "batch_norm": True},
    "vgg19": {"size": 32, "dropout": 0},
}


# Their layers are those of other networks.
SLOW = ("resnet34", "resnet50", "vgg16", "vgg19")


@pytest.fixture(autouse=True, scope="module")
def narrow():
    """Hidden layers of 16 instead of 4096."""
    with pytest.MonkeyPatch.context() as patch:
        for file in ("alexnet", "vgg"):
            patch.setattr(importlib.import_module(f"meta500.models.{file}"), "HIDDEN", 16)
        yield


def test_cases_are_the_zoo():
    assert tuple(sorted(CASES)) == models.names()


def small(name, **more):
    classes = {} if name in ("unet", "unet_ronneberger") else {"classes": 5}
    return models.create(name, batch=3, seed=1, **classes, **{**CASES[name], **more})


def feeds(model):
    rng = np.random.default_rng(2)
    label = model.inputs["label"]
    image = model.inputs["image"]
    return {
        "image": rng.normal(size=image.shape).astype(image.dtype),
        "label": rng.integers(0, model.outputs["logits"].shape[1], label.shape),
    }


def close(found, wanted, tolerance):
    scale = max(float(np.abs(wanted).max()), 1e-30)
    assert np.abs(found - wanted).max() <= tolerance * scale


@pytest.mark.parametrize("name", CASES)
def test_inference_of_the_zoo(name):
    model = small(name)
    outputs = [output for output in model.outputs if output != "loss"]
    module = torch_module(model, outputs)
    assert not module.training and module.meta["inputs"] == ["image"]
    inputs = feeds(model)
    with torch.inference_mode():
        found = module(torch.from_numpy(inputs["image"]))
    found = found if isinstance(found, tuple) else (found,)
    with meta500.network(model, backend="torch") as net:
        wanted = net.inference(inputs, outputs=outputs)
    for tensor, output in zip(found, outputs, strict=True):
        close(tensor.numpy(), wanted[output], 2e-5)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES],
)
def test_training_of_the_zoo(name):
    """Logits with the statistics of the batch, new running statistics, and gradients of the parameters."""
    model = small(name, dtype="float64")
    inputs = feeds(model)
    module = torch_module(model).train()
    counts = {}
    for path, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.register_forward_hook(
                lambda m, x, y, path=path: counts.update({path: x[0].numel() // x[0].shape[1]})
            )
    logits = module(torch.from_numpy(inputs["image"]))
    label = torch.from_numpy(inputs["label"])
    nn.functional.cross_entropy(logits, label).backward()
    loss_only = {"auxiliary": False} if name == "googlenet" else {}
    with meta500.network(small(name, dtype="float64", **loss_only), backend="torch") as net:
        wanted = net.inference_and_backprop(inputs)
        gradients = net.fetch_tensors([gradient for _, gradient in net.gradient()])
        gradients = dict(zip((p for p, _ in net.gradient()), gradients, strict=True))
        statistics = {
            path: net.fetch_tensors([f"{path}.running_mean", f"{path}.running_var"]) for path in counts
        }
    close(logits.detach().numpy(), wanted["logits"], 1e-10)
    largest = max(float(np.abs(g).max()) for g in gradients.values())
    parameters = dict(module.named_parameters())
    assert set(parameters) == set(gradients)
    for key, gradient in gradients.items():
        close(
            parameters[key].grad.numpy(), gradient, 1e-8 + 1e-9 * largest / (np.abs(gradient).max() + 1e-30)
        )
    assert bool(counts) == any(op.op_type == "BatchNormalization" for op in model.graph.operations)
    for path, (mean, variance) in statistics.items():
        layer, count = module.get_submodule(path), counts[path]
        close(layer.running_mean.numpy(), mean, 1e-10)
        # PyTorch's variance is that of the sample.
        close(layer.running_var.numpy(), 0.9 + (variance - 0.9) * count / (count - 1), 1e-10)


@pytest.mark.parametrize("name", ["digits_cnn", "squeezenet1_1", "unet"])
def test_float64_against_numpy(name):
    model = small(name, dtype="float64")
    inputs = feeds(model)
    with torch.inference_mode():
        found = torch_module(model)(torch.from_numpy(inputs["image"])).numpy()
    with meta500.network(model, backend="numpy") as net:
        close(found, net.inference(inputs)["logits"], 1e-12)


def test_names_and_layers_are_those_of_torchvision():
    module = torch_module(small("alexnet"))
    kinds = [type(module.get_submodule(f"features.{i}")) for i in range(13)]
    convolution, relu, pool = nn.Conv2d, nn.ReLU, nn.MaxPool2d
    assert kinds == [convolution, relu, pool, convolution, relu, pool, *[convolution, relu] * 3, pool]
    assert [name for name, _ in module.named_parameters()] == list(small("alexnet").parameters)
    resnet = torch_module(small("resnet18"))
    counted = [name for name in resnet.state_dict() if not name.endswith("num_batches_tracked")]
    assert counted == list(small("resnet18").graph.initializers)
    mobile = torch_module(small("mobilenet_v2"))
    assert sum(isinstance(layer, nn.ReLU6) for layer in mobile.modules()) == 35
    nodes = [node for node in mobile.graph.nodes if node.op == "call_module"]
    assert {node.target for node in nodes} >= {"features.0.0", "features.0.1", "features.0.2"}
    assert all(node.meta["operation"].name == node.target for node in nodes if node.target.startswith("feat"))


def test_parameters_are_copies():
    model = small("mlp")
    before = {name: value.copy() for name, value in model.graph.initializers.items()}
    module = torch_module(model)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1)
    assert all(np.array_equal(model.graph.initializers[name], before[name]) for name in before)


def test_dropout_drops_its_share_in_training_only():
    model = small("squeezenet1_1", dropout=0.25)
    module = torch_module(model)
    (layer,) = [layer for layer in module.modules() if isinstance(layer, nn.Dropout)]
    assert layer.p == 0.25 and not layer.training
    layer.train()
    torch.manual_seed(0)
    dropped = layer(torch.ones(40_000))
    assert abs(float((dropped == 0).float().mean()) - 0.25) < 0.02
    assert float(dropped.max()) == pytest.approx(1 / 0.75)


def built(operation, shape=(2, 4, 9, 9), parameters=(), constants=(), **attributes):
    """A model of one operation on "x" with further operands that are parameters or constants."""
    builder = Builder("one")
    x = builder.input("x", np.float64, shape)
    operands = [builder.parameter(f"p{i}", np.asarray(v)) for i, v in enumerate(parameters)]
    operands += [builder.constant(np.asarray(v), f"c{i}") for i, v in enumerate(constants)]
    builder.add(operation, x, *operands, outputs=["y"], name="the.node", **attributes)
    builder.output("y")
    return builder.build()


def same_as_numpy(model, shape=(2, 4, 9, 9), tolerance=1e-12):
    x = np.random.default_rng(3).normal(size=shape)
    with torch.inference_mode():
        found = torch_module(model, ["y"])(torch.from_numpy(x)).numpy()
    with meta500.network(model, backend="numpy") as net:
        wanted = net.inference({"x": x})["y"]
    assert found.shape == wanted.shape
    close(found, wanted, tolerance)


@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    pad=st.integers(0, 2),
    dilation=st.integers(1, 2),
    group=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_convolutions(kernel, stride, pad, dilation, group, bias):
    rng = np.random.default_rng(4)
    parameters = [rng.normal(size=(8, 4 // group, kernel, kernel)), *([rng.normal(size=8)] if bias else [])]
    window = {"strides": (stride,) * 2, "pads": (pad,) * 4, "dilations": (dilation,) * 2, "group": group}
    same_as_numpy(built(ops.Conv, parameters=parameters, **window))
    parameters[0] = rng.normal(size=(4, 8 // group, kernel, kernel))
    same_as_numpy(built(ops.ConvTranspose, parameters=parameters, **{**window, "pads": (0,) * 4}))


@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    pad=st.integers(0, 2),
    ceil=st.booleans(),
    include=st.booleans(),
    size=st.integers(6, 10),
)
@settings(max_examples=25, deadline=None)
def test_pools(kernel, stride, pad, ceil, include, size):
    window = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (min(pad, kernel // 2),) * 4}
    shape = (2, 4, size, size)
    same_as_numpy(built(ops.MaxPool, shape, ceil_mode=int(ceil), **window), shape)
    model = built(ops.AveragePool, shape, ceil_mode=int(ceil), count_include_pad=int(include), **window)
    same_as_numpy(model, shape)


ONES = {
    "gemm as it is": (ops.Gemm, (5, 4), [np.arange(12.0).reshape(4, 3), np.ones(3)], [], {}),
    "matmul": (ops.MatMul, (2, 5, 4), [np.arange(12.0).reshape(4, 3)], [], {}),
    "matmul by a constant": (ops.MatMul, (2, 5, 4), [], [np.arange(12.0).reshape(4, 3)], {}),
    "clip": (ops.Clip, (2, 7), [], [np.float64(-0.5), np.float64(0.25)], {}),
    "clip without limits": (ops.Clip, (2, 7), [], [], {}),
    "response": (ops.LRN, (2, 4, 9, 9), [], [], {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 1.5}),
    "slice": (ops.Slice, (2, 4, 9), [], [np.array([1, -5]), np.array([9, -1]), np.array([1, 2])], {}),
    "reshape": (ops.Reshape, (2, 4, 9), [], [np.array([0, 2, -1])], {}),
    "flatten": (ops.Flatten, (2, 4, 9, 3), [], [], {"axis": 2}),
    "flatten all": (ops.Flatten, (2, 4), [], [], {"axis": 0}),
    "transpose": (ops.Transpose, (2, 4, 9), [], [], {"perm": (2, 0, 1)}),
    "softmax": (ops.Softmax, (2, 4, 9), [], [], {"axis": 1}),
    "add a parameter": (ops.Add, (2, 4), [np.arange(4.0)], [], {}),
    "maximum": (ops.GlobalMaxPool, (2, 4, 9, 9), [], [], {}),
}


@pytest.mark.parametrize("case", ONES)
def test_single_operations(case):
    operation, shape, parameters, constants, attributes = ONES[case]
    model = built(operation, shape, parameters, constants, **attributes)
    same_as_numpy(model, shape)
    assert len(list(torch_module(model, ["y"]).parameters())) == len(parameters)


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [(np.int64, [3, -3, 0, -3]), (np.int32, [3, -3, 0, -3]), (np.float64, [3.5, -3.5, 0.5, -10 / 3])],
)
def test_quotients_of_integers_are_whole(dtype, wanted):
    builder = Builder("one")
    x = builder.input("x", dtype, (4,))
    builder.add(ops.Div, x, builder.constant(np.array([2, 2, 2, -3], dtype), "c"), outputs=["y"])
    builder.output("y")
    found = torch_module(builder.build(), ["y"])(
        torch.tensor([7, -7, 1, 10], dtype=getattr(torch, np.dtype(dtype).name))
    )
    assert found.numpy().dtype == dtype
    np.testing.assert_allclose(found.numpy(), wanted)


K = np.ones((4, 4, 3, 3))
REFUSED = {
    "one-sided pads": (ops.Conv, [K], {"pads": (0, 0, 1, 1)}, "pad both ends alike; put a Pad"),
    "same": (ops.Conv, [K], {"auto_pad": "SAME_UPPER"}, "depends on the size of the input; write the pads"),
    "wide pads": (ops.MaxPool, [], {"kernel_shape": (2, 2), "pads": (2,) * 4}, "half of the window 2x2"),
    "even response": (ops.LRN, [], {"size": 4}, "size 4: .* take an odd size"),
    "no such layer": (ops.Det, [], {}, "Det .* is not supported by the torch module backend"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_standard_layer_is_refused(case):
    operation, parameters, attributes, reason = REFUSED[case]
    with pytest.raises(UnsupportedOperation, match=f"node 'the.node'.*{reason}"):
        torch_module(built(operation, parameters=parameters, **attributes), ["y"])


def test_refusals_of_mode_and_sharing():
    channel = [np.ones(4), np.ones(4)]
    statistics = [np.zeros(4), np.ones(4)]
    with pytest.raises(UnsupportedOperation, match="mark the node with the metadata"):
        torch_module(built(ops.BatchNormalization, parameters=channel, constants=statistics), ["y"])
    builder = Builder("shared")
    x = builder.input("x", np.float64, (2, 3))
    weight = builder.parameter("w", np.eye(3))
    builder.add(ops.Gemm, builder.add(ops.Gemm, x, weight), weight, transB=1, outputs=["y"])
    builder.output("y")
    with pytest.raises(UserError, match="'w' is the weight of one linear layer and, transposed, of another"):
        torch_module(builder.build(), ["y"])


def test_outputs():
    model = small("mlp")
    with pytest.raises(UserError, match="at least one output of logits, loss"):
        torch_module(model, [])
    with pytest.raises(UserError, match="unknown output 'logit'"):
        torch_module(model, ["logit"])


def test_layers_inside_of_layers_get_names_of_their_own():
    builder = Builder("nested")
    x = builder.input("x", np.float64, (2, 3))
    for name in ("a.b", "a", "a.b.c", "a.b", "/d/e", "train"):
        x = builder.add(ops.Relu, x, name=name)
    builder.output(x, "y")
    module = torch_module(builder.build(), ["y"])
    targets = [node.target for node in module.graph.nodes if node.op == "call_module"]
    assert len(set(targets)) == 6 and targets[:2] == ["a.b", "a_1"] and targets[4] == "d.e"
    assert torch.equal(module(torch.tensor([[-1.0, 2.0]])), torch.tensor([[0.0, 2.0]]))
