"""Gradients reduced while backward still computes the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meta500.distributed.communication import BUCKET_BYTES, CommunicationNetwork
from meta500.distributed.pending import PendingMany
from meta500.errors import UserError

Array = Any


class EarlyReduction:
    """The weighted mean of gradients over ranks, begun bucket by bucket in a pass.

    Backward makes gradients roughly in the reverse order of the parameters. So the buckets follow that order,
    and each is begun when its gradients are there and all buckets before it are begun: the same order on all
    ranks, whatever the order of gradients. This is how PyTorch's DistributedDataParallel does it (Li et al.,
    VLDB 2020, section 3.2.3).

    Args:
        communication: without compression.
        network: has ``on_gradient``.

    Raises:
        UserError: the network does not tell when gradients are complete.
    """

    def __init__(self, communication: CommunicationNetwork, network: Any) -> None:
        if not hasattr(network, "on_gradient"):
            raise UserError(
                f"overlap=True needs a network that tells when a gradient is complete; the {network.backend} "
                "backend does not: leave it out, or use the torch backend in eager mode"
            )
        self._communication = communication
        self._buckets: list[list[str]] = []
        size = BUCKET_BYTES
        for name in reversed(network.get_params()):
            if size >= BUCKET_BYTES:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append(name)
            size += network.native(name).nbytes
        self._weight: float | None = None
        self._ready: dict[str, Array] = {}
        self._begun: list[PendingMany] = []
        network.on_gradient(self._complete)

    def begin(self, weight: float) -> None:
        """A step begins, in which this rank has ``weight``."""
        self._weight, self._ready, self._begun = weight, {}, []

    def abandon(self, like: Mapping[str, Array]) -> None:
        """The pass failed: take part in what the others begin, without anything to add.

        Nobody waits here; the operations end when all ranks have begun them.
        """
        self._weight = 0.0
        self._ready |= {name: value for name, value in like.items() if name not in self._ready}
        self._advance()
        self._weight = None

    def end(self, gradients: Mapping[str, Array]) -> dict[str, Array]:
        """The averages, when the pass is over; ``gradients`` has those that were not told."""
        self._ready |= {name: value for name, value in gradients.items() if name not in self._ready}
        self._advance()
        self._weight = None
        results: dict[str, Array] = {}
        for pending in self._begun:
            results |= pending.wait()
        return {name: results[name] for name in gradients}

    def _complete(self, name: str, gradient: Array) -> None:
        if self._weight is None:
            return
        self._ready[name] = gradient
        self._advance()

    def _advance(self) -> None:
        assert self._weight is not None
        while len(self._begun) < len(self._buckets):
            names = self._buckets[len(self._begun)]
            if any(name not in self._ready for name in names):
                break
            tensors = {name: self._ready[name] for name in names}
            self._begun.append(
                self._communication.sync_all_many_start(tensors, weight=self._weight, in_place=True)
            )
        # MPI moves data only while it is called.
        for pending in self._begun:
            pending.test()
