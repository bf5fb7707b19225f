"""What a PyTorch module does in training and not in inference, and a program that shows both.

PyTorch's exporter writes a module in one mode. Dropout is then either gone (evaluation) or always
on, and batch normalisation is always written for inference. So the two programs are compared node
by node, and the training program, whose edges are the true ones, is rewritten: batch normalisation
for inference, dropout as an operation of our own that survives until ONNX. In the program of
evaluation mode a dropout hands back its very input, and a skip connection around it cannot be told
from one behind it.

Anything else that differs between the modes is an error, never a silent loss.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from meta500.errors import UserError
from meta500.models.torch_operations import (
    DROPOUT_SOURCE,
    DROPOUTS,
    MODULE_PREFIX,
    NORMALIZATION,
    arguments_of,
    calls,
    rewrite_dropout,
    set_argument,
)

KEEP_DROPOUT, DROP_DROPOUT = "follow", "drop"

_OTHER_DROPOUTS = tuple(
    f"aten.{name}{suffix}.default"
    for name in ("alpha_dropout", "feature_alpha_dropout")
    for suffix in ("", "_")
)
_RECURRENT = tuple(
    f"aten.{name}.{form}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")
)
_ATTENTION = "aten.scaled_dot_product_attention.default"
_COUNTER = "num_batches_tracked"


def follow_training(training: Any, inference: Any, title: str, dropout: str) -> set[str]:
    """Rewrite the program ``training`` so that it infers and shows what trains.

    Returns:
        Names of the running means of the batch normalisations that follow the mode.

    Raises:
        UserError: the two programs differ in more than batch normalisation and dropout.
    """
    _remove_counters(training)
    _check_subprograms(training, title)
    same = _Correspondence()
    means = training.graph_signature.inputs_to_buffers
    following: set[str] = set()
    fixed: set[str] = set()
    remaining = collections.deque(calls(inference))
    for node in calls(training):
        other = remaining[0] if remaining else None
        target = str(node.target)
        if target in DROPOUTS and not same.pairable(node, other):
            # Functions such as attention call dropout in training only.
            rewrite_dropout(training, node, False, dropout == KEEP_DROPOUT)
            continue
        if other is None or target != str(other.target):
            raise UserError(_difference(title, node, other))
        remaining.popleft()
        for name, here, there in same.differences(node, other):
            _reconcile(node, name, here, there, title=title, dropout=dropout)
        same.add(node, other)
        if target == NORMALIZATION:
            mean = means.get(str(arguments_of(node)["running_mean"]))
            if mean is not None:
                if mean in following:
                    raise UserError(
                        f"'{title}': the batch normalisation of "
                        f"'{mean.removeprefix(MODULE_PREFIX)}' is used twice, and ONNX "
                        "cannot update its statistics twice in one step; give each use a layer of "
                        "its own, or give mode='inference'"
                    )
                (following if arguments_of(node)["training"] else fixed).add(mean)
                set_argument(node, "training", arguments_of(other)["training"])
        elif target in DROPOUTS:
            rewrite_dropout(training, node, arguments_of(other)["train"], dropout == KEEP_DROPOUT)
    if remaining:
        raise UserError(_difference(title, None, remaining[0]))
    outputs = [next(n for n in p.graph.nodes if n.op == "output") for p in (training, inference)]
    if not same.equal(outputs[0].args, outputs[1].args) or not _same_constants(training, inference):
        raise UserError(f"'{title}' computes something else in training than in inference; {_REMEDY}")
    if following & fixed:
        raise UserError(
            f"'{title}': a batch normalisation trains in one use and not in another "
            f"({', '.join(sorted(n.removeprefix(MODULE_PREFIX) for n in following & fixed))})"
        )
    training.graph.lint()
    training.graph_module.recompile()
    return following


_REMEDY = (
    "put the parts that should stay as in inference into eval() before the call and the module "
    "itself into train(), or give mode='inference' for a network that behaves in training steps as "
    "in inference"
)


def _reconcile(node: Any, name: str, here: Any, there: Any, *, title: str, dropout: str) -> None:
    """Accept that an argument is ``here`` in training and ``there`` in inference, or refuse it."""
    target = str(node.target)
    if target == NORMALIZATION and name == "training" and here and not there:
        return
    if target in DROPOUTS and name == "train" and here and not there:
        return
    stochastic = (target in _OTHER_DROPOUTS and name == "train") or (
        target == _ATTENTION and name == "dropout_p"
    )
    recurrent = target in _RECURRENT and name == "train"
    if (stochastic or recurrent) and dropout == DROP_DROPOUT:
        set_argument(node, name, there)
        return
    if recurrent and not arguments_of(node)["dropout"]:
        set_argument(node, name, there)
        return
    if stochastic or recurrent:
        raise UserError(
            f"'{title}': the dropout of {target}{_place(node)} has no form in ONNX that can follow "
            "the training mode; give dropout='drop' to leave all dropout out, or use "
            "torch.nn.Dropout"
        )
    raise UserError(
        f"'{title}' does something else in training than in inference: {target}{_place(node)} has "
        f"{name}={here!r} in training and {there!r} in inference; {_REMEDY}"
    )


def _difference(title: str, node: Any, other: Any) -> str:
    here, there = (f"{n.target}{_place(n)}" if n is not None else "the end" for n in (node, other))
    return (
        f"'{title}' does something else in training than in inference: training comes to {here} "
        f"where inference comes to {there}; {_REMEDY}"
    )


def _place(node: Any) -> str:
    """The submodule that a call comes from, for messages."""
    paths = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    # Nodes that tracing itself adds have a made-up place that begins with an underscore.
    inner = paths[-1].removeprefix(MODULE_PREFIX) if paths and "." in paths[-1] else ""
    return f" (in '{inner}')" if inner and inner[0] != "_" else ""


class _Correspondence:
    """Which nodes of two graphs stand for the same value, dropout looked through."""

    def __init__(self) -> None:
        self.pairs: dict[Any, Any] = {}

    def add(self, node: Any, other: Any) -> None:
        self.pairs[_through(node)] = _through(other)

    def equal(self, here: Any, there: Any) -> bool:
        import torch

        if isinstance(here, torch.fx.Node) and isinstance(there, torch.fx.Node):
            here, there = _through(here), _through(there)
            if here.op in ("placeholder", "get_attr"):
                return here.op == there.op and here.target == there.target
            return self.pairs.get(here) is there
        if isinstance(here, list | tuple) and isinstance(there, list | tuple):
            return len(here) == len(there) and all(map(self.equal, here, there))
        if isinstance(here, dict) and isinstance(there, dict):
            return here.keys() == there.keys() and all(self.equal(here[k], there[k]) for k in here)
        if str(here) == str(there) == "nan":  # as in a masked fill
            return True
        return type(here) is type(there) and bool(here == there)

    def pairable(self, node: Any, other: Any) -> bool:
        """Whether ``other`` is ``node``, a dropout, in the other mode."""
        return (
            other is not None
            and str(node.target) == str(other.target)
            and all(name == "train" for name, _, _ in self.differences(node, other))
        )

    def differences(self, node: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
        """The arguments in which two calls of the same target differ."""
        here, there = arguments_of(node), arguments_of(other)
        for name in here.keys() | there.keys():
            if not self.equal(here.get(name), there.get(name)):
                yield name, here.get(name), there.get(name)


def _through(node: Any) -> Any:
    """The value that enters a chain of dropouts: what evaluation mode hands on."""
    while (
        str(node.target) in DROPOUTS or str(node.target) in _OTHER_DROPOUTS or node.meta.get(DROPOUT_SOURCE)
    ):
        node = node.meta.get(DROPOUT_SOURCE) or node.args[0]
    return node


def _same_constants(training: Any, inference: Any) -> bool:
    """Whether the tensors that forward() makes out of numbers are the same in both modes."""
    import torch

    here, there = training.constants, inference.constants
    return here.keys() == there.keys() and all(
        torch.equal(here[key], there[key])
        for key in here
        if isinstance(here[key], torch.Tensor) and isinstance(there[key], torch.Tensor)
    )


def _remove_counters(program: Any) -> None:
    """Take out the counting of batches that batch normalisation does in training; ONNX has none."""
    buffers = program.graph_signature.inputs_to_buffers
    for node in reversed(calls(program)):
        source = node
        while str(source.target) == "aten.add_.Tensor":
            source = source.args[0]
        counter = buffers.get(str(source), "").rpartition(".")[2] == _COUNTER
        if counter and source is not node and not node.users:
            program.graph.erase_node(node)


def _check_subprograms(program: Any, title: str) -> None:
    """Refuse layers with a mode inside branches and loops of the graph, which are not rewritten."""
    import torch

    modal = {NORMALIZATION, *DROPOUTS, *_OTHER_DROPOUTS, *_RECURRENT}
    for name, part in program.graph_module.named_modules():
        if name and isinstance(part, torch.fx.GraphModule):
            found = [str(n.target) for n in part.graph.nodes if str(n.target) in modal]
            if found:
                raise UserError(
                    f"'{title}': {found[0]} inside a branch or loop of the graph cannot follow the "
                    "training mode; give mode='inference'"
                )
