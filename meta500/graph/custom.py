"""Operations that ONNX lacks, in the domain ``meta500``.

A custom operation is a class written like the generated ones. One that can be said in ONNX carries a
function body; a written file then holds it as a model-local function and runs in any ONNX runtime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar

from onnx import FunctionProto, helper

from meta500.graph.operation import Attribute, Operation, Signature

DOMAIN = "meta500"

_CUSTOM: dict[tuple[str, str], type[Operation]] = {}
_LOCK = threading.RLock()
_Class = TypeVar("_Class", bound=type[Operation])


def custom_operation(cls: _Class) -> _Class:
    """Class decorator: the parser reads nodes of this (domain, operator) as ``cls``.

    Raises:
        ValueError: the pair is taken by another class.
    """
    key = (cls.domain, cls.op_type)
    if _CUSTOM.setdefault(key, cls) is not cls and _CUSTOM[key].__qualname__ != cls.__qualname__:
        raise ValueError(f"custom operation {cls.domain}.{cls.op_type} is defined twice")
    _CUSTOM[key] = cls
    return cls


def custom_operations() -> dict[tuple[str, str], type[Operation]]:
    """The custom operation classes by (domain, operator)."""
    return _CUSTOM


@contextmanager
def schemas_in_onnx() -> Iterator[None]:
    """A context in which onnx's shape inference knows the custom operations that have a ``schema``.

    They are not left registered: parts of onnx (``onnx.reference``) can't be imported while two domains have
    an operator of the same name.
    """
    schemas = [cls.schema for cls in _CUSTOM.values() if hasattr(cls, "schema")]
    if not schemas:
        yield
        return
    from onnx import defs

    with _LOCK:
        added = []
        try:
            for schema in schemas:
                if not defs.has(schema.name, schema.domain):
                    defs.register_schema(schema)
                    added.append(schema)
            yield
        finally:
            for schema in added:
                defs.deregister_schema(schema.name, schema.since_version, schema.domain)


def function_body(op: Operation, opset: int) -> FunctionProto | None:
    """The ONNX function that says what ``op`` computes, or None when it has none."""
    body: Callable[[Operation, int], FunctionProto] | None = getattr(type(op), "body", None)
    return body(op, opset) if body is not None else None


@custom_operation
class MeanSquaredError(Operation):
    """Mean squared error, (prediction - target)^2 reduced over all elements.

    Inputs: prediction (T, any shape), target (T, the same shape). Output: loss (T): a scalar for reduction
    "mean" (over all elements) and "sum", the input's shape for "none". T: float16, float, double.
    """

    domain = DOMAIN
    op_type = "MeanSquaredError"
    signatures = (
        Signature(
            1, "prediction target", "loss", (Attribute("reduction", "STRING", False, "mean"),), minimum=2
        ),
    )
    prediction: str
    target: str
    loss: str | None = None
    reduction: str | None = "mean"

    REDUCTIONS: ClassVar[dict[str, str | None]] = {"mean": "ReduceMean", "sum": "ReduceSum", "none": None}

    def validate(self) -> None:
        """Raises:
        UserError: a missing input, or a reduction other than "mean", "sum" and "none".
        """
        from meta500.errors import UserError, choose

        super().validate()
        try:
            choose("reduction", str(self.reduction), self.REDUCTIONS)
        except UserError as error:
            raise UserError(f"{self.label}: {error}") from None

    def body(self, opset: int) -> FunctionProto:
        """The operator as ONNX nodes; one overload per reduction."""
        reduce: Any = self.REDUCTIONS[str(self.reduction)]
        square = "square" if reduce else "loss"
        nodes = [
            helper.make_node("Sub", ["prediction", "target"], ["difference"]),
            helper.make_node("Mul", ["difference", "difference"], [square]),
        ]
        if reduce:
            nodes.append(helper.make_node(reduce, [square], ["loss"], keepdims=0))
        return helper.make_function(
            self.domain,
            self.op_type,
            ["prediction", "target"],
            ["loss"],
            nodes,
            [helper.make_opsetid("", opset)],
            attribute_protos=[helper.make_attribute("reduction", str(self.reduction))],
            overload=str(self.reduction),
        )
