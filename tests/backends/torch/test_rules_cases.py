"""Every rule against ONNX's own node cases, and the rule table against the operator schemas."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from meta500.backends.rules import Entry
from meta500.backends.torch.operators import rules
from meta500.errors import UserError

# Cases that no rule answers: each pattern with the reason. All others must give the expected values.
REFUSED = {
    r"test_cast(like)?_(e8m0_)?.*_to_(FLOAT8E8M0|FLOAT4E2M1|U?INT4|U?INT2)(_expanded)?": "torch lacks the dtype",
    r"test_cast(like)?_(e8m0_)?(FLOAT8E8M0|FLOAT4E2M1|U?INT4|U?INT2)_to_.*": "torch has no such dtype",
    r"test_(de)?quantizelinear_(u?int4|u?int2|float4e2m1)": "torch has no such dtype",
    r"test_equal_string.*": "torch has no strings",
}

# The values are random, or the network runs the node on the host instead.
ELSEWHERE = re.compile(r"test_bernoulli.*|test_dft_inverse(_opset19)?")


@cache
def _cases() -> dict[str, tuple[TestCase, Entry]]:
    found = {}
    for case in load_model_tests(kind="node"):
        if len(case.model.graph.node) != 1 or not _is_plain(case):
            continue
        node = case.model.graph.node[0]
        opset = _opset(case, node.domain)
        since = onnx.defs.get_schema(node.op_type, opset, node.domain).since_version
        entry = rules.find(node.domain, node.op_type, since)
        if entry is not None:
            found[case.name] = (case, entry)
    return found


def _is_plain(case: TestCase) -> bool:
    """Whether all values are tensors and no attribute is a graph: what a rule can be given directly."""
    graph = case.model.graph
    tensors = all(v.type.HasField("tensor_type") for v in (*graph.input, *graph.output))
    return tensors and not any(a.HasField("g") for a in graph.node[0].attribute)


def _opset(case: TestCase, domain: str) -> int:
    return next(o.version for o in case.model.opset_import if o.domain == domain)


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def _refusal(name: str) -> str | None:
    return next((reason for pattern, reason in REFUSED.items() if re.fullmatch(pattern, name)), None)


@pytest.mark.parametrize("name", sorted(n for n in _cases() if not ELSEWHERE.fullmatch(n)))
def test_node_case(name: str, node_rule: Any, values: Any) -> None:
    case, entry = _cases()[name]
    graph = case.model.graph
    node = graph.node[0]
    opset = _opset(case, node.domain)
    for given, expected in case.data_sets:
        inputs = dict(zip((i.name for i in graph.input), map(_array, given), strict=True))
        if _refusal(name):
            with pytest.raises(UserError):
                node_rule(node, opset, inputs)
            continue
        outputs = node_rule(node, opset, inputs)
        wanted = dict(zip((o.name for o in graph.output), map(_array, expected), strict=True))
        for output, tensor in zip(node.output, outputs, strict=False):
            if output:
                _compare(values(tensor), wanted[output], case)
        if entry.host_positions:
            again = node_rule(node, opset, inputs, host_lists=True)
            for left, right in zip(outputs, again, strict=True):
                torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)


def _compare(got: np.ndarray, wanted: np.ndarray, case: TestCase) -> None:
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
    else:
        # For bfloat16 two units in the last place, as in onnx's own runner.
        rtol = max(case.rtol, 2**-6) if got.dtype.name == "bfloat16" and case.rtol else case.rtol
        with np.errstate(invalid="ignore"):  # the NaN of 8-bit floats
            got, wanted = got.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=case.atol)


def test_most_node_cases_are_answered() -> None:
    refused = [name for name in _cases() if _refusal(name)]
    assert len(refused) == 88
    assert len(_cases()) - len(refused) >= 730


def test_every_rule_has_a_case(network_tested: Any) -> None:
    tested = {(e.domain, e.op_type, e.since) for name, (_, e) in _cases().items() if not _refusal(name)}
    table = runpy.run_path(str(Path(__file__).with_name("version_cases.py")))["CASES"]
    for case in table:
        entry = rules.find(case.domain, case.op_type, case.version)
        assert entry is not None, case
        tested.add((entry.domain, entry.op_type, entry.since))
    untested = [(e.domain, e.op_type, e.since) for e in rules if (e.domain, e.op_type, e.since) not in tested]
    # The suite's cases of SequenceEmpty build sequences; they run in networks. The others need processes:
    # tests/distributed.
    others = ("SequenceEmpty", "AllReduce", "HaloExchange")
    untested = [e for e in untested if not network_tested(e[1]) and e[1] not in others]
    assert not untested, "add a line to version_cases.py for each, or a test with a network"


def _schemas(domain: str, op_type: str) -> list[onnx.defs.OpSchema]:
    return [
        schema
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.domain, schema.name) == (domain, op_type) and not schema.deprecated
    ]


@pytest.mark.parametrize("op_type", sorted({e.op_type for e in rules if e.domain == ""}))
def test_signature_follows_the_schema(op_type: str) -> None:
    """Every version is covered, with its inputs, attributes and defaults."""
    for schema in _schemas("", op_type):
        entry = rules.find("", op_type, schema.since_version)
        assert entry is not None, f"version {schema.since_version} is not covered"
        rule = entry.rule
        if rule.variadic:
            assert schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        else:
            assert len(rule.positional) >= len(schema.inputs)
        for name, attribute in schema.attributes.items():
            if name == "consumed_inputs":  # a hint about memory without meaning
                continue
            assert name in rule.attributes, f"version {schema.since_version}: no {name}"
            default = None if (op_type, name) in DEFAULTS_INSIDE else _default(attribute)
            given = rule.function.__kwdefaults__.get(name) if rule.function.__kwdefaults__ else None
            if default is not None:
                assert given == default, f"version {schema.since_version}: {name} is {given}, not {default}"


# Defaults that the schemas misspell (GRU-1: "foward") or that depend on other attributes.
DEFAULTS_INSIDE = {("GRU", "direction"), ("RNN", "activations")}


def _default(attribute: onnx.defs.OpSchema.Attribute) -> Any:
    if not attribute.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    value = tuple(value) if isinstance(value, list) else value
    return value.decode() if isinstance(value, bytes) else value
