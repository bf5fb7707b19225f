"""Operators from a C++ file, on both backends."""

from pathlib import Path

import numpy as np
import pytest

import meta500
from meta500.custom import operator
from meta500.custom.library import array_view, contiguous, outputs_filled_with
from meta500.graph import Builder
from meta500.graph.types import TensorType

BACKENDS = ("numpy", "torch")
SOURCE = Path(__file__).with_name("operators.cpp")
X = np.linspace(-2, 3, 12).reshape(3, 4)


def define(function, outputs=None, **options):
    return operator("tests.cpp", outputs=outputs or {"y": "x"}, source=SOURCE, **options)(function)


def affine():
    def Affine(x, b=None, *, a: float = 2.0):
        return a * x + (0 if b is None else b)

    return define(Affine)


def model_of(cls, arrays, **attributes):
    b = Builder("one")
    names = [b.input(f"in{i}", a.dtype, a.shape) for i, a in enumerate(arrays)]
    outputs = [formal.name for formal in cls.signatures[-1].outputs]
    b.add(cls, *names, outputs=outputs, name="the_node", **attributes)
    for name in outputs:
        b.output(name)
    return b.build()


def run(cls, arrays, backend, options=None, **attributes):
    with meta500.network(model_of(cls, arrays, **attributes), backend=backend, **(options or {})) as net:
        return net.inference({f"in{i}": a for i, a in enumerate(arrays)})


