"""Python values of scalar and list attributes of ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import AttributeProto

from meta500.errors import UserError
from meta500.graph.types import type_from_proto


def attribute_value(proto: AttributeProto) -> Any:
    """The Python value of a scalar or list attribute.

    ONNX stores floats in 32 bits; they are read as the shortest decimal that rounds to the same 32 bits
    (1e-05, not 9.999999747378752e-06), so that float64 references see the number that was meant.
    """
    kind = attribute_kind(proto)
    if kind == "FLOAT":
        return _shortest(proto.f)
    if kind == "INT":
        return int(proto.i)
    if kind == "STRING":
        return _text(proto.s)
    if kind == "FLOATS":
        return tuple(_shortest(f) for f in proto.floats)
    if kind == "INTS":
        return tuple(int(i) for i in proto.ints)
    if kind == "STRINGS":
        return tuple(_text(s) for s in proto.strings)
    if kind == "TYPE_PROTO":
        return type_from_proto(proto.tp)
    if kind == "TYPE_PROTOS":
        return tuple(type_from_proto(tp) for tp in proto.type_protos)
    raise UserError(f"attribute type {kind} has no value")


def attribute_kind(proto: AttributeProto) -> str:
    """The ``AttributeProto.AttributeType`` of an attribute, by name.

    Raises:
        UserError: the attribute has no type and its fields do not tell one.
    """
    if proto.type:
        return str(AttributeProto.AttributeType.Name(proto.type))
    # IR versions before 3 had no type field: the filled-in field tells.
    filled = [name for name in ("f", "i", "s", "t", "g") if proto.HasField(name)]
    lists = [name for name in ("floats", "ints", "strings", "tensors", "graphs") if len(getattr(proto, name))]
    names = {"f": "FLOAT", "i": "INT", "s": "STRING", "t": "TENSOR", "g": "GRAPH"}
    if len(filled) + len(lists) != 1:
        raise UserError(f"attribute '{proto.name}' has no type")
    return names[filled[0]] if filled else lists[0].upper()


def _shortest(value: float) -> float:
    return float(str(np.float32(value)))


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value
