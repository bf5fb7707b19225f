"""Floating-point operations and bytes that an operator cannot do without.

Operations: what the operator's formula, evaluated directly, adds, subtracts, multiplies, divides and
compares; a multiply-add is 2, an elementary function (exp, log, sqrt, tanh, erf, pow, ...) is 1.
Multiplications with padding count, as is usual. A backend that needs fewer (Winograd, FFT) or more operations
is measured against the same number.

Bytes: the compulsory traffic, every input read once and every output written once. Temporary arrays, and what
is read again because it did not stay in a cache, do not count; neither does the reading of lines that will be
overwritten (write-allocate).

There is a formula where all data are floating point and the operations depend on shapes alone: for
convolutions, products, pooling, elementwise functions, normalisation, softmax and reductions. Movements of
data (Transpose, Concat, ...) have 0 operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.graph.operation import Operation
from meta500.graph.types import is_floating


@dataclass(frozen=True)
class Extent:
    """Shape, bytes per element and kind of one tensor."""

    shape: tuple[int, ...]
    itemsize: float
    floating: bool = True

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """Bytes of all elements."""
        return self.size * self.itemsize


@dataclass(frozen=True)
class Counts:
    """Floating-point operations and compulsory bytes of one call."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte (S. Williams et al., Roofline, 2009); 0 for movements and for no bytes."""
        return self.flops / self.bytes if self.bytes else 0.0


Tensors = Sequence[Extent | None]
Formula = Callable[[Operation, Tensors, Tensors], float]


def extent(array: Any) -> Extent:
    """The extent of an array; packed 4- and 2-bit types count with the bits that they need."""
    array = np.asarray(array)
    bits = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2}.get(array.dtype.name)
    itemsize = bits / 8 if bits else array.dtype.itemsize
    return Extent(array.shape, itemsize, is_floating(array.dtype))


def count(op: Operation, inputs: Tensors, outputs: Tensors) -> Counts | None:
    """Operations and bytes of one call of ``op``.

    Args:
        op: the operation, for its attributes.
        inputs: extents in ONNX order, None for absent ones.
        outputs: extents of the requested outputs.

    Returns:
        None where there is no formula, or where the first input or output is not floating point.
    """
    formula = _FORMULAS.get(op.op_type) if op.domain in ("", "ai.onnx") else None
    if formula is None or not inputs or not outputs:
        return None
    if inputs[0] is None or outputs[0] is None or not (inputs[0].floating and outputs[0].floating):
        return None
    traffic = sum(e.nbytes for e in (*inputs, *outputs) if e is not None)
    # A reduction of nothing has more outputs than inputs, and no operation.
    return Counts(max(0.0, float(formula(op, inputs, outputs))), float(traffic))


def count_backward(op: Operation, inputs: Tensors, outputs: Tensors) -> Counts | None:
    """Operations and bytes of forward plus backward by all inputs, of convolutions and products.

    The gradient by each of the two factors has as many multiply-adds as the forward product, and the gradient
    of a bias as many additions as the bias: three times the product and twice the additions. Bytes: inputs,
    output and its cotangent, gradients of all inputs, each once.

    Returns:
        None for other operators, whose backward depends on what forward keeps.
    """
    forward = count(op, inputs, outputs)
    if forward is None or op.op_type not in _PRODUCTS:
        return None
    added = _third_input(inputs, outputs)
    return Counts(3 * (forward.flops - added) + 2 * added, 2 * forward.bytes)


def has_formula(op_type: str) -> bool:
    """Whether operations and bytes of this ONNX operator can be counted."""
    return op_type in _FORMULAS


def _known(tensors: Tensors, index: int) -> Extent:
    """The tensor at ``index``, which the operator requires."""
    found = tensors[index]
    assert found is not None
    return found


def _given(tensors: Tensors, index: int) -> bool:
    return len(tensors) > index and tensors[index] is not None


def _third_input(inputs: Tensors, outputs: Tensors) -> float:
    """One addition per output element where a bias (Conv, ConvTranspose) or C (Gemm) is given."""
    return _known(outputs, 0).size if _given(inputs, 2) else 0


