"""The differential debugger, with planted faults: each must be found at its node, and nothing else be blamed."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper

import meta500
from meta500 import models
from meta500.backends.network import register
from meta500.backends.numpy.network import NumpyNetwork
from meta500.backends.numpy.operators import rules
from meta500.benchmarks.differential import diff
from meta500.benchmarks.differential.cases import load_case
from meta500.benchmarks.differential.inputs import draw, parse_range
from meta500.benchmarks.differential.tolerances import distance
from meta500.errors import UserError
from meta500.graph import Builder, load, ops
from meta500.metrics.run import RunFolder

ROOT = Path(__file__).parents[2]
F = np.float32
FAULTS = {}


class Rewritten(NumpyNetwork):
    """The numpy backend with the operations that FAULTS names exchanged for others."""

    backend = "rewritten"

    def __init__(self, model, **options):
        exchanged = []
        for op in model.graph.operations:
            fault = FAULTS.get(op.name)
            exchanged += [op] if fault is None else fault(op, model)
        super().__init__(model.with_graph(replace(model.graph, operations=exchanged)), **options)


register("rewritten", f"{__name__}:Rewritten")
sys.modules.setdefault(__name__, sys.modules.get(__name__) or sys.modules["__main__"])


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The backend registry imports the module of a backend by its name."""
    import types

    module = types.ModuleType(__name__)
    module.Rewritten = Rewritten
    monkeypatch.setitem(sys.modules, __name__, module)
    FAULTS.clear()


def digits(batch=2):
    return models.digits_cnn(batch=batch, seed=0)


def leaky(op, model):
    return [ops.LeakyRelu(*op.operands, *op.results, alpha=0.01, name=op.name, opset=21)]


def relus(model):
    return [op.name for op in model.graph.operations if op.op_type == "Relu"]


def differing(report, phase=None):
    return [
        f.node for f in report.findings if f.verdict in ("differs", "failed") and phase in (None, f.phase)
    ]


