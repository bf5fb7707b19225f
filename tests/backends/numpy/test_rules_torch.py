"""Normalisation, losses, resampling and reductions against torch, onnx.reference or their definition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

T = torch.nn.functional
G = np.random.default_rng(11)


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def normal(*shape: int) -> np.ndarray:
    return G.standard_normal(shape)


def close(got: np.ndarray, wanted: Any, tolerance: float = 1e-12) -> None:
    reference = wanted.detach().numpy() if isinstance(wanted, torch.Tensor) else np.asarray(wanted)
    assert got.shape == reference.shape
    scale = float(np.abs(reference).max(initial=0)) or 1.0
    assert float(np.abs(got - reference).max(initial=0)) <= tolerance * scale


def both(ran: Any, tensors: list[Any], wanted: Any, tolerance: float = 1e-12) -> None:
    """First output and all gradients equal those of torch."""
    close(ran.outputs[0], wanted, tolerance)
    cotangent = np.random.default_rng(3).standard_normal(tuple(wanted.shape))
    wanted.backward(torch.tensor(cotangent))
    rest = [None] * (len(ran.outputs) - 1)
    gradients = ran.gradients(cotangent, *rest)
    for gradient, tensor in zip(gradients, tensors, strict=True):
        if tensor is not None and tensor.requires_grad:
            close(gradient, tensor.grad, tolerance)


def leaf(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array, requires_grad=array.dtype.kind == "f")


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization(rule, shape, training) -> None:
    """Values and gradients; the running variance is that of the population, which torch's is not."""
    arrays = [normal(*shape), normal(3), normal(3), normal(3), np.abs(normal(3)) + 0.5]
    x, w, b, m, v = (leaf(a) for a in arrays)
    attributes = {"training_mode": training, "momentum": 0.8, "epsilon": 1e-3}
    ran = rule("BatchNormalization", 15, arrays, attributes, n_outputs=3 if training else 1)
    if training:
        axes = tuple(a for a in range(len(shape)) if a != 1)
        close(ran.outputs[1], 0.8 * arrays[3] + 0.2 * arrays[0].mean(axes))
        close(ran.outputs[2], 0.8 * arrays[4] + 0.2 * arrays[0].var(axes))
        wanted = T.batch_norm(x, None, None, w, b, True, 0.2, 1e-3)
        both(ran, [x, w, b, None, None], wanted)
    else:
        fit = [-1] + [1] * (len(shape) - 2)
        wanted = (x - m.reshape(fit)) / (v.reshape(fit) + 1e-3).sqrt() * w.reshape(fit) + b.reshape(fit)
        both(ran, [x, w, b, m, v], wanted)


def test_batch_normalization_keeps_mixed_types(rule) -> None:
    """float16 data with float32 statistics: computed in float32, each result in its own type."""
    x = (normal(4, 2, 8) * 100 + 500).astype(np.float16)
    arrays = [x, *(np.array(v, np.float32) for v in ([1, 2], [0, 1], [0, 0], [1, 1]))]
    ran = rule("BatchNormalization", 15, arrays, {"training_mode": 1}, n_outputs=3)
    assert [y.dtype for y in ran.outputs] == [np.float16, np.float32, np.float32]
    close(ran.outputs[2], 0.9 + 0.1 * x.astype(np.float64).var((0, 2)), 1e-5)
    gradients = ran.gradients(np.ones_like(x), None, None)
    assert [g.dtype for g in gradients[:3]] == [np.float16, np.float32, np.float32]


def test_instance_normalization(rule) -> None:
    arrays = [normal(2, 3, 4, 5), normal(3), normal(3)]
    x, w, b = (leaf(a) for a in arrays)
    ran = rule("InstanceNormalization", 22, arrays, {"epsilon": 1e-3})
    both(ran, [x, w, b], T.instance_norm(x, None, None, w, b, True, 0.1, 1e-3))


