"""The two backends of a comparison, and the parts of a model that they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meta500.backends.network import GRADIENT_PREFIX, UNSUPPORTED, Network, backend_class, network
from meta500.errors import UserError
from meta500.graph import Graph, Model, Operation, SequenceType, TensorType, ValueType
from meta500.graph.model import unique
from meta500.graph.passes import MODE_KEY, infer_types, inline_functions, training_form
from meta500.graph.types import OptionalType, is_floating


@dataclass(frozen=True)
class Side:
    """A backend with its options."""

    backend: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def precision(self) -> str | None:
        """The precision asked for; None for the model's own types."""
        return self.options.get("precision")

    @property
    def label(self) -> str:
        """Backend and options, in the form in which the command line takes them."""
        if not self.options:
            return self.backend
        return f"{self.backend}:{','.join(f'{k}={_text(v)}' for k, v in self.options.items())}"

    def network(self, model: Model, precision: str | None = None) -> Network:
        """``model`` on this side; ``precision`` overrides its own.

        Raises:
            UserError: an unknown backend or option, or a node that it refuses.
        """
        options = {**self.options, **({"precision": precision} if precision else {})}
        return network(model, backend=self.backend, **options)

    def refuses(self, op: Operation, types: Mapping[str, ValueType | None]) -> str:
        """Why the backend does not run ``op`` between values of ``types``; empty when it does."""
        coverage = backend_class(self.backend).node_coverage(op, types)
        return (coverage.reason or "no rule") if coverage.how == UNSUPPORTED else ""

    def forward(
        self,
        model: Model,
        feeds: Mapping[str, Any],
        outputs: Sequence[str],
        precision: str | None = None,
    ) -> dict[str, Any]:
        """The outputs of ``model``.

        Raises:
            UserError: the backend refuses it.
        """
        with np.errstate(all="ignore"), self.network(model, precision) as net:
            return dict(net.inference(_cast(net, feeds), outputs=list(outputs)))

    def vjp(
        self,
        model: Model,
        feeds: Mapping[str, Any],
        cotangents: Mapping[str, np.ndarray],
        wrt: Sequence[str],
        precision: str | None = None,
    ) -> dict[str, np.ndarray]:
        """Gradients of sum(cotangent * output) over all ``cotangents``, with respect to ``wrt``.

        Raises:
            UserError: the backend refuses it or has no gradient.
        """
        total: dict[str, np.ndarray] = {}
        with np.errstate(all="ignore"), self.network(model, precision) as net:
            fed = _cast(net, feeds)
            for name, cotangent in cotangents.items():
                net.inference_and_backprop(fed, loss=name, outputs=[name], wrt=wrt, cotangent=cotangent)
                found = net.fetch_tensors([GRADIENT_PREFIX + target for target in wrt])
                for target, gradient in zip(wrt, found, strict=True):
                    total[target] = total[target] + gradient if target in total else gradient
        return total


def side(text: str | Side) -> Side:
    """A side from ``"torch"`` or ``"torch:mode=compile,precision=float64"``.

    Raises:
        UserError: an unknown backend or a malformed option.
    """
    from meta500.benchmarks.options import pairs

    if isinstance(text, Side):
        return text
    name, _, rest = text.partition(":")
    backend_class(name)
    return Side(name, pairs(f"backend '{name}'", rest.split(",") if rest else ()))


def prepared(model: Model, training: bool, fed: Iterable[str] | None) -> Model:
    """``model`` without function calls, with the types of its values, every node named.

    Args:
        model: the network.
        training: take the training form (batch normalisation with the statistics of the batch). Either form
            is written out, so that it is the same in every run of a part, forward and backward.
        fed: the inputs with a default that are given; the others become constants.
    """
    model = inline_functions(model)
    if training:
        model = training_form(model)[0]
    graph = model.graph
    given = set(fed or ())
    taken: set[str] = {op.name for op in graph.operations if op.name}
    seen: set[str] = set()
    operations = []
    for op in graph.operations:
        metadata = {k: v for k, v in op.metadata.items() if k != MODE_KEY}
        name = op.name
        if not name or name in seen:
            name = unique(name or f"{op.op_type}:{next(filter(None, op.results), '')}", taken | seen)
        seen.add(name)
        operations.append(op.replace(name=name, metadata=metadata))
    inputs = {k: v for k, v in graph.inputs.items() if k not in graph.initializers or k in given}
    initializers = {k: v for k, v in graph.initializers.items() if k not in inputs}
    parameters = tuple(name for name in model.parameters if name in initializers)
    graph = replace(graph, operations=operations, inputs=inputs, initializers=initializers)
    return infer_types(replace(model.with_graph(graph), trainable=parameters), strict=False)


