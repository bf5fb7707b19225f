"""The messages of collective operations, round by round, as MPI libraries implement them.

A round is what all ranks do at once: one message each (or one per pair), and combining what came. On a
network where every message of n bytes takes alpha + n beta, and combining n bytes takes n gamma, the sums
over the rounds are the formulas of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective
Communication Operations in MPICH", International Journal of High Performance Computing Applications 19(1),
2005:

==========================  ============================================================================
broadcast, binomial         ⌈lg P⌉ (α + nβ)
broadcast, scatter+gather   (⌈lg P⌉ + P − 1) α + 2 (P−1)/P nβ
reduce, binomial            ⌈lg P⌉ (α + nβ + nγ)
reduce, Rabenseifner        2 lg P α + 2 (P−1)/P nβ + (P−1)/P nγ
allreduce, doubling         lg P (α + nβ + nγ)
allreduce, Rabenseifner     2 lg P α + 2 (P−1)/P nβ + (P−1)/P nγ
allreduce, ring             2 (P−1) α + 2 (P−1)/P nβ + (P−1)/P nγ
allgather, ring             (P−1) (α + mβ), m bytes from each rank
allgather, Bruck            ⌈lg P⌉ α + (P−1) mβ
barrier, dissemination      ⌈lg P⌉ α
==========================  ============================================================================

Where P is no power of two, P' is the largest one below, and the P − P' ranks beyond it hand their data to a
neighbour first (α + nβ + nγ) and get the result last (α + nβ): recursive doubling, and Rabenseifner's
algorithms, which then run on P' ranks (section 4.5 there).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from meta500.errors import UserError, choose

Pattern = Literal["shift", "pairs", "tree"]


@dataclass(frozen=True)
class Round:
    """Messages that are under way at the same time; ``repeats`` such rounds follow each other.

    Attributes:
        pattern: "shift": every rank sends to the rank ``distance`` further on and receives from that far
            back;
            "pairs": rank r and r XOR ``distance`` send to each other; "tree": of such a pair only one sends.
        distance: in ranks.
        sent: bytes of each message.
        reduced: bytes that a receiver combines with its own.
        repeats: number of such rounds.
    """

    pattern: Pattern
    distance: int
    sent: float
    reduced: float = 0.0
    repeats: int = 1


Algorithm = Callable[[int, float], list[Round]]


@dataclass(frozen=True)
class Totals:
    """Along the longest chain of messages: how many, their bytes, and bytes combined."""

    messages: int
    sent: float
    reduced: float

    def seconds(self, alpha: float, beta: float, gamma: float) -> float:
        """alpha per message + beta per byte sent + gamma per byte combined."""
        return self.messages * alpha + self.sent * beta + self.reduced * gamma


def totals(rounds: list[Round]) -> Totals:
    """The sums over all rounds: the factors of alpha, beta and gamma."""
    return Totals(
        sum(r.repeats for r in rounds),
        sum(r.repeats * r.sent for r in rounds),
        sum(r.repeats * r.reduced for r in rounds),
    )


def doubling_steps(ranks: int) -> int:
    """⌈lg P⌉, exactly."""
    return (ranks - 1).bit_length()


def _folded(ranks: int) -> tuple[int, int]:
    """The largest power of two P' <= P and the number of ranks beyond it."""
    power = 1 << (ranks.bit_length() - 1)
    return power, ranks - power


def _fold(rest: int, nbytes: float, inner: list[Round]) -> list[Round]:
    """``inner`` on the power of two, between handing in and handing out of the ranks beyond it."""
    if not rest:
        return inner
    return [Round("tree", 1, nbytes, nbytes), *inner, Round("tree", 1, nbytes)]


def broadcast_binomial(ranks: int, nbytes: float) -> list[Round]:
    """Binomial tree from the root: the number of ranks that have the data doubles."""
    return [Round("tree", 1 << k, nbytes) for k in reversed(range(doubling_steps(ranks)))]


def broadcast_scatter_allgather(ranks: int, nbytes: float) -> list[Round]:
    """Scatter along a binomial tree, then a ring allgather (van de Geijn).

    The longest chain of the scatter carries n − n/P bytes for powers of two; for others the root's own sends
    are counted, which carry the same n − n/P in ⌈lg P⌉ messages.
    """
    part = nbytes / ranks
    rounds = []
    held = ranks
    for k in reversed(range(doubling_steps(ranks))):
        rounds.append(Round("tree", 1 << k, part * (held - (1 << k))))
        held = 1 << k
    return rounds + allgather_ring(ranks, part)


def reduce_binomial(ranks: int, nbytes: float) -> list[Round]:
    """Binomial tree to the root."""
    return [Round("tree", 1 << k, nbytes, nbytes) for k in range(doubling_steps(ranks))]


def reduce_rabenseifner(ranks: int, nbytes: float) -> list[Round]:
    """Recursive halving of the data with reduction, then a gather along a binomial tree to the root."""
    power, rest = _folded(ranks)
    halving = _halving(power, nbytes, spread=2 if rest else 1)
    gathering = [Round("tree", r.distance, r.sent) for r in reversed(halving)]
    inner = halving + gathering
    return [Round("tree", 1, nbytes, nbytes), *inner] if rest else inner