# -- no fault, no blame ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: digits(3), id="digits_cnn"),
        pytest.param(lambda: models.unet(n=0, batch=1, size=16, seed=1), id="unet"),
        pytest.param(
            lambda: models.resnet18(batch=4, size=64, classes=5, seed=0),
            id="resnet18",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_clean_networks_agree(model):
    report = diff(model(), "torch", "numpy")
    assert report.same and report.gradients
    # An input of Relu within rounding of 0 may pass a gradient on one side only: amplified, no difference.
    assert {f.verdict for f in report.findings if f.way == "alone" or f.phase == "forward"} == {"same"}
    assert {f.verdict for f in report.findings} <= {"same", "amplified"}
    made = model()
    alone = {f.node for f in report.findings if f.way == "alone" and f.phase == "forward"}
    assert alone == {op.name for op in made.graph.operations}
    gradients = {f.value for f in report.findings if f.way == "whole" and f.phase == "backward"}
    assert {f"grad/{name}" for name in made.parameters} <= gradients


def test_resnet_forward_agrees():
    report = diff(models.resnet18(batch=1, size=32, classes=5, seed=0), gradients=False)
    assert report.same and not report.gradients and {f.verdict for f in report.findings} == {"same"}


def test_float64_tolerances_are_sharp():
    report = diff(digits(), precision="float64")
    assert report.same and max(f.max_relative for f in report.findings) < 1e-11
    assert all(f.tolerance < 1e-10 for f in report.findings)


def test_different_precisions_are_compared_in_the_coarser_one():
    report = diff(digits(), "torch", "numpy:precision=float64")
    assert report.same and any(1e-8 < f.max_relative < 1e-5 for f in report.findings)


def test_amplified_rounding_blames_nobody():
    """1 / ((x * pi) - 3 x) repeated: each step loses digits that were right."""
    b = Builder("amplifier")
    x = b.input("x", F, (64,))
    h = x
    for i in range(6):
        h = b.add(ops.Tan, h, name=f"tan{i}")
        h = b.add(ops.Exp, b.add(ops.Sin, b.add(ops.Mul, h, b.constant(F(37.1)))), name=f"exp{i}")
    b.output(h, "y")
    report = diff(b.build())
    assert report.same and differing(report) == []
    assert report.amplified is not None and "rounding amplified from node" in report.summary()[0]


def test_cancelling_sums_are_judged_by_their_condition():
    b = Builder("cancel")
    x = b.input("x", F, (4, 3000))
    b.output(b.add(ops.ReduceSum, x, keepdims=0, name="sum"), "y")
    value = np.random.default_rng(0).standard_normal((4, 3000)).astype(F) * 1e3
    value[:, 1::2] = -value[:, ::2]
    value = np.random.default_rng(1).permuted(value, axis=1)
    report = diff(b.build(), inputs={"x": value}, gradients=False)
    assert report.same
    assert any("condition" in f.note for f in report.findings if f.way == "alone")


# -- planted faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, -1])
def test_a_wrong_node_is_named(which, tmp_path):
    model = digits()
    name = relus(model)[which]
    FAULTS[name] = leaky
    report = diff(model, "torch", "rewritten", out=tmp_path)
    assert not report.same
    assert report.forward.node == name and report.forward.way == "alone"
    assert set(differing(report, "forward")) == {name}
    assert "follows" in {f.verdict for f in report.findings if f.phase == "forward"}
    assert f"node '{name}' (Relu)" in report.summary()[0]


def scaled(factor):
    def fault(op, model):
        inner = op.results[0] + ":exact"
        constant = ops.Constant(op.results[0] + ":factor", value_float=factor, name="factor", opset=21)
        product = ops.Mul(inner, constant.results[0], op.results[0], name="product", opset=21)
        return [op.renamed({op.results[0]: inner}), constant, product]

    return fault


def test_a_fault_below_the_tolerance_is_none_and_one_above_it_is():
    """An addition may be wrong by 16 eps of float32, 1.9e-6."""
    b = Builder("sum")
    x, y = b.input("x", F, (50,)), b.input("y", F, (50,))
    b.output(b.add(ops.Add, x, y, name="add"), "z")
    for factor, same in ((1 + 1e-6, True), (1 + 1e-5, False)):
        FAULTS["add"] = scaled(factor)
        report = diff(b.build(), "torch", "rewritten", gradients=False)
        assert report.same is same and (same or report.forward.node == "add")
    # In float64 the smaller one is found as well.
    FAULTS["add"] = scaled(1 + 1e-6)
    report = diff(b.build(), "torch", "rewritten", precision="float64", gradients=False)
    assert report.forward.node == "add"


def test_the_saved_case_is_a_runnable_onnx_case_that_shows_the_fault(tmp_path):
    model = digits()
    name = relus(model)[0]
    FAULTS[name] = leaky
    report = diff(model, "torch", "rewritten", out=tmp_path)
    folder = report.cases["forward"]
    proto = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node] == ["Relu"]
    data = folder / "test_data_set_0"
    x, y = (onnx.numpy_helper.to_array(onnx.load_tensor(data / f)) for f in ("input_0.pb", "output_0.pb"))
    assert np.array_equal(y, np.where(x < 0, x * F(0.01), x)) and (x < 0).any()
    assert "meta500 diff" in (folder / "README.txt").read_text()
    case = load_case(folder)
    again = diff(case.model, "torch", "rewritten", case.inputs, cotangents=case.cotangents)
    assert again.forward.node == name and again.backward.node == name
    assert load_case(data).inputs.keys() == case.inputs.keys()


