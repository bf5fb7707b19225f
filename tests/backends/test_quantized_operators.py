"""Quantization and quantized products on both backends against exact fractions, Python integers and, where it is
installed, ONNX Runtime."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

import meta500
from meta500.errors import UserError

BACKENDS = ["numpy", "torch"]
RNG = np.random.default_rng(11)


def proto(
    op_type: str, inputs: dict[str, np.ndarray], outputs: dict[str, Any], opset: int, attributes: dict
) -> Any:
    def info(name: str, dtype: Any, shape: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    node = helper.make_node(op_type, list(inputs), list(outputs), **attributes)
    given = [info(n, a.dtype, a.shape) for n, a in inputs.items()]
    graph = helper.make_graph([node], op_type, given, [info(n, t, None) for n, t in outputs.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(
    backend: str,
    op_type: str,
    inputs: dict[str, np.ndarray],
    dtype: Any,
    opset: int = 21,
    native: bool = True,
    **attributes: Any,
) -> np.ndarray:
    model = meta500.load(proto(op_type, inputs, {"y": dtype}, opset, attributes))
    with meta500.network(model, backend=backend) as net:
        assert net.coverage()[0].how == ("native" if native or backend == "numpy" else "host")
        y = net.inference(inputs)["y"]
    assert y.dtype == dtype
    return y


def runtime(
    op_type: str, inputs: dict[str, np.ndarray], outputs: dict[str, Any], **attributes: Any
) -> list[np.ndarray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = proto(op_type, inputs, outputs, 21, attributes).SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)


def quantized(x: float, scale: float, zero: int, low: int, high: int) -> int:
    """The text's formula with fractions, which round half to even; the quotient is one of float32."""
    quotient = np.float32(x) / np.float32(scale)
    return min(max(round(Fraction(float(quotient))) + zero, low), high)


LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}
LIMITS |= {"uint4": (0, 15), "int4": (-8, 7), "uint2": (0, 3), "int2": (-2, 1)}


