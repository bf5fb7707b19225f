"""Checks of what is handed to a network, and what its outputs depend on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph.model import Graph, Model, captured_names
from meta500.graph.operation import FunctionCall, Operation
from meta500.graph.types import TensorType

_DIFFERENTIABLE = ("float16", "bfloat16", "float32", "float64")


def requirements(graph: Graph, inputs: Iterable[str]) -> dict[str, frozenset[str]]:
    """For every value of ``graph``, which of ``inputs`` it depends on."""
    needs: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in inputs}
    empty: frozenset[str] = frozenset()
    for op in graph.operations:
        names = {*op.operands, *captured_names(op)}
        if op.op_type == "Gradient" and op.domain == "ai.onnx.preview.training":
            names.add(op.attributes["y"])  # computed again, from everything that it depends on
        union = empty.union(*(needs.get(name, empty) for name in names))
        needs.update(dict.fromkeys((r for r in op.results if r), union))
    return needs


def at_opset(op: Operation, model: Model) -> Operation:
    """``op`` in the version that the model's opset has.

    Raises:
        UserError: that version has other fields or defaults, so that the same text may mean something else.
    """
    opset = model.opset_imports.get(op.domain)
    if opset is None or isinstance(op, FunctionCall):
        return op
    signature = type(op).signature_at(opset)
    if signature.since == op.since_version:
        return op
    parts = ("inputs", "outputs", "attributes")
    if any(getattr(signature, part) != getattr(op.signature, part) for part in parts):
        raise UserError(
            f"{op.label}: made for version {op.since_version} of {op.op_type}, but the model's opset {opset} "
            f"has version {signature.since}, which differs; make it with opset={opset}"
        )
    return op.replace(since_version=signature.since)


def contradicts(declared: Any, computed: Any) -> bool:
    """Whether two types of one value exclude each other."""
    if not isinstance(declared, TensorType) or not isinstance(computed, TensorType):
        return False
    if None not in (declared.dtype, computed.dtype) and declared.dtype != computed.dtype:
        return True
    if declared.shape is None or computed.shape is None:
        return False
    if len(declared.shape) != len(computed.shape):
        return True
    pairs = zip(declared.shape, computed.shape, strict=True)
    return any(isinstance(d, int) and isinstance(c, int) and d != c for d, c in pairs)


def check_model(model: Any) -> None:
    """Raises UserError unless ``model`` is a Model."""
    if not isinstance(model, Model):
        raise UserError(
            f"a network is made from a Model, not from {type(model).__name__}; "
            "meta500.load(path) or meta500.from_torch(module, inputs) makes one"
        )


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer (bool is none)."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def exact(array: np.ndarray, dtype: np.dtype, label: str, copy: bool = False) -> np.ndarray:
    """``array`` in ``dtype``, if that loses nothing."""
    if array.dtype == dtype:
        return array.copy() if copy else array
    if array.dtype.kind == dtype.kind and np.can_cast(array.dtype, dtype, "safe"):
        return array.astype(dtype)
    if dtype == np.dtype(object) and array.dtype.kind in "US":
        return array.astype(object)
    raise UserError(f"{label} must be {dtype}, got {array.dtype}; convert it with .astype('{dtype}')")


def shape_text(shape: Sequence[Any]) -> str:
    """A declared shape for messages: "[N, 3, ?]"."""
    return f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def check_shapes(declared: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the shapes of fed tensors with the declared types; a symbolic dimension has one size.

    Raises:
        UserError: a wrong rank, size, or two sizes for one symbolic dimension.
    """
    symbols: dict[str, tuple[int, str]] = {}
    for name, shape in shapes.items():
        expected = getattr(declared[name], "shape", None)
        if expected is None:
            continue
        if len(expected) != len(shape):
            raise UserError(f"input '{name}' must have shape {shape_text(expected)}, got {list(shape)}")
        for dimension, size in zip(expected, shape, strict=True):
            if isinstance(dimension, int):
                if dimension != size:
                    raise UserError(
                        f"input '{name}' must have shape {shape_text(expected)}, got {list(shape)}"
                    )
            elif isinstance(dimension, str):
                first, where = symbols.setdefault(dimension, (size, name))
                if first != size:
                    raise UserError(
                        f"input '{name}': dimension '{dimension}' is {size}, but {first} in input '{where}'"
                    )


def check_cotangent(loss: str, dtype: Any, shape: Sequence[int], cotangent: np.ndarray | None) -> None:
    """Raises UserError unless ``loss`` can be differentiated with this cotangent (None: it is a scalar)."""
    kind = str(dtype).removeprefix("torch.")
    if kind not in _DIFFERENTIABLE:
        raise UserError(
            f"'{loss}' is {kind}; only outputs of type {', '.join(_DIFFERENTIABLE)} have gradients"
        )
    if cotangent is None and math.prod(shape) != 1:
        raise UserError(f"the loss '{loss}' must be a scalar, it has shape {list(shape)}")
    if cotangent is not None and tuple(np.shape(cotangent)) != tuple(shape):
        raise UserError(
            f"the cotangent of '{loss}' must have its shape {list(shape)}, got {list(np.shape(cotangent))}"
        )