def test_a_weight_stays_an_initializer_of_the_saved_case(tmp_path):
    inner = {"conv2": "conv2:positive"}
    FAULTS["conv2"] = lambda op, model: [op.renamed(inner), ops.Neg(inner["conv2"], "conv2", name="negative")]
    report = diff(digits(), "rewritten", "torch", out=tmp_path)
    assert report.forward.node == "conv2"
    case = load_case(report.cases["forward"])
    assert len(case.inputs) == 1 and set(case.model.parameters) == {"conv2.weight", "conv2.bias"}
    assert (
        diff(case.model, "rewritten", "torch", case.inputs, cotangents=case.cotangents).first.node == "conv2"
    )


def test_a_wrong_gradient_alone_is_named_at_the_last_such_node(monkeypatch, tmp_path):
    rule = rules.find("", "Relu", 14).rule
    monkeypatch.setattr(rule, "backward", lambda call, d: (d * (call.inputs[0] > -1e9),))
    model = digits()
    report = diff(model, "torch", "numpy", out=tmp_path)
    assert report.forward is None and differing(report, "forward") == []
    assert report.backward.node == relus(model)[-1]
    assert set(differing(report, "backward")) <= set(relus(model))
    case = load_case(report.cases["backward"])
    assert case.cotangents
    again = diff(case.model, "torch", "numpy", case.inputs, cotangents=case.cotangents)
    assert again.backward.node == report.backward.node and again.forward is None


def test_a_wrong_dtype_is_named():
    def double(op, model):
        inner = op.results[0] + ":single"
        return [
            op.renamed({op.results[0]: inner}),
            ops.Cast(inner, op.results[0], to=T.DOUBLE, name="widen", opset=21),
        ]

    b = Builder("types")
    x = b.input("x", F, (3,))
    b.output(b.add(ops.Neg, b.add(ops.Abs, x, name="abs"), name="neg"), "y")
    FAULTS["abs"] = double
    report = diff(b.build(), "torch", "rewritten", gradients=False)
    assert report.forward.node == "abs" and "dtype float32 against float64" in report.forward.note


def test_a_wrong_shape_is_named():
    FAULTS["flat"] = lambda op, model: [op.replace(axis=0)]
    b = Builder("shapes")
    x = b.input("x", F, (3, 2))
    b.output(b.add(ops.Flatten, x, name="flat"), "y")
    model = b.build()
    model = model.with_graph(replace(model.graph, outputs={"y": None}))
    report = diff(model, "torch", "rewritten", gradients=False)
    assert report.forward.node == "flat" and "shape [3, 2] against [1, 6]" in report.forward.note


def test_nan_where_there_should_be_none_is_named():
    FAULTS[relus(digits())[0]] = lambda op, model: [
        ops.Sqrt(*op.operands, *op.results, name=op.name, opset=21)
    ]
    report = diff(digits(), "torch", "rewritten")
    assert report.forward.node == relus(digits())[0] and "NaN or infinite" in report.forward.note


def test_the_same_nan_on_both_sides_is_no_difference():
    b = Builder("nan")
    x = b.input("x", F, (4,))
    b.output(b.add(ops.Exp, b.add(ops.Log, x)), "y")
    value = np.array([-1, 0, np.inf, np.nan], F)
    assert diff(b.build(), inputs={"x": value}).same


def test_a_fault_inside_the_whole_network_only():
    """A node that is right alone but wrong between others, as a fusing compiler can make it."""

    def when_fused(op, model):
        return leaky(op, model) if len(model.graph.operations) > 1 else [op]

    model = digits()
    name = relus(model)[0]
    FAULTS[name] = when_fused
    for pair, side in ((("torch", "rewritten"), 1), (("rewritten", "torch"), 0)):
        report = diff(model, *pair)
        assert report.forward.node == name and report.forward.side == side
        assert report.forward.way == "whole" and "inside the network" in report.forward.note


