"""Activation functions: elementwise, one torch kernel each where torch has it with ONNX's parameters.

All take and return a tensor of one shape and dtype. Defaults are those of the ONNX schemas, which are
float32 numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.integers import UNSIGNED
from meta500.errors import UserError

Ints = tuple[int, ...]


@rules.rule("Relu", since=1)
def relu(x: Tensor) -> Tensor:
    """ONNX Relu: ``max(x, 0)``."""
    return torch.relu(x)


@rules.rule("LeakyRelu", since=1)
def leaky_relu(x: Tensor, *, alpha: float = 0.009999999776482582) -> Tensor:
    """ONNX LeakyRelu: ``x`` where ``x >= 0``, else ``alpha x``."""
    return F.leaky_relu(x, alpha)


def _prelu(x: Tensor, slope: Tensor) -> Tensor:
    """``x`` where ``x >= 0``, else ``slope x``, with a slope that broadcasts to ``x``."""
    if x.dtype in UNSIGNED:
        return x
    return torch.where(x < 0, x * slope, x)


@rules.rule("PRelu", since=1)
def prelu_1(x: Tensor, slope: Tensor) -> Tensor:
    """ONNX PRelu-1 and -6: one slope, or one for each channel (axis 1).

    Raises:
        UserError: a slope of another size.
    """
    if slope.numel() != 1 and (x.ndim < 2 or slope.ndim != 1 or slope.shape[0] != x.shape[1]):
        raise UserError(
            f"PRelu: slope has shape {tuple(slope.shape)}; before version 7 it has one element or, for "
            f"input {tuple(x.shape)}, one per channel"
        )
    return F.prelu(x, slope.reshape(-1))


@rules.rule("PRelu", since=7)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    """ONNX PRelu: the slope broadcasts to the shape of ``x``.

    Raises:
        UserError: the slope's shape does not broadcast to that of ``x``.
    """
    shape, tail = tuple(slope.shape), tuple(x.shape)[max(x.ndim - slope.ndim, 0) :]
    if slope.ndim > x.ndim or any(s not in (1, n) for s, n in zip(shape, tail, strict=False)):
        raise UserError(f"PRelu: slope {shape} does not broadcast to input {tuple(x.shape)}")
    return _prelu(x, slope)


@rules.rule("Elu", since=1)
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX Elu: ``x`` where ``x >= 0``, else ``alpha (exp(x) - 1)``."""
    return F.elu(x, alpha)


def _selu(x: Tensor, alpha: float, gamma: float) -> Tensor:
    # F.selu has fixed constants in double precision; ONNX's are attributes.
    return torch.ops.aten.elu(x, alpha, gamma)


@rules.rule("Selu", since=1)
def selu_1(
    x: Tensor,
    *,
    alpha: float = 1.673200011253357,
    gamma: float = 1.0506999492645264,
) -> Tensor:
    """ONNX Selu-1, whose default constants have fewer digits."""
    return _selu(x, alpha, gamma)