def test_layer_normalization(rule) -> None:
    arrays = [normal(2, 3, 4, 5), normal(4, 5), normal(4, 5)]
    x, w, b = (leaf(a) for a in arrays)
    ran = rule("LayerNormalization", 17, arrays, {"epsilon": 1e-3, "axis": 2}, n_outputs=3)
    both(ran, [x, w, b], T.layer_norm(x, (4, 5), w, b, 1e-3))
    assert ran.outputs[1].dtype == ran.outputs[2].dtype == np.float32
    assert ran.outputs[1].shape == (2, 3, 1, 1)


def test_layer_normalization_statistics_have_gradients(rule) -> None:
    """Cotangents of Mean and InvStdDev reach the input."""
    arrays = [normal(3, 6), normal(6)]
    cotangents = [normal(3, 6), normal(3, 1).astype(np.float32), normal(3, 1).astype(np.float32)]
    x = leaf(arrays[0])
    mean = x.mean(1, keepdim=True)
    inverse = (x.var(1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
    y = (x - mean) * inverse * torch.tensor(arrays[1])
    sum(
        (c * torch.tensor(d.astype(np.float64))).sum()
        for c, d in zip((y, mean, inverse), cotangents, strict=True)
    ).backward()
    ran = rule("LayerNormalization", 17, arrays, {}, n_outputs=3)
    close(ran.gradients(*cotangents)[0], x.grad, 1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_normalization(rule, size) -> None:
    """torch looks one channel further back for even sizes, ONNX one further ahead: turn the channels round."""
    array = normal(2, 7, 3)
    x = leaf(array[:, ::-1].copy())
    ran = rule("LRN", 13, [array], {"size": size, "alpha": 0.7, "beta": 0.6, "bias": 1.2})
    wanted = T.local_response_norm(x, size, 0.7, 0.6, 1.2)
    close(ran.outputs[0], wanted.flip(1))
    cotangent = normal(2, 7, 3)
    wanted.backward(torch.tensor(cotangent[:, ::-1].copy()))
    close(ran.gradients(cotangent)[0], x.grad.flip(1))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("operator", "function"), [("Softmax", T.softmax), ("LogSoftmax", T.log_softmax)])
def test_softmax(rule, operator, function, axis) -> None:
    array = normal(3, 4, 5)
    x = leaf(array)
    both(rule(operator, 13, [array], {"axis": axis}), [x], function(x, axis))


@pytest.mark.filterwarnings("error")
def test_extreme_values_are_stable(rule) -> None:
    """No overflow, no loss of small numbers, no warnings."""
    x = np.array([[-1000.0, 0.0, 1000.0]], np.float32)
    np.testing.assert_array_equal(rule("Sigmoid", 13, [x]).outputs[0], [[0, 0.5, 1]])
    np.testing.assert_allclose(
        rule("Sigmoid", 13, [x / 20]).outputs[0][0, 0], 1.928749847963918e-22, rtol=1e-6
    )
    np.testing.assert_array_equal(rule("Softplus", 22, [x]).outputs[0], [[0, np.float32(np.log(2)), 1000]])
    np.testing.assert_array_equal(rule("Softmax", 13, [x]).outputs[0], [[0, 0, 1]])
    np.testing.assert_array_equal(rule("LogSoftmax", 13, [x]).outputs[0], [[-2000, -1000, 0]])
    np.testing.assert_array_equal(rule("ReduceLogSumExp", 18, [x]).outputs[0], [[1000]])
    loss = rule("SoftmaxCrossEntropyLoss", 13, [x, i(0)])
    np.testing.assert_array_equal(loss.outputs[0], 2000)
    np.testing.assert_array_equal(loss.gradients(np.float32(1).reshape(()), None)[0], [[-1, 0, 1]])
    for operator in ("Elu", "Selu", "Mish", "Gelu", "Softsign", "Tanh", "HardSwish"):
        ran = rule(operator, 24, [x])
        gradient = ran.gradients(np.ones_like(x))[0]
        assert np.all(np.isfinite(ran.outputs[0])) and np.all(np.isfinite(gradient))
    np.testing.assert_array_equal(rule("Log", 13, [np.zeros(2)]).outputs[0], [-np.inf, -np.inf])
    np.testing.assert_array_equal(rule("Div", 14, [np.ones(1), np.zeros(1)]).outputs[0], [np.inf])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 2, -7])
