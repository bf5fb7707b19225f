"""``check_operator`` passes right operators and finds each planted fault."""

import numpy as np
import pytest

import meta500
from meta500.benchmarks.operators.conformance import RIGHT, outcome
from meta500.benchmarks.operators.custom import FAILED, PASSED, custom_case, example_cases
from meta500.custom import CustomOperator, operator, remove
from meta500.graph import ops
from meta500.graph.custom import custom_operations

X = np.random.default_rng(0).standard_normal((3, 4))


@pytest.fixture(autouse=True)
def forget():
    before = set(custom_operations())
    yield
    for key, cls in list(custom_operations().items()):
        if key not in before and issubclass(cls, CustomOperator):
            remove(*key)


def square(forward=lambda x: x * x, backward=lambda call, d_y: 2 * call.inputs[0] * d_y, **options):
    def Square(x):
        return forward(x)

    cls = operator("tests.check", **{"outputs": {"y": "x"}, **options})(Square)
    if backward is not None:
        cls.backward(backward)
    return cls


def failing(report):
    return {check.name for check in report.failures}


def test_right_operator_passes():
    report = meta500.check_operator(square(), [X])
    assert report.passed and report.operator == "tests.check.Square"
    assert {c.name for c in report.checks} == {
        "forward",
        "types",
        "repeat",
        "strided",
        "empty",
        "file",
        "backward",
        "gradient",
    }
    assert {(c.backend, c.dtype) for c in report.checks if c.name == "forward"} == {
        (backend, dtype) for backend in ("numpy", "torch") for dtype in ("float32", "float64")
    }
    gradient = [c for c in report.checks if c.name == "gradient"]
    assert {c.backend for c in gradient} == {"numpy", "torch", "numpy/torch"}
    assert all(c.error is not None and c.error < 1e-8 for c in gradient)
    assert "passed   forward" in str(report)


def test_wrong_values_against_a_reference():
    cls = square(lambda x: x * x * (1 + 1e-4))
    report = meta500.check_operator(cls, [X], reference=lambda x: x**2, strict=False, gradients=False)
    assert failing(report) == {"forward", "strided"}
    with pytest.raises(meta500.UserError, match=r"tests.check.Square fails \d+ of \d+ checks(.|\n)*wrong"):
        meta500.check_operator(cls, [X], reference=lambda x: x**2)


def test_wrong_gradient():
    cls = square(backward=lambda call, d_y: 2.001 * call.inputs[0] * d_y)
    assert failing(meta500.check_operator(cls, [X], strict=False)) == {"gradient"}


def test_no_gradient():
    cls = square(backward=None)
    assert failing(meta500.check_operator(cls, [X], strict=False)) == {"backward", "gradient"}
    assert meta500.check_operator(cls, [X], gradients=False).passed


def test_gradient_of_another_type():
    cls = square(backward=lambda call, d_y: (2 * call.inputs[0] * d_y).astype("float64"))
    report = meta500.check_operator(cls, [X], strict=False)
    assert {(c.name, c.dtype) for c in report.failures} == {("backward", "float32")}


def test_results_that_do_not_repeat():
    calls = iter(range(10**6))
    cls = square(lambda x: x * x + next(calls) * np.finfo(x.dtype).eps, backward=None)
    report = meta500.check_operator(cls, [X], gradients=False, strict=False)
    assert "repeat" in failing(report)


def test_torch_function_that_differs():
    cls = square()
    cls.torch(lambda x: x * x + 1e-3)
    report = meta500.check_operator(cls, [X], strict=False, gradients=False)
    assert {c.backend for c in report.failures} == {"torch"}


def test_function_that_differs():
    cls = square()
    cls.onnx("y = Mul (x, x)")
    report = meta500.check_operator(cls, [X])
    assert [c.result for c in report.checks if c.name == "function"] == [PASSED, PASSED]
    other = square(replace=True)
    other.onnx("y = Add (x, x)")
    report = meta500.check_operator(other, [X], strict=False)
    assert failing(report) == {"function"}


