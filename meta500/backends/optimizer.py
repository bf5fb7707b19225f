"""The contract between an optimizer and everything above it, and the base of backends' own optimizers.

It stands beside the contract of networks because a backend's native optimizers subclass it; the ladder of
reference optimizers is in ``meta500.optimizers``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from meta500.backends import optimizer_state as saved
from meta500.backends.hyperparameters import LearningRate, Rate, declared, rate_at
from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.backends.network import Network

Array = Any


class Optimizer(ABC):
    """Changes the parameters of a network, one step per call of ``train``.

    Attributes:
        loss: name of the scalar network output that is minimised.
        learning_rate: a number >= 0 or a schedule (step -> number); may be set at any time.
        rate: the learning rate of the running step, a float.
        step_count: completed steps.
        state: arrays of the optimizer, ``state[parameter][slot]``, native to the network's backend.
        scalars: state that belongs to no single parameter, as Python floats.
    """

    learning_rate = LearningRate()

    def __init__(self, network: Network | None, loss: str = "loss", *, learning_rate: Rate = 0.01) -> None:
        """``network`` may be None for an optimizer that is only used through ``apply``."""
        self._network = network
        self._parameters: dict[str, dict[str, Any]] = {}
        self.loss = loss
        self.learning_rate = learning_rate
        self.rate = 0.0
        self.step_count = 0
        self.state: dict[str, dict[str, Array]] = {}
        self.scalars: dict[str, float] = {}

    @property
    def network(self) -> Network:
        """The network that is trained. Raises UserError if the optimizer was made without one."""
        if self._network is None:
            raise UserError(
                f"{type(self).__name__} was made without a network: give it one, or use apply(params, grads)"
            )
        return self._network

    @abstractmethod
    def train(
        self, inputs: dict[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """One step on one batch.

        Args:
            inputs: the batch by network input name.
            outputs: names of the outputs wanted; None for all. The loss is always among those
                returned.

        Returns:
            The network's outputs, the loss among them, computed before the update.
        """

    def wanted(self, outputs: Sequence[str] | None) -> list[str] | None:
        """``outputs`` with the loss among them; None stays None (all outputs)."""
        if outputs is None:
            return None
        return [*outputs] if self.loss in outputs else [*outputs, self.loss]

    @property
    def kind(self) -> str:
        """What a saved state must be of to be loaded here: the class, and whatever else decides."""
        return type(self).__name__

    def hyper_parameters(self) -> dict[str, Any]:
        """All hyper-parameters by name, ``learning_rate`` (number or schedule) among them."""
        return declared(self)

    def set_hyper_parameters(self, values: Mapping[str, Any]) -> None:
        """Set hyper-parameters by name; the counterpart of ``hyper_parameters``."""
        for name, value in values.items():
            setattr(self, name, value)

    def collect_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        """State arrays by parameter and slot, and scalars (hook for native optimizers)."""
        return self.state, self.scalars

    def restore_state(self, arrays: dict[str, dict[str, Array]], scalars: dict[str, float]) -> None:
        """Take over native arrays and scalars in the form of ``collect_state``."""
        self.state, self.scalars = arrays, scalars

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on from here, except the parameters themselves.

        Returns:
            ``optimizer`` (class name), ``step_count``, ``hyper`` (name -> value), ``scalars``,
            ``parameters`` (name -> shape and dtype) and ``state`` (parameter -> slot -> numpy
            array, a copy).
        """
        arrays, scalars = self.collect_state()
        return saved.snapshot(self, self._described(None), arrays, scalars)

    def load_state_dict(self, state: Mapping[str, Any], params: Mapping[str, Array] | None = None) -> None:
        """Go on from a state of ``state_dict``, which may come from another backend.

        The saved hyper-parameters replace the present ones. A schedule cannot be saved: the
        optimizer must have been given the same one.

        Args:
            state: what ``state_dict`` returned.
            params: for an optimizer without a network, the parameters (native arrays by name).

        Raises:
            UserError: the state is of another optimizer class, of other parameters (names, shapes,
                dtypes), incomplete, or holds invalid values. The optimizer is then unchanged.
        """
        self._load(state, params, source="state_dict")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``state_dict()`` as .npz without pickle, whole or not at all.

        Raises:
            UserError: the file cannot be written.
        """
        saved.write(path, self.state_dict())

    def load(self, path: str | os.PathLike[str], params: Mapping[str, Array] | None = None) -> None:
        """Read what ``save`` wrote, as ``load_state_dict`` does.

        Raises:
            UserError: naming the file and the key that is damaged or does not fit.
        """
        self._load(saved.read(path), params, source=f"file '{os.fspath(path)}'")

    def _load(self, state: Mapping[str, Any], params: Mapping[str, Array] | None, source: str) -> None:
        if self._network is not None:
            params = {name: self._network.native(name) for name in self._network.get_params()}
        if params is None:
            raise UserError(f"{source}: an optimizer without a network needs params=... to load a state")
        described = self._described(params)
        checked = saved.check(self, state, described, source)
        arrays = {
            name: {slot: saved.to_native(value, params[name]) for slot, value in slots.items()}
            for name, slots in checked.arrays.items()
        }
        self.set_hyper_parameters(checked.hyper)
        self.step_count = checked.step_count
        self._parameters = described
        self.restore_state(arrays, dict(checked.scalars))

    def _described(self, params: Mapping[str, Array] | None) -> dict[str, dict[str, Any]]:
        """Shape and dtype of ``params``, else of the network's, else of those seen so far."""
        if params is None:
            if self._network is None:
                return self._parameters
            params = {name: self._network.native(name) for name in self._network.get_params()}
        return {name: saved.describe(value) for name, value in params.items()}


