"""Arithmetic and mathematical functions, element by element, and Clip.

From version 7 on (8 for Sum, Mean, Max and Min) operands broadcast as in numpy; before, only as
``broadcasting.aligned`` describes. Both operands have one dtype and so has the result, save for Pow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.broadcasting import aligned, require_same_shapes
from meta500.backends.torch.operators.integers import (
    UNSIGNED,
    as_signed,
    divide,
    from_ordered,
    ordered,
)

Ints = tuple[int, ...]


def _modular(function: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """A sum, difference or product, whose bits do not depend on the sign."""
    if a.dtype in UNSIGNED:
        return function(as_signed(a), as_signed(b)).view(a.dtype)
    return function(a, b)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b) if a.is_floating_point() else divide(a, b)


@rules.rule("Add", since=1)
def add_1(
    a: Tensor,
    b: Tensor,
    *,
    axis: int | None = None,
    broadcast: int = 0,
) -> Tensor:
    """ONNX Add-1 and -6."""
    return _modular(torch.add, a, aligned("Add", a, b, broadcast, axis))


@rules.rule("Add", since=7)
def add(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Add: ``a + b``, integers modulo 2**n."""
    return _modular(torch.add, a, b)


@rules.rule("Sub", since=1)
def sub_1(
    a: Tensor,
    b: Tensor,
    *,
    axis: int | None = None,
    broadcast: int = 0,
) -> Tensor:
    """ONNX Sub-1 and -6."""
    return _modular(torch.sub, a, aligned("Sub", a, b, broadcast, axis))


