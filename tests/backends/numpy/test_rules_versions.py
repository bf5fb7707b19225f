"""Older versions of operators, which the ONNX suite no longer runs, against expectations written by hand.

Every rule that is not the newest of its operator needs a row here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meta500.backends.numpy.operators import rules
from meta500.errors import UserError

G = np.random.default_rng(7)
A = G.standard_normal((2, 3, 4))
B4, B3, B34 = G.standard_normal(4), G.standard_normal(3), G.standard_normal((3, 4))
P = np.abs(A) + 0.5
M, N, C = G.standard_normal((3, 4)), G.standard_normal((4, 5)), G.standard_normal(5)
K = np.arange(24).reshape(2, 3, 4)
BITS = K % 3 == 0
ROW = np.array([True, False, True, True])
SCALE, SHIFT, MEAN, VAR = B3 + 2, B3 * 0.5, B3 * 0.1, np.abs(B3) + 0.3


def i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def flat_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """Softmax of the matrix whose columns are all axes from ``axis`` on."""
    rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
    e = np.exp(rows)
    return (e / e.sum(axis=1, keepdims=True)).reshape(x.shape)


def batch_norm(x: np.ndarray, mean: np.ndarray, var: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Normalised by statistics over ``axes``, then scale and shift of the channels."""

    def fit(v: np.ndarray) -> np.ndarray:
        return np.expand_dims(v, axes)

    return (x - fit(mean)) / np.sqrt(fit(var) + 1e-5) * fit(SCALE) + fit(SHIFT)


def trained(axes: tuple[int, ...], momentum: float) -> tuple[np.ndarray, ...]:
    mean, var = A.mean(axis=axes), A.var(axis=axes)
    return (
        batch_norm(A, mean, var, axes), MEAN * momentum + mean * (1 - momentum),
        VAR * momentum + var * (1 - momentum), mean, var,
    )  # fmt: skip


X9 = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
BN = (A, SCALE, SHIFT, MEAN, VAR)

