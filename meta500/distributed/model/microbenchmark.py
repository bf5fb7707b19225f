"""Measures the parameters of the model on the actual network; runs under ``mpiexec`` on all ranks.

- messages of one rank and exchanges of two, by size: between two ranks of a node on cores of their own,
between
  two ranks on one core, and between nodes where there are several;
- combining (MPI's own local reduction) and copying, per byte;
- what the interface `CommunicationNetwork` adds per operation and per tensor;
- collectives on the first p ranks, for the rank counts wanted.

While some ranks measure the others sleep: they ask every millisecond whether it goes on, and leave the cores
    alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from meta500.distributed.model.stage import Stage, least_disturbed, on_core
from meta500.distributed.mpi import mpi

SIZES = tuple(4 * 4**k for k in range(12))
COLLECTIVE_SIZES = (8, 1024, 16_384, 262_144, 1_048_576, 4_194_304, 16_777_216)
OPERATIONS = ("allreduce", "broadcast", "reduce")
ROUNDS = 5
# Repetitions of one size: as many as take about this long, between the limits.
SECONDS_PER_SIZE, FEWEST, MOST = 0.004, 3, 200
LOCAL_BYTES = 4 * 2**20


@dataclass
class Measurements:
    """Seconds by what was measured, one entry per round that counts (see `least_disturbed`).

    Attributes:
        messages: by ("inside" | "between" | "shared", "one_way" | "exchange", bytes).
        collectives: by (operation, ranks, bytes).
        local: by name: "gamma", "copy" (seconds per byte), "call", "tensor" (seconds).
    """

    messages: dict[tuple[str, str, int], list[float]] = field(default_factory=dict)
    collectives: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)
    local: dict[str, list[float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Lists of [*key, samples]."""
        return {
            "messages": [[*key, samples] for key, samples in self.messages.items()],
            "collectives": [[*key, samples] for key, samples in self.collectives.items()],
            "local": self.local,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Measurements:
        """The counterpart of `to_dict`."""
        return cls(
            {(a, b, int(n)): list(t) for a, b, n, t in values["messages"]},
            {(a, int(p), int(n)): list(t) for a, p, n, t in values["collectives"]},
            {name: list(t) for name, t in values["local"].items()},
        )


def measure(
    stage: Stage,
    counts: Sequence[int],
    *,
    sizes: Sequence[int] = SIZES,
    collective_sizes: Sequence[int] = COLLECTIVE_SIZES,
    rounds: int = ROUNDS,
) -> Measurements:
    """All measurements; collective over the stage. The result is complete on rank 0.

    Args:
        stage: all ranks.
        counts: rank counts of the collectives.
        sizes: of messages, bytes, multiples of 4.
        collective_sizes: of collectives, bytes, multiples of 4.
        rounds: repetitions of the whole, so that a drift of the machine meets all alike.
    """
    found = Measurements()
    shares: dict[tuple[Any, ...], list[float]] = {}
    for _ in range(rounds):
        for place, (pair, cores) in _places(stage).items():
            core = cores[pair.index(stage.rank)] if cores and stage.rank in pair else None
            with on_core(core):
                messages = stage.act(pair, partial(_messages, sizes=sizes))
            shares.setdefault((place,), []).append(stage.disturbance[-1])
            for (kind, nbytes), seconds in (messages or {}).items():
                found.messages.setdefault((place, kind, nbytes), []).append(seconds)
        for count in counts:
            if count < 2:
                continue
            several = stage.act(range(count), partial(_collectives, sizes=collective_sizes))
            shares.setdefault((count,), []).append(stage.disturbance[-1])
            for (operation, nbytes), seconds in (several or {}).items():
                found.collectives.setdefault((operation, count, nbytes), []).append(seconds)
        local = stage.act([0], _local)
        shares.setdefault((), []).append(stage.disturbance[-1])
        for name, seconds in (local or {}).items():
            found.local.setdefault(name, []).append(seconds)
    return Measurements(
        {key: least_disturbed(t, shares[key[:1]]) for key, t in found.messages.items()},
        {key: least_disturbed(t, shares[key[1:2]]) for key, t in found.collectives.items()},
        {name: least_disturbed(t, shares[()]) for name, t in found.local.items()},
    )


def _places(stage: Stage) -> dict[str, tuple[list[int], tuple[int, int] | None]]:
    """The pairs of ranks between which messages are measured, and the cores that they are bound to."""
    mates = [r for r in range(1, stage.size) if stage.nodes[r] == stage.nodes[0]]
    strangers = [r for r in range(1, stage.size) if stage.nodes[r] != stage.nodes[0]]
    places: dict[str, tuple[list[int], tuple[int, int] | None]] = {}
    if mates:
        if len(stage.cores) > 1:
            places["inside"] = ([0, mates[0]], (0, 1))
        places["shared"] = ([0, mates[0]], (0, 0))
    if strangers:
        places["between"] = ([0, strangers[0]], None)
    return places


def _repeats(once: float) -> int:
    return int(min(MOST, max(FEWEST, SECONDS_PER_SIZE / max(once, 1e-9))))


def _timed(group: Any, action: Callable[[], object]) -> float:
    """Median seconds of an action that all ranks of the group run together, the slowest rank's."""
    MPI = mpi()
    samples: list[float] = []
    repeats = 1
    for attempt in range(2):
        samples = []
        for _ in range(repeats):
            begin = time.perf_counter()
            action()
            samples.append(time.perf_counter() - begin)
        if attempt == 0:
            action()
            repeats = group.allreduce(_repeats(min(samples)), MPI.MIN)
    return float(group.allreduce(float(np.median(samples)), MPI.MAX))


def _buffers(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    count = max(1, nbytes // 4)
    return np.ones(count, np.float32), np.ones(count, np.float32)


def _messages(group: Any, sizes: Sequence[int]) -> dict[tuple[str, int], float]:
    """Seconds by kind and size, between the two ranks of the group."""
    kinds = {"one_way": _ping_pong, "exchange": _exchange}
    return {(kind, n): action(group, n) for n in sizes for kind, action in kinds.items()}


def _collectives(group: Any, sizes: Sequence[int]) -> dict[tuple[str, int], float]:
    """Seconds by operation and size, on all ranks of the group."""
    return {(operation, n): _collective(group, operation, n) for n in sizes for operation in OPERATIONS}


def _ping_pong(group: Any, nbytes: int) -> float:
    send, receive = _buffers(nbytes)

    def action() -> None:
        if group.rank == 0:
            group.Send(send, 1)
            group.Recv(receive, 1)
        else:
            group.Recv(receive, 0)
            group.Send(send, 0)

    return _timed(group, action) / 2


def _exchange(group: Any, nbytes: int) -> float:
    send, receive = _buffers(nbytes)
    other = 1 - group.rank
    return _timed(group, lambda: group.Sendrecv(send, other, 0, receive, other, 0))


def _collective(group: Any, operation: str, nbytes: int) -> float:
    send, receive = _buffers(nbytes)
    if operation == "allreduce":
        return _timed(group, lambda: group.Allreduce(send, receive))
    if operation == "broadcast":
        # A broadcast's root runs ahead of the others; an allreduce of one number waits for them.
        return _timed(group, lambda: _answered(group, lambda: group.Bcast(send, 0)))
    return _timed(group, lambda: _answered(group, lambda: group.Reduce(send, receive, root=0)))


def _answered(group: Any, action: Callable[[], object]) -> None:
    """An operation and an allreduce of one number, after which all ranks have ended it."""
    action()
    token = np.ones(1)
    group.Allreduce(mpi().IN_PLACE, token)


def _local(group: Any) -> dict[str, float]:
    """Combining, copying, and the interface's own time, on this rank alone."""
    from meta500.distributed.communication import CommunicationNetwork

    MPI = mpi()
    a, b = _buffers(LOCAL_BYTES)
    network = CommunicationNetwork(group)
    tiny, half = np.ones(1, np.float32), np.float32(0.5)
    few = {f"t{i}": tiny.copy() for i in range(4)}
    many = {f"t{i}": tiny.copy() for i in range(104)}
    one = _timed(group, lambda: network.sync_all_many(few, in_place=True))
    all_of_them = _timed(group, lambda: network.sync_all_many(many, in_place=True))
    return {
        "gamma": _timed(group, lambda: MPI.SUM.Reduce_local(a, b)) / a.nbytes,
        "copy": _timed(group, lambda: np.multiply(a, half, out=b)) / a.nbytes,
        "call": max(0.0, one),
        "tensor": max(0.0, (all_of_them - one) / 100),
    }
