"""A model as an ordinary PyTorch module: what a user would have written by hand.

The torch backend calls one function per ONNX operation, on tensors that it owns. This module has standard
layers (``nn.Conv2d``, ``nn.BatchNorm2d``, ...) with parameters and statistics of their own instead, under
the names that the graph has for its nodes, so that ``torch.compile``, the profiler, hooks, ``state_dict`` and
``train()``/``eval()`` see what they see in a model of torchvision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from meta500.backends.torch.tensors import from_numpy
from meta500.errors import UnsupportedOperation, UserError, choose
from meta500.graph import Model, Operation, TensorType, ValueType
from meta500.graph.model import operations_for
from meta500.graph.visitor import unsupported

BACKEND = "torch module"


def torch_module(model: Model, outputs: Sequence[str] = ("logits",)) -> fx.GraphModule:
    """The module that computes ``outputs`` of ``model``, on the CPU and in ``eval()`` mode.

    ``forward`` takes the inputs of the model that the outputs need, in the model's order
    (``module.meta["inputs"]`` are their names), and returns the output, or a tuple where there are several
    of them. Parameters and statistics are copies of the model's initializers; initializers that the model
    does not train have no gradient. A layer is called as its node ("features.0" is ``features.0`` of
    torchvision's AlexNet), so that names of parameters are those of the model wherever these follow
    PyTorch's rule. Nodes of the graph have their operation in ``node.meta["operation"]``.

    In ``eval()`` results are those of the torch backend. In ``train()`` batch normalisation uses the
    statistics of the batch and dropout drops, with PyTorch's random numbers; the running variance is
    PyTorch's, of the sample (divided by n - 1), whereas ONNX's is that of the batch (divided by n).

    Args:
        model: a network, its initializers with values.
        outputs: names of outputs of the model, at least one; what only other outputs need is left out.

    Raises:
        UserError: no output, or an unknown one.
        UnsupportedOperation: an operation, or attributes of one, for which PyTorch has no standard layer
            that means the same; names the node and what would be right.
    """
    from meta500.backends.torch.module_layers import LayerVisitor

    if not outputs:
        raise UserError(f"module of {model.name}: name at least one output of {', '.join(model.outputs)}")
    wanted = [choose("output", name, model.outputs) for name in outputs]
    draft = Draft(model)
    chosen = operations_for(model.graph, wanted, (*model.inputs, *model.graph.initializers))
    needed = {*wanted, *(name for op in chosen for name in op.operands)}
    fed = [name for name in model.inputs if name in needed]
    for name in fed:
        draft.values[name] = draft.graph.placeholder(_identifier(name))
    visitor = LayerVisitor()
    for op in chosen:
        op.accept(visitor, draft)
    results = tuple(draft.value(name) for name in wanted)
    draft.graph.output(results[0] if len(results) == 1 else results)
    module = fx.GraphModule(draft.root, draft.graph, class_name=_identifier(model.name).title())
    module.meta["inputs"] = fed
    return module.eval()


class Draft:
    """A module in the making: its layers, its fx graph, and the node of each value so far."""

    def __init__(self, model: Model) -> None:
        self.model, self.initializers = model, dict(model.graph.initializers)
        self.types: Mapping[str, ValueType | None] = model.graph.types()
        self.root, self.graph = nn.Module(), fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self._trained = frozenset(model.parameters)
        # What was made of each initializer: its tensor, and whether it was turned (Linear's weight).
        self._tensors: dict[str, tuple[nn.Parameter, bool]] = {}

    def value(self, name: str) -> fx.Node:
        """The node of a value; an initializer becomes a parameter or buffer of the module."""
        if name not in self.values:
            attribute = self._free(_identifier(name))
            if name in self._trained:
                self.root.register_parameter(attribute, self.parameter(name))
            else:
                self.root.register_buffer(attribute, _copy(self.initializers[name]))
            self.values[name] = self.graph.get_attr(attribute)
        return self.values[name]

    def parameter(self, name: str, turned: bool = False) -> nn.Parameter:
        """The parameter of an initializer, one for all layers that share it; ``turned``: transposed.

        Raises:
            UserError: the initializer is needed as it is and transposed, which no one parameter can be.
        """
        if name not in self._tensors:
            tensor = _copy(self.initializers[name])
            tensor = tensor.T.contiguous() if turned else tensor
            trained = name in self._trained and tensor.is_floating_point()
            self._tensors[name] = (nn.Parameter(tensor, requires_grad=trained), turned)
        found, was_turned = self._tensors[name]
        if found.ndim > 1 and was_turned != turned:
            raise UserError(
                f"initializer '{name}' is the weight of one linear layer and, transposed, of another; give "
                "the second one a copy"
            )
        return found

    def layer(self, op: Operation, layer: nn.Module, *operands: str) -> None:
        """Add ``layer`` under the node's name, called with ``operands``, by default the node's first one."""
        path = _path(op.name or op.op_type)
        if _taken(self.root, path) or any(_is_layer(self.root, parent) for parent in _parents(path)):
            # Another layer lies at this path, above it or below it.
            path = self._free(_identifier(path))
        *parents, last = path.split(".")
        home = self.root
        for parent in parents:
            if parent not in home._modules:
                home.add_module(parent, nn.Module())
            home = home.get_submodule(parent)
        home.add_module(last, layer)
        arguments = tuple(self.value(name) for name in operands or op.operands[:1])
        self._bind(op, self.graph.call_module(path, arguments))

    def call(self, op: Operation, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        """Add a call of a function on nodes and literals, named after the node."""
        name = _identifier(op.name or op.op_type)
        node = self.graph.create_node("call_function", function, arguments, keywords, name=name)
        self._bind(op, node)

    def constant(self, op: Operation, field: str) -> np.ndarray | None:
        """The value of an input or attribute that must be known before the network runs; None if absent.

        Raises:
            UnsupportedOperation: it is computed by the network.
        """
        given = getattr(op, field, None)
        if given is None or given == "":
            return None
        if not isinstance(given, str):
            return np.asarray(given)
        if given not in self.initializers:
            raise refusal(op, f"'{field}' is computed by the network; it must be a constant")
        return self.initializers[given]

    def rank(self, op: Operation, name: str) -> int:
        """Number of axes of a value.

        Raises:
            UnsupportedOperation: it is not known.
        """
        kind = self.types.get(name)
        if not isinstance(kind, TensorType) or kind.shape is None:
            raise refusal(
                op,
                f"the shape of '{name}' is unknown, and layers differ by its rank; add it to the model",
            )
        return len(kind.shape)

    def _bind(self, op: Operation, node: fx.Node) -> None:
        node.meta["operation"] = op
        self.values[op.results[0]] = node

    def _free(self, path: str) -> str:
        """The path, or the first of path_1, path_2, ... that the module has not yet."""
        index, free = 0, path
        while _taken(self.root, free):
            index += 1
            free = f"{path}_{index}"
        return free


def refusal(op: Operation, reason: str) -> UnsupportedOperation:
    """The error of a node that has no standard layer."""
    return unsupported(op, BACKEND, reason)


def _taken(root: nn.Module, path: str) -> bool:
    home: Any = root
    for part in path.split("."):
        home = getattr(home, part, None)
        if home is None:
            return False
    return True


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def _is_layer(root: nn.Module, path: str) -> bool:
    """Whether a layer lies at ``path``, and not just a module that holds others."""
    return _taken(root, path) and type(root.get_submodule(path)) is not nn.Module


def _copy(array: np.ndarray) -> torch.Tensor:
    return from_numpy(np.array(array))


def _path(name: str) -> str:
    """The node's name as the path of a submodule: "/layer1/conv" is "layer1.conv"."""
    parts = (re.sub(r"\W", "_", part) for part in re.split(r"[./]+", name) if part)
    return ".".join(parts) or "layer"


def _identifier(name: str) -> str:
    """The name as a Python identifier."""
    text = re.sub(r"\W+", "_", name).strip("_") or "value"
    return f"_{text}" if text[0].isdigit() else text
