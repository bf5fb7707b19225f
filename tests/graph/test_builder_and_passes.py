"""Building networks, and the passes over them."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from meta500.errors import UserError
from meta500.graph import Builder, MeanSquaredError, load, ops, training_form, with_precision
from meta500.graph.passes import infer_types


def small_network():
    rng = np.random.default_rng(0)
    b = Builder("small")
    x = b.input("image", "float32", ("N", 2, 4, 4))
    t = b.input("label", "int64", ("N",))
    w = b.parameter("conv.weight", rng.normal(size=(3, 2, 3, 3)).astype(np.float32))
    y = b.add(ops.Conv, x, w, pads=(1, 1, 1, 1), name="conv")
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    y = b.add(
        ops.BatchNormalization,
        y,
        b.parameter("bn.weight", ones),
        b.parameter("bn.bias", zeros),
        b.constant(zeros, "bn.mean"),
        b.constant(ones, "bn.var"),
        follow_mode=True,
        name="bn",
    )
    y = b.add(ops.Dropout, y, follow_mode=True, name="drop")
    y = b.add(ops.GlobalAveragePool, y)
    b.output(b.add(ops.Flatten, y), "logits")
    b.output(b.add(ops.SoftmaxCrossEntropyLoss, "logits", t), "loss")
    return b.build()


def test_builder_writes_a_valid_model_with_types():
    model = small_network()
    onnx.checker.check_model(model.to_proto(), full_check=True)
    assert model.parameters == ("conv.weight", "bn.weight", "bn.bias")
    assert model.parameter_count() == 54 + 6
    assert model.outputs["logits"].shape == ("N", 3) and model.outputs["loss"].shape == ()
    assert str(model.graph.value_types["conv"]) == "float32[N, 3, 4, 4]"


def test_builder_refuses_what_does_not_fit():
    b = Builder("bad")
    x = b.input("x", "float32", (2, 3))
    with pytest.raises(UserError, match="'y', which the network does not have"):
        b.add(ops.Relu, "y")
    with pytest.raises(UserError, match="no 'stride'; it has"):
        b.add(ops.Conv, x, x, stride=2)
    with pytest.raises(UserError, match="'x' is taken"):
        b.input("x", "float32", (1,))
    with pytest.raises(UserError, match="floating point, got int64"):
        b.parameter("w", np.arange(3))
    with pytest.raises(UserError, match="has no output"):
        b.build()
    b.output(b.add(ops.MatMul, x, x))
    with pytest.raises(UserError, match="types do not fit"):
        b.build()


def test_training_form_trains_the_nodes_that_follow_and_no_others():
    model = load(small_network().to_proto())
    trained, updates = training_form(model)
    assert updates == {"bn.mean": "bn.mean:new", "bn.var": "bn.var:new"}
    before = {op.name: op for op in model.graph.operations}
    after = {op.name: op for op in trained.graph.operations}
    assert before["bn"].training_mode == 0 and after["bn"].training_mode == 1
    assert trained.graph.initializers[after["drop"].training_mode].item() is True
    assert after["conv"] is before["conv"]
    onnx.checker.check_model(trained.to_proto())


def test_training_form_leaves_other_models_alone():
    b = Builder("plain")
    x = b.input("x", "float32", (2,))
    b.output(b.add(ops.Relu, x), "y")
    model = b.build()
    assert training_form(model) == (model, {})


def test_precision_changes_every_float_and_nothing_else():
    model = small_network()
    double = with_precision(model, "float64")
    onnx.checker.check_model(double.to_proto(), full_check=True)
    assert {a.dtype for a in double.graph.initializers.values() if a.dtype.kind == "f"} == {
        np.dtype("float64")
    }
    assert double.inputs["label"].dtype == np.int64 and double.inputs["image"].dtype == np.float64
    assert model.graph.initializers["conv.weight"].dtype == np.float32
    with pytest.raises(UserError, match="unknown precision 'float31'"):
        with_precision(model, "float31")


def test_precision_rewrites_constants_and_casts():
    b = Builder("casts")
    x = b.input("x", "int64", (2,))
    y = b.add(ops.Cast, x, to=onnx.TensorProto.FLOAT)
    y = b.add(ops.Add, y, b.add(ops.Constant, value_floats=(0.5, 1.5)))
    sizes = b.add(ops.Constant, value=np.array([2], np.float32))
    b.output(b.add(ops.Mul, y, sizes), "y")
    double = with_precision(b.build(), "float64")
    onnx.checker.check_model(double.to_proto(), full_check=True)
    (result,) = ReferenceEvaluator(double.to_proto()).run(None, {"x": np.array([1, 2])})
    assert result.dtype == np.float64 and result.tolist() == [3.0, 7.0]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_custom_loss_runs_in_other_runtimes(reduction):
    b = Builder("mse")
    p, t = b.input("p", "float64", (2, 3)), b.input("t", "float64", (2, 3))
    b.output(b.add(MeanSquaredError, p, t, reduction=reduction), "loss")
    proto = b.build().to_proto()
    onnx.checker.check_model(proto, full_check=True)
    rng = np.random.default_rng(1)
    p, t = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    (loss,) = ReferenceEvaluator(proto).run(None, {"p": p, "t": t})
    square = (p - t) ** 2
    expected = {"mean": square.mean(), "sum": square.sum(), "none": square}[reduction]
    np.testing.assert_allclose(loss, expected, rtol=1e-14)
    (read,) = load(proto).graph.operations
    assert isinstance(read, MeanSquaredError)


def test_custom_loss_refuses_an_unknown_reduction():
    with pytest.raises(UserError, match="unknown reduction 'median'"):
        MeanSquaredError("p", "t", reduction="median").validate()


def test_symbolic_dimensions_survive_inference():
    model = infer_types(load(small_network().to_proto()))
    assert model.inputs["image"].shape == ("N", 2, 4, 4)
