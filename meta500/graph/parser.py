"""From an ONNX file, bytes or ``ModelProto`` to the typed graph.

Initializers become read-only numpy views of the data that the protobuf message (or the external file,
memory-mapped) holds; nothing is copied twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from meta500.errors import UserError
from meta500.graph.attributes import attribute_kind, attribute_value
from meta500.graph.custom import custom_operations
from meta500.graph.model import (
    PARAMETERS_KEY,
    Annotation,
    Function,
    Graph,
    Model,
    check_parameters,
    parameters_of_text,
)
from meta500.graph.operation import AttributeReference, FunctionCall, Operation
from meta500.graph.operators import OPERATORS, OPSETS
from meta500.graph.types import SparseTensor, ValueType, dtype_from_onnx, type_from_proto
from meta500.graph.validate import check_graph


def load(
    source: str | os.PathLike[str] | bytes | ModelProto, parameters: Sequence[str] | None = None
) -> Model:
    """Read a model.

    Args:
        source: path of an ONNX file, its bytes, or a ``ModelProto``.
        parameters: names of the trainable initializers; by default those that the file declares, else
            every weight (see :attr:`Model.parameters`).

    Raises:
        UserError: the file is missing or corrupt, external data is missing or outside the model's folder,
            an operator is unknown, the graph is cyclic, unsorted or dangling, or a parameter is no float
            initializer. The message names file and node.
    """
    if isinstance(source, ModelProto):
        proto, path, folder = source, "", None
    elif isinstance(source, bytes | bytearray | memoryview):
        proto, path, folder = _decode(bytes(source), "the given bytes"), "", None
    elif isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{path}: cannot be read ({reason}); give the path of an ONNX file") from None
        proto, folder = _decode(data, path), Path(path).resolve().parent
    else:
        raise UserError(f"a model is a path, bytes or a ModelProto, not {type(source).__name__}")
    try:
        _check_message(proto)
        model = _Parser(proto, path, folder).model()
        if parameters is not None:
            model.trainable = check_parameters(model, parameters)
    except UserError as error:
        raise (UserError(f"{path}: {error}") if path else error) from None
    return model


def _decode(data: bytes, source: str) -> ModelProto:
    try:
        proto = ModelProto.FromString(data)
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise UserError(f"{source}: not an ONNX model ({type(error).__name__}: {error})") from None
    if not proto.HasField("graph") or not proto.ir_version:
        raise UserError(f"{source}: not an ONNX model (it has no graph or no IR version)")
    return proto


def _check_message(proto: ModelProto) -> None:
    """Refuse text that is not UTF-8 (protobuf hands it out as bytes) and nesting that no file can hold."""
    pending: list[tuple[Any, int]] = [(proto, 1)]
    while pending:
        message, depth = pending.pop()
        if depth > _DEPTH:
            raise UserError(f"the model's messages are nested more than {_DEPTH} deep")
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                inner = value if field.is_repeated else (value,)
                pending += [(item, depth + 1) for item in inner]
            elif field.type == field.TYPE_STRING:
                for text in value if field.is_repeated else (value,):
                    if isinstance(text, bytes):
                        raise UserError(
                            f"{message.DESCRIPTOR.name}.{field.name} is no text in UTF-8: {text[:40]!r}"
                        )


# What protobuf's own reader takes.
_DEPTH = 100


class _Parser:
    """State of one parse: the model's opsets and functions."""

    def __init__(self, proto: ModelProto, path: str, folder: Path | None) -> None:
        self.proto, self.path, self.folder = proto, path, folder
        self.opsets = _opset_imports(proto.opset_import)
        self.in_function = False
        self.functions = {(f.domain, f.name, f.overload) for f in proto.functions}

    def model(self) -> Model:
        proto = self.proto
        if proto.ir_version >= 3 and not self.opsets:
            raise UserError("the model imports no operator set (opset_import is empty)")
        self.opsets = self.opsets or {"": 1}
        for domain, version in self.opsets.items():
            newest = OPSETS.get(domain)
            if newest is not None and not 1 <= version <= newest:
                raise UserError(
                    f"opset {version} of {domain or 'ai.onnx'} is unknown; "
                    f"this version of meta500 knows 1 to {newest}"
                )
        self.in_function = True
        functions = {(f.domain, f.name, f.overload): self.function(f) for f in proto.functions}
        self.in_function = False
        metadata = {entry.key: entry.value for entry in proto.metadata_props}
        model = Model(
            graph=self.graph(proto.graph, self.opsets),
            opset_imports=self.opsets,
            ir_version=proto.ir_version,
            functions=functions,
            metadata=metadata,
            producer_name=proto.producer_name,
            producer_version=proto.producer_version,
            domain=proto.domain,
            model_version=proto.model_version,
            doc_string=proto.doc_string,
            training_info=tuple(info.SerializeToString() for info in proto.training_info),
            configuration=tuple(c.SerializeToString() for c in proto.configuration),
            path=self.path,
        )
        check_graph(model.graph)
        for function in functions.values():
            _check_function(function)
        _check_calls(model)
        declared = metadata.get(PARAMETERS_KEY)
        if declared is not None:
            model.trainable = check_parameters(model, parameters_of_text(declared))
        return model

    def graph(self, proto: GraphProto, opsets: Mapping[str, int]) -> Graph:
        initializers: dict[str, np.ndarray] = {}
        for tensor in proto.initializer:
            if not tensor.name:
                raise UserError(f"graph '{proto.name}': an initializer has no name")
            if tensor.name in initializers:
                raise UserError(f"graph '{proto.name}': initializer '{tensor.name}' is defined twice")
            initializers[tensor.name] = tensor_to_array(tensor, self.folder, f"initializer '{tensor.name}'")
        return Graph(
            name=proto.name,
            inputs=_value_types(proto.input, "input", proto.name),
            outputs=_value_types(proto.output, "output", proto.name),
            initializers=initializers,
            sparse_initializers={
                t.values.name: self.sparse(t, f"sparse initializer '{t.values.name}'")
                for t in proto.sparse_initializer
            },
            operations=[self.operation(node, opsets) for node in proto.node],
            value_types=_value_types(proto.value_info, "value", proto.name),
            doc_string=proto.doc_string,
            metadata={entry.key: entry.value for entry in proto.metadata_props},
            quantization=tuple(q.SerializeToString() for q in proto.quantization_annotation),
            value_annotations=_annotations(proto.input, proto.output, proto.value_info),
            tensor_annotations=_annotations(proto.initializer),
        )

    def function(self, proto: FunctionProto) -> Function:
        opsets = _opset_imports(proto.opset_import) or self.opsets
        for default in proto.attribute_proto:
            if default.ref_attr_name:
                raise UserError(
                    f"function '{proto.name}': the default of attribute '{default.name}' refers to another "
                    "attribute; it must be a value"
                )
        return Function(
            domain=proto.domain,
            name=proto.name,
            overload=proto.overload,
            inputs=tuple(proto.input),
            outputs=tuple(proto.output),
            attributes=tuple(proto.attribute),
            attribute_defaults={
                a.name: (attribute_kind(a), self.attribute(a, opsets, proto.name))
                for a in proto.attribute_proto
            },
            operations=[self.operation(node, opsets) for node in proto.node],
            opset_imports=opsets,
            doc_string=proto.doc_string,
            value_types=_value_types(proto.value_info, "value", proto.name),
            metadata={entry.key: entry.value for entry in proto.metadata_props},
        )

    def operation(self, node: NodeProto, opsets: Mapping[str, int]) -> Operation:
        domain = "" if node.domain == "ai.onnx" else node.domain
        label = f"node '{node.name}' ({domain + '.' if domain else ''}{node.op_type})"
        common = {
            "name": node.name,
            "doc_string": node.doc_string,
            "metadata": {entry.key: entry.value for entry in node.metadata_props},
            "overload": node.overload,
            "device_configurations": tuple(c.SerializeToString() for c in node.device_configurations),
        }
        attributes = {}
        for a in node.attribute:
            if a.name in attributes:
                raise UserError(f"{label}: attribute '{a.name}' is given twice")
            attributes[a.name] = (attribute_kind(a), self.attribute(a, opsets, label))
        cls = OPERATORS.get((domain, node.op_type)) or custom_operations().get((domain, node.op_type))
        if cls is None or (
            (node.domain, node.op_type, node.overload) in self.functions and domain not in OPSETS
        ):
            if (node.domain, node.op_type, node.overload) in self.functions and cls is None:
                return FunctionCall(node.domain, node.op_type, node.input, node.output, attributes, **common)
            if cls is None:
                raise UserError(
                    f"{label}: unknown operator; no schema of onnx {onnx.__version__}, no custom operation "
                    "and no function of the model has this name. If it is a custom operator, import the "
                    "module that defines it, or call meta500.load_operators with its file, before the model "
                    "is loaded"
                )
        opset = opsets.get(domain)
        if opset is None:
            if domain in OPSETS and domain == "":
                raise UserError(f"{label}: the model imports no operator set for domain 'ai.onnx'")
            if domain in OPSETS:
                raise UserError(f"{label}: the model imports no operator set for domain '{domain}'")
            opset = 1
        signature = cls.signature_at(opset)
        values: dict[str, Any] = {}
        _bind(values, signature.inputs, node.input, f"{label}: input")
        _bind(values, signature.outputs, node.output, f"{label}: output")
        for name, (kind, value) in attributes.items():
            known = signature.attributes.get(name)
            if known is None:
                raise UserError(
                    f"{label}: version {signature.since} of {node.op_type} has no attribute '{name}'; "
                    f"it has {', '.join(signature.attributes) or 'none'}"
                )
            if known.kind != kind:
                raise UserError(f"{label}: attribute '{name}' must be {known.kind}, the file has {kind}")
            values[name] = value
        op = cls(since_version=signature.since, **values, **common)
        op.validate()
        return op

    def attribute(self, proto: AttributeProto, opsets: Mapping[str, int], label: str) -> Any:
        if proto.ref_attr_name:
            if not self.in_function:
                raise UserError(
                    f"{label}: attribute '{proto.name}' refers to attribute '{proto.ref_attr_name}' of a "
                    "function, but the node is in none"
                )
            return AttributeReference(proto.ref_attr_name)
        kind = attribute_kind(proto)
        if kind == "GRAPH":
            return self.graph(proto.g, opsets)
        if kind == "GRAPHS":
            return tuple(self.graph(g, opsets) for g in proto.graphs)
        if kind == "TENSOR":
            return tensor_to_array(proto.t, self.folder, f"{label}: attribute '{proto.name}'")
        if kind == "TENSORS":
            return tuple(
                tensor_to_array(t, self.folder, f"{label}: attribute '{proto.name}'") for t in proto.tensors
            )
        if kind == "SPARSE_TENSOR":
            return self.sparse(proto.sparse_tensor, f"{label}: attribute '{proto.name}'")
        if kind == "SPARSE_TENSORS":
            return tuple(self.sparse(t, f"{label}: attribute '{proto.name}'") for t in proto.sparse_tensors)
        try:
            return attribute_value(proto)
        except UserError as error:
            raise UserError(f"{label}: attribute '{proto.name}': {error}") from None

    def sparse(self, proto: Any, label: str) -> SparseTensor:
        _check_dimensions(proto.dims, label)
        return SparseTensor(
            tensor_to_array(proto.values, self.folder, label),
            tensor_to_array(proto.indices, self.folder, label),
            tuple(proto.dims),
        )


