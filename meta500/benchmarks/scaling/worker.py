"""What every rank of a scaling study runs: ``mpiexec -n P python -m meta500.benchmarks.scaling.worker JOB
OUT``.

One start of mpiexec measures everything, on the first p of its ranks while the others sleep, in rounds:
whatever slows the machine down for a while meets all rank counts and schemes alike.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.scaling.job import EFFORTS, Job, Outcome
from meta500.benchmarks.training import load_model, load_sets, make_optimizer
from meta500.distributed.model import microbenchmark
from meta500.distributed.model.stage import Stage, least_disturbed, on_core
from meta500.distributed.mpi import mpi

FEWEST_STEPS, MOST_STEPS = 2, 200
# Asynchronous ranks end at different times; the more steps, the less the ends count.
FEWEST_ASYNCHRONOUS = 8
WARMUP = 2


class Bench:
    """The network of this rank, and steps on it.

    Attributes:
        stage: all ranks.
        outcome: what is known without measuring; `finished` adds the rest on rank 0.
    """

    def __init__(self, job: Job, stage: Stage) -> None:
        from meta500.backends.network import network
        from meta500.backends.optimizer_state import describe
        from meta500.graph.passes import training_form

        self.job, self.stage, self.effort = job, stage, EFFORTS[job.effort]
        self._sets = load_sets(job.setup)[0]
        model = load_model(job.setup, self._sets)
        precision = job.setup.backend_options.get("precision")
        if precision is not None:
            self._sets = self._sets.cast(precision)
        options = {"seed": job.setup.seed, "threads": job.threads, **job.setup.backend_options}
        self.network = network(model, job.setup.backend, **options)
        self._initial = {name: self._copy(name) for name in self.network.get_params()}
        self._batches: dict[int, dict[str, np.ndarray]] = {}
        self._communication: dict[int, Any] = {}
        self._samples: dict[tuple[Any, ...], list[tuple[Any, float]]] = {}
        self._shares: list[float] = []

        def signature(names: Sequence[str]) -> list[tuple[str, tuple[int, ...], str]]:
            described = {name: describe(self.network.native(name)) for name in names}
            return [(name, tuple(d["shape"]), str(d["dtype"])) for name, d in described.items()]

        self.outcome = Outcome(
            len(stage.cores),
            len(set(stage.nodes)),
            max(stage.nodes.count(node) for node in set(stage.nodes)),
            signature(self.network.get_params()),
            signature(sorted(training_form(self.network.model)[1])),
        )

    def batch(self, size: int) -> dict[str, np.ndarray]:
        """Samples of this rank, the same in every step."""
        if size not in self._batches:
            start = self.stage.rank * size
            self._batches[size] = self._sets.batch((start + np.arange(size)) % len(self._sets))
        return self._batches[size]

    def reset(self) -> None:
        """The parameters of the beginning, so that thousands of steps on a few samples change no timing."""
        for name, value in self._initial.items():
            self.network.assign(name, self.network.to_native(value))

    def passes(self) -> None:
        """Passes and updates of one rank alone."""
        for size in self.job.batches():
            found = self.stage.act([0], partial(self._alone, size=size))
            if self.stage.rank == 0:
                passes, updates = (np.asarray(times) for times in found)
                middle = float(np.median(passes))
                self._keep(("passes", size), middle)
                self._keep(("updates",), float(np.median(updates)))
                self._keep(("spread",), (passes / middle).tolist())

    def contention(self) -> None:
        """The same steps on several ranks at once, without communication."""
        stage, size = self.stage, self.job.setup.batch_size
        mates = [r for r in range(stage.size) if stage.nodes[r] == stage.nodes[0]]
        working = mates[: max(1, len(stage.cores) // self.job.threads)]
        found = stage.act([0], partial(self._alone, size=size))
        alone = float(np.mean(found[0]) + np.mean(found[1])) if found else math.nan
        if len(working) > 1:
            together = stage.act(working, partial(self._together, size=size))
            if stage.rank == 0:
                self._keep(("busy",), together / alone)
                self.outcome.busy_ranks = len(working)
        if len(mates) > 1 and self.job.threads == 1:
            with on_core(0 if stage.rank in mates[:2] else None):
                sliced = stage.act(mates[:2], partial(self._together, size=size))
                waiting = stage.act(mates[:2], partial(self._in_step, size=size))
            if stage.rank == 0:
                self._keep(("slicing",), sliced / (2 * alone))
                self._keep(("turns",), waiting - sliced)

    def steps(self, seed: int) -> None:
        """A segment of steps of every scheme, scaling and rank count, in an order that is drawn anew."""
        job = self.job
        cases = [(s, k, p) for s in job.schemes for k in job.scalings for p in job.counts]
        for place in np.random.default_rng(seed).permutation(len(cases)):
            scheme, scaling, ranks = cases[place]
            # With one rank weak and strong scaling are the same; so are all schemes but for their wrapping.
            key = (scheme, scaling, ranks)
            found = self.stage.act(
                range(ranks),
                partial(self._segment, scheme=scheme, scaling=scaling, ranks=ranks),
            )
            if self.stage.rank == 0:
                seconds, volume = found
                self._keep(("steps", *key), seconds)
                self.outcome.volumes[key] = volume

    def finished(self) -> Outcome:
        """The outcome, of the samples that were disturbed least."""
        for (what, *key), pairs in self._samples.items():
            kept = least_disturbed([sample for sample, _ in pairs], [share for _, share in pairs])
            self._shares += sorted(share for _, share in pairs)[: len(kept)]
            if what == "passes":
                self.outcome.passes[key[0]] = kept
            elif what == "steps":
                self.outcome.steps[tuple(key)] = kept  # type: ignore[index]
            elif what == "spread":
                self.outcome.spread = [value for values in kept for value in values]
            else:
                setattr(self.outcome, what, kept)
        self.outcome.disturbance = self._shares
        return self.outcome

    def _keep(self, key: tuple[Any, ...], sample: Any) -> None:
        """Note a sample with the disturbance of the measurement that it came from."""
        self._samples.setdefault(key, []).append((sample, self.stage.disturbance[-1]))

    def _alone(self, group: Any, size: int) -> tuple[list[float], list[float]]:
        """Seconds of single passes and of single updates, as many of each on all ranks of the group."""
        self.reset()
        optimizer = make_optimizer(self.job.setup, self.network)
        three_steps = hasattr(optimizer, "update")
        passes: list[float] = []
        updates: list[float] = []

        def step() -> None:
            begin = time.perf_counter()
            if three_steps:
                optimizer.begin_step()
                optimizer.prepare({})
                self.network.inference_and_backprop(self.batch(size), loss=optimizer.loss)
                middle = time.perf_counter()
                optimizer.update({n: self.network.native(g) for n, g in self.network.gradient()})
            else:
                optimizer.train(self.batch(size))
                middle = time.perf_counter()
            passes.append(middle - begin)
            updates.append(time.perf_counter() - middle)

        for _ in range(WARMUP):
            step()
        repeats = self._count(passes[-1] + updates[-1])
        repeats = group.allreduce(repeats, mpi().MAX)
        passes.clear()
        updates.clear()
        for _ in range(repeats):
            step()
        return passes, updates

    def _together(self, group: Any, size: int) -> float:
        """Seconds of a step while all ranks of the group compute: the mean over steps and ranks."""
        passes, updates = self._alone(group, size)
        own = float(np.mean(passes) + np.mean(updates))
        return float(group.allreduce(own)) / group.Get_size()

    def _in_step(self, group: Any, size: int) -> float:
        """Seconds of a step on all ranks of the group that ends when all have ended it."""
        self.reset()
        optimizer = make_optimizer(self.job.setup, self.network)
        token = np.ones(1)

        def step() -> float:
            begin = time.perf_counter()
            optimizer.train(self.batch(size))
            group.Allreduce(mpi().IN_PLACE, token)
            return time.perf_counter() - begin

        once = [step() for _ in range(WARMUP)][-1]
        repeats = group.allreduce(self._count(once), mpi().MAX)
        return float(group.allreduce(float(np.mean([step() for _ in range(repeats)])), mpi().MAX))

    def _segment(self, group: Any, scheme: str, scaling: str, ranks: int) -> tuple[float, float]:
        """Seconds per step, and bytes that the busiest rank hands over per step."""
        from meta500.distributed import registry

        MPI = mpi()
        communication = self._network_of(group, ranks)
        batch = self.batch(self.job.local_batch(scaling, ranks, communication.rank))
        self.reset()
        base = self._base(scheme)
        optimizer = registry.create(scheme, base, communication, **self.job.options.get(scheme, {}))
        for _ in range(WARMUP):
            begin = time.perf_counter()
            optimizer.train(batch)
            once = time.perf_counter() - begin
        fewest = FEWEST_STEPS if optimizer.synchronous else FEWEST_ASYNCHRONOUS
        count = max(fewest, group.allreduce(self._count(once), MPI.MIN))
        before = communication.counters.total()
        group.Barrier()
        begin = time.perf_counter()
        for _ in range(count):
            optimizer.train(batch)
        pace = (time.perf_counter() - begin) / count
        handed = communication.counters.total() - before
        optimizer.finish()
        volume = group.allreduce(max(handed.sent, handed.received) / count, MPI.MAX)
        if optimizer.synchronous:
            return group.allreduce(pace, MPI.MAX), volume
        return ranks / group.allreduce(1 / pace), volume

    def _base(self, scheme: str) -> Any:
        """The optimizer that a scheme wraps: PyTorch's own for DDP, else the one that is asked for."""
        if scheme != "ddp":
            return make_optimizer(self.job.setup, self.network)
        setup = self.job.setup
        return self.network.native_optimizer(setup.optimizer, **setup.hyperparameters)

    def _network_of(self, group: Any, ranks: int) -> Any:
        from meta500.distributed.communication import CommunicationNetwork

        if ranks not in self._communication:
            self._communication[ranks] = CommunicationNetwork(group)
        return self._communication[ranks]

    def _count(self, once: float) -> int:
        return int(min(MOST_STEPS, max(FEWEST_STEPS, self.effort.seconds / max(once, 1e-6))))

    def _copy(self, name: str) -> np.ndarray:
        return np.array(self.network.to_numpy(self.network.native(name)))


