"""DenseNet-121 and MobileNetV2 against modules in plain PyTorch, after torchvision's names; their options."""

import importlib
import inspect
import json
from collections import OrderedDict

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta500 import models
from meta500.backends.network import network
from meta500.errors import UserError
from meta500.graph import load

densenet = importlib.import_module("meta500.models.densenet")
mobilenet = importlib.import_module("meta500.models.mobilenet_v2")


class DenseLayer(nn.Module):
    def __init__(self, c_in):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(c_in), nn.Conv2d(c_in, 128, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(128), nn.Conv2d(128, 32, 3, padding=1, bias=False)

    def forward(self, parts):
        x = self.conv1(self.norm1(torch.cat(parts, 1)).relu())
        return self.conv2(self.norm2(x).relu())


class DenseBlock(nn.Module):
    """Joins all parts anew for every layer, as the paper writes it."""

    def __init__(self, c_in, count):
        super().__init__()
        for index in range(count):
            self.add_module(f"denselayer{index + 1}", DenseLayer(c_in + 32 * index))

    def forward(self, x):
        parts = [x]
        for layer in self.children():
            parts.append(layer(parts))
        return torch.cat(parts, 1)


class DenseNet(nn.Module):
    def __init__(self, classes, small=False):
        super().__init__()
        stem = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        features = OrderedDict(conv0=stem, norm0=nn.BatchNorm2d(64), relu0=nn.ReLU())
        if not small:
            features["pool0"] = nn.MaxPool2d(3, 2, 1)
        channels = 64
        for number, count in enumerate((6, 12, 24, 16), 1):
            features[f"denseblock{number}"] = DenseBlock(channels, count)
            channels += 32 * count
            if number < 4:
                features[f"transition{number}"] = nn.Sequential(
                    OrderedDict(
                        norm=nn.BatchNorm2d(channels),
                        relu=nn.ReLU(),
                        conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
                        pool=nn.AvgPool2d(2),
                    )
                )
                channels //= 2
        features["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(features)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x):
        return {"logits": self.classifier(self.features(x).relu().mean((2, 3)))}


def unit(c_in, c_out, kernel=1, stride=1, groups=1):
    convolution = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(c_out), nn.ReLU6())


class Inverted(nn.Module):
    def __init__(self, c_in, c_out, stride, expansion):
        super().__init__()
        inside = c_in * expansion
        parts = [unit(c_in, inside)] if expansion > 1 else []
        parts.append(unit(inside, inside, 3, stride, groups=inside))
        self.conv = nn.Sequential(*parts, nn.Conv2d(inside, c_out, 1, bias=False), nn.BatchNorm2d(c_out))
        self.shortcut = stride == 1 and c_in == c_out

    def forward(self, x):
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self, classes, channels=(32, 16, 24, 32, 64, 96, 160, 320, 1280), small=False):
        super().__init__()
        first, *stages, last = channels
        strides = (1, 1, 1, 2, 2, 1, 2, 1) if small else (2, 1, 2, 2, 2, 1, 2, 1)
        blocks, c_in = [unit(3, first, 3, strides[0])], first
        for c_out, count, stride in zip(stages, (1, 2, 3, 4, 3, 3, 1), strides[1:], strict=True):
            for index in range(count):
                expansion = 6 if len(blocks) > 1 else 1
                blocks.append(Inverted(c_in, c_out, 1 if index else stride, expansion))
                c_in = c_out
        self.features = nn.Sequential(*blocks, unit(c_in, last))
        self.classifier = nn.Sequential(nn.Dropout(0.0), nn.Linear(last, classes))

    def forward(self, x):
        return {"logits": self.classifier(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))}


HALF = (16, 8, 16, 16, 32, 48, 80, 160, 1280)  # the published network of width 0.5
CASES = {
    "densenet": (models.densenet121, {"size": (64, 70)}, lambda: DenseNet(7)),
    "densenet-small": (
        models.densenet121,
        {"size": 16, "small_images": True},
        lambda: DenseNet(7, small=True),
    ),
    "mobilenet": (models.mobilenet_v2, {"size": (64, 70), "dropout": 0.0}, lambda: MobileNetV2(7)),
    "mobilenet-half": (
        models.mobilenet_v2,
        {"size": 32, "width": 0.5, "dropout": 0.0, "small_images": True},
        lambda: MobileNetV2(7, HALF, small=True),
    ),
}


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("densenet", "torch"),
        ("densenet-small", "numpy"),
        ("mobilenet", "torch"),
        ("mobilenet", "numpy"),
        ("mobilenet-half", "torch"),
    ],
)
def test_forward_loss_and_gradients(agrees, name, backend):
    make, options, module = CASES[name]
    model = make(2, classes=7, seed=1, dtype="float64", **options)
    agrees(model, module(), {"logits": 1.0}, backend)


