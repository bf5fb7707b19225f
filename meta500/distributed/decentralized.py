"""ConsistentDecentralized: gradients averaged by an allreduce."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from meta500.backends import optimizer_state as saved
from meta500.backends.optimizer import GraphOptimizer
from meta500.distributed.communication import CommunicationNetwork
from meta500.distributed.early import EarlyReduction
from meta500.distributed.optimizer import Common, DistributedOptimizer
from meta500.distributed.timeline import COMPUTE
from meta500.errors import UserError
from meta500.optimizers.optimizer import ThreeStepOptimizer

Array = Any
# Backends whose gradients have memory of their own, which the next pass does not read.
_OWN_GRADIENTS = ("generated", "torch")


def _digest(optimizer: ThreeStepOptimizer) -> str:
    """A short text that differs where the state of an optimizer does."""
    found = hashlib.sha256(repr(sorted(optimizer.scalars.items())).encode())
    for name, slots in sorted(optimizer.state.items()):
        for slot, array in sorted(slots.items()):
            found.update(f"{name}:{slot}".encode())
            found.update(saved.to_numpy(array).tobytes())
    return found.hexdigest()[:12]


class ConsistentDecentralized(DistributedOptimizer):
    """Synchronous data parallel training without a server::

        g_t = Σ_r n_r g_r(x_t) / Σ_r n_r,      x_{t+1} = U(x_t, g_t)

    with n_r samples on rank r and the base rule U, which every rank computes for itself with the same
    numbers. N ranks with b samples each take the step of one rank with N·b samples.

    Running statistics of batch normalisation are averaged with the same weights, so that replicas stay equal;
    each rank normalises with its own batch. On the torch and generated backends the average takes the place
    of the gradient in the network's own memory, and on torch the base may also be a native optimizer
    (``network.native_optimizer(...)``), which reads it there.

    Args:
        overlap: begin to reduce gradients during backward, as soon as they are complete, where the network
            tells so (``network.on_gradient``: torch in eager mode). It pays where the network moves data by
            itself; on one machine the ranks' processors do that.

    Source: Ben-Nun and Hoefler, "Demystifying parallel and distributed deep learning", ACM Computing Surveys
    2019, arXiv:1802.09941, section 7; Deep500's ConsistentDecentralized.
    """

    synchronous = True
    consistent = True
    compressible = True

    def __init__(
        self,
        optimizer: ThreeStepOptimizer | GraphOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        overlap: bool = False,
        **common: Unpack[Common],
    ) -> None:
        self._early: EarlyReduction | None = None
        self.overlap = bool(overlap)
        super().__init__(
            optimizer,  # type: ignore[arg-type]
            communication,
            **common,
        )
        if self.overlap and (self.loss_reduction != "mean" or self.communication.compression is not None):
            raise UserError(
                f"{type(self).__name__}: overlap=True is for losses that are means and gradients without "
                "compression; leave one of them out"
            )
        if self.overlap and self.communication.size > 1:
            self._early = EarlyReduction(self.communication, self.network)

    def _checked_base(self, optimizer: Any) -> Any:
        if isinstance(optimizer, GraphOptimizer):
            # One whose step is part of its pass has no place between the two for an exchange.
            if type(optimizer).train is GraphOptimizer.train and optimizer.network.backend == "torch":
                return optimizer
            raise UserError(
                f"{type(self).__name__}: native optimizers can be wrapped on the torch backend only; "
                f"on the {optimizer.network.backend} backend use a reference optimizer (meta500.optimizers)"
            )
        return super()._checked_base(optimizer)

    def before_pass(self, originals: dict[str, Array]) -> None:
        if isinstance(self.base, GraphOptimizer):
            self.base.ensure_built()
        else:
            super().before_pass(originals)

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        if isinstance(self.base, GraphOptimizer):
            averages = self.average_gradients(samples)
            for name, parameter in self.base._named().items():  # type: ignore[attr-defined]
                parameter.grad = averages[name]
            with self.span(COMPUTE, "update"):
                self.base.step()
            self.base.step_count += 1
        else:
            self.update(self.average_gradients(samples))

    def local_pass(
        self, inputs: Mapping[str, Any], samples: int, outputs: Sequence[str] | None
    ) -> dict[str, np.ndarray]:
        if self._early is None:
            return super().local_pass(inputs, samples, outputs)
        self._early.begin(float(samples))
        try:
            return super().local_pass(inputs, samples, outputs)
        except BaseException:
            self._early.abandon(self.gradients(0))
            raise

    def average_gradients(self, samples: int) -> dict[str, Array]:
        """The gradients of the global batch; running statistics are averaged on the way."""
        gradients = self.gradients(samples)
        if self._early is not None:
            averages = self._early.end(gradients)
            if self.statistics:
                self.assign_all(self.average_exactly(self.running_statistics(), float(samples)))
            return averages
        network = self.communication
        if network.size == 1 and network.compression is None:
            self.total_samples(samples)
            return gradients
        statistics = self.running_statistics()
        weight = float(samples)
        in_place = self.network.backend in _OWN_GRADIENTS
        # Eight bytes more to send, but then gradients are scaled once instead of before and after the sum.
        total = float(self.total_samples(samples))
        if self.loss_reduction == "mean" and network.compression is None:
            # Parameters and statistics have different names: both are initializers of one graph.
            reduced = network.sync_all_many(
                {**gradients, **statistics}, weight=weight, total=total, in_place=in_place
            )
            self.assign_all({name: reduced.pop(name) for name in statistics})
            return reduced
        if statistics:
            self.assign_all(self.average_exactly(statistics, weight))
        if self.loss_reduction == "sum":
            return network.sync_all_many(gradients, op="sum", in_place=in_place)
        return network.sync_all_many(gradients, weight=weight, total=total, in_place=in_place)

    def _settings(self) -> dict[str, Any]:
        settings = {**super()._settings(), "overlap": self.overlap}
        if isinstance(self.base, ThreeStepOptimizer):
            # Every rank makes the update for itself: what it begins with decides, too.
            settings["the optimizer's completed steps"] = self.base.step_count
            settings["the optimizer's state"] = _digest(self.base)
        return settings

    def scheme_state(self) -> tuple[dict[str, dict[str, Array]], dict[str, float]]:
        """What compression has kept back of every gradient on this rank."""
        compression = self.communication.compression
        if compression is None:
            return {}, {}
        kept = compression.state_dict()
        arrays = {}
        for name, parameter in self.parameters().items():
            if name in kept:
                residual = np.reshape(kept[name], tuple(parameter.shape))
                arrays[name] = {"residual": saved.to_native(residual, parameter)}
        return arrays, {}

    def restore_scheme_state(self, arrays: dict[str, dict[str, Array]], scalars: dict[str, float]) -> None:
        if self.communication.compression is not None:
            residuals = {name: np.ravel(saved.to_numpy(slots["residual"])) for name, slots in arrays.items()}
            self.communication.compression.load_state_dict(residuals)
