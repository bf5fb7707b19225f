"""Masks cut to their middle, for networks without padding, whose output is smaller than the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meta500.datasets.dataset import Dataset
from meta500.datasets.lazy import LazyDataset, Prepare
from meta500.datasets.samples import Samples
from meta500.errors import UserError


def centred_label(samples: Samples, height: int, width: int) -> Samples:
    """``samples`` with the middle ``height`` x ``width`` pixels of every mask; pictures stay as they are.

    Raises:
        UserError: the label is no mask, or does not reach over the middle by equally many pixels on both
            sides.
    """
    label = samples.label
    shape: Sequence[int] = () if label is None else samples.shapes[label]
    if label is None or len(shape) != 2:
        raise UserError(
            f"dataset '{samples.name}' has no mask that could be cut to {height} x {width} pixels"
        )
    borders = shape[0] - height, shape[1] - width
    if min(borders) < 0 or borders[0] % 2 or borders[1] % 2:
        raise UserError(
            f"dataset '{samples.name}': masks of {shape[0]} x {shape[1]} pixels have no middle of {height} x "
            f"{width} pixels"
        )
    cut = _Cut(label, borders[0] // 2, borders[1] // 2, height, width)
    if isinstance(samples, Dataset):
        return replace(samples, inputs=samples.inputs | {label: cut.of(samples.inputs[label])})
    assert isinstance(samples, LazyDataset)
    return replace(
        samples,
        prepare=replace(cut, prepare=samples.prepare),
        sample_shapes={**samples.shapes, label: (height, width)},
    )


@dataclass(frozen=True)
class _Cut:
    """A `Prepare` that cuts the mask after another one; a class, since closures cannot be pickled."""

    label: str
    top: int
    left: int
    height: int
    width: int
    prepare: Prepare | None = None

    def of(self, mask: np.ndarray) -> np.ndarray:
        return mask[..., self.top : self.top + self.height, self.left : self.left + self.width]

    def __call__(self, sample: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        if self.prepare is not None:
            sample = self.prepare(sample, index)
        return {**sample, self.label: np.ascontiguousarray(self.of(sample[self.label]))}
