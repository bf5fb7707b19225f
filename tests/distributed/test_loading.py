"""The data pipeline under the training loop: the same bits whoever loads, on one process and on ranks."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meta500 import models
from meta500.datasets import Dataset, OrderedSampler
from meta500.datasets.loader import Loader
from meta500.distributed.spatial import _read_from_memory, localize
from meta500.errors import UserError

PROGRAM = Path(__file__).parent / "programs" / "loading.py"
ROOT = Path(__file__).resolve().parents[2]


def checked(text, ways):
    found = {name: tuple(values) for name, values in json.loads(text).items()}
    lazy = {values for name, values in found.items() if name.startswith("lazy")}
    augmented = {values for name, values in found.items() if name.startswith("augmented")}
    assert len(found) == ways
    # Bits: hexadecimal texts of all losses, of the scores and of the trained parameters.
    assert lazy == {found["memory"]}
    assert len(augmented) == 1 and augmented != lazy
    return found


def test_losses_are_the_same_bits_in_memory_lazily_and_with_workers(mpiexec):
    alone = subprocess.run(
        [sys.executable, str(PROGRAM), "alone"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert alone.returncode == 0 and not alone.stderr, alone.stderr
    one = checked(alone.stdout, 1 + 5 + 3)
    ranks = mpiexec(2, PROGRAM, "ranks", timeout=120)
    assert not ranks.stderr, ranks.stderr
    two = checked(ranks.stdout, 1 + 5 + 2)
    for way in two:
        first, second = ([float.fromhex(text) for text in run[way]] for run in (one, two))
        # The ranks' parts of a batch are added up in another order.
        np.testing.assert_allclose(first, second, rtol=2e-4, atol=1e-5)


def lazy_and_in_memory():
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (3, 2, 16, 16), dtype=np.uint8)
    label = random.integers(0, 3, (3, 16, 16))
    data = Dataset("scenes", {"image": image.astype(np.float32), "label": label}, ignore=255)
    stored = _read_from_memory(data)
    return stored, data


def test_blocks_of_sets_that_are_read_when_asked_for():
    model = models.unet(n=0, batch=1, size=16, depth=1, channels_in=2)
    lazy, data = lazy_and_in_memory()
    for rank in range(4):
        part = localize(model, (2, 2), rank)
        cut, expected = part.dataset(lazy), part.dataset(data)
        assert dict(cut.shapes) == dict(expected.shapes) and cut.ignore == 255
        for name, array in expected.inputs.items():
            np.testing.assert_array_equal(cut.batch([2, 0])[name], array[[2, 0]])
        assert len(pickle.dumps(cut.subset([1]))) < 100_000
    with pytest.raises(UserError, match=r"dataset 'scenes', input 'image': .* has no axis 1 with 32 cells"):
        localize(models.unet(n=0, batch=1, size=32, depth=1, channels_in=2), (2, 2), 0).dataset(lazy)


def test_an_augmentation_moves_the_whole_image_and_not_its_blocks():
    model = models.unet(n=0, batch=1, size=16, depth=1, channels_in=2)
    _, data = lazy_and_in_memory()
    whole = next(Loader(OrderedSampler(data, 3), augment=["flip", "crop:3", "rotate"], seed=4).epoch(1))
    parts = [localize(model, (2, 2), rank) for rank in range(4)]
    blocks = []
    for part in parts:
        sampler = OrderedSampler(part.dataset(data, augmented=True), 3)
        with Loader(sampler, workers=1, augment=["flip", "crop:3", "rotate"], seed=4) as loader:
            blocks.append(next(loader.epoch(1)))
    for name, array in whole.items():
        rows = [np.concatenate([blocks[2 * k][name], blocks[2 * k + 1][name]], axis=-1) for k in range(2)]
        np.testing.assert_array_equal(np.concatenate(rows, axis=-2), array)
