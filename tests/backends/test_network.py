"""The Network contract, the same for every backend."""

import numpy as np
import onnx
import pytest
from onnx import helper

import meta500
from meta500.backends.network import HOST, NATIVE, UNSUPPORTED, Network, register
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Builder, MeanSquaredError, Operation, Signature, custom_operation, load, ops

BACKENDS = ("numpy", "torch")


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param


def skip_network(dtype="float32"):
    """Two branches from one tensor, one through ReLU, joined again: gradients meet at the fan-out."""
    rng = np.random.default_rng(0)
    b = Builder("skip")
    x, t = b.input("x", dtype, ("N", 4)), b.input("t", dtype, ("N", 4))
    w = b.parameter("w", rng.normal(size=(4, 4)).astype(dtype))
    h = b.add(ops.MatMul, x, w)
    y = b.add(ops.Add, b.add(ops.Relu, h), b.add(ops.Mul, h, h))
    y = b.add(ops.Add, y, h)
    b.output(y, "y")
    b.output(b.add(MeanSquaredError, "y", t), "loss")
    return b.build()


def skip_expected(x, t, w):
    h = x @ w
    y = np.maximum(h, 0) + h * h + h
    dy = 2 * (y - t) / y.size
    return y, ((y - t) ** 2).mean(), x.T @ (dy * ((h > 0) + 2 * h + 1))


def test_gradients_add_up_at_a_fan_out(backend):
    rng = np.random.default_rng(1)
    x, t = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    model = skip_network("float64")
    with meta500.network(model, backend=backend) as net:
        out = net.inference_and_backprop({"x": x, "t": t})
        y, loss, gradient = skip_expected(x, t, model.graph.initializers["w"])
        np.testing.assert_allclose(out["y"], y, rtol=1e-13)
        np.testing.assert_allclose(out["loss"], loss, rtol=1e-13)
        assert net.gradient() == [("w", "grad/w")]
        np.testing.assert_allclose(net.fetch_tensors(["grad/w"])[0], gradient, rtol=1e-12)


def test_outputs_follow_from_the_inputs_that_are_fed(backend):
    x = np.ones((2, 4), np.float32)
    with meta500.network(skip_network(), backend=backend) as net:
        assert set(net.inference({"x": x})) == {"y"}
        assert set(net.inference({"x": x, "t": x})) == {"y", "loss"}
        assert set(net.inference({"x": x, "t": x}, outputs=["loss"])) == {"loss"}
        with pytest.raises(UserError, match="'loss' needs inputs that are missing: t"):
            net.inference({"x": x}, outputs=["loss"])
        with pytest.raises(UserError, match="inputs are missing: .*x"):
            net.inference({"t": x})


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"z": np.ones((2, 4), np.float32)}, "no input 'z'; its inputs are x, t"),
        ({"x": np.ones((2, 5), np.float32)}, r"'x' must have shape \[N, 4\], got \[2, 5\]"),
        ({"x": np.ones(4, np.float32)}, r"'x' must have shape \[N, 4\], got \[4\]"),
        ({"x": np.ones((2, 4), np.float64)}, r"'x' must be float32, got float64; convert it with .astype"),
        ({"x": np.ones((2, 4), np.int64)}, "'x' must be float32, got int64"),
        (
            {"x": np.ones((2, 4), np.float32), "t": np.ones((3, 4), np.float32)},
            "'t': dimension 'N' is 3, but 2 in input 'x'",
        ),
    ],
)
def test_wrong_inputs(backend, feed, message):
    with meta500.network(skip_network(), backend=backend) as net, pytest.raises(UserError, match=message):
        net.inference(feed)


def test_wrong_losses(backend):
    x = np.ones((2, 4), np.float32)
    with meta500.network(skip_network(), backend=backend) as net:
        with pytest.raises(UserError, match="no output 'cost' to differentiate; its outputs are y, loss"):
            net.inference_and_backprop({"x": x, "t": x}, loss="cost")
        with pytest.raises(UserError, match="'y' must be a scalar"):
            net.inference_and_backprop({"x": x, "t": x}, loss="y")
        with pytest.raises(UserError, match="'loss' needs inputs that are missing: t"):
            net.inference_and_backprop({"x": x})
        with pytest.raises(UserError, match=r"cotangent of 'y' must have its shape \[2, 4\], got \[3\]"):
            net.inference_and_backprop({"x": x}, loss="y", cotangent=np.ones(3, np.float32))


