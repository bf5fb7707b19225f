"""What our Network and the reference Adam cost over plain PyTorch, for a training step.

    python benchmarks/overhead.py [--n 3] [--size 512] [--batch 8] [--rounds 15] [--threads 2]

U-Net(n) and the digits CNN at batch 64; plain PyTorch, our torch Network with torch.optim's Adam, and our
torch Network with the reference Adam run interleaved from the same weights on the same batch.
"""

import argparse
import os

from meta500.benchmarks.networks import measure_overhead
from meta500.benchmarks.protocol import Protocol
from meta500.benchmarks.subjects import prepared
from meta500.benchmarks.tables import console, measurement_table, overhead_table


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=3)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    rows = []
    unet = prepared("unet", {"n": options.n, "batch": options.batch, "size": options.size})
    digits = prepared("digits_cnn", {"batch": 64})
    for subject, rounds in ((unet, options.rounds), (digits, max(400, options.rounds))):
        protocol = Protocol(warmup=2, min_repeats=rounds, min_seconds=0.0, max_seconds=3600.0)
        measure_overhead([subject], protocol, rows.append, options.threads, options.device)
    console().print(measurement_table("Training step", rows))
    console().print(overhead_table(rows))


if __name__ == "__main__":
    main()
