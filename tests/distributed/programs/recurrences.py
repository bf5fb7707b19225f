"""Schemes whose replicas differ, against serial simulations of their recurrences in plain numpy.

Every rank simulates all ranks. The simulations know gradients, weight matrices and update formulas, and nothing
of the code that they check.
"""

import sys

import numpy as np
import problem

from meta500.distributed import registry
from meta500.distributed.neighbors import ConsistentNeighbors

TOLERANCE = 1e-12
GAMMA = {"sgd": 0.1, "momentum": 0.05}

comm = problem.communication()
rank, ranks = comm.rank, comm.size
backend = sys.argv[1]
oracle = problem.network("numpy")
start = problem.values(oracle)


def matrices():
    """(option, W): what is asked of the scheme, and W written down by hand."""
    ring = np.zeros((ranks, ranks))
    for i in range(ranks):
        ring[i, list({i, (i + 1) % ranks, (i - 1) % ranks})] = 1 / len({i, (i + 1) % ranks, (i - 1) % ranks})
    path = np.eye(ranks)
    if ranks > 1:
        for i in range(ranks - 1):
            weight = 1 / 2 if ranks == 2 else 1 / 3
            path[i, i + 1] = path[i + 1, i] = weight
            path[i, i] -= weight
            path[i + 1, i + 1] -= weight
    # Doubly stochastic but not symmetric: every rank hears from the one before it alone.
    cycle = 0.75 * np.eye(ranks) + 0.25 * np.roll(np.eye(ranks), 1, axis=0)
    from meta500.distributed import topology

    random = topology.random_graph(ranks, 0.5, seed=3)
    return [("ring", ring), ("path", path), (cycle, cycle), (random, random)]


def momentum_change(velocity, gradient, name):
    """x_{t+1} - x_t and the new velocity of gradient descent with or without momentum 0.9."""
    if name == "sgd":
        return -GAMMA[name] * gradient, None
    velocity = gradient if velocity is None else 0.9 * velocity + gradient
    return -GAMMA[name] * velocity, velocity


def simulate_neighbors(W, batches, name):
    """X_{k+1} = W X_k + D(X_k): one row of X for each rank, D what its rule adds."""
    X, velocities = np.tile(start, (ranks, 1)), [None] * ranks
    for batch in batches:
        D = np.zeros_like(X)
        for i in range(ranks):
            mine = problem.part(batch, i, ranks)
            if len(mine["label"]):
                gradient = problem.gradient(oracle, X[i], mine)
                D[i], velocities[i] = momentum_change(velocities[i], gradient, name)
        X = W @ X + D
        yield X


def simulate_average(every, batches, name):
    X, velocities, seen = np.tile(start, (ranks, 1)), [None] * ranks, np.zeros(ranks)
    for step, batch in enumerate(batches, 1):
        for i in range(ranks):
            mine = problem.part(batch, i, ranks)
            if len(mine["label"]):
                gradient = problem.gradient(oracle, X[i], mine)
                change, velocities[i] = momentum_change(velocities[i], gradient, name)
                X[i] = X[i] + change
                seen[i] += len(mine["label"])
        if step % every == 0:
            X = np.tile(seen @ X / seen.sum(), (ranks, 1))
            seen[:] = 0
        yield X.copy()


def compare(distributed, simulation, batches, what):
    net = distributed.network
    for step, (batch, X) in enumerate(zip(batches, simulation, strict=True)):
        distributed.train(problem.part(batch, rank, ranks))
        error = np.abs(problem.values(net) - X[rank]).max()
        assert error <= TOLERANCE, f"{what} rank {rank} step {step}: {error}"
    if ranks > 2:
        assert np.abs(X - X[0]).max() > 1e-6, f"{what}: replicas are equal, nothing of W was seen"
    return X


checked = 0
batches = problem.batches(ranks, uneven="even" not in sys.argv[2:])
for name in GAMMA:
    for option, W in matrices():
        net = problem.network(backend)
        distributed = ConsistentNeighbors(problem.optimizer(name, net), comm, topology=option)
        X = compare(distributed, simulate_neighbors(W, batches, name), batches, f"neighbors {name} {option}")
        distributed.finish()
        error = np.abs(problem.values(net) - X.mean(axis=0)).max()
        assert error <= TOLERANCE, f"neighbors {name}: mean at the end, {error}"
        checked += 1
    for every in (2, 3):
        net = problem.network(backend)
        distributed = registry.create("model-average", problem.optimizer(name, net), comm, every=every)
        simulation = list(simulate_average(every, batches, name))
        for step, batch in enumerate(batches, 1):
            distributed.train(problem.part(batch, rank, ranks))
            error = np.abs(problem.values(net) - simulation[step - 1][rank]).max()
            assert error <= TOLERANCE, f"average every {every} {name} rank {rank} step {step}: {error}"
            if step % every == 0:
                assert problem.same_everywhere(comm, problem.values(net))
        distributed.finish()
        assert problem.same_everywhere(comm, problem.values(net))
        checked += 1
if comm.is_root:
    print("checked", checked)
