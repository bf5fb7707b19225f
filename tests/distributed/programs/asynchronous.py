"""Asynchronous schemes: nobody waits, nothing is lost, staleness is what it must be.

Who is where is arranged by messages that a rank waits for inside of its pass, not by sleeping.
"""

from functools import partial

import numpy as np
import problem

import meta500
from meta500.distributed import registry
from meta500.graph import Builder, ops
from meta500.optimizers import SGD

GAMMA, TOLERANCE = 0.1, 1e-12
comm = problem.communication()
rank, ranks = comm.rank, comm.size
world = comm.comm


def linear_network():
    """loss = mean over samples of x . w: its gradient, the mean sample, depends on no parameter."""
    builder = Builder("linear")
    x = builder.input("x", np.float64, (None, 3))
    w = builder.parameter("w", np.array([[1.0], [2.0], [3.0]]))
    product = builder.add(ops.MatMul, x, w)
    builder.output(builder.add(ops.ReduceMean, product, keepdims=0), "loss")
    return meta500.network(builder.build(), backend="numpy")


def sample(r, step):
    return np.random.default_rng([r, step]).normal(size=(1 + (r + step) % 3, 3))


def steps_of(r):
    """Different numbers of steps: somebody is always early."""
    return 4 + 2 * r


def all_gradients():
    return {(r, k): sample(r, k).mean(axis=0) for r in range(ranks) for k in range(steps_of(r))}


def holding(net, wait):
    """Make the passes of a network call ``wait()`` first."""
    inner = net.inference_and_backprop

    def held(*args, **kwargs):
        wait()
        return inner(*args, **kwargs)

    net.inference_and_backprop = held


def free_running(scheme, pause=False, **options):
    """All steps of a rank; with ``pause`` all ranks finish after two steps and then go on."""
    net = linear_network()
    distributed = registry.create(scheme, SGD(net, learning_rate=GAMMA), comm, **options)
    for step in range(steps_of(rank)):
        if pause and step == 2:
            distributed.finish()
            assert problem.same_everywhere(comm, problem.values(net)), f"{scheme}: different parameters"
        distributed.train({"x": sample(rank, step)})
    assert distributed.step_count == steps_of(rank)
    distributed.finish()
    assert problem.same_everywhere(comm, problem.values(net)), f"{scheme}: different parameters after finish"
    return distributed, problem.values(net)


START = np.array([1.0, 2.0, 3.0])
gradients = all_gradients()

# Every gradient is applied exactly once, whatever the order, that of the root included.
server, end = free_running("inconsistent-parameter-server", pause=True)
error = np.abs(end - (START - GAMMA * sum(gradients.values()))).max()
assert error <= TOLERANCE, f"parameter server: {error}"
if comm.is_root:
    assert {r: len(s) for r, s in server.staleness.items()} == {r: steps_of(r) for r in range(ranks)}
    assert sum(server.histogram().values()) == len(gradients)
    assert server.base.step_count == len(gradients)
    rows = server.rows(model="linear")
    assert [len(row.samples) for row in rows] == [steps_of(r) for r in range(ranks)]
    assert all(row.level == 3 and row.quantity == "staleness" for row in rows)
    if ranks == 1:
        assert server.histogram() == {0: 4}

# All changes are added, each clock weighted with samples; clocks beyond the shortest run have fewer ranks.
for bound in (0, 1, 3):
    stale, end = free_running("stale-synchronous", bound=bound)
    expected = START.copy()
    for clock in range(max(map(steps_of, range(ranks)))):
        there = [(len(sample(r, clock)), gradients[r, clock]) for r in range(ranks) if clock < steps_of(r)]
        expected -= GAMMA * sum(n * g for n, g in there) / sum(n for n, _ in there)
    error = np.abs(end - expected).max()
    assert error <= TOLERANCE, f"stale-synchronous {bound}: {error}"
    if comm.is_root:
        assert max(max(leads) for leads in stale.leads.values()) <= bound, stale.leads
        assert all(row.value <= bound for row in stale.rows())