@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (2, 4, 3, 2)])
def test_cross_entropy(rule, reduction, weighted, ignore, shape) -> None:
    """Both losses of ONNX, with class weights and an ignored label inside or outside the classes."""
    scores, weights = normal(*shape), np.abs(normal(4)) + 0.1 if weighted else None
    target = G.integers(0, 4, (shape[0], *shape[2:]))
    if ignore is not None:
        target[0] = ignore
    x, w = leaf(scores), None if weights is None else torch.tensor(weights)
    common = {"weight": w, "reduction": reduction, "ignore_index": -100 if ignore is None else ignore}
    attributes = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    inputs = [scores, target] if weights is None else [scores, target, weights]
    needs = [True, False, False][: len(inputs)]
    ran = rule("SoftmaxCrossEntropyLoss", 13, inputs, attributes, n_outputs=2, needs=needs)
    close(ran.outputs[1], T.log_softmax(torch.tensor(scores), 1))
    both(ran, [x, *[None] * (len(inputs) - 1)], T.cross_entropy(x, torch.tensor(target), **common))
    x = leaf(scores)
    ran = rule("NegativeLogLikelihoodLoss", 22, inputs, attributes, needs=needs)
    both(ran, [x, *[None] * (len(inputs) - 1)], T.nll_loss(x, torch.tensor(target), **common))


@pytest.mark.filterwarnings("error")
def test_ignored_samples_count_nothing(rule) -> None:
    """Not even where their log-probability is -inf."""
    log_prob = np.array([[-np.inf, 0.0], [-1.0, -2.0]])
    ran = rule("NegativeLogLikelihoodLoss", 22, [log_prob, i(-1, 1)], {"ignore_index": -1})
    np.testing.assert_array_equal(ran.outputs[0], 2.0)
    np.testing.assert_array_equal(ran.gradients(np.array(1.0))[0], [[0, 0], [0, -1]])


@pytest.mark.filterwarnings("error")
def test_overflow_of_16_bits_is_infinite(rule) -> None:
    big = np.full(3, 60000, np.float16)
    assert np.all(np.isinf(rule("Add", 14, [big, big]).outputs[0]))
    np.testing.assert_array_equal(rule("ReduceMean", 18, [big]).outputs[0], [60000])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_mean_squared_error(rule, reduction) -> None:
    arrays = [normal(3, 4, 2), normal(3, 4, 2)]
    p, t = (leaf(a) for a in arrays)
    ran = rule("MeanSquaredError", 1, arrays, {"reduction": reduction}, domain="meta500")
    both(ran, [p, t], T.mse_loss(p, t, reduction=reduction))


# Resampling.


@pytest.mark.parametrize(("mode", "attributes", "torch_mode", "options"), [
    ("linear", {}, "bilinear", {"align_corners": False}),
    ("linear", {"coordinate_transformation_mode": "align_corners"}, "bilinear", {"align_corners": True}),
    ("linear", {"antialias": 1, "exclude_outside": 1}, "bilinear", {"align_corners": False, "antialias": True}),
    ("cubic", {}, "bicubic", {"align_corners": False}),
    ("cubic", {"coordinate_transformation_mode": "align_corners"}, "bicubic", {"align_corners": True}),
    ("cubic", {"antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5}, "bicubic",
     {"align_corners": False, "antialias": True}),
    ("nearest", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, "nearest", {}),
    ("nearest", {"nearest_mode": "round_prefer_ceil"}, "nearest-exact", {}),
])  # fmt: skip
@pytest.mark.parametrize("size", [(7, 9), (3, 2), (5, 10), (2, 13), (6, 4)])
def test_resize_against_torch(rule, mode, attributes, torch_mode, options, size) -> None:
    array = normal(2, 2, 5, 6)
    x = leaf(array)
    ran = rule("Resize", 19, [array, None, None, i(*size)], {"mode": mode, "axes": (2, 3)} | attributes)
    wanted = T.interpolate(x, size=size, mode=torch_mode, **options)
    both(ran, [x, None, None, None], wanted)


COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
               "tf_crop_and_resize")  # fmt: skip
