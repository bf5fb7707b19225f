"""Reference optimizers by name, for the command line and recipes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from meta500.errors import choose
from meta500.optimizers.accelegrad import AcceleGrad
from meta500.optimizers.adam import Adam, AdamW
from meta500.optimizers.adaptive import AdaGrad, RMSProp
from meta500.optimizers.optimizer import Optimizer
from meta500.optimizers.sgd import SGD, Momentum, Nesterov

if TYPE_CHECKING:
    from meta500.backends.network import Network

OPTIMIZERS: dict[str, type[Optimizer]] = {
    "accelegrad": AcceleGrad,
    "adagrad": AdaGrad,
    "adam": Adam,
    "adamw": AdamW,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "rmsprop": RMSProp,
    "sgd": SGD,
}


def names() -> list[str]:
    """The names that ``create`` knows."""
    return sorted(OPTIMIZERS)


def options(name: str) -> dict[str, Any]:
    """The options of a reference optimizer and their default values."""
    parameters = inspect.signature(OPTIMIZERS[choose("optimizer", name, OPTIMIZERS)]).parameters
    return {key: value.default for key, value in parameters.items() if key != "network"}


def create(name: str, network: Network | None, **hyper: Any) -> Optimizer:
    """A reference optimizer by name, e.g. ``create("adam", network, learning_rate=1e-3)``.

    Raises:
        UserError: unknown name or option (with the choices), or an invalid value.
    """
    accepted = options(name)
    for option in hyper:
        choose(f"option of optimizer '{name}'", option, accepted)
    return OPTIMIZERS[name](network, **hyper)
