"""Networks and training steps in plain PyTorch, as a user would write them: the baseline of our overhead.

The modules have the names of the builder's networks, so that the weights carry over by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from meta500.errors import UserError
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


def plain_module(name: str, model: Model, **options: Any) -> nn.Module:
    """The plain module of the model ``name`` ("unet" or "digits_cnn") with the weights of ``model``.

    Raises:
        UserError: there is no plain form of it, or its weights do not have the model's names and shapes.
    """
    if name == "unet":
        module: nn.Module = UNet(options.get("n", 0))
    elif name == "digits_cnn":
        module = DigitsCNN()
    else:
        raise UserError(f"there is no plain PyTorch form of '{name}'; there are digits_cnn, unet")
    weights = {p: torch.from_numpy(np.array(model.graph.initializers[p])) for p in model.parameters}
    try:
        module.load_state_dict(weights)
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