KINDS = [
    *(
        {"mode": "nearest", "nearest_mode": m}
        for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    *(
        {"mode": m, "exclude_outside": e, "antialias": a}
        for m in ("linear", "cubic")
        for e in (0, 1)
        for a in (0, 1)
    ),
]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(map(str, k.values())))
def test_resize_against_onnx_reference(rule, coordinates, kind) -> None:
    """All coordinate modes with all filters, up and down, by scales and by sizes."""
    from onnx.reference.ops.op_resize import (
        _cubic_coeffs,
        _cubic_coeffs_antialias,
        _interpolate_nd,
        _linear_coeffs,
        _linear_coeffs_antialias,
        _nearest_coeffs,
    )

    def coefficients(ratio: float, scale: float) -> np.ndarray:
        if kind["mode"] == "nearest":
            return _nearest_coeffs(ratio, kind["nearest_mode"])
        if kind["mode"] == "linear":
            return _linear_coeffs_antialias(ratio, scale) if kind["antialias"] else _linear_coeffs(ratio)
        return (
            _cubic_coeffs_antialias(ratio, scale, -0.6)
            if kind["antialias"]
            else _cubic_coeffs(ratio, None, -0.6)
        )

    x = normal(5, 6)
    roi = np.array([0.1, -0.2, 0.8, 1.1]) if coordinates == "tf_crop_and_resize" else None
    targets: list[tuple[Any, Any]] = [(None, i(7, 4)), (None, i(11, 3)), (None, i(2, 13))]
    if roi is None:
        targets += [(np.array([1.5, 0.6]), None), (np.array([0.75, 2.3]), None)]
    for scales, sizes in targets:
        common = {"coordinate_transformation_mode": coordinates, "extrapolation_value": 1.5}
        wanted = _interpolate_nd(
            x, coefficients, output_size=None if sizes is None else sizes.tolist(), scale_factors=scales,
            roi=roi, exclude_outside=bool(kind.get("exclude_outside")), **common,
        )  # fmt: skip
        got = rule("Resize", 19, [x, roi, scales, sizes], kind | common | {"cubic_coeff_a": -0.6}).outputs[0]
        close(got, wanted)


def test_one_output_element(rule) -> None:
    """pytorch_half_pixel and align_corners put a single output at 0, tf_crop_and_resize at the centre."""
    x = np.arange(1.0, 6.0)
    for mode, wanted in (("pytorch_half_pixel", 1.0), ("align_corners", 1.0), ("half_pixel", 3.0)):
        attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
        close(rule("Resize", 19, [x, None, None, i(1)], attributes).outputs[0], [wanted])
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    close(rule("Resize", 19, [x, np.array([0.5, 1.0]), None, i(1)], attributes).outputs[0], [4.0])


def test_scales_in_float32_hit_whole_positions(rule) -> None:
    """1/3 and 0.7 in float32: the length and the picked elements are those of the exact scale."""
    third = np.array([1 / 3], np.float32)
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    np.testing.assert_array_equal(
        rule("Resize", 13, [np.arange(9.0), None, third], attributes).outputs[0], [0, 3, 6]
    )
    seven = rule("Resize", 13, [np.arange(10.0), None, np.array([0.7], np.float32)], attributes).outputs[0]
    assert seven.shape == (7,)
    integers = rule("Resize", 13, [np.arange(3), None, np.array([2.0], np.float32)], attributes).outputs[0]
    np.testing.assert_array_equal(integers, [0, 0, 1, 1, 2, 2])


