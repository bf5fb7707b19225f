"""The state of PyTorch that a network runs in, whatever the caller has set around it."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import torch

from meta500.errors import UserError


class Ambient:
    """A context in which gradients are as asked, and inference mode, autocast and foreign settings are off.

    Threads, TF32 and determinism are set as the network wants them and restored afterwards. Entering costs
    a few microseconds: only what differs is changed.

    Args:
        device: where the network runs.
        gradients: whether operations are recorded for backward.
        threads: of the CPU; None leaves PyTorch's setting.
        tf32, deterministic: for CUDA, see :func:`cuda_numerics`.
    """

    def __init__(
        self,
        device: torch.device,
        gradients: bool,
        threads: int | None,
        tf32: bool = False,
        deterministic: bool = False,
    ) -> None:
        self.device, self.gradients, self.threads = device, gradients, threads
        self.tf32, self.deterministic = tf32, deterministic

    def __enter__(self) -> None:
        self._stack = ExitStack()
        if self.threads is not None and torch.get_num_threads() != self.threads:
            self._stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(self.threads)
        if torch.is_inference_mode_enabled():
            self._stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled(self.device.type):
            self._stack.enter_context(torch.autocast(self.device.type, enabled=False))
        if torch.is_grad_enabled() != self.gradients:
            self._stack.enter_context(torch.enable_grad() if self.gradients else torch.no_grad())
        if self.device.type == "cuda":
            self._stack.enter_context(CudaNumerics(self.tf32, self.deterministic))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class CudaNumerics:
    """TF32 for convolutions and products, and determinism of cuDNN; restored afterwards."""

    def __init__(self, tf32: bool, deterministic: bool = False) -> None:
        self.tf32, self.deterministic = tf32, deterministic

    def __enter__(self) -> None:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        self._before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = self.tf32, self.tf32, self.deterministic

    def __exit__(self, *_: object) -> None:
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = self._before


def parse_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        UserError: an unknown device, or one that is not here.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UserError(f"unknown device '{name}'; choose cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported; choose cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise UserError(f"device '{name}': this PyTorch sees no CUDA device; choose cpu")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(f"device '{name}': there are {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", device.index or 0)
