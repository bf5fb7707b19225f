"""Links, machines, computation and queues of the performance model: exact values and simulations."""

import itertools
import json
import math

import numpy as np
import pytest

from meta500.distributed.model.collectives import Round
from meta500.distributed.model.computation import Computation, jitter_of
from meta500.distributed.model.links import Link, Piece, fit
from meta500.distributed.model.machine import Channel, Efficiency, Machine
from meta500.distributed.model.queueing import cycle_exponential, cycle_fixed, saturation
from meta500.errors import UserError

SIZES = [4 * 4**k for k in range(13)]


def test_fit_finds_one_line_and_its_parameters():
    link = fit(SIZES, [2e-6 + n * 1e-10 for n in SIZES])
    assert len(link.pieces) == 1
    assert (link.latency, link.bandwidth) == (pytest.approx(2e-6, rel=1e-9), pytest.approx(1e10, rel=1e-9))


def test_fit_finds_where_the_protocol_changes():
    def eager(n):
        return 1e-6 + n * 5e-10

    def rendezvous(n):
        return 20e-6 + n * 1e-10

    times = [eager(n) if n < 65536 else rendezvous(n) for n in SIZES]
    link = fit(SIZES, times)
    assert [piece.start for piece in link.pieces] == [0, 65536]
    assert [link.seconds(n) for n in SIZES] == pytest.approx(times, rel=1e-9)
    assert Link.from_dict(json.loads(json.dumps(link.to_dict()))) == link


def test_fit_is_not_led_astray_by_noise():
    rng = np.random.default_rng(0)
    times = [(3e-6 + n * 2e-10) * rng.lognormal(0, 0.1) for n in SIZES]
    link = fit(SIZES, times)
    assert len(link.pieces) <= 2
    assert all(link.seconds(n) == pytest.approx(3e-6 + n * 2e-10, rel=0.25) for n in SIZES)


@pytest.mark.parametrize(
    ("sizes", "times"),
    [([8], [1e-6]), ([8, 8], [1e-6, 2e-6]), ([8, 16], [1e-6, 0.0]), ([8, 16], [1, math.nan])],
)
def test_fit_refuses_what_is_no_measurement(sizes, times):
    with pytest.raises(UserError, match="at least two different sizes with positive times"):
        fit(sizes, times)


def test_links_refuse_impossible_parameters():
    with pytest.raises(UserError, match="start at 0"):
        Link((Piece(8, 1e-6, 0),))
    with pytest.raises(UserError, match="not negative"):
        Link.uniform(-1e-6, 0)


FLAT = Machine(Channel.uniform(3.0, 0.5), gamma=0.125, cores=64)
# Two nodes of four: a message between them takes 10 + 2 n.
CLUSTER = Machine(
    Channel.uniform(3.0, 0.5), gamma=0.125, cores=4, between=Channel.uniform(10.0, 2.0), ranks_per_node=4
)


def test_rounds_on_a_flat_machine_are_the_formula():
    assert (
        FLAT.collective("allreduce", 8, 64, algorithm="ring") == 14 * 3 + 1.75 * 64 * 0.5 + 0.875 * 64 * 0.125
    )


