"""Operators from Python functions, on both backends."""

import subprocess
import sys

import numpy as np
import pytest

import meta500
from meta500.custom import operator, remove
from meta500.graph import Builder, ops
from meta500.graph.types import TensorType

BACKENDS = ("numpy", "torch")
X = np.linspace(-2, 2, 12).reshape(3, 4)


def swish_class(backward=True):
    @operator("tests.ops", outputs={"y": "x"}, dtypes=("float32", "float64"))
    def Swish(x, *, beta: float = 1.0):
        """y = x / (1 + exp(-beta x))."""
        return x / (1 + np.exp(-beta * x))

    if backward:

        @Swish.backward
        def swish_backward(call, d_y):
            x, beta = call.inputs[0], call.attributes["beta"]
            s = 1 / (1 + np.exp(-beta * x))
            return d_y * (s + beta * x * s * (1 - s))

    return Swish


def model_of(cls, arrays, **attributes):
    b = Builder("one")
    names = [b.input(f"in{i}", a.dtype, a.shape) for i, a in enumerate(arrays)]
    outputs = [formal.name for formal in cls.signatures[-1].outputs]
    b.add(cls, *names, outputs=outputs, name="the_node", **attributes)
    for name in outputs:
        b.output(name)
    return b.build()


def run(cls, arrays, backend, **attributes):
    with meta500.network(model_of(cls, arrays, **attributes), backend=backend) as net:
        return net.inference({f"in{i}": a for i, a in enumerate(arrays)})


def gradient(cls, arrays, backend, cotangent, **attributes):
    model = model_of(cls, arrays, **attributes)
    with meta500.network(model, backend=backend) as net:
        fed = {f"in{i}": a for i, a in enumerate(arrays)}
        loss = next(iter(model.outputs))
        net.inference_and_backprop(fed, loss=loss, outputs=[loss], wrt=list(fed), cotangent=cotangent)
        return net.fetch_tensors([f"grad/{name}" for name in fed])


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_and_gradient(backend):
    swish = swish_class()
    s = 1 / (1 + np.exp(-1.5 * X))
    found = run(swish, [X], backend, beta=1.5)["y"]
    np.testing.assert_allclose(found, X * s, rtol=1e-14)
    d_y = np.cos(X)
    (d_x,) = gradient(swish, [X], backend, d_y, beta=1.5)
    np.testing.assert_allclose(d_x, d_y * (s + 1.5 * X * s * (1 - s)), rtol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_default_attribute_and_shape(backend):
    swish = swish_class()
    assert model_of(swish, [X]).outputs["y"] == TensorType(np.dtype("float64"), (3, 4))
    np.testing.assert_allclose(run(swish, [X], backend)["y"], X / (1 + np.exp(-X)), rtol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backward_is_refused(backend):
    swish = swish_class(backward=False)
    with pytest.raises(meta500.UserError, match="the_node.*no gradient for Swish"):
        gradient(swish, [X], backend, np.ones_like(X))


def test_coverage_says_host_on_torch():
    swish = swish_class()
    (node,) = meta500.coverage(model_of(swish, [X]), "torch")
    assert node.how == "host"
    (node,) = meta500.coverage(model_of(swish, [X]), "numpy")
    assert node.how == "native"


def test_torch_function_runs_natively():
    import torch

    swish = swish_class(backward=False)

    @swish.torch
    def swish_torch(x, *, beta):
        return x * torch.sigmoid(beta * x)

    (node,) = meta500.coverage(model_of(swish, [X]), "torch")
    assert node.how == "native"
    (d_x,) = gradient(swish, [X], "torch", np.ones_like(X), beta=2.0)
    s = 1 / (1 + np.exp(-2 * X))
    np.testing.assert_allclose(d_x, s + 2 * X * s * (1 - s), rtol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_dtype_is_refused_when_the_network_is_built(backend):
    with pytest.raises(meta500.UserError, match="the_node.*input 'x' must be float32 or float64, got int64"):
        run(swish_class(), [X.astype(np.int64)], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_cannot_be_changed(backend):
    @operator("tests.ops", outputs={"y": "x"})
    def Doubles(x):
        x *= 2
        return x

    fed = X.copy()
    with pytest.raises(meta500.UserError, match=r"the_node.*test_python_operator.py, line \d+.*read-only"):
        run(Doubles, [fed], backend)
    np.testing.assert_array_equal(fed, X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_result_that_is_an_input_is_a_copy(backend):
    @operator("tests.ops", outputs={"y": "x"})
    def Same(x):
        return x

    fed = X.copy()
    found = run(Same, [fed], backend)["y"]
    assert not np.shares_memory(found, fed)
    np.testing.assert_array_equal(found, X)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:1], r"declared is float64\[3, 4\]"),
        (lambda x: x.astype("float32"), r"output 'y' of tests.ops.Bad is float32\[3, 4\]"),
        (lambda x: (x, x), "returns 2 arrays for 1 outputs"),
        (lambda x: x.nonsense, "AttributeError: .*nonsense"),
        (lambda x: {}["key"], "KeyError: 'key'"),
    ],
)
def test_faulty_functions_are_named(backend, function, message):
    def Bad(x):
        return function(x)

    cls = operator("tests.ops", outputs={"y": "x"})(Bad)
    with pytest.raises(meta500.UserError, match=f"the_node.*{message}"):
        run(cls, [X], backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda call, d_y: d_y[:1], r"gives float64\[1, 4\] as the gradient of 'x'"),
        (lambda call, d_y: (), "returns 0 gradients for 1 inputs"),
        (lambda call, d_y: d_y / call.attributes["gone"], "KeyError"),
        (lambda call, d_y: np.multiply(d_y, 2, out=call.inputs[0]), "read-only"),
    ],
)
def test_faulty_backwards_are_named(backend, function, message):
    swish = swish_class(backward=False)
    swish.backward(function)
    with pytest.raises(meta500.UserError, match=f"the_node.*the backward of tests.ops.Swish.*{message}"):
        gradient(swish, [X], backend, np.ones_like(X))