def test_an_internal_error_is_a_failure_and_a_refusal_is_none(monkeypatch):
    b = Builder("stop")
    x = b.input("x", F, (3,))
    b.output(b.add(ops.Exp, b.add(ops.Neg, b.add(ops.Abs, x, name="abs"), name="neg")), "y")
    rule = rules.find("", "Neg", 13).rule

    def crash(x):
        raise AssertionError("boom")

    monkeypatch.setattr(rule, "function", crash)
    report = diff(b.build(), gradients=False)
    assert report.first.node == "neg" and report.first.verdict == "failed" and "boom" in report.first.note

    def refuse(x):
        raise UserError("not today")

    monkeypatch.setattr(rule, "function", refuse)
    report = diff(b.build(), gradients=False)
    assert report.same and "not today" in next(f.note for f in report.findings if f.verdict == "refused")
    compared = {f.op_type for f in report.findings if f.verdict == "same"}
    assert compared == {"Abs", "Exp"}


# -- values and operators of every kind ----------------------------------------------------------------------


def proto(nodes, inputs, outputs, initializers=(), opset=21):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))


def info(name, shape, kind=T.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def test_random_operators_are_left_out():
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], name="noise"),
        helper.make_node("Add", ["x", "noise"], ["s"], name="add"),
        helper.make_node("ReduceSum", ["s"], ["loss"], name="sum", keepdims=0),
    ]
    report = diff(proto(nodes, [info("x", [5])], [info("loss", [])]))
    assert report.same
    assert {f.node for f in report.findings if f.verdict == "random"} == {"noise"}
    assert {"add", "sum"} <= {f.node for f in report.findings if f.verdict == "same"}


def test_dropout_in_training_is_left_out_and_the_gradients_before_it_are_compared():
    b = Builder("dropping")
    x = b.input("x", F, (6, 4))
    w = b.parameter("w", np.ones((4, 3), F))
    h = b.add(ops.MatMul, x, w, name="product")
    h = b.add(ops.Dropout, h, b.constant(F(0.5)), name="drop", follow_mode=True)
    b.output(b.add(ops.ReduceMean, h, keepdims=0, name="mean"), "loss")
    report = diff(b.build())
    assert report.same and {f.node for f in report.findings if f.verdict == "random"} == {"drop"}
    assert any(f.value == "grad/w" and f.verdict == "same" for f in report.findings)
    assert "random" not in {f.verdict for f in diff(b.build(), gradients=False).findings}


def test_control_flow_is_one_node_with_its_free_names(tmp_path):
    def branch(name, op):
        node = helper.make_node(op, ["x"], [f"{name}_y"])
        return helper.make_graph([node], name, [], [info(f"{name}_y", [3])])

    nodes = [
        helper.make_node(
            "If", ["c"], ["y"], name="choice", then_branch=branch("t", "Abs"), else_branch=branch("e", "Neg")
        ),
        helper.make_node("Exp", ["y"], ["z"], name="exp"),
    ]
    model = proto(nodes, [info("c", [], T.BOOL), info("x", [3])], [info("z", [3])])
    fed = {"c": np.array(True), "x": np.array([-1, 0, 2], F)}
    assert diff(model, inputs=fed, gradients=False).same

    def swapped(op, model):
        return [op.replace(then_branch=op.else_branch, else_branch=op.then_branch)]

    FAULTS["choice"] = swapped
    report = diff(model, "torch", "rewritten", fed, gradients=False, out=tmp_path)
    assert report.forward.node == "choice"
    case = load_case(report.cases["forward"])
    assert set(case.inputs) == {"c", "x"}
    assert diff(case.model, "torch", "rewritten", case.inputs).forward.node == "choice"


def test_sequences_and_strings():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="pair"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], name="concat", axis=0),
        helper.make_node("Identity", ["t"], ["u"], name="text"),
    ]
    model = proto(
        nodes, [info("x", [2]), info("t", [2], T.STRING)], [info("y", [4]), info("u", [2], T.STRING)]
    )
    report = diff(model, gradients=False)
    assert report.same
    assert {f.node for f in report.findings if f.verdict == "same"} >= {"concat", "text", "pair"}