def test_nothing_mutates_what_it_was_fed(backend):
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
    x.flags.writeable = False
    before = x.copy()
    with meta500.network(skip_network(), backend=backend) as net:
        net.inference_and_backprop({"x": x, "t": x})
    assert np.array_equal(x, before)


def test_results_do_not_alias_inputs_or_parameters(backend):
    b = Builder("identity")
    x = b.input("x", "float32", (3,))
    w = b.parameter("w", np.ones(3, np.float32))
    b.output(b.add(ops.Identity, x), "same")
    b.output(b.add(ops.Reshape, w, b.constant(np.array([3, 1]))), "column")
    fed = np.arange(3, dtype=np.float32)
    with meta500.network(b.build(), backend=backend) as net:
        out = net.inference({"x": fed})
        out["same"][:] = 7
        out["column"][:] = 7
        assert fed.tolist() == [0, 1, 2]
        assert net.fetch_tensors(["w"])[0].tolist() == [1, 1, 1]


def test_with_respect_to_inputs_and_cotangents(backend):
    rng = np.random.default_rng(2)
    x, c = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    model = skip_network("float64")
    w = model.graph.initializers["w"]
    with meta500.network(model, backend=backend) as net:
        net.inference_and_backprop({"x": x}, "y", wrt=["x", "w"], cotangent=c)
        h = x @ w
        slope = c * ((h > 0) + 2 * h + 1)
        dx, dw = net.fetch_tensors(["grad/x", "grad/w"])
        np.testing.assert_allclose(dx, slope @ w.T, rtol=1e-12)
        np.testing.assert_allclose(dw, x.T @ slope, rtol=1e-12)
        with pytest.raises(UserError, match="wrt: the network has no parameter or input 'q'"):
            net.inference_and_backprop({"x": x}, "y", wrt=["q"], cotangent=c)


def test_feed_fetch_native_and_assign(backend):
    x = np.ones((1, 4), np.float32)
    with meta500.network(skip_network(), backend=backend) as net:
        net.feed_tensor("w", np.zeros((4, 4), np.float32))
        assert not net.inference({"x": x})["y"].any()
        net.assign("w", net.to_native(np.eye(4, dtype=np.float32)))
        assert net.inference({"x": x})["y"].tolist() == [[3, 3, 3, 3]]
        copy = net.fetch_tensors(["w"])[0]
        copy[:] = 9
        assert net.to_numpy(net.native("w")).tolist() == np.eye(4).tolist()
        assert net.fetch_tensors(["x", "y"])[0].tolist() == x.tolist()
        with pytest.raises(UserError, match=r"'w' has shape \[4, 4\], got \[2\]"):
            net.feed_tensor("w", np.zeros(2, np.float32))
        with pytest.raises(UserError, match="'w' must be float32, got float64"):
            net.feed_tensor("w", np.zeros((4, 4)))
        with pytest.raises(UserError, match="no parameter or constant 'v'; it has w"):
            net.feed_tensor("v", np.zeros(1))
        with pytest.raises(UserError, match="'q' is not kept"):
            net.fetch_tensors(["q"])


def test_fed_parameters_are_copies(backend):
    value = np.eye(4, dtype=np.float32)
    with meta500.network(skip_network(), backend=backend) as net:
        net.feed_tensor("w", value)
        value[:] = 0
        assert net.fetch_tensors(["w"])[0].trace() == 4


def test_added_operations_and_outputs(backend):
    x = np.ones((2, 4), np.float32)
    model = skip_network()
    hidden = model.graph.operations[0].Y
    with meta500.network(model, backend=backend) as net:
        net.feed_tensor("w", np.eye(4, dtype=np.float32))
        net.add_output(hidden)
        assert net.inference({"x": x}, outputs=[hidden])[hidden].tolist() == x.tolist()
        net.add_operation(ops.Neg("y", "minus", name="neg"))
        net.add_output("minus")
        assert net.inference({"x": x})["minus"].tolist() == (-3 * x).tolist()
        with pytest.raises(UserError, match="no value 'nothing'"):
            net.add_output("nothing")
        with pytest.raises(UserError, match="reads 'nothing'"):
            net.add_operation(ops.Neg("nothing", "other", name="neg2"))
        with pytest.raises(UserError, match="writes 'y'"):
            net.add_operation(ops.Neg("x", "y", name="neg3"))


