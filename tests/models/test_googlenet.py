"""GoogLeNet against a module in plain PyTorch, after torchvision's form and names; its options."""

import importlib

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta500 import models
from meta500.backends.network import network
from meta500.errors import UserError

source = importlib.import_module("meta500.models.googlenet")  # the package has the function of that name
WEIGHTS = {"logits": 1.0, "aux1": 0.3, "aux2": 0.3}
QUIET = {"dropout": 0.0, "auxiliary_dropout": 0.0}


class Unit(nn.Module):
    def __init__(self, c_in, c_out, kernel, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(c_out, eps=1e-3)

    def forward(self, x):
        return self.bn(self.conv(x)).relu()


class Inception(nn.Module):
    def __init__(self, c_in, a, b, c, d, e, f, kernel):
        super().__init__()
        self.branch1 = Unit(c_in, a, 1)
        self.branch2 = nn.Sequential(Unit(c_in, b, 1), Unit(b, c, 3))
        self.branch3 = nn.Sequential(Unit(c_in, d, 1), Unit(d, e, kernel))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), Unit(c_in, f, 1))
        self.channels = a + c + e + f

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.children()], dim=1)


class Head(nn.Module):
    def __init__(self, c_in, classes):
        super().__init__()
        self.conv = Unit(c_in, 128, 1)
        self.fc1, self.fc2 = nn.Linear(2048, 1024), nn.Linear(1024, classes)

    def forward(self, x):
        x = self.conv(F.adaptive_avg_pool2d(x, 4)).flatten(1)
        return self.fc2(self.fc1(x).relu())


class GoogLeNet(nn.Module):
    CELLS = (
        ("3a", 64, 96, 128, 16, 32, 32),
        ("3b", 128, 128, 192, 32, 96, 64),
        ("4a", 192, 96, 208, 16, 48, 64),
        ("4b", 160, 112, 224, 24, 64, 64),
        ("4c", 128, 128, 256, 24, 64, 64),
        ("4d", 112, 144, 288, 32, 64, 64),
        ("4e", 256, 160, 320, 32, 128, 128),
        ("5a", 256, 160, 320, 32, 128, 128),
        ("5b", 384, 192, 384, 48, 128, 128),
    )

    def __init__(self, classes, small=False, auxiliary=True, kernel=3):
        super().__init__()
        self.conv1 = Unit(3, 64, 3) if small else Unit(3, 64, 7, 2)
        self.conv2, self.conv3 = Unit(64, 64, 1), Unit(64, 192, 3)
        self.small, channels = small, 192
        for label, *numbers in self.CELLS:
            cell = Inception(channels, *numbers, kernel)
            channels = cell.channels
            self.add_module(f"inception{label}", cell)
        self.heads = {"4a": "aux1", "4d": "aux2"} if auxiliary else {}
        for name, c_in in zip(self.heads.values(), (512, 528), strict=False):
            self.add_module(name, Head(c_in, classes))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        pool = {"3b": 3, "4e": 2}
        x = self.conv1(x)
        if not self.small:
            x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.conv3(self.conv2(x)), 3, 2, ceil_mode=True)
        found = {}
        for label, *_ in self.CELLS:
            x = getattr(self, f"inception{label}")(x)
            if label in self.heads:
                found[self.heads[label]] = getattr(self, self.heads[label])(x)
            if label in pool:
                x = F.max_pool2d(x, pool[label], 2, ceil_mode=True)
        return {"logits": self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1)), **found}


CASES = {  # the inner image of the heads: 8x8, 4x4 and 6x5
    "small": ({"size": 32, "small_images": True}, {"small": True}, WEIGHTS),
    "64": ({"size": 64, "auxiliary": False}, {"auxiliary": False}, {"logits": 1.0}),
    "96x80": ({"size": (96, 80), "branch3_kernel": 5}, {"kernel": 5}, WEIGHTS),
}


@pytest.mark.parametrize(("name", "backend"), [("small", "torch"), ("64", "torch"), ("96x80", "numpy")])
def test_forward_loss_and_gradients(agrees, name, backend):
    options, form, weights = CASES[name]
    model = models.googlenet(2, classes=7, seed=1, dtype="float64", **QUIET, **options)
    agrees(model, GoogLeNet(7, **form), weights, backend)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 13_004_888),
        ({"auxiliary": False}, 6_624_904),
        ({"classes": 10, "size": 32, "small_images": True}, 9_952_958),
    ],
)
def test_number_of_parameters(options, count):
    model = models.googlenet(1, initialization="zeros", **options)
    assert model.parameter_count() == count


def test_5x5_kernels_have_25_weights_instead_of_9():
    shapes = {
        kernel: {k: v.shape for k, v in model.graph.initializers.items()}
        for kernel in (3, 5)
        for model in [models.googlenet(1, branch3_kernel=kernel, initialization="zeros")]
    }
    other = {k for k in shapes[3] if shapes[3][k] != shapes[5][k]}
    assert other == {f"{name}.branch3.1.conv.weight" for name in source.MODULES}
    assert all(shapes[k][name][2:] == (k, k) for k in (3, 5) for name in other)