def through_a_sequence():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="pair"),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], name="concat", axis=0),
        helper.make_node("Exp", ["c"], ["y"], name="exp"),
    ]
    return proto(nodes, [info("x", [2])], [info("y", [4])])


def test_gradients_through_sequences_are_compared_for_the_whole_network(monkeypatch):
    report = diff(through_a_sequence())
    assert report.same and report.gradients
    assert [f.verdict for f in report.findings if f.value == "grad/x"] == ["same"]
    rule = rules.find("", "SequenceConstruct", 21).rule
    backward = rule.backward
    monkeypatch.setattr(
        rule, "backward", lambda call, d: (backward(call, d)[0] * 0.5, *backward(call, d)[1:])
    )
    report = diff(through_a_sequence())
    assert (
        report.forward is None and report.backward.value == "grad/x" and "sequences" in report.backward.note
    )


def test_several_outputs_and_unused_ones():
    nodes = [
        helper.make_node("Split", ["x"], ["p", "q"], name="split", axis=0, num_outputs=2),
        helper.make_node("MaxPool", ["p"], ["m", ""], name="pool", kernel_shape=[2]),
        helper.make_node("Mul", ["q", "q"], ["qq"], name="square"),
        helper.make_node("Concat", ["m", "qq"], ["y"], name="join", axis=2),
    ]
    report = diff(proto(nodes, [info("x", [2, 3, 6])], [info("y", [1, 3, 11])]), loss="y")
    assert report.same and {f.verdict for f in report.findings} == {"same"}
    assert {f.value for f in report.findings if f.node == "split" and f.phase == "forward"} == {"p", "q"}
    assert any(f.value == "grad/x" for f in report.findings)


def test_small_memory_runs_the_network_in_parts():
    report = diff(digits(), memory=1)
    assert report.same and {f.verdict for f in report.findings} == {"same"}


def test_batch_normalisation_trains_in_both_with_gradients_and_not_without():
    b = Builder("norm")
    x = b.input("x", F, (4, 2, 3))
    names = [b.parameter(n, np.ones(2, F)) for n in ("scale", "bias")]
    stats = [b.constant(np.full(2, v, F), n) for n, v in (("mean", 0), ("var", 1))]
    h = b.add(ops.BatchNormalization, x, *names, *stats, name="bn", follow_mode=True)
    b.output(b.add(ops.ReduceMax, h, keepdims=0), "loss")
    report = diff(b.build())
    assert report.same and "mean:new" in {f.value for f in report.findings}
    assert "mean:new" not in {f.value for f in diff(b.build(), gradients=False).findings}


def test_a_network_without_a_loss_is_differentiated_as_it_is_written():
    b = Builder("norm")
    x = b.input("x", F, (4, 2, 3))
    names = [b.parameter(n, np.full(2, v, F)) for n, v in (("scale", 2), ("bias", 1))]
    stats = [b.constant(np.full(2, v, F), n) for n, v in (("mean", 0), ("var", 1))]
    b.output(b.add(ops.BatchNormalization, x, *names, *stats, name="bn", follow_mode=True), "y")
    b.output(b.add(ops.Shape, x), "shape")
    report = diff(b.build())
    assert report.same and report.gradients and "mean:new" not in {f.value for f in report.findings}
    assert {"grad/x", "grad/scale", "grad/bias"} <= {f.value for f in report.findings}


def test_no_gradients_to_compare():
    b = Builder("whole")
    b.output(b.add(ops.Shape, b.input("x", F, (3,))), "y")
    assert diff(b.build()).gradients is False
    with pytest.raises(UserError, match="no floating-point output"):
        diff(b.build(), gradients=True)
    with pytest.raises(UserError, match="only floating-point outputs have gradients"):
        diff(b.build(), loss="y")


