"""Arguments that are legal but stand in none of ONNX's own cases, against values worked out by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import meta500
from meta500.errors import UserError

BACKENDS = ("numpy", "torch")
FLOAT8 = {
    TensorProto.FLOAT8E4M3FN: (448.0, False),
    TensorProto.FLOAT8E4M3FNUZ: (240.0, True),
    TensorProto.FLOAT8E5M2: (57344.0, False),
    TensorProto.FLOAT8E5M2FNUZ: (57344.0, True),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_einsum_gradients_of_axes_of_size_one(node, backend) -> None:
    """``sum_i x_i y_0``: each x_i has gradient y_0, and y_0 the sum of x."""
    x, y = np.array([1.0, 2.0, 4.0]), np.array([3.0])
    (value,), gradients = node(backend, "Einsum", 12, [x, y], cotangents={0: np.array(2.0)}, equation="i,i->")
    assert value == 21.0
    np.testing.assert_array_equal(gradients["x0"], [6.0, 6.0, 6.0])
    np.testing.assert_array_equal(gradients["x1"], [14.0])


@pytest.mark.parametrize("opset", [19, 21, 23, 24, 25])
@pytest.mark.parametrize("to", FLOAT8)
@pytest.mark.parametrize("backend", BACKENDS)
def test_infinities_become_8_bit_floats_by_the_table_of_the_version(node, backend, to, opset) -> None:
    """Saturated; up to Cast-23 the types without negative zero have NaN for infinities, then the largest value."""
    largest, unsigned_zero = FLOAT8[to]
    x = np.array([np.inf, -np.inf, 1e6, -1e6], np.float32)
    (found,), _ = node(backend, "Cast", opset, [x], to=to)
    end = np.nan if unsigned_zero and opset < 24 else largest
    np.testing.assert_array_equal(found.astype(np.float32), [end, -end, largest, -largest])


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_signed_numbers_shifted_out_to_the_right_leave_their_sign(node, backend, dtype) -> None:
    width = np.dtype(dtype).itemsize * 8
    x, y = np.array([0, 5, -5, 0, 5, -5], dtype), np.array([width] * 3 + [2] * 3, dtype)
    (found,), _ = node(backend, "BitShift", 28, [x, y], direction="RIGHT")
    np.testing.assert_array_equal(found, np.array([0, 0, -1, 0, 1, -2], dtype))


@pytest.mark.parametrize(
    "dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.int8, np.bool_]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_scatter_of_every_width(node, backend, dtype) -> None:
    past, update = np.zeros((2, 3, 1), dtype), np.ones((2, 1, 1), dtype)
    (found,), _ = node(backend, "TensorScatter", 24, [past, update, np.array([2, 0])])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype(np.float32)[..., 0], [[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_array_feature_extractor_of_a_vector_and_of_nothing(node, backend) -> None:
    chosen = np.array([2, 0, 2])
    (found,), _ = node(
        backend, "ArrayFeatureExtractor", 1, [np.array([1.0, 2.0, 3.0]), chosen], domain="ai.onnx.ml"
    )
    np.testing.assert_array_equal(found, [[3.0, 1.0, 3.0]])
    for x, y in ((np.array(1.0), chosen), (np.ones((2, 3)), chosen[:0])):
        with pytest.raises(UserError, match="ArrayFeatureExtractor"):
            node(backend, "ArrayFeatureExtractor", 1, [x, y], domain="ai.onnx.ml")


@pytest.mark.parametrize("n_outputs", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_with_lengths_of_an_outer_cache_has_no_cache_of_its_own(node, backend, n_outputs) -> None:
    x = np.ones((1, 1, 2, 4), np.float32)
    with pytest.raises(UserError, match="nonpad_kv_seqlen"):
        node(backend, "Attention", 24, [x, x, x, None, None, None, np.array([2])], n_outputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_of_an_empty_sequence_in_a_batch(backend) -> None:
    """Scan-8 over sequences of lengths 0 and 2: running sums, the state of the empty one stays."""
    body = onnx.parser.parse_graph(
        "body (float[1] total, float[1] x) => (float[1] sum, float[1] copy)"
        "{ sum = Add(total, x) copy = Identity(sum) }"
    )
    node = helper.make_node("Scan", ["lengths", "start", "xs"], ["end", "sums"], body=body, num_scan_inputs=1)
    kinds = {"lengths": (TensorProto.INT64, [2]), "start": (TensorProto.FLOAT, [2, 1])}
    kinds["xs"] = (TensorProto.FLOAT, [2, 3, 1])
    graph = helper.make_graph(
        [node],
        "scan",
        [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()],
        [onnx.ValueInfoProto(name=name) for name in ("end", "sums")],
    )
    model = meta500.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=10))
    with meta500.network(model, backend=backend) as net:
        found = net.inference(
            {
                "lengths": np.array([0, 2]),
                "start": np.array([[5.0], [10.0]], np.float32),
                "xs": np.arange(1, 7, dtype=np.float32).reshape(2, 3, 1),
            }
        )
    np.testing.assert_array_equal(found["end"], [[5.0], [19.0]])
    np.testing.assert_array_equal(found["sums"][..., 0], [[0, 0, 0], [14, 19, 0]])


@pytest.mark.parametrize(
    ("axis", "shape"), [(-1, (2, 3, 2)), (-3, (2, 2, 3)), (1, (2, 2, 3)), (2, (2, 3, 2))]
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sequences_stack_along_a_new_axis_counted_in_the_result(backend, axis, shape) -> None:
    model = meta500.load(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["" : 20]> stack (float[2,3] a, float[2,3] b) => (float[N,M,K] y)'
            "{ both = SequenceConstruct(a, b)"
            f"  y = ConcatFromSequence<new_axis = 1, axis = {axis}>(both) }}"
        )
    )
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), -np.ones((2, 3), np.float32)
    with meta500.network(model, backend=backend) as net:
        found = net.inference({"a": a, "b": b})["y"]
    assert found.shape == shape
    np.testing.assert_array_equal(np.take(found, 0, axis), a)
    np.testing.assert_array_equal(np.take(found, 1, axis), b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_relu_inside_a_recurrent_network_has_slope_zero_at_zero(node, backend) -> None:
    x, w, r = np.array([[[0.0]], [[2.0]]]), np.array([[[3.0]]]), np.array([[[0.5]]])
    _, gradients = node(
        backend,
        "RNN",
        14,
        [x, w, r],
        cotangents={0: np.ones((2, 1, 1, 1))},
        hidden_size=1,
        activations=["Relu"],
    )
    np.testing.assert_array_equal(gradients["x0"], [[[0.0]], [[3.0]]])
    np.testing.assert_array_equal(gradients["x1"], [[[2.0]]])
    np.testing.assert_array_equal(gradients["x2"], [[[0.0]]])
