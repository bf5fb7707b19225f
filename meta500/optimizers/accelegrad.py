"""AcceleGrad: accelerated where the loss is smooth, safe where it is not, without knowing which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meta500.backends.hyperparameters import Flag, Rate, Real
from meta500.errors import UserError
from meta500.optimizers.optimizer import ThreeStepOptimizer

if TYPE_CHECKING:
    from meta500.backends.network import Network

Array = Any


class AcceleGrad(ThreeStepOptimizer):
    """AcceleGrad (Levy, Yurtsever and Cevher, NeurIPS 2018, arXiv:1809.02864, section 3)::

        y_0 = z_0 = x_0;   for t = 0, 1, ...:   α_t = 1 if t ≤ 2 else (t + 1) / 4,   τ_t = 1 / α_t
        x_{t+1} = τ_t z_t + (1 − τ_t) y_t,      g_t = ∇f(x_{t+1})
        η_t     = 2 D / √(G² + Σ_{s ≤ t} α_s² ‖g_s‖²)
        z_{t+1} = z_t − α_t η_t g_t,            y_{t+1} = x_{t+1} − η_t g_t

    The gradient is taken at x_{t+1}, so this needs the hook before the forward pass. Between steps
    the network holds y. All parameters together are the paper's one vector: ‖g‖ is the norm over
    all of them and η_t is the same for all. z is not projected: the paper's set K is the whole
    space here, D a scale that the user gives.

    The paper's guarantee is for the mean of y_1 ... y_T weighted by α_0 ... α_{T−1}; with
    ``average=True`` it is kept too and ``averaged_parameters()`` returns it.

    Options: ``diameter`` D, the distance within which a minimum is expected; ``gradient_bound`` G,
    a guess of the largest gradient norm, which bounds the first steps; ``learning_rate``, which
    multiplies η_t (the paper has 1).
    """

    diameter = Real()
    gradient_bound = Real()
    average = Flag()

    def __init__(
        self,
        network: Network | None,
        learning_rate: Rate = 1.0,
        *,
        diameter: float = 1.0,
        gradient_bound: float = 1.0,
        average: bool = False,
        loss: str = "loss",
    ) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.diameter = diameter
        self.gradient_bound = gradient_bound
        self.average = average
        self._evaluated: set[str] = set()

    def weight(self) -> float:
        """α_t of the running step."""
        t = self.step_count
        return 1.0 if t <= 2 else (t + 1) / 4

    def prepare_param(self, name: str) -> Array | None:
        y = self.network.native(name)
        x = self.evaluation_point(y, name)
        return None if x is y else x

    def evaluation_point(self, y: Array, name: str) -> Array:
        """x_{t+1}: where the next gradient of parameter ``name``, now at ``y``, is to be taken.

        Before the first update this is ``y`` itself, later a new array. Callers of ``apply`` take
        the gradient here and hand both to it.
        """
        self._evaluated.add(name)
        if name not in self.state:
            return y  # z_0 = y_0
        tau = 1.0 / self.weight()
        return tau * self.state[name]["z"] + (1.0 - tau) * y

    def before_updates(self, gradients: Mapping[str, Array]) -> None:
        alpha = self.weight()
        total = self.scalars.get("sum_squares", 0.0) + alpha * alpha * self._norm_squared(gradients)
        self.scalars["sum_squares"] = total
        denominator = math.sqrt(self.gradient_bound**2 + total)
        # Zero only if G = 0 and every gradient so far was zero: then nothing is to be moved.
        self.eta = self.rate * 2.0 * self.diameter / denominator if denominator != 0.0 else 0.0
        self.alpha_eta = alpha * self.eta
        weights = self.scalars.get("sum_weights", 0.0) + alpha
        self.scalars["sum_weights"] = weights
        self.share = alpha / weights

    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        x = old_param
        slots = self.state.setdefault(name, {})
        if "z" not in slots:
            slots["z"] = self.xp.asarray(x, copy=True)
        elif name not in self._evaluated:
            raise UserError(
                f"AcceleGrad: the gradient of '{name}' must be taken at "
                f"evaluation_point(param, '{name}'), which was not asked for in this step"
            )
        self._evaluated.discard(name)
        slots["z"] -= self.alpha_eta * grad
        y = x - self.eta * grad
        if self.average:
            if "average" not in slots:
                slots["average"] = self.xp.asarray(y, copy=True)
            slots["average"] += self.share * (y - slots["average"])
        return y

    def averaged_parameters(self) -> dict[str, Array]:
        """The weighted mean of the iterates y by parameter name, as copies (``average=True``)."""
        if not self.average:
            raise UserError("AcceleGrad: the mean of the iterates is only kept with average=True")
        return {
            name: self.xp.asarray(slots["average"], copy=True)
            for name, slots in self.state.items()
            if "average" in slots
        }

    def _norm_squared(self, gradients: Mapping[str, Array]) -> float:
        """‖g‖² over all parameters; summed on the device, so that it is waited for only once."""
        xp = self.xp
        total: Any = 0.0
        for grad in gradients.values():
            # Squares of 16-bit numbers overflow early.
            if xp.finfo(grad.dtype).bits <= 16:
                grad = xp.astype(grad, xp.float32)
            total = total + xp.sum(grad * grad)
        return float(total)
