"""How sharp the verdict by float64 is, and how many terms enter one element."""

import numpy as np
import pytest

from meta500.benchmarks.operators.accuracy import in_type, measure_accuracy, reference, terms_of
from meta500.benchmarks.operators.cases import cases
from meta500.graph import Builder, ops


def accuracy(name, error, dtype="float16"):
    """The accuracy of a result that is float64's rounded to ``dtype`` with a relative error on top."""
    (case,) = cases("node", names=[name])
    inputs = {key: in_type(value, dtype) for key, value in case.data()[0][0].items()}
    exact = reference(case.model(), inputs, dtype)
    results = {key: (value * (1 + error)).astype(dtype) for key, value in exact.items()}
    return measure_accuracy(results, exact, terms_of(case.model(), inputs, exact))


@pytest.mark.parametrize(
    "name", ["tanh", "add", "sigmoid", "basic_conv_with_padding", "softmax_axis_0_expanded"]
)
def test_a_result_rounded_once_is_right_in_float16(name):
    found = accuracy(name, 0.0)
    assert found.max_relative <= found.tolerance


@pytest.mark.parametrize("name", ["tanh", "add", "sigmoid", "relu", "tanh_example"])
def test_one_per_cent_is_wrong_for_elementwise_operators_in_float16(name):
    found = accuracy(name, 0.01)
    assert found.tolerance == 4 * 2.0**-10
    assert found.max_relative > found.tolerance


def test_float32_keeps_the_whole_allowance():
    assert accuracy("tanh", 0.0, "float32").tolerance == 16 * 2.0**-23


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("tanh", 1),
        ("add_bcast", 1),
        ("matmul_2d", 4),  # (3, 4) times (4, 3)
        ("basic_conv_with_padding", 9),  # 1 channel, 3 x 3
        ("reduce_mean_do_not_keepdims_random", 2),  # (3, 2, 2) over axis 1
        ("globalaveragepool", 25),  # (1, 3, 5, 5)
    ],
)
def test_terms_of_one_operator(name, terms):
    (case,) = cases("node", names=[name])
    inputs, expected = case.data()[0]
    assert terms_of(case.model(), inputs, expected) == terms


def test_terms_of_a_chain_are_added_along_it():
    b = Builder("chain")
    x = b.input("x", "float32", (2, 8))
    w = b.parameter("w", np.ones((8, 5), "float32"))
    product = b.add(ops.MatMul, x, w)  # 8 terms
    b.output(b.add(ops.Identity, b.add(ops.Relu, product)), "y")  # 1 more; a copy has none
    b.output(b.add(ops.Tanh, x), "z")
    inputs = {"x": np.ones((2, 8), "float32")}
    results = {"y": np.ones((2, 5), "float32"), "z": np.ones((2, 8), "float32")}
    assert terms_of(b.build(), inputs, results) == 9
