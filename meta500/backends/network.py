"""The contract between a network and everything above it, and the registry of backends."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meta500.backends.checks import (
    at_opset,
    check_model,
    check_shapes,
    contradicts,
    exact,
    is_whole,
    requirements,
)
from meta500.backends.values import checked
from meta500.errors import UnsupportedOperation, UserError, choose
from meta500.graph.model import Model
from meta500.graph.operation import Operation
from meta500.graph.types import TensorType, ValueType, is_floating

GRADIENT_PREFIX = "grad/"
NATIVE, HOST, UNSUPPORTED = "native", "host", "unsupported"


@dataclass(frozen=True)
class NodeCoverage:
    """How a backend runs one node: natively, through a declared host fallback, or not at all."""

    node: str
    op_type: str
    domain: str
    since_version: int
    how: str
    reason: str = ""


class Network(ABC):
    """A model that runs on one backend.

    Everything above (optimizers, distribution, measurement) uses only these methods. Arrays go in and come
    out as numpy; :meth:`native` and :meth:`assign` give the backend's own tensors without a copy. Nothing
    mutates what it was fed.

    Args:
        model: the network.
        precision: "float16", "float32" or "float64"; None keeps the model's own types.
        threads: threads for the computation; None leaves the backend's setting alone.
        seed: seed of random operations (dropout).
    """

    backend: ClassVar[str]

    def __init__(
        self, model: Model, *, precision: str | None = None, threads: int | None = None, seed: int = 0
    ) -> None:
        from meta500.graph.passes import infer_types, inline_functions, with_precision

        check_model(model)
        processors = os.cpu_count() or 1
        if threads is not None and not (is_whole(threads) and 1 <= threads <= processors):
            raise UserError(
                f"threads must be a number from 1 to {processors}, the processors here; got {threads!r}"
            )
        if not (is_whole(seed) and 0 <= seed < 2**63):
            raise UserError(f"seed must be a number from 0 to 2^63 - 1, got {seed!r}")
        model = infer_types(inline_functions(model), strict=False)
        self.model = with_precision(model, precision) if precision is not None else model
        self.precision, self.threads, self.seed = precision, threads, seed
        self.closed = False
        self._structure()

    # -- what a backend provides -----------------------------------------------------------------

    @abstractmethod
    def inference(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Run forward.

        Args:
            inputs: an array for every input that the wanted outputs depend on.
            outputs: names of graph outputs; None for all that the given inputs suffice for.

        Returns:
            The outputs by name.

        Raises:
            UserError: an unknown, missing or ill-typed input, or an unknown output.
        """

    @abstractmethod
    def inference_and_backprop(
        self,
        inputs: Mapping[str, Any],
        loss: str = "loss",
        outputs: Sequence[str] | None = None,
        wrt: Sequence[str] | None = None,
        cotangent: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        """Run forward in training form, then the gradients of the scalar ``loss``.

        Args:
            inputs: as for :meth:`inference`.
            loss: name of a floating-point output with one element.
            outputs: names of outputs to return; None for all that the given inputs suffice for.
            wrt: names of parameters and inputs to differentiate by; None for all parameters. Their
                gradients are then found under ``grad/NAME``.
            cotangent: with it ``loss`` may be any floating-point output; the gradients are those of
                sum(cotangent * loss), without computing that sum (the vector-Jacobian product).

        Returns:
            The outputs by name, ``loss`` among them.

        Raises:
            UserError: as for :meth:`inference`; a loss that is no floating-point scalar (without
                ``cotangent``), a ``cotangent`` of another shape, or a node without a gradient.
        """

    @abstractmethod
    def native(self, name: str) -> Any:
        """The backend's own tensor of a parameter, gradient or result of the last run; no copy."""

    @abstractmethod
    def assign(self, name: str, tensor: Any) -> None:
        """Take over a native tensor as the new value of a parameter or constant, without a copy."""

    def computing(self) -> AbstractContextManager[Any]:
        """A context in which native tensors are computed with as the network does: its threads, its settings.

        Optimizers update parameters within it, so that a step on one thread has one thread throughout.
        """
        return nullcontext()

    @abstractmethod
    def to_native(self, array: np.ndarray) -> Any:
        """A native tensor with the contents of ``array``, on the network's device."""

    @abstractmethod
    def to_numpy(self, tensor: Any) -> np.ndarray:
        """A numpy array with the contents of a native tensor (a copy)."""

    @classmethod
    @abstractmethod
    def node_coverage(
        cls, op: Operation, types: Mapping[str, ValueType | None] | None = None
    ) -> NodeCoverage:
        """How this backend runs ``op``; ``types`` are the types of the values around it, where known."""

    @abstractmethod
    def _rebuild(self) -> None:
        """Forget everything derived from the graph; called after the graph changed."""

    def synchronize(self) -> None:  # noqa: B027 - nothing to wait for on most backends
        """Wait until the device has finished."""

    def random_state(self) -> dict[str, Any]:
        """What random operations (dropout) draw next: numbers, texts and numpy arrays in dictionaries and
        lists.

        Raises:
            UserError: the network has random operations whose state cannot be read.
        """
        return {}

    def restore_random_state(self, state: Mapping[str, Any]) -> None:
        """Go on drawing from a state of ``random_state`` of the same model on the same backend.

        Raises:
            UserError: the state is of another backend.
        """
        if state:
            raise UserError(f"this random state is not of the {self.backend} backend")

    def native_optimizer(self, name: str, loss: str = "loss", **hyperparameters: Any) -> Any:
        """The backend's own optimizer ``name`` ("sgd", "adam", ...) over this network's parameters.

        Raises:
            UserError: the backend has none of this name; the message lists those it has.
        """
        raise UserError(
            f"the {self.backend} backend has no native optimizers; "
            f"use meta500.optimizers.create('{name}', network)"
        )

    # -- what follows from it ---------------------------------------------------------------------

    @property
    def inputs(self) -> dict[str, TensorType]:
        """Inputs that have to be fed, with dtype and shape."""
        return dict(self.model.inputs)  # type: ignore[arg-type]

    @property
    def outputs(self) -> dict[str, TensorType]:
        """Outputs, with dtype and shape as far as they are known."""
        return dict(self.model.outputs)  # type: ignore[arg-type]

    @property
    def options(self) -> dict[str, Any]:
        """The options that decide how this network runs, for result rows."""
        return {"precision": self.precision, "threads": self.threads, "seed": self.seed}

    @property
    def device(self) -> str:
        """Where it runs ("cpu", "cuda:0", ...)."""
        return "cpu"

    @property
    def mode(self) -> str:
        """The backend's way of running it ("eager", "compile", ...), for result rows."""
        return ""

    def gradient(self) -> list[tuple[str, str]]:
        """Pairs of parameter name and the name of its gradient."""
        return [(name, GRADIENT_PREFIX + name) for name in self._parameters]

    def get_params(self) -> list[str]:
        """Names of the trainable parameters."""
        return list(self._parameters)

    def fetch_tensors(self, names: Iterable[str]) -> list[np.ndarray]:
        """Copies of parameters, constants, gradients, and inputs and outputs of the last run.

        Inputs and outputs of the last run share memory with the arrays that were fed and returned: what the
        caller writes into those shows here.

        Raises:
            UserError: nothing of this name is kept.
        """
        return [self.to_numpy(self.native(name)) for name in names]

    def feed_tensor(self, name: str, value: np.ndarray) -> None:
        """Set a parameter or constant.

        Raises:
            UserError: no such initializer, or another shape or dtype.
        """
        current = self.model.graph.initializers.get(name)
        if current is None:
            known = ", ".join(list(self.model.graph.initializers)[:20])
            raise UserError(f"feed_tensor: the network has no parameter or constant '{name}'; it has {known}")
        array = np.asarray(value)
        if array.shape != current.shape:
            raise UserError(f"feed_tensor: '{name}' has shape {list(current.shape)}, got {list(array.shape)}")
        self.assign(name, self.to_native(exact(array, current.dtype, f"feed_tensor: '{name}'", copy=True)))

    def add_operation(self, op: Operation) -> None:
        """Append an operation to the graph; its outputs can then be made outputs or losses.

        An operation of another version than the model's opset has is taken over if both versions have the
        same fields and defaults.

        Raises:
            UserError: it reads a value that does not exist or writes one that does, or it was made for a
                version of its operator that the model's opset does not have.
            UnsupportedOperation: the backend does not run it.
        """
        from dataclasses import replace

        from meta500.graph.passes import infer_types
        from meta500.graph.validate import check_graph

        op = at_opset(op, self.model)
        graph = self._current_graph()
        model = self.model.with_graph(replace(graph, operations=[*graph.operations, op]))
        check_graph(model.graph)
        refuse_unsupported(type(self), [op], model.graph.types())
        self._adopt(infer_types(model, strict=False))

    def add_output(self, name: str) -> None:
        """Make any value of the graph an output.

        Raises:
            UserError: the graph has no such value.
        """
        from dataclasses import replace

        from meta500.graph.passes import infer_types

        graph = self._current_graph()
        if name in graph.outputs:
            return
        if name not in graph.values():
            raise UserError(f"add_output: the graph has no value '{name}'")
        outputs = {**graph.outputs, name: graph.value_types.get(name)}
        self._adopt(infer_types(self.model.with_graph(replace(graph, outputs=outputs)), strict=False))

    def coverage(self) -> list[NodeCoverage]:
        """For every node, how this backend runs it."""
        types = self.model.graph.types()
        return [self.node_coverage(op, types) for op in self.model.graph.operations]

    def close(self) -> None:
        """Release what the network holds; it can't be used afterwards."""
        self.closed = True

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def current_model(self) -> Model:
        """The model with the parameters as they are now, for writing it to a file."""
        return self.model.with_graph(self._current_graph())

    # -- for the backends ---------------------------------------------------------------------------

    def _structure(self) -> None:
        """Check coverage and work out which inputs each output needs."""
        graph = self.model.graph
        self._check_coverage()
        if graph.sparse_initializers:
            name = next(iter(graph.sparse_initializers))
            raise UserError(f"sparse initializer '{name}': the {self.backend} backend reads dense ones only")
        self._parameters = self.model.parameters
        self._needs = requirements(graph, self.model.inputs)
        self._check_declared()

    def _check_coverage(self) -> None:
        """Refuse a graph with a node that the backend can't run."""
        refuse_unsupported(type(self), self.model.graph.operations, self.model.graph.types())

    def _check_declared(self) -> None:
        """Refuse a file whose declared outputs are not what its graph computes."""
        from dataclasses import replace

        from meta500.graph.passes import infer_types

        graph = self.model.graph
        computed = infer_types(
            self.model.with_graph(replace(graph, outputs=dict.fromkeys(graph.outputs))), strict=False
        ).outputs
        for name, declared in graph.outputs.items():
            if contradicts(declared, computed[name]):
                raise UserError(
                    f"output '{name}' is declared {declared}, the graph computes {computed[name]}"
                )

    def _adopt(self, model: Model) -> None:
        """Take over a changed model, or keep the old one if that fails."""
        before = self.model
        self.model = model
        try:
            self._structure()
            self._rebuild()
        except UserError:
            self.model = before
            self._structure()
            self._rebuild()
            raise

    def _current_graph(self) -> Any:
        """The graph with the current values of its initializers."""
        from dataclasses import replace

        current = {
            name: self._frozen(self.to_numpy(self.native(name))) for name in self.model.graph.initializers
        }
        return replace(self.model.graph, initializers=current)

    @staticmethod
    def _frozen(array: np.ndarray) -> np.ndarray:
        array.flags.writeable = False
        return array

    def _check_open(self) -> None:
        if self.closed:
            raise UserError("the network is closed")

    def _select_outputs(self, inputs: Mapping[str, Any], outputs: Sequence[str] | None) -> tuple[str, ...]:
        """The outputs to compute, after checking names.

        Raises:
            UserError: an unknown input or output, or an input that is missing.
        """
        self._check_open()
        if not isinstance(inputs, Mapping):
            raise UserError(
                f"inputs are a mapping from names to arrays, got {type(inputs).__name__}; "
                f"the network's inputs are {', '.join(self.model.graph.inputs) or 'none'}"
            )
        known = self.model.graph.inputs
        for name in inputs:
            if name not in known:
                raise UserError(
                    f"the network has no input '{name}'; its inputs are {', '.join(known) or 'none'}"
                )
        fed = frozenset(inputs)
        if outputs is None:
            chosen = tuple(n for n in self.model.outputs if self._needs.get(n, frozenset()) <= fed)
            if not chosen:
                missing = sorted(frozenset().union(*(self._needs[n] for n in self.model.outputs)) - fed)
                raise UserError(f"inputs are missing: {', '.join(missing)}")
            return chosen
        for name in outputs:
            if name not in self.model.outputs:
                raise UserError(
                    f"the network has no output '{name}'; its outputs are {', '.join(self.model.outputs)}. "
                    "Other values become outputs by add_output(name)"
                )
            missing = sorted(self._needs.get(name, frozenset()) - fed)
            if missing:
                raise UserError(f"output '{name}' needs inputs that are missing: {', '.join(missing)}")
        return tuple(outputs)

    def _check_loss(self, inputs: Mapping[str, Any], loss: str, scalar: bool = True) -> None:
        value = self.model.outputs.get(loss)
        if loss not in self.model.outputs:
            raise UserError(
                f"the network has no output '{loss}' to differentiate; "
                f"its outputs are {', '.join(self.model.outputs)}"
            )
        shape = getattr(value, "shape", None)
        if (
            scalar
            and shape is not None
            and any(dimension != 1 for dimension in shape if isinstance(dimension, int))
        ):
            raise UserError(f"the loss '{loss}' must be a scalar, it has shape {list(shape)}")
        missing = sorted(self._needs.get(loss, frozenset()) - frozenset(inputs))
        if missing:
            raise UserError(f"the loss '{loss}' needs inputs that are missing: {', '.join(missing)}")

    def _check_wrt(self, wrt: Sequence[str] | None) -> tuple[str, ...]:
        if wrt is None:
            return tuple(self._parameters)
        known = {**self.model.graph.inputs, **self.model.graph.initializers}
        for name in wrt:
            if name not in known:
                raise UserError(f"wrt: the network has no parameter or input '{name}'")
            dtype = getattr(known[name], "dtype", None)
            if not isinstance(known[name], TensorType | np.ndarray | None):
                raise UserError(f"wrt: '{name}' is no tensor; only tensors have a gradient")
            if dtype is not None and not is_floating(dtype):
                raise UserError(f"wrt: '{name}' is {dtype}; only floating point has a gradient")
        return tuple(wrt)

    def _updates(self, updates: Mapping[str, str], form: Model, inputs: Mapping[str, Any]) -> dict[str, str]:
        """Those running statistics that the fed inputs suffice to update."""
        if not updates:
            return {}
        needs = requirements(form.graph, form.inputs)
        fed = frozenset(inputs)
        return {name: new for name, new in updates.items() if needs.get(new, frozenset()) <= fed}

    def _check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Compare the shapes of the tensors fed with those declared; see :func:`checks.check_shapes`."""
        check_shapes(self.model.graph.inputs, shapes)

    def _as_input(self, name: str, value: Any) -> Any:
        """``value`` as an array of the declared dtype; a list, None or a dict for inputs that are no tensors.

        Raises:
            UserError: another kind of value or dtype, or one that would lose digits.
        """
        return checked(value, self.model.graph.inputs[name], f"input '{name}'", _as_array)


def _as_array(value: Any, declared: TensorType | None, label: str) -> np.ndarray:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if declared is None or declared.dtype is None:
        return array.astype(object) if array.dtype.kind == "U" else array
    return exact(array, declared.dtype, label)


def refuse_unsupported(
    cls: type[Network],
    operations: Iterable[Operation],
    types: Mapping[str, ValueType | None] | None = None,
) -> None:
    """Refuse, before anything runs, a graph with nodes that the backend can't run.

    Raises:
        UnsupportedOperation: names the first such node and how many more there are.
    """
    refused = [c for c in (cls.node_coverage(op, types) for op in operations) if c.how == UNSUPPORTED]
    if not refused:
        return
    first = refused[0]
    others = sorted({c.op_type for c in refused[1:]})
    reason = first.reason
    if others:
        reason += (
            f"{'; ' if reason else ''}{len(refused) - 1} more node(s) are not supported: {', '.join(others)}"
        )
    raise UnsupportedOperation(
        node=first.node,
        op_type=first.op_type,
        domain=first.domain,
        since_version=first.since_version,
        backend=cls.backend,
        reason=reason,
    )


# -- registry ---------------------------------------------------------------------------------------

ENTRY_POINTS = "meta500.backends"

_BACKENDS: dict[str, str] = {
    "generated": "meta500.backends.generated.network:GeneratedNetwork",
    "numpy": "meta500.backends.numpy.network:NumpyNetwork",
    "torch": "meta500.backends.torch.network:TorchNetwork",
    "onnxruntime": "meta500.backends.onnxruntime.network:OnnxRuntimeNetwork",
}
# Packages that come with an extra of this one.
_EXTRAS = {"onnxruntime": "meta500[onnxruntime]"}


def register(name: str, target: str) -> None:
    """Add a backend: ``target`` is ``"module:NetworkClass"``, imported when first used.

    Packages can do the same with an entry point of group ``meta500.backends``.

    Raises:
        UserError: the name is taken by another class.
    """
    if _BACKENDS.setdefault(name, target) != target:
        raise UserError(f"backend '{name}' is registered already as {_BACKENDS[name]}")


def backend_names() -> list[str]:
    """Names of all registered backends."""
    return sorted(_targets())


def backend_class(name: str) -> type[Network]:
    """The Network class of a backend.

    Raises:
        UserError: an unknown name, or a package that the backend needs is not installed.
    """
    targets = _targets()
    module, _, attribute = targets[choose("backend", name, targets)].partition(":")
    try:
        cls: type[Network] = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.split(".")[0] == "meta500":
            raise
        wanted = _EXTRAS.get(missing, missing)
        raise UserError(f"backend '{name}' needs the package '{missing}': pip install {wanted}") from None
    return cls


def network(model: Model, backend: str = "torch", **options: Any) -> Network:
    """``model`` on a backend.

    Args:
        model: the network.
        backend: its name.
        options: the backend's options (precision, threads, seed, device, mode, ...).

    Raises:
        UserError: an unknown backend or option, or a package is missing.
        UnsupportedOperation: the backend can't run some node.
    """
    check_model(model)
    cls = backend_class(backend)
    known = _option_names(cls)
    for name in options:
        if name not in known:
            raise UserError(
                f"unknown option '{name}' of backend '{backend}'. Choose from: {', '.join(sorted(known))}"
            )
    return cls(model, **options)


def coverage(model: Model, backend: str) -> list[NodeCoverage]:
    """How ``backend`` would run each node of ``model``, without building anything."""
    from meta500.graph.passes import infer_types, inline_functions

    cls = backend_class(backend)
    graph = infer_types(inline_functions(model), strict=False).graph
    types = graph.types()
    return [cls.node_coverage(op, types) for op in graph.operations]


def _option_names(cls: type[Network]) -> set[str]:
    import inspect

    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base) and base is not object:
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            names |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    return names


def _targets() -> dict[str, str]:
    targets = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return {**targets, **_BACKENDS}