def element(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name) if name[-1] in "24" else name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", LIMITS)
def test_quantize_rounds_half_to_even_and_saturates(backend, name) -> None:
    low, high = LIMITS[name]
    x = np.concatenate([np.arange(-9, 9) / 4, RNG.normal(size=50) * (high - low), [1e30, -1e30]]).astype(
        np.float32
    )
    zero = (low + high) // 2
    dtype = element(name)
    inputs = {"x": x, "s": np.float32(0.5), "z": np.array(zero).astype(dtype)}
    inputs = {n: np.asarray(a) for n, a in inputs.items()}
    y = run(backend, "QuantizeLinear", inputs, dtype, 25, native=name[-1] not in "24")
    assert y.astype(int).tolist() == [quantized(v, 0.5, zero, low, high) for v in x]
    back = run(backend, "DequantizeLinear", {**inputs, "x": y}, np.float32, 25, native=name[-1] not in "24")
    np.testing.assert_array_equal(back, (y.astype(np.float32) - zero) * np.float32(0.5))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "scale", "axis", "block"),
    [
        ((3, 4), (), 1, 0),
        ((3, 4), (1,), 1, 0),
        ((3, 4), (4,), 1, 0),
        ((3, 4), (3,), -2, 0),
        ((2, 5, 3), (2, 3, 3), 1, 2),
    ],
)
def test_granularities(backend, shape, scale, axis, block) -> None:
    x = (RNG.normal(size=shape) * 20).astype(np.float32)
    s = RNG.uniform(0.1, 0.5, size=scale).astype(np.float32)
    z = RNG.integers(-20, 20, size=scale).astype(np.int8)
    full = {
        (): lambda p, i: p[()],
        (1,): lambda p, i: p[0],
        (4,): lambda p, i: p[i[1]],
        (3,): lambda p, i: p[i[0]],
    }
    pick = full.get(scale, lambda p, i: p[i[0], i[1] // 2, i[2]])
    inputs = {"x": x, "s": s, "z": z}
    y = run(backend, "QuantizeLinear", inputs, np.int8, axis=axis, block_size=block)
    back = run(backend, "DequantizeLinear", {**inputs, "x": y}, np.float32, axis=axis, block_size=block)
    for index in np.ndindex(shape):
        scaled, zero = float(pick(s, index)), int(pick(z, index))
        assert int(y[index]) == quantized(x[index], scaled, zero, -128, 127)
        assert back[index] == np.float32(int(y[index]) - zero) * np.float32(scaled)


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_dtype_precision_and_scales_of_other_types(backend) -> None:
    x = np.array([1.0, 2.5, -3.0, 1000.0], np.float32)
    scale = np.array(0.1, np.float16)
    y = run(backend, "QuantizeLinear", {"x": x, "s": scale}, np.int16, 23, output_dtype=TensorProto.INT16)
    half = (x.astype(np.float16) / scale).astype(np.float64)
    assert y.tolist() == np.rint(half).tolist()
    y = run(
        backend, "QuantizeLinear", {"x": x, "s": scale}, np.int16, 23,
        output_dtype=TensorProto.INT16, precision=TensorProto.FLOAT,
    )  # fmt: skip
    assert y.tolist() == np.rint((x / np.float32(scale)).astype(np.float64)).tolist()
    whole = np.array([7, -3, 2**24 + 1], np.int32)
    y = run(backend, "DequantizeLinear", {"x": whole, "s": np.array(0.5, np.float32)}, np.float32, 23)
    assert y.tolist() == [3.5, -1.5, 2.0**23]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_eight_bit_floats(backend, name) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    x = np.concatenate([RNG.normal(size=300) * 50, [1e6, -1e6, 0]]).astype(np.float32)
    inputs = {"x": x, "s": np.array(0.3, np.float32), "z": np.zeros((), dtype)}
    y = run(backend, "QuantizeLinear", inputs, dtype)
    largest = float(ml_dtypes.finfo(dtype).max)
    expected = np.clip(x / np.float32(0.3), -largest, largest).astype(dtype)
    np.testing.assert_array_equal(y.view(np.uint8), expected.view(np.uint8))
    back = run(backend, "DequantizeLinear", {**inputs, "x": y}, np.float32)
    np.testing.assert_array_equal(back, y.astype(np.float32) * np.float32(0.3))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block", [0, 2])
def test_gradient_of_the_scale(backend, block) -> None:
    x = RNG.integers(-100, 100, size=(3, 4)).astype(np.int8)
    s = RNG.uniform(0.1, 0.5, size=(3, 2) if block else 4)
    z = RNG.integers(-9, 9, size=s.shape).astype(np.int8)
    inputs = {"x": x, "s": s.astype(np.float32), "z": z}
    weight = np.cos(np.arange(12)).reshape(3, 4).astype(np.float32)
    model = meta500.load(proto("DequantizeLinear", inputs, {"y": np.float32}, 21, {"block_size": block}))
    with meta500.network(model, backend=backend) as net:
        net.inference_and_backprop(inputs, loss="y", wrt=["s"], cotangent=weight)
        (found,) = net.fetch_tensors(["grad/s"])
    wide = np.repeat(z, 2, axis=1) if block else z
    parts = (x.astype(float) - wide) * weight
    expected = parts.reshape(3, 2, 2).sum(-1) if block else parts.sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["mixed", "positive", "negative", "zero"])
def test_dynamic_quantization(backend, kind) -> None:
    x = {
        "mixed": RNG.normal(size=40), "positive": RNG.uniform(1, 3, 40), "negative": -RNG.uniform(1, 3, 40),
        "zero": np.zeros(4),
    }[kind].astype(np.float32)  # fmt: skip
    outputs = {"y": np.uint8, "s": np.float32, "z": np.uint8}
    model = meta500.load(proto("DynamicQuantizeLinear", {"x": x}, outputs, 21, {}))
    with meta500.network(model, backend=backend) as net:
        found = net.inference({"x": x})
    if kind == "zero":
        assert found["s"] == 0 and found["z"] == 0 and not found["y"].any()
        return
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = quantized(-low, scale, 0, 0, 255)
    assert found["s"] == scale and found["s"].shape == () and found["z"] == zero
    assert found["y"].tolist() == [quantized(v, scale, zero, 0, 255) for v in x]
    for mine, other in zip(found.values(), runtime("DynamicQuantizeLinear", {"x": x}, outputs), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_the_dynamic_scale_goes_to_the_extremes(backend) -> None:
    x = np.array([1.0, -2, 5, 5, 0], np.float32)
    outputs = {"y": np.uint8, "s": np.float32, "z": np.uint8}
    model = meta500.load(proto("DynamicQuantizeLinear", {"x": x}, outputs, 21, {}))
    with meta500.network(model, backend=backend) as net:
        net.inference_and_backprop({"x": x}, loss="s", wrt=["x"])
        (found,) = net.fetch_tensors(["grad/x"])
    np.testing.assert_allclose(found, np.array([0, -1, 0.5, 0.5, 0]) / 255, rtol=1e-6)


# -- Products -------------------------------------------------------------------------------------


def integers(dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max + 1, size=shape).astype(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("left", [np.uint8, np.int8])
@pytest.mark.parametrize("right", [np.uint8, np.int8])
def test_matmul_integer(backend, left, right) -> None:
    a, b = integers(left, 2, 3, 5), integers(right, 5, 4)
    rows, columns = integers(left, 3), integers(right, 4)
    inputs = {"a": a, "b": b, "p": rows, "q": columns}
    y = run(backend, "MatMulInteger", inputs, np.int32)
    wide = (a.astype(int) - rows[:, None]) @ (b.astype(int) - columns.astype(int))
    np.testing.assert_array_equal(y, wide)
    batched = integers(left, 2, 3, 1)
    y = run(backend, "MatMulInteger", {"a": a, "b": b, "p": batched}, np.int32)
    np.testing.assert_array_equal(y, (a.astype(int) - batched) @ b.astype(int))
    y = run(backend, "MatMulInteger", {"a": a[0, 0], "b": b[:, 0]}, np.int32)
    assert y.shape == () and y == a[0, 0].astype(int) @ b[:, 0].astype(int)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_overflow_in_32_bits(backend) -> None:
    a, b = np.full((1, 40000), 255, np.uint8), np.full((40000, 1), 255, np.uint8)
    exact = 40000 * 255 * 255
    y = run(backend, "MatMulInteger", {"a": a, "b": b}, np.int32)
    assert y.item() == (exact + 2**31) % 2**32 - 2**31 != exact


CONVOLUTIONS = [
    ((2, 4, 7), (6, 2, 3), {"group": 2, "pads": [2, 0], "strides": [2]}),
    ((1, 3, 6, 5), (4, 3, 2, 3), {"dilations": [2, 1], "pads": [1, 0, 2, 1]}),
    ((1, 2, 5, 5), (2, 1, 2, 2), {"group": 2, "auto_pad": "SAME_LOWER"}),
    ((1, 2, 4, 3, 5), (2, 2, 2, 2, 2), {"strides": [1, 1, 2]}),
]


def convolution(x: np.ndarray, w: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """onnx.reference, on whole float64 numbers."""
    from onnx.reference import ReferenceEvaluator

    inputs = {"x": x.astype(np.float64), "w": w.astype(np.float64)}
    model = proto("Conv", inputs, {"y": np.float64}, 11, attributes)
    return ReferenceEvaluator(model).run(None, inputs)[0].astype(np.int64)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda c: f"{len(c[0]) - 2}d")
def test_conv_integer_and_qlinear_conv(backend, case) -> None:
    shape, kernel, attributes = case
    x, w = integers(np.uint8, *shape), integers(np.int8, *kernel)
    zero, filters = np.array(131, np.uint8), integers(np.int8, kernel[0])
    per_filter = (slice(None), *(None,) * (w.ndim - 1))
    sums = convolution(x.astype(int) - 131, w.astype(int) - filters[per_filter].astype(int), attributes)
    y = run(backend, "ConvInteger", {"x": x, "w": w, "p": zero, "q": filters}, np.int32, **attributes)
    np.testing.assert_array_equal(y, sums)
    bias = RNG.integers(-1000, 1000, kernel[0]).astype(np.int32)
    scales = RNG.uniform(0.01, 0.02, kernel[0]).astype(np.float32)
    inputs = {
        "x": x, "xs": np.array(0.02, np.float32), "xz": zero, "w": w, "ws": scales, "wz": filters,
        "ys": np.array(0.5, np.float32), "yz": np.array(7, np.int8), "b": bias,
    }  # fmt: skip
    y = run(backend, "QLinearConv", inputs, np.int8, **attributes)
    factor = 0.02 * scales.astype(float) / 0.5
    channels = (slice(None), *(None,) * (x.ndim - 2))
    real = (sums + bias[channels]) * factor[channels]
    np.testing.assert_array_equal(y, np.clip(np.rint(real) + 7, -128, 127))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_matmul(backend, dtype) -> None:
    a, b = integers(dtype, 4, 6), integers(dtype, 6, 5)
    inputs = {
        "a": a, "as": np.array(0.031, np.float32), "az": np.array(3, dtype),
        "b": b, "bs": np.array(0.017, np.float32), "bz": np.array(9, dtype),
        "ys": np.array(0.25, np.float32), "yz": np.array(5, dtype),
    }  # fmt: skip
    y = run(backend, "QLinearMatMul", inputs, dtype)
    scale = Fraction(float(np.float32(0.031))) * Fraction(float(np.float32(0.017))) / Fraction(1, 4)
    limits = np.iinfo(dtype)
    for (i, j), value in np.ndenumerate((a.astype(int) - 3) @ (b.astype(int) - 9)):
        assert y[i, j] == min(max(round(int(value) * scale) + 5, limits.min), limits.max)
    (other,) = runtime("QLinearMatMul", inputs, {"y": dtype})
    assert np.abs(y.astype(int) - other.astype(int)).max() <= 1


# -- Refusals -------------------------------------------------------------------------------------

X, BYTES = np.ones((3, 4), np.float32), np.ones((3, 4), np.uint8)
REFUSED: list[tuple[str, dict[str, np.ndarray], Any, dict[str, Any], str]] = [
    ("QuantizeLinear", {"x": X, "s": np.ones(3, np.float32)}, np.uint8, {}, "scale of shape"),
    ("QuantizeLinear", {"x": X, "s": np.ones(4, np.float32), "z": np.ones(3, np.uint8)}, np.uint8, {}, "zero point has"),
    ("QuantizeLinear", {"x": X, "s": np.ones(4, np.float32)}, np.uint8, {"axis": 2}, "axis 2"),
    ("QuantizeLinear", {"x": X, "s": np.ones((3, 2), np.float32)}, np.uint8, {"block_size": 3, "axis": 0}, "in blocks of 3"),
    ("QuantizeLinear", {"x": X, "s": np.ones((), np.float32)}, np.int32, {"output_dtype": 6}, "no type to quantize to"),
    ("DequantizeLinear", {"x": BYTES, "s": np.ones(3, np.float32)}, np.float32, {}, "scale of shape"),
    ("MatMulInteger", {"a": BYTES, "b": BYTES.T, "z": np.ones(2, np.uint8)}, np.int32, {}, "a_zero_point has shape"),
    ("ConvInteger", {"x": BYTES[None], "w": BYTES[None], "z": np.ones(2, np.uint8)}, np.int32, {}, "must be one value"),
    ("ConvInteger", {"x": BYTES[None], "w": BYTES[None]}, np.int32, {"group": 3}, "group 3"),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", REFUSED, ids=lambda c: f"{c[0]}-{c[-1]}")
def test_refusals(backend, case) -> None:
    op_type, inputs, dtype, attributes, words = case
    with pytest.raises(UserError, match=words):
        run(backend, op_type, inputs, dtype, **attributes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_dynamic_quantization_refuses_no_data(backend) -> None:
    outputs = {"y": np.uint8, "s": np.float32, "z": np.uint8}
    model = meta500.load(proto("DynamicQuantizeLinear", {"x": X[:0]}, outputs, 21, {}))
    with meta500.network(model, backend=backend) as net, pytest.raises(UserError, match="no elements"):
        net.inference({"x": X[:0]})
