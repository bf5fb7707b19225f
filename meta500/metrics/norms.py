"""How far a result is from its float64 reference, and how far it may be.

All arithmetic is in float64 (integers: exact). NaN and infinity count: where result and reference
are both NaN, or the same infinity, the error is 0; where only one is, it is infinite. A result that
overflowed to the infinity to which the reference rounds in the result's own type is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from meta500.errors import UserError

SAFETY = 16.0


@dataclass(frozen=True)
class ErrorNorms:
    """Distances between a result r and its reference x, all 0 for equal (or empty) arrays.

    max_absolute: max |r - x|.
    max_relative: max |r - x| / max(|x|, rms(x)). Elements far below the root mean square are
        measured against it, since cancellation leaves in them the rounding error of the large ones.
    l1: sum |r - x|.
    l2_relative: ||r - x|| / ||x|| in the Euclidean norm (infinite if only x is 0).
    ulp: largest number of steps between neighbouring numbers of the result's type from r to the
        rounded x; None for types that are no binary floating point of 16, 32 or 64 bits.
    mismatched: elements where one is NaN or infinite and the other is not the same.
    worst: index of the element with the largest relative error, or None if all errors are 0.
    """

    max_absolute: float
    max_relative: float
    l1: float
    l2_relative: float
    ulp: float | None
    mismatched: int
    worst: tuple[int, ...] | None

    def within(self, limit: float) -> bool:
        """Whether ``max_relative`` is at most the limit, see :func:`tolerance`."""
        return self.max_relative <= limit

    def verdict(self, limit: float) -> str:
        """Verdict of a result row: "ok" within the limit, else "wrong"."""
        return "ok" if self.within(limit) else "wrong"


def compare(result: ArrayLike, reference: ArrayLike) -> ErrorNorms:
    """Norms of ``result - reference``.

    Args:
        result: array of any shape; floating (float8 to float64, bfloat16), integer, boolean,
            complex, text.
        reference: array of the same shape and kind, best float64 (complex128) for floating results.

    Raises:
        UserError: shapes or kinds differ, or the type holds no numbers or text.
    """
    r, x = np.asarray(result), np.asarray(reference)
    if r.shape != x.shape:
        raise UserError(f"result has shape {r.shape} but reference has shape {x.shape}")
    kind = _kind(r.dtype)
    if kind != _kind(x.dtype):
        raise UserError(
            f"result is {kind} ({r.dtype}) but reference is {_kind(x.dtype)} ({x.dtype}); "
            "compare numbers of the same kind"
        )
    if kind == "text":
        return _text_norms(r, x)
    if not r.size:
        return ErrorNorms(0.0, 0.0, 0.0, 0.0, 0.0 if _has_ulp(r.dtype) else None, 0, None)
    if kind == "integer":
        difference, scale = _integer_difference(r, x)
        mismatch = np.zeros(r.shape, bool)
    else:
        difference, scale, mismatch = _floating_difference(r, x, kind)
    (rms_r, unit_r), (rms_x, unit_x) = _root_mean_square(difference), _root_mean_square(scale)
    relative = _quotient(difference, np.maximum(scale, rms_x * unit_x))
    l2 = float(_quotient(rms_r, rms_x)) * (unit_r / unit_x)
    maximum = float(relative.max())
    worst = np.unravel_index(int(relative.argmax()), relative.shape) if maximum > 0 else None
    return ErrorNorms(
        max_absolute=float(difference.max()),
        max_relative=maximum,
        l1=float(difference.sum()),
        l2_relative=l2,
        ulp=_ulp_distance(r, x) if _has_ulp(r.dtype) else None,
        mismatched=int(mismatch.sum()),
        worst=None if worst is None else tuple(int(i) for i in worst),
    )


def tolerance(dtype: Any, reduction_length: int = 1) -> float:
    """Largest ``max_relative`` that rounding alone explains: 16 eps(dtype) sqrt(reduction_length).

    The errors of a sum of n terms grow like sqrt(n) eps when they are independent (N. J. Higham and
    T. Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019); 16 covers the largest
    of many elements and the few units of elementary functions. It is 0, that is equality, for
    integers, booleans and text.

    Args:
        dtype: type in which the result was computed (numpy, or ml_dtypes for bfloat16 and float8).
        reduction_length: terms of the longest sum behind one element, e.g. input channels times
            kernel size for a convolution; for a chain of operators their sum.

    Raises:
        UserError: the type holds no numbers or text, or the length is not positive.
    """
    dtype = np.dtype(dtype)
    if reduction_length < 1:
        raise UserError(f"reduction_length {reduction_length} must be at least 1")
    if _kind(dtype) in ("integer", "text"):
        return 0.0
    return SAFETY * float(_finfo(dtype).eps) * float(np.sqrt(reduction_length))


def _kind(dtype: np.dtype[Any]) -> str:
    kinds = {"b": "integer", "i": "integer", "u": "integer", "f": "floating", "c": "complex"}
    if dtype.kind in kinds:
        return kinds[dtype.kind]
    if dtype.kind in "UTOS":
        return "text"
    if dtype.type.__module__.startswith("ml_dtypes"):
        return "integer" if dtype.name.startswith(("int", "uint")) else "floating"
    raise UserError(f"elements of type {dtype} cannot be compared; use numbers, booleans or text")


def _finfo(dtype: np.dtype[Any]) -> Any:
    if dtype.type.__module__.startswith("ml_dtypes"):
        import ml_dtypes

        return ml_dtypes.finfo(dtype)
    return np.finfo(dtype)


def _text_norms(r: np.ndarray, x: np.ndarray) -> ErrorNorms:
    different = np.asarray(r != x, dtype=bool)
    count = int(different.sum())
    worst = np.unravel_index(int(different.argmax()), r.shape) if count else None
    distance = float("inf") if count else 0.0
    index = None if worst is None else tuple(int(i) for i in worst)
    return ErrorNorms(distance, distance, distance, distance, None, count, index)


def _integer_difference(r: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|r - x| and |x| as float64, exact below 2^53 and correctly rounded above."""
    if r.dtype.itemsize < 8 and x.dtype.itemsize < 8:
        wide = x.astype(np.int64)
        return np.abs(r.astype(np.int64) - wide).astype(np.float64), np.abs(wide).astype(np.float64)
    # 64 bits: the difference may not fit into any integer type of numpy, Python's integers are
    # unbounded.
    exact = x.astype(object)
    difference = np.asarray(np.abs(r.astype(object) - exact), dtype=object)
    return difference.astype(np.float64), np.asarray(np.abs(exact), dtype=object).astype(np.float64)


