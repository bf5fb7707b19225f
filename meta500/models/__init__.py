"""Networks: written with the builder, or taken from PyTorch."""

from meta500.models.alexnet import alexnet
from meta500.models.densenet import densenet121
from meta500.models.digits import digits_cnn
from meta500.models.from_torch import from_torch
from meta500.models.googlenet import googlenet
from meta500.models.initialization import initializations
from meta500.models.lenet import lenet
from meta500.models.mlp import mlp
from meta500.models.mobilenet_v2 import mobilenet_v2
from meta500.models.registry import create, names, options, title
from meta500.models.resnet import resnet18, resnet34, resnet50
from meta500.models.squeezenet import squeezenet1_1
from meta500.models.unet import unet
from meta500.models.unet_ronneberger import unet_ronneberger
from meta500.models.vgg import vgg16, vgg19

__all__ = [
    "alexnet",
    "create",
    "densenet121",
    "digits_cnn",
    "from_torch",
    "googlenet",
    "initializations",
    "lenet",
    "mlp",
    "mobilenet_v2",
    "names",
    "options",
    "resnet18",
    "resnet34",
    "resnet50",
    "squeezenet1_1",
    "title",
    "unet",
    "unet_ronneberger",
    "vgg16",
    "vgg19",
]