def crossings(entry, ranks, node):
    """Messages leaving the busiest node, counted rank by rank."""
    leaving = [0] * -(-ranks // node)
    for rank in range(ranks):
        target = (rank + entry.distance) % ranks if entry.pattern == "shift" else rank ^ entry.distance
        if entry.pattern == "tree" and (rank % (2 * entry.distance) or target >= ranks):
            continue
        if target < ranks and target // node != rank // node:
            leaving[rank // node] += 1
    return max(leaving)


@pytest.mark.parametrize("node", [1, 2, 4, 8])
@pytest.mark.parametrize("pattern", ["shift", "pairs", "tree"])
@pytest.mark.parametrize("distance", [1, 2, 4, 8, 16])
def test_messages_that_share_the_way_out_of_a_node(pattern, distance, node):
    machine = Machine(
        Channel.uniform(0.0, 0.0),
        gamma=0.0,
        cores=node,
        between=Channel.uniform(0.0, 1.0),
        ranks_per_node=node,
    )
    entry = Round(pattern, distance, 7.0)
    assert machine.seconds([entry], 32) == 7.0 * crossings(entry, 32, node)


def test_a_ring_over_nodes_waits_for_its_slowest_link():
    part = 64 / 8
    expected = 14 * (10 + part * 2) + 7 * part * 0.125
    assert CLUSTER.collective("allreduce", 8, 64, algorithm="ring") == expected


def test_doubling_goes_over_the_network_only_for_distant_partners():
    near, far = 3 + 64 * 0.5, 10 + 64 * 2 * 4  # four ranks send at once through one adapter
    combined = 3 * 64 * 0.125
    found = CLUSTER.collective("allreduce", 8, 64, algorithm="recursive-doubling")
    assert found == 2 * near + far + combined


def test_ranks_on_one_core_are_slower():
    machine = Machine(
        Channel.uniform(1.0, 0.5), gamma=0.25, cores=2, shared=Channel.uniform(5.0, 1.5), ranks_per_node=4
    )
    assert [machine.sharing(p) for p in (1, 2, 3, 4)] == [1, 1, 1.5, 2]
    assert machine.sharing(2, threads=2) == 2
    assert machine.message(2, 8) == 1 + 8 * 0.5
    assert machine.message(3, 8) == 3 + 8 * 1.0
    assert machine.message(4, 8) == 5 + 8 * 1.5
    round_ = [Round("pairs", 1, 8, 8)]
    assert machine.seconds(round_, 4) == 5 + 8 * 1.5 + 8 * 0.25 * 2


def test_collectives_are_scaled_by_their_efficiency():
    curve = Efficiency((1024.0, 16384.0), (2.0, 8.0))
    machine = Machine(FLAT.inside, gamma=0.125, cores=64, efficiency={"allreduce": curve})
    assert machine.collective("allreduce", 4, 4096) == pytest.approx(
        4 * FLAT.collective("allreduce", 4, 4096)
    )
    assert machine.collective("broadcast", 4, 4096) == FLAT.collective("broadcast", 4, 4096)
    assert Machine.from_dict(json.loads(json.dumps(machine.to_dict()))) == machine


def test_a_given_network_replaces_what_is_between_nodes():
    machine = FLAT.with_network(7.0, None)
    assert machine.between.one_way.seconds(2) == 7.0 + 2 * 0.5
    assert FLAT.with_network(None, None) is FLAT
    assert CLUSTER.with_network(None, 4.0).between.exchange.seconds(1) == 14.0


def test_machines_refuse_impossible_numbers():
    with pytest.raises(UserError, match="both must be at least 1"):
        Machine(FLAT.inside, gamma=0.0, cores=0)
    with pytest.raises(UserError, match="gamma -1"):
        Machine(FLAT.inside, gamma=-1.0, cores=1)


def test_a_pass_over_batches_between_and_beyond_the_measured_ones():
    model = Computation({8: 1.0, 16: 1.8, 32: 3.4})
    assert model.alone(12) == pytest.approx(1.4)
    assert model.alone(64) == pytest.approx(6.6)
    assert model.alone(1) == pytest.approx(0.3)
    assert model.alone(0) == 0
    assert Computation({4: 2.0}).alone(6) == 3.0
    # A line that would reach zero before the batch does: never less than in proportion.
    assert Computation({8: 1.0, 16: 3.0}).alone(4) == 0.5
    assert Computation.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def fullest(seconds, ranks, cores):
    """Turns on the fullest of the cores, ranks dealt out to cores one by one."""
    return max(len(range(core, ranks, cores)) for core in range(cores)) * seconds


@pytest.mark.parametrize(("ranks", "cores"), list(itertools.product(range(1, 9), (1, 2, 3, 4))))
def test_short_steps_end_with_the_fullest_core_and_long_ones_with_an_even_share(ranks, cores):
    model = Computation({1: 1.0})
    assert model.contention(1e-3, ranks, 1, cores, balance=10.0) * 1e-3 == pytest.approx(
        fullest(1e-3, ranks, cores)
    )
    assert model.contention(1e3, ranks, 1, cores, balance=0.0) == pytest.approx(max(1, ranks / cores))


def test_memory_is_shared_more_the_more_cores_compute():
    model = Computation({1: 1.0}, busy=1.6, slicing=1.1)
    found = [model.contention(1.0, p, 1, 4, balance=0.0) for p in (1, 2, 3, 4, 8)]
    assert found == pytest.approx([1.0, 1.2, 1.4, 1.6, 2 * 1.6 * 1.1])


def test_the_slowest_of_many_log_normal_passes():
    rng = np.random.default_rng(1)
    model = Computation({1: 1.0}, jitter=0.2)
    for ranks in (2, 4, 64):
        longest = np.exp(0.2 * rng.standard_normal((20_000, ranks))).max(1)
        assert model.slowest(ranks) == pytest.approx(np.median(longest), rel=0.01)
    assert model.slowest(1) == 1.0
    assert jitter_of(np.exp(0.2 * rng.standard_normal(50_000))) == pytest.approx(0.2, rel=0.02)
    assert jitter_of([1.0, 2.0]) == 0.0


def test_computation_refuses_impossible_numbers():
    for values in ({"passes": {}}, {"passes": {0: 1.0}}, {"passes": {1: 1.0}, "busy": 0.5}):
        with pytest.raises(UserError, match="computation:"):
            Computation(**values)


def simulated_cycle(workers, think, service, draw, cycles):
    """Mean seconds per request and worker of a first-come first-served server, event by event."""
    ready = [think] * workers
    free, served, begin = 0.0, 0, 0.0
    skip = workers * cycles // 10
    for count in range(workers * cycles):
        who = min(range(workers), key=ready.__getitem__)
        free = max(free, ready[who]) + draw(service)
        ready[who] = free + draw(think)
        if count == skip:
            begin = free
        served = count
    return (free - begin) * workers / (served - skip)


@pytest.mark.parametrize(
    ("workers", "think", "service"), [(1, 3, 1), (3, 5, 1), (4, 3, 1), (6, 3, 1), (5, 0, 2)]
)
def test_a_server_with_fixed_times_is_waited_for_as_simulated(workers, think, service):
    found = simulated_cycle(workers, think, service, lambda seconds: seconds, 500)
    assert cycle_fixed(workers, think, service) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize(("workers", "think", "service"), [(1, 3, 1), (3, 5, 1), (4, 3, 1), (8, 3, 1)])
def test_a_server_with_exponential_times_is_waited_for_as_simulated(workers, think, service):
    rng = np.random.default_rng(2)
    found = simulated_cycle(workers, think, service, rng.exponential, 20_000)
    assert cycle_exponential(workers, think, service) == pytest.approx(found, rel=0.03)
    assert cycle_exponential(workers, think, service) >= cycle_fixed(workers, think, service)


def test_queues_know_where_the_server_is_full():
    assert saturation(3.0, 1.0) == 4.0 and saturation(1.0, 0.0) == math.inf
    with pytest.raises(UserError, match="at least 1 worker"):
        cycle_fixed(0, 1.0, 1.0)