@rules.rule("Selu", since=6)
def selu(x: Tensor, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Tensor:
    """ONNX Selu: ``gamma x`` where ``x > 0``, else ``gamma (alpha exp(x) - alpha)``."""
    return _selu(x, alpha, gamma)


@rules.rule("Celu", since=12)
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX Celu: ``max(0, x) + min(0, alpha (exp(x / alpha) - 1))``."""
    # The backward of F.celu takes 1 / alpha in float32.
    return torch.ops.aten.elu(x, alpha, 1.0, 1 / alpha)


@rules.rule("ThresholdedRelu", since=10)
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX ThresholdedRelu: ``x`` where ``x > alpha``, else 0."""
    # F.threshold keeps NaN, which is not above alpha.
    return torch.where(x > alpha, x, 0.0)


def bounded_line(x: Tensor, alpha: float, beta: float) -> Tensor:
    """``max(0, min(1, alpha x + beta))``, with slope 0 at its two kinks as in PyTorch's own hardsigmoid."""
    y = x * alpha + beta
    return torch.where((y > 0) & (y < 1), y, y.detach().clamp(0, 1))


@rules.rule("HardSigmoid", since=1)
def hard_sigmoid(
    x: Tensor,
    *,
    alpha: float = 0.20000000298023224,
    beta: float = 0.5,
) -> Tensor:
    """ONNX HardSigmoid: ``max(0, min(1, alpha x + beta))``."""
    return bounded_line(x, alpha, beta)


@rules.rule("HardSwish", since=14)
def hard_swish(x: Tensor) -> Tensor:
    """ONNX HardSwish: ``x max(0, min(1, x / 6 + 1 / 2))``."""
    return F.hardswish(x)


@rules.rule("Softplus", since=1)
def softplus(x: Tensor) -> Tensor:
    """ONNX Softplus: ``ln(exp(x) + 1)``."""
    # Beyond 50 the function is x to the last bit of float64; torch's default of 20 is not.
    return F.softplus(x, threshold=50)


@rules.rule("Softsign", since=1)
def softsign(x: Tensor) -> Tensor:
    """ONNX Softsign: ``x / (1 + |x|)``."""
    return F.softsign(x)


@rules.rule("Mish", since=18)
def mish(x: Tensor) -> Tensor:
    """ONNX Mish: ``x tanh(softplus(x))``."""
    return F.mish(x)


@rules.rule("Gelu", since=20)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """ONNX Gelu: ``x / 2 (1 + erf(x / sqrt(2)))`` or its tanh approximation.

    Raises:
        UserError: ``approximate`` is neither "none" nor "tanh".
    """
    if approximate not in ("none", "tanh"):
        raise UserError(f"Gelu: approximate is '{approximate}'; choose none or tanh")
    return F.gelu(x, approximate=approximate)


@rules.rule("Swish", since=24)
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    """ONNX Swish: ``x sigmoid(alpha x)``."""
    return F.silu(x) if alpha == 1 else x * torch.sigmoid(x * alpha)


@rules.rule("Sigmoid", since=1)
def sigmoid(x: Tensor) -> Tensor:
    """ONNX Sigmoid: ``1 / (1 + exp(-x))``."""
    return torch.sigmoid(x)


@rules.rule("Tanh", since=1)
def tanh(x: Tensor) -> Tensor:
    """ONNX Tanh."""
    return torch.tanh(x)


def _coerced(x: Tensor, axis: int, log: bool) -> Tensor:
    """Softmax over all axes from ``axis`` on at once (ONNX Softmax-1 and -11)."""
    if not -x.ndim <= axis <= x.ndim:
        raise UserError(f"Softmax: axis {axis} is outside of the {x.ndim} axes of the input")
    start = axis + x.ndim if axis < 0 else axis
    # The rows of the coerced matrix end where the tensor ends; with one axis there is nothing to join.
    matrix = x if start == x.ndim - 1 else x.flatten(start) if start < x.ndim else x.unsqueeze(-1)
    y = torch.log_softmax(matrix, -1) if log else torch.softmax(matrix, -1)
    return y.reshape(x.shape)


@rules.rule("Softmax", since=1)
def softmax_1(x: Tensor, *, axis: int = 1) -> Tensor:
    """ONNX Softmax-1 and -11: the input is a matrix whose columns are all axes from ``axis`` on."""
    return _coerced(x, axis, log=False)


@rules.rule("Softmax", since=13)
def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX Softmax: ``exp(x)`` normalised along one axis; 16-bit floats as :func:`stepwise_softmax`."""
    if x.dtype in (torch.float16, torch.bfloat16) and x.numel():
        return stepwise_softmax(x, axis)
    return torch.softmax(x, axis)


def stepwise_softmax(x: Tensor, axis: int) -> Tensor:
    """Softmax whose exponential, sum and quotient are each rounded to the type of ``x``.

    The function body that defines Softmax from version 13 on rounds there; torch's kernel rounds once.
    """
    exponent = torch.exp(x - x.amax(axis, keepdim=True).detach())
    return exponent / exponent.sum(axis, keepdim=True)


@rules.rule("LogSoftmax", since=1)
def log_softmax_1(x: Tensor, *, axis: int = 1) -> Tensor:
    """ONNX LogSoftmax-1 and -11: the input is a matrix whose columns are all axes from ``axis`` on."""
    return _coerced(x, axis, log=True)


@rules.rule("LogSoftmax", since=13)
def log_softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """ONNX LogSoftmax: the logarithm of the softmax along one axis."""
    return torch.log_softmax(x, axis)
