"""What one step of each distributed optimizer exchanges, and what that costs on a machine.

V bytes of parameters, M of them to a message, P ranks:

============================  ==========================================================================
consistent-decentralized      an allreduce of the gradients, tensor by tensor or in buckets
ddp                           the same, begun during the backward pass, in a ring over sockets
consistent-parameter-server   a reduce of the gradients to the root, the update there, a broadcast
consistent-neighbors          V to and from each of d neighbours, and their weighted sum
model-average                 an allreduce of the parameters every k steps
inconsistent-parameter-server V to the root and V back whenever a worker is ready; the root serves one by one
stale-synchronous             the same, as long as nobody is more than s steps ahead; s = 0 waits for all
inconsistent-decentralized    V to and from one rank, without waiting for it
============================  ==========================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from meta500.distributed.buckets import LARGE_BYTES, plan
from meta500.distributed.communication import BUCKET_BYTES
from meta500.distributed.model import collectives, queueing
from meta500.distributed.model.machine import Machine
from meta500.errors import UserError, choose

Signature = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True)
class Tensors:
    """Names, shapes and element types of what a network exchanges.

    Attributes:
        parameters: trainable tensors; their gradients are alike.
        statistics: tensors that training changes without a gradient (batch normalisation).
    """

    parameters: Signature
    statistics: Signature = ()

    @property
    def nbytes(self) -> int:
        """V: bytes of all parameters."""
        return _bytes(self.parameters)

    def messages(self, *, weighted: bool, statistics: bool = True) -> list[int]:
        """Bytes of the messages in which `CommunicationNetwork.sync_all_many` sends them."""
        entries = [*self.parameters, *(self.statistics if statistics else ())]
        layout = plan([(n, s, np.dtype(d)) for n, s, d in entries], BUCKET_BYTES, weighted)
        sizes = {name: _bytes([(name, shape, dtype)]) for name, shape, dtype in entries}
        joined = [bucket.count * bucket.dtype.itemsize for bucket in layout.buckets]
        return joined + [sizes[name] for name in layout.alone]


@dataclass(frozen=True)
class Setting:
    """Where and with what a scheme runs.

    Attributes:
        machine, tensors: see there.
        ranks, threads: P, and threads of each.
        passing, updating: seconds of forward and backward pass, and of the update rule, on every rank here.
        options: of the scheme: "every" (model-average), "bound" (stale-synchronous), "topology"
            (consistent-neighbors).
    """

    machine: Machine
    tensors: Tensors
    ranks: int
    threads: int
    passing: float
    updating: float
    options: Mapping[str, Any]

    def collective(self, operation: str, sizes: Iterable[int]) -> float:
        """Seconds of a collective operation on tensors of these bytes, one after the other."""
        return sum(self.machine.collective(operation, self.ranks, n, threads=self.threads) for n in sizes)

    def local(self, passes: float, nbytes: float, tensors: int = 0, calls: int = 1) -> float:
        """Seconds of an operation on this rank's own memory: ``passes`` times over ``nbytes``."""
        machine = self.machine
        once = passes * nbytes * machine.copy + tensors * machine.tensor + calls * machine.call
        return once * machine.sharing(self.ranks, self.threads)

    @property
    def spare_core(self) -> bool:
        """Whether every rank of a full node has a core that its own threads leave alone."""
        node = self.machine.on_node(self.ranks, self.threads)
        return node * (self.threads + 1) <= self.machine.cores

    def turns(self, count: float = 1.0) -> float:
        """Seconds lost by waiting ``count`` times for ranks that share their cores with others."""
        return count * self.machine.turn * (self.machine.sharing(self.ranks, self.threads) - 1)

    def message(self, nbytes: float, *, both: bool = False) -> float:
        """Seconds of one message, or of one each way."""
        return self.machine.message(self.ranks, nbytes, both=both, threads=self.threads)


@dataclass(frozen=True)
class Exchange:
    """What a step costs beside the pass.

    Attributes:
        seconds: from the end of the pass to the end of the step, the update included.
        sent: bytes on the longest chain of messages (of the busiest rank with a server).
        messages: on that chain.
        hidden: seconds of the exchange that run beside the pass and are not in ``seconds``.
    """

    seconds: float
    sent: float
    messages: int
    hidden: float = 0.0