def normalization_model():
    b = Builder("bn")
    x = b.input("x", "float64", ("N", 2, 3))
    scale, bias = b.parameter("scale", np.array([1.5, -1.0])), b.parameter("bias", np.array([0.1, 0.2]))
    mean, var = b.constant(np.array([0.5, 0.0]), "mean"), b.constant(np.array([2.0, 1.0]), "var")
    y = b.add(ops.BatchNormalization, x, scale, bias, mean, var, momentum=0.8, follow_mode=True, name="bn")
    b.output(y, "y")
    b.output(b.add(ops.ReduceMean, b.add(ops.Mul, y, y), keepdims=0), "loss")
    return b.build()


def test_batch_normalization_follows_the_mode(backend):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 2, 3))
    with meta500.network(normalization_model(), backend=backend) as net:
        mean, var, scale, bias = (
            a[None, :, None] for a in net.fetch_tensors(["mean", "var", "scale", "bias"])
        )
        expected = (x - mean) / np.sqrt(var + 1e-5) * scale + bias
        np.testing.assert_allclose(net.inference({"x": x})["y"], expected, rtol=1e-12)
        trained = net.inference_and_backprop({"x": x})["y"]
        m, v = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
        np.testing.assert_allclose(trained, (x - m) / np.sqrt(v + 1e-5) * scale + bias, rtol=1e-12)
        new_mean, new_var = net.fetch_tensors(["mean", "var"])
        np.testing.assert_allclose(new_mean, 0.8 * mean.ravel() + 0.2 * m.ravel(), rtol=1e-12)
        np.testing.assert_allclose(new_var, 0.8 * var.ravel() + 0.2 * v.ravel(), rtol=1e-12)
        after = (x - new_mean[:, None]) / np.sqrt(new_var[:, None] + 1e-5) * scale + bias
        np.testing.assert_allclose(net.inference({"x": x})["y"], after, rtol=1e-12)


def dropout_model():
    b = Builder("dropout")
    x = b.input("x", "float32", (1000,))
    b.output(b.add(ops.Dropout, x, b.constant(np.float32(0.25)), follow_mode=True, name="drop"), "y")
    b.output(b.add(ops.ReduceSum, "y", keepdims=0), "loss")
    return b.build()


def test_dropout_drops_in_training_only_and_is_seeded(backend):
    x = np.ones(1000, np.float32)
    runs = []
    for seed in (0, 0, 1):
        with meta500.network(dropout_model(), backend=backend, seed=seed) as net:
            assert np.array_equal(net.inference({"x": x})["y"], x)
            first = net.inference_and_backprop({"x": x}, wrt=["x"])["y"]
            assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
            assert 180 < (first == 0).sum() < 320
            assert np.array_equal(net.fetch_tensors(["grad/x"])[0], first)
            second = net.inference_and_backprop({"x": x}, wrt=["x"])["y"]
            assert not np.array_equal(first, second)
            runs.append(first)
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], runs[2])


def test_a_seeded_node_draws_new_masks_that_repeat_from_run_to_run(backend):
    b = Builder("seeded")
    x = b.input("x", "float32", (1000,))
    training = b.constant(np.array(True))
    b.output(b.add(ops.Dropout, x, b.constant(np.float32(0.5)), training, seed=7, name="drop"), "y")
    runs = []
    for _ in range(2):
        with meta500.network(b.build(), backend=backend) as net:
            runs.append([net.inference({"x": np.ones(1000, np.float32)})["y"].copy() for _ in range(2)])
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(*runs[0])


@pytest.mark.slow
def test_compiled_dropout_is_seeded_and_leaves_the_global_generator_alone():
    import torch

    x = np.ones(1000, np.float32)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        with meta500.network(dropout_model(), backend="torch", mode="compile", seed=1) as net:
            steps = [net.inference_and_backprop({"x": x}, wrt=["x"])["y"] for _ in range(2)]
            assert np.array_equal(net.fetch_tensors(["grad/x"])[0], steps[1])
        assert torch.equal(torch.get_rng_state(), before)
        assert not np.array_equal(*steps) and 180 < (steps[0] == 0).sum() < 320
        runs.append(steps)
    assert np.array_equal(runs[0], runs[1])


