"""Datasets and samplers: what goes into a network, as numpy arrays by input name."""

from meta500.datasets.dataset import Dataset
from meta500.datasets.files import load_files, save_files
from meta500.datasets.registry import load, names, options
from meta500.datasets.samplers import (
    BucketSampler,
    ChoiceSampler,
    OrderedSampler,
    Sampler,
    ShuffleSampler,
)

__all__ = [
    "BucketSampler",
    "ChoiceSampler",
    "Dataset",
    "OrderedSampler",
    "Sampler",
    "ShuffleSampler",
    "load",
    "load_files",
    "names",
    "options",
    "save_files",
]
