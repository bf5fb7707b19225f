"""Passes over a model: each takes one and returns another, and mutates nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from meta500.errors import UserError
from meta500.graph.custom import schemas_in_onnx
from meta500.graph.model import Graph, Model, operations_for, unique
from meta500.graph.operation import FunctionCall, Operation
from meta500.graph.operators import Cast
from meta500.graph.types import (
    BFLOAT16,
    OptionalType,
    SequenceType,
    TensorType,
    ValueType,
    dtype_from_onnx,
    dtype_to_onnx,
    type_from_proto,
)

# A node with this metadata trains in training steps and infers in inference.
MODE_KEY, FOLLOW = "meta500.mode", "follow"


def infer_types(model: Model, strict: bool = True) -> Model:
    """The model with the types that ONNX shape inference finds for its values and outputs.

    Raises:
        UserError: ``strict`` and the types of some node do not fit together, or a shape that is computed has
            more dimensions than a tensor can have; the message names the node.
    """
    from meta500.graph.writer import model_to_proto

    _check_ranks(model.graph)
    proto = model_to_proto(model, weights=False)
    try:
        with schemas_in_onnx():
            inferred = onnx.shape_inference.infer_shapes(
                proto, check_type=strict, strict_mode=strict, data_prop=True
            )
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        text = " ".join(str(error).split())
        raise UserError(f"{model.path or model.name}: types do not fit together: {text}") from None
    return model.with_graph(_with_types(model.graph, inferred.graph))


# Operators with an input that holds the shape of their result, and its position; numpy's limit of dimensions.
_SHAPES = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
_RANK = 64


def _check_ranks(graph: Graph) -> None:
    """Refuse shapes declared too long, since onnx would allocate an entry for each of their dimensions."""
    types = graph.types()
    for op in graph.operations:
        position = _SHAPES.get(op.op_type)
        if position is not None and position < len(op.operands):
            name = op.operands[position]
            for size in getattr(types.get(name), "shape", None) or ():
                if isinstance(size, int) and size > _RANK:
                    raise UserError(
                        f"{op.label}: the shape '{name}' has {size} entries, a tensor has at most {_RANK} "
                        "dimensions"
                    )
        for subgraph in op.subgraphs.values():
            _check_ranks(subgraph)


def _with_types(graph: Graph, proto: onnx.GraphProto) -> Graph:
    """``graph`` with the types that inference wrote into ``proto``, those of subgraphs included."""
    found = {v.name: type_from_proto(v.type) for v in proto.value_info}
    outputs = {v.name: type_from_proto(v.type) for v in proto.output}
    values = {**graph.value_types, **found}
    operations = list(graph.operations)
    for index, op in enumerate(operations):
        if not op.subgraphs:
            continue
        inner = {a.name: a.g for a in proto.node[index].attribute if a.type == onnx.AttributeProto.GRAPH}
        changes = {
            name: _with_types(body, inner[name]) for name, body in op.subgraphs.items() if name in inner
        }
        operations[index] = op.replace(**changes)
    return replace(
        graph,
        outputs={name: _better(declared, outputs.get(name)) for name, declared in graph.outputs.items()},
        value_types={k: v for k, v in values.items() if k not in graph.outputs},
        operations=operations,
    )


def inline_functions(model: Model) -> Model:
    """The model with calls of model-local functions replaced by their bodies (onnx's inliner).

    Raises:
        UserError: a function uses another version of an operator set than the model.
    """
    if not any(isinstance(op, FunctionCall) for op in model.graph.walk()):
        return model
    from meta500.graph.parser import load
    from meta500.graph.writer import model_to_proto

    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            if model.opset_imports.get(domain, version) != version:
                raise UserError(
                    f"function '{function.domain}.{function.name}' is written in version {version} of "
                    f"{domain or 'ai.onnx'}, the model in {model.opset_imports[domain]}: convert one of them"
                )
    proto = model_to_proto(_with_default_attributes(model), weights=True)
    kept = {(f.domain, f.name) for f in proto.functions} - {(d, n) for d, n, _ in model.functions}
    try:
        inlined = onnx.inliner.inline_selected_functions(proto, sorted(kept), exclude=True)
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{model.path or model.name}: functions cannot be inlined: {error}") from None
    result = load(inlined)
    return replace(result, trainable=model.trainable, path=model.path)


def _with_default_attributes(model: Model) -> Model:
    """Calls with the default attributes of their functions written out; onnx's inliner drops the defaults."""

    def filled(op: Operation) -> Operation:
        if isinstance(op, FunctionCall):
            function = model.functions.get((op.domain, op.op_type, op.overload))
            return op if function is None else op.with_defaults(function.attribute_defaults)
        changes = {
            name: replace(value, operations=[filled(inner) for inner in value.operations])
            for name, value in op.attributes.items()
            if op.attribute_kind(name) == "GRAPH" and isinstance(value, Graph)
        }
        return op.replace(**changes) if changes else op

    functions = {
        key: replace(function, operations=[filled(op) for op in function.operations])
        for key, function in model.functions.items()
    }
    graph = replace(model.graph, operations=[filled(op) for op in model.graph.operations])
    return replace(model, graph=graph, functions=functions)


def gradient_graph(op: Operation, graph: Graph | None) -> Graph:
    """The part of ``graph`` that a node of ai.onnx.preview.training.Gradient differentiates.

    Its inputs are the node's ``xs``, then its ``zs``; its output is ``y``. Other values that ``y`` depends on
    are read from the enclosing graph.

    Raises:
        UserError: ``y`` is no value of the graph, or an x is.
    """
    values = graph.values() if graph is not None else set()
    variables = (*op.attributes["xs"], *(op.attributes.get("zs") or ()))
    target = op.attributes["y"]
    for name in (*variables, target):
        if name not in values:
            raise UserError(f"{op.label}: the graph has no value '{name}'")
    assert graph is not None
    types = graph.types()
    return Graph(
        name=f"gradient of {target}",
        inputs={name: types.get(name) for name in variables},
        outputs={target: types.get(target)},
        operations=operations_for(graph, [target], variables),
        value_types=types,
    )


def training_form(model: Model) -> tuple[Model, dict[str, str]]:
    """The graph that a training step runs, and which initializers it updates.

    Batch normalisation and dropout nodes whose metadata say that they follow the mode are written for
    inference; here they train: batch normalisation uses the statistics of the batch and returns the new
    running ones, dropout drops. Everything else stays as written.

    Returns:
        The model and ``{running statistic: name of its new value}``.

    Raises:
        UserError: a node follows the mode but can't train, for example because its running statistics are
            no initializers.
    """
    updates: dict[str, str] = {}
    operations: list[Operation] = []
    graph = model.graph
    taken = graph.values()
    extra: dict[str, np.ndarray] = {}
    for op in graph.operations:
        if op.metadata.get(MODE_KEY) != FOLLOW:
            operations.append(op)
        elif op.op_type == "BatchNormalization" and op.since_version >= 14:
            operations.append(_training_normalization(op, graph, taken, updates))
        elif op.op_type == "Dropout" and op.since_version >= 12:
            name = unique("dropout_training_mode", taken)
            extra[name] = np.array(True)
            operations.append(op.replace(training_mode=name))
        else:
            raise UserError(f"{op.label}: version {op.since_version} cannot follow the training mode")
    if all(new is old for new, old in zip(operations, graph.operations, strict=True)):
        return model, {}
    trained = replace(graph, operations=operations, initializers={**graph.initializers, **extra})
    return model.with_graph(trained), updates


def _training_normalization(
    op: Operation, graph: Graph, taken: set[str], updates: dict[str, str]
) -> Operation:
    results = {}
    for source, target in (("input_mean", "running_mean"), ("input_var", "running_var")):
        statistic = getattr(op, source)
        if statistic not in graph.initializers:
            raise UserError(f"{op.label}: '{source}' must be an initializer to be updated in training")
        if statistic in updates:
            raise UserError(f"{op.label}: its running statistic '{statistic}' is updated by another node")
        results[target] = unique(f"{statistic}:new", taken)
        taken.add(results[target])
        updates[statistic] = results[target]
    return op.replace(training_mode=1, **results)


_PRECISIONS = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
_CHANGED = (*map(np.dtype, _PRECISIONS.values()), BFLOAT16)
_DTYPE_ATTRIBUTES = ("dtype", "to", "output_dtype", "output_datatype", "softmax_precision")


def with_precision(model: Model, precision: str) -> Model:
    """The model with every float16, bfloat16, float32 and float64 tensor in ``precision``.

    All floating-point initializers, constants, types, and conversions to a floating type change to
    ``precision``: the float64 form of a float32 network is its reference. The scales of Resize and Upsample
    stay float32, as ONNX defines them.

    Raises:
        UserError: an unknown precision.
    """
    if precision not in _PRECISIONS:
        raise UserError(f"unknown precision '{precision}'; choose one of: {', '.join(_PRECISIONS)}")
    target = np.dtype(_PRECISIONS[precision])
    return model.with_graph(_graph_in(model.graph, target))


def _graph_in(graph: Graph, target: np.dtype) -> Graph:
    changed = replace(
        graph,
        inputs={k: _type_in(v, target) for k, v in graph.inputs.items()},
        outputs={k: _type_in(v, target) for k, v in graph.outputs.items()},
        value_types={k: _type_in(v, target) for k, v in graph.value_types.items()},
        initializers={k: _array_in(v, target) for k, v in graph.initializers.items()},
        operations=[_operation_in(op, target) for op in graph.operations],
    )
    return _with_single_scales(graph, changed)


def _with_single_scales(before: Graph, changed: Graph) -> Graph:
    """``changed`` with float32 scales for Resize and Upsample, taken unrounded from ``before``."""
    constants = {
        op.results[0]: op.attributes["value"]
        for op in before.operations
        if op.op_type == "Constant" and isinstance(op.attributes.get("value"), np.ndarray)
    }
    known = {**before.initializers, **constants}
    taken = before.values()
    extra: dict[str, np.ndarray] = {}
    operations: list[Operation] = []
    for op in changed.operations:
        scales = getattr(op, "scales", None) if op.op_type in ("Resize", "Upsample") else None
        if not isinstance(scales, str) or not scales:
            operations.append(op)
            continue
        name = unique(f"{scales}:float32", taken)
        taken.add(name)
        if scales in known:
            extra[name] = known[scales]
        else:
            operations.append(Cast(scales, name, to=dtype_to_onnx(np.dtype(np.float32)), name=name, opset=13))
        operations.append(op.replace(scales=name))
    return replace(changed, operations=operations, initializers={**changed.initializers, **extra})


def _operation_in(op: Operation, target: np.dtype) -> Operation:
    changes: dict[str, Any] = {}
    if isinstance(op, FunctionCall):
        return op
    for name, value in op.attributes.items():
        kind = op.attribute_kind(name)
        if kind == "TENSOR" and isinstance(value, np.ndarray):
            changed = _array_in(value, target)
            if changed is not value:
                changes[name] = changed
        elif kind == "GRAPH" and isinstance(value, Graph):
            changes[name] = _graph_in(value, target)
        elif kind == "INT" and name in _DTYPE_ATTRIBUTES and isinstance(value, int):
            dtype = dtype_from_onnx(value)
            if dtype is not None and dtype in _CHANGED:
                changes[name] = dtype_to_onnx(target)
    if op.op_type == "Constant":
        changes.update(_constant_in(op, target))
    if op.op_type == "ConstantOfShape" and op.attributes.get("value") is None:
        changes["value"] = np.zeros(1, target)
    return op.replace(**changes) if changes else op


def _constant_in(op: Operation, target: np.dtype) -> Mapping[str, Any]:
    """``value_float`` and ``value_floats`` are float32 by definition: written as a tensor instead."""
    for name in ("value_float", "value_floats"):
        value = op.attributes.get(name)
        if value is not None and target != np.float32:
            return {name: None, "value": np.asarray(value, dtype=target)}
    return {}


def _array_in(array: np.ndarray, target: np.dtype) -> np.ndarray:
    if array.dtype not in _CHANGED or array.dtype == target:
        return array
    with np.errstate(over="ignore"):  # what is too large becomes infinite, such as the fill of a mask
        changed = array.astype(target)
    changed.flags.writeable = False
    return changed


def _type_in(value: ValueType | None, target: np.dtype) -> ValueType | None:
    if isinstance(value, TensorType) and value.dtype in _CHANGED:
        return replace(value, dtype=target)
    if isinstance(value, SequenceType | OptionalType):
        return replace(value, element=_type_in(value.element, target))
    return value


def _better(declared: ValueType | None, inferred: ValueType | None) -> ValueType | None:
    """The declared type, with what inference knows where it says nothing."""
    if not isinstance(declared, TensorType) or not isinstance(inferred, TensorType):
        return declared if declared is not None else inferred
    if declared.shape is None or inferred.shape is None or len(declared.shape) != len(inferred.shape):
        return inferred if declared.shape is None else declared
    shape = tuple(d if d is not None else i for d, i in zip(declared.shape, inferred.shape, strict=True))
    return replace(declared, shape=shape)
