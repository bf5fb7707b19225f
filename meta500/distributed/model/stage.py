"""Ranks that take turns at measuring, and what other programs do to the cores meanwhile."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meta500.distributed.mpi import mpi
from meta500.metrics.contention import busy_seconds, cores_here

# Ranks that have nothing to do ask this often whether it goes on, and sleep in between.
SLEEP = 1e-3
# A measurement during which other programs use more than this share of the cores is repeated.
QUIET = 0.04
ATTEMPTS = 5


def least_disturbed(samples: Sequence[Any], shares: Sequence[float]) -> list[Any]:
    """The samples during which other programs were quiet; where those are few, the third disturbed least.

    What is kept depends on what other programs did, not on the samples themselves.

    Args:
        samples: in order of measuring.
        shares: of the cores that other programs used, sample by sample.
    """
    enough = min(len(samples), max(3, len(samples) // 3))
    limit = max(QUIET, sorted(shares)[enough - 1]) if samples else QUIET
    return [sample for sample, share in zip(samples, shares, strict=True) if share <= limit]


class Stage:
    """All ranks of a communicator, of which some act at a time while the others sleep.

    Args:
        comm: an mpi4py communicator.
        patience: seconds that repetitions of disturbed measurements may take altogether.

    Attributes:
        comm: all ranks; rank, size: this one and their number.
        nodes: for every rank the number of its node.
        cores: that this process may use.
        disturbance: for every measurement, the share of the cores that other programs used.
    """

    def __init__(self, comm: Any, patience: float = 0.0) -> None:
        MPI = mpi()
        self.comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        node = comm.Split_type(MPI.COMM_TYPE_SHARED, self.rank)
        leader = node.bcast(self.rank, 0)
        node.Free()
        leaders = comm.allgather(leader)
        self.nodes = [sorted(set(leaders)).index(one) for one in leaders]
        self.disturbance: list[float] = []
        self.cores = cores_here()
        self._patience = patience
        self._groups: dict[tuple[int, ...], Any] = {}

    def group(self, ranks: Sequence[int]) -> Any:
        """A communicator of these ranks (None on others); collective over all."""
        key = tuple(ranks)
        if key not in self._groups:
            inside = self.rank in key
            made = self.comm.Split(0 if inside else mpi().UNDEFINED, key.index(self.rank) if inside else 0)
            self._groups[key] = made if inside else None
        return self._groups[key]

    def act(self, ranks: Sequence[int], action: Callable[[Any], Any]) -> Any:
        """Run ``action(group)`` on these ranks; all others sleep until it is over. Collective.

        While other programs disturb it, it is run again, and the least disturbed run counts.

        Returns:
            What the action returned, None on ranks that slept.
        """
        group = self.group(ranks)
        best, least = None, float("inf")
        for _ in range(ATTEMPTS):
            self.rest()
            begin, busy, own = time.perf_counter(), busy_seconds(self.cores), time.process_time()
            result = None
            if group is not None:
                group.Barrier()
                result = action(group)
            self.rest()
            wall = time.perf_counter() - begin
            others = self._foreign(busy, own, wall)
            if others < least:
                best, least = result, others
            if others <= QUIET or self._patience <= 0:
                break
            self._patience -= wall
        self.disturbance.append(least)
        return best

    def rest(self) -> None:
        """A barrier whose waiting ranks sleep."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(SLEEP)

    def _foreign(self, busy: float, own: float, wall: float) -> float:
        """Share of the cores of rank 0's node that went to other programs; the same number on all ranks."""
        here = self.nodes[self.rank] == self.nodes[0]
        mine = self.comm.reduce(time.process_time() - own if here else 0.0, root=0)
        share = 0.0
        if self.rank == 0:
            share = max(0.0, busy_seconds(self.cores) - busy - mine) / (len(self.cores) * wall)
        # The remaining patience counts alike on all ranks.
        share, self._patience = self.comm.bcast((share, self._patience), 0)
        return float(share)


@contextlib.contextmanager
def on_core(index: int | None) -> Iterator[None]:
    """Bind this thread to the ``index``-th of its cores; None, or a system that cannot: not at all."""
    if index is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    cores = sorted(allowed)
    os.sched_setaffinity(0, {cores[index % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
