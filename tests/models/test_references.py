"""Forward and gradients against the same networks written in plain PyTorch after their papers, in float64."""

import numpy as np
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.nn import functional as F

from meta500 import models
from meta500.backends.network import network

UNET = {  # depth 4, in units of the base channels c; (encoder or bottom or decoder): two convolutions
    "encoder1": ((None, 1), (1, 1)),
    "encoder2": ((1, 2), (2, 2)),
    "encoder3": ((2, 4), (4, 4)),
    "encoder4": ((4, 8), (8, 8)),
    "bottom": ((8, 16), (16, 8)),
    "decoder4": ((16, 8), (8, 4)),
    "decoder3": ((8, 4), (4, 2)),
    "decoder2": ((4, 2), (2, 1)),
    "decoder1": ((2, 2), (2, 2)),
}
UP = {"decoder4": 8, "decoder3": 4, "decoder2": 2, "decoder1": 1}


class UNet(nn.Module):
    """The table of the thesis' U-Net."""

    def __init__(self, n, channels_in=3, classes=3):
        super().__init__()
        c = 2**n
        for name, pairs in UNET.items():
            stage = nn.Module()
            for index, (a, b) in enumerate(pairs, 1):
                inside = channels_in if a is None else a * c
                stage.add_module(f"conv{index}", nn.Conv2d(inside, b * c, 3, padding=1))
            if name in UP:
                stage.up = nn.ConvTranspose2d(UP[name] * c, UP[name] * c, 2, stride=2)
            self.add_module(name, stage)
        self.head = nn.Conv2d(2 * c, classes, 1)

    def twice(self, name, x):
        stage = getattr(self, name)
        return F.relu(stage.conv2(F.relu(stage.conv1(x))))

    def forward(self, x):
        skips = []
        for level in (1, 2, 3, 4):
            x = self.twice(f"encoder{level}", x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.twice("bottom", x)
        for level in (4, 3, 2, 1):
            up = getattr(self, f"decoder{level}").up(x)
            x = self.twice(f"decoder{level}", torch.cat([skips[level - 1], up], dim=1))
        return self.head(x)


class DigitsCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(512, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(self.conv2(self.conv1(x).relu()).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, x):
        return self.fc3(self.fc2(self.fc1(x.flatten(1)).relu()).relu())


class LeNet(nn.Module):
    def __init__(self, pad, activation=F.relu, pool=F.max_pool2d):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=pad), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)
        self.activation, self.pool = activation, pool

    def forward(self, x):
        for convolution in (self.conv1, self.conv2):
            x = self.pool(self.activation(convolution(x)), 2)
        x = self.activation(self.fc2(self.activation(self.fc1(x.flatten(1)))))
        return self.fc3(x)


