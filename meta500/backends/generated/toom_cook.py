"""Toom-Cook convolution (Winograd's minimal filtering): sums of shifted products with fewer multiplications.

F(m, r) computes the m sums y[i] = sum_{j<r} d[i + j] g[j] from m + r - 1 products instead of m r::

    y = A^T [(G g) * (B^T d)]

The matrices follow from the points at which polynomials are evaluated, the last one being infinity. Points
of similar size keep rounding errors small.
Source: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, https://arxiv.org/abs/1509.09308
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

Matrix = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class ToomCook:
    """The exact matrices of F(m, r) with n = m + r - 1 products.

    Attributes:
        points: the n - 1 finite points.
        output: A^T, m x n.
        filter: G, n x r.
        data: B^T, n x n.
    """

    points: tuple[Fraction, ...]
    output: Matrix
    filter: Matrix
    data: Matrix

    @property
    def products(self) -> int:
        """Number n of products."""
        return len(self.data)


def toom_cook(outputs: int, taps: int, points: Sequence[Fraction]) -> ToomCook:
    """The matrices of F(outputs, taps).

    Args:
        outputs: number m of sums.
        taps: number r of terms in each.
        points: m + r - 2 different points; infinity is the last one.

    Raises:
        ValueError: another number of points, or two equal ones.
    """
    n = outputs + taps - 1
    if len(points) != n - 1 or len(set(points)) != n - 1:
        raise ValueError(
            f"F({outputs}, {taps}) needs {n - 1} different points, got {[str(p) for p in points]}"
        )
    weights = [_product(p - q for q in points if q != p) for p in points]
    output = tuple(tuple([*(p**i for p in points), Fraction(i == outputs - 1)]) for i in range(outputs))
    filter_rows = [tuple(p**j / w for j in range(taps)) for p, w in zip(points, weights, strict=True)]
    filter_rows.append(tuple(Fraction(j == taps - 1) for j in range(taps)))
    data = [(*_polynomial([q for q in points if q != p]), Fraction(0)) for p in points]
    data.append(_polynomial(points))
    return ToomCook(tuple(points), output, tuple(filter_rows), tuple(data))


def _product(factors: Iterable[Fraction]) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients, the constant first, of the product of (x - root)."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [a - root * b for a, b in zip(shifted, [*found, Fraction(0)], strict=True)]
    return tuple(found)
