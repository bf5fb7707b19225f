"""What the study of parallel adjoints may be asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass

from meta500.errors import UserError, choose

STENCILS, UNET = "stencils", "unet"
PARTS = (STENCILS, UNET)


@dataclass(frozen=True)
class Settings:
    """Settings of the study.

    Attributes:
        quick: few and small subjects, in under three minutes.
        threads: the most threads; None: the processors of this process.
        seed: of the data.
        parts: "stencils", "unet"; none: both.
    """

    quick: bool = False
    threads: int | None = None
    seed: int = 0
    parts: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            UserError: names the option.
        """
        for part in self.parts:
            choose("--part", part, PARTS)
        here = len(os.sched_getaffinity(0))
        if self.threads is not None and not 1 <= self.threads <= here:
            raise UserError(
                f"--threads {self.threads}: this process may use {here} processors; give 1 to {here}, since "
                "threads that wait for each other's processor say nothing about scaling"
            )
        if self.seed < 0:
            raise UserError(f"--seed {self.seed} must not be negative")

    @property
    def most_threads(self) -> int:
        """The most threads that are measured."""
        return self.threads if self.threads is not None else len(os.sched_getaffinity(0))

    @property
    def thread_counts(self) -> tuple[int, ...]:
        """1, 2, 4, ... and the most."""
        most = self.most_threads
        counts = [1]
        while 2 * counts[-1] < most:
            counts.append(2 * counts[-1])
        return tuple(counts if most == 1 else [*counts, most])

    @property
    def chosen(self) -> tuple[str, ...]:
        """The parts that are measured."""
        return tuple(part for part in PARTS if part in self.parts) or PARTS
