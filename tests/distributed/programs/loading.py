"""Training on samples that are read when they are asked for, on one or more ranks, with and without workers.

Prints one line of JSON: the losses, test losses and accuracies of every way of loading, as hexadecimal texts.
"""

import json
import sys
from dataclasses import dataclass

import numpy as np

from meta500.datasets import LazyDataset

SHAPE = (2, 6, 6)
WAYS = [{}, *({"workers": count, "kind": kind} for kind in ("thread", "process") for count in (1, 3))]


@dataclass(frozen=True)
class Read:
    pictures: np.ndarray

    def __call__(self, index):
        return {"image": self.pictures[index], "label": np.array(int(self.pictures[index].sum()) % 4)}


def scaled(sample, index):
    return {"image": sample["image"].astype(np.float32) / np.float32(255), "label": sample["label"]}


def sets():
    random = np.random.default_rng(3)
    for samples in (25, 11):
        pictures = random.integers(0, 256, (samples, *SHAPE), dtype=np.uint8)
        yield LazyDataset(
            "lazy",
            samples,
            Read(pictures),
            {"image": SHAPE, "label": ()},
            {"image": np.float32, "label": np.int64},
            prepare=scaled,
            classes=tuple("abcd"),
        )


def trained(train_set, test_set, communication, loading):
    # Worker processes import this file, and need none of these.
    import meta500
    from meta500.metrics import Runner

    model = meta500.models.mlp("N", shape=SHAPE, hidden=(5,), classes=4, seed=1)
    with meta500.network(model, "numpy") as network:
        optimizer = meta500.optimizers.create("adam", network, learning_rate=0.05)
        options = {"seed": 4, "test_batch_size": 3, "loading": loading}
        if communication is None:
            runner = Runner(network, optimizer, train_set, test_set, batch_size=8, **options)
        else:
            from meta500.distributed.decentralized import ConsistentDecentralized
            from meta500.distributed.runner import DistributedRunner

            scheme = ConsistentDecentralized(optimizer, communication)
            # The last global batch has one sample: one rank has none.
            size = 8 // communication.size
            runner = DistributedRunner(network, scheme, train_set, test_set, batch_size=size, **options)
        summary = runner.run(2)
        weights = network.fetch_tensors(network.get_params())
    assert summary.status == "finished" and len(summary.losses) == 8
    assert len(summary.data_seconds) == 8 and min(summary.data_seconds) > 0
    ends = [number for epoch in summary.epochs for number in (epoch.test_loss, epoch.accuracy)]
    checks = [float(np.sum(weight, dtype=np.float64)) for weight in weights]
    return [float(number).hex() for number in (*summary.losses, *ends, *checks)]


def main():
    communication = None
    if sys.argv[1] == "ranks":
        from meta500.distributed import CommunicationNetwork

        communication = CommunicationNetwork()
    train_set, test_set = sets()
    found = {"memory": trained(train_set.in_memory(), test_set.in_memory(), communication, None)}
    for steps in ((), ("flip:both", "crop:1")):
        for way in WAYS:
            name = f"{'augmented' if steps else 'lazy'} {way.get('kind', '')} {way.get('workers', 0)}"
            loading = {**way, "augment": steps} if steps else way
            # Fewer ways with augmentation, which costs the test more than it adds to it.
            if not steps or (
                way.get("workers") != 1 and (communication is None or way.get("kind") != "process")
            ):
                found[name] = trained(train_set, test_set, communication, loading)
    if communication is None or communication.is_root:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