# operator, since-version, inputs, attributes, expected outputs (as many as are asked for)
CASES: list[tuple[str, int, tuple[Any, ...], dict[str, Any], tuple[Any, ...]]] = [
    # Broadcasting of the second operand by attributes.
    ("Add", 1, (A, B4), {"broadcast": 1}, (A + B4,)),
    ("Add", 6, (A, B3), {"broadcast": 1, "axis": 1}, (A + B3[:, None],)),
    ("Add", 6, (A, B34), {"broadcast": 1, "axis": -2}, (A + B34,)),
    ("Add", 6, (A, A), {"consumed_inputs": (0, 0)}, (A + A,)),
    ("Sub", 6, (A, A[:, 0, 0]), {"broadcast": 1, "axis": 0}, (A - A[:, :1, :1],)),
    ("Mul", 1, (A, np.array([[2.0]])), {"broadcast": 1}, (A * 2,)),
    ("Mul", 6, (A, np.array(2.0)), {"broadcast": 1, "axis": 1}, (A * 2,)),
    ("Div", 6, (A, P[0, 0]), {"broadcast": 1}, (A / P[0, 0],)),
    ("Div", 6, (K - 9, i(2, 3, -4, 5)), {"broadcast": 1}, (np.trunc((K - 9) / i(2, 3, -4, 5)).astype(int),)),
    ("Pow", 1, (P, B4), {"broadcast": 1}, (P**B4,)),
    ("And", 1, (BITS, ROW), {"broadcast": 1}, (BITS & ROW,)),
    ("Or", 1, (BITS, ROW), {"broadcast": 1}, (BITS | ROW,)),
    ("Xor", 1, (BITS, ROW), {"broadcast": 1}, (BITS ^ ROW,)),
    ("Equal", 1, (K, i(0, 5, 2, 3)), {"broadcast": 1}, (np.equal(K, i(0, 5, 2, 3)),)),
    ("Greater", 1, (A, B4), {"broadcast": 1}, (A > B4,)),
    ("Less", 1, (A, B3), {"broadcast": 1, "axis": 1}, (B3[:, None] > A,)),
    ("Sum", 6, (A, A, A), {}, (3 * A,)),
    ("Mean", 1, (A, 3 * A), {}, (2 * A,)),
    ("Max", 6, (A, -A), {}, (np.abs(A),)),
    ("Min", 1, (A, -A), {}, (-np.abs(A),)),
    ("PRelu", 6, (A, B3), {}, (np.where(A < 0, A * B3[:, None], A),)),
    ("PRelu", 1, (A, np.array([0.2])), {}, (np.where(A < 0, A * 0.2, A),)),
    ("PRelu", 7, (A, B4), {}, (np.where(A < 0, A * B4, A),)),
    ("Selu", 1, (A,), {}, (np.where(A > 0, 1.0507 * A, 1.0507 * 1.6732 * (np.exp(A) - 1)),)),
    ("Clip", 1, (A,), {"max": 0.3}, (np.minimum(A, 0.3),)),
    ("Clip", 6, (A,), {"min": -0.2, "max": 0.3}, (np.clip(A, -0.2, 0.3),)),
    ("Gemm", 1, (M, N, M @ N), {"alpha": 2.0}, (3 * M @ N,)),
    ("Gemm", 6, (M.T, N.T, C), {"broadcast": 1, "transA": 1, "transB": 1, "beta": 0.5}, (M @ N + 0.5 * C,)),
    # Softmax over all axes from `axis` on.
    ("Softmax", 1, (A,), {}, (flat_softmax(A, 1),)),
    ("Softmax", 11, (A,), {"axis": -1}, (flat_softmax(A, 2),)),
    ("Softmax", 11, (A,), {"axis": 0}, (flat_softmax(A, 0),)),
    ("LogSoftmax", 1, (A,), {}, (np.log(flat_softmax(A, 1)),)),
    ("Hardmax", 1, (A,), {}, ((A.max(axis=(1, 2), keepdims=True) == A).astype(float),)),
    # Batch normalisation: the mode is is_test, then the number of outputs.
    ("BatchNormalization", 1, BN, {"is_test": 1, "consumed_inputs": (0, 0, 0, 1, 1)},
     (batch_norm(A, MEAN, VAR, (0, 2)),)),
    ("BatchNormalization", 6, BN, {"momentum": 0.8}, trained((0, 2), 0.8)),
    ("BatchNormalization", 7, BN, {}, (batch_norm(A, MEAN, VAR, (0, 2)),)),
    ("BatchNormalization", 9, BN, {}, trained((0, 2), 0.9)),
    ("BatchNormalization", 7, (A, P[0], A[1], A[0], P[1]), {"spatial": 0},
     ((A - A[0]) / np.sqrt(P[1] + 1e-5) * P[0] + A[1],)),
    ("BatchNormalization", 7, (A, P[0], A[1], A[0], P[1]), {"spatial": 0},
     ((A - A.mean(0)) / np.sqrt(A.var(0) + 1e-5) * P[0] + A[1], 0.9 * A[0] + 0.1 * A.mean(0),
      0.9 * P[1] + 0.1 * A.var(0), A.mean(0), A.var(0))),
    ("Dropout", 1, (A,), {"is_test": 1}, (A, np.ones_like(A))),
    ("Dropout", 7, (A,), {"ratio": 0.9}, (A, np.ones_like(A))),
    ("Dropout", 10, (A,), {"ratio": 0.9}, (A, np.ones(A.shape, bool))),
    ("Dropout", 12, (A,), {}, (A, np.ones(A.shape, bool))),
    # Shapes and axes as attributes.
    ("Reshape", 1, (A,), {"shape": (0, -1, 2)}, (A.reshape(2, 6, 2),)),
    ("Reshape", 5, (A, i(4, 0, -1)), {}, (A.reshape(4, 3, 2),)),
    ("Squeeze", 1, (A[:, :1],), {"axes": (1,)}, (A[:, 0],)),
    ("Squeeze", 11, (A[None, :, :1],), {}, (A[:, 0],)),
    ("Unsqueeze", 1, (A,), {"axes": (0, 4)}, (A[None, ..., None],)),
    ("Unsqueeze", 11, (A,), {"axes": (-1,)}, (A[..., None],)),
    ("Concat", 1, (A, A), {}, (np.concatenate([A, A], 1),)),
    ("Concat", 4, (A, A), {"axis": 2}, (np.concatenate([A, A], 2),)),
    ("Split", 1, (A,), {"axis": 2}, (A[..., :2], A[..., 2:])),
    ("Split", 1, (A, np.array([1.0, 3.0])), {"axis": 2}, (A[..., :1], A[..., 1:])),
    ("Split", 1, (A,), {"axis": 2, "split": (3, 1)}, (A[..., :3], A[..., 3:])),
    ("Split", 2, (A,), {}, (A[:1], A[1:])),
    ("Split", 11, (A,), {"axis": -1, "split": (1, 1, 2)}, (A[..., :1], A[..., 1:2], A[..., 2:])),
    ("Split", 13, (A, i(1, 3)), {"axis": 2}, (A[..., :1], A[..., 1:])),
    ("Split", 13, (A,), {"axis": 1}, (A[:, :1], A[:, 1:2], A[:, 2:])),
    ("Slice", 1, (A,), {"starts": (1, -3), "ends": (100, -1), "axes": (1, 2)}, (A[:, 1:, 1:3],)),
    ("Slice", 1, (A,), {"starts": (1,), "ends": (2,)}, (A[1:],)),
    ("Slice", 10, (A, i(2, 10), i(0, -5), i(1, 2), i(-1, -2)), {}, (A[:, 2:0:-1, 3::-2],)),
    ("Tile", 1, (A, np.array([2.0]), np.array([1.0])), {}, (np.concatenate([A, A], 1),)),
    ("Pad", 1, (M,), {"paddings": (0, 1, 2, 0), "value": 1.5},
     (np.pad(M, [(0, 2), (1, 0)], constant_values=1.5),)),
    ("Pad", 2, (M,), {"pads": (0, -1, 2, 0), "mode": "edge"}, (np.pad(M[:, 1:], [(0, 2), (0, 0)], mode="edge"),)),
    ("Pad", 11, (M, i(1, 1, 1, 0), np.array(2.0)), {}, (np.pad(M, [(1, 1), (1, 0)], constant_values=2),)),
    ("Pad", 13, (M, i(1, 2, 1, 0)), {"mode": "reflect"}, (np.pad(M, [(1, 1), (2, 0)], mode="reflect"),)),
    ("Cast", 1, (A,), {"to": "FLOAT"}, (A.astype(np.float32),)),
    ("Cast", 1, (A,), {"to": "INT32"}, (A.astype(np.int32),)),
    ("Cast", 6, (A,), {"to": 9}, (np.ones(A.shape, bool),)),
    # Resampling.
    ("Upsample", 1, (X9,), {"height_scale": 2.0, "width_scale": 3.0},
     (X9.repeat(2, axis=2).repeat(3, axis=3),)),
    ("Upsample", 7, (X9,), {"scales": (1.0, 1.0, 1.0, 2.0), "mode": "linear"},
     (np.array([[[[1, 1.5, 2, 2], [3, 3.5, 4, 4]]]]),)),
    ("Upsample", 7, (X9,), {"scales": (1.0, 1.0, 1.0, 1.5)}, (np.array([[[[1.0, 1, 2], [3, 3, 4]]]]),)),
    ("Upsample", 9, (X9, np.array([1, 1, 2, 2.0])), {"mode": "linear"},
     (np.array([[[[1, 1.5, 2, 2], [2, 2.5, 3, 3], [3, 3.5, 4, 4], [3, 3.5, 4, 4]]]]),)),
    ("Resize", 10, (np.arange(1.0, 9).reshape(1, 1, 2, 4), np.array([1, 1, 0.6, 0.6], np.float32)), {},
     (np.array([[[[1.0, 3.0]]]]),)),
    ("Resize", 10, (np.arange(1.0, 9).reshape(1, 1, 2, 4), np.array([1, 1, 0.6, 0.6])), {"mode": "linear"},
     (np.array([[[[1, 1 + 1 / 0.6]]]]),)),
    ("Resize", 11, (np.arange(4.0), None, None, i(2)),
     {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}, (np.array([1.0, 3.0]),)),
    # Reductions over axes given as attribute.
    ("ReduceSum", 1, (A,), {"axes": (0, -1), "keepdims": 0}, (A.sum((0, 2)),)),
    ("ReduceMean", 11, (A,), {"axes": (1,)}, (A.mean(1, keepdims=True),)),
    ("ReduceMax", 12, (A,), {}, (A.max(keepdims=True),)),
    ("ReduceMin", 13, (A,), {"keepdims": 0}, (A.min(),)),
    ("ReduceProd", 1, (A,), {"axes": (2,)}, (A.prod(2, keepdims=True),)),
    ("ReduceL1", 13, (A,), {"axes": (-1,)}, (np.abs(A).sum(2, keepdims=True),)),
    ("ReduceL2", 11, (A,), {"axes": (0,), "keepdims": 0}, (np.sqrt((A * A).sum(0)),)),
    ("ReduceLogSum", 1, (P,), {"axes": (1,)}, (np.log(P.sum(1, keepdims=True)),)),
    ("ReduceLogSumExp", 13, (A,), {"axes": (1,)}, (np.log(np.exp(A).sum(1, keepdims=True)),)),
    ("ReduceSumSquare", 1, (A,), {"axes": (1, 2)}, ((A * A).sum((1, 2), keepdims=True),)),
    ("LpPool", 1, (A,), {"kernel_shape": (2,), "p": 1.0}, (np.abs(A[..., 1:]) + np.abs(A[..., :-1]),)),
    ("GlobalLpPool", 1, (A,), {"p": 2.0}, (np.sqrt((A * A).sum(2, keepdims=True)),)),
    ("GlobalLpPool", 22, (A,), {"p": 3}, (np.cbrt((np.abs(A) ** 3).sum(2, keepdims=True)),)),
    ("Constant", 1, (), {"value": A}, (A,)),
    ("ArgMax", 11, (A,), {"axis": 1, "keepdims": 0}, (A.argmax(1),)),
    ("Shape", 13, (A,), {}, (i(2, 3, 4),)),
]  # fmt: skip


