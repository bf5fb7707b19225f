"""AlexNet, VGG, SqueezeNet and ResNet-34 against modules in plain PyTorch after their papers; their options."""

import importlib
import inspect
import json

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from meta500 import models
from meta500.backends.network import network
from meta500.errors import UserError
from meta500.graph import load
from meta500.graph.passes import FOLLOW, MODE_KEY
from meta500.models import adaptive, layers
from meta500.models.costs import outline

NAMES = ("alexnet", "resnet34", "squeezenet1_1", "vgg16", "vgg19")
SMALLEST = {"alexnet": 63, "resnet34": 32, "squeezenet1_1": 25, "vgg16": 32, "vgg19": 32}
COUNTS = {
    ("alexnet", 1000): 61_100_840,
    ("alexnet", 10): 57_044_810,
    ("resnet34", 1000): 21_797_672,
    ("squeezenet1_1", 1000): 1_235_496,
    ("squeezenet1_1", 10): 727_626,
    ("vgg16", 1000): 138_357_544,
    ("vgg19", 1000): 143_667_240,
}


class Logits(nn.Module):
    """A module whose ``compute`` gives the logits."""

    def forward(self, x):
        return {"logits": self.compute(x)}


class AlexNet(Logits):
    def __init__(self, classes, hidden):
        super().__init__()
        relu, pool = nn.ReLU, lambda: nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 11, 4, 2), relu(), pool()),
            *(nn.Conv2d(64, 192, 5, padding=2), relu(), pool()),
            *(nn.Conv2d(192, 384, 3, padding=1), relu()),
            *(nn.Conv2d(384, 256, 3, padding=1), relu()),
            *(nn.Conv2d(256, 256, 3, padding=1), relu(), pool()),
        )
        self.classifier = nn.Sequential(
            *(nn.Identity(), nn.Linear(256 * 6 * 6, hidden), relu()),
            *(nn.Identity(), nn.Linear(hidden, hidden), relu()),
            nn.Linear(hidden, classes),
        )

    def compute(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), (6, 6)).flatten(1))


class Vgg(Logits):
    D = "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M"
    E = "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M"

    def __init__(self, configuration, classes, hidden, norm=False):
        super().__init__()
        parts, channels = [], 3
        for item in configuration.split():
            if item == "M":
                parts.append(nn.MaxPool2d(2))
                continue
            parts.append(nn.Conv2d(channels, channels := int(item), 3, padding=1))
            parts += [nn.BatchNorm2d(channels)] if norm else []
            parts.append(nn.ReLU())
        self.features = nn.Sequential(*parts)
        self.classifier = nn.Sequential(
            *(nn.Linear(512 * 7 * 7, hidden), nn.ReLU(), nn.Identity()),
            *(nn.Linear(hidden, hidden), nn.ReLU(), nn.Identity()),
            nn.Linear(hidden, classes),
        )

    def compute(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), (7, 7)).flatten(1))


class Fire(nn.Module):
    def __init__(self, c_in, inside, c_out):
        super().__init__()
        self.squeeze = nn.Conv2d(c_in, inside, 1)
        self.expand1x1 = nn.Conv2d(inside, c_out // 2, 1)
        self.expand3x3 = nn.Conv2d(inside, c_out // 2, 3, padding=1)

    def forward(self, x):
        x = self.squeeze(x).relu()
        return torch.cat([self.expand1x1(x).relu(), self.expand3x3(x).relu()], dim=1)


class SqueezeNet(Logits):
    def __init__(self, classes):
        super().__init__()
        pool = lambda: nn.MaxPool2d(3, 2, ceil_mode=True)  # noqa: E731
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool()),
            *(Fire(64, 16, 128), Fire(128, 16, 128), pool()),
            *(Fire(128, 32, 256), Fire(256, 32, 256), pool()),
            *(Fire(256, 48, 384), Fire(384, 48, 384), Fire(384, 64, 512), Fire(512, 64, 512)),
        )
        self.classifier = nn.Sequential(nn.Identity(), nn.Conv2d(512, classes, 1))

    def compute(self, x):
        return self.classifier(self.features(x)).relu().mean((2, 3))


class Basic(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(c_out), nn.BatchNorm2d(c_out)
        if stride > 1:
            projection = nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + (self.downsample(x) if hasattr(self, "downsample") else x)).relu()