class Residual(nn.Module):
    """A block: convolutions of (kernel, channels, stride), the last without ReLU, and the shortcut."""

    def __init__(self, c_in, convolutions):
        super().__init__()
        channels, stride = c_in, 1
        for index, (kernel, c_out, step) in enumerate(convolutions, 1):
            layer = nn.Conv2d(channels, c_out, kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{index}", layer)
            self.add_module(f"bn{index}", nn.BatchNorm2d(c_out))
            channels, stride = c_out, stride * step
        self.count = len(convolutions)
        self.downsample = None
        if stride != 1 or channels != c_in:
            projection = nn.Conv2d(c_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(channels))

    def forward(self, x):
        y = x
        for index in range(1, self.count + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
            if index < self.count:
                y = y.relu()
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, counts, bottleneck, classes, small):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, *((3, 1, 1) if small else (7, 2, 3)), bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.small = small
        channels = 64
        for stage, count in enumerate(counts):
            width, blocks = 64 << stage, []
            for index in range(count):
                step = 2 if stage and not index else 1
                if bottleneck:
                    form = ((1, width, 1), (3, width, step), (1, 4 * width, 1))
                else:
                    form = ((3, width, step), (3, width, 1))
                blocks.append(Residual(channels, form))
                channels = form[-1][1]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        if not self.small:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def with_weights(module, model):
    """``module`` in float64 with the parameters and statistics of ``model``, which must name all alike."""
    module = module.double()
    state = {k: torch.tensor(np.array(v)) for k, v in model.graph.initializers.items()}
    expected = {k for k in module.state_dict() if not k.endswith("num_batches_tracked")}
    assert set(state) == expected, sorted(set(state) ^ expected)
    module.load_state_dict(state, strict=False)
    return module


CASES = {
    "unet-0": (lambda **o: models.unet(0, size=(16, 32), **o), lambda: UNet(0)),
    "unet-1": (
        lambda **o: models.unet(1, size=16, channels_in=2, classes=5, **o),
        lambda: UNet(1, 2, 5),
    ),
    "digits_cnn": (models.digits_cnn, DigitsCnn),
    "mlp": (models.mlp, Mlp),
    "lenet-28": (models.lenet, lambda: LeNet(2)),
    "lenet-32": (
        lambda **o: models.lenet(size=32, activation="tanh", pool="average", **o),
        lambda: LeNet(0, torch.tanh, F.avg_pool2d),
    ),
    "resnet18": (
        lambda **o: models.resnet18(size=32, classes=10, **o),
        lambda: ResNet((2, 2, 2, 2), False, 10, False),
    ),
    "resnet18-small": (
        lambda **o: models.resnet18(size=8, classes=10, small_images=True, **o),
        lambda: ResNet((2, 2, 2, 2), False, 10, True),
    ),
}


def feeds(model, seed=0):
    """Random inputs that fit ``model``."""
    rng = np.random.default_rng(seed)
    image, label = model.inputs["image"].shape, model.inputs["label"].shape
    classes = model.outputs["logits"].shape[1]
    return {"image": rng.normal(size=image), "label": rng.integers(0, classes, label)}


@pytest.mark.parametrize("name", CASES)
def test_forward_loss_and_gradients(name):
    make, reference = CASES[name]
    model = make(batch=3, seed=1, dtype="float64")
    # Statistics and normalisation parameters other than 0 and 1.
    rng = np.random.default_rng(5)
    for key, value in model.graph.initializers.items():
        if ".bn" in key or key.startswith("bn") or "downsample.1" in key:
            model.graph.initializers[key] = value + rng.uniform(0.1, 0.4, value.shape)
    module = with_weights(reference(), model)
    inputs = feeds(model)
    image, label = (torch.tensor(inputs[key]) for key in ("image", "label"))
    with network(model, backend="torch") as net:
        inferred = net.inference(inputs)
        trained = net.inference_and_backprop(inputs)
        pairs = net.gradient()
        gradients = dict(zip([p for p, _ in pairs], net.fetch_tensors([g for _, g in pairs]), strict=True))
    for mode, ours in ((False, inferred), (True, trained)):
        module.train(mode)
        logits = module(image)
        loss = F.cross_entropy(logits, label)
        np.testing.assert_allclose(ours["logits"], logits.detach(), rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(ours["loss"], loss.item(), rtol=1e-10)
    loss.backward()
    expected = dict(module.named_parameters())
    assert list(gradients) == list(model.parameters) and set(gradients) == set(expected)
    for key, gradient in gradients.items():
        size = expected[key].grad.abs().max().item()
        np.testing.assert_allclose(gradient, expected[key].grad, rtol=0, atol=1e-10 * size)


@pytest.mark.parametrize("name", ["unet-0", "digits_cnn", "mlp", "lenet-28"])
def test_the_file_says_the_same_to_onnx(name):
    make, reference = CASES[name]
    model = make(batch=2, seed=2, dtype="float64")
    inputs = feeds(model)
    logits, loss = ReferenceEvaluator(model.to_proto()).run(["logits", "loss"], inputs)
    module = with_weights(reference(), model).eval()
    with torch.no_grad():
        expected = module(torch.tensor(inputs["image"]))
    np.testing.assert_allclose(logits, expected, rtol=1e-10, atol=1e-12)
    expected_loss = F.cross_entropy(expected, torch.tensor(inputs["label"])).item()
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-10)


def test_resnet50_forward():
    model = models.resnet50(batch=1, size=32, classes=5, dtype="float64")
    module = with_weights(ResNet((3, 4, 6, 3), True, 5, False), model).eval()
    inputs = feeds(model)
    with network(model, backend="torch") as net:
        logits = net.inference(inputs, ["logits"])["logits"]
    with torch.no_grad():
        expected = module(torch.tensor(inputs["image"]))
    np.testing.assert_allclose(logits, expected, rtol=1e-9, atol=1e-9)


def test_an_open_batch_runs_with_any_number_of_images():
    model = models.digits_cnn(batch=None)
    rng = np.random.default_rng(0)
    with network(model, backend="torch") as net:
        for count in (1, 5):
            image = rng.normal(size=(count, 1, 8, 8)).astype(np.float32)
            assert net.inference({"image": image}, ["logits"])["logits"].shape == (count, 10)


def test_digits_cnn_learns_the_digits():
    datasets = pytest.importorskip("sklearn.datasets")
    source = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(source.target))
    images = torch.tensor(source.images[order, None] / 16.0, dtype=torch.float32)
    labels = torch.tensor(source.target[order])
    cut = 4 * len(order) // 5
    model = models.digits_cnn(seed=0)
    module = with_weights(DigitsCnn(), model).float()
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        for batch in torch.randperm(cut, generator=generator).split(64):
            optimizer.zero_grad()
            F.cross_entropy(module(images[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (module(images[cut:]).argmax(1) == labels[cut:]).float().mean().item()
    assert accuracy > 0.97
