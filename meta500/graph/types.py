"""Types of the values that flow through a graph, and their form in ONNX.

Element types are numpy dtypes throughout; the ones that numpy lacks (bfloat16, the 8-, 6- and 4-bit floats,
2- and 4-bit integers) come from ``ml_dtypes``, strings are ``object``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, TypeProto, helper

from meta500.errors import UserError

Dimension = int | str | None
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class TensorType:
    """A tensor of ``dtype`` (None: any) and ``shape`` (None: unknown rank).

    A dimension is an int, a symbolic name, or None when nothing is known about it.
    """

    dtype: np.dtype | None
    shape: tuple[Dimension, ...] | None = None
    denotation: str = ""
    dim_denotations: tuple[str, ...] = ()

    def __str__(self) -> str:
        name = "any" if self.dtype is None else dtype_name(self.dtype)
        if self.shape is None:
            return f"{name}[...]"
        return f"{name}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"

    @property
    def static(self) -> bool:
        """Whether every dimension is a number."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)


@dataclass(frozen=True)
class SparseTensorType:
    """A sparse tensor of ``dtype`` and dense ``shape``."""

    dtype: np.dtype | None
    shape: tuple[Dimension, ...] | None = None


@dataclass(frozen=True)
class SequenceType:
    """A sequence of values of type ``element``."""

    element: ValueType | None


@dataclass(frozen=True)
class OptionalType:
    """A value of type ``element``, or nothing."""

    element: ValueType | None


@dataclass(frozen=True)
class MapType:
    """A map from keys of dtype ``key`` to values of type ``value``."""

    key: np.dtype
    value: ValueType | None


ValueType = TensorType | SparseTensorType | SequenceType | OptionalType | MapType


@dataclass(frozen=True)
class SparseTensor:
    """A sparse constant: ``values`` (n,), ``indices`` (n,) or (n, rank), and the dense ``shape``."""

    values: np.ndarray
    indices: np.ndarray
    shape: tuple[int, ...]


def dtype_name(dtype: np.dtype) -> str:
    """Name of an element type: numpy's, and "string" for object."""
    return "string" if dtype == np.dtype(object) else dtype.name


# By name, not by kind: numpy counts float8_e5m2 as floating point, too.
_FLOATING = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def is_floating(dtype: np.dtype | None) -> bool:
    """Whether gradients flow through values of this type: float16, bfloat16, float32, float64, complex."""
    return dtype is not None and dtype.name in _FLOATING


def dtype_from_onnx(element_type: int) -> np.dtype | None:
    """The numpy dtype of a ``TensorProto.DataType``; None for UNDEFINED."""
    if element_type == TensorProto.UNDEFINED:
        return None
    if element_type == TensorProto.STRING:
        return np.dtype(object)
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(element_type))
    except KeyError:
        raise UserError(f"element type {element_type} is unknown to onnx {onnx.__version__}") from None


def dtype_to_onnx(dtype: np.dtype | None) -> int:
    """The ``TensorProto.DataType`` of a numpy dtype; UNDEFINED for None."""
    if dtype is None:
        return int(TensorProto.UNDEFINED)
    if dtype.kind in "OUS":
        return int(TensorProto.STRING)
    try:
        return int(helper.np_dtype_to_tensor_dtype(dtype))
    except (KeyError, ValueError):
        raise UserError(f"dtype {dtype} has no ONNX element type") from None


def type_from_proto(proto: TypeProto) -> ValueType | None:
    """Read a ``TypeProto``; None when it says nothing.

    Raises:
        UserError: an element type that this onnx does not know, or a map without a type of keys.
    """
    kind = proto.WhichOneof("value")
    if kind is None:
        return None
    if kind in ("tensor_type", "sparse_tensor_type"):
        inner = getattr(proto, kind)
        shape: tuple[Dimension, ...] | None = None
        denotations: tuple[str, ...] = ()
        if inner.HasField("shape"):
            shape = tuple(_dimension(d) for d in inner.shape.dim)
            denotations = tuple(d.denotation for d in inner.shape.dim)
        dtype = dtype_from_onnx(inner.elem_type)
        if kind == "sparse_tensor_type":
            return SparseTensorType(dtype, shape)
        return TensorType(dtype, shape, proto.denotation, denotations if any(denotations) else ())
    if kind == "sequence_type":
        return SequenceType(type_from_proto(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(type_from_proto(proto.optional_type.elem_type))
    if kind == "map_type":
        key = dtype_from_onnx(proto.map_type.key_type)
        if key is None:
            raise UserError("a map has no type of keys")
        return MapType(key, type_from_proto(proto.map_type.value_type))
    raise UserError(f"value type '{kind}' is not supported")


def type_to_proto(value: ValueType | None) -> TypeProto:
    """Write a value type as a ``TypeProto``."""
    proto = TypeProto()
    if isinstance(value, TensorType):
        proto.tensor_type.elem_type = dtype_to_onnx(value.dtype)
        _write_shape(proto.tensor_type, value.shape, value.dim_denotations)
        if value.denotation:
            proto.denotation = value.denotation
    elif isinstance(value, SparseTensorType):
        proto.sparse_tensor_type.elem_type = dtype_to_onnx(value.dtype)
        _write_shape(proto.sparse_tensor_type, value.shape, ())
    elif isinstance(value, SequenceType):
        proto.sequence_type.elem_type.CopyFrom(type_to_proto(value.element))
    elif isinstance(value, OptionalType):
        proto.optional_type.elem_type.CopyFrom(type_to_proto(value.element))
    elif isinstance(value, MapType):
        proto.map_type.key_type = dtype_to_onnx(value.key)
        proto.map_type.value_type.CopyFrom(type_to_proto(value.value))
    return proto


def _dimension(dim: Any) -> Dimension:
    kind = dim.WhichOneof("value")
    if kind == "dim_value":
        return int(dim.dim_value)
    return str(dim.dim_param) or None if kind == "dim_param" else None


def _write_shape(proto: Any, shape: tuple[Dimension, ...] | None, denotations: tuple[str, ...]) -> None:
    if shape is None:
        return
    proto.shape.SetInParent()
    for index, value in enumerate(shape):
        dim = proto.shape.dim.add()
        if isinstance(value, str):
            dim.dim_param = value
        elif value is not None:
            dim.dim_value = value
        if denotations and denotations[index]:
            dim.denotation = denotations[index]