def allreduce_recursive_doubling(ranks: int, nbytes: float) -> list[Round]:
    """Every round doubles the number of ranks whose sum a rank holds."""
    power, rest = _folded(ranks)
    spread = 2 if rest else 1
    inner = [Round("pairs", spread << k, nbytes, nbytes) for k in range(power.bit_length() - 1)]
    return _fold(rest, nbytes, inner)


def allreduce_rabenseifner(ranks: int, nbytes: float) -> list[Round]:
    """Reduce-scatter by recursive halving, then allgather by recursive doubling."""
    power, rest = _folded(ranks)
    halving = _halving(power, nbytes, spread=2 if rest else 1)
    gathering = [Round("pairs", r.distance, r.sent) for r in reversed(halving)]
    return _fold(rest, nbytes, halving + gathering)


def allreduce_ring(ranks: int, nbytes: float) -> list[Round]:
    """Reduce-scatter around a ring, then allgather around it; parts of n/P bytes."""
    if ranks == 1:
        return []
    part = nbytes / ranks
    return [Round("shift", 1, part, part, ranks - 1), Round("shift", 1, part, 0.0, ranks - 1)]


def allgather_ring(ranks: int, nbytes: float) -> list[Round]:
    """Every rank passes on what it got last; ``nbytes`` from each rank."""
    return [Round("shift", 1, nbytes, 0.0, ranks - 1)] if ranks > 1 else []


def allgather_bruck(ranks: int, nbytes: float) -> list[Round]:
    """Bruck's algorithm: what a rank holds doubles, the last message carries what is missing."""
    return [
        Round("shift", 1 << k, nbytes * min(1 << k, ranks - (1 << k))) for k in range(doubling_steps(ranks))
    ]


def barrier_dissemination(ranks: int, nbytes: float = 0.0) -> list[Round]:
    """Every rank hears of all others in ⌈lg P⌉ rounds of empty messages."""
    return [Round("shift", 1 << k, 0.0) for k in range(doubling_steps(ranks))]


def _halving(power: int, nbytes: float, spread: int) -> list[Round]:
    """Recursive halving on a power of two of ranks: half of the data to the nearest, a quarter further on."""
    return [
        Round("pairs", spread << k, nbytes / (2 << k), nbytes / (2 << k))
        for k in range(power.bit_length() - 1)
    ]


ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {
        "allreduce": {
            "recursive-doubling": allreduce_recursive_doubling,
            "rabenseifner": allreduce_rabenseifner,
            "ring": allreduce_ring,
        },
        "broadcast": {"binomial": broadcast_binomial, "scatter-allgather": broadcast_scatter_allgather},
        "reduce": {"binomial": reduce_binomial, "rabenseifner": reduce_rabenseifner},
        "allgather": {"ring": allgather_ring, "bruck": allgather_bruck},
        "barrier": {"dissemination": barrier_dissemination},
    }
)

# Where MPICH changes the algorithm: MPIR_CVAR_{ALLREDUCE,REDUCE}_SHORT_MSG_SIZE,
# MPIR_CVAR_BCAST_SHORT_MSG_SIZE, MPIR_CVAR_BCAST_MIN_PROCS and MPIR_CVAR_ALLGATHER_LONG_MSG_SIZE (bytes of
# all ranks together).
SHORT_REDUCTION = 2048
SHORT_BROADCAST, FEW_RANKS = 12_288, 8
LONG_ALLGATHER = 524_288


def rounds_of(operation: str, ranks: int, nbytes: float, algorithm: str = "auto") -> list[Round]:
    """The rounds of one collective operation.

    Args:
        operation: one of `ALGORITHMS`.
        ranks: P, at least 1; on one rank nothing is sent.
        nbytes: of the whole tensor; for "allgather", of what each rank gives.
        algorithm: a name of `ALGORITHMS` for this operation, or "auto": what MPICH takes by default.

    Raises:
        UserError: an unknown operation or algorithm, no rank, or a negative size.
    """
    known = ALGORITHMS[choose("collective operation", operation, ALGORITHMS)]
    if ranks < 1 or nbytes < 0 or not math.isfinite(nbytes):
        raise UserError(f"{operation}: {ranks} ranks and {nbytes} bytes; use at least 1 rank and 0 bytes")
    if algorithm == "auto":
        algorithm = automatic(operation, ranks, nbytes)
    return known[choose(f"algorithm of {operation}", algorithm, known)](ranks, nbytes)


def automatic(operation: str, ranks: int, nbytes: float) -> str:
    """The algorithm that MPICH takes by default."""
    if operation == "allreduce":
        return "recursive-doubling" if nbytes <= SHORT_REDUCTION else "rabenseifner"
    if operation == "reduce":
        return "binomial" if nbytes <= SHORT_REDUCTION else "rabenseifner"
    if operation == "broadcast":
        short = nbytes < SHORT_BROADCAST or ranks < FEW_RANKS
        return "binomial" if short else "scatter-allgather"
    if operation == "allgather":
        return "ring" if nbytes * ranks >= LONG_ALLGATHER else "bruck"
    return "dissemination"
