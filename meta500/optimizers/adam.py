"""Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from meta500.backends.hyperparameters import Rate, Real
from meta500.optimizers.arithmetic import blend_, blend_square_, subtract_ratio
from meta500.optimizers.optimizer import UpdateRuleOptimizer

if TYPE_CHECKING:
    from meta500.backends.network import Network

Array = Any


class Adam(UpdateRuleOptimizer):
    """Adam, algorithm 1 of "Adam: a method for stochastic optimization" (arXiv:1412.6980)::

        m ← β1 m + (1 − β1) g          m̂ = m / (1 − β1^t)
        v ← β2 v + (1 − β2) g²         v̂ = v / (1 − β2^t)
        x ← x − γ m̂ / (√v̂ + ε)

    with t = 1 in the first step and ε outside the root. Both corrections are scalars, so they are
    moved out of the arrays, as section 2 of the paper proposes, with ε scaled alike so that nothing
    changes: x ← x − γ_t m / (√v + ε_t), γ_t = γ √(1 − β2^t) / (1 − β1^t), ε_t = ε √(1 − β2^t).

    Weight decay λ is added to the gradient (g + λ x), as in ``torch.optim.Adam``; AdamW decouples
    it.
    """

    beta1 = Real(below=1.0)
    beta2 = Real(below=1.0)
    epsilon = Real()
    weight_decay = Real()

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        loss: str = "loss",
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.beta1 = beta1
        self.beta2 = beta2
        self.epsilon = epsilon
        self.weight_decay = weight_decay

    def new_input(self) -> None:
        t = self.step_count + 1
        root = math.sqrt(1.0 - self.beta2**t)
        self.rate_t = self.rate * root / (1.0 - self.beta1**t)
        self.epsilon_t = self.epsilon * root

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        if self.weight_decay:
            grad = grad + self.weight_decay * old_param
        return self.moment_step(grad, old_param, name)

    def moment_step(self, grad: Array, start: Array, name: str) -> Array:
        """start − γ_t m / (√v + ε_t), after taking ``grad`` into m and v."""
        slots = self.slots(name, start, "m", "v")
        m = blend_(slots["m"], grad, self.beta1)
        v = blend_square_(slots["v"], grad, self.beta2)
        denominator = self.xp.sqrt(v)
        denominator += self.epsilon_t
        return subtract_ratio(start, self.rate_t, m, denominator)


class AdamW(Adam):
    """Adam with decoupled weight decay (arXiv:1711.05101): x ← (1 − γ λ) x − γ m̂ / (√v̂ + ε).

    λ enters neither m nor v. As in ``torch.optim.AdamW``, λ is multiplied by the learning rate of
    the step (the paper's schedule multiplier η is part of γ here).
    """

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 1e-3,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.01,
        loss: str = "loss",
    ) -> None:
        super().__init__(
            network,
            learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            loss=loss,
        )

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        start = old_param
        if self.weight_decay:
            start = (1.0 - self.rate * self.weight_decay) * old_param
        return self.moment_step(grad, start, name)
