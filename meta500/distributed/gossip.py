"""InconsistentDecentralized: every rank at its own pace, averaging with one neighbour at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from meta500.distributed import topology as graphs
from meta500.distributed.buckets import Joined
from meta500.distributed.communication import CommunicationNetwork
from meta500.distributed.optimizer import Common, DistributedOptimizer
from meta500.distributed.pending import LONGEST_SLEEP, SHORTEST_SLEEP
from meta500.distributed.server import threaded
from meta500.metrics.rows import Row
from meta500.optimizers.optimizer import ThreeStepOptimizer

Array = Any
_OFFER, _DIFFERENCE, _END = 1, 2, 3


class InconsistentDecentralized(DistributedOptimizer):
    """Asynchronous decentralised training: AD-PSGD (Lian et al., ICML 2018, arXiv:1710.06952, algorithm 1)::

        rank i:  x̂ = x_i;  offer x̂ to a random neighbour j;  g = g_i(x̂);
                 x_i ← x_i − d + (U(x̂, g) − x̂)
        rank j, whatever it is doing:  d = (x̂ − x_j) / 2;  x_j ← x_j + d;  reply d

    For gradient descent U(x̂, g) − x̂ = −γ g. Without steps in between, both ranks have (x_i + x_j) / 2
    afterwards, AD-PSGD's pairwise average; whatever comes in between, the mean over all ranks is moved by
    steps alone and never by averaging, because what one side adds the other subtracts. A thread of rank j
    answers offers while its worker computes, and the average travels while rank i computes its gradient, so
    that nobody waits for another one's pass.

    The gradient is taken at x̂ and added to what x_i has become since; `staleness` counts the averages that
    came in between. ``finish`` gives all ranks the mean. Not deterministic beyond one rank.

    Args:
        topology: neighbours, from which one is drawn each step with equal probabilities: "complete"
            (default), "ring", "path", "star", "random", or a weight matrix, of which only the zeros count.
        seed: of the draws and of the topology "random".

    Attributes:
        staleness: for each step of this rank, averages by others between reading and updating x_i.
        offers: averages that this rank began; ``answers``: averages that it answered.
    """

    synchronous = False
    consistent = False

    def __init__(
        self,
        optimizer: ThreeStepOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        topology: Any = "complete",
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        communication = CommunicationNetwork() if communication is None else communication
        self.matrix = graphs.weights_for(topology, communication.size, seed)
        self.neighbors = graphs.neighbors(self.matrix, communication.rank)
        self.staleness: list[int] = []
        self.offers = self.answers = 0
        self._random = np.random.default_rng([seed, communication.rank])
        self._responder: _Responder | None = None
        self._partner: int | None = None
        super().__init__(
            optimizer,
            communication,
            **common,
        )
        self._private = threaded(communication)

    def before_pass(self, originals: dict[str, Array]) -> None:
        self._start()
        assert self._responder is not None
        # After a pass that failed: what the neighbour has added has to be subtracted all the same.
        self._responder.update(None, self._difference())
        self._read, self._answers_before = self._responder.read()
        self.assign_all(self._read)
        self._partner = int(self._random.choice(self.neighbors)) if self.neighbors else None
        if self._partner is not None:
            # Sent before the pass, so that the neighbour's answer is there after it.
            self._offer = self._responder.offer(self._read, self._partner)
        super().before_pass(originals)

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        responder = self._responder
        assert responder is not None
        changes = None
        if samples:
            self.update(self.gradients(samples))
            changes = {name: self.network.native(name) - old for name, old in self._read.items()}
        else:
            self.skip_step()
        answered = responder.update(changes, self._difference())
        self.answers = answered
        self.staleness.append(answered - self._answers_before)
        self.assign_all(responder.read()[0])

    def _difference(self) -> dict[str, Array] | None:
        """This rank's side of the average that it has offered, None if there is none."""
        if self._partner is None:
            return None
        assert self._responder is not None
        difference = self._responder.difference(self._partner)
        self._offer.wait()
        self._partner = None
        self.offers += 1
        return difference

    def model_parameters(self) -> dict[str, Array]:
        """The mean over ranks (collective)."""
        mine = self.parameters() if self._responder is None else self._responder.read()[0]
        if self.communication.size == 1:
            return self.copies(mine)
        return self.average_exactly(mine, None)

    def finish(self) -> None:
        """Answer the others until all have finished, then take the mean over ranks (collective)."""
        self._start()
        assert self._responder is not None
        self._responder.update(None, self._difference())
        self.answers = self._responder.finish()
        super().finish()
        self._responder = None

    def rows(self, **what: Any) -> list[Row]:
        """One row of this rank: its steps' staleness, the value being the median."""
        fields = {"level": 3, "phase": "update", "ranks": self.communication.size, **what}
        row = Row(
            **fields,
            quantity="staleness",
            unit="1",
            samples=tuple(map(float, self.staleness)),
            repeats=len(self.staleness),
            value=float(np.median(self.staleness)) if self.staleness else 0.0,
            note=f"rank {self.communication.rank}",
        )
        return [row]

    def _start(self) -> None:
        if self._responder is None:
            self._responder = _Responder(self._private, self.copies(self.parameters()), self.answers)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "the topology": (self.matrix != 0).tolist()}


