"""PyTorch's DistributedDataParallel (Li et al. 2020, arXiv:2006.15704) around the torch backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import parallel

from meta500.backends.optimizer import GraphOptimizer
from meta500.distributed import torch_group
from meta500.distributed.optimizer import Common, DistributedOptimizer
from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

Array = Any


class DistributedDataParallel(DistributedOptimizer):
    """A native optimizer of the torch backend whose gradients PyTorch averages over ranks during backward::

        g_t = Σ_r n_r g_r(x_t) / Σ_r n_r,      x_{t+1} = U(x_t, g_t)

    with n_r samples on rank r and the step U of ``torch.optim``, which every rank makes for itself. Gradients
    are joined in buckets, and each bucket is summed over ranks by gloo (NCCL for CUDA) as soon as backward
    has filled it. DistributedDataParallel by itself takes the plain mean over ranks; here the gradient of
    each rank's loss is multiplied by n_r / Σ n_r on its way into backward, so that batches may differ in
    size.

    Running statistics (batch normalisation) are averaged with the same weights after every step, so that
    replicas stay equal; plain DistributedDataParallel hands out those of rank 0 before the next pass instead.

    The counters of ``communication`` have the buckets as "ddp_all_reduce"; its seconds go from the start of
    each bucket to its end, most of them beside backward.

    Args:
        optimizer: of ``network.native_optimizer(...)`` on the torch backend.
        communication: the ranks. Gradients go through a process group of torch.distributed, all else here.
        bucket_megabytes: size of the buckets in MiB.
        gradient_as_bucket_view: gradients live in the buckets, which saves a copy of all of them.
        static_graph: a promise that every step uses the same parameters in the same way.
        find_unused_parameters: look in every pass for parameters that the loss doesn't depend on, as control
            flow in the network may need.
        host: name or address of the root for the process group, see :func:`torch_group.acquire`.
        **common: ``broadcast``, ``loss_reduction`` and ``batch_input``, see :class:`DistributedOptimizer`.

    Raises:
        UserError: another backend or a reference optimizer, ranks that differ, or no process group.

    Source: Li et al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020.
    """

    synchronous = True
    consistent = True

    def __init__(
        self,
        optimizer: GraphOptimizer,
        communication: CommunicationNetwork | None = None,
        *,
        bucket_megabytes: float = 25.0,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        find_unused_parameters: bool = False,
        host: str | None = None,
        **common: Unpack[Common],
    ) -> None:
        if not bucket_megabytes > 0:
            raise UserError(f"bucket_megabytes = {bucket_megabytes} is not valid: give a number above 0")
        super().__init__(
            optimizer,  # type: ignore[arg-type]
            communication,
            **common,
        )
        self._options: dict[str, Any] = {
            "bucket_cap_mb": bucket_megabytes,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
        }
        self._host = host
        self._batch = 0
        self._agreed: float | None = None
        self._group: torch_group.ProcessGroup | None = None
        self._parallel: parallel.DistributedDataParallel | None = None
        self._all_reached = find_unused_parameters
        self._build()

    def _checked_base(self, optimizer: Any) -> Any:
        backend = optimizer.network.backend
        if backend != "torch":
            raise UserError(
                f"the scheme ddp runs on the torch backend, this network is on the {backend} backend: take "
                "the torch backend or the scheme consistent-decentralized, which runs on all"
            )
        if not isinstance(optimizer, GraphOptimizer):
            raise UserError(
                f"the scheme ddp needs a native optimizer, got {type(optimizer).__name__}: make it with "
                "network.native_optimizer('adam') (--native on the command line), or take the scheme "
                "consistent-decentralized, which runs reference optimizers"
            )
        return optimizer

    def train(
        self, inputs: dict[str, np.ndarray], outputs: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """One step on this rank's batch; see :meth:`DistributedOptimizer.train`."""
        if self._parallel is None:
            self._build()
        network = self.network
        self._batch, self._agreed = self.samples(inputs), None
        self.global_samples = None
        self.base.ensure_built()
        if self._batch:
            network.surround(self._surround)  # type: ignore[attr-defined]
            try:
                with self._lost():
                    result = network.inference_and_backprop(inputs, self.loss, self.wanted(outputs))
            finally:
                network.surround(None)  # type: ignore[attr-defined]
        else:
            result = self.local_pass(inputs, 0, outputs)
            with self._lost():
                self._empty_pass()
        if self._agreed is not None:
            result[self.loss] = np.full_like(result[self.loss], self._agreed)
        self.samples_seen += self._batch
        self.exchange(self._batch, {})
        return result

    def exchange(self, samples: int, originals: Mapping[str, Array]) -> None:
        """Average the running statistics and step; the gradients are averaged already."""
        if self.statistics and self.communication.size > 1:
            self.assign_all(self.average_exactly(self.running_statistics(), float(samples)))
        self.base.step()
        self.base.step_count += 1

    def close(self) -> None:
        """Leave the process group, which ends when no other optimizer uses it; a further step joins again.

        For the normal end there is ``finish``, in which all ranks wait for each other.
        """
        self._parallel = None
        group, self._group = self._group, None
        if group is not None:
            group.release()

    def finish(self) -> None:
        """See :meth:`DistributedOptimizer.finish`; also leaves the process group."""
        super().finish()
        self.communication.barrier()
        self.close()

    def _build(self) -> None:
        network: Any = self.network
        device = torch.device(network.device)
        self._group = torch_group.acquire(self.communication, torch_group.backend_for(device), self._host)
        try:
            self._parallel = parallel.DistributedDataParallel(
                _Pass(list(network._parameter_tensors.values())),
                device_ids=None if device.type == "cpu" else [device],
                # The ranks are compared and equal already.
                init_sync=False,
                **self._options,
            )
            # A function without annotations: those of this module are text, which is refused.
            self._parallel.register_comm_hook(None, lambda state, bucket: self._reduce(bucket))
        except (RuntimeError, ValueError) as error:
            self.close()
            raise UserError(f"DistributedDataParallel: {error}") from None

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """Errors of the process group as UserError: another rank died or left."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            raise UserError(
                f"rank {self.communication.rank} of {self.communication.size} lost another rank in step "
                f"{self.step_count + 1}, while gradients were reduced: {str(error).splitlines()[0]}"
            ) from error

    def _reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sum a bucket over ranks; DistributedDataParallel calls it from inside of backward."""
        begin = perf_counter_ns()
        buffer = bucket.buffer()
        work = dist.all_reduce(buffer, async_op=True)

        def counted(future: torch.futures.Future[Any]) -> torch.Tensor:
            end = perf_counter_ns()
            size = buffer.nbytes
            self.communication._count("ddp_all_reduce", begin, end, size, size, end - begin)
            return future.value()[0]  # type: ignore[no-any-return]

        return work.get_future().then(counted)  # type: ignore[no-any-return, union-attr]

    def _surround(
        self, function: Callable[..., tuple[Any, ...]], names: tuple[str, ...], *arguments: Any
    ) -> tuple[Any, ...]:
        """A pass inside of DistributedDataParallel, with the factor of this rank on its loss' gradient."""
        assert self._parallel is not None
        place = names.index(self.loss)

        def checked(*arguments: Any) -> tuple[Any, ...]:
            results = function(*arguments)
            self._check_reached(results[place])
            return results

        results: tuple[Any, ...] = self._parallel(checked, arguments)
        loss = results[place]
        if self.before_exchange is not None:
            self._agreed = self.before_exchange(float(loss.detach()), self._batch)
        factor = self._factor()
        if factor != 1.0:
            loss.register_hook(lambda gradient: gradient * factor)
        return results

    def _factor(self) -> float:
        """What this rank's gradient is multiplied by before the sum over ranks."""
        if self.loss_reduction == "sum":
            return 1.0
        return self._batch / self.total_samples(self._batch)

    def _empty_pass(self) -> None:
        """Take part in the reduction without samples: all gradients are zeros."""
        module = self._parallel
        assert module is not None
        parameters = list(module.parameters())

        def nothing() -> tuple[torch.Tensor, ...]:
            # Sums over no elements, whose gradients are zeros whatever the parameters hold.
            return (torch.stack([p.flatten()[:0].sum().double() for p in parameters]).sum(),)

        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            (loss,) = module(nothing, ())
            if self.before_exchange is not None:
                self._agreed = self.before_exchange(float("nan"), 0)
            self._factor()
            loss.backward()

    def _check_reached(self, loss: torch.Tensor) -> None:
        """Refuse parameters that the loss doesn't depend on: their bucket would never be reduced.

        Raises:
            UserError: names such a parameter and the option that allows it.
        """
        if self._all_reached:
            return
        network: Any = self.network
        reached = _leaves_behind(loss)
        for name, parameter in network._parameter_tensors.items():
            if id(parameter) not in reached:
                raise UserError(
                    f"DistributedDataParallel: the loss '{self.loss}' doesn't depend on parameter '{name}': "
                    "give find_unused_parameters=True"
                )
        self._all_reached = True


class _Pass(torch.nn.Module):
    """A module with the parameters of a network, whose forward runs whatever function it is given."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        self.held = torch.nn.ParameterList(parameters)

    def forward(self, function: Callable[..., tuple[Any, ...]], arguments: Sequence[Any]) -> tuple[Any, ...]:
        return function(*arguments)


def _leaves_behind(value: torch.Tensor) -> set[int]:
    """Identities of the tensors in which backward from ``value`` accumulates a gradient."""
    found: set[int] = set()
    seen: set[Any] = set()
    waiting = [value.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        variable = getattr(function, "variable", None)
        if variable is not None:
            found.add(id(variable))
        waiting.extend(following for following, _ in function.next_functions)
    return found
