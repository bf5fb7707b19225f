"""What the study of the PyTorch compiler measures, and how large it is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meta500.benchmarks.protocol import QUICK, Protocol
from meta500.errors import UserError, choose

PRODUCTS, CONVOLUTIONS, BLOCKS, NETWORKS_PART, LAYERS = (
    "products",
    "convolutions",
    "blocks",
    "networks",
    "layers",
)
PARTS = (PRODUCTS, CONVOLUTIONS, BLOCKS, NETWORKS_PART, LAYERS)
# The six networks of section 4.1.3, under our names.
NETWORKS = ("alexnet", "densenet121", "googlenet", "mobilenet_v2", "resnet50", "squeezenet1_1")
# Small enough to compile every part of it in the quick mode, and to run every choice of states; none of the
# thesis's networks.
SMALL = "digits_cnn"
EAGER = "eager"
DEFAULT, REDUCE_OVERHEAD, MAX_AUTOTUNE, NO_CUDAGRAPHS = (
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
)
MODES = (DEFAULT, REDUCE_OVERHEAD, MAX_AUTOTUNE, NO_CUDAGRAPHS)
# Rounds as in the full protocol, but for hundreds of groups: at most minutes for each.
STEADY = Protocol(warmup=3, min_repeats=25, min_seconds=2.0, max_seconds=300.0)


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        quick: small sizes, two modes and one network, for a look at how the study works.
        threads: of PyTorch; None: the processors that this process may use.
        device: "cpu", "cuda" or "cuda:N".
        seed: of inputs and parameters.
        parts: of :data:`PARTS`; none: all.
        networks: of :data:`NETWORKS`; none: all six, in quick AlexNet alone.
        modes: of :data:`MODES`; none: all four, in quick "default" and "reduce-overhead".
    """

    quick: bool = False
    threads: int | None = None
    device: str = "cpu"
    seed: int = 0
    parts: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what can't be measured.

        Raises:
            UserError: an unknown part, network, mode or device, one given twice, more threads than
                processors, or none, a negative seed, or a CUDA device that is not there; names the option.
        """
        _check_choices("--part", self.parts, PARTS)
        _check_choices("--network", self.networks, NETWORKS)
        _check_choices("--mode", self.modes, MODES)
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UserError(f"--device: '{self.device}' is unknown; choose one of: cpu, cuda, cuda:N")
        processors = len(os.sched_getaffinity(0))
        if self.threads is not None and not 1 <= self.threads <= processors:
            raise UserError(
                f"--threads: {self.threads} must be 1 to {processors}, the processors of this process"
            )
        if self.seed < 0:
            raise UserError(f"--seed: {self.seed} is negative; 0 or more is needed")
        if on_cuda(self.device):
            import torch

            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            if not count:
                raise UserError("--device: PyTorch finds no CUDA device on this machine; use cpu")
            index = int(self.device.partition(":")[2] or 0)
            if index >= count:
                raise UserError(f"--device: '{self.device}' is not there; cuda:0 to cuda:{count - 1} are")

    @property
    def chosen_parts(self) -> tuple[str, ...]:
        """The parts that are measured, in the order of the report."""
        return tuple(part for part in PARTS if not self.parts or part in self.parts)

    @property
    def chosen_networks(self) -> tuple[str, ...]:
        """The networks that are measured, by our names."""
        return self.named_networks or (("alexnet",) if self.quick else NETWORKS)

    @property
    def named_networks(self) -> tuple[str, ...]:
        """Those that were asked for by name, in the order of :data:`NETWORKS`."""
        return tuple(name for name in NETWORKS if name in self.networks)

    @property
    def used_threads(self) -> int:
        """The threads with which everything is measured."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def chosen_modes(self) -> tuple[str, ...]:
        """The modes of torch.compile that are measured, in the order of :data:`MODES`."""
        chosen = self.modes or ((DEFAULT, REDUCE_OVERHEAD) if self.quick else MODES)
        return tuple(mode for mode in MODES if mode in chosen)

    def network_options(self, name: str) -> dict[str, Any]:
        """Options of ``meta500.models.create`` for a network: without loss and auxiliary heads."""
        batch, size = (1, 64) if self.quick else (32 if on_cuda(self.device) else 4, 224)
        made = {"batch": batch, "size": size, "classes": 1000, "seed": self.seed, "loss": False}
        # Inference does not use the auxiliary heads.
        return made | ({"auxiliary": False} if name == "googlenet" else {})

    @property
    def protocol(self) -> Protocol:
        """How long functions are measured against each other."""
        return QUICK if self.quick else STEADY

    def as_json(self) -> Mapping[str, Any]:
        """Everything that decides what is measured, the number of threads too; the order of what was given
        does not."""
        return {
            **asdict(self),
            "threads": self.used_threads,
            "parts": [part for part in PARTS if part in self.parts],
            "networks": list(self.named_networks),
            "modes": [mode for mode in MODES if mode in self.modes],
        }


def on_cuda(device: str) -> bool:
    """Whether a device is a GPU: "cuda" or "cuda:N"."""
    return device.partition(":")[0] == "cuda"


def _check_choices(option: str, given: Sequence[str], choices: Sequence[str]) -> None:
    for name in given:
        try:
            choose(option, name, choices)
        except UserError as error:
            raise UserError(f"{option}: {error}") from None
    if len(set(given)) < len(given):
        twice = next(name for name in given if given.count(name) > 1)
        raise UserError(f"{option}: '{twice}' is given twice")
