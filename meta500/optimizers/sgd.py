"""Gradient descent, and its two momentum forms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meta500.backends.hyperparameters import Rate, Real
from meta500.optimizers.arithmetic import add_scaled, decay_add_
from meta500.optimizers.optimizer import UpdateRuleOptimizer

if TYPE_CHECKING:
    from meta500.backends.network import Network

Array = Any


class SGD(UpdateRuleOptimizer):
    """Gradient descent (Robbins and Monro, 1951), x ← x − γ (g + λ x), weight decay λ."""

    weight_decay = Real()

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 0.01,
        *,
        weight_decay: float = 0.0,
        loss: str = "loss",
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.weight_decay = weight_decay

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        if self.weight_decay:
            grad = add_scaled(grad, self.weight_decay, old_param)
        return add_scaled(old_param, -self.rate, grad)


class Momentum(SGD):
    """Heavy ball (Polyak, 1964): v ← μ v + (1 − δ) g, x ← x − γ v, with g including weight decay λ
    x.

    The very first v is g itself, undamped, and γ multiplies v when x moves: both as in
    ``torch.optim.SGD``. With a constant γ and δ = 0 this is Polyak's x_{t+1} = x_t − γ g_t + μ (x_t
    − x_{t−1}). With a γ that changes it is not: there Polyak's form keeps the old step sizes in its
    memory, this one applies the new.
    """

    momentum = Real(below=1.0)
    dampening = Real()

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 0.01,
        *,
        momentum: float = 0.9,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        loss: str = "loss",
    ) -> None:
        super().__init__(network, learning_rate, weight_decay=weight_decay, loss=loss)
        self.momentum = momentum
        self.dampening = dampening

    def velocity(self, grad: Array, name: str) -> Array:
        """v of this step, kept in ``state[name]["velocity"]``."""
        slots = self.state.setdefault(name, {})
        if "velocity" not in slots:
            # A copy: the network may reuse the gradient's memory in the next step.
            slots["velocity"] = self.xp.asarray(grad, copy=True)
            return slots["velocity"]
        return decay_add_(slots["velocity"], grad, self.momentum, 1.0 - self.dampening)

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        if self.weight_decay:
            grad = add_scaled(grad, self.weight_decay, old_param)
        return add_scaled(old_param, -self.rate, self.velocity(grad, name))


class Nesterov(Momentum):
    """Nesterov's momentum (1983) in the form of Sutskever et al. (2013): v ← μ v + g, x ← x − γ (g
    + μ v).

    x is the look-ahead point of Nesterov's two sequences, at which the gradient is taken, as in
    ``torch.optim.SGD(nesterov=True)``. There is no dampening: the method is not defined with it.
    """

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 0.01,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        loss: str = "loss",
    ) -> None:
        super().__init__(network, learning_rate, momentum=momentum, weight_decay=weight_decay, loss=loss)

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        if self.weight_decay:
            grad = add_scaled(grad, self.weight_decay, old_param)
        step = add_scaled(grad, self.momentum, self.velocity(grad, name))
        return add_scaled(old_param, -self.rate, step)
