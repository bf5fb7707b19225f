"""AdaGrad and RMSProp: steps scaled per element by the size of past gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meta500.backends.hyperparameters import Flag, Rate, Real
from meta500.optimizers.arithmetic import (
    add_square_,
    blend_,
    blend_square_,
    decay_add_,
    subtract_ratio,
)
from meta500.optimizers.optimizer import UpdateRuleOptimizer

if TYPE_CHECKING:
    from meta500.backends.network import Network

Array = Any


class AdaGrad(UpdateRuleOptimizer):
    """AdaGrad with the diagonal matrix (Duchi, Hazan and Singer, JMLR 12, 2011)::

        s ← s + g²         x ← x − γ_t g / (√s + ε)

    ε stands outside the root and g includes weight decay λ x, as in ``torch.optim.Adagrad``. With
    the option ``rate_decay`` d, γ_t = γ / (1 + (t − 1) d); s starts at ``initial_sum`` in every
    element.
    """

    epsilon = Real()
    weight_decay = Real()
    rate_decay = Real()
    initial_sum = Real()

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 0.01,
        *,
        epsilon: float = 1e-10,
        weight_decay: float = 0.0,
        rate_decay: float = 0.0,
        initial_sum: float = 0.0,
        loss: str = "loss",
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.rate_decay = rate_decay
        self.initial_sum = initial_sum

    def new_input(self) -> None:
        self.rate_t = self.rate / (1.0 + self.step_count * self.rate_decay)

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        if self.weight_decay:
            grad = grad + self.weight_decay * old_param
        if name not in self.state:
            self.slots(name, old_param, "sum")["sum"] += self.initial_sum
        squares = add_square_(self.state[name]["sum"], grad)
        denominator = self.xp.sqrt(squares)
        denominator += self.epsilon
        return subtract_ratio(old_param, self.rate_t, grad, denominator)


class RMSProp(UpdateRuleOptimizer):
    """RMSProp (Tieleman and Hinton, Coursera lecture 6.5, 2012; centred: Graves, arXiv:1308.0850)::

        s ← α s + (1 − α) g²       a ← α a + (1 − α) g  (centred only, else a = 0)
        d = g / (√(s − a²) + ε)    x ← x − γ d;  with momentum: b ← μ b + d, x ← x − γ b

    ε stands outside the root and g includes weight decay λ x, as in ``torch.optim.RMSprop``; Graves
    has ε inside the root. Options: ``decay`` α, ``momentum`` μ, ``centered``.
    """

    decay = Real(below=1.0)
    epsilon = Real()
    weight_decay = Real()
    momentum = Real(below=1.0)
    centered = Flag()

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 0.01,
        *,
        decay: float = 0.99,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        loss: str = "loss",
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.decay = decay
        self.epsilon = epsilon
        self.weight_decay = weight_decay
        self.momentum = momentum
        self.centered = centered

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        if self.weight_decay:
            grad = grad + self.weight_decay * old_param
        squares = blend_square_(self.slots(name, old_param, "square")["square"], grad, self.decay)
        if self.centered:
            mean = blend_(self.slots(name, old_param, "mean")["mean"], grad, self.decay)
            # A variance: rounding may bring it below zero where the gradient stays constant.
            squares = self.xp.clip(squares - mean * mean, 0.0)
        denominator = self.xp.sqrt(squares)
        denominator += self.epsilon
        if not self.momentum:
            return subtract_ratio(old_param, self.rate, grad, denominator)
        velocity = self.slots(name, old_param, "velocity")["velocity"]
        return old_param - self.rate * decay_add_(velocity, grad / denominator, self.momentum)
