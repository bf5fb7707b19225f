"""Edges of the contracts: each of these was wrong once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto as T
from onnx import helper
from onnx import numpy_helper as nh

import meta500
from meta500.errors import UserError
from meta500.graph import Builder, load, ops

F = np.float32
N = helper.make_node
BOTH = pytest.mark.parametrize("backend", ["numpy", "torch"])


def vi(name, shape, kind=T.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def make(nodes, ins, outs, inits=None, opset=21, functions=(), imports=(), ir=10):
    tensors = [nh.from_array(np.asarray(v), k) for k, v in (inits or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(ins), list(outs), tensors)
    opsets = [helper.make_opsetid("", opset), *imports]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=ir)


def mlp():
    return meta500.models.mlp(batch=4, shape=(8,), hidden=(5,), classes=3, seed=0)


def batch():
    image = np.random.default_rng(0).standard_normal((4, 8)).astype(F)
    return {"image": image, "label": np.array([0, 1, 2, 0])}


def product(kind=T.FLOAT, dtype=F, w_is_input=False):
    ins = [vi("x", [3], kind)] + ([vi("w", [3], kind)] if w_is_input else [])
    nodes = [N("Mul", ["x", "w"], ["y"]), N("ReduceSum", ["y"], ["loss"], keepdims=0)]
    return make(
        nodes, ins, [vi("y", [3], kind), vi("loss", [], kind)], {"w": np.array([1, 2, 3]).astype(dtype)}
    )


@BOTH
def test_native_optimizer_survives_add_output(backend):
    def losses(change):
        net = meta500.network(mlp(), backend)
        optimizer = net.native_optimizer("sgd", learning_rate=0.1)
        optimizer.train(batch())
        if change:
            net.add_output(net.model.graph.operations[1].results[0])
        return [float(optimizer.train(batch())["loss"]) for _ in range(4)]

    assert losses(True) == losses(False)


def test_gradients_under_no_grad():
    net = meta500.network(mlp(), "torch")
    with torch.no_grad():
        net.inference_and_backprop(batch())
    assert any(np.abs(g).max() > 0 for g in net.fetch_tensors([g for _, g in net.gradient()]))


@BOTH
def test_a_fed_default_input_counts(backend):
    net = meta500.network(load(product(w_is_input=True)), backend)
    fed = {"x": np.ones(3, F), "w": np.full(3, 5, F)}
    assert net.inference(fed)["y"].tolist() == [5, 5, 5]


@BOTH
def test_defaults_of_function_attributes(backend):
    node = N("LeakyRelu", ["a"], ["b"])
    node.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="al", type=onnx.AttributeProto.FLOAT)
    )
    function = helper.make_function(
        "my",
        "L",
        ["a"],
        ["b"],
        [node],
        [helper.make_opsetid("", 21)],
        attribute_protos=[helper.make_attribute("al", 0.3)],
    )
    proto = make(
        [N("L", ["x"], ["y"], domain="my")],
        [vi("x", [1])],
        [vi("y", [1])],
        functions=[function],
        imports=[helper.make_opsetid("my", 1)],
    )
    y = meta500.network(load(proto), backend).inference({"x": -np.ones(1, F)})["y"]
    assert np.allclose(y, -0.3)


def test_first_call_is_the_first_call():
    from meta500.benchmarks.networks import measure_networks
    from meta500.benchmarks.protocol import QUICK
    from meta500.benchmarks.subjects import prepared

    calls, rows = [], []
    from meta500.backends.numpy.network import NumpyNetwork

    old, seen = NumpyNetwork.inference, []
    subject = prepared("digits_cnn", {"batch": 2})

    def spy(self, *args, **kwargs):
        if self.precision != "float64":  # the reference is a network of its own
            seen.append(sys._getframe(1).f_code.co_name)
        return old(self, *args, **kwargs)

    NumpyNetwork.inference = spy
    try:
        measure_networks([subject], [{"backend": "numpy"}], QUICK, rows.append, memory=False)
    finally:
        NumpyNetwork.inference = old
    assert seen[0] == "<lambda>", f"the network ran in {seen[0]} before its 'first call' was timed"
    assert not calls


@pytest.mark.parametrize("pair", [("adam", "rmsprop"), ("sgd", "adam"), ("adam", "adamw")])
def test_state_of_another_native_optimizer_is_refused(pair, tmp_path):
    net = meta500.network(mlp(), "torch")
    first = net.native_optimizer(pair[0])
    first.train(batch())
    first.save(tmp_path / "s.npz")
    second = meta500.network(mlp(), "torch").native_optimizer(pair[1])
    with pytest.raises(UserError):
        second.load(tmp_path / "s.npz")


@BOTH
@pytest.mark.parametrize("case", ["constant", "Constant", "slice"])
def test_results_do_not_alias_constants(backend, case):
    add = N("Add", ["x", "c"], ["z"])
    c, x, z = np.array([1, 2, 3], F), vi("x", [3]), vi("z", [3])
    if case == "constant":
        proto = make([N("Identity", ["c"], ["y"]), add], [x], [vi("y", [3]), z], {"c": c})
    elif case == "Constant":
        proto = make(
            [N("Constant", [], ["c"], value=nh.from_array(c)), add, N("Identity", ["c"], ["y"])],
            [x],
            [vi("y", [3]), z],
        )
    else:
        bounds = {"s": np.array([1]), "e": np.array([3])}
        proto = make([N("Slice", ["c", "s", "e"], ["y"]), add], [x], [vi("y", [2]), z], {"c": c, **bounds})
    net = meta500.network(load(proto, parameters=["c"] if case == "slice" else []), backend)
    y = net.inference({"x": np.ones(3, F)})["y"]
    if y.flags.writeable:
        y[...] = 99
    assert net.inference({"x": np.ones(3, F)})["z"].tolist() == [2, 3, 4]


@BOTH
def test_results_do_not_alias_the_fed_array(backend):
    proto = make(
        [N("Slice", ["x", "s", "e"], ["y"])],
        [vi("x", [3])],
        [vi("y", [2])],
        {"s": np.array([1]), "e": np.array([3])},
    )
    x = np.ones(3, F)
    meta500.network(load(proto), backend).inference({"x": x})["y"][...] = 7
    assert x.tolist() == [1, 1, 1]


@BOTH
def test_resize_scales_of_a_constant_node_keep_their_precision(backend):
    scales = nh.from_array(np.array([1, 1, 2.1, 2.1], F))
    nodes = [N("Constant", [], ["s"], value=scales), N("Resize", ["x", "", "s"], ["y"])]
    model = load(make(nodes, [vi("x", [1, 1, 10, 10])], [vi("y", None)]))
    net = meta500.network(model, backend, precision="float16")
    assert net.inference({"x": np.ones((1, 1, 10, 10), np.float16)})["y"].shape == (1, 1, 21, 21)


@BOTH
def test_layer_normalization_in_float64(backend):
    proto = make(
        [N("LayerNormalization", ["x", "w"], ["y"])],
        [vi("x", [2, 8])],
        [vi("y", [2, 8])],
        {"w": np.ones(8, F)},
    )
    x = np.random.default_rng(0).standard_normal((2, 8))
    y = meta500.network(load(proto), backend, precision="float64").inference({"x": x})["y"]
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    assert np.allclose(y, expected, rtol=1e-12)


@BOTH
def test_bfloat16_parameters_gradients_and_precision(backend):
    import ml_dtypes

    model = load(product(T.BFLOAT16, ml_dtypes.bfloat16))
    assert model.parameters == ("w",)
    net = meta500.network(model, backend)
    net.inference_and_backprop({"x": np.ones(3, ml_dtypes.bfloat16)}, wrt=["x"])
    assert net.fetch_tensors(["grad/x"])[0].astype(F).tolist() == [1, 2, 3]
    wide = meta500.network(model, backend, precision="float64")
    assert wide.inputs["x"].dtype == np.float64


@BOTH
def test_statistics_of_an_unfed_branch(backend):
    b = Builder("two")
    x1, x2 = b.input("x1", "float32", ("N", 2, 3)), b.input("x2", "float32", ("N", 4))
    one, zero = np.ones(2, F), np.zeros(2, F)
    stats = [b.constant(v, n) for v, n in ((one, "s"), (zero, "b"), (zero, "m"), (one, "v"))]
    b.output(b.add(ops.BatchNormalization, x1, *stats, follow_mode=True), "o1")
    weight = b.parameter("w", np.ones(4, F))
    b.output(b.add(ops.ReduceSum, b.add(ops.Mul, x2, weight), keepdims=0), "loss")
    net = meta500.network(b.build(), backend)
    assert net.inference_and_backprop({"x2": np.ones((2, 4), F)})["loss"] == 8


@BOTH
def test_an_added_operation_means_the_same_in_the_file(backend):
    proto = make([N("Relu", ["x"], ["r"])], [vi("x", [2, 3, 4])], [vi("r", [2, 3, 4])], opset=11)
    net = meta500.network(load(proto), backend)
    try:
        net.add_operation(ops.Softmax("r", output="y"))
    except UserError:
        return
    net.add_output("y")
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(F)}
    again = meta500.network(load(net.current_model().to_proto()), backend)
    assert np.allclose(net.inference(x)["y"], again.inference(x)["y"])


def test_names_of_initializers_do_not_collide_with_emitted_attributes():
    nodes = [
        N("ConstantOfShape", ["s"], ["z"], value=nh.from_array(np.array([7.0], F))),
        N("Mul", ["x", "attribute_3"], ["t"]),
        N("Add", ["t", "z"], ["y"]),
    ]
    inits = {"s": np.array([3]), "attribute_3": np.array([1, 2, 3], F)}
    model = load(make(nodes, [vi("x", [3])], [vi("y", [3])], inits), parameters=[])
    assert meta500.network(model, "torch").inference({"x": np.ones(3, F)})["y"].tolist() == [8, 9, 10]


def test_thread_setting_does_not_leak():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with meta500.network(mlp(), "torch", threads=1) as net:
            net.inference(batch())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_external_data_does_not_grow(tmp_path):
    model = load(
        make(
            [N("Add", ["x", "w"], ["y"])],
            [vi("x", [5000])],
            [vi("y", [5000])],
            {"w": np.arange(5000, dtype=F)},
        )
    )
    sizes = []
    for _ in range(2):
        model.save(tmp_path / "a.onnx", external_data=True)
        sizes.append((tmp_path / "a.onnx.data").stat().st_size)
    assert sizes[0] == sizes[1]


def test_external_data_into_a_missing_folder(tmp_path):
    model = load(
        make(
            [N("Add", ["x", "w"], ["y"])],
            [vi("x", [5000])],
            [vi("y", [5000])],
            {"w": np.arange(5000, dtype=F)},
        )
    )
    with pytest.raises(UserError):
        model.save(tmp_path / "none" / "a.onnx", external_data=True)


@BOTH
def test_group_normalization_runs_or_is_refused_beforehand(backend):
    proto = make(
        [N("GroupNormalization", ["x", "w", "b"], ["y"], num_groups=2)],
        [vi("x", [2, 4, 3])],
        [vi("y", [2, 4, 3])],
        {"w": np.ones(4, F), "b": np.zeros(4, F)},
    )
    try:
        net = meta500.network(load(proto), backend)
    except UserError:
        return
    net.inference({"x": np.ones((2, 4, 3), F)})


def test_functions_of_another_opset_are_one_clear_error():
    function = helper.make_function(
        "my", "S", ["a"], ["b"], [N("Softmax", ["a"], ["b"])], [helper.make_opsetid("", 11)]
    )
    proto = make(
        [N("S", ["x"], ["y"], domain="my")],
        [vi("x", [2, 3, 4])],
        [vi("y", [2, 3, 4])],
        functions=[function],
        imports=[helper.make_opsetid("my", 1)],
    )
    with pytest.raises(UserError):
        meta500.network(load(proto), "numpy")


@pytest.mark.parametrize("name", ["name", "domain", "label", "metadata", "results", "fields", "signature"])
def test_attributes_of_functions_may_have_any_name(name):
    function = helper.make_function(
        "my", "F", ["a"], ["b"], [N("Relu", ["a"], ["b"])], [helper.make_opsetid("", 21)], attributes=[name]
    )
    node = N("F", ["x"], ["y"], domain="my")
    node.name = "n1"
    node.attribute.append(helper.make_attribute(name, "zz"))
    proto = make(
        [node], [vi("x", [3])], [vi("y", [3])], functions=[function], imports=[helper.make_opsetid("my", 1)]
    )
    written = load(proto).to_proto().graph.node[0]
    assert (written.name, written.domain, written.op_type) == ("n1", "my", "F")


def cli(*arguments, cwd, **env):
    command = [sys.executable, "-m", "meta500", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **env}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_json_has_the_training_rows(tmp_path):
    done = cli("bench", "training", "--quick", "--threads", "1", "--json", "--out", "r", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert any(row["level"] == 2 for row in rows)


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", "layers", "--quick", "--seed", "-1"),
        ("train", "--quick", "--save", "."),
        ("train", "--quick", "--native", "--optimizer-option", "network=3"),
    ],
)
def test_no_traceback(arguments, tmp_path):
    done = cli(*arguments, cwd=tmp_path)
    assert "Traceback" not in done.stderr and done.returncode == 2


def test_a_backend_that_fails_leaves_the_others(tmp_path):
    from meta500.backends.torch.network import TorchNetwork
    from meta500.benchmarks.networks import measure_networks
    from meta500.benchmarks.protocol import QUICK
    from meta500.benchmarks.subjects import prepared

    def broken(self, *args, **kwargs):
        raise UserError("no compiler")

    old, rows = TorchNetwork.inference, []
    TorchNetwork.inference = broken
    try:
        measure_networks(
            [prepared("digits_cnn", {"batch": 2})],
            [{"backend": "numpy"}, {"backend": "torch"}],
            QUICK,
            rows.append,
            memory=False,
        )
    finally:
        TorchNetwork.inference = old
    assert any(row.verdict == "failed" for row in rows) and any(row.backend == "numpy" for row in rows)


@BOTH
def test_gradient_of_the_pad_value(backend):
    nodes = [N("Pad", ["x", "p", "v"], ["y"]), N("ReduceSum", ["y"], ["loss"], keepdims=0)]
    proto = make(nodes, [vi("x", [5])], [vi("loss", [])], {"p": np.array([2, 1]), "v": np.array(3, F)})
    net = meta500.network(load(proto, parameters=["v"]), backend)
    try:
        net.inference_and_backprop({"x": np.ones(5, F)})
    except UserError:
        return
    assert net.fetch_tensors(["grad/v"])[0] == 3


def test_the_same_native_optimizer_has_one_default_rate():
    rates = {meta500.network(mlp(), b).native_optimizer("sgd").learning_rate for b in ("numpy", "torch")}
    assert len(rates) == 1


def test_building_goes_on_without_changing_what_was_built():
    b = Builder("b")
    b.output(b.add(ops.Relu, b.input("x", "float32", (3,))), "y")
    model = b.build()
    b.add(ops.Relu, "y")
    assert len(model.graph.operations) == 1


def test_builder_writes_operators_of_every_domain():
    b = Builder("b")
    b.output(b.add(ops.Normalizer, b.input("x", "float32", (3, 4)), norm="L2"), "y")
    assert b.build().opset_imports.get("ai.onnx.ml")


def test_round_trip_of_what_is_around_the_nodes():
    proto = make([N("Relu", ["x"], ["y"])], [vi("x", [3])], [vi("y", [3])], ir=11)
    proto.configuration.add(name="c", num_devices=2)
    proto.graph.node[0].device_configurations.add(configuration_id="c")
    proto.graph.input[0].doc_string = "pixels"
    proto.graph.input[0].metadata_props.add(key="a", value="b")
    again = load(proto).to_proto()
    assert len(again.graph.node[0].device_configurations) == 1
    assert again.graph.input[0].doc_string == "pixels" and len(again.graph.input[0].metadata_props) == 1


@pytest.mark.parametrize(
    "make_network",
    [
        lambda: meta500.network("net.onnx", "numpy"),
        lambda: meta500.network(mlp(), "numpy", seed=-1),
        lambda: meta500.network(mlp(), "torch", seed="x"),
        lambda: meta500.network(mlp(), "torch", device=None),
    ],
)
def test_wrong_arguments_of_network(make_network):
    with pytest.raises(UserError):
        make_network()
