"""Every lowering rule: the interpreted program against the numpy backend in float64, values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.backends.generated.rule_table import rules
from meta500.errors import UserError

seeds = st.integers(0, 2**16)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def ties(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers of which many are equal, among them 0 and the kinks of common functions."""
    choice = [-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0]
    return np.random.default_rng(seed).choice(choice, shape)


# -- functions of one value ----------------------------------------------------------------------------------

UNARY = [
    ("Abs", 13, {}), ("Ceil", 13, {}), ("Erf", 13, {}), ("Exp", 13, {}), ("Floor", 13, {}), ("Relu", 14, {}),
    ("Sigmoid", 13, {}), ("Sign", 13, {}), ("Softplus", 1, {}), ("Tanh", 13, {}), ("Neg", 13, {}),
    ("Identity", 21, {}), ("Softsign", 1, {}), ("LeakyRelu", 16, {}), ("LeakyRelu", 1, {"alpha": 0.3}),
    ("Elu", 6, {}), ("Elu", 1, {"alpha": 2.0}), ("Selu", 6, {}), ("Selu", 1, {}), ("Celu", 12, {}),
    ("Celu", 12, {"alpha": 2.5}), ("ThresholdedRelu", 10, {}), ("ThresholdedRelu", 10, {"alpha": -0.5}),
    ("HardSigmoid", 6, {}), ("HardSigmoid", 1, {"alpha": 0.5, "beta": 0.25}), ("HardSwish", 14, {}),
    ("Mish", 18, {}), ("Gelu", 20, {}), ("Gelu", 20, {"approximate": "tanh"}), ("Swish", 24, {}),
    ("Swish", 24, {"alpha": 0.7}), ("Clip", 6, {"min": -0.5, "max": 1.0}), ("Clip", 1, {"max": 0.5}),
    ("Clip", 6, {}), ("Softmax", 13, {}), ("LogSoftmax", 13, {}),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "opset", "attributes"), UNARY)
@pytest.mark.parametrize("make", [normal, ties])
def test_functions_of_one_value(same, op_type, opset, attributes, make) -> None:
    same(op_type, opset, [make(2, 3, 5)], **attributes)


@pytest.mark.parametrize("op_type", ["Log", "Sqrt", "Reciprocal"])
def test_functions_of_positive_values(same, op_type) -> None:
    same(op_type, 13, [np.abs(normal(4, 5)) + 0.1])


@pytest.mark.parametrize(("op_type", "opset", "attributes"), UNARY)
def test_nan_and_infinities(same, op_type, opset, attributes) -> None:
    same(
        op_type,
        opset,
        [np.array([[np.nan, 1.0], [np.inf, 0.5], [-np.inf, 2.0]])],
        gradient=False,
        **attributes,
    )


# -- several values ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3, 4), (3, 1)), ((1, 4), (3, 1)), ((), (2, 2))])
def test_broadcasting(same, op_type, shapes) -> None:
    same(op_type, 14, [normal(*shape, seed=i) + 3 * i for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_any_number_of_values(same, op_type, count) -> None:
    shapes = [(3, 4), (4,), (3, 1), (1, 4)]
    same(op_type, 13, [ties(*shapes[i], seed=i) for i in range(count)])
    same(op_type, 6, [ties(3, 4, seed=i) for i in range(count)])


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 4, 5), {}), ((5,), {"broadcast": 1}), ((3, 4), {"broadcast": 1, "axis": 1}),
        ((2, 3), {"broadcast": 1, "axis": 0}), ((1,), {"broadcast": 1}), ((3, 1), {"broadcast": 1, "axis": -3}),
        ((), {"broadcast": 1}),
    ],
)  # fmt: skip
def test_broadcasting_before_version_7(same, op_type, shape, attributes) -> None:
    same(op_type, 6, [normal(2, 3, 4, 5), normal(*shape, seed=1) + 4], **attributes)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 5, 8, -1, -2, 0.5, -0.5])
