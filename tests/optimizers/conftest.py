"""A network without a graph: parameters, and a function that gives a loss and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

Arrays = dict[str, Any]


class FunctionNetwork:
    """As much of the Network contract as optimizers use, over a function params -> (loss, gradients).

    It behaves as unpleasantly as the contract allows: gradients live in buffers that are used again in
    each step, and are filled with nan once the step is over; so are parameter arrays once they have
    been replaced. An optimizer that keeps either without a copy is found out.
    """

    def __init__(self, params: Arrays, function: Callable[..., tuple[Any, Arrays]]) -> None:
        self.params = {name: _copy(value) for name, value in params.items()}
        self.function = function
        self.buffers: Arrays = {}
        self.replaced: list[Any] = []
        self.evaluated_at: Arrays = {}
        self.requested: list[Any] = []

    def get_params(self) -> list[str]:
        return list(self.params)

    def gradient(self) -> list[tuple[str, str]]:
        return [(name, f"grad/{name}") for name in self.params]

    def native(self, name: str) -> Any:
        return self.buffers[name[5:]] if name.startswith("grad/") else self.params[name]

    def assign(self, name: str, tensor: Any) -> None:
        assert tensor is not self.params[name], "assigned the old array"
        assert type(tensor) is type(self.params[name])
        assert (tensor.shape, tensor.dtype) == (self.params[name].shape, self.params[name].dtype)
        self.replaced.append(self.params[name])
        self.params[name] = tensor

    def fetch_tensors(self, names: list[str]) -> list[np.ndarray]:
        return [_numpy(self.native(name)) for name in names]

    def feed_tensor(self, name: str, value: np.ndarray) -> None:
        self.params[name] = _like(value, self.params[name])

    def computing(self):
        return nullcontext()

    def inference_and_backprop(
        self, inputs: Arrays, loss: str = "loss", outputs: Any = None
    ) -> dict[str, np.ndarray]:
        for stale in [*self.replaced, *self.buffers.values()]:
            stale[...] = float("nan")
        self.replaced.clear()
        self.requested.append(outputs)
        self.evaluated_at = {name: _numpy(value) for name, value in self.params.items()}
        value, gradients = self.function(self.params, **inputs)
        for name, gradient in gradients.items():
            if name in self.buffers:
                self.buffers[name][...] = gradient
            else:
                self.buffers[name] = _copy(gradient)
        return {loss: _numpy(value), "other": np.zeros(2)}


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else np.array(value)


def _numpy(value: Any) -> np.ndarray:
    return np.array(np.asarray(value))


def _like(value: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return np.array(value)
    import torch

    return torch.tensor(value, dtype=like.dtype)


def bowl(params: Arrays, scale: float = 1.0) -> tuple[Any, Arrays]:
    """A badly conditioned quadratic: ½ Σ c (x − 1)², c from 1 to 30, over a matrix, a vector, a scalar."""
    loss, gradients = 0.0, {}
    for index, (name, x) in enumerate(params.items()):
        curvature = scale * (1.0 + 14.5 * index)
        gradients[name] = curvature * (x - 1.0)
        loss = loss + 0.5 * curvature * ((x - 1.0) ** 2).sum()
    return loss, gradients


def waves(params: Arrays, scale: float = 1.0) -> tuple[Any, Arrays]:
    """Not convex: Σ (¼ x⁴ − x² + ¾ x (Σ of all elements of all parameters) / 10)."""
    total = sum(x.sum() for x in params.values())
    gradients = {n: scale * (x**3 - 2.0 * x + 0.15 * total) for n, x in params.items()}
    loss = scale * (sum((x**4 / 4.0 - x**2).sum() for x in params.values()) + 0.075 * total**2)
    return loss, gradients


PROBLEMS = {"bowl": bowl, "waves": waves}


def start(backend: str, dtype: str = "float64") -> Arrays:
    """The starting point of all problems: shapes (3, 4), (5,) and (), the same on both backends."""
    rng = np.random.default_rng(7)
    arrays = {
        "layer.weight": rng.normal(size=(3, 4)).astype(dtype),
        "layer.bias": rng.normal(size=5).astype(dtype),
        "scale": np.asarray(rng.normal(), dtype=dtype),
    }
    if backend == "numpy":
        return arrays
    import torch

    return {name: torch.tensor(value) for name, value in arrays.items()}


@pytest.fixture(params=["numpy", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=sorted(PROBLEMS))
def problem(request: pytest.FixtureRequest) -> Callable[..., tuple[Any, Arrays]]:
    return PROBLEMS[request.param]


@pytest.fixture
def starting_point() -> Callable[..., Arrays]:
    return start


@pytest.fixture
def make_network() -> Callable[..., FunctionNetwork]:
    """make_network(backend="numpy", function=bowl, dtype="float64") -> FunctionNetwork."""

    def make(
        backend: str = "numpy", function: Callable[..., Any] = bowl, dtype: str = "float64"
    ) -> FunctionNetwork:
        return FunctionNetwork(start(backend, dtype), function)

    return make
