"""Winograd's forms of 3 x 3 convolutions: fewer products for several neighbouring outputs at once.

F(m, r) gives m outputs of a filter with r taps by m + r - 1 products instead of m r:
y = A^T [(G g) * (B^T x)], elementwise in the brackets; nested in rows and columns,
Y = A^T [(G g G^T) * (B^T X B)] A (Winograd, Arithmetic Complexity of Computations, 1980; Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, CVPR 2016). A forward convolution and the gradient by its input are
both stencils in :mod:`contraction`, so both take these forms.

The points at which the polynomials are evaluated decide the rounding errors. With 0, +-1, +-2 F(4, 3) x F(4, 3) is
7 to 9 times less exact than the direct form; with the points below the errors stay within 2.6 times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from meta500.backends.generated.contraction import STENCIL, Blocked, steps
from meta500.backends.generated.ir import Axis, Stage
from meta500.backends.generated.layout import Place

Matrix = tuple[tuple[Fraction, ...], ...]

_TAPS = 3
# For F(4, 3) along rows only, F(4, 3) in both directions, F(2, 3); the last point is infinity.
SINGLE = tuple(map(Fraction, ("0", "3/4", "-3/4", "3/2", "-3/2")))
DOUBLE = tuple(map(Fraction, ("0", "5/8", "-5/8", "3/2", "-3/2")))
SHORT = tuple(map(Fraction, ("0", "1", "-1")))
# With fewer channels the transforms cost more than the products that they save.
_FEWEST, _FEWEST_DOUBLE = 4, 8
# Numbers between the planes of the scratch memory, so that they do not meet in the same sets of a cache.
_PADDING, _DOUBLE_PADDING = 32, 80
# The transformed image may fill so much of the cache of a core: 128 KiB of float32.
import os

_CACHED = int(os.environ.get("STRETCH", 32 * 1024))
# Tiles that lie side by side in a vector of their own: vectors have 4 lanes at least.
_FEWEST_LANES = 4


@dataclass(frozen=True)
class Transforms:
    """The matrices of F(m, r) with n = m + r - 1 products.

    Attributes:
        outputs: m.
        result: A^T, m x n.
        kernel: G, n x r.
        data: B^T, n x n.
    """

    outputs: int
    result: Matrix
    kernel: Matrix
    data: Matrix

    @property
    def products(self) -> int:
        """n."""
        return len(self.data)

    def __str__(self) -> str:
        return f"F({self.outputs}, {len(self.kernel[0])})"


def transforms(points: Sequence[Fraction], taps: int = _TAPS) -> Transforms:
    """The matrices of F(m, taps) for m + taps - 2 points and infinity.

    Toom-Cook: the product of two polynomials of degrees m - 1 and taps - 1 is found from its values at the
    points (infinity gives the leading coefficient) and Lagrange's interpolation; the correlation is the
    transposed algorithm. Every entry is exact. B^T holds the coefficients of the monic polynomials
    prod (x - q) over the points q other than the row's; their values at the row's point divide G.
    """
    outputs = len(points) + 2 - taps

    def powers(count: int) -> list[list[Fraction]]:
        finite = [[point**power for power in range(count)] for point in points]
        return [*finite, [Fraction(0)] * (count - 1) + [Fraction(1)]]

    def monic(roots: Sequence[Fraction]) -> list[Fraction]:
        found = [Fraction(1)]
        for root in roots:
            found = [a - root * b for a, b in zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)]
        return found + [Fraction(0)] * (len(points) + 1 - len(found))

    kernel, data = powers(taps), []
    for position, point in enumerate(points):
        others = [q for q in points if q != point]
        scale = Fraction(1)
        for q in others:
            scale *= point - q
        kernel[position] = [entry / scale for entry in kernel[position]]
        data.append(monic(others))
    data.append(monic(points))
    result = zip(*powers(outputs), strict=True)
    return Transforms(outputs, tuple(result), tuple(map(tuple, kernel)), tuple(map(tuple, data)))


@dataclass(frozen=True)
class Winograd:
    """A stencil of 3 x 3 taps in Winograd's form.

    Attributes:
        direct: the same sum of products in the direct form.
        down: along image rows.
        across: along the vectorised axis; None for all three taps there as they are.
        lanes: numbers in the vectors that are multiplied.
        side: tiles side by side in one row of tiles; ``lanes // side`` rows of tiles share a vector.
        block: results (channels) of a block.
        stretch: image columns whose tiles are in the scratch memory at a time.
    """

    direct: Blocked
    down: Transforms
    across: Transforms | None
    lanes: int
    side: int
    block: int
    stretch: int

    @property
    def stage(self) -> Stage:
        """The stage that it computes."""
        return self.direct.stage

    @property
    def split(self) -> Axis:
        """The axis whose range the caller chooses."""
        return self.direct.rows[0]

    @property
    def groups(self) -> int:
        """Rows of tiles that share a vector."""
        return self.lanes // self.side

    @property
    def granule(self) -> int:
        """Ranges begin and end at multiples of this."""
        return self.down.outputs * self.groups

    @property
    def private(self) -> bool:
        """Whether threads add into copies of their own: never."""
        return False

    @property
    def columns(self) -> int:
        """Image columns of one vector of tiles."""
        return self.side * (self.across.outputs if self.across else 1)

    @property
    def results(self) -> Axis:
        """The axis of the results that share an image: output channels of a convolution."""
        return self.direct.blocks[0][0]

    @property
    def summed(self) -> Axis:
        """The summed axis beside the taps."""
        return self.direct.inner[0]

    @property
    def pitch(self) -> int:
        """Numbers between the summed axis' elements in the scratch memory."""
        if self.across is None:
            # Left of a row is room for a column that the window begins before it.
            return self.direct.vector[0].size + self.lanes
        return self.down.products * self.lanes

    @property
    def plane(self) -> int:
        """Numbers between planes of the scratch memory: one for every point of ``across``, else of ``down``."""
        return self.summed.size * self.pitch + (_DOUBLE_PADDING if self.across else self.lanes + _PADDING)

    @property
    def scratch(self) -> int:
        """Numbers of memory of its own that it needs while it runs: the transformed image."""
        if self.across is None:
            return self.down.products * self.plane
        return self.stretch // self.columns * self.across.products * self.plane

    @property
    def filter_size(self) -> int:
        """Numbers of one transformed filter."""
        return self.down.products * (self.across.products if self.across else _TAPS)

    @property
    def prepared(self) -> int:
        """Numbers of all transformed weights."""
        return self.results.size * self.summed.size * self.filter_size

    def __str__(self) -> str:
        rows, (vector, _) = self.split, self.direct.vector
        form = f"Winograd {self.down} down" + (f" x {self.across} across" if self.across else "")
        parts = [f"{form} on {self.lanes} lanes: rows {rows.name}<{rows.size} by {self.granule}"]
        parts.append(f"blocks {self.results.name}<{self.results.size} by {self.block}")
        parts.append(f"vectors {vector.name}<{vector.size} by {self.columns} columns")
        if self.groups > 1:
            parts.append(f"{self.groups} rows of tiles in a vector")
        if self.direct.outer:
            parts.append("outside " + ", ".join(f"{a.name}<{a.size}" for a in self.direct.outer))
        parts.append(f"summed {self.summed.name}<{self.summed.size}")
        parts.append(f"scratch {self.scratch}, transformed weights {self.prepared}")
        return "; ".join(parts)