def tensor_to_array(tensor: TensorProto, folder: Path | None, label: str) -> np.ndarray:
    """A read-only array of a ``TensorProto``; external data is memory-mapped from below ``folder``.

    Raises:
        UserError: the element type is unknown, a dimension is negative, the data has the wrong size, or the
            external file is missing, too short, outside the model's folder, or there is no folder because
            the model came as bytes.
    """
    _check_dimensions(tensor.dims, label)
    try:
        known = dtype_from_onnx(tensor.data_type)
    except UserError as error:
        raise UserError(f"{label}: {error}") from None
    if known is None:
        raise UserError(f"{label}: has no element type")
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = _external(tensor, folder, label)
        else:
            array = onnx.numpy_helper.to_array(tensor)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{label}: malformed tensor data ({error})") from None
    array = np.asarray(array)
    if array.flags.writeable:
        array.flags.writeable = False
    return array


def _check_dimensions(dims: Sequence[int], label: str) -> None:
    if any(d < 0 for d in dims):
        raise UserError(f"{label}: its shape {list(dims)} has a negative dimension")


def _external(tensor: TensorProto, folder: Path | None, label: str) -> np.ndarray:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise UserError(
            f"{label}: its data lies in '{location}'; load the model from its file, not from bytes"
        )
    target = (folder / location).resolve()
    if not location or not target.is_relative_to(folder):
        raise UserError(f"{label}: external data '{location}' lies outside the model's folder")
    if not target.is_file():
        raise UserError(f"{label}: external data file '{target}' is missing")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
    except ValueError:
        raise UserError(f"{label}: external data has a malformed offset or length") from None
    size = target.stat().st_size
    if offset < 0 or length < 0:
        raise UserError(f"{label}: external data has a negative offset ({offset}) or length ({length})")
    length = length or max(size - offset, 0)
    if offset + length > size:
        raise UserError(
            f"{label}: external data file '{target}' has {size} bytes, the model needs {offset + length}"
        )
    raw = np.memmap(target, dtype=np.uint8, mode="r", offset=offset, shape=(length,)) if length else b""
    plain = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    count = int(np.prod(tensor.dims, dtype=np.int64))
    if plain.itemsize * count == length and tensor.data_type not in _PACKED:
        return np.frombuffer(raw, dtype=plain).reshape(tuple(tensor.dims))
    copy = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(raw))
    return onnx.numpy_helper.to_array(copy)