def test_gradients_of_an_inference_backend_are_refused_where_they_are_asked_for():
    pytest.importorskip("onnxruntime")
    model = models.digits_cnn(batch=2)
    with pytest.raises(UserError, match="--gradients: onnxruntime.* gives no gradients"):
        diff(model, "onnxruntime", "numpy", gradients=True)


def test_distances_by_structure():
    a = np.arange(3.0)
    assert distance([a, None], [a, None]).exact and distance(None, None).exact
    assert "sequence of 1" in distance([a], [a, a]).problem
    assert distance(None, a).problem and distance([a], a).problem
    assert distance([a, a + 1], [a, a]).max_absolute == 1
    assert distance({"k": 1}, {"k": 2}).problem and not distance({"k": 1}, {"k": 1}).problem


# -- inputs -----------------------------------------------------------------------------------------------


def test_random_inputs_follow_what_consumes_them():
    b = Builder("classes")
    scores = b.input("scores", F, ("N", 7))
    label = b.input("label", np.int64, ("N",))
    index = b.input("index", np.int32, (50,))
    free = b.input("free", np.int64, (50,))
    table = b.parameter("table", np.ones((3, 2), F))
    b.output(b.add(ops.SoftmaxCrossEntropyLoss, scores, b.add(ops.Identity, label)), "loss")
    b.output(b.add(ops.Gather, table, index), "rows")
    b.output(b.add(ops.Mul, free, free), "squares")
    model = b.build()
    found, notes = draw(model, 0, {"N": 60}, {"scores": (5.0, 6.0)})
    assert found["scores"].shape == (60, 7) and 5 <= found["scores"].min() <= found["scores"].max() < 6
    assert set(found["label"]) == set(range(7)) and set(found["index"]) == {0, 1, 2}
    assert found["free"].min() >= 0 and found["free"].max() == 9 and len(notes) == 1 and "free" in notes[0]
    again, _ = draw(model, 0, {"N": 60}, {"scores": (5.0, 6.0)})
    assert all(np.array_equal(found[n], again[n]) for n in found)
    assert diff(model, dimensions={"N": 4}).same


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--dim N=8"),
        ({"dimensions": {"N": 2, "M": 3}}, "no input has the open dimension 'M'; open are: N"),
        ({"dimensions": {"N": -1}}, "whole number"),
        ({"dimensions": {"N": 2}, "ranges": {"z": (0, 1)}}, "no input 'z'"),
        ({"dimensions": {"N": 2}}, "--range shape=LOW:HIGH"),
        ({"inputs": {"x": np.ones((2, 2), F)}}, "inputs are missing: shape"),
        ({"inputs": {"q": np.ones(2, F)}}, "no input 'q'"),
        ({"inputs": {}, "dimensions": {"N": 2}}, "inputs are given"),
    ],
)
def test_inputs_that_cannot_be_drawn(options, message):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    model = proto(nodes, [info("x", ["N", 2]), info("shape", [1], T.INT64)], [info("y", None)])
    with pytest.raises(UserError, match=message):
        diff(model, **options)


@pytest.mark.parametrize("text", ["", "3", "2:1", "1:1", "a:b", "0:inf", "nan:1"])
def test_malformed_ranges(text):
    with pytest.raises(UserError, match="--range"):
        parse_range(text)


def test_options_that_contradict_or_do_not_exist():
    two = Builder("two")
    x = two.input("x", F, (3,))
    two.output(two.add(ops.Abs, x), "p")
    two.output(two.add(ops.Neg, x), "q")
    model = two.build()
    both = diff(model)
    assert (
        both.same
        and both.gradients
        and {"grad/x"} == {f.value for f in both.findings if f.phase != "forward"}
    )
    for options, message in (
        ({"loss": "r"}, "Choose one of: p, q"),
        ({"a": "torhc"}, "Did you mean 'torch'"),
        ({"a": "torch:mode=fast"}, "unknown mode 'fast'"),
        ({"a": "torch:precision=float32", "precision": "float64"}, "contradicts"),
        ({"a": "torch:speed"}, "key=value"),
        ({"rtol": -1.0}, "--rtol"),
    ):
        with pytest.raises(UserError, match=message):
            diff(model, **options)