class _Responder:
    """The parameters of a rank, which its worker and the neighbours change, and the thread for the latter.

    Arrays are never changed in place: who has read them keeps what was there then.
    """

    def __init__(self, network: CommunicationNetwork, parameters: dict[str, Array], answers: int) -> None:
        self._network, self._parameters = network, parameters
        self._joined = Joined.of(parameters)
        self._data = np.broadcast_to(np.uint8(0), (self._joined.nbytes,))
        self._lock = threading.Lock()
        self._answers = answers
        self._failure: BaseException | None = None
        self._others = set(range(network.size)) - {network.rank}
        self._thread: threading.Thread | None = None
        if self._others:
            self._thread = threading.Thread(target=self._serve, name="meta500-responder", daemon=True)
            self._thread.start()

    def read(self) -> tuple[dict[str, Array], int]:
        """The parameters as they are, and how many averages have been answered so far."""
        with self._lock:
            return dict(self._parameters), self._answers

    def update(self, changes: Mapping[str, Array] | None, difference: Mapping[str, Array] | None) -> int:
        """Add this rank's change, and its side of an average; returns the averages answered before."""
        with self._lock:
            if difference is not None:
                self._parameters = {n: value - difference[n] for n, value in self._parameters.items()}
            if changes is not None:
                self._parameters = {n: value + changes[n] for n, value in self._parameters.items()}
            return self._answers

    def offer(self, parameters: Mapping[str, Array], rank: int) -> Any:
        """Begin an average with ``rank``; the pending send."""
        self._check()
        return self._network.send_to_rank_start(self._joined.pack(parameters), rank, _OFFER)

    def difference(self, rank: int) -> dict[str, Array]:
        """What ``rank`` has added to its parameters after the last offer."""
        data = self._network.wait_for_rank(self._data, rank, _DIFFERENCE)
        return self._joined.unpack(data, self._parameters)

    def finish(self) -> int:
        """Answer until no rank can come any more; returns the averages answered."""
        # To all: those that have ended already answer this rank no more, but wait for its end.
        for rank in range(self._network.size):
            if rank != self._network.rank:
                self._network.send_to_rank(np.zeros(1, np.uint8), rank, _END)
        if self._thread is not None:
            self._thread.join()
        self._check()
        return self._answers

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _serve(self) -> None:
        try:
            sleep = SHORTEST_SLEEP
            while self._others:
                if self._answer() or self._ended():
                    sleep = SHORTEST_SLEEP
                else:
                    time.sleep(sleep)
                    sleep = min(2 * sleep, LONGEST_SLEEP)
        except BaseException as error:
            # Raised by the worker at its next step.
            self._failure = error

    def _answer(self) -> bool:
        network = self._network
        if network.probe(tag=_OFFER) is None:
            return False
        data, rank, _ = network.wait_for_any_rank(self._data, _OFFER)
        with self._lock:
            offered = self._joined.unpack(data, self._parameters)
            difference = {n: (offered[n] - value) * 0.5 for n, value in self._parameters.items()}
            self._parameters = {n: value + difference[n] for n, value in self._parameters.items()}
            self._answers += 1
        network.send_to_rank(self._joined.pack(difference), rank, _DIFFERENCE)
        return True

    def _ended(self) -> bool:
        found = self._network.probe(tag=_END)
        if found is None:
            return False
        self._network.wait_for_rank(np.zeros(1, np.uint8), found[0], _END)
        self._others.discard(found[0])
        return True