class GraphOptimizer(Optimizer):
    """An optimizer of the backend itself: ``build`` makes native objects, ``step`` runs them.

    A subclass may hold its options as it likes; it overrides ``hyper_parameters``,
    ``set_hyper_parameters``, ``collect_state`` and ``restore_state`` as far as its native state can
    be read and written. On loading, hyper-parameters and ``step_count`` are set first, then the
    state comes; ``restore_state`` calls ``ensure_built`` where it needs the native objects.
    """

    def __init__(self, network: Network, loss: str = "loss", *, learning_rate: Rate = 0.01) -> None:
        super().__init__(network, loss, learning_rate=learning_rate)
        self.built = False

    @abstractmethod
    def build(self) -> None:
        """Make the native objects, with the rate ``self.rate``. Called once, before a step."""

    @abstractmethod
    def step(self) -> None:
        """Update the parameters natively, from the gradients of the last backward pass."""

    def set_rate(self, rate: float) -> None:
        """Pass a changed learning rate on to the native objects.

        Raises:
            UserError: they have no way to change it (unless a subclass overrides this).
        """
        raise UserError(
            f"{type(self).__name__}: this native optimizer cannot change its learning rate to "
            f"{rate} after it was built: use a constant learning rate or a reference optimizer"
        )

    def ensure_built(self) -> None:
        """Build if that was not done, else pass on the coming step's rate if it changed."""
        rate = rate_at(self, self.step_count)
        if not self.built:
            self.rate = rate
            self.build()
            self.built = True
        elif rate != self.rate:
            self.set_rate(rate)
            self.rate = rate

    def train(
        self, inputs: dict[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """One step; see ``Optimizer.train``."""
        self.ensure_built()
        result = self.network.inference_and_backprop(inputs, loss=self.loss, outputs=self.wanted(outputs))
        self.step()
        self.step_count += 1
        return result

    def collect_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        """Raises UserError: native state can only be read by a subclass that knows how."""
        raise UserError(f"{type(self).__name__}: the state of this native optimizer cannot be saved")

    def restore_state(self, arrays: dict[str, dict[str, Array]], scalars: dict[str, float]) -> None:
        """Raises UserError: native state can only be written by a subclass that knows how."""
        raise UserError(f"{type(self).__name__}: the state of this native optimizer cannot be loaded")


NativeOptimizer = TypeVar("NativeOptimizer", bound=GraphOptimizer)


def native_from(
    classes: Mapping[str, Callable[..., NativeOptimizer]],
    network: Network,
    name: str,
    loss: str,
    hyperparameters: Mapping[str, Any],
) -> NativeOptimizer:
    """A built optimizer out of a backend's ``classes``, by name.

    Raises:
        UserError: an unknown name or option, or an invalid value.
    """
    import inspect

    cls = classes[choose(f"native optimizer of the {network.backend} backend", name, classes)]
    known = set(inspect.signature(cls).parameters) - {"network", "loss"}
    for option in hyperparameters:
        choose(f"option of native optimizer '{name}'", option, known)
    optimizer = cls(network, loss, **hyperparameters)
    optimizer.ensure_built()
    return optimizer