# Of MobileNetV2 other than 1.0: as published with the authors' checkpoints, in units of one.
COUNTS = [
    ("densenet121", {}, 7_978_856),
    ("densenet121", {"size": 32, "classes": 10, "small_images": True}, 6_956_426),
    ("mobilenet_v2", {}, 3_504_872),
    ("mobilenet_v2", {"classes": 10}, 2_236_682),
    ("mobilenet_v2", {"classes": 10, "size": 32, "small_images": True}, 2_236_682),
    ("mobilenet_v2", {"width": 1.4}, 6_108_776),
    ("mobilenet_v2", {"width": 0.75}, 2_636_424),
    ("mobilenet_v2", {"width": 0.5}, 1_968_680),
    ("mobilenet_v2", {"width": 0.35}, 1_677_128),
]


@pytest.mark.parametrize(("name", "options", "count"), COUNTS)
def test_number_of_parameters(name, options, count):
    assert models.create(name, batch=1, initialization="zeros", **options).parameter_count() == count


def test_width_never_narrows_the_last_convolution():
    shapes = {w: models.mobilenet_v2(1, width=w, initialization="zeros").graph for w in (0.1, 0.5, 1.4, 2.0)}
    last = {w: graph.initializers["features.18.0.weight"].shape[0] for w, graph in shapes.items()}
    assert last == {0.1: 1280, 0.5: 1280, 1.4: 1792, 2.0: 2560}
    first = {w: graph.initializers["features.0.0.weight"].shape[0] for w, graph in shapes.items()}
    assert first == {0.1: 8, 0.5: 16, 1.4: 48, 2.0: 64}


@pytest.mark.parametrize(
    ("channels", "expected"), [(1, 8), (11.9, 16), (11.2, 16), (12, 16), (8.8, 8), (24, 24), (44.8, 48)]
)
def test_channels_are_rounded_to_multiples_of_8_but_never_below_nine_tenths(channels, expected):
    assert mobilenet.divisible(channels) == expected


def test_depthwise_convolutions_have_one_channel_per_group():
    model = models.mobilenet_v2(1, initialization="zeros")
    groups = {op.name: op.group for op in model.graph.operations if op.op_type == "Conv" and op.group > 1}
    assert len(groups) == 17
    for name, group in groups.items():
        assert model.graph.initializers[f"{name}.weight"].shape == (group, 1, 3, 3)
    assert groups["features.1.conv.0.0"] == 32 and groups["features.17.conv.1.0"] == 960


def test_small_images_are_halved_three_times():
    for small, stride in ((False, 32), (True, 8)):
        model = models.mobilenet_v2(1, size=64, small_images=small, initialization="zeros")
        steps = [op.strides[0] for op in model.graph.operations if op.op_type == "Conv"]
        assert np.prod(steps) == stride
    first = models.densenet121(1, size=32, small_images=True, initialization="zeros").graph.operations[0]
    assert (first.kernel_shape, first.strides) == ((3, 3), (1, 1))


def test_zero_gamma_is_in_the_last_normalisation_of_blocks_with_a_shortcut():
    model = models.mobilenet_v2(1, size=32, zero_gamma=True, seed=1)
    zero = {k for k in model.parameters if k.endswith("weight") and not model.graph.initializers[k].any()}
    # All blocks of a stage but its first.
    assert zero == {f"features.{i}.conv.3.weight" for i in (3, 5, 6, 8, 9, 10, 12, 13, 15, 16)}


def test_dropout(monkeypatch):
    """Before the classifier, and none in inference."""
    monkeypatch.setattr(mobilenet, "STAGES", mobilenet.STAGES[:2])
    model = models.mobilenet_v2(2, size=16, classes=5)
    (drop,) = [op for op in model.graph.operations if op.op_type == "Dropout"]
    assert float(model.graph.initializers[drop.ratio]) == pytest.approx(0.2)
    assert [op.name for op in model.graph.operations if drop.name in op.operands] == ["classifier.1"]
    rest = models.mobilenet_v2(2, size=16, classes=5, dropout=0.0)
    assert "Dropout" not in {op.op_type for op in rest.graph.operations}
    image = {"image": np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)}
    label = {"label": np.array([1, 4])}
    with network(model, backend="torch") as dropping, network(rest, backend="torch") as whole:
        assert np.array_equal(dropping.inference(image)["logits"], whole.inference(image)["logits"])
        first, second = (dropping.inference_and_backprop(image | label)["logits"] for _ in range(2))
        assert not np.array_equal(first, second)


