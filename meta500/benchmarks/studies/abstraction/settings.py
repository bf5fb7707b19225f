"""What the study measures."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meta500.benchmarks.studies.abstraction.level import CPU, CUDA, LEVELS
from meta500.errors import UserError, choose

# The paper scans both from 8 to 1024 in powers of two.
FULL_BATCHES = FULL_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
QUICK_BATCHES, QUICK_SIZES = (1, 4), (32,)
QUICK_NETWORK, QUICK_OPTIONS = "digits_cnn", {"channels_in": 3}
# Levels that quick leaves out unless they are named: what they compile takes longest, for the least contrast.
NOT_QUICK = ("export", "aotinductor")
# Levels whose training quick leaves out unless they are named: it is compiled anew, backward pass included.
NOT_QUICK_TRAINING = ("compile",)
# The size at which the batch is scanned is the one nearest to this (the paper shows 2^6 among others).
_FIXED_SIZE = 64
# The ranges of so many samples of two equal levels lie apart in 2 of 924 cases: few enough for all points of
# a scan.
ENOUGH_PROCESSES = 6


@dataclass(frozen=True)
class Pace:
    """How long is measured.

    Attributes:
        rounds: that are sampled; warmup: rounds before.
        turn: seconds of steps in one turn, at least one step.
        settle: seconds of rest before a turn.
        step_limit: seconds of one step of the baseline, predicted, beyond which a point is left out.
        order_limit: seconds that making a session, or one turn, may take.
        at_once: levels that are made, and run their first steps, at the same time.
        processes: of each level, from which its memory is known.
        elementwise, blocks: numbers of operators, and of residual blocks, in the chains; none: no such chain.
    """

    rounds: int
    warmup: int
    turn: float
    settle: float
    step_limit: float
    order_limit: float
    at_once: int
    processes: int
    elementwise: tuple[int, ...]
    blocks: tuple[int, ...]


QUICK = Pace(7, 1, 0.02, 0.05, 0.5, 120.0, 2, 1, (), (2, 8))
FULL = Pace(15, 2, 0.05, 0.13, 10.0, 900.0, 1, ENOUGH_PROCESSES, (8, 32, 128), (2, 8, 32))


@dataclass(frozen=True)
class Settings:
    """What is measured; what is left open is chosen by ``quick``.

    Attributes:
        quick: a small network and few points.
        threads: of each level; None: all processors that this process may use.
        device: "cpu", "cuda" or "cuda:N".
        seed: of weights and inputs.
        network, network_options: as for ``meta500.models.create``, without batch and size; "" is ResNet-50,
            and a small network where ``quick`` is set.
        levels: names of :data:`~meta500.benchmarks.studies.abstraction.level.LEVELS`; none: all.
        batches, sizes: images per step, and their height and width; the batch is scanned at one size, the
            size at the first batch.
        training: whether training steps are measured, where a level can train.
    """

    quick: bool = False
    threads: int | None = None
    device: str = CPU
    seed: int = 0
    network: str = ""
    network_options: Mapping[str, Any] = field(default_factory=dict)
    levels: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    training: bool = True

    def check(self) -> None:
        """Refuse what can't be measured.

        Raises:
            UserError: names the option and what would be right.
        """
        from meta500.models import names, options

        if self.threads is not None and not 1 <= self.threads <= processors():
            here = f"a number from 1 to {processors()}, the processors that this process may use"
            raise UserError(f"--threads {self.threads}: {here}")
        if not re.fullmatch(rf"{CPU}|{CUDA}(:\d+)?", self.device):
            raise UserError(f"--device '{self.device}': choose {CPU}, {CUDA} or {CUDA}:N")
        known = options(choose("model (--network)", self.model, names()))
        for name in self.options:
            if name in ("batch", "size"):
                raise UserError(f"--model-option {name}: give --batch and --size")
            choose(f"option (--model-option) of network {self.model}", name, known)
        for name in self.levels:
            if ":" not in name:
                choose("level (--level)", name, LEVELS)
        if len(set(self.levels)) < len(self.levels):
            raise UserError(f"--level {' '.join(self.levels)}: one is named twice")
        for option, values in (("--batch", self.batches), ("--size", self.sizes)):
            if any(value < 1 for value in values):
                raise UserError(f"{option} {' '.join(map(str, values))}: whole numbers from 1 are expected")
            if len(set(values)) < len(values):
                raise UserError(f"{option} {' '.join(map(str, values))}: one is named twice")
        if self.sizes and "size" not in known:
            raise UserError(f"--size: --network {self.model} has no option 'size'; leave it out")
        misfits = {size: self.misfit(size) for size in self.all_sizes}
        for size, reason in misfits.items():
            if reason and (self.sizes or len(misfits) == 1):
                option = f"--size {size}" if size else "--model-option"
                raise UserError(f"{option}: --network {self.model} cannot be made: {reason}")
        if all(misfits.values()):
            raise UserError(
                f"--size: name one that --network {self.model} takes, as it takes none of the usual ones "
                f"({', '.join(map(str, misfits))}): {misfits[max(misfits)]}"
            )

    def misfit(self, size: int) -> str:
        """Why the network cannot be made for images of a size, or with its options; "" where it can."""
        from meta500.benchmarks.studies.abstraction.subject import needs

        try:
            needs(self.model, self.options, size)
        except UserError as error:
            return str(error)
        return ""

    @property
    def resolved_threads(self) -> int:
        """Threads of each level."""
        return self.threads or processors()

    @property
    def model(self) -> str:
        """Name of the network."""
        return self.network or (QUICK_NETWORK if self.quick else "resnet50")

    @property
    def options(self) -> dict[str, Any]:
        """Options of the network, without batch and size."""
        small = self.quick and self.network in ("", QUICK_NETWORK)
        return {**(QUICK_OPTIONS if small else {}), **self.network_options}

    @property
    def pace(self) -> Pace:
        """How long is measured."""
        return QUICK if self.quick else FULL

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of the levels."""
        return self.levels or tuple(LEVELS)

    def left_out(self, name: str) -> str:
        """Why a level is not measured, although nothing of it is missing; "" where it is."""
        if self.quick and not self.levels and name in NOT_QUICK:
            return f"left out of the quick mode to keep it short; name it with --level {name}"
        return ""

    def untrained(self, name: str) -> str:
        """Why a level's training is not measured, although it can train; "" where it is."""
        if self.quick and not self.levels and name in NOT_QUICK_TRAINING:
            return f"training is left out of the quick mode to keep it short; name it with --level {name}"
        return ""

    @property
    def all_batches(self) -> tuple[int, ...]:
        """Images per step, ascending."""
        return tuple(sorted(self.batches or (QUICK_BATCHES if self.quick else FULL_BATCHES)))

    @property
    def all_sizes(self) -> tuple[int, ...]:
        """Heights and widths, ascending; (0,) of a network without the option. Some may not fit."""
        from meta500.models import options

        if "size" not in options(self.model):
            return (0,)
        return tuple(sorted(self.sizes or (QUICK_SIZES if self.quick else FULL_SIZES)))

    @property
    def fixed(self) -> tuple[int, int]:
        """The batch at which the size is scanned, and the size at which the batch is."""
        fitting = [size for size in self.all_sizes if not self.misfit(size)] or self.all_sizes
        return self.all_batches[0], min(fitting, key=lambda size: (abs(size - _FIXED_SIZE), size))

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """Pairs of batch and size: both scans, each point once, cheap ones first."""
        batch, size = self.fixed
        found = {(b, size) for b in self.all_batches} | {(batch, s) for s in self.all_sizes}
        return tuple(sorted(found, key=lambda point: (point[0] * point[1] ** 2, point)))


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
