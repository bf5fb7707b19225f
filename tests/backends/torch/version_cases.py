"""Hand-written cases for operator versions that ONNX's node cases do not cover, and for own operators.

Expected values are computed in float64 numpy from the text of each version. Loaded with ``runpy``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

_RNG = np.random.default_rng(500)


@dataclass(frozen=True)
class Case:
    """Inputs and attributes of one operator version and the outputs that its text asks for."""

    op_type: str
    version: int
    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    expected: tuple[np.ndarray, ...]
    domain: str = ""
    note: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """Test identifier."""
        return "-".join(filter(None, (self.op_type, str(self.version), self.note.replace(" ", "_"))))


CASES: list[Case] = []


def _case(
    op_type: str,
    version: int,
    inputs: tuple[Any, ...],
    expected: np.ndarray | tuple[np.ndarray, ...],
    note: str = "",
    domain: str = "",
    **attributes: Any,
) -> None:
    outputs = expected if isinstance(expected, tuple) else (expected,)
    CASES.append(Case(op_type, version, inputs, attributes, outputs, domain, note))


def _normal(*shape: int) -> np.ndarray:
    return _RNG.normal(size=shape)


def _positive(*shape: int) -> np.ndarray:
    return _RNG.uniform(0.5, 2.0, size=shape)


X, SAME, SUFFIX, MIDDLE = _normal(2, 3, 4, 5), _positive(2, 3, 4, 5), _positive(4, 5), _positive(3, 4)
FIRST, ONE = _positive(2), _positive(1, 1)

# The broadcasting of versions 1 and 6: suffix, or a run of axes starting at `axis`, or one element.
_BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
for _name, _function in _BINARY.items():
    _left = SAME if _name == "Pow" else X
    for _version in (1,) if _name == "Pow" else (1, 6):
        _case(_name, _version, (_left, SAME), _function(_left, SAME), "same shape")
        _case(_name, _version, (_left, SUFFIX), _function(_left, SUFFIX), "suffix", broadcast=1)
        _case(
            _name,
            _version,
            (_left, MIDDLE),
            _function(_left, MIDDLE[:, :, None]),
            "axis 1",
            broadcast=1,
            axis=1,
        )
        _case(
            _name,
            _version,
            (_left, FIRST),
            _function(_left, FIRST[:, None, None, None]),
            "axis 0",
            broadcast=1,
            axis=0,
        )
        _case(_name, _version, (_left, ONE), _function(_left, ONE[0, 0]), "one element", broadcast=1)

_INTS, _ROW = np.arange(-6, 6).reshape(3, 4), np.array([-3, 0, 1, 3])
for _name, _function in {"Equal": np.equal, "Greater": np.greater, "Less": np.less}.items():
    _case(_name, 1, (_INTS, _INTS.T.copy().reshape(3, 4)), _function(_INTS, _INTS.T.reshape(3, 4)))
    _case(_name, 1, (_INTS, _ROW), _function(_INTS, _ROW), "suffix", broadcast=1)
    _column = np.array([-4, 0, 4])
    _case(_name, 1, (_INTS, _column), _function(_INTS, _column[:, None]), "axis 0", broadcast=1, axis=0)
_TRUTH = np.array([[True, False, True, False], [True, True, False, False]])
for _name, _function in {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}.items():
    _case(_name, 1, (_TRUTH, ~_TRUTH[::-1]), _function(_TRUTH, ~_TRUTH[::-1]))
    _case(_name, 1, (_TRUTH, _TRUTH[1]), _function(_TRUTH, _TRUTH[1]), "suffix", broadcast=1)

A, B, C = _normal(3, 4), _normal(3, 4), _normal(3, 4)
for _version in (1, 6):
    _case("Sum", _version, (A, B, C), A + B + C)
    _case("Mean", _version, (A, B, C), (A + B + C) / 3)
    _case("Max", _version, (A, B, C), np.maximum(np.maximum(A, B), C))
    _case("Min", _version, (A, B, C), np.minimum(np.minimum(A, B), C))

_case(
    "Selu",
    1,
    (A,),
    np.where(A > 0, 1.0506999492645264 * A, 1.0506999492645264 * 1.673200011253357 * np.expm1(A)),
)
_case("PRelu", 1, (X, np.array([0.3])), np.where(X < 0, 0.3 * X, X), "one slope")
_slopes = np.array([0.1, 0.2, -0.3])
_case("PRelu", 6, (X, _slopes), np.where(X < 0, _slopes[:, None, None] * X, X), "per channel")
_case("Clip", 1, (A,), np.clip(A, -0.5, 0.25), min=-0.5, max=0.25)
_case("Clip", 6, (A,), np.clip(A, -0.5, None), "low only", min=-0.5)
_case(
    "Clip", 6, (np.array([-np.inf, 1e300]),), np.array([-1, 1]) * float(np.finfo(np.float32).max), "defaults"
)
_HALF = np.array([-3, 7, 60000], np.float16)
_case("Clip", 6, (_HALF,), _HALF, "float16 defaults")


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    matrix = x.reshape(int(np.prod(x.shape[:axis])), -1)
    powers = np.exp(matrix - matrix.max(1, keepdims=True))
    return (powers / powers.sum(1, keepdims=True)).reshape(x.shape)


for _version in (1, 11):
    _case("Softmax", _version, (X,), _softmax(X, 1), "default axis")
    _case("Softmax", _version, (X,), _softmax(X, 2), "axis 2", axis=2)
    _case("LogSoftmax", _version, (X,), np.log(_softmax(X, 1)), "default axis")
    _case("LogSoftmax", _version, (X,), np.log(_softmax(X, 0)), "axis 0", axis=0)
_case("Softmax", 11, (X,), _softmax(X, 3), "last axis", axis=-1)
_case("LogSoftmax", 11, (X,), np.log(_softmax(X, 2)), "axis -2", axis=-2)

M, N, BIAS, FULL = _normal(3, 4), _normal(4, 5), _normal(5), _normal(3, 5)
for _version in (1, 6):
    _case("Gemm", _version, (M, N, FULL), M @ N + FULL)
    _case(
        "Gemm", _version, (M, N, BIAS), 0.5 * M @ N + 2 * BIAS, "broadcast", broadcast=1, alpha=0.5, beta=2.0
    )
    _case("Gemm", _version, (M.T.copy(), N.T.copy(), FULL), M @ N + FULL, "transposed", transA=1, transB=1)

_case("Concat", 1, (A, B), np.concatenate([A, B], 1), "default axis")
_case("Concat", 1, (A, B), np.concatenate([A, B], 0), "axis 0", axis=0)
_case("Reshape", 1, (X,), X.reshape(2, 3, 20), shape=(0, 3, -1))
_case("Slice", 1, (X,), X[1:, :, 1:-1], starts=(1, 1), ends=(2**31 - 1, -1), axes=(0, 2))
_case("Slice", 1, (X,), X[0:1, 1:3], "no axes", starts=(0, 1), ends=(1, 3))
_case("Squeeze", 1, (X[:, None],), X, axes=(1,))
_case("Squeeze", 1, (X[:, None, :, None],), X, "all")
_case("Unsqueeze", 1, (X,), X[None, :, :, :, :, None], axes=(5, 0))
_case("Split", 1, (X,), (X[:, :1], X[:, 1:]), "attribute", axis=1, split=(1, 2))
_case("Split", 1, (X, np.array([2.0, 3.0])), (X[..., :2], X[..., 2:]), "input", axis=3)
_case("Split", 1, (X,), (X[:1], X[1:]), "equal", axis=0)
for _version in (2, 11):
    _case("Split", _version, (X,), (X[:1], X[1:]), "default axis")
    _case("Split", _version, (X,), (X[:, :, :3], X[:, :, 3:]), "lengths", axis=2, split=(3, 1))
_case("Tile", 1, (A, np.array(3.0), np.array(1.0)), np.tile(A, (1, 3)))
_case("Cast", 1, (np.array([1.7, -2.9]),), np.array([1, -2], np.int32), to="INT32")
_case("Cast", 1, (A.astype(np.float32),), A.astype(np.float32).astype(np.float64), "wider", to="DOUBLE")
_case("Cast", 1, (A,), A, "same", to="DOUBLE")
_case("Cast", 1, (np.array([0, 3]),), np.array([False, True]), "bool", to="BOOL")
_case("Pad", 1, (A,), np.pad(A, ((1, 2), (0, 3)), constant_values=1.5), paddings=(1, 0, 2, 3), value=1.5)
for _mode in ("reflect", "edge"):
    _case("Pad", 1, (A,), np.pad(A, ((1, 2), (0, 3)), _mode), _mode, paddings=(1, 0, 2, 3), mode=_mode)
    _case("Pad", 2, (A,), np.pad(A, ((1, 2), (0, 3)), _mode), _mode, pads=(1, 0, 2, 3), mode=_mode)
_case(
    "Pad",
    2,
    (A,),
    np.pad(A[:, 1:], ((0, 2), (0, 0)), constant_values=-1),
    "negative",
    pads=(0, -1, 2, 0),
    value=-1.0,
)
_case("Pad", 11, (A, np.array([1, 0, 0, 1]), np.array(2.0)), np.pad(A, ((1, 0), (0, 1)), constant_values=2.0))
_case("Dropout", 1, (A,), A, "test", is_test=1, ratio=0.9)
_case("Dropout", 6, (A,), A, "test", is_test=1)
_case("Dropout", 7, (A,), (A, np.ones_like(A)), "float mask", ratio=0.9)
_case("Dropout", 10, (A,), (A, np.ones_like(A, bool)), "bool mask", ratio=0.9)

_REDUCTIONS = {
    "ReduceMean": np.mean,
    "ReduceSum": np.sum,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
}
for _name, _function in _REDUCTIONS.items():
    for _version in (1, 11) if _name == "ReduceSum" else (1, 13):
        _case(_name, _version, (SAME,), _function(SAME, keepdims=True), "all")
        _case(_name, _version, (SAME,), _function(SAME, axis=(1, 3)), "two axes", axes=(3, 1), keepdims=0)
        _case(_name, _version, (SAME,), _function(SAME, axis=2, keepdims=True), "negative axis", axes=(-2,))

SCALE, SHIFT, MEAN, VAR = _normal(3), _normal(3), _normal(3), _positive(3)
EPSILON, MOMENTUM = 9.999999747378752e-06, 0.8999999761581421


def _channels(v: np.ndarray) -> np.ndarray:
    return v[:, None, None]


def _normalized(mean: np.ndarray, var: np.ndarray, epsilon: float = EPSILON) -> np.ndarray:
    return _channels(SCALE) * (X - _channels(mean)) / np.sqrt(_channels(var) + epsilon) + _channels(SHIFT)


_BATCH_MEAN, _BATCH_VAR = X.mean((0, 2, 3)), X.var((0, 2, 3))
_STATISTICS = (SCALE, SHIFT, MEAN, VAR)


def _running(momentum: float) -> tuple[np.ndarray, np.ndarray]:
    return (
        MEAN * momentum + _BATCH_MEAN * (1 - momentum),
        VAR * momentum + _BATCH_VAR * (1 - momentum),
    )


_TRAINED = (_normalized(_BATCH_MEAN, _BATCH_VAR), *_running(MOMENTUM), _BATCH_MEAN, _BATCH_VAR)
for _version in (1, 6):
    _case("BatchNormalization", _version, (X, *_STATISTICS), _normalized(MEAN, VAR), "test", is_test=1)
    _case("BatchNormalization", _version, (X, *_STATISTICS), _TRAINED, "training")
for _version in (7, 9):
    _case("BatchNormalization", _version, (X, *_STATISTICS), _normalized(MEAN, VAR, 0.1), "test", epsilon=0.1)
    _case("BatchNormalization", _version, (X, *_STATISTICS), _TRAINED, "training")
    _case("BatchNormalization", _version, (X, *_STATISTICS), _TRAINED[:3], "three outputs")
_EACH = tuple(_positive(3, 4, 5) for _ in range(4))
_case(
    "BatchNormalization",
    7,
    (X, *_EACH),
    _EACH[0] * (X - _EACH[2]) / np.sqrt(_EACH[3] + EPSILON) + _EACH[1],
    "not spatial",
    spatial=0,
)
_EACH_MEAN, _EACH_VAR = X.mean(0), X.var(0)
_case(
    "BatchNormalization",
    1,
    (X, *_EACH),
    (
        _EACH[0] * (X - _EACH_MEAN) / np.sqrt(_EACH_VAR + EPSILON) + _EACH[1],
        _EACH[2] * 0.75 + _EACH_MEAN * 0.25,
        _EACH[3] * 0.75 + _EACH_VAR * 0.25,
        _EACH_MEAN,
        _EACH_VAR,
    ),
    "not spatial training",
    spatial=0,
    momentum=0.75,
)
for _version in (14, 15):
    _case("BatchNormalization", _version, (X, *_STATISTICS), _TRAINED[:3], "training", training_mode=1)

_IMAGE = _normal(1, 2, 3, 4)
_TWICE = _IMAGE.repeat(2, 2).repeat(3, 3)


def _asymmetric_linear(x: np.ndarray, axis: int, out: int, scale: float) -> np.ndarray:
    place = np.arange(out) / scale
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    weight = (place - low).reshape(shape)
    return x.take(low, axis) * (1 - weight) + x.take(high, axis) * weight


_LINEAR = _asymmetric_linear(_asymmetric_linear(_IMAGE, 2, 6, 2.0), 3, 12, 3.0)
_SCALES = np.array([1, 1, 2, 3], np.float32)
_case("Upsample", 1, (_IMAGE,), _TWICE, height_scale=2.0, width_scale=3.0)
_case("Upsample", 1, (_IMAGE,), _LINEAR, "bilinear", height_scale=2.0, width_scale=3.0, mode="bilinear")
_case("Upsample", 7, (_IMAGE,), _TWICE, scales=(1.0, 1.0, 2.0, 3.0))
_case("Upsample", 7, (_IMAGE,), _LINEAR, "linear", scales=(1.0, 1.0, 2.0, 3.0), mode="linear")
_case("Upsample", 9, (_IMAGE, _SCALES), _LINEAR, "linear", mode="linear")
_case("Resize", 10, (_IMAGE, _SCALES), _TWICE)
_case("Resize", 10, (_IMAGE, _SCALES), _LINEAR, "linear", mode="linear")
_SHRINK = np.array([1, 1, 0.5, 0.75], np.float32)
# As the case of that release: 1 3 of 1 2 3 4 at scale 0.6. The text leaves the neighbour open.
_case("Resize", 10, (_IMAGE, _SHRINK), _IMAGE[:, :, :1][..., [0, 2, 3]], "down")
_case(
    "Resize",
    10,
    (_IMAGE, np.array([1, 1, 0.5, 2], np.float32)),
    _IMAGE[:, :, :1].repeat(2, -1),
    "down and up",
)
for _version in (11, 13):
    _none = np.zeros(0, np.float32)
    _case("Resize", _version, (_IMAGE, _none, _SCALES), _TWICE, "scales")
    _case("Resize", _version, (_IMAGE, _none, _none, np.array([1, 2, 6, 12])), _TWICE, "sizes")
    _case(
        "Resize",
        _version,
        (_IMAGE, None, None, np.array([1, 2, 6, 12])),
        _LINEAR,
        "linear",
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    )
# (x + 0.5) / scale rounded down: the element whose interval holds the centre.
_case(
    "Resize",
    11,
    (_IMAGE, _none, np.array([1, 1, 1, 0.5], np.float32)),
    _IMAGE[..., [1, 3]],
    "tf half pixel",
    coordinate_transformation_mode="tf_half_pixel_for_nn",
    nearest_mode="floor",
)

P, T = _normal(2, 3), _normal(2, 3)
for _reduction, _wanted in {
    "mean": np.mean((P - T) ** 2),
    "sum": np.sum((P - T) ** 2),
    "none": (P - T) ** 2,
}.items():
    _case("MeanSquaredError", 1, (P, T), np.asarray(_wanted), _reduction, "meta500", reduction=_reduction)
_case("MeanSquaredError", 1, (P, T), np.asarray(np.mean((P - T) ** 2)), "default", "meta500")
