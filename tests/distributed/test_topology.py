"""Weight matrices of neighbours; without MPI."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500 import UserError
from meta500.distributed import topology


@given(st.sampled_from(sorted(topology.TOPOLOGIES)), st.integers(1, 12), st.integers(0, 5))
def test_every_topology_averages_to_the_mean(name, size, seed):
    W = topology.weights_for(name, size, seed)
    assert W.shape == (size, size)
    np.testing.assert_allclose(W.sum(axis=0), 1, atol=1e-14)
    np.testing.assert_allclose(W.sum(axis=1), 1, atol=1e-14)
    np.testing.assert_array_equal(W, W.T)
    assert (W >= 0).all() and topology.second_eigenvalue(W) < 1 - 1e-9
    x = np.random.default_rng(seed).normal(size=size)
    for _ in range(2000):
        x = W @ x
    np.testing.assert_allclose(x, x.mean(), atol=1e-9)


@given(st.integers(1, 9), st.floats(0, 1), st.integers(0, 20))
def test_metropolis_weights_of_random_graphs(size, probability, seed):
    W = topology.random_graph(size, probability, seed)
    np.testing.assert_array_equal(W, topology.random_graph(size, probability, seed))
    topology.check(W, size, symmetric=True)
    edges = (W > 0) & ~np.eye(size, dtype=bool)
    degrees = edges.sum(axis=1)
    for i, j in np.argwhere(edges):
        assert W[i, j] == 1 / (1 + max(degrees[i], degrees[j]))


def test_rings_of_one_and_two_count_the_neighbour_once():
    np.testing.assert_array_equal(topology.ring(1), [[1]])
    np.testing.assert_array_equal(topology.ring(2), [[0.5, 0.5], [0.5, 0.5]])
    np.testing.assert_array_equal(topology.ring(3), np.full((3, 3), 1 / 3))
    assert topology.neighbors(topology.ring(2), 0) == [1]
    assert topology.neighbors(topology.ring(5), 0) == [1, 4]


def test_neighbors_of_a_directed_cycle_are_both_ends_of_every_edge():
    W = 0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=0)
    assert topology.neighbors(topology.check(W, 4), 0) == [1, 3]


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([[1, 0], [0, 1]], "falls apart"),
        ([[0.5, 0.5], [0.4, 0.6]], "column 0 sums to 0.9"),
        ([[0.5, 0.4], [0.5, 0.6]], "row 0 sums to 0.9"),
        ([[1.5, -0.5], [-0.5, 1.5]], "at least 0"),
        ([[float("nan"), 1], [1, 0]], "at least 0"),
        ([[1.0]], "2 x 2"),
        ("tree", "ring"),
        ([["a", "b"], ["c", "d"]], "no matrix"),
    ],
)
def test_matrices_that_cannot_be_averaged_with(matrix, words):
    with pytest.raises(UserError, match=words):
        topology.weights_for(matrix, 2)


def test_claimed_symmetry_is_checked():
    cycle = 0.5 * np.eye(3) + 0.5 * np.roll(np.eye(3), 1, axis=0)
    topology.check(cycle, 3)
    with pytest.raises(UserError, match="not symmetric"):
        topology.check(cycle, 3, symmetric=True)


def test_an_undirected_graph_is_symmetric():
    with pytest.raises(UserError, match="symmetric"):
        topology.metropolis(np.array([[0, 1], [0, 0]]))
    with pytest.raises(UserError, match="probability"):
        topology.random_graph(3, 1.5)