def test_operator_of_one_dtype():
    report = meta500.check_operator(square(dtypes=["float32"]), [X])
    assert {c.dtype for c in report.checks if c.name == "forward"} == {"float32"}
    assert [c.message for c in report.checks if c.name == "gradient"] == [
        "the operator does not take float64"
    ]


def test_operators_of_onnx_can_be_checked():
    report = meta500.check_operator(ops.Gemm, [X, X.T.copy()], {"alpha": 0.5}, dtypes=["float64"])
    assert report.passed and report.operator == "Gemm"
    assert not [c for c in report.checks if c.result == FAILED]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"z": X}, "there is no input 'z'; they are x"),
        ([X, X], "one for each of x"),
        (X, "one for each of x"),
    ],
)
def test_unsuitable_inputs(inputs, message):
    with pytest.raises(meta500.UserError, match=message):
        meta500.check_operator(square(), inputs)


def test_case_for_the_other_tools():
    case = custom_case(square(), [X], dtype="float64")
    ((fed, expected),) = case.data()
    assert (case.suite, case.operator) == ("custom", "tests.check.Square")
    np.testing.assert_array_equal(fed["x"], X)
    np.testing.assert_array_equal(expected["y"], X * X)
    found = outcome(case, "torch")
    assert (found.result, found.how) == (RIGHT, "host")


def test_a_file_that_does_not_compile_is_refused_before_anything_runs(tmp_path, monkeypatch):
    from meta500.benchmarks.operators.plan import Plan
    from meta500.benchmarks.operators.runner import run

    (tmp_path / "operators.py").write_text(
        "from meta500.custom import operator\n"
        "@operator('tests.broken', outputs={'y': 'x'}, source='broken.cpp')\n"
        "def Broken(x):\n"
        "    return x\n"
        "@Broken.example\n"
        "def example(rng):\n"
        "    return {'x': rng.standard_normal(5)}\n"
    )
    (tmp_path / "broken.cpp").write_text('#include "meta500.h"\nMETA500_FORWARD(Broken) { nonsense; }\n')
    plan = Plan(custom=(str(tmp_path / "operators.py"),), time=False)
    with pytest.raises(meta500.UserError, match=r"broken.cpp: does not compile:\n.*broken.cpp:2"):
        run(plan, out=tmp_path / "run")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(meta500.UserError, match="no-such-compiler"):
        run(plan, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_wrong_gradient_at_the_border_of_a_long_array_is_found():
    @operator("tests.check", outputs={"y": "x"})
    def Shifted(x):
        y = x.copy()
        y[1:] += x[:-1]
        return y

    @Shifted.backward
    def shifted_backward(call, d_y):
        d_x = d_y.copy()
        d_x[:-1] += d_y[1:]
        d_x[-1] += d_y[0]
        return d_x

    with pytest.raises(meta500.UserError, match="differs from central differences"):
        meta500.check_operator(Shifted, [np.random.default_rng(0).standard_normal(100_000)])


def test_examples_of_a_file(tmp_path):
    path = tmp_path / "operators.py"
    path.write_text(
        "from meta500.custom import operator\n"
        "@operator('tests.examples', outputs={'y': 'x'})\n"
        "def Scale(x, *, by: float = 1.0):\n"
        "    return x * x.dtype.type(by)\n"
        "@operator('tests.examples', outputs={'y': 'x'})\n"
        "def Bare(x):\n"
        "    return x + 0\n"
        "@Scale.example\n"
        "def scale_example(rng):\n"
        "    return {'x': rng.standard_normal(5), 'by': 4.0}\n"
    )
    (case,) = example_cases([str(path)], ["Scale"], seed=3)
    ((fed, expected),) = case.data()
    x = np.random.default_rng(3).standard_normal(5).astype(np.float32)
    np.testing.assert_array_equal(fed["x"], x)
    np.testing.assert_array_equal(expected["y"], 4 * x)
    with pytest.raises(meta500.UserError, match=r"tests.examples.Bare has no example; write @Bare.example"):
        example_cases([str(path)])
    with pytest.raises(meta500.UserError, match="no operator 'Gone' in .*it has tests.examples.Scale"):
        example_cases([str(path)], ["Gone"])
