"""ONNX's own backend interface over the networks, so that whatever drives ONNX backends drives these.

::

    from onnx.backend.test import BackendTest
    from meta500.backends.onnx_backend import backend

    globals().update(BackendTest(backend("torch"), __name__).test_cases)

What a backend can't do raises ``unittest.SkipTest``, so that test runners report it as a skip. Onnx's own
``BackendIsNotSupposedToImplementIt`` would be counted as a pass by onnx's runner.
"""

from __future__ import annotations

import functools
import unittest
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from meta500.backends.network import Network, backend_class, coverage, network
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Model, Operation, load
from meta500.graph.visitor import unsupported

_RANDOM = frozenset(
    (
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    )
)
# What onnx's runner hands on to ``prepare`` for itself.
_RUNNER_OPTIONS = frozenset(("rtol", "atol"))


class NetworkRep(BackendRep):
    """A prepared model.

    Attributes:
        network: runs it.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs in graph order, which are also found by their names.

        Args:
            inputs: a mapping from names to values, a sequence of values in the order of the graph's inputs
                (those with a default may be left out), or one array.
            kwargs: there are none.

        Raises:
            UserError: more or fewer inputs than the graph has, or what the network refuses.
            unittest.SkipTest: an operation that the backend does not run.
        """
        if kwargs:
            raise UserError(f"run has no options; got {', '.join(kwargs)}")
        names = list(self.network.outputs)
        with opting_out():
            found = self.network.inference(self._named(inputs), outputs=names)
        outputs: tuple[Any, ...] = namedtupledict("Outputs", names)(*(found[name] for name in names))
        return outputs

    def _named(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            return dict(inputs)
        values = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        needed, declared = list(self.network.inputs), list(self.network.model.graph.inputs)
        names = needed if len(values) == len(needed) else declared
        if not len(needed) <= len(values) <= len(declared):
            raise UserError(f"{len(values)} inputs are given, the model has {len(names)}: {', '.join(names)}")
        return dict(zip(names, values, strict=False))


class NetworkBackend(Backend):
    """A backend as ONNX's tools expect it; :func:`backend` makes one for a name.

    Attributes:
        name: of the backend.
        options: of its networks (threads, seed, ...).
    """

    name: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> NetworkRep:
        """Make a network.

        Args:
            model: the model.
            device: "CPU", "CUDA" or "CUDA:N".
            kwargs: options of the backend.

        Raises:
            UserError: the model or an option is not right.
            unittest.SkipTest: an operation that the backend does not run, or whose result is
                random.
        """
        options = {k: v for k, v in {**cls.options, **kwargs}.items() if k not in _RUNNER_OPTIONS}
        if device.upper() != "CPU":
            options["device"] = device.lower()
        with opting_out():
            parsed = load(model)
            refuse_random(parsed, cls.name)
            return NetworkRep(network(parsed, backend=cls.name, **options))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one operation.

        Args:
            node: the operation.
            inputs: a value for each of its inputs that is not "", in order, or a mapping from names.
            device: as for :meth:`prepare`.
            outputs_info: dtype and shape of each output; not needed.
            kwargs: ``opset_version`` (the newest by default) and options of the backend.
        """
        version = kwargs.pop("opset_version", None)
        if version is None:
            version = onnx.defs.get_schema(node.op_type, domain=node.domain).since_version
        names = list(dict.fromkeys(name for name in node.input if name))
        values = [inputs] if isinstance(inputs, np.ndarray) else inputs
        given = dict(values) if isinstance(values, Mapping) else dict(zip(names, values, strict=True))
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            [onnx.helper.make_value_info(name, _type_of(given[name])) for name in names],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        imports = [onnx.helper.make_opsetid(node.domain, version)]
        model = onnx.helper.make_model_gen_version(graph, opset_imports=imports)
        return cls.prepare(model, device, **kwargs).run(given)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether networks of this backend run on "CPU", "CUDA" or "CUDA:N" here."""
        kind = device.partition(":")[0].upper()
        if kind != "CUDA":
            return kind == "CPU"
        if cls.name == "onnxruntime":
            import onnxruntime

            return "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        if cls.name != "torch":
            return False
        import torch

        return torch.cuda.is_available()

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the backend runs every operation of ``model`` on ``device``."""
        if not cls.supports_device(device):
            return False
        parsed = load(model)
        found = coverage(parsed, cls.name)
        return random_operation(parsed) is None and all(node.how != "unsupported" for node in found)


@functools.cache
def backend(name: str, **options: Any) -> type[NetworkBackend]:
    """The class that makes the backend ``name`` one of ONNX's.

    Args:
        name: of a registered backend.
        options: of its networks.

    Raises:
        UserError: an unknown backend, or a package that it needs is missing.
    """
    backend_class(name)
    return type(f"{name.capitalize()}Backend", (NetworkBackend,), {"name": name, "options": options})


def random_operation(model: Model) -> Operation | None:
    """The first operation whose result ONNX does not define, because it is drawn by an unnamed generator."""
    bodies = [model.graph.walk(), *(iter(function.operations) for function in model.functions.values())]
    for operations in bodies:
        for op in operations:
            if op.domain == "" and op.op_type in _RANDOM:
                return op
    return None


def refuse_random(model: Model, backend: str) -> None:
    """Raises UnsupportedOperation if the outputs of ``model`` can't be compared with expected ones."""
    op = random_operation(model)
    if op is not None:
        raise unsupported(op, backend, "its result is random; ONNX defines no generator")


@contextmanager
def opting_out() -> Iterator[None]:
    """UnsupportedOperation as what test runners report as a skip."""
    try:
        yield
    except UnsupportedOperation as error:
        raise unittest.SkipTest(str(error)) from error


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, list | tuple):
        inner = _type_of(value[0]) if value else onnx.helper.make_tensor_type_proto(1, None)
        return onnx.helper.make_sequence_type_proto(inner)
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        return onnx.helper.make_tensor_type_proto(onnx.TensorProto.STRING, array.shape)
    element = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_type_proto(element, array.shape)
