"""The published U-Net against a module in plain PyTorch after the paper's figure; sizes, options, ignored labels."""

import inspect
import json
import math

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
from meta500.models.costs import outline


class Stage(nn.Module):
    def __init__(self, c_in, c_out, up=False):
        super().__init__()
        if up:
            self.up = nn.ConvTranspose2d(c_in, c_out, 2, 2)
        self.conv1, self.conv2 = nn.Conv2d(c_in, c_out, 3), nn.Conv2d(c_out, c_out, 3)

    def forward(self, x):
        return self.conv2(self.conv1(x).relu()).relu()


class Published(nn.Module):
    """Figure 1 of the paper, without dropout."""

    def __init__(self, channels_in=1, classes=2, channels=64, depth=4):
        super().__init__()
        widths = [channels << level for level in range(depth + 1)]
        self.depth = depth
        for level in range(depth):
            before = widths[level - 1] if level else channels_in
            self.add_module(f"encoder{level + 1}", Stage(before, widths[level]))
            self.add_module(f"decoder{level + 1}", Stage(widths[level + 1], widths[level], up=True))
        self.bottom = Stage(widths[-2], widths[-1])
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        skips = []
        for level in range(1, self.depth + 1):
            x = getattr(self, f"encoder{level}")(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for level in range(self.depth, 0, -1):
            stage, skip = getattr(self, f"decoder{level}"), skips.pop()
            x = stage.up(x)
            top, left = ((a - b) // 2 for a, b in zip(skip.shape[2:], x.shape[2:], strict=True))
            # A negative padding crops.
            skip = F.pad(skip, (-left, -left, -top, -top))
            x = stage(torch.cat([skip, x], dim=1))
        return {"logits": self.head(x)}


FORMS = {
    "paper": {"size": (188, 204), "channels": 2},
    "shallow": {"size": (44, 48), "channels": 3, "depth": 2, "classes": 4, "channels_in": 2},
}


def made(name):
    options = FORMS[name]
    model = models.unet_ronneberger(2, seed=1, dtype="float64", dropout=0.0, **options)
    return model, {k: v for k, v in options.items() if k != "size"}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", FORMS)
def test_forward_loss_and_gradients(agrees, name, backend):
    model, form = made(name)
    agrees(model, Published(**form), {"logits": 1.0}, backend)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_the_generated_backend_agrees(generated_agrees, name):
    generated_agrees(made(name)[0])


def test_572_pixels_become_388_with_23_convolutions():
    model = outline("unet_ronneberger")
    assert model.inputs["image"].shape == (1, 1, 572, 572)
    assert model.outputs["logits"].shape == (1, 2, 388, 388)
    assert model.inputs["label"].shape == (1, 388, 388)
    kinds = [op.op_type for op in model.graph.operations]
    assert (kinds.count("Conv"), kinds.count("ConvTranspose")) == (19, 4)
    assert kinds.count("MaxPool") == kinds.count("Slice") == kinds.count("Concat") == 4
    assert all(not any(op.pads) for op in model.graph.operations if op.op_type in ("Conv", "ConvTranspose"))
    # The sides that the paper's figure gives.
    types = model.graph.types()
    sides = [types[f"encoder{i}.relu2"].shape[2] for i in (1, 2, 3, 4)]
    assert sides == [568, 280, 136, 64] and types["bottom.relu2"].shape[1:] == (1024, 28, 28)
    assert [types[f"decoder{i}.crop"].shape[2] for i in (4, 3, 2, 1)] == [56, 104, 200, 392]
    assert [types[f"decoder{i}.relu2"].shape[2] for i in (4, 3, 2)] == [52, 100, 196]


def count(c, i, classes):
    """Layer by layer: (k^2 a + 1) b."""
    widths = [c, 2 * c, 4 * c, 8 * c, 16 * c]
    total, before = 0, i
    for w in widths:
        total += (9 * before + 1) * w + (9 * w + 1) * w
        before = w
    for w in widths[:-1]:
        total += (4 * 2 * w + 1) * w + (9 * 2 * w + 1) * w + (9 * w + 1) * w
    return total + (c + 1) * classes


@pytest.mark.parametrize(("c", "i", "classes"), [(64, 1, 2), (64, 3, 21), (8, 3, 5)])
def test_number_of_parameters(c, i, classes):
    model = outline("unet_ronneberger", channels=c, channels_in=i, classes=classes)
    formula = 7574 * c**2 + (9 * i + 107 + classes) * c + classes
    assert model.parameter_count() == count(c, i, classes) == formula
    if (c, i, classes) == (64, 1, 2):
        assert formula == 31_030_658
        assert f"{formula:,}" in inspect.getdoc(models.unet_ronneberger)


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 400), st.integers(1, 400))
def test_sizes_that_tile_and_the_nearest_of_those_that_do_not(depth, height, width):
    def output(side):
        for _ in range(depth):
            side -= 4
            if side <= 0 or side % 2:
                return None
            side //= 2
        side -= 4
        for _ in range(depth):
            side = 2 * side - 4
            if side <= 0:
                return None
        return side

    outputs = output(height), output(width)
    build = lambda size: outline("unet_ronneberger", size=size, channels=1, depth=depth)  # noqa: E731
    if None not in outputs:
        assert build((height, width)).outputs["logits"].shape[2:] == outputs
        return
    with pytest.raises(UserError, match="does not tile") as caught:
        build((height, width))
    near = str(caught.value).partition("the nearest are ")[2].split(" or ")
    for size in near:
        assert None not in [output(int(side)) for side in size.split("x")]
    sides = [[int(size.split("x")[axis]) for size in near] for axis in (0, 1)]
    for found, side in zip(sides, (height, width), strict=True):
        works = [s for s in range(1, 600) if output(s) is not None]
        assert min(abs(s - side) for s in found) == min(abs(s - side) for s in works)


