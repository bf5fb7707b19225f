"""Optimizers whose step is generated with the network: one call computes loss, gradients and update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meta500.backends.generated.updates import UPDATES, slot_tensor, update_kind
from meta500.backends.hyperparameters import Rate, Real
from meta500.backends.optimizer import GraphOptimizer, native_from


class GeneratedOptimizer(GraphOptimizer):
    """Base of the generated optimizers.

    The state lies in arrays like the network's parameters, all of them packed; ``state`` has views.

    Attributes:
        rule: name of the optimizer in ``updates.UPDATES``.
        weight_decay: added to the gradient, g + weight_decay * x (L2), unless a subclass says otherwise. A
            change between 0 and another number compiles another step.
    """

    rule = ""
    weight_decay = Real()

    def __init__(
        self,
        network: Any,
        loss: str = "loss",
        *,
        learning_rate: Rate = 0.01,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.weight_decay = weight_decay

    def build(self) -> None:
        update = UPDATES[self.rule]
        network: Any = self.network
        network.join_ranks({"optimizer": self.rule, **self.settings()})
        self._slots = {name: np.zeros_like(network.packed) for name in update.slots}
        previous = self.state
        self.state = {
            parameter: {slot: network.view(array, parameter) for slot, array in self._slots.items()}
            for parameter in network.get_params()
        }
        for parameter, slots in previous.items():
            for slot, array in slots.items():
                self.state[parameter][slot][...] = array

    def settings(self) -> dict[str, float]:
        """The numbers that the coming step takes, and maybe more."""
        return {"rate": self.rate, "weight_decay": self.weight_decay}

    def train(
        self, inputs: dict[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """One step in one call; see ``Optimizer.train``."""
        self.ensure_built()
        network: Any = self.network
        extra = {slot_tensor(name): array for name, array in self._slots.items()}
        kind, settings = update_kind(self.rule, self.weight_decay), self.settings()
        for name in UPDATES[kind].settings:
            extra[slot_tensor(name)] = np.asarray(settings[name], network.real)
        result = network.train_step(inputs, self.loss, self.wanted(outputs), kind, extra)
        self.step_count += 1
        return result  # type: ignore[no-any-return]

    def train_steps(
        self, batches: Iterable[dict[str, np.ndarray]], outputs: Sequence[str] | None = None
    ) -> list[dict[str, np.ndarray]]:
        """One step per batch; returns copies of the outputs of every step."""
        return [
            {name: np.array(value) for name, value in self.train(batch, outputs).items()} for batch in batches
        ]

    def step(self) -> None:
        """Never called: ``train`` updates in the same call."""
        raise NotImplementedError

    def set_rate(self, rate: float) -> None:
        """Nothing to pass on: ``self.rate`` is read at every step."""

    def collect_state(self) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
        return self.state, self.scalars

    def restore_state(self, arrays: dict[str, dict[str, Any]], scalars: dict[str, float]) -> None:
        self.ensure_built()
        for parameter, slots in arrays.items():
            for slot, array in slots.items():
                self.state[parameter][slot][...] = array
        self.scalars = scalars


class GeneratedSGD(GeneratedOptimizer):
    """Gradient descent, x <- x - rate * g."""

    name = "sgd (generated)"
    rule = "sgd"


class GeneratedMomentum(GeneratedOptimizer):
    """Heavy ball, v <- momentum * v + g, x <- x - rate * v."""

    name = "momentum (generated)"
    rule = "momentum"
    momentum = Real(below=1.0)

    def __init__(
        self,
        network: Any,
        loss: str = "loss",
        *,
        learning_rate: Rate = 0.01,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate, weight_decay=weight_decay)
        self.momentum = momentum

    def settings(self) -> dict[str, float]:
        return {**super().settings(), "momentum": self.momentum}


class GeneratedAdam(GeneratedOptimizer):
    """Adam (Kingma and Ba, 2015), with the bias corrections folded into the step size and epsilon."""

    name = "adam (generated)"
    rule = "adam"
    beta1 = Real(below=1.0)
    beta2 = Real(below=1.0)
    epsilon = Real()

    def __init__(
        self,
        network: Any,
        loss: str = "loss",
        *,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate, weight_decay=weight_decay)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def settings(self) -> dict[str, float]:
        t = self.step_count + 1
        correction = math.sqrt(1 - self.beta2**t)
        return {
            **super().settings(),
            "step": self.rate * correction / (1 - self.beta1**t),
            "epsilon": self.epsilon * correction,
            "beta1": self.beta1,
            "beta2": self.beta2,
            "share1": 1 - self.beta1,
            "share2": 1 - self.beta2,
        }


class GeneratedAdamW(GeneratedAdam):
    """AdamW (Loshchilov and Hutter, 2019): Adam, and x <- x - rate * weight_decay * x."""

    name = "adamw (generated)"
    rule = "adamw"

    def __init__(
        self,
        network: Any,
        loss: str = "loss",
        *,
        learning_rate: Rate = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            network,
            loss,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
        )

    def settings(self) -> dict[str, float]:
        return {**super().settings(), "decay": self.rate * self.weight_decay}


_CLASSES: dict[str, Callable[..., GeneratedOptimizer]] = {
    "sgd": GeneratedSGD,
    "momentum": GeneratedMomentum,
    "adam": GeneratedAdam,
    "adamw": GeneratedAdamW,
}


def create(network: Any, name: str, loss: str, hyperparameters: Mapping[str, Any]) -> GeneratedOptimizer:
    """A native optimizer by name; see :meth:`meta500.backends.network.Network.native_optimizer`.

    Raises:
        UserError: an unknown name or option, or an invalid value.
    """
    return native_from(_CLASSES, network, name, loss, hyperparameters)
