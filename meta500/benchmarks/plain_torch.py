"""Networks and training steps in plain PyTorch, as a user would write them: the baseline of our overhead.

The modules have the names of the builder's networks, so that the weights carry over by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.graph import Model


class Block(nn.Module):
    """Two padded 3x3 convolutions, each with ReLU."""

    def __init__(self, channels: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels[0], channels[1], 3, padding=1)
        self.conv2 = nn.Conv2d(channels[1], channels[2], 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.conv2(functional.relu(self.conv1(x))))


class Decoder(Block):
    """A transposed convolution, the concatenation with the skip, and a block."""

    def __init__(self, wide: int, channels: tuple[int, int, int]) -> None:
        super().__init__(channels)
        self.up = nn.ConvTranspose2d(wide, wide, 2, stride=2)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(torch.cat((skip, self.up(x)), 1))


class UNet(nn.Module):
    """U-Net(n) of depth 4 with three channels and three classes."""

    def __init__(self, n: int = 0) -> None:
        super().__init__()
        c = 2**n
        self.encoder1, self.encoder2 = Block((3, c, c)), Block((c, 2 * c, 2 * c))
        self.encoder3, self.encoder4 = Block((2 * c, 4 * c, 4 * c)), Block((4 * c, 8 * c, 8 * c))
        self.bottom = Block((8 * c, 16 * c, 8 * c))
        self.decoder4 = Decoder(8 * c, (16 * c, 8 * c, 4 * c))
        self.decoder3 = Decoder(4 * c, (8 * c, 4 * c, 2 * c))
        self.decoder2 = Decoder(2 * c, (4 * c, 2 * c, c))
        self.decoder1 = Decoder(c, (2 * c, 2 * c, 2 * c))
        self.head = nn.Conv2d(2 * c, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.encoder1(image)
        second = self.encoder2(functional.avg_pool2d(first, 2))
        third = self.encoder3(functional.avg_pool2d(second, 2))
        fourth = self.encoder4(functional.avg_pool2d(third, 2))
        x = self.decoder4(self.bottom(functional.avg_pool2d(fourth, 2)), fourth)
        x = self.decoder3(x, third)
        x = self.decoder2(x, second)
        return self.head(self.decoder1(x, first))  # type: ignore[no-any-return]


class DigitsCNN(nn.Module):
    """The digits network with its default widths."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(512, 64), nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.conv2(functional.relu(self.conv1(image))))
        x = functional.max_pool2d(x, 2).flatten(1)
        return self.fc2(functional.relu(self.fc1(x)))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation, and the shortcut around them."""

    def __init__(self, c_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or c_in != width:
            projection = nn.Conv2d(c_in, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return functional.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet18(nn.Module):
    """ResNet-18 with the stem for ImageNet or, with ``small_images``, for CIFAR."""

    def __init__(self, classes: int = 1000, small_images: bool = False) -> None:
        super().__init__()
        self.small_images = small_images
        self.conv1 = nn.Conv2d(
            3, 64, 3 if small_images else 7, 1 if small_images else 2, 1 if small_images else 3, bias=False
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.bn1(self.conv1(image)))
        if not self.small_images:
            x = functional.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


_FORMS: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
    "digits_cnn": lambda options: DigitsCNN(),
    "resnet18": lambda options: ResNet18(options.get("classes", 1000), options.get("small_images", False)),
    "unet": lambda options: UNet(options.get("n", 0)),
}


def plain_module(name: str, model: Model, **options: Any) -> nn.Module:
    """The plain module of the model ``name`` with the weights of ``model``.

    Raises:
        UserError: there is no plain form of it, or its weights do not have the model's names and shapes.
    """
    return loaded_module(name, model.graph.initializers, options)


def loaded_module(name: str, tensors: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> nn.Module:
    """The plain module of the model ``name`` ("unet", "digits_cnn" or "resnet18").

    Args:
        name: of the model.
        tensors: its parameters and statistics, as in the model's graph; others are left out. The module is
            float64 where they are.
        options: of the model.

    Raises:
        UserError: there is no plain form of it, or its weights do not have the module's names and shapes.
    """
    module = _FORMS[choose("plain PyTorch model", name, _FORMS)](options)
    if any(array.dtype == np.float64 for array in tensors.values()):
        module.double()
    state = module.state_dict()
    # PyTorch counts the batches that a normalisation has seen; nothing of ours does.
    found = {key: value for key, value in state.items() if key.endswith("num_batches_tracked")}
    found |= {key: torch.from_numpy(np.array(tensors[key])) for key in state if key in tensors}
    try:
        module.load_state_dict(found)
    except RuntimeError as error:
        raise UserError(f"plain {name}: {error}") from None
    return module


def plain_training_action(
    module: nn.Module, image: np.ndarray, label: np.ndarray, device: str = "cpu", **adam: Any
) -> Callable[[], float]:
    """One training step with torch.optim.Adam from numpy input to the loss as a number."""
    module.to(device)
    optimizer = torch.optim.Adam(module.parameters(), **{"lr": 1e-3, **adam})

    def step() -> float:
        x, y = torch.from_numpy(image).to(device), torch.from_numpy(label).to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def plain_step_action(
    module: nn.Module,
    image: np.ndarray,
    label: np.ndarray,
    *,
    channels_last: bool = False,
    compiled: bool = False,
) -> Callable[[], float]:
    """One training step as an expert writes it: fused Adam, fixed shapes, and all of forward compiled.

    Args:
        module: with its weights.
        image, label: the batch; it is laid out once, outside of the step.
        channels_last: weights and images with channels innermost.
        compiled: ``torch.compile`` of network and loss, with its own default mode.

    Returns:
        The step; it gives the loss as a number.
    """
    x = _laid_out(module, image, channels_last)
    y = torch.from_numpy(label)
    module.train()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, fused=True)

    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(x), y)

    run = torch.compile(forward, dynamic=False) if compiled else forward

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = run(x, y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def plain_inference_action(
    module: nn.Module, image: np.ndarray, *, channels_last: bool = False, compiled: bool = False
) -> Callable[[], np.ndarray]:
    """One inference in ``torch.inference_mode``; arguments as for :func:`plain_step_action`.

    Returns:
        The action; it gives the logits as a numpy array, in the memory format in which they were computed.
    """
    x = _laid_out(module, image, channels_last)
    module.eval()
    run = torch.compile(module, dynamic=False) if compiled else module

    def step() -> np.ndarray:
        with torch.inference_mode():
            logits = run(x)
        return logits.numpy()  # type: ignore[no-any-return]

    return step


def _laid_out(module: nn.Module, image: np.ndarray, channels_last: bool) -> torch.Tensor:
    x = torch.from_numpy(image)
    if not channels_last:
        return x
    module.to(memory_format=torch.channels_last)
    return x.contiguous(memory_format=torch.channels_last)
