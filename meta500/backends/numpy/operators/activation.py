"""Activations with attributes: the rectifiers and their smooth relatives.

Those without attributes (Relu, Sigmoid, Tanh, Softplus, Mish, ...) are rows in :mod:`.elementwise`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import (
    broadcasts_to,
    is_floating,
    numeric,
    numeric_vjp,
    unbroadcast,
)
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Gradients = tuple[np.ndarray | None, ...]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-x))`` without overflow and with full relative accuracy on both sides."""
    z = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, z) / (1 + z)


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, in the dtype of x; integers get its whole part."""
    from scipy.special import erf as scipy_erf

    return np.asarray(scipy_erf(x if is_floating(x.dtype) else x.astype(np.float64)), x.dtype)


@rules.rule("LeakyRelu")
@numeric
def leaky_relu(
    x: np.ndarray, *, alpha: float = 0.01, consumed_inputs: Any = None, saved: dict[str, Any]
) -> np.ndarray:
    """``x`` where it is at least 0, else ``alpha * x``."""
    saved["alpha"] = alpha
    return np.where(x < 0, alpha * x, x)


@leaky_relu.vjp
@numeric_vjp
def leaky_relu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Slope 1 above 0, alpha elsewhere; at 0 that is PyTorch's choice."""
    return (np.where(call.inputs[0] <= 0, call.saved["alpha"] * d, d),)


@rules.rule("PRelu", 7)
@numeric
def prelu(x: np.ndarray, slope: np.ndarray, *, saved: dict[str, Any]) -> np.ndarray:
    """``x`` where it is at least 0, else ``slope * x``; slope broadcasts to the shape of x.

    Raises:
        UserError: slope does not broadcast to x in this direction.
    """
    if not broadcasts_to(slope.shape, x.shape):
        raise UserError(f"PRelu: slope of shape {slope.shape} does not broadcast to X {x.shape}")
    saved["slope"] = slope
    return np.where(x < 0, slope * x, x)


@rules.rule("PRelu", 1)
@numeric
def prelu_channels(
    x: np.ndarray, slope: np.ndarray, *, consumed_inputs: Any = None, saved: dict[str, Any]
) -> np.ndarray:
    """Versions 1 and 6: slope is one value, or one per channel (axis 1).

    Raises:
        UserError: slope has another size.
    """
    if slope.size == 1:
        return prelu(x, slope.reshape(()), saved=saved)
    if x.ndim < 2 or slope.shape != (x.shape[1],):
        raise UserError(
            f"PRelu: slope of shape {slope.shape} is neither one value nor one per channel of X {x.shape}"
        )
    return prelu(x, slope.reshape(-1, *(1,) * (x.ndim - 2)), saved=saved)


@prelu.vjp
@prelu_channels.vjp
@numeric_vjp
def prelu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Gradients of x and slope."""
    x, slope = call.inputs
    used = call.saved["slope"]
    d_slope = None
    if call.needs[1]:
        d_slope = unbroadcast(np.where(x < 0, d * x, 0), used.shape).reshape(slope.shape)
    return np.where(x < 0, used * d, d), d_slope


@rules.rule("Elu")
@numeric
def elu(
    x: np.ndarray, *, alpha: float = 1.0, consumed_inputs: Any = None, saved: dict[str, Any]
) -> np.ndarray:
    """``x`` where positive, else ``alpha * (exp(x) - 1)``."""
    saved["alpha"] = alpha
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@elu.vjp
@numeric_vjp
def elu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """1 or ``alpha * exp(x)``."""
    x = call.inputs[0]
    return (np.where(x > 0, d, call.saved["alpha"] * d * np.exp(np.minimum(x, 0))),)


def _selu(x: np.ndarray, alpha: float, gamma: float, saved: dict[str, Any]) -> np.ndarray:
    saved.update(alpha=alpha, gamma=gamma)
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


@rules.rule("Selu", 1)
@numeric
def selu_rounded(
    x: np.ndarray,
    *,
    alpha: float = 1.6732,
    gamma: float = 1.0507,
    consumed_inputs: Any = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """``gamma * x`` where positive, else ``gamma * alpha * (exp(x) - 1)``; constants with 5 digits."""
    return _selu(x, alpha, gamma, saved)


@rules.rule("Selu", 6)
@numeric
def selu(
    x: np.ndarray, *, alpha: float = 1.6732632, gamma: float = 1.050701, saved: dict[str, Any]
) -> np.ndarray:
    """``gamma * x`` where positive, else ``gamma * alpha * (exp(x) - 1)`` (arXiv:1706.02515)."""
    return _selu(x, alpha, gamma, saved)


@selu.vjp
@selu_rounded.vjp
@numeric_vjp
def selu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """``gamma`` or ``gamma * alpha * exp(x)``."""
    x, alpha = call.inputs[0], call.saved["alpha"]
    return (call.saved["gamma"] * np.where(x > 0, d, alpha * d * np.exp(np.minimum(x, 0))),)


@rules.rule("Celu", 12)
@numeric
def celu(x: np.ndarray, *, alpha: float = 1.0, saved: dict[str, Any]) -> np.ndarray:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`` (arXiv:1704.07483)."""
    saved["alpha"] = alpha
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


