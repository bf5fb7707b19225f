"""One step of an optimizer as an operator: Momentum, Adagrad and Adam of ai.onnx.preview.training.

Inputs are the learning rate R (scalar), the update count T (scalar) and then, for n tensors, n values, n
gradients and the state in groups of n; outputs are the new values and the new state. The equations are those
of the operators' descriptions in ONNX; arithmetic is that of each tensor's own type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Arrays = tuple[np.ndarray, ...]
Gradients = tuple[np.ndarray | None, ...]
DOMAIN = "ai.onnx.preview.training"


def groups(operator: str, tensors: tuple[Any, ...], kinds: int) -> list[tuple[Any, ...]]:
    """For each optimized tensor its value, gradient and state.

    Raises:
        UserError: the number of tensors is no multiple of ``kinds``, or shapes differ within a group.
    """
    if not tensors or len(tensors) % kinds:
        raise UserError(f"{operator}: {len(tensors)} tensors after R and T, expected a multiple of {kinds}")
    count = len(tensors) // kinds
    found = [tensors[index::count] for index in range(count)]
    for group in found:
        if any(t is None or t.shape != group[0].shape for t in group):
            shapes = ", ".join("-" if t is None else str(list(t.shape)) for t in group)
            raise UserError(f"{operator}: a value, its gradient and its state have the shapes {shapes}")
    return found


def scalar(operator: str, name: str, value: Any) -> Any:
    """The one element of an update count, given as a number or a (nested) list of one.

    Raises:
        UserError: it has another number of elements.
    """
    while isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise UserError(f"{operator}: {name} must be a scalar, it has {len(value)} elements")
        value = value[0]
    return value


def regroup(results: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The inverse of ``groups``: all values first, then each kind of state."""
    return tuple(item for kind in zip(*results, strict=True) for item in kind)


def _rate(operator: str, r: np.ndarray, dtype: np.dtype) -> Any:
    if r.size != 1:
        raise UserError(f"{operator}: R must be a scalar, it has shape {list(r.shape)}")
    return r.reshape(()).astype(dtype)