def reads(op: Operation) -> tuple[str, ...]:
    """The values that ``op`` reads, those of its subgraphs from outside included, each once."""
    names = [name for name in op.operands if name]
    for subgraph in op.subgraphs.values():
        names += sorted(subgraph.free_names())
    return tuple(dict.fromkeys(names))


def part(model: Model, operations: Sequence[Operation], values: Mapping[str, Any]) -> Model:
    """Some operations of ``model`` as a model of their own, with all their results as outputs.

    What they read is an initializer where the model has it as one, and else an input with the type and
    shape of its entry in ``values``.
    """
    graph = model.graph
    made = {name for op in operations for name in op.results if name}
    needed = dict.fromkeys(name for op in operations for name in reads(op) if name not in made)
    initializers = {n: graph.initializers[n] for n in needed if n in graph.initializers}
    sparse = {n: graph.sparse_initializers[n] for n in needed if n in graph.sparse_initializers}
    declared = {**graph.value_types, **graph.inputs, **graph.outputs}
    inputs = {
        name: _type_of(values[name], declared.get(name))
        for name in needed
        if name not in initializers and name not in sparse
    }
    name = operations[0].name if len(operations) == 1 else graph.name
    return replace(
        model,
        graph=Graph(
            name=name or "part",
            inputs=inputs,
            outputs=dict.fromkeys(n for op in operations for n in op.results if n),
            initializers=initializers,
            sparse_initializers=sparse,
            operations=list(operations),
        ),
        functions={},
        metadata={},
        training_info=(),
        trainable=tuple(n for n in model.parameters if n in initializers),
    )


def is_float(value: Any) -> bool:
    """Whether gradients flow through ``value``."""
    return isinstance(value, np.ndarray | np.generic) and is_floating(value.dtype) and value.dtype.kind != "c"


def _type_of(value: Any, declared: ValueType | None) -> ValueType | None:
    if isinstance(value, np.ndarray | np.generic):
        dtype = value.dtype
        known = getattr(declared, "dtype", None)
        # A side with a precision of its own computes in it; the part keeps the types of the model.
        if is_floating(dtype) and is_floating(known):
            dtype = known
        return TensorType(np.dtype(object) if dtype.kind in "US" else dtype, value.shape)
    if declared is not None:
        return declared
    if isinstance(value, list | tuple):
        return SequenceType(_element(value[0]) if value else None)
    return OptionalType(None) if value is None else None


def _element(value: Any) -> ValueType | None:
    return TensorType(value.dtype) if isinstance(value, np.ndarray) else None


def _cast(net: Network, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The feeds that ``net`` takes, floating-point ones in its precision."""
    fed = {}
    for name, declared in net.model.graph.inputs.items():
        if name not in feeds:
            continue
        value, dtype = feeds[name], getattr(declared, "dtype", None)
        if dtype is not None and is_float(value) and is_floating(dtype) and value.dtype != dtype:
            value = value.astype(dtype)
        fed[name] = value
    return fed


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_gradients(which: Side) -> str:
    """Why a side has no gradients at all; empty when it has (tried on y = x * x).

    Raises:
        UserError: a backend or option that does not exist.
    """
    from meta500.graph import Builder, ops

    builder = Builder("probe")
    x = builder.input("x", np.float32, (2,))
    builder.output(builder.add(ops.Mul, x, x), "y")
    ones = np.ones(2, np.float32)
    with which.network(builder.build()) as net:
        try:
            net.inference_and_backprop(_cast(net, {"x": ones}), loss="y", wrt=["x"], cotangent=ones)
        except UserError as error:
            return str(error)
    return ""
