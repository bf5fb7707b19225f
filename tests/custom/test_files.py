"""Custom operators in ONNX files, and files of operators."""

import os
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import meta500
from meta500.custom import load_operators, operator
from meta500.graph import Builder, ops

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
OPERATORS = """
import numpy as np
from meta500.custom import operator


@operator("tests.files", outputs={"y": "x"})
def Shift(x, *, by: float = 1.0):
    return x + np.float32(by)


@Shift.backward
def shift_backward(call, d_y):
    return d_y
"""


def model_with(cls, **attributes):
    b = Builder("file")
    b.input("x", "float32", ("N", 4))
    b.output(b.add(ops.Relu, b.add(cls, "x", name="the_node", **attributes)), "y")
    return b.build()


def test_unknown_operator_is_named_until_its_file_is_loaded(tmp_path):
    """In a process of its own: what is loaded stays."""
    operators, path = tmp_path / "shift.py", tmp_path / "model.onnx"
    operators.write_text(OPERATORS)
    node = onnx.helper.make_node("Shift", ["x"], ["y"], name="a_node", domain="tests.files", by=2.0)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g", [value("x", 1, ["N"])], [onnx.helper.make_empty_tensor_value_info("y")]
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("tests.files", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    program = (
        "import sys, numpy as np, meta500\n"
        "try:\n"
        "    meta500.load(sys.argv[1])\n"
        "except meta500.UserError as error:\n"
        "    print(error)\n"
        "print([c.__name__ for c in meta500.load_operators(sys.argv[2])])\n"
        "model = meta500.load(sys.argv[1])\n"
        "for backend in ('numpy', 'torch'):\n"
        "    with meta500.network(model, backend=backend) as net:\n"
        "        print(net.inference({'x': np.ones(2, np.float32)})['y'].tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path), str(operators)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    message, *rest = done.stdout.splitlines()
    assert "a_node" in message and "unknown operator" in message and "load_operators" in message
    assert rest == ["['Shift']", "[3.0, 3.0]", "[3.0, 3.0]"]


def test_files_of_operators(tmp_path, monkeypatch):
    path = tmp_path / "shift.py"
    path.write_text(OPERATORS)
    (first,) = load_operators(path)
    assert first.__name__ == "Shift" and load_operators(path) == [first]
    monkeypatch.setenv("META500_OPERATORS", f"{path}{os.pathsep}")
    assert load_operators() == [first]
    with pytest.raises(meta500.UserError, match=r"gone\.py: there is no such Python file"):
        load_operators(tmp_path / "gone.py")
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\nx.nothing()\n")
    with pytest.raises(meta500.UserError, match=r"broken\.py, line 2: AttributeError"):
        load_operators(broken)
    broken.write_text("def f(:\n")
    with pytest.raises(meta500.UserError, match=r"broken\.py, line 1: SyntaxError"):
        load_operators(broken)


def test_round_trip_keeps_attributes(tmp_path):
    @operator("tests.files", outputs={"y": "x"})
    def Many(
        x,
        *,
        f: float = 0.1,
        i: int = 2,
        s: str = "t",
        fs: tuple[float, ...] = (),
        t: np.ndarray | None = None,
    ):
        return x * np.float32(f) + np.float32(i + len(s) + sum(fs) + (0 if t is None else t.sum()))

    model = model_with(Many, f=0.3, i=-1, s="four", fs=(0.5, 0.25), t=np.arange(3))
    path = tmp_path / "many.onnx"
    model.save(path)
    node = meta500.load(path).graph.operations[0]
    assert (node.f, node.i, node.s, node.fs, node.t.tolist()) == (0.3, -1, "four", (0.5, 0.25), [0, 1, 2])
    for backend in ("numpy", "torch"):
        with meta500.network(meta500.load(path), backend=backend) as net:
            found = net.inference({"x": X})["y"]
        np.testing.assert_allclose(found, np.maximum(X * 0.3 + 6.75, 0), rtol=1e-6)


@pytest.mark.parametrize("form", ["text", "function"])
def test_function_runs_elsewhere(form):
    @operator("tests.files", outputs={"y": "x"})
    def Silu(x, *, beta: float = 1.0):
        return x / (1 + np.exp(-np.float32(beta) * x))

    if form == "text":
        Silu.onnx(
            "b = Constant <value_float: float = @beta> () z = Mul (b, x) s = Sigmoid (z) y = Mul (x, s)"
        )
    else:

        @Silu.onnx
        def swish_onnx(*, beta):
            return f"b = Constant <value_float = {beta}> () z = Mul (b, x) s = Sigmoid (z) y = Mul (x, s)"

    b = Builder("two")
    b.input("x", "float32", ("N", 4))
    b.output(b.add(Silu, b.add(Silu, "x", beta=2.0)), "y")
    proto = b.build().to_proto()
    assert len(proto.functions) == (1 if form == "text" else 2)
    onnx.checker.check_model(proto)
    inner = X / (1 + np.exp(-2 * X))
    expected = inner / (1 + np.exp(-inner))
    if form == "text":  # onnx.reference does not tell the overloads of a function apart
        found = ReferenceEvaluator(proto).run(["y"], {"x": X})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    proto.ir_version = min(proto.ir_version, 11)
    inference = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(inference.run(["y"], {"x": X})[0], expected, rtol=1e-5)


def test_function_that_onnx_does_not_understand():
    @operator("tests.files", outputs={"y": "x"})
    def Bad(x):
        return x

    with pytest.raises(
        meta500.UserError, match=r"tests.files.Bad: its ONNX function is not understood(.|\n)*y = "
    ):
        Bad.onnx("y = Mul (x")


def test_symbolic_dimensions_flow_through():
    @operator("tests.files", outputs="y")
    def Pairs(x):
        return np.concatenate([x, x], axis=1)

    @Pairs.shape
    def pairs_shape(x):
        from meta500.graph.types import TensorType

        return TensorType(x.dtype, (x.shape[0], 2 * x.shape[1]))

    assert model_with(Pairs).outputs["y"].shape == ("N", 8)
