"""What lowering refuses, by node; wrong shapes and attributes; constants that come from outside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from meta500.backends.generated.interpret import run
from meta500.backends.generated.lower import lower
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import load

NEWEST = 21


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


REFUSED = [
    ("Sin", 7, [normal(2)], {}, {}, "no lowering rule"),
    ("MaxPool", 12, [normal(1, 1, 4)], {}, {"kernel_shape": [2], "n_outputs": 2}, "indices"),
    ("Add", 14, [np.arange(3), np.arange(3)], {}, {}, "floating-point"),
    ("Pow", 15, [normal(3)], {1: np.array(1.7)}, {}, "exponent 1.7"),
    ("Pow", 15, [normal(3), normal(3)], {}, {}, "must be a constant"),
    ("Reshape", 13, [normal(6, 35)], {1: np.array([35, 6])}, {}, "interleave"),
    ("Reshape", 13, [normal(2, 3), np.array([3, 2])], {}, {}, "must be a constant"),
    ("Gather", 13, [normal(40)], {1: np.random.default_rng(0).permutation(40)}, {}, "no regular order"),
    ("Resize", 19, [normal(1, 1, 8)], {2: np.array([1, 1, 0.5], np.float32)}, {"mode": "linear", "antialias": 1}, "antialias"),
    ("Dropout", 13, [normal(3)], {2: np.array(True)}, {"seed": 3}, "seed"),
    ("Clip", 13, [normal(3)], {1: np.array(np.nan)}, {}, "NaN"),
    ("ReduceSum", 13, [np.zeros((0, 3))], {}, {}, "no elements"),
    ("Equal", 13, [np.zeros(3, np.uint8), np.zeros(3, np.uint8)], {}, {}, "uint8"),
    ("BatchNormalization", 7, [normal(2, 3, 4), *(normal(3, 4),) * 4], {}, {"spatial": 0}, "spatial 0"),
    ("Conv", 11, [normal(1, 1, 2, 2, 2, 2), normal(1, 1, 1, 1, 1, 1)], {}, {}, "spatial"),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "opset", "inputs", "constants", "attributes", "reason"), REFUSED)
def test_what_is_not_generated_is_refused_by_node(
    lowered, op_type, opset, inputs, constants, attributes, reason
) -> None:
    with pytest.raises(UnsupportedOperation, match=reason) as refusal:
        lowered(op_type, opset, inputs, constants, **attributes)
    assert refusal.value.node == "node" and refusal.value.op_type == op_type
    assert refusal.value.backend == "generated"


WRONG = [
    ("Add", 14, [normal(3), normal(4)], {}, {}, "broadcast"),
    ("MatMul", 13, [normal(3, 4), normal(3, 4)], {}, {}, "do not fit"),
    ("Gemm", 13, [normal(3, 4), normal(3, 4)], {}, {}, "columns"),
    ("Conv", 11, [normal(1, 2, 5), normal(3, 2, 3), normal(2)], {}, {}, "B has shape"),
    ("Conv", 11, [normal(1, 3, 5), normal(3, 2, 3)], {}, {}, "channels"),
    ("BatchNormalization", 15, [normal(2, 3), normal(1), *(normal(3),) * 3], {}, {}, "shape"),
    ("Concat", 13, [normal(2, 3), normal(3, 2)], {}, {"axis": 0}, "differ|do not fit"),
    ("Split", 13, [normal(5)], {1: np.array([2, 2])}, {"n_outputs": 2}, "add up"),
    ("Slice", 13, [normal(5)], {1: np.array([0]), 2: np.array([3]), 3: np.array([0]), 4: np.array([0])}, {}, "step"),
    ("Gather", 13, [normal(5)], {1: np.array([5])}, {}, "outside"),
    ("Squeeze", 13, [normal(5)], {1: np.array([0])}, {}, "not all 1"),
    ("Pad", 13, [normal(2)], {1: np.array([-3, 0])}, {}, "cut more"),
    ("Softmax", 13, [normal(2, 2)], {}, {"axis": 3}, "axis"),
    ("Dropout", 13, [normal(3)], {1: np.array(1.0), 2: np.array(True)}, {}, "ratio"),
]  # fmt: skip


@pytest.mark.parametrize(("op_type", "opset", "inputs", "constants", "attributes", "words"), WRONG)
def test_wrong_shapes_and_attributes(lowered, op_type, opset, inputs, constants, attributes, words) -> None:
    with pytest.raises(UserError, match=words):
        lowered(op_type, opset, inputs, constants, **attributes)


def test_an_outside_array_is_taken_as_a_constant_unless_it_is_trained() -> None:
    x = helper.make_tensor_value_info("x", 11, [3])
    node = helper.make_node("Pow", ["x", "e"], ["y"], name="power")
    stored = [helper.make_tensor("e", 11, [1], [3.0])]
    graph = helper.make_graph([node], "cube", [x], [helper.make_tensor_value_info("y", 11, [3])], stored)
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", NEWEST)], ir_version=10))
    model = replace(model, trainable=())
    program = lower(model, ["y"], ["e"])
    assert program.baked == {"e"}
    assert run(program, {"x": whole_numbers(3), "e": [0.0]})["y"].tolist() == [0, 1, 8]
    with pytest.raises(UnsupportedOperation, match="must be a constant"):
        lower(replace(model, trainable=("e",)), ["y"], ["e"])


def whole_numbers(count: int) -> np.ndarray:
    return np.arange(float(count))


def test_a_value_that_nothing_reads_has_a_gradient(lowered) -> None:
    program = lowered("Pad", 21, [normal(2)], {1: np.array([-2, 3]), 2: np.array(1.0)})
    assert program.tensors["x0"].role == "input" and not program.readers()
