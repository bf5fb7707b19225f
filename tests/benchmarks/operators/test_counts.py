"""Operations and bytes: against numbers worked out by hand, and against PyTorch's own counter."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from meta500.benchmarks.operators.counts import Extent, count, count_backward, extent, has_formula
from meta500.benchmarks.operators.timing import counted
from meta500.graph import Builder, ops


def operation(kind, shapes, outputs=1, opset=21, dtype="float32", **attributes):
    """An operation in a model of its own, with the extents of its inputs."""
    b = Builder("one", opset=opset)
    fed = [None if s is None else b.input(f"x{i}", dtype, s) for i, s in enumerate(shapes)]
    fed = [fed] if kind is ops.Sum else fed
    results = b.add(kind, *fed, **attributes)
    b.output(results if isinstance(results, str) else results[0], "y")
    return b.build().graph.operations[0]


def counts_of(kind, shapes, output, itemsize=4, **attributes):
    op = operation(kind, shapes, **attributes)
    inputs = [None if s is None else Extent(s, itemsize) for s in shapes]
    return count(op, inputs, [Extent(output, itemsize)])


# operator, shapes of inputs, shape of the output, attributes, operations by hand
BY_HAND = [
    # 2 images, 4 filters, 5 x 6 outputs, each of 3 channels x 3 x 3: 240 outputs of 27 multiply-adds.
    (ops.Conv, [(2, 3, 7, 8), (4, 3, 3, 3)], (2, 4, 5, 6), {}, 2 * 240 * 27),
    # With a bias: one addition per output.
    (ops.Conv, [(2, 3, 7, 8), (4, 3, 3, 3), (4,)], (2, 4, 5, 6), {}, 2 * 240 * 27 + 240),
    # Two groups: each output sees half of the 4 channels.
    (ops.Conv, [(1, 4, 5, 5), (6, 2, 3, 3)], (1, 6, 3, 3), {"group": 2}, 2 * 54 * 18),
    # Padding counts: 4 outputs of 9 multiply-adds though only 4 numbers lie on the image.
    (ops.Conv, [(1, 1, 2, 2), (1, 1, 3, 3)], (1, 1, 2, 2), {"pads": (1, 1, 1, 1)}, 2 * 4 * 9),
    # Strides and one dimension: 4 outputs of 2 channels x 3.
    (ops.Conv, [(1, 2, 9), (1, 2, 3)], (1, 1, 4), {"strides": (2,)}, 2 * 4 * 6),
    # Each of 3 x 4 x 4 inputs is spread over 5 filters of 2 x 2.
    (ops.ConvTranspose, [(1, 3, 4, 4), (3, 5, 2, 2)], (1, 5, 8, 8), {"strides": (2, 2)}, 2 * 48 * 20),
    (ops.Gemm, [(3, 5), (5, 7)], (3, 7), {}, 2 * 3 * 5 * 7),
    (ops.Gemm, [(5, 3), (7, 5), (7,)], (3, 7), {"transA": 1, "transB": 1}, 2 * 3 * 5 * 7 + 21),
    (ops.MatMul, [(6, 3, 5), (5, 7)], (6, 3, 7), {}, 2 * 6 * 3 * 5 * 7),
    (ops.MatMul, [(5,), (5,)], (), {}, 10),
    (ops.AveragePool, [(1, 2, 4, 4)], (1, 2, 2, 2), {"kernel_shape": (2, 2), "strides": (2, 2)}, 8 * 4),
    (ops.MaxPool, [(1, 2, 4, 4)], (1, 2, 2, 2), {"kernel_shape": (2, 2), "strides": (2, 2)}, 8 * 3),
    (ops.GlobalAveragePool, [(2, 3, 4, 5)], (2, 3, 1, 1), {}, 2 * 3 * 20),
    (ops.GlobalMaxPool, [(2, 3, 4, 5)], (2, 3, 1, 1), {}, 2 * 3 * 19),
    (ops.Add, [(2, 3), (3,)], (2, 3), {}, 6),
    (ops.Sum, [(4,), (4,), (4,)], (4,), {}, 8),
    (ops.Relu, [(7,)], (7,), {}, 7),
    (ops.Sigmoid, [(7,)], (7,), {}, 28),
    # Rows of 5: 4 comparisons, 5 subtractions, 5 exponentials, 4 additions, 5 divisions.
    (ops.Softmax, [(3, 5)], (3, 5), {}, 3 * 23),
    (ops.LogSoftmax, [(3, 5)], (3, 5), {"axis": 0}, 5 * (2 + 6 + 3 + 2 + 1)),
    (ops.BatchNormalization, [(2, 3, 4), (3,), (3,), (3,), (3,)], (2, 3, 4), {}, 3 * 24 + 9),
    # Rows of 4: 4 + 1 for the mean, 4 subtractions, 8 + 1 for the variance, 3 for 1 / sqrt(variance + epsilon),
    # 4 multiplications, 8 for scale and bias.
    (ops.LayerNormalization, [(3, 4), (4,), (4,)], (3, 4), {}, 3 * (5 + 4 + 9 + 3 + 4 + 8)),
    (ops.Transpose, [(3, 4)], (4, 3), {"perm": (1, 0)}, 0),
]


@pytest.mark.parametrize(("kind", "shapes", "output", "attributes", "flops"), BY_HAND)
def test_operations_by_hand(kind, shapes, output, attributes, flops):
    found = counts_of(kind, shapes, output, **attributes)
    assert found.flops == flops
    elements = sum(int(np.prod(s)) for s in (*shapes, output))
    assert found.bytes == 4 * elements
    assert counts_of(kind, shapes, output, itemsize=8, **attributes).bytes == 8 * elements
    assert found.intensity == flops / found.bytes


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_rows_follow_the_version(opset):
    """Up to version 12 all axes from the given one on are one row."""
    op = operation(ops.Softmax, [(2, 3, 4)], opset=opset, axis=1)
    found = count(op, [Extent((2, 3, 4), 4)], [Extent((2, 3, 4), 4)])
    rows = 2 if opset == 11 else 8
    assert found.flops == 5 * 24 - 2 * rows


def torch_flops(run, *tensors):
    with FlopCounterMode(display=False) as counter:
        run(*tensors)
    return counter.get_total_flops()


def torch_counts(op, run, inputs):
    """PyTorch's count of forward, and of forward plus backward by all inputs."""
    tensors = [torch.randn(shape, requires_grad=True) for shape in inputs]
    forward = torch_flops(run, *tensors)
    return forward, torch_flops(lambda *ts: run(*ts).sum().backward(), *tensors)