@rules.rule("Momentum", 1, domain=DOMAIN, host=("t",))
def momentum(
    r: np.ndarray,
    t: int,
    *tensors: np.ndarray,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> Arrays:
    """Momentum: values, gradients, momenta in; values, momenta out. ``mode`` is "standard" or "nesterov"."""
    choose("Momentum mode", mode, ("standard", "nesterov"))
    scale = beta if scalar("Momentum", "T", t) > 0 else 1.0
    results = []
    for x, g, v in groups("Momentum", tensors, 3):
        rate = _rate("Momentum", r, x.dtype)
        regularized = norm_coefficient * x + g
        velocity = alpha * v + scale * regularized
        direction = regularized + alpha * velocity if mode == "nesterov" else velocity
        results.append((np.asarray(x - rate * direction), np.asarray(velocity)))
    return regroup(results)


@momentum.vjp
def momentum_vjp(call: Call, *cotangents: np.ndarray | None) -> Gradients:
    """The transposed linear map; the learning rate's gradient is minus the direction."""
    r, t, *tensors = call.inputs
    a = call.attributes
    alpha, decay = a["alpha"], a["norm_coefficient"]
    scale = a["beta"] if np.asarray(t).item() > 0 else 1.0
    d_rate, results = 0.0, []
    for group, given in _pairs("Momentum", tensors, cotangents, 3):
        x, g, v = group
        dx, dv = given
        rate = _rate("Momentum", r, x.dtype)
        regularized = decay * x + g
        velocity = alpha * v + scale * regularized
        nesterov = a["mode"] == "nesterov"
        d_rate -= float(np.sum(dx * (regularized + alpha * velocity if nesterov else velocity)))
        d_velocity = dv - rate * (alpha * dx if nesterov else dx)
        d_regularized = scale * d_velocity - (rate * dx if nesterov else 0)
        results.append((dx + decay * d_regularized, d_regularized, alpha * d_velocity))
    return _collect(call, d_rate, results)


@rules.rule("Adagrad", 1, domain=DOMAIN, host=("t",))
def adagrad(
    r: np.ndarray,
    t: int,
    *tensors: np.ndarray,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> Arrays:
    """Adagrad (Duchi et al. 2011): values, gradients, sums of squares in; values, sums of squares out."""
    results = []
    for x, g, h in groups("Adagrad", tensors, 3):
        rate = _rate("Adagrad", r, x.dtype) / (1 + scalar("Adagrad", "T", t) * decay_factor)
        regularized = norm_coefficient * x + g
        squares = h + regularized * regularized
        step = rate * regularized / (np.sqrt(squares) + epsilon)
        results.append((np.asarray(x - step), np.asarray(squares)))
    return regroup(results)


@adagrad.vjp
def adagrad_vjp(call: Call, *cotangents: np.ndarray | None) -> Gradients:
    """Derivatives of the two equations; NaN where the new sum of squares is zero, as that of the root."""
    r, t, *tensors = call.inputs
    a = call.attributes
    decay, damping = a.get("norm_coefficient", 0.0), 1 + np.asarray(t).item() * a.get("decay_factor", 0.0)
    d_rate, results = 0.0, []
    for (x, g, h), (dx, dh) in _pairs("Adagrad", tensors, cotangents, 3):
        rate = _rate("Adagrad", r, x.dtype) / damping
        regularized = decay * x + g
        root = np.sqrt(h + regularized * regularized)
        below = root + a.get("epsilon", 1e-6)
        d_rate -= float(np.sum(dx * regularized / below)) / damping
        with np.errstate(all="ignore"):
            d_squares = dh + dx * rate * regularized / below**2 * 0.5 / root
        d_regularized = 2 * regularized * d_squares - rate * dx / below
        results.append((dx + decay * d_regularized, d_regularized, d_squares))
    return _collect(call, d_rate, results)


@rules.rule("Adam", 1, domain=DOMAIN, host=("t",))
def adam(
    r: np.ndarray,
    t: int,
    *tensors: np.ndarray,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> Arrays:
    """Adam (Kingma and Ba 2015): values, gradients, momenta, squares in; values, momenta, squares out.

    ``epsilon`` is added to the root of the uncorrected squares; the rate carries both corrections.
    """
    factor = correction(scalar("Adam", "T", t), alpha, beta)
    results = []
    for x, g, v, h in groups("Adam", tensors, 4):
        rate = _rate("Adam", r, x.dtype) * factor
        regularized = norm_coefficient * x + g
        velocity = alpha * v + (1 - alpha) * regularized
        squares = beta * h + (1 - beta) * regularized * regularized
        moved = x - rate * velocity / (np.sqrt(squares) + epsilon)
        results.append(tuple(map(np.asarray, ((1 - norm_coefficient_post) * moved, velocity, squares))))
    return regroup(results)


@adam.vjp
def adam_vjp(call: Call, *cotangents: np.ndarray | None) -> Gradients:
    """Derivatives of the equations; NaN where the new average of squares is zero, as that of the root."""
    r, t, *tensors = call.inputs
    a = call.attributes
    alpha, beta, decay = a.get("alpha", 0.9), a.get("beta", 0.999), a.get("norm_coefficient", 0.0)
    factor = correction(np.asarray(t).item(), alpha, beta)
    d_rate, results = 0.0, []
    for (x, g, v, h), (dy, dv, dh) in _pairs("Adam", tensors, cotangents, 4):
        rate = _rate("Adam", r, x.dtype) * factor
        regularized = decay * x + g
        velocity = alpha * v + (1 - alpha) * regularized
        root = np.sqrt(beta * h + (1 - beta) * regularized * regularized)
        below = root + a.get("epsilon", 1e-6)
        dx = (1 - a.get("norm_coefficient_post", 0.0)) * dy
        d_rate -= float(np.sum(dx * velocity / below)) * factor
        d_velocity = dv - rate * dx / below
        with np.errstate(all="ignore"):
            d_squares = dh + dx * rate * velocity / below**2 * 0.5 / root
        d_regularized = (1 - alpha) * d_velocity + 2 * (1 - beta) * regularized * d_squares
        results.append((dx + decay * d_regularized, d_regularized, alpha * d_velocity, beta * d_squares))
    return _collect(call, d_rate, results)


def correction(t: int, alpha: float, beta: float) -> float:
    """Adam's bias correction of the learning rate; 1 before the first update."""
    return float((1 - beta**t) ** 0.5 / (1 - alpha**t)) if t > 0 else 1.0


def _pairs(
    operator: str, tensors: Any, cotangents: tuple[np.ndarray | None, ...], kinds: int
) -> list[tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]]:
    """Each group of inputs with the cotangents of its outputs, zero where an output got none."""
    found = groups(operator, tuple(tensors), kinds)
    count = len(found)
    padded = [*cotangents, *[None] * (count * (kinds - 1) - len(cotangents))]
    pairs = []
    for index, group in enumerate(found):
        given = padded[index::count]
        pairs.append((group, tuple(np.zeros_like(group[0]) if d is None else d for d in given)))
    return pairs


def _collect(call: Call, d_rate: float, results: list[tuple[Any, ...]]) -> Gradients:
    r = call.inputs[0]
    flat = zip(regroup(results), call.inputs[2:], strict=True)
    gradients = (np.asarray(gradient, array.dtype) for gradient, array in flat)
    return (np.full(r.shape, d_rate, r.dtype), None, *gradients)
