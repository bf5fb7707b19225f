"""The operators that numpy takes from ``onnx.reference``: forward only, where it is known to be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta500.errors import UserError
from meta500.graph import Operation
from meta500.graph.operators import OPERATORS, OPSETS

# Operators whose cases in the ONNX backend suite (onnx 1.23) onnx.reference fails or answers wrongly, and
# operators whose results can't be checked because they are random.
WRONG = {
    ("", "Bernoulli"): "its random numbers differ from the specification's cases",
    ("", "RandomNormal"): "random",
    ("", "RandomNormalLike"): "random",
    ("", "RandomUniform"): "random",
    ("", "RandomUniformLike"): "random",
    ("", "Multinomial"): "random",
    ("", "GroupNormalization"): "onnx.reference fails its cases",
    ("", "Range"): "onnx.reference fails expanded cases",
    ("", "Scatter"): "deprecated; onnx.reference fails its cases",
    ("", "Scan"): "control flow is not supported",
    ("", "Loop"): "control flow is not supported",
    ("", "If"): "control flow is not supported",
    ("", "SequenceMap"): "control flow is not supported",
    ("ai.onnx.preview.training", "Gradient"): "onnx.reference fails its cases",
}


def reference_refusal(op: Operation) -> str:
    """Why ``op`` may not run through onnx.reference; empty when it may.

    Only the newest version of an operator is taken, since onnx.reference interprets older ones by newer
    meanings in places (Softmax before 13), and only nodes without subgraphs.
    """
    newest = OPERATORS.get((op.domain, op.op_type))
    if newest is None:
        return "no rule"
    if (op.domain, op.op_type) in WRONG:
        return WRONG[op.domain, op.op_type]
    if "Sequence" in op.op_type or "Optional" in op.op_type or op.op_type == "StringSplit":
        return "values that are no tensors are not supported"
    if op.subgraphs:
        return "control flow is not supported"
    if op.since_version != newest.signatures[-1].since:
        return f"only version {newest.signatures[-1].since} of the operator is supported"
    return "" if _evaluator(op) is not None else "no rule"


def reference_function(op: Operation) -> Callable[..., Any] | None:
    """A function of numpy arrays that runs ``op`` through onnx.reference, or None."""
    if reference_refusal(op):
        return None
    evaluator = _evaluator(op)
    names, results = op.operands, op.results

    def run(*inputs: Any) -> tuple[Any, ...]:
        """The operator as onnx.reference computes it.

        Raises:
            UserError: onnx.reference fails on these inputs.
        """
        feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
        try:
            found = iter(evaluator.run(None, feeds))
        except Exception as error:  # whatever its implementation of the operator raises
            raise UserError(f"onnx.reference cannot run it: {type(error).__name__}: {error}") from error
        return tuple(_as_object_text(next(found)) if name else None for name in results)

    return run


def _as_object_text(array: Any) -> Any:
    """Strings as objects, the way ONNX's own loader gives them."""
    return (
        array.astype(object)
        if getattr(array, "dtype", None) is not None and array.dtype.kind == "U"
        else array
    )


def _evaluator(op: Operation) -> Any:
    """onnx.reference's evaluator of a graph with this one node; None when it can't run the node."""
    from onnx import GraphProto, ModelProto, ValueInfoProto, helper
    from onnx.reference import ReferenceEvaluator

    from meta500.graph.writer import node_to_proto

    graph = GraphProto(name="node", node=[node_to_proto(op)])
    graph.input.extend(ValueInfoProto(name=name) for name in dict.fromkeys(op.operands) if name)
    graph.output.extend(ValueInfoProto(name=name) for name in op.results if name)
    imports = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
    try:
        return ReferenceEvaluator(ModelProto(ir_version=10, graph=graph, opset_import=imports))
    except Exception:  # onnx.reference has no common error for what it does not implement
        return None