def test_heads_are_outputs_and_0_3_of_the_loss():
    model = models.googlenet(2, size=32, classes=10, initialization="zeros")
    assert list(model.outputs) == ["logits", "aux1", "aux2", "loss"]
    assert model.outputs["aux2"].shape == (2, 10)
    for options, outputs in (
        ({"loss": False}, ["logits", "aux1", "aux2"]),
        ({"auxiliary": False}, ["logits", "loss"]),
    ):
        model = models.googlenet(2, size=32, classes=2, initialization="zeros", **options)
        assert list(model.outputs) == outputs


def test_dropout(monkeypatch):
    """As torchvision places it, and none in inference."""
    model = short(monkeypatch, ["inception3b", "inception4a", "inception4d"], size=32)
    drops = {op.name: op for op in model.graph.operations if op.op_type == "Dropout"}
    ratios = {name: float(model.graph.initializers[op.ratio]) for name, op in drops.items()}
    assert ratios == pytest.approx({"dropout": 0.2, "aux1.dropout": 0.7, "aux2.dropout": 0.7})
    readers = {name: [op.name for op in model.graph.operations if name in op.operands] for name in drops}
    assert readers == {"dropout": ["fc"], "aux1.dropout": ["aux1.fc2"], "aux2.dropout": ["aux2.fc2"]}
    rest = models.googlenet(2, size=32, classes=5, seed=1, dtype="float64", **QUIET)
    assert "Dropout" not in {op.op_type for op in rest.graph.operations}
    image = {"image": np.random.default_rng(0).normal(size=(2, 3, 32, 32))}
    label = {"label": np.array([1, 4])}
    with network(model, backend="torch") as dropping, network(rest, backend="torch") as whole:
        assert np.array_equal(dropping.inference(image)["logits"], whole.inference(image)["logits"])
        first, second = (dropping.inference_and_backprop(image | label)["aux1"] for _ in range(2))
        assert not np.array_equal(first, second)


def test_batch_normalisation_has_torchvisions_epsilon():
    model = models.googlenet(1, initialization="zeros")
    norms = [op for op in model.graph.operations if op.op_type == "BatchNormalization"]
    assert len(norms) == 3 + 9 * 6 + 2 and {op.epsilon for op in norms} == {0.001}


@pytest.mark.parametrize("size", [31, 32, 33, 47, 224, (100, 31)])
def test_sizes_inside_are_those_of_the_pools(size):
    """What heads and modules read, against the shapes that are inferred from the operations."""
    model = models.googlenet(1, size=size, initialization="zeros", classes=2)
    pair = size if isinstance(size, tuple) else (size, size)
    x = torch.zeros(1, 1, *pair)[..., ::2, ::2]  # as conv1 of stride 2 with its padding leaves it
    for _ in range(3):
        x = F.max_pool2d(x, 3, 2, ceil_mode=True)
    assert source._inner_size([*pair], False) == tuple(x.shape[2:])
    assert model.outputs["aux1"].shape == (1, 2)


REFUSED = [
    ({"size": 30}, "size 30x30 is too small for googlenet's max pools; it takes 31x31 or more"),
    ({"size": (64, 7), "small_images": True}, "64x7 is too small.*with small_images it takes 8x8 or more"),
    ({"branch3_kernel": 4}, "unknown branch3_kernel '4'. Choose one of: 3, 5"),
    ({"branch3_kernel": True}, "unknown branch3_kernel 'True'"),
    ({"auxiliary": 1}, "auxiliary must be True or False, not 1"),
    ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1, not 1.0"),
    ({"dropout": float("nan")}, "dropout must be a number"),
    ({"auxiliary_dropout": -0.1}, "auxiliary_dropout must be a number of at least 0"),
    ({"auxiliary_dropout": "0.5"}, "auxiliary_dropout must be a number"),
    ({"dropout": False}, "dropout must be a number"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_bad_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        models.googlenet(**options)


def short(monkeypatch, modules, **options):
    """GoogLeNet with the named modules only, and a quarter of their channels."""
    numbers = {
        name: tuple(
            tuple(c // 4 for c in n) if isinstance(n, tuple) else n // 4 for n in source.MODULES[name]
        )
        for name in modules
    }
    monkeypatch.setattr(source, "MODULES", numbers)
    monkeypatch.setattr(source, "AUXILIARY_CHANNELS", (8, 16))
    return models.googlenet(2, classes=5, seed=1, dtype="float64", **options)


@pytest.mark.slow
def test_generated_code_of_a_short_network(generated_agrees, monkeypatch):
    """A head whose windows are matrices; the whole network below has an average pool in its heads."""
    model = short(monkeypatch, ["inception3b", "inception4a"], size=(40, 36), branch3_kernel=5, **QUIET)
    assert [op.op_type for op in model.graph.operations].count("MatMul") == 2
    generated_agrees(model)


@pytest.mark.slow
def test_generated_code_of_the_whole_network(generated_agrees):
    model = models.googlenet(2, size=32, small_images=True, classes=10, seed=1, dtype="float64", **QUIET)
    assert [op.op_type for op in model.graph.operations].count("AveragePool") == 2
    generated_agrees(model, inference=True)