def test_precision_gives_the_float64_reference(backend):
    x = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    model = skip_network()
    with meta500.network(model, backend=backend, precision="float64") as net:
        y = net.inference({"x": x})["y"]
        assert y.dtype == np.float64
        expected, _, _ = skip_expected(
            x.astype(np.float64), 0.0, model.graph.initializers["w"].astype(np.float64)
        )
        np.testing.assert_allclose(y, expected, rtol=1e-14)


def test_unknown_names_list_the_choices(backend):
    model = skip_network()
    with pytest.raises(UserError, match=r"unknown backend 'nump'. Did you mean 'numpy'.*numpy.*torch"):
        meta500.network(model, backend="nump")
    with pytest.raises(UserError, match="unknown option 'thread' of backend.*threads"):
        meta500.network(model, backend=backend, thread=2)
    with pytest.raises(UserError, match="threads must be a number from 1 to .* got 0"):
        meta500.network(model, backend=backend, threads=0)
    with pytest.raises(UserError, match="unknown precision 'double'"):
        meta500.network(model, backend=backend, precision="double")


def one_node(op_type, inputs, output, opset=21, domain="", **attributes):
    values = {f"x{i}": v for i, v in enumerate(inputs)}
    node = helper.make_node(op_type, list(values), ["y"], name="the_node", domain=domain, **attributes)
    infos = [helper.make_tensor_value_info(n, e, s) for n, (e, s) in values.items()]
    result = helper.make_tensor_value_info("y", *output)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 5)]
    return load(helper.make_model(helper.make_graph([node], "g", infos, [result]), opset_imports=imports))


@custom_operation
class Unruled(Operation):
    """Known to the parser, run by no backend."""

    domain = "tests"
    op_type = "Unruled"
    signatures = (Signature(1, "x", "y"),)
    x: str
    y: str | None = None


def test_coverage_is_known_before_running(backend):
    b = Builder("unruled")
    b.output(b.add(Unruled, b.input("x", "float32", (2,)), name="the_node"), "y")
    refused = b.build()
    assert [c.how for c in meta500.coverage(refused, backend)] == [UNSUPPORTED]
    with pytest.raises(UnsupportedOperation, match="'the_node': operator tests.Unruled") as error:
        meta500.network(refused, backend=backend)
    assert (error.value.node, error.value.op_type, error.value.domain) == ("the_node", "Unruled", "tests")
    with meta500.network(skip_network(), backend=backend) as net:
        assert {c.how for c in net.coverage()} == {NATIVE}


def test_torch_declares_what_runs_on_the_host():
    text = onnx.TensorProto.STRING
    model = one_node("StringNormalizer", [(text, [2])], (text, [2]), case_change_action="UPPER")
    (node,) = meta500.coverage(model, "torch")
    assert (node.how, node.reason) == (HOST, "numpy rule on the host")
    with meta500.network(model, backend="torch") as net:
        assert net.inference({"x0": np.array(["ab", "C"], object)})["y"].tolist() == ["AB", "C"]


def test_parameters_that_the_loss_does_not_reach_have_zero_gradients(backend):
    b = Builder("unused")
    x = b.input("x", "float32", (2,))
    used, unused = b.parameter("a", np.ones(2, np.float32)), b.parameter("b", np.ones(2, np.float32))
    b.output(b.add(ops.Mul, x, unused), "other")
    b.output(b.add(ops.ReduceSum, b.add(ops.Mul, x, used), keepdims=0), "loss")
    with meta500.network(b.build(), backend=backend) as net:
        net.inference_and_backprop({"x": np.array([2, 3], np.float32)})
        assert [g.tolist() for g in net.fetch_tensors(["grad/a", "grad/b"])] == [[2, 3], [0, 0]]


