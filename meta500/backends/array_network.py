"""The part that networks share whose own tensors are numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.network import GRADIENT_PREFIX, Network
from meta500.backends.values import apply
from meta500.errors import UserError


class ArrayNetwork(Network):
    """A network that keeps numpy arrays; see :class:`meta500.backends.network.Network`.

    Attributes:
        _tensors: parameters and constants by name.
        _last: inputs and outputs of the last run, and gradients under ``grad/NAME``.
    """

    _tensors: dict[str, Any]
    _last: dict[str, Any]

    def native(self, name: str) -> Any:
        found = self._last.get(name) if name.startswith(GRADIENT_PREFIX) else self._tensors.get(name)
        if found is None:
            found = self._last.get(name)
        if found is None:
            raise UserError(
                f"'{name}' is not kept; kept are parameters, gradients (grad/NAME) and the inputs and "
                "outputs of the last run. Other values are kept after add_output(name)"
            )
        return found

    def assign(self, name: str, tensor: Any) -> None:
        self._tensors[name] = self._replacement(name, tensor)

    def _replacement(self, name: str, tensor: Any) -> np.ndarray:
        """``tensor`` as an array that can take the place of a parameter or constant.

        Raises:
            UserError: there is none of this name, or it has another shape or element type.
        """
        current = self._tensors.get(name)
        if current is None:
            raise UserError(f"assign: the network has no parameter or constant '{name}'")
        tensor = np.asarray(tensor)
        if tensor.shape != current.shape or tensor.dtype != current.dtype:
            raise UserError(
                f"assign: '{name}' is {current.dtype}{list(current.shape)}, "
                f"got {tensor.dtype}{list(tensor.shape)}"
            )
        return tensor

    def to_native(self, array: np.ndarray) -> np.ndarray:
        return array

    def to_numpy(self, tensor: Any) -> Any:
        return apply(np.array, tensor)
