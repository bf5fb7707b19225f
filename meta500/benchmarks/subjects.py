"""Models with one batch of seeded inputs, and the steps that benchmarks time on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.network import Network, network
from meta500.errors import UserError
from meta500.graph import Model, TensorType


@dataclass(frozen=True)
class Subject:
    """A model with one batch of inputs."""

    name: str
    options: dict[str, Any]
    model: Model
    inputs: dict[str, np.ndarray]

    @property
    def title(self) -> str:
        """Name for tables: the model, and n for a U-Net."""
        return f"{self.name}-{self.options['n']}" if "n" in self.options else self.name

    @property
    def batch(self) -> int:
        """Samples per step."""
        return int(self.inputs["image"].shape[0])

    def on(self, options: dict[str, Any]) -> tuple[Network, dict[str, np.ndarray]]:
        """The network on a backend, and its inputs."""
        return network(self.model, **options), self.inputs


def prepared(model: str, options: dict[str, Any], seed: int = 0) -> Subject:
    """A model of ours with seeded random images and labels.

    Raises:
        UserError: an unknown model or option, or a model whose batch size is open.
    """
    from meta500.models import create

    made = create(model, seed=seed, **options)
    rng = np.random.default_rng(seed)
    inputs: dict[str, np.ndarray] = {}
    for name, value in made.inputs.items():
        assert isinstance(value, TensorType) and value.dtype is not None
        sizes = [size for size in value.shape or () if isinstance(size, int)]
        if not value.static:
            raise UserError(f"model '{model}': input '{name}' has the open shape {value}; give batch=...")
        if value.dtype.kind == "i":
            inputs[name] = rng.integers(0, _classes(made), sizes).astype(value.dtype)
        else:
            inputs[name] = np.asarray(rng.standard_normal(sizes)).astype(value.dtype)
    return Subject(model, options, made, inputs)


def _classes(model: Model) -> int:
    logits = model.outputs["logits"]
    assert isinstance(logits, TensorType) and logits.shape is not None
    assert isinstance(logits.shape[1], int)
    return logits.shape[1]


def training_action(net: Network, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    """One training step with the backend's own Adam, from numpy input to the loss in numpy."""
    optimizer = net.native_optimizer("adam", learning_rate=1e-3)
    return lambda: optimizer.train(inputs, outputs=["loss"])


def inference_action(net: Network, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    """One inference, from numpy images to numpy logits."""
    fed = {"image": inputs["image"]}
    return lambda: net.inference(fed, outputs=["logits"])