REFUSED = [
    ("densenet121", {"size": 28}, "28x28 is too small for densenet121's three 2x2 average pools.* 29x29 or"),
    ("densenet121", {"size": (8, 7), "small_images": True}, "8x7 is too small.*small_images it takes 8x8 or"),
    ("densenet121", {"small_images": "yes"}, "small_images must be True or False, not 'yes'"),
    ("densenet121", {"zero_gamma": True}, "unknown option of model 'densenet121' 'zero_gamma'"),
    ("mobilenet_v2", {"width": 0}, "width must be a number above 0, not 0"),
    ("mobilenet_v2", {"width": float("inf")}, "width must be a number above 0, not inf"),
    ("mobilenet_v2", {"width": True}, "width must be a number above 0, not True"),
    ("mobilenet_v2", {"width": "wide"}, "width must be a number above 0, not 'wide'"),
    ("mobilenet_v2", {"dropout": 1}, "dropout must be a number of at least 0 and below 1, not 1"),
    ("mobilenet_v2", {"zero_gamma": 0}, "zero_gamma must be True or False, not 0"),
    ("mobilenet_v2", {"small_images": None}, "small_images must be True or False"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        models.create(name, **options)


NAMES = ("densenet121", "googlenet", "mobilenet_v2")


@pytest.mark.parametrize("name", NAMES)
def test_networks_are_valid_onnx_and_say_what_they_were_made_with(name):
    model = models.create(name, batch=None, size=40, classes=4, seed=3, initialization="zeros")
    proto = model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    heads = ["logits", "aux1", "aux2"] if name == "googlenet" else ["logits"]
    assert list(model.inputs) == ["image", "label"] and list(model.outputs) == [*heads, "loss"]
    assert all(model.outputs[key].shape == ("N", 4) for key in heads)
    assert load(proto).parameters == model.parameters
    assert model.metadata["meta500.model"] == name and model.metadata["meta500.seed"] == "3"
    chosen = json.loads(model.metadata["meta500.options"])
    assert set(chosen) | {"seed", "initialization"} == set(models.options(name))
    again = models.create(name, seed=3, initialization="zeros", **chosen)
    assert again.metadata == model.metadata and again.graph.inputs == model.graph.inputs


@pytest.mark.parametrize("name", NAMES)
def test_dtype_and_loss(name):
    model = models.create(name, dtype="float16", loss=False, size=40, initialization="zeros")
    assert {array.dtype for array in model.graph.initializers.values()} == {np.dtype("float16")}
    assert list(model.inputs) == ["image"] and "loss" not in model.outputs


@pytest.mark.parametrize("name", NAMES)
def test_docstrings_explain_every_option(name):
    text = inspect.getdoc(getattr(models, name))
    assert "Source:" in text and "UserError" in text
    assert all(f"{option}:" in text for option in models.options(name))
    assert f"{models.create(name, batch=1, initialization='zeros').parameter_count():,}" in text


@pytest.mark.parametrize(("size", "small"), [(29, False), ((31, 29), False), (8, True)])
def test_the_smallest_images(size, small):
    model = models.densenet121(1, size=size, small_images=small, classes=3, initialization="zeros")
    assert model.outputs["logits"].shape == (1, 3)


@pytest.mark.slow
def test_generated_code_of_a_short_densenet(generated_agrees, monkeypatch):
    monkeypatch.setattr(densenet, "BLOCKS", (2, 2))
    monkeypatch.setattr(densenet, "GROWTH", 8)
    monkeypatch.setattr(densenet, "FIRST", 16)
    generated_agrees(models.densenet121(2, size=(36, 44), classes=5, seed=1, dtype="float64"))


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_generated_code_of_a_short_mobilenet(generated_agrees, monkeypatch, dtype):
    monkeypatch.setattr(mobilenet, "STAGES", ((6, 16, 2, 2),))
    monkeypatch.setattr(mobilenet, "LAST", 32)
    model = models.mobilenet_v2(2, size=(20, 28), width=0.5, dropout=0.0, seed=1, classes=5, dtype=dtype)
    generated_agrees(model, 1e-10 if dtype == "float64" else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("densenet121", {"size": 64}), ("mobilenet_v2", {"size": 64, "dropout": 0.0})]
)
def test_generated_code_of_the_whole_network(generated_agrees, name, options):
    model = models.create(name, batch=2, classes=10, seed=1, dtype="float64", **options)
    generated_agrees(model, inference=True)