@pytest.mark.parametrize(
    ("policy", "shape"), [("stretch", (8, 9)), ("not_larger", (6, 9)), ("not_smaller", (8, 12))]
)
def test_aspect_ratio(rule, policy, shape) -> None:
    x = normal(4, 6)
    got = rule("Resize", 18, [x, None, None, i(8, 9)], {"keep_aspect_ratio_policy": policy}).outputs[0]
    assert got.shape == shape


# Dropout.


def test_dropout_scales_what_it_keeps(rule) -> None:
    x = np.ones((200, 300), np.float32)
    ratio, training = np.array(0.3, np.float32), np.array(True)
    y, mask = rule("Dropout", 22, [x, ratio, training], {}, n_outputs=2).outputs
    assert mask.dtype == bool and y.dtype == np.float32
    assert abs(mask.mean() - 0.7) < 0.01
    np.testing.assert_allclose(y, mask / 0.7, rtol=1e-6)


def test_dropout_follows_the_generator(rule) -> None:
    """The same generator state gives the same mask, another one (or a seed of the node) a new one."""
    inputs = [np.ones((50, 50)), np.array(0.5), np.array(True)]

    def mask(state: int, **extra: int) -> np.ndarray:
        return rule("Dropout", 13, inputs, extra, n_outputs=2, seed=state).outputs[1]

    assert np.array_equal(mask(1), mask(1))
    assert not np.array_equal(mask(1), mask(2))
    assert not np.array_equal(mask(1), mask(1, **{"seed": 4}))


def test_dropout_mask_has_the_type_of_the_input_before_version_10(rule) -> None:
    x = np.ones((40, 50), np.float32)
    y, mask = rule("Dropout", 6, [x], {"ratio": 0.25}, n_outputs=2).outputs
    assert mask.dtype == np.float32
    np.testing.assert_allclose(y, mask / 0.75, rtol=1e-6)
    assert 0.65 < mask.mean() < 0.85


# Reductions.


def test_ties_share_the_gradient(rule) -> None:
    """Equal extremes get equal parts, as in torch.amax and torch.maximum."""
    x = np.array([[2.0, 5.0, 5.0, 1.0]])
    np.testing.assert_array_equal(rule("ReduceMax", 20, [x]).gradients(np.array([[6.0]]))[0], [[0, 3, 3, 0]])
    a, b = rule("Max", 13, [x, np.array([2.0])]).gradients(np.array([[6.0, 6, 6, 6]]))
    np.testing.assert_array_equal(a, [[3, 6, 6, 0]])
    np.testing.assert_array_equal(b, [9])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_product_with_zeros(rule, zeros) -> None:
    array = np.abs(normal(3, 4)) + 0.5
    array[1, :zeros] = 0
    x = leaf(array)
    both(rule("ReduceProd", 18, [array, i(1)]), [x, None], x.prod(1, keepdim=True))


@pytest.mark.parametrize(("operator", "empty"), [
    ("ReduceSum", 0.0), ("ReduceProd", 1.0), ("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceL1", 0.0),
    ("ReduceL2", 0.0), ("ReduceSumSquare", 0.0), ("ReduceLogSum", -np.inf), ("ReduceLogSumExp", -np.inf),
    ("ReduceMean", np.nan),
])  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_reduction_of_nothing(rule, operator, empty) -> None:
    x = np.zeros((2, 0, 3), np.float32)
    got = rule(operator, 18, [x, i(1)], {"keepdims": 0}).outputs[0]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.full((2, 3), empty))


