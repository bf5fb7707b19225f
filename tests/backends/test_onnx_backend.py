"""The backends under ONNX's own interface and test runner."""

import socket
import unittest

import numpy as np
import pytest
from onnx import TensorProto, helper

from meta500.backends.onnx_backend import backend
from meta500.benchmarks.operators.cases import quiet_generators
from meta500.benchmarks.operators.refusals import refusals
from meta500.errors import UserError

with quiet_generators():
    from onnx.backend.test import BackendTest

BACKENDS = ["numpy", "torch"]
X = np.array([[-1.0, 2.0, -3.0]], np.float32)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Whatever reaches for the network fails."""

    def refused(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            raise AssertionError(f"reaches for {address}")
        return connect(self, address)

    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", refused)


def runs(name):
    """The tests of onnx's runner for a backend on the CPU: short name -> (test case, method)."""
    with quiet_generators():
        classes = BackendTest(backend(name), __name__).test_cases
    return {
        method.removeprefix("test_").removesuffix("_cpu"): cls(method)
        for cls in classes.values()
        for method in unittest.TestLoader().getTestCaseNames(cls)
        if method.endswith("_cpu")
    }


def run(tests):
    """The names that failed with their tracebacks, and the names that were skipped with their reasons."""
    result = unittest.TestResult()
    names = {id(test): name for name, test in tests.items()}
    unittest.TestSuite(tests.values()).run(result)
    failed = {names[id(test)]: text for test, text in (*result.failures, *result.errors)}
    skipped = {names[id(test)]: text for test, text in result.skipped}
    assert result.testsRun == len(tests)
    return failed, skipped


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BACKENDS)
def test_a_sample_of_onnx_own_runner(name):
    tests = runs(name)
    assert len(tests) > 2000
    sample = sorted(n for n in tests if n not in LIGHT)[::25] + list(refusals(name)) + ["squeezenet"]
    failed, skipped = run({n: tests[n] for n in dict.fromkeys(sample)})
    assert failed == {}
    assert set(skipped) == set(refusals(name))


LIGHT = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet")
LIGHT = (*LIGHT, "squeezenet", "vgg19", "zfnet512")


# Onnx's runner asks for the length of each element of a sequence; here one is a scalar, which has none.
# The sweep of conformance compares this case.
NOT_COMPARED = ("loop16_seq_none",)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BACKENDS)
def test_the_whole_of_onnx_own_runner(name):
    tests = runs(name)
    assert set(LIGHT) <= set(tests)
    failed, skipped = run(tests)
    assert {n: text for n, text in failed.items() if n not in NOT_COMPARED} == {}
    assert all("has no len()" in text or "Unable to compare" in text for text in failed.values())
    assert set(skipped) == set(refusals(name))


def relu_model(op="Relu", **attributes):
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("given", [X, [X], (X,), {"x": X}], ids=["array", "list", "tuple", "mapping"])
@pytest.mark.parametrize("name", BACKENDS)
def test_prepare_and_run(name, given):
    prepared = backend(name).prepare(relu_model())
    found = prepared.run(given)
    np.testing.assert_array_equal(found[0], [[0, 2, 0]])
    np.testing.assert_array_equal(found.y, found["y"])


@pytest.mark.parametrize("given", [[], [X, X]])
def test_a_wrong_number_of_inputs(given):
    with pytest.raises(UserError, match="inputs are given, the model has 1: x"):
        backend("numpy").prepare(relu_model()).run(given)


def test_run_takes_no_options():
    with pytest.raises(UserError, match="run has no options; got warm"):
        backend("numpy").prepare(relu_model()).run(X, warm=True)


@pytest.mark.parametrize("name", BACKENDS)
def test_options_reach_the_network(name):
    assert backend(name).prepare(relu_model(), threads=1).network.threads == 1
    assert backend(name, threads=1).prepare(relu_model()).network.threads == 1
    with pytest.raises(UserError, match="unknown option 'thread'"):
        backend(name).prepare(relu_model(), thread=1)


@pytest.mark.parametrize("name", BACKENDS)
def test_run_node(name):
    node = helper.make_node("Clip", ["x", "", "top"], ["y"])
    top = np.float32(1)
    (found,) = backend(name).run_node(node, [X, top])
    np.testing.assert_array_equal(found, [[-1, 1, -3]])
    softmax = helper.make_node("Softmax", ["x"], ["y"])
    ones = np.ones((1, 2, 2), np.float32)
    # Softmax normalised over all later axes before version 13, over the last one since.
    assert backend(name).run_node(softmax, [ones], opset_version=11)[0].ravel().tolist() == [0.25] * 4
    assert backend(name).run_node(softmax, [ones], opset_version=13)[0].ravel().tolist() == [0.5] * 4


def test_run_node_with_sequences_and_strings():
    found = backend("numpy").run_node(helper.make_node("SequenceLength", ["s"], ["n"]), {"s": [X, X]})
    assert found[0] == 2
    joined = backend("numpy").run_node(
        helper.make_node("StringConcat", ["a", "b"], ["c"]), [np.array(["x"], object)] * 2
    )
    assert joined[0].tolist() == ["xx"]


@pytest.mark.parametrize("name", BACKENDS)
def test_what_is_refused_is_a_skip(name):
    node = helper.make_node("RandomUniform", [], ["y"], shape=[2])
    with pytest.raises(unittest.SkipTest, match="random"):
        backend(name).run_node(node, [])


@pytest.mark.parametrize("name", BACKENDS)
def test_supports_device(name):
    import torch

    assert backend(name).supports_device("CPU")
    assert not backend(name).supports_device("TPU")
    assert backend(name).supports_device("CUDA") == (name == "torch" and torch.cuda.is_available())


@pytest.mark.parametrize("name", BACKENDS)
def test_is_compatible(name):
    assert backend(name).is_compatible(relu_model())
    assert not backend(name).is_compatible(relu_model(), device="TPU")
    assert not backend(name).is_compatible(relu_model("RandomUniformLike"))


def test_an_unknown_backend():
    with pytest.raises(UserError, match="unknown backend 'nump'"):
        backend("nump")


def test_onnxruntime_under_onnx_own_interface():
    pytest.importorskip("onnxruntime")
    found = backend("onnxruntime").prepare(relu_model()).run(X)
    np.testing.assert_array_equal(found[0], [[0, 2, 0]])