_PACKED = {
    getattr(TensorProto, name)
    for name in ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1")
    if hasattr(TensorProto, name)
}


def _bind(values: dict[str, Any], formals: Any, names: Sequence[str], label: str) -> None:
    position = 0
    for formal in formals:
        if formal.variadic:
            values[formal.name] = tuple(names[position:])
            return
        if position < len(names):
            values[formal.name] = names[position]
        position += 1
    if len(names) > position and any(names[position:]):
        raise UserError(f"{label}s: {len(names)} are given, the operator takes at most {position}")


def _value_types(protos: Iterable[Any], kind: str, graph: str) -> dict[str, ValueType | None]:
    found: dict[str, ValueType | None] = {}
    for proto in protos:
        if proto.name in found and kind != "value":
            raise UserError(f"graph '{graph}': {kind} '{proto.name}' is listed twice")
        try:
            found[proto.name] = type_from_proto(proto.type)
        except UserError as error:
            raise UserError(f"graph '{graph}': {kind} '{proto.name}': {error}") from None
    return found


def _annotations(*groups: Iterable[Any]) -> dict[str, Annotation]:
    return {
        proto.name: Annotation(proto.doc_string, tuple((e.key, e.value) for e in proto.metadata_props))
        for group in groups
        for proto in group
        if proto.doc_string or proto.metadata_props
    }


