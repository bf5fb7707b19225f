"""From the typed graph back to ONNX, with the same meaning."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from meta500.errors import UserError
from meta500.graph.custom import custom_operations, function_body
from meta500.graph.model import PARAMETERS_KEY, Annotation, Function, Graph, Model, parameters_text
from meta500.graph.operation import AttributeReference, FunctionCall, Operation
from meta500.graph.types import SparseTensor, ValueType, type_to_proto

# Function overloads and metadata of nodes came with this version of ONNX's file format.
_OVERLOAD_IR = 10


def model_to_proto(model: Model, weights: bool = True) -> ModelProto:
    """The model as ``ModelProto``.

    Without ``weights``, initializers larger than 1,024 elements become inputs of their type: enough for
    shape inference, without copying them.
    """
    proto = ModelProto(
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
    )
    proto.graph.CopyFrom(graph_to_proto(model.graph, weights))
    functions = dict(model.functions)
    for function in functions.values():
        proto.functions.append(_function_to_proto(function))
    for body in _custom_bodies(model).values():
        if (body.domain, body.name, body.overload) not in functions:
            proto.functions.append(body)
            proto.ir_version = max(proto.ir_version, _OVERLOAD_IR)
    imports = dict(model.opset_imports)
    for op in model.graph.walk():
        if (op.domain, op.op_type) in custom_operations() or isinstance(op, FunctionCall):
            imports.setdefault(op.domain, 1)
    proto.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in imports.items())
    metadata = dict(model.metadata)
    if model.trainable is not None:
        metadata[PARAMETERS_KEY] = parameters_text(model.trainable)
    _write_metadata(proto, metadata)
    for data in model.training_info:
        proto.training_info.add().ParseFromString(data)
    for data in model.configuration:
        proto.configuration.add().ParseFromString(data)
    return proto


def save(model: Model, path: str | os.PathLike[str], external_data: bool = False) -> None:
    """Write ``model`` to ``path``; see :meth:`Model.save`.

    Raises:
        UserError: the file can't be written, or exceeds protobuf's 2 GiB without ``external_data``.
    """
    target = Path(path)
    if target.is_dir() or not target.name:
        raise UserError(f"{target}: is a folder; give the path of a file")
    proto = model_to_proto(model)
    # Written beside the target and moved there whole, so that a reader never sees half a file.
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    names = [target.name] + ([f"{target.name}.data"] if external_data else [])
    try:
        partial.mkdir()
        onnx.save_model(
            proto,
            os.fspath(partial / target.name),
            save_as_external_data=external_data,
            location=names[-1] if external_data else None,
            size_threshold=1024,
        )
        for name in reversed(names):
            if (partial / name).exists():
                (partial / name).replace(target.with_name(name))
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{target}: {error}; models over 2 GiB need external_data=True") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def graph_to_proto(graph: Graph, weights: bool = True) -> GraphProto:
    """The graph as ``GraphProto``."""
    proto = GraphProto(name=graph.name, doc_string=graph.doc_string)
    proto.node.extend(node_to_proto(op, weights) for op in graph.operations)
    for name, value in graph.inputs.items():
        proto.input.append(_value_info(name, value))
    for name, array in graph.initializers.items():
        if weights or array.size <= 1024 or name in graph.inputs:
            proto.initializer.append(array_to_tensor(array, name))
        else:
            proto.input.append(helper.make_tensor_value_info(name, _element_type(array), array.shape))
    for name, tensor in graph.sparse_initializers.items():
        proto.sparse_initializer.append(_sparse(tensor, name))
    for name, value in graph.outputs.items():
        proto.output.append(_value_info(name, value))
    for name, value in graph.value_types.items():
        proto.value_info.append(_value_info(name, value))
    _write_metadata(proto, graph.metadata)
    for info in (*proto.input, *proto.output, *proto.value_info):
        _annotate(info, graph.value_annotations.get(info.name))
    for tensor in proto.initializer:
        _annotate(tensor, graph.tensor_annotations.get(tensor.name))
    for data in graph.quantization:
        proto.quantization_annotation.add().ParseFromString(data)
    return proto


def node_to_proto(op: Operation, weights: bool = True) -> NodeProto:
    """One operation as ``NodeProto``; attributes at their default are left out if ONNX has the operator.

    Those of custom operations are written: onnx.reference does not know the defaults of functions.
    """
    proto = NodeProto(
        op_type=op.op_type, domain=op.domain, name=op.name, doc_string=op.doc_string, overload=op.overload
    )
    proto.input.extend(op.operands)
    proto.output.extend(op.results)
    custom = (op.domain, op.op_type) in custom_operations()
    if custom:
        body = function_body(op, 1)
        if body is not None:
            proto.overload = body.overload
    for name, value in op.attributes.items():
        spec = op.signature.attributes[name]
        if isinstance(value, AttributeReference):
            proto.attribute.append(
                AttributeProto(
                    name=name, ref_attr_name=value.name, type=AttributeProto.AttributeType.Value(spec.kind)
                )
            )
        elif spec.required or not _is_default(value, spec.default) or (custom and value is not None):
            proto.attribute.append(_attribute(name, spec.kind, value, weights))
    _write_metadata(proto, op.metadata)
    for data in op.device_configurations:
        proto.device_configurations.add().ParseFromString(data)
    return proto


def array_to_tensor(array: np.ndarray, name: str = "") -> TensorProto:
    """A ``TensorProto`` of an array (object arrays are strings)."""
    if array.dtype.kind == "O":
        values = [v if isinstance(v, bytes) else str(v).encode() for v in array.ravel()]
        return helper.make_tensor(name, TensorProto.STRING, array.shape, values)
    return numpy_helper.from_array(np.asarray(array), name)


def _element_type(array: np.ndarray) -> int:
    return int(array_to_tensor(array.reshape(-1)[:0]).data_type)


def _is_default(value: Any, default: Any) -> bool:
    return default is not None and type(value) is type(default) and value == default


def _attribute(name: str, kind: str, value: Any, weights: bool) -> AttributeProto:
    proto = AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind))
    if kind == "FLOAT":
        proto.f = value
    elif kind == "INT":
        proto.i = value
    elif kind == "STRING":
        proto.s = _bytes(value)
    elif kind == "FLOATS":
        proto.floats.extend(value)
    elif kind == "INTS":
        proto.ints.extend(value)
    elif kind == "STRINGS":
        proto.strings.extend(_bytes(v) for v in value)
    elif kind == "TENSOR":
        proto.t.CopyFrom(array_to_tensor(np.asarray(value)))
    elif kind == "TENSORS":
        proto.tensors.extend(array_to_tensor(np.asarray(v)) for v in value)
    elif kind == "GRAPH":
        proto.g.CopyFrom(graph_to_proto(value))
    elif kind == "GRAPHS":
        proto.graphs.extend(graph_to_proto(g) for g in value)
    elif kind == "SPARSE_TENSOR":
        proto.sparse_tensor.CopyFrom(_sparse(value, ""))
    elif kind == "SPARSE_TENSORS":
        proto.sparse_tensors.extend(_sparse(v, "") for v in value)
    elif kind == "TYPE_PROTO":
        proto.tp.CopyFrom(type_to_proto(value))
    elif kind == "TYPE_PROTOS":
        proto.type_protos.extend(type_to_proto(v) for v in value)
    else:
        raise UserError(f"attribute '{name}': kind {kind} cannot be written")
    return proto


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _sparse(tensor: SparseTensor, name: str) -> Any:
    return onnx.SparseTensorProto(
        values=array_to_tensor(tensor.values, name),
        indices=array_to_tensor(tensor.indices, ""),
        dims=tensor.shape,
    )


def _value_info(name: str, value: ValueType | None) -> Any:
    info = onnx.ValueInfoProto(name=name)
    if value is not None:
        info.type.CopyFrom(type_to_proto(value))
    return info


def _annotate(proto: Any, annotation: Annotation | None) -> None:
    if annotation is not None:
        proto.doc_string = annotation.doc_string
        _write_metadata(proto, dict(annotation.metadata))


def _write_metadata(proto: Any, metadata: dict[str, str]) -> None:
    for key, value in metadata.items():
        proto.metadata_props.append(onnx.StringStringEntryProto(key=key, value=value))


def _function_to_proto(function: Function) -> Any:
    proto = onnx.FunctionProto(
        domain=function.domain,
        name=function.name,
        overload=function.overload,
        doc_string=function.doc_string,
        input=function.inputs,
        output=function.outputs,
        attribute=function.attributes,
        node=[node_to_proto(op) for op in function.operations],
        opset_import=[helper.make_opsetid(d, v) for d, v in function.opset_imports.items()],
    )
    proto.attribute_proto.extend(
        _attribute(name, kind, value, True) for name, (kind, value) in function.attribute_defaults.items()
    )
    proto.value_info.extend(_value_info(name, value) for name, value in function.value_types.items())
    _write_metadata(proto, function.metadata)
    return proto


def _custom_bodies(model: Model) -> dict[tuple[str, str, str], Any]:
    bodies = {}
    for op in model.graph.walk():
        if (op.domain, op.op_type) in custom_operations():
            body = function_body(op, model.opset)
            if body is not None:
                bodies[body.domain, body.name, body.overload] = body
    return bodies
