"""Who talks to whom: weight matrices for averaging with neighbours.

W[i, j] is the weight that rank i gives to the parameters of rank j. Averaging keeps the mean over ranks if
all columns sum to one, and keeps equal parameters equal if all rows do; it comes to an agreement if the graph
of W is connected. The smaller the second largest absolute eigenvalue of W, the faster (Lian et al., "Can
decentralized algorithms outperform centralized algorithms?", NeurIPS 2017, arXiv:1705.09056, assumption 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meta500.errors import UserError, choose

_TOLERANCE = 1e-12


def ring(size: int) -> np.ndarray:
    """Each rank with the one before and the one after it, all with equal weights: (size, size) float64.

    1/3 each from 3 ranks on; with 2 ranks the one neighbour counts once: 1/2 each.
    """
    matrix = np.zeros((size, size))
    for rank in range(size):
        members = {(rank - 1) % size, rank, (rank + 1) % size}
        matrix[rank, sorted(members)] = 1.0 / len(members)
    return matrix


def complete(size: int) -> np.ndarray:
    """Each rank with all others, weight 1 / size: (size, size) float64."""
    return np.full((size, size), 1.0 / size)


def path(size: int) -> np.ndarray:
    """A chain 0 - 1 - ... - (size - 1) with Metropolis weights: (size, size) float64."""
    adjacency = np.zeros((size, size), bool)
    for rank in range(size - 1):
        adjacency[rank, rank + 1] = adjacency[rank + 1, rank] = True
    return metropolis(adjacency)


def star(size: int) -> np.ndarray:
    """Rank 0 with all others, Metropolis weights: (size, size) float64."""
    adjacency = np.zeros((size, size), bool)
    adjacency[0, 1:] = adjacency[1:, 0] = True
    return metropolis(adjacency)


def random_graph(size: int, probability: float = 0.5, seed: int = 0) -> np.ndarray:
    """A connected random graph with Metropolis weights: (size, size) float64.

    A random spanning tree (each rank joined to one drawn from those before it, in random order), and each
    other edge with ``probability``. The same on all ranks for the same ``seed``.
    """
    if not 0.0 <= probability <= 1.0:
        raise UserError(f"the probability of an edge must be between 0 and 1, got {probability!r}")
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((size, size)) < probability, 1)
    order = rng.permutation(size)
    for index in range(1, size):
        upper[order[index], order[rng.integers(index)]] = True
    return metropolis(upper | upper.T)


def metropolis(adjacency: np.ndarray) -> np.ndarray:
    """Symmetric, doubly stochastic weights for any undirected graph: (size, size) float64.

    W_ij = 1 / (1 + max(degree_i, degree_j)) for an edge, W_ii what is left (Xiao, Boyd and Kim, "Distributed
    average consensus with least-mean-square deviation", 2007).

    Args:
        adjacency: (size, size), true where there is an edge; the diagonal is ignored.

    Raises:
        UserError: not square or not symmetric.
    """
    edges = np.array(adjacency, bool)
    if edges.ndim != 2 or edges.shape[0] != edges.shape[1] or not np.array_equal(edges, edges.T):
        raise UserError(f"an undirected graph needs a square symmetric matrix, got shape {list(edges.shape)}")
    np.fill_diagonal(edges, False)
    degrees = edges.sum(axis=1)
    matrix = np.where(edges, 1.0 / (1.0 + np.maximum.outer(degrees, degrees)), 0.0)
    np.fill_diagonal(matrix, 1.0 - matrix.sum(axis=1))
    return matrix


TOPOLOGIES: dict[str, Callable[..., np.ndarray]] = {
    "complete": complete,
    "path": path,
    "random": random_graph,
    "ring": ring,
    "star": star,
}


def weights_for(topology: str | Any, size: int, seed: int = 0) -> np.ndarray:
    """The checked weight matrix of a topology's name, or of a given matrix: (size, size) float64.

    ``seed`` is that of "random".

    Raises:
        UserError: as :func:`check`; an unknown name.
    """
    if isinstance(topology, str):
        make = TOPOLOGIES[choose("topology", topology, TOPOLOGIES)]
        return check(make(size, seed=seed) if make is random_graph else make(size), size)
    return check(topology, size)


def check(matrix: Any, size: int, *, symmetric: bool = False) -> np.ndarray:
    """A weight matrix as (size, size) float64, if parameters can be averaged with it.

    Args:
        matrix: W, W[i, j] being what rank i gives to rank j's parameters.
        size: number of ranks.
        symmetric: it is claimed that W is symmetric, which D-PSGD's convergence theorem asks for.

    Raises:
        UserError: not square of this size, an entry that is negative or not finite, a row or column whose
            sum is not 1 (not doubly stochastic), not symmetric though claimed, or a graph that falls apart;
            names the row, column or ranks.
    """
    try:
        weights = np.array(matrix, np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"the weights of neighbours are no matrix of numbers: {error}") from None
    if weights.shape != (size, size):
        raise UserError(
            f"the weights of neighbours must be a {size} x {size} matrix for {size} rank(s), "
            f"got shape {list(weights.shape)}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        i, j = np.argwhere(~np.isfinite(weights) | (weights < 0))[0]
        raise UserError(f"weight W[{i}, {j}] = {weights[i, j]} of neighbours must be a number of at least 0")
    for axis, word in ((1, "row"), (0, "column")):
        sums = weights.sum(axis=axis)
        wrong = np.flatnonzero(np.abs(sums - 1.0) > _TOLERANCE * size)
        if len(wrong):
            raise UserError(
                f"the weights of neighbours are not doubly stochastic: {word} {wrong[0]} sums to "
                f"{sums[wrong[0]]:.15g}, not 1 (topology.metropolis makes such weights for any graph)"
            )
    if symmetric and np.abs(weights - weights.T).max() > _TOLERANCE:
        i, j = np.unravel_index(np.abs(weights - weights.T).argmax(), weights.shape)
        raise UserError(
            f"the weights of neighbours are not symmetric: W[{i}, {j}] = {weights[i, j]:.15g}, "
            f"W[{j}, {i}] = {weights[j, i]:.15g}"
        )
    reached = _reached(weights)
    if not reached.all():
        lost = ", ".join(map(str, np.flatnonzero(~reached)))
        raise UserError(
            f"the graph of the weights falls apart: rank(s) {lost} never hear from rank 0; "
            "without a path between all ranks they train different models"
        )
    return weights


def neighbors(matrix: np.ndarray, rank: int) -> list[int]:
    """The other ranks that ``rank`` hears from, or that hear from it, in ascending order."""
    linked = (matrix[rank] != 0) | (matrix[:, rank] != 0)
    return [int(other) for other in np.flatnonzero(linked) if other != rank]


def second_eigenvalue(matrix: np.ndarray) -> float:
    """max(|λ₂|, |λ_n|) of W, between 0 and 1: what one averaging leaves of the disagreement, at most."""
    values = np.sort(np.abs(np.linalg.eigvals(matrix)))
    return float(values[-2]) if len(values) > 1 else 0.0


def _reached(weights: np.ndarray) -> np.ndarray:
    """Ranks that there is a path to from rank 0. For doubly stochastic W then also one back."""
    reached = np.zeros(len(weights), bool)
    reached[0] = True
    for _ in range(len(weights)):
        reached |= weights[:, reached].any(axis=1)
    return reached
