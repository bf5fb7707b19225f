"""Every vector-Jacobian product against directional differences of its forward, in float64.

A case is one row below; a rule without a row fails ``test_every_rule_has_a_gradient_case`` unless it is listed
there with a reason.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating
from meta500.benchmarks.operators.cases import operator_name
from meta500.benchmarks.operators.differentiability import NOT_DIFFERENTIABLE as NONE
from meta500.benchmarks.operators.differentiability import TABLE
from meta500.benchmarks.operators.gradient_table import LACKING

Maker = Callable[[np.random.Generator], np.ndarray]


def n(*shape: int) -> Maker:
    """Normal numbers."""
    return lambda g: g.standard_normal(shape)


def u(low: float, high: float, *shape: int) -> Maker:
    """Uniform numbers."""
    return lambda g: g.uniform(low, high, shape)


def i(*values: Any) -> np.ndarray:
    """An int64 vector."""
    return np.array(values, np.int64)


def labels(classes: int, *shape: int) -> Maker:
    """Class labels."""
    return lambda g: g.integers(0, classes, shape)


def flags(*shape: int) -> Maker:
    """Booleans."""
    return lambda g: g.random(shape) < 0.5


BN = (n(3, 2, 4, 5), u(0.5, 2, 2), n(2), n(2), u(0.5, 2, 2))
BN_FEATURES = (n(4, 2, 3), u(0.5, 2, 2, 3), n(2, 3), n(2, 3), u(0.5, 2, 2, 3))
RESIZE = {"coordinate_transformation_mode": "half_pixel"}
F = np.float64

# operator, since-version, inputs, attributes, further: n_outputs, wrt (inputs to differentiate), seed
CASES: list[tuple[Any, ...]] = [
    # Convolution.
    ("Conv", 22, (n(2, 4, 6, 5), n(6, 4, 3, 2), n(6)), {"pads": (1, 0, 2, 1), "strides": (2, 1)}),
    ("Conv", 11, (n(2, 4, 7), n(6, 2, 3)), {"group": 2, "dilations": (2,), "auto_pad": "SAME_UPPER"}),
    ("Conv", 1, (n(1, 2, 4, 5, 4), n(3, 2, 2, 3, 2), n(3)), {"auto_pad": "SAME_LOWER", "strides": (2, 2, 1)}),
    ("Conv", 22, (n(2, 3, 9, 4), n(3, 1, 2, 2)), {"group": 3, "auto_pad": "VALID", "strides": (3, 1)}),
    ("ConvTranspose", 22, (n(2, 4, 3, 4), n(4, 3, 2, 2), n(3)), {"strides": (2, 2)}),
    ("ConvTranspose", 11, (n(2, 4, 4), n(4, 3, 3)),
     {"group": 2, "dilations": (2,), "strides": (3,), "pads": (1, 2), "output_padding": (2,)}),
    ("ConvTranspose", 1, (n(1, 2, 3, 2, 3), n(2, 2, 2, 3, 2), n(2)), {"auto_pad": "SAME_UPPER", "strides": (2, 1, 3)}),
    ("ConvTranspose", 22, (n(2, 2, 3, 3), n(2, 2, 3, 3)), {"output_shape": (8, 7), "strides": (3, 2)}),
    # Products.
    ("Gemm", 13, (n(3, 4), n(4, 5), n(5)), {"alpha": 0.5, "beta": 2.0}),
    ("Gemm", 11, (n(4, 3), n(5, 4), n(3, 1)), {"transA": 1, "transB": 1}),
    ("Gemm", 7, (n(4, 3), n(4, 5), n(1)), {"transA": 1, "alpha": -1.5}),
    ("Gemm", 13, (n(3, 4), n(5, 4)), {"transB": 1}),
    ("Gemm", 6, (n(3, 4), n(4, 5), n(5)), {"broadcast": 1, "beta": 0.25}),
    ("MatMul", 13, (n(2, 3, 4), n(4, 5)), {}),
    ("MatMul", 1, (n(3, 1, 2, 4), n(2, 4, 3)), {}),
    ("MatMul", 9, (n(4), n(2, 4, 3)), {}),
    ("MatMul", 13, (n(2, 3, 4), n(4)), {}),
    ("MatMul", 13, (n(4), n(4)), {}),
    # Functions of one variable.
    *((op, version, (n(3, 4),), {}) for op, version in (
        ("Abs", 13), ("Asinh", 9), ("Atan", 7), ("Ceil", 13), ("Cos", 22), ("Cosh", 22), ("Erf", 13), ("Exp", 13),
        ("Floor", 6), ("HardSwish", 14), ("Mish", 18), ("Neg", 1), ("Relu", 14), ("Round", 11), ("Sigmoid", 13),
        ("Sign", 13), ("Sin", 7), ("Sinh", 9), ("Softplus", 22), ("Softsign", 1), ("Tanh", 6))),
    ("HardSwish", 22, (u(-6, 6, 30),), {}),
    ("Acos", 22, (u(-0.9, 0.9, 7),), {}),
    ("Asin", 7, (u(-0.9, 0.9, 7),), {}),
    ("Atanh", 22, (u(-0.9, 0.9, 7),), {}),
    ("Acosh", 9, (u(1.2, 4, 7),), {}),
    ("Tan", 22, (u(-1.2, 1.2, 7),), {}),
    ("Log", 13, (u(0.3, 4, 7),), {}),
    ("Sqrt", 13, (u(0.3, 4, 2, 3),), {}),
    ("Reciprocal", 13, (u(0.5, 2, 7),), {}),
    ("Sqrt", 13, (u(1, 2),), {}),
    # Activations with attributes.
    ("LeakyRelu", 16, (n(5, 6),), {}),
    ("LeakyRelu", 1, (n(5, 6),), {"alpha": 0.3}),
    ("PRelu", 16, (n(2, 3, 4), n(3, 1)), {}),
    ("PRelu", 7, (n(2, 3, 4), n(1)), {}),
    ("PRelu", 9, (n(3, 4, 4), n(4)), {}),
    ("PRelu", 6, (n(3, 4, 4), n(4)), {}),
    ("PRelu", 1, (n(2, 3), n(1)), {}),
    ("Elu", 22, (n(5, 6),), {"alpha": 1.7}),
    ("Selu", 22, (n(5, 6),), {}),
    ("Selu", 1, (n(5, 6),), {"gamma": 0.7}),
    ("Celu", 12, (n(5, 6),), {"alpha": 0.6}),
    ("Celu", 28, (n(5, 6),), {"alpha": -1.3}),
    ("ThresholdedRelu", 10, (n(5, 6),), {"alpha": 0.4}),
    ("HardSigmoid", 6, (u(-4, 4, 30),), {"alpha": 0.3, "beta": 0.4}),
    ("Swish", 24, (n(5, 6),), {"alpha": 1.5}),
    ("Gelu", 20, (n(5, 6),), {}),
    ("Gelu", 20, (n(5, 6),), {"approximate": "tanh"}),
    # Two and more operands.
    *((op, 14, (n(2, 3, 4), n(3, 1)), {}) for op in ("Add", "Sub", "Mul")),
    ("Add", 7, (n(4), n(2, 1, 4)), {}),
    ("Mul", 13, (n(), n(2, 3)), {}),
    ("Div", 14, (n(2, 3), u(0.5, 2, 4, 1, 3)), {}),
    ("Pow", 15, (u(0.5, 2, 2, 3), n(3)), {}),
    ("Pow", 12, (n(2, 3), np.array(3, np.int64)), {}),
    ("Pow", 13, (n(2, 3), np.array([2.0])), {"wrt": (0,)}),
    ("Add", 6, (n(2, 3, 4), n(3)), {"broadcast": 1, "axis": 1}),
    ("Sub", 1, (n(2, 3, 4), n(3, 4)), {"broadcast": 1}),
    ("Mul", 6, (n(2, 3), n(1)), {"broadcast": 1}),
    ("Div", 6, (n(2, 3), u(0.5, 2, 2)), {"broadcast": 1, "axis": 0}),
    ("Pow", 1, (u(0.5, 2, 2, 3), n(2, 3)), {}),
    ("Sum", 13, (n(2, 3), n(3), n(2, 1)), {}),
    ("Mean", 8, (n(2, 3), n(3), n(2, 1)), {}),
    ("Max", 13, (n(2, 3), n(3), n(2, 1)), {}),
    ("Min", 12, (n(2, 3), n(), n(2, 1)), {}),
    *((op, 6, (n(2, 3), n(2, 3), n(2, 3)), {}) for op in ("Sum", "Mean", "Max", "Min")),
    ("Sum", 13, (n(2, 3),), {}),
    ("Where", 16, (flags(2, 3, 1), n(3, 4), n(2, 1, 4)), {}),
    ("Clip", 13, (n(5, 6), np.array(-0.4), np.array(0.7)), {}),
    ("Clip", 11, (n(5, 6), None, np.array([0.3])), {}),
    ("Clip", 12, (n(5, 6), np.array(0.2)), {}),
    ("Clip", 13, (n(5, 6), np.array(0.5), np.array(-0.5)), {}),
    ("Clip", 6, (n(5, 6),), {"min": -0.5, "max": 0.8}),
    ("Clip", 1, (n(5, 6),), {"max": 0.1}),
    ("Cast", 13, (n(2, 3),), {"to": 11}),
    ("Cast", 5, (n(2, 3),), {"to": "DOUBLE"}),
    ("CastLike", 19, (n(2, 3), n(1)), {"wrt": (0,)}),
    # Shapes.
    ("Reshape", 25, (n(2, 3, 4), i(0, -1)), {}),
    ("Reshape", 1, (n(2, 3, 4),), {"shape": (4, -1)}),
    ("Flatten", 13, (n(2, 3, 4),), {"axis": -1}),
    ("Squeeze", 13, (n(2, 1, 3, 1), i(-1)), {}),
    ("Squeeze", 21, (n(2, 1, 3, 1),), {}),
    ("Squeeze", 11, (n(2, 1, 3),), {"axes": (1,)}),
    ("Unsqueeze", 13, (n(2, 3), i(-1, 0)), {}),
    ("Unsqueeze", 1, (n(2, 3),), {"axes": (1, 3)}),
    ("Identity", 19, (n(2, 3),), {}),
    ("Transpose", 13, (n(2, 3, 4),), {"perm": (1, 2, 0)}),
    ("Transpose", 1, (n(2, 3, 4),), {}),
    ("Concat", 13, (n(2, 3), n(2, 1), n(2, 2)), {"axis": -1}),
    ("Concat", 1, (n(2, 3), n(2, 1)), {}),
    ("Split", 18, (n(7, 2),), {"num_outputs": 3, "n_outputs": 3}),
    ("Split", 18, (n(2, 7), i(2, 0, 5)), {"axis": 1, "n_outputs": 3}),
    ("Split", 13, (n(2, 6),), {"axis": -1, "n_outputs": 3}),
    ("Split", 11, (n(2, 6),), {"axis": 1, "split": (5, 1), "n_outputs": 2}),
    ("Split", 1, (n(2, 6), np.array([4.0, 2.0])), {"axis": 1, "n_outputs": 2, "wrt": (0,)}),
    ("Slice", 13, (n(5, 6, 4), i(-1, 1), i(-100, 5), i(0, -1), i(-2, 1)), {}),
    ("Slice", 1, (n(5, 6),), {"starts": (1, -4), "ends": (100, -1)}),
    ("Gather", 13, (n(4, 3), i(0, -1, 2, 0)), {}),
    ("Gather", 1, (n(3, 4, 2), np.array([[3, 1], [1, 1]], np.int64)), {"axis": 1}),
    ("Gather", 11, (n(3, 4), np.array(2, np.int64)), {"axis": 1}),
    ("Expand", 13, (n(3, 1), i(2, 1, 4)), {}),
    ("Tile", 13, (n(2, 3), i(2, 3)), {}),
    ("Tile", 1, (n(2, 3), np.array(2.0), np.array(1.0)), {"wrt": (0,)}),
    ("Pad", 25, (n(3, 4), i(1, -1, 0, 2), np.array(0.7)), {}),
    ("Pad", 19, (n(3, 4), i(2, 5), None, i(-1)), {"mode": "wrap"}),
    ("Pad", 13, (n(3, 4), i(2, 0, 1, 3)), {"mode": "reflect"}),
    ("Pad", 11, (n(3, 4), i(2, 0, 1, 3)), {"mode": "edge"}),
    ("Pad", 18, (n(3, 5), i(0, -1, 0, 2)), {"mode": "reflect"}),
    ("Pad", 2, (n(3, 4),), {"pads": (1, 0, 0, -2), "value": 0.5}),
    ("Pad", 1, (n(3, 4),), {"paddings": (1, 0, 0, 2), "mode": "edge"}),
    # Pooling.
    ("MaxPool", 22, (n(2, 3, 7, 6),), {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}),
    ("MaxPool", 10, (n(2, 1, 9),), {"kernel_shape": (3,), "dilations": (2,), "ceil_mode": 1, "strides": (2,)}),
    ("MaxPool", 8, (n(1, 2, 4, 4, 5),), {"kernel_shape": (2, 2, 3), "auto_pad": "SAME_UPPER"}),
    ("AveragePool", 22, (n(2, 3, 7, 6),), {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}),
    ("AveragePool", 19, (n(2, 1, 9),),
     {"kernel_shape": (3,), "dilations": (2,), "ceil_mode": 1, "strides": (3,), "pads": (1, 1), "count_include_pad": 1}),
    ("AveragePool", 1, (n(1, 2, 4, 4, 5),), {"kernel_shape": (2, 2, 3), "auto_pad": "SAME_LOWER"}),
    ("LpPool", 18, (n(2, 2, 5, 5),), {"kernel_shape": (2, 3), "p": 3, "pads": (0, 1, 1, 1), "strides": (2, 2)}),
    ("LpPool", 1, (n(2, 2, 6),), {"kernel_shape": (2,), "p": 1.5}),
    ("GlobalAveragePool", 22, (n(2, 3, 4, 2),), {}),
    ("GlobalMaxPool", 1, (n(2, 3, 4, 2),), {}),
    ("GlobalLpPool", 2, (n(2, 3, 4),), {"p": 3}),
    ("GlobalLpPool", 1, (n(2, 3, 4, 2),), {}),
    # Normalisation.
    ("BatchNormalization", 15, BN, {"epsilon": 1e-3}),
    ("BatchNormalization", 14, BN, {"training_mode": 1, "n_outputs": 3}),
    ("BatchNormalization", 15, (n(5, 3), n(3), n(3), n(3), u(0.5, 2, 3)), {"training_mode": 1, "wrt": (0, 1, 2)}),
    ("BatchNormalization", 15, (n(6), n(1), n(1), n(1), u(0.5, 2, 1)), {"training_mode": 1, "wrt": (0, 1, 2)}),
    ("BatchNormalization", 9, BN, {"n_outputs": 5, "momentum": 0.7}),
    ("BatchNormalization", 9, BN, {}),
    ("BatchNormalization", 7, BN_FEATURES, {"n_outputs": 5, "spatial": 0}),
    ("BatchNormalization", 7, BN_FEATURES, {"spatial": 0}),
    ("BatchNormalization", 6, BN, {"n_outputs": 5}),
    ("BatchNormalization", 1, BN, {"is_test": 1}),
    ("InstanceNormalization", 22, (n(3, 2, 4, 5), n(2), n(2)), {}),
    ("LayerNormalization", 17, (n(3, 4, 5), n(4, 5), n(5)), {"axis": 1}),
    ("LayerNormalization", 17, (n(3, 4, 5), n(5)), {}),
    ("LRN", 13, (n(2, 6, 3),), {"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.5}),
    ("LRN", 1, (n(2, 4, 2, 2),), {"size": 4, "alpha": 0.9}),
    ("Softmax", 13, (n(2, 3, 4),), {"axis": 1}),
    ("Softmax", 11, (n(2, 3, 4),), {"axis": 1}),
    ("LogSoftmax", 13, (n(2, 3, 4),), {}),
    ("LogSoftmax", 1, (n(2, 3, 4),), {"axis": 2}),
    ("Hardmax", 13, (n(2, 3),), {}),
    ("Hardmax", 1, (n(2, 3, 2),), {}),
    ("Dropout", 22, (n(4, 5), np.array(0.3), np.array(True)), {"wrt": (0,)}),
    ("Dropout", 13, (n(4, 5), np.array(0.3), np.array(True)), {"wrt": (0,), "seed": 5}),
    ("Dropout", 12, (n(4, 5),), {}),
    ("Dropout", 10, (n(4, 5),), {}),
    ("Dropout", 7, (n(4, 5),), {"ratio": 0.3}),
    ("Dropout", 6, (n(4, 5),), {"ratio": 0.3}),
    ("Dropout", 1, (n(4, 5),), {"is_test": 1}),
    # Resampling.
    ("Resize", 19, (n(2, 2, 4, 5), None, np.array([1, 1, 2, 1.5])), {"mode": "linear", "wrt": (0,)}),
    ("Resize", 18, (n(1, 2, 6, 5), None, None, i(3, 7)), {"mode": "cubic", "axes": (2, 3), "antialias": 1}),
    ("Resize", 13, (n(1, 2, 4, 5), None, np.array([1, 1, 2, 2.0])), {"wrt": (0,)}),
    ("Resize", 11, (n(1, 1, 5), np.array([0, 0, 0.9, 1, 1, -0.3]), None, i(1, 1, 7)),
     {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "wrt": (0,)}),
    ("Resize", 19, (n(6, 4), None, np.array([0.6, 0.7])), {"mode": "cubic", "exclude_outside": 1, "wrt": (0,)}),
    ("Resize", 10, (n(1, 2, 4, 5), np.array([1, 1, 0.6, 2.0])), {"mode": "linear", "wrt": (0,)}),
    ("Resize", 10, (n(1, 2, 4, 5), np.array([1, 1, 0.6, 2.0])), {"wrt": (0,)}),
    ("Upsample", 9, (n(1, 2, 3, 2), np.array([1, 1, 2, 3.0])), {"wrt": (0,)}),
    ("Upsample", 7, (n(1, 2, 3, 2),), {"scales": (1.0, 1.0, 2.0, 1.5), "mode": "linear"}),
    ("Upsample", 1, (n(1, 2, 3, 2),), {"height_scale": 2.0, "width_scale": 1.0, "mode": "bilinear"}),
    # Reductions.
    *((op, 18, (u(0.2, 2, 2, 3, 4), i(0, -1)), {"keepdims": keep}) for keep in (0, 1) for op in (
        "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceSumSquare")),
    *((op, 11, (u(0.2, 2, 2, 3),), {"axes": (1,)}) for op in (
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
        "ReduceLogSumExp", "ReduceSumSquare")),
    *((op, 18, (u(0.2, 2, 3),), {"noop_with_empty_axes": 1}) for op in (
        "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")),
    ("ReduceSum", 13, (n(2, 3, 4), i(1)), {}),
    ("ReduceSum", 13, (n(2, 3),), {"keepdims": 0}),
    ("ReduceL1", 18, (n(2, 3),), {"keepdims": 0}),
    # Losses.
    *(("SoftmaxCrossEntropyLoss", v, (n(5, 4), labels(4, 5)), {"reduction": r}) for v, r in (
        (13, "none"), (13, "mean"), (12, "sum"))),
    *(("SoftmaxCrossEntropyLoss", 13, (n(2, 4, 3, 2), labels(4, 2, 3, 2), u(0.5, 2, 4)),
       {"reduction": r, "ignore_index": 1, "n_outputs": 2}) for r in ("none", "mean", "sum")),
    *(("NegativeLogLikelihoodLoss", 22, (n(2, 4, 3), labels(4, 2, 3), u(0.5, 2, 4)),
       {"reduction": r, "ignore_index": 1}) for r in ("none", "mean", "sum")),
    ("NegativeLogLikelihoodLoss", 12, (n(5, 4), labels(4, 5)), {}),
    *(("MeanSquaredError", 1, (n(5, 4), n(5, 4)), {"reduction": r, "domain": "meta500"}) for r in (
        "none", "mean", "sum")),
]  # fmt: skip

# Rules without a vector-Jacobian product: reason.
NOT_DIFFERENTIABLE = {
    **dict.fromkeys(("And", "Or", "Xor", "Not"), "logic"),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), "the result is boolean"),
    **dict.fromkeys(("ArgMax", "ArgMin"), "the result is an index"),
    **dict.fromkeys(("Shape", "Size"), "the result depends on the shape only"),
    "ConstantOfShape": "the only input is a shape",
}
NO_CASE = {
    "Constant": "it has no inputs",
    **dict.fromkeys(("AllReduce", "HaloExchange"), "tested on real processes, in tests/distributed"),
}
# Operators whose result has the type that they are told, not that of their input.
OWN_TYPE = ("Cast", "CastLike")


def _case_id(case: tuple[Any, ...]) -> str:
    extras = "-".join(f"{k}={v}" for k, v in case[3].items())
    return f"{case[0]}-{case[1]}-{extras}".rstrip("-")


def _unpack(case: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    operator, since, makers, options = case
    options = dict(options)
    call = {k: options.pop(k) for k in ("n_outputs", "domain") if k in options}
    wrt = options.pop("wrt", None)
    g = np.random.default_rng(zlib.crc32(_case_id(case).encode()))
    entry = rules.find(call.get("domain", ""), operator, since)
    inputs = []
    for position, maker in enumerate(makers):
        array = maker(g) if callable(maker) else maker
        # What a rule takes on the host keeps its type: float32 scales, for example.
        if array is not None and array.dtype.kind == "f" and position not in entry.host_positions:
            array = np.asarray(array, dtype)
        inputs.append(array)
    floats = [k for k, a in enumerate(inputs) if a is not None and is_floating(a.dtype)]
    return operator, since, inputs, options, call, wrt if wrt is not None else floats, g


def _difference(function: Callable[[float], float], step: float = 1e-4) -> float:
    """Derivative at 0 by the central difference of fourth order."""
    near, far = function(step) - function(-step), function(2 * step) - function(-2 * step)
    return (8 * near - far) / (12 * step)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", [pytest.param(c, id=_case_id(c)) for c in CASES])
def test_gradient(rule, case) -> None:
    """One input at a time, so that every ``needs`` is met alone, then all together."""
    operator, since, inputs, attributes, call, wrt, g = _unpack(case, np.float64)
    ran = rule(operator, since, inputs, attributes, **call)
    count = call.get("n_outputs", 1)
    # Masks, indices and the like have no cotangent.
    cotangents = [g.standard_normal(y.shape) if y.dtype == F else None for y in ran.outputs[:count]]

    def value(position: int, direction: np.ndarray, step: float) -> float:
        moved = list(inputs)
        moved[position] = inputs[position] + step * direction
        outputs = rule(operator, since, moved, attributes, **call).outputs
        return sum(float((c * y).sum()) for c, y in zip(cotangents, outputs, strict=False) if c is not None)

    together = ran.gradients(*cotangents)
    for position in wrt:
        direction = g.standard_normal(inputs[position].shape)
        wanted = _difference(lambda step, p=position, d=direction: value(p, d, step))
        needs = [k == position for k in range(len(inputs))]
        alone = rule(operator, since, inputs, attributes, needs=needs, **call).gradients(*cotangents)
        for found in (together, alone):
            assert found[position] is not None, f"input {position} has no gradient"
            got = float((found[position] * direction).sum())
            scale = max(abs(wanted), float(np.abs(found[position] * direction).sum()), 1e-3)
            assert abs(got - wanted) <= 1e-8 * scale, f"input {position}: {got}, differences give {wanted}"
    for gradient, array in zip(together, inputs, strict=True):
        assert gradient is None or array.dtype == F


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(np.float32, 1e-4), (np.float16, 2e-2), (ml_dtypes.bfloat16, 6e-2)]
)
@pytest.mark.parametrize("case", [pytest.param(c, id=_case_id(c)) for c in CASES if c[0] not in OWN_TYPE])
def test_precision_is_kept(rule, case, dtype, tolerance) -> None:
    """Inputs of 32 and 16 bits give outputs and gradients of their type, near those of float64."""
    operator, since, inputs, attributes, call, wrt, _ = _unpack(case, dtype)
    wide = [a.astype(F) if k in wrt else a for k, a in enumerate(inputs)]
    results = []
    for arrays in (inputs, wide):
        ran = rule(operator, since, arrays, attributes, **call)
        outputs = ran.outputs[: call.get("n_outputs", 1)]
        g = np.random.default_rng(1)
        cotangents = [
            g.standard_normal(y.shape).astype(dtype).astype(y.dtype) if is_floating(y.dtype) else None
            for y in outputs
        ]
        results.append((outputs, ran.gradients(*cotangents)))
    (outputs, gradients), (exact, references) = results
    for got, wanted in zip(outputs, exact, strict=True):
        assert got.dtype == (dtype if is_floating(wanted.dtype) else wanted.dtype)
        _assert_near(got, wanted, tolerance)
    for position in wrt:
        assert gradients[position].dtype == dtype
        _assert_near(gradients[position], references[position], tolerance)


def _assert_near(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    scale = float(np.abs(wanted.astype(F)).max(initial=0)) or 1.0
    assert np.all(np.isfinite(got.astype(F)))
    assert float(np.abs(got.astype(F) - wanted.astype(F)).max(initial=0)) <= tolerance * scale


def test_every_rule_has_a_gradient_case(level_0_rules) -> None:
    """A new rule needs a row in CASES, or an entry with a reason, or a case among those of Level 0."""
    covered = level_0_rules(rules)
    for case in CASES:
        entry = rules.find(case[3].get("domain", ""), case[0], case[1])
        assert entry is not None
        covered.add((entry.domain, entry.op_type, entry.since))
    missing = set()
    for entry in rules:
        operator = operator_name(entry.domain, entry.op_type)
        if entry.rule.backward is None:
            refused = operator in TABLE and TABLE[operator].kind == NONE
            known = refused or entry.op_type in NOT_DIFFERENTIABLE or (operator, "numpy") in LACKING
            assert known, f"{operator} {entry.since} has no vjp"
        elif entry.op_type not in NO_CASE:
            missing.add((entry.domain, entry.op_type, entry.since))
    assert missing <= covered, missing - covered
    known = {entry.op_type for entry in rules}
    assert set(NOT_DIFFERENTIABLE) | set(NO_CASE) <= known
