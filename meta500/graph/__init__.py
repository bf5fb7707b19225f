"""The network as data: typed operations, models, the parser, the builder and passes."""

from meta500.graph import operators as ops
from meta500.graph.builder import Builder
from meta500.graph.collectives import AllReduce, HaloExchange
from meta500.graph.custom import MeanSquaredError, custom_operation
from meta500.graph.model import Function, Graph, Model
from meta500.graph.operation import Attribute, FunctionCall, Operation, Signature
from meta500.graph.parser import load
from meta500.graph.passes import infer_types, inline_functions, training_form, with_precision
from meta500.graph.types import (
    MapType,
    OptionalType,
    SequenceType,
    SparseTensor,
    SparseTensorType,
    TensorType,
    ValueType,
)
from meta500.graph.visitors import MlVisitor, OnnxVisitor, PreviewVisitor, TrainingVisitor, Visitor

__all__ = [
    "AllReduce",
    "Attribute",
    "Builder",
    "Function",
    "FunctionCall",
    "Graph",
    "HaloExchange",
    "MapType",
    "MeanSquaredError",
    "MlVisitor",
    "Model",
    "OnnxVisitor",
    "Operation",
    "OptionalType",
    "PreviewVisitor",
    "SequenceType",
    "Signature",
    "SparseTensor",
    "SparseTensorType",
    "TensorType",
    "TrainingVisitor",
    "ValueType",
    "Visitor",
    "custom_operation",
    "infer_types",
    "inline_functions",
    "load",
    "ops",
    "training_form",
    "with_precision",
]