def consistent_decentralized(s: Setting) -> Exchange:
    """Allreduce of all messages, the local passes around it, and the update on every rank."""
    sizes = s.tensors.messages(weighted=True)
    # Scaled by the number of samples before the sum and divided after it.
    seconds = s.collective("allreduce", sizes) + s.local(2, sum(sizes), len(s.tensors.parameters))
    seconds += s.turns()
    return Exchange(seconds + s.updating, *_volume("allreduce", s.ranks, sizes))


def ddp(s: Setting) -> Exchange:
    """A ring allreduce in buckets, begun during the backward pass (two thirds of a pass).

    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020,
    arXiv:2006.15704: all buckets but the last can be on their way before the pass ends.
    """
    sizes = _buckets(s.tensors.nbytes, first=1 << 20, rest=25 << 20)
    rounds = [collectives.allreduce_ring(s.ranks, n) for n in sizes]
    each = [s.machine.seconds(r, s.ranks, s.threads) for r in rounds]
    # Ranks that have no core to spare cannot compute while they communicate.
    hidden = min(sum(each[:-1]), 2 / 3 * s.passing) if s.spare_core else 0.0
    seconds = sum(each) - hidden + s.local(1, s.tensors.nbytes) + s.turns()
    totals = [collectives.totals(r) for r in rounds]
    return Exchange(
        seconds + s.updating, sum(t.sent for t in totals), sum(t.messages for t in totals), hidden
    )


def consistent_parameter_server(s: Setting) -> Exchange:
    """Gradients reduced to the root, large ones alone and the others joined; update; all of it broadcast."""
    small: list[int] = []
    large: list[int] = []
    for entry in s.tensors.parameters:
        nbytes = _bytes([entry])
        (large if nbytes >= LARGE_BYTES else small).append(nbytes)
    reduced = [*large, *([sum(small)] if small else [])]
    everything = [s.tensors.nbytes + _bytes(s.tensors.statistics)]
    seconds = s.collective("allreduce", [8]) + s.collective("reduce", reduced)
    # The root waits for all, and all for the root.
    seconds += s.collective("broadcast", everything) + s.turns(2)
    # Joined and scaled, packed for the broadcast, unpacked.
    seconds += s.local(4, everything[0], 2 * len(s.tensors.parameters), calls=len(reduced) + 1)
    volumes = _volume("reduce", s.ranks, reduced), _volume("broadcast", s.ranks, everything)
    return Exchange(seconds + s.updating, sum(v[0] for v in volumes), sum(v[1] for v in volumes))


def consistent_neighbors(s: Setting) -> Exchange:
    """V to and from every neighbour, a weighted sum of d + 1 tensors, and the difference to the own one."""
    nbytes = s.tensors.nbytes + _bytes(s.tensors.statistics)
    degree = _degree(s.options.get("topology", "ring"), s.ranks)
    seconds = degree * s.message(nbytes, both=True) + s.turns()
    seconds += s.local(1 + 2 * (degree + 1) + 2, nbytes, len(s.tensors.parameters))
    return Exchange(seconds + s.updating, float(degree * nbytes), degree)


