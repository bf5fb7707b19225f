"""What the study of generated U-Nets measures, and how large it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meta500.errors import UserError, choose

EPOCHS, GENERATION, MEMORY, LAYERS, ROOFLINE = "epochs", "generation", "memory", "layers", "roofline"
PARTS = (EPOCHS, GENERATION, MEMORY, LAYERS, ROOFLINE)
SINGLE, DOUBLE = "float32", "float64"
PRECISIONS = (SINGLE, DOUBLE)
# Two batches of 64 images are one epoch (section 6.3.7).
EPOCH_IMAGES = 128
_MOST_N = 8
# Beyond the thesis' sizes, unless asked for: the smallest batch, single precision, all threads.
_THESIS_N = 3
_HALVINGS = 4


@dataclass(frozen=True)
class Point:
    """One network in one precision and size of batch, by a number of threads.

    Attributes:
        n: the channels double with it.
        size: pixels in height and width.
        batch: images per step.
        dtype: of :data:`PRECISIONS`.
        threads: of every process.
    """

    n: int
    size: int
    batch: int
    dtype: str
    threads: int

    def __str__(self) -> str:
        words = f"unet-{self.n}, batch {self.batch}, {self.size} pixels, {self.dtype}, {self.threads} thread"
        return words + ("s" if self.threads > 1 else "")


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        quick: two small networks on small images, for a look at how the study works.
        threads: the most threads; None: the processors that this process may use. All powers of two below it
            are measured too, in quick one thread alone, on the smallest network; for n = 3 with the smallest
            batch alone, unless n is given.
        seed: of weights and images.
        n: sizes of the U-Net, 0 to 8; none: 0 to 3, and 4 with the smallest batch and all threads alone; in
            quick 0 and 1.
        batches: images per step; none: 8 and 64, in quick 2.
        precisions: of :data:`PRECISIONS`; none: both, double precision with the smallest batch alone; in
            quick single.
        size: pixels in height and width, a multiple of 16; None: 512, in quick 128.
        parts: of :data:`PARTS`; none: all.
    """

    quick: bool = False
    threads: int | None = None
    seed: int = 0
    n: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    size: int | None = None
    parts: tuple[str, ...] = ()

    def check(self) -> None:
        """Refuse what can't be measured.

        Raises:
            UserError: an unknown part or precision, a number out of range, or something given twice; names
                the option.
        """
        for option, given, known in (
            ("--part", self.parts, PARTS),
            ("--precision", self.precisions, PRECISIONS),
        ):
            _once(option, given)
            for name in given:
                choose(option, name, known)
        _once("--n", self.n)
        _once("--batch", self.batches)
        for n in self.n:
            if not 0 <= n <= _MOST_N:
                raise UserError(f"--n: {n} is out of range; 0 to {_MOST_N} can be measured")
        for batch in self.batches:
            if batch < 1:
                raise UserError(f"--batch: {batch} is too few; at least 1 image is needed")
        if self.size is not None and (self.size < 1 or self.size % 2**_HALVINGS):
            raise UserError(
                f"--size: {self.size} pixels cannot be halved {_HALVINGS} times; give a multiple of 16"
            )
        if self.seed < 0:
            raise UserError(f"--seed: {self.seed} is negative; 0 or more is needed")
        processors = len(os.sched_getaffinity(0))
        if self.threads is not None and not 1 <= self.threads <= processors:
            raise UserError(
                f"--threads: {self.threads} must be 1 to {processors}, the processors of this process"
            )

    def as_json(self) -> dict[str, Any]:
        """What is measured, with the defaults filled in, as JSON can hold it."""
        return {
            "quick": self.quick,
            "threads": self.most_threads,
            "seed": self.seed,
            "n": list(self.chosen_n),
            "batches": list(self.chosen_batches),
            "precisions": list(self.precisions),
            "size": self.pixels,
            "parts": list(self.chosen_parts),
        }

    @property
    def chosen_parts(self) -> tuple[str, ...]:
        """The parts in their order."""
        return tuple(part for part in PARTS if not self.parts or part in self.parts)

    @property
    def chosen_n(self) -> tuple[int, ...]:
        """The sizes of the network, ascending."""
        return tuple(sorted(self.n)) or ((0, 1) if self.quick else (0, 1, 2, 3, 4))

    @property
    def chosen_batches(self) -> tuple[int, ...]:
        """Images per step, ascending."""
        return tuple(sorted(self.batches)) or ((2,) if self.quick else (8, 64))

    @property
    def pixels(self) -> int:
        """Height and width of the images."""
        return self.size or (128 if self.quick else 512)

    @property
    def most_threads(self) -> int:
        """The number of threads with which everything but the scaling is measured."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def chosen_threads(self) -> tuple[int, ...]:
        """Numbers of threads, the most first."""
        most = self.most_threads
        below = [1] if self.quick else [2**k for k in range(most.bit_length())]
        return (most, *sorted((t for t in below if t < most), reverse=True))

    def batches_of(self, n: int) -> tuple[int, ...]:
        """Images per step that this size of the network is measured with."""
        return self.chosen_batches[:1] if self._beyond(n) else self.chosen_batches

    def _beyond(self, n: int) -> bool:
        return not self.n and n > _THESIS_N

    def precisions_of(self, batch: int, threads: int) -> tuple[str, ...]:
        """Precisions that are measured with this batch and number of threads."""
        if self.precisions:
            return tuple(p for p in PRECISIONS if p in self.precisions)
        both = not self.quick and batch == min(self.chosen_batches) and threads == self.most_threads
        return PRECISIONS if both else (SINGLE,)

    def _scales(self, n: int, batch: int) -> bool:
        """Whether fewer threads are measured too: a step must not take minutes unless it is asked for."""
        if self.quick:
            return n == self.chosen_n[0]
        return bool(self.n) or n < _THESIS_N or (n == _THESIS_N and batch == self.chosen_batches[0])

    def point(self, n: int, batch: int, dtype: str, threads: int) -> Point:
        """A point of this study's image size."""
        return Point(n, self.pixels, batch, dtype, threads)

    def points(self) -> list[Point]:
        """What the epochs are measured on."""
        return [
            self.point(n, batch, dtype, threads)
            for n in self.chosen_n
            for batch in self.batches_of(n)
            for threads in self.chosen_threads
            if threads == self.most_threads or self._scales(n, batch)
            for dtype in self.precisions_of(batch, threads)[: 1 if self._beyond(n) else None]
        ]


def epochs_per_second(images_per_second: float) -> float:
    """Epochs of 128 images per second (section 6.3.3), whatever the images' size."""
    return images_per_second / EPOCH_IMAGES


def _once(option: str, given: Sequence[object]) -> None:
    twice = [entry for entry in given if given.count(entry) > 1]
    if twice:
        raise UserError(f"{option}: '{twice[0]}' is given twice")
