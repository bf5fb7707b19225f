"""Train on two MPI ranks: the script starts them itself, and one line chooses how they work together."""

import sys

import meta500
from meta500.distributed import mpi_fork

RANKS = 2


def train() -> None:
    """What every rank runs."""
    from meta500.distributed import CommunicationNetwork, ConsistentDecentralized, DistributedRunner, guard
    from meta500.metrics import RunFolder
    from meta500.metrics.tickers import AccuracyLimit, RowsTicker

    communication = CommunicationNetwork()
    with guard(communication):
        train_set, test_set = meta500.datasets.load("digits")
        model = meta500.models.digits_cnn(batch="N", seed=0)
        folder = RunFolder.create(command=sys.argv) if communication.is_root else None
        with meta500.network(model, backend="torch", threads=1) as network:
            optimizer = ConsistentDecentralized(meta500.optimizers.Adam(network), communication)
            runner = DistributedRunner(
                network,
                optimizer,
                train_set,
                test_set,
                tickers=[RowsTicker(folder, ranks=communication.size), AccuracyLimit(0.9)],
                batch_size=32,
                folder=folder,
            )
            summary = runner.run(epochs=10)
        if folder is not None:
            folder.finish()
            sent = communication.counters.total().sent / len(summary.losses)
            print(f"{communication.size} ranks: accuracy {100 * summary.epochs[-1].accuracy:.1f} % after")
            print(
                f"{len(summary.losses)} steps, {sent / 1e3:.0f} kB sent per step by each; see {folder.path}"
            )


if mpi_fork(RANKS) == "child":
    train()
else:
    print("all ranks are finished")
