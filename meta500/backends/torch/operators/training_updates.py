"""One step of an optimizer as an operator: Momentum, Adagrad and Adam of ai.onnx.preview.training.

Inputs are the learning rate R (scalar), the update count T (scalar) and then, for n tensors, n values, n
gradients and the state in groups of n; outputs are the new values and the new state. All is differentiable.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta500.backends.numpy.operators.training_updates import DOMAIN, correction, groups, regroup, scalar
from meta500.backends.torch.operators import rules
from meta500.errors import UserError, choose

Tensors = tuple[Tensor, ...]


def _rate(operator: str, r: Tensor, dtype: torch.dtype) -> Tensor:
    if r.numel() != 1:
        raise UserError(f"{operator}: R must be a scalar, it has shape {list(r.shape)}")
    return r.reshape(()).to(dtype)


@rules.rule("Momentum", since=1, domain=DOMAIN, host=("t",))
def momentum(
    r: Tensor, t: Any, *tensors: Tensor, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> Tensors:
    """Momentum: values, gradients, momenta in; values, momenta out. ``mode`` is "standard" or "nesterov"."""
    choose("Momentum mode", mode, ("standard", "nesterov"))
    scale = beta if scalar("Momentum", "T", t) > 0 else 1.0
    results = []
    for x, g, v in groups("Momentum", tensors, 3):
        regularized = norm_coefficient * x + g
        velocity = alpha * v + scale * regularized
        direction = regularized + alpha * velocity if mode == "nesterov" else velocity
        results.append((x - _rate("Momentum", r, x.dtype) * direction, velocity))
    return regroup(results)


@rules.rule("Adagrad", since=1, domain=DOMAIN, host=("t",))
def adagrad(
    r: Tensor,
    t: Any,
    *tensors: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> Tensors:
    """Adagrad (Duchi et al. 2011): values, gradients, sums of squares in; values, sums of squares out."""
    damping = 1 + scalar("Adagrad", "T", t) * decay_factor
    results = []
    for x, g, h in groups("Adagrad", tensors, 3):
        regularized = norm_coefficient * x + g
        squares = h + regularized * regularized
        rate = _rate("Adagrad", r, x.dtype) / damping
        results.append((x - rate * regularized / (torch.sqrt(squares) + epsilon), squares))
    return regroup(results)


@rules.rule("Adam", since=1, domain=DOMAIN, host=("t",))
def adam(
    r: Tensor,
    t: Any,
    *tensors: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Tensors:
    """Adam (Kingma and Ba 2015): values, gradients, momenta, squares in; values, momenta, squares out."""
    factor = correction(scalar("Adam", "T", t), alpha, beta)
    results = []
    for x, g, v, h in groups("Adam", tensors, 4):
        regularized = norm_coefficient * x + g
        velocity = alpha * v + (1 - alpha) * regularized
        squares = beta * h + (1 - beta) * regularized * regularized
        rate = _rate("Adam", r, x.dtype) * factor
        moved = x - rate * velocity / (torch.sqrt(squares) + epsilon)
        results.append(((1 - norm_coefficient_post) * moved, velocity, squares))
    return regroup(results)
