"""A user's PyTorch module as a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.errors import UserError, choose
from meta500.graph import (
    Graph,
    MeanSquaredError,
    Model,
    Operation,
    TensorType,
    infer_types,
    inline_functions,
    load,
    ops,
)
from meta500.graph.builder import DEFAULT_OPSET
from meta500.graph.model import unique
from meta500.graph.passes import FOLLOW, MODE_KEY
from meta500.models import arguments, simplify

LOSSES = ("cross_entropy", "mse")
# PyTorch's exporter writes opset 18 and converts upwards from there.
OLDEST_OPSET = 18


def from_torch(
    module: Any,
    example_inputs: Any,
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    loss: str | None = None,
    label: str = "label",
    opset: int = DEFAULT_OPSET,
    dynamic_batch: bool | str = False,
    mode: str = "follow",
    dropout: str = "follow",
    name: str | None = None,
) -> Model:
    """The network that a ``torch.nn.Module`` computes, parameters under their PyTorch names.

    Uses PyTorch's own exporter (torch.export, torch.onnx). The module's weights are copied, and it
    is left in the mode in which it came. Parameters that require a gradient are trainable; frozen
    ones and buffers are constants. A tied parameter appears once, under its first name. Batch
    normalisation and dropout follow the mode: they train in training steps and infer in inference,
    as the module does under ``train()`` and ``eval()``; a part that is in ``eval()`` while the
    module itself is in ``train()`` stays as in inference. The one difference:
    ONNX's running variance takes in the variance of a batch of m values with divisor m, PyTorch's
    with m - 1.

    Args:
        module: in either mode, on any device.
        example_inputs: the positional arguments of ``forward`` (one tensor or a sequence), or a
            mapping for keyword arguments; tensors or numpy arrays. They fix shapes and dtypes.
        input_names: names of the inputs; by default those of forward's arguments.
        output_names: names of the outputs, in the order in which nested results flatten; by default
            "output" or "output_0", "output_1", ...; with loss="cross_entropy" the first is
            "logits".
        loss: appended to the first output: "cross_entropy" (SoftmaxCrossEntropyLoss, mean, of
            logits (N, C, ...) against labels (N, ...) int64), "mse" (mean squared error against a
            target of the same shape and dtype), or None. The output is named "loss".
        label: name of the input that the loss adds.
        opset: ONNX opset of the model, 18 or newer.
        dynamic_batch: leave the first dimension of all inputs open, under the name "N" or the one
            given.
        mode: "follow", or "inference" for a network that behaves in training steps as in inference
            (batch normalisation by running statistics, no dropout).
        dropout: "follow", or "drop" to leave all dropout out.
        name: of the network; by default the module's class.

    Raises:
        UserError: no module, wrong example inputs, a module that can't be exported (says why), that
            does something in training which the graph can't follow, or whose trainable parameters
            do not reach an output; a missing onnxscript; an unknown option.
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise UserError(f"from_torch takes a torch.nn.Module, not {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise UserError("from_torch takes the original module, not one compiled by torch.jit")
    from meta500.models import torch_modes, torch_program
    from meta500.models.torch_operations import MODULE_PREFIX

    title = type(module).__name__
    choose("mode", mode, (torch_program.FOLLOW_MODE, torch_program.INFERENCE))
    choose("dropout", dropout, (torch_modes.KEEP_DROPOUT, torch_modes.DROP_DROPOUT))
    if loss is not None:
        choose("loss", loss, LOSSES)
    arguments.integer("opset", opset, minimum=OLDEST_OPSET, maximum=_newest_opset())
    args, kwargs = _examples(torch, example_inputs)
    open_batch = _open_batch(dynamic_batch, (*args, *kwargs.values()))
    if mode == torch_program.FOLLOW_MODE:
        _check_momentum(torch, module)
    with torch.random.fork_rng(devices=[]):
        _try(torch, module, args, kwargs)
        exported = torch_program.export(
            module,
            args,
            kwargs,
            opset=opset,
            dynamic_batch=open_batch,
            mode=mode,
            dropout=dropout,
        )
    model = infer_types(inline_functions(load(exported.proto)), strict=False)
    graph = _inner(model.graph, module)
    kept = {*dict(module.named_parameters()), *dict(module.named_buffers(remove_duplicate=False))}
    following = {name.removeprefix(MODULE_PREFIX) for name in exported.following}
    graph = _tidy(graph, kept, following, opset, exported.numbers)
    wanted = tuple(n for n, p in module.named_parameters() if p.requires_grad)
    missing = [n for n in wanted if n not in graph.initializers]
    if missing:
        raise UserError(
            f"'{title}': parameters do not reach the outputs: {', '.join(missing)}; remove "
            "them from the module, or freeze them with requires_grad_(False)"
        )
    graph = replace(graph, name=name or title, doc_string="", metadata={})
    graph = _named(
        graph,
        title,
        argument_names=_argument_names(module, args, kwargs),
        input_names=input_names,
        output_names=output_names,
        loss=loss,
        label=label,
    )
    if open_batch is not None:
        graph = _with_batch(graph, open_batch)
    domains = {"", *(op.domain for op in graph.walk())}
    model = Model(
        graph=graph,
        opset_imports={d: v for d, v in model.opset_imports.items() if d in domains},
        ir_version=model.ir_version,
        trainable=wanted,
        metadata={"meta500.model": title, "meta500.initialization": "from_torch"},
        producer_name="meta500",
    )
    return infer_types(with_loss(model, loss, label))


def _torch() -> Any:
    for package in ("torch", "onnxscript"):
        try:
            __import__(package)
        except ImportError:
            raise UserError(f"from_torch needs {package}: pip install {package}") from None
    import torch

    return torch


def _newest_opset() -> int:
    import onnx
    from onnxscript import onnx_opset

    known = [version for domain, version in onnx_opset.all_opsets if domain == ""]
    return min(max(known), onnx.defs.onnx_opset_version())


def _examples(torch: Any, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword tensors."""

    def tensor(value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        if not isinstance(value, torch.Tensor):
            raise UserError(
                f"example input {where} must be a tensor or a numpy array, not "
                f"{type(value).__name__}; give other arguments to forward() by wrapping the module"
            )
        return value.detach()

    if isinstance(given, Mapping):
        return (), {str(key): tensor(value, f"'{key}'") for key, value in given.items()}
    if isinstance(given, list | tuple):
        return tuple(tensor(value, str(i)) for i, value in enumerate(given)), {}
    return (tensor(given, "0"),), {}


def _check_momentum(torch: Any, module: Any) -> None:
    for name, part in module.named_modules():
        if (
            isinstance(part, torch.nn.modules.batchnorm._BatchNorm)
            and part.momentum is None
            and part.track_running_stats
        ):
            raise UserError(
                f"'{name}' ({type(part).__name__}) has momentum=None, a cumulative average that "
                "ONNX has no form for; give it a momentum such as 0.1, or give mode='inference'"
            )


def _try(torch: Any, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Run the module once in inference: tells wrong example inputs from exporter trouble."""
    from meta500.models.torch_program import reason

    flags = [(part, part.training) for part in module.modules()]
    buffers = {key: value.clone() for key, value in module.named_buffers()}
    try:
        module.eval()
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:  # whatever the user's code raises
        shapes = [f"{str(a.dtype).removeprefix('torch.')}{list(a.shape)}" for a in (*args, *kwargs.values())]
        raise UserError(
            f"'{type(module).__name__}' does not run on the example inputs "
            f"({', '.join(shapes) or 'none'}): {type(error).__name__}: {reason(error)}"
        ) from error
    finally:
        for part, flag in flags:
            part.training = flag
        with torch.no_grad():
            for key, value in module.named_buffers():
                if key in buffers and value.shape == buffers[key].shape:
                    value.copy_(buffers[key])


def _argument_names(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """The names that forward gives to its arguments; ``name_0``, ``name_1``, ... for ``*name``."""
    import inspect

    parameters = list(inspect.signature(module.forward).parameters.values())
    names: list[str] = []
    for index in range(len(args)):
        parameter = parameters[min(index, len(parameters) - 1)]
        if parameter.kind is parameter.VAR_POSITIONAL or index >= len(parameters):
            rest = next(p for p in parameters if p.kind is p.VAR_POSITIONAL)
            names.append(f"{rest.name}_{index - parameters.index(rest)}")
        else:
            names.append(parameter.name)
    return [*names, *kwargs]


def _open_batch(dynamic_batch: bool | str, values: Sequence[Any]) -> str | None:
    """The name of the open batch dimension, or None."""
    if dynamic_batch is False:
        return None
    if not isinstance(dynamic_batch, bool | str):
        raise UserError(f"dynamic_batch must be True, False or a name, not {dynamic_batch!r}")
    sizes = sorted({int(value.shape[0]) for value in values if value.dim()})
    if len(sizes) != 1 or sizes[0] < 2:
        raise UserError(
            "dynamic_batch needs example inputs with one first dimension, of at least 2; theirs: "
            f"{', '.join(map(str, sizes)) or 'none'}"
        )
    return str(arguments.batch_dimension(None if dynamic_batch is True else dynamic_batch))


def _with_batch(graph: Graph, name: str) -> Graph:
    """The graph with its batch dimension, which the exporter named, called ``name``."""
    first = next(v for v in graph.inputs.values() if isinstance(v, TensorType) and v.shape)
    assert first.shape is not None
    symbol = first.shape[0]

    def renamed(types: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: replace(value, shape=tuple(name if d == symbol else d for d in value.shape))
            if isinstance(value, TensorType) and value.shape is not None
            else value
            for key, value in types.items()
        }

    return replace(
        graph,
        inputs=renamed(graph.inputs),
        outputs=renamed(graph.outputs),
        value_types=renamed(graph.value_types),
    )


def _inner(graph: Graph, module: Any) -> Graph:
    """The graph with parameters and buffers under the module's own names, each tied one once.

    Other values that would have the same name give way.
    """
    from meta500.models.torch_operations import MODULE_PREFIX

    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[MODULE_PREFIX + name] = first.setdefault(id(parameter), name)
    for name, _ in module.named_buffers(remove_duplicate=False):
        names[MODULE_PREFIX + name] = name
    values = graph.values()
    taken = values | set(names.values())
    for value in sorted(values & set(names.values())):
        names[value] = unique(value, taken)
        taken.add(names[value])
    return _renamed(graph, names)


def _renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    def keys(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(key, key): value for key, value in mapping.items()}

    return replace(
        graph,
        inputs=keys(graph.inputs),
        outputs=keys(graph.outputs),
        initializers=keys(graph.initializers),
        operations=[op.renamed(names) for op in graph.operations],
        value_types=keys(graph.value_types),
    )


def _tidy(
    graph: Graph, kept: set[str], following: set[str], opset: int, numbers: Mapping[float, float]
) -> Graph:
    """Fold constants, mark what follows the mode, and leave out the exporter's notes to itself."""
    graph = simplify.fold_constants(graph, kept, opset, numbers)
    graph = simplify.drop_copies(graph)
    graph = simplify.drop_zero_biases(graph, kept)
    graph = simplify.split_directly(graph, opset)
    graph = simplify.infer_open_reshapes(graph)
    operations = [_plain(op, graph, following, numbers) for op in graph.operations]
    return simplify.drop_dead(replace(graph, operations=operations))


def _plain(op: Operation, graph: Graph, following: set[str], numbers: Mapping[float, float]) -> Operation:
    """The operation with exact attributes and with our metadata only."""
    # ONNX holds float attributes in single precision.
    changes: dict[str, Any] = {
        key: simplify.exact(value, numbers)
        for key, value in op.attributes.items()
        if op.attribute_kind(key) == "FLOAT" and isinstance(value, float)
    }
    metadata = {}
    if op.op_type == "Dropout":
        switch = graph.initializers.get(op.operands[2]) if len(op.operands) > 2 else None
        changes["mask"] = ""
        if switch is not None and not switch:
            changes["training_mode"] = ""
            metadata[MODE_KEY] = FOLLOW
    if op.op_type == "BatchNormalization" and op.operands[3] in following:
        metadata[MODE_KEY] = FOLLOW
    return op.replace(metadata=metadata, doc_string="", **changes)


def _named(
    graph: Graph,
    title: str,
    *,
    argument_names: Sequence[str],
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    loss: str | None,
    label: str,
) -> Graph:
    """Inputs and outputs under the wanted names; other values give way, parameters do not."""
    graph = _with_copied_outputs(graph)
    inputs = _wanted(f"'{title}'", "input", input_names, argument_names, argument_names)
    count = len(graph.outputs)
    usual = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    if loss == "cross_entropy" and usual:
        usual[0] = "logits"
    outputs = _wanted(f"'{title}'", "output", output_names, list(graph.outputs), usual)
    public = [*inputs, *outputs, *([label, "loss"] if loss is not None else [])]
    for name in public:
        if public.count(name) > 1 or name in graph.initializers:
            raise UserError(
                f"'{title}': the name '{name}' is needed twice; give other input_names, output_names or label"
            )
    new = {
        **dict(zip(graph.inputs, inputs, strict=True)),
        **dict(zip(graph.outputs, outputs, strict=True)),
    }
    taken = graph.values() | set(public)
    for value in sorted(graph.values() - set(new)):
        if value in public:
            new[value] = unique(value, taken)
            taken.add(new[value])
    return _renamed(graph, new)


def _with_copied_outputs(graph: Graph) -> Graph:
    """The graph with a copy of every input or initializer that it hands back, under a new name."""
    taken = graph.values()
    outputs: dict[str, Any] = {}
    operations = list(graph.operations)
    for name, value in graph.outputs.items():
        if name in graph.inputs or name in graph.initializers:
            copy = unique(f"{name}_copy", taken)
            taken.add(copy)
            operations.append(ops.Identity(name, output=copy, name=copy))
            outputs[copy] = value
        else:
            outputs[name] = value
    return replace(graph, operations=operations, outputs=outputs)


def _wanted(
    title: str, kind: str, given: Sequence[str] | None, found: Sequence[str], usual: Sequence[str]
) -> list[str]:
    if given is None:
        return list(usual)
    if isinstance(given, str) or len(given) != len(found):
        raise UserError(
            f"{title} has {len(found)} {kind}s ({', '.join(found)}); {kind}_names gives {given!r}"
        )
    return [str(name) for name in given]


def with_loss(model: Model, loss: str | None, label: str) -> Model:
    """``model`` with a loss, called "loss", on its first output.

    Args:
        model: without an output "loss".
        loss: one of :data:`LOSSES`; None changes nothing.
        label: name of the input that the loss adds.

    Raises:
        UserError: the first output is no floating-point tensor, or has no classes for "cross_entropy".
    """
    if loss is None:
        return model
    prediction, value = next(iter(model.graph.outputs.items()))
    if (
        not isinstance(value, TensorType)
        or value.dtype is None
        or value.dtype.name not in ("bfloat16", "float16", "float32", "float64")
        or value.shape is None
    ):
        raise UserError(
            f"loss '{loss}' needs a floating-point tensor as first output, '{prediction}' is {value}"
        )
    operation: Operation
    if loss == "mse":
        target = TensorType(value.dtype, value.shape)
        operation = MeanSquaredError(prediction, label, loss="loss", name="loss")
    else:
        if len(value.shape) < 2:
            raise UserError(
                f"loss 'cross_entropy' needs logits (N, classes, ...), the output '{prediction}' is {value}"
            )
        target = TensorType(np.dtype(np.int64), (value.shape[0], *value.shape[2:]))
        operation = ops.SoftmaxCrossEntropyLoss(
            prediction, label, output="loss", name="loss", opset=model.opset
        )
    graph = replace(
        model.graph,
        inputs={**model.graph.inputs, label: target},
        outputs={**model.graph.outputs, "loss": None},
        operations=[*model.graph.operations, operation],
    )
    return model.with_graph(graph)
