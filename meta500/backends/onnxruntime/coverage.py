"""Which nodes ONNX Runtime runs: asked by giving it each node alone, before anything else is built."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from meta500.backends.network import NATIVE, UNSUPPORTED, NodeCoverage
from meta500.backends.onnxruntime.engine import newest_versions, reason, settings, stamped
from meta500.errors import UserError
from meta500.graph.model import Graph, Model, captured_names
from meta500.graph.operation import Operation
from meta500.graph.types import TensorType, ValueType

# What these say holds for the node wherever it stands. Other errors may come from what the node lacks when it
# is alone (constant inputs); the load of the whole network decides then.
_FINAL = (
    "Could not find an implementation",
    "No Op registered",
    "is not a registered function/op",
    "No opset import for domain",
    "is invalid",
    "is not currently registered or supported",
    "Failed to find kernel",
    "bound to different types",
    "Exception during initialization",
)


def node_coverage(op: Operation, types: Mapping[str, ValueType | None] | None = None) -> NodeCoverage:
    """How ONNX Runtime runs ``op`` on values of ``types``: natively, or not at all with its reason.

    Where types are unknown only the version of the operator is checked here; a kernel that is missing shows
    when the network is made, before anything runs.
    """
    why = _reason(op, types or {})
    how = UNSUPPORTED if why else NATIVE
    return NodeCoverage(op.name, op.op_type, op.domain, op.since_version, how, why)


def _reason(op: Operation, types: Mapping[str, ValueType | None]) -> str:
    newest, _ = newest_versions()
    if op.domain == "" and op.since_version > newest:
        return f"ONNX Runtime {onnxruntime.__version__} knows ai.onnx up to version {newest}"
    names = list(dict.fromkeys(name for name in (*op.operands, *captured_names(op)) if name))
    inputs = {name: _without_shape(types.get(name)) for name in names}
    if any(not _is_known(value) for value in inputs.values()):
        return ""
    outputs: dict[str, ValueType | None] = {name: None for name in op.results if name}
    if op.op_type == "Constant":
        value = op.attributes.get("value")
        if isinstance(value, np.ndarray):
            op = op.replace(value=value.reshape(-1)[:1])
    graph = Graph(name="node", inputs=inputs, outputs=outputs, operations=[op])
    imports = {"": newest} if op.domain else {"": op.since_version}
    if op.domain:
        imports[op.domain] = op.since_version
    try:
        data = stamped(Model(graph, imports)).SerializeToString(deterministic=True)
    except UserError:
        return ""
    return _asked(data).replace("#0", op.name or op.op_type)


@functools.lru_cache(maxsize=4096)
def _asked(data: bytes) -> str:
    """Why ONNX Runtime refuses the model of one node ``data``; "" if it does not."""
    try:
        onnxruntime.InferenceSession(data, settings(), providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions share no base class
        text = reason(error)
        final = any(sign in text for sign in _FINAL) and "onstant" not in text
        return text if final else ""
    return ""


def _without_shape(value: ValueType | None) -> ValueType | None:
    """Kernels are chosen by element type; fewer distinct questions are faster."""
    return TensorType(value.dtype) if isinstance(value, TensorType) else value


def _is_known(value: Any) -> bool:
    if value is None or (isinstance(value, TensorType) and value.dtype is None):
        return False
    return _is_known(value.element) if hasattr(value, "element") else True