@rules.rule("Sub", since=7)
def sub(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Sub: ``a - b``, integers modulo 2**n."""
    return _modular(torch.sub, a, b)


@rules.rule("Mul", since=1)
def mul_1(
    a: Tensor,
    b: Tensor,
    *,
    axis: int | None = None,
    broadcast: int = 0,
) -> Tensor:
    """ONNX Mul-1 and -6."""
    return _modular(torch.mul, a, aligned("Mul", a, b, broadcast, axis))


@rules.rule("Mul", since=7)
def mul(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Mul: ``a * b``, integers modulo 2**n."""
    return _modular(torch.mul, a, b)


@rules.rule("Div", since=1)
def div_1(
    a: Tensor,
    b: Tensor,
    *,
    axis: int | None = None,
    broadcast: int = 0,
) -> Tensor:
    """ONNX Div-1 and -6."""
    return _quotient(a, aligned("Div", a, b, broadcast, axis))


@rules.rule("Div", since=7)
def div(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Div: ``a / b``, integers rounded toward zero."""
    return _quotient(a, b)


def _power(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype == y.dtype and x.dtype not in UNSIGNED:
        return torch.pow(x, y)
    if x.is_floating_point() or y.is_floating_point():
        # float64 holds both operands, so that only the result is rounded to the type of x.
        return torch.pow(x.to(torch.float64), y.to(torch.float64)).to(x.dtype)
    return torch.pow(x.to(torch.int64), y.to(torch.int64)).to(x.dtype)


@rules.rule("Pow", since=1)
def pow_1(x: Tensor, y: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """ONNX Pow-1."""
    return _power(x, aligned("Pow", x, y, broadcast, axis))


@rules.rule("Pow", since=7)
def pow_7(x: Tensor, y: Tensor) -> Tensor:
    """ONNX Pow: ``x ** y`` in the dtype of ``x``, whatever the dtype of the exponent."""
    return _power(x, y)


def _folded(function: Callable[[Tensor, Tensor], Tensor], tensors: tuple[Tensor, ...]) -> Tensor:
    result = tensors[0]
    for tensor in tensors[1:]:
        result = function(result, tensor)
    return result


def _extremum(function: Callable[[Tensor, Tensor], Tensor], tensors: tuple[Tensor, ...]) -> Tensor:
    if tensors[0].dtype in UNSIGNED:
        return from_ordered(_folded(function, tuple(map(ordered, tensors))), tensors[0].dtype)
    if len(tensors) > 2 and any(t.requires_grad for t in tensors):
        # Two by two, the last of three equal ones would get half of the gradient.
        reduce = torch.amax if function is torch.maximum else torch.amin
        return reduce(torch.stack(torch.broadcast_tensors(*tensors)), 0)
    return _folded(function, tensors)


@rules.rule("Sum", since=1)
def sum_1(*tensors: Tensor) -> Tensor:
    """ONNX Sum-1 and -6: inputs of one shape."""
    require_same_shapes("Sum", tensors)
    return _folded(torch.add, tensors)


@rules.rule("Sum", since=8)
def sum_8(*tensors: Tensor) -> Tensor:
    """ONNX Sum: all inputs added from left to right."""
    return _folded(torch.add, tensors)


@rules.rule("Mean", since=1)
def mean_1(*tensors: Tensor) -> Tensor:
    """ONNX Mean-1 and -6: inputs of one shape."""
    require_same_shapes("Mean", tensors)
    return _folded(torch.add, tensors) / len(tensors)


@rules.rule("Mean", since=8)
def mean_8(*tensors: Tensor) -> Tensor:
    """ONNX Mean: the sum of all inputs over their number."""
    return _folded(torch.add, tensors) / len(tensors)


@rules.rule("Max", since=1)
def max_1(*tensors: Tensor) -> Tensor:
    """ONNX Max-1 and -6: inputs of one shape."""
    require_same_shapes("Max", tensors)
    return _extremum(torch.maximum, tensors)


@rules.rule("Max", since=8)
def max_8(*tensors: Tensor) -> Tensor:
    """ONNX Max: the largest of all inputs; NaN where one is NaN. Ties share the gradient."""
    return _extremum(torch.maximum, tensors)


@rules.rule("Min", since=1)
def min_1(*tensors: Tensor) -> Tensor:
    """ONNX Min-1 and -6: inputs of one shape."""
    require_same_shapes("Min", tensors)
    return _extremum(torch.minimum, tensors)


@rules.rule("Min", since=8)
def min_8(*tensors: Tensor) -> Tensor:
    """ONNX Min: the smallest of all inputs; NaN where one is NaN. Ties share the gradient."""
    return _extremum(torch.minimum, tensors)


@rules.rule("Neg", since=1)
def neg(x: Tensor) -> Tensor:
    """ONNX Neg: ``-x``."""
    return torch.neg(x)


@rules.rule("Abs", since=1)
def abs_1(x: Tensor) -> Tensor:
    """ONNX Abs: ``|x|``, with gradient 0 at 0."""
    return x if x.dtype in UNSIGNED else torch.abs(x)


@rules.rule("Sign", since=9)
def sign(x: Tensor) -> Tensor:
    """ONNX Sign: -1, 0 or 1; NaN stays NaN as in numpy, ONNX says nothing of it."""
    if x.dtype in UNSIGNED:
        return (x != 0).to(x.dtype)
    return torch.where(x.isnan(), x, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


@rules.rule("Reciprocal", since=1)
def reciprocal(x: Tensor) -> Tensor:
    """ONNX Reciprocal: ``1 / x``."""
    return torch.reciprocal(x)


@rules.rule("Sqrt", since=1)
def sqrt(x: Tensor) -> Tensor:
    """ONNX Sqrt: the square root, NaN below 0."""
    return torch.sqrt(x)


@rules.rule("Exp", since=1)
def exp(x: Tensor) -> Tensor:
    """ONNX Exp."""
    return torch.exp(x)


@rules.rule("Log", since=1)
def log(x: Tensor) -> Tensor:
    """ONNX Log: the natural logarithm."""
    return torch.log(x)


def _of_floats(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The function of an integer ``x`` computed in float64 and cut back to its type."""
    return function(x) if x.is_floating_point() else function(x.to(torch.float64)).to(x.dtype)


@rules.rule("Erf", since=9)
def erf(x: Tensor) -> Tensor:
    """ONNX Erf: the error function; integers get its whole part."""
    return _of_floats(torch.erf, x)


@rules.rule("Sin", since=7)
def sin(x: Tensor) -> Tensor:
    """ONNX Sin."""
    return torch.sin(x)


@rules.rule("Cos", since=7)
def cos(x: Tensor) -> Tensor:
    """ONNX Cos."""
    return torch.cos(x)


@rules.rule("Tan", since=7)
def tan(x: Tensor) -> Tensor:
    """ONNX Tan."""
    return torch.tan(x)


@rules.rule("Asin", since=7)
def asin(x: Tensor) -> Tensor:
    """ONNX Asin."""
    return torch.asin(x)


@rules.rule("Acos", since=7)
def acos(x: Tensor) -> Tensor:
    """ONNX Acos."""
    return torch.acos(x)


@rules.rule("Atan", since=7)
def atan(x: Tensor) -> Tensor:
    """ONNX Atan."""
    return torch.atan(x)


@rules.rule("Sinh", since=9)
def sinh(x: Tensor) -> Tensor:
    """ONNX Sinh."""
    return torch.sinh(x)


@rules.rule("Cosh", since=9)
def cosh(x: Tensor) -> Tensor:
    """ONNX Cosh."""
    return torch.cosh(x)


@rules.rule("Asinh", since=9)
def asinh(x: Tensor) -> Tensor:
    """ONNX Asinh."""
    return torch.asinh(x)


@rules.rule("Acosh", since=9)
def acosh(x: Tensor) -> Tensor:
    """ONNX Acosh."""
    return torch.acosh(x)


@rules.rule("Atanh", since=9)
def atanh(x: Tensor) -> Tensor:
    """ONNX Atanh."""
    return torch.atanh(x)


@rules.rule("Floor", since=1)
def floor(x: Tensor) -> Tensor:
    """ONNX Floor; its gradient is 0."""
    return torch.floor(x)


@rules.rule("Ceil", since=1)
def ceil(x: Tensor) -> Tensor:
    """ONNX Ceil; its gradient is 0."""
    return torch.ceil(x)


@rules.rule("Round", since=11)
def round_11(x: Tensor) -> Tensor:
    """ONNX Round: halves to the even neighbour; its gradient is 0."""
    return torch.round(x)


# The largest float32, the default bound of Clip-6.
_LARGEST = 3.4028234663852886e38


@rules.rule("Clip", since=1)
def clip_1(
    x: Tensor,
    *,
    max: float | None = _LARGEST,
    min: float | None = -_LARGEST,
) -> Tensor:
    """ONNX Clip-1 and -6: bounds are float32 attributes and default to the finite range of float32."""
    low, high = -_LARGEST if min is None else min, _LARGEST if max is None else max
    if x.dtype is torch.float64:
        return torch.clamp(x, low, high)
    # The shortest decimal of the largest float32 lies above it, and torch does not round it down.
    low, high = (b if math.isinf(b) else sorted((-_LARGEST, b, _LARGEST))[1] for b in (low, high))
    return torch.clamp(x.float(), low, high).to(x.dtype)


@rules.rule("Clip", since=11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """ONNX Clip: ``min(high, max(x, low))`` with scalar tensors as bounds, all ``high`` if ``low > high``."""
    if low is None and high is None:
        return x
    if x.dtype in UNSIGNED:
        bounds = [None if bound is None else ordered(bound) for bound in (low, high)]
        return from_ordered(torch.clamp(ordered(x), *bounds), x.dtype)
    return torch.clamp(x, low, high)
