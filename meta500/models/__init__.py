"""Networks: written with the builder, or taken from PyTorch."""

from meta500.models.digits import digits_cnn
from meta500.models.from_torch import from_torch
from meta500.models.initialization import initializations
from meta500.models.lenet import lenet
from meta500.models.mlp import mlp
from meta500.models.registry import create, names, options
from meta500.models.resnet import resnet18, resnet50
from meta500.models.unet import unet

__all__ = [
    "create",
    "digits_cnn",
    "from_torch",
    "initializations",
    "lenet",
    "mlp",
    "names",
    "options",
    "resnet18",
    "resnet50",
    "unet",
]