def test_pow(same, exponent) -> None:
    x = np.abs(normal(3, 4)) + 0.2
    same("Pow", 15, [x], {1: float(exponent)}, tolerance=1e-9)
    if exponent >= 0 and exponent == int(exponent):
        same("Pow", 15, [ties(3, 4)], {1: np.full((4,), float(exponent))}, tolerance=1e-9)


@pytest.mark.parametrize(("low", "high"), [(-0.5, 0.5), (None, 1.0), (-1.0, None), (0.5, -0.5), (None, None)])
@pytest.mark.parametrize("constant", [True, False])
def test_clip(same, low, high, constant) -> None:
    bounds = {i: np.array(b) for i, b in ((1, low), (2, high)) if b is not None}
    x = np.array([[-3.0, -0.5, 0.0], [0.5, np.nan, 3.0]])
    if constant:
        same("Clip", 13, [x], bounds)
    else:
        same("Clip", 13, [ties(3, 4), bounds.get(1), bounds.get(2)])


def test_prelu(same) -> None:
    same("PRelu", 16, [ties(2, 3, 4), ties(3, 1, seed=1)])
    same("PRelu", 7, [ties(2, 3, 4), ties(2, 3, 4, seed=1)])
    same("PRelu", 6, [ties(2, 3, 4), ties(3, seed=1)])
    same("PRelu", 1, [ties(2, 3, 4), ties(1, seed=1)])


def test_where_and_comparisons(same) -> None:
    a, b = ties(3, 4), ties(4, seed=1)
    for op_type in ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"):
        (found,), _ = same(op_type, 16, [a, b], gradient=False)
        assert found.dtype == np.bool_
    p, q = a > 0, b > 0
    for op_type in ("And", "Or", "Xor"):
        same(op_type, 7, [p, q], gradient=False)
        same(op_type, 1, [p, q], gradient=False, broadcast=1)
    same("Not", 1, [p], gradient=False)
    same("IsNaN", 13, [np.array([1.0, np.nan])], gradient=False)
    same("Where", 16, [p, a, b])
    same("Where", 16, [q, a, np.array(np.inf)])
    same("Where", 9, [p, np.arange(4), np.array(7)], gradient=False)


@pytest.mark.parametrize(
    ("source", "to"), [(bool, 11), (np.int64, 11), (np.int32, 7), (float, 7), (float, 9), (float, 6)]
)
def test_cast(same, source, to) -> None:
    x = (ties(3, 4) * 2.3).astype(source)
    same("Cast", 19, [x], gradient=source is float and to == 11, to=to)


# -- matrices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((1, 4), (4, 1)), ((2, 3, 1), (1, 5)),
    ],
)  # fmt: skip
def test_matmul(same, a, b) -> None:
    same("MatMul", 13, [normal(*a), normal(*b, seed=1)])


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (), (5,), (3, 1), (3, 5), (1, 1)])
def test_gemm(same, transposed, c) -> None:
    a = normal(4, 3) if transposed[0] else normal(3, 4)
    b = normal(5, 4, seed=1) if transposed[1] else normal(4, 5, seed=1)
    inputs = [a, b] + ([] if c is None else [normal(*c, seed=2)])
    same("Gemm", 13, inputs, transA=transposed[0], transB=transposed[1], alpha=0.5, beta=-2.0)


def test_gemm_does_not_read_c_without_beta(same) -> None:
    same("Gemm", 13, [normal(2, 3), normal(3, 4), np.full((2, 4), np.nan)], beta=0.0, wrt=[0, 1])


# -- softmax and losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_softmax(same, op_type, axis) -> None:
    same(op_type, 13, [normal(2, 3, 4) * 5], axis=axis)
    same(op_type, 11, [normal(2, 3, 4) * 5], axis=axis)
    _, program = same(op_type, 1, [normal(2, 3, 4) * 500], axis=abs(axis))
    # The maximum only keeps exp from overflowing; no gradient goes through it.
    assert not any("ties" in stage.name for stage in program.stages)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("space", [(), (2,), (2, 3)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 1, -7])
