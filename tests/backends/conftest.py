"""Running one node through whole networks of both backends, values and gradients."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import meta500
from meta500.backends.rules import RuleTable
from meta500.graph import load

BACKENDS = ("numpy", "torch")


def node_model(
    op_type: str,
    opset: int,
    inputs: Mapping[str, np.ndarray | None],
    n_outputs: int,
    attributes: Mapping[str, Any],
    domain: str,
    weighted: Mapping[int, np.ndarray],
) -> meta500.Model:
    """A model of one node; with ``weighted`` outputs also "loss", the sum of their products with weights."""
    given = {name: value for name, value in inputs.items() if value is not None}
    operands = [name if value is not None else "" for name, value in inputs.items()]
    while operands and not operands[-1]:
        operands.pop()
    results = [f"out{i}" for i in range(n_outputs)]
    nodes = [helper.make_node(op_type, operands, results, domain=domain, **attributes)]
    weights, parts = [], []
    for i, weight in weighted.items():
        weights.append(onnx.numpy_helper.from_array(np.asarray(weight), f"weight{i}"))
        nodes.append(helper.make_node("Mul", [f"out{i}", f"weight{i}"], [f"product{i}"]))
        nodes.append(helper.make_node("ReduceSum", [f"product{i}"], [f"part{i}"], keepdims=0))
        parts.append(f"part{i}")
    if parts:
        nodes.append(helper.make_node("Sum", parts, ["loss"]))
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets = [helper.make_opsetid("", 26), helper.make_opsetid(domain, opset)]
    kinds = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in (*results, *(["loss"] if parts else []))]
    graph = helper.make_graph(nodes, op_type, kinds, outputs, weights)
    return load(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def run_node(
    backend: str,
    op_type: str,
    opset: int,
    inputs: Mapping[str, np.ndarray | None] | Sequence[np.ndarray | None],
    n_outputs: int = 1,
    *,
    domain: str = "",
    cotangents: Mapping[int, np.ndarray] | None = None,
    wrt: Sequence[str] | None = None,
    execution: str | None = None,
    **attributes: Any,
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Outputs of a node, and with ``cotangents`` by output the gradients of its floating-point inputs.

    Inputs are named "x0", "x1" and so on where they come as a sequence; None leaves one out. ``execution`` is the
    torch backend's mode.
    """
    if not isinstance(inputs, Mapping):
        inputs = {f"x{i}": value for i, value in enumerate(inputs)}
    model = node_model(op_type, opset, inputs, n_outputs, attributes, domain, cotangents or {})
    fed = {name: value for name, value in inputs.items() if value is not None}
    results = [f"out{i}" for i in range(n_outputs)]
    options = {} if execution is None else {"mode": execution}
    with meta500.network(model, backend=backend, **options) as net:
        if not cotangents:
            found = net.inference(fed, outputs=results)
            return [found[name] for name in results], {}
        names = wrt or [name for name, value in fed.items() if value.dtype.kind == "f"]
        found = net.inference_and_backprop(fed, loss="loss", wrt=names, outputs=results)
        gradients = net.fetch_tensors([f"grad/{name}" for name in names])
        return [found[name] for name in results], dict(zip(names, gradients, strict=True))


@pytest.fixture(scope="session")
def node() -> Callable[..., tuple[list[Any], dict[str, np.ndarray]]]:
    """``node(backend, op_type, opset, inputs, n_outputs=1, cotangents=None, **attributes)``."""
    return run_node


@pytest.fixture(scope="session")
def agree() -> Callable[..., tuple[list[Any], dict[str, np.ndarray]]]:
    """As ``node`` without backend: runs both, checks that values and gradients are equal, returns numpy's."""

    def compare(*args: Any, rtol: float = 1e-10, atol: float = 1e-12, **keywords: Any) -> Any:
        (values, gradients), (others, other_gradients) = (run_node(b, *args, **keywords) for b in BACKENDS)
        for value, other in zip(values, others, strict=True):
            assert value.dtype == other.dtype
            np.testing.assert_allclose(other, value, rtol=rtol, atol=atol)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(other_gradients[name], gradient, rtol=rtol, atol=atol, err_msg=name)
        return values, gradients

    return compare


@pytest.fixture(scope="session")
def network_tested() -> Callable[[str], bool]:
    """Whether a test of whole networks in this folder runs the operator: names it as a string or as a node."""
    text = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))

    def tested(op_type: str) -> bool:
        return re.search(rf'"{op_type}"|\b{op_type} ?[<(]', text) is not None

    return tested


@pytest.fixture(scope="session")
def level_0_rules() -> Callable[[RuleTable], set[tuple[str, str, int]]]:
    """The rules (domain, operator, since) of a table whose gradients are checked on the cases of Level 0.

    All versions of operators without a gradient are among them.
    """
    from meta500.benchmarks.operators.cases import operator_name
    from meta500.benchmarks.operators.differentiability import NOT_DIFFERENTIABLE, TABLE
    from meta500.benchmarks.operators.gradient_table import operator_cases

    def covered(rules: RuleTable) -> set[tuple[str, str, int]]:
        found = {
            (rule.domain, rule.op_type, rule.since)
            for rule in rules
            if (entry := TABLE.get(operator_name(rule.domain, rule.op_type)))
            and entry.kind == NOT_DIFFERENTIABLE
        }
        for operator in TABLE:
            for case in operator_cases(operator):
                for op in case.model().graph.walk():
                    rule = rules.find(op.domain, op.op_type, op.since_version)
                    if rule is not None and operator_name(op.domain, op.op_type) == operator:
                        found.add((rule.domain, rule.op_type, rule.since))
        return found

    return covered


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of libraries in an empty cache; the compiler is the default one."""
    monkeypatch.setenv("META500_CACHE", str(tmp_path / "cache"))
    for name in ("CXX", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "libraries"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Make a shell script the compiler: ``fake(body, version="fake 1")``."""

    def make(body: str, version: str = "fake 1") -> Path:
        path = tmp_path / "fake"
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit 0\n{body}\n')
        path.chmod(0o755)
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
        monkeypatch.setenv("CXX", str(path))
        return path

    return make