class ResNet34(Logits):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        channels = 64
        for stage, (width, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 1):
            blocks = [Basic(channels, width, 1 if stage == 1 else 2)]
            blocks += [Basic(width, width, 1) for _ in range(count - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            channels = width
        self.fc = nn.Linear(512, classes)

    def compute(self, x):
        x = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


# The classifiers of AlexNet and VGG have 16 hidden units here; the true ones are in the slow test below.
CASES = {
    "alexnet": (lambda **o: models.alexnet(size=(63, 103), **o), lambda: AlexNet(5, 16)),
    "vgg16": (lambda **o: models.vgg16(size=32, **o), lambda: Vgg(Vgg.D, 5, 16)),
    "vgg16-bn": (lambda **o: models.vgg16(size=32, batch_norm=True, **o), lambda: Vgg(Vgg.D, 5, 16, True)),
    "vgg19": (lambda **o: models.vgg19(size=32, **o), lambda: Vgg(Vgg.E, 5, 16)),
    "squeezenet1_1": (lambda **o: models.squeezenet1_1(size=(25, 40), **o), lambda: SqueezeNet(5)),
    "resnet34": (lambda **o: models.resnet34(size=32, **o), lambda: ResNet34(5)),
}


def made(name):
    options = {} if name == "resnet34" else {"dropout": 0.0}
    return CASES[name][0](batch=3, classes=5, seed=1, dtype="float64", **options)


@pytest.fixture
def narrow(monkeypatch):
    for file in ("alexnet", "vgg"):
        monkeypatch.setattr(importlib.import_module(f"meta500.models.{file}"), "HIDDEN", 16)


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "torch") for name in ("alexnet", "resnet34", "squeezenet1_1", "vgg16")),
        *((name, "numpy") for name in ("alexnet", "squeezenet1_1")),
        *(pytest.param(name, "torch", marks=pytest.mark.slow) for name in ("vgg16-bn", "vgg19")),
        *(pytest.param(name, "numpy", marks=pytest.mark.slow) for name in ("resnet34", "vgg16", "vgg16-bn")),
    ],
)
def test_forward_loss_and_gradients(agrees, narrow, name, backend):
    agrees(made(name), CASES[name][1](), {"logits": 1.0}, backend)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_generated_backend_agrees(generated_agrees, narrow, name):
    generated_agrees(made(name))


TRUE = {
    "alexnet": (lambda: models.alexnet(1, size=63, dropout=0.0), lambda: AlexNet(1000, 4096)),
    "vgg16": (lambda: models.vgg16(1, size=32, dropout=0.0), lambda: Vgg(Vgg.D, 1000, 4096)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUE)
def test_the_full_classifiers_in_single_precision(name):
    model, module = TRUE[name][0](), TRUE[name][1]()
    module.load_state_dict({k: torch.tensor(model.graph.initializers[k]) for k in model.parameters})
    rng = np.random.default_rng(0)
    image = rng.normal(size=model.inputs["image"].shape).astype(np.float32)
    loss = F.cross_entropy(module(torch.tensor(image))["logits"], torch.tensor([7]))
    loss.backward()
    with network(model, backend="torch") as net:
        ours = net.inference_and_backprop({"image": image, "label": np.array([7])})
        gradients = {p: np.array(net.fetch_tensors([g])[0]) for p, g in net.gradient()}
    np.testing.assert_allclose(ours["loss"], loss.item(), rtol=1e-5)
    for key, parameter in module.named_parameters():
        wanted = parameter.grad.numpy()
        np.testing.assert_allclose(gradients[key], wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@settings(max_examples=25)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(2, 8))
def test_adaptive_average_pool_is_that_of_pytorch(height, width, count):
    net = layers.draft("pool", initialization="zeros", seed=0, dtype="float64")
    x = net.builder.input("x", np.float64, (2, 3, height, width))
    pooled = adaptive.adaptive_average_pool(net, x, "pool", (height, width), count)
    value = np.random.default_rng(0).normal(size=(2, 3, height, width))
    wanted = F.adaptive_avg_pool2d(torch.tensor(value), count).numpy()
    if (height, width) == (count, count):
        assert pooled == x
        return
    net.builder.output(pooled)
    model = net.builder.build()
    regular = all(side % count == 0 or (side % count == 1 and side > 1) for side in (height, width))
    if regular:
        assert [op.op_type for op in model.graph.operations] == ["AveragePool"]
    with network(model, backend="numpy") as made_network:
        found = made_network.inference({"x": value})[pooled]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "vgg19"])
def test_the_average_pool_is_left_out_at_the_size_of_the_papers(name):
    operators = {op.op_type for op in outline(name).graph.operations}
    assert not operators & {"AveragePool", "MatMul"}
    operators = {op.op_type for op in outline(name, size=260 if name == "alexnet" else 448).graph.operations}
    assert "MatMul" not in operators and "AveragePool" in operators


@pytest.mark.parametrize(("name", "classes"), COUNTS)
def test_number_of_parameters(name, classes):
    count = COUNTS[name, classes]
    assert outline(name, classes=classes).parameter_count() == count
    assert f"{count:,}" in inspect.getdoc(getattr(models, name)).replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("vgg16", {"batch_norm": True}, 138_365_992),
        ("vgg19", {"batch_norm": True}, 143_678_248),
        ("resnet34", {"small_images": True, "classes": 10, "size": 32}, 21_282_122),
    ],
)
def test_number_of_parameters_of_other_forms(name, options, count):
    assert outline(name, **options).parameter_count() == count
    assert f"{count:,}" in inspect.getdoc(getattr(models, name))