def _degree(topology: Any, ranks: int) -> int:
    """Most neighbours of a rank in a graph of `meta500.distributed.topology`.

    Raises:
        UserError: a matrix, which is one for a single number of ranks.
    """
    if not isinstance(topology, str):
        raise UserError("a topology given as a matrix has one number of ranks; name one to predict others")
    # In a random graph every other rank is a neighbour with probability 1/2.
    degrees = {"ring": 2, "path": 2, "complete": ranks - 1, "star": ranks - 1, "random": ranks // 2 + 1}
    return min(degrees[choose("topology", topology, degrees)], ranks - 1)


def model_average(s: Setting) -> Exchange:
    """An allreduce of the parameters every k steps, spread over those steps."""
    every = int(s.options.get("every", 1))
    sizes = s.tensors.messages(weighted=True)
    seconds = s.collective("allreduce", [8, *sizes])
    seconds += s.local(2, sum(sizes), len(s.tensors.parameters), calls=2) + s.turns()
    sent, messages = _volume("allreduce", s.ranks, sizes)
    return Exchange(seconds / every + s.updating, sent / every, math.ceil(messages / every))


def inconsistent_parameter_server(s: Setting) -> Exchange:
    """A line of workers before the root, whose service is to receive, to update and to answer.

    The root's thread needs a core; without a spare one it takes the time of the root's own worker, which all
    ranks together lose (P − 1) / P of a service per step.
    """
    service = serving(s)
    packing = s.local(1, s.tensors.nbytes, len(s.tensors.parameters))
    cycle = queueing.cycle_fixed(s.ranks, s.passing + packing, service)
    if not s.spare_core:
        cycle = max(cycle, s.passing + packing + service * (2 - 1 / s.ranks))
    return Exchange(cycle - s.passing, *_through_root(s))


def stale_synchronous(s: Setting) -> Exchange:
    """As the inconsistent server; with bound 0 all workers wait until the root has served all of them.

    Every rank updates for itself, and the server adds changes up: two passes over V for each that came.
    """
    if int(s.options.get("bound", 1)) > 0:
        return inconsistent_parameter_server(s)
    return Exchange(s.ranks * serving(s), *_through_root(s))


def inconsistent_decentralized(s: Setting) -> Exchange:
    """V to one rank before the pass and its answer after it; the own rank answers one offer per step, too.

    What is sent during the pass takes no time of its own, but the answering thread works for as long as it
    takes, on a spare core or on the worker's.
    """
    nbytes, count = s.tensors.nbytes, len(s.tensors.parameters)
    offering = s.local(4, nbytes, count) + s.machine.wake / 2
    answering = 2 * s.message(nbytes) + s.local(5, nbytes, count) + s.turns()
    hidden = min(answering, s.passing) if s.spare_core else 0.0
    return Exchange(offering + answering - hidden + s.updating, 2.0 * nbytes, 2, hidden)


def serving(s: Setting) -> float:
    """Seconds of the root per gradient that a worker brings."""
    nbytes = s.tensors.nbytes
    working = 2 * s.message(nbytes) + s.updating + s.local(2, nbytes, len(s.tensors.parameters))
    return working + s.machine.wake + s.turns()


def _through_root(s: Setting) -> tuple[float, int]:
    """Bytes and messages of the root while every worker takes a step."""
    return 2.0 * s.tensors.nbytes * (s.ranks - 1), 2 * (s.ranks - 1)


Scheme = Callable[[Setting], Exchange]
SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "consistent-decentralized": consistent_decentralized,
        "consistent-neighbors": consistent_neighbors,
        "consistent-parameter-server": consistent_parameter_server,
        "ddp": ddp,
        "inconsistent-decentralized": inconsistent_decentralized,
        "inconsistent-parameter-server": inconsistent_parameter_server,
        "model-average": model_average,
        "stale-synchronous": stale_synchronous,
    }
)


def asynchronous(scheme: str, options: Mapping[str, Any]) -> bool:
    """Whether every rank steps at its own pace."""
    return scheme.startswith("inconsistent-") or (
        scheme == "stale-synchronous" and int(options.get("bound", 1)) > 0
    )


def exchange(scheme: str, setting: Setting) -> Exchange:
    """What a step of ``scheme`` costs beside the pass; on one rank only the update.

    Raises:
        UserError: an unknown scheme, or no rank.
    """
    function = SCHEMES[choose("scheme", scheme, SCHEMES)]
    if setting.ranks < 1:
        raise UserError(f"scheme '{scheme}' on {setting.ranks} ranks; use at least 1")
    if setting.ranks == 1:
        return Exchange(setting.updating, 0.0, 0)
    return function(setting)


def _volume(operation: str, ranks: int, sizes: Iterable[int]) -> tuple[float, int]:
    """Bytes and messages on the longest chain."""
    each = [collectives.totals(collectives.rounds_of(operation, ranks, n)) for n in sizes]
    return sum(t.sent for t in each), sum(t.messages for t in each)


def _bytes(entries: Iterable[tuple[str, tuple[int, ...], str]]) -> int:
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in entries)


def _buckets(nbytes: int, first: int, rest: int) -> list[float]:
    """Bytes in buckets: the ``first`` one small, the others of ``rest`` bytes, the last what is left."""
    if nbytes <= first:
        return [float(nbytes)]
    count = math.ceil((nbytes - first) / rest)
    return [*[float(rest)] * (count - 1), nbytes - first - float(rest) * (count - 1), float(first)]