# Averaging moves no mean: the mean over ranks is moved by the changes alone.
for topology in ("complete", "ring"):
    gossip, end = free_running("inconsistent-decentralized", pause=topology == "ring", topology=topology)
    expected = START - GAMMA * sum(gradients.values()) / ranks
    error = np.abs(end - expected).max()
    assert error <= TOLERANCE, f"gossip: {error}"
    total = sum(world.allgather(gossip.offers))
    assert total == sum(world.allgather(gossip.answers)) == (len(gradients) if ranks > 1 else 0)
    assert len(gossip.staleness) == len(gossip.rows()[0].samples) == steps_of(rank)

if ranks == 2:
    # Rank 1 is in its pass as long as rank 0 makes three steps, and the other way round.
    for slow in (0, 1):
        net = linear_network()
        distributed = registry.create("inconsistent-parameter-server", SGD(net), comm)
        if rank == slow:
            holding(net, lambda: world.recv(source=1 - rank))
            distributed.train({"x": sample(rank, 0)})
        else:
            for step in range(3):
                distributed.train({"x": sample(rank, step)})
            world.send(None, dest=slow)
        distributed.finish()
        if comm.is_root:
            assert distributed.staleness == {slow: [3], 1 - slow: [0, 0, 0]}, distributed.staleness

        net = linear_network()
        gossip = registry.create("inconsistent-decentralized", SGD(net), comm)
        if rank == slow:
            holding(net, lambda: world.recv(source=1 - rank))
            gossip.train({"x": sample(rank, 0)})
            assert gossip.staleness == [3], gossip.staleness
        else:
            for step in range(3):
                gossip.train({"x": sample(rank, step)})
            world.send(None, dest=slow)
        gossip.finish()

    # With bound 2 the fast rank makes two steps while the slow one is in its first, and no third: the third is
    # not over before the slow rank, woken up in its pass, has pushed.
    for slow in (0, 1):
        net = linear_network()
        stale = registry.create("stale-synchronous", SGD(net), comm, bound=2)
        if rank == slow:
            holding(net, lambda: world.recv(source=1 - rank))
            for step in range(3):
                stale.train({"x": sample(rank, step)})
        else:
            stale.train({"x": sample(rank, 0)})
            stale.train({"x": sample(rank, 1)})
            # From here on the slow rank may go on; had it been waited for before, nobody would have told it.
            holding(net, partial(world.send, None, dest=slow))
            stale.train({"x": sample(rank, 2)})
            for _ in range(2):
                world.send(None, dest=slow)
        stale.finish()
        if comm.is_root:
            assert max(stale.leads[1 - slow]) == 2, stale.leads

    # A pass that fails after its offer went out: what the neighbour added is still subtracted.
    net = linear_network()
    gossip = registry.create("inconsistent-decentralized", SGD(net, learning_rate=GAMMA), comm)
    gossip.train({"x": sample(rank, 0)})
    try:
        gossip.train({"x": sample(rank, 1)[:, :2]})
        raise AssertionError("two features are too few")
    except meta500.UserError:
        pass
    if rank == 0:
        gossip.train({"x": sample(rank, 1)})
    gossip.finish()
    moved = gradients[0, 0] + gradients[0, 1] + gradients[1, 0]
    error = np.abs(problem.values(net) - (START - GAMMA * moved / 2)).max()
    assert error <= TOLERANCE, f"gossip after a failure: {error}"

    # A dedicated server: rank 1 is the only worker and never stale, the end is that of a serial run.
    net = linear_network()
    dedicated = registry.create(
        "inconsistent-parameter-server", SGD(net, learning_rate=GAMMA), comm, dedicated=True
    )
    assert dedicated.workers == [1]
    if rank == 1:
        for step in range(3):
            dedicated.train({"x": sample(1, step)})
    else:
        try:
            dedicated.train({"x": sample(0, 0)})
            raise AssertionError("a dedicated server must not train")
        except meta500.UserError as error:
            assert "dedicated server" in str(error)
    dedicated.finish()
    expected = START - GAMMA * sum(sample(1, k).mean(axis=0) for k in range(3))
    assert np.abs(problem.values(net) - expected).max() <= TOLERANCE
    if comm.is_root:
        assert dedicated.staleness == {1: [0, 0, 0]}

if comm.is_root:
    print("checked")
