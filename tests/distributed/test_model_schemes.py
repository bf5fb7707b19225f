"""Schemes, predictions and calibration of the performance model."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from meta500.distributed import registry
from meta500.distributed.model.calibration import machine_from
from meta500.distributed.model.collectives import rounds_of
from meta500.distributed.model.computation import Computation
from meta500.distributed.model.links import Link, Piece
from meta500.distributed.model.machine import Channel, Efficiency, Machine
from meta500.distributed.model.microbenchmark import Measurements
from meta500.distributed.model.prediction import (
    Subject,
    efficiency,
    fit_scale,
    fit_single,
    limits,
    predict,
)
from meta500.distributed.model.schemes import SCHEMES, Setting, Tensors, exchange, serving
from meta500.errors import UserError

MIB = 2**20
# 1 MiB that travels alone, and 4 KiB of small tensors that are joined.
TENSORS = Tensors((("w", (512, 512), "float32"), *((f"b{i}", (64,), "float32") for i in range(16))))
ALPHA, BETA, GAMMA = 1e-5, 1e-9, 1e-10
MACHINE = Machine(Channel.uniform(ALPHA, BETA), gamma=GAMMA, cores=8)
COMPUTATION = Computation({1: 0.011, 8: 0.018, 64: 0.074}, update=0.002)
SUBJECT = Subject(MACHINE, COMPUTATION, TENSORS, batch=64)


def setting(ranks, machine=MACHINE, **options):
    return Setting(machine, TENSORS, ranks, 1, passing=0.074, updating=0.002, options=options)


def test_every_scheme_of_the_registry_has_a_model():
    assert set(SCHEMES) == set(registry.names())


def test_messages_are_those_that_the_interface_sends():
    assert TENSORS.nbytes == MIB + 4096
    assert sorted(TENSORS.messages(weighted=True)) == [4096 + 4, MIB]
    statistics = replace(TENSORS, statistics=(("mean", (8,), "float32"),))
    assert sorted(statistics.messages(weighted=False)) == [4096 + 32, MIB]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_consistent_decentralized_is_an_allreduce_of_all_messages(ranks):
    cost = exchange("consistent-decentralized", setting(ranks))
    lg, share, n = math.log2(ranks), (ranks - 1) / ranks, MIB + 4100
    expected = 2 * 2 * lg * ALPHA + 2 * share * n * BETA + share * n * GAMMA
    assert cost.seconds == pytest.approx(expected + 0.002)
    assert (cost.sent, cost.messages) == (pytest.approx(2 * share * n), 4 * lg)


def test_a_server_reduces_updates_and_broadcasts():
    cost = exchange("consistent-parameter-server", setting(4))
    reduce = 4 * 2 * ALPHA + 1.5 * TENSORS.nbytes * BETA + 0.75 * TENSORS.nbytes * GAMMA
    broadcast = 2 * (ALPHA + TENSORS.nbytes * BETA)
    samples = 2 * (ALPHA + 8 * BETA + 8 * GAMMA)
    assert cost.seconds == pytest.approx(reduce + broadcast + samples + 0.002)


def test_neighbors_cost_the_same_on_any_ring():
    costs = [exchange("consistent-neighbors", setting(p)).seconds for p in (3, 64, 4096)]
    message = ALPHA + TENSORS.nbytes * BETA
    assert costs == pytest.approx([2 * message + 0.002] * 3)
    complete = exchange("consistent-neighbors", setting(8, topology="complete"))
    assert (complete.messages, complete.seconds) == (7, pytest.approx(7 * message + 0.002))
    with pytest.raises(UserError, match="a topology given as a matrix"):
        exchange("consistent-neighbors", setting(2, topology=[[0.5, 0.5], [0.5, 0.5]]))
    # With two ranks there is one neighbour.
    assert exchange("consistent-neighbors", setting(2)).seconds == pytest.approx(message + 0.002)


def test_averages_every_few_steps_cost_that_much_less():
    every = [exchange("model-average", setting(4, every=k)).seconds - 0.002 for k in (1, 4)]
    assert every[0] == pytest.approx(4 * every[1])


def test_an_asynchronous_server_is_a_queue():
    small, large = setting(2), setting(4096)
    service = serving(small)
    assert service == pytest.approx(2 * (ALPHA + TENSORS.nbytes * BETA) + 0.002)
    assert exchange("inconsistent-parameter-server", small).seconds == pytest.approx(service)
    assert exchange("inconsistent-parameter-server", large).seconds == pytest.approx(
        4096 * serving(large) - 0.074
    )


def test_without_a_spare_core_the_server_takes_time_from_its_worker():
    crowded = replace(MACHINE, cores=2, ranks_per_node=2)
    found = exchange("inconsistent-parameter-server", setting(2, crowded)).seconds
    assert found == pytest.approx(1.5 * serving(setting(2)))


def test_a_bound_of_zero_waits_for_all():
    found = [exchange("stale-synchronous", setting(8, bound=s)).seconds for s in (0, 1)]
    assert found[0] == pytest.approx(8 * serving(setting(8)))
    assert found[1] == exchange("inconsistent-parameter-server", setting(8)).seconds


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_one_rank_exchanges_nothing_and_more_cost_more(scheme):
    alone = predict(SUBJECT, scheme, 1)
    assert alone.seconds == pytest.approx(0.076)
    assert (alone.exchange.sent, alone.exchange.messages) == (0, 0)
    seconds = [predict(SUBJECT, scheme, p).seconds for p in (1, 2, 8, 64, 512, 4096)]
    assert all(b >= a for a, b in pairwise(seconds))
    # What is sent during the pass, by a thread on a core of its own, may be free.
    assert seconds[1] > seconds[0] or scheme == "inconsistent-decentralized"


def test_weak_and_strong_scaling_share_one_rank():
    weak, strong = (predict(SUBJECT, "consistent-decentralized", 1, kind) for kind in ("weak", "strong"))
    assert weak.seconds == strong.seconds
    strong = predict(SUBJECT, "consistent-decentralized", 8, "strong")
    assert (strong.batch, strong.samples) == (8, 64)
    assert strong.passing == pytest.approx(0.018)
    assert efficiency(strong, weak.seconds) == pytest.approx(0.076 / (8 * strong.seconds))
    assert predict(SUBJECT, "consistent-decentralized", 8).samples == 512
    with pytest.raises(UserError, match="a batch of 64 cannot be divided among 65 ranks"):
        predict(SUBJECT, "consistent-decentralized", 65, "strong")
    with pytest.raises(UserError, match="unknown scheme 'consistent'"):
        predict(SUBJECT, "consistent", 2)


def test_four_ranks_on_two_cores_take_turns():
    crowded = replace(SUBJECT, machine=replace(MACHINE, cores=2, ranks_per_node=4, balance=1.0))
    roomy = predict(SUBJECT, "consistent-decentralized", 4)
    found = predict(crowded, "consistent-decentralized", 4)
    assert found.passing == pytest.approx(2 * roomy.passing)
    assert found.exchanging > 2 * roomy.exchanging * 0.99
    # Three on two cores wait for the core that has two, if they synchronise; else they share evenly.
    assert predict(crowded, "consistent-decentralized", 3).passing == pytest.approx(2 * roomy.passing)
    assert predict(crowded, "inconsistent-decentralized", 3).passing == pytest.approx(1.5 * roomy.passing)


def test_waiting_for_ranks_on_shared_cores_costs_turns():
    machine = replace(MACHINE, cores=2, ranks_per_node=4)
    for scheme, count in (("consistent-decentralized", 1), ("consistent-parameter-server", 2)):
        costs = [
            exchange(scheme, setting(p, replace(machine, turn=t))).seconds
            for t in (0, 0.5)
            for p in (2, 3, 4)
        ]
        assert np.subtract(costs[3:], costs[:3]) == pytest.approx([0.0, 0.25 * count, 0.5 * count])


def test_only_the_root_updates_with_a_server():
    crowded = replace(SUBJECT, machine=replace(MACHINE, cores=1, ranks_per_node=4))
    server = predict(crowded, "consistent-parameter-server", 4)
    without = replace(crowded, computation=replace(COMPUTATION, update=0.0))
    assert server.seconds - predict(without, "consistent-parameter-server", 4).seconds == pytest.approx(0.002)


def test_scales_are_found_again_and_stay_near_one_where_nothing_shows():
    slow = replace(SUBJECT, machine=replace(MACHINE, inside=Channel.uniform(1e-4, 5e-8)))
    scaled = replace(slow, scales={"consistent-decentralized": 2.5})
    steps = [(p, "weak", predict(scaled, "consistent-decentralized", p).seconds) for p in (2, 3, 4)]
    assert fit_scale(slow, "consistent-decentralized", steps) == pytest.approx(2.5, rel=0.02)
    assert fit_scale(scaled, "consistent-decentralized", steps) == pytest.approx(2.5, rel=0.02)
    assert fit_scale(slow, "consistent-decentralized", []) == 1.0
    assert fit_scale(slow, "consistent-decentralized", [(1, "weak", 9.0)]) == 1.0
    # An exchange of a thousandth of the step, and steps that are 1 % off.
    fast = replace(SUBJECT, machine=replace(MACHINE, inside=Channel.uniform(1e-6, 5e-11)))
    noisy = [(p, "weak", 1.01 * predict(fast, "consistent-decentralized", p).seconds) for p in (2, 4)]
    assert fit_scale(fast, "consistent-decentralized", noisy) == pytest.approx(1.0, rel=0.2)
    assert fit_single(SUBJECT, "consistent-decentralized", [0.152, 0.152]) == pytest.approx(2.0)


def test_where_schemes_stop_paying():
    counts = [1 << k for k in range(13)]
    curves = {
        scheme: [predict(SUBJECT, scheme, p) for p in counts]
        for scheme in ("consistent-decentralized", "inconsistent-parameter-server")
    }
    found = limits(curves, threshold=0.5)
    server = found["inconsistent-parameter-server"]
    service = serving(setting(2))
    first = next(p for p in counts if p * service > 2 * 0.076)
    assert server.inefficient == first
    assert server.overtaken is not None and server.by == "consistent-decentralized"
    assert server.slower is not None and server.slower > 0.076 / service
    assert found["consistent-decentralized"].inefficient is None
    assert found["consistent-decentralized"].overtaken is None
    with pytest.raises(UserError, match="between 0 and 1"):
        limits(curves, 1.5)


TRUE = Machine(
    Channel(Link((Piece(0, 2e-6, 4e-10), Piece(65536, 20e-6, 2e-10))), Link((Piece(0, 3e-6, 5e-10),))),
    gamma=8e-11,
    cores=2,
    shared=Channel.uniform(8e-6, 1e-9),
    copy=3e-11,
    call=2e-5,
    tensor=1e-6,
    ranks_per_node=4,
    efficiency={"allreduce": Efficiency((8.0, 1e7), (1.5, 3.0))},
)


def measured_on(machine):
    """What the micro-benchmark would find on a machine."""
    found = Measurements()
    sizes = [4 * 4**k for k in range(12)]
    for place in ("inside", "shared"):
        for kind in ("one_way", "exchange"):
            link = getattr(getattr(machine, place), kind)
            found.messages |= {(place, kind, n): [link.seconds(n)] * 3 for n in sizes}
    for ranks in (2, 3, 4):
        for n in (8, 1024, 65536, MIB, 16 * MIB):
            for operation in ("allreduce", "broadcast", "reduce"):
                seconds = machine.collective(operation, ranks, n)
                if operation != "allreduce":
                    seconds += machine.collective("allreduce", ranks, 8)
                found.collectives[operation, ranks, n] = [seconds] * 3
    found.local = {name: [getattr(machine, name)] for name in ("gamma", "copy", "call", "tensor")}
    return Measurements.from_dict(json.loads(json.dumps(found.to_dict())))


def test_calibration_finds_the_machine_that_was_measured():
    found = machine_from(measured_on(TRUE), cores=2, ranks_per_node=4)
    assert found.inside.one_way.seconds(10**6) == pytest.approx(TRUE.inside.one_way.seconds(10**6), rel=1e-6)
    for operation in ("allreduce", "broadcast", "reduce"):
        for ranks in (2, 3, 4):
            for n in (8, 65536, 16 * MIB):
                expected = TRUE.collective(operation, ranks, n)
                assert found.collective(operation, ranks, n) == pytest.approx(expected, rel=1e-6), (
                    operation,
                    n,
                )


def test_calibration_does_not_look_at_what_it_is_checked_with():
    honest = measured_on(TRUE)
    wrong = measured_on(TRUE)
    for key in wrong.collectives:
        if key[1] == 4:
            wrong.collectives[key] = [1.0]
    without = [machine_from(m, cores=2, ranks_per_node=4, without=(4,)) for m in (honest, wrong)]
    assert without[0] == without[1]
    assert machine_from(wrong, cores=2, ranks_per_node=4) != without[0]
    assert without[0].collective("allreduce", 4, MIB) == pytest.approx(
        TRUE.collective("allreduce", 4, MIB), rel=0.01
    )


def test_collectives_between_nodes_have_a_factor_of_their_own():
    nodes = replace(TRUE, between=Channel.uniform(3e-5, 1e-9), ranks_per_node=2)
    measured = measured_on(nodes)
    links = nodes.between.one_way
    sizes = [4 * 4**k for k in range(12)]
    measured.messages |= {
        ("between", kind, n): [links.seconds(n)] for n in sizes for kind in ("one_way", "exchange")
    }
    for n in (65536, MIB):
        for ranks in (3, 4):
            near, far = nodes.parts(rounds_of("allreduce", ranks, n), ranks)
            assert far > 0 and near > 0
            inside = near * nodes.efficiency["allreduce"].at(n)
            measured.collectives["allreduce", ranks, n] = [inside + 2 * far]
    found = machine_from(measured, cores=2, ranks_per_node=2)
    assert [found.far["allreduce"].at(n) for n in (65536, MIB)] == pytest.approx([2.0, 2.0], rel=1e-6)
    assert found.collective("allreduce", 4, MIB) == pytest.approx(
        measured.collectives["allreduce", 4, MIB][0], rel=1e-6
    )


def test_calibration_needs_messages():
    with pytest.raises(UserError, match="at least 2 ranks"):
        machine_from(Measurements(), cores=2)


def test_efficiency_between_and_beyond_sizes():
    curve = Efficiency((10.0, 1000.0), (1.0, 4.0))
    assert [curve.at(n) for n in (1, 10, 100, 1000, 10**6)] == pytest.approx([1, 1, 2, 4, 4])
    assert Efficiency().at(5) == 1.0
    with pytest.raises(UserError, match="must rise"):
        Efficiency((10.0, 5.0), (1.0, 1.0))
    assert np.isfinite(curve.at(0))
