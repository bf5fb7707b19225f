"""A PyTorch module becomes the same network on every backend, parameters included."""

import numpy as np
import torch
from torch import nn

import meta500

module = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)
image = torch.randn(4, 1, 8, 8)
model = meta500.from_torch(module, (image,), loss="cross_entropy")
print("parameters:", ", ".join(model.parameters))

expected = module.eval()(image).detach().numpy()
label = np.zeros(4, np.int64)
for backend in ("numpy", "torch"):
    with meta500.network(model, backend=backend) as network:
        name = next(iter(model.inputs))
        logits = network.inference({name: image.numpy()})[next(iter(network.outputs))]
        print(f"{backend}: largest difference from PyTorch {np.abs(logits - expected).max():.1e}")
