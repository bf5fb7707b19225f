"""Reading arrays between their elements: weighted sums over a few neighbours (taps) along every axis.

A point's value is the sum over all combinations of one tap per axis of the element there times the product of
the taps' weights. Coordinates count elements: 0 is the first one's centre.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Taps:
    """The neighbours of points along one axis; every array has shape (B, P, T).

    ``index`` is always a valid position, ``inside`` whether the tap lies in the array (else it reads 0),
    ``weight`` its weight, ``slope`` the weight's derivative in the coordinate.
    """

    index: np.ndarray
    inside: np.ndarray
    weight: np.ndarray
    slope: np.ndarray


def _taps(places: np.ndarray, size: int, weight: np.ndarray, slope: np.ndarray) -> Taps:
    """Taps at whole ``places`` (floats), which read 0 outside of 0..size-1."""
    inside = (places >= 0) & (places <= size - 1)
    return Taps(np.where(inside, places, 0).astype(np.int64), inside, weight, slope)


def nearest_taps(x: np.ndarray, size: int) -> Taps:
    """The nearest element of each coordinate (B, P), ties to the even one."""
    places = np.rint(x)[..., None]
    return _taps(places, size, np.ones_like(places), np.zeros_like(places))


def linear_taps(x: np.ndarray, size: int) -> Taps:
    """The two neighbours of each coordinate (B, P)."""
    below = np.floor(x)
    t = x - below
    one = np.ones_like(x)
    places = np.stack([below, below + 1], axis=-1)
    return _taps(places, size, np.stack([1 - t, t], axis=-1), np.stack([-one, one], axis=-1))


def cubic_places(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The four neighbours of each coordinate (B, P): places, weights and slopes (B, P, 4).

    Keys' convolution kernel (1981) with a = -0.75.
    """
    a = -0.75
    below = np.floor(x)
    shift = np.arange(-1, 3, dtype=x.dtype)
    s = (x - below)[..., None] - shift
    u = np.abs(s)
    near = ((a + 2) * u - (a + 3)) * u * u + 1
    far = ((a * u - 5 * a) * u + 8 * a) * u - 4 * a
    near_slope = (3 * (a + 2) * u - 2 * (a + 3)) * u
    far_slope = (3 * a * u - 10 * a) * u + 8 * a
    # The middle two of the four taps are the near ones.
    middle = np.array([False, True, True, False])
    sign = np.array([1, 1, -1, -1], x.dtype)
    weight = np.where(middle, near, far)
    slope = np.where(middle, near_slope, far_slope) * sign
    return below[..., None] + shift, weight, slope


def cubic_taps(places: np.ndarray, size: int, weight: np.ndarray, slope: np.ndarray) -> Taps:
    """Taps of :func:`cubic_places`, whose places a padding may have moved."""
    return _taps(places, size, weight, slope)


def _combinations(
    taps: Sequence[Taps], sizes: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], np.ndarray, np.ndarray]]:
    """Every choice of one tap per axis: the choice, flat positions (B, P), and whether it lies inside."""
    steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    for choice in itertools.product(*(range(t.index.shape[-1]) for t in taps)):
        chosen = [(t.index[..., k], t.inside[..., k]) for t, k in zip(taps, choice, strict=True)]
        flat = sum(index * step for (index, _), step in zip(chosen, steps, strict=True))
        yield choice, np.asarray(flat), np.logical_and.reduce([inside for _, inside in chosen])


def _product(taps: Sequence[Taps], choice: Sequence[int], slope_of: int = -1) -> np.ndarray:
    """Product of the chosen weights (B, P), with the slope in place of the weight for one axis."""
    factors = [
        (t.slope if axis == slope_of else t.weight)[..., k]
        for axis, (t, k) in enumerate(zip(taps, choice, strict=True))
    ]
    return math.prod(factors[1:], start=factors[0])


def picked(x: np.ndarray, flat: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Elements (B, C, P) of ``x`` (B, C, *spatial) at flat spatial positions (B, P), zeros outside."""
    rows = x.reshape(*x.shape[:2], math.prod(x.shape[2:]))
    if rows.shape[2] == 0:
        return np.zeros((*x.shape[:2], flat.shape[1]), x.dtype)
    found = np.take_along_axis(rows, flat[:, None, :], axis=2)
    # The zero of strings is the empty one.
    zero = "" if x.dtype.kind == "O" else np.zeros((), x.dtype)
    return np.where(inside[:, None, :], found, zero)


def sample(x: np.ndarray, taps: Sequence[Taps]) -> np.ndarray:
    """Values (B, C, P) of ``x`` (B, C, *spatial) at the points of ``taps`` (one per spatial axis)."""
    total = np.zeros((*x.shape[:2], taps[0].index.shape[1]), np.result_type(x, taps[0].weight))
    for choice, flat, inside in _combinations(taps, x.shape[2:]):
        total += picked(x, flat, inside) * _product(taps, choice)[:, None, :]
    return total


def sample_one(x: np.ndarray, taps: Sequence[Taps]) -> np.ndarray:
    """As :func:`sample` with one tap of weight 1 per axis: the elements themselves, of any type."""
    _, flat, inside = next(_combinations(taps, x.shape[2:]))
    return picked(x, flat, inside)


def sample_adjoint(
    d: np.ndarray, x: np.ndarray, taps: Sequence[Taps], want_x: bool, want_points: bool
) -> tuple[np.ndarray | None, list[np.ndarray] | None]:
    """Adjoint of :func:`sample`: ``d`` (B, C, P) to gradients of ``x`` and of the coordinates (B, P each)."""
    batch, channels = x.shape[:2]
    elements = math.prod(x.shape[2:])
    d_x = np.zeros(batch * channels * elements, d.dtype) if want_x else None
    d_points = [np.zeros((batch, d.shape[2]), d.dtype) for _ in taps] if want_points else None
    rows = (np.arange(batch * channels) * elements).reshape(batch, channels, 1)
    for choice, flat, inside in _combinations(taps, x.shape[2:]):
        if d_x is not None and d_x.size:
            values = d * np.where(inside, _product(taps, choice), 0)[:, None, :]
            d_x = d_x + _summed((rows + flat[:, None, :]).reshape(-1), values.reshape(-1), d_x.size)
        if d_points is not None:
            moved = (picked(x, flat, inside) * d).sum(axis=1)
            for axis, total in enumerate(d_points):
                total += moved * _product(taps, choice, axis)
    return None if d_x is None else d_x.reshape(x.shape), d_points


def _summed(index: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
    """Sums of the values with equal index, in float64 (each part of complex numbers)."""
    if values.dtype.kind == "c":
        return _summed(index, values.real, length) + 1j * _summed(index, values.imag, length)
    return np.bincount(index, weights=values, minlength=length)
