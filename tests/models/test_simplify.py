"""Simplified graphs compute what they computed before, with fewer nodes."""

from dataclasses import replace

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from meta500.graph import Builder, Model, infer_types, ops
from meta500.models import simplify

OPSET = 21


def run(graph, **feeds):
    model = infer_types(Model(graph, {"": OPSET}))
    proto = model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    results = ReferenceEvaluator(proto).run(None, feeds)
    return dict(zip(graph.outputs, results, strict=True))


def same(before, after, **feeds):
    first, second = run(before, **feeds), run(after, **feeds)
    assert list(first) == list(second)
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        np.testing.assert_array_equal(value, second[name])


def kinds(graph):
    return [op.op_type for op in graph.operations]


def fold(graph, kept=(), numbers=None):
    return simplify.fold_constants(graph, kept, OPSET, numbers or {})


def test_constants_fold_and_what_depends_on_parameters_does_not():
    b = Builder("net", OPSET)
    x = b.input("x", "float32", (2, 3))
    w = b.parameter("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    two = b.add(ops.Constant, value=np.array(2, np.float32))
    four = b.add(ops.Mul, two, two)
    scaled = b.add(ops.Mul, b.add(ops.Transpose, w, perm=(1, 0)), four)
    b.output(b.add(ops.Add, x, scaled), "y")
    graph = b.build().graph
    folded = fold(graph, kept={"w"})
    assert kinds(folded) == ["Transpose", "Mul", "Add"]
    assert set(folded.initializers) >= {"w", "mul_1"} and folded.initializers["mul_1"] == 4
    same(graph, folded, x=np.ones((2, 3), np.float32))
    assert kinds(fold(graph)) == ["Add"]


def test_shapes_fold_where_they_are_numbers():
    b = Builder("net", OPSET)
    x = b.input("x", "float32", ("N", 4, 6))
    whole = b.add(ops.Shape, x)
    tail = b.add(ops.Shape, x, start=-2)
    first = b.add(ops.Shape, x, end=1)
    b.output(b.add(ops.Concat, (whole, tail, first), axis=0), "y")
    graph = b.build().graph
    folded = fold(graph)
    assert kinds(folded) == ["Shape", "Shape", "Concat"]
    assert folded.initializers[tail].tolist() == [4, 6]
    same(graph, folded, x=np.zeros((5, 4, 6), np.float32))


def test_random_and_large_results_stay():
    b = Builder("net", OPSET)
    noise = b.add(ops.RandomUniform, shape=(2, 2))
    shape = b.add(ops.Constant, value=np.array([1 << 11, 1 << 10], np.int64))
    large = b.add(ops.ConstantOfShape, shape)
    dropped = b.add(ops.Dropout, b.add(ops.Constant, value=np.ones(3, np.float32)))
    for name in (noise, large, dropped):
        b.output(name)
    assert kinds(fold(b.build().graph)) == ["RandomUniform", "ConstantOfShape", "Dropout"]


def test_numbers_keep_their_double_precision():
    b = Builder("net", OPSET)
    x = b.input("x", "float64", (2,))
    third = b.add(ops.CastLike, b.add(ops.Constant, value=np.array(1 / 3, np.float32)), x)
    tenth = b.add(ops.Cast, b.add(ops.Constant, value_float=0.1), to=onnx.TensorProto.DOUBLE)
    single = b.constant(np.array(0.1, np.float32), "measured")
    rounded = b.add(ops.Cast, single, to=onnx.TensorProto.DOUBLE)
    for name in (third, tenth, rounded):
        b.output(b.add(ops.Mul, x, name))
    folded = fold(b.build().graph, numbers={float(np.float32(1 / 3)): 1 / 3})
    values = {name: folded.initializers[name].item() for name in (third, tenth, rounded)}
    # Only numbers that an exporter wrote: a tensor in single precision holds what it holds.
    assert values == {third: 1 / 3, tenth: 0.1, rounded: float(np.float32(0.1))}
    assert simplify.exact(float(np.float32(0.7)), {}) == 0.7
    assert simplify.exact(np.inf, {}) == np.inf


def test_copies_and_casts_to_the_same_type_go():
    b = Builder("net", OPSET)
    x = b.input("x", "float32", (2,))
    y = b.add(ops.CastLike, b.add(ops.Identity, b.add(ops.Relu, x)), x)
    z = b.add(ops.Cast, y, to=onnx.TensorProto.DOUBLE)
    b.output(b.add(ops.Identity, y), "a")
    b.output(b.add(ops.Identity, z), "b")
    b.output(b.add(ops.Identity, x), "c")
    graph = b.build().graph
    after = simplify.drop_copies(graph)
    assert kinds(after) == ["Relu", "Cast", "Identity"]
    same(graph, after, x=np.array([-1, 2], np.float32))


def test_zero_biases_go_unless_they_are_kept():
    b = Builder("net", OPSET)
    x = b.input("x", "float32", (1, 1, 4, 4))
    w = b.parameter("w", np.ones((1, 1, 2, 2), np.float32))
    for name, value in (("zero", 0), ("kept", 0), ("one", 1)):
        bias = b.constant(np.full(1, value, np.float32), name)
        b.output(b.add(ops.Conv, x, w, bias), f"y_{name}")
    graph = b.build().graph
    after = simplify.drop_zero_biases(graph, {"w", "kept"})
    assert [len(op.operands) for op in after.operations] == [2, 3, 3]
    same(graph, after, x=np.random.default_rng(0).normal(size=(1, 1, 4, 4)).astype(np.float32))


def reshaped(*parts):
    b = Builder("net", OPSET)
    x = b.input("x", "float32", ("N", 2, 6))
    batch = b.add(ops.Shape, x, end=1, name="batch")
    target = b.add(
        ops.Concat, tuple(batch if p is None else b.constant(np.array(p, np.int64)) for p in parts), axis=0
    )
    b.output(b.add(ops.Reshape, x, target, allowzero=1), "y")
    return b.build().graph


def test_reshapes_with_one_open_dimension():
    graph = reshaped(None, [12])
    after = simplify.drop_dead(simplify.infer_open_reshapes(graph))
    assert kinds(after) == ["Reshape"]
    assert [v.tolist() for v in after.initializers.values()] == [[-1, 12]]
    same(graph, after, x=np.random.default_rng(0).normal(size=(3, 2, 6)).astype(np.float32))
    for parts in ([None, [-1]], [None, None, [3]], [[0], None]):
        other = reshaped(*parts)
        assert simplify.infer_open_reshapes(other).operations == other.operations


def splitting(split, positions, axis=1):
    b = Builder("net", OPSET)
    x = b.input("x", "float32", (2, 7))
    sequence = b.add(ops.SplitToSequence, x, b.constant(np.array(split, np.int64)), axis=axis)
    for index, position in enumerate(positions):
        at = b.constant(np.array(position, np.int64)) if position is not None else b.input("at", "int64", ())
        b.output(b.add(ops.Relu, b.add(ops.SequenceAt, sequence, at)), f"y{index}")
    return b.build().graph


def test_split_sequences_become_splits():
    x = np.random.default_rng(0).normal(size=(2, 7)).astype(np.float32)
    for split, positions in (([3, 4], [1, 0]), (3, [0, 2, 1]), (3, [-1, 0, -1]), ([7], [0])):
        graph = splitting(split, positions)
        after = simplify.drop_dead(simplify.split_directly(graph, OPSET))
        assert kinds(after) == ["Split", *["Relu"] * len(positions)]
        same(graph, after, x=x)
    unknown = splitting([3, 4], [None])
    assert kinds(simplify.split_directly(unknown, OPSET)) == kinds(unknown)


def test_dead_nodes_go_with_their_constants():
    graph = splitting([3, 4], [0, 1])
    alone = simplify.drop_dead(replace(graph, outputs={"y1": None}))
    assert kinds(alone) == ["SplitToSequence", "SequenceAt", "Relu"] and len(alone.initializers) == 2