@pytest.mark.parametrize("backend", BACKENDS)
def test_variadic_input_and_several_outputs(backend):
    @operator("tests.ops", outputs="total parts")
    def Weighted(x, w, *xs):
        return w * x + sum(xs), np.array([len(xs), 7], np.int64)

    @Weighted.shape
    def weighted_shape(x, w, *xs):
        return x, TensorType(np.dtype("int64"), (2,))

    b = Builder("one")
    names = [b.input(f"in{i}", X.dtype, X.shape) for i in range(4)]
    b.add(Weighted, *names[:2], tuple(names[2:]), outputs=["total", "parts"])
    b.output("total")
    b.output("parts")
    with meta500.network(b.build(), backend=backend) as net:
        found = net.inference({"in0": X, "in1": 3 * X, "in2": X, "in3": X})
    np.testing.assert_allclose(found["total"], 3 * X * X + 2 * X, rtol=1e-15)
    np.testing.assert_array_equal(found["parts"], [2, 7])
    np.testing.assert_array_equal(run(Weighted, [X, X], backend)["parts"], [0, 7])
    with pytest.raises(meta500.UserError, match="too many inputs, 'in3' is left over"):
        b.add(Weighted, *names)


@pytest.mark.parametrize("backend", BACKENDS)
def test_optional_inputs(backend):
    @operator("tests.ops", outputs={"y": "x"})
    def Clamp(x, low=None, high=None):
        low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
        return np.clip(x, low, high)

    @Clamp.backward
    def clamp_backward(call, d_y):
        x, low, high = call.inputs
        assert low is None and call.needs == (True, False, True)
        return d_y * (x < high), None, np.sum(d_y * (x >= high), dtype=x.dtype)

    b = Builder("one")
    b.input("x", "float64", X.shape)
    b.input("high", "float64", ())
    b.output(b.add(Clamp, "x", high="high"), "y")
    fed = {"x": X, "high": np.float64(0.5)}
    with meta500.network(b.build(), backend=backend) as net:
        found = net.inference_and_backprop(fed, loss="y", wrt=["x", "high"], cotangent=np.ones_like(X))
        d_x, d_high = net.fetch_tensors(["grad/x", "grad/high"])
    np.testing.assert_array_equal(found["y"], np.minimum(X, 0.5))
    np.testing.assert_array_equal(d_x, X < 0.5)
    assert d_high == (X >= 0.5).sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_shape_function(backend):
    @operator("tests.ops", outputs="y")
    def Repeat(x, *, times: int):
        return np.repeat(x, times, axis=0)

    @Repeat.shape
    def repeat_shape(x, *, times):
        return TensorType(x.dtype, (x.shape[0] * times, *x.shape[1:]))

    assert model_of(Repeat, [X], times=2).outputs["y"].shape == (6, 4)
    np.testing.assert_array_equal(run(Repeat, [X], backend, times=2)["y"], np.repeat(X, 2, axis=0))
    with pytest.raises(meta500.UserError, match="times"):
        run(Repeat, [X], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_accumulates_at_fan_out_and_through_other_nodes(backend):
    swish = swish_class()
    b = Builder("twice")
    b.input("x", "float64", X.shape)
    b.output(b.add(ops.Mul, b.add(swish, "x"), b.add(swish, "x", beta=2.0)), "y")
    with meta500.network(b.build(), backend=backend) as net:
        net.inference_and_backprop({"x": X}, loss="y", wrt=["x"], cotangent=np.ones_like(X))
        (found,) = net.fetch_tensors(["grad/x"])

    def y(x):
        return x * x / (1 + np.exp(-x)) / (1 + np.exp(-2 * x))

    np.testing.assert_allclose(found, (y(X + 1e-6) - y(X - 1e-6)) / 2e-6, atol=1e-8)


def test_compile_mode():
    swish = swish_class()
    with meta500.network(model_of(swish, [X]), backend="torch", mode="compile") as net:
        found = net.inference_and_backprop({"in0": X}, loss="y", wrt=["in0"], cotangent=np.ones_like(X))
        (d_x,) = net.fetch_tensors(["grad/in0"])
    s = 1 / (1 + np.exp(-X))
    np.testing.assert_allclose(found["y"], X * s, rtol=1e-13)
    np.testing.assert_allclose(d_x, s + X * s * (1 - s), rtol=1e-12)


def test_defining_twice_needs_replace():
    first = swish_class()
    with pytest.raises(meta500.UserError, match="defined already; say replace=True"):
        swish_class()

    @operator("tests.ops", outputs={"y": "x"}, replace=True)
    def Swish(x):
        return x + 1

    assert Swish is not first
    np.testing.assert_array_equal(run(Swish, [X], "torch")["y"], X + 1)
    remove("tests.ops", "Swish")
    with pytest.raises(meta500.UserError, match=r"no custom operator tests.ops.Swish"):
        remove("tests.ops", "Swish")


def test_defining_does_not_import_torch():
    code = (
        "import sys, numpy as np, meta500\n"
        "from meta500.custom import operator\n"
        "@operator('tests.ops', outputs={'y': 'x'})\n"
        "def Twice(x):\n"
        "    return 2 * x\n"
        "@Twice.torch\n"
        "def twice_torch(x):\n"
        "    return x + x\n"
        "assert 'torch' not in sys.modules\n"
        "from meta500.graph import Builder\n"
        "b = Builder('m'); b.input('x', 'float32', (2,)); b.output(b.add(Twice, 'x'), 'y')\n"
        "print([n.how for n in meta500.coverage(b.build(), 'torch')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['native']"
