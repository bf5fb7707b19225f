"""The datasets by name: ``load("digits", seed=1)`` gives (train, test)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from meta500.datasets.dataset import Dataset
from meta500.datasets.digits import digits
from meta500.datasets.segmentation import digits_segmentation
from meta500.datasets.synthetic import synthetic
from meta500.errors import choose

Loader = Callable[..., tuple[Dataset, Dataset]]

_LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "digits": digits,
        "digits-segmentation": digits_segmentation,
        "synthetic": synthetic,
    }
)


def names() -> tuple[str, ...]:
    """The names that `load` knows, sorted."""
    return tuple(sorted(_LOADERS))


def options(name: str) -> dict[str, Any]:
    """The options of the dataset ``name`` with their default values.

    Raises:
        UserError: unknown dataset; lists those that exist.
    """
    loader = _LOADERS[choose("dataset", name, _LOADERS)]
    return {key: p.default for key, p in inspect.signature(loader).parameters.items()}


def load(name: str, **chosen: Any) -> tuple[Dataset, Dataset]:
    """Load or generate the dataset ``name`` as (train, test).

    The options are the keyword arguments of the dataset's own function (`digits`,
    `digits_segmentation`, `synthetic`), where they are described; `options` lists them.

    Raises:
        UserError: unknown dataset or option (lists those that exist), or a value that the dataset
            refuses.
    """
    known = options(name)
    for key in chosen:
        choose(f"option of dataset '{name}'", key, known)
    return _LOADERS[name](**chosen)
