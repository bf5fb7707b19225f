"""Sessions of PyTorch's levels; imported by the process that runs them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from meta500.backends.torch.ambient import parse_device
from meta500.backends.torch.module import torch_module
from meta500.benchmarks.studies.abstraction.level import (
    CPU,
    INFERENCE,
    Job,
    Session,
    Unavailable,
)
from meta500.errors import UserError

Tensors = tuple[torch.Tensor, ...]
# From a module and the tensors of a step to what is called in the module's place.
Lower = Callable[[nn.Module, Tensors], Callable[..., torch.Tensor]]


class WithLoss(nn.Module):
    """A network with the mean cross-entropy of its logits behind it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.network(image), label)


class TorchSession(Session):
    """A callable of PyTorch with its inputs as tensors.

    On the CPU the tensors share the memory of the arrays; on a GPU each step copies them there from
    page-locked memory, and its result back.

    Args:
        job: what to run.
        lower: what becomes of the module.
        dtype: of the parameters and images; float64 for a reference.

    Raises:
        Unavailable: PyTorch sees no such device.
    """

    def __init__(self, job: Job, lower: Lower, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if job.device != CPU:
            try:
                parse_device(job.device)
            except UserError as error:
                raise Unavailable(str(error)) from None
        torch.set_num_threads(job.threads)
        training = job.phase != INFERENCE
        module: nn.Module = torch_module(job.network(), outputs=("logits",)).to(job.device, dtype)
        if training:
            module = WithLoss(module).train()
        arrays = job.arrays()
        host = [torch.from_numpy(arrays["image"]).to(dtype)]
        if training:
            host.append(torch.from_numpy(arrays["label"]))
        self._on_host = job.device == CPU
        self._host = tuple(host) if self._on_host else tuple(tensor.pin_memory() for tensor in host)
        if not self._on_host:
            # The arithmetic of the other levels: float32 without TF32.
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self._device = torch.device(job.device)
        self._optimizer = torch.optim.SGD(module.parameters(), lr=job.learning_rate) if training else None
        self._call: Callable[..., torch.Tensor] | None = lower(module, self._fed())

    def _fed(self) -> Tensors:
        if self._on_host:
            return self._host
        return tuple(tensor.to(self._device, non_blocking=True) for tensor in self._host)

    def step(self) -> np.ndarray:
        assert self._call is not None
        if self._optimizer is None:
            with torch.inference_mode():
                result = self._call(*self._fed())
        else:
            self._optimizer.zero_grad(set_to_none=True)
            result = self._call(*self._fed())
            result.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
        return result.detach().cpu().numpy()  # type: ignore[no-any-return]

    def close(self) -> None:
        self._call = self._optimizer = None


def eager(module: nn.Module, fed: Tensors) -> Callable[..., torch.Tensor]:
    """The module itself."""
    return module


def compiled(module: nn.Module, fed: Tensors) -> Callable[..., torch.Tensor]:
    """Through Dynamo and Inductor, for exactly these shapes; compiled at the first call."""
    # What an earlier network of this process left would count against the limit of recompilations.
    torch._dynamo.reset()
    return torch.compile(module, dynamic=False)  # type: ignore[return-value]


def exported(module: nn.Module, fed: Tensors) -> Callable[..., torch.Tensor]:
    """The exported graph as a module; in training form it has gradients like any other."""
    return torch.export.export(module, fed).module()


def scripted(module: nn.Module, fed: Tensors) -> Callable[..., torch.Tensor]:
    """Traced, and for inference frozen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.jit is deprecated
        if not module.training:
            with torch.no_grad():
                return torch.jit.freeze(torch.jit.trace(module, fed, check_trace=False))
        # Tracing runs the module, which must not move the statistics of its normalisation.
        kept = {name: buffer.clone() for name, buffer in module.named_buffers()}
        traced = torch.jit.trace(module, fed, check_trace=False)
        for name, buffer in module.named_buffers():
            buffer.copy_(kept[name])
        return traced  # type: ignore[no-any-return]


def packaged(module: nn.Module, fed: Tensors, path: Path) -> Callable[..., torch.Tensor]:
    """Compiled ahead of time by Inductor into a package at ``path``, and loaded."""
    import torch._inductor

    with torch.no_grad():
        program = torch.export.export(module, fed)
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return torch._inductor.aoti_load_package(package)  # type: ignore[no-any-return]