@celu.vjp
@numeric_vjp
def celu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """1 or ``exp(x / alpha)``."""
    x = call.inputs[0]
    return (np.where(x > 0, d, d * np.exp(np.minimum(x, 0) / call.saved["alpha"])),)


@rules.rule("ThresholdedRelu", 10)
@numeric
def thresholded_relu(x: np.ndarray, *, alpha: float = 1.0, saved: dict[str, Any]) -> np.ndarray:
    """``x`` where it is above alpha, else 0."""
    saved["alpha"] = alpha
    return np.where(x > alpha, x, 0)


@thresholded_relu.vjp
@numeric_vjp
def thresholded_relu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """1 above alpha, else 0."""
    return (np.where(call.inputs[0] > call.saved["alpha"], d, 0),)


@rules.rule("HardSigmoid")
@numeric
def hard_sigmoid(
    x: np.ndarray,
    *,
    alpha: float = 0.2,
    beta: float = 0.5,
    consumed_inputs: Any = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """``max(0, min(1, alpha * x + beta))``."""
    saved["alpha"] = alpha
    return np.clip(alpha * x + beta, 0, 1)


@hard_sigmoid.vjp
@numeric_vjp
def hard_sigmoid_vjp(call: Call, d: np.ndarray) -> Gradients:
    """alpha on the slope, else 0."""
    y = call.outputs[0]
    return (np.where((y > 0) & (y < 1), call.saved["alpha"] * d, 0),)


@rules.rule("Swish", 24)
@numeric
def swish(x: np.ndarray, *, alpha: float = 1.0, saved: dict[str, Any]) -> np.ndarray:
    """``x * sigmoid(alpha * x)`` (arXiv:1710.05941)."""
    saved["alpha"] = alpha
    return x * sigmoid(alpha * x)


@swish.vjp
@numeric_vjp
def swish_vjp(call: Call, d: np.ndarray) -> Gradients:
    """``s + alpha * x * s * (1 - s)`` with ``s = sigmoid(alpha * x)``."""
    x, alpha = call.inputs[0], call.saved["alpha"]
    s = sigmoid(alpha * x)
    return (d * s * (1 + alpha * x * (1 - s)),)


_GELU_INNER, _GELU_CUBIC = math.sqrt(2 / math.pi), 0.044715


@rules.rule("Gelu", 20)
@numeric
def gelu(x: np.ndarray, *, approximate: str = "none", saved: dict[str, Any]) -> np.ndarray:
    """``x * Phi(x)`` (arXiv:1606.08415), exactly or by its tanh approximation.

    Raises:
        UserError: ``approximate`` is neither "none" nor "tanh".
    """
    saved["approximate"] = choose("approximate of Gelu", approximate, ("none", "tanh"))
    if approximate == "tanh":
        return 0.5 * x * (1 + np.tanh(_GELU_INNER * (x + _GELU_CUBIC * x**3)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


@gelu.vjp
@numeric_vjp
def gelu_vjp(call: Call, d: np.ndarray) -> Gradients:
    """``Phi(x) + x * phi(x)``, or the derivative of the approximation."""
    x = call.inputs[0]
    if call.saved["approximate"] == "tanh":
        t = np.tanh(_GELU_INNER * (x + _GELU_CUBIC * x**3))
        inner = _GELU_INNER * (1 + 3 * _GELU_CUBIC * x * x)
        return (d * 0.5 * (1 + t + x * (1 - t * t) * inner),)
    density = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return (d * (0.5 * (1 + erf(x * math.sqrt(0.5))) + x * density),)
