"""Masks cut to their middle."""

import pickle

import numpy as np
import pytest

from meta500.datasets import Dataset, LazyDataset
from meta500.datasets.centre import centred_label
from meta500.errors import UserError

MASKS = np.arange(3 * 8 * 10).reshape(3, 8, 10) % 7
IMAGES = np.zeros((3, 1, 8, 10), np.float32)


class Read:
    def __call__(self, index):
        return {"image": IMAGES[index], "label": MASKS[index]}


def lazy():
    shapes = {"image": (1, 8, 10), "label": (8, 10)}
    return LazyDataset("masks", 3, Read(), shapes, {"image": np.float32, "label": np.int64})


@pytest.mark.parametrize("make", [lazy, lambda: Dataset("masks", {"image": IMAGES, "label": MASKS})])
def test_the_middle(make):
    cut = centred_label(make(), 4, 8)
    assert cut.shapes == {"image": (1, 8, 10), "label": (4, 8)}
    np.testing.assert_array_equal(cut.batch([2, 0])["label"], MASKS[[2, 0], 2:6, 1:9])
    assert cut.batch([1])["image"].shape == (1, 1, 8, 10)
    same = centred_label(make(), 8, 10)
    np.testing.assert_array_equal(same.batch([1])["label"], MASKS[[1]])


def test_it_goes_to_worker_processes():
    again = pickle.loads(pickle.dumps(Dataset("masks", {"image": IMAGES, "label": MASKS})))
    assert centred_label(again, 2, 2).shapes["label"] == (2, 2)


def test_what_has_no_middle():
    with pytest.raises(UserError, match="masks of 8 x 10 pixels have no middle of 5 x 10 pixels"):
        centred_label(lazy(), 5, 10)
    with pytest.raises(UserError, match="have no middle of 12 x 10"):
        centred_label(lazy(), 12, 10)
    with pytest.raises(UserError, match="dataset 'd' has no mask"):
        centred_label(Dataset("d", {"image": IMAGES, "label": np.arange(3)}), 2, 2)
