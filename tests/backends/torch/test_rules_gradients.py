"""Gradients of every differentiable rule against central differences in float64."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from meta500.backends.torch.operators import rules

_RNG = np.random.default_rng(7)


class Gradient(NamedTuple):
    """A rule call whose float64 array inputs are differentiated."""

    op_type: str
    version: int
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    n_outputs: int = 1
    domain: str = ""


def _spread(*shape: int) -> np.ndarray:
    """Values at least 0.05 apart from each other, from whole numbers and from 0: smooth points."""
    count = int(np.prod(shape))
    steps = np.arange(count) - count // 2
    return _RNG.permutation(steps * 0.13 + 0.063).reshape(shape)


def _positive(*shape: int) -> np.ndarray:
    return _RNG.uniform(0.4, 1.6, shape)


def _inner(*shape: int) -> np.ndarray:
    """Values inside (-1, 1), apart from 0."""
    return _RNG.uniform(0.1, 0.9, shape) * _RNG.choice([-1, 1], shape)


CASES: list[Gradient] = []


def _add(
    op_type: str, version: int, inputs: tuple[Any, ...], *attributes: dict[str, Any], n_outputs: int = 1
) -> None:
    for given in attributes or ({},):
        CASES.append(Gradient(op_type, version, inputs, given, n_outputs))


X1, X2, X3 = _spread(2, 4, 6), _spread(1, 4, 5, 5), _spread(1, 2, 3, 4, 3)
_add(
    "Conv",
    22,
    (X2, _spread(4, 2, 3, 2), _spread(4)),
    {"group": 2},
    {"group": 2, "pads": (1, 0, 2, 1), "strides": (2, 1), "dilations": (1, 2)},
    {"group": 2, "auto_pad": "SAME_LOWER", "strides": (2, 2)},
)
_add("Conv", 22, (X1, _spread(3, 4, 3)), {"pads": (1, 1)})
_add("Conv", 22, (X3, _spread(2, 2, 2, 2, 2), _spread(2)), {"pads": (0, 1, 0, 1, 1, 0)})
_add(
    "ConvTranspose",
    22,
    (_spread(1, 4, 3, 3), _spread(4, 1, 3, 2), _spread(2)),
    {"group": 2},
    {"group": 2, "pads": (1, 0, 0, 2), "strides": (2, 3), "output_padding": (1, 1)},
    {"group": 2, "strides": (2, 2), "dilations": (2, 1), "auto_pad": "SAME_UPPER"},
    {"group": 2, "strides": (3, 3), "output_shape": (12, 10)},
)
_add("ConvTranspose", 22, (X1, _spread(4, 2, 3)), {"strides": (2,)})
_add("ConvTranspose", 22, (X3, _spread(2, 1, 2, 2, 2)), {"pads": (1, 0, 0, 0, 1, 0)})
_add("Gemm", 13, (_spread(3, 4), _spread(4, 2), _spread(2)), {}, {"alpha": 0.5, "beta": 2.0})
_add("Gemm", 13, (_spread(4, 3), _spread(2, 4), _spread(3, 1)), {"transA": 1, "transB": 1, "beta": -1.0})
_add("Gemm", 13, (_spread(3, 4), _spread(2, 4), _spread(2)), {"transB": 1})
_add("Gemm", 13, (_spread(3, 4), _spread(4, 2), None), {"alpha": 3.0})
for _left, _right in (
    ((3, 4), (4, 2)),
    ((4,), (4, 2)),
    ((2, 3, 4), (4,)),
    ((4,), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)),
):
    _add("MatMul", 13, (_spread(*_left), _spread(*_right)))

_SMOOTH = {"Sigmoid": 13, "Tanh": 13, "Exp": 13, "Erf": 13, "Sin": 22, "Cos": 22, "Atan": 22, "Sinh": 22}
_SMOOTH |= {"Cosh": 22, "Asinh": 22, "Neg": 13, "Identity": 25, "Softplus": 22, "Mish": 22, "Abs": 13}
_SMOOTH |= {"Relu": 14, "Softsign": 22, "HardSwish": 22, "Celu": 12, "Selu": 22, "Elu": 22, "LeakyRelu": 16}
for _name, _version in _SMOOTH.items():
    _add(_name, _version, (_spread(3, 4),))
for _name in ("Sqrt", "Log", "Reciprocal"):
    _add(_name, 13, (_positive(3, 4),))
for _name in ("Asin", "Acos", "Atanh", "Tan"):
    _add(_name, 22, (_inner(3, 4),))
_add("Acosh", 22, (_positive(3, 4) + 1,))
_add("LeakyRelu", 16, (_spread(3, 4),), {"alpha": 0.3}, {"alpha": -0.2})
_add("Elu", 22, (_spread(3, 4),), {"alpha": 0.3})
_add("Celu", 12, (_spread(3, 4),), {"alpha": 0.3})
_add("PRelu", 16, (_spread(2, 3, 4), _spread(3, 1)))
_add("ThresholdedRelu", 22, (_spread(3, 4),), {"alpha": 0.5})
_add("HardSigmoid", 22, (_spread(3, 4),), {"alpha": 0.7, "beta": 0.4})
_add("Gelu", 20, (_spread(3, 4),), {}, {"approximate": "tanh"})
_add("Swish", 24, (_spread(3, 4),), {}, {"alpha": 0.3})
for _name in ("Softmax", "LogSoftmax"):
    _add(_name, 13, (_spread(2, 3, 4),), {}, {"axis": 1}, {"axis": -3})
_add("Clip", 13, (_spread(3, 4), np.array(-0.3), np.array(0.4)))
_add("Clip", 13, (_spread(3, 4), None, np.array(0.4)))
_add("Clip", 13, (_spread(3, 4), np.array(-0.3)))
_add("Where", 16, (np.array([[True], [False]]), _spread(2, 3), _spread(3)))
for _name in ("Add", "Sub", "Mul", "Div"):
    _add(_name, 14, (_spread(2, 3, 4), _positive(3, 1)))
_add("Pow", 15, (_positive(2, 3), _spread(3)))
_add("Pow", 15, (_spread(2, 3), np.array([2, 3, 0])))
for _name, _version in {"Sum": 13, "Mean": 13, "Max": 13, "Min": 13}.items():
    _add(_name, _version, (_spread(2, 3), _spread(3) + 0.02, _spread(2, 1) + 0.041))
    _add(_name, _version, (_spread(2, 3),))

_POOL = {"kernel_shape": (3, 2)}
for _name in ("MaxPool", "AveragePool"):
    _add(
        _name,
        22,
        (X2,),
        _POOL,
        _POOL | {"strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1},
        _POOL | {"strides": (2, 3), "pads": (2, 0, 1, 1), "ceil_mode": 1},
        _POOL | {"dilations": (2, 3), "auto_pad": "SAME_UPPER"},
    )
    _add(_name, 22, (X1,), {"kernel_shape": (2,), "strides": (2,)})
    _add(_name, 22, (X3,), {"kernel_shape": (2, 2, 2), "pads": (0, 1, 0, 0, 0, 1)})
_add("AveragePool", 22, (X2,), _POOL | {"pads": (2, 1, 0, 1), "count_include_pad": 1})
for _name in ("GlobalAveragePool", "GlobalMaxPool"):
    _add(_name, 22, (X2,))

_STATISTICS = (_spread(3), _spread(3), _spread(3), _positive(3))
_add("BatchNormalization", 15, (_spread(4, 3, 2), *_STATISTICS), {}, {"training_mode": 1, "epsilon": 0.1})
_add("InstanceNormalization", 22, (_spread(2, 3, 4), _spread(3), _spread(3)), {"epsilon": 0.1})
_add("LayerNormalization", 17, (_spread(2, 3, 4), _spread(4), _spread(4)), {"epsilon": 0.1})
_add("LayerNormalization", 17, (_spread(2, 3, 4), _spread(3, 4), None), {"epsilon": 0.1, "axis": 1})
_add("LayerNormalization", 17, (_spread(2, 3, 4), _spread(3, 1), _spread(1)), {"epsilon": 0.1, "axis": 1})
_add("LRN", 13, (_spread(2, 5, 3),), {"size": 3, "alpha": 0.5}, {"size": 4, "alpha": 0.5, "beta": 0.3})
_add("Dropout", 13, (_spread(3, 4), 0.3, True), {"seed": 5})

X = _spread(2, 3, 4)
_add("Concat", 13, (X, _spread(2, 1, 4)), {"axis": 1}, {"axis": -2})
_add("Reshape", 14, (X, (0, -1)))
_add("Flatten", 13, (X,), {}, {"axis": -1})
_add("Transpose", 13, (X,), {}, {"perm": (1, 2, 0)})
_add("Squeeze", 13, (X[:, None], (1,)))
_add("Unsqueeze", 13, (X, (0, -1)))
for _mode in ("constant", "reflect", "edge", "wrap"):
    _add("Pad", 25, (X, (1, 0, 5, 0, 2, 1), 0.5), {"mode": _mode})
    _add("Pad", 25, (X, (2, 1), None, (-1,)), {"mode": _mode})
_add("Pad", 25, (X, (-1, 0, 1, 0, 2, -1)), {"mode": "reflect"})
_add("Slice", 13, (X, (-1, 0), (-9, 3), (2, 1), (-2, 2)))
_add("Split", 18, (X, (1, 2)), {"axis": 1}, n_outputs=2)
_add("Gather", 13, (X, np.array([[0, -1], [2, 0]])), {"axis": 1})
_add("Gather", 13, (X, np.array(-1)), {"axis": 2})
_add("Expand", 13, (_spread(3, 1), (2, 1, 4)))
_add("Tile", 13, (X, (2, 1, 3)))
_add("Cast", 13, (X,), {"to": 11})
_add("CastLike", 15, (X, np.array(1.0)), {})

for _mode in ("nearest", "linear", "cubic"):
    _add(
        "Resize", 19, (X2, None, (1.0, 1.0, 2.0, 0.5)), {"mode": _mode}, {"mode": _mode, "exclude_outside": 0}
    )
    _add(
        "Resize",
        19,
        (X2, None, None, (7, 3)),
        {"mode": _mode, "axes": (2, 3)},
        {"mode": _mode, "axes": (3, 1), "coordinate_transformation_mode": "align_corners"},
    )
    _add(
        "Resize",
        19,
        (X2, (0.1, -0.2, 0.8, 0.9), None, (3, 4)),
        {"mode": _mode, "axes": (2, 3), "coordinate_transformation_mode": "tf_crop_and_resize"},
    )
_add(
    "Resize", 19, (_spread(1, 70), None, None, (1, 33)), {"mode": "linear"}, {"mode": "cubic", "antialias": 1}
)
_add("Upsample", 9, (X2, (1.0, 1.0, 2.0, 3.0)), {}, {"mode": "linear"})

for _name, _function in {
    "ReduceMean": _spread,
    "ReduceSum": _spread,
    "ReduceMax": _spread,
    "ReduceMin": _spread,
    "ReduceProd": _spread,
    "ReduceL1": _spread,
    "ReduceL2": _spread,
    "ReduceLogSum": _positive,
    "ReduceLogSumExp": _spread,
    "ReduceSumSquare": _spread,
}.items():
    _add(_name, 18, (_function(2, 3, 4), (1, -1)), {}, {"keepdims": 0})
    _add(_name, 18, (_function(2, 3), None), {"keepdims": 0}, {"noop_with_empty_axes": 1})

_LABELS = np.array([[0, 2, 1], [1, 1, 4]])
for _weights in (None, _positive(5)):
    _losses: list[dict[str, Any]] = [
        {"reduction": r, **i} for r in ("none", "sum", "mean") for i in ({}, {"ignore_index": 1})
    ]
    _add("SoftmaxCrossEntropyLoss", 13, (_spread(2, 5, 3), _LABELS, _weights), *_losses)
    _add("SoftmaxCrossEntropyLoss", 13, (_spread(2, 5, 3), _LABELS, _weights), *_losses, n_outputs=2)
    _add("NegativeLogLikelihoodLoss", 22, (_spread(2, 5, 3), _LABELS, _weights), *_losses)

_TABLE = runpy.run_path(str(Path(__file__).with_name("version_cases.py")))["CASES"]

_PIECEWISE = "piecewise constant: torch's gradient is 0"
_DISCRETE = "the result is no float"
NOT_DIFFERENTIABLE = {
    **dict.fromkeys(("Sign", "Floor", "Ceil", "Round"), _PIECEWISE),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _DISCRETE),
    **dict.fromkeys(("And", "Or", "Xor", "Not", "ArgMax", "ArgMin", "Shape", "Size"), _DISCRETE),
    **dict.fromkeys(("Constant", "ConstantOfShape"), "no float input"),
}


def _from_table() -> list[Gradient]:
    """The cases of older versions serve here too, where they take and give floats at smooth points."""
    found = []
    for case in _TABLE:
        smooth = case.op_type not in NOT_DIFFERENTIABLE and "defaults" not in case.note
        if smooth and any(isinstance(v, np.ndarray) and v.dtype != np.float64 for v in case.inputs[:1]):
            continue
        if smooth and case.expected[0].dtype == np.float64:
            # The running statistics that follow Y carry no gradient, see batch_normalization.
            count = 1 if case.op_type in ("BatchNormalization", "Dropout") else len(case.expected)
            training = case.op_type == "BatchNormalization" and len(case.expected) > 1
            if not (training and case.version in (1, 6, 7, 9)):
                found.append(
                    Gradient(case.op_type, case.version, case.inputs, case.attributes, count, case.domain)
                )
    return found


ALL = CASES + _from_table()


def _trains(case: Gradient) -> bool:
    given = case.attributes
    return bool(given.get("training_mode")) or (case.version < 7 and not given.get("is_test"))


@pytest.mark.parametrize("case", ALL, ids=lambda c: f"{c.op_type}-{c.version}")
def test_gradient(case: Gradient, rule: Any) -> None:
    entry = rules.find(case.domain, case.op_type, case.version)
    assert entry is not None
    places = [
        position
        for position, value in enumerate(case.inputs)
        if isinstance(value, np.ndarray)
        and value.dtype == np.float64
        and position not in entry.host_positions
    ]
    assert places
    if case.op_type == "BatchNormalization" and _trains(case):
        places = places[:3]  # the given statistics do not enter Y

    def function(*floats: torch.Tensor) -> tuple[torch.Tensor, ...]:
        operands = list(case.inputs)
        for position, tensor in zip(places, floats, strict=True):
            operands[position] = tensor
        outputs = rule(
            case.op_type,
            case.version,
            operands,
            case.attributes,
            domain=case.domain,
            n_outputs=case.n_outputs,
        )
        return tuple(t for t in outputs if t.is_floating_point())

    floats = [torch.tensor(case.inputs[p], requires_grad=True) for p in places]
    assert torch.autograd.gradcheck(function, floats, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_every_differentiable_rule_is_checked(level_0_rules: Any) -> None:
    """By a case here, or by one of those of Level 0."""
    checked = level_0_rules(rules)
    for case in ALL:
        entry = rules.find(case.domain, case.op_type, case.version)
        assert entry is not None
        checked.add((entry.domain, entry.op_type, entry.since))
    missing = {
        (e.domain, e.op_type, e.since)
        for e in rules
        if e.op_type not in NOT_DIFFERENTIABLE and (e.domain, e.op_type, e.since) not in checked
    }
    # These need processes: tests/distributed.
    missing -= {("meta500", "AllReduce", 1), ("meta500", "HaloExchange", 1)}
    assert missing == set()


def test_batch_normalization_7_trains_through_y(rule: Any) -> None:
    inputs = [torch.tensor(a, requires_grad=True) for a in (_spread(4, 3, 2), *_STATISTICS)]

    def function(*tensors: torch.Tensor) -> torch.Tensor:
        return rule("BatchNormalization", 9, tensors, {"epsilon": 0.1}, n_outputs=3)[0]

    assert torch.autograd.gradcheck(function, inputs[:3] + [t.detach() for t in inputs[3:]])


@pytest.mark.parametrize("op_type", ["Floor", "Ceil", "Round", "Sign"])
def test_piecewise_constants_have_gradient_zero(rule: Any, op_type: str) -> None:
    x = torch.tensor([0.3, -1.7], requires_grad=True)
    (y,) = rule(op_type, 13 if op_type != "Round" else 11, (x,))
    y.sum().backward()
    assert x.grad is not None and not x.grad.any()


@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceL1", "Abs"])
def test_gradient_at_the_kink_is_finite(rule: Any, op_type: str) -> None:
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (y,) = rule(op_type, 18, (x,))
    y.sum().backward()
    assert x.grad is not None and not x.grad.any()