def test_integer_arithmetic(rule) -> None:
    """Integers stay integers of their type; divisions cut toward zero; sums wrap."""
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    got = rule("Div", 14, [a, b]).outputs[0]
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, [3, -3, -3, 3])
    np.testing.assert_array_equal(rule("ReduceMean", 18, [np.array([-3, -4], np.int32)]).outputs[0], [-3])
    np.testing.assert_array_equal(rule("ReduceL2", 18, [np.array([3, 4], np.int64)]).outputs[0], [5])
    wrapped = rule("ReduceSum", 13, [np.array([2**31 - 1, 1], np.int32)]).outputs[0]
    assert wrapped.dtype == np.int32 and wrapped[0] == -(2**31)
    empty = rule("ReduceMax", 20, [np.zeros((0,), np.int8)]).outputs[0]
    np.testing.assert_array_equal(empty, [-128])
    np.testing.assert_array_equal(
        rule("Pow", 15, [i(2, -3), np.array([3.0, 2.0], np.float32)]).outputs[0], [8, 9]
    )
    big = np.array([2**62], np.int64)
    np.testing.assert_array_equal(rule("Pow", 15, [i(2), np.array([62], np.uint64)]).outputs[0], big)


def test_power_of_other_type_keeps_the_base(rule) -> None:
    for base, exponent in itertools.product((np.float16, np.float32), (np.int64, np.float64)):
        x = np.array([2.0, 3.0], base)
        ran = rule("Pow", 15, [x, np.array([3, 2], exponent)], needs=[True, False])
        assert ran.outputs[0].dtype == base
        np.testing.assert_array_equal(ran.outputs[0], [8, 9])
        np.testing.assert_allclose(ran.gradients(np.ones_like(x))[0], [12, 6])


def test_power_gradients_at_zero(rule) -> None:
    """0 ** 0 and 0 ** y have finite gradients where torch's are."""
    arrays = [np.array([0.0, 0.0, 2.0]), np.array([0.0, 1.5, 0.0])]
    x, y = (leaf(a) for a in arrays)
    both(rule("Pow", 15, arrays), [x, y], x**y)


def test_cast_rounds_once(rule) -> None:
    """float64 just above the middle of two bfloat16 or float8 numbers goes up, though its float32 is the middle."""
    x = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, -1 - 2.0**-8 - 2.0**-40])
    np.testing.assert_array_equal(
        rule("Cast", 13, [x], {"to": 16}).outputs[0].astype(float), [1 + 2.0**-7, 1, -1 - 2.0**-7]
    )
    x = np.array([1 + 2.0**-4 + 2.0**-40, 1e300, -np.inf, np.nan])
    got = rule("Cast", 25, [x], {"to": 17}).outputs[0].astype(float)
    np.testing.assert_array_equal(got, [1.125, 448, -448, np.nan])
    got = rule("Cast", 25, [x], {"to": 19, "saturate": 0}).outputs[0].astype(float)
    np.testing.assert_array_equal(got[1:], [np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(rule("Cast", 25, [np.array(0.3)], {"to": 16}).outputs[0].shape, ())


def test_clip_gradients_of_the_bounds(rule) -> None:
    """As torch.clamp with tensor bounds."""
    arrays = [normal(4, 5), np.array(-0.3), np.array(0.4)]
    x, low, high = (leaf(a) for a in arrays)
    both(rule("Clip", 13, arrays), [x, low, high], torch.clamp(x, low, high))


def test_results_of_scalars_are_arrays(rule) -> None:
    """numpy turns 0-d results into scalars; rules never do (checked in the fixture)."""
    x = np.array(0.5, np.float32)
    for operator in ("Relu", "Sigmoid", "Neg", "Gelu", "Identity", "ReduceSum", "Softplus", "Erf", "Floor"):
        ran = rule(operator, 24, [x])
        assert ran.outputs[0].shape == () and ran.outputs[0].dtype == np.float32
        assert ran.gradients(np.array(1, np.float32))[0].shape == ()
    for operator in ("Add", "Mul", "Div", "Pow", "Max", "Mean"):
        ran = rule(operator, 15, [x, x])
        assert ran.outputs[0].dtype == np.float32
        assert all(g.shape == () for g in ran.gradients(np.array(1, np.float32)))
