"""The networks by name: ``create("unet", n=2, batch=4)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from meta500.errors import choose
from meta500.graph import Model
from meta500.models.digits import digits_cnn
from meta500.models.lenet import lenet
from meta500.models.mlp import mlp
from meta500.models.resnet import resnet18, resnet50
from meta500.models.unet import unet

_MODELS: Mapping[str, Callable[..., Model]] = MappingProxyType(
    {
        "digits_cnn": digits_cnn,
        "lenet": lenet,
        "mlp": mlp,
        "resnet18": resnet18,
        "resnet50": resnet50,
        "unet": unet,
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
