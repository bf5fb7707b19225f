"""Directional derivatives by central differences in float64, which know their own error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

EPSILON = float(np.finfo(np.float64).eps)
# What a smooth function's extrapolations may differ by, as a part of the derivative.
_SMOOTH = 1e-6
# How many elements move at once, about.
_MOVED = 256


@dataclass(frozen=True)
class Derivative:
    """Derivatives of several numbers along one direction.

    Attributes:
        value: float64, one per number.
        noise: what rounding alone may have added to each.
        smooth: for each whether the differences of three steps belong to one smooth function; False at kinks
            and jumps, and where a value is not finite.
    """

    value: np.ndarray
    noise: np.ndarray
    smooth: np.ndarray


def directional(
    function: Callable[[float], tuple[np.ndarray, np.ndarray]], epsilon: float = EPSILON
) -> Derivative:
    """The derivative at t = 0 by Richardson extrapolation of central differences.

    D(h) = (f(h) - f(-h)) / 2h has the error c h^2; R(h) = (4 D(h/2) - D(h)) / 3 that of h^4. R(h) and R(h/2)
    agree for a smooth f, and the second differences s(h) = (f(h) - 2 f(0) + f(-h)) / h halve with h; at a
    kink in 0 D would be the mean of both slopes and s(h) stay as it is.

    Args:
        function: t -> (values, sizes): n numbers and for each the sum of the magnitudes that it was added
            up from, which bounds its rounding error.
        epsilon: relative precision of the numbers (float64's). The step h is its fourth root: central
            differences miss by h^2 and eps/h, extrapolated ones by h^4 and eps/h, so that the first vanishes
            against the second, and kinks nearby stay out of reach.
    """
    step = epsilon**0.25
    with np.errstate(all="ignore"):
        centre, sizes = function(0.0)
        ahead = [function(step / 2**k)[0] for k in range(3)]
        behind = [function(-step / 2**k)[0] for k in range(3)]
        steps = [step / 2**k for k in range(3)]
        first = [(a - b) / (2 * h) for a, b, h in zip(ahead, behind, steps, strict=True)]
        second = [(a - 2 * centre + b) / h for a, b, h in zip(ahead, behind, steps, strict=True)]
        coarse, fine = (4 * first[1] - first[0]) / 3, (4 * first[2] - first[1]) / 3
        noise = 16 * epsilon * sizes / steps[2]
        allowed = _SMOOTH * np.maximum(np.abs(fine), np.abs(first[0])) + noise
        smooth = np.abs(fine - coarse) <= allowed
        smooth &= np.abs(second[1] - second[0] / 2) <= allowed
        smooth &= np.isfinite(fine) & np.isfinite(noise)
    return Derivative(fine, noise, smooth)


def direction(rng: np.random.Generator, point: np.ndarray) -> np.ndarray:
    """A direction at ``point``: signs drawn at random, as long as a typical element is large.

    Elements that are not finite don't move, and of many elements only some do, since each that moves may
    meet a kink; those in the corners are among them, since an operator may treat borders in another way.
    """
    signs = rng.choice((-1.0, 1.0), point.shape)
    if point.size > _MOVED:
        moved = rng.random(point.shape) < _MOVED / point.size
        near = (0, 1, -2, -1) if point.ndim <= 3 else (0, -1)
        moved[np.ix_(*([i for i in near if -size <= i < size] for size in point.shape))] = True
        signs *= moved
    return np.where(np.isfinite(point), signs * scale(point), 0.0)


def scale(point: np.ndarray) -> float:
    """The root of the mean square of the finite elements of ``point``; 1 where that is 0."""
    finite = point[np.isfinite(point)]
    size = float(np.sqrt(np.mean(finite**2))) if finite.size else 0.0
    return size if size > 0 else 1.0


def nearby(rng: np.random.Generator, point: np.ndarray, distance: float) -> np.ndarray:
    """Another point: every finite element moved by up to ``distance`` times the typical element."""
    moved = point + distance * scale(point) * rng.uniform(-1, 1, point.shape)
    return np.where(np.isfinite(point), moved, point)
