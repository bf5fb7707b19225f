"""Datasets and samplers: what goes into a network, as numpy arrays by input name."""

from meta500.datasets.dataset import Dataset
from meta500.datasets.files import load_files, save_files
from meta500.datasets.lazy import LazyDataset
from meta500.datasets.loader import Loader
from meta500.datasets.registry import load, names, options
from meta500.datasets.samplers import (
    BucketSampler,
    ChoiceSampler,
    OrderedSampler,
    Sampler,
    ShuffleSampler,
)
from meta500.datasets.samples import Samples

__all__ = [
    "BucketSampler",
    "ChoiceSampler",
    "Dataset",
    "LazyDataset",
    "Loader",
    "OrderedSampler",
    "Sampler",
    "Samples",
    "ShuffleSampler",
    "load",
    "load_files",
    "names",
    "options",
    "save_files",
]