@pytest.mark.parametrize(
    ("name", "batch"), [(n, 2) for n in NAMES if n != "resnet34"] + [("alexnet", None), ("vgg16", None)]
)
def test_networks_are_valid_onnx(name, batch, narrow):
    model = outline(name, batch=batch, size=SMALLEST[name], classes=7)
    proto = model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    first = "N" if batch is None else batch
    assert (list(model.inputs), list(model.outputs)) == (["image", "label"], ["logits", "loss"])
    assert model.inputs["image"].shape == (first, 3, SMALLEST[name], SMALLEST[name])
    assert model.inputs["label"].shape == (first,) and model.outputs["logits"].shape == (first, 7)
    assert load(proto).parameters == model.parameters


@pytest.mark.parametrize("name", NAMES)
def test_what_a_network_was_made_with_is_visible(name):
    model = outline(name, seed=3, size=70, classes=4, channels_in=1)
    assert model.metadata["meta500.model"] == name and model.metadata["meta500.seed"] == "3"
    chosen = json.loads(model.metadata["meta500.options"])
    assert set(chosen) | {"seed", "initialization"} == set(models.options(name))
    again = models.create(name, seed=3, initialization="zeros", **chosen)
    assert again.metadata == model.metadata and again.graph.inputs == model.graph.inputs
    for option in models.options(name):
        assert name in ("resnet34", "vgg19") or f"{option}:" in inspect.getdoc(getattr(models, name)), option


@pytest.mark.parametrize("name", NAMES)
def test_dtype_and_loss(name):
    model = outline(name, dtype="float16", loss=False, size=70)
    assert {a.dtype for a in model.graph.initializers.values()} == {np.dtype("float16")}
    assert list(model.inputs) == ["image"] and list(model.outputs) == ["logits"]


@pytest.mark.parametrize(
    ("name", "count"), [("alexnet", 2), ("vgg16", 2), ("vgg19", 2), ("squeezenet1_1", 1)]
)
def test_dropout_follows_the_mode(name, count):
    model = outline(name, dropout=0.25)
    drops = [op for op in model.graph.operations if op.op_type == "Dropout"]
    assert len(drops) == count and all(op.metadata[MODE_KEY] == FOLLOW for op in drops)
    assert all(model.graph.initializers[op.ratio] == 0.25 for op in drops)
    assert "Dropout" not in {op.op_type for op in outline(name, dropout=0).graph.operations}


def test_dropout_drops_in_training_only():
    model = models.squeezenet1_1(4, size=32, classes=10)
    rng = np.random.default_rng(0)
    fed = {"image": rng.normal(size=(4, 3, 32, 32)).astype(np.float32), "label": np.arange(4)}
    with network(model, backend="torch") as net:
        first, second = (net.inference(fed)["loss"] for _ in range(2))
        trained = net.inference_and_backprop(fed)["loss"]
    assert first == second != trained


def test_resnet34_with_zero_gamma_begins_as_shortcuts():
    zero = outline("resnet34", zero_gamma=True)
    gammas = {k: v for k, v in zero.graph.initializers.items() if ".bn" in k and k.endswith("weight")}
    assert {k for k, v in gammas.items() if not v.any()} == {k for k in gammas if ".bn2." in k}
    assert len(gammas) == 32


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *((name, "xavier_normal") for name in models.names()),
        *(("squeezenet1_1", chosen) for chosen in (*models.initializations(), "constant:0.5")),
    ],
)
def test_every_network_takes_every_initialisation(name, chosen, monkeypatch):
    asked = {}

    def record(initialization, parameter, shape, *, dtype, role, **more):
        asked[parameter] = (initialization, role)
        return np.zeros(shape, dtype)

    monkeypatch.setattr(layers, "initialize", record)
    model = models.create(name, initialization=chosen)
    kernels = {k for k in model.parameters if model.graph.initializers[k].ndim > 1}
    assert kernels == {k for k, (_, role) in asked.items() if role == "weight"}
    assert {rule for rule, _ in asked.values()} == {chosen}


REFUSED = [
    ("alexnet", {"size": 62}, "size 62x62 is too small for alexnet's three 3x3 max pools; it takes 63x63"),
    ("alexnet", {"size": (224, 40)}, "size 224x40 is too small"),
    ("alexnet", {"dropout": 1}, "dropout must be a number of at least 0 and below 1, not 1"),
    (
        "vgg16",
        {"size": (31, 64)},
        "size 31x64 is too small for the five 2x2 max pools of vgg16; it takes 32x32",
    ),
    ("vgg19", {"batch_norm": "yes"}, "batch_norm must be True or False, not 'yes'"),
    ("vgg19", {"classes": 1}, "classes must be an integer of at least 2"),
    ("squeezenet1_1", {"size": 24}, "size 24x24 is too small for squeezenet1_1.*25x25 or more"),
    ("squeezenet1_1", {"initialization": "he"}, "unknown initialization 'he'"),
    ("resnet34", {"zero_gamma": 2}, "zero_gamma must be True or False"),
    ("squeezenet", {}, r"Did you mean 'squeezenet1_1'\?"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        outline(name, **options)
