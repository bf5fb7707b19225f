"""What one message costs: alpha + n beta, with other values for other sizes where the measurements say so.

R. W. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20(3),
1994: a message of n bytes takes alpha + n beta seconds. MPI libraries change protocol with the size (eager,
rendezvous) and data falls out of caches, so one line seldom fits from 4 B to 64 MB; `fit` finds where the
pieces meet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from meta500.errors import UserError

# A further piece must take away this share of the squared relative error that is left.
WORTHWHILE = 0.5
# Nor is there a further piece once the lines are this close to the measurements (root mean square, relative).
CLOSE = 0.02
SHORTEST = 3
MOST_PIECES = 4


@dataclass(frozen=True)
class Piece:
    """From ``start`` bytes on: ``alpha`` seconds per message, ``beta`` seconds per byte."""

    start: float
    alpha: float
    beta: float


@dataclass(frozen=True)
class Link:
    """The cost of messages by size: pieces with rising ``start``, the first from 0.

    Raises:
        UserError: no piece, starts that do not rise from 0, or a negative or infinite parameter.
    """

    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        starts = [piece.start for piece in self.pieces]
        if not starts or starts[0] != 0 or any(b <= a for a, b in pairwise(starts)):
            raise UserError(f"link: pieces must start at 0 and rise, found {starts}")
        for piece in self.pieces:
            if not (0 <= piece.alpha < math.inf and 0 <= piece.beta < math.inf):
                raise UserError(
                    f"link: alpha {piece.alpha} s and beta {piece.beta} s/B must be finite and not negative"
                )

    @classmethod
    def uniform(cls, alpha: float, beta: float) -> Link:
        """One line for all sizes."""
        return cls((Piece(0.0, float(alpha), float(beta)),))

    @classmethod
    def from_dict(cls, pieces: Sequence[Mapping[str, float]]) -> Link:
        """The counterpart of `to_dict`."""
        return cls(tuple(Piece(float(p["start"]), float(p["alpha"]), float(p["beta"])) for p in pieces))

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain values for JSON."""
        return [{"start": p.start, "alpha": p.alpha, "beta": p.beta} for p in self.pieces]

    def piece(self, nbytes: float) -> Piece:
        """The piece that holds for messages of this size."""
        return next(piece for piece in reversed(self.pieces) if piece.start <= max(nbytes, 0.0))

    def seconds(self, nbytes: float, *, sharing: float = 1.0) -> float:
        """Time of one message; ``sharing`` messages divide the bandwidth among them."""
        piece = self.piece(nbytes)
        return piece.alpha + nbytes * piece.beta * sharing

    @property
    def latency(self) -> float:
        """Seconds of an empty message."""
        return self.pieces[0].alpha

    @property
    def bandwidth(self) -> float:
        """Bytes per second of large messages; infinite where they cost nothing."""
        beta = self.pieces[-1].beta
        return 1 / beta if beta else math.inf

    def between(self, other: Link, weight: float) -> Link:
        """The link at ``weight`` of the way to ``other``: 0 is this one, beyond 1 it is extrapolated."""
        starts = sorted({p.start for p in (*self.pieces, *other.pieces)})
        pieces = []
        for start in starts:
            a, b = self.piece(start), other.piece(start)
            mixed = (x + weight * (y - x) for x, y in ((a.alpha, b.alpha), (a.beta, b.beta)))
            pieces.append(Piece(start, *(max(value, 0.0) for value in mixed)))
        return Link(tuple(pieces))


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """The link that fits measured times best, in as few pieces as do it.

    Least squares of the relative errors, alpha and beta not negative; pieces of three sizes at least. The
    number of pieces is the smallest for which one more takes away less than half of the error that is left.

    Args:
        sizes: bytes, each once, in any order; two at least.
        seconds: of one message of that size, positive.

    Raises:
        UserError: too few sizes, repeated ones, or times that are not positive.
    """
    order = np.argsort(np.asarray(sizes, np.float64))
    n, t = (np.asarray(values, np.float64)[order] for values in (sizes, seconds))
    if len(n) < 2 or len(set(n.tolist())) != len(n) or not (np.isfinite(t).all() and (t > 0).all()):
        raise UserError("fit: at least two different sizes with positive times are needed")

    @cache
    def line(first: int, last: int) -> tuple[float, float, float]:
        """alpha, beta and squared relative error of the sizes first ... last - 1."""
        from scipy.optimize import nnls

        # Scaled to numbers near 1, so that the solver's tolerance means the same for all units.
        scale = n[last - 1] or 1.0
        weights = 1 / t[first:last]
        matrix = np.stack([weights * t[first], weights * (n[first:last] / scale) * t[last - 1]], axis=1)
        solution, residual = nnls(matrix, np.ones(last - first))
        return float(solution[0] * t[first]), float(solution[1] * t[last - 1] / scale), float(residual**2)

    def best(pieces: int, last: int) -> tuple[float, tuple[int, ...]]:
        """Smallest error of the sizes before ``last`` in so many pieces, and where they begin."""
        if pieces == 1:
            return line(0, last)[2], (0,)
        found: tuple[float, tuple[int, ...]] = (math.inf, (0,))
        for cut in range(SHORTEST * (pieces - 1), last - SHORTEST + 1):
            error, starts = best(pieces - 1, cut)
            error += line(cut, last)[2]
            if error < found[0]:
                found = (error, (*starts, cut))
        return found

    error, starts = best(1, len(n))
    for pieces in range(2, MOST_PIECES + 1):
        if len(n) < SHORTEST * pieces or error / len(n) <= CLOSE**2:
            break
        further, cuts = best(pieces, len(n))
        if further > (1 - WORTHWHILE) * error:
            break
        error, starts = further, cuts
    ends = (*starts[1:], len(n))
    return Link(
        tuple(
            Piece(float(n[a]) if place else 0.0, *line(a, b)[:2])
            for place, (a, b) in enumerate(zip(starts, ends, strict=True))
        )
    )
