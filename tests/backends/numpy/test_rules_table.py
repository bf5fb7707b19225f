"""The table of numpy rules against the ONNX schemas: inputs, attributes, defaults, versions."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from onnx import defs, helper

from meta500.backends.numpy.operators import rules
from meta500.backends.rules import Entry
from meta500.graph.operators import OPERATORS

ONNX_ENTRIES = [entry for entry in rules if entry.domain == ""]


def _versions(op_type: str) -> list[int]:
    return sorted(
        s.since_version for s in defs.get_all_schemas_with_history() if s.name == op_type and s.domain == ""
    )


def _label(entry: Entry) -> str:
    return f"{entry.op_type}-{entry.since}"


def test_every_version_of_every_operator_has_a_rule() -> None:
    missing = [
        (domain, op_type, signature.since)
        for (domain, op_type), cls in OPERATORS.items()
        for signature in cls.signatures
        if rules.find(domain, op_type, signature.since) is None
    ]
    assert not missing


def test_mean_squared_error_is_registered() -> None:
    assert rules.find("meta500", "MeanSquaredError", 1) is not None


@pytest.mark.parametrize("entry", ONNX_ENTRIES, ids=_label)
def test_signature_follows_the_schemas(entry: Entry) -> None:
    """Inputs, attributes and defaults of every version that the entry covers."""
    versions = _versions(entry.op_type)
    assert entry.since in versions
    parameters = inspect.signature(entry.rule.function).parameters
    for version in versions:
        if rules.find("", entry.op_type, version) is not entry:
            continue
        schema = defs.get_schema(entry.op_type, version, "")
        if entry.rule.variadic:
            assert schema.inputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic
        else:
            assert len(schema.inputs) <= len(entry.rule.positional)
            for formal, name in zip(schema.inputs, entry.rule.positional, strict=False):
                optional = formal.option == defs.OpSchema.FormalParameterOption.Optional
                if optional:
                    assert parameters[name].default is None
        for name, attribute in schema.attributes.items():
            if name == "consumed_inputs":
                continue
            assert name in entry.rule.attributes, f"version {version} has the attribute {name}"
            if (entry.op_type, name) not in DEFAULTS_INSIDE:
                _check_default(parameters[name].default, attribute)


# Defaults that the schemas misspell (GRU-1: "foward") or that depend on other attributes.
DEFAULTS_INSIDE = {("GRU", "direction"), ("RNN", "activations")}


def _check_default(default: Any, attribute: Any) -> None:
    if attribute.required:
        assert default in (inspect.Parameter.empty, None)
        return
    if not attribute.default_value.name:
        assert default in (inspect.Parameter.empty, None)
        return
    wanted = helper.get_attribute_value(attribute.default_value)
    wanted = tuple(wanted) if isinstance(wanted, list) else wanted
    if isinstance(wanted, float):
        if default is None:
            assert abs(wanted) > 3.4e38  # Clip: no bound but that of float32
        else:
            assert np.float32(default) == np.float32(wanted)
    else:
        assert default == (wanted.decode() if isinstance(wanted, bytes) else wanted)


@pytest.mark.parametrize("entry", list(rules), ids=_label)
def test_rule_is_documented(entry: Entry) -> None:
    assert entry.rule.__doc__ and len(entry.rule.__doc__) > 10
