"""The generated backend against plain PyTorch: training step, inference, peak memory and start.

    python benchmarks/generated.py [--nets unet-0 unet-3] [--phases training inference memory cold] [--tuned]
        [--variants eager compile] [--rounds 15] [--threads 2] [--limit 600] [--quick] [--out DIR]

U-Net(n) at batch 8, with 512 pixels for n = 0..3, 256, 128 and 64 for n = 4, 5, 6; the digits CNN and
ResNet-18 (32x32, with the stems for small images and for ImageNet) at batch 64. PyTorch runs eager,
channels-last, compiled, and both, with fused Adam; with --tuned also each of these with an allocator that
keeps its memory, in huge pages. Every variant is a process of its own; they take turns. docs/measuring.md
tells how. Writes a run folder with rows and plots. Exit code 1: a variant failed, or a result was wrong.
"""

import argparse
import os
import sys
from pathlib import Path

from meta500.benchmarks.against_torch import COLD, INFERENCE, MEMORY, NETS, TRAINING, Plan, measure
from meta500.benchmarks.against_torch_tables import all_tables
from meta500.benchmarks.tables import console as make_console
from meta500.benchmarks.variants import VARIANTS, variants
from meta500.errors import UserError
from meta500.metrics.plots import plots_from_run
from meta500.metrics.run import RunFolder

PHASES = {"training": TRAINING, "inference": INFERENCE, "memory": MEMORY, "cold": COLD}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=[], help=f"of {', '.join(NETS)}; default: all")
    parser.add_argument(
        "--phases", nargs="+", default=list(PHASES), help=f"of {', '.join(PHASES)}; default: all"
    )
    parser.add_argument("--variants", nargs="+", help=f"of {', '.join(VARIANTS)}; default: all")
    parser.add_argument("--tuned", action="store_true", help="PyTorch tuned by an expert too")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for compiling, or one turn")
    parser.add_argument("--quick", action="store_true", help="two small networks, eager only unless named")
    parser.add_argument("--out", type=Path, help="run folder; default: runs/TIME-ID")
    return parser.parse_args()


def run(options: argparse.Namespace) -> bool:
    """Measure, write, print; whether anything failed or was wrong."""
    names = options.variants or (["generated", "eager"] if options.quick else None)
    unknown = [p for p in options.phases if p not in PHASES]
    if unknown:
        raise UserError(f"unknown phase '{unknown[0]}'; choose from {', '.join(PHASES)}")
    plan = Plan(
        nets=tuple(options.nets),
        phases=tuple(PHASES[p] for p in options.phases),
        variants=tuple(variants(names, options.tuned)),
        rounds=options.rounds,
        threads=options.threads,
        limit=options.limit,
        quick=options.quick,
    )
    plan.check()
    console = make_console()
    rows = []
    with RunFolder.create(options.out, command=sys.argv, seeds={"seed": 0}) as folder:
        folder.info |= {"threads": plan.threads, "variants": [v.name for v in plan.variants]}
        print(f"Writing to {folder.path}", file=sys.stderr)

        def emit(row):
            folder.append(row)
            rows.append(row)

        def progress(text):
            print(text, file=sys.stderr)

        measure(plan, emit, progress)
    plots = plots_from_run(folder.path)
    for table in all_tables(rows):
        console.print(table)
    bad = [row for row in rows if row.verdict in ("failed", "wrong")]
    for row in bad:
        who = " ".join(filter(None, (row.backend, row.mode)))
        console.print(f"{row.verdict}: {row.model} {row.quantity}, {who}: {row.note}", markup=False)
    console.print(f"Results: {folder.path} ({len(plots)} plots in plots/)", soft_wrap=True)
    return bool(bad)


if __name__ == "__main__":
    try:
        sys.exit(1 if run(parsed()) else 0)
    except UserError as problem:
        sys.exit(f"error: {problem}")
