"""The data-parallel training step of our schemes against PyTorch's DistributedDataParallel (gloo).

    python benchmarks/distributed.py [--ranks 2] [--rounds 25] [--optimizer adam ...]
                                     [--network resnet18 unet] [--variant NAME ...] [--output FOLDER]

All run interleaved in one MPI run, one thread per rank: ResNet-18 for images of 32x32 with 32 samples per
rank, and U-Net n=3 for images of 128x128 with 4 samples per rank. The ratios are those to plain PyTorch's own
loop around DistributedDataParallel with its defaults.
"""

import argparse

from meta500.benchmarks.data_parallel import RULES, measure_data_parallel, variant_names
from meta500.benchmarks.tables import console, measurement_table
from meta500.distributed import CommunicationNetwork
from meta500.distributed.launch import mpi_fork
from meta500.metrics.run import RunFolder

NETWORKS = {
    "resnet18": {"batch": 32, "size": 32, "classes": 10, "small_images": True},
    "unet": {"n": 3, "batch": 4, "size": 128},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--optimizer", nargs="+", choices=list(RULES), default=["momentum", "adam"])
    parser.add_argument("--network", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--variant", nargs="+", choices=variant_names(), default=None)
    parser.add_argument("--output", help="folder of the run; default: a new one in runs/")
    options = parser.parse_args()
    if mpi_fork(options.ranks) == "parent":
        return
    communication = CommunicationNetwork()
    run = RunFolder.create(options.output) if communication.is_root else None
    try:
        for network in options.network:
            for optimizer in options.optimizer:
                rows = measure_data_parallel(
                    network,
                    NETWORKS[network],
                    communication,
                    run.append if run is not None else lambda row: None,
                    optimizer=optimizer,
                    rounds=options.rounds,
                    threads=options.threads,
                    variants=options.variant,
                )
                if communication.is_root:
                    console().print(measurement_table(f"{network}, {optimizer}", rows))
        if run is not None:
            run.finish()
    except BaseException:
        # The other ranks wait in the next barrier.
        communication.comm.Abort(1)
        raise


if __name__ == "__main__":
    main()
