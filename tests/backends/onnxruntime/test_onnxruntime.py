"""ONNX Runtime as a backend: what it computes, what it refuses, and in which words."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import onnx
from onnx import TensorProto, helper

import meta500
from meta500.backends.network import backend_class
from meta500.benchmarks.operators.cases import cases
from meta500.benchmarks.operators.conformance import RIGHT, outcome
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Builder, ops

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 3)).astype(np.float32)


def model(nodes, inputs, outputs, opset=21, initializers=(), domains=()):
    """A loaded model; ``inputs`` and ``outputs`` map names to (element type, shape)."""
    infos = [
        [helper.make_tensor_value_info(name, *spec) for name, spec in values.items()]
        for values in (inputs, outputs)
    ]
    graph = helper.make_graph(nodes, "net", *infos, initializer=list(initializers))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in domains)]
    return meta500.load(helper.make_model(graph, opset_imports=imports, ir_version=10))


def unary(op, element=TensorProto.FLOAT, opset=21, result=None, **attributes):
    node = helper.make_node(op, ["x"], ["y"], name="the_node", **attributes)
    shape = ["N", 3]
    return model([node], {"x": (element, shape)}, {"y": (result or element, shape)}, opset)


@pytest.fixture
def small():
    """Product, bias, Relu, mean squared error: with an intermediate value and a second input for the loss."""
    b = Builder("small")
    x = b.input("x", "float32", ("N", 3))
    t = b.input("target", "float32", ("N", 2))
    w = b.parameter("w", RNG.standard_normal((3, 2)).astype(np.float32))
    h = b.add(ops.MatMul, x, w)
    y = b.output(b.add(ops.Relu, h), "y")
    from meta500.graph.custom import MeanSquaredError

    b.output(b.add(MeanSquaredError, y, t), "loss")
    return b.build(), h


def test_it_agrees_with_the_reference(small):
    fed = {"x": X, "target": np.ones((2, 2), np.float32)}
    with meta500.network(small[0], backend="onnxruntime") as a, meta500.network(small[0], "numpy") as b:
        found, expected = a.inference(fed), b.inference(fed)
        assert list(found) == list(expected) == ["y", "loss"]
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6)
            assert found[name].shape == value.shape


def test_outputs_need_only_their_own_inputs(small):
    with meta500.network(small[0], backend="onnxruntime") as net:
        assert list(net.inference({"x": X})) == ["y"]
        with pytest.raises(UserError, match="target"):
            net.inference({"x": X}, outputs=["loss"])


def test_parameters_are_fed_and_fetched(small):
    with meta500.network(small[0], backend="onnxruntime") as net:
        before = net.inference({"x": X})["y"]
        (w,) = net.fetch_tensors(["w"])
        net.feed_tensor("w", 2 * w)
        np.testing.assert_allclose(net.inference({"x": X})["y"], 2 * before, rtol=1e-6)
        np.testing.assert_array_equal(net.fetch_tensors(["w"])[0], 2 * w)
        np.testing.assert_array_equal(net.current_model().graph.initializers["w"], 2 * w)
        with pytest.raises(UserError, match=r"assign: 'w' is float32\[3, 2\], got float32\[2, 3\]"):
            net.assign("w", w.T)


def test_intermediate_values_become_outputs(small):
    with meta500.network(small[0], backend="onnxruntime") as net:
        with pytest.raises(UserError, match="is not kept"):
            net.fetch_tensors([small[1]])
        net.add_output(small[1])
        found = net.inference({"x": X})
        np.testing.assert_allclose(found[small[1]], X @ net.native("w"), rtol=1e-6)
        np.testing.assert_array_equal(net.fetch_tensors([small[1]])[0], found[small[1]])


def test_operations_are_added(small):
    with meta500.network(small[0], backend="onnxruntime") as net:
        net.add_operation(ops.Neg("y", "negative"))
        net.add_output("negative")
        found = net.inference({"x": X})
        np.testing.assert_array_equal(found["negative"], -found["y"])


def test_what_was_fed_stays_and_results_are_the_callers(small):
    fed = X.copy()
    with meta500.network(unary("Identity"), backend="onnxruntime") as net:
        found = net.inference({"x": fed})["y"]
        found += 1
        np.testing.assert_array_equal(fed, X)
        np.testing.assert_array_equal(net.inference({"x": fed[:, ::-1]})["y"], X[:, ::-1])


@pytest.mark.parametrize("optimization", ["none", "basic", "extended", "all"])
def test_levels_of_optimization_agree(small, optimization):
    with meta500.network(small[0], backend="onnxruntime", optimization=optimization, threads=1) as net:
        np.testing.assert_allclose(
            net.inference({"x": X})["y"], np.maximum(X @ net.native("w"), 0), rtol=1e-6
        )
        assert net.options["optimization"] == optimization
        assert net.options["threads"] == 1
        assert net.mode == ("" if optimization == "all" else f"optimization-{optimization}")


def test_double_precision(small):
    with meta500.network(small[0], backend="onnxruntime", precision="float64") as net:
        found = net.inference({"x": X.astype(np.float64)})["y"]
        w = small[0].graph.initializers["w"].astype(np.float64)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, np.maximum(X.astype(np.float64) @ w, 0), rtol=1e-14)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"optimization": "al"}, "unknown optimization 'al'. Did you mean 'all'"),
        ({"device": "tpu"}, "unknown device 'tpu'; choose cpu, cuda or cuda:N"),
        ({"threads": 0}, "threads must be a number from 1"),
        ({"mode": "eager"}, "unknown option 'mode'"),
    ],
)
def test_wrong_options(option, text):
    with pytest.raises(UserError, match=text):
        meta500.network(unary("Relu"), backend="onnxruntime", **option)


def test_cuda_needs_its_provider(monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(UserError, match="no CUDA provider.*onnxruntime-gpu"):
        meta500.network(unary("Relu"), backend="onnxruntime", device="cuda")


@pytest.mark.parametrize(
    "ask",
    [
        lambda net: net.inference_and_backprop({"x": X}),
        lambda net: net.gradient(),
        lambda net: net.native_optimizer("adam"),
        lambda net: net.fetch_tensors(["grad/w"]),
        lambda net: meta500.optimizers.create("sgd", net, learning_rate=0.1).train({"x": X}),
    ],
    ids=["backprop", "gradient", "native_optimizer", "fetch", "optimizer"],
)
def test_training_is_refused(small, ask):
    with (
        meta500.network(small[0], backend="onnxruntime") as net,
        pytest.raises(UnsupportedOperation, match="ONNX Runtime is an inference backend"),
    ):
        ask(net)


def _layout():
    float32 = TensorProto.FLOAT
    node = helper.make_node("GRU", ["x", "w", "r"], ["y"], name="the_node", hidden_size=2, layout=1)
    shapes = {"x": (1, 1, 3), "w": (1, 6, 3), "r": (1, 6, 2)}
    return model([node], {k: (float32, v) for k, v in shapes.items()}, {"y": (float32, (1, 1, 1, 2))})


def _adam():
    float32, int64 = TensorProto.FLOAT, TensorProto.INT64
    inputs = {"r": (float32, ()), "t": (int64, ()), **dict.fromkeys("xgvh", (float32, (2,)))}
    outputs = dict.fromkeys(("x1", "v1", "h1"), (float32, (2,)))
    node = helper.make_node(
        "Adam", list(inputs), list(outputs), name="the_node", domain="ai.onnx.preview.training"
    )
    return model([node], inputs, outputs, domains=[("ai.onnx.preview.training", 1)])


@pytest.mark.parametrize(
    ("net", "text"),
    [
        (lambda: unary("Relu", TensorProto.BFLOAT16), r"'the_node': .*Relu \(version 14\).*implementation"),
        (lambda: unary("Softsign", TensorProto.DOUBLE), r"'the_node': operator ai.onnx.Softsign"),
        (_layout, r"'the_node': operator ai.onnx.GRU .*Batchwise"),
        (_adam, r"'the_node': operator ai.onnx.preview.training.Adam"),
    ],
    ids=["bfloat16", "float64", "attribute", "domain"],
)
def test_what_it_can_not_run_is_named_before_it_runs(net, text):
    refused = net()
    assert [node.how for node in meta500.coverage(refused, "onnxruntime")] == ["unsupported"]
    with pytest.raises(UnsupportedOperation, match=text):
        meta500.network(refused, backend="onnxruntime")


def test_a_version_that_it_does_not_know():
    from meta500.backends.onnxruntime.engine import newest_versions

    newest, _ = newest_versions()
    if newest >= onnx.defs.onnx_opset_version():
        pytest.skip("this ONNX Runtime knows all versions of this onnx")
    (case,) = cases("node", names=["celu"])
    (answer,) = meta500.coverage(case.model(), "onnxruntime")
    known = answer.since_version <= newest
    assert (answer.how == "native") == known
    assert known or f"knows ai.onnx up to version {newest}" in answer.reason


def test_a_new_stamp_over_old_operators_runs():
    net = unary("Relu", opset=onnx.defs.onnx_opset_version())
    with meta500.network(net, backend="onnxruntime") as loaded:
        np.testing.assert_array_equal(loaded.inference({"x": X})["y"], np.maximum(X, 0))


def test_an_error_while_it_runs_names_the_node():
    node = helper.make_node("Gather", ["x", "i"], ["y"], name="the_node")
    float32, int64 = TensorProto.FLOAT, TensorProto.INT64
    net = model([node], {"x": (float32, [3]), "i": (int64, [1])}, {"y": (float32, [1])})
    with (
        meta500.network(net, backend="onnxruntime") as loaded,
        pytest.raises(UserError, match="'the_node'.*out of"),
    ):
        loaded.inference({"x": X[0], "i": np.array([7])})


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2),
        (TensorProto.FLOAT16, np.float16),
    ],
)
def test_small_floats_go_in_and_out(element, dtype):
    there = unary("Cast", element, result=TensorProto.FLOAT, to=TensorProto.FLOAT)
    back = unary("Cast", TensorProto.FLOAT, result=element, to=element)
    values = np.array([[0.5, -1.5, 3.0], [0.0, 2.0, -4.0]], np.float32)
    with meta500.network(there, backend="onnxruntime") as net:
        np.testing.assert_array_equal(net.inference({"x": values.astype(dtype)})["y"], values)
    with meta500.network(back, backend="onnxruntime") as net:
        found = net.inference({"x": values})["y"]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype(np.float32), values)


def test_four_bit_numbers_go_in_and_out():
    there = unary("Cast", TensorProto.INT4, result=TensorProto.FLOAT, to=TensorProto.FLOAT)
    back = unary("Cast", TensorProto.FLOAT, result=TensorProto.INT4, to=TensorProto.INT4)
    values = np.array([[-8, -1, 0], [1, 2, 7]], np.float32)
    with meta500.network(there, backend="onnxruntime") as net:
        np.testing.assert_array_equal(net.inference({"x": values.astype(ml_dtypes.int4)})["y"], values)
    with meta500.network(back, backend="onnxruntime") as net:
        found = net.inference({"x": values})["y"]
        assert found.dtype == ml_dtypes.int4
        np.testing.assert_array_equal(found.astype(np.float32), values)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        "sequence_insert_at_back",
        "sequence_map_identity_1_sequence",
        "string_concat",
        "equal_string",
        "if",
        "loop13_seq",
        "scan9_sum",
        "ai_onnx_ml_label_encoder_string_int",
        "castlike_FLOAT_to_FLOAT8E5M2FNUZ",
        "castlike_FLOAT16_to_UINT4",
    ],
)
def test_cases_of_other_kinds_are_right(name):
    (case,) = cases("node", names=[name])
    found = outcome(case, "onnxruntime")
    assert (found.result, found.message) == (RIGHT, "")


@pytest.mark.parametrize(("given", "expected"), [(X, True), (None, False)])
def test_optionals(given, expected):
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    graph = helper.make_graph(
        [helper.make_node("OptionalHasElement", ["x"], ["y"])],
        "net",
        [helper.make_value_info("x", helper.make_optional_type_proto(tensor))],
        [helper.make_tensor_value_info("y", TensorProto.BOOL, [])],
    )
    net = meta500.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
    with meta500.network(net, backend="onnxruntime") as loaded:
        assert loaded.inference({"x": given})["y"] == expected


@pytest.mark.filterwarnings("ignore")
def test_no_case_crashes():
    sample = cases("node")[::12]
    results = [(case.name, outcome(case, "onnxruntime")) for case in sample]
    assert [(name, o.message) for name, o in results if o.result == "crashed"] == []
    assert sum(o.result == RIGHT for _, o in results) > 0.7 * len(results)


def test_it_is_imported_only_when_it_is_used():
    code = (
        "import sys, meta500; meta500.backend_names(); "
        "import meta500.backends.network; assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_missing_package_says_what_to_install():
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        "from meta500.backends.network import backend_class\n"
        "from meta500.errors import UserError\n"
        "try: backend_class('onnxruntime')\n"
        "except UserError as e: assert 'pip install meta500[onnxruntime]' in str(e), e\n"
        "else: raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_it_is_registered():
    assert "onnxruntime" in meta500.backend_names()
    assert backend_class("onnxruntime").backend == "onnxruntime"
