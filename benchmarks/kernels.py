"""Where the time of a generated network goes: time and speed of every kernel, against the machine's limits.

    python benchmarks/kernels.py [--net unet-3] [--phase training] [--threads 2] [--rounds 9] [--direct]
        [--most 20] [--quick] [--out DIR]

The networks and batches are those of benchmarks/generated.py. --direct measures the same network without
Winograd's forms in the same rounds. --quick takes small networks and hardly measures the limits. With --out:
kernels.csv, summary.csv and a bar plot of the longest kernels. docs/generated.md tells what is counted.
"""

import argparse
import os
import sys
from pathlib import Path

from meta500.benchmarks import kernel_tables as tables
from meta500.benchmarks.against_torch import NETS
from meta500.benchmarks.kernels import PHASES, Plan, measure
from meta500.benchmarks.tables import console as make_console
from meta500.errors import UserError


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--net", default="unet-3", help=f"one of {', '.join(NETS)}")
    parser.add_argument("--phase", default="training", help=f"one of {', '.join(PHASES)}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--direct", action="store_true", help="also without Winograd's forms")
    parser.add_argument("--most", type=int, default=20, help="kernels in table and plot; the CSV has all")
    parser.add_argument("--quick", action="store_true", help="small networks: unet-0 and digits_cnn")
    parser.add_argument("--out", type=Path, help="folder for CSV files and plots")
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    """Measure, print, write."""
    plan = Plan(options.net, options.phase, options.threads, options.rounds, options.direct, options.quick)
    if options.most < 1:
        raise UserError(f"most {options.most} must be at least 1")
    found = measure(plan, lambda text: print(text, file=sys.stderr))
    frame, console = tables.kernel_frame(found), make_console()
    console.print(tables.limits_table(found))
    for profile in found.profiles:
        console.print(tables.kernel_table(found, frame, profile, options.most))
    console.print(tables.kinds_table(found, frame))
    summary = tables.summary_frame(found)
    console.print(tables.summary_table(found, summary))
    console.print(tables.COUNTED)
    if tables.warning(summary):
        console.print(tables.warning(summary), style="bold")
    if options.out is not None:
        for path in tables.write(found, options.out, options.most):
            console.print(str(path), soft_wrap=True, markup=False)


if __name__ == "__main__":
    try:
        run(parsed())
    except UserError as problem:
        sys.exit(f"error: {problem}")
