"""The micro-benchmark on real ranks, and what it knows about other programs."""

import json

from meta500.distributed.model.calibration import machine_from
from meta500.distributed.model.microbenchmark import OPERATIONS, Measurements
from meta500.distributed.model.stage import least_disturbed, on_core
from meta500.metrics.contention import cores_here

PROGRAM = """
import json, sys, time
from meta500.distributed.model.microbenchmark import measure
from meta500.distributed.model.stage import Stage
from meta500.distributed.mpi import mpi

stage = Stage(mpi().COMM_WORLD)
turns = []
for ranks in ([0], [0, 2], [1, 2, 0]):
    found = stage.act(ranks, lambda group: (group.Get_rank(), group.Get_size(), group.allreduce(stage.rank)))
    turns.append(found)
slept = time.process_time()
stage.act([0], lambda group: time.sleep(1.0))
slept = time.process_time() - slept
measured = measure(stage, (1, 2, 3), sizes=(4, 1024, 65536), collective_sizes=(8, 65536), rounds=2)
everything = stage.comm.gather((turns, slept, stage.nodes, len(stage.disturbance)))
if stage.rank == 0:
    print(json.dumps({"ranks": everything, "measured": measured.to_dict()}))
"""


def test_ranks_take_turns_and_measure(mpiexec):
    found = json.loads(mpiexec(3, PROGRAM).stdout)
    turns = [turn for turn, _, _, _ in found["ranks"]]
    # A rank of its group, its size, and the sum of the group's ranks in the world; None for those that slept.
    assert turns[0] == [[0, 1, 0], [0, 2, 2], [2, 3, 3]]
    assert turns[1] == [None, None, [0, 3, 3]]
    assert turns[2] == [None, [1, 2, 2], [1, 3, 3]]
    # One second in which a waiting rank that spins would have used a second of its core.
    assert all(seconds < 0.5 for _, seconds, _, _ in found["ranks"])
    assert all(nodes == [0, 0, 0] for _, _, nodes, _ in found["ranks"])
    assert len({count for _, _, _, count in found["ranks"]}) == 1

    measured = Measurements.from_dict(found["measured"])
    places = {"inside", "shared"} if len(cores_here()) > 1 else {"shared"}
    assert set(measured.messages) == {
        (place, kind, n) for place in places for kind in ("one_way", "exchange") for n in (4, 1024, 65536)
    }
    assert set(measured.collectives) == {(o, p, n) for o in OPERATIONS for p in (2, 3) for n in (8, 65536)}
    assert set(measured.local) == {"gamma", "copy", "call", "tensor"}
    for samples in [*measured.messages.values(), *measured.collectives.values(), *measured.local.values()]:
        assert 1 <= len(samples) <= 2 and all(seconds >= 0 for seconds in samples)
    assert all(min(samples) > 0 for samples in measured.messages.values())
    assert machine_from(measured, cores=2, ranks_per_node=3).collective("allreduce", 2, 65536) > 0


def test_the_least_disturbed_samples_count():
    assert least_disturbed("abcd", [0.0, 0.03, 0.9, 0.02]) == ["a", "b", "d"]
    assert least_disturbed(range(9), [0.9, 0.1, 0.8, 0.3, 0.2, 0.7, 0.5, 0.6, 0.4]) == [1, 3, 4]
    assert least_disturbed("ab", [0.5, 0.9]) == ["a", "b"]
    assert least_disturbed([], []) == []


def test_a_core_is_given_back():
    import os

    before = os.sched_getaffinity(0)
    with on_core(5):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
    with on_core(None):
        assert os.sched_getaffinity(0) == before