def gradients(cls, arrays, backend, cotangent, options=None, **attributes):
    model = model_of(cls, arrays, **attributes)
    with meta500.network(model, backend=backend, **(options or {})) as net:
        fed = {f"in{i}": a for i, a in enumerate(arrays)}
        loss = next(iter(model.outputs))
        net.inference_and_backprop(fed, loss=loss, outputs=[loss], wrt=list(fed), cotangent=cotangent)
        return net.fetch_tensors([f"grad/{name}" for name in fed])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_and_gradients(backend, dtype):
    cls, x, b = affine(), X.astype(dtype), np.ones((3, 4), dtype)
    np.testing.assert_allclose(run(cls, [x], backend)["y"], 2 * x, rtol=1e-7)
    found = run(cls, [x, b], backend, a=3.0)["y"]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, 3 * x + 1, rtol=1e-6, atol=1e-6)
    cotangent = np.cos(x)
    d_x, d_b = gradients(cls, [x, b], backend, cotangent, a=3.0)
    np.testing.assert_allclose(d_x, 3 * cotangent, rtol=1e-6)
    np.testing.assert_array_equal(d_b, cotangent)


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_of_other_types(backend):
    def RowSums(x): ...

    cls = define(RowSums, "sums counts")
    model = model_of(cls, [X])
    assert model.outputs["sums"] == TensorType(np.dtype("float64"), (3,))
    assert model.outputs["counts"] == TensorType(np.dtype("int64"), (3, 1))
    found = run(cls, [X], backend)
    np.testing.assert_allclose(found["sums"], X.sum(1), rtol=1e-14)
    np.testing.assert_array_equal(found["counts"][:, 0], (X > 0).sum(1))
    (d_x,) = gradients(cls, [X], backend, np.array([1.0, 2.0, 3.0]))
    np.testing.assert_array_equal(d_x, np.repeat([[1.0], [2.0], [3.0]], 4, axis=1))
    with pytest.raises(meta500.UserError, match="the_node.*RowSums_shapes: x must have rank 2, has 1"):
        model_of(cls, [X[0]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_are_checked_by_the_operator(backend):
    with pytest.raises(meta500.UserError, match=r"the_node.*input 0 has shape \[3, 4\], input 1 has \[4\]"):
        run(affine(), [X, X[0]], backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_follow_the_network(backend, threads):
    def Threads(x): ...

    found = run(define(Threads), [np.zeros(3, np.int64)], backend, {"threads": threads})
    assert found["y"].tolist() == [threads, 0, 0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_kind_of_attribute(backend):
    def Kinds(
        x,
        *,
        f: float = 1.5,
        i: int = 3,
        s: str = "abc",
        floats: tuple[float, ...] = (1.0, 2.5),
        ints: tuple[int, ...] = (4,),
        strings: tuple[str, ...] = ("a", "bc"),
        absent: float | None = None,
    ): ...

    cls = define(Kinds)
    zeros = np.zeros(6)
    assert run(cls, [zeros], backend)["y"].tolist() == [1.5, 3, 3, 7.5, 3, 0]
    given = {"f": 2, "i": -(2**40), "s": "ä", "floats": (), "ints": (1, 2), "strings": ("x",), "absent": 0.5}
    assert run(cls, [zeros], backend, **given)["y"].tolist() == [2, -(2.0**40), 2, 3, 1, 1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WrongAttribute", "there is no attribute 'scale'"),
        ("WrongDtype", "input 0 is float64, not float32"),
        ("ThrowsInt", "something was thrown that is no std::exception"),
        ("Plain", "it returned 3 without a message"),
    ],
)
def test_errors_name_node_file_and_function(backend, name, message):
    def function(x): ...

    function.__name__ = name
    with pytest.raises(meta500.UserError, match=rf"the_node.*operators\.cpp: {name}_forward: {message}"):
        run(define(function), [X], backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backward_is_refused(backend):
    def Unwritten(x): ...

    with pytest.raises(meta500.UserError, match="the_node.*no gradient.*no function Unwritten_backward"):
        gradients(define(Unwritten), [X], backend, np.ones_like(X))


def test_shapes_that_cannot_be_are_refused():
    def BadShapes(x): ...

    with pytest.raises(meta500.UserError, match="BadShapes_shapes gives no valid type for output 'y'"):
        model_of(define(BadShapes, "y"), [X])


def test_missing_function_file_and_unknown_type():
    def Nowhere(x): ...

    with pytest.raises(meta500.UserError, match="has no function Nowhere_forward"):
        run(define(Nowhere), [X], "numpy")

    def Plain(x): ...

    with pytest.raises(meta500.UserError, match=r"tests\.cpp\.Plain: there is no C\+\+ file .*gone\.cpp"):
        operator("tests.cpp", outputs="y", source=SOURCE.with_name("gone.cpp"))(Plain)

    def ThrowsInt(x): ...

    with pytest.raises(meta500.UserError, match="the type of output 'y' is unknown.*ThrowsInt.shape"):
        run(define(ThrowsInt, "y"), [X], "numpy")


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_layouts(backend):
    """Transposed, strided, big-endian and empty inputs give what contiguous ones give."""
    cls = affine()
    for x in (X.T, X[::2, 1::2], X[::-1], np.broadcast_to(X[0], (3, 4)), np.zeros((0, 4))):
        np.testing.assert_array_equal(run(cls, [x], backend)["y"], 2 * x)
    assert contiguous(X.astype(">f8")).dtype.isnative
    np.testing.assert_array_equal(contiguous(X.astype(">f8")), X)
    unaligned = np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float64)
    assert contiguous(unaligned).flags.aligned


def test_strings_are_refused():
    def Plain(x): ...

    with pytest.raises(meta500.UserError, match=r"which C\+\+ operators do not take"):
        run(define(Plain), [np.array(["a"], object)], "numpy")
    assert array_view(None).data == 0
    assert array_view(np.zeros((0, 3))).data != 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_unwritten_outputs_show(backend):
    def Unwritten(x): ...

    cls = define(Unwritten)
    with outputs_filled_with(0xFF):
        assert np.isnan(run(cls, [X], backend)["y"][-1, -1])
    with outputs_filled_with(0x00):
        assert run(cls, [X], backend)["y"][-1, -1] == 0


def test_compile_mode_and_repeated_steps():
    cls = affine()
    options = {"mode": "compile"}
    for _ in range(2):
        (d_x,) = gradients(cls, [X], "torch", np.ones_like(X), options, a=5.0)
        np.testing.assert_array_equal(d_x, np.full_like(X, 5))


def test_torch_memory_is_passed_without_a_copy():
    import torch

    from meta500.custom import torch_function

    cls = affine()
    seen = []
    library = cls.definition.library
    plain = library.run_forward
    library.run_forward = lambda inputs, *rest: (seen.append(inputs[0].data), plain(inputs, *rest))
    tensor = torch.from_numpy(X)
    torch_function.torch_rule(cls.definition, library)(tensor, a=1.0)
    assert seen == [tensor.data_ptr()]


def test_training_agrees_between_backends():
    """An optimizer's steps through a C++ operator: the same losses on both backends."""
    from meta500.graph import ops
    from meta500.graph.custom import MeanSquaredError

    cls = affine()
    rng = np.random.default_rng(0)
    b = Builder("fit")
    b.input("x", "float64", ("N", 5))
    b.input("y", "float64", ("N", 2))
    b.parameter("w", rng.standard_normal((5, 2)))
    b.output(b.add(MeanSquaredError, b.add(cls, b.add(ops.MatMul, "x", "w"), a=0.5), "y"), "loss")
    model = b.build()
    fed = {"x": rng.standard_normal((8, 5)), "y": rng.standard_normal((8, 2))}
    losses = {}
    for backend in BACKENDS:
        with meta500.network(model, backend=backend) as net:
            optimizer = meta500.optimizers.Adam(net, learning_rate=0.05)
            losses[backend] = [float(optimizer.train(fed)["loss"]) for _ in range(10)]
    np.testing.assert_allclose(losses["torch"], losses["numpy"], rtol=1e-10)
    assert losses["numpy"][-1] < 0.8 * losses["numpy"][0]