def _conv(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """2 N K OH OW (C / group) KH KW, and one addition per output for a bias; likewise in other dimensions."""
    weight = _known(inputs, 1)
    return 2 * _known(outputs, 0).size * math.prod(weight.shape[1:]) + _third_input(inputs, outputs)


def _conv_transpose(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """2 N C H W (K / group) KH KW with the input's H and W, and one addition per output for a bias."""
    weight = _known(inputs, 1)
    return 2 * _known(inputs, 0).size * math.prod(weight.shape[1:]) + _third_input(inputs, outputs)


def _gemm(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """2 M N K, and M N for adding C; the scalings by alpha and beta do not count, as is usual."""
    a = _known(inputs, 0)
    inner = a.shape[0] if getattr(op, "transA", 0) else a.shape[1]
    return 2 * _known(outputs, 0).size * inner + _third_input(inputs, outputs)


def _matmul(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """2 per output element and element of the inner dimension."""
    return 2 * _known(outputs, 0).size * _known(inputs, 0).shape[-1]


def _window(op: Operation) -> int:
    return math.prod(getattr(op, "kernel_shape", ()) or ())


def _average_pool(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per output element, of a window of k: k - 1 additions and a division."""
    return _known(outputs, 0).size * _window(op)


def _max_pool(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per output element, of a window of k: k - 1 comparisons."""
    return _known(outputs, 0).size * (_window(op) - 1)


def _lp_pool(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per output element, of a window of k: k powers, k - 1 additions, a root."""
    return _known(outputs, 0).size * 2 * _window(op)


def _reduction(per_input: int, per_output: int) -> Formula:
    """``per_input`` operations per input element and ``per_output`` (may be negative) per output element."""

    def formula(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
        return per_input * _known(inputs, 0).size + per_output * _known(outputs, 0).size

    return formula


def _elementwise(per_element: int) -> Formula:
    """``per_element`` operations per output element."""

    def formula(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
        return per_element * _known(outputs, 0).size

    return formula


def _variadic(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """n - 1 operations per output element for n inputs; Mean divides once more."""
    per_element = len(inputs) - 1 + (op.op_type == "Mean")
    return per_element * _known(outputs, 0).size


def _clip(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """One comparison per element and bound that is given."""
    bounds = sum(_given(inputs, i) for i in (1, 2))
    if op.since_version < 11:
        bounds = 2
    return bounds * _known(outputs, 0).size


def _softmax_rows(op: Operation, inputs: Tensors) -> int:
    """How many independent softmaxes there are."""
    shape = _known(inputs, 0).shape
    axis = getattr(op, "axis", None)
    if op.since_version < 13:
        # Before version 13 everything from the axis on is one row.
        axis = 1 if axis is None else axis
        return math.prod(shape[: axis if axis >= 0 else axis + len(shape)])
    axis = -1 if axis is None else axis
    length = shape[axis] if shape else 1
    return _known(inputs, 0).size // length if length else 0


def _softmax(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per row of n: n - 1 comparisons, n subtractions, n exponentials, n - 1 additions, n divisions."""
    return 5 * _known(inputs, 0).size - 2 * _softmax_rows(op, inputs)


def _log_softmax(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per row of n: n - 1 comparisons, 2 n subtractions, n exponentials, n - 1 additions, a logarithm."""
    return 5 * _known(inputs, 0).size - _softmax_rows(op, inputs)


def _hardmax(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per row of n: n - 1 comparisons."""
    return _known(inputs, 0).size - _softmax_rows(op, inputs)


def _batch_normalization(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Inference: per element a subtraction, a multiplication, an addition; per channel an addition, a root, a
    division.

    Training: also, per element, an addition for the mean and three operations for the variance, and per
    channel two divisions and six operations for the running mean and variance.
    """
    x, channels = _known(inputs, 0), _known(inputs, 1).size
    if getattr(op, "training_mode", 0) or (op.since_version < 14 and len(outputs) > 1):
        return 7 * x.size + 11 * channels
    return 3 * x.size + 3 * channels


def _group_normalization(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Of groups of n elements: see :func:`_centred`; scale and bias are two operations per element."""
    x = _known(inputs, 0)
    groups = int(getattr(op, "num_groups", 1) or 1) if op.op_type == "GroupNormalization" else x.shape[1]
    return _centred(x.size, x.shape[0] * groups) + 2 * x.size


def _layer_normalization(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Of rows of n elements: see :func:`_centred`; scale and bias are one operation per element each."""
    x = _known(inputs, 0)
    return _centred(x.size, _leading(op, x)) + (2 if _given(inputs, 2) else 1) * x.size


def _rms_normalization(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per element a square, an addition, two multiplications; per row a division, an addition, a root and a
    reciprocal.
    """
    x = _known(inputs, 0)
    return 4 * x.size + 4 * _leading(op, x)


def _leading(op: Operation, x: Extent) -> int:
    axis = int(getattr(op, "axis", -1))
    return math.prod(x.shape[: axis if axis >= 0 else axis + len(x.shape)])


def _centred(size: int, rows: int) -> float:
    """(x - mean) / sqrt(variance + epsilon): per element an addition (mean), a subtraction, a square, an
    addition (variance) and a multiplication; per row two divisions, an addition, a root and a reciprocal.
    """
    return 5 * size + 5 * rows


def _lrn(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """Per element: a square, size - 1 additions, a multiplication, an addition, a power, a division."""
    return _known(inputs, 0).size * (int(getattr(op, "size", 1)) + 4)


def _nothing(op: Operation, inputs: Tensors, outputs: Tensors) -> float:
    """No arithmetic."""
    return 0.0


_PRODUCTS: dict[str, Formula] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
}

# Operations per element, in the formula that ONNX gives; a selection by a sign is none.
_ONE = (
    "Abs", "Neg", "Relu", "Sqrt", "Reciprocal", "Exp", "Log", "Floor", "Ceil", "Round", "Sign",
    "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh",
    "Erf", "Add", "Sub", "Mul", "Div", "Pow", "Mod", "LeakyRelu", "PRelu", "ThresholdedRelu",
)  # fmt: skip
_PER_ELEMENT = {
    **dict.fromkeys(_ONE, 1),
    "Shrink": 2,
    "Softplus": 3,  # exp, add, log
    "Softsign": 3,  # abs, add, divide
    "Elu": 3,  # exp, subtract, multiply
    "Celu": 4,  # divide, exp, subtract, multiply
    "Selu": 4,  # exp, multiply, subtract, multiply
    "Sigmoid": 4,  # negate, exp, add, divide
    "HardSigmoid": 4,  # multiply, add, two comparisons
    "HardSwish": 5,  # hard sigmoid, multiply
    "Mish": 5,  # softplus, tanh, multiply
    "Swish": 6,  # multiply, sigmoid, multiply
}

_FORMULAS: dict[str, Formula] = {
    **_PRODUCTS,
    **{name: _elementwise(number) for name, number in _PER_ELEMENT.items()},
    **dict.fromkeys(("Max", "Min", "Sum", "Mean"), _variadic),
    "Clip": _clip,
    "AveragePool": _average_pool,
    "MaxPool": _max_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _reduction(1, 0),
    "GlobalMaxPool": _reduction(1, -1),
    "GlobalLpPool": _reduction(2, 0),
    "ReduceSum": _reduction(1, -1),
    "ReduceMean": _reduction(1, 0),
    "ReduceProd": _reduction(1, -1),
    "ReduceMax": _reduction(1, -1),
    "ReduceMin": _reduction(1, -1),
    "ReduceL1": _reduction(2, -1),
    "ReduceL2": _reduction(2, 0),
    "ReduceSumSquare": _reduction(2, -1),
    "ReduceLogSum": _reduction(1, 0),
    "ReduceLogSumExp": _reduction(2, 0),
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "Hardmax": _hardmax,
    "BatchNormalization": _batch_normalization,
    "InstanceNormalization": _group_normalization,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "LRN": _lrn,
    **dict.fromkeys(("Identity", "Transpose", "Concat", "Split", "Flatten", "Reshape", "Squeeze"), _nothing),
    **dict.fromkeys(("Unsqueeze", "DepthToSpace", "SpaceToDepth"), _nothing),
}
