"""Your own pictures, one folder per class: augmented, made ahead by workers, and the time that they cost."""

import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import meta500
from meta500 import datasets
from meta500.datasets import Loader, ShuffleSampler


def draw(folder: Path, samples: int, random: np.random.Generator) -> None:
    """Pictures of discs and bars; with your own, leave this out."""
    row, column = np.mgrid[:40, :48]
    for name in ("disc", "bar"):
        (folder / name).mkdir(parents=True)
        for number in range(samples):
            y, x = random.integers(12, 28, size=2)
            disc = (row - y) ** 2 + (column - x) ** 2 < 80
            bar = (abs(row - y) < 4) & (abs(column - x) < 14)
            picture = random.integers(0, 120, (40, 48, 3), dtype=np.uint8)
            picture[disc if name == "disc" else bar] += 100
            Image.fromarray(picture).save(folder / name / f"{number}.png")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        random = np.random.default_rng(0)
        draw(Path(place) / "train", 100, random)
        draw(Path(place) / "test", 25, random)
        train_set, test_set = datasets.load("image-folder", folder=place, size=28, fit="stretch")
        print(train_set)

        model = meta500.models.lenet(batch=None, classes=2, channels_in=3)
        with meta500.network(model, backend="torch", threads=1) as net:
            optimizer = meta500.optimizers.Adam(net, learning_rate=3e-3)
            sampler = ShuffleSampler(train_set, 20, seed=1)
            with Loader(sampler, workers=1, augment=["flip", "rotate:10"]) as loader:
                summary = meta500.Runner(net, optimizer, loader, test_set).run(8)
    print(f"test accuracy {100 * summary.accuracy:.0f} %")
    print(f"{summary.seconds['train']:.2f} s in steps, {summary.seconds['data']:.2f} s waiting for data")


if __name__ == "__main__":
    main()