def _opset_imports(protos: Iterable[Any]) -> dict[str, int]:
    return {"" if p.domain == "ai.onnx" else p.domain: int(p.version) for p in protos}


def _check_function(function: Function) -> None:
    graph = Graph(
        name=f"function {function.name}",
        inputs=dict.fromkeys(function.inputs),
        outputs=dict.fromkeys(function.outputs),
        operations=function.operations,
    )
    check_graph(graph)


# Nodes that the functions of a model may expand to: a few small functions that call each other can describe
# more nodes than any memory holds.
_EXPANDED = 500_000


def _check_calls(model: Model) -> None:
    """Refuse functions that call themselves, directly or through others, and ones that expand without end."""
    calls = {
        key: [inner for op in function.operations for inner in _calls(op)]
        for key, function in model.functions.items()
    }
    known = {key: [k for k in keys if k in calls] for key, keys in calls.items()}
    try:
        order = list(TopologicalSorter(known).static_order())
    except CycleError as error:
        names = " -> ".join(f"{domain}.{name}" for domain, name, _ in reversed(error.args[1]))
        raise UserError(f"functions must not call themselves: {names}") from None
    sizes: dict[tuple[str, str, str], int] = {}
    for key in order:
        own = sum(1 + sum(1 for _ in _inner(op)) for op in model.functions[key].operations)
        sizes[key] = own + sum(sizes[k] for k in known[key])
    total = sum(sizes.get(k, 0) for op in model.graph.operations for k in _calls(op))
    if total > _EXPANDED:
        raise UserError(f"the functions of the model expand to {total} nodes; at most {_EXPANDED} are taken")


def _inner(op: Operation) -> Iterator[Operation]:
    for graph in op.subgraphs.values():
        yield from graph.walk()


def _calls(op: Operation) -> list[tuple[str, str, str]]:
    """The functions that ``op`` and its subgraphs call."""
    return [(o.domain, o.op_type, o.overload) for o in (op, *_inner(op)) if isinstance(o, FunctionCall)]