def test_losses_of_classes(same, reduction, space, weighted, ignore) -> None:
    rng = np.random.default_rng(1)
    label = rng.integers(0, 4, (3, *space))
    if ignore is not None:
        label.flat[::3] = ignore
    weight = [np.array([0.5, 0.0, 2.0, 1.0])] if weighted else []
    attributes: dict[str, Any] = {"reduction": reduction} | (
        {} if ignore is None else {"ignore_index": ignore}
    )
    same("SoftmaxCrossEntropyLoss", 13, [normal(3, 4, *space), label, *weight], **attributes)
    same("NegativeLogLikelihoodLoss", 13, [normal(3, 4, *space), label, *weight], **attributes)


def test_second_output_of_softmax_cross_entropy(same) -> None:
    label = np.array([0, 3, 1])
    same("SoftmaxCrossEntropyLoss", 13, [normal(3, 4), label], n_outputs=2, weighted=[0, 1])


def test_a_sample_of_weight_zero_counts_nothing(same) -> None:
    x = np.array([[-1.0, -np.inf], [-2.0, -0.3]])
    same(
        "NegativeLogLikelihoodLoss", 13, [x, np.array([1, 0])], {2: np.array([1.0, 0.0])}, gradient=False,
        reduction="sum",
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_mean_squared_error(same, reduction) -> None:
    same("MeanSquaredError", 1, [normal(3, 4), normal(3, 4, seed=1)], domain="meta500", reduction=reduction)


# -- reductions ----------------------------------------------------------------------------------------------

REDUCTIONS = [
    "ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSumExp", "ReduceMax", "ReduceMin",
]  # fmt: skip


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [0], [-1], [1, 2], [2, 0], []])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(same, op_type, axes, keepdims) -> None:
    x = ties(2, 3, 4)
    same(op_type, 18, [x], {} if axes is None else {1: np.array(axes, np.int64)}, keepdims=keepdims)
    if axes != []:
        old = {} if axes is None else {"axes": axes}
        same(op_type, 11, [x], keepdims=keepdims, **old)


def test_reduction_over_no_axes(same) -> None:
    for op_type in REDUCTIONS:
        same(op_type, 18, [np.abs(normal(2, 3))], noop_with_empty_axes=1)
    same("ReduceLogSum", 18, [np.abs(normal(2, 3))], {1: np.array([1])})
    same("ReduceL2", 18, [np.zeros((2, 3))], {1: np.array([1])})
    same("ReduceMax", 18, [np.array([[np.nan, 1.0], [-np.inf, -np.inf]])], {1: np.array([1])}, gradient=False)


# -- windows -------------------------------------------------------------------------------------------------


