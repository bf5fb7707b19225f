"""The ladder of optimizers: each rung asks for less code and gives less control.

``Optimizer``            write ``train``: everything by hand.
``ThreeStepOptimizer``   write up to three hooks: new input, parameters before the pass, update.
``UpdateRuleOptimizer``  write the update rule alone; it reads like the paper's equation.
``GraphOptimizer``       wrap a backend's own optimizer.

An optimizer knows a network only by its contract (``meta500.backends.network.Network``). Update
rules are written once, against the array-API namespace ``self.xp`` of the arrays that the network
holds, so the same few lines run on numpy arrays, torch tensors and other backends' buffers, in the
dtype and on the device of the parameter. They never change a gradient or a parameter in place: they
return the new value, and only the optimizer's own state changes in place.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import array_api_compat
import numpy as np

from meta500.backends import optimizer_state as saved
from meta500.backends.hyperparameters import rate_at
from meta500.backends.optimizer import GraphOptimizer, Optimizer
from meta500.errors import UserError

if TYPE_CHECKING:
    pass

Array = Any


class ThreeStepOptimizer(Optimizer):
    """Three hooks around one forward and backward pass.

    1. ``new_input()``: a new batch comes; ``self.rate`` and ``self.step_count`` (from 0) are those
       of the step.
    2. ``prepare_param(name)``: the value that the parameter takes for this forward pass, or None to
       keep it.
    3. ``update_rule(grad, old_param, name)``: the new value, all gradients being known
       (``before_updates(gradients)`` sees them together).

    A parameter whose gradient is None is left as it is.
    """

    _xp: Any = None

    def new_input(self) -> None:
        """Hook, called once per step before anything else: per-step scalars are computed here."""
        return

    def prepare_param(self, name: str) -> Array | None:
        """Hook: new native value for the forward pass, or None. Never change it in place."""
        return None

    def before_updates(self, gradients: Mapping[str, Array]) -> None:
        """Hook: all native gradients by parameter name, before the first ``update_rule``."""
        return

    @abstractmethod
    def update_rule(self, grad: Array, old_param: Array, name: str) -> Array:
        """The new value of the parameter ``name``: a new native array of its shape and dtype."""

    @property
    def xp(self) -> Any:
        """The array-API namespace (``array_api_compat``) of the parameters."""
        return self._xp

    def slots(self, name: str, like: Array, *zeros: str) -> dict[str, Array]:
        """``state[name]``; those slots of ``zeros`` that it lacks are made, like ``like``."""
        slots = self.state.setdefault(name, {})
        for slot in zeros:
            if slot not in slots:
                slots[slot] = self.xp.zeros_like(like)
        return slots

    def train(
        self, inputs: dict[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """One step (``Optimizer.train``). If the pass fails, prepared parameters are put back."""
        network = self.network
        originals: dict[str, Array] = {}
        with network.computing():
            self.begin_step()
            try:
                self.prepare(originals)
                result = network.inference_and_backprop(inputs, loss=self.loss, outputs=self.wanted(outputs))
            except BaseException:
                for name, value in originals.items():
                    network.assign(name, value)
                raise
            self.update({name: network.native(gradient) for name, gradient in network.gradient()})
        return result

    def begin_step(self) -> None:
        """Set ``rate`` from the learning rate or schedule and call ``new_input``."""
        # One network, one kind of array: the namespace is looked up once.
        if self._xp is None and self._network is not None:
            self._set_namespace(map(self._network.native, self._network.get_params()))
        self.rate = rate_at(self, self.step_count)
        self.new_input()

    def prepare(self, originals: dict[str, Array]) -> None:
        """Give the network its prepared parameters; what they replace is put into ``originals``."""
        network = self.network
        for name in network.get_params():
            prepared = self.prepare_param(name)
            if prepared is not None:
                old = network.native(name)
                network.assign(name, self._as_array(prepared, old))
                originals[name] = old

    def update(self, gradients: Mapping[str, Array]) -> None:
        """The last part of ``train``: update the network's parameters from given native gradients.

        Callers that change the gradients first (clip them, average them over ranks) do what
        ``train`` does: ``begin_step``, ``prepare``, the forward and backward pass, and then this.
        """
        network = self.network
        present = {name: grad for name, grad in gradients.items() if grad is not None}
        with network.computing():
            self.before_updates(present)
            for name, grad in present.items():
                network.assign(name, self._updated(grad, network.native(name), name))
        self.step_count += 1

    def apply(self, params: Mapping[str, Array], grads: Mapping[str, Array]) -> dict[str, Array]:
        """One step on plain arrays, without a network.

        Args:
            params: native arrays (numpy, torch, ...) by name; a tensor that requires grad is read
                detached.
            grads: the gradients at ``params``, of the same names, shapes and dtypes.

        Returns:
            The new parameters. Neither argument is changed.
        """
        if set(params) != set(grads):
            raise UserError(
                f"{type(self).__name__}: apply needs a gradient for each parameter: parameters "
                f"{sorted(params)}, gradients {sorted(grads)}"
            )
        self._set_namespace(params.values())
        self.begin_step()
        self.before_updates(grads)
        updated = {}
        for name, param in params.items():
            plain = param.detach() if hasattr(param, "detach") else param
            updated[name] = self._updated(grads[name], plain, name)
        self.step_count += 1
        return updated

    def _set_namespace(self, arrays: Iterable[Array]) -> None:
        for array in arrays:
            self._xp = array_api_compat.array_namespace(array)
            return

    def _as_array(self, value: Any, old: Array) -> Array:
        """``value``; of numpy's scalars (results without dimensions) arrays again."""
        if old.ndim == 0 and value is not None and type(value) is not type(old):
            return self.xp.asarray(value)
        return value

    def _updated(self, grad: Array, old: Array, name: str) -> Array:
        if grad.shape != old.shape or grad.dtype != old.dtype:
            raise UserError(
                f"{type(self).__name__}: the gradient of parameter '{name}' has shape "
                f"{tuple(grad.shape)} and dtype {grad.dtype}, the parameter {tuple(old.shape)} and "
                f"{old.dtype}: they must be equal"
            )
        if name not in self._parameters:
            if not self.xp.isdtype(old.dtype, "real floating"):
                raise UserError(
                    f"{type(self).__name__}: parameter '{name}' has dtype {old.dtype}: only real "
                    "floating-point parameters can be trained"
                )
            self._parameters[name] = saved.describe(old)
        new = self._as_array(self.update_rule(grad, old, name), old)
        if getattr(new, "shape", None) != old.shape or new.dtype != old.dtype:
            got = "None" if new is None else f"{getattr(new, 'shape', ())} {getattr(new, 'dtype', '')}"
            raise UserError(
                f"{type(self).__name__}: update_rule returned {got} for parameter '{name}', which "
                f"has {tuple(old.shape)} {old.dtype}: shape and dtype must stay (use Python floats "
                "as factors, numpy scalars widen the dtype)"
            )
        return new


class UpdateRuleOptimizer(ThreeStepOptimizer):
    """An optimizer that is its update rule.

    Gradient descent, x_{t+1} = x_t − γ ∇f(x_t), is written as::

        class GradientDescent(UpdateRuleOptimizer):
            def update_rule(self, grad, old_param, name):
                return old_param - self.rate * grad
    """


__all__ = ["GraphOptimizer", "Optimizer", "ThreeStepOptimizer", "UpdateRuleOptimizer"]