def _floating_difference(
    r: np.ndarray, x: np.ndarray, kind: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """|r - x|, |x| with non-finite elements as 0, and where non-finite elements differ."""
    wide: Any = np.complex128 if kind == "complex" else np.float64
    with np.errstate(all="ignore"):
        result, reference = r.astype(wide), x.astype(wide)
        rounded = x.astype(r.dtype).astype(wide)
        difference = np.abs(result - reference)
    finite = np.isfinite(result) & np.isfinite(reference)
    alike = (result == reference) | (np.isnan(result) & np.isnan(reference))
    alike |= np.isinf(result) & (result == rounded)
    mismatch = ~finite & ~alike
    # Two finite numbers can be more than the largest float64 apart: that is an infinite error as
    # well.
    difference = np.where(finite, difference, np.where(mismatch, np.inf, 0.0))
    with np.errstate(all="ignore"):
        scale = np.where(np.isfinite(reference), np.abs(reference), 0.0)
    return difference, np.where(np.isfinite(scale), scale, np.finfo(np.float64).max), mismatch


def _root_mean_square(array: np.ndarray) -> tuple[float, float]:
    """Mantissa and unit, product sqrt(mean(array^2)); the squares stay in float64's range."""
    largest = float(array.max())
    if largest in (0.0, np.inf):
        return largest, 1.0
    unit = 2.0 ** min(max(int(np.log2(largest)), -1000), 1000)
    return float(np.sqrt(np.mean((array / unit) ** 2))), unit


def _quotient(difference: Any, scale: Any) -> np.ndarray:
    """difference / scale, where 0 / 0 is 0 and anything else over 0 is infinite."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(difference == 0, 0.0, np.asarray(difference) / np.asarray(scale))


def _has_ulp(dtype: np.dtype[Any]) -> bool:
    return (dtype.kind == "f" and dtype.itemsize in (2, 4, 8)) or dtype.name == "bfloat16"


def _ulp_distance(r: np.ndarray, x: np.ndarray) -> float:
    """Largest distance in the ordered sequence of numbers of r's type; NaN is near NaN only."""
    with np.errstate(all="ignore"):
        rounded = x.astype(r.dtype)
    nan_r, nan_x = np.isnan(r), np.isnan(rounded)
    a, b = _ordinal(r), _ordinal(rounded)
    # Differences of like signs are exact; of opposite signs they can exceed 64 bits, and are huge
    # anyway.
    with np.errstate(over="ignore"):
        steps = np.where(
            (a < 0) == (b < 0),
            np.abs(a - b).astype(np.float64),
            np.abs(a.astype(np.float64)) + np.abs(b.astype(np.float64)),
        )
    steps = np.where(nan_r & nan_x, 0.0, np.where(nan_r | nan_x, np.inf, steps))
    steps = np.where((np.isinf(r) | np.isinf(rounded)) & (a != b), np.inf, steps)
    return float(steps.max())


def _ordinal(array: np.ndarray) -> np.ndarray:
    """Signed position among all numbers of the type, as int64; both zeros are at 0."""
    size = array.dtype.itemsize
    plain = np.ascontiguousarray(array).view(f"i{size}").reshape(array.shape).astype(np.int64)
    return np.where(plain < 0, np.int64(-(2 ** (8 * size - 1))) - plain, plain)
