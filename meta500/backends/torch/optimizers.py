"""PyTorch's own optimizers over a network's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from meta500.backends.hyperparameters import Rate
from meta500.backends.optimizer import GraphOptimizer
from meta500.errors import UserError, choose

# Our names for torch.optim's classes, and what the name fixes.
_CLASSES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "adagrad": (torch.optim.Adagrad, {}),
    "rmsprop": (torch.optim.RMSprop, {}),
}

# Learning rates where none is given: those of the reference optimizers, the same on every backend.
_RATES = {"adam": 1e-3, "adamw": 1e-3}


class TorchOptimizer(GraphOptimizer):
    """An optimizer of ``torch.optim``; ``hyperparameters`` are that class's own keywords.

    ``native`` is the torch.optim object, made before the first step.
    """

    def __init__(
        self,
        network: Any,
        name: str,
        loss: str = "loss",
        *,
        learning_rate: Rate | None = None,
        **hyperparameters: Any,
    ) -> None:
        cls, fixed = _CLASSES[choose("native optimizer of the torch backend", name, _CLASSES)]
        rate = _RATES.get(name, 1e-2) if learning_rate is None else learning_rate
        super().__init__(network, loss, learning_rate=rate)
        self.name = f"{name} (torch.optim)"
        known = set(inspect.signature(cls).parameters) - {"params", "lr"}
        for option in hyperparameters:
            choose(f"option of torch.optim.{cls.__name__}", option, known)
        self._class, self._options = cls, {**fixed, **hyperparameters}
        self.native: torch.optim.Optimizer | None = None

    @property
    def kind(self) -> str:
        return f"{type(self).__name__}: {self.name}"

    def build(self) -> None:
        try:
            self.native = self._class(list(self._named().values()), lr=self.rate, **self._options)  # type: ignore[call-arg]
        except (ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"torch.optim.{self._class.__name__}: {error}") from None

    def step(self) -> None:
        assert self.native is not None
        with self.network.computing():
            self.native.step()

    def set_rate(self, rate: float) -> None:
        assert self.native is not None
        for group in self.native.param_groups:
            group["lr"] = rate

    def hyper_parameters(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, **self._options}

    def set_hyper_parameters(self, values: Any) -> None:
        values = dict(values)
        if "learning_rate" in values:
            self.learning_rate = values.pop("learning_rate")
        self._options.update(values)
        self.built = False

    def collect_state(self) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
        """Slots with a parameter's shape as arrays; step counters as the scalar ``NAME.step``."""
        arrays: dict[str, dict[str, Any]] = {}
        scalars: dict[str, float] = {}
        if self.native is None:
            return arrays, scalars
        for name, parameter in self._named().items():
            for slot, value in self.native.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape and slot != "step":
                    arrays.setdefault(name, {})[slot] = value
                elif value is not None:
                    scalars[f"{name}.{slot}"] = float(value)
        return arrays, scalars

    def restore_state(self, arrays: dict[str, dict[str, Any]], scalars: dict[str, float]) -> None:
        self.built = False
        self.ensure_built()
        assert self.native is not None
        for name, parameter in self._named().items():
            slots: dict[str, Any] = {slot: value.clone() for slot, value in arrays.get(name, {}).items()}
            for key, number in scalars.items():
                owner, _, slot = key.rpartition(".")
                if owner == name:
                    slots[slot] = torch.tensor(number, dtype=torch.float32)
            if slots:
                self.native.state[parameter] = slots

    def _named(self) -> dict[str, torch.nn.Parameter]:
        return dict(self.network._parameter_tensors)  # type: ignore[attr-defined]


def create(network: Any, name: str, loss: str, hyperparameters: Mapping[str, Any]) -> TorchOptimizer:
    """A native optimizer by name; see :meth:`meta500.backends.network.Network.native_optimizer`.

    Raises:
        UserError: an unknown name or option, or a value that torch.optim refuses.
    """
    reserved = {"network", "name", "loss"} & set(hyperparameters)
    if reserved:
        raise UserError(f"'{min(reserved)}' is no hyper-parameter of native optimizer '{name}'")
    optimizer = TorchOptimizer(network, name, loss, **hyperparameters)
    optimizer.ensure_built()
    return optimizer