def test_an_operator_without_gradient_refuses(backend):
    """Rounding has a zero gradient almost everywhere; ArgMax has none and stops differentiation."""
    b = Builder("argmax")
    x = b.input("x", "float32", (4,))
    w = b.parameter("w", np.ones(4, np.float32))
    index = b.add(ops.ArgMax, b.add(ops.Mul, x, w), keepdims=1)
    b.output(b.add(ops.ReduceSum, b.add(ops.Cast, index, to=onnx.TensorProto.FLOAT), keepdims=0), "loss")
    with meta500.network(b.build(), backend=backend) as net:
        net.inference_and_backprop({"x": np.arange(4, dtype=np.float32)})
        assert not net.fetch_tensors(["grad/w"])[0].any()


def test_a_closed_network_says_so(backend):
    net = meta500.network(skip_network(), backend=backend)
    net.close()
    with pytest.raises(UserError, match="closed"):
        net.inference({"x": np.ones((1, 4), np.float32)})


def test_current_model_carries_the_trained_parameters(backend):
    with meta500.network(skip_network(), backend=backend) as net:
        net.feed_tensor("w", np.full((4, 4), 2, np.float32))
        model = load(net.current_model().to_proto())
    assert model.graph.initializers["w"].tolist() == np.full((4, 4), 2).tolist()


def test_results_are_bit_identical_from_run_to_run(backend):
    rng = np.random.default_rng(4)
    feed = {
        "x": rng.normal(size=(64, 4)).astype(np.float32),
        "t": rng.normal(size=(64, 4)).astype(np.float32),
    }
    losses = []
    for _ in range(2):
        with meta500.network(skip_network(), backend=backend) as net:
            losses.append(net.inference_and_backprop(feed)["loss"])
    assert losses[0].tobytes() == losses[1].tobytes()


def test_registering_a_backend():
    register("numpy-again", "meta500.backends.numpy.network:NumpyNetwork")
    assert "numpy-again" in meta500.backend_names()
    assert isinstance(meta500.network(skip_network(), backend="numpy-again"), Network)
    with pytest.raises(UserError, match="registered already"):
        register("numpy-again", "other:Thing")
    register("needs-something", "meta500_package_that_is_missing:Thing")
    with pytest.raises(UserError, match="needs the package 'meta500_package_that_is_missing'"):
        meta500.network(skip_network(), backend="needs-something")


def test_torch_options():
    model = skip_network()
    with pytest.raises(UserError, match=r"unknown mode 'fast'.*compile, eager"):
        meta500.network(model, backend="torch", mode="fast")
    with pytest.raises(UserError, match="unknown device 'gpu9000'"):
        meta500.network(model, backend="torch", device="gpu9000")
    with pytest.raises(UserError, match="unknown memory_format"):
        meta500.network(model, backend="torch", memory_format="sideways")


def test_torch_without_cuda_says_so():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(UserError, match="sees no CUDA device; choose cpu"):
        meta500.network(skip_network(), backend="torch", device="cuda")


def test_torch_module_is_an_ordinary_module():
    import torch

    with meta500.network(skip_network(), backend="torch") as net:
        assert isinstance(net.module, torch.nn.Module)
        (parameter,) = net.module.parameters()
        assert parameter.shape == (4, 4) and parameter.requires_grad


def test_wrong_shapes_deep_inside_name_the_network(backend):
    b = Builder("mismatch")
    x, y = b.input("x", "float32", ("N", 3)), b.input("y", "float32", ("M", 3))
    b.output(b.add(ops.Add, x, y), "z")
    feed = {"x": np.ones((2, 3), np.float32), "y": np.ones((5, 3), np.float32)}
    with meta500.network(b.build(), backend=backend) as net, pytest.raises(UserError, match="cannot run"):
        net.inference(feed)


@pytest.mark.parametrize(
    ("index", "shape", "label"), [(9, (8,), "node 'gather_1'"), (1, (3, 5), "node 'reshape_1'")]
)
def test_a_fault_at_run_time_names_the_node(backend, index, shape, label):
    b = Builder("late")
    x, i = b.input("x", "float32", ("N", 4)), b.input("i", "int64", (2,))
    rows = b.add(ops.Gather, b.add(ops.Relu, x), i, axis=0)
    b.output(b.add(ops.Reshape, rows, b.constant(np.array(shape))), "y")
    with meta500.network(b.build(), backend=backend) as net, pytest.raises(UserError) as caught:
        net.inference({"x": np.ones((2, 4), np.float32), "i": np.array([0, index])})
    assert str(caught.value).startswith(label)
