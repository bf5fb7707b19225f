"""ModelAverage: local steps, and parameters averaged over all ranks every few of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from meta500.distributed.communication import CommunicationNetwork
from meta500.distributed.optimizer import Common, DistributedOptimizer
from meta500.errors import UserError
from meta500.optimizers.optimizer import ThreeStepOptimizer

Array = Any


class ModelAverage(DistributedOptimizer):
    """Every rank steps for itself; after every ``every`` steps the parameters are averaged::

        x_{t+1,r} = U_r(x_{t,r}, g_r),      every k steps:  x_r ← Σ_q n_q x_q / Σ_q n_q

    n_q being the samples of rank q since the last average. ``every=1`` averages after each step, which for
    gradient descent is the step on the global batch; ``every`` > 1 is local SGD (Stich, ICLR 2019,
    arXiv:1805.09767). The base optimizer's own state (momenta) stays on its rank.

    Args:
        every: steps from one average to the next.
    """

    synchronous = True
    consistent = False

    def __init__(
        self,
        optimizer: ThreeStepOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        every: int = 1,
        **common: Unpack[Common],
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UserError(f"ModelAverage: every must be a whole number of at least 1, got {every!r}")
        self.every = every
        # Replicas are equal after every step exactly if every step ends with an average.
        self.consistent = every == 1
        self._since = 0
        super().__init__(
            optimizer,
            communication,
            **common,
        )

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        if samples:
            self.update(self.gradients(samples))
        else:
            self.assign_all(originals)
            self.skip_step()
        self._since += samples
        if self.step_count % self.every == 0:
            self._average()

    def model_parameters(self) -> dict[str, Array]:
        """The mean over ranks, weighted with the samples since the last average (collective)."""
        if self.communication.size == 1 or self.consistent:
            return super().model_parameters()
        return self._weighted(self.parameters())

    def _average(self) -> None:
        if self.communication.size > 1:
            self.assign_all(self._weighted({**self.parameters(), **self.running_statistics()}))
        self._since = 0

    def _weighted(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Without any sample since the last average all replicas are equal: then equal weights do."""
        total = self.communication.sync_all(np.array([float(self._since)]), op="sum")[0]
        return self.average_exactly(tensors, float(self._since) if total else None)

    def finish(self) -> None:
        super().finish()
        self._since = 0

    def scheme_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        return {}, {"since": float(self._since)}

    def restore_scheme_state(self, arrays: dict[str, dict[str, Array]], scalars: dict[str, float]) -> None:
        self._since = int(scalars.get("since", 0.0))

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "every": self.every}
