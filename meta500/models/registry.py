"""The networks by name: ``create("unet", n=2, batch=4)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from meta500.errors import choose
from meta500.graph import Model
from meta500.models.alexnet import alexnet
from meta500.models.densenet import densenet121
from meta500.models.digits import digits_cnn
from meta500.models.googlenet import googlenet
from meta500.models.lenet import lenet
from meta500.models.mlp import mlp
from meta500.models.mobilenet_v2 import mobilenet_v2
from meta500.models.resnet import resnet18, resnet34, resnet50
from meta500.models.squeezenet import squeezenet1_1
from meta500.models.unet import unet
from meta500.models.unet_ronneberger import unet_ronneberger
from meta500.models.vgg import vgg16, vgg19

_MODELS: Mapping[str, Callable[..., Model]] = MappingProxyType(
    {
        "alexnet": alexnet,
        "densenet121": densenet121,
        "digits_cnn": digits_cnn,
        "googlenet": googlenet,
        "lenet": lenet,
        "mlp": mlp,
        "mobilenet_v2": mobilenet_v2,
        "resnet18": resnet18,
        "resnet34": resnet34,
        "resnet50": resnet50,
        "squeezenet1_1": squeezenet1_1,
        "unet": unet,
        "unet_ronneberger": unet_ronneberger,
        "vgg16": vgg16,
        "vgg19": vgg19,
    }
)


def names() -> tuple[str, ...]:
    """The names that `create` knows, sorted."""
    return tuple(sorted(_MODELS))


def options(name: str) -> dict[str, Any]:
    """The options of the network ``name`` with their default values.

    Raises:
        UserError: unknown network; lists those that exist.
    """
    function = _MODELS[choose("model", name, _MODELS)]
    return {key: p.default for key, p in inspect.signature(function).parameters.items()}


def title(name: str) -> str:
    """One line that says what the network ``name`` is: the first of its function's docstring.

    Raises:
        UserError: unknown network; lists those that exist.
    """
    text = inspect.getdoc(_MODELS[choose("model", name, _MODELS)]) or ""
    return text.partition("\n\n")[0].replace("\n", " ").replace("`", "")


def create(name: str, **chosen: Any) -> Model:
    """Make the network ``name``; its options are the keyword arguments of the function of that
    name.

    Raises:
        UserError: unknown network or option (lists those that exist), or a value that the network
            refuses.
    """
    known = options(name)
    for key in chosen:
        choose(f"option of model '{name}'", key, known)
    return _MODELS[name](**chosen)
