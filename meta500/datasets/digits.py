"""The digits set: small real images of handwritten digits that come with scikit-learn."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np

from meta500.datasets.arguments import fraction
from meta500.datasets.dataset import Dataset
from meta500.errors import UserError

LICENCE = (
    "CC BY 4.0; E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits (1998), "
    "UCI Machine Learning Repository, doi:10.24432/C50P49; its test set, as shipped in scikit-learn"
)


def digits(test_fraction: float = 0.2, seed: int = 0) -> tuple[Dataset, Dataset]:
    """Handwritten digits, split into (train, test) with each class in proportion.

    ``image`` is (N, 1, 8, 8) float32 in [0, 1], the source's counts of 0 to 16 divided by 16;
    ``label`` is (N,) int64 in 0..9. N is 1,438 and 359 with the defaults.

    Source: ``sklearn.datasets.load_digits``, 1,797 images, which scikit-learn documents as a copy
    of the test set of the UCI "Optical Recognition of Handwritten Digits" data (E. Alpaydin, July
    1998): 32x32 bitmaps of 13 people's digits, the pixels that are on counted in blocks of 4x4.
    scikit-learn names no licence for the data; the UCI repository offers it under CC BY 4.0.

    Args:
        test_fraction: share of the test set, strictly between 0 and 1.
        seed: the same seed gives the same split.

    Raises:
        UserError: ``test_fraction`` outside (0, 1), a part that would be empty, a negative seed, or
            scikit-learn is missing.
    """
    share = fraction("test_fraction", test_fraction)
    rows = _rows()
    images = (rows[:, :64] / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    everything = Dataset(
        name="digits",
        inputs={"image": images, "label": rows[:, 64].astype(np.int64)},
        classes=tuple(map(str, range(10))),
        licence=LICENCE,
    )
    return everything.split(share, seed, stratified=True)


def _rows() -> np.ndarray:
    """One row per image: 64 counts from 0 to 16, and the label.

    The file is read where scikit-learn is installed, without importing scikit-learn, which takes seconds. A
    release that keeps it elsewhere is asked by its function.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise UserError("dataset 'digits' needs scikit-learn: pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        with gzip.open(file, "rt", encoding="ascii") as lines:
            return np.loadtxt(lines, delimiter=",")
    from sklearn.datasets import load_digits

    source = load_digits()
    return np.column_stack([source.data, source.target])
