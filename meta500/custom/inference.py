"""Types of a custom operator's outputs: when a network is built (by ONNX's inference) and when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.graph.attributes import attribute_value
from meta500.graph.operation import Formal, Signature
from meta500.graph.types import TensorType, dtype_to_onnx, type_from_proto, type_to_proto

if TYPE_CHECKING:
    from meta500.custom.definition import Definition


@dataclass(frozen=True)
class InputRule:
    """What an input may be: ``dtypes`` (empty: any) and ``rank`` (None: any)."""

    dtypes: tuple[np.dtype, ...] = ()
    rank: int | None = None

    def check(self, label: str, dtype: np.dtype | None, shape: Sequence[Any] | None) -> None:
        """Raises UserError if a type that is known is not allowed."""
        if dtype is not None and self.dtypes and dtype not in self.dtypes:
            names = " or ".join(d.name for d in self.dtypes)
            raise UserError(f"{label} must be {names}, got {dtype}")
        if shape is not None and self.rank is not None and len(shape) != self.rank:
            raise UserError(f"{label} must have rank {self.rank}, got shape {list(shape)}")


def input_names(signature: Signature, count: int) -> list[str]:
    """Names of the first ``count`` inputs; those of a variadic one are numbered."""
    names: list[str] = []
    for formal in signature.inputs:
        if formal.variadic:
            names += [f"{formal.name}[{i}]" for i in range(count - len(names))]
        else:
            names.append(formal.name)
    return names[:count]


def check_inputs(definition: Definition, inputs: Sequence[Any]) -> None:
    """Check dtype and rank of arrays (None where missing) against the operator's rules.

    Raises:
        UserError: names the input and says what it must be.
    """
    for name, array in zip(input_names(definition.signature, len(inputs)), inputs, strict=False):
        if array is not None:
            rule = definition.inputs.get(name.partition("[")[0], InputRule())
            rule.check(f"input '{name}'", array.dtype, array.shape)


def output_types(
    definition: Definition, inputs: Sequence[TensorType | None], attributes: Mapping[str, Any]
) -> tuple[TensorType | None, ...]:
    """Types of the outputs, each None when it is not known, from those of the inputs (None: missing).

    Raises:
        UserError: inputs of a dtype or rank that the operator does not take, or its shape function fails.
    """
    names = input_names(definition.signature, len(inputs))
    by_name = dict(zip(names, inputs, strict=False))
    for name, value in by_name.items():
        if value is not None:
            rule = definition.inputs.get(name.partition("[")[0], InputRule())
            rule.check(f"input '{name}'", value.dtype, value.shape)
    count = len(definition.signature.outputs)
    static = all(value is None or (value.static and value.dtype is not None) for value in inputs)
    if definition.shape is not None:
        if any(value is not None and (value.shape is None or value.dtype is None) for value in inputs):
            return (None,) * count
        try:
            found = definition.shape(*inputs, **attributes)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, ZeroDivisionError) as error:
            if not static:  # arithmetic with dimensions that have names instead of sizes
                return (None,) * count
            shapes = ", ".join(map(str, inputs))
            raise UserError(
                f"the shape function of {definition.label} fails on {shapes}: {type(error).__name__}: {error}"
            ) from error
        return _normal(definition, found)
    if definition.library is not None and not all(definition.like.values()) and static:
        types = definition.library.output_types(inputs, attributes)
        if types is not None:
            return types
    return tuple(by_name.get(name) if name else None for name in definition.like.values())


def _normal(definition: Definition, found: Any) -> tuple[TensorType | None, ...]:
    outputs = definition.signature.outputs
    values = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(values) != len(outputs) or not all(v is None or isinstance(v, TensorType) for v in values):
        raise UserError(
            f"the shape function of {definition.label} must return {len(outputs)} TensorType, got {found!r}"
        )
    return values


def onnx_schema(definition: Definition) -> Any:
    """The ``onnx.defs.OpSchema`` of an operator, with its shape inference."""
    from onnx import TensorProto, defs

    schema, signature = defs.OpSchema, definition.signature
    options = schema.FormalParameterOption
    known = [name for name, number in TensorProto.DataType.items() if number != TensorProto.UNDEFINED]
    everything = [f"tensor({name.lower()})" for name in known]

    def parameter(formal: Formal, kind: str) -> Any:
        option = (
            options.Variadic if formal.variadic else options.Optional if formal.optional else options.Single
        )
        return schema.FormalParameter(
            formal.name, kind, param_option=option, is_homogeneous=not formal.variadic, min_arity=0
        )

    constraints = []
    for formal in signature.inputs:
        dtypes = definition.inputs.get(formal.name, InputRule()).dtypes
        names = [f"tensor({TensorProto.DataType.Name(dtype_to_onnx(d)).lower()})" for d in dtypes]
        constraints.append((f"T_{formal.name}", names or everything, ""))
    constraints += [(f"T_{formal.name}", everything, "") for formal in signature.outputs]
    made = schema(
        definition.op_type,
        definition.domain,
        1,
        definition.doc,
        inputs=[parameter(formal, f"T_{formal.name}") for formal in signature.inputs],
        outputs=[parameter(formal, f"T_{formal.name}") for formal in signature.outputs],
        type_constraints=constraints,
        attributes=[
            schema.Attribute(a.name, getattr(schema.AttrType, a.kind), "", required=a.required)
            for a in signature.attributes.values()
        ],
    )
    return made.set_type_and_shape_inference_function(lambda context: _infer(definition, context))


def _infer(definition: Definition, context: Any) -> None:
    """What onnx calls for each node of the operator, with its ``InferenceContext``."""
    types = [_input_type(context, index) for index in range(context.get_num_inputs())]
    attributes = {}
    for attribute in definition.signature.attributes.values():
        proto = context.get_attribute(attribute.name)
        attributes[attribute.name] = attribute.default if proto is None else _value(proto)
    try:
        found = output_types(definition, types, attributes)
    except UserError as error:
        raise UserError(f"{context.get_display_name()}: {error}") from None
    for index, value in enumerate(found[: context.get_num_outputs()]):
        if value is not None:
            context.set_output_type(index, type_to_proto(value))


def _input_type(context: Any, index: int) -> TensorType | None:
    if not context.has_input(index):
        return None
    proto = context.get_input_type(index)
    value = None if proto is None else type_from_proto(proto)
    return value if isinstance(value, TensorType) else TensorType(None)


def _value(proto: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.to_array(proto.t) if proto.HasField("t") else attribute_value(proto)
