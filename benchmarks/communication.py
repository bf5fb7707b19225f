"""What CommunicationNetwork costs over plain mpi4py, from 4 B to 64 MB.

    mpiexec -n 2 python benchmarks/communication.py [--rounds 30] [--largest 67108864] [--operations ...]
        [--run FOLDER]

Both sides of a comparison run in turns, on the same buffers, between barriers; a round's time is that of the
slowest rank, over as many calls as fill a few milliseconds. Ratios are those of rounds, with the median and
its 95 % interval. "mean" is compared with Allreduce and numpy's division in place.
"""

import argparse
import os
import time
from itertools import pairwise

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from meta500.distributed import CommunicationNetwork
from meta500.distributed.mpi import mpi
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
from meta500.metrics.statistics import median_interval, ratio_interval

OPERATIONS = ("allreduce", "allreduce_new", "mean", "iallreduce", "bcast", "isend_irecv", "many")
SMALLEST, LARGEST, GOAL_FROM = 4, 64 * 2**20, 64 * 2**10
# A round repeats its call until it lasts about this many seconds.
ROUND_SECONDS = 3e-3


def pair(operation, network, size):
    """(plain, ours): two functions without arguments that move ``size`` bytes the same way."""
    MPI, comm = mpi(), network.comm
    count = size // 4
    rng = np.random.default_rng(network.rank)
    x, y = rng.random(count, np.float32), np.zeros(count, np.float32)
    if operation == "allreduce":
        return lambda: comm.Allreduce(x, y, MPI.SUM), lambda: network.sync_all(x, op="sum", out=y)
    if operation == "allreduce_new":

        def plain():
            result = np.empty_like(x)
            comm.Allreduce(x, result, MPI.SUM)

        return plain, lambda: network.sync_all(x, op="sum")
    if operation == "mean":

        def plain():
            comm.Allreduce(x, y, MPI.SUM)
            np.divide(y, np.float32(network.size), out=y)

        return plain, lambda: network.sync_all(x, out=y)
    if operation == "iallreduce":
        return (
            lambda: comm.Iallreduce(x, y, MPI.SUM).Wait(),
            lambda: network.sync_all_start(x, op="sum", out=y).wait(),
        )
    if operation == "bcast":
        return lambda: comm.Bcast(x, 0), lambda: network.sync_all_with_root(x, out=x)
    if operation == "isend_irecv":
        # There and back between the ranks 0 and 1, so that both sides of it are timed.
        if network.rank > 1:
            return (lambda: None), (lambda: None)
        other = 1 - network.rank

        def plain():
            for sends in (network.rank == 0, network.rank == 1):
                (comm.Isend(x, other) if sends else comm.Irecv(y, other)).Wait()

        def ours():
            for sends in (network.rank == 0, network.rank == 1):
                if sends:
                    network.send_to_rank(x, other)
                else:
                    network.wait_for_rank(y, other, out=y)

        return plain, ours
    tensors = {f"t{k}": x[a:b] for k, (a, b) in enumerate(parts(count))}

    def plain():
        for tensor in tensors.values():
            comm.Allreduce(MPI.IN_PLACE, tensor, MPI.SUM)

    return plain, lambda: network.sync_all_many(tensors, op="sum", in_place=True)


def parts(count):
    """Eight tensors of very different sizes, as the parameters of a network."""
    bounds = np.unique(np.concatenate([[0], count // 2 ** np.arange(7, -1, -1)]))
    return list(pairwise(bounds))


def timed(function, network, calls):
    """Seconds per call of the slowest rank."""
    network.comm.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    seconds = (time.perf_counter() - begin) / calls
    return network.comm.allreduce(seconds, mpi().MAX)


def measure(network, operation, size, rounds):
    """Times of both sides, (rounds,) each."""
    plain, ours = pair(operation, network, size)
    timed(plain, network, 2), timed(ours, network, 2)
    calls = max(1, min(1000, int(ROUND_SECONDS / max(timed(plain, network, 3), 1e-7))))
    times = {"plain": [], "ours": []}
    for index in range(rounds):
        for name, function in [("plain", plain), ("ours", ours)][:: 1 if index % 2 else -1]:
            times[name].append(timed(function, network, calls))
    return times["plain"], times["ours"]


def rows_of(operation, size, ranks, plain, ours):
    what = {
        "level": 3,
        "operator": operation,
        "phase": "communication",
        "shape": f"{size // 4}",
        "dtype": "float32",
        "ranks": ranks,
        "protocol": "interleaved",
        "repeats": len(ours),
    }
    for mode, samples in (("mpi4py", plain), ("CommunicationNetwork", ours)):
        interval = median_interval(samples)
        limits = {"low": interval.low, "high": interval.high, "confidence": interval.confidence}
        yield Row(
            **what, mode=mode, quantity="time", unit="s", samples=samples, value=interval.value, **limits
        )
    ratio = ratio_interval(ours, plain)
    limits = {"low": ratio.low, "high": ratio.high, "confidence": ratio.confidence}
    baseline = {"mode": "CommunicationNetwork", "baseline": "mpi4py"}
    yield Row(**what, **baseline, quantity="ratio", unit="1", value=ratio.value, **limits)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--smallest", type=int, default=SMALLEST)
    parser.add_argument("--largest", type=int, default=LARGEST)
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--run", help="folder for the rows, new or empty")
    options = parser.parse_args()
    network = CommunicationNetwork()
    run = RunFolder.create(options.run) if network.is_root and options.run else None
    worst = {}
    for operation in options.operations:
        size = max(options.smallest, 1024 if operation == "many" else 4)
        while size <= options.largest:
            plain, ours = measure(network, operation, size, options.rounds)
            if network.is_root:
                rows = list(rows_of(operation, size, network.size, plain, ours))
                first, second, ratio = rows
                print(
                    f"{operation:14} {size:>9} B  mpi4py {first.value * 1e6:10.2f} us  "
                    f"ours {second.value * 1e6:10.2f} us  "
                    f"ratio {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]",
                    flush=True,
                )
                if size >= GOAL_FROM:
                    worst[operation] = max(worst.get(operation, 0), ratio.value)
                if run:
                    run.extend(rows)
            size *= 4
    if network.is_root:
        for operation, value in worst.items():
            print(f"largest ratio from {GOAL_FROM} B up, {operation}: {value:.3f}")
    if run:
        run.finish()
    network.close()


if __name__ == "__main__":
    main()