def check_against_torch(kind, shapes, run, **attributes):
    with torch.no_grad():
        output = tuple(run(*(torch.randn(s) for s in shapes)).shape)
    op = operation(kind, shapes, **attributes)
    inputs, outputs = [Extent(s, 4) for s in shapes], [Extent(output, 4)]
    forward, both = torch_counts(op, run, shapes)
    assert count(op, inputs, outputs).flops == forward
    assert count_backward(op, inputs, outputs).flops == both


def test_convolution_as_torch_counts_it():
    def run(x, w):
        return torch.nn.functional.conv2d(x, w, stride=(2, 1), padding=1, dilation=(1, 2))

    attributes = {"strides": (2, 1), "pads": (1, 1, 1, 1), "dilations": (1, 2)}
    check_against_torch(ops.Conv, [(2, 4, 9, 10), (6, 4, 3, 3)], run, **attributes)


def test_transposed_convolution_as_torch_counts_it():
    def run(x, w):
        return torch.nn.functional.conv_transpose2d(x, w, stride=2)

    check_against_torch(ops.ConvTranspose, [(2, 3, 4, 5), (3, 6, 2, 2)], run, strides=(2, 2))


def test_products_as_torch_counts_them():
    check_against_torch(ops.MatMul, [(5, 3, 4), (5, 4, 6)], torch.matmul)
    check_against_torch(ops.Gemm, [(4, 3), (6, 4)], lambda a, b: a.T @ b.T, transA=1, transB=1)


def test_no_count_where_it_would_be_a_guess():
    shape = [(2, 3)]
    integers = [Extent((2, 3), 4, floating=False)]
    assert count(operation(ops.Abs, shape, dtype="int32"), integers, integers) is None
    assert not has_formula("NonZero")
    assert count_backward(operation(ops.Relu, shape), [Extent((2, 3), 4)], [Extent((2, 3), 4)]) is None


def test_empty_tensors_need_no_operations():
    assert counts_of(ops.Softmax, [(3, 0)], (3, 0)).flops == 0
    assert counts_of(ops.MatMul, [(0, 4), (4, 5)], (0, 5)).flops == 0
    nothing = counts_of(ops.Relu, [(0,)], (0,))
    assert (nothing.flops, nothing.bytes, nothing.intensity) == (0, 0, 0)


def test_extent_of_packed_types():
    import ml_dtypes

    assert extent(np.zeros(6, ml_dtypes.int4)).nbytes == 3
    assert extent(np.zeros((2, 3), ml_dtypes.bfloat16)).nbytes == 12
    assert extent(np.zeros((), "float64")).nbytes == 8


def test_weights_inside_of_the_model_count_as_traffic():
    b = Builder("one")
    weight = np.ones((2, 3), "float32")
    x = b.input("x", "float32", (4, 2))
    b.output(b.add(ops.MatMul, x, b.constant(weight)), "y")
    values = {"x": np.ones((4, 2), "float32")}, {"y": np.ones((4, 3), "float32")}
    forward, backward = counted(b.build(), *values)
    assert (forward.flops, forward.bytes) == (2 * 4 * 2 * 3, 4 * (8 + 6 + 12))
    assert (backward.flops, backward.bytes) == (3 * forward.flops, 2 * forward.bytes)


def test_several_operations_have_no_count():
    b = Builder("two")
    b.output(b.add(ops.Relu, b.add(ops.Neg, b.input("x", "float32", (4,)))), "y")
    values = {"x": np.ones(4, "float32")}, {"y": np.ones(4, "float32")}
    assert counted(b.build(), *values) == (None, None)
