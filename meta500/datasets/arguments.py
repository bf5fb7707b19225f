"""Checks of what users give to datasets and samplers, and the random streams that seeds give."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import numpy as np

from meta500.errors import UserError


def integer(what: str, value: object, *, minimum: int) -> int:
    """Return ``value`` as an int of at least ``minimum``; ``what`` names it in the message.

    Raises:
        UserError: not an integer (bool and 2.0 are none), or smaller than ``minimum``.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise UserError(f"{what} must be an integer of at least {minimum}, not {value!r}")
    return int(value)


def fraction(what: str, value: object) -> float:
    """Return ``value`` as a float strictly between 0 and 1.

    Raises:
        UserError: not a number, NaN, or outside (0, 1).
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < 1:
        raise UserError(f"{what} must be a number strictly between 0 and 1, not {value!r}")
    return float(value)


def stream(seed: object, *key: int) -> np.random.Generator:
    """The random stream of (seed, key); different keys give independent streams.

    ``key`` goes to numpy's spawn key and not into the entropy: there, zero padding would give
    (2**32, 0) and (0, 1) the same stream.

    Raises:
        UserError: ``seed`` is no integer of at least 0.
    """
    entropy = integer("seed", seed, minimum=0)
    return np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=key))


def sample_indices(name: str, length: int, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return ``indices`` as a 1-D int64 array, checked against the dataset ``name`` of ``length``.

    Raises:
        UserError: empty, not 1-D, not integers, or any index outside [0, length). Negative indices
            are refused: in a batch they are nearly always a mistake in the arithmetic before it.
    """
    array = np.asarray(indices)
    if array.ndim != 1 or array.size == 0 or not np.issubdtype(array.dtype, np.integer):
        raise UserError(
            f"dataset '{name}': indices must be a non-empty 1-D sequence of integers, "
            f"not an array of shape {array.shape} and dtype {array.dtype}"
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= length:
        wrong = low if low < 0 else high
        raise UserError(f"dataset '{name}': index {wrong} is outside 0..{length - 1}")
    return array.astype(np.int64, copy=False)