def _label(case: tuple[Any, ...]) -> str:
    return f"{case[0]}-{case[1]}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", [pytest.param(c, id=_label(c)) for c in CASES])
def test_version(rule, case) -> None:
    operator, since, inputs, attributes, expected = case
    ran = rule(operator, since, inputs, attributes, n_outputs=len(expected))
    for got, wanted in zip(ran.outputs, expected, strict=False):
        wanted = np.asarray(wanted)
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-6 if operator == "Resize" else 1e-13, atol=1e-14)


def test_every_older_rule_has_a_case(network_tested) -> None:
    tested = {(c[0], rules.find("", c[0], c[1]).since) for c in CASES}
    newest = {(e.domain, e.op_type): e.since for e in rules}
    for entry in rules:
        if entry.since < newest[entry.domain, entry.op_type]:
            known = (entry.op_type, entry.since) in tested or network_tested(entry.op_type)
            assert known, f"no case for {entry.op_type} {entry.since}"


# What a version does not allow or leaves undefined is refused: part of the message.
REFUSALS: list[tuple[str, int, tuple[Any, ...], dict[str, Any], int, str]] = [
    ("Add", 6, (A, B4), {}, 1, "broadcast is 0"),
    ("Add", 6, (A, B3), {"broadcast": 1}, 1, "no part"),
    ("Mul", 1, (A, np.ones((2, 1))), {"broadcast": 1, "axis": 1}, 1, "no part"),
    ("Add", 6, (A, B3), {"broadcast": 1, "axis": 3}, 1, "axis 3"),
    ("Sum", 6, (A, B4), {}, 1, "must be equal"),
    ("Gemm", 6, (M, N, C), {}, 1, "broadcast is 0"),
    ("Gemm", 13, (M, M), {}, 1, "inner dimensions"),
    ("Gemm", 13, (M, N, np.ones((2, 5))), {}, 1, "does not broadcast"),
    ("Gemm", 13, (K[0], K[0].T), {"alpha": 0.5}, 1, "no defined rounding"),
    ("MatMul", 13, (M, M), {}, 1, "do not fit"),
    ("PRelu", 6, (A, B4), {}, 1, "one per channel"),
    ("PRelu", 16, (B4, A), {}, 1, "does not broadcast"),
    ("Div", 14, (K, K), {}, 1, "division by zero"),
    ("Pow", 15, (K, i(-1)), {}, 1, "negative integer power"),
    ("BatchNormalization", 6, BN, {}, 1, "is_test=0 with 1 output"),
    ("BatchNormalization", 1, BN, {"is_test": 1}, 5, "is_test=1 with 5 output"),
    ("BatchNormalization", 15, BN, {}, 3, "training_mode is 0"),
    ("BatchNormalization", 15, (A, B4, SHIFT, MEAN, VAR), {}, 1, "scale has shape"),
    ("LayerNormalization", 17, (A, B4), {"stash_type": 16}, 1, "stash_type 16"),
    ("LayerNormalization", 17, (A, B3), {}, 1, "does not broadcast"),
    ("InstanceNormalization", 22, (A, B4, B4), {}, 1, "one entry per channel"),
    ("Dropout", 13, (A, np.array(1.0), np.array(True)), {}, 1, "outside"),
    ("Clip", 13, (A, B4), {}, 1, "expected a scalar"),
    ("Reshape", 25, (A, i(0, 0, 0, 0)), {}, 1, "lacks"),
    ("Reshape", 25, (A, i(-1, -1)), {}, 1, "cannot become"),
    ("Reshape", 25, (A, i(5, -1)), {}, 1, "cannot become"),
    ("Reshape", 25, (A[:0], i(0, -1)), {"allowzero": 1}, 1, "cannot become"),
    ("Squeeze", 13, (A, i(0)), {}, 1, "not all 1"),
    ("Squeeze", 13, (A, i(3)), {}, 1, "axis 3"),
    ("Unsqueeze", 13, (A, i(0, -5)), {}, 1, "twice"),
    ("Transpose", 13, (A,), {"perm": (0, 1)}, 1, "no permutation"),
    ("Concat", 13, (A, A[:1]), {"axis": 1}, 1, "differ outside"),
    ("Split", 1, (A,), {}, 2, "no default axis"),
    ("Split", 2, (A,), {"axis": 1}, 2, "not divisible"),
    ("Split", 13, (A, i(1, 1)), {"axis": 1}, 2, "add up"),
    ("Split", 18, (A,), {}, 2, "exactly one"),
    ("Split", 18, (A, i(1, 1)), {"num_outputs": 2}, 2, "exactly one"),
    ("Split", 18, (np.ones(5),), {"num_outputs": 4}, 4, "add up"),
    ("Slice", 13, (A, i(0), i(1), i(0), i(0)), {}, 1, "step is 0"),
    ("Slice", 13, (A, i(0, 0), i(1)), {}, 1, "2 starts, 1 ends"),
    ("Gather", 13, (A, i(2)), {}, 1, "index 2"),
    ("Expand", 13, (A, i(3)), {}, 1, "does not broadcast"),
    ("Tile", 13, (A, i(1, 2)), {}, 1, "one entry"),
    ("Pad", 18, (A, i(1, 1, 1, 1, 1, 1)), {"mode": "wrap"}, 1, "constant, edge, reflect"),
    ("Pad", 13, (A, i(1, 1)), {}, 1, "two per axis"),
    ("Pad", 19, (B4, i(-2, 3)), {"mode": "wrap"}, 1, "which comes first"),
    ("Pad", 19, (B4, i(-2, 3)), {"mode": "reflect"}, 1, "which comes first"),
    ("Pad", 19, (B4, i(-3, -2)), {}, 1, "cut more"),
    ("Pad", 19, (B4[:0], i(0, 1)), {"mode": "edge"}, 1, "no elements left"),
    ("Pad", 19, (B4, i(0, 1), B4), {}, 1, "expected one value"),
    ("Constant", 13, (), {"value_int": 1, "value_float": 1.0}, 1, "exactly one"),
    ("Constant", 13, (), {"sparse_value": object()}, 1, "sparse"),
    ("ConstantOfShape", 9, (i(2, -1),), {}, 1, "no negative"),
    ("Cast", 9, (A,), {"to": 14}, 1, "complex64"),
    ("Cast", 9, (np.array(["a"], object),), {"to": 1}, 1, "'a' is no number"),
    ("Upsample", 9, (X9, np.array([1, 1, 0.5, 1])), {}, 1, "at least 1"),
    ("Upsample", 1, (A,), {"height_scale": 2.0, "width_scale": 2.0}, 1, "version 1 takes images"),
    ("Resize", 13, (A, None, np.ones(3), i(2, 3, 4)), {}, 1, "exactly one"),
    ("Resize", 13, (A, None, np.ones(2)), {}, 1, "one entry"),
    ("Resize", 13, (A, None, np.ones(3)), {"coordinate_transformation_mode": "half_pixel_symmetric"}, 1, "Choose"),
    ("Resize", 13, (A, None, np.ones(3)), {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, 1, "Choose"),
    ("Resize", 13, (A, None, np.ones(3)), {"coordinate_transformation_mode": "tf_crop_and_resize"}, 1, "roi"),
    ("Resize", 19, (K, None, np.ones(3)), {"mode": "linear"}, 1, "no defined rounding"),
    ("Resize", 19, (A, None, np.ones(3)), {"antialias": 1}, 1, "antialias"),
    ("Resize", 19, (A, None, None, i(0, 3, 4)), {}, 1, "above 0"),
    ("ReduceSum", 13, (A, i(3)), {}, 1, "axis 3"),
    ("ReduceSum", 13, (A, i(0, -3)), {}, 1, "twice"),
    ("ReduceMean", 18, (K[:0],), {}, 1, "undefined"),
    ("ReduceLogSum", 13, (K[:0],), {}, 1, "not finite"),
    ("ArgMax", 13, (A[:0],), {}, 1, "empty"),
    ("LpPool", 1, (A,), {}, 1, "kernel_shape"),
    ("LpPool", 22, (A,), {"kernel_shape": (2,), "p": 0}, 1, "p is 0"),
    ("Gelu", 20, (A,), {"approximate": "fast"}, 1, "none, tanh"),
    ("SoftmaxCrossEntropyLoss", 13, (M, i(0, 4, 1)), {}, 1, "label 4"),
    ("SoftmaxCrossEntropyLoss", 13, (M, i(0, 9, -1)), {"ignore_index": 9}, 1, "label -1"),
    ("SoftmaxCrossEntropyLoss", 13, (M, i(0, 1)), {}, 1, "need labels of shape"),
    ("SoftmaxCrossEntropyLoss", 13, (M, i(0, 1, 1), C), {}, 1, "weights have shape"),
    ("NegativeLogLikelihoodLoss", 22, (M, i(0, 1, 1)), {"reduction": "max"}, 1, "mean, none, sum"),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c[0]}-{c[1]}-{c[5]}") for c in REFUSALS])
def test_refusal(rule, case) -> None:
    operator, since, inputs, attributes, n_outputs, words = case
    with pytest.raises(UserError, match=words):
        rule(operator, since, inputs, attributes, n_outputs=n_outputs)


def test_mean_squared_error_refuses_broadcasting(rule) -> None:
    with pytest.raises(UserError, match="must be equal"):
        rule("MeanSquaredError", 1, [M, C], domain="meta500")
