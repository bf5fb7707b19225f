"""Checks of what users give to datasets and samplers, and the random streams that seeds give."""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import numpy as np

from meta500.errors import UserError

# Most pixels per side of a picture that is made; a float32 colour picture of that size has 3.2 GB.
LARGEST_SIDE = 16_384
# Most classes that are named by their numbers.
MOST_CLASSES = 1_000_000


def integer(what: str, value: object, *, minimum: int, maximum: int | None = None) -> int:
    """Return ``value`` as an int of at least ``minimum``, at most ``maximum``; ``what`` names it.

    Raises:
        UserError: not an integer (bool and 2.0 are none), smaller than ``minimum``, or larger than
            ``maximum``.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, numbers.Integral)
        or int(value) < minimum
        or (maximum is not None and int(value) > maximum)
    ):
        range_ = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise UserError(f"{what} must be an integer {range_}, not {value!r}")
    return int(value)


def picture_side(what: str, value: object, *, minimum: int = 1) -> int:
    """Return ``value`` as the pixels per side of a picture.

    Raises:
        UserError: no integer from ``minimum`` to `LARGEST_SIDE`.
    """
    return integer(f"{what} (pixels per side)", value, minimum=minimum, maximum=LARGEST_SIDE)


def class_names(classes: object) -> tuple[str, ...]:
    """The names of classes, as texts: those of a list, or of a number of classes "0", "1" and so on.

    Raises:
        UserError: a text, a generator or anything else than a list, a tuple or a number; a number outside of
            1 to `MOST_CLASSES`; no name, or one that is given twice.
    """
    if isinstance(classes, numbers.Integral):
        count = integer("classes", classes, minimum=1, maximum=MOST_CLASSES)
        return tuple(str(number) for number in range(count))
    if not isinstance(classes, list | tuple):
        raise UserError(
            f"classes must be the number of classes or a list of all their names, not {classes!r}"
        )
    names = tuple(str(name) for name in classes)
    if not names:
        raise UserError("classes must be at least one name, not an empty list")
    check_different("classes", names)
    return names


def check_different(what: str, names: Sequence[str]) -> None:
    """See that no name is given twice.

    Raises:
        UserError: one is; names it.
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"{what} must be different names: '{name}' is named twice")
        seen.add(name)


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
