"""StaleSynchronous: workers may run ahead of the slowest, but not by more than a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from meta500.distributed.communication import CommunicationNetwork
from meta500.distributed.optimizer import Common, DistributedOptimizer
from meta500.distributed.server import Exchange, Message, Service, threaded
from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.optimizers.optimizer import ThreeStepOptimizer

Array = Any


class StaleSynchronous(DistributedOptimizer):
    """Stale synchronous parallel training (Ho et al., NIPS 2013, "More effective distributed ML via a stale
    synchronous parallel parameter server")::

        rank r at clock c:   δ_{r,c} = U_r(x̃, g_r(x̃)) − x̃          x̃: what r sees at clock c
        x̃ = x_0 + Σ_q Σ_{c' < c − s} w_{q,c'} δ_{q,c'}  +  those of clocks c − s ... c + s − 1 that are there

    Each rank has its own clock, the number of its steps, and sends the change that its base rule makes to a
    server at the root, which adds changes up. It may begin clock c when all others have completed clock
    c − s − 1: nobody is more than ``bound`` = s steps ahead of the slowest, which is measured (`leads`). The
    rank's own changes are always among those it sees.

    Once all changes of a clock are there, they are weighted with the ranks' samples, w_{q,c} = n_q / Σ n,
    before that with 1 / N. With s = 0 the ranks step together: the mean of changes is added, which for
    gradient descent is the step of `ConsistentDecentralized`. Then the result is deterministic: complete
    clocks are added up in the order of clocks and ranks. The state of the base rule (momenta) stays on its
    rank.

    Args:
        bound: s, steps that a rank may be ahead of the slowest.

    Attributes:
        leads: at the root, by how many steps each rank was ahead of the slowest at the beginning of its
            steps, by rank.
    """

    synchronous = False
    consistent = False

    def __init__(
        self,
        optimizer: ThreeStepOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        bound: int = 1,
        **common: Unpack[Common],
    ) -> None:
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 0:
            raise UserError(
                f"{type(self).__name__}: bound must be a whole number of at least 0, got {bound!r}"
            )
        self.bound = bound
        self.leads: dict[int, list[int]] = {}
        self._exchange: Exchange | None = None
        self._sums: _Sums | None = None
        super().__init__(
            optimizer,
            communication,
            **common,
        )
        self._private = threaded(self.communication)

    def before_pass(self, originals: dict[str, Array]) -> None:
        self._start()
        super().before_pass(originals)

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        assert self._exchange is not None
        before = {**self.copies(self.parameters()), **originals}
        if samples:
            self.update(self.gradients(samples))
            changes = {name: self.network.native(name) - old for name, old in before.items()}
        else:
            self.skip_step()
            changes = {name: self.xp.zeros_like(old) for name, old in before.items()}
        _, view = self._exchange.ask((float(samples),), changes)
        self.assign_all(view)

    def model_parameters(self) -> dict[str, Array]:
        """The sum of all changes so far (collective)."""
        mine = self.parameters()
        if self._sums is not None and self._exchange is not None:
            with self._exchange.changed:
                mine = self._sums.everything()
        return self.copies(self.communication.sync_all_with_root_many(mine))

    def finish(self) -> None:
        """Leave the server; others do not wait for this rank any more (collective)."""
        self._start()
        assert self._exchange is not None
        self._exchange.leave()
        super().finish()
        self._exchange, self._sums = None, None

    def rows(self, **what: Any) -> list[Row]:
        """At the root one row for each rank: its leads at the beginning of steps, the value the largest."""
        fields = {"level": 3, "phase": "training_step", "ranks": self.communication.size, **what}
        return [
            Row(
                **fields,
                quantity="lead",
                unit="1",
                samples=tuple(map(float, values)),
                repeats=len(values),
                value=float(max(values)),
                note=f"steps of rank {rank}",
            )
            for rank, values in sorted(self.leads.items())
        ]

    def _start(self) -> None:
        if self._exchange is None:
            parameters = self.parameters()
            if self.communication.is_root:
                size = self.communication.size
                self._sums = _Sums(self.copies(parameters), size, self.bound, self.leads)
            self._exchange = Exchange(self._private, self._sums, parameters)

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "bound": self.bound}


class _Sums(Service):
    """The server's side: one sum of what is complete, and the changes of clocks that are not.

    Attributes:
        total: x_0 and all changes of the clocks below ``complete``.
        pending: clock -> rank -> (samples, changes) of the other clocks.
        clocks: the steps that each rank has completed; those that have left are not in it.
    """

    def __init__(self, start: dict[str, Array], ranks: int, bound: int, leads: dict[int, list[int]]) -> None:
        self.total, self.ranks, self.bound, self.leads = start, ranks, bound, leads
        self.complete = 0
        self.pending: dict[int, dict[int, tuple[float, dict[str, Array]]]] = {}
        self.clocks = dict.fromkeys(range(ranks), 0)
        # Every rank begins its first step at clock 0 without asking.
        for rank in range(ranks):
            self.leads.setdefault(rank, []).append(0)

    def handle(self, rank: int, numbers: Sequence[float], tensors: Mapping[str, Array]) -> None:
        clock = self.clocks[rank]
        self.pending.setdefault(clock, {})[rank] = (numbers[0], dict(tensors))
        self.clocks[rank] = clock + 1
        self._complete()

    def answer(self, rank: int) -> Message | None:
        clock = self.clocks[rank]
        slowest = min(self.clocks.values())
        if slowest < clock - self.bound:
            return None
        self.leads[rank].append(clock - slowest)
        return (float(clock),), self._seen(clock + self.bound - 1)

    def leave(self, rank: int) -> None:
        del self.clocks[rank]
        self._complete()

    def everything(self) -> dict[str, Array]:
        """The sum of all changes that have come."""
        return self._seen(max(self.pending, default=0))

    def _complete(self) -> None:
        """Add up the clocks that all ranks have passed, weighted with samples."""
        passed = min(self.clocks.values(), default=max(self.pending, default=-1) + 1)
        while self.complete < passed:
            entries = self.pending.pop(self.complete, {})
            samples = sum(count for count, _ in entries.values())
            for _, (count, changes) in sorted(entries.items(), key=lambda entry: entry[0]):
                if count:
                    self.total = _added(self.total, changes, float(count / samples))
            self.complete += 1

    def _seen(self, last: int) -> dict[str, Array]:
        """The parameters with all changes that are there of clocks up to ``last``."""
        found = self.total
        for clock in sorted(clock for clock in self.pending if clock <= last):
            for _, (_, changes) in sorted(self.pending[clock].items(), key=lambda entry: entry[0]):
                found = _added(found, changes, 1.0 / self.ranks)
        return found


def _added(total: Mapping[str, Array], changes: Mapping[str, Array], factor: float) -> dict[str, Array]:
    return {name: value + changes[name] * factor for name, value in total.items()}
