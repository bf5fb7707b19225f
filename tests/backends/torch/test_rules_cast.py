"""Casts of torch against those of numpy, bit by bit over whole types; gradients; what goes to the host."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
import torch

import meta500
from meta500.backends.numpy.operators.cast import cast_array
from meta500.backends.torch.operators.cast import CAST_TYPE, cast_tensor
from meta500.backends.torch.tensors import from_numpy, to_numpy
from meta500.errors import UserError
from meta500.graph.types import dtype_from_onnx

HEADER = '<ir_version: 13, opset_import: ["" : 25]>\n'
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def _sources() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    patterns = np.arange(65536, dtype=np.uint16)
    words = rng.integers(0, 2**64, 20000, dtype=np.uint64)
    short = words >> rng.integers(0, 64, words.size).astype(np.uint64)
    halves = patterns.view(np.float16).astype(np.float64)
    finite = np.sort(halves[np.isfinite(halves)])
    middle = (finite[1:] + finite[:-1]) / 2
    edges = np.array([464.0, 248, 61440, 65520, 1e300, 0.0, -0.0, np.inf, -np.inf, np.nan])
    edges = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf), -edges])
    doubles = [words.view(np.float64), middle, np.nextafter(middle, 0), np.nextafter(middle, 1e9), edges]
    with np.errstate(all="ignore"):
        found = {
            "float16": patterns.view(np.float16),
            "bfloat16": patterns.view(ml_dtypes.bfloat16),
            "float32": np.concatenate([words.astype(np.uint32).view(np.float32), edges.astype(np.float32)]),
            "float64": np.concatenate(doubles),
            "bool": np.array([True, False]),
        }
    for name in FLOAT8:
        found[name] = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
    for name in ("uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64"):
        found[name] = short.astype(name)
    return found


SOURCES = _sources()


def _in_range(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Where ONNX defines the cast to an integer type: integers everywhere, floats that fit."""
    if dtype.kind not in "iu" or x.dtype.kind in "iub":
        return np.ones(x.shape, bool)
    limits, whole = np.iinfo(dtype), np.trunc(x.astype(np.float64))
    # The float64 of the largest 64-bit integer is the first that does not fit.
    return (whole >= limits.min) & (whole < float(limits.max) + (limits.max < 2**53))


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", CAST_TYPE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_equals_numpy_bit_by_bit(source, target) -> None:
    dtype = dtype_from_onnx(target)
    x = SOURCES[source]
    x = x[_in_range(x, dtype)]
    for saturate, infinities in (
        itertools.product((0, 1), (True, False)) if 17 <= target <= 20 else ((1, True),)
    ):
        wanted = cast_array("Cast", x, dtype, saturate, "up", infinities)
        got = to_numpy(cast_tensor("Cast", from_numpy(x.copy()), CAST_TYPE[target], saturate, infinities))
        assert got.dtype == wanted.dtype
        bits = f"u{dtype.itemsize}"
        differ = got.view(bits) != wanted.view(bits)
        if dtype.kind not in "iub":
            differ &= ~(np.isnan(got.astype(np.float64)) & np.isnan(wanted.astype(np.float64)))
        assert not differ.any(), (x[differ][:5], got[differ][:5], wanted[differ][:5])


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16])
def test_gradient_of_a_narrowing_cast_is_the_cotangent(target) -> None:
    x = torch.tensor([1.0, -0.0, 1e-3, 70000.0], dtype=torch.float64, requires_grad=True)
    y = cast_tensor("Cast", x, target)
    y.backward(torch.tensor([1.0, 2, 3, 4], dtype=target))
    assert x.grad is not None and x.grad.tolist() == [1, 2, 3, 4]


TO_EIGHT_BITS = """casts (float[3] x) => (float loss) {
    y = Cast <to = 17> (x)
    z = Cast <to = 1> (y)
    s = Mul (z, x)
    loss = ReduceSum <keepdims = 0> (s)
}"""


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_no_gradient_flows_through_eight_bits(backend) -> None:
    x = np.array([1.06, 1000, -3], np.float32)
    with meta500.network(
        meta500.load(onnx.parser.parse_model(HEADER + TO_EIGHT_BITS)), backend=backend
    ) as net:
        net.inference_and_backprop({"x": x}, loss="loss", wrt=["x"])
        np.testing.assert_array_equal(net.fetch_tensors(["grad/x"])[0], np.array([1, 448, -3], np.float32))


@pytest.mark.parametrize("target", [8, 21, 22, 23, 24, 25, 26])
def test_types_that_torch_lacks_run_on_the_host(target) -> None:
    """Back and forth, with the result of numpy; the plan says so before."""
    text = f"there (float[n] x) => (float[n] z) {{ y = Cast <to = {target}> (x)  z = Cast <to = 1> (y) }}"
    model = meta500.load(onnx.parser.parse_model(HEADER + text))
    x = np.array([1.0, 0.5, 2.0, 3.0, 1.5], np.float32)
    found = {}
    for backend in ("numpy", "torch"):
        with meta500.network(model, backend=backend) as net:
            found[backend] = net.inference({"x": x})["z"]
    np.testing.assert_array_equal(found["torch"], found["numpy"])
    assert [node.how for node in meta500.coverage(model, "torch")] == ["host", "host"]


def test_version_1_names_its_type(rule, values) -> None:
    (y,) = rule("Cast", 1, [np.array([1.6, -1.6])], {"to": "INT32"})
    assert values(y).tolist() == [1, -1]


@pytest.mark.parametrize("x", [torch.ones(2, dtype=torch.complex64), np.array(["a"], object)])
def test_refusals(x) -> None:
    with pytest.raises(UserError, match="complex64|torch has no tensors"):
        cast_tensor("Cast", x, torch.float32)