@st.composite
def geometries(draw, dilated: bool = True) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Spatial sizes and the attributes of a window that fits."""
    rank = draw(st.sampled_from((1, 2, 2, 3)))
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    dilations = draw(st.lists(st.integers(1, 2), min_size=rank, max_size=rank)) if dilated else [1] * rank
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    sizes = tuple(e + draw(st.integers(0, 4)) for e in extents)
    strides = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    pads = [draw(st.integers(0, k - 1)) for k in kernel * 2]
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if dilated:
        attributes["dilations"] = dilations
    return sizes, attributes


@given(geometry=geometries(), groups=st.sampled_from((1, 1, 2)), seed=seeds)
@settings(max_examples=25, derandomize=True, database=None)
def test_conv(same, geometry, groups, seed) -> None:
    sizes, attributes = geometry
    x, w = (
        normal(2, 2 * groups, *sizes, seed=seed),
        normal(2 * groups, 2, *attributes["kernel_shape"], seed=seed + 1),
    )
    same("Conv", 11, [x, w, normal(2 * groups, seed=seed + 2)], group=groups, **attributes)


@given(geometry=geometries(), groups=st.sampled_from((1, 1, 2)), seed=seeds, extra=st.integers(0, 1))
@settings(max_examples=25, derandomize=True, database=None)
def test_conv_transpose(same, geometry, groups, seed, extra) -> None:
    _, attributes = geometry
    kernel = attributes["kernel_shape"]
    sizes = [3] * len(kernel)
    extra = min(extra, *(s - 1 for s in attributes["strides"]))
    x, w = normal(2, 2 * groups, *sizes, seed=seed), normal(2 * groups, 2, *kernel, seed=seed + 1)
    inputs = [x, w, normal(2 * groups, seed=seed + 2)]
    same("ConvTranspose", 11, inputs, group=groups, output_padding=[extra] * len(kernel), **attributes)


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@given(geometry=geometries(), ceil=st.integers(0, 1), include=st.integers(0, 1), seed=seeds)
@settings(max_examples=15, derandomize=True, database=None)
def test_pooling(same, op_type, geometry, ceil, include, seed) -> None:
    sizes, attributes = geometry
    if op_type == "AveragePool":
        attributes["count_include_pad"] = include
    try:
        same(op_type, 19, [ties(2, 2, *sizes, seed=seed)], ceil_mode=ceil, **attributes)
    except UserError as error:
        assert "lies in the padding" in str(error)


def test_padding_only_windows_are_refused(lowered) -> None:
    with pytest.raises(UserError, match="lies in the padding only"):
        lowered("MaxPool", 12, [normal(1, 1, 1, 4)], kernel_shape=[1, 1], pads=[1, 0, 0, 0])


def test_of_several_nan_the_last_wins(same) -> None:
    x = np.array([np.nan, 1, np.nan, 2, 3, 4.0]).reshape(1, 1, 6)
    same("MaxPool", 12, [x], kernel_shape=[3], strides=[3])


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
@pytest.mark.parametrize("space", [(5,), (3, 4), (2, 3, 2)])
def test_global_pooling(same, op_type, space) -> None:
    same(op_type, 1, [ties(2, 3, *space)])


# -- normalisation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [(), (5,), (3, 4)])
def test_batch_normalization(same, space) -> None:
    inputs = [normal(4, 3, *space), *(np.abs(normal(3, seed=i)) + 0.1 for i in range(4))]
    same("BatchNormalization", 15, inputs, epsilon=1e-3)
    same("BatchNormalization", 9, inputs)
    same(
        "BatchNormalization", 15, inputs, n_outputs=3, wrt=[0, 1, 2], training_mode=1, momentum=0.7, epsilon=1e-3
    )  # fmt: skip


@pytest.mark.parametrize("space", [(5,), (3, 4), (2, 3, 2)])
def test_instance_and_group_normalization(same, space) -> None:
    x = normal(2, 4, *space)
    same("InstanceNormalization", 6, [x, normal(4, seed=1), normal(4, seed=2)])
    same("GroupNormalization", 21, [x, normal(4, seed=1), normal(4, seed=2)], num_groups=2, epsilon=1e-3)
    same("GroupNormalization", 18, [x, normal(2, seed=1), normal(2, seed=2)], num_groups=2)


@pytest.mark.parametrize("axis", [-1, 1, 2, -3])
def test_layer_and_rms_normalization(same, axis) -> None:
    x = normal(2, 3, 4)
    scale = normal(*x.shape[axis:], seed=1)
    same("LayerNormalization", 17, [x, scale, normal(4, seed=2)], axis=axis)
    same("LayerNormalization", 17, [x, scale], axis=axis, epsilon=0.1)
    same("RMSNormalization", 23, [x, normal(4, seed=1)], axis=axis)


def test_every_rule_is_tested() -> None:
    text = __doc__ and open(__file__).read()  # noqa: SIM115
    assert text
    missing = {name for _, name in rules().entries if f'"{name}"' not in text} - MOVED - PROCESSES
    assert not missing


# Their tests are in tests/distributed.
PROCESSES = {"AllReduce", "HaloExchange"}
# Their tests are in test_movement_rules.py.
MOVED = {
    "CastLike", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Pad", "Reshape", "Resize", "Shape",
    "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze", "Upsample",
}  # fmt: skip
