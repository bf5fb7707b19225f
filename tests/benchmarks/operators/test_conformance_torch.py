"""Every case of ONNX's suites on torch, against the committed list of refusals."""

import pytest

from meta500.benchmarks.operators.cases import cases
from meta500.benchmarks.operators.conformance import outcome, summary, sweep
from meta500.benchmarks.operators.refusals import complaints

BACKEND = "torch"
LEAST_RIGHT = 1870
LEAST_NATIVE = 1500
# Compared with numpy in float64; the others take minutes.
SAMPLED = ["inception_v1", "resnet50"]

pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_node_suite():
    outcomes = sweep(["node"], [BACKEND])
    assert complaints(outcomes) == []
    (count,) = summary(outcomes)
    assert count.cases == 1884
    assert count.right_native + count.right_host >= LEAST_RIGHT
    assert count.right_native >= LEAST_NATIVE


@pytest.mark.parametrize(
    ("suite", "number"), [("simple", 23), ("pytorch-operator", 35), ("pytorch-converted", 82), ("light", 9)]
)
def test_all_cases_of_the_other_suites_are_right(suite, number):
    outcomes = sweep([suite], [BACKEND])
    assert complaints(outcomes) == []
    assert [o.result for o in outcomes] == ["right"] * number


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_networks_with_random_weights(name):
    (case,) = cases("light-random", names=[name])
    found = outcome(case, BACKEND)
    assert (found.result, found.message) == ("right", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in cases("light-random") if case.name not in SAMPLED])
def test_the_other_networks_with_random_weights(name):
    (case,) = cases("light-random", names=[name])
    found = outcome(case, BACKEND)
    assert (found.result, found.message) == ("right", "")
