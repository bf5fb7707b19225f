"""Simplifies a graph that an exporter wrote: constants folded, copies, detours and dead nodes gone.

Nothing here changes what the graph computes, nor touches a tensor that the caller wants to keep by
name (parameters and buffers): what depends on one of those is computed when the network runs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.graph import FunctionCall, Graph, Operation, TensorType, ops
from meta500.graph.writer import array_to_tensor, node_to_proto

# Results larger than this stay operations: a graph should not grow by its constants.
_LARGEST = 1 << 20
_RANDOM = frozenset(
    {
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def exact(value: float, numbers: Mapping[float, float]) -> float:
    """The number that a single-precision ``value`` was before an exporter rounded it.

    That is the one of ``numbers`` (doubles by their rounded value), else the shortest decimal that
    rounds to ``value``: 0.30000001192092896 is 0.3.
    """
    single = np.float32(value)
    return numbers.get(float(single), float(str(single)))


def fold_constants(graph: Graph, kept: Collection[str], opset: int, numbers: Mapping[float, float]) -> Graph:
    """``graph`` with every operation that depends on constants only replaced by an initializer.

    Constants are Constant nodes and the initializers outside ``kept``; the shape of a value is
    constant where its type says so. Random operations, subgraphs, calls of functions and results of
    more than 2^20 elements stay as they are. A single-precision number that the exporter casts to
    double precision becomes the one that it was (:func:`exact`).
    """
    known = {name: array for name, array in graph.initializers.items() if name not in kept}
    types: Mapping[str, Any] = {**graph.value_types, **graph.inputs}
    operations: list[Operation] = []
    literals: set[str] = set()
    for op in graph.operations:
        values = _evaluate(op, known, types, graph.initializers, opset)
        if values is not None and _widens(op, values, known) and op.operands[0] in literals:
            values = [np.array(exact(float(known[op.operands[0]]), numbers))]
        if op.op_type == "Constant" and op.domain == "":
            literals.update(op.results)
        if values is None:
            operations.append(op)
        else:
            known.update(zip(op.results, values, strict=True))
    kept_arrays = {name: graph.initializers[name] for name in graph.initializers if name in kept}
    return replace(graph, operations=operations, initializers={**kept_arrays, **known})


def _evaluate(
    op: Operation,
    known: Mapping[str, np.ndarray],
    types: Mapping[str, Any],
    initializers: Mapping[str, np.ndarray],
    opset: int,
) -> list[np.ndarray] | None:
    """The results of ``op`` if they are the same in every run, else None."""
    if op.domain != "" or op.op_type in _RANDOM or op.subgraphs or isinstance(op, FunctionCall):
        return None
    if op.op_type == "Shape":
        shape = _sliced(_shape(op.operands[0], types, initializers), op)
        return None if shape is None else [shape]
    if op.op_type == "CastLike":
        dtype = _dtype(op.operands[1], types, initializers)
        source = known.get(op.operands[0])
        if source is None or dtype is None or dtype.kind != "f" or source.dtype.kind not in "fiub":
            return None
        return [source.astype(dtype)]
    if any(name and name not in known for name in op.operands):
        return None
    return _run(op, known, opset)


def _widens(op: Operation, values: list[np.ndarray], known: Mapping[str, np.ndarray]) -> bool:
    """Whether ``op`` casts a single-precision scalar to double precision."""
    if op.op_type not in ("Cast", "CastLike") or values[0].dtype != np.float64 or values[0].ndim:
        return False
    return known[op.operands[0]].dtype == np.float32


def _run(op: Operation, known: Mapping[str, np.ndarray], opset: int) -> list[np.ndarray] | None:
    """Run one operation on ONNX's reference; None where that lacks it or the result is large."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    fed = {name: known[name] for name in op.operands if name}
    inputs = [onnx.ValueInfoProto(name=name) for name in fed]
    for info, array in zip(inputs, fed.values(), strict=True):
        info.type.tensor_type.elem_type = array_to_tensor(array.reshape(-1)[:0]).data_type
    outputs = [onnx.ValueInfoProto(name=name) for name in op.results]
    graph = onnx.helper.make_graph([node_to_proto(op)], "folded", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    try:
        results = [np.asarray(value) for value in ReferenceEvaluator(model).run(None, fed)]
    except Exception:  # the reference lacks the operator or the case: it runs with the network instead
        return None
    if any(result.size > _LARGEST or result.dtype.kind not in "fiub" for result in results):
        return None
    return results


def _shape(
    name: str, types: Mapping[str, Any], initializers: Mapping[str, np.ndarray]
) -> tuple[Any, ...] | None:
    if name in initializers:
        return initializers[name].shape
    value = types.get(name)
    return value.shape if isinstance(value, TensorType) else None


def _sliced(shape: tuple[Any, ...] | None, op: Operation) -> np.ndarray | None:
    """What Shape returns with its attributes, a slice of the shape, where all of it is numbers."""
    if shape is None:
        return None
    part = shape[slice(op.attributes.get("start", 0), op.attributes.get("end"))]
    return np.array(part, np.int64) if all(isinstance(dimension, int) for dimension in part) else None


def _dtype(name: str, types: Mapping[str, Any], initializers: Mapping[str, np.ndarray]) -> np.dtype | None:
    if name in initializers:
        return initializers[name].dtype
    value = types.get(name)
    return value.dtype if isinstance(value, TensorType) else None


def drop_copies(graph: Graph) -> Graph:
    """``graph`` without Identity nodes and casts to the type that the value has."""
    names: dict[str, str] = {}
    operations: list[Operation] = []
    types: Mapping[str, Any] = {**graph.value_types, **graph.inputs, **graph.outputs}
    for op in graph.operations:
        op = op.renamed(names) if any(name in names for name in op.operands) else op
        if _is_copy(op, types, graph.initializers) and op.results[0] not in graph.outputs:
            names[op.results[0]] = op.operands[0]
        else:
            operations.append(op)
    return _written_directly(replace(graph, operations=operations))


def _is_copy(op: Operation, types: Mapping[str, Any], initializers: Mapping[str, np.ndarray]) -> bool:
    if op.domain != "" or op.op_type not in ("Identity", "Cast", "CastLike"):
        return False
    if op.op_type == "Identity":
        return True
    here = _dtype(op.operands[0], types, initializers)
    return here is not None and here == _dtype(op.results[0], types, initializers)


def _written_directly(graph: Graph) -> Graph:
    """``graph`` where a result that was only copied into an output is written there at once."""
    written = graph.producers()
    names: dict[str, str] = {}
    copies = []
    for op in graph.operations:
        if op.op_type == "Identity" and op.domain == "" and op.results[0] in graph.outputs:
            source = op.operands[0]
            if source in written and source not in graph.outputs and source not in names:
                names[source] = op.results[0]
                copies.append(op)
    if any(op.subgraphs for op in graph.operations) or not names:
        return graph
    operations = [op.renamed(names) for op in graph.operations if op not in copies]
    return replace(graph, operations=operations)


def drop_zero_biases(graph: Graph, kept: Collection[str]) -> Graph:
    """``graph`` with convolutions that add a constant zero written without it."""
    operations = []
    for op in graph.operations:
        bias = op.operands[2] if op.op_type in ("Conv", "ConvTranspose") and len(op.operands) > 2 else ""
        constant = graph.initializers.get(bias) if bias not in kept else None
        operations.append(op.replace(B="") if constant is not None and not constant.any() else op)
    return replace(graph, operations=operations)


def infer_open_reshapes(graph: Graph) -> Graph:
    """``graph`` with reshapes whose target is constant but for one dimension written with -1 there.

    An exporter writes the target of ``x.flatten(1)`` as Concat(the batch size, 1024) where the
    batch is symbolic. The number of elements decides the one open dimension, as long as the others
    are positive.
    """
    written = graph.producers()
    constants: dict[str, np.ndarray] = {}
    operations = []
    for op in graph.operations:
        target = _open_target(op, written, graph) if op.op_type == "Reshape" else None
        if target is not None:
            name = f"{op.results[0]}:shape"
            constants[name] = target
            op = op.replace(shape=name)
        operations.append(op)
    return replace(graph, operations=operations, initializers={**graph.initializers, **constants})


def _open_target(op: Operation, written: Mapping[str, Operation], graph: Graph) -> np.ndarray | None:
    concat = written.get(op.operands[1])
    if concat is None or concat.op_type != "Concat":
        return None
    parts: list[int] = []
    for name in concat.operands:
        constant = graph.initializers.get(name)
        if constant is None and _length_one(graph.value_types.get(name)):
            parts.append(-1)
        elif constant is not None and constant.ndim == 1 and (constant > 0).all():
            parts.extend(int(dimension) for dimension in constant)
        else:
            return None
    return np.array(parts, np.int64) if parts.count(-1) == 1 else None


def _length_one(value: Any) -> bool:
    return isinstance(value, TensorType) and value.shape == (1,)


def split_directly(graph: Graph, opset: int) -> Graph:
    """``graph`` with SplitToSequence whose parts are taken by constant index written as Split."""
    readers = graph.consumers()
    types: Mapping[str, Any] = {**graph.value_types, **graph.inputs}
    names: dict[str, str] = {}
    constants: dict[str, np.ndarray] = {}
    replaced: dict[str, Operation] = {}
    for op in graph.operations:
        if op.op_type != "SplitToSequence" or op.domain != "" or op.results[0] in graph.outputs:
            continue
        lengths = _lengths(op, graph, types)
        taken = [_index(reader, graph, lengths) for reader, _ in readers.get(op.results[0], ())]
        if lengths is None or any(index is None for index in taken):
            continue
        parts = [f"{op.results[0]}:{index}" for index in range(len(lengths))]
        for (reader, _), index in zip(readers[op.results[0]], taken, strict=True):
            assert index is not None
            names[reader.results[0]] = parts[index]
        constants[f"{op.results[0]}:lengths"] = np.array(lengths, np.int64)
        replaced[op.results[0]] = ops.Split(
            op.operands[0],
            f"{op.results[0]}:lengths",
            outputs=parts,
            axis=op.attributes.get("axis", 0),
            name=op.name,
            opset=opset,
        )
    operations = []
    for op in graph.operations:
        if op.op_type == "SequenceAt" and op.operands[0] in replaced:
            continue
        new = replaced.get(op.results[0], op) if op.op_type == "SplitToSequence" else op
        operations.append(new.renamed(names))
    outputs = {names.get(key, key): value for key, value in graph.outputs.items()}
    if len(outputs) < len(graph.outputs):  # two outputs are the same part
        return graph
    return replace(
        graph,
        operations=operations,
        outputs=outputs,
        initializers={**graph.initializers, **constants},
    )


def _lengths(op: Operation, graph: Graph, types: Mapping[str, Any]) -> list[int] | None:
    """The lengths of the parts of a SplitToSequence, where they are constant."""
    shape = _shape(op.operands[0], types, graph.initializers)
    split = graph.initializers.get(op.operands[1]) if len(op.operands) > 1 else None
    if shape is None or split is None:
        return None
    if split.ndim:
        return [int(length) for length in split]
    whole, step = shape[op.attributes.get("axis", 0)], int(split)
    if not isinstance(whole, int) or step < 1:
        return None
    return [min(step, whole - start) for start in range(0, whole, step)]


def _index(reader: Operation, graph: Graph, lengths: list[int] | None) -> int | None:
    """Which part a SequenceAt takes, counted from the front."""
    position = graph.initializers.get(reader.operands[1]) if reader.op_type == "SequenceAt" else None
    if position is None or lengths is None or not -len(lengths) <= int(position) < len(lengths):
        return None
    return int(position) % len(lengths)


def drop_dead(graph: Graph) -> Graph:
    """``graph`` without operations, initializers and types that no output needs."""
    needed = set(graph.outputs)
    alive: list[Operation] = []
    for op in reversed(graph.operations):
        if not needed.isdisjoint(op.results):
            alive.append(op)
            needed.update(op.operands)
            for subgraph in op.subgraphs.values():
                needed |= subgraph.free_names()
    alive.reverse()
    produced = {name for op in alive for name in op.results}
    return replace(
        graph,
        operations=alive,
        initializers={k: v for k, v in graph.initializers.items() if k in needed},
        value_types={k: v for k, v in graph.value_types.items() if k in produced},
    )
