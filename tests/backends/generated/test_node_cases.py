"""ONNX's own node cases of all operators that have a lowering rule, interpreted in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meta500.backends.generated.interpret import run
from meta500.backends.generated.lower import lower
from meta500.backends.generated.rule_table import rules
from meta500.benchmarks.operators.cases import Case, cases, operator_name
from meta500.errors import UnsupportedOperation
from meta500.graph.passes import infer_types

OPERATORS = sorted(operator_name(domain, name) for domain, name in rules().entries if domain == "")
# What these rules refuse; everything else must give the numbers that ONNX expects.
REASONS = (
    "generated code has floating point, int64, int32 and bool",
    "only floating-point elements are generated",
    "has no elements",
    "its exponents differ",
    "antialias",
    "a region of interest that leaves the input",
    "a seed of its own",
    "its output of indices is not generated",
    "no lowering rule",
    "dimensions",
)
CONSTANT = {"Pad": (1, 3), "Slice": (1, 2, 3, 4), "Resize": (1, 2, 3), "Dropout": (1, 2)}
HAVE_CASES = {case.operator for case in cases("node")}


def constants_of(case: Case, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs that a network has as initializers: shapes, axes, exponents."""
    found = {}
    for op in case.model().graph.operations:
        fixed = CONSTANT.get(op.op_type, (1,) if given_by_second(op.op_type) else ())
        found |= {
            op.operands[i]: given[op.operands[i]]
            for i in fixed
            if i < len(op.operands) and op.operands[i] in given
        }
    return found


def given_by_second(op_type: str) -> bool:
    return op_type.startswith("Reduce") or op_type in (
        "Expand", "Gather", "Pow", "Reshape", "Split", "Squeeze", "Tile", "Trilu", "Unsqueeze", "Upsample",
    )  # fmt: skip


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name in HAVE_CASES])
def test_node_cases(operator: str) -> None:
    right = 0
    for case in cases("node", operators=[operator]):
        if case.expanded:
            continue
        for given, wanted in case.data():
            if not all(isinstance(v, np.ndarray) for v in (*given.values(), *wanted.values())):
                continue
            model, fixed = case.model(), constants_of(case, given)
            inputs = {n: t for n, t in model.graph.inputs.items() if n not in fixed}
            graph = replace(model.graph, inputs=inputs, initializers={**model.graph.initializers, **fixed})
            try:
                program = lower(infer_types(model.with_graph(graph), strict=False), list(graph.outputs), [])
            except UnsupportedOperation as refusal:
                assert any(reason in refusal.reason for reason in REASONS), (case.name, refusal.reason)
                continue
            if any("uniform" in str(stage) for stage in program.stages):
                continue
            values = run(program, {n: x for n, x in given.items() if n in inputs})
            for name, expected in wanted.items():
                found = values[program.outputs[name]]
                assert found.shape == expected.shape, case.name
                narrow = expected.dtype.kind != "f" or expected.dtype.itemsize < 4
                limit = 1e-2 if narrow else max(1e-5, case.rtol)
                np.testing.assert_allclose(
                    found.astype(float), expected.astype(float), limit, limit / 10, err_msg=case.name
                )
            right += 1
    assert right
