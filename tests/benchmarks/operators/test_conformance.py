"""How an outcome is judged, and the committed list of refusals."""

import ml_dtypes
import numpy as np
import pytest

import meta500
from meta500.benchmarks.operators import conformance
from meta500.benchmarks.operators.cases import SUITES, Case, cases
from meta500.benchmarks.operators.conformance import Outcome, difference, outcome, summary
from meta500.benchmarks.operators.light import randomize
from meta500.benchmarks.operators.refusals import complaints, listed_backends, refusals
from meta500.errors import UserError


def judged(result, name="relu", backend="numpy", how="native"):
    case = Case(name, "node", "Relu", 1e-3, 1e-7, lambda: (None, []))
    return Outcome(case, backend, result, how, None, "why", 0.0)


def test_the_list_names_existing_cases_with_a_reason():
    assert listed_backends() == ["numpy", "torch"]
    for backend in listed_backends():
        for suite in SUITES:
            listed = refusals(backend, suite)
            if listed:
                assert set(listed) <= {case.name for case in cases(suite)}
            assert all(len(reason) > 10 for reason in listed.values())


def test_the_list_has_not_grown():
    assert [len(refusals(backend, "node")) for backend in listed_backends()] == [6, 6]
    others = [suite for suite in SUITES if suite != "node"]
    assert all(refusals(backend, suite) == {} for backend in listed_backends() for suite in others)


def test_an_unknown_backend_has_no_list():
    with pytest.raises(UserError, match="unknown backend 'onnxruntime'"):
        refusals("onnxruntime")


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (judged("wrong"), "numpy, node 'relu' is wrong: why"),
        (judged("crashed"), "is crashed"),
        (judged("refused"), "is refused and not listed"),
        (judged("right", "bernoulli", "torch"), "torch, node 'bernoulli' is right: remove it"),
        (judged("wrong", "bernoulli"), "is wrong"),
    ],
)
def test_what_contradicts_the_list(found, part):
    (text,) = complaints([found])
    assert part in text


def test_what_agrees_with_the_list():
    assert complaints([judged("right"), judged("refused", "bernoulli")]) == []


def test_summary_counts_apart():
    results = ["right", "right", "refused", "wrong", "crashed"]
    (count,) = summary([*map(judged, results), judged("right", how="host")])
    assert (count.cases, count.right_native, count.right_host) == (6, 2, 1)
    assert (count.refused, count.wrong, count.crashed) == (1, 1, 1)


X = np.array([1.0, 2.0], np.float32)


@pytest.mark.parametrize(
    ("found", "expected", "message"),
    [
        (X, X, ""),
        (X + np.float32(1e-4), X, ""),
        (X + np.float32(1e-2), X, "2 of 2 numbers are wrong"),
        (X.astype(np.float64), X, "expected float32"),
        (X[:1], X, "expected float32"),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), ""),
        (np.array([np.inf]), np.array([-np.inf]), "wrong"),
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 numbers are wrong, the first at [1]: expected 3, got 2"),
        (np.array(["a"], object), np.array(["b"], object), "the strings differ"),
        ([X], [X, X], "expected"),
        ([X, X * 2], [X, X], "[1] "),
        ({"a": 1}, {"a": 2}, "['a'] "),
        ({"a": 1}, {"b": 1}, "expected a map"),
        (None, None, ""),
        (None, X, "expected"),
        (X, None, "expected"),
        (X.astype(ml_dtypes.bfloat16), (X * 1.01).astype(ml_dtypes.bfloat16), ""),
        (X.astype(ml_dtypes.bfloat16), (X * 1.1).astype(ml_dtypes.bfloat16), "wrong"),
    ],
)
def test_difference(found, expected, message):
    text = difference(found, expected, 1e-3, 1e-7)[1]
    assert message in text
    assert bool(text) == bool(message)


def test_the_largest_error_is_absolute():
    assert difference(np.array([1.0, 5.0]), np.array([1.5, 5.0]), 0, 0)[0] == 0.5


def test_a_wrong_backend_is_found_wrong(monkeypatch):
    from meta500.backends.numpy.network import NumpyNetwork

    inference = NumpyNetwork.inference

    def faulty(self, inputs, outputs=None):
        return {name: value + np.float32(0.01) for name, value in inference(self, inputs, outputs).items()}

    monkeypatch.setattr(NumpyNetwork, "inference", faulty)
    (case,) = cases("node", names=["relu"])
    found = outcome(case, "numpy")
    assert found.result == "wrong"
    assert found.error == pytest.approx(0.01, rel=1e-3)


def test_a_crash_is_no_refusal(monkeypatch):
    from meta500.backends.numpy.network import NumpyNetwork

    def broken(self, inputs, outputs=None):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(NumpyNetwork, "inference", broken)
    (case,) = cases("node", names=["relu"])
    found = outcome(case, "numpy")
    assert (found.result, found.message) == ("crashed", "ZeroDivisionError: oh")


def test_what_changes_its_input_is_wrong(monkeypatch):
    from meta500.backends.numpy.network import NumpyNetwork

    inference = NumpyNetwork.inference

    def writing(self, inputs, outputs=None):
        found = inference(self, inputs, outputs)
        inputs["x"][...] = 0
        return found

    monkeypatch.setattr(NumpyNetwork, "inference", writing)
    (case,) = cases("node", names=["relu"])
    assert outcome(case, "numpy").message == "input 'x' was changed"


def test_constant_weights_can_be_passed_by_a_constant_but_random_ones_can_not(monkeypatch):
    from meta500.backends.numpy.network import NumpyNetwork

    inference = NumpyNetwork.inference

    def constant(self, inputs, outputs=None):
        return {
            name: np.full_like(value, value.mean())
            for name, value in inference(self, inputs, outputs).items()
        }

    conformance.agreed.cache_clear()
    monkeypatch.setattr(NumpyNetwork, "inference", constant)
    (shipped,), (random,) = (cases(suite, names=["squeezenet"]) for suite in ("light", "light-random"))
    assert outcome(shipped, "numpy").result == "right"
    assert outcome(random, "numpy").result == "wrong"
    conformance.agreed.cache_clear()


def test_random_weights_repeat():
    (case,) = cases("light-random", names=["squeezenet"])
    first, second = ([t.SerializeToString() for t in case.source()[0].graph.initializer] for _ in range(2))
    assert first == second


def test_randomize_leaves_no_constant_weight():
    (case,) = cases("light", names=["resnet50"])
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(case.proto())
    randomize(proto)
    model = meta500.load(proto)
    weights = [a for a in model.graph.initializers.values() if a.dtype == np.float32 and a.size > 1]
    assert len(weights) > 100
    assert min(float(a.std()) for a in weights) > 0


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        (lambda: cases("nod"), "Did you mean 'node'"),
        (lambda: cases("node", operators=["Reluu"]), "The nearest are: Relu, .*--list"),
        (lambda: cases("node", names=["rel"]), "The nearest are: "),
        (lambda: cases("light", operators=["Conv"]), "about no operator"),
    ],
)
def test_choosing_cases_refuses_clearly(chosen, text):
    with pytest.raises(UserError, match=text):
        chosen()


def test_cases_are_chosen_by_operator_and_name():
    found = cases("node", operators=["Relu"])
    assert {case.name for case in found} == {"relu", "relu_expanded_ver18"}
    assert [case.expanded for case in found] == [False, True]
    assert [case.name for case in cases("node", names=["test_relu"])] == ["relu"]
