"""The datasets by name: ``load("digits", seed=1)`` gives (train, test)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from meta500.datasets.samples import Samples
from meta500.errors import UserError, choose

Loader = Callable[..., tuple[Samples, Samples]]

# Module and function of each, imported when it is asked for.
_LOADERS: Mapping[str, str] = MappingProxyType(
    {
        "arrays": "arrays:arrays",
        "cifar10": "cifar:cifar10",
        "cifar100": "cifar:cifar100",
        "digits": "digits:digits",
        "digits-segmentation": "segmentation:digits_segmentation",
        "fashion-mnist": "mnist:fashion_mnist",
        "image-folder": "image_folder:image_folder",
        "imagenet": "imagenet:imagenet",
        "mask-folder": "image_folder:mask_folder",
        "mnist": "mnist:mnist",
        "oxford-pets": "pets:oxford_pets",
        "stl10": "stl10:stl10",
        "synthetic": "synthetic:synthetic",
        "voc-segmentation": "voc:voc_segmentation",
    }
)


def names() -> tuple[str, ...]:
    """The names that `load` knows, sorted."""
    return tuple(sorted(_LOADERS))


def loader(name: str) -> Loader:
    """The function that loads the dataset ``name``.

    Raises:
        UserError: unknown dataset; lists those that exist.
    """
    module, function = _LOADERS[choose("dataset", name, _LOADERS)].split(":")
    return getattr(importlib.import_module(f"meta500.datasets.{module}"), function)


def options(name: str) -> dict[str, Any]:
    """The options of the dataset ``name`` with their default values; those without one must be given.

    Raises:
        UserError: unknown dataset; lists those that exist.
    """
    return {key: p.default for key, p in inspect.signature(loader(name)).parameters.items()}


def load(name: str, **chosen: Any) -> tuple[Samples, Samples]:
    """Load or generate the dataset ``name`` as (train, test).

    The options are the keyword arguments of the dataset's own function (`digits`, `mnist`, `image_folder`,
    ...), where they are described; `options` lists them. Nothing is downloaded: what is missing is named
    with the command that gets it.

    Raises:
        UserError: unknown dataset or option (lists those that exist), a value that the dataset
            refuses, or files that are missing or damaged.
    """
    known = options(name)
    for key in chosen:
        choose(f"option of dataset '{name}'", key, known)
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in chosen:
            raise UserError(f"dataset '{name}' needs the option {key}: give it, e.g. {key}=...")
    return loader(name)(**chosen)
