"""The figures of docs/data-pipeline.md: how fast batches come, by kind of workers, and how they travel.

Writes PNG pictures into a temporary folder, reads them as a set of samples, and prints two tables::

    python benchmarks/data_pipeline.py [--pictures 256] [--size 224] [--rounds 5]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meta500.datasets import Dataset, LazyDataset, OrderedSampler, ShuffleSampler, workers
from meta500.datasets.loader import Loader

AUGMENT = ("flip", "crop:8", "rotate:15")
BATCH = 16


@dataclass(frozen=True)
class Read:
    """A picture from its file."""

    folder: Path

    def __call__(self, index: int) -> dict[str, np.ndarray]:
        from PIL import Image

        with Image.open(self.folder / f"{index}.png") as image:
            pixels = np.asarray(image.convert("RGB"))
        return {"image": np.ascontiguousarray(pixels.transpose(2, 0, 1)), "label": np.array(index % 10)}


def scaled(sample: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
    """Bytes as float32 in [0, 1]."""
    return {"image": sample["image"].astype(np.float32) / np.float32(255), "label": sample["label"]}


def pictures(folder: Path, count: int, size: int) -> LazyDataset:
    """Smooth random pictures, which compress about as photographs do."""
    from PIL import Image

    random = np.random.default_rng(0)
    for index in range(count):
        coarse = random.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8)
        image = np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)).astype(int)
        noisy = (image + random.integers(-6, 7, image.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{index}.png")
    shapes, dtypes = {"image": (3, size, size), "label": ()}, {"image": np.float32, "label": np.int64}
    return LazyDataset("pictures", count, Read(folder), shapes, dtypes, prepare=scaled)


def walks(loader: Loader, rounds: int) -> list[float]:
    """Seconds of each walk over an epoch, after one in which workers start."""
    times = []
    for epoch in range(rounds + 1):
        begin = time.perf_counter()
        for _ in loader.epoch(epoch):
            pass
        times.append(time.perf_counter() - begin)
    return times


def throughput(data: LazyDataset, rounds: int) -> None:
    """Samples per second by kind and number of workers, interleaved in rounds."""
    ways = [(0, "thread"), (1, "thread"), (2, "thread"), (1, "process"), (2, "process")]
    for steps in ((), AUGMENT):
        print(f"\n{len(data)} pictures, batches of {BATCH}, augmentation: {', '.join(steps) or 'none'}")
        loaders = [
            Loader(ShuffleSampler(data, BATCH), workers=count, kind=kind, augment=steps)
            for count, kind in ways
        ]
        starts = [walks(loader, 0)[0] for loader in loaders]
        times: list[list[float]] = [[] for _ in ways]
        for _ in range(rounds):
            for loader, found in zip(loaders, times, strict=True):
                found.append(walks(loader, 0)[0])
        for (count, kind), start, found, loader in zip(ways, starts, times, loaders, strict=True):
            middle = float(np.median(found))
            who = f"{count} {kind}{'s' if kind == 'thread' else 'es'}" if count else "no workers"
            print(
                f"  {who:12} {len(data) / middle:7.0f} samples/s"
                f"   {1e3 * middle / len(loader):6.1f} ms per batch"
                f"   first epoch {start:5.2f} s, later {middle:5.2f} s"
            )
            loader.close()


def transport(rounds: int) -> None:
    """Time per batch of arrays that are there already, through shared memory and pickled."""
    print("\nhow batches come back from one process (median time per batch)")
    for shape, batch in (((1, 8, 8), 16), ((1, 8, 8), 64), ((3, 32, 32), 64), ((3, 224, 224), 16)):
        arrays = {"image": np.zeros((8 * batch, *shape), np.float32), "label": np.zeros(8 * batch, np.int64)}
        data = Dataset("zeros", arrays)
        medians = []
        for limit in (0, 1 << 62):
            workers.SHARED_FROM = limit
            with Loader(OrderedSampler(data, batch), workers=1, kind="process") as loader:
                medians.append(float(np.median(walks(loader, 2 * rounds)[1:])) / len(loader))
        size = sum(array.nbytes for array in arrays.values()) // 8
        print(f"  {size:9} bytes: shared {1e3 * medians[0]:7.2f} ms, pickled {1e3 * medians[1]:7.2f} ms")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        throughput(pictures(Path(folder), given.pictures, given.size), given.rounds)
    transport(given.rounds)


if __name__ == "__main__":
    main()