def winograd(direct: Blocked, places: Mapping[str, Place], lanes: int, registers: int) -> Winograd | None:
    """Winograd's form of a stencil; None where it has none, or none that is faster.

    Args:
        direct: the stencil in the direct form.
        places: of its tensors.
        lanes: float32 numbers in the widest vector.
        registers: number of vector registers.
    """
    if not _suits(direct, places):
        return None
    results, summed = direct.blocks[0][0].size, direct.inner[0].size
    # A block's sums for six points stay in registers.
    block = 4 if registers >= 32 and results % 4 == 0 else 2
    channels = min(results, summed)
    rows, width = direct.rows[0].size, direct.vector[0].size
    if results % block or channels < _FEWEST:
        return None
    if channels >= _FEWEST_DOUBLE:
        # Half a vector costs less than the larger number of products of F(2, 3).
        for points in (DOUBLE, SHORT):
            down, across = transforms(DOUBLE if points is DOUBLE else SINGLE), transforms(points)
            for wide in (lanes, lanes // 2):
                side = wide
                while side >= _FEWEST_LANES:
                    plan = Winograd(direct, down, across, wide, side, block, side * across.outputs)
                    if width % plan.columns == 0 and rows % plan.granule == 0:
                        return _stretched(plan)
                    side //= 2
    down = transforms(SINGLE)
    if rows % down.outputs or direct.lanes < _FEWEST_LANES:
        return None
    return Winograd(direct, down, None, direct.lanes, direct.lanes, block, width)


def _stretched(plan: Winograd) -> Winograd:
    """As many columns at a time as a part of the cache holds in transformed form."""
    count = plan.direct.vector[0].size // plan.columns
    fitting = [n for n in range(1, count + 1) if count % n == 0 and n * plan.scratch <= _CACHED]
    return replace(plan, stretch=max(fitting, default=1) * plan.columns)


def _suits(direct: Blocked, places: Mapping[str, Place]) -> bool:
    """Whether a stencil has 3 x 3 taps without strides, one axis of results and one summed axis."""
    if direct.form != STENCIL or direct.masked or direct.interleaved or direct.private:
        return False
    if len(direct.blocks) != 1 or len(direct.inner) != 1 or [t.size for t in direct.taps] != [_TAPS] * 2:
        return False
    rows, vector = direct.rows[0].name, direct.vector[0].name
    write = steps(direct.stage.write, places)
    image, weights = steps(direct.first.access, places), steps(direct.second.access, places)
    if image[vector] != 1 or write[vector] != 1 or image[rows] <= 0:
        return False
    if sorted(abs(image[t.name]) for t in direct.taps) != sorted((1, image[rows])) or image[rows] == 1:
        return False
    axes = {direct.blocks[0][0].name, direct.inner[0].name, *(t.name for t in direct.taps)}
    return set(weights) <= axes


def window(plan: Winograd, places: Mapping[str, Place]) -> tuple[dict[str, int], dict[str, bool]]:
    """How taps lie in the window of the image that a result sees.

    Returns:
        The value of every tap at the window's beginning, and whether it runs along rows (``down``).
    """
    image = steps(plan.direct.first.access, places)
    begin = {t.name: 0 if image[t.name] > 0 else t.size - 1 for t in plan.direct.taps}
    return begin, {t.name: abs(image[t.name]) != 1 for t in plan.direct.taps}
