"""Overlap of gradient reductions with the generated step that computes the gradients, rank by rank.

    mpiexec -n 2 python benchmarks/generated_overlap.py [--model unet] [--model-option n=1] [--batch 4]
        [--size 64] [--threads 1] [--bucket-bytes 262144] [--steps 30] [--out FOLDER]

Every rank trains with Adam on its own samples. For the median step of each rank: the time of the step, of
reductions in flight, the share of it during which the rank computed, and what was left to wait for when
nothing was left to compute. In turns with it run the same network without a communicator, and that network
followed by one blocking Allreduce of as many bytes. --out writes timeline.json (Chrome trace) and
timeline.png of the last step.
"""

import argparse
import os
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from mpi4py import MPI

import meta500
from meta500.distributed import CommunicationNetwork
from meta500.distributed.timeline import Timeline, write_chrome_trace
from meta500.metrics.plots.timeline import Span, hidden_share, timeline_plot, union

LANES = ("compute", "communication", "waiting")


def samples(model, seed):
    """Random numbers for every input; labels are classes 0 to 2."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.random(t.shape, np.float32) if t.dtype.name == "float32" else rng.integers(0, 3, t.shape)
        for name, t in model.inputs.items()
    }


def steps(together, alone, fed, count):
    """Seconds of ``count`` steps of each kind, in turns, and the spans of those that reduce."""
    trainers = [net.native_optimizer("adam") for net in (together, alone)]
    gradients = np.zeros_like(alone.packed)

    def apart():
        trainers[1].train(fed)
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, gradients)

    kinds = [lambda: trainers[0].train(fed), lambda: trainers[1].train(fed), apart]
    seconds, spans = [[] for _ in kinds], []
    for _ in range(count + 2):
        for found, step in zip(seconds, kinds, strict=True):
            MPI.COMM_WORLD.Barrier()
            begin = time.perf_counter()
            step()
            found.append(time.perf_counter() - begin)
        spans.append(together.timeline())
    return [found[2:] for found in seconds], spans[2:]


def summary(seconds, alone, apart, spans):
    """Figures of one rank in milliseconds, medians over steps."""
    flight, hidden, waited = [], [], []
    for step in spans:
        found = [Span(0, lane, name, begin * 1e-9, end * 1e-9, size) for lane, name, begin, end, size in step]
        reductions = [(s.begin, s.end) for s in found if s.lane == "communication"]
        flight.append(sum(end - begin for begin, end in union(reductions)))
        hidden.append(hidden_share(found, 0))
        waited.append(sum(s.end - s.begin for s in found if s.lane == "waiting"))
    times = (seconds, alone, apart, flight, waited)
    return [1e3 * float(np.median(x)) for x in times] + [float(np.median(hidden))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="unet")
    parser.add_argument("--model-option", action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bucket-bytes", type=int, default=256 << 10)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    options = {name: int(value) for name, _, value in (text.partition("=") for text in given.model_option)}
    model = meta500.models.create(given.model, batch=given.batch, size=given.size, **options)
    communication = CommunicationNetwork()
    rank = communication.rank
    fed = samples(model, rank)
    common = {"backend": "generated", "threads": given.threads}
    together = meta500.network(model, communicator=MPI.COMM_WORLD, bucket_bytes=given.bucket_bytes, **common)
    with together, meta500.network(model, **common) as alone:
        seconds, spans = steps(together, alone, fed, given.steps)
    figures = communication.gather_objects(summary(*seconds, spans))
    timeline = Timeline(rank)
    timeline.extend(span for span in spans[-1] if span[0] in LANES)
    events = timeline.gather(communication)
    if rank:
        return
    size = sum(a.nbytes for a in model.graph.initializers.values()) / 2**20
    print(f"{given.model}, {size:.1f} MiB of parameters, {communication.size} ranks, {given.threads} threads")
    print("rank   step  without  then Allreduce  reductions  waiting (ms)   hidden")
    for number, (step, plain, apart, flight, waited, hidden) in enumerate(figures):
        print(
            f"{number:4} {step:6.2f} {plain:8.2f} {apart:15.2f} {flight:11.2f} {waited:8.2f} {hidden:15.0%}"
        )
    if given.out is not None:
        trace = write_chrome_trace(events, given.out / "timeline.json")
        timeline_plot(trace, given.out / "timeline.png")


if __name__ == "__main__":
    main()
