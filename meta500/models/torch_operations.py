"""Rewrites of an exported PyTorch program, and the operations that carry what it means to ONNX."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

NORMALIZATION = "aten.batch_norm.default"
# Dropout that ONNX can say, and whether it drops whole channels.
DROPOUTS = {
    "aten.dropout.default": False,
    "aten.dropout_.default": False,
    "aten.feature_dropout.default": True,
    "aten.feature_dropout_.default": True,
}
# The module is exported inside another one, so that no parameter has the name of a value.
MODULE_PREFIX = "module."
# A node of ours that stands for a dropout has here the value that enters it.
DROPOUT_SOURCE = "meta500.dropout"


def calls(program: Any) -> list[Any]:
    """The calls of functions in an exported program, in order."""
    return [node for node in program.graph.nodes if node.op == "call_function"]


def arguments_of(node: Any) -> dict[str, Any]:
    """The arguments of a call by name, defaults included; by position if it has no schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {**{str(i): value for i, value in enumerate(node.args)}, **node.kwargs}
    values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    values.update(zip((a.name for a in schema.arguments), node.args, strict=False))
    values.update(node.kwargs)
    return values


def set_argument(node: Any, name: str, value: Any) -> None:
    """Change one argument of a call."""
    position = [a.name for a in node.target._schema.arguments].index(name)
    if position < len(node.args):
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)


def rewrite_dropout(program: Any, node: Any, in_inference: bool, keep: bool) -> None:
    """Replace a dropout by our operation; turn one off that is dropped or never on."""
    import torch

    given = arguments_of(node)
    if not keep or not given["train"]:
        set_argument(node, "train", False)
        return
    operation = operations().dropout
    source = node.args[0]
    in_place = str(node.target).rpartition(".")[0].endswith("_")
    features = DROPOUTS[str(node.target)]
    with program.graph.inserting_before(node):
        new = program.graph.call_function(
            operation, (source, float(given["p"]), bool(in_inference), features)
        )
        new.meta.update(node.meta)
        if in_place:
            copy = program.graph.call_function(torch.ops.aten.copy_.default, (source, new))
            copy.meta.update(node.meta)
            copy.meta[DROPOUT_SOURCE] = source
    new.meta[DROPOUT_SOURCE] = source
    result = copy if in_place else new
    node.replace_all_uses_with(result)
    program.graph_signature.replace_all_uses(node.name, result.name)
    program.graph.erase_node(node)


def rewrite_batch_statistics(program: Any) -> None:
    """Replace normalisation by the batch's own statistics, in both modes, by our operation.

    The exporter computes the statistics beside a normalisation for inference, where backends take
    them as constants: the gradient through them would be lost.
    """
    for node in calls(program):
        given = arguments_of(node)
        if str(node.target) == NORMALIZATION and given["running_mean"] is None and given["training"]:
            with program.graph.inserting_before(node):
                new = program.graph.call_function(
                    operations().normalization,
                    (given["input"], given["weight"], given["bias"], float(given["eps"])),
                )
            new.meta.update(node.meta)
            node.replace_all_uses_with(new)
            program.graph_signature.replace_all_uses(node.name, new.name)
            program.graph.erase_node(node)
    program.graph_module.recompile()


@dataclass(frozen=True)
class Operations:
    """PyTorch operations that are never run, only carried to ONNX, and their translations."""

    dropout: Any
    normalization: Any
    translations: dict[Any, Any]
    library: Any  # owns the registrations


@functools.cache
def operations() -> Operations:
    """Register the operations.

    ``meta500::dropout(x, p, always, features)``: with ``features`` whole channels drop, as in
    Dropout2d: dropout of a tensor of ones (N, C, 1, ...), times x. ``always`` becomes ONNX's
    training_mode: False is written for dropout that follows the mode. ``meta500::normalization(x,
    weight, bias, eps)``: batch normalisation by the statistics of the batch.
    """
    import numpy as np
    import onnx
    import torch
    from onnxscript import opset18 as onnx_ops

    library = torch.library.Library("meta500", "FRAGMENT")
    for schema in (
        "dropout(Tensor x, float p, bool always, bool features) -> Tensor",
        "normalization(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor",
    ):
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, lambda x, *rest: x.clone(), "CompositeExplicitAutograd")
        torch.library.register_fake(f"meta500::{name}", lambda x, *rest: torch.empty_like(x), lib=library)

    def constant(value: Any) -> Any:
        return onnx_ops.Constant(value=onnx.numpy_helper.from_array(np.asarray(value)))

    def filled(x: Any, value: float, shape: Any) -> Any:
        return onnx_ops.Expand(onnx_ops.CastLike(constant(np.float32(value)), x), shape)

    def dropout(x: Any, p: float, always: bool, features: bool) -> Any:
        ratio = constant(np.float64(p) if x.dtype == onnx.TensorProto.DOUBLE else np.float32(p))
        if not features:
            return onnx_ops.Dropout(x, ratio, constant(always))[0]
        ones = constant(np.ones(len(x.shape) - 2, np.int64))
        shape = onnx_ops.Concat(onnx_ops.Shape(x, start=0, end=2), ones, axis=0)
        return onnx_ops.Mul(x, onnx_ops.Dropout(filled(x, 1, shape), ratio, constant(always))[0])

    def normalization(x: Any, weight: Any, bias: Any, eps: float) -> Any:
        channels = onnx_ops.Shape(x, start=1, end=2)
        zeros, ones = filled(x, 0, channels), filled(x, 1, channels)
        return onnx_ops.BatchNormalization(
            x,
            ones if weight is None else weight,
            zeros if bias is None else bias,
            zeros,
            ones,
            epsilon=eps,
            training_mode=1,
        )[0]

    own = torch.ops.meta500
    return Operations(
        dropout=own.dropout.default,
        normalization=own.normalization.default,
        translations={own.dropout.default: dropout, own.normalization.default: normalization},
        library=library,
    )
