"""A custom operator as an ONNX function, from a body in ONNX's text form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meta500.errors import UserError
from meta500.graph.operation import AttributeReference

if TYPE_CHECKING:
    from meta500.custom.definition import Definition


def function_body(
    definition: Definition, text: str | Callable[..., str], attributes: Mapping[str, Any], opset: int
) -> Any:
    """The ``onnx.FunctionProto`` of one node with ``attributes``.

    A text is one function for all nodes, which refers to attributes as ``@name``. A function that makes the
    text gives one overload per set of values; onnx.reference 1.23 does not tell overloads apart, ONNX Runtime
    does.

    Raises:
        UserError: onnx does not understand the text; the message has its words and the text.
    """
    import onnx
    from onnx import AttributeProto, helper

    if callable(text):
        values = {name: attributes.get(name) for name in definition.signature.attributes}
    else:
        values = {name: a.default for name, a in definition.signature.attributes.items()}
    if any(isinstance(value, AttributeReference) for value in values.values()):
        raise UserError(f"{definition.label}: inside of a function its attributes must be numbers")
    if any(formal.variadic for formal in definition.signature.inputs):
        raise UserError(f"{definition.label}: ONNX functions have no variadic inputs")
    nodes = text(**values) if callable(text) else text
    inputs = ", ".join(formal.name for formal in definition.signature.inputs)
    outputs = ", ".join(formal.name for formal in definition.signature.outputs)
    whole = (
        f'<domain: "{definition.domain}", opset_import: ["" : {opset}]>\n'
        f"{definition.op_type} ({inputs}) => ({outputs}) {{\n{nodes}\n}}"
    )
    try:
        function = onnx.parser.parse_function(whole)
    except onnx.parser.ParseError as error:
        message = " ".join(str(error).split())
        raise UserError(
            f"{definition.label}: its ONNX function is not understood: {message}\n{whole}"
        ) from None
    if not callable(text):
        function.attribute.extend(name for name, value in values.items() if value is None)
    given = {name: value for name, value in values.items() if value is not None}
    if given:
        kinds = {name: definition.signature.attributes[name].kind for name in given}
        function.attribute_proto.extend(
            helper.make_attribute(name, value, attr_type=AttributeProto.AttributeType.Value(kinds[name]))
            for name, value in given.items()
            if kinds[name] != "TENSOR"
        )
        function.attribute.extend(name for name in given if kinds[name] == "TENSOR")
    if given and callable(text):
        spelled = repr(sorted((n, v.tolist() if hasattr(v, "tolist") else v) for n, v in given.items()))
        function.overload = hashlib.sha256(spelled.encode()).hexdigest()[:12]
    return function
