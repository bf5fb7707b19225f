"""ConsistentNeighbors: D-PSGD, parameters averaged with the neighbours in a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from meta500.distributed import topology as graphs
from meta500.distributed.communication import CommunicationNetwork
from meta500.distributed.optimizer import Common, DistributedOptimizer
from meta500.optimizers.optimizer import ThreeStepOptimizer

Array = Any


class ConsistentNeighbors(DistributedOptimizer):
    """D-PSGD (Lian et al., NeurIPS 2017, arXiv:1705.09056, algorithm 1)::

        x_{k+1,i} = Σ_j W_ij x_{k,j} − γ g_i(x_{k,i})

    Rank i takes its gradient at its own parameters and adds the change to the average of its neighbours'
    parameters, not to its own. For any base rule U the change is U(x_{k,i}, g_i) − x_{k,i}, which is −γ g_i
    for gradient descent. The ranks step together, but their parameters differ; their mean moves as by the
    mean of all gradients. Running statistics are averaged with the same weights.

    Args:
        topology: "ring" (default), "complete", "path", "star", "random", or W as a doubly stochastic matrix
            of size ranks x ranks.
        topology_seed: of the topology "random".

    Raises:
        UserError: W is not doubly stochastic or its graph falls apart; see `topology.check`.
    """

    synchronous = True
    consistent = False

    def __init__(
        self,
        optimizer: ThreeStepOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        topology: Any = "ring",
        topology_seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        communication = CommunicationNetwork() if communication is None else communication
        self.matrix = graphs.weights_for(topology, communication.size, topology_seed)
        rank = communication.rank
        # A neighbour that hears from this rank without being heard takes part with weight 0.
        self.weights = {
            other: float(self.matrix[rank, other])
            for other in sorted([rank, *graphs.neighbors(self.matrix, rank)])
        }
        super().__init__(
            optimizer,
            communication,
            **common,
        )

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        towards = self._towards_neighbors(originals)
        if samples:
            self.update(self.gradients(samples))
        else:
            self.assign_all(originals)
            self.skip_step()
        for name, difference in towards.items():
            self.network.assign(name, self.network.native(name) + difference)

    def _towards_neighbors(self, originals: Mapping[str, Array]) -> dict[str, Array]:
        """Σ_j W_ij x_j − x_i for every parameter; running statistics are averaged on the way."""
        if len(self.weights) == 1:
            return {}
        before = {**self.parameters(), **originals}
        averages = self.communication.reduce_from_neighbors_many(
            {**before, **self.running_statistics()}, self.weights
        )
        self.assign_all({name: averages[name] for name in self.statistics})
        # Before the update: networks that keep parameters at one place change these arrays then.
        return {name: averages[name] - old for name, old in before.items()}

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "the weights of neighbours": self.matrix.tolist()}