def test_dropout_stands_at_the_end_of_the_contracting_path():
    model = outline("unet_ronneberger")
    drops = {op.name: op for op in model.graph.operations if op.op_type == "Dropout"}
    assert {name: op.data for name, op in drops.items()} == {
        "encoder4.dropout": "encoder4.relu2",
        "bottom.dropout": "bottom.relu2",
    }
    assert all(op.metadata[MODE_KEY] == FOLLOW for op in drops.values())
    readers = {op.name for op in model.graph.operations if "encoder4.dropout" in op.operands}
    assert readers == {"encoder4.pool", "decoder4.crop"}
    assert "Dropout" not in {op.op_type for op in outline("unet_ronneberger", dropout=0).graph.operations}


@pytest.mark.parametrize("name", ["unet", "unet_ronneberger"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("ignore", [2, 255, -100])
def test_the_loss_leaves_out_the_ignored_label(name, backend, ignore):
    options = (
        {"size": 16, "depth": 1}
        if name == "unet"
        else {"size": 32, "depth": 1, "channels": 2, "dropout": 0.0}
    )
    model = models.create(name, batch=2, classes=3, dtype="float64", ignore=ignore, seed=1, **options)
    rng = np.random.default_rng(0)
    label = rng.choice([0, 1, ignore], model.inputs["label"].shape)
    image = rng.normal(size=model.inputs["image"].shape)
    with network(model, backend=backend) as net:
        found = net.inference_and_backprop({"image": image, "label": label})
        gradients = [np.array(net.fetch_tensors([g])[0]) for _, g in net.gradient()]
    logits = torch.tensor(found["logits"])
    wanted = F.cross_entropy(logits, torch.tensor(label), ignore_index=ignore).item()
    np.testing.assert_allclose(found["loss"], wanted, rtol=1e-12)
    kept = label != ignore
    chosen = found["logits"].transpose(0, 2, 3, 1)[kept]
    entropy = np.log(np.exp(chosen).sum(1)) - np.take_along_axis(chosen, label[kept][:, None], 1)[:, 0]
    np.testing.assert_allclose(found["loss"], entropy.mean(), rtol=1e-10)
    # The bias of the last convolution: the mean over the kept pixels of softmax minus truth.
    softmax = np.exp(chosen) / np.exp(chosen).sum(1, keepdims=True)
    truth = np.eye(3)[label[kept]]
    np.testing.assert_allclose(gradients[-1], (softmax - truth).mean(0), atol=1e-12)


@pytest.mark.parametrize("name", ["unet", "unet_ronneberger"])
def test_a_label_that_is_not_ignored_is_refused(name):
    options = {"size": 16, "depth": 1} if name == "unet" else {"size": 32, "depth": 1, "channels": 2}
    model = models.create(name, batch=1, classes=3, **options)
    label = np.full(model.inputs["label"].shape, 255)
    image = np.zeros(model.inputs["image"].shape, np.float32)
    with network(model, backend="numpy") as net, pytest.raises(UserError, match="255"):
        net.inference({"image": image, "label": label})


def test_valid_onnx_with_an_open_batch_and_visible_options():
    model = outline("unet_ronneberger", batch=None, size=204, channels=2, ignore=255, seed=4)
    proto = model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    assert model.inputs["label"].shape == ("N", 20, 20) and load(proto).parameters == model.parameters
    chosen = json.loads(model.metadata["meta500.options"])
    assert set(chosen) | {"seed", "initialization"} == set(models.options("unet_ronneberger"))
    again = models.create("unet_ronneberger", seed=4, initialization="zeros", **chosen)
    assert again.metadata == model.metadata and again.graph.inputs == model.graph.inputs
    text = inspect.getdoc(models.unet_ronneberger)
    assert all(f"{option}:" in text for option in models.options("unet_ronneberger")) and "Source:" in text


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtype_and_loss(dtype):
    model = outline("unet_ronneberger", dtype=dtype, loss=False, size=188, channels=1)
    floating = {a.dtype for a in model.graph.initializers.values() if a.dtype.kind == "f"}
    assert floating == {np.dtype(dtype)}
    assert list(model.inputs) == ["image"] and list(model.outputs) == ["logits"]


def test_weights_have_the_deviation_of_the_paper():
    weight = models.unet_ronneberger(size=188, channels=16).graph.initializers["bottom.conv1.weight"]
    assert weight.std() == pytest.approx(math.sqrt(2 / (9 * 128)), rel=0.01)


REFUSED = [
    (
        "unet_ronneberger",
        {"size": 570},
        r"size 570x570 does not tile: 4 halvings.*188 \+ 16 j.*556x556 or 572x572",
    ),
    ("unet_ronneberger", {"size": 512}, "the nearest are 508x508 or 524x524"),
    ("unet_ronneberger", {"size": (64, 572)}, "the nearest are 188x572$"),
    (
        "unet_ronneberger",
        {"channels": 512},
        "channels=512 and depth=4 give 8192 channels at the bottom.*4096",
    ),
    ("unet_ronneberger", {"channels": 0}, "channels must be an integer of at least 1, not 0"),
    ("unet_ronneberger", {"depth": 9}, "depth must be an integer from 1 to 8, not 9"),
    ("unet_ronneberger", {"dropout": -0.1}, "dropout must be a number of at least 0 and below 1, not -0.1"),
    ("unet_ronneberger", {"ignore": 1.5}, "ignore must be a label, an integer such as 255, or None, not 1.5"),
    ("unet", {"ignore": True}, "ignore must be a label"),
    ("unet", {"ignore": 2**63}, "ignore must be a label"),
    ("unet", {"ignore": "255"}, "ignore must be a label.*not '255'"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        outline(name, **options)
