"""Cases of ONNX's node suite on the generated backend: right or refused, never wrong.

Each case that is not refused costs a compilation; the quick tests take a sample.
"""

import pytest

from meta500.benchmarks.operators.cases import cases
from meta500.benchmarks.operators.conformance import outcome, summary, sweep

BACKEND = "generated"
LEAST_RIGHT = 485
SAMPLED = [
    "basic_conv_with_padding",
    "convtranspose_group_2",
    "batchnorm_example_training_mode",
    "averagepool_2d_pads_count_include_pad",
    "maxpool_2d_dilations",
    "gemm_all_attributes",
    "concat_3d_axis_negative_2",
    "sce_NCd1d2d3_sum_weight_high_ii",
    "logsoftmax_axis_1",
    "transpose_all_permutations_3",
    "where_example",
    "xor_bcast3v2d",
]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_cases_are_right(name):
    (case,) = cases("node", names=[name])
    found = outcome(case, BACKEND, threads=1)
    assert (found.result, found.how, found.message) == ("right", "native", "")


@pytest.mark.parametrize("name", ["string_concat", "nonzero_example", "bernoulli", "add_uint8"])
def test_what_cannot_be_generated_is_refused(name):
    (case,) = cases("node", names=[name])
    found = outcome(case, BACKEND, threads=1)
    assert found.result == "refused" and len(found.message) > 10


@pytest.mark.slow
def test_the_node_suite_has_nothing_wrong():
    outcomes = sweep(["node"], [BACKEND])
    bad = [(o.case.name, o.result, o.message) for o in outcomes if o.result in ("wrong", "crashed")]
    assert bad == []
    (count,) = summary(outcomes)
    assert count.cases == 1884 and count.right_native >= LEAST_RIGHT
