"""The node cases of ONNX's own backend suite, run through the Network contract.

A case is right, refused with a clear error, or a failure of this test: no backend may return a wrong number.
The least number of right cases may only grow.
"""

import functools

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

import meta500
from meta500.errors import UserError

# Their expected outputs come from one generator of random numbers; other generators are as right.
RANDOM = {"test_training_dropout", "test_training_dropout_mask"}
RANDOM |= {"test_training_dropout_default", "test_training_dropout_default_mask"}
LEAST_RIGHT = {"numpy": 1580, "torch": 1428}


@functools.cache
def cases():
    with np.errstate(all="ignore"):
        return load_model_tests(kind="node")


def array(value):
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def same(got, expected, rtol, atol):
    expected = np.asarray(expected)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    if expected.dtype == object:
        return got.tolist() == expected.tolist()
    if expected.dtype.kind != "c":
        got, expected = got.astype(np.float64), expected.astype(np.float64)
    return np.allclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)


def outcome(case, backend):
    """ "right", "wrong" or "refused"."""
    try:
        with meta500.network(meta500.load(case.model), backend=backend) as net:
            names = [value.name for value in case.model.graph.output]
            for inputs, outputs in case.data_sets:
                fed = {v.name: array(x) for v, x in zip(case.model.graph.input, inputs, strict=False)}
                got = net.inference(fed, outputs=names)
                for name, expected in zip(names, map(array, outputs), strict=True):
                    if not same(got[name], expected, case.rtol, case.atol):
                        return "wrong"
    except UserError:
        return "refused"
    return "right"


@pytest.mark.parametrize("backend", list(LEAST_RIGHT))
@pytest.mark.filterwarnings("ignore")
def test_no_node_case_is_wrong(backend):
    outcomes = {case.name: outcome(case, backend) for case in cases() if case.name not in RANDOM}
    assert len(outcomes) > 1800
    assert [name for name, result in outcomes.items() if result == "wrong"] == []
    assert sum(result == "right" for result in outcomes.values()) >= LEAST_RIGHT[backend]
