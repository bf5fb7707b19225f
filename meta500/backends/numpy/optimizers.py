"""Optimizers that update a numpy network's parameters in place, without temporaries of their size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from meta500.backends.hyperparameters import Rate, Real
from meta500.backends.optimizer import GraphOptimizer, native_from


class NumpyOptimizer(GraphOptimizer):
    """Base of the in-place optimizers: ``update`` changes one parameter array in place."""

    slot_names: tuple[str, ...] = ()

    def build(self) -> None:
        # The network's arrays may be shared with the model, so the optimizer works on its own copies.
        for name in self.network.get_params():
            self.network.assign(name, np.array(self.network.native(name)))
        if not self.state:
            self.state = {
                name: {slot: np.zeros_like(self.network.native(name)) for slot in self.slot_names}
                for name in self.network.get_params()
            }
        self._scratch = {name: np.empty_like(self.network.native(name)) for name in self.network.get_params()}

    def step(self) -> None:
        for name, gradient in self.network.gradient():
            parameter = self.network.native(name)
            if not parameter.flags.writeable:
                parameter = np.array(parameter)
                self.network.assign(name, parameter)
            self.update(parameter, self.network.native(gradient), self.state[name], self._scratch[name])

    def update(
        self, parameter: np.ndarray, gradient: np.ndarray, slots: dict[str, np.ndarray], scratch: np.ndarray
    ) -> None:
        """Change ``parameter`` and ``slots`` in place; ``scratch`` is free to use."""
        raise NotImplementedError

    def set_rate(self, rate: float) -> None:
        """Nothing to pass on: ``self.rate`` is read at every step."""

    def collect_state(self) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
        return self.state, self.scalars

    def restore_state(self, arrays: dict[str, dict[str, Any]], scalars: dict[str, float]) -> None:
        self.state = {name: {s: np.array(a) for s, a in slots.items()} for name, slots in arrays.items()}
        self.scalars = scalars


class InPlaceSGD(NumpyOptimizer):
    """Gradient descent, x <- x - rate * g."""

    name = "sgd (numpy, in place)"

    def update(
        self, parameter: np.ndarray, gradient: np.ndarray, slots: dict[str, np.ndarray], scratch: np.ndarray
    ) -> None:
        np.multiply(gradient, self.rate, out=scratch)
        parameter -= scratch


class InPlaceMomentum(NumpyOptimizer):
    """Heavy ball, v <- momentum * v + g, x <- x - rate * v."""

    name = "momentum (numpy, in place)"
    momentum = Real(below=1.0)
    slot_names = ("velocity",)

    def __init__(
        self, network: Any, loss: str = "loss", *, learning_rate: Rate = 0.01, momentum: float = 0.9
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.momentum = momentum

    def update(
        self, parameter: np.ndarray, gradient: np.ndarray, slots: dict[str, np.ndarray], scratch: np.ndarray
    ) -> None:
        velocity = slots["velocity"]
        velocity *= self.momentum
        velocity += gradient
        np.multiply(velocity, self.rate, out=scratch)
        parameter -= scratch


class InPlaceAdam(NumpyOptimizer):
    """Adam (Kingma and Ba, 2015), with the bias corrections folded into the step size and epsilon."""

    name = "adam (numpy, in place)"
    beta1 = Real(below=1.0)
    beta2 = Real(below=1.0)
    epsilon = Real()
    slot_names = ("first_moment", "second_moment")

    def __init__(
        self,
        network: Any,
        loss: str = "loss",
        *,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def update(
        self, parameter: np.ndarray, gradient: np.ndarray, slots: dict[str, np.ndarray], scratch: np.ndarray
    ) -> None:
        t = self.step_count + 1
        first, second = slots["first_moment"], slots["second_moment"]
        first *= self.beta1
        np.multiply(gradient, 1 - self.beta1, out=scratch)
        first += scratch
        second *= self.beta2
        np.multiply(gradient, gradient, out=scratch)
        scratch *= 1 - self.beta2
        second += scratch
        correction = math.sqrt(1 - self.beta2**t)
        np.sqrt(second, out=scratch)
        scratch += self.epsilon * correction
        np.divide(first, scratch, out=scratch)
        scratch *= self.rate * correction / (1 - self.beta1**t)
        parameter -= scratch


_CLASSES: dict[str, Callable[..., NumpyOptimizer]] = {
    "sgd": InPlaceSGD,
    "momentum": InPlaceMomentum,
    "adam": InPlaceAdam,
}


def create(network: Any, name: str, loss: str, hyperparameters: Mapping[str, Any]) -> NumpyOptimizer:
    """A native optimizer by name; see :meth:`meta500.backends.network.Network.native_optimizer`.

    Raises:
        UserError: an unknown name or option, or an invalid value.
    """
    return native_from(_CLASSES, network, name, loss, hyperparameters)
