"""Networks on ONNX Runtime: inference by its kernels and graph optimizations, measured as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import onnxruntime

from meta500.backends.array_network import ArrayNetwork
from meta500.backends.network import GRADIENT_PREFIX, NodeCoverage
from meta500.backends.onnxruntime.coverage import node_coverage
from meta500.backends.onnxruntime.engine import (
    BACKEND,
    OPTIMIZATIONS,
    load,
    parse_device,
    refuse,
    settings,
)
from meta500.backends.onnxruntime.values import from_runtime, through_memory, to_runtime
from meta500.errors import UnsupportedOperation, UserError, choose
from meta500.graph import Graph, Model, Operation, ValueType
from meta500.graph.model import captured_names, operations_for

_INFERENCE_ONLY = "ONNX Runtime is an inference backend; gradients come from the backends numpy and torch"


class InferenceOnly(UnsupportedOperation):
    """Something that needs gradients was asked of ONNX Runtime; its node and operator are empty."""

    def __init__(self, what: str) -> None:
        self.node = self.op_type = self.domain = ""
        self.since_version, self.backend, self.reason = 0, BACKEND, _INFERENCE_ONLY
        UserError.__init__(self, f"{what}: {_INFERENCE_ONLY}")


class OnnxRuntimeNetwork(ArrayNetwork):
    """A network run by ONNX Runtime; see :class:`meta500.backends.network.Network`.

    Parameters are constants to it, which its graph optimizations fold: after ``feed_tensor`` or ``assign``
    the next run loads the network again.

    Args:
        model: the network.
        device: "cpu", "cuda" or "cuda:N"; CUDA needs the package onnxruntime-gpu. Inputs and outputs are on
            the host.
        optimization: how far ONNX Runtime rewrites the graph: "none", "basic", "extended" or "all".
        precision, threads, seed: as for every network; without ``threads`` ONNX Runtime takes a thread per
            physical core.
    """

    backend = BACKEND

    def __init__(
        self,
        model: Model,
        *,
        device: str = "cpu",
        optimization: str = "all",
        precision: str | None = None,
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        self._optimization = choose("optimization", optimization, OPTIMIZATIONS)
        self._device, self._providers = parse_device(device)
        self._tensors: dict[str, np.ndarray] = {}
        self._last: dict[str, Any] = {}
        self._sessions: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Any, Model]] = {}
        super().__init__(model, precision=precision, threads=threads, seed=seed)
        self._rebuild()

    @classmethod
    def node_coverage(
        cls, op: Operation, types: Mapping[str, ValueType | None] | None = None
    ) -> NodeCoverage:
        return node_coverage(op, types)

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, "device": self._device, "optimization": self._optimization}

    @property
    def device(self) -> str:
        return self._device

    @property
    def mode(self) -> str:
        return "" if self._optimization == "all" else f"optimization-{self._optimization}"

    def inference(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        wanted = self._select_outputs(inputs, outputs)
        fed = {name: self._as_input(name, value) for name, value in inputs.items()}
        self._check_shapes({name: a.shape for name, a in fed.items() if isinstance(a, np.ndarray)})
        defaults = tuple(name for name in fed if name in self.model.graph.initializers)
        loaded, part = self._loaded(wanted, defaults)
        given = {n: to_runtime(fed[n], f"input '{n}'") for n in part.graph.inputs}
        try:
            found = self._run(loaded, wanted, given)
        except UserError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            refuse(error, part.graph.operations, "ONNX Runtime stopped", running=True)
        results = dict(zip(wanted, found, strict=True))
        self._last = fed | results
        return results

    def inference_and_backprop(
        self,
        inputs: Mapping[str, Any],
        loss: str = "loss",
        outputs: Sequence[str] | None = None,
        wrt: Sequence[str] | None = None,
        cotangent: np.ndarray | None = None,
    ) -> NoReturn:
        """Raises UnsupportedOperation: ONNX Runtime is an inference backend."""
        raise InferenceOnly("inference_and_backprop")

    def gradient(self) -> NoReturn:
        """Raises UnsupportedOperation: ONNX Runtime is an inference backend."""
        raise InferenceOnly("gradient")

    def native_optimizer(self, name: str, loss: str = "loss", **hyperparameters: Any) -> NoReturn:
        """Raises UnsupportedOperation: ONNX Runtime is an inference backend."""
        raise InferenceOnly(f"native_optimizer '{name}'")

    def native(self, name: str) -> Any:
        if name.startswith(GRADIENT_PREFIX):
            raise InferenceOnly(f"'{name}'")
        if name in self._tensors and name not in self._last:
            return self._tensors[name]
        if name not in self._last:
            raise UserError(
                f"'{name}' is not kept; kept are parameters and the inputs and outputs of the last run. "
                "Other values are kept after add_output(name)"
            )
        return self._last[name]

    def assign(self, name: str, tensor: Any) -> None:
        super().assign(name, tensor)
        self._sessions.clear()

    def close(self) -> None:
        super().close()
        self._tensors, self._last = {}, {}
        self._sessions.clear()

    def _rebuild(self) -> None:
        self._tensors = {**self.model.graph.initializers, **self._tensors}
        self._last, self._sessions = {}, {}
        # Now rather than at the first run: what ONNX Runtime can't load is refused when the network is made.
        self._loaded(tuple(self.model.outputs), ())

    def _loaded(self, wanted: tuple[str, ...], defaults: tuple[str, ...]) -> tuple[Any, Model]:
        """What runs ``wanted``, and the part of the model that it was loaded from.

        Args:
            wanted: names of outputs.
            defaults: names of inputs with a default that are fed nevertheless.
        """
        key = (wanted, defaults)
        if key not in self._sessions:
            part = self.model.with_graph(self._part(wanted, defaults))
            onnxruntime.set_seed(self.seed)
            where = self.model.path or self.model.name
            loaded = load(part, settings(self._optimization, self.threads), self._providers, where)
            for output in loaded.get_outputs():
                through_memory(output.type)
            self._sessions[key] = loaded, part
        return self._sessions[key]

    def _part(self, wanted: tuple[str, ...], defaults: tuple[str, ...]) -> Graph:
        graph = self.model.graph
        operations = operations_for(graph, wanted)
        read = {n for op in operations for n in (*op.operands, *captured_names(op))} | set(wanted)
        constants = [n for n in graph.initializers if n in read and n not in defaults]
        return replace(
            graph,
            operations=operations,
            inputs={n: t for n, t in graph.inputs.items() if n in read and n not in constants},
            outputs={n: graph.outputs[n] for n in wanted},
            initializers={n: self._tensors[n] for n in constants},
            value_types={},
        )

    @staticmethod
    def _run(loaded: Any, wanted: tuple[str, ...], given: dict[str, Any]) -> list[Any]:
        if not any(through_memory(output.type) for output in loaded.get_outputs()):
            return [from_runtime(value) for value in loaded.run(list(wanted), given)]
        held = {}
        for name, value in given.items():
            if not isinstance(value, np.ndarray | onnxruntime.OrtValue) or (
                isinstance(value, np.ndarray) and value.dtype.kind == "O"
            ):
                raise UserError(
                    f"input '{name}': ONNX Runtime takes only tensors of numbers beside an output of "
                    "bfloat16, 8-bit or 4-bit floats"
                )
            held[name] = (
                onnxruntime.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value
            )
        return [from_runtime(value) for value in loaded.run_with_ort_values(list(wanted), held)]
