"""Gradients of all operators, the table of them, and whether planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs
import onnx.parser
import pytest

from meta500.backends.numpy import plan
from meta500.backends.numpy.operators import rules as numpy_rules
from meta500.backends.torch.operators import rules as torch_rules
from meta500.benchmarks.operators.cases import cases, operator_name, operators
from meta500.benchmarks.operators.differences import directional
from meta500.benchmarks.operators.differentiability import (
    DIFFERENTIABLE,
    NOT_DIFFERENTIABLE,
    TABLE,
    differentiability,
)
from meta500.benchmarks.operators.gradient_models import gradient_models
from meta500.benchmarks.operators.gradient_table import (
    LACKING,
    check_operator,
    operator_cases,
    page,
    read_table,
    write_table,
)
from meta500.benchmarks.operators.gradients import (
    AGREEMENT,
    EXCLUDED,
    REFUSED,
    RIGHT,
    TOLERANCE,
    WRONG,
    check_case,
    check_gradients,
    formal_names,
    refusals,
)
from meta500.errors import UserError
from meta500.graph import load
from meta500.graph.types import is_floating

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMMITTED = {line.operator: line for line in read_table(DOCS)}

Backward = Callable[..., Any]


# Its gradients are checked in some hundred cases, which take a while.
LONG = {"Attention"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "operator", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in TABLE]
)
def test_gradients(operator: str) -> None:
    """Right where there is a derivative, refused where there is none, and as the committed table says."""
    line, faults = check_operator(operator)
    assert not faults
    known = COMMITTED[operator]
    for name in ("kind", "inputs", "cases", "checked", "refused", "note"):
        assert getattr(line, name) == getattr(known, name), f"{name}: make the table anew"
    for name in ("numpy", "torch", "between"):
        found, committed = getattr(line, name), getattr(known, name)
        assert (found is None) == (committed is None)
        if found is not None:
            # The last digits depend on the machine; errors below this are noise of the differences.
            assert found <= max(30 * committed, 1e-9)


def test_every_operator_has_an_entry() -> None:
    domains = {"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"}
    known = {
        operator_name(schema.domain, schema.name)
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain in domains
    }
    assert {schema.domain for schema in onnx.defs.get_all_schemas_with_history()} == domains
    assert known == set(TABLE)
    assert set(operators("node")) <= set(TABLE)


def test_entries_name_inputs_of_the_schemas() -> None:
    for operator, entry in TABLE.items():
        domain, _, name = operator.rpartition(".")
        versions = [
            s for s in onnx.defs.get_all_schemas_with_history() if (s.domain, s.name) == (domain, name)
        ]
        inputs = {formal.name for schema in versions for formal in schema.inputs}
        assert {*(entry.inputs or ()), *entry.constant} <= inputs, operator
        assert entry.reason or entry.kind == DIFFERENTIABLE, operator


def test_every_differentiable_operator_is_checked_on_both_backends() -> None:
    for operator, line in COMMITTED.items():
        if line.kind == NOT_DIFFERENTIABLE:
            assert line.checked == 0
            continue
        assert line.checked > 0, operator
        for backend in ("numpy", "torch"):
            assert (getattr(line, backend) is None) == ((operator, backend) in LACKING), operator


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "Gemm", "LSTM", "GRU", "RNN", "Attention"])
def test_every_input_is_differentiated_by(operator: str) -> None:
    schema = onnx.defs.get_schema(operator)
    types = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    floating = {i.name for i in schema.inputs if "tensor(float)" in types.get(i.type_str, [])}
    reached = {
        check.formal
        for case in operator_cases(operator)
        if not case.expanded
        for check in check_case(case, ["numpy"])
        if check.result == RIGHT
    }
    assert reached == floating


_DIFFERENTIATED = ("Q", "K", "V", "A", "B")


def test_excluded_cases_exist_and_would_fail() -> None:
    for name in EXCLUDED:
        (case,) = cases("node", names=[name])
        inputs = case.data()[0][0]
        formals = formal_names(case)
        wrt = [n for n, v in inputs.items() if is_floating(v.dtype) and formals[n] in _DIFFERENTIATED]
        assert any(c.result != RIGHT for c in check_gradients(case.model(), inputs, wrt, ["numpy"])), name


def test_table_has_one_line_per_operator_in_order() -> None:
    assert list(COMMITTED) == list(TABLE) == sorted(TABLE)


def test_page_is_made_from_the_table(tmp_path: Path) -> None:
    assert (DOCS / "gradients.md").read_text() == page(list(COMMITTED.values()))
    write_table(COMMITTED.values(), tmp_path)
    for name in ("gradients.csv", "gradients.md"):
        assert (tmp_path / name).read_bytes() == (DOCS / name).read_bytes()


def test_unknown_operator_is_refused() -> None:
    with pytest.raises(UserError, match="Relu"):
        differentiability("Relus")


# Faults: operator -> what its backward gives, from the right gradients and the call.


def _flipped(gradients: Any, call: Any) -> Any:
    return (gradients[0], -gradients[1])


def _swapped(gradients: Any, call: Any) -> Any:
    return gradients[::-1]


def _times(factor: float) -> Backward:
    return lambda gradients, call: tuple(g if g is None else g * factor for g in gradients)


def _shifted(gradients: Any, call: Any) -> Any:
    return (np.roll(gradients[0], 1, axis=-1), *gradients[1:])


def _one_element(gradients: Any, call: Any) -> Any:
    first = np.array(gradients[0])
    first.reshape(-1)[0] += 1e-3
    return (first, *gradients[1:])


def _nan(gradients: Any, call: Any) -> Any:
    return (np.where(np.arange(gradients[0].size).reshape(gradients[0].shape) == 1, np.nan, gradients[0]),)


def _last_only(gradients: Any, call: Any) -> Any:
    """Gather without accumulation: of an index that is read several times only the last cotangent counts."""
    found = np.zeros_like(gradients[0])
    found[np.asarray(call.inputs[1])] = 1.0
    return (np.where(found != 0, gradients[0] / 2, 0), None)


FAULTS: dict[str, tuple[str, Backward]] = {
    "sign": ("(double[2,3] a, double[2,3] b) => (double[2,3] y) { y = Sub(a, b) }", _flipped),
    "wrong input": ("(double[2,3] a, double[2,3] b) => (double[2,3] y) { y = Mul(a, b) }", _swapped),
    "factor": ("(double[2,4] a) => (double y) { y = ReduceL2<keepdims=0>(a) }", _times(0.5)),
    "small factor": ("(double[2,4] a) => (double[2,4] y) { y = Tanh(a) }", _times(1 + 1e-5)),
    "zero": ("(double[2,4] a) => (double[2,4] y) { y = Exp(a) }", _times(0.0)),
    "off by one": ("(double[2,4] a) => (double[2,4] y) { y = Softmax<axis=1>(a) }", _shifted),
    "one element": ("(double[3,5] a, double[5,2] b) => (double[3,2] y) { y = MatMul(a, b) }", _one_element),
    "NaN": ("(double[2,4] a) => (double[2,4] y) { y = Sin(a) }", _nan),
    "no accumulation": (
        """(double[4,3] a) => (double[5,3] y)
        { i = Constant<value = int64[5] {0,2,2,2,1}>()  y = Gather(a, i) }""",
        _last_only,
    ),
}


def _checks(text: str) -> list[Any]:
    model = load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 13]> g {text}'))
    rng = np.random.default_rng(5)
    inputs = {name: rng.standard_normal(kind.shape) for name, kind in model.graph.inputs.items()}
    return check_gradients(model, inputs, list(inputs))


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, wrong = FAULTS[fault]
    assert all(check.result == RIGHT for check in _checks(text))
    model = load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 13]> g {text}'))
    op = model.graph.operations[-1]
    entry = numpy_rules.find(op.domain, op.op_type, op.since_version)
    assert entry is not None and entry.rule.backward is not None
    right = entry.rule.backward
    monkeypatch.setattr(
        entry.rule, "backward", lambda call, *cotangents: wrong(right(call, *cotangents), call)
    )
    results = {(check.backend, check.result) for check in _checks(text)}
    assert ("numpy", WRONG) in results and ("numpy/torch", WRONG) in results
    assert ("torch", WRONG) not in results


def test_missing_sum_at_fan_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(double[2,3] a) => (double[2,3] y) { b = Sin(a)  c = Exp(a)  y = Mul(b, c) }"
    assert all(check.result == RIGHT for check in _checks(text))
    monkeypatch.setattr(plan, "add", lambda a, b: b if a is None else a)
    assert {c.backend for c in _checks(text) if c.result == WRONG} == {"numpy", "numpy/torch"}


def test_fault_in_torch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(double[2,3] a) => (double[2,3] y) { y = Exp(a) }"
    entry = torch_rules.find("", "Exp", 13)
    assert entry is not None
    right = entry.rule.function
    monkeypatch.setattr(entry.rule, "function", lambda x: right(x.detach()) + 0 * x)
    assert {c.backend for c in _checks(text) if c.result == WRONG} == {"torch", "numpy/torch"}


def test_missing_backward_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = numpy_rules.find("", "Erf", 13)
    assert entry is not None
    monkeypatch.setattr(entry.rule, "backward", None)
    _, faults = check_operator("Erf")
    assert {(fault.backend, fault.result) for fault in faults} == {("numpy", REFUSED)}


def test_gradient_where_there_is_none_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = numpy_rules.find("", "Bernoulli", 22)
    assert entry is not None
    monkeypatch.setattr(entry.rule, "backward", lambda call, d: (np.zeros_like(call.inputs[0]),))
    (case,) = cases("node", names=["bernoulli"])
    assert {check.result for check in refusals(case, ["numpy"])} == {WRONG}


# Differences


def _line(function: Callable[[float], float]) -> Callable[[float], tuple[np.ndarray, np.ndarray]]:
    return lambda t: (np.array([function(t)]), np.array([abs(function(t))]))


@pytest.mark.parametrize(
    "function, slope",
    [
        (lambda t: float(np.exp(1 + t)), float(np.e)),
        (lambda t: float(np.sin(100 * t)), 100.0),
        (lambda t: (2 + t) ** 5, 80.0),
        (lambda t: 1e-8 * (1 + t) ** 3, 3e-8),
        (lambda t: 3.0, 0.0),
    ],
)
def test_derivatives_of_smooth_functions(function: Callable[[float], float], slope: float) -> None:
    found = directional(_line(function))
    assert found.smooth.all()
    assert abs(found.value[0] - slope) <= 1e-8 * abs(slope)
    assert abs(found.value[0] - slope) <= found.noise[0] + 1e-9 * abs(slope)


@pytest.mark.parametrize(
    "function",
    [
        abs,
        lambda t: max(t, 0.0),
        lambda t: abs(t - 1e-5),
        lambda t: float(np.sign(t)),
        lambda t: float(np.floor(t + 1e-6)),
        lambda t: float(np.sqrt(t)) if t >= 0 else float("nan"),
        lambda t: float("inf"),
    ],
)
def test_kinks_and_jumps_are_not_smooth(function: Callable[[float], float]) -> None:
    assert not directional(_line(function)).smooth.any()


@pytest.mark.parametrize(
    "text, expected",
    [
        # At the kink itself: ties and zeros, from which the check moves away.
        ("(double[4] a) => (double[4] y) { y = Relu(a) }", np.zeros(4)),
        ("(double[4] a) => (double[4] y) { y = Abs(a) }", np.zeros(4)),
        ("(double[4] a) => (double y) { y = ReduceMax<keepdims=0>(a) }", np.ones(4)),
        (
            "(double[1,1,2,2] a) => (double[1,1,1,1] y) { y = MaxPool<kernel_shape=[2,2]>(a) }",
            np.ones((1, 1, 2, 2)),
        ),
    ],
)
def test_inputs_on_kinks_are_checked_beside_them(text: str, expected: np.ndarray) -> None:
    model = load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 13]> g {text}'))
    checks = check_gradients(model, {"a": expected}, ["a"])
    assert [check.result for check in checks] == [RIGHT] * 3
    assert all(check.error is not None and check.error <= TOLERANCE for check in checks)
    assert checks[-1].error is not None and checks[-1].error <= AGREEMENT


def test_models_are_about_operators_of_the_table() -> None:
    made = gradient_models()
    assert len({case.name for case in made}) == len(made)
    for case in made:
        assert case.operator in TABLE
        assert any(
            operator_name(op.domain, op.op_type) == case.operator for op in case.model().graph.operations
        ), case.name
