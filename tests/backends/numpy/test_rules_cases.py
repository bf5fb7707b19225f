"""Every rule against every case of the ONNX backend suite that is one node of its operator."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from meta500.backends.numpy.operators import rules
from meta500.errors import UserError

# Cases that a rule must refuse: pattern of their names, reason.
REFUSED: tuple[tuple[str, str], ...] = ()
# The values are random.
RANDOM = {"test_bernoulli", "test_bernoulli_double", "test_bernoulli_seed"}
# Operators without any case: reason.
NO_CASE = {
    ("meta500", "MeanSquaredError"): "our own operator; tested against torch",
    ("meta500", "AllReduce"): "tested on real processes, in tests/distributed",
    ("meta500", "HaloExchange"): "tested on real processes, in tests/distributed",
    ("", "SequenceEmpty"): "its cases build sequences; they run in networks",
    ("ai.onnx.ml", "TreeEnsemble"): "its cases run in networks",
}


def _cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = []
        for case in load_model_tests(kind="node"):
            model = case.model
            if model is None or len(model.graph.node) != 1 or model.functions or "_expanded" in case.name:
                continue
            node = model.graph.node[0]
            known = node.domain in ("", "ai.onnx") and rules.find("", node.op_type, 1000) is not None
            if known and case.name not in RANDOM and _is_plain(model.graph):
                found.append(case)
        return found


def _is_plain(graph: Any) -> bool:
    """Whether all values are tensors and no attribute is a graph: what a rule can be given directly."""
    tensors = all(v.type.HasField("tensor_type") for v in (*graph.input, *graph.output))
    return tensors and not any(a.HasField("g") for a in graph.node[0].attribute)


CASES = _cases()


def attribute_value(attribute: AttributeProto) -> Any:
    """An attribute as the visitor hands it to a rule."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, bytes):
        return value.decode()
    if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
        return tuple(value)
    if attribute.type == AttributeProto.STRINGS:
        return tuple(item.decode() for item in value)
    return value


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _since(case: Any) -> tuple[Any, int]:
    node = case.model.graph.node[0]
    opset = next(o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx"))
    return node, defs.get_schema(node.op_type, opset, "").since_version


def _compare(case: Any, got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    if got.dtype.kind in "biuO":
        np.testing.assert_array_equal(got, wanted)
    else:
        # For bfloat16 two units in the last place, as in onnx's own runner.
        rtol = max(case.rtol, 2**-6) if got.dtype.name == "bfloat16" and case.rtol else case.rtol
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=case.atol
        )


def _refused(case: Any) -> bool:
    return any(re.match(pattern, case.name) for pattern, _ in REFUSED)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_case(rule, case) -> None:
    node, since = _since(case)
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    for given, expected in case.data_sets:
        arrays = iter(_array(value) for value in given)
        inputs = [next(arrays) if name else None for name in node.input]
        if _refused(case):
            with pytest.raises(UserError):
                rule(node.op_type, since, inputs, attributes)
            continue
        ran = rule(node.op_type, since, inputs, attributes, n_outputs=len(node.output))
        got = [array for array, name in zip(ran.outputs, node.output, strict=False) if name]
        for array, wanted in zip(got, expected, strict=True):
            _compare(case, array, _array(wanted))


def test_enough_cases() -> None:
    """The loader found the suite, and refusals are few."""
    assert len(CASES) > 800
    refused = [case.name for case in CASES if _refused(case)]
    assert refused == []


def test_every_operator_has_a_case(network_tested) -> None:
    """The newest rule of every operator runs at least one case that is not refused, here or in a network."""
    covered = set()
    for case in CASES:
        node, since = _since(case)
        if not _refused(case):
            entry = rules.find("", node.op_type, since)
            covered.add(("", node.op_type, entry.since))
    newest = {}
    for entry in rules:
        newest[entry.domain, entry.op_type] = entry.since
    missing = {key for key, since in newest.items() if (*key, since) not in covered}
    assert {(d, o) for d, o in missing if not network_tested(o)} - set(NO_CASE) == set()
