"""The numpy reference: every step is one rule, backward is the tape of their vector-Jacobian products."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from meta500.backends.array_network import ArrayNetwork
from meta500.backends.checks import check_cotangent
from meta500.backends.network import GRADIENT_PREFIX, NodeCoverage
from meta500.backends.numpy.operators.seeding import restore_streams, stream_states
from meta500.backends.numpy.plan import Plan, Tape, is_differentiable, pullback
from meta500.backends.numpy.visitor import NumpyVisitor, node_coverage
from meta500.backends.rules import running_threads
from meta500.backends.values import apply, leaves
from meta500.graph import Model, Operation, ValueType
from meta500.graph.passes import training_form


class NumpyNetwork(ArrayNetwork):
    """A network computed by numpy on the host; see :class:`meta500.backends.network.Network`.

    ``threads`` limits the threads of numpy's BLAS during a run.
    """

    backend = "numpy"

    def __init__(
        self,
        model: Model,
        *,
        precision: str | None = None,
        threads: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, precision=precision, threads=threads, seed=seed)
        self._tensors: dict[str, Any] = dict(self.model.graph.initializers)
        self._last: dict[str, Any] = {}
        self._rng = np.random.default_rng(seed)
        self._limits = _blas_limits(threads)
        self._rebuild()

    @classmethod
    def node_coverage(
        cls, op: Operation, types: Mapping[str, ValueType | None] | None = None
    ) -> NodeCoverage:
        return node_coverage(op)

    def _rebuild(self) -> None:
        self._plans: dict[tuple[bool, tuple[str, ...]], Plan] = {}
        self._forms = {False: (self.model, {}), True: training_form(self.model)}
        current = getattr(self, "_tensors", {})
        for form, _ in self._forms.values():
            for name, array in form.graph.initializers.items():
                current.setdefault(name, array)
        self._tensors = current

    def inference(
        self, inputs: Mapping[str, Any], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        wanted = self._select_outputs(inputs, outputs)
        values = self._feed(inputs)
        plan = self._plan(wanted, training=False)
        with self._limits():
            plan.run(values, self._rng, tape=None)
        return self._finish(inputs, wanted, values, {})

    def inference_and_backprop(
        self,
        inputs: Mapping[str, Any],
        loss: str = "loss",
        outputs: Sequence[str] | None = None,
        wrt: Sequence[str] | None = None,
        cotangent: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        self._check_loss(inputs, loss, cotangent is None)
        wanted = self._select_outputs(inputs, outputs)
        wanted = wanted if loss in wanted else (*wanted, loss)
        targets = self._check_wrt(wrt)
        updates = self._updates(self._forms[True][1], self._forms[True][0], inputs)
        plan = self._plan((*wanted, *updates.values()), training=True)
        values = self._feed(inputs)
        tape: Tape = []
        with self._limits():
            plan.run(values, self._rng, tape)
            gradients = backpropagate(tape, loss, values, targets, cotangent)
        results = self._finish(inputs, wanted, values, gradients)
        for statistic, new in updates.items():
            self._tensors[statistic] = values[new]
        return results

    def computing(self) -> AbstractContextManager[Any]:
        return self._limits()  # type: ignore[no-any-return]

    def random_state(self) -> dict[str, Any]:
        own = self._rng.bit_generator.state
        return {"backend": self.backend, "generator": own, "streams": stream_states(self._rng)}

    def restore_random_state(self, state: Mapping[str, Any]) -> None:
        if state.get("backend") != self.backend:
            super().restore_random_state(state)
            return
        self._rng.bit_generator.state = state["generator"]
        restore_streams(self._rng, state["streams"])

    def native_optimizer(self, name: str, loss: str = "loss", **hyperparameters: Any) -> Any:
        self._check_open()
        from meta500.backends.numpy.optimizers import create

        return create(self, name, loss, hyperparameters)

    def close(self) -> None:
        super().close()
        self._tensors, self._last, self._plans = {}, {}, {}

    def _feed(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        arrays = {name: self._as_input(name, value) for name, value in inputs.items()}
        self._check_shapes({name: a.shape for name, a in arrays.items() if isinstance(a, np.ndarray)})
        return {**self._tensors, **arrays}

    def _plan(self, wanted: tuple[str, ...], training: bool) -> Plan:
        key = (training, wanted)
        if key not in self._plans:
            graph = self._forms[training][0].graph
            self._plans[key] = Plan(graph, wanted, NumpyVisitor(graph))
        return self._plans[key]

    def _finish(
        self,
        inputs: Mapping[str, Any],
        wanted: tuple[str, ...],
        values: dict[str, Any],
        gradients: dict[str, Any],
    ) -> dict[str, np.ndarray]:
        # An output may be the very array of an input or parameter (Identity, Reshape): hand out copies then.
        kept = [t for n in (*inputs, *self._tensors) for t in leaves(values[n])]
        owners = {id(_owner(np.asarray(array))) for array in kept}

        def own(array: Any) -> np.ndarray:
            array = np.asarray(array)
            return np.array(array) if id(_owner(array)) in owners else array

        found = {name: apply(own, values[name]) for name in wanted}
        self._last = {name: values[name] for name in inputs} | found
        self._last |= {GRADIENT_PREFIX + name: array for name, array in gradients.items()}
        return found


def backpropagate(
    tape: Tape,
    loss: str,
    values: Mapping[str, Any],
    targets: Sequence[str],
    cotangent: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Gradients of the value ``loss`` with respect to ``targets``, summed at every fan-out.

    Raises:
        UserError: the loss is no floating-point scalar (or does not have the shape of ``cotangent``), or an
            operation between has no gradient.
    """
    value = np.asarray(values[loss])
    check_cotangent(loss, value.dtype, value.shape, cotangent)
    seed = np.ones_like(value) if cotangent is None else np.asarray(cotangent, value.dtype)
    active = [name for name in targets if is_differentiable(values[name])]
    cotangents = pullback(tape, {loss: seed}, active)
    zero = {name: np.zeros_like(values[name]) for name in targets if name not in cotangents}
    return {name: zero[name] if name in zero else cotangents[name] for name in targets}


def _owner(array: np.ndarray) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _blas_limits(threads: int | None) -> Any:
    """Makes contexts that limit the threads of BLAS and of C++ operators; without a limit they do nothing."""
    if threads is None:
        return contextlib.nullcontext
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController()

    @contextlib.contextmanager
    def limits() -> Iterator[None]:
        token = running_threads.set(threads)
        try:
            with controller.limit(limits=threads, user_api="blas"):
                yield
        finally:
            running_threads.reset(token)

    return limits