def run(job: Job, stage: Stage, progress: Callable[[str], None]) -> Outcome:
    """Measure everything; collective. The outcome is complete on rank 0."""
    progress("making the network")
    bench = Bench(job, stage)
    effort = bench.effort
    if stage.size > 1:
        progress("messages and collectives")
        bench.outcome.network = microbenchmark.measure(
            stage,
            job.counts,
            sizes=[n for n in microbenchmark.SIZES if n <= effort.largest_message],
            collective_sizes=[n for n in microbenchmark.COLLECTIVE_SIZES if n <= effort.largest_message],
            rounds=effort.message_rounds,
        )
    for number in range(effort.rounds):
        progress(f"steps, round {number + 1} of {effort.rounds}")
        bench.passes()
        bench.contention()
        bench.steps(number)
    return bench.finished()


def main(arguments: Sequence[str]) -> None:
    """Read the job, measure, and write the outcome on rank 0."""
    from meta500.distributed.communication import CommunicationNetwork
    from meta500.distributed.faults import guard

    job_path, out_path = map(Path, arguments)
    communication = CommunicationNetwork()
    with guard(communication):
        job = Job.from_dict(json.loads(job_path.read_text()))
        stage = Stage(communication.comm, EFFORTS[job.effort].patience)

        def progress(text: str) -> None:
            if stage.rank == 0:
                sys.stderr.write(f"meta500 scale: {text}\n")
                sys.stderr.flush()

        outcome = run(job, stage, progress)
        if stage.rank == 0:
            out_path.write_text(json.dumps(outcome.to_dict()))


if __name__ == "__main__":
    main(sys.argv[1:])
