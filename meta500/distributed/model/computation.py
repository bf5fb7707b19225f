"""How long a pass over a local batch takes, alone and where ranks share cores and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from meta500.errors import UserError


@dataclass(frozen=True)
class Computation:
    """The measured costs of one network on one backend.

    Attributes:
        passes: seconds of forward and backward pass by local batch, on one rank alone.
        update: seconds of the optimizer's update rule, once per step.
        busy: factor on both when all cores of a node compute (memory bandwidth, clock), at least 1.
        slicing: further factor where ranks take turns on a core, beyond the turns themselves.
        jitter: standard deviation of the logarithm of a pass's time (0: always the same).
    """

    passes: Mapping[int, float]
    update: float = 0.0
    busy: float = 1.0
    slicing: float = 1.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not self.passes or any(b < 1 or not t > 0 for b, t in self.passes.items()):
            raise UserError(
                "computation: positive seconds are needed for at least one batch of at least 1 sample"
            )
        if self.busy < 1 or self.slicing < 1 or self.update < 0 or self.jitter < 0:
            raise UserError(
                f"computation: busy {self.busy} and slicing {self.slicing} must be at least 1, update "
                f"{self.update} and jitter {self.jitter} not negative"
            )

    def alone(self, batch: float) -> float:
        """Seconds of a pass over ``batch`` samples on one rank alone.

        Between measured batches along the line between them. Below the smallest and above the largest one
        along the line through the two nearest, where there are two, and never faster per sample (above) or
        slower than the smallest (below); a single measured batch says that time is proportional.
        """
        if batch <= 0:
            return 0.0
        batches = sorted(self.passes)
        times = [self.passes[b] for b in batches]
        if len(batches) == 1:
            return times[0] * batch / batches[0]
        if batches[0] <= batch <= batches[-1]:
            return float(np.interp(batch, batches, times))
        low, high = (0, 1) if batch < batches[0] else (-2, -1)
        slope = max(0.0, (times[high] - times[low]) / (batches[high] - batches[low]))
        if batch < batches[0]:
            return max(times[0] * batch / batches[0], times[0] - slope * (batches[0] - batch))
        return times[-1] + slope * (batch - batches[-1])

    def contention(self, seconds: float, ranks: int, threads: int, cores: int, balance: float) -> float:
        """Factor on ``seconds`` of computation for ``ranks`` on a node that all compute at once.

        Up to as many threads as cores the factor rises evenly to ``busy``. Beyond, ranks take turns: a core
        has ⌈threads / cores⌉ of them and the fullest core ends last; only after ``balance`` seconds the
        system has moved ranks so often that all get the same share, threads / cores.
        """
        working = ranks * threads
        if working <= cores:
            spare = cores - threads
            return 1 + (self.busy - 1) * ((working - threads) / spare if spare > 0 else 1.0)
        even, fullest = working / cores, math.ceil(working / cores)
        loaded = seconds * self.busy * self.slicing
        return min(fullest * loaded, even * loaded + balance) / seconds

    def slowest(self, ranks: int) -> float:
        """Median of the longest of ``ranks`` passes over a single one's median, times being log-normal.

        The median of the largest of P draws is the 2^(-1/P) quantile.
        """
        if not self.jitter or ranks == 1:
            return 1.0
        return math.exp(self.jitter * NormalDist().inv_cdf(0.5 ** (1 / ranks)))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "passes": {str(b): t for b, t in self.passes.items()},
            **{n: getattr(self, n) for n in _NUMBERS},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Computation:
        """The counterpart of `to_dict`."""
        passes = {int(b): float(t) for b, t in values["passes"].items()}
        return cls(passes, **{n: float(values[n]) for n in _NUMBERS})


_NUMBERS = ("update", "busy", "slicing", "jitter")


def jitter_of(samples: Sequence[float]) -> float:
    """Standard deviation of the logarithms, from their quartiles, so that single outliers do not count."""
    if len(samples) < 4:
        return 0.0
    low, high = np.quantile(np.log(np.asarray(samples, np.float64)), [0.25, 0.75])
    return float((high - low) / (2 * NormalDist().inv_cdf(0.75)))
