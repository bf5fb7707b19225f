"""Parameter servers: the root keeps the parameters and the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import array_api_compat
import numpy as np

from meta500.distributed.buckets import LARGE_BYTES
from meta500.distributed.communication import CommunicationNetwork
from meta500.distributed.optimizer import Common, DistributedOptimizer
from meta500.distributed.server import Exchange, Message, Service, threaded
from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.optimizers.optimizer import ThreeStepOptimizer

Array = Any


class ConsistentParameterServer(DistributedOptimizer):
    """Synchronous training through a server at the root::

        push:    g_t = Σ_r n_r g_r(x_t) / Σ_r n_r  at the root (reduce), its own gradient included
        update:  x_{t+1} = U(x_t, g_t)              at the root alone
        pull:    x_{t+1} at all ranks               (broadcast)

    The base optimizer's state exists at the root only. An optimizer that changes parameters before the pass
    (AcceleGrad) does so at the root, and what it prepares is broadcast before the pass.

    Source: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; Deep500's
    ConsistentParameterServer, which left out the root's gradient.
    """

    synchronous = True
    consistent = True

    def before_pass(self, originals: dict[str, Array]) -> None:
        if self.communication.is_root or not self.prepares:
            super().before_pass(originals)
        else:
            self.base.begin_step()
            originals.update(self.copies(self.parameters()))
        if self.prepares:
            self.take_from_root(self.network.get_params())

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        factor = 1.0
        total = self.total_samples(samples)
        if self.loss_reduction == "mean":
            factor = samples / total
        pushed = reduce_at_root(self.communication, self.gradients(samples), factor)
        statistics = self.running_statistics()
        if statistics:
            averaged = reduce_at_root(self.communication, statistics, samples / total)
            if averaged is not None:
                self.assign_all(averaged)
        if pushed is None:
            self.skip_step()
        else:
            self.update(pushed)
        if self.communication.size > 1:
            self.take_from_root([*self.network.get_params(), *statistics])


def reduce_at_root(
    communication: CommunicationNetwork, tensors: Mapping[str, Array], factor: float
) -> dict[str, Array] | None:
    """Σ_r factor_r x_r at the root, None elsewhere; tensors below 256 KiB are joined (collective)."""
    if communication.size == 1:
        return {name: tensor if factor == 1.0 else tensor * factor for name, tensor in tensors.items()}
    groups: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        small = tensor.nbytes < LARGE_BYTES
        groups.setdefault(str(tensor.dtype) if small else name, []).append(name)
    results: dict[str, Array] = {}
    for members in groups.values():
        first = tensors[members[0]]
        xp = array_api_compat.array_namespace(first)
        flat = xp.concat([xp.reshape(tensors[name], (-1,)) for name in members])
        flat *= factor
        total = communication.sync_all_at_root(flat, op="sum")
        if total is None:
            continue
        begin = 0
        for name in members:
            shape = tuple(tensors[name].shape)
            end = begin + int(np.prod(shape, dtype=np.int64))
            results[name] = xp.reshape(total[begin:end], shape)
            begin = end
    return {name: results[name] for name in tensors} if communication.is_root else None


class InconsistentParameterServer(DistributedOptimizer):
    """Asynchronous training through a server at the root, no rank waiting for another::

        rank r:   g = g_r(x_v),  push g;      server:  x_{t+1} = U(x_t, g),  reply x_{t+1}

    A thread of the root applies each gradient when it comes and answers with the new parameters; the root's
    own worker goes through the same door. A gradient of version v that is applied to version t has staleness
    t − v: the updates made since its parameters were fetched. It is measured for every gradient
    (`staleness`).

    Every gradient is a step of its own, as large as a serial one, so that the learning rate counts N times
    per round. A batch without samples pushes nothing. ``step_count`` counts this rank's steps, the base
    optimizer at the root all updates. Not deterministic; with one rank it is the serial optimizer.

    Args:
        dedicated: the root only serves: it calls ``finish``, which returns when all workers have called it,
            and never ``train``. The others are the workers, which the data is to be divided among.

    Attributes:
        staleness: at the root, the staleness of all gradients so far by rank, in order of arrival.

    Source: Dean et al., "Large scale distributed deep networks" (Downpour SGD), NIPS 2012; staleness as in
    Zhang et al., "Staleness-aware async-SGD", IJCAI 2016, arXiv:1511.05950.

    Raises:
        UserError: as the base class; an optimizer that changes parameters before the pass (AcceleGrad), which
            has no meaning here; ``dedicated`` with a single rank.
    """

    synchronous = False
    consistent = False

    def __init__(
        self,
        optimizer: ThreeStepOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        dedicated: bool = False,
        **common: Unpack[Common],
    ) -> None:
        communication = CommunicationNetwork() if communication is None else communication
        if dedicated and communication.size == 1:
            raise UserError(f"{type(self).__name__}: a dedicated server needs at least 2 ranks, there is 1")
        self.dedicated = bool(dedicated)
        self.version = 0
        self.staleness: dict[int, list[int]] = {}
        self._steps = 0
        self._exchange: Exchange | None = None
        self._server: _Parameters | None = None
        super().__init__(
            optimizer,
            communication,
            **common,
        )
        if self.prepares:
            raise UserError(
                f"{type(self).__name__}: {type(optimizer).__name__} takes its gradient elsewhere than at the "
                "parameters, which a server that others change in between cannot follow; use another one"
            )
        self._private = threaded(communication)

    @property
    def workers(self) -> list[int]:
        """The ranks that train."""
        ranks = range(self.communication.size)
        return [rank for rank in ranks if not (self.dedicated and rank == self.communication.root)]

    @property
    def step_count(self) -> int:  # type: ignore[override]
        """Steps of this rank that are completed."""
        return self._steps

    @step_count.setter
    def step_count(self, value: int) -> None:
        self._steps = value

    def before_pass(self, originals: dict[str, Array]) -> None:
        if self.dedicated and self.communication.is_root:
            raise UserError(
                f"{type(self).__name__}: rank {self.communication.root} is a dedicated server and has no "
                "steps; it calls finish(), which serves until all workers have finished"
            )
        self._start()
        if not self.communication.is_root:
            self.base.step_count = self._steps
            self.base.begin_step()

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        if samples:
            assert self._exchange is not None
            (version, *_), parameters = self._exchange.ask((self.version,), self.gradients(samples))
            self.assign_all(parameters)
            self.version = int(version)
        self._steps += 1

    def skip_step(self) -> None:
        self._steps += 1

    def model_parameters(self) -> dict[str, Array]:
        """The server's parameters as they are now (collective)."""
        mine = self.parameters()
        if self._server is not None and self._exchange is not None:
            with self._exchange.changed:
                mine = dict(self._server.parameters)
        return self.copies(self.communication.sync_all_with_root_many(mine))

    def finish(self) -> None:
        """Leave the server, and take its last parameters when all ranks have left (collective)."""
        self._start()
        assert self._exchange is not None
        self._exchange.leave()
        super().finish()
        self._exchange, self._server, self.version = None, None, 0

    def rows(self, **what: Any) -> list[Row]:
        """At the root one row for each rank: all its gradients' staleness, the value being the median."""
        rows = []
        for rank, values in sorted(self.staleness.items()):
            fields = {"level": 3, "phase": "update", "ranks": self.communication.size, **what}
            rows.append(
                Row(
                    **fields,
                    quantity="staleness",
                    unit="1",
                    samples=tuple(map(float, values)),
                    repeats=len(values),
                    value=float(np.median(values)),
                    note=f"gradients of rank {rank}",
                )
            )
        return rows

    def histogram(self) -> dict[int, int]:
        """At the root, how many gradients had which staleness."""
        values, counts = np.unique([s for each in self.staleness.values() for s in each], return_counts=True)
        return {int(value): int(count) for value, count in zip(values, counts, strict=True)}

    def collect_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        if self._server is None or self._exchange is None:
            return super().collect_state()
        # The server's thread changes state in place.
        with self._exchange.changed:
            arrays, scalars = super().collect_state()
            return {name: self.copies(slots) for name, slots in arrays.items()}, scalars

    def scheme_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        return {}, {"updates": float(self.base.step_count)}

    def restore_scheme_state(self, arrays: dict[str, dict[str, Array]], scalars: dict[str, float]) -> None:
        self.base.step_count = int(scalars.get("updates", 0.0))

    def _start(self) -> None:
        """Open the door, with the root's parameters as they are then (after resuming, too)."""
        if self._exchange is None:
            parameters = self.parameters()
            if self.communication.is_root:
                self._server = _Parameters(self.base, self.copies(parameters), self.staleness)
            self._exchange = Exchange(self._private, self._server, parameters)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "dedicated": self.dedicated}


class _Parameters(Service):
    """The server's side: parameters, their version, and the base optimizer that updates them."""

    def __init__(
        self, base: ThreeStepOptimizer, parameters: dict[str, Array], staleness: dict[int, list[int]]
    ) -> None:
        self.base, self.parameters, self.staleness = base, parameters, staleness
        self.version = 0

    def handle(self, rank: int, numbers: Sequence[float], tensors: Mapping[str, Array]) -> None:
        with self.base.network.computing():
            self.parameters = self.base.apply(self.parameters, tensors)
        self.staleness.setdefault(rank, []).append(self.version - int(numbers[0]))
        self.version += 1

    def answer(self, rank: int) -> Message:
        return (float(self.version),), self.parameters