def test_given_tolerances_replace_ours():
    FAULTS[relus(digits())[0]] = leaky
    assert not diff(digits(), "torch", "rewritten", rtol=1e-6, gradients=False).same
    assert diff(digits(), "torch", "rewritten", rtol=1e3, gradients=False).same
    assert diff(digits(), "torch", "rewritten", atol=1e3, gradients=False).same
    assert not diff(digits(), "torch", "numpy", rtol=0.0, gradients=False).same


# -- the command ------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from dataclasses import replace
from meta500.backends.network import register
from meta500.backends.numpy.network import NumpyNetwork
from meta500.graph import ops

class Faulty(NumpyNetwork):
    backend = "faulty"
    def __init__(self, model, **options):
        exchanged = [
            ops.LeakyRelu(*op.operands, *op.results, alpha=0.01, name=op.name, opset=21)
            if op.name == "relu2" else op for op in model.graph.operations
        ]
        super().__init__(model.with_graph(replace(model.graph, operations=exchanged)), **options)

register("faulty", "__main__:Faulty")
from meta500.cli import main
main(sys.argv[1:])
"""


def command(*arguments, cwd, script=SCRIPT):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_the_command_names_the_planted_fault_and_its_case_runs_again(tmp_path):
    done = command(
        "diff", "digits_cnn", "--model-option", "batch=2", "--b", "faulty", "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "first difference of results: node 'relu2' (Relu)" in done.stdout and "differs" in done.stdout
    assert "run/case_forward" in done.stdout
    rows = RunFolder.open(tmp_path / "run").rows
    wrong = [r for r in rows if r.verdict == "wrong" and r.protocol == "alone" and r.phase == "forward"]
    assert (
        [r.node for r in wrong] == ["relu2"] and wrong[0].quantity == "error" and wrong[0].operator == "Relu"
    )
    again = command("diff", "run/case_forward", "--b", "faulty", "--json", "--out", "again", cwd=tmp_path)
    found = json.loads(again.stdout)
    assert again.returncode == 1 and found["forward"]["node"] == "relu2" and not found["same"]
    clean = command("diff", "run/case_forward", "--quiet", "--out", "clean", cwd=tmp_path)
    assert clean.returncode == 0 and len(clean.stdout.splitlines()) == 1 and "agree" in clean.stdout


def run_here(capsys, *arguments):
    from meta500.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["diff", *map(str, arguments)])
    return stop.value.code, capsys.readouterr()


def test_the_command_with_files_and_bad_input(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    meta500.models.mlp(batch="N", shape=(4,), hidden=(3,), classes=2, loss=False).save("m.onnx")
    np.savez("in.npz", image=np.ones((2, 4), F))
    code, text = run_here(capsys, "m.onnx", "--inputs", "in.npz", "--all", "--out", "r")
    assert code == 0 and "same" in text.out and "agree on m.onnx" in text.out
    code, text = run_here(
        capsys, "m.onnx", "--dim", "N=3", "--json", "--loss", "logits", "--range", "image=0:1"
    )
    assert code == 0 and json.loads(text.out)["gradients"]
    Path("broken.npz").write_bytes(b"PK no archive")
    Path("folder").mkdir()
    for arguments, message in (
        (("m.onnx",), "--dim N=8"),
        (("m.onnx", "--inputs", "broken.npz"), "broken.npz"),
        (("m.onnx", "--inputs", "none.npz"), "none.npz"),
        (("folder",), "is no ONNX test case"),
        (("digits",), "Did you mean 'digits_cnn'"),
        (("m.onnx", "--model-option", "n=1"), "do not apply to a file"),
    ):
        code, text = run_here(capsys, *arguments)
        assert code == 2 and message in text.err and not text.out, arguments
